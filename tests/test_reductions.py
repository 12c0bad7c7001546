"""sum, mean, max, min, prod, argmax, argmin, logsumexp: values on every set of axes, bits that depend on the reduced
extents alone, ties, zeros, infinities and NaN, and gradients to the second order."""

import functools
import itertools

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FLOATS,
    INF,
    INTS,
    LAYOUTS,
    NAN,
    WIDE,
    assert_gradients,
    assert_same,
    assert_ulps,
    check_fused,
    check_vjp,
    close,
    draw,
    dtype_of,
    gradients,
    host,
    name_of,
    rng_for,
    second,
    stretched,
)
from hypothesis import given
from hypothesis import strategies as st

import tapeflow as tp


def naive_logsumexp(x, axis=None, keepdims=False):
    x = np.asarray(x, WIDE)
    top = np.max(x, axis=axis, keepdims=True, initial=-INF)
    with np.errstate(all="ignore"):
        y = top + np.log(np.sum(np.exp(x - np.where(np.isfinite(top), top, 0)), axis=axis, keepdims=True))
        y = np.where(np.isfinite(top), y, np.log(np.sum(np.exp(x), axis=axis, keepdims=True)))
    return y if keepdims else y.reshape(np.sum(x, axis=axis).shape)


REFERENCE = {  # in a wide type, and the kind of result: "sum" widens integers, "float" leaves them
    "sum": (np.sum, "sum"),
    "prod": (np.prod, "sum"),
    "mean": (np.mean, "float"),
    "logsumexp": (naive_logsumexp, "float"),
    "max": (np.max, "same"),
    "min": (np.min, "same"),
    "argmax": (np.argmax, "index"),
    "argmin": (np.argmin, "index"),
}
INDICES = ("argmax", "argmin")
SMOOTH = ("sum", "mean", "prod", "logsumexp")
REDUCTIONS = tuple(REFERENCE)
DIFFERENTIABLE = tuple(name for name in REDUCTIONS if name not in INDICES)


def op(name):
    return getattr(tp, name)


def result_dtype(name, dtype):
    kind = REFERENCE[name][1]
    if kind == "index" or kind == "sum" and dtype not in FLOATS:
        return "int64"
    return "float32" if kind == "float" and dtype not in FLOATS else dtype


def axes_of(ndim, name="sum"):
    """Every way to name axes: None, each int from both ends, every tuple, the empty one included."""
    single = [None, *range(-ndim, ndim)]
    if name in INDICES:
        return single
    return (
        single + [c for n in range(ndim + 1) for c in itertools.combinations(range(ndim), n)] + [(-1, 0)] * (ndim > 1)
    )


def operand(name, shape, dtype, *key):
    low, high = (0.5, 1.5) if name == "prod" and dtype in FLOATS else (-3, 3)
    return draw(rng_for(name, shape, dtype, *key), shape, dtype, low, high)


