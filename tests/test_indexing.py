"""Basic indexing and assignment (ints, slices of any step, None, Ellipsis), take and scatter_add: values as NumPy,
gradients by the adjoint identity <w, x[i]> = <grad, x>, writes that touch one object only, indices out of range."""

import itertools
import re

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FLOATS,
    INTS,
    LAYOUTS,
    assert_gradients,
    assert_same,
    check_fused,
    check_vjp,
    close,
    draw,
    dtype_of,
    gradients,
    host,
    leaves,
    name_of,
    rng_for,
    stretched,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tapeflow as tp

S = slice
INDICES = [  # for a (4, 5, 3)
    (), ..., 0, -1, 3, -4, None, S(None), S(1, 3), S(None, None, -1), S(3, 0, -2), S(0, 0), S(9, 20), S(-100, 100),
    S(2, 1), S(-1, -5, -1), S(None, None, 7), S(3, None, -7), S(None, -1), S(-3, None, 2), S(10, None, -1),
    S(-9, None, -1), (1, 2), (1, 2, 0), (-1, -1, -1), (S(None), 2), (..., 1), (..., -1, S(None, None, 2)),
    (0, ..., 0), (None, 1, None, ...), (S(None), None, S(1, 4), 0), (S(0, 4, 2), S(4, None, -2), S(None, None, -1)),
    (1, S(3, 3)), (..., None), (None, None), (S(1, 2), 0, S(0, 3, 2)), (0, 0, 0, ...), (..., 0, 0, 0),
    (S(0, 2, 2), S(1, 3, 2)), np.int64(2), (np.int32(1), 1), (S(np.int64(1), np.int64(3)),),
]  # fmt: skip


def values(dtype, shape=(4, 5, 3)):
    return draw(rng_for("index", dtype, shape), shape, dtype, -50, 50)


@pytest.mark.parametrize("dtype", DTYPES)
def test_basic_indices_as_numpy(dtype):
    x = values(dtype)
    for layout, make in LAYOUTS.items():
        t = make(x)
        for index in INDICES:
            assert_same(t[index], x[index], label=f"{layout} {index}")
            got = t[index]
            assert_same(got[...], x[index])
            if got.ndim:
                assert_same(got[::-1], x[index][::-1], label=f"{layout} {index} reversed again")
    t = tp.tensor(x[0, 0, 0])
    assert_same(t[()], x[0, 0, 0]) and assert_same(t[...], x[0, 0, 0]) and assert_same(t[None], x[0, 0, 0][None])


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_basic_index_gradients(index):
    check_vjp(lambda t: t[index], values("float64"), label=str(index))


@given(
    data=st.data(),
    shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    layout=st.sampled_from(sorted(LAYOUTS)),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
)
def test_drawn_indices(data, shape, layout, dtype, seed):
    rng = np.random.default_rng(seed)
    x = draw(rng, shape, dtype, -9, 9)
    first = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True), label="first")
    want = np.asarray(x[first])
    again = data.draw(hnp.basic_indices(want.shape, allow_newaxis=True, allow_ellipsis=True), label="second")
    t = LAYOUTS[layout](x)
    assert_same(t[first], want)
    assert_same(t[first][again], want[again])
    if dtype not in FLOATS:
        return
    t.requires_grad_()
    y = t[first][again]
    w = rng.uniform(-1, 1, y.shape).astype(dtype)
    y.backward(tp.tensor(w))
    expected = np.zeros_like(x)
    expected[first] = _placed(want, again, w)
    assert_same(t.grad, expected, zero_sign=False)


def _placed(like, index, w):
    out = np.zeros_like(like)
    out[index] = w
    return out


@given(
    data=st.data(),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    layout=st.sampled_from(sorted(LAYOUTS)),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
)
def test_drawn_assignments(data, shape, layout, dtype, seed):
    """t[i] = v as NumPy; every other holder of the buffer keeps its values; the gradients are the adjoint's."""
    rng = np.random.default_rng(seed)
    x = draw(rng, shape, dtype, -9, 9)
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    target = np.asarray(x[index]).shape
    cut = data.draw(st.integers(0, len(target)))
    ones = data.draw(st.lists(st.booleans(), min_size=len(target) - cut, max_size=len(target) - cut))
    value_shape = tuple(1 if one else n for n, one in zip(target[cut:], ones, strict=True))
    v = draw(rng, value_shape, dtype, -9, 9)
    want = x.copy()
    want[index] = v
    t = LAYOUTS[layout](x)
    other, view = tp.asarray(t), t[...]
    t[index] = tp.tensor(v)
    assert_same(t, want)
    assert_same(view, x)
    if other is not t:
        assert_same(other, x)
    if dtype not in FLOATS:
        return
    a, b = leaves(x, v)
    y = a * 1
    y[index] = b * 1
    assert_same(y, want)
    w = rng.uniform(-1, 1, shape).astype(dtype)
    y.backward(tp.tensor(w))
    to_a = w.copy()
    to_a[index] = 0
    assert_same(a.grad, to_a, zero_sign=False)
    to_b = np.asarray(w[index], float)
    to_b = to_b.sum(tuple(range(cut)))
    to_b = to_b.sum(tuple(i for i, n in enumerate(value_shape) if n == 1), keepdims=True).reshape(value_shape)
    close(b.grad, to_b.astype(dtype), 1e-5, 1e-5)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_assignment_of_scalars_arrays_and_tensors(index):
    for dtype in ("float32", "int64", "uint8", "bool"):
        x = values(dtype)
        shape = x[index].shape
        for v in (
            1,
            True,
            x.dtype.type(1),
            np.ones(shape, x.dtype),
            tp.ones(shape, dtype=dtype_of(dtype)),
            np.zeros((), x.dtype),
        ):
            want = x.copy()
            want[index] = host(v)
            for make in (LAYOUTS["plain"], LAYOUTS["transposed"], LAYOUTS["stepped"]):
                t = make(x)
                t[index] = v
                assert_same(t, want, label=f"{index} {type(v)}")


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_assignment_gradients(index):
    x = values("float64")
    shape = x[index].shape

    def write(t, v):
        y = t * t
        y[index] = tp.sin(v)
        return y * y

    check_vjp(write, x / 25, draw(rng_for("v", shape), shape), order=1 + (x.size < 100), label=str(index))


