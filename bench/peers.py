"""One adapter per library, so that a workload is one formula and not eight programs.

A Peer knows how its library spells the few functions that the formulas use (`ns`), and how it differentiates: what
`value_and_grad` and `sgd` return is the step that is timed, the way a user of that library would write it. Libraries
are imported only when asked for. This module must not import NumPy at its head: `limit_threads` has to come first.
"""

import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

Step = Callable[[], list]


@dataclass(frozen=True)
class Peer:
    """How one library spells and differentiates a formula."""

    name: str
    kind: str  # eager, or compiled
    ns: SimpleNamespace
    value_and_grad: Callable[..., Step]  # (f, leaves, consts) -> step() -> [value, *gradients]
    sgd: Callable[..., Step]  # (f, params, consts, lr) -> step() -> [loss, *updated params]


def limit_threads(n: int) -> None:
    """n threads for every library: environment, and affinity for those with a pool as wide as the machine."""
    for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "TF_NUM_INTRAOP", "TF_NUM_INTEROP"):
        os.environ[f"{name}_NUM_THREADS" if "TF" not in name else f"{name}_THREADS"] = str(n)
    # OpenCL's implementations for processors: Intel's, PoCL, llvmpipe
    os.environ.update(DPCPP_CPU_NUM_CUS=str(n), POCL_MAX_PTHREAD_COUNT=str(n), LP_NUM_THREADS=str(n))
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="")
    if hasattr(os, "sched_setaffinity"):
        chosen: dict = {}  # the first CPU of each core, then the others
        cpus = sorted(os.sched_getaffinity(0), key=lambda cpu: (_second_of_its_core(cpu), cpu))
        for cpu in cpus[:n]:
            chosen[cpu] = True
        os.sched_setaffinity(0, chosen)


def _second_of_its_core(cpu: int) -> bool:
    try:
        with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as file:
            return int(file.read().replace("-", ",").split(",")[0]) != cpu
    except (OSError, ValueError):
        return False


# ---- eager, define by run ----


def tapeflow(threads: int) -> Peer:
    tp: Any = importlib.import_module("tapeflow")
    tp.set_num_threads(threads)
    ns = SimpleNamespace(
        sin=tp.sin, exp=tp.exp, tanh=tp.tanh, relu=tp.relu, softplus=tp.softplus, sum=tp.sum,
        cross_entropy=tp.cross_entropy, mse=tp.mse_loss,
        rows=lambda table, ids: tp.take(table, ids, axis=0), columns=lambda t, ids: tp.take(t, ids, axis=1),
        sigmoid=tp.sigmoid, logsumexp=tp.logsumexp, softmax=tp.softmax, gelu_tanh=tp.gelu_tanh,
        layer_norm=lambda x, w, b: tp.layer_norm(x, w.shape, w, b), reshape=tp.reshape, permute=tp.permute_dims,
        grad=tp.grad,
    )  # fmt: skip

    def value_and_grad(f, leaves, consts):
        xs = [tp.tensor(a, requires_grad=True) for a in leaves]
        cs = [tp.tensor(a) for a in consts]

        def step():
            y = f(*xs, *cs)
            y.backward()
            out = [y]
            for x in xs:
                out.append(x.grad)
                x.grad = None
            return out

        return step

    def sgd(f, params, consts, lr):
        ps, update = _descent(tp, f, params, consts, lr)
        return lambda: [update(), *ps]

    return Peer("tapeflow", "eager", ns, value_and_grad, sgd)


def _descent(tp: Any, f, params, consts, lr):
    """The parameters as tensors, and a step that updates them and returns the loss."""
    ps = [tp.tensor(a, requires_grad=True) for a in params]
    cs = [tp.tensor(a) for a in consts]

    def update():
        loss = f(*ps, *cs)
        loss.backward()
        with tp.no_grad():
            for p in ps:
                p.assign_sub(lr * p.grad)
                p.grad = None
        return loss

    return ps, update


def tapeflow_frozen(threads: int, fast: bool = False, name: str = "tapeflow-frozen") -> Peer:
    """The same programs as plans: constants and parameters captured, the leaves of a gradient as arguments."""
    tp: Any = importlib.import_module("tapeflow")
    ns = tapeflow(threads).ns

    def value_and_grad(f, leaves, consts):
        xs, cs = ([tp.tensor(a) for a in arrays] for arrays in (leaves, consts))
        whole = tp.value_and_grad(lambda *xs: f(*xs, *cs), argnums=tuple(range(len(xs))))
        plan = tp.freeze(whole, *xs, fast=fast)

        def step():
            y, gradients = plan(*xs)
            return [y, *gradients]

        return step

    def sgd(f, params, consts, lr):
        ps, update = _descent(tp, f, params, consts, lr)
        plan = tp.freeze(update, fast=fast)
        return lambda: [plan(), *ps]

    return Peer(name, "compiled", ns, value_and_grad, sgd)


