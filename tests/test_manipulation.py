"""Functions that move elements and put them in order: NumPy answers each drawn call, for every dtype and layout.

What moves elements is applied, by NumPy, to their positions: that gives the value and, by adding up the cotangents per
position, the exact gradient. Order is compared with Python's sorted.
"""

import math

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FLOATS,
    INF,
    LAYOUTS,
    NAN,
    assert_gradients,
    assert_same,
    check_fused,
    check_vjp,
    draw,
    gradients,
    host,
    leaves,
    name_of,
    rng_for,
)
from hypothesis import given
from hypothesis import strategies as st

import tapeflow as tp
from tapeflow import errors


def op(name):
    return getattr(tp, name)


def parts(y):
    return list(y) if isinstance(y, (tuple, list)) else [y]


# ---- functions that move elements: how to draw their arguments for a shape, and what NumPy says


class Draw:
    """Arguments by hypothesis."""

    def __init__(self, data, shape):
        self.data, self.shape, self.ndim = data, shape, len(shape)

    def pick(self, *options):
        return self.data.draw(st.sampled_from(options))

    def int(self, low, high):
        return self.data.draw(st.integers(low, high))

    def ints(self, n, low, high):
        return self.data.draw(st.lists(st.integers(low, high), min_size=n, max_size=n))

    def axis(self, ndim=None):
        ndim = self.ndim if ndim is None else ndim
        return self.int(-ndim, ndim - 1)

    def axes(self, n=None):
        order = self.data.draw(st.permutations(range(self.ndim)))
        n = self.int(0, self.ndim) if n is None else n
        return tuple(a - self.pick(0, self.ndim) for a in order[:n])

    def moveaxis(self):
        n = self.int(0, self.ndim)
        return self.pick((self.axis(), self.axis()), (self.axes(n), self.axes(n)))

    def flip(self):
        return (self.pick(None, self.axis(), self.axes()),)

    def roll(self):
        n = self.int(1, 3)
        several = (tuple(self.ints(n, -9, 9)), tuple(self.axis() for _ in range(n)))
        return self.pick((self.int(-9, 9),), (self.int(-9, 9), self.axis()), several, (2, several[1]))

    def split(self):
        a = self.axis()
        n = self.shape[a]
        divisors = [d for d in range(1, n + 1) if n % d == 0] or [1, 3]
        cuts = self.ints(self.int(0, 3), -n - 1, n + 2)
        return self.pick(self.pick(*divisors), sorted(cuts), cuts), a

    def array_split(self):
        a = self.axis()
        return self.int(1, self.shape[a] + 2), a

    def tile(self):
        return (self.pick(self.int(0, 3), tuple(self.ints(self.int(0, self.ndim + 1), 0, 3))),)

    def repeat(self):
        a = self.pick(None, self.axis())
        n = math.prod(self.shape) if a is None else self.shape[a]
        return self.pick(self.int(0, 3), self.ints(n, 0, 2), self.ints(1, 0, 3)), a

    def pad(self):
        mode = self.pick("constant", "edge", "reflect", "symmetric", "wrap")
        pairs = tuple(tuple(self.ints(2, 0, 6)) for _ in range(self.ndim))
        if mode != "constant" and 0 in self.shape:
            pairs = tuple(w if n else (0, 0) for w, n in zip(pairs, self.shape, strict=True))
            return pairs, mode
        return self.pick(self.int(0, 3), tuple(self.ints(2, 0, 4)), pairs), mode

    def diagonal(self):
        a, b = self.axes(2)
        return self.int(-4, 4), a, b

    def flatten(self):
        a, b = sorted(self.ints(2, 0, self.ndim - 1))
        return self.pick((), (a, b), (a - self.ndim, b - self.ndim))

    def take_along_axis(self):
        a = self.axis()
        n = self.shape[a]
        shape = [self.pick(m, 1) for m in self.shape]
        shape[a] = self.int(0, 4) if n else 0
        rng = np.random.default_rng(self.int(0, 99))
        return rng.integers(-n, max(n, 1), shape), self.pick(a, a)


def numpy_flatten(x, start=0, end=-1):
    start, end = start % x.ndim, end % x.ndim
    return x.reshape(x.shape[:start] + (math.prod(x.shape[start : end + 1]),) + x.shape[end + 1 :])


NONE = lambda d: ()  # noqa: E731
MOVES = {  # the arguments, the reference, and the fewest axes
    "matrix_transpose": (NONE, lambda x: np.swapaxes(x, -1, -2), 2),
    "moveaxis": (Draw.moveaxis, np.moveaxis, 1),
    "swapaxes": (lambda d: (d.axis(), d.axis()), np.swapaxes, 1),
    "ravel": (NONE, np.ravel, 0),
    "flatten": (Draw.flatten, numpy_flatten, 1),
    "atleast_1d": (NONE, np.atleast_1d, 0),
    "atleast_2d": (NONE, np.atleast_2d, 0),
    "atleast_3d": (NONE, np.atleast_3d, 0),
    "flip": (Draw.flip, np.flip, 1),
    "rot90": (lambda d: (d.int(-5, 5), d.axes(2)), np.rot90, 2),
    "roll": (Draw.roll, np.roll, 1),
    "unstack": (lambda d: (d.axis(),), lambda x, a: list(np.moveaxis(x, a, 0)), 1),
    "split": (Draw.split, np.split, 1),
    "array_split": (Draw.array_split, np.array_split, 1),
    "tile": (Draw.tile, np.tile, 0),
    "repeat": (Draw.repeat, np.repeat, 1),
    "pad": (Draw.pad, None, 1),
    "diagonal": (Draw.diagonal, np.diagonal, 2),
    "take_along_axis": (Draw.take_along_axis, np.take_along_axis, 1),
}
OUTSIDE = -1  # the position of a border that no element has