def check_value(name, got, x, axis=None, keepdims=False, label=""):
    reference, _ = REFERENCE[name]
    exact = x.dtype.kind != "f" and name not in ("mean", "logsumexp") or name in ("max", "min", *INDICES)
    wide = x if exact else x.astype(WIDE)
    with np.errstate(all="ignore"):
        want = reference(wide, axis=axis, keepdims=keepdims)
    dtype = result_dtype(name, str(x.dtype))
    label = f"{label} {name} {x.shape} {x.dtype} axis={axis} keepdims={keepdims}"
    assert name_of(got) == dtype, label
    if exact:
        assert_same(got, np.asarray(want).astype(dtype), zero_sign=False, label=label)
    else:
        assert got.shape == np.shape(want), label
        scale = reference(abs(wide), axis=axis, keepdims=keepdims) if name in ("sum", "mean") else abs(want)
        scale = np.maximum(np.asarray(scale, float), 1.0 if name == "logsumexp" else 0.0)
        n = x.size / max(np.size(want), 1)
        eps = np.finfo(dtype).eps * (2 + (n if name == "prod" else np.log2(n + 1)))
        bound = eps * scale + np.finfo(dtype).tiny * (name == "prod")
        assert np.all(abs(np.asarray(host(got), WIDE) - want) <= bound), label


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_every_axis_combination(name, dtype):
    for shape in ((), (5,), (2, 3), (2, 3, 4), (3, 1, 2, 2)):
        x = operand(name, shape, dtype)
        for axis, keepdims in itertools.product(axes_of(len(shape), name), (False, True)):
            check_value(name, op(name)(tp.tensor(x), axis=axis, keepdims=keepdims), x, axis, keepdims)


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.lists(st.integers(1, 6), max_size=4),
    pick=st.integers(0, 10**6),
    dtype=st.sampled_from(DTYPES),
    name=st.sampled_from(REDUCTIONS),
    layout=st.sampled_from(sorted(LAYOUTS)),
    keepdims=st.booleans(),
)
def test_drawn_shapes_and_layouts(seed, shape, pick, dtype, name, layout, keepdims):
    x = operand(name, tuple(shape), dtype, seed)
    axes = axes_of(len(shape), name)
    axis = axes[pick % len(axes)]
    got = op(name)(LAYOUTS[layout](x), axis=axis, keepdims=keepdims)
    check_value(name, got, x, axis, keepdims, layout)
    assert_same(got, op(name)(tp.tensor(x), axis=axis, keepdims=keepdims), label=f"{name} {layout} against plain")


@pytest.mark.parametrize("name", REDUCTIONS)
def test_default_is_every_axis_and_the_method_is_the_function(name):
    x = operand(name, (2, 3), "float32")
    t = tp.tensor(x)
    assert op(name)(t).shape == ()
    if hasattr(t, name):
        assert_same(getattr(t, name)(axis=0), op(name)(t, axis=0))


# ---- nothing to reduce ----

EMPTY = {"sum": 0.0, "prod": 1.0, "mean": NAN, "logsumexp": -INF}


@pytest.mark.parametrize("dtype", ("float32", "int32", "bool"))
@pytest.mark.parametrize("name", REDUCTIONS)
def test_zero_extent(name, dtype):
    x = tp.zeros((0, 3), dtype=dtype_of(dtype))
    if name in EMPTY:
        want = np.array(EMPTY[name]).astype(result_dtype(name, dtype))
        assert_same(op(name)(x), want)
        assert_same(op(name)(x, axis=0), np.full(3, want))
    else:
        for axis in (None, 0):
            with pytest.raises(ValueError, match=name):
                op(name)(x, axis=axis)
    assert op(name)(x, axis=1).shape == (0,)
    assert op(name)(x, axis=1, keepdims=True).shape == (0, 1)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("shape,axis", [((0, 3), 1), ((3, 0), 0), ((2, 0, 3), (0, 2))])
def test_zero_extent_gradient_has_the_operands_shape(name, shape, axis):
    for create_graph in (False, True):
        (g,) = gradients(lambda x: op(name)(x, axis=axis), np.zeros(shape), create_graph=create_graph)
        assert g.shape == shape


@pytest.mark.parametrize("name", tuple(EMPTY))
def test_gradient_of_an_empty_reduction(name):
    for create_graph in (False, True):
        (g,) = gradients(lambda x: op(name)(x, axis=0), np.zeros((0, 3), "float32"), create_graph=create_graph)
        assert (g.shape, g.dtype) == ((0, 3), np.float32)


# ---- exactness, and bits that depend on the reduced extents alone ----


