"""Running reductions on OpenCL devices: the cpu's bits where it computes alike, and stated errors elsewhere."""

import numpy as np
import pytest

from tapeflow.backend.opencl import scans
from tapeflow.plan import ir
from tapeflow.testing.layouts import special_points
from tests.opencl_arrays import NUMPY, Shaped, assert_bits, both_shapes, check, cpu, dtypes_of, run, values
from tests.opencl_devices import device  # noqa: F401

RNG = np.random.default_rng(7)
CASES = [  # shape, axis
    ((1,), 0),
    ((2,), 0),
    ((63,), 0),
    ((64,), 0),
    ((65,), 0),
    ((257,), 0),  # one line is done by blocks from here on
    ((1000,), 0),
    ((3, 5), 0),
    ((3, 5), 1),
    ((2, 70, 3), 1),
    ((2, 321, 3), 1),
    ((300, 20), 0),
    ((0,), 0),
    ((3, 0), 0),
    ((0, 3), 1),
]
FLOATS = (ir.FLOAT32, ir.FLOAT64)
NUMBERS = (ir.INT64, *FLOATS)


def needs_fp64(device):  # noqa: F811
    if not device.fp64:
        pytest.skip("no fp64: float32 is tested below, by the tests that say so")


def layout_of(shape):
    return "packed" if len(shape) == 1 else "transposed" if shape[0] > 2 else "reversed"


def tame(dtype, shape):
    """Values of which no sum or product leaves the range."""
    if dtype == ir.INT64:
        return values(RNG, dtype, shape)
    return (RNG.standard_normal(shape) * 2.0 ** RNG.integers(-3, 3, shape)).astype(NUMPY[dtype])


def wild(dtype, shape):
    """With infinities and NaN, the latter seldom and late."""
    x = values(RNG, dtype, shape)
    return np.where(np.isnan(x) & (RNG.random(shape) < 0.9), x.dtype.type(1), x) if dtype in FLOATS else x


@pytest.mark.parametrize("shape, axis", CASES)
@pytest.mark.parametrize("name, reverse", [("cumulative_sum", 0), ("cumulative_sum", 1), ("cumulative_prod", 0)])
def test_sums_and_products(device, name, reverse, shape, axis):  # noqa: F811
    """With fp64, float32 has the cpu's bits, too."""
    for dtype in NUMBERS if device.fp64 else (ir.INT64,):
        for make in (tame, wild):
            check(device, name, (axis, reverse), [make(dtype, shape)], dtype, shape, layout_of(shape))


@pytest.mark.parametrize("shape, axis", CASES)
def test_recurrences(device, shape, axis):  # noqa: F811
    needs_fp64(device)
    for dtype in FLOATS:
        for reverse in (0, 1):
            x, a = tame(dtype, shape), tame(dtype, shape) / 8
            a[RNG.random(shape) < 0.1] = np.inf
            x[RNG.random(shape) < 0.1] = 0
            check(device, "recurrence", (axis, reverse), [x, a], dtype, shape, layout_of(shape))


@pytest.mark.parametrize("shape, axis", CASES)
def test_maxima(device, shape, axis):  # noqa: F811
    """The first of equals, and of NaN, stays: zeros are equal."""
    for dtype in dtypes_of(device):
        few = RNG.integers(0, 2, shape).astype(NUMPY[dtype])
        for x in (values(RNG, dtype, shape), wild(dtype, shape), -few if dtype in FLOATS else few):
            check(device, "cumulative_max", (axis, 0), [x], dtype, shape, layout_of(shape))
            check(device, "cumulative_argmax", (axis,), [x], ir.INT64, shape, layout_of(shape))


def test_maxima_of_special_values(device):  # noqa: F811
    for dtype in dtypes_of(device):
        points = special_points(NUMPY[dtype].name)
        for _ in range(3):
            x = RNG.permutation(np.concatenate([points, points]))
            check(device, "cumulative_max", (0, 0), [x], dtype, x.shape)
            check(device, "cumulative_argmax", (0,), [x], ir.INT64, x.shape)


def test_lines_and_blocks_have_the_same_bits(device, monkeypatch):  # noqa: F811
    x = {dtype: tame(dtype, (400, 3)) for dtype in dtypes_of(device, *NUMBERS)}
    found = {}
    for lines in (0, 1 << 30):
        monkeypatch.setattr(scans, "LINES", {True: lines, False: lines})
        for dtype, array in x.items():
            for name, params in (("cumulative_sum", (0, 1)), ("cumulative_max", (0, 0)), ("logcumsumexp", (0, 0))):
                if name == "logcumsumexp" and dtype == ir.INT64:
                    continue
                got = run(device, name, params, [array], dtype, array.shape)
                assert_bits(got, found.setdefault((name, dtype), got), name)


def test_all_devices_take_either_shape(device):  # noqa: F811
    shapes = both_shapes(device)
    for shaped in [*shapes, Shaped(shapes[-1], max_workgroup=1)]:
        x = values(RNG, ir.INT64, (700, 4))
        check(shaped, "cumulative_sum", (0, 0), [x], ir.INT64, x.shape)
        check(shaped, "cumulative_argmax", (0,), [x], ir.INT64, x.shape)


# ---- logcumsumexp, and float32 without fp64


