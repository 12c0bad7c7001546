"""vjp, jvp, hvp, jacobian, hessian and Tape.jacobian: forward against reverse for every op, orders, compositions,
kinks, containers, and what they refuse. What is right is known from closed forms, mpmath and the oracle; the adjoint
identity ties the two directions together, and each direction has one set of bits: fused, recorded and frozen."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from helpers import FLOATS, INF, NAN, assert_same, close, host, rng_for
from hypothesis import example, given, settings
from references import NAMES, operands
from test_programs import A, B, C, D

import tapeflow as tp
from tapeflow import errors, ops
from tapeflow.testing.programs import build
from tapeflow.testing.strategies import programs

# ---- forward is the adjoint of reverse, and one set of bits ----


def recorded(f, *xs):
    """jvp with the walk recorded, as for an outer transform."""
    one = tp.tensor(1.0, requires_grad=True)
    y, t = tp.jvp(lambda *a: (f(*a), one * 1.0), *xs)
    assert t[1].item() == 0.0
    return y[0], t[0]


def check(f, *arrays, rtol=1e-10, label=""):
    """<w, J v> = <J^T w, v>; fused, recorded and frozen tangents have the same bits."""
    rng = rng_for("adjoint", label, [np.shape(a) for a in arrays])
    xs = [tp.tensor(np.asarray(a)) for a in arrays]
    wanted = [i for i, x in enumerate(xs) if x.dtype.kind == "f"]

    def g(*args):
        full = list(xs)
        for i, a in zip(wanted, args, strict=True):
            full[i] = a
        return f(*full)

    at = tuple(xs[i] for i in wanted)
    v = tuple(tp.tensor(rng.uniform(-1, 1, x.shape).astype(host(x).dtype)) for x in at)
    value, pullback = tp.vjp(g, *at)
    again, tangent = tp.jvp(g, at, v)
    assert_same(again, value, label=label)
    if value.dtype.kind != "f":
        assert tangent is None
        with pytest.raises(errors.DTypeError):
            pullback(tp.ones_like(value))
        assert all(not np.any(host(b)) for b in pullback(None))
        return
    assert (tangent.shape, tangent.dtype) == (value.shape, value.dtype), label
    w = tp.tensor(rng.uniform(-1, 1, value.shape).astype(host(value).dtype))
    pulled = pullback(w)
    for a, b in zip(at, pulled, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), label
    forward = np.sum(host(w).astype(float) * host(tangent))
    terms = [host(a).astype(float) * host(b) for a, b in zip(pulled, v, strict=True)]
    scale = 1 + np.sum(np.abs(host(w).astype(float) * host(tangent))) + sum(np.sum(np.abs(t)) for t in terms)
    assert abs(forward - sum(np.sum(t) for t in terms)) <= rtol * scale, (label, forward, terms)
    assert_same(recorded(g, at, v)[1], tangent, label=f"{label} recorded")
    if label not in UNFROZEN:
        plan = tp.freeze(lambda *a: tp.jvp(g, a[: len(at)], a[len(at) :]), *at, *v)
        assert_same(plan(*at, *v)[1], tangent, label=f"{label} frozen")


UNFROZEN = {"cumulative_max"}  # its rule looks at values on the host


@pytest.mark.parametrize("name", NAMES)
def test_adjoint_of_every_elementwise_op(name):
    entry = ops.TABLE[name]
    f = getattr(tp, name)
    for dtype in FLOATS if entry.kind != "integer" else ("int64",):
        xs = operands(name, (3, 4), dtype, "adjoint")
        check(f, *xs, rtol=1e-10 if dtype == "float64" else 1e-4, label=name)
    if entry.nin > 1 and entry.kind != "integer":  # broadcast both ways, in two dtypes
        mixed = [x[0].astype("float32") if x.dtype.kind == "f" else x for x in xs[1:]]
        check(f, xs[0][:, :1], *mixed, rtol=1e-4, label=name)
        check(f, *(x[..., :1] if i % 2 else x[:1] for i, x in enumerate(xs)), label=name)


def written(x, v):
    y = x * 1.0
    y[1] = v
    return y * x


def written_items(v):
    y = tp.zeros((3, 4), dtype=tp.float64)
    y[1] = v
    y[0, ::2] = v[:2]
    return y


def put(x, v):
    y = x * 1.0
    y[tp.tensor([0, 2, 0])] = v
    return y * x


def constant_into(x):
    y = x * 1.0
    y[1] = 7.0
    y[tp.tensor([2])] = 1.0
    return y * y


X, Y, V = (rng_for("transforms", s).uniform(0.3, 2, s) for s in ((3, 4), (4, 5), (4,)))
STRUCTURED = {
    "identity": (tp.clip, X),
    "astype": (lambda x: x.astype("float32") * 2.0, X),
    "reshape": (lambda x: tp.reshape(x, (4, 3)), X),
    "permute_dims": (lambda x: x.T, X),
    "broadcast_to": (lambda x: tp.broadcast_to(x, (2, 3, 4)), X),
    "getitem": (lambda x: x[1:, ::-2], X),
    "an item": (lambda x: x[1, 2], X),
    "new axes": (lambda x: x[:, None, 1], X),
    "unslice": (lambda x: tp.vjp(lambda a: a[1:, ::2], x)[1](x[1:, ::2])[0], X),
    "assign": (written, X, V),
    "assign to zeros": (written_items, V),
    "put": (put, X, X + 1),
    "put of constants": (constant_into, X),
    "concat": (lambda x, y: tp.concat([x, y, x], axis=1), X, X + 1),
    "concat of four and a constant": (lambda x: tp.concat([x, X, x * x, x], axis=0), X),
    "stack": (lambda x: tp.stack([x, x * 2.0]), X),
    "sum": (lambda x: tp.sum(x, axis=0), X),
    "sum keepdims": (lambda x: tp.sum(x, axis=1, keepdims=True), X),
    "mean": (tp.mean, X),
    "max": (lambda x: tp.max(x, axis=1), X),
    "max of ties": (lambda x: tp.max(tp.round(x), axis=1) * tp.max(tp.floor(x) + x * 0.0, axis=1), X),
    "min": (tp.min, X),
    "argmax": (tp.argmax, X),
    "nansum": (lambda x: tp.nansum(x, axis=1), np.where(X > 1, NAN, X)),
    "vector_norm": (lambda x: tp.norm(x, axis=0), X),
    "var": (lambda x: tp.var(x, axis=0), X),
    "std": (tp.std, X),
    "prod": (lambda x: tp.prod(x, axis=1), X),
    "softmax": (lambda x: tp.softmax(x, axis=0), X),
    "log_softmax": (tp.log_softmax, X),
    "logsumexp": (lambda x: tp.logsumexp(x, axis=1), X),
    "cumulative_sum": (lambda x: tp.cumsum(x, axis=0), X),
    "cumulative_prod": (lambda x: tp.cumprod(x, axis=1), np.where(X > 1.8, 0, X)),
    "cumulative_max": (lambda x: tp.cumulative_max(x, axis=1), X),
    "logcumsumexp": (lambda x: tp.logcumsumexp(x, axis=0), X),
    "recurrence": (lambda x, w: tp.vjp(lambda a: tp.cumprod(a, axis=1), x)[1](w)[0], X, X + 1),
    "take": (lambda x: tp.take(x, tp.tensor([0, 2, 2]), axis=0), X),
    "index arrays": (lambda x: x[tp.tensor([0, 1, 1]), tp.tensor([1, 2, 2])], X),
    "mask": (lambda x: x[tp.tensor(X > 1)], X),
    "scatter_add": (lambda x, y: tp.scatter_add(x, tp.tensor([0, 1, 1]), y), X, X + 1),
    "scatter_add of constants": (lambda x: tp.scatter_add(x, tp.tensor([0]), tp.ones((1, 4), dtype=tp.float64)), X),
    "sort": (lambda x: tp.sort(x, axis=1), X),
    "matmul": (lambda x, y: x @ y, X, Y),
    "matmul with itself": (lambda x: x @ x.T @ x, X),
    "matmul of two dtypes": (lambda x, y: x @ y, X.astype("float32"), Y),
    "matrix and vector": (lambda x, v: x @ v, X, V),
    "batches": (lambda x, y: x @ y, np.stack([X, X + 1]), Y),
    "dot with itself": (lambda v: v @ v, V),
    "vecdot": (lambda x, y: tp.vecdot(x, y, axis=0), X, X * 2),
    "einsum": (lambda x, y: tp.einsum("ij,jk->ki", x, y), X, Y),
    "layer_norm": (lambda x, w, b: tp.layer_norm(x, (4,), w, b), X, V, V + 1),
    "layer_norm without weight": (lambda x: tp.layer_norm(x, (4,)), X),
    "rms_norm": (lambda x, w: tp.rms_norm(x, (4,), w), X, V),
    "cross_entropy": (lambda x: tp.cross_entropy(x, tp.tensor([0, 3, 1])), X),
    "nothing": (lambda x: x * 1.0, np.zeros((0, 3))),
    "the argument itself": (lambda x: x, X),
}  # fmt: skip


@pytest.mark.parametrize("name", STRUCTURED)
def test_adjoint_of_structured_ops(name):
    f, *xs = STRUCTURED[name]
    check(f, *xs, rtol=1e-5 if name in ("astype", "matmul of two dtypes") else 1e-10, label=name)


def test_every_differentiable_structured_op_is_among_them():
    """Whoever adds an op finds out here that forward mode must be tested."""
    without = {
        "argmin",
        "count_nonzero",
        "any",
        "all",
        "places",
        "nonzero",
        "argsort",
        "searchsorted",
        "one_hot",
        "class_positions",
        "accumulate",
        "random",
        "cross_entropy_vjp",
        "leaf",
        "cumulative_argmax",
        "custom",
        "custom_result",
    }  # fmt: skip  (test_custom.py)
    assert set(ops.STRUCTURED) - without <= set(STRUCTURED)


def directional(program, v):
    """The derivative along v by forward mode, against the oracle's gradients."""
    value, tangent = tp.jvp(program, program.leaves, v)
    want = program.gradients()
    terms = sum(np.sum(g.value * d) for g, d in zip(want, v, strict=True))
    mass = sum(np.sum(g.mass * np.abs(d)) for g, d in zip(want, v, strict=True))
    return value, host(tangent), terms, mass