@pytest.mark.parametrize("shape,axis", [((20_000_000,), None), ((10_000_000, 2), 0), ((2, 10_000_000), 1)])
def test_twenty_million_ones_sum_exactly(shape, axis):
    for x in (tp.ones(shape, dtype=tp.float32), tp.broadcast_to(tp.tensor(np.float32(1)), shape)):
        got = tp.sum(x, axis=axis)
        assert name_of(got) == "float32"
        assert np.all(host(got) == 20_000_000 // (1 if axis is None else 2))
        assert np.all(host(tp.mean(x, axis=axis)) == 1)


@pytest.mark.parametrize("dtype,fill", [("uint8", 255), ("bool", True), ("int32", 2**31 - 1)])
def test_integer_sums_do_not_wrap(dtype, fill):
    x = tp.full((1000,), fill, dtype=dtype_of(dtype))
    assert (name_of(tp.sum(x)), tp.sum(x).item()) == ("int64", 1000 * int(fill))
    assert name_of(tp.prod(x[:2])) == "int64" and tp.prod(x[:2]).item() == int(fill) ** 2
    close(tp.mean(x), np.float32(fill), 1e-6)


def test_int64_sums_keep_every_digit():
    x = np.array([2**53, 1, 2**53, 1])
    assert tp.sum(tp.tensor(x)).item() == 2**54 + 2
    assert tp.max(tp.tensor([2**62, 2**62 + 1])).item() == 2**62 + 1
    assert tp.argmax(tp.tensor([2**62, 2**62 + 1])).item() == 1


@pytest.mark.parametrize("dtype,huge", [("float32", 3e38), ("float32", -3e38)])
def test_mean_of_huge_values_does_not_overflow(dtype, huge):
    x = tp.full((1000, 3), huge, dtype=dtype_of(dtype))
    for axis in (None, 0, 1):
        close(tp.mean(x, axis=axis), tp.max(x, axis=axis), 1e-6, 0)
    assert_gradients(lambda t: tp.mean(t), [host(x)], 1 / 3000)


SIZES = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 128, 129, 255, 257, 511, 513, 1023, 1025, 4099, 100_003)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_bits_depend_on_the_extent_alone(name, dtype):
    """A column, a row, a strided and a shared view of the same n values give the bits of the plain vector."""
    for n in SIZES:
        x = operand(name, (n,), dtype, "bits")
        want = op(name)(tp.tensor(x))
        check_value(name, want, x)
        wide = np.stack([x, x[::-1], x], 1)
        views = {
            "column": op(name)(tp.tensor(wide), axis=0)[0],
            "row": op(name)(tp.tensor(np.ascontiguousarray(wide.T)), axis=1)[2],
            "row of T": op(name)(tp.tensor(wide).T, axis=-1)[0],
            "middle": op(name)(tp.tensor(np.stack([wide, wide])), axis=1)[1, 0],
            "stepped": op(name)(tp.tensor(wide)[:, 0]),
            "reversed": op(name)(tp.tensor(wide)[::-1, 1]),
            "two rows": op(name)(stretched(x, 2), axis=1)[1],
            "keepdims": op(name)(tp.tensor(x), axis=0, keepdims=True)[0],
        }
        for label, got in views.items():
            assert_same(got, want, label=f"{name} {n} {label}")


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize(
    "shape,axis",
    [((1_500_000,), None), ((1200, 1300), 0), ((1200, 1300), 1), ((3, 500_000), (0, 1)), ((700_000, 2), 0)],
)
def test_bits_do_not_depend_on_the_thread_count(name, shape, axis):
    axis = None if name in INDICES and isinstance(axis, tuple) else axis
    x = tp.tensor(operand(name, shape, "float32"))
    before = tp.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3, 8):
            tp.set_num_threads(threads)
            assert tp.get_num_threads() == threads
            results.append(op(name)(x, axis=axis))
        results.append(op(name)(tp.permute_dims(x, (0, 1)[: x.ndim]), axis=axis))
    finally:
        tp.set_num_threads(before)
    for got in results[1:]:
        assert_same(got, results[0])


@pytest.mark.parametrize("name", SMOOTH)
def test_several_axes_are_one_reduction_of_each_slice(name):
    x = operand(name, (5, 3, 7), "float32")
    got = op(name)(tp.tensor(x), axis=(0, 2))
    for j in range(3):
        assert_same(got[j], op(name)(tp.tensor(x[:, j, :].copy())), label=f"{name} slice {j}")


