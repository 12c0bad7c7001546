"""vmap: every op over a batch against a Python loop, values and gradients; axes, containers, nestings, and what cannot
be mapped. The calls are those that the bench compares with NumPy."""

import numpy as np
import pytest
from helpers import host
from test_plans_calls import calls

import tapeflow as tp
from bench import ops as bench_ops
from tapeflow.plan import batch_rules, batching
from tapeflow.plan.ir import NAMES
from tapeflow.transforms import flatten

N = 3
# The operands on whose values the shape of the result depends.
COUNTED = {
    "m.nonzero(b)": "b", "m.nonzero(B)": "B", "m.argwhere(B)": "B", "m.masked_select(x, b)": "b", "x[b]": "b",
    "X[B]": "B", "m.unique_values(x)": "x", "m.unique_values(i)": "i",
}  # fmt: skip


def tensors(tree):
    return [t for t in flatten(tree)[0] if isinstance(t, tp.Tensor)]


def near(got, want, label=""):
    got, want = host(got), host(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape), label
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11, err_msg=label)


def loop(f, axes, xs):
    """The results of f for each element of the batch, leaf by leaf, stacked by NumPy."""
    n = next(x.shape[0] for x, a in zip(xs, axes, strict=True) if a == 0)
    each = [flatten(f(*[x[i] if a == 0 else x for x, a in zip(xs, axes, strict=True)]))[0] for i in range(n)]
    return [np.stack([host(one[j]) for one in each]) for j in range(len(each[0]))]


def weighted(f):
    """A scalar that every float result of f counts in, each element differently."""

    def total(*xs):
        parts = [y for y in tensors(f(*xs)) if y.dtype.kind == "f"]
        return sum([(y.reshape(-1) * tp.cos(tp.arange(0, y.size, dtype=y.dtype))).sum() for y in parts])

    return total


def check(f, axes, xs, label=""):
    """Values, the gradients of each element, and the gradient through the batch."""
    for got, want in zip(flatten(tp.vmap(f, axes)(*xs))[0], loop(f, axes, xs), strict=True):
        near(got, want, label)
    floats = tuple(i for i, x in enumerate(xs) if x.dtype.kind == "f")
    total = weighted(f)
    if not floats or not any(y.dtype.kind == "f" for y in tensors(tp.vmap(f, axes)(*xs))):
        return
    grad = tp.grad(total, argnums=floats)
    want = loop(grad, axes, xs)
    for got, one in zip(tp.vmap(grad, axes)(*xs), want, strict=True):
        near(got, one, label)
    through = tp.grad(lambda *xs: tp.vmap(total, axes)(*xs).sum(), argnums=floats)(*xs)
    for i, got, one in zip(floats, through, want, strict=True):
        near(got, one if axes[i] == 0 else one.sum(axis=0), label)


# ---- every function, every op ----


def pools():
    """Operands of N calls; what is in order, or indices, stays so."""
    found = []
    for i in range(N):
        pool = bench_ops.pool(16, "float64")
        for k, v in pool.items():
            if isinstance(v, np.ndarray) and v.ndim:
                pool[k] = v + 0.1 * i if k == "s" else np.roll(v, 3 * i, axis=-1)
        found.append(pool)
    return found


POOLS = pools()


@pytest.mark.parametrize("text", list(dict.fromkeys(calls())))
def test_call_over_a_batch(text):
    """Every function of the bench with all operands mapped, and with each alone."""
    names = sorted(bench_ops.names_in(text) & set(POOLS[0]))
    arrays = [k for k in names if isinstance(POOLS[0][k], np.ndarray)]
    constants = {k: POOLS[0][k] for k in names if k not in arrays}
    code = compile(text, "call", "eval")

    def f(*xs):
        return eval(code, {**constants, **dict(zip(arrays, xs, strict=True)), "m": tp})

    for which in range(-1, len(arrays)) if arrays else ():
        axes = tuple(0 if which in (-1, j) else None for j in range(len(arrays)))
        pairs = zip(arrays, axes, strict=True)
        xs = [tp.tensor(np.stack([p[k] for p in POOLS]) if a == 0 else POOLS[0][k]) for k, a in pairs]
        mapped = arrays if which == -1 else arrays[which]
        if COUNTED.get(text) in [*mapped]:
            with pytest.raises(tp.TapeError, match=r"\[vmap\].*call:1"):
                tp.vmap(f, axes)(*xs)
            continue
        check(f, axes, xs, label=f"{text} {axes}")