@settings(max_examples=2 * settings.default.max_examples)
@given(programs())
@example(build(*A))
@example(build(*B))
@example(build(*C))
@example(build(*D))
def test_random_programs_forward(program):
    """Forward mode of random programs gives the oracle's derivative; recorded, its bits."""
    v = [np.resize([1.0, -0.5, 2.0], a.shape) for a in program.leaves]
    value, tangent, want, mass = directional(program, v)
    assert_same(value, program(*map(tp.tensor, program.leaves)))
    assert np.all(np.abs(tangent - want) <= 1e-11 + 1e-11 * mass), (program, tangent, want)
    assert_same(recorded(program, program.leaves, v)[1], tangent, label=str(program))


def test_large_and_strided_tangents_have_the_bits_of_small_ones():
    """Beyond what one loop takes, broadcast and transposed: fused, recorded, and piece by piece."""
    rng = rng_for("large")
    x, y = rng.uniform(0.5, 2, (40, 600)), rng.uniform(0.5, 2, (40, 1))
    for f in (
        lambda a, b: tp.tanh(a * b) + b,
        lambda a, b: (tp.where(a > 1, a / b, b) - a).T,
        lambda a, b: tp.lerp(b, a, tp.sin(b)) + a * a,
        lambda a, b: b - tp.maximum(a.T[::-1].T, b) * 3.0,
    ):
        u, v = (tp.tensor(rng.uniform(-1, 1, a.shape[::-1])).T for a in (x, y))
        whole = tp.jvp(f, (x, y), (u, v))[1]
        check(f, x, y, label="large")
        assert_same(recorded(f, (x, y), (u, v))[1], whole)
        for k in range(0, 40, 13):
            rows = slice(k, k + 1)
            part = tp.jvp(f, (x[rows], y[rows]), (u[rows], v[rows]))[1]
            assert_same(part, whole[:, rows] if whole.shape != x.shape else whole[rows])


def test_tangents_of_writes_in_a_loop():
    """A tangent is written in place where nothing else reads it, and nowhere else."""

    def f(x):
        t = tp.zeros(4096, dtype=tp.float64)
        for k in range(64):
            t[k] = x * float(k)
            if k == 31:
                kept = t * 2.0
        return t, kept

    tangent = tp.jvp(f, (np.float64(1),), (np.float64(1),))[1]
    for got, n, scale in ((tangent[0], 64, 1), (tangent[1], 32, 2)):
        assert np.array_equal(host(got), np.r_[np.arange(float(n)) * scale, np.zeros(4096 - n)])


# ---- orders: the elementwise ops against mpmath ----

MP = {
    "exp": mpmath.exp, "expm1": mpmath.expm1, "log": mpmath.log, "log1p": mpmath.log1p, "sqrt": mpmath.sqrt,
    "exp2": lambda x: 2**x, "log2": lambda x: mpmath.log(x, 2), "log10": mpmath.log10, "cbrt": mpmath.cbrt,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x), "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan,
    "tanh": mpmath.tanh, "sinh": mpmath.sinh, "cosh": mpmath.cosh, "asin": mpmath.asin, "acos": mpmath.acos,
    "atan": mpmath.atan, "asinh": mpmath.asinh, "acosh": mpmath.acosh, "atanh": mpmath.atanh,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)), "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "erf": mpmath.erf, "erfc": mpmath.erfc, "erfinv": mpmath.erfinv, "lgamma": mpmath.loggamma,
    "digamma": mpmath.digamma, "polygamma": lambda n, x: mpmath.psi(int(n), x), "pow": lambda x, y: x**y,
    "hypot": lambda x, y: mpmath.sqrt(x * x + y * y), "atan2": mpmath.atan2,
    "logaddexp": lambda x, y: mpmath.log(mpmath.exp(x) + mpmath.exp(y)),
    "sinc": mpmath.sincpi, "spherical_ratio": lambda n, x: mpmath.hyp0f1(n + 1.5, -((mpmath.pi * x / 2) ** 2))
    / mpmath.fac2(2 * n + 1),
    "silu": lambda x: x / (1 + mpmath.exp(-x)), "gelu": lambda x: x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3))) / 2,
    "xlogy": lambda x, y: x * mpmath.log(y), "xlog1py": lambda x, y: x * mpmath.log1p(y),
    "multiply": lambda x, y: x * y, "divide": lambda x, y: x / y, "square": lambda x: x * x,
    "reciprocal": lambda x: 1 / x, "smul": lambda x, y: x * y, "lerp": lambda x, y, w: x + w * (y - x),
    "elu": lambda x, y: x if x > 0 else y * mpmath.expm1(x),
}  # fmt: skip
SMOOTH = [(name, i) for name in MP for i in range(ops.TABLE[name].nin) if ops.TABLE[name].vjp_kind(i) != "NONE"]