def test_large_transposed_sum_is_accurate():
    x = rng_for("large").normal(size=(1537, 1031)).astype("float32")
    for axis in (0, 1, None):
        want = x.astype(WIDE).T.sum(axis)
        close(tp.sum(tp.tensor(x).T, axis=axis), want.astype("float32"), 1e-5, 1e-4)
        assert_same(tp.sum(tp.tensor(x).T, axis=axis), tp.sum(tp.tensor(np.ascontiguousarray(x.T)), axis=axis))


# ---- extremes, ties, NaN ----

AWKWARD = [
    [1, NAN, 3],
    [NAN, NAN],
    [3, 1, 3, 3],
    [-1, -1],
    [INF, 1],
    [-INF, 1],
    [INF, -INF],
    [-INF, -INF],
    [INF, INF],
    [NAN, INF],
    [2, NAN],
    [NAN],
    [INF],
    [-INF],
    [0.0],
    [5e-324, 0],
    [1e300, 1e300, 1],
    [-1e300, -1e300],
]


@pytest.mark.parametrize("values", AWKWARD, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_awkward_values_as_numpy(name, values):
    for dtype, repeat in itertools.product(FLOATS, (1, 40)):
        with np.errstate(all="ignore"):
            x = np.repeat(np.array(values), repeat).astype(dtype)
            wide = x if name in ("max", "min", *INDICES) or abs(x[0]) == 1e300 else x.astype(WIDE)
            want = np.asarray(REFERENCE[name][0](wide)).astype(result_dtype(name, dtype))
            if name == "mean" and dtype == "float64" and abs(x[0]) == 1e300:
                continue  # the plain sum may overflow or not: repeat decides
        for layout in (tp.tensor(x), tp.tensor(np.stack([x, x], 1))[:, 1]):
            got = op(name)(layout)
            assert_same(np.isnan(host(got)), np.isnan(want), label=f"{got} for {want}")
            close(got, want, 1e-5, 1e-300)


@pytest.mark.parametrize("n", (2, 9, 64, 1000, 5001))
def test_nan_is_found_wherever_it_stands(n):
    for at in {0, 1, n // 2, n - 1}:
        for dtype in FLOATS:
            x = draw(rng_for(n), (n, 3), dtype)
            x[at, 1] = NAN
            if at + 1 < n:
                x[at + 1, 1] = INF
            for t, axis in ((tp.tensor(x), 0), (tp.tensor(np.ascontiguousarray(x.T)), 1)):
                assert host(tp.argmax(t, axis=axis)).tolist() == np.argmax(x, 0).tolist() and np.argmax(x, 0)[1] == at
                for f in (tp.max, tp.min):
                    assert np.isnan(host(f(t, axis=axis))).tolist() == [False, True, False]
            assert tp.argmax(tp.tensor(x)).item() == np.argmax(x)


def test_argmax_takes_the_first_of_equal_values():
    x = np.array([[1, 5, 5, 2], [7, 7, 7, 7], [-0.0, 0.0, -1, 0.0]], "float32")
    for dtype in ("float32", "float64", "int32", "uint8"):
        y = np.abs(x).astype(dtype)
        assert host(tp.argmax(tp.tensor(y), axis=1)).tolist() == np.argmax(y, 1).tolist()
    assert host(tp.argmax(tp.tensor(x), axis=1)).tolist() == [1, 0, 0]
    assert tp.argmax(tp.tensor([False, True, True])).item() == 1
    big = np.zeros(300_001, "float32")
    assert tp.argmax(tp.tensor(big)).item() == 0
    big[[150_000, 299_999]] = 1
    assert tp.argmax(tp.tensor(big)).item() == 150_000


@pytest.mark.parametrize("n", (255, 256, 257, 511, 512, 1000, 4096, 5000))
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_first_extreme_among_ties_zeros_infinities_and_nan(n, dtype):
    rng = rng_for(n, dtype)
    for k in range(12):
        x = np.rint(rng.normal(size=(3, n)) * 3).astype(dtype)
        x[x == 0] = (0.0, -0.0)[k % 2]
        if k % 3 == 0:
            x[1, rng.integers(n)] = NAN
        if k % 4 == 0:
            x[2] = (INF, -INF)[k // 4 % 2]
        for f, reference in ((tp.argmax, np.argmax), (tp.argmin, np.argmin)):
            assert f(tp.tensor(x), axis=1).tolist() == reference(x, 1).tolist()
            assert f(tp.tensor(x)).item() == reference(x)


def test_argmax_is_never_differentiated():
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    assert not tp.argmax(x).requires_grad and not tp.argmax(x, axis=0, keepdims=True).requires_grad


# ---- gradients ----


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 1, 3)])
def test_gradients_on_every_axis(name, shape):
    rng = rng_for(name, shape)
    x = rng.permutation(np.arange(np.prod(shape, dtype=int)) * 0.5 - 1.25).reshape(shape)  # no ties, no zeros
    for axis, keepdims in itertools.product(axes_of(len(shape)), (False, True)):
        f = functools.partial(op(name), axis=axis, keepdims=keepdims)
        check_vjp(f, x, label=f"{name} {axis} {keepdims}", order=1 + (not keepdims))


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_through_odd_layouts(name, layout):
    x = rng_for(name).permutation(np.arange(12) * 0.25 - 1.1).reshape(3, 4).astype("float32")
    w = draw(rng_for("w"), (3,), "float32")
    want = gradients(lambda t: op(name)(t, axis=1), x, seed=w)
    got = gradients(lambda t: op(name)(LAYOUTS["plain"](np.zeros_like(x)) + t, axis=1), x, seed=w)
    assert_same(got[0], want[0])
    held = LAYOUTS[layout](x).requires_grad_()
    op(name)(held, axis=1).backward(tp.tensor(w))
    assert_same(held.grad, want[0], label=layout)


