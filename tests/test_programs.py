"""Random programs with reuse, views and writes, on tapeflow and on the scalar oracle (oracle.py).

A program is a list of steps (name, i, j, k); i and j pick live values, k the parameters. The oracle runs it first
and keeps the steps that mean something there (shapes that fit, domains, no kink within rounding, no huge value), so
every list of numbers is a program and shrinks well. Counterexamples stay below as @example.
"""

import operator
from types import SimpleNamespace

import numpy as np
import oracle
import pytest
from helpers import assert_same, host
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tapeflow as tp

UNARY = ("negative", "exp", "expm1", "sin", "cos", "tanh", "sigmoid", "softplus", "relu", "abs", "sign", "square")
POSITIVE = ("log", "log1p", "sqrt", "rsqrt")
PAIR = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
REDUCE = ("sum", "mean", "max", "min", "prod", "logsumexp")
OTHER = ("where", "clip", "softmax", "log_softmax", "matmul", "whole_power")
ORACLE = SimpleNamespace(
    **{name: getattr(oracle, name) for name in (*UNARY, *POSITIVE, *PAIR, *REDUCE, *OTHER) if hasattr(oracle, name)},
    abs=oracle.abs_, sum=oracle.sum_, max=oracle.max_, min=oracle.min_, pow=oracle.power,
    greater=operator.gt, reshape=np.reshape, permute_dims=np.transpose,
    broadcast_to=np.broadcast_to, expand_dims=lambda x, axis: np.expand_dims(x, axis),
    squeeze=lambda x, axis: np.squeeze(x, axis), concat=lambda xs, axis: np.concatenate(xs, axis),
    stack=lambda xs, axis: np.stack(xs, axis), take=lambda x, index, axis: np.take(x, index, axis),
    index=np.array, copy=lambda x: np.array(x, dtype=object), is_leaf=lambda x: True,
)  # fmt: skip
TAPEFLOW = SimpleNamespace(
    **{name: getattr(tp, name) for name in vars(ORACLE) if hasattr(tp, name)},
    index=tp.tensor, copy=lambda x: x * 1.0, is_leaf=lambda x: x.is_leaf, whole_power=operator.pow,
)  # fmt: skip

INDEX = (
    slice(None), 0, -1, slice(1, None), slice(None, -1), slice(None, None, -1), slice(None, None, 2), Ellipsis, None,
    (Ellipsis, 0), (slice(None), -1), (Ellipsis, slice(None, None, -2)), (0, Ellipsis, slice(0, 1)), slice(1, 1),
    (None, Ellipsis, None), slice(2, 0, -1), [0, 0, -1], (Ellipsis, [-1, 0, 0]),
    ([0, 1], [1, 0]), (slice(None, None, -1), [0, 0]), [[0], [-1]], (0, [1, 1, 0]), ([1, 0], None, 0),
)  # fmt: skip


def axis_of(a, k):
    return k % a.ndim if a.ndim else None


def unary_step(name):
    return lambda m, a, b, k: getattr(m, name)(a)