def reverse(f):
    return lambda x: tp.grad(lambda z: tp.sum(f(z)))(x)


def forward(f):
    return lambda x: tp.jvp(f, (x,), (tp.ones_like(x),))[1]


MODES = {"g": reverse, "j": forward}


def derived(f, modes):
    """f differentiated, elementwise, by each of modes from the inside out."""
    for mode in modes:
        f = MODES[mode](f)
    return f


def test_every_smooth_op_is_checked_to_order_4():
    linear = {"add", "subtract", "negative", "positive", "where", "abs", "maximum", "minimum", "clip", "relu", "fmax",
              "fmin", "copysign", "nextafter", "remainder", "leaky_relu", "sign"}  # fmt: skip
    smooth = {name for name, e in ops.TABLE.items() if any(e.vjp_kind(i) != "NONE" for i in range(e.nin))}
    assert smooth - linear == set(MP)


@pytest.mark.parametrize("name,i", SMOOTH)
def test_orders_1_to_4_are_those_of_mpmath(name, i):
    xs = operands(name, (3,), "float64", "orders")

    def f(x):
        return getattr(tp, name)(*(x if k == i else tp.tensor(a) for k, a in enumerate(xs)))

    with mpmath.workprec(200):
        taylor = [
            mpmath.taylor(lambda z, p=p: MP[name](*(z if k == i else q for k, q in enumerate(p))), p[i], 4)
            for p in zip(*([mpmath.mpf(float(v)) for v in a] for a in xs), strict=True)
        ]
        wanted = [[float(c) for c in column] for column in zip(*taylor, strict=True)]
    for modes in ("g", "j", "gg", "gj", "jg", "jj", "ggg", "jjj", "gggg", "jjjj", "gjgj", "jjgg"):
        order = len(modes)
        want = np.array(wanted[order]) * math.factorial(order)
        around = max(np.max(np.abs(w)) * math.factorial(k) for k, w in enumerate(wanted[: order + 1]))
        got = host(derived(f, modes)(tp.tensor(xs[i])))
        assert np.all(np.abs(got - want) <= 1e-10 * (np.abs(want) + around)), (name, i, modes, got, want)


# ---- compositions to depth 3 ----

W = np.array([0.5, -1.0, 2.0, 0.25])
# a function of one number, as tapeflow and as mpmath have it
FUNCTIONS = {
    "polynomial": (lambda x: x * x * x * x - 2.0 * x, lambda x: x**4 - 2 * x),
    "elementary": (lambda x: tp.sin(x) * tp.exp(-x * x), lambda x: mpmath.sin(x) * mpmath.exp(-x * x)),
    "quotient": (lambda x: tp.log(x) / (1.0 + x), lambda x: mpmath.log(x) / (1 + x)),
    "closes over jvp": (lambda x: x * tp.jvp(lambda y: x * y * y, (x,), (1.0 + 0.0 * x,))[1], lambda x: 2 * x**3),
    "closes over grad": (lambda x: x * tp.grad(lambda y: x * y * y)(x), lambda x: 2 * x**3),
    "logsumexp": (lambda x: tp.logsumexp(x * W), lambda x: mpmath.log(sum(mpmath.exp(x * w) for w in W))),
    "softmax": (
        lambda x: tp.sum(tp.softmax(x * W) * W),
        lambda x: sum(w * mpmath.exp(x * w) for w in W) / sum(mpmath.exp(x * w) for w in W),
    ),
    "products": (
        lambda x: tp.sum(tp.cumprod(x * W)) + tp.prod(x + W),
        lambda x: sum(x ** (k + 1) * np.prod(W[: k + 1]) for k in range(4)) + mpmath.fprod(x + w for w in W),
    ),
    "matrices": (
        lambda x: tp.sum((x * tp.tensor(np.outer(W, W))) @ tp.tanh(x * W)),
        lambda x: x * sum(W) * sum(w * mpmath.tanh(x * w) for w in W),
    ),
    "norms": (
        lambda x: tp.norm(x * W - 1.0) + tp.var(x * x * W),
        lambda x: mpmath.sqrt(sum((x * w - 1) ** 2 for w in W)) + x**4 * np.var(W),
    ),
    "written": (lambda x: tp.sum(put_at(x)), lambda x: x + x**2 + 3),
}  # fmt: skip


def put_at(x):
    y = tp.zeros(3, dtype=tp.float64)
    y[0] = x
    y[tp.tensor([1, 1])] = tp.stack([x * x * x, x * x])
    y[2:] = 3.0
    return y


def mapped(f):
    """f as one of a batch."""
    return lambda x: tp.vmap(f)(tp.stack([x + 1.0, x]))[1]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compositions_to_depth_3(name):
    f, reference = FUNCTIONS[name]
    x = 0.7
    with mpmath.workprec(200):
        wanted = [float(c) * math.factorial(k) for k, c in enumerate(mpmath.taylor(reference, mpmath.mpf(x), 3))]
    layers = {"g": reverse, "j": forward, "f": tp.function, "v": mapped, "c": tp.checkpoint}
    for depth in (1, 2, 3):
        for word in itertools.product(layers, repeat=depth):
            g = f
            for layer in word:
                g = layers[layer](g)
            got = [g(tp.tensor(x, dtype=tp.float64)).item() for _ in range(2 if "f" in word else 1)]
            want = wanted[word.count("g") + word.count("j")]
            assert abs(got[0] - want) <= 1e-11 * (1 + abs(want)), (name, word, got, want)
            assert got[-1] == got[0], (name, word, got)