TIES = [  # rows, gradient of the maximum
    ([1, 3, 3], [0, 0.5, 0.5]),
    ([2, 2, 2, 2], [0.25] * 4),
    ([5, 5, 1], [0.5, 0.5, 0]),
    ([0.0, -0.0, -1], [0.5, 0.5, 0]),
    ([INF, INF, 1], [0.5, 0.5, 0]),
    ([-INF, -INF], [0.5, 0.5]),
    ([7], [1]),
]


@pytest.mark.parametrize("row,want", TIES, ids=str)
@pytest.mark.parametrize("name,sign", [("max", 1), ("min", -1)])
def test_ties_of_max_and_min_split_evenly(name, sign, row, want):
    x = sign * np.array(row, float)
    for dtype in FLOATS:
        v = x.astype(dtype)
        assert_gradients(op(name), [v], want)
        assert_gradients(lambda t: op(name)(t, axis=0), [np.stack([v, v], 1)], np.stack([want, want], 1))
        assert_gradients(lambda t: op(name)(t, axis=(0, 1)), [np.stack([v, v], 1)], np.stack([want, want], 1) / 2)
    check_fused(lambda t: op(name)(t, axis=0, keepdims=True), np.stack([x, x[::-1]], 1))


@pytest.mark.parametrize("name", ("max", "min"))
def test_ties_at_order_two_stay_piecewise_linear(name):
    (h,) = second(op(name), np.array([2.0, 2.0, 2.0]))
    close(h, np.zeros(3))


def test_pytorch_773_product_with_zeros():
    assert_gradients(tp.prod, [np.array([5.0, 0, -2])], [0, -10, 0])
    assert_gradients(tp.prod, [np.array([0.0, 0, 4])], [0, 0, 0])
    assert_gradients(tp.prod, [np.array([-0.0, 3, 2], "float32")], [6, 0, 0])
    f = lambda t: tp.prod(tp.stack([t, t, tp.tensor(3.0)]))  # noqa: E731
    assert tp.grad(tp.grad(f))(tp.tensor(0.0)).item() == 6
    cube = lambda t: tp.prod(tp.stack([t, t, t]))  # noqa: E731
    assert tp.grad(tp.grad(tp.grad(cube)))(tp.tensor(0.0)).item() == 6
    assert tp.grad(tp.grad(cube))(tp.tensor(2.0)).item() == 12