def t(*shape, low=-2.0, high=2.0, seed=0):
    return tp.random.Generator(seed).uniform(low, high, shape, dtype="float64")


LABELS = tp.tensor([[0, 2, 1, 1], [2, 2, 0, 1], [1, 0, 0, 2]])
MORE = {  # what the bench does not call, and what it calls in one way only
    **{name: (getattr(tp, name), [t(N, 4)]) for name in ("elu", "gelu", "gelu_tanh", "silu", "leaky_relu")},
    "lerp": (tp.lerp, [t(N, 4), t(N, 4, seed=1), t(N, 4, seed=2)]),
    "smul": (tp.smul, [t(N, 4), t(N, 4, seed=1)]),
    "broadcast": (lambda x, y: x + y, [t(N), t(N, 2, 4, seed=1)]),
    "cross_entropy": (tp.cross_entropy, [t(N, 4, 3), LABELS]),
    "nll_loss": (tp.nll_loss, [t(N, 4, 3), LABELS]),
    "one_hot": (lambda x: tp.one_hot(x, 3) * 1.5, [LABELS]),
    "layer_norm": (lambda x, w, b: tp.layer_norm(x, 4, w, b), [t(N, 2, 4), t(N, 4, seed=1), t(N, 4, seed=2)]),
    "rms_norm": (lambda x, w: tp.rms_norm(x, 4, w), [t(N, 2, 4), t(N, 4, seed=1)]),
    "matrix vector": (lambda a, b: a @ b, [t(N, 2, 4), t(N, 4, seed=1)]),
    "vector matrix": (lambda a, b: a @ b, [t(N, 4), t(N, 4, 2, seed=1)]),
    "matrix matrix": (lambda a, b: a @ b, [t(N, 3, 4), t(N, 4, 2, seed=1)]),
    "vector vector": (lambda a, b: a @ b, [t(N, 4), t(N, 4, seed=1)]),
    "stack matrix": (lambda a, b: a @ b, [t(N, 5, 3, 4), t(N, 4, 2, seed=1)]),
    "matrix stack": (lambda a, b: a @ b, [t(N, 3, 4), t(N, 5, 4, 2, seed=1)]),
    "einsum": (lambda a, b: tp.einsum("ij,kj->ik", a, b), [t(N, 3, 4), t(N, 2, 4, seed=1)]),
    "take in the middle": (lambda x, i: tp.take(x, i, axis=1), [t(N, 2, 3, 4), LABELS]),
    "indices of indices": (lambda x, i: x[:, i, i], [t(N, 2, 3, 4)[:, :, :3, :3], LABELS]),
    "put": (lambda x, i, v: tp.put_along_axis(x, i, v, axis=0), [t(N, 4), LABELS, t(N, 4, seed=1)]),
    "searchsorted": (lambda s, x: tp.searchsorted(tp.sort(s), x, side="right"), [t(N, 9), t(N, 2, 5, seed=1)]),
    "searchsorted NaN": (
        tp.searchsorted,
        [tp.tensor([[1.0, 2.0, tp.nan], [1.0, tp.nan, tp.nan], [0.0, 0.0, 0.0]]), tp.tensor([[tp.nan, 0.0, 2.0]] * N)],
    ),
    "scan backwards": (lambda x: tp.flip(tp.cumsum(tp.flip(x, axis=0), axis=0), axis=0), [t(N, 4, 2)]),
    "write": (lambda x, y: written(x.clone(), y), [t(N, 4), t(N, seed=1)]),
    "write a row": (lambda x, y: written(x.clone(), y), [t(N, 4, 2), t(N, 2, seed=1)]),
    "all axes": (lambda x: tp.var(x) + tp.std(x) + tp.logsumexp(x) + x.max() + tp.norm(x), [t(N, 4, 2)]),
    "cumulative_max": (lambda x: tp.cumulative_max(x, axis=1), [t(N, 2, 4)]),
}