def numpy_positions(name, shape, args):
    """The position that each element of the result comes from."""
    at = np.arange(math.prod(shape)).reshape(shape)
    if name == "pad":
        return [np.pad(at, *args, **({"constant_values": OUTSIDE} if args[1] == "constant" else {}))]
    return parts(MOVES[name][1](at, *args))


SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@pytest.mark.parametrize("name", MOVES)
@given(data=st.data(), shape=SHAPES, dtype=st.sampled_from(DTYPES), layout=st.sampled_from(sorted(LAYOUTS)))
def test_moves_as_numpy(name, data, shape, dtype, layout):
    arguments, _, ndim = MOVES[name]
    shape = (*shape, 2, 3)[: max(len(shape), ndim)]
    x = draw(rng_for(name, shape), shape, dtype, -9, 9)
    args = arguments(Draw(data, shape))
    where = numpy_positions(name, shape, args)
    got = parts(op(name)(LAYOUTS[layout](x), *args))
    assert len(got) == len(where)
    flat = np.append(x.ravel(), np.zeros(1, dtype))
    for y, at in zip(got, where, strict=True):
        assert_same(y, flat[at], label=f"{name} {shape} {args}")
    if dtype not in FLOATS:
        return
    (t,) = leaves(x)
    seeds = [draw(rng_for(i), at.shape, dtype, -9, 9).round() for i, at in enumerate(where)]
    want = np.zeros(x.size + 1, dtype)
    total = tp.sum(t) * 0
    for y, at, w in zip(parts(op(name)(t, *args)), where, seeds, strict=True):
        np.add.at(want, at, w)
        total = total + tp.sum(y * tp.tensor(w))
    total.backward()
    assert_same(t.grad, want[:-1].reshape(shape), zero_sign=False, label=f"gradient of {name} {shape} {args}")


def cube(f):
    """With derivatives of the second order."""
    return lambda x: f(x) * f(x) * x[(0,) * x.ndim]


SECOND = {
    "matrix_transpose": (),
    "moveaxis": (0, 1),
    "ravel": (),
    "flip": (1,),
    "rot90": (),
    "roll": (1, 1),
    "tile": ((2, 1),),
    "repeat": (2, 1),
    "diagonal": (1,),
    "sort": (0,),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_order(name):
    x = draw(rng_for(name), (2, 3))
    check_vjp(cube(lambda t: op(name)(t, *SECOND[name])), x, label=name)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
def test_second_order_of_pad(mode):
    check_vjp(cube(lambda t: op("pad")(t, ((1, 0), (2, 4)), mode)), draw(rng_for(mode), (2, 2)), label=mode)


def test_second_order_of_choices():
    x, v = draw(rng_for("x"), (2, 3)), draw(rng_for("v"), (2, 2))
    index = np.array([[0, 0], [2, -1]])
    check_vjp(cube(lambda t: op("take_along_axis")(t, index, 1)), x, label="take_along_axis")
    check_vjp(lambda t, u: op("put_along_axis")(t * t, index, u * u, 1), x, v, label="put_along_axis")
    check_vjp(lambda t, u: op("index_add")(t * t, 1, [0, 0], u * u, alpha=3), x, v, label="index_add")
    check_vjp(cube(lambda t: op("masked_select")(t, x > 0)), x, label="masked_select")
    check_vjp(lambda t: op("masked_fill")(t * t, x > 0, t[0, 0]), x, label="masked_fill")
    check_vjp(lambda t: op("select")([x > 1, x > 0], [t * t, t], t[0, 0] * t), x, label="select")
    check_vjp(cube(lambda t: op("topk")(t, 2).values), x, label="topk")
    check_vjp(cube(lambda t: op("topk")(t, 1, 0, False).values), x, label="topk smallest")
    check_vjp(cube(lambda t: op("unique_values")(t)), x, label="unique_values")
    check_vjp(lambda t: op("diag")(t * t, -1), x[0], label="diag")
    check_vjp(lambda t, u: op("pad")(t * t, 1, "constant", u * u), x, v[0, 0], label="pad")


# ---- the rest against NumPy


@pytest.mark.parametrize("dtype", DTYPES)
def test_diag_and_broadcast_arrays(dtype):
    for n, k in ((3, 0), (3, 1), (2, -2), (0, 0), (0, 2), (1, -1)):
        x = draw(rng_for(n, k), (n,), dtype)
        assert_same(op("diag")(tp.tensor(x), k), np.diag(x, k))
        x = draw(rng_for(n, k), (n, 4), dtype)
        assert_same(op("diag")(tp.tensor(x), k), np.diag(x, k))
    arrays = [draw(rng_for(s), s, dtype) for s in ((2, 1), (3,), (), (4, 1, 1))]
    for got, want in zip(op("broadcast_arrays")(*map(tp.tensor, arrays)), np.broadcast_arrays(*arrays), strict=True):
        assert_same(got, want)
    assert op("broadcast_arrays")() == ()


@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), st.sampled_from(DTYPES))
def test_pad_with_numbers(data, shape, dtype):
    d = Draw(data, shape)
    x = draw(rng_for(shape), shape, dtype)
    widths = [d.ints(2, 0, 3) for _ in shape]
    pairs = [d.ints(2, 0, 1) for _ in shape]
    values = d.pick(1, True, tuple(pairs[0]), pairs, np.array(pairs), [1])
    if dtype == "bool":
        values = np.asarray(values, bool)
    want = np.pad(x, widths, "constant", constant_values=values)
    assert_same(op("pad")(tp.tensor(x), widths, "constant", values), want)
    assert_same(op("pad")(tp.tensor(x), {0: 2, -1: (1, 0)}), np.pad(x, {0: 2, -1: (1, 0)}))


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
def test_large_borders_and_rolls_are_as_the_small_ones(mode):
    x = draw(rng_for(mode), (3, 200, 120), "float32")
    for widths in (((2, 1), (3, 0), (0, 4)), ((7, 0), (1, 1), (0, 0)), 1):
        want = np.pad(x, widths, mode)
        assert_same(op("pad")(tp.tensor(x), widths, mode), want)
        assert_same(op("pad")(tp.tensor(x, requires_grad=True), widths, mode), want)
    for shift, axis in (((1, -2, 500), (0, 1, 2)), ((3, 5), (0, 2)), (7, (1, 2))):
        assert_same(op("roll")(tp.tensor(x), shift, axis), np.roll(x, shift, axis))
        assert_same(op("roll")(tp.tensor(x, requires_grad=True), shift, axis), np.roll(x, shift, axis))