def test_perturbations_are_not_confused():
    """By each mode outside and inside: d/dx of x * d/dy(x*y) is 2x."""
    for outer, inner in itertools.product(MODES.values(), repeat=2):
        got = outer(lambda x, inner=inner: x * inner(lambda y: x * y)(tp.tensor(1.0)))(tp.tensor(3.0))
        assert got.item() == 6.0
    got = tp.grad(lambda x: x * tp.jvp(lambda y: x * y, (1.0,), (1.0,))[1])(3.0)
    assert got.item() == 6.0
    # the tangent alone is recorded, the function reads nothing from outside
    assert tp.grad(lambda t: tp.jvp(lambda y: y * y, (3.0,), (t * t,))[1])(2.0).item() == 24.0
    assert tp.grad(lambda c: tp.vjp(lambda y: y * y, 3.0)[1](c * c)[0])(2.0).item() == 24.0
    assert tp.jvp(lambda c: tp.vjp(lambda y: y * y, 3.0)[1](c * c)[0], (2.0,), (1.0,))[1].item() == 24.0


# ---- kinks ----

KINKS = {  # f, x, its derivatives of order 1, 2, 3 there
    "relu": (tp.relu, 0.0, (0, 0, 0)),
    "abs": (tp.abs, 0.0, (0, 0, 0)),
    "abs times x": (lambda x: x * tp.abs(x), 0.0, (0, 0, 0)),
    "where": (lambda x: tp.where(x > 0, tp.sqrt(x), x * x), 0.0, (0, 2, 0)),
    "where of NaN": (lambda x: tp.where(x > 1, tp.log(x - 1.0), x * x * x), 1.0, (3, 6, 6)),
    "where of NaN beyond": (lambda x: tp.where(x > 1, tp.log(x - 2.0), x * x * x), 0.5, (0.75, 3, 6)),
    "maximum of a number": (lambda x: tp.maximum(x, 0.0), 0.0, (0.5, 0, 0)),
    "maximum of equals": (lambda x: tp.maximum(x * x, x), 1.0, (1.5, 1, 0)),
    "minimum of NaN inside": (lambda x: tp.minimum(x, tp.where(x > 9, tp.sqrt(x - 9.0), 5.0)), 1.0, (1, 0, 0)),
    "max of ties": (lambda x: tp.max(tp.stack([x, x * x, 0.0 * x])), 1.0, (1.5, 1, 0)),
    "clip at a bound": (lambda x: tp.clip(x, 0.0, 1.0), 1.0, (1, 0, 0)),
    "clip beyond": (lambda x: tp.clip(x * x, 0.0, 1.0), 2.0, (0, 0, 0)),
    "clip to a bound": (lambda x: tp.clip(x, 0.0, x * x * 0.5), 1.0, (1, 1, 0)),
    "square": (lambda x: x**2, 0.0, (0, 2, 0)),
    "power": (lambda x: x**3.0, 0.0, (0, 0, 6)),
    "power of 0": (lambda x: x**0.0, 0.0, (0, 0, 0)),
    "product with zeros": (lambda x: tp.prod(tp.stack([x, x, x])), 0.0, (0, 0, 6)),
    "running product with zeros": (lambda x: tp.cumprod(tp.stack([x, x, x]))[2], 0.0, (0, 0, 6)),
    "norm": (lambda x: tp.norm(tp.stack([x, 2.0 * x])), 0.0, (0, 0, 0)),
    "std": (lambda x: tp.std(tp.stack([x, 2.0 * x])), 0.0, (0, 0, 0)),
    "hypot": (lambda x: tp.hypot(x, x), 0.0, (0, 0, 0)),
    "sign": (lambda x: x * tp.sign(x), 0.0, (0, 0, 0)),
    "floor": (lambda x: x * tp.floor(x), 2.0, (2, 0, 0)),
    "a written item, NaN before": (lambda x: overwritten(x), 0.0, (0, 2, 0)),
    "logsumexp of -inf": (lambda x: tp.logsumexp(tp.stack([x * 0.0 - INF, x * 0.0 - INF]) + 0.0 * x), 1.0, (0, 0, 0)),
    "zero tangent into sqrt": (lambda x: x + tp.sqrt(tp.floor(x)), 0.5, (1, 0, 0)),
    "zero into the log": (lambda x: x * x + tp.log(tp.stop_gradient(x)), 0.0, (0, 2, 0)),
}  # fmt: skip


def overwritten(x):
    y = tp.stack([tp.log(x - 1.0), x * x])
    y[0] = x * x * 0.0
    return tp.sum(y)


@pytest.mark.parametrize("name", KINKS)
def test_kinks_in_every_composition_to_depth_3(name):
    f, x, wanted = KINKS[name]
    for order in (1, 2, 3):
        for word in itertools.product(MODES, repeat=order):
            got = derived(f, word)(tp.tensor(x, dtype=tp.float64)).item()
            assert got == wanted[order - 1], (name, word, got)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("how", [tp.jvp, recorded])
def test_strong_zero_and_selection_in_forward_mode(dtype, how):
    """A zero tangent stays zero at inf and NaN; a NaN tangent of what is not selected does not leak."""
    points = np.array([0.0, INF, -INF, NAN, -1.0], dtype)
    zero = tp.tensor(np.zeros(5, dtype))
    for name, entry in ops.TABLE.items():
        if entry.nin == 1 and SHORT[dtype] in entry.dtypes and entry.kind not in ("compare", "integer"):
            with np.errstate(all="ignore"):
                tangent = how(getattr(tp, name), (tp.tensor(points),), (zero,))[1]
            assert not np.any(host(tangent)), (name, tangent)
    bad, one = tp.tensor(np.full(2, NAN, dtype)), tp.tensor(np.ones(2, dtype))
    x, y = tp.tensor(np.array([1.0, 2.0], dtype)), tp.tensor(np.array([3.0, 4.0], dtype))
    never = np.zeros(2, bool)
    cases = {
        "where": (lambda a, b: tp.where(tp.tensor(never), a, b), 1),
        "maximum": (tp.maximum, 1),
        "minimum": (lambda a, b: tp.minimum(b, a * 9.0), 1),
        "clip": (lambda a, b: tp.clip(b, a, a * 100.0), 1),
        "relu": (lambda a, b: b + tp.relu(-a), 1),
        "max": (lambda a, b: tp.max(tp.stack([a, b]), axis=0), 1),
        "min": (lambda a, b: tp.min(tp.stack([a * 9.0, b]), axis=0), 1),
        "getitem": (lambda a, b: tp.stack([a, b])[1], 1),
    }
    for name, (f, want) in cases.items():
        tangent = how(f, (x, y), (bad, one))[1]
        assert np.all(host(tangent) == want), (name, tangent)


SHORT = {"float32": "f32", "float64": "f64"}

# ---- vjp ----


def test_pullback_of_containers_many_times():
    def f(params, x):
        h = params["w"] * x + params["b"][0]
        return {"h": h, "loss": (tp.sum(h * h), tp.argmax(h))}

    params = {"w": np.array([1.0, 2.0]), "b": [3.0]}
    value, pullback = tp.vjp(f, params, np.array([1.0, 1.0]))
    assert value["loss"][0].item() == 41.0 and not value["h"].requires_grad
    for scale in (1.0, 2.0, 1.0):
        cotangent = {"loss": (np.float64(scale), None), "h": np.array([0.0, 10.0 * scale])}  # keys in another order
        grads, gx = pullback(cotangent)
        assert grads["w"].tolist() == [8 * scale, 20 * scale] and isinstance(grads["b"], list)
        assert grads["b"][0].item() == 28 * scale
        assert gx.tolist() == [8 * scale, 40 * scale]