def written(x, y):
    x[1] = y
    x[::2] *= 2.0
    return x


@pytest.mark.parametrize("name", MORE)
def test_more_over_a_batch(name):
    f, xs = MORE[name]
    for which in range(-1, len(xs)):
        axes = tuple(0 if which in (-1, j) else None for j in range(len(xs)))
        operands = [x if a == 0 else x[0] for x, a in zip(xs, axes, strict=True)]
        check(f, axes, operands, label=f"{name} {axes}")


def test_every_op_of_the_table_has_a_rule_and_was_called(monkeypatch):
    # no op; a .grad and a draw, which batching.py sees to; calls with rules of their own, which leave no note
    apart = {"leaf", "accumulate", "random", "custom", "custom_result"}
    assert {NAMES[op] for op in batch_rules.RULES} == set(NAMES) - apart
    seen = set()
    whole = batching.batch
    monkeypatch.setattr(batching, "batch", lambda call: (seen.add(NAMES[call.op]), whole(call))[1])
    for text in dict.fromkeys(calls()):
        if text not in COUNTED:
            test_call_over_a_batch(text)
    for name in MORE:
        test_more_over_a_batch(name)
    assert set(NAMES) - apart - seen == {"nonzero"}  # which is refused


# ---- axes, containers ----


def test_axes_of_arguments_and_results():
    x, y = t(4, N), t(N, 4, seed=1)
    f = lambda a, b: a * tp.cumsum(b, axis=0)  # noqa: E731
    want = np.stack([host(f(x[:, i], y[i])) for i in range(N)])
    near(tp.vmap(f, in_axes=(1, 0))(x, y), want)
    near(tp.vmap(f, in_axes=(-1, -2), out_axes=1)(x, y), want.T)
    near(tp.vmap(f, in_axes=(-1, 0), out_axes=-1)(x, y), want.T)
    near(tp.vmap(f, in_axes=1)(x, host(y).T), want)  # an array, and one axis for both
    near(tp.vmap(lambda a: f(a, y[0]), in_axes=1)(x), np.stack([host(f(x[:, i], y[0])) for i in range(N)]))


def test_containers():
    data = {"w": t(N, 2), "more": (t(2, N, seed=1), tp.tensor([1.0, 2.0]))}

    def f(d, scale, *, shift):
        return [d["w"] * scale, {"a": d["more"][0] + shift, "b": d["more"][1]}]

    axes = ({"w": 0, "more": (1, None)}, None)
    got = tp.vmap(f, axes, out_axes=[0, {"a": 1, "b": None}])(data, 3.0, shift=t(N, seed=2))
    near(got[0], host(data["w"]) * 3.0)
    near(got[1]["a"], host(data["more"][0]) + host(t(N, seed=2)))
    near(got[1]["b"], data["more"][1])
    assert tp.vmap(f, axes)(data, 3.0, shift=t(N, seed=2))[1]["b"].shape == (N, 2)  # the same for all, N times


def test_a_batch_of_none():
    f = lambda x: (x @ x).sum() * tp.softmax(x, axis=0)  # noqa: E731
    assert tp.vmap(f)(tp.zeros((0, 3, 3))).shape == (0, 3, 3)
    assert tp.vmap(tp.grad(lambda x: tp.take(x, [0, 1]).sum()))(tp.zeros((0, 4))).shape == (0, 4)