def test_pad_of_a_large_tensor_and_of_a_recorded_value():
    x = draw(rng_for("pad"), (300, 400), "float32")
    assert_same(
        op("pad")(tp.tensor(x), ((1, 2), (3, 4)), constant_values=7.5), np.pad(x, ((1, 2), (3, 4)), constant_values=7.5)
    )
    assert_gradients(lambda t, c: op("pad")(t, 1, "constant", c), [x, np.float32(2)], 1, 4 + 2 * 700)
    ends = tp.tensor([1.0, 2.0], requires_grad=True)
    y = op("pad")(tp.zeros((2, 2)), 1, "constant", ends)
    assert_same(y, np.pad(np.zeros((2, 2), "float32"), 1, constant_values=(1, 2)))
    y.sum().backward()
    assert ends.grad.tolist() == [6, 6]  # corners go to the last axis
    assert op("pad")(tp.tensor([1.0], dtype="float64"), 1, "constant", (0.1, 0.2)).tolist() == [0.1, 1, 0.2]


@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), st.sampled_from(DTYPES))
def test_put_along_axis_as_numpy(data, shape, dtype):
    d = Draw(data, shape)
    x = draw(rng_for(shape), shape, dtype)
    indices, axis = d.take_along_axis()
    full = tuple(max(m, n) if a != axis % x.ndim else n for a, (m, n) in enumerate(zip(x.shape, indices.shape)))
    values = draw(rng_for(shape, "v"), full, dtype)
    want = x.copy()
    at = np.take_along_axis(np.arange(x.size).reshape(x.shape), indices, axis)
    for i, v in zip(at.ravel(), values.ravel(), strict=True):  # the last one wins
        want.reshape(-1)[i] = v
    assert_same(op("put_along_axis")(tp.tensor(x), tp.tensor(indices), tp.tensor(values), axis), want)
    if dtype in FLOATS:
        t, v = leaves(x, values)
        y = op("put_along_axis")(t, indices, v, axis)
        assert_same(y, want)
        w = draw(rng_for("w"), shape, dtype, -9, 9).round()
        y.backward(tp.tensor(w))
        last = np.full(x.size, -1)
        for k, i in enumerate(at.ravel()):
            last[i] = k
        to_values = np.zeros(values.size, dtype)
        to_values[last[last >= 0]] = w.ravel()[last >= 0]
        assert_same(t.grad, np.where(last < 0, w.ravel(), 0).reshape(shape).astype(dtype), zero_sign=False)
        if values.size:
            assert_same(v.grad, to_values.reshape(values.shape), zero_sign=False)