def test_aux_is_handed_on():
    value, pullback, aux = tp.vjp(lambda x: (x * x, {"twice": 2.0 * x, "note": "kept"}), 3.0, has_aux=True)
    assert (value.item(), aux["twice"].item(), aux["note"]) == (9.0, 6.0, "kept")
    assert not aux["twice"].requires_grad and pullback(1.0)[0].item() == 6.0
    value, tangent, aux = tp.jvp(lambda x: (x * x, [x, "kept"]), (3.0,), (2.0,), has_aux=True)
    assert (value.item(), tangent.item(), aux[0].item(), aux[1]) == (9.0, 12.0, 3.0, "kept")


def test_pullback_of_what_does_not_depend_on_it_is_zeros():
    pullback = tp.vjp(lambda x, y: (x * 1.0, tp.ones(2)), tp.ones(3), tp.ones(2))[1]
    got = pullback((tp.ones(3), tp.ones(2)))
    assert [g.tolist() for g in got] == [[1.0] * 3, [0.0] * 2]
    tangent = tp.jvp(lambda x: (tp.ones(2), x), (tp.ones(3),), (tp.ones(3),))[1]
    assert [t.tolist() for t in tangent] == [[0.0] * 2, [1.0] * 3]


def test_leaves_that_f_reads_are_reached_by_an_outer_backward():
    w = tp.tensor(2.0, requires_grad=True)
    value, pullback = tp.vjp(lambda x: w * x * x, 3.0)
    (pullback(1.0)[0] + value).backward()  # 2 w x + w x x
    assert w.grad.item() == 15.0
    w.grad = None
    tp.jvp(lambda x: w * x * x, (3.0,), (1.0,))[1].backward()
    assert w.grad.item() == 6.0
    with tp.no_grad():
        assert not tp.jvp(lambda x: w * x, (3.0,), (1.0,))[1].requires_grad
        assert not tp.vjp(lambda x: w * x, 3.0)[1](1.0)[0].requires_grad


def test_values_do_not_share_with_arguments():
    x = tp.tensor([1.0, 2.0])
    t = tp.tensor([1.0, 1.0])
    value, tangent = tp.jvp(lambda a: a, (x,), (t,))
    value += 1.0
    tangent += 1.0
    assert x.tolist() == [1.0, 2.0] and t.tolist() == [1.0, 1.0]
    value, pullback = tp.vjp(lambda a: a, x)
    g = pullback(t)[0]
    g += 1.0
    value += 1.0
    assert t.tolist() == [1.0, 1.0] and x.tolist() == [1.0, 2.0] and pullback(t)[0].tolist() == [1.0, 1.0]


def test_forward_mode_over_a_long_chain_on_a_small_stack():
    def f(x):
        for _ in range(100_000):
            x = x * 1.0
        return x

    assert tp.jvp(f, (2.0,), (3.0,))[1].item() == 3.0
    before = tp._core.entries_in_use()
    tp.jvp(f, (2.0,), (3.0,))
    assert tp._core.entries_in_use() == before


# ---- jacobian, hessian, hvp ----


def test_jacobian_shapes_and_modes():
    x = np.arange(6.0).reshape(2, 3) + 1
    few = tp.jacobian(lambda a: a.sum(axis=0))(x)  # fewer outputs: reverse
    many = tp.jacobian(lambda a: tp.stack([a * a, a]))(x)  # fewer inputs: forward
    assert few.shape == (3, 2, 3) and many.shape == (2, 2, 3, 2, 3)
    assert np.array_equal(host(few), np.broadcast_to(np.eye(3)[:, None], (3, 2, 3)))
    square = np.zeros((2, 3, 2, 3))
    for i, j in np.ndindex(2, 3):
        square[i, j, i, j] = 1
    assert np.array_equal(host(many[1]), square) and np.array_equal(host(many[0]), square * 2 * x)
    assert tp.jacobian(tp.sin)(0.0).shape == ()
    assert tp.jacobian(lambda a: a * 1.0)(np.zeros((0, 2))).shape == (0, 2, 0, 2)
    assert tp.jacobian(lambda a: tp.concat([a, a]))(np.zeros((0, 2))).shape == (0, 2, 0, 2)
    assert tp.jacobian(lambda a: tp.sum(a))(np.zeros(0)).shape == (0,)


@pytest.mark.parametrize("rows", [2, 5])
def test_jacobian_of_containers(rows):
    """The structure of the output, then that of the input; by reverse and by forward mode."""
    m = rng_for("containers").uniform(-1, 1, (rows, 3))

    def f(p, s):
        return {"y": m @ p["v"] * s, "z": [p["c"] * s]}

    args = {"v": np.array([1.0, 2.0, 3.0]), "c": np.float64(4)}, np.float64(5)
    for argnums, several in ((0, False), ((0,), True), ((1, 0), True), (-1, False)):
        got = tp.jacobian(f, argnums)(*args)
        y, z = got["y"], got["z"][0]
        if argnums in ((0,), 0):
            y, z = (y[0], z[0]) if several else (y, z)
            close(y["v"], m * 5)
            assert y["c"].tolist() == [0.0] * rows and z["v"].tolist() == [0.0] * 3 and z["c"].item() == 5.0
        elif argnums == (1, 0):
            close(y[0], m @ args[0]["v"])
            close(y[1]["v"], m * 5)
            assert z[0].item() == 4.0 and z[1]["c"].item() == 5.0
        else:
            close(y, m @ args[0]["v"])


@pytest.mark.parametrize("name", [name for name in STRUCTURED if name not in ("argmax", "nothing")])
def test_jacobian_of_structured_ops_by_both_modes(name):
    """Batched passes, forward by many more outputs and reverse by many more inputs, against single ones."""
    f, *arrays = STRUCTURED[name]
    rng, where = rng_for("jacobian", name), tuple(range(len(arrays)))
    v = [rng.uniform(-1, 1, a.shape).astype(a.dtype) for a in arrays]
    want = host(tp.jvp(f, arrays, v)[1])
    rtol = 1e-5 if want.dtype == np.float32 or arrays[0].dtype == np.float32 else 1e-10
    forward = tp.jacobian(lambda *a: [f(*a), tp.zeros(200, dtype=tp.float64)], where)(*arrays)[0]
    reverse = tp.jacobian(lambda *a: f(*a[:-1]), (*where, len(arrays)))(*arrays, np.zeros(200))[:-1]
    for blocks in (forward, reverse):
        assert [b.shape for b in blocks] == [(*want.shape, *a.shape) for a in arrays]
        got = sum(np.tensordot(host(b), d, d.ndim) for b, d in zip(blocks, v, strict=True))
        close(got, want, rtol, rtol)
    outer = tp.jvp(tp.jacobian(lambda *a: [f(*a), tp.zeros(200, dtype=tp.float64)], where), arrays, v)[1][0]
    over = tp.jvp(
        tp.jacobian(lambda *a: f(*a[:-1]), (*where, len(arrays))), [*arrays, np.zeros(200)], [*v, np.zeros(200)]
    )
    for a, b in zip(outer, over[1][:-1], strict=True):
        close(a, b, rtol, rtol)


