"""Statistics, norms, running reductions and order statistics: NumPy's values for drawn calls, kinks as stated,
derivatives to the second order against differences, accuracy against a wider type."""

import itertools
import warnings

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FLOATS,
    INF,
    LAYOUTS,
    NAN,
    WIDE,
    assert_gradients,
    assert_same,
    assert_ulps,
    check_vjp,
    close,
    draw,
    gradients,
    grads,
    host,
    rng_for,
    second,
)
from hypothesis import given
from hypothesis import strategies as st

import tapeflow as tp
from tapeflow import reductions as rd
from tapeflow.errors import AxisError, DTypeError, NumberRangeError, ShapeError


def wide(f, **more):
    """f in a wider type, without warnings."""

    def reference(x, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return f(x.astype(WIDE), **options, **more)

    return reference


def norm_of(ord):
    def reference(x, axis=None, keepdims=False):
        x = abs(x.astype(WIDE))
        if ord == 0:
            return np.sum(x != 0, axis=axis, keepdims=keepdims)
        if abs(ord) == INF:
            return (np.max if ord > 0 else np.min)(x, axis=axis, keepdims=keepdims)
        with np.errstate(all="ignore"):
            return np.sum(x**ord, axis=axis, keepdims=keepdims) ** (WIDE(1) / WIDE(ord))

    return reference


def norm(ord):
    return lambda x, axis=None, keepdims=False: rd.vector_norm(x, axis, keepdims, ord)


REDUCTIONS = {  # ours, the reference, the dtype of the result (float: x's own, integers to the default)
    "any": (tp.any, np.any, "bool"),
    "all": (tp.all, np.all, "bool"),
    "count_nonzero": (tp.count_nonzero, np.count_nonzero, "int64"),
    "argmin": (tp.argmin, np.argmin, "int64"),
    "var": (tp.var, wide(np.var), "float"),
    "var 1": (lambda x, **o: tp.var(x, **o, correction=0.5), wide(np.var, ddof=0.5), "float"),
    "std": (tp.std, wide(np.std), "float"),
    "nansum": (tp.nansum, wide(np.nansum), "sum"),
    "nanmean": (rd.nanmean, wide(np.nanmean), "float"),
    "average": (rd.average, wide(np.mean), "float"),
    "median": (rd.median, wide(np.median), "float"),
    **{f"norm {p}": (norm(p), norm_of(p), "float") for p in (0, 1, 2, 3, 2.5, 0.5, INF, -INF)},
}


@pytest.fixture(params=("as if small", "as if large"))
def way(request, monkeypatch):
    """Small arguments go a way of their own in places: with this limit nothing, or all that the tests draw, is."""
    monkeypatch.setattr(rd, "SHORT", 1 << 30 if request.param == "as if small" else 0)


shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)


def result_dtype(kind, dtype):
    if kind == "sum":
        return dtype if dtype in FLOATS else "int64"
    return kind if kind != "float" else dtype if dtype in FLOATS else "float32"


def matches(got, want, dtype, label, ulp=8):
    """Values of that dtype, exact unless floats, within a few units of the last place."""
    assert (got.shape, str(got.dtype)) == (np.shape(want), dtype), label
    if dtype in FLOATS:
        with np.errstate(all="ignore"):
            close(got, np.asarray(want).astype(dtype), ulp * np.finfo(dtype).eps, ulp * np.finfo(dtype).eps, label)
    else:
        assert_same(got, np.asarray(want).astype(dtype), label=label)


@given(
    name=st.sampled_from(sorted(REDUCTIONS)),
    shape=shapes,
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(sorted(LAYOUTS)),
    seed=st.integers(0, 999),
    keepdims=st.booleans(),
    data=st.data(),
)
def test_numpys_values(name, shape, dtype, layout, seed, keepdims, data):
    ours, reference, kind = REDUCTIONS[name]
    x = draw(rng_for(name, seed), shape, dtype, -3, 3)
    if dtype in FLOATS and seed % 3 == 0:
        x = np.asarray(np.rint(x))  # zeros and ties
    if name.startswith("nan") and dtype in FLOATS and x.size:
        x[rng_for(seed).random(shape) < 0.3] = NAN
    axes = st.integers(-len(shape), len(shape) - 1) if shape else st.none()
    many = st.lists(axes, unique_by=lambda a: a % len(shape), max_size=3).map(tuple) if shape else st.just(())
    axis = data.draw(st.one_of(st.none(), axes, many if name != "argmin" else axes))
    with np.errstate(all="ignore"):
        want = reference(x, axis=axis, keepdims=keepdims)
    got = ours(LAYOUTS[layout](x), axis=axis, keepdims=keepdims)
    matches(got, want, result_dtype(kind, dtype), (name, shape, dtype, axis))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_nothing_to_reduce(name):
    ours, reference, kind = REDUCTIONS[name]
    for dtype, (shape, axis) in itertools.product(("float32", "int64", "bool"), [((0, 3), 0), ((0,), None)]):
        x = np.zeros(shape, dtype)
        dtype = result_dtype(kind, dtype)
        if name in ("argmin", "norm -inf"):
            with pytest.raises(ShapeError, match="hold no elements"):
                ours(tp.tensor(x), axis=axis)
        else:
            want = np.zeros(shape[1:]) if name in ("nansum", "norm inf") else reference(x, axis=axis)
            assert_same(ours(tp.tensor(x), axis=axis), np.asarray(want).astype(dtype), label=name)
        got = ours(tp.tensor(np.zeros((0, 3), "float32")), axis=1, keepdims=True)
        assert got.shape == (0, 1)
        if kind == "float" and name != "norm 0":
            (g,) = gradients(lambda t: ours(t, axis=1), np.zeros((0, 3)))
            assert g.shape == (0, 3)