def test_put_along_axis_broadcasts_values_and_takes_numbers():
    x = np.arange(6.0).reshape(2, 3)
    for values in (7, np.float32(7), np.array([[7.0], [8.0]]), np.array(7, "uint8")):
        want = x.copy()
        np.put_along_axis(want, np.array([[0, 2], [1, 1]]), values, 1)
        assert_same(op("put_along_axis")(tp.tensor(x), [[0, 2], [1, 1]], values, 1), want)
    assert op("put_along_axis")(tp.tensor(x), [5, 0], 1.5, None).tolist() == [[1.5, 1, 2], [3, 4, 1.5]]
    assert_same(op("put_along_axis")(tp.tensor(x), np.zeros((2, 0), int), 1.0, 1), x)
    negative = np.array([-0.0, 1.0])
    for t in (tp.tensor(negative), tp.tensor(negative, requires_grad=True)):
        assert_same(op("put_along_axis")(t, [1], tp.tensor([-0.0], dtype="float64")), np.array([-0.0, -0.0]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_nonzero_argwhere_and_masks(dtype):
    for shape in ((7,), (3, 4), (2, 0, 3), (2, 3, 2)):
        x = draw(rng_for(shape), shape, dtype, -1, 1)
        x[x == 1] = 0
        for got, want in zip(op("nonzero")(tp.tensor(x)), np.nonzero(x), strict=True):
            assert_same(got, want)
        assert_same(op("argwhere")(tp.tensor(x)), np.argwhere(x))
        for mask in (x > 0, (x > 0)[..., :1], np.array(True)):
            wide = np.broadcast_to(mask, np.broadcast_shapes(mask.shape, x.shape))
            assert_same(op("masked_select")(tp.tensor(x), tp.tensor(mask)), x[wide])
            value = True if dtype == "bool" else 7
            assert_same(op("masked_fill")(tp.tensor(x), mask, value), np.where(wide, np.array(7).astype(dtype), x))
    assert op("argwhere")(tp.tensor(3.0)).shape == (1, 0)
    assert op("masked_select")(tp.tensor([1.0, 2.0]), [[True], [False]]).tolist() == [1, 2]


@given(st.data(), st.integers(1, 4), st.sampled_from(DTYPES), st.sampled_from(DTYPES))
def test_select_as_numpy(data, n, left, right):
    rng = rng_for(n, left, right)
    conditions = [rng.integers(0, 2, data.draw(st.sampled_from([(3, 4), (4,), (3, 1)]))) > 0 for _ in range(n)]
    choices = [draw(rng, (3, 4), data.draw(st.sampled_from([left, right]))) for _ in range(n)]
    got = op("select")(list(map(tp.tensor, conditions)), list(map(tp.tensor, choices)), False)
    dtype = name_of(tp.result_type(*choices))
    want = np.select([np.broadcast_to(c, (3, 4)) for c in conditions], [c.astype(dtype) for c in choices], False)
    assert_same(got, want.astype(dtype))


def test_select_keeps_numbers_weak_and_leaks_nothing():
    x = tp.tensor([-1.0, 4.0], requires_grad=True)
    y = op("select")([x > 0, x < -5], [tp.exp(x * 1e3), 2], default=3)
    y.sum().backward()
    assert name_of(y) == "float32" and y.tolist() == [3, INF]
    z = tp.tensor([-1.0, 4.0], requires_grad=True)
    op("select")([z > 0], [z**0.5], default=0.0).sum().backward()
    assert z.grad.tolist() == [0, 0.25]
    assert name_of(op("select")([tp.tensor([True])], [tp.tensor([1], dtype="int32")], 2)) == "int32"
    assert name_of(op("select")([[True]], [1], 0.5)) == "float32"


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_index_add_is_numpys_add_at(dtype):
    x, u = draw(rng_for(1), (3, 4), dtype), draw(rng_for(2), (3, 5), dtype)
    index = np.array([0, 3, 0, -1, 1])
    want = x.copy()
    np.add.at(want, (slice(None), index), u)
    assert_same(op("index_add")(tp.tensor(x), 1, index, tp.tensor(u)), want)
    want = x.copy()
    np.add.at(want, index[:1], np.array(2).astype(dtype) * np.array(3).astype(dtype))
    assert_same(op("index_add")(tp.tensor(x), 0, tp.tensor(index[:1]), 2, alpha=3), want)


# ---- order


def naive_order(row, descending):
    """Stable, NaN last."""
    sign = -1 if descending else 1
    values = [(v != v, 0 if v != v else sign * v) for v in row.tolist()]
    return sorted(range(len(values)), key=values.__getitem__)


def naive_orders(x, axis, descending):
    rows = np.moveaxis(x, axis, -1)
    flat = [naive_order(row, descending) for row in rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1])]
    return np.moveaxis(np.array(flat, np.int64).reshape(rows.shape), -1, axis)


POOL = {  # values that meet: ties, both zeros, NaN, neighbours that differ in the last bit
    "ties": lambda rng, shape, dtype: (
        draw(rng, shape, dtype, -3, 3).round() if dtype in FLOATS else draw(rng, shape, dtype)
    ),
    "special": lambda rng, shape, dtype: rng.choice([0.0, -0.0, NAN, -NAN, INF, -INF, 1.0, -1.0], shape),
    "spread": lambda rng, shape, dtype: rng.standard_normal(shape) * 10.0 ** rng.integers(-9, 9, shape),
    "close": lambda rng, shape, dtype: 1e9 * rng.choice([-1, 1], shape) + rng.integers(0, 40, shape) / 2**20,
    "whole": lambda rng, shape, dtype: rng.integers(-(2**62), 2**62, shape),
    "extreme": lambda rng, shape, dtype: rng.choice([-(2**63), 2**63 - 1, 0, -1, 1, 2**62], shape),
}