def test_assignment_casts_to_the_dtype_of_the_target():
    t = tp.zeros((2,), dtype=tp.float32)
    t[0] = tp.tensor(np.float64(1.5))
    t[1] = np.float64(0.1)
    assert_same(t, np.array([1.5, 0.1], "float32"))
    a, b = leaves(np.zeros(3, "float32"), np.array(2.0))
    y = a * 1
    y[1] = b
    tp.sum(y * y).backward()
    assert name_of(y) == "float32" and (name_of(b.grad), b.grad.item()) == ("float64", 4)
    i = tp.zeros((3,), dtype=tp.int32)
    i[1:] = tp.tensor([7, 8])
    assert_same(i, np.array([0, 7, 8], "int32"))


# ---- faults that other engines had ----


def test_mlx_4444_a_strided_slice_of_one_element():
    assert_gradients(lambda x: 5 * tp.sum(x[0:2:2]) + 7 * tp.sum(x[1:3:2]), [np.array([1.0, 2, 3])], [5, 7, 0])


@pytest.mark.parametrize("n", (1, 2, 3, 5))
def test_every_slice_of_a_short_axis(n):
    x = np.arange(1.0, n + 1)
    bounds = [None, *range(-n - 2, n + 3)]
    for start, stop, step in itertools.product(bounds, bounds, (None, 1, 2, 3, -1, -2, -3, 100, -100)):
        s = slice(start, stop, step)
        t = tp.tensor(x, requires_grad=True)
        y = t[s]
        assert_same(y, x[s])
        tp.sum(y * y).backward()
        want = np.zeros(n)
        want[s] = 2 * x[s]
        assert_same(t.grad, want, zero_sign=False, label=str(s))


def test_mygrad_318_a_write_to_a_part():
    def f(x):
        t = x * 1
        t[1:3] *= t[1:3]
        return t

    w = np.array([1.0, 10, 100, 1000])
    assert_gradients(f, [np.array([1.0, 2, 3, 4])], [1, 40, 600, 1000], seed=w)
    t = tp.tensor([1.0, 2, 3, 4])
    v = t[1:3]
    v *= v
    assert t.tolist() == [1, 2, 3, 4] and v.tolist() == [4, 9]


@pytest.mark.parametrize("index", [S(None, None, 2), S(None, None, -1), S(1, 3), 2, ..., S(3, 0, -2), None])
@pytest.mark.parametrize("name", ("add", "subtract", "multiply", "divide"))
def test_in_place_operators_on_a_part(name, index):
    def f(x, v):
        t = x * 1
        if name == "add":
            t[index] += v
        elif name == "subtract":
            t[index] -= v
        elif name == "multiply":
            t[index] *= v
        else:
            t[index] /= v
        return t * t

    def plain(x, v):
        x = x.copy()
        x[index] = getattr(np, name)(x[index], v)
        return x * x

    x, v = np.array([1.0, 2, 3, 4]), np.array(1.5)
    assert_same(f(tp.tensor(x), tp.tensor(v)), plain(x, v))
    check_vjp(f, x, v, label=f"{name} {index}")


def test_mlx_610_a_look_in_mid_graph_changes_nothing():
    def f(t):
        t = t + tp.ones((3, 1, 2), dtype=tp.float64)
        t.tolist()
        return tp.sum(t * t)

    assert_gradients(f, [np.array([[1.0, 2]])], [[12, 18]])
    for look in (lambda t: t.tolist(), lambda t: t.numpy(), repr, str, lambda t: float(tp.sum(t)), lambda t: f"{t}"):
        x = tp.tensor([1.0, 2, 3], requires_grad=True)
        y = x * x
        look(y)
        y[0:2] = y[1:3]
        look(y)
        tp.sum(y).backward()
        assert x.grad.tolist() == [0, 4, 12]


@pytest.mark.parametrize("name", ("__iadd__", "__isub__", "__imul__", "__itruediv__"))
def test_in_place_growth_by_broadcast_is_refused(name):
    t = tp.tensor([[1.0, 2.0]])
    with pytest.raises(tp.ShapeError, match=r"\(1, 2\)"):
        getattr(t, name)(tp.ones((3, 1, 2)))
    assert t.tolist() == [[1, 2]]


def test_pytorch_114505_a_write_after_a_read_of_another_place():
    def f(x):
        c = x * 1
        c[0] = tp.sin(c[1])
        return c

    w = np.array([1.0, 10, 100])
    assert_gradients(f, [np.array([1.0, 2, 3])], [0, 10 + np.cos(2), 100], seed=w)


def test_a_write_never_reaches_what_was_saved():
    """exp saves its result, multiply its operands: a later write to any of them leaves the gradient alone."""
    x = tp.tensor([1.0, 2, 3], requires_grad=True)
    y = tp.exp(x)
    z = y * x
    kept = host(y).copy()
    y[:] = 0.0
    y += 5
    z[1:] = 7.0
    tp.sum(z).backward()
    close(x.grad, np.array([kept[0] * 2, 0, 0], "float32"))