@pytest.mark.parametrize("dtype", ("int32", "int64", "uint8"))
def test_argmin_at_the_ends_of_integers(dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    for values in ([high, low, low], [high, high], [low, high], [1, 0, 2]):
        x = np.array(values, dtype)
        assert tp.argmin(tp.tensor(x)).item() == np.argmin(x)
    assert tp.argmin(tp.tensor([True, False, False])).item() == 1
    for values in ([3, NAN, 1, NAN], [0.0, -0.0], [INF, -INF]):
        assert tp.argmin(tp.tensor(values)).item() == np.argmin(values)
    assert tp.any(tp.tensor([NAN])).item() is True and tp.all(tp.tensor([NAN, 0])).item() is False


def test_methods_take_sequences_and_numbers():
    assert tp.var([1, 2, 3, 6]).item() == 3.5
    assert rd.median([[1.0, 5.0]], axis=1).tolist() == [3.0]
    assert tp.cumulative_sum([True, True]).tolist() == [1, 2]
    assert rd.norm(3.0).item() == 3.0


# ---- accuracy


@pytest.mark.parametrize("n", (3, 128, 129, 2000, 100_000))
@pytest.mark.parametrize("dtype", FLOATS)
def test_variance_is_accurate_far_from_zero(n, dtype):
    for offset, spread in ((0, 1), (1e3, 1), (1e4, 1e-2), (-7e6, 3), (1e-8, 1e-12)):
        x = (offset + spread * rng_for(n, offset).normal(size=(n, 2))).astype(dtype)
        for t, axis in ((tp.tensor(x), 0), (tp.tensor(x.T.copy()), 1)):
            want = x.astype(WIDE).var(0)
            assert_ulps(tp.var(t, axis=axis), want, 6, (n, offset))
            assert_ulps(tp.std(t, axis=axis, correction=1), np.sqrt(want * n / (n - WIDE(1))), 6, (n, offset))
        (g,) = gradients(lambda t: tp.var(t, axis=0)[0], x)
        close(g[:, 0], 2 * (x.astype(WIDE) - x.astype(WIDE).mean(0))[:, 0] / n, 1e-4, 1e-6 * spread / n)


@pytest.mark.parametrize("n", (1, 2, 3, 7, 10, 49, 1000, 1023, 1025, 3001, 50_001))
@pytest.mark.parametrize("dtype", FLOATS)
def test_pytorch_4320_std_of_equal_values_and_its_gradient_are_0(n, dtype):
    values = np.array([0.1, -1 / 3, 1e6 / 7, 1e-5 / 3, 0.0, 2.0], dtype)
    x = np.repeat(values[:, None], n, 1)
    for f, create_graph in itertools.product((tp.std, tp.var), (False, True)):
        assert_same(f(tp.tensor(x), axis=1), np.zeros(6, dtype))
        (g,) = gradients(lambda t, f=f: f(t, axis=1), x, create_graph=create_graph)
        close(g, np.zeros_like(x), 0, 0)
    if 1 < n < 100:  # the rows beside it are untouched
        x[1] = rng_for(n).normal(size=n)
        (g,) = gradients(lambda t: tp.std(t, axis=1), x)
        close(g[1], (x[1] - x[1].mean()) / n / x[1].std(), 1e-4)
        assert not g[[0, 2]].any()


def test_variance_of_equal_values_has_its_second_derivative():
    for n in (3, 129):
        v = rng_for(n).normal(size=n)
        (h,) = second(tp.var, np.full(n, 0.1), vectors=[v])
        close(h, 2 / n * (v - v.mean()), 1e-9, 1e-12)


def sequential_error(n):
    return 4 * np.log2(n + 1) * np.finfo("float32").eps


@pytest.mark.parametrize("n", (16, 17, 1000, 100_003))
def test_running_sums_are_accurate(n):
    x = rng_for(n).uniform(0.5, 1.5, n).astype("float32")
    got, want = host(tp.cumulative_sum(tp.tensor(x))), np.cumsum(x, dtype=WIDE)
    assert np.max(abs(got - want) / want) < sequential_error(n)
    ones = host(tp.cumulative_sum(tp.ones(n)))
    assert_same(ones, np.arange(1, n + 1, dtype="float32"))
    x = (1 + (x - 1) / 100).astype("float32")
    got, want = host(tp.cumulative_prod(tp.tensor(x[:1000]))), np.cumprod(x[:1000], dtype=WIDE)
    assert np.max(abs(got - want) / want) < 1000 * np.finfo("float32").eps
    (g,) = gradients(lambda t: tp.cumulative_sum(t), x)
    assert_same(g, np.arange(n, 0, -1, dtype="float32"))


# ---- kinks

KINKS = [  # f, values, result, gradient of its sum
    (tp.std, [2, 2, 2], 0, [0, 0, 0]),
    (tp.var, [2, 2, 2], 0, [0, 0, 0]),
    (lambda x: tp.std(x, correction=0), [2], 0, [0]),
    (lambda x: tp.var(x, correction=1), [2], NAN, [NAN]),
    (lambda x: tp.std(x, correction=1), [2], NAN, [NAN]),
    (lambda x: tp.std(x, correction=3), [2, 3], NAN, [NAN, NAN]),
    (lambda x: tp.var(x, correction=2), [2, 3], NAN, [NAN, NAN]),
    (rd.vector_norm, [0, 0], 0, [0, 0]),
    (rd.vector_norm, [3, -4], 5, [0.6, -0.8]),
    (norm(1), [0, -2], 2, [0, -1]),
    (norm(3), [0, 0], 0, [0, 0]),
    (norm(0.5), [0, 4], 4, [0, 1]),
    (norm(0.5), [0, 0], 0, [0, 0]),
    (norm(-1), [0, 4], 0, [0, 0]),
    (norm(INF), [3, -3], 3, [0.5, -0.5]),
    (norm(-INF), [0, 3], 0, [0, 0]),
    (norm(0), [0, 3], 1, None),
    (tp.nansum, [NAN, 2], 2, [0, 1]),
    (tp.nansum, [NAN, INF], INF, [0, 1]),
    (rd.nanmean, [NAN, 2, 4], 3, [0, 0.5, 0.5]),
    (rd.nanmean, [NAN, NAN], NAN, [0, 0]),
    (rd.median, [3, 1, 2], 2, [0, 0, 1]),
    (rd.median, [4, 1, 2, 3], 2.5, [0, 0, 0.5, 0.5]),
    (rd.median, [1, 2, 2, 2], 2, [0, 0.5, 0.5, 0]),
    (rd.median, [1, NAN, 2], NAN, [0, 1, 0]),
    (rd.median, [INF, INF, -INF], INF, [1, 0, 0]),
    (lambda x: rd.quantile(x, 0.25), [3, 1, 2, 5], 1.75, [0, 0.25, 0.75, 0]),
    (lambda x: rd.quantile(x, [0, 1]), [2, NAN], [NAN, NAN], [0, 2]),
    (lambda x: rd.quantile(x, 0.5), [INF, 1, INF, 2], INF, None),
    (lambda x: rd.quantile(x, 0.4), [INF, INF], INF, None),
    (lambda x: rd.quantile(x, [0.0, 0.2, 0.8]), [-INF, 1], [-INF, -INF, -INF], None),
    (lambda x: rd.quantile(x, [0.3, 0.8, 1.0]), [INF, 1], [INF, INF, INF], None),
    (lambda x: rd.quantile(x, 0.5), [1, INF, -INF], 1, [1, 0, 0]),
    (tp.cumulative_prod, [5, 0, -2], [5, 0, 0], [1, -5, 0]),
    (tp.cumulative_prod, [0, 0, 4], [0, 0, 0], [1, 0, 0]),
    (tp.cumulative_prod, [INF, 2], [INF, INF], [3, INF]),
    (tp.cumulative_max, [1, 3, 3, 2], [1, 3, 3, 3], [1, 3, 0, 0]),
    (tp.cumulative_max, [-INF, NAN, 3, NAN], [-INF, NAN, NAN, NAN], [1, 3, 0, 0]),
    (tp.logcumsumexp, [-INF, -INF, 2, -INF], [-INF, -INF, 2, 2], [0, 0, 2, 0]),
    (tp.logcumsumexp, [INF, 1, INF], [INF, INF, INF], [2.5, 0, 0.5]),
    (tp.logcumsumexp, [1, NAN, 1], [1, NAN, NAN], None),
    (tp.logcumsumexp, [0, 0], [0, np.log(2)], [1.5, 0.5]),
    (tp.logcumsumexp, [3e38, 3e38, -3e38], [3e38, 3e38, 3e38], [2, 1, 0]),
    (tp.logcumsumexp, [-1e4, 1e4], [-1e4, 1e4], [1, 1]),
]


@pytest.mark.parametrize("case", range(len(KINKS)))
def test_kinks(case, way):
    f, values, want, gradient = KINKS[case]
    for dtype in FLOATS:
        x = np.array(values, dtype)
        close(f(tp.tensor(x)), np.array(want, dtype), 1e-6)
        if gradient is not None:
            assert_gradients(f, [x], gradient)


@pytest.mark.parametrize("keepdims", (False, True))
def test_pytorch_94184_no_degrees_of_freedom(keepdims):
    for f, shape in itertools.product((tp.var, tp.std), ((1, 1, 1), (2, 1, 3))):
        x = np.ones(shape)
        y = f(tp.tensor(x), axis=1, keepdims=keepdims, correction=1)
        assert_same(y, np.full(shape if keepdims else (shape[0], shape[2]), NAN))
        assert_gradients(lambda t, f=f: f(t, axis=1, keepdims=keepdims, correction=1), [x], NAN)


ZERO_SEED = {
    "std": (tp.std, [INF, 1]),
    "var": (tp.var, [NAN, 1]),
    "vector_norm": (rd.vector_norm, [INF, 0]),
    "norm 0.5": (norm(0.5), [0, INF]),
    "var 2": (lambda x, axis: tp.var(x, axis, correction=2), [1, 2]),
    "nanmean": (rd.nanmean, [NAN, NAN]),
    "median": (rd.median, [NAN, INF]),
    "cumulative_prod": (tp.cumulative_prod, [INF, 0, NAN]),
    "logcumsumexp": (tp.logcumsumexp, [NAN, INF]),
}


@pytest.mark.parametrize("name", ZERO_SEED)
def test_strong_zero(name, way):
    f, values = ZERO_SEED[name]
    x = np.array([values, np.arange(1.0, len(values) + 1)])
    seed = np.zeros(f(tp.tensor(x), axis=1).shape)
    for create_graph in (False, True):
        (g,) = gradients(lambda t: f(t, axis=1), x, seed=seed, create_graph=create_graph)
        assert_same(g, np.zeros_like(x), zero_sign=False)


def test_product_twice_at_0(way):
    f = lambda t: tp.cumulative_prod(tp.stack([t, t, tp.tensor(3.0)]))[2]  # noqa: E731
    assert tp.grad(tp.grad(f))(tp.tensor(0.0)).item() == 6


# ---- running reductions

SCANS = {
    "cumulative_sum": (tp.cumulative_sum, np.cumsum),
    "cumulative_prod": (tp.cumulative_prod, np.cumprod),
    "cumulative_max": (tp.cumulative_max, np.maximum.accumulate),
    "logcumsumexp": (tp.logcumsumexp, np.logaddexp.accumulate),
}


@given(
    name=st.sampled_from(sorted(SCANS)),
    n=st.sampled_from([1, 2, 3, 15, 16, 17, 18, 31, 33, 64, 65, 70, 129, 300]),
    others=st.tuples(st.sampled_from([(), (1,), (3,), (2, 2)]), st.sampled_from([(), (2,), (9,)])),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(sorted(LAYOUTS)),
    seed=st.integers(0, 999),
    initial=st.booleans(),
    negative=st.booleans(),
)
def test_running_reductions_as_numpy(name, n, others, dtype, layout, seed, initial, negative):
    ours, reference = SCANS[name]
    shape, axis = (*others[0], n, *others[1]), len(others[0])
    x = draw(rng_for(seed), shape, dtype, -2, 2)
    if dtype in FLOATS and name == "cumulative_prod":
        x = abs(x) ** 0.1
    if dtype in FLOATS and name == "cumulative_max" and seed % 2:
        x = np.where(rng_for(seed).random(shape) < 0.02, NAN, np.rint(x)).astype(dtype)
    y = (
        x.astype(WIDE)
        if dtype in FLOATS or name == "logcumsumexp"
        else x
        if name == "cumulative_max"
        else x.astype(int)
    )
    want = reference(y, axis=axis)
    kind = "same" if name == "cumulative_max" else "float" if name == "logcumsumexp" else "sum"
    want_dtype = dtype if kind == "same" else result_dtype(kind, dtype)
    options = {"include_initial": initial} if kind == "sum" else {}
    if kind == "sum" and initial:
        want = np.insert(want, 0, name == "cumulative_prod", axis)
    got = ours(LAYOUTS[layout](x), axis - len(shape) if negative else axis, **options)
    matches(got, want, want_dtype, (name, shape, axis, dtype), ulp=40)
    if kind == "sum" and not initial:
        numpys = {"cumulative_sum": tp.cumsum, "cumulative_prod": tp.cumprod}[name]
        assert_same(numpys(LAYOUTS[layout](x), axis), got)


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("shape,axis", [((), None), ((0,), None), ((2, 0), 1), ((0, 2), 1), ((3, 0, 2), 0)])
def test_running_reductions_of_nothing(name, shape, axis):
    f, x = SCANS[name][0], tp.tensor(np.zeros(shape))
    if shape == ():
        with pytest.raises(AxisError, match="1-D"):
            f(x)
        return
    y = f(x, axis)
    assert y.shape == shape and y is not x
    (g,) = gradients(lambda t: f(t, axis), np.zeros(shape))
    assert g.shape == shape
    if name == "cumulative_sum":
        longer = f(x, axis, include_initial=True)
        assert not host(longer).any() and longer.shape[axis or 0] == shape[axis or 0] + 1


def test_running_sums_keep_signs_and_dtypes():
    assert_same(tp.cumulative_sum(tp.tensor([-0.0, -0.0] * 20)), np.full(40, -0.0, "float32"))
    x = np.array([200, 100], "uint8")
    assert tp.cumulative_sum(tp.tensor(x)).tolist() == [200, 300]
    assert_same(tp.cumulative_sum(tp.tensor(x), dtype="uint8"), np.array([200, 44], "uint8"))
    assert_same(tp.cumsum(tp.tensor(x), dtype=tp.float64), np.array([200.0, 300.0]))
    assert tp.cumsum(tp.tensor(3.0)).tolist() == [3.0]
    assert tp.cumprod(tp.ones((2, 2)) * 2).tolist() == [2, 4, 8, 16]
    x = np.where(np.arange(100) == 50, INF, 1.0)
    assert_same(tp.cumulative_sum(tp.tensor(x)), np.cumsum(x))


# ---- quantiles, medians


@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 5, 300]), min_size=1, max_size=2).map(tuple),
    q=st.one_of(st.floats(0, 1), st.lists(st.sampled_from([0, 0.1, 0.25, 0.5, 0.9, 1]), max_size=6)),
    method=st.sampled_from(rd.METHODS),
    dtype=st.sampled_from(("float32", "float64", "int64")),
    keepdims=st.booleans(),
    ties=st.booleans(),
    nans=st.booleans(),
    data=st.data(),
)
def test_quantiles_as_numpy(shape, q, method, dtype, keepdims, ties, nans, data):
    x = draw(rng_for(shape, str(q)), shape, "float64", -9, 9)
    x = np.rint(x) if ties or dtype == "int64" else x
    if nans and dtype != "int64":
        x[rng_for(shape).random(shape) < 0.1] = NAN
    x = x.astype(dtype)
    axis = data.draw(st.sampled_from([None, *range(-len(shape), len(shape)), tuple(range(len(shape)))]))
    got = rd.quantile(tp.tensor(x), q, axis, keepdims, method=method)
    wide = x.astype("float64")
    # at half way NumPy's "nearest" rounds as rint, too; positions are compared where rounding cannot decide
    want = np.quantile(wide, np.asarray(q, float), axis=axis, keepdims=keepdims, method=method)
    if method != "nearest" or not np.any(np.asarray(q) * (x.size - 1) * 2 % 1 < 1e-9):
        matches(got, want, result_dtype("float", dtype), (x, q), ulp=40)
    if not np.shape(q) and q == 0.5 and method == "linear":
        matches(rd.median(tp.tensor(x), axis, keepdims), want, result_dtype("float", dtype), x)