def torch(threads: int, compiled: bool = False, name: str = "torch") -> Peer:
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(threads)
    prepare = torch.compile if compiled else lambda f: f

    def lstm(x, h, c, w, u, b, b2):
        """The last hidden state; what nn.LSTM calls."""
        return torch.lstm(x, (h[None], c[None]), [w.T, u.T, b, b2], True, 1, 0.0, True, False, False)[1][0]

    ns = SimpleNamespace(
        sin=torch.sin, exp=torch.exp, tanh=torch.tanh, relu=torch.relu, softplus=F.softplus, sum=torch.sum,
        cross_entropy=F.cross_entropy, mse=F.mse_loss, rows=lambda table, ids: F.embedding(ids, table),
        columns=lambda t, ids: torch.index_select(t, 1, ids), sigmoid=torch.sigmoid, logsumexp=torch.logsumexp,
        gelu_tanh=lambda x: F.gelu(x, approximate="tanh"), layer_norm=lambda x, w, b: F.layer_norm(x, w.shape, w, b),
        reshape=torch.reshape, permute=torch.permute, lstm=lstm,
        causal_attention=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        grad=lambda f: lambda x: torch.autograd.grad(f(x), x, create_graph=True)[0],
    )  # fmt: skip

    def value_and_grad(f, leaves, consts):
        xs = [torch.tensor(a, requires_grad=True) for a in leaves]
        cs = [torch.tensor(a) for a in consts]
        f = prepare(f)

        def step():
            y = f(*xs, *cs)
            return [y, *torch.autograd.grad(y, xs)]

        return step

    def sgd(f, params, consts, lr):
        ps = [torch.tensor(a, requires_grad=True) for a in params]
        cs = [torch.tensor(a) for a in consts]
        f = prepare(f)

        def step():
            loss = f(*ps, *cs)
            grads = torch.autograd.grad(loss, ps)
            with torch.no_grad():
                for p, g in zip(ps, grads, strict=True):
                    p.sub_(g, alpha=lr)
            return [loss, *ps]

        return step

    return Peer(name, "compiled" if compiled else "eager", ns, value_and_grad, sgd)


def autograd(threads: int) -> Peer:
    import autograd as ag
    import autograd.numpy as np
    from autograd.scipy.special import expit, logsumexp

    def cross_entropy(z, labels):
        return np.mean(logsumexp(z, axis=1) - z[np.arange(len(labels)), labels])

    ns = SimpleNamespace(
        sin=np.sin, exp=np.exp, tanh=np.tanh, relu=lambda x: np.maximum(x, 0), softplus=lambda x: np.logaddexp(0, x),
        sum=np.sum, cross_entropy=cross_entropy, mse=lambda p, y: np.mean((p - y) ** 2), rows=lambda t, ids: t[ids],
        columns=lambda t, ids: t[:, ids], sigmoid=expit, logsumexp=logsumexp, reshape=np.reshape, permute=np.transpose,
        grad=ag.grad,
    )  # fmt: skip

    def value_and_grad(f, leaves, consts):
        vg = ag.value_and_grad(f, tuple(range(len(leaves))))

        def step():
            y, grads = vg(*leaves, *consts)
            return [y, *grads]

        return step

    def sgd(f, params, consts, lr):
        vg = ag.value_and_grad(f, tuple(range(len(params))))
        ps = [a.copy() for a in params]

        def step():
            loss, grads = vg(*ps, *consts)
            for p, g in zip(ps, grads, strict=True):
                p -= lr * g
            return [loss, *ps]

        return step

    return Peer("autograd", "eager", ns, value_and_grad, sgd)


def mygrad(threads: int) -> Peer:
    import mygrad as mg
    from mygrad.nnet.activations import relu, sigmoid
    from mygrad.nnet.losses import softmax_crossentropy

    mg.turn_memory_guarding_off()  # as its documentation advises for speed

    def logsumexp(x, axis):
        top = x.data.max(axis, keepdims=True)
        return mg.log(mg.sum(mg.exp(x - top), axis)) + top.squeeze(axis)

    ns = SimpleNamespace(
        sin=mg.sin, exp=mg.exp, tanh=mg.tanh, relu=relu, softplus=lambda x: mg.logaddexp(0, x), sum=mg.sum,
        cross_entropy=softmax_crossentropy, mse=lambda p, y: mg.mean((p - y) ** 2), rows=lambda t, ids: t[ids],
        columns=lambda t, ids: t[:, ids], sigmoid=sigmoid, reshape=mg.reshape, permute=mg.transpose,
        logsumexp=logsumexp,
    )  # fmt: skip

    def value_and_grad(f, leaves, consts):
        xs = [mg.tensor(a) for a in leaves]

        def step():
            y = f(*xs, *consts)
            y.backward()
            return [y.data, *[x.grad for x in xs]]

        return step

    def sgd(f, params, consts, lr):
        ps = [mg.tensor(a) for a in params]

        def step():
            loss = f(*ps, *consts)
            loss.backward()
            for p in ps:
                p.data -= lr * p.grad
            return [loss.data, *[p.data for p in ps]]

        return step

    return Peer("mygrad", "eager", ns, value_and_grad, sgd)