def test_overlapping_writes_read_before_they_write():
    base = np.arange(8.0)
    for index, source in (
        (S(1, None), lambda t: t[:-1]),
        (S(None, -1), lambda t: t[1:]),
        (S(None), lambda t: t[::-1]),
        (S(None, None, 2), lambda t: t[:4]),
        (S(None, 4), lambda t: t[::2]),
        (..., lambda t: t * t + t[::-1]),
    ):
        t, want = tp.tensor(base), base.copy()
        t[index] = source(t)
        want[index] = source(base)
        assert_same(t, want, label=str(index))
    m = np.arange(9.0).reshape(3, 3)
    t = tp.tensor(m)
    t[...] = t.T
    assert_same(t, m.T.copy())
    t += t.T
    assert_same(t, m.T + m)
    t *= t[::-1]
    assert_same(t, (m.T + m) * (m.T + m)[::-1])
    s = stretched(np.array([1.0, 2.0]), 3)
    s += s[::-1]
    assert_same(s, np.array([[2.0, 4]] * 3))


def test_leaves_are_written_under_no_grad_only():
    x = tp.tensor([1.0, 2, 3], requires_grad=True)
    writes = [lambda: x.__setitem__(0, 5.0), lambda: x.__iadd__(1.0), lambda: x.__isub__(x), lambda: x.__imul__(2)]
    for write in writes:
        with pytest.raises(tp.TapeError, match="no_grad"):
            write()
    assert x.tolist() == [1, 2, 3]
    with tp.no_grad():
        x[0] = 5.0
        x *= 2
    assert x.tolist() == [10, 4, 6] and x.requires_grad and x.is_leaf


def test_writing_a_recorded_value_into_a_constant_records_it():
    x = tp.tensor([2.0, 3.0], requires_grad=True)
    t = tp.zeros((3,))
    t[1:] = x * x
    assert t.requires_grad
    tp.sum(t * tp.tensor([1.0, 10, 100])).backward()
    assert x.grad.tolist() == [40, 600]


# ---- out of range ----


@pytest.mark.parametrize("index,axis,bad,size", [
    (4, 0, 4, 4), (-5, 0, -5, 4), ((0, 5), 1, 5, 5), ((S(None), -6), 1, -6, 5), ((..., 3), 2, 3, 3),
    ((0, 0, 2**40), 2, 2**40, 3),
])  # fmt: skip
def test_an_index_out_of_range_names_axis_index_and_size(index, axis, bad, size):
    t = tp.tensor(values("float32"))
    for act in (lambda: t[index], lambda: t.__setitem__(index, 0.0)):
        with pytest.raises(IndexError) as info:
            act()
        text = str(info.value)
        assert str(bad) in text and f"axis {axis}" in text and str(size) in text, text
    assert_same(t, values("float32"))


@pytest.mark.parametrize("index", [(0, 0, 0, 0), (..., ...), (S(None),) * 4])
def test_too_many_indices(index):
    with pytest.raises(IndexError):
        tp.tensor(values("float32"))[index]


@pytest.mark.parametrize("index", ["a", 1.5, (0, 1.0), S(None, None, 0), S("a", None), {}, S(1.5, None)])
def test_indices_of_the_wrong_kind_are_refused(index):
    t = tp.tensor(values("float32"))
    with pytest.raises((TypeError, IndexError, ValueError)):
        t[index]
    with pytest.raises((TypeError, IndexError, ValueError)):
        t[index] = 0.0
    assert_same(t, values("float32"))


@pytest.mark.parametrize(
    "index,shape", [(0, (3,)), (S(0, 2), (3, 5, 3)), ((), (2, 4, 5, 3)), ((..., 0), (5, 4)), (S(0, 0), (4, 5, 3))]
)
def test_a_value_that_does_not_fit_is_refused(index, shape):
    t = tp.tensor(values("float32", (4, 5, 2)) if index == 0 else values("float32"))
    kept = host(t).copy()
    with pytest.raises(ValueError):
        t[index] = tp.ones(shape)
    assert_same(t, kept)


# ---- take ----


TAKES = [  # shape, axis, indices
    ((5,), 0, [0, 4, 2]),
    ((5,), 0, [1, 1, 1, -1, -5]),
    ((5,), -1, []),
    ((4, 3), 0, [3, 0, -1, 3]),
    ((4, 3), 1, [2, 2, 0]),
    ((4, 3), -2, [1]),
    ((2, 4, 3), 1, [0, 3, -2, 1, 1]),
    ((2, 4, 3), -1, [0]),
    ((2, 0, 3), 1, []),
    ((0, 4), 1, [1, 2]),
]


@pytest.mark.parametrize("shape,axis,indices", TAKES, ids=str)
def test_take_values_and_gradients(shape, axis, indices):
    for dtype, kind in itertools.product(DTYPES, ("int32", "int64")):
        x, i = values(dtype, shape), np.array(indices, kind)
        for make in LAYOUTS.values():
            assert_same(tp.take(make(x), tp.tensor(i), axis=axis), np.take(x, i, axis))
        assert_same(tp.take(tp.tensor(x), i, axis=axis), np.take(x, i, axis), label="indices as an ndarray")
    i = np.array(indices, int)
    check_vjp(
        lambda t: tp.take(t, tp.tensor(i), axis=axis), values("float64", shape), label=f"take {shape} {axis} {indices}"
    )


def test_take_accepts_uint8_and_strided_indices():
    x = values("float32", (6, 2))
    i = np.array([5, 0, 3, 3], "uint8")
    assert_same(tp.take(tp.tensor(x), tp.tensor(i), axis=0), x[i])
    assert_same(tp.take(tp.tensor(x), tp.tensor(i)[::-2], axis=0), x[i[::-2]])
    assert_same(tp.take(tp.tensor(x)[:, 0], tp.tensor(i), axis=0), x[i, 0])
    assert_same(tp.take(tp.tensor(x[:, 1].copy()), [0, -1], axis=0), x[[0, -1], 1])


def test_pytorch_94336_an_index_shorter_than_its_source():
    x = np.array([1.0, 2, 3])
    assert_gradients(lambda t: tp.take(t, tp.tensor([0]), axis=0), [x], [1, 0, 0])
    assert_gradients(lambda t: tp.take(t, tp.tensor(np.zeros(0, int)), axis=0), [x], 0.0)