def pool(kind, rng, shape, dtype):
    with np.errstate(all="ignore"):
        return np.asarray(POOL[kind](rng, shape, dtype)).astype(dtype)


@given(
    st.data(),
    st.sampled_from(sorted(POOL)),
    st.sampled_from(DTYPES),
    st.sampled_from([(1,), (7,), (90,), (300,), (3, 80), (80, 3), (0, 4), (4, 0), (2, 70, 3)]),
    st.booleans(),
    st.sampled_from(sorted(LAYOUTS)),
)
def test_order_is_that_of_pythons_sorted(data, kind, dtype, shape, descending, layout):
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    x = pool(kind, rng, shape, dtype)
    d = Draw(data, shape)
    axis = d.axis()
    want = naive_orders(x, axis, descending)
    t = LAYOUTS[layout](x)
    assert_same(op("argsort")(t, axis, descending), want)
    ordered = np.take_along_axis(x, want, axis)
    assert_same(op("sort")(t, axis, descending), ordered)
    k = d.int(0, shape[axis])
    first = [slice(None)] * x.ndim
    first[axis] = slice(0, k)
    values, indices = op("topk")(t, k, axis, descending)
    assert_same(indices, want[tuple(first)])
    assert_same(values, ordered[tuple(first)])
    mode = "largest" if descending else "smallest"
    assert_same(op("top_k")(t, k, axis=axis, mode=mode).values, values)
    if dtype in FLOATS:
        (leaf,) = leaves(x)
        y = op("sort")(leaf, axis, descending)
        assert_same(y, ordered)
        w = draw(rng_for("w"), shape, dtype)
        y.backward(tp.tensor(w))
        g = np.zeros_like(x)
        np.put_along_axis(g, want, w, axis)
        assert_same(leaf.grad, g)


@pytest.mark.parametrize("distance", [1, 3, 2**12])
@pytest.mark.parametrize("shape", [(5000,), (20, 250)])
def test_order_of_doubles_that_differ_in_their_last_bits(shape, distance):
    rng = rng_for(shape, distance)
    base = rng.standard_normal(shape) * 10.0 ** rng.integers(-200, 200, shape)
    near = base.copy()
    near.reshape(-1)[::distance] = np.nextafter(np.roll(base, 7).reshape(-1)[::distance], rng.choice([-INF, INF]))
    x = np.concatenate([base, near], axis=-1)
    for descending in (False, True):
        assert_same(op("argsort")(tp.tensor(x), -1, descending), naive_orders(x, -1, descending))


def test_order_of_doubles_in_a_narrow_range_and_of_few_that_meet():
    times = 1.7e9 + rng_for("times").integers(0, 10**6, 3000) * 2.0**-20
    scattered = rng_for("scattered").standard_normal(3000)
    scattered[::100] = np.nextafter(scattered[1], np.arange(30) - 15.0)
    for x in (times, -times, scattered, np.where(scattered > 1, NAN, times)):
        for descending in (False, True):
            assert_same(op("argsort")(tp.tensor(x), -1, descending), naive_orders(x, -1, descending))
            assert_same(op("topk")(tp.tensor(x), 40, -1, descending).indices, naive_orders(x, -1, descending)[:40])


def test_order_of_a_flattened_tensor_and_of_many_elements():
    x = draw(rng_for("flat"), (30, 40), "float32").round(1)
    assert_same(op("argsort")(tp.tensor(x), None), np.argsort(x, None, kind="stable"))
    assert_same(op("sort")(tp.tensor(x), axis=None), np.sort(x, None, kind="stable"))
    for dtype in ("float32", "int64", "float64"):
        x = (rng_for(dtype).standard_normal(200_000) * 1e4).astype(dtype)
        assert_same(op("argsort")(tp.tensor(x)), np.argsort(x, kind="stable"))
        assert_same(op("sort")(tp.tensor(x), descending=True), np.sort(x)[::-1])
        assert_same(op("topk")(tp.tensor(x), 50, largest=False).indices, np.argsort(x, kind="stable")[:50])


@given(
    st.data(),
    st.sampled_from(sorted(POOL)),
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
    st.sampled_from(["left", "right"]),
)
def test_searchsorted_as_numpy(data, kind, left, right, side):
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    table = np.sort(pool(kind, rng, data.draw(st.integers(0, 30)), left))
    values = pool(kind, rng, data.draw(st.sampled_from([(), (5,), (2, 3), (0,)])), right)
    got = op("searchsorted")(tp.tensor(table), tp.tensor(values), side)
    assert_same(got, np.asarray(np.searchsorted(table, values, side)))