@pytest.mark.parametrize("n", (1, 3, 300))
def test_no_quantiles(n):
    x = draw(rng_for("none"), (n, 2))
    assert rd.quantile(tp.tensor([0.0, 1.0], dtype="float64"), [0.1]).tolist() == [0.1]
    for axis in (None, 0, 1):
        assert_same(rd.quantile(tp.tensor(x), [], axis), np.quantile(x, np.zeros(0), axis))
    assert gradients(lambda t: rd.quantile(t, [], 0), x)[0].shape == (n, 2)


@pytest.mark.parametrize("n", (5, 256, 257, 1001))
def test_selection_takes_what_a_stable_sort_takes(n):
    for seed, spread in itertools.product(range(4), (2, 1e6)):
        x = np.rint(rng_for(n, seed).uniform(-spread, spread, (3, n))) * rng_for(n).choice([0.0, -1.0, 1.0], (3, n))
        order = np.argsort(x, axis=1, kind="stable")
        for rank in (0, n // 3, n // 2, n - 1):
            assert_same(rd._positions(x, [rank])[0], order[:, rank])
        got = gradients(lambda t: rd.median(t, axis=1), x)[0]
        want = np.zeros_like(x)
        for k in ((n - 1) // 2, n // 2):
            np.add.at(want, (np.arange(3), order[:, k]), 0.5)
        assert_same(got, want)


# ---- average, differences, trapezoid, matrix norms


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), dtype=st.sampled_from(DTYPES), data=st.data()
)
def test_weighted_means_as_numpy(shape, dtype, data):
    x = draw(rng_for(shape), shape, dtype)
    axes = data.draw(st.permutations(range(len(shape))))[: data.draw(st.integers(1, len(shape)))]
    axis = data.draw(st.sampled_from([tuple(axes), axes[0], None]))
    full = axis is None or data.draw(st.booleans())
    named = axes if isinstance(axis, tuple) else axes[:1]
    w = draw(rng_for(axes), shape if full else tuple(shape[a] for a in named), "float64", 0.5, 2)
    keepdims = data.draw(st.booleans())
    want, total = np.average(x.astype(float), axis, w, returned=True, keepdims=keepdims)
    got, ours = rd.average(tp.tensor(x), axis, tp.tensor(w), keepdims, returned=True)
    matches(got, want, "float64", (shape, axis, w.shape), ulp=1e8 if dtype == "float32" else 1e9)
    close(ours, total)
    assert rd.average(tp.tensor(x), axis, returned=True)[1].shape == np.mean(x, axis).shape