@pytest.mark.parametrize("axis", (None, 0, 1, (0, 1)))
@pytest.mark.parametrize("zeros", ([], [0], [0, 3], [0, 1], [0, 1, 2], [0, 1, 2, 3, 4, 5]))
def test_product_with_zeros_on_every_axis(axis, zeros):
    x = np.array([1.5, -2, 0.5, 3, -1, 2.5])
    x[zeros] = 0
    check_vjp(lambda t: tp.prod(t, axis=axis), x.reshape(2, 3), label=f"prod {axis} {zeros}")


def test_pytorch_193012_second_order_product_does_not_overflow():
    x = tp.tensor(np.array([1e-30, 1, 2], "float32"))
    rows = [tp.grad(lambda t, i=i: tp.grad(lambda s: 3e10 * tp.prod(s))(t)[i])(x).numpy() for i in range(3)]
    close(np.stack(rows), np.array([[0, 6e10, 3e10], [6e10, 0, 3e-20], [3e10, 3e-20, 0]], "float32"), 1e-5, 1e-25)


def test_product_of_extremes_has_the_exact_gradient():
    assert_gradients(tp.prod, [np.array([1e-30, 1e30, 1e30], "float32")], [INF, 1, 1])
    assert_gradients(tp.prod, [np.array([INF, 2.0])], [2, INF])
    assert_gradients(tp.prod, [np.array([1e300, 1e300, 0.0])], [0, 0, INF])


LOGSUMEXP = [  # values, result, gradient
    ([-INF, -INF], -INF, [0, 0]),
    ([-INF, 2], 2, [0, 1]),
    ([2, -INF, 2], 2 + np.log(2), [0.5, 0, 0.5]),
    ([1e4, 0], 1e4, [1, 0]),
    ([-1e4, -1e4], -1e4 + np.log(2), [0.5, 0.5]),
    ([88.9, 88.9], 88.9 + np.log(2), [0.5, 0.5]),
    ([-104.0, -104.0], -104 + np.log(2), [0.5, 0.5]),
    ([3e38, 3e38], 3e38, [0.5, 0.5]),
    ([3e38, -3e38], 3e38, [1, 0]),
    ([0], 0, [1]),
    ([-INF], -INF, [0]),
]


@pytest.mark.parametrize("values,want,gradient", LOGSUMEXP, ids=str)
def test_jax_6811_logsumexp_at_infinity_and_far_out(values, want, gradient):
    for dtype in FLOATS:
        x = np.array(values, dtype)
        close(tp.logsumexp(tp.tensor(x)), np.array(want, dtype), 1e-6)
        assert_gradients(tp.logsumexp, [x], gradient)
        other = np.zeros_like(x)
        both = np.stack([x, other])  # the neighbouring row is untouched
        assert_gradients(lambda t: tp.logsumexp(t, axis=1), [both], np.stack([gradient, np.full(len(x), 1 / len(x))]))
        assert_gradients(
            lambda t: tp.logsumexp(t, axis=0), [both.T], np.stack([gradient, np.full(len(x), 1 / len(x))], 1)
        )


@pytest.mark.parametrize(
    "values, gradient",
    [([INF, 1], [1, 0]), ([INF, INF, 3], [0.5, 0.5, 0]), ([-INF, INF], [0, 1]), ([1, INF, NAN], [NAN] * 3)],
)
def test_kink_logsumexp_of_infinity_sends_all_to_it(values, gradient):
    """What the weights tend to; among several they are split evenly, as by max. The same bits in every form."""
    for dtype in FLOATS:
        x = tp.tensor(np.array([values, np.zeros_like(values)], dtype))
        want = np.array([gradient, np.full(len(values), 1 / len(values))], dtype)
        f = tp.grad(lambda t: tp.sum(tp.logsumexp(t, axis=1)))
        with_graph = x.clone().detach().requires_grad_()
        tp.sum(tp.logsumexp(with_graph, axis=1)).backward(create_graph=True)
        for got in (f(x), with_graph.grad, tp.freeze(f, x)(x), tp.freeze(f, tp.zeros_like(x))(x)):
            assert_same(got.detach(), want)