def test_unmapped_values_are_computed_once_and_as_they_are():
    seen = []

    def f(x, n, scale, name):
        seen.append((n, scale, name))
        return x * scale + n if name == "plus" else x

    assert tp.vmap(f, (0, None, None, None))(tp.ones(2), 3, 0.5, "plus").tolist() == [3.5, 3.5]
    assert seen == [(3, 0.5, "plus")]
    w = tp.tensor(2.0)
    assert tp.vmap(lambda x: x if w > 1.0 else -x)(tp.ones(2)).tolist() == [
        1.0,
        1.0,
    ]  # a look at what is the same for all
    assert tp.vmap(lambda x: x * float(w.numpy()))(tp.ones(2)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda f: tp.vmap(f)(tp.ones(2), tp.ones(3)), tp.ShapeError, "2 of argument 0, 3 of argument 1"),
        (
            lambda f: tp.vmap(f)({"a": tp.ones(2)}, tp.ones(3)),
            tp.ShapeError,
            r"2 of argument 0\['a'\], 3 of",
        ),
        (lambda f: tp.vmap(f, (0, 2))(tp.ones(2), tp.ones((2, 2))), tp.ShapeError, "in_axes is 2 for argument 1"),
        (lambda f: tp.vmap(f, -2)(tp.ones(2), tp.ones(2)), tp.ShapeError, "in_axes is -2 for argument 0"),
        (lambda f: tp.vmap(f)(tp.ones(()), tp.ones(2)), tp.ShapeError, "in_axes is 0 for argument 0"),
        (lambda f: tp.vmap(f, (0,))(tp.ones(2), tp.ones(2)), tp.ShapeError, "1 entries for 2 positional"),
        (lambda f: tp.vmap(f, None)(tp.ones(2), tp.ones(2)), tp.ShapeError, "no argument is mapped"),
        (lambda f: tp.vmap(f, ((0, 0), 0))((tp.ones(2),), tp.ones(2)), tp.ShapeError, "2 axes for argument 0"),
        (lambda f: tp.vmap(f, ({"a": 0}, 0))({"b": tp.ones(2)}, tp.ones(2)), tp.ShapeError, "names the keys"),
        (lambda f: tp.vmap(f)(1.0, tp.ones(2)), tp.DTypeError, "argument 0 is a float"),
        (lambda f: tp.vmap(f, 0.5), tp.DTypeError, "in_axes must hold ints"),
        (lambda f: tp.vmap(f, out_axes=True), tp.DTypeError, "out_axes must hold ints"),
        (lambda f: tp.vmap(f, out_axes=1)(tp.ones(2), tp.ones(2)), tp.ShapeError, "out_axes is 1 for a result"),
        (lambda f: tp.vmap(f, out_axes=None)(tp.ones(2), tp.ones(2)), tp.ShapeError, "differs within the batch"),
        (lambda f: tp.vmap(f, out_axes=(0, 0))(tp.ones(2), tp.ones(2)), tp.ShapeError, "2 axes for the result"),
        (lambda f: tp.vmap(3), tp.TapeError, "expected a function"),
        (lambda f: tp.vmap(lambda x: (x, 1.0))(tp.ones(2)), tp.TapeError, "returned a float"),
    ],
)
def test_bad_calls(call, error, text):
    with pytest.raises(error, match=rf"\[vmap\].*{text}"):
        call(lambda a, b: (a["a"] if isinstance(a, dict) else a) + b)


# ---- what differs within the batch stays in the batch ----


def refused(f, text):
    with pytest.raises(tp.TapeError, match=rf"\[vmap\].*{text}.*test_vmap.py:\d+") as error:
        tp.vmap(f)(tp.tensor([1.0, 2.0]))
    return int(str(error.value).split("test_vmap.py:")[1].split(")")[0])


def test_looks_at_the_batch():
    def branch(x):
        if x > 0:
            return x
        return -x

    assert refused(branch, "Python looked") == branch.__code__.co_firstlineno + 1
    for look in (
        lambda x: x * float(x),
        lambda x: x * x.item(),
        lambda x: x + x.numpy(),
        lambda x: tp.tensor(x.tolist()),
    ):
        refused(look, "Python looked")
    refused(lambda x: tp.nonzero(tp.reshape(x, (1,)))[0], "mask selects")


def test_writes_of_the_batch():
    w = tp.tensor(3.0)
    v = tp.tensor(1.0, requires_grad=True)
    refused(lambda x: w.assign(x * 2.0) * 1.0, "a captured tensor float32")
    refused(lambda x: (v * x).backward() or x, "adds a gradient")
    assert w.item() == 3.0 and v.grad is None
    twice = tp.vmap(lambda x: x * w.assign(w * 2.0))(tp.tensor([1.0, 2.0]))  # once for all
    assert twice.tolist() == [6.0, 12.0] and w.item() == 6.0