@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple),
    dtype=st.sampled_from(DTYPES),
    n=st.integers(0, 4),
    pick=st.integers(0, 5),
    ends=st.tuples(st.booleans(), st.booleans()),
)
def test_differences_as_numpy(shape, dtype, n, pick, ends):
    x, axis = draw(rng_for(shape, dtype), shape, dtype), pick % len(shape)
    end = np.array(True if dtype == "bool" else 3, dtype)
    more = {name: end for name, there in zip(("prepend", "append"), ends, strict=True) if there}
    want = np.diff(x, n, axis, **more)
    assert_same(rd.diff(tp.tensor(x), n, axis - len(shape), **{k: tp.tensor(v) for k, v in more.items()}), want)
    if dtype in FLOATS:
        assert_same(rd.diff(tp.tensor(x), axis=axis, n=n, **{k: float(v) for k, v in more.items()}), want)


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    dtype=st.sampled_from(DTYPES),
    pick=st.integers(0, 5),
    positions=st.sampled_from(["dx", "1-D", "full"]),
)
def test_trapezoidal_integrals_as_numpy(shape, dtype, pick, positions):
    y, axis = draw(rng_for(shape, dtype), shape, dtype), pick % len(shape)
    x = np.sort(
        draw(rng_for(shape), shape if positions == "full" else (shape[axis],)), axis if positions == "full" else 0
    )
    wide = y.astype("float64")
    if positions == "dx":
        got, want = rd.trapezoid(tp.tensor(y), dx=0.5, axis=axis), np.trapezoid(wide, dx=0.5, axis=axis)
    else:
        got, want = rd.trapezoid(tp.tensor(y), tp.tensor(x), axis=axis), np.trapezoid(wide, x, axis=axis)
    close(got, want, 1e-5, 1e-5)