def test_jacobian_and_hessian_are_recorded_for_what_is_outside():
    a = tp.tensor([1.0, 2.0], requires_grad=True)
    for n in (1, 3):
        m = np.arange(2.0 * n).reshape(n, 2).astype("float32")
        tp.sum(tp.jacobian(lambda x, m=m: tp.tensor(m) @ (a * x * x))(tp.ones(2))).backward()
        close(a.grad, 2 * m.sum(0))
        a.grad = None
    got = tp.grad(lambda s: tp.sum(tp.hessian(lambda x: tp.sum(s * s * x * x * x))(tp.ones(2))))(3.0)
    assert got.item() == 72.0


def rosenbrock(x):
    return tp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def rosenbrock_hessian(x):
    n = len(x)
    h = np.diag(np.r_[1200 * x[:-1] ** 2 - 400 * x[1:] + 2, 0] + np.r_[0, np.full(n - 1, 200.0)])
    return h - np.diag(400 * x[:-1], 1) - np.diag(400 * x[:-1], -1)


def test_hessian_and_its_products():
    x = np.linspace(-1.2, 1.3, 7)
    want = rosenbrock_hessian(x)
    close(tp.hessian(rosenbrock)(x), want, 1e-12)
    frozen = tp.freeze(lambda a, b: tp.hvp(rosenbrock, (a,), (b,))[0], tp.tensor(x), tp.tensor(x))
    for k in range(3):
        v = np.cos(np.arange(7.0) * (k + 1))
        [got] = tp.hvp(rosenbrock, (x,), (v,))
        close(got, want @ v, 1e-12)
        assert_same(frozen(x, v), got)
        along = tp.jvp(tp.grad(rosenbrock), (x,), (v,))[1]
        close(along, want @ v, 1e-12)