def test_a_failing_function_leaves_everything_as_it_was():
    w, g = tp.tensor(3.0), tp.random.Generator(1)

    def f(x):
        w.assign(w + 1.0)
        g.normal()
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        tp.vmap(f)(tp.ones(2))
    assert w.item() == 3.0 and g.state == (1, 0)
    assert not tp.is_grad_enabled() or (tp.tensor(1.0, requires_grad=True) * 2.0).requires_grad


def test_one_draw_covers_the_batch():
    g, other = tp.random.Generator(3), tp.random.Generator(3)
    got = tp.vmap(lambda x: x + g.normal(shape=(4,)) + g.uniform())(tp.zeros(N))
    assert g.state == (3, 2)
    near(got, other.normal(shape=(N, 4)) + other.uniform(shape=(N, 1)))
    nested = tp.vmap(tp.vmap(lambda x: x + g.normal()))(tp.zeros((2, N)))
    assert g.state == (3, 3)
    near(nested, other.normal(shape=(2, N)))

    def seeded(x):
        g.state = (7, 5)
        return x + g.uniform(shape=(2,))

    near(tp.vmap(seeded)(tp.zeros(N)), draw_of(7, 5, (N, 2)))
    assert g.state == (7, 6)


def draw_of(seed, number, shape):
    g = tp.random.Generator(seed)
    g.state = (seed, number)
    return g.uniform(shape=shape)


# ---- nestings ----


def net(x, w, b):
    return tp.sum(tp.tanh(x @ w + b) ** 2)


def test_gradients_of_each_example_sum_to_the_gradient_of_all():
    x, w, b = t(N, 4), t(4, 2, seed=1), t(2, seed=2)
    each = tp.vmap(tp.grad(net, argnums=(1, 2)), in_axes=(0, None, None))(x, w, b)
    both = tp.grad(lambda w, b: tp.vmap(net, (0, None, None))(x, w, b).sum(), argnums=(0, 1))(w, b)
    for one, total, like in zip(each, both, (w, b), strict=True):
        assert one.shape == (N, *like.shape)
        near(one.sum(axis=0), total)


def test_nested_maps():
    x, y = t(2, N, 4), t(5, 4, seed=1)
    got = tp.vmap(lambda row: tp.vmap(lambda a, b: (a * b).sum(), (None, 0))(row, y))(x[0])
    near(got, host(x[0]) @ host(y).T)
    got = tp.vmap(tp.vmap(tp.grad(lambda a: tp.sin(a).sum())))(x)
    near(got, np.cos(host(x)))
    got = tp.vmap(tp.vmap(lambda a, b: a @ b, (0, None)), (None, 0))(x[0], y)
    near(got, host(y) @ host(x[0]).T)


def test_derivatives_of_every_order():
    x = t(N)
    f = lambda x: tp.sin(x) * x  # noqa: E731
    second = tp.vmap(tp.grad(tp.grad(f)))(x)
    near(second, 2 * np.cos(host(x)) - host(x) * np.sin(host(x)))
    near(tp.grad(lambda x: tp.vmap(tp.grad(f))(x).sum())(x), second)
    near(tp.grad(lambda x: tp.grad(lambda x: tp.vmap(f)(x).sum())(x).sum())(x), second)


def test_gradients_to_captured_tensors_and_through_computed_ones():
    x = t(N, 4)
    w = tp.tensor(host(t(4, seed=1)), requires_grad=True)
    h = w * 2.0  # computed outside of the function
    tp.vmap(lambda x: (tp.sin(h) * x).sum())(x).sum().backward()
    near(w.grad, 2.0 * np.cos(host(h.detach())) * host(x).sum(axis=0))
    h = w * 2.0
    with tp.Tape() as tape:
        y = tp.vmap(lambda x: (w * x * h).sum())(x).sum()
    near(tape.gradient(y, w), 4.0 * host(w.detach()) * host(x).sum(axis=0))


def test_what_has_no_gradient_keeps_none():
    x = t(N)

    def f(x):
        with tp.no_grad():
            a = x * 3.0
        return x * x.detach() + x * a + tp.stop_gradient(x) * 2.0

    near(tp.grad(lambda x: tp.vmap(f)(x).sum())(x), host(x) * 4.0)
    near(tp.vmap(tp.grad(f))(x), host(x) * 4.0)