@pytest.mark.parametrize(
    "indices,bad", [([0, 3], 3), ([-4], -4), ([0, 1, 2**31 - 1], 2**31 - 1), ([1, -(2**31)], -(2**31))]
)
def test_take_and_scatter_add_out_of_range(indices, bad):
    x = tp.tensor(values("float32", (2, 3)))
    i = np.array(indices, "int32")
    updates = tp.ones((2, len(indices)))
    for name, act in (
        ("take", lambda: tp.take(x, tp.tensor(i), axis=1)),
        ("scatter_add", lambda: tp.scatter_add(x, tp.tensor(i), updates, axis=1)),
    ):
        with pytest.raises(IndexError) as info:
            act()
        text = str(info.value)
        assert name in text and str(bad) in text and "axis 1" in text and "3" in text, text
    with pytest.raises(IndexError):
        tp.take(tp.zeros((0, 3)), tp.tensor([0]), axis=0)


@pytest.mark.parametrize("indices", [np.array([0.0]), np.array([True, False, True]), np.array([1.5], "float32")])
def test_indices_must_be_integers(indices):
    for act in (
        lambda i: tp.take(tp.ones((3,)), i, axis=0),
        lambda i: tp.scatter_add(tp.ones((3,)), i, tp.ones(i.shape), axis=0),
    ):
        with pytest.raises((TypeError, IndexError), match=str(indices.dtype)):
            act(tp.tensor(indices))


def test_mlx_1439_a_gradient_asked_of_an_integer_index_is_refused():
    for dtype in ("int32", "int64", "uint8", "bool"):
        index = np.array([0, 1], dtype)
        for ask in (
            lambda i: tp.tensor(i, requires_grad=True),
            lambda i: tp.tensor(i).requires_grad_(),
            lambda i: tp.grad(lambda j: tp.sum(tp.take(tp.ones((3,)), j, axis=0)))(tp.tensor(i)),
        ):
            with pytest.raises(TypeError, match=dtype):
                ask(index)


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=6),
    m=st.integers(0, 9),
    pick=st.integers(-3, 2),
    dtype=st.sampled_from(DTYPES[1:]),
    layout=st.sampled_from(sorted(LAYOUTS)),
)
def test_drawn_take_and_scatter_add(seed, shape, m, pick, dtype, layout):
    """Duplicates, negative indices; on floats the two are adjoint to each other."""
    rng = np.random.default_rng(seed)
    axis = pick % len(shape) if pick >= 0 else max(pick, -len(shape))
    n = shape[axis]
    i = rng.integers(-n, n, m)
    x = draw(rng, shape, dtype, -9, 9)
    u = draw(rng, np.take(x, i, axis).shape, dtype, -9, 9)
    t, index, updates = LAYOUTS[layout](x), tp.tensor(i), LAYOUTS[layout](u)
    taken, added = tp.take(t, index, axis=axis), tp.scatter_add(t, index, updates, axis=axis)
    assert_same(taken, np.take(x, i, axis))
    want = np.moveaxis(x.copy(), axis, 0)
    for k, row in zip(i, np.moveaxis(u, axis, 0), strict=True):
        want[k] += row
    close(added, np.moveaxis(want, 0, axis), 1e-5, 1e-5)
    assert name_of(added) == dtype
    assert_same(t, x)
    if dtype in FLOATS:
        (g,) = gradients(lambda z: tp.take(z, index, axis=axis), x, seed=u)
        zeros = np.moveaxis(np.zeros_like(x), axis, 0)
        for k, row in zip(i, np.moveaxis(u, axis, 0), strict=True):
            zeros[k] += row
        close(g, np.moveaxis(zeros, 0, axis), 1e-5, 1e-5)


SCATTERS = [
    ((5,), 0, [0, 4, 2]),
    ((5,), 0, [1, 1, -4, 1]),
    ((3, 2), 0, [2, 0, 2]),
    ((2, 3), 1, [1, -1, 1, 0]),
    ((2, 3), -1, []),
    ((2, 3, 2), 1, [0, 0]),
]


@pytest.mark.parametrize("shape,axis,indices", SCATTERS, ids=str)
def test_scatter_add_gradients(shape, axis, indices):
    i = np.array(indices, int)
    x = values("float64", shape) / 25
    u = draw(rng_for("u"), np.take(x, i, axis).shape)
    check_vjp(lambda t, v: tp.scatter_add(t, tp.tensor(i), v, axis=axis), x, u, label="linear")
    check_vjp(lambda t, v: tp.square(tp.scatter_add(t * t, tp.tensor(i), tp.sin(v), axis=axis)), x, u, label="curved")


def test_scatter_add_accumulates_in_index_order_and_repeats_its_bits():
    """float32 sums of the same duplicates in the same order: the bits of a plain loop, however many threads."""
    n, m = 37, 60_000
    rng = rng_for("order")
    i, u = rng.integers(0, n, m), rng.normal(size=(m, 3)).astype("float32")
    want = np.zeros((n, 3), "float32")
    np.add.at(want, i, u)
    before = tp.get_num_threads()
    try:
        for threads in (1, 2, 4):
            tp.set_num_threads(threads)
            assert_same(tp.scatter_add(tp.zeros((n, 3)), tp.tensor(i), tp.tensor(u)), want)
            across = tp.scatter_add(tp.zeros((3, n)), tp.tensor(i), tp.tensor(u).T, axis=1)
            assert_same(across, want.T.copy())
    finally:
        tp.set_num_threads(before)
    check_fused(lambda t: tp.take(t, tp.tensor(i), axis=0), want.astype(float), seed=u)


def test_scatter_add_leaves_its_operands_alone():
    x, u = tp.zeros((3,)), tp.ones((2,))
    y = tp.scatter_add(x, tp.tensor([0, 0]), u)
    assert y.tolist() == [2, 0, 0] and x.tolist() == [0, 0, 0] and u.tolist() == [1, 1]
    z = tp.scatter_add(x, tp.tensor(np.zeros(0, int)), tp.zeros((0,)))
    z += 1
    assert x.tolist() == [0, 0, 0]