def tensorflow(threads: int, compiled: bool = False) -> Peer:
    import tensorflow as tf

    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:
        pass  # already running, with the numbers from the environment
    prepare = tf.function(jit_compile=True) if compiled else lambda f: f

    def layer_norm(x, w, b):
        mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, b, w, 1e-5)

    def grad(f):
        def gradient(x):
            with tf.GradientTape() as tape:
                y = f(x)
            return tape.gradient(y, x)

        return gradient

    ns = SimpleNamespace(
        sin=tf.sin, exp=tf.exp, tanh=tf.tanh, relu=tf.nn.relu, softplus=tf.nn.softplus, sum=tf.reduce_sum,
        cross_entropy=lambda z, labels: tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=z)
        ),
        mse=lambda p, y: tf.reduce_mean(tf.square(p - y)), rows=tf.gather,
        columns=lambda t, ids: tf.gather(t, ids, axis=1), sigmoid=tf.sigmoid, logsumexp=tf.reduce_logsumexp,
        softmax=tf.nn.softmax, gelu_tanh=lambda x: tf.nn.gelu(x, approximate=True), layer_norm=layer_norm,
        reshape=tf.reshape, permute=tf.transpose, grad=grad,
    )  # fmt: skip

    def value_and_grad(f, leaves, consts):
        xs = [tf.Variable(a) for a in leaves]
        cs = [tf.constant(a) for a in consts]

        @prepare
        def run():
            with tf.GradientTape() as tape:
                y = f(*xs, *cs)
            return [y, *map(tf.convert_to_tensor, tape.gradient(y, xs))]

        return run

    def sgd(f, params, consts, lr):
        ps = [tf.Variable(a) for a in params]
        cs = [tf.constant(a) for a in consts]

        @prepare
        def run():
            with tf.GradientTape() as tape:
                loss = f(*ps, *cs)
            for p, g in zip(ps, tape.gradient(loss, ps), strict=True):
                p.assign_sub(lr * g)
            return loss

        return lambda: [run(), *ps]

    name = "tensorflow-xla" if compiled else "tensorflow"
    return Peer(name, "compiled" if compiled else "eager", ns, value_and_grad, sgd)


# ---- traced or symbolic ----


def jax(threads: int, compiled: bool = True) -> Peer:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)  # float32 arrays stay float32
    prepare = jax.jit if compiled else lambda f: f

    def cross_entropy(z, labels):
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(z), labels[:, None], axis=1))

    def layer_norm(x, w, b):
        return jax.nn.standardize(x, epsilon=1e-5) * w + b

    ns = SimpleNamespace(
        sin=jnp.sin, exp=jnp.exp, tanh=jnp.tanh, relu=jax.nn.relu, softplus=jax.nn.softplus, sum=jnp.sum,
        cross_entropy=cross_entropy, mse=lambda p, y: jnp.mean((p - y) ** 2), rows=lambda t, ids: t[ids],
        scan=jax.lax.scan, columns=lambda t, ids: t[:, ids], sigmoid=jax.nn.sigmoid, logsumexp=jax.nn.logsumexp,
        softmax=jax.nn.softmax, gelu_tanh=jax.nn.gelu, layer_norm=layer_norm, reshape=jnp.reshape,
        permute=jnp.transpose, grad=jax.grad, jvp=jax.jvp,
    )  # fmt: skip

    def value_and_grad(f, leaves, consts):
        xs, cs = list(map(jnp.asarray, leaves)), list(map(jnp.asarray, consts))
        vg = prepare(jax.value_and_grad(f, tuple(range(len(xs)))))

        def step():
            y, grads = vg(*xs, *cs)
            return jax.block_until_ready([y, *grads])

        return step

    def sgd(f, params, consts, lr):
        vg = jax.value_and_grad(f, tuple(range(len(params))))
        cs = list(map(jnp.asarray, consts))
        state = list(map(jnp.asarray, params))

        @prepare
        def update(ps, cs):
            loss, grads = vg(*ps, *cs)
            return loss, [p - lr * g for p, g in zip(ps, grads, strict=True)]

        def step():
            loss, state[:] = update(state, cs)
            return jax.block_until_ready([loss, *state])

        return step

    name = "jax" if compiled else "jax-eager"
    return Peer(name, "compiled" if compiled else "eager", ns, value_and_grad, sgd)