def test_map_inside_of_functions_and_functions_inside_of_maps():
    x, w = t(N, 4), t(4, seed=1)
    want = tp.vmap(tp.grad(lambda x: (tp.tanh(x) * w).sum()))(x)
    f = tp.function(lambda x: tp.vmap(tp.grad(lambda x: (tp.tanh(x) * w).sum()))(x))
    assert all(host(f(x)).tobytes() == host(want).tobytes() for _ in range(3))
    inner = tp.function(lambda x: (tp.tanh(x) * w).sum())
    near(tp.vmap(tp.grad(inner))(x), want)
    plan = tp.freeze(lambda x: (tp.tanh(x) * w).sum(), x[0])
    near(tp.vmap(tp.grad(plan))(x), want)
    frozen_inside = tp.vmap(lambda x: tp.freeze(lambda y: (tp.tanh(y) * w).sum(), x)(x))(x)
    near(frozen_inside, (np.tanh(host(x)) * host(w)).sum(axis=1))


def test_a_map_inside_of_a_function_follows_what_is_captured():
    w = tp.tensor([1.0, 2.0])
    f = tp.function(lambda x: tp.vmap(lambda x: (x * w).sum())(x))
    x = tp.ones((3, 2))
    assert f(x).tolist() == [3.0] * 3
    w.assign(tp.tensor([5.0, 5.0]))
    assert f(x).tolist() == [10.0] * 3


def test_bits_of_maps_of_elementwise_functions_and_sums():
    x = tp.random.Generator(5).normal(shape=(7, 33))
    f = lambda x: tp.softmax(tp.exp(x) * tp.sum(x * x), axis=0)  # noqa: E731
    assert host(tp.vmap(f)(x)).tobytes() == np.stack([host(f(row)) for row in x]).tobytes()


# ---- plans over a batch ----


def scalar_program(x, y, s):
    a = tp.where(x > y, x * s, tp.exp(-y) / (1.0 + x * x))
    n = (x > 0).astype("int64") * 3 + tp.floor(y).astype("int32")
    return a * tp.tanh(a - y) + n, n, s + 0.0, a.astype("float32") > 0.25, tp.atan2(a, y)


@pytest.mark.parametrize("n", [0, 1, 5, 32, 33, 70, 1000])
def test_a_scalar_plan_over_many_has_the_bits_of_its_replays(n):
    x, y, s = t(n, seed=1), t(n, seed=2), tp.tensor(1.5, dtype="float64")
    plan = tp.freeze(scalar_program, t(seed=1), t(seed=2), s)
    assert plan.is_scalar
    got = tp.vmap(plan, (0, 0, None))(x, y, s)
    each = [plan(x[i], y[i], s) for i in range(n)]
    for j, one in enumerate(got):
        assert one.shape == (n,)
        want = np.array([host(e[j]) for e in each], host(one).dtype)
        assert host(one).tobytes() == want.tobytes(), j
    if n:
        kept = tp.vmap(plan, (0, 0, None), out_axes=(0, 0, None, 0, 0))(x, y, s)
        assert kept[2].shape == () and kept[2].item() == 1.5


def test_what_a_scalar_plan_hands_on():
    w = tp.tensor(3.0)
    plan = tp.freeze(lambda x, y: (x, x + 0.0, w, w * 2.0, y.detach(), x), tp.tensor(1.0), tp.tensor(2.0))
    assert plan.is_scalar
    got = tp.vmap(plan)(tp.arange(0.0, 3.0), tp.ones(3))
    assert [y.tolist() for y in got] == [[0.0, 1.0, 2.0]] * 2 + [[3.0] * 3, [6.0] * 3, [1.0] * 3, [0.0, 1.0, 2.0]]
    got[0].assign(tp.zeros(3))
    assert got[1].tolist() == got[5].tolist() == [0.0, 1.0, 2.0]