def test_logsumexp_of_minus_infinity_at_order_two():
    (h,) = second(
        lambda t: tp.logsumexp(t, axis=1),
        np.array([[-INF, -INF], [-INF, 2], [1.0, 1.0]]),
        vectors=[np.array([[1.0, 2], [1, 2], [1, 0]])],
    )
    # second() takes 2 x off, which is infinite at an infinite x: only the finite places are compared.
    close(h[2], np.array([0.25, -0.25]))
    assert abs(h[1, 1]) < 1e-12


def test_logsumexp_is_accurate():
    for dtype in FLOATS:
        x = draw(rng_for("lse", dtype), (200, 37), dtype, -30, 30)
        assert_ulps(tp.logsumexp(tp.tensor(x), axis=1), naive_logsumexp(x, axis=1), 4)


ZERO_SEED = [  # a cotangent of exactly 0 meets a derivative that is not finite
    ("prod", [INF, 2, 3]),
    ("prod", [NAN, 2]),
    ("logsumexp", [NAN, 1]),
    ("logsumexp", [INF, INF]),
    ("logsumexp", [-INF, -INF]),
    ("max", [NAN, 1]),
    ("min", [NAN, NAN]),
    ("mean", [INF, NAN]),
]


@pytest.mark.parametrize("name,values", ZERO_SEED, ids=str)
def test_strong_zero_through_reductions(name, values):
    for dtype in FLOATS:
        x = np.array([values, [1.0] * len(values)], dtype)
        for create_graph in (False, True):
            (g,) = gradients(lambda t: op(name)(t, axis=1), x, seed=np.array([0, 0], dtype), create_graph=create_graph)
            assert_same(g, np.zeros_like(x), zero_sign=False, label=f"{name} composed={create_graph}")


@pytest.mark.parametrize("dtype", ("bool", *INTS))
def test_reductions_of_integers_are_not_recorded(dtype):
    x = tp.ones((3,), dtype=dtype_of(dtype))
    assert not any(op(name)(x).requires_grad for name in REDUCTIONS)


@pytest.mark.parametrize("n", (5, 1000, 70_001))
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_fused_equals_composed_on_long_rows(name, n):
    x = operand(name, (2, n), "float64", "long")
    check_fused(lambda t: op(name)(t, axis=1), x, seed=np.array([0.7, -1.3]), label=name)
    check_fused(lambda t: op(name)(t, axis=0), x[:, ::-1], label=name)


# ---- NumPy's functions on tensors, 64 axes, extents whose product passes 64 bits

BY_NUMPY = {
    np.sum: tp.sum,
    np.mean: tp.mean,
    np.max: tp.max,
    np.min: tp.min,
    np.prod: tp.prod,
    np.var: tp.var,
    np.std: tp.std,
    np.cumsum: tp.cumsum,
    np.cumprod: tp.cumprod,
    np.argmax: tp.argmax,
    np.argmin: tp.argmin,
    np.any: tp.any,
    np.all: tp.all,
}
DISCRETE = (np.argmax, np.argmin, np.any, np.all)


@pytest.mark.parametrize("f", list(BY_NUMPY))
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
def test_numpys_reductions_of_a_constant(f, dtype):
    x = np.array([[1, 2, 0], [4, 0, 6]]).astype(dtype)
    t = tp.tensor(x)
    scan = f in (np.cumsum, np.cumprod)
    for options in ({}, {"axis": 0}, {"axis": -1}, {"axis": 1} if scan else {"axis": 1, "keepdims": True}):
        got = f(t, **options)
        close(got, np.asarray(f(x, **options)))
    if not scan:  # of these NumPy takes a TypeError for a reason to convert
        with pytest.raises(TypeError):
            f(t, out=np.zeros(()))