def test_searchsorted_takes_a_number_in_the_tables_dtype():
    table = np.array([0.1, 0.2], "float32")
    assert op("searchsorted")(tp.tensor(table), 0.1).item() == 0
    assert op("searchsorted")(tp.tensor(table), 0.1, side="right").item() == 1
    assert op("searchsorted")(tp.tensor([1, 2]), 1.5).item() == 1


@given(st.integers(0, 999), st.sampled_from(sorted(POOL)), st.sampled_from(DTYPES), st.sampled_from([0, 5, 90]))
def test_unique_values_as_numpy(seed, kind, dtype, n):
    x = pool(kind, np.random.default_rng(seed), (n, 2), dtype)
    y = op("unique_values")(tp.tensor(x))
    assert_same(y, np.unique(x, equal_nan=False), zero_sign=False)
    if dtype in FLOATS:
        (t,) = leaves(x)
        recorded = op("unique_values")(t)
        assert_same(recorded, y)
        recorded.sum().backward()
        first = [i for i, v in enumerate(x.ravel()) if v != v or v not in x.ravel()[:i]]
        assert np.flatnonzero(host(t.grad)).tolist() == first


# ---- faults that other engines had, and gradients by hand


def test_pytorch_94336_an_index_shorter_than_its_source():
    x = np.array([5.0, 6.0, 7.0])
    assert_gradients(lambda t: op("take_along_axis")(t, [0]), [x], [1, 0, 0])
    assert_gradients(lambda t: op("take_along_axis")(t, []), [x], [0, 0, 0])
    assert_gradients(lambda t: op("take_along_axis")(t, np.zeros((0,), "int64"), None), [x], [0, 0, 0])
    table = np.arange(6.0).reshape(2, 3)
    assert_gradients(lambda t: op("take_along_axis")(t, [[2]], 1), [table], [[0, 0, 1], [0, 0, 1]])
    assert_gradients(lambda t: op("take_along_axis")(t, np.zeros((2, 0), int), 1), [table], np.zeros((2, 3)))


def test_mlx_1439_a_gradient_of_an_integer_index_is_refused():
    x, i = tp.tensor([1.0, 2.0, 3.0]), tp.tensor([0, 2])
    for f in (
        lambda i: op("take_along_axis")(x, i).sum(),
        lambda i: op("put_along_axis")(x, i, 1.0).sum(),
        lambda i: op("index_add")(x, 0, i, 1.0).sum(),
    ):
        with pytest.raises(TypeError, match="int64"):
            tp.grad(f)(i)
    leaf = tp.tensor([3.0, 1.0], requires_grad=True)
    for y in (op("argsort")(leaf), op("topk")(leaf, 1).indices, *op("nonzero")(leaf), op("searchsorted")(leaf, leaf)):
        assert name_of(y) == "int64" and not y.requires_grad


def test_duplicates_add_up():
    x = np.array([3.0, 1.0, 2.0])
    seed = np.array([1.0, 10.0, 100.0, 1000.0])
    assert_gradients(lambda t: op("take_along_axis")(t, [1, 1, -1, 1]), [x], [0, 1011, 100], seed=seed)
    assert_gradients(lambda t: op("topk")(t, 2).values, [x], [1, 0, 10], seed=seed[:2])
    assert_gradients(lambda t: op("sort")(t), [np.array([1.0, 1.0, 0.0])], [10, 100, 1], seed=seed[:3])
    assert_gradients(lambda t: op("sort")(t, descending=True), [x * 0], [1, 10, 100], seed=seed[:3])
    assert_gradients(lambda t: op("repeat")(t, [0, 3, 1]), [x], [0, 111, 1000], seed=seed)
    assert_gradients(lambda t: op("pad")(t, (1, 0), "edge"), [x], [11, 100, 1000], seed=seed)
    assert_gradients(lambda t: op("unique_values")(t), [np.array([2.0, 1.0, 2.0])], [10, 1, 0], seed=seed[:2])
    check_fused(lambda t: op("sort")(t), np.array([1.0, NAN, 0.0]), seed=seed[:3])


def test_gradients_of_nan_and_masked_elements_do_not_leak():
    x = np.array([NAN, 1.0, -INF])
    assert_gradients(lambda t: op("masked_fill")(t * t, np.isnan(x), 0.0), [x], [0, 2, -INF])
    assert_gradients(lambda t: op("sort")(t)[:2], [x], [0, 1, 1])
    assert gradients(lambda t: op("masked_select")(t, ~np.isfinite(x)), x)[0].tolist() == [1, 0, 1]


def test_writes_to_a_result_leave_the_argument():
    x = tp.tensor([[1.0, 2.0], [3.0, 4.0]])
    for name, args in {"flip": (), "rot90": (4,), "ravel": (), "roll": (2, 1), "repeat": (1, 0), "tile": (1,)}.items():
        op(name)(x, *args)[0] = 9.0
    for part in (*op("split")(x, 1), *op("unstack")(x), op("diagonal")(x), op("sort")(x), op("pad")(x, 0)):
        part[0] = 9.0
    assert x.tolist() == [[1, 2], [3, 4]]