def test_a_scalar_plan_with_gradients_over_many():
    def f(x, y):
        for _ in range(5):
            x, y = x + 0.1 * tp.sin(y), y - 0.1 * x * y
        return x * y

    g = tp.value_and_grad(f, argnums=(0, 1))
    x, y = t(100, seed=1), t(100, seed=2)
    w = tp.tensor(2.0, dtype="float64")
    plan = tp.freeze(lambda x, y: g(x * w, y), x[0], y[0])
    for value in (2.0, -0.5):
        w.assign(tp.tensor(value, dtype="float64"))
        value, (gx, gy) = tp.vmap(plan)(x, y)
        want = [plan(x[i], y[i]) for i in range(100)]
        for got, one in ((value, [v for v, _ in want]), (gx, [v[0] for _, v in want]), (gy, [v[1] for _, v in want])):
            assert host(got).tobytes() == np.stack([host(v) for v in one]).tobytes()
    before = tp.get_num_threads()
    try:
        for threads in (1, 2):
            tp.set_num_threads(threads)
            assert host(tp.vmap(plan)(x, y)[0]).tobytes() == host(value).tobytes()
    finally:
        tp.set_num_threads(before)


@pytest.mark.parametrize("n", [0, 1, 16, 17, 100, 1500])
def test_a_plan_over_many_blocks(n):
    w = t(6, 4, seed=3)
    f = tp.value_and_grad(lambda x, b: (tp.tanh(w @ x + b) ** 2).sum())
    plan = tp.freeze(f, t(4), t(6, seed=1))
    x, b = t(n, 4), t(6, seed=1)
    got = tp.vmap(plan, (0, None))(x, b)
    want = tp.vmap(f, (0, None))(x, b)
    for one, two in zip(tensors(got), tensors(want), strict=True):
        near(one, two)
    if n > 1:
        assert tp.vmap(plan, (0, None))(x, b)[0].shape == (n,)
        assert len(plan.mapped) == 1  # the plan over a block is kept


def test_a_mapped_function_is_recorded_once():
    runs = []

    def f(x, k):
        runs.append(k)
        return (x * x).sum() * k

    mapped = tp.vmap(tp.function(f), (0, None))
    for seed in range(3):
        x = t(50, 4, seed=seed)
        near(mapped(x, 2), 2 * (host(x) ** 2).sum(axis=1))
    assert runs == [2]
    near(mapped(t(50, 4), 3), 3 * (host(t(50, 4)) ** 2).sum(axis=1))
    assert runs == [2, 3]


def test_a_mapped_function_with_state_keeps_it_when_it_is_recorded():
    count, g = tp.tensor(0), tp.random.Generator(1)

    @tp.function
    def f(x):
        count.assign_add(1)
        return x + g.uniform()

    got = tp.vmap(f)(tp.zeros(40))
    near(got, draw_of(1, 0, (40,)))
    assert count.item() == 1 and g.state == (1, 1)  # one draw, and one write, for all
    tp.vmap(f)(tp.zeros(40))
    assert count.item() == 2 and g.state == (1, 2)


def test_a_mapped_plan_that_is_differentiated_or_recorded():
    plan = tp.freeze(lambda x: tp.sin(x) * x, tp.tensor(1.0, dtype="float64"))
    x = t(5)
    near(tp.grad(lambda x: tp.vmap(plan)(x).sum())(x), np.cos(host(x)) * host(x) + np.sin(host(x)))
    outer = tp.freeze(lambda x: tp.vmap(plan)(x) * 2.0, x)
    near(outer(x), 2.0 * np.sin(host(x)) * host(x))
    with tp.Tape(watch=[x]) as tape:
        y = tp.vmap(plan)(x).sum()
    assert tape.gradient(y, x).shape == (5,)


@pytest.mark.cpu  # what a file holds is read there
def test_a_plan_that_was_read_from_a_file_or_a_text(tmp_path):
    w = t(6, 4, seed=3)
    for f, shape in ((lambda x: tp.sin(x) * x, ()), (lambda x: tp.tanh(w @ x), (4,))):
        plan, x = tp.freeze(f, t(*shape)), t(50, *shape)
        plan.save(tmp_path / "plan")
        near(tp.vmap(tp.load_plan(tmp_path / "plan"))(x), tp.vmap(f)(x))
    (y,) = tp.vmap(tp.parse_plan(str(tp.freeze(lambda x: tp.sin(x) * x, t()))))(t(50))
    near(y, np.sin(host(t(50))) * host(t(50)))