def test_hvp_and_hessian_of_containers():
    def f(p, s):
        return tp.sum(p["w"] * p["w"] * s) + s * s * s

    args = ({"w": np.array([1.0, 2.0])}, np.float64(3))
    got = tp.hvp(f, args, ({"w": np.array([1.0, 0.0])}, np.float64(1)))
    assert isinstance(got, tuple) and got[0]["w"].tolist() == [6.0 + 2.0, 4.0] and got[1].item() == 2.0 + 18.0
    assert isinstance(tp.hvp(f, list(args), [{"w": np.ones(2)}, np.float64(0)]), list)
    h = tp.hessian(f, argnums=(0, 1))(*args)
    assert h[0]["w"][0]["w"].tolist() == [[6.0, 0.0], [0.0, 6.0]] and h[0]["w"][1].tolist() == [2.0, 4.0]
    assert h[1][0]["w"].tolist() == [2.0, 4.0] and h[1][1].item() == 18.0
    many = tp.hessian(lambda x: tp.stack([x[0] ** 3, x[0] * x[1]]))(np.array([1.0, 2.0]))
    assert many.tolist() == [[[6.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]]


@settings(max_examples=settings.default.max_examples // 2)
@given(programs())
@example(build(*A))
@example(build(*B))
def test_random_hessians_are_symmetric_and_forward_over_reverse_agrees(program):
    where = tuple(range(len(program.leaves)))
    u, v = ([np.resize(w, a.shape) for a in program.leaves] for w in ([1.0, -2.0, 3.0], [2.0, 1.0, 0.0, -1.0]))
    hu, hv = (tp.hvp(program, program.leaves, w) for w in (u, v))
    along = tp.jvp(lambda *xs: tp.grad(program, where)(*xs), program.leaves, v)[1]
    scale = 1 + max(np.max(np.abs(host(h)), initial=0) for h in [*hu, *hv])
    scale = scale * (1 + max(np.max(g.mass, initial=0) for g in program.gradients()))
    pairs = [sum(np.sum(a * host(h)) for a, h in zip(w, hs, strict=True)) for w, hs in ((u, hv), (v, hu))]
    assert abs(pairs[0] - pairs[1]) <= 1e-9 * scale, (program, pairs)
    for a, b in zip(along, hv, strict=True):
        assert np.all(np.abs(host(a) - host(b)) <= 1e-9 * scale), (program, a, b)


def test_per_sample_gradients_sum_to_the_batch():
    rng = rng_for("samples")
    w, x, y = rng.uniform(-1, 1, (3, 2)), rng.uniform(-1, 1, (5, 3)), rng.integers(0, 2, 5)

    def losses(w):
        logits = tp.tensor(x) @ w
        return -tp.take_along_axis(tp.log_softmax(logits), tp.tensor(y)[:, None], axis=1)[:, 0]

    each = tp.jacobian(losses)(w)
    assert each.shape == (5, 3, 2)
    close(tp.sum(each, axis=0), tp.grad(lambda w: tp.sum(losses(w)))(w), 1e-12)
    for k in range(5):
        close(each[k], tp.grad(lambda w, k=k: losses(w)[k])(w), 1e-12)


def test_jacobians_map_and_draws_are_drawn_once():
    """vmap of jacobian and jacobian of vmap; every row of a Jacobian is of the same draw."""
    x = rng_for("mapped").uniform(-1, 1, (3, 6))
    w = tp.tensor(rng_for("mapped", 1).uniform(-1, 1, (5, 6)))

    def f(a):
        return tp.tanh(w @ a) * a[:5]

    each = tp.stack([tp.jacobian(f)(a) for a in x])
    close(tp.vmap(tp.jacobian(f))(x), each, 1e-12)
    close(tp.vmap(tp.hessian(lambda a: tp.sum(f(a))))(x)[1], tp.hessian(lambda a: tp.sum(f(a)))(x[1]), 1e-12)
    whole = tp.jacobian(tp.vmap(f))(x)
    assert whole.shape == (3, 5, 3, 6)
    for i, k in np.ndindex(3, 3):
        close(whole[i, :, k], each[i] if i == k else np.zeros((5, 6)), 1e-12)
    tp.random.manual_seed(3)
    dropped = host(tp.jacobian(lambda a: tp.dropout(a, 0.5))(np.ones(40)))
    assert np.array_equal(dropped, np.diag(np.diag(dropped))) and set(np.diag(dropped)) == {0.0, 2.0}
    tp.random.manual_seed(3)
    assert_same(tp.dropout(tp.ones(40, dtype=tp.float64), 0.5), np.diag(dropped))


# ---- frozen ----


def test_frozen_bits_of_every_transform():
    x, v = tp.tensor(X), tp.tensor(X[::-1] - 1.0)

    def f(a):
        return tp.tanh(a @ tp.tensor(Y)) * tp.softmax(a @ tp.tensor(Y[::-1].copy()))

    def scalar(a):
        return tp.logsumexp(f(a)) * tp.norm(a)

    transforms = {
        "vjp": lambda a, b: tp.vjp(f, a)[1](tp.tanh(b @ tp.tensor(Y)))[0],
        "jvp": lambda a, b: tp.jvp(f, (a,), (b,))[1],
        "hvp": lambda a, b: tp.hvp(scalar, (a,), (b,))[0],
        "forward over reverse": lambda a, b: tp.jvp(tp.grad(scalar), (a,), (b,))[1],
        "reverse over forward": lambda a, b: tp.grad(lambda z: tp.jvp(scalar, (z,), (b,))[1])(a),
        "jacobian": lambda a, b: tp.jacobian(f)(a) + b[0, 0],
        "hessian": lambda a, b: tp.hessian(scalar)(a)[0, 0] * b,
    }
    for name, g in transforms.items():
        want = g(x, v)
        assert_same(tp.freeze(g, x, v)(x, v), want, label=name)
        staged = tp.function(g)
        for _ in range(2):
            assert_same(staged(x, v), want, label=name)
        assert_same(tp.freeze(g, x + 1.0, v)(x, v), want, label=f"{name}, frozen elsewhere")


def test_transforms_of_plans_and_functions():
    """A plan and a recorded function are differentiated like the function that they are of."""
    x, v = tp.tensor(X), tp.tensor(X[::-1] - 1.0)

    def f(a):
        return tp.tanh(a @ tp.tensor(Y)) * 2.0

    for g in (tp.freeze(f, x), tp.function(f)):
        for _ in range(2):
            assert_same(tp.jvp(g, (x,), (v,))[1], tp.jvp(f, (x,), (v,))[1])
            assert_same(tp.vjp(g, x)[1](f(v))[0], tp.vjp(f, x)[1](f(v))[0])
            assert_same(tp.jacobian(g)(x), tp.jacobian(f)(x))
            [got] = tp.hvp(lambda a, g=g: tp.sum(g(a) ** 2), (x,), (v,))
            assert_same(got, tp.hvp(lambda a: tp.sum(f(a) ** 2), (x,), (v,))[0])


def test_a_float_argument_of_a_recorded_function_is_as_eager():
    """As an operand of more than elementwise ops it becomes what the number would: the default dtype."""
    fs = {
        "grad": tp.grad(lambda x: x * x * x),
        "jvp": lambda x: tp.jvp(lambda a: a * a * a, (x,), (1.0,))[1],
        "sum": lambda x: tp.sum(x),
        "asarray": lambda x: tp.asarray(x) * 3.0,
        "asarray float64": lambda x: tp.asarray(x, dtype=tp.float64) * 3.0,
        "pow": lambda x: tp.tensor(2.0, dtype=tp.float64) ** x,
    }
    for name, f in fs.items():
        staged = tp.function(f)
        for _ in range(2):
            assert_same(staged(3.3), f(3.3), label=name)


# ---- Tape.jacobian ----


def test_tape_jacobian():
    x, w = tp.tensor([1.0, 2.0, 3.0]), tp.tensor([[1.0, 0.0, 2.0]], requires_grad=True)
    alone = tp.tensor([1.0])
    with tp.Tape(persistent=True, watch=[x, alone]) as tape:
        h = x * x
        y = w @ h
        with tape.stop_recording():
            hidden = h * 2.0
    assert tape.jacobian(y, x).tolist() == [[2.0, 0.0, 12.0]]
    got = tape.jacobian(y, {"w": w, "parts": (h, alone)})
    assert got["w"].tolist() == [[[1.0, 4.0, 9.0]]] and got["parts"][0].tolist() == [[1.0, 0.0, 2.0]]
    assert got["parts"][1] is None
    assert tape.jacobian(y, [alone], unconnected="zero")[0].tolist() == [[0.0]]
    assert tape.jacobian(h, x).tolist() == np.diag([2.0, 4.0, 6.0]).tolist()
    assert tape.gradient(y, x, output_gradients=tp.tensor([2.0])).tolist() == [4.0, 0.0, 24.0]
    for f in (tape.jacobian, lambda t, s: tape.gradient(t, s, tp.ones(3))):
        with pytest.raises(errors.TapeError, match="nothing that was recorded"):
            f(hidden, x)
    assert w.grad is None and not hidden.requires_grad


def test_output_gradients_go_by_the_containers_of_the_target():
    """Also where the keys stand in another order; what does not fit is an error, and the tape is as before."""
    x = tp.tensor([1.0, 2.0])
    with tp.Tape(persistent=True, watch=[x]) as tape:
        target = {"a": x * x, "b": [tp.sum(x)]}
    seeds = {"b": (tp.tensor(10.0),), "a": tp.tensor([1.0, 0.0])}
    assert tape.gradient(target, x, output_gradients=seeds).tolist() == [12.0, 10.0]
    assert tape.gradient(target["b"], x, output_gradients=[None]).tolist() == [1.0, 1.0]
    for bad in ({"a": tp.ones(2)}, [tp.ones(2), tp.tensor(1.0)], {"a": tp.ones(2), "b": tp.tensor(1.0)}):
        with pytest.raises(errors.TapeError, match="output_gradients"):
            tape.gradient(target, x, output_gradients=bad)


def test_tape_jacobian_once_unless_persistent():
    x = tp.tensor([1.0, 2.0])
    with tp.Tape(watch=[x]) as tape:
        y = x * x
    assert tape.jacobian(y, x).shape == (2, 2)
    for f in (tape.jacobian, tape.gradient):
        with pytest.raises(errors.TapeError, match="persistent=True"):
            f(y, x)


def test_tapes_in_tapes_to_order_3():
    """Gradients and Jacobians taken inside an outer tape are recorded by it, whether or not the inner is persistent."""
    x = tp.tensor([1.0, 2.0])
    for persistent in (False, True):
        with tp.Tape(watch=[x]) as third:
            with tp.Tape(watch=[x]) as second:
                with tp.Tape(persistent=persistent, watch=[x]) as first:
                    y = tp.sum(x**4)
                g = first.gradient(y, x)
            h = second.jacobian(g, x)
        t = third.jacobian(h, x)
        assert g.tolist() == [4.0, 32.0] and h.tolist() == [[12.0, 0.0], [0.0, 48.0]]
        assert t.tolist() == [[[24.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 48.0]]]


def test_tapes_and_transforms_mix():
    x = tp.tensor([1.0, 2.0])
    with tp.Tape(watch=[x]) as tape:
        y = tp.jvp(lambda a: a * a * a, (x,), (tp.ones(2),))[1]
    assert tape.jacobian(y, x).tolist() == [[6.0, 0.0], [0.0, 12.0]]

    def inside(a):
        with tp.Tape(watch=[a]) as tape:
            b = tp.sum(a * a * a)
        return tape.gradient(b, a)

    assert tp.jvp(inside, (x,), (tp.ones(2),))[1].tolist() == [6.0, 12.0]
    assert tp.jacobian(inside)(x).tolist() == [[6.0, 0.0], [0.0, 12.0]]
    with tp.Tape(watch=[x]) as tape:
        y = x * x
        j = tape.jacobian(y, x)
    assert tape.freeze([x], j)(tp.tensor([3.0, 4.0])).tolist() == [[6.0, 0.0], [0.0, 8.0]]


# ---- what is refused ----


def freed(x):
    y = tp.exp(x)
    y.backward()
    return y * y


REFUSED = {
    "vjp_no_function": (lambda: tp.vjp(3.0, 1.0), errors.TapeError, "expected a function"),
    "vjp_integer": (lambda: tp.vjp(tp.sin, tp.tensor([1])), errors.DTypeError, "int64"),
    "vjp_text": (lambda: tp.vjp(tp.sin, "x"), errors.DTypeError, "str"),
    "vjp_returns_text": (lambda: tp.vjp(lambda x: "y", 1.0), errors.TapeError, "must return tensors"),
    "vjp_returns_number": (lambda: tp.vjp(lambda x: (x, 1.0), 1.0), errors.TapeError, "float"),
    "vjp_aux": (lambda: tp.vjp(lambda x: x, 1.0, has_aux=True), errors.TapeError, "pair"),
    "cotangent_shape": (lambda: tp.vjp(tp.sin, tp.ones(3))[1](tp.ones(2)), errors.ShapeError, "(2,), expected (3,)"),
    "cotangent_number": (lambda: tp.vjp(tp.sin, tp.ones(3))[1](1.0), errors.ShapeError, "(), expected (3,)"),
    "cotangent_dtype": (lambda: tp.vjp(tp.sin, 1.0)[1](np.float64(1)), errors.DTypeError, "float64, expected float32"),
    "cotangent_none": (lambda: tp.vjp(tp.sin, 1.0)[1](None), errors.TapeError, "NoneType"),
    "cotangent_dict": (lambda: tp.vjp(lambda x: (x, x), 1.0)[1]({}), errors.TapeError, "dict, expected a tuple"),
    "cotangent_count": (lambda: tp.vjp(lambda x: (x, x), 1.0)[1]((1.0,)), errors.TapeError, "1 items, expected 2"),
    "cotangent_key": (lambda: tp.vjp(lambda x: {"a": x}, 1.0)[1]({"b": 1.0}), errors.TapeError, "keys ['b']"),
    "cotangent_nested": (lambda: tp.vjp(lambda x: {"a": x}, 1.0)[1]({"a": [1.0]}), errors.TapeError, "['a'] is a list"),
    "cotangent_of_integers": (lambda: tp.vjp(tp.argmax, tp.ones(2))[1](0), errors.DTypeError, "expected None"),
    "jvp_no_tuple": (lambda: tp.jvp(tp.sin, 1.0, 1.0), errors.TapeError, "(x,)"),
    "jvp_no_tangents": (lambda: tp.jvp(tp.sin, (1.0,), 1.0), errors.TapeError, "tangents must be a tuple"),
    "jvp_count": (lambda: tp.jvp(tp.sin, (1.0,), (1.0, 1.0)), errors.TapeError, "2 items, expected 1"),
    "jvp_containers": (lambda: tp.jvp(lambda d: d["a"], ({"a": 1.0},), ([1.0],)), errors.TapeError, "[0] is a list"),
    "tangent_shape": (lambda: tp.jvp(tp.sin, (tp.ones(3),), (tp.ones(1),)), errors.ShapeError, "(1,), expected (3,)"),
    "tangent_dtype": (lambda: tp.jvp(tp.sin, (tp.ones(1),), (np.ones(1),)), errors.DTypeError, "float64, expected"),
    "tangent_integers": (lambda: tp.jvp(tp.sin, (1.0,), (tp.tensor(1),)), errors.DTypeError, "int64, expected"),
    "tangent_bool": (lambda: tp.jvp(tp.sin, (1.0,), (True,)), errors.TapeError, "bool"),
    "jvp_integer": (lambda: tp.jvp(tp.sin, (tp.tensor(1),), (1.0,)), errors.DTypeError, "int64"),
    "jvp_freed": (lambda: tp.jvp(freed, (1.0,), (1.0,)), errors.TapeError, "freed"),
    "hvp_vector": (lambda: tp.hvp(tp.sin, (tp.ones(2),), (tp.ones(2),)), errors.TapeError, "a scalar"),
    "hvp_v": (lambda: tp.hvp(tp.sum, (tp.ones(2),), (tp.ones(3),)), errors.ShapeError, "[hvp]"),
    "jacobian_argnums": (lambda: tp.jacobian(tp.sin, argnums=1)(1.0), errors.TapeError, "argument 1"),
    "jacobian_argnums_float": (lambda: tp.jacobian(tp.sin, argnums=1.0), errors.TapeError, "argnums must be"),
    "jacobian_twice": (lambda: tp.jacobian(tp.add, argnums=(0, -2))(1.0, 1.0), errors.TapeError, "twice"),
    "jacobian_of_integers": (lambda: tp.jacobian(tp.argmax)(tp.ones(3)), errors.DTypeError, "no derivative"),
    "jacobian_by_integers": (lambda: tp.jacobian(tp.sin)(tp.tensor([1])), errors.DTypeError, "int64"),
    "hessian_no_function": (lambda: tp.hessian(1.0), errors.TapeError, "[hessian]"),
    "grad_vector": (lambda: tp.grad(tp.sin)(tp.ones(2)), errors.TapeError, "scalar"),
    "static_unhashable": (lambda: tp.function(lambda x, s: tp.jvp(x, x))(tp.ones(1), {1}), errors.PlanError, "set"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_calls_say_what_was_expected(name):
    call, kind, text = REFUSED[name]
    before = tp._core.entries_in_use()
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value), str(caught.value)
    assert str(caught.value).startswith("["), str(caught.value)
    caught = None
    assert tp._core.entries_in_use() <= before + 4
    assert tp.grad(lambda x: x * x)(3.0).item() == 6.0


TAPE_REFUSED = {
    "target_list": (lambda tape, x, y: tape.jacobian([y], x), errors.TapeError, "every target must be a Tensor"),
    "source_text": (lambda tape, x, y: tape.jacobian(y, "x"), errors.TapeError, "every source must be a Tensor"),
    "integer_source": (lambda tape, x, y: tape.jacobian(y, tp.tensor([1])), errors.DTypeError, "int64"),
    "unconnected": (lambda tape, x, y: tape.jacobian(y, x, unconnected="zeros"), errors.TapeError, "'none' or 'zero'"),
    "unrecorded": (lambda tape, x, y: tape.jacobian(tp.ones(2), x), errors.TapeError, "nothing that was recorded"),
}


@pytest.mark.parametrize("name", TAPE_REFUSED)
def test_bad_tape_jacobian_leaves_the_tape_as_it_was(name):
    call, kind, text = TAPE_REFUSED[name]
    x = tp.tensor([1.0, 2.0])
    with tp.Tape(watch=[x]) as tape:
        y = x * x
    with pytest.raises(kind) as caught:
        call(tape, x, y)
    assert text in str(caught.value) and str(caught.value).startswith("[Tape.jacobian]")
    assert tape.jacobian(y, x).tolist() == [[2.0, 0.0], [0.0, 4.0]]
