"""Kernels of scans, variance, norm and counts: bits that depend on positions and extents alone, exact adjoints, odd
values, entries of an open tape."""

import functools
import itertools

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FLOATS,
    INF,
    NAN,
    WIDE,
    assert_same,
    assert_ulps,
    check_fused,
    check_vjp,
    close,
    draw,
    gradients,
    host,
    rng_for,
    stretched,
)

import tapeflow as tp

SCANS = {
    "cumulative_sum": np.cumsum,
    "cumulative_prod": np.cumprod,
    "cumulative_max": np.maximum.accumulate,
    "logcumsumexp": np.logaddexp.accumulate,
}
OVER = ("var", "std", "nansum", "vector_norm", "count_nonzero", "any", "all")
SIZES = (1, 2, 7, 16, 17, 63, 64, 65, 127, 128, 129, 511, 512, 513, 577, 1023, 1025, 4095, 4097, 9001)


def values(name, shape, dtype, *key):
    low, high = (0.98, 1.02) if name == "cumulative_prod" and dtype in FLOATS else (-3, 3)
    x = draw(rng_for(name, shape, dtype, *key), shape, dtype, low, high)
    return np.rint(x) if name in ("cumulative_max", "count_nonzero", "any", "all") and dtype in FLOATS else x


@pytest.mark.parametrize("dtype", ("float32", "float64", "int32"))
@pytest.mark.parametrize("name", SCANS)
def test_a_scans_bits_depend_on_the_position_alone(name, dtype):
    f = getattr(tp, name)
    for n in SIZES:
        x = values(name, (n,), dtype)
        want = host(f(tp.tensor(x)))
        wide = np.stack([x, x[::-1], x], 1)
        many = np.repeat(x[:, None], 19, 1)
        got = {
            "column": f(tp.tensor(wide), axis=0)[:, 2],
            "row": f(tp.tensor(np.ascontiguousarray(wide.T)), axis=1)[2],
            "eleven rows": f(tp.tensor(np.ascontiguousarray(many[:, :11].T)), axis=1)[9],
            "column of many": f(tp.tensor(many), axis=0)[:, 17],
            "middle": f(tp.tensor(np.stack([many, many])), axis=1)[1, :, 3],
            "stepped": f(tp.tensor(wide)[:, 2]),
            "reversed": f(tp.tensor(wide)[::-1, 1]),
            "shared": f(stretched(x, 2), axis=1)[1],
            "start of more": f(tp.tensor(np.concatenate([x, x])))[:n],
        }
        for label, y in got.items():
            assert_same(y, want, label=f"{name} {n} {label}")
        y = SCANS[name](x.astype(WIDE) if dtype in FLOATS or name == "logcumsumexp" else x)
        eps = 4 * n * np.finfo(want.dtype).eps if want.dtype.kind == "f" else 0
        close(want, np.asarray(y).astype(want.dtype), eps, eps * np.max(abs(y)), name)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", OVER)
def test_a_reductions_bits_depend_on_the_extent_alone(name, dtype):
    f = getattr(tp, name)
    for n in SIZES:
        x = values(name, (n,), dtype)
        want = f(tp.tensor(x))
        wide, many = np.stack([x, x[::-1], x], 1), np.repeat(x[:, None], 150, 1)
        got = {
            "column": f(tp.tensor(wide), axis=0)[0],
            "row": f(tp.tensor(np.ascontiguousarray(wide.T)), axis=1)[2],
            "column of many": f(tp.tensor(many), axis=0)[141],
            "middle": f(tp.tensor(np.stack([wide, wide])), axis=1)[1, 0],
            "stepped": f(tp.tensor(wide)[:, 2]),
            "shared": f(stretched(x, 2), axis=1)[1],
        }
        for label, y in got.items():
            assert_same(y, want, label=f"{name} {n} {label}")


@pytest.mark.parametrize("shape,axis", [((1_500_000,), 0), ((900, 1300), 0), ((900, 1300), 1), ((300_000, 5), 0)])
def test_bits_do_not_depend_on_the_thread_count(shape, axis):
    before = tp.get_num_threads()
    for name in (*SCANS, *OVER):
        x = tp.tensor(values(name, shape, "float32"))
        try:
            results = []
            for threads in (1, 2, 5):
                tp.set_num_threads(threads)
                results.append(getattr(tp, name)(x, axis=axis))
        finally:
            tp.set_num_threads(before)
        for got in results[1:]:
            assert_same(got, results[0], label=name)


@pytest.mark.parametrize("name", SCANS)
def test_a_scan_of_nothing(name):
    for shape, axis in (((0,), 0), ((0, 3), 0), ((3, 0), 0), ((0, 1 << 40), 1)):
        x = tp.zeros(shape, requires_grad=True)
        y = getattr(tp, name)(x, axis=axis)
        y.sum().backward()
        assert y.shape == shape and x.grad.shape == shape