def test_bad_calls_of_mapped_plans():
    plan = tp.freeze(lambda x, n: x * n, tp.tensor(1.0), 2)
    with pytest.raises(tp.PlanError, match=r"argument 0 is float32\[2\].*float32\[\]"):
        tp.vmap(plan, (0, None))(tp.ones((3, 2)), 2)
    with pytest.raises(tp.PlanError, match="is static"):
        tp.vmap(plan, (0, None))(tp.ones(3), 5)
    branch = tp.freeze(lambda x: x * 2.0 if x > 0 else x, tp.tensor(1.0))
    with pytest.raises(tp.TapeError, match=r"Python looked.*test_vmap.py:\d+"):
        tp.vmap(branch)(tp.ones(3))


# ---- calls with rules of their own ----


def cut(limit):
    """The identity, whose gradient is clipped: no derivative of the identity."""

    @tp.custom_vjp
    def f(x):
        return x

    f.defvjp(lambda x: (x, None), lambda residuals, g: (tp.clip(g, -limit, limit),))
    return f


@tp.custom_vjp
def scaled(x, w, k):
    return {"y": x * w * k, "k": k}


scaled.defvjp(
    lambda x, w, k: ({"y": x * w * k, "k": k}, (x, w * k, None)),
    lambda kept, g: (g["y"] * kept[1] * 10.0, (g["y"] * kept[0]).sum() * 100.0, None),
)


def test_the_rule_of_a_call_holds_over_a_batch():
    f, x = cut(1.0), t(N, 4, low=-3.0, high=3.0)
    total = lambda x: (f(x) ** 2).sum()  # noqa: E731
    want = np.clip(2 * host(x), -1.0, 1.0)
    near(tp.grad(lambda x: tp.vmap(total)(x).sum())(x), want)
    near(tp.vmap(tp.grad(total))(x), want)
    near(tp.grad(lambda x: tp.vmap(tp.vmap(lambda v: f(v) ** 2))(x).sum())(x), want)
    near(tp.vmap(total)(x), (host(x) ** 2).sum(axis=1))


def test_the_rule_of_a_call_with_arguments_that_are_not_mapped():
    x, w = t(N, 4), tp.tensor(0.5, dtype="float64")
    f = lambda x, w: scaled(x, w, 3)["y"].sum()  # noqa: E731
    gx, gw = tp.grad(lambda x, w: tp.vmap(f, (0, None))(x, w).sum(), argnums=(0, 1))(x, w)
    near(gx, np.full((N, 4), 15.0))
    near(gw, np.array(100.0 * host(x).sum()))
    each = tp.vmap(tp.grad(f, argnums=(0, 1)), (0, None))(x, w)
    near(each[0], np.full((N, 4), 15.0))
    near(each[1], 100.0 * host(x).sum(axis=1))


def test_the_rule_of_a_call_holds_through_plans():
    f, x = cut(1.0), t(4, low=-3.0, high=3.0)
    total = lambda x: (f(x * 1.0) ** 2).sum()  # noqa: E731
    want = np.clip(2 * host(x), -1.0, 1.0)
    plan = tp.freeze(total, x)
    near(tp.grad(plan)(x), want)
    near(tp.grad(tp.freeze(lambda x: plan(x) * 1.0, x))(x), want)
    near(tp.grad(lambda x: tp.vmap(plan)(x).sum())(tp.stack([x, -x])), np.stack([want, -want]))
    near(tp.freeze(tp.grad(total), x)(x), want)
    with pytest.raises(tp.PlanError, match="is code"):
        tp.freeze(total, x, differentiable=True).save("nowhere")


def test_forward_mode_over_a_batch():
    x = t(N, 4)
    f = lambda x: tp.sin(x) * x.sum()  # noqa: E731
    value, tangent = tp.jvp(tp.vmap(f), (x,), (tp.ones_like(x),))
    near(value, np.sin(host(x)) * host(x).sum(axis=1, keepdims=True))
    near(tangent, np.cos(host(x)) * host(x).sum(axis=1, keepdims=True) + 4 * np.sin(host(x)))
    near(tp.vmap(lambda x: tp.jvp(f, (x,), (tp.ones_like(x),))[1])(x), tangent)