@pytest.mark.parametrize("updates", [(2,), (2, 2), (3, 3), (1, 2, 3)])
def test_scatter_add_of_the_wrong_shape_is_refused(updates):
    with pytest.raises(ValueError, match=r"scatter_add|broadcast"):
        tp.scatter_add(tp.zeros((4, 3)), tp.tensor([0, 1]), tp.ones(updates), axis=0)


@pytest.mark.parametrize("updates", [(), (3,), (1, 1), (2, 1), (1, 3)])
def test_scatter_add_broadcasts_its_updates(updates):
    i, x, u = np.array([1, 1]), values("float64", (4, 3)) / 25, draw(rng_for("u"), updates)
    want = x.copy()
    np.add.at(want, i, u)
    close(tp.scatter_add(tp.tensor(x), tp.tensor(i), tp.tensor(u)), want, 1e-12)
    check_vjp(lambda t, v: tp.scatter_add(t * t, tp.tensor(i), tp.sin(v)), x, u, label=f"updates {updates}")


@pytest.mark.parametrize(
    "shape,axis,indices",
    [((4, 3), 0, [[0, 3], [-1, 3]]), ((4, 3), 1, [[2, 0, 0]]), ((5,), 0, 2), ((4, 3), 1, -1)],
    ids=str,
)
def test_indices_of_any_rank(shape, axis, indices):
    x, i = values("float64", shape) / 25, np.array(indices)
    for dtype in DTYPES:
        assert_same(tp.take(tp.tensor(x.astype(dtype)), tp.tensor(i), axis=axis), np.take(x.astype(dtype), i, axis))
    u = draw(rng_for("u"), np.take(x, i, axis).shape)
    check_vjp(lambda t: tp.take(t * t, tp.tensor(i), axis=axis), x, label="take")
    check_vjp(lambda t, v: tp.scatter_add(t * t, tp.tensor(i), tp.sin(v), axis=axis), x, u, label="scatter_add")


def test_take_without_an_axis_reads_the_flattened_tensor():
    x = values("float64", (4, 3)) / 25
    assert_same(tp.take(tp.tensor(x).T, tp.tensor([0, -1, 5])), x.T.ravel()[[0, -1, 5]])
    check_vjp(lambda t: tp.take(t * t, tp.tensor([0, -1, 5, 5])), x)


@pytest.mark.parametrize("pick", [
    lambda t: t[1:], lambda t: t[::-2], lambda t: t[0], lambda t: t[None, 1], lambda t: t[1:1],
    lambda t: tp.take(t, tp.tensor([0, 2, 0, 0, -1, 2]), axis=0), lambda t: tp.take(t, tp.tensor([0] * 300), axis=0),
    lambda t: t.T[::2], lambda t: t.reshape(-1)[1:3], lambda t: tp.take(t, tp.tensor([1, 1, 0, 1]), axis=-1),
])  # fmt: skip
def test_a_gradient_added_to_one_that_is_there_has_the_composed_bits(pick):
    """Before and after another use: sums of duplicates, and -0.0 in the places that the index leaves out."""
    x = draw(rng_for("there"), (3, 2))
    w = tp.tensor(np.array([[-0.0, 0.1], [0.7, -0.0], [1e-3, 3e5]]))

    def total(*parts):
        return sum((tp.sum(p) for p in parts[1:]), tp.sum(parts[0]))

    def cast(t):
        return w.astype(t.dtype)

    check_fused(lambda t: total(tp.sin(pick(t)), t * cast(t)), x, label="index first")
    check_fused(lambda t: total(t * cast(t), tp.sin(pick(t))), x, label="index last")
    check_fused(lambda t: total(tp.sin(pick(t)), pick(t) * 0.3, t * cast(t), pick(t)), x, label="three times")
    check_fused(lambda t: total(*(pick(t * 1.5) * 0.1 for _ in range(3)), tp.exp(t)), x, label="of an intermediate")
    rows = draw(rng_for("w"), (3, 1))
    check_fused(lambda t, r: total(pick(t) * 3, t * r, pick(t + r)), x, rows, label="broadcast")


@pytest.mark.parametrize("dtype", INTS)
def test_integer_scatter_add_wraps(dtype):
    top = np.iinfo(dtype).max
    got = tp.scatter_add(tp.tensor(np.array([top, 0], dtype)), tp.tensor([0, 0]), tp.tensor(np.array([1, 1], dtype)))
    assert_same(got, np.array([np.iinfo(dtype).min + 1, 0], dtype))


def test_zero_cotangents_stay_zero_through_gathers():
    for dtype, create_graph in itertools.product(FLOATS, (False, True)):
        f = lambda t: tp.log(tp.take(t, tp.tensor([0, 1, 0]), axis=0))  # noqa: E731
        (g,) = gradients(f, np.array([0, 2], dtype), seed=np.array([0, 1, 0], dtype), create_graph=create_graph)
        assert_same(g, np.array([0, 0.5], dtype), zero_sign=False)
        (g,) = gradients(
            lambda t: tp.log(t[::2]),
            np.array([0, 2, 4.0], dtype),
            seed=np.array([0, 1], dtype),
            create_graph=create_graph,
        )
        assert_same(g, np.array([0, 0, 0.25], dtype), zero_sign=False)


def test_an_unread_nan_stays_out_of_the_gradient():
    """The rows that an index leaves out get 0, whatever they hold."""
    x = np.array([np.nan, 1, np.inf, 2])
    assert_gradients(lambda t: tp.square(t[1::2]), [x], [0, 2, 0, 4])
    assert_gradients(lambda t: tp.square(tp.take(t, tp.tensor([3, 1]), axis=0)), [x], [0, 2, 0, 4])