def reduce_step(name):
    def step(m, a, b, k):
        axis = None if k % 3 == 2 else axis_of(a, k // 6)
        return getattr(m, name)(a, axis=axis, keepdims=k // 3 % 2 == 1)

    return step


def fit(m, a, b):
    """b, or its sum where it does not broadcast into a."""
    try:
        return b if np.broadcast_shapes(a.shape, b.shape) == a.shape else m.sum(b)
    except ValueError:
        return m.sum(b)


def pair(name):
    return lambda m, a, b, k: getattr(m, name)(a, fit(m, a, b)) if k % 2 else getattr(m, name)(fit(m, a, b), a)


def positive(name):
    return lambda m, a, b, k: getattr(m, name)(m.add(m.square(a), 0.5) if k % 2 else a)


def matmul_step(m, a, b, k):
    if a.ndim == 2 and k % 2:
        return m.matmul(a, m.permute_dims(a, (1, 0))) if k % 4 == 1 else m.matmul(m.permute_dims(a, (1, 0)), a)
    if 1 <= a.ndim <= 2 and 1 <= b.ndim <= 2 and a.shape[-1] == b.shape[0]:
        return m.matmul(a, b)
    return m.matmul(m.reshape(a, (-1,)), m.reshape(a, (-1,)))


def joined(m, a, b, k):
    if a.ndim and a.ndim == b.ndim and a.shape[1:] == b.shape[1:]:
        return m.concat([a, b, a], 0)
    return m.concat([m.reshape(b, (-1,)), m.reshape(a, (-1,))], 0)


def stacked(m, a, b, k):
    b = m.broadcast_to(fit(m, a, b), a.shape)
    return m.stack([b, a], k % (a.ndim + 1))


def taken(m, a, b, k):
    a = a if a.ndim else m.reshape(a, (1,))
    return m.take(a, m.index([(0,), (-1, 0), (-1, -1, 0)][k % 3]), axis=axis_of(a, k))


def clipped(m, a, b, k):
    return m.clip(a, (k % 5) / 2 - 2, (k % 7) / 2)


def chosen(m, a, b, k):
    b = fit(m, a, b)
    return m.where(m.greater(a, b), m.multiply(a, 2.0), b) if k % 2 else m.where(a > 0.25, b, a)


def powered(m, a, b, k):
    return m.pow(m.add(m.square(a), 0.5), fit(m, a, b))


# In tapeflow a write changes the one Python object, in the oracle a copy takes its place: the same, by API.md.
def written(change):
    def step(m, a, b, k):
        a = m.copy(a) if m.is_leaf(a) else a
        return change(m, a, fit(m, a, b), k)

    step.writes = True
    return step


def part_of(m, a, index):
    return np.asarray(a[index], dtype=object) if m is ORACLE else a[index]


def put(m, a, index, value):
    a[index] = value[()] if m is ORACLE else value
    return a


def set_item(m, a, b, k):
    index = INDEX[k % len(INDEX)]
    return put(m, a, index, fit(m, part_of(m, a, index), b))


def mask_of(a, k):
    return np.arange(a.size).reshape(a.shape) % 3 == k % 3


def set_mask(m, a, b, k):
    return put(m, a, mask_of(a, k), m.sum(b))


def scaled_part(m, a, b, k):
    """a[i] *= b, the read-modify-write of Python: the part is read, changed and written back."""
    index = INDEX[k % len(INDEX)]
    part = m.copy(part_of(m, a, index))
    part *= fit(m, part, b)
    return put(m, a, index, part)


def in_place(change):
    return written(lambda m, a, b, k: change(a, b))


STEPS = {
    **{name: unary_step(name) for name in UNARY},
    **{name: positive(name) for name in POSITIVE},
    **{name: reduce_step(name) for name in REDUCE},
    **{name: pair(name) for name in PAIR},
    "operators": lambda m, a, b, k: (a + fit(m, a, b)) * 0.5 - a / 4.0 + 1.5,
    "pow": powered,
    "whole_power": lambda m, a, b, k: m.whole_power(a, k % 4),
    "where": chosen,
    "clip": clipped,
    "softmax": lambda m, a, b, k: m.softmax(a, axis=k % a.ndim),
    "log_softmax": lambda m, a, b, k: m.log_softmax(a, axis=k % a.ndim),
    "matmul": matmul_step,
    "flatten": lambda m, a, b, k: m.reshape(a, (-1,)),
    "transpose": lambda m, a, b, k: m.permute_dims(a, tuple(range(a.ndim))[::-1]),
    "broadcast": lambda m, a, b, k: m.broadcast_to(a, (1 + k % 2, *a.shape)),
    "expand": lambda m, a, b, k: m.expand_dims(a, axis=k % (a.ndim + 1)),
    "squeeze": lambda m, a, b, k: m.squeeze(a, axis=k % a.ndim),
    "concat": joined,
    "stack": stacked,
    "take": taken,
    "index": lambda m, a, b, k: part_of(m, a, INDEX[k % len(INDEX)]),
    "mask": lambda m, a, b, k: part_of(m, a, mask_of(a, k)),
    "set_item": written(set_item),
    "set_mask": written(set_mask),
    "scaled_part": written(scaled_part),
    "add_in_place": in_place(operator.iadd),
    "subtract_in_place": in_place(operator.isub),
    "multiply_in_place": in_place(operator.imul),
}


def replace(env, i, value, writes):
    if writes:
        env[i] = value
    else:
        env.append(value)


def operands(env, i, j):
    return env[-1 - i % len(env)], env[-1 - j % len(env)]


def rehearse(leaves, steps):
    """The oracle's run: the steps that are kept, and the values at the end."""
    env, kept = list(leaves), []
    for name, i, j, k in steps:
        step = STEPS[name]
        a, b = operands(env, i, j)
        try:
            out = np.asarray(step(ORACLE, a, b, k), dtype=object)
            finite = oracle.values(out)
        except (oracle.Ambiguous, ValueError, IndexError, TypeError, ArithmeticError):
            continue
        if out.size <= 64 and out.ndim <= 5 and np.all(np.abs(finite) < 1e3):
            kept.append((name, i, j, k))
            replace(env, len(env) - 1 - i % len(env), out, hasattr(step, "writes"))
    return env, kept


def perform(leaves, steps):
    """The same steps in tapeflow, begun on views of the leaves. A look at the values in between must change nothing."""
    env = [x[...] for x in leaves]
    for name, i, j, k in steps:
        step = STEPS[name]
        a, b = operands(env, i, j)
        replace(env, len(env) - 1 - i % len(env), step(TAPEFLOW, a, b, k), hasattr(step, "writes"))
        if k % 5 == 0:
            env[-1].tolist()
    return env


def total(m, env):
    """One number that every live value goes into, each with a weight of its own."""
    out = m.sum(env[0])
    for weight, x in enumerate(env[1:], 2):
        out = m.add(out, m.multiply(m.sum(x), weight / 2))
    return out


def run_backward(arrays, steps, **options):
    xs = [tp.tensor(a, requires_grad=True) for a in arrays]
    loss = total(TAPEFLOW, perform(xs, steps))
    loss.backward(**options)
    return [x.grad for x in xs], loss


def compare(got, want, mass, label):
    error = np.abs(host(got) - want)
    assert np.all(error <= 1e-11 + 1e-11 * mass), (label, host(got), want)


def check(arrays, steps, all_ways=True):
    """Values and gradients against the oracle; every way to the gradient has the same bits."""
    leaves = [oracle.leaf(a) for a in arrays]
    env, steps = rehearse(leaves, steps)
    env.extend(leaves)
    want = oracle.gradient(total(ORACLE, env), np.ones(()), leaves)
    xs = [tp.tensor(a, requires_grad=True) for a in arrays]
    got = perform(xs, steps) + xs
    for x, w in zip(got, env, strict=True):
        assert x.shape == w.shape
        compare(x, oracle.values(w), np.abs(oracle.values(w)), ("value", steps))
    total(TAPEFLOW, got).backward(retain_graph=True)
    fused = [x.grad.clone() for x in xs]
    for x, g, (w, mass), a in zip(xs, fused, want, arrays, strict=True):
        compare(g, w, mass, ("gradient", steps))
        assert_same(x, a)
    if not all_ways:
        return steps

    def f(*xs):
        return total(TAPEFLOW, perform(xs, steps) + list(xs))

    leaves = [tp.tensor(a, requires_grad=True) for a in arrays]
    f(*leaves).backward(create_graph=True)
    with tp.Tape(watch=(fresh := [tp.tensor(a) for a in arrays])) as tape:
        target = f(*fresh)
    with tp.no_grad():
        assert_same(f(*xs), target)
    others = (
        [x.grad for x in leaves],
        tape.gradient(target, fresh, unconnected="zero"),
        tp.grad(f, argnums=tuple(range(len(arrays))))(*arrays),
    )
    for way in others:
        for g, w in zip(way, fused, strict=True):
            assert_same(g, w, label=str(steps))
    return steps


SHAPES = ((), (1,), (3,), (2, 3), (3, 1), (2, 2), (1, 2, 2), (2, 0))
leaf_arrays = st.builds(
    lambda shape, quarters: np.resize(np.array(quarters) / 4.0, shape),
    st.sampled_from(SHAPES),
    st.lists(st.integers(-10, 10), min_size=1, max_size=6),
)
numbers = st.integers(0, 5)
step_tuples = st.tuples(st.sampled_from(sorted(STEPS)), numbers, numbers, st.integers(0, 60))
programs = st.lists(step_tuples, max_size=20)


def quarters(*rows):
    return [np.array(row, float) / 4 for row in rows]


@settings(max_examples=10 * settings.default.max_examples)
@given(st.lists(leaf_arrays, min_size=1, max_size=3), programs)
@example(quarters([4, 8, 12, 16]), [("multiply", 0, 0, 1), ("scaled_part", 0, 0, 3), ("index", 0, 0, 5)])
@example(quarters(12, 8), [("multiply", 0, 1, 1), ("multiply", 0, 2, 1), ("add", 0, 1, 1), ("multiply", 1, 1, 1)])
@example(quarters([4, 4, 0]), [("max", 0, 0, 0), ("maximum", 1, 1, 0), ("min", 2, 0, 1), ("relu", 3, 0, 0)])
@example(quarters([[1, 2], [3, 0]]), [("prod", 0, 0, 0), ("set_mask", 1, 0, 1), ("add_in_place", 0, 0, 0)])
def test_random_program_is_the_oracles(arrays, steps):
    check(arrays, steps)


STANDARD = quarters([[1, -2, 3], [4, 5, -6]], [2, 0, -3], [[3], [5]], 6, [[[1, 2], [3, 4]]])


@pytest.mark.parametrize("name", sorted(STEPS))
def test_every_step_by_itself(name):
    """Each step runs on a standard set of values with every parameter, so that none is dead in the random programs."""
    kept = 0
    for k in range(0, 60, 1 if name in ("index", "set_item", "scaled_part") else 7):
        for i in range(5):
            kept += bool(check(STANDARD, [(name, i, (i + k) % 5, k)], all_ways=k < 7))
    assert kept >= 7


@settings(max_examples=4 * settings.default.max_examples)
@given(st.lists(leaf_arrays, min_size=1, max_size=2), st.lists(step_tuples, max_size=8))
def test_second_derivatives_are_symmetric(arrays, steps):
    """u.(H v) = v.(H u), where H v is the gradient of g.v: by backward twice and by nested grad, the same bits."""
    leaves = [oracle.leaf(a) for a in arrays]
    env, steps = rehearse(leaves, steps)
    masses = [m for _, m in oracle.gradient(total(ORACLE, env + leaves), np.ones(()), leaves)]
    where = tuple(range(len(arrays)))

    def f(*xs):
        return total(TAPEFLOW, perform(xs, steps) + [x * x for x in xs])  # the squares keep every leaf connected

    def dot(gradients, vectors):
        parts = [tp.sum(g * tp.tensor(v)) for g, v in zip(gradients, vectors, strict=True)]
        return sum(parts[1:], parts[0])

    def times(vectors):
        xs = [tp.tensor(a, requires_grad=True) for a in arrays]
        f(*xs).backward(create_graph=True)
        first = [x.grad for x in xs]
        for x in xs:
            x.grad = None
        dot(first, vectors).backward()

        def along(*zs):
            return dot(tp.grad(f, where)(*zs), vectors)

        for x, g in zip(xs, tp.grad(along, where)(*arrays), strict=True):
            assert_same(x.grad, g, label=str(steps))
        return [host(x.grad) for x in xs]

    u, v = ([np.resize(np.array(w, float), a.shape) for a in arrays] for w in ([1, -2, 3], [2, 1, 0, -1]))
    hu, hv = times(u), times(v)
    uhv, vhu = (sum(np.sum(a * b) for a, b in zip(w, h, strict=True)) for w, h in ((u, hv), (v, hu)))
    scale = 1 + max(np.max(np.abs(h), initial=0) for h in hu + hv + masses)
    assert abs(uhv - vhu) <= 1e-9 * scale * scale, (steps, uhv, vhu)