def casadi(threads: int) -> Peer:
    """CasADi's virtual machine over one scalar program, with bound buffers; float64 always, one thread."""
    import casadi as ca
    import numpy as np

    ns = SimpleNamespace(
        sin=ca.sin, exp=ca.exp, tanh=ca.tanh, sum=lambda x: ca.sum1(ca.sum2(x)),
        grad=lambda f: lambda x: ca.gradient(f(x), x),
    )  # fmt: skip

    def function(f, leaves):
        """Symbols in the shapes of the leaves, cut from one vector; 1-D leaves are columns."""
        kind = ca.MX if any(a.size > 1 for a in leaves) else ca.SX  # the faster of its two for either
        v = kind.sym("v", sum(a.size for a in leaves))
        parts, at = [], 0
        for a in leaves:
            part, at = v[at : at + a.size], at + a.size
            parts.append(ca.reshape(part, a.shape[::-1]).T if a.ndim == 2 else part if len(leaves) > 1 else v)
        y = f(*parts)
        return v, y, ca.gradient(y, v)

    def bind(function, arrays, results):
        buffer, run = function.buffer()
        for i, a in enumerate(arrays):
            buffer.set_arg(i, memoryview(a))
        for i, a in enumerate(results):
            buffer.set_res(i, memoryview(a))
        return lambda: run(), buffer  # the buffer must stay alive

    def flat(leaves):
        return np.concatenate([np.ravel(a) for a in leaves]).astype(float)

    def split(vector, leaves):
        ends = np.cumsum([a.size for a in leaves])
        return [vector[e - a.size : e].reshape(a.shape) for e, a in zip(ends, leaves, strict=True)]

    def value_and_grad(f, leaves, consts):
        v, y, g = function(lambda *xs: f(*xs, *consts), leaves)
        x, value, grad = flat(leaves), np.zeros(()), np.zeros(sum(a.size for a in leaves))
        run, buffer = bind(ca.Function("f", [v], [y, g]), [x], [value, grad])
        out = [value, *split(grad, leaves), buffer][:-1]

        def step(run=run, out=out, keep=(buffer, x)):
            run()
            return out

        return step

    def sgd(f, params, consts, lr):
        v, y, g = function(lambda *ps: f(*ps, *consts), params)
        program = ca.Function("f", [v], [y, v - lr * g])
        a, b, loss = flat(params), flat(params), np.zeros(())
        forth, back = bind(program, [a], [loss, b]), bind(program, [b], [loss, a])  # never reads what it writes
        turns = [(forth, [loss, *split(b, params)]), (back, [loss, *split(a, params)])]

        def step():
            turns.reverse()
            (run, _), out = turns[1]
            run()
            return out

        return step

    return Peer("casadi", "compiled", ns, value_and_grad, sgd)


# ---- which there are ----

# name in the rows -> (the adapter, its options, what is imported)
PEERS: dict[str, tuple[Callable[..., Peer], dict, str]] = {
    "tapeflow":        (tapeflow, {}, "tapeflow"),
    "tapeflow-frozen": (tapeflow_frozen, {}, "tapeflow"),
    "tapeflow-frozen-fast": (tapeflow_frozen, {"fast": True, "name": "tapeflow-frozen-fast"}, "tapeflow"),
    "torch":           (torch, {}, "torch"),
    "mygrad":          (mygrad, {}, "mygrad"),
    "autograd":        (autograd, {}, "autograd"),
    "tensorflow":      (tensorflow, {}, "tensorflow"),
    "jax-eager":       (jax, {"compiled": False}, "jax"),
    "jax":             (jax, {}, "jax"),
    "casadi":          (casadi, {}, "casadi"),
    "torch-fused":     (torch, {"name": "torch-fused"}, "torch"),  # where it has one function for a whole workload
    "torch-compiled":  (torch, {"compiled": True, "name": "torch-compiled"}, "torch"),
    "tensorflow-xla":  (tensorflow, {"compiled": True}, "tensorflow"),
}  # fmt: skip
SLOW_TO_COMPILE = ("torch-compiled", "tensorflow-xla")  # only with --compiled


def load(name: str, threads: int) -> Peer | str:
    """The peer, or why it is not there."""
    build, options, module = PEERS[name]
    try:
        importlib.import_module(module)
    except ImportError as error:
        return "not installed" if getattr(error, "name", None) == module else f"does not import: {error}"
    try:
        return build(threads, **options)
    except Exception as error:  # a library in a state of its own must not end the run of the others
        return f"does not start: {type(error).__name__}: {error}"


def version(module: str) -> str | None:
    """The installed version; None where it is not installed."""
    names = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow_cpu")}
    for name in names.get(module, (module,)):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    loaded: Any = importlib.import_module(module) if importlib.util.find_spec(module) else None
    return getattr(loaded, "__version__", "unknown") if loaded else None