@pytest.mark.parametrize("dtype", FLOATS)
def test_large_slices_and_takes(dtype):
    x = draw(rng_for("large"), (1003, 517), dtype)
    t = tp.tensor(x)
    for index in ((S(None), S(None, None, -1)), (S(None, None, 3), S(5, None, 2)), (S(900, 10, -7),), (S(None), 3)):
        assert_same(t[index], x[index])
        assert_same(t.T[index[::-1]], x.T[index[::-1]])
        y = tp.tensor(x)
        y[index] = t[index] * 2
        want = x.copy()
        want[index] = x[index] * 2
        assert_same(y, want)
    i = rng_for("i").integers(-1003, 1003, 2000)
    assert_same(tp.take(t, tp.tensor(i), axis=0), x[i])
    assert_same(tp.take(t.T, tp.tensor(i), axis=1), x.T[:, i])


# ---- indices and values whose conversion runs code


class Running:
    """An index or value that runs code when it is read."""

    def __init__(self, code, value):
        self.code, self.value = code, value

    def __index__(self):
        self.kept = self.code()
        return self.value

    def __array__(self, dtype=None, copy=None):
        self.kept = self.code()
        return np.asarray(self.value)


USES = {  # what to do with x (all 7 by then) and r, and what comes out; x was 0 .. 5 before
    "get": (lambda x, r: x[r(1)], 7.0),
    "slice": (lambda x, r: x[r(1) : r(4)], [7.0] * 3),
    "tuple": (lambda x, r: x[None, r(1)], [7.0]),
    "set": (lambda x, r: x.__setitem__(r(1), 5.0) or x, [7.0, 5, 7, 7, 7, 7]),
    "set_slice": (lambda x, r: x.__setitem__(slice(r(1), 4), 1.0) or x, [7.0, 1, 1, 1, 7, 7]),
    "set_value": (lambda x, r: x.__setitem__(slice(2), r([5.0, 5.0])) or x, [5.0, 5, 7, 7, 7, 7]),
    "set_advanced": (lambda x, r: x.__setitem__([1, 0], r([5.0, 6.0])) or x, [6.0, 5, 7, 7, 7, 7]),
    "take": (lambda x, r: tp.take(x, r([0, 5])), [7.0, 7.0]),
    "take_axis": (lambda x, r: tp.take(x, [0], r(0)), [7.0]),
    "scatter_add": (lambda x, r: tp.scatter_add(x, r([0, 0]), 1.0), [9.0, 7, 7, 7, 7, 7]),
    "scatter_add_updates": (lambda x, r: tp.scatter_add(x, [1, 1], r([1.0, 2.0])), [7.0, 10, 7, 7, 7, 7]),
    "concat": (lambda x, r: tp.concat([x, r([1.0])]), [7.0] * 6 + [1.0]),
    "stack": (lambda x, r: tp.stack([r(np.ones(6)), x])[1], [7.0] * 6),
    "matmul": (lambda x, r: tp.matmul(x, r(np.ones(6))), 42.0),
    "matmul_left": (lambda x, r: tp.matmul(r(np.ones(6)), x), 42.0),
    "add": (lambda x, r: tp.add(x, r(np.zeros(6))), [7.0] * 6),
    "where": (lambda x, r: tp.where(x > -1, x, r(np.zeros(6))), [7.0] * 6),
    "clip": (lambda x, r: tp.clip(x, 0.0, r(8.0)), [7.0] * 6),
    "mse_loss": (lambda x, r: tp.mse_loss(x, r(np.zeros(6))), 49.0),
    "cross_entropy": (lambda x, r: tp.cross_entropy(tp.expand_dims(x), r([2])), np.log(np.exp(np.arange(6) - 2).sum())),
    "labels": (lambda x, r: tp.cross_entropy(x, r(2)), np.log(6)),
    "assign": (lambda x, r: x.assign(r(np.ones(6))), [1.0] * 6),
    "assign_add": (lambda x, r: x.assign_add(r(np.ones(6))), [8.0] * 6),
    "assign_one": (lambda x, r: x.assign(r(3.0)), [3.0] * 6),
    "sum": (lambda x, r: tp.sum(x, r(0)), 42.0),
    "softmax": (lambda x, r: tp.softmax(x, r(0)), [1 / 6] * 6),
    "reshape": (lambda x, r: tp.reshape(x, (r(2), 3))[0], [7.0] * 3),
    "broadcast_to": (lambda x, r: tp.broadcast_to(x, (r(2), 6))[1], [7.0] * 6),
    "expand_dims": (lambda x, r: tp.expand_dims(x, r(0))[0], [7.0] * 6),
}


@pytest.mark.parametrize("name", sorted(USES))
@pytest.mark.parametrize("recorded", [False, True])
def test_an_operand_that_another_ones_conversion_writes(name, recorded):
    use, want = USES[name]
    r = tp.tensor(np.arange(6.0), requires_grad=True)
    x = r * 1.0 if recorded else tp.tensor(np.arange(6.0))
    seven, nine = tp.full(6, 7.0, "float64"), tp.full(6, 9.0, "float64")

    def code():
        x.assign(seven * 1.0)
        return [nine * 1.0 for _ in range(8)]  # takes the memory that x has let go of

    got = use(x, lambda value: Running(code, value))
    assert np.allclose(got.numpy(), want, rtol=1e-6)


class Iterates(tuple):
    """A tuple that iterates over something else."""

    def __iter__(self):
        return iter(self.shown)


@pytest.mark.parametrize("shown", [(), (0,), (0,) * 3000, ([0],), (None,) * 100])
@pytest.mark.parametrize("held", [(), (0, 0), (0,) * 3000, ([0], [0])])
def test_tuples_that_iterate_differently(shown, held):
    index = Iterates(held)
    index.shown = shown
    t = tp.ones((2, 2))
    for use in (t.__getitem__, lambda i: t.__setitem__(i, 1.0)):
        try:
            use(index)
        except (IndexError, tp.ShapeError):
            pass
    assert_same(t, np.ones((2, 2), "float32"))