@pytest.mark.parametrize("ord", ["fro", None, 1, -1, INF, -INF])
def test_matrix_norms_as_numpy(ord):
    for shape, dtype in itertools.product(((3, 4), (2, 3, 4), (1, 1)), ("float32", "float64", "int64")):
        x = draw(rng_for(shape), shape, dtype)
        wide = x.astype("float64")
        for keepdims in (False, True):
            want = np.linalg.norm(wide, ord, (-2, -1), keepdims)
            matches(rd.norm(tp.tensor(x), ord, (-2, -1), keepdims), want, result_dtype("float", dtype), ord)
            if ord is not None:
                got = rd.matrix_norm(tp.tensor(x), keepdims, ord)
                matches(got, want, result_dtype("float", dtype), ord)
            if x.ndim == 3:
                got = rd.norm(tp.tensor(x), ord, (2, 0), keepdims)
                matches(got, np.linalg.norm(wide, ord, (2, 0), keepdims), result_dtype("float", dtype), ord)
    x = draw(rng_for("norm"), (3, 4))
    close(rd.norm(tp.tensor(x), ord), np.linalg.norm(x, ord))
    close(rd.norm(tp.tensor(x), 3, 1), np.linalg.norm(x, 3, 1))
    close(rd.norm(tp.tensor(x[0]), -1), np.linalg.norm(x[0], -1))
    close(rd.norm(tp.tensor(np.ones((2, 2, 2)))), 8**0.5)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3), (2, 3, 0), (0, 2, 2)])