def ulps(got, want):
    """The distance in units in the last place of want; 0 where both are NaN or equal."""
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        apart = np.abs(got.astype(np.float64) - want) / np.spacing(np.maximum(np.abs(want), np.finfo(want.dtype).tiny))
    return np.where(same, 0.0, np.where(np.isfinite(got) & np.isfinite(want), apart, np.inf))


def logs(dtype, shape):
    x = (RNG.standard_normal(shape) * 10.0 ** RNG.integers(-3, 3, shape)).astype(NUMPY[dtype])
    x[RNG.random(shape) < 0.1] = -np.inf
    return x


@pytest.mark.parametrize("shape, axis", CASES)
def test_logcumsumexp(device, shape, axis):  # noqa: F811
    needs_fp64(device)
    for dtype in FLOATS:
        for x in (logs(dtype, shape), wild(dtype, shape)):
            got = run(device, "logcumsumexp", (axis, 0), [x], dtype, shape, layout_of(shape))
            want = cpu("logcumsumexp", (axis, 0), [x], dtype, shape)
            assert ulps(got, want).max(initial=0) <= (1 if dtype == ir.FLOAT32 else 40), (shape, dtype)


@pytest.mark.parametrize("shape, axis", CASES)
def test_logcumsumexp_without_fp64(device, shape, axis):  # noqa: F811
    """Off by units in the last place of the result, or of 8, next to which exponentials are taken."""
    single = Shaped(device, fp64=False)
    for x in (logs(ir.FLOAT32, shape), wild(ir.FLOAT32, shape)):
        got = run(single, "logcumsumexp", (axis, 0), [x], ir.FLOAT32, shape, layout_of(shape))
        want = cpu("logcumsumexp", (axis, 0), [x], ir.FLOAT32, shape)
        assert_bits(np.isfinite(got), np.isfinite(want))
        with np.errstate(invalid="ignore"):
            close = np.abs(got - want) <= 8 * np.spacing(np.maximum(np.abs(want), 8))
        assert (close | (got == want) | (np.isnan(got) & np.isnan(want))).all()


@pytest.mark.parametrize("shape, axis", CASES)
def test_float32_without_fp64(device, shape, axis):  # noqa: F811
    """Twice the digits of float32, rounded at each element: the cpu's value, or one beside it near a tie."""
    single = Shaped(device, fp64=False)
    for reverse in (0, 1):
        x, a = tame(ir.FLOAT32, shape), tame(ir.FLOAT32, shape) / 8
        for name, params, ins in (
            ("cumulative_sum", (axis, reverse), [x]),
            ("cumulative_sum", (axis, reverse), [wild(ir.FLOAT32, shape)]),
            ("recurrence", (axis, reverse), [x, a]),
            *(
                [("cumulative_prod", (axis, 0), [x]), ("cumulative_prod", (axis, 0), [wild(ir.FLOAT32, shape)])]
                if not reverse
                else []
            ),
        ):
            got = run(single, name, params, ins, ir.FLOAT32, shape, layout_of(shape))
            want = cpu(name, params, ins, ir.FLOAT32, shape)
            normal = np.abs(want) >= np.finfo(np.float32).tiny
            apart = np.where(normal | ~np.isfinite(want) | ~np.isfinite(got), ulps(got, want), 0)
            assert apart.max(initial=0) <= 1, (name, shape)
            assert np.count_nonzero(apart) <= max(1, got.size // 50), (name, shape)


def test_a_product_without_fp64_comes_back_from_outside_of_float32(device):  # noqa: F811
    single = Shaped(device, fp64=False)
    for x in (
        [1e-30, 1e-30, 1e30, 1e30, -2.0],
        [1e30, 1e30, 1e-30, 1e-30],
        [1e38] * 9 + [1e-38] * 9,
        [0.0, 1e30, np.inf],
    ):
        x = np.array(x, np.float32)
        got = run(single, "cumulative_prod", (0, 0), [x], ir.FLOAT32, x.shape)
        want = cpu("cumulative_prod", (0, 0), [x], ir.FLOAT32, x.shape)
        assert ulps(got, want).max() <= 1, (got, want)


def test_zeros_keep_their_sign(device):  # noqa: F811
    for shaped in (device, Shaped(device, fp64=False)):
        x = np.array([-0.0, -0.0, 0.0, -0.0], np.float32)
        check(shaped, "cumulative_sum", (0, 0), [x], ir.FLOAT32, x.shape)
        check(shaped, "cumulative_prod", (0, 0), [x], ir.FLOAT32, x.shape)


def test_a_long_sum_loses_nothing(device):  # noqa: F811
    x = np.full(20000, 0.1, np.float32)
    x[0] = 1e6
    want = np.cumsum(x.astype(np.float64)).astype(np.float32)
    for shaped in (device, Shaped(device, fp64=False)):
        got = run(shaped, "cumulative_sum", (0, 0), [x], ir.FLOAT32, x.shape)
        assert ulps(got, want).max() <= 1
        assert_bits(got[::50], want[::50])


def test_a_new_shape_compiles_nothing(device):  # noqa: F811
    def scanned(n):
        for name, ins in (("cumulative_sum", 1), ("cumulative_max", 1), ("recurrence", 2)):
            run(device, name, (0, 0), [tame(ir.FLOAT32, (n, 2))] * ins, ir.FLOAT32, (n, 2))

    scanned(5)
    scanned(500)
    before = device.builds
    scanned(900)
    scanned(77)
    assert device.builds == before