HUGE_STEPS = (2**63 - 1, 2**63 - 2, 2**62, -(2**63) + 1, -(2**63), -(2**62), 2**70, -(2**70))


@pytest.mark.parametrize("step", HUGE_STEPS)
def test_slices_with_huge_steps(step):
    for n in (0, 1, 2, 5):
        a = np.arange(float(n))
        t = tp.tensor(a, requires_grad=True)
        for start, stop in itertools.product((None, 0, 1, -1, 2**63 - 1, -(2**63)), repeat=2):
            index = slice(start, stop, step)
            got = t[index]
            assert_same(got, a[range(n)[index].start : range(n)[index].start + 1] if range(n)[index] else a[:0])
            (got * 2.0).sum().backward()
        b = t.detach()
        b[::step] = 7.0
        assert (b == 7.0).sum().item() == min(n, 1)


def test_a_seed_whose_conversion_changes_the_target():
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    y = x * x
    y.backward(Running(lambda: y.assign(tp.zeros(2)), [1.0, 1.0]))
    assert x.grad.tolist() == [2.0, 4.0] and not y.requires_grad
    y = x * x
    with pytest.raises(tp.TapeError, match="freed"):
        y.backward(Running(lambda: y.backward(tp.ones(2)), [1.0, 1.0]))
    assert x.grad.tolist() == [4.0, 8.0]


def test_a_value_whose_conversion_makes_the_target_a_leaf():
    class Value:
        def __array__(self, dtype=None, copy=None):
            x.requires_grad_()
            return np.ones(3)

    for write in (
        lambda x: x.assign(Value()),
        lambda x: x.assign_add(Value()),
        lambda x: x.__setitem__(slice(None), Value()),
        lambda x: x.__setitem__([0, 1, 2], Value()),
    ):
        x = tp.zeros(3, dtype="float64")
        with pytest.raises(tp.TapeError, match="leaf"):
            write(x)
        assert x.is_leaf and x.requires_grad and x.tolist() == [0.0] * 3


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64"])
def test_index_arrays_of_every_integer_dtype(dtype):
    a, index = np.arange(12.0).reshape(4, 3), np.array([[3, 0], [1, 1]], dtype)
    t = tp.tensor(a)
    assert_same(t[index], a[index])
    assert_same(t[index, [0, 2]], a[index, [0, 2]])
    assert_same(tp.take(t, index[0], axis=1 - 1), a[index[0]])
    t[index[0]] = 7.0
    a[index[0]] = 7.0
    assert_same(t, a)


def test_a_writes_backward_changes_no_cotangent_of_others():
    """The cotangent of a written tensor is cleared in place where the walk alone holds it."""
    for create_graph in (False, True):
        x, u, kept = leaves(np.ones(3), np.ones(3)) + [[]]
        a, b = x * 2.0, u * 3.0
        a[0], b[1] = x[1], u[2]
        a.retain_grad()
        b.register_hook(kept.append)
        seed = tp.tensor([1.0, 2.0, 4.0], dtype=tp.float64)
        (a + b).backward(seed, create_graph=create_graph)
        assert seed.tolist() == a.grad.tolist() == kept[0].tolist() == [1.0, 2.0, 4.0]
        assert x.grad.tolist() == [0.0, 5.0, 8.0] and u.grad.tolist() == [3.0, 0.0, 14.0]
        before = x * 1.0
        y = before * 1.0
        y[:2] = 0.0
        x.grad = None
        (before + y).sum().backward(create_graph=create_graph)
        assert x.grad.tolist() == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("big", [2**64 - 1, 2**64 - 3, 2**63])
def test_unsigned_indices_do_not_wrap(big):
    index = np.array([big], "uint64")
    for call in (lambda t: t[index], lambda t: tp.take(t, index), lambda t: t.__setitem__(index, 1.0)):
        t = tp.zeros(3)
        with pytest.raises(IndexError, match=str(big)):
            call(t)
        assert t.tolist() == [0.0] * 3


@pytest.mark.parametrize("index", [[], [[]], [[], []], ([[]],), (slice(None), [[]]), ([[]], [[]])])
def test_empty_lists_are_indices(index):
    a = np.ones((3, 2), "float32")
    t = tp.tensor(a)
    want = a[
        tuple(np.array(i, int) if isinstance(i, list) else i for i in (index if isinstance(index, tuple) else (index,)))
    ]
    assert t[index].shape == want.shape
    t[index] = 7.0
    assert t.tolist() == a.tolist()


# ---- advanced indices


@st.composite
def advanced_index(draw_, shape):
    """Ints, slices, None, Ellipsis, index arrays that broadcast together and masks, in any mixture that fits shape."""
    together = draw_(st.sampled_from([(), (1,), (3,), (2, 3), (2, 1), (0,)]))
    parts, axis, dots = [], 0, False
    while axis < len(shape) and len(parts) < 7:
        n = shape[axis]
        kind = draw_(st.sampled_from(["int", "slice", "all", "none", "array", "array", "list", "mask", "dots", "stop"]))
        if kind == "stop" or (kind == "int" and not n):
            break
        if kind == "none":
            parts.append(None)
            continue
        if kind == "dots":
            if not dots:
                parts.append(...)
                axis += draw_(st.integers(0, len(shape) - axis))
                dots = True
            continue
        if kind == "int":
            parts.append(draw_(st.integers(-n, n - 1)))
        elif kind == "slice":
            parts.append(draw_(st.slices(n)))
        elif kind == "all":
            parts.append(S(None))
        elif kind == "mask":
            m = draw_(st.integers(1, min(2, len(shape) - axis)))
            parts.append(draw_(hnp.arrays(bool, shape[axis : axis + m])))
            axis += m - 1
        else:
            dtype = draw_(st.sampled_from(["int64", "int32"]))
            each = together if n else (0,)
            array = draw_(hnp.arrays(dtype, each, elements=st.integers(-n, n - 1) if n else st.just(0)))
            parts.append(array.tolist() if kind == "list" and array.size and array.ndim else array)
        axis += 1
    return tuple(parts)