# ---- adjoints


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_adjoint_of_a_sum_is_the_sum_from_the_end(dtype):
    for shape, axis in (((700,), 0), ((130, 3), 0), ((3, 600), 1), ((70, 40), 0)):
        x, g = draw(rng_for("x"), shape, dtype), draw(rng_for("g", shape), shape, dtype)
        (got,) = gradients(functools.partial(tp.cumulative_sum, axis=axis), x, seed=g)
        want = np.flip(host(tp.cumulative_sum(tp.tensor(np.ascontiguousarray(np.flip(g, axis))), axis=axis)), axis)
        assert_same(got, want)


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("shape,axis", [((3, 1), 1), ((2, 3, 2), 1), ((5, 17), 0), ((20, 2), -2), ((1, 70), 1)])
def test_derivatives_along_every_axis(name, shape, axis):
    n = int(np.prod(shape))
    x = (rng_for(name, shape).permutation(n) / n + 0.7).reshape(shape)
    check_vjp(lambda t: getattr(tp, name)(t * t, axis=axis), x, label=f"{name} {shape}", rtol=1e-5)


def test_third_derivatives_of_a_product_with_zeros():
    f = lambda t: tp.cumulative_prod(tp.stack([t, t * 2.0, t, tp.tensor(5.0, dtype="float64")]))[3]  # noqa: E731
    at = tp.tensor(0.0, dtype="float64")
    assert tp.grad(f)(at).item() == tp.grad(tp.grad(f))(at).item() == 0
    assert tp.grad(tp.grad(tp.grad(f)))(at).item() == 60
    check_vjp(tp.grad(lambda x: tp.sum(tp.cumulative_prod(x) ** 2)), np.array([0.5, 0.0, -2.0, 0.0, 1.5]), label="3")


@pytest.mark.parametrize("name", SCANS)
def test_fused_equals_composed_on_long_rows(name):
    f = getattr(tp, name)
    for shape, axis in (((3, 700), 1), ((700, 20), 0)):
        x = values(name, shape, "float64")
        check_fused(functools.partial(f, axis=axis), x, seed=draw(rng_for(1), shape), label=name)


def test_where_a_maximum_stands_in_columns_and_rows():
    x = np.rint(draw(rng_for("max"), (9, 40, 21), "float32"))
    for axis in range(3):
        (g,) = gradients(functools.partial(tp.cumulative_max, axis=axis), x)
        want = np.zeros_like(x)
        for index in np.ndindex(x.shape):
            line = x[tuple(slice(index[a] + 1) if a == axis else index[a] for a in range(3))]
            want[tuple(np.argmax(line) if a == axis else index[a] for a in range(3))] += 1
        assert_same(g, want)


# ---- values


@pytest.mark.parametrize("dtype", DTYPES)
def test_truth_and_counts_wherever_the_one_stands(dtype):
    for n in (1, 5, 1000, 1024, 1025, 20_000):
        for at in {0, n // 2, n - 1}:
            x = np.zeros((n, 2), dtype)
            x[at, 1] = 1
            for t, axis in ((tp.tensor(x), 0), (tp.tensor(np.ascontiguousarray(x.T)), 1)):
                assert tp.any(t, axis=axis).tolist() == [False, True] and tp.any(t).item()
                assert tp.count_nonzero(t, axis=axis).tolist() == [0, 1] and tp.count_nonzero(t).item() == 1
                assert tp.all(t == 0, axis=axis).tolist() == [True, False] and not tp.all(t == 0).item()
    if dtype in FLOATS:
        x = tp.tensor(np.array([[NAN, -0.0], [0.0, 5e-324 if dtype == "float64" else 1e-45]], dtype))
        assert tp.count_nonzero(x, axis=1).tolist() == [1, 1] and tp.any(x, axis=0).tolist() == [True, True]


@pytest.mark.parametrize("dtype", FLOATS)
def test_products_and_sums_that_pass_infinity_or_zero(dtype):
    huge = np.finfo(dtype).max / 2
    x = np.array([0.0, *[huge] * 200, -1.0], dtype)
    assert_same(tp.cumulative_prod(tp.tensor(x)), np.zeros_like(x), zero_sign=False)
    x = np.array([1.0, INF, -INF, 1.0], dtype)
    assert_same(tp.cumulative_sum(tp.tensor(x)), np.array([1, INF, NAN, NAN], dtype))
    assert_same(tp.cumulative_sum(tp.tensor(np.array([-0.0, -0.0], dtype))), np.array([-0.0, -0.0], dtype))


def test_long_sums_are_more_accurate_than_one_after_the_other():
    x = rng_for("long").uniform(0.5, 1.5, 300_001)
    got, want = host(tp.cumulative_sum(tp.tensor(x))), np.cumsum(x.astype(WIDE))
    assert np.max(abs(got - want) / want) < 300_001 / 64 / 8 * np.finfo("float64").eps
    assert_ulps(tp.cumulative_sum(tp.tensor(x.astype("float32"))), np.cumsum(x.astype("float32").astype(WIDE)), 0.6)


def test_an_open_tape_holds_what_was_asked():
    x = tp.tensor([[1.0, 2.0], [3.0, 5.0]])
    with tp.Tape() as tape:
        for f in (*(getattr(tp, name) for name in OVER), tp.argmin):
            f(x)
        for name, reverse in itertools.product(SCANS, (0, 1)):
            getattr(tp, name)(x, axis=reverse)
    lines = str(tape)
    for name in (*OVER, "argmin", *SCANS):
        assert name in lines