UNCHANGED = {
    "ravel": tp.ravel,
    "flatten": lambda x: tp.flatten(x, 0, 0),
    "roll": lambda x: tp.roll(x, 0),
    "roll of axes": lambda x: tp.roll(x, x.shape[0], axis=0),
    "repeat": lambda x: tp.repeat(x, 1, axis=0),
    "repeat flat": lambda x: tp.repeat(x, 1),
    "repeat by a tensor": lambda x: tp.repeat(x, tp.tensor([1]), axis=0),
    "tile": lambda x: tp.tile(x, 1),
    "rot90": lambda x: tp.rot90(tp.atleast_2d(x), 4)[0],
    "pad": lambda x: tp.pad(x, 0),
    "pad edge": lambda x: tp.pad(x, 0, mode="edge"),
    "atleast_1d": tp.atleast_1d,
    "broadcast_arrays": lambda x: tp.broadcast_arrays(x, x)[0],
    "squeeze": lambda x: tp.squeeze(x, ()),
    "diff": lambda x: tp.diff(x, 0),
    "concat": lambda x: tp.concat([x]),
}


@pytest.mark.parametrize("name", UNCHANGED)
@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_result_is_a_tensor_of_ones_own_also_when_nothing_moves(name, n):
    x = tp.tensor(np.arange(float(n)), requires_grad=True)
    y = UNCHANGED[name](x)
    assert not y.is_leaf
    y += 1.0
    y.backward(tp.ones((n,), dtype=tp.float64))
    assert_same(x, np.arange(float(n)))
    assert_same(x.grad, np.ones(n))


def test_results_of_broadcast_arrays_are_two_tensors():
    x = tp.zeros(2)
    for shapes in ((x, x), (tp.zeros(()), tp.zeros(2))):
        y, z = tp.broadcast_arrays(*shapes)
        y += 1.0
        assert z.tolist() == [0.0, 0.0]
    for f in (tp.atleast_2d, tp.atleast_3d):
        x = tp.zeros((1, 1, 1))
        f(x)[...] = 1.0
        assert x.item() == 0.0


# ---- errors

X = tp.zeros((2, 3))
AXIS, SHAPE, DTYPE, INDEX = errors.AxisError, errors.ShapeError, errors.DTypeError, errors.TensorIndexError
WRONG = [
    (SHAPE, "shape (3,)", "matrix_transpose", tp.zeros(3)),
    (AXIS, "axis 2", "moveaxis", X, 2, 0),
    (SHAPE, "twice", "moveaxis", X, (0, -2), (0, 1)),
    (SHAPE, "2 source axes and 1", "moveaxis", X, (0, 1), 0),
    (DTYPE, "float", "swapaxes", X, 0.5, 1),
    (SHAPE, "(2, 3), (4,)", "broadcast_arrays", X, tp.zeros(4)),
    (SHAPE, "comes after", "flatten", X, 1, 0),
    (AXIS, "-2 to 1", "flip", X, -3),
    (AXIS, "0-d", "flip", tp.tensor(1.0), 0),
    (SHAPE, "two axes", "rot90", X, 1, (0, 1, 2)[:1]),
    (SHAPE, "3 shifts for 2 axes", "roll", X, (1, 2, 3), (0, 1)),
    (DTYPE, "shift", "roll", X, 1.5),
    (AXIS, "0-d", "unstack", tp.tensor(1.0)),
    (SHAPE, "2 equal parts", "split", X, 2, 1),
    (SHAPE, "at least 1", "split", X, 0),
    (SHAPE, "at least 1", "array_split", X, -1),
    (DTYPE, "float", "split", X, [0.5]),
    (SHAPE, "negative", "tile", X, (-1, 2)),
    (SHAPE, "negative", "repeat", X, -1, 0),
    (SHAPE, "size 2", "repeat", X, [1, 2, 3], 0),
    (DTYPE, "float32", "repeat", X, 1.5, 0),
    (SHAPE, "(3,)", "pad", X, (1, 2, 3)),
    (SHAPE, "negative", "pad", X, -1),
    (DTYPE, "float64", "pad", X, 0.5),
    (SHAPE, "'mirror'", "pad", X, 1, "mirror"),
    (SHAPE, "empty", "pad", tp.zeros((2, 0)), 1, "edge"),
    (SHAPE, "constant_values", "pad", X, 1, "edge", 2),
    (SHAPE, "(3,)", "pad", X, 1, "constant", (1, 2, 3)),
    (DTYPE, "int64", "pad", tp.tensor([1]), 1, "constant", 0.5),
    (SHAPE, "(3,)", "diagonal", tp.zeros(3)),
    (SHAPE, "same axis", "diagonal", X, 0, 1, -1),
    (SHAPE, "vector or a matrix", "diag", tp.zeros((1, 1, 1))),
    (INDEX, "index 3 is out of range for axis 0 of size 3", "take_along_axis", tp.zeros(3), [0, 3]),
    (INDEX, "index -4 is out of range for axis 1 of size 3", "take_along_axis", X, [[0], [-4]], 1),
    (INDEX, "size 0", "take_along_axis", tp.zeros((2, 0)), [[0], [0]], 1),
    (SHAPE, "(1,)", "take_along_axis", X, [0], 1),
    (SHAPE, "do not broadcast", "take_along_axis", X, [[0], [0], [0]], 1),
    (DTYPE, "float32", "take_along_axis", X, [[0.5]]),
    (DTYPE, "bool", "take_along_axis", X, [[True]]),
    (INDEX, "index 9", "put_along_axis", X, [[9]], 0.0),
    (DTYPE, "int64", "put_along_axis", tp.tensor([1]), [0], 0.5),
    (DTYPE, "float32", "put_along_axis", tp.tensor([1]), [0], tp.tensor([0.5])),
    (SHAPE, "(2,)", "put_along_axis", tp.zeros(3), [0, 1, 2], tp.zeros(2)),
    (SHAPE, "(2, 3)", "put_along_axis", tp.zeros(3), [0, 1, 2], tp.zeros((2, 3))),
    (SHAPE, "1-D", "index_add", X, 0, [[0]], X),
    (SHAPE, "(3, 3)", "index_add", X, 0, [0], tp.zeros((3, 3))),
    (INDEX, "axis 1", "index_add", X, 1, [3], tp.zeros((2, 1))),
    (SHAPE, "0-d", "nonzero", tp.tensor(1.0)),
    (DTYPE, "float32", "masked_select", X, X),
    (SHAPE, "do not broadcast", "masked_select", X, [True, False]),
    (DTYPE, "int64", "masked_fill", X, [[1]], 0.0),
    (DTYPE, "0.5", "masked_fill", tp.tensor([1]), [True], 0.5),
    (SHAPE, "1 conditions and 2", "select", [X > 0], [X, X]),
    (SHAPE, "at least one", "select", [], []),
    (DTYPE, "bool", "select", [X], [X]),
    (SHAPE, "do not broadcast", "select", [X > 0], [tp.zeros(4)]),
    (AXIS, "0-d", "sort", tp.tensor(1.0)),
    (AXIS, "axis 2", "argsort", X, 2),
    (SHAPE, "k = 4", "topk", X, 4),
    (DTYPE, "k must be an int", "topk", X, 1.0),
    (SHAPE, "'most'", "top_k", X, 1, -1, "most"),
    (SHAPE, "1-D", "searchsorted", X, X),
    (SHAPE, "'both'", "searchsorted", tp.zeros(3), X, "both"),
    (DTYPE, "str", "ravel", "abc"),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: f"{case[2]}-{case[1]}")