def numpy_reads(x, index):
    """x[index], or None where NumPy refuses the index."""
    try:
        return np.asarray(x[index])
    except IndexError:
        return None


@given(
    data=st.data(),
    shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4),
    layout=st.sampled_from(sorted(LAYOUTS)),
    dtype=st.sampled_from(DTYPES),
    tensors=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_drawn_advanced_indices(data, shape, layout, dtype, tensors, seed):
    """Reading and writing as NumPy, eager, under a tape and recorded; gradients are the adjoint's, and of elements
    written twice only the last one counts."""
    rng = np.random.default_rng(seed)
    x = draw(rng, shape, dtype, -9, 9)
    index = data.draw(advanced_index(shape), label="index")
    want = numpy_reads(x, index)
    as_given = tuple(tp.tensor(i) if tensors and isinstance(i, np.ndarray) else i for i in index)
    t = LAYOUTS[layout](x)
    if want is None:
        for act in (lambda: t[as_given], lambda: t.__setitem__(as_given, 1)):
            with pytest.raises(IndexError):
                act()
        assert_same(t, x)
        return
    assert_same(t[as_given], want)
    with tp.Tape():
        assert_same(t[as_given], want)
    cut = data.draw(st.integers(0, want.ndim))
    v = draw(rng, want.shape[cut:], dtype, -9, 9)
    written = x.copy()
    written[index] = v
    other = t[...]
    t[as_given] = tp.tensor(v)
    assert_same(t, written)
    assert_same(other, x)
    if dtype not in FLOATS:
        return
    w = rng.uniform(-1, 1, want.shape).astype(dtype)
    expected = np.zeros_like(x)
    np.add.at(expected, index, w)
    close(gradients(lambda a: (a[as_given] * tp.tensor(w)).sum(), x)[0], expected, 1e-5, 1e-5)
    place = np.full(shape, -1)
    place[index] = np.arange(want.size).reshape(want.shape)
    g = rng.uniform(-1, 1, shape).astype(dtype)
    to_v = np.zeros(want.size, dtype)
    to_v[place[place >= 0]] = g[place >= 0]

    def write(a, b):
        y = a * 1
        y[as_given] = b * 1
        return (y * tp.tensor(g)).sum()

    got = gradients(write, x, v)
    assert_same(got[0], np.where(place < 0, g, 0).astype(dtype), zero_sign=False)
    close(got[1], to_v.reshape(want.shape).sum(tuple(range(cut))).reshape(v.shape), 1e-5, 1e-5)


ORDERED = np.array([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]])


@pytest.mark.parametrize(
    "names,f",
    [
        ("argsort", tp.argsort),
        ("argsort places reshape take", tp.sort),
        ("argsort places reshape take", lambda x: tp.topk(x, 2)),
        ("searchsorted", lambda x: tp.searchsorted(tp.tensor([1.0, 2.0]), x)),
        ("nonzero getitem getitem", tp.nonzero),
        ("places reshape take", lambda x: x[tp.tensor([0, 1]), tp.tensor([2, -1])]),
        ("places take", lambda x: x[:, tp.tensor([2, -1])]),
        ("reshape nonzero take", lambda x: x[tp.tensor(ORDERED > 1)]),
        ("broadcast_to places put", lambda x: x.__setitem__(tp.tensor([1]), 1.0)),
        ("places reshape take", lambda x: tp.take_along_axis(x, tp.tensor([[0], [1]]))),
    ],
)
def test_what_is_looked_up_is_an_entry(names, f):
    """No order, position or mask is a silent constant of the tape."""
    x = tp.tensor(ORDERED)
    with tp.Tape() as tape:
        f(x)
    assert re.findall(r"= (\w+)\(", str(tape)) == names.split()


def test_second_derivatives_of_reads_and_writes():
    x, v = np.arange(1.0, 7).reshape(2, 3), np.array([0.5, -2.0, 3.0])
    rows, columns = tp.tensor([0, 1, 0]), tp.tensor([2, 0, 2])

    def write(t, u):
        y = t * t
        y[rows, columns] = u * u * u
        return y * y

    check_vjp(write, x, v, label="write")
    check_vjp(lambda t: (t * t)[rows, columns] * t[0], x, label="read")
    check_vjp(lambda t: (t * t)[t > 2.5] ** 2, x, label="mask")


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_written_into_memory_of_ones_own(dtype):
    number = True if dtype == "bool" else 1
    for index in (3, -1, S(2, -2), S(None, None, -3), [0, -16, 5, 5], np.arange(16) % 3 == 0):
        a = np.zeros(16, dtype)
        t = tp.tensor(a)
        kept, part = t[:], t[4:]
        t[index if isinstance(index, (int, slice)) else tp.tensor(index)] = number
        a[index] = number
        assert_same(t, a)
        assert not host(kept).any() and not host(part).any()  # what looks at the same memory keeps its value
        with tp.Tape() as tape:
            u = tp.tensor(np.zeros(16, dtype))
            u[index if isinstance(index, (int, slice)) else tp.tensor(index)] = number
        assert len(tape) and np.array_equal(host(u), a)


def test_an_index_out_of_range_writes_nothing():
    t = tp.zeros(4)
    for index in (tp.tensor([0, 4]), tp.tensor([-5, 1]), 4, -5):
        with pytest.raises(IndexError, match=r"out of range for axis 0 of size 4"):
            t[index] = 1.0
        with pytest.raises(IndexError, match=r"out of range for axis 0 of size 4"):
            t[index]
    assert t.tolist() == [0.0] * 4


def test_a_tensor_as_its_own_index():
    t, a = tp.tensor([1, 2, 3, 0]), np.array([1, 2, 3, 0])
    t[t], a[a] = 2, 2
    assert_same(t, a)