def test_norms_of_matrices_without_elements(shape):
    for ord, keepdims in itertools.product(("fro", 1, -1, INF, -INF), (False, True)):
        f = lambda t, ord=ord, keepdims=keepdims: rd.matrix_norm(t, keepdims, ord)  # noqa: E731
        if (ord == -1 and shape[-1] == 0) or (ord == -INF and shape[-2] == 0):
            with pytest.raises(ShapeError, match="no rows or columns"):
                f(tp.zeros(shape))
            continue
        y, (g,) = grads(f, np.zeros(shape))
        assert_same(y, np.zeros(shape[:-2] + (1, 1) * keepdims), label=ord)
        assert_same(g, np.zeros(shape), label=ord)


# ---- derivatives


def smooth(*shape):
    """Values without ties and zeros, in random order."""
    n = int(np.prod(shape))
    return (rng_for(shape).permutation(n) * 0.375 - n * 0.17 - 0.21).reshape(shape)


A, B, C = smooth(2, 3), smooth(4), smooth(2, 19)
DERIVATIVES = {
    "var": (lambda x: tp.var(x, axis=1), A),
    "var 1": (lambda x: tp.var(x, axis=0, keepdims=True, correction=1), A),
    "std": (tp.std, A),
    "std 1": (lambda x: tp.std(x, axis=-1, correction=1), A),
    "nansum": (lambda x: tp.nansum(x * x, axis=0), A),
    "nanmean": (lambda x: rd.nanmean(x * x, axis=0), A),
    "average": (lambda x, w: rd.average(x, 1, w * w), A, smooth(3)),
    "average 2": (lambda x, w: rd.average(x, weights=w * w), A, A + 0.1),
    "norm": (lambda x: rd.vector_norm(x, axis=1), A),
    "norm 3": (lambda x: rd.vector_norm(x, ord=3), A),
    "norm 1": (lambda x: rd.vector_norm(x * x, ord=1), A),
    "norm inf": (lambda x: rd.vector_norm(x * x, axis=0, ord=INF), A),
    "norm fro": (lambda x: rd.matrix_norm(x), A),
    "matrix 1": (lambda x: rd.norm(x * x, 1), A),
    "median": (lambda x: rd.median(x * x * x, axis=1), A),
    "median even": (lambda x: rd.median(x * x * x), B),
    "quantile": (lambda x: rd.quantile(x * x * x, [0.1, 0.7], axis=1), C),
    "cumulative_sum": (lambda x: tp.cumulative_sum(x * x, 1, include_initial=True), C),
    "cumulative_sum 0": (lambda x: tp.cumulative_sum(x * x, 0), C.T),
    "cumulative_prod": (tp.cumulative_prod, B),
    "cumulative_prod long": (lambda x: tp.cumulative_prod(1 + x / 9, 1), C),
    "cumulative_max": (lambda x: tp.cumulative_max(x * x * x, 1), C),
    "logcumsumexp": (tp.logcumsumexp, B),
    "logcumsumexp long": (lambda x: tp.logcumsumexp(x, 1), C),
    "diff": (lambda x, y: rd.diff(x * x, 2, 1, prepend=y), A, smooth(2, 1)),
    "trapezoid": (lambda x, y: rd.trapezoid(y, x), B, B + 0.3),
    "trapezoid 0": (lambda x, y: rd.trapezoid(y, x, axis=0), smooth(2), A),
    "trapezoid dx": (lambda x, d: rd.trapezoid(x * x, dx=d, axis=0), A, np.array(0.4)),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives(name, way):
    f, *arrays = DERIVATIVES[name]
    check_vjp(f, *arrays, label=name)


@pytest.mark.parametrize("zeros", ([0], [1], [3], [0, 2], [1, 2], [0, 1, 2, 3]))
def test_running_products_with_zeros(zeros, way):
    x = B.copy()
    x[zeros] = 0
    check_vjp(tp.cumulative_prod, x, label=f"zeros {zeros}")
    long = np.concatenate([np.ones(17), x])
    check_vjp(lambda t: tp.cumulative_prod(t)[15:], long, label=f"zeros {zeros}")


def test_running_log_sums_where_terms_are_equal(way):
    check_vjp(tp.logcumsumexp, np.zeros(4), label="equal")
    check_vjp(lambda t: tp.logcumsumexp(t)[16:], np.full(20, 2.0), label="equal long")


# ---- what is refused

x23 = np.ones((2, 3))
REFUSED = [
    (lambda: tp.any(x23, axis=2), AxisError, r"\[any\] axis 2 is out of range"),
    (lambda: tp.all(x23, axis=(0, -2)), AxisError, r"\[all\] axis -2 is named twice"),
    (lambda: tp.count_nonzero(1.0, axis=0), AxisError, r"\[count_nonzero\].*0-d"),
    (lambda: tp.argmin(x23, axis=1.5), DTypeError, r"\[argmin\] axis must be an int, got float"),
    (lambda: tp.argmin(x23, axis=-3), AxisError, r"\[argmin\] axis -3"),
    (lambda: tp.var(x23, correction="1"), DTypeError, r"\[var\] correction must be a number, got str"),
    (lambda: rd.average(x23, 0, np.ones(3)), ShapeError, r"\[average\] weights of shape \(3,\)"),
    (lambda: rd.average(x23, None, np.ones(3)), ShapeError, r"\[average\].*no axis"),
    (lambda: rd.vector_norm(x23, ord="fro"), NumberRangeError, r"\[vector_norm\].*'fro'"),
    (lambda: rd.vector_norm(x23, ord=NAN), NumberRangeError, r"\[vector_norm\].*nan"),
    (lambda: rd.matrix_norm(np.ones(3)), ShapeError, r"\[matrix_norm\] expected at least two axes"),
    (lambda: rd.matrix_norm(x23, ord="nuc"), NumberRangeError, r"\[matrix_norm\] ord='nuc'.*later"),
    (lambda: rd.matrix_norm(x23, ord=-2), NumberRangeError, r"\[matrix_norm\] ord=-2.*later"),
    (lambda: rd.matrix_norm(x23, ord=3), NumberRangeError, r"\[matrix_norm\] ord=3 is no norm"),
    (lambda: rd.matrix_norm(np.ones((0, 3)), ord=-INF), ShapeError, r"\[matrix_norm\].*no rows or columns"),
    (lambda: rd.norm(np.ones((2, 2, 2)), 1), ShapeError, r"\[norm\].*1-D or 2-D"),
    (lambda: rd.norm(np.ones((2, 2, 2)), 1, (0, 1, 2)), ShapeError, r"\[norm\] axis must be one axis or a pair"),
    (lambda: tp.cumulative_sum(x23), AxisError, r"\[cumulative_sum\].*Name the axis"),
    (lambda: tp.cumulative_prod(x23, 5), AxisError, r"\[cumulative_prod\] axis 5"),
    (lambda: tp.cumulative_max(x23), AxisError, r"\[cumulative_max\].*Name the axis"),
    (lambda: tp.logcumsumexp(1.0), AxisError, r"\[logcumsumexp\] x has shape \(\)"),
    (lambda: rd.quantile(x23, 1.5), NumberRangeError, r"\[quantile\] q must be in 0 .. 1"),
    (lambda: rd.quantile(x23, NAN), NumberRangeError, r"\[quantile\] q must be"),
    (lambda: rd.quantile(x23, 0.5, method="best"), NumberRangeError, r"\[quantile\] method 'best'"),
    (lambda: rd.median(x23, axis=2), AxisError, r"\[median\] axis 2"),
    (lambda: rd.diff(1.0), AxisError, r"\[diff\].*0-d"),
    (lambda: rd.diff(x23, -1), NumberRangeError, r"\[diff\] n must not be negative"),
    (lambda: rd.diff(x23, 1.0), DTypeError, r"\[diff\] n must be an int"),
    (lambda: rd.trapezoid(x23, np.ones(2)), ShapeError, r"\[trapezoid\] x of shape"),
    (lambda: rd.trapezoid(x23, np.ones(())), ShapeError, r"\[trapezoid\] x of shape \(\)"),
    (lambda: tp.nansum("text"), DTypeError, r"\[nansum\] a str"),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_refused(case):
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()


def test_integers_are_not_recorded():
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    assert not any(f(x).requires_grad for f in (tp.any, tp.all, tp.count_nonzero, tp.argmin))
    assert all(f(x).requires_grad for f in (tp.var, rd.median, tp.cumulative_max, tp.logcumsumexp))


def test_64_axes():
    x = tp.tensor(np.full((1,) * 64, 2.0), requires_grad=True)
    for f in (tp.var, tp.nansum, rd.vector_norm, rd.median, rd.average):
        assert f(x, axis=(0, 63)).ndim == 62 and f(x).ndim == 0
    assert tp.cumulative_sum(x, 63).shape == rd.diff(x, 0, 5).shape == x.shape