@pytest.mark.parametrize("f", list(BY_NUMPY))
def test_numpys_reductions_of_a_recorded_tensor_are_recorded_or_refused(f):
    x = tp.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    for t in (x, x * 1.0):
        try:
            y = f(t)
        except tp.TapeError:
            continue
        assert isinstance(y, tp.Tensor) and y.requires_grad == (f not in DISCRETE)
        if y.requires_grad:
            want = gradients(BY_NUMPY[f], x.numpy().astype("float64"))[0]
            x.zero_grad()
            y.sum().backward()
            close(x.grad, want)
    for refused in (np.sort, np.nansum, np.median):
        with pytest.raises(tp.TapeError):
            refused(x * 1.0)
    assert np.median(x.detach()) == np.median(x.numpy())


def test_methods_take_what_numpys_and_pytorchs_users_give():
    x = draw(rng_for("methods"), (3, 4))
    t = tp.tensor(x)
    for options, ddof in (({"ddof": 1}, 1), ({"correction": 1}, 1), ({"correction": 0.5}, 0.5), ({}, 0)):
        close(t.var(axis=0, **options), x.var(0, ddof=ddof))
        close(t.std(axis=(0, 1), keepdims=True, **options), x.std((0, 1), ddof=ddof, keepdims=True))
    close(np.var(t, axis=1, ddof=1), x.var(1, ddof=1))
    for method in ("var", "std"):
        with pytest.raises(tp.DTypeError, match="two names of one number"):
            getattr(t, method)(correction=1, ddof=1)
    for method in ("any", "all", "var", "std", "argmin", "cumsum", "cumprod"):
        with pytest.raises(tp.DTypeError, match="out="):
            getattr(t, method)(out=np.zeros(()))
    assert name_of(t.cumsum(dtype="float32")) == name_of(np.cumsum(t, dtype="float32")) == "float32"
    assert_same((t > 0).any(axis=1), (x > 0).any(1))
    assert_same((t > -1).all(keepdims=True), (x > -1).all(keepdims=True))
    assert_same(tp.tensor(x > 0).cumsum(axis=1), (x > 0).cumsum(1))


@pytest.mark.parametrize("name", ["logsumexp", "prod", "sum", "max", "mean", "min"])
@pytest.mark.parametrize("axis", [(), 0, 63, (0, 63), None])
def test_64_axes(name, axis):
    x = tp.tensor(np.full((1,) * 64, 2.0), requires_grad=True)
    for keepdims in (False, True):
        for create_graph in (False, True):
            y = op(name)(x, axis=axis, keepdims=keepdims)
            assert y is not x
            gone = 64 if axis is None else len(np.atleast_1d(axis))
            assert y.ndim == (64 if keepdims else 64 - gone) and y.item() == 2.0
            y.backward(create_graph=create_graph)
            assert x.grad.shape == x.shape and x.grad.item() == 1.0
            x.zero_grad()


@pytest.mark.parametrize("name", ["logsumexp", "prod"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0)])
def test_reducing_nothing_gives_a_tensor_of_ones_own(name, shape):
    x = tp.tensor(np.full(shape, 2.0), requires_grad=True)
    y = op(name)(x, axis=())
    assert y is not x and y.shape == shape and not y.is_leaf
    y += 1.0
    assert_same(x, np.full(shape, 2.0))
    y.sum().backward()
    assert_same(x.grad, np.ones(shape))


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod", "logsumexp"])
def test_extents_whose_product_passes_64_bits_beside_an_empty_axis(name):
    x = tp.zeros((0, 1 << 62, 4))
    assert op(name)(x, axis=(1, 2)).shape == (0,)
    assert op(name)(x, axis=2).shape == (0, 1 << 62)
    if name in ("max", "min"):
        with pytest.raises(tp.ShapeError, match="hold no elements"):
            op(name)(x)
    else:
        assert op(name)(x, axis=(0, 1)).shape == (4,)