def test_errors(case):
    kind, text, name, *args = case
    with pytest.raises(kind) as caught:
        op(name)(*args)
    message = str(caught.value)
    assert message.startswith(f"[{name}] ") and text in message, message


TOO_LARGE = [  # function, arguments, what the message names
    ("diag", (tp.zeros(2), 1 << 62), f"({(1 << 62) + 2}, {(1 << 62) + 2})"),
    ("diag", (tp.zeros(2), -(1 << 31)), f"({(1 << 31) + 2}, {(1 << 31) + 2})"),
    ("diag", (tp.zeros(2), -(1 << 63)), f"({(1 << 63) - 1}, {(1 << 63) - 1})"),
    ("repeat", (tp.ones(4), [1 << 62] * 4), "axis 0 of the result would not fit 64 bits"),
    ("repeat", (tp.ones(4), [1 << 60] * 4), f"({1 << 62},)"),
    ("tile", (tp.ones((2, 2)), (1, 1 << 62)), "axis 1 of the result would not fit 64 bits"),
]


@pytest.mark.parametrize("case", range(len(TOO_LARGE)))
def test_results_that_no_memory_holds_are_refused_by_their_size(case):
    name, args, text = TOO_LARGE[case]
    with pytest.raises((errors.ShapeError, errors.DeviceOutOfMemory)) as caught:
        op(name)(*args)
    assert text in str(caught.value)


@pytest.mark.parametrize("k", [-2, 0, 1])
def test_the_diagonal_of_a_matrix_may_have_no_elements(k):
    x = tp.zeros(0, requires_grad=True)
    y = tp.diag(x, k)
    y.backward(tp.ones(y.shape))
    assert y.shape == (abs(k), abs(k)) and x.grad.shape == (0,)


@pytest.mark.parametrize("n", [20, 80, 5000])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("descending", [False, True])
def test_a_sort_keeps_the_sign_of_each_zero(n, dtype, descending):
    """A vectorised sort makes -0.0 of 0.0 where they meet."""
    rng = rng_for("zeros", n, dtype)
    x = (rng.integers(-2, 3, n) * rng.choice([1.0, -1.0], n)).astype(dtype)
    want = x[np.argsort(-x if descending else x, kind="stable")]
    assert_same(tp.sort(tp.tensor(x), descending=descending), want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_triangles_keep_the_dtype(dtype):
    x = draw(rng_for("triangle", dtype), (3, 4), dtype, -5, 5)
    for k in (-5, -1, 0, 2, 9):
        assert_same(tp.tril(tp.tensor(x), k), np.tril(x, k))
        assert_same(tp.triu(tp.tensor(x), k), np.triu(x, k))
