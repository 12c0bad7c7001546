"""Reductions on OpenCL devices, in both shapes of kernel: the cpu's bits, or stated errors without fp64."""

import struct

import numpy as np
import pytest

from tapeflow.backend.opencl import reductions
from tapeflow.errors import ShapeError
from tapeflow.plan import ir
from tests.opencl_arrays import (
    NUMPY,
    Shaped,
    as_gpu,
    assert_bits,
    cpu,
    dtypes_of,
    in_the_long_run,
    kept_memory,  # noqa: F401
    place,
    run,
    run_op,
    values,
)
from tests.opencl_devices import device, opened  # noqa: F401

RNG = np.random.default_rng(11)
FLOATS = (ir.FLOAT32, ir.FLOAT64)
EPS = 2.0**-24  # half a unit in the last place of float32
LANES, CHUNK, BLOCK, FAN = reductions.LANES, reductions.CHUNK, reductions.BLOCK, reductions.FAN

CASES = [  # shape, reduced axes, layout beside the packed one
    ((), (), "offset"),
    ((3, 4), (), "transposed"),
    ((1,), (0,), "offset"),
    ((LANES - 1,), (0,), "reversed"),
    ((LANES,), (0,), "strided"),
    ((LANES + 1,), (0,), "reversed"),
    ((7, 33), (1,), "transposed"),
    ((33, 7), (0,), "transposed"),
    ((5, BLOCK + 1), (0,), "strided"),
    ((37, BLOCK), (0,), "reversed"),
    ((BLOCK + 1, 5), (1,), "offset"),
    ((3, 5, 7), (0, 2), "transposed"),
    ((2, 3, 4, 5), (1, 3), "reversed"),
    ((0, 3), (1,), "packed"),
    ((2, 3), (0, 1), "transposed"),
]
LARGE = [  # around the chunks
    ((CHUNK - 1,), (0,), "offset"),
    ((2, CHUNK), (1,), "strided"),
    ((2, CHUNK + 1, 3), (1,), "transposed"),
    ((5 * CHUNK + 17,), (0,), "reversed"),
    ((3 * CHUNK, 2), (0,), "packed"),
]
NAMES = {  # ops by kind of kernel
    "SUM": ("sum", "mean"),
    "NANSUM": ("nansum",),
    "NORM": ("vector_norm",),
    "COUNT": ("count_nonzero", "any", "all"),
    "EXTREMUM": ("max", "min"),
    "POSITION": ("argmax", "argmin"),
}
OF_FLOATS = ("mean", "nansum", "vector_norm")


def mask_of(axes):
    return sum(1 << d for d in axes)


def kept(shape, axes):
    return tuple(n for d, n in enumerate(shape) if d not in axes)


def together(shape, axes):
    return int(np.prod([shape[d] for d in axes], dtype=np.int64))


def result(name, dtype):
    if name in ("any", "all"):
        return ir.BOOL
    if name in ("argmax", "argmin", "count_nonzero") or name == "sum" and dtype not in FLOATS:
        return ir.INT64
    return dtype


def data(dtype, shape, name):
    """Values with ties, zeros, and, if they are floats, NaN, infinities and subnormals; few that decide any and all."""
    x = values(RNG, dtype, shape)
    if dtype in FLOATS and name in ("sum", "mean", "vector_norm"):
        x = np.where(np.isfinite(x) | (RNG.random(shape) < 0.05), x, x.dtype.type(3))
    if name in ("max", "min", "argmax", "argmin") and dtype not in FLOATS:
        x = (x // 3) * x.dtype.type(3) if dtype != ir.BOOL else x
    if name in ("any", "all"):
        x = np.where(RNG.random(shape) < 0.04, x, x.dtype.type(name == "all"))
    return np.asarray(x, NUMPY[dtype])


def check(device, name, dtype, shape, axes, layout):  # noqa: F811
    """The cpu's bits; without fp64, float sums within a unit in the last place of them."""
    x = data(dtype, shape, name)
    params, to = (mask_of(axes), together(shape, axes) if x.size else 0), result(name, dtype)
    got = run(device, name, params, [x], to, kept(shape, axes), layout)
    want = cpu(name, params, [x], to, kept(shape, axes))
    if device.fp64 or dtype not in FLOATS or name not in ("sum", "mean", "nansum", "vector_norm"):
        assert_bits(got, want, (name, NUMPY[dtype], shape, axes, layout))
        return
    exact = np.isnan(got) & np.isnan(want) | (got == want)
    clean = np.where(np.isfinite(x), x, 0).astype(np.float64)
    scale = np.abs(clean).sum(axes) / (params[1] if name == "mean" else 1)
    bound = 3 * EPS * np.abs(want) + (params[1] * EPS) ** 2 * scale + 2.0**-126
    with np.errstate(invalid="ignore"):
        near = np.abs(got.astype(np.float64) - want) <= bound
    assert (exact | near).all(), (name, shape, axes, layout, got[~(exact | near)], want[~(exact | near)])


def as_cpu(device, **facts):  # noqa: F811
    return Shaped(device, is_cpu=True, vector_width=16, **facts)


def is_intel(device):  # noqa: F811
    """The one that compiles fast: dtypes are tested there."""
    return device.vendor.startswith("Intel")


def dtypes_for(device):  # noqa: F811
    """uint8 is bool's kernel, and int32's keys are those of float32: theirs in the long run."""
    if not is_intel(device):
        return dtypes_of(device, ir.FLOAT32)
    return dtypes_of(device, *(range(6) if in_the_long_run() else (ir.BOOL, ir.INT64, *FLOATS)))


def is_slow(device):  # noqa: F811
    return not reductions.has_vectors(device)  # llvmpipe and Oclgrind


def cases_for(device, name):  # noqa: F811
    cases = CASES[:9] if is_slow(device) else CASES + LARGE
    return [case for case in cases if name not in ("max", "min", "argmax", "argmin") or together(*case[:2])]


@pytest.mark.parametrize("kind", NAMES)
def test_own_kernels(device, kind):  # noqa: F811
    """Every op and dtype, in the shape of kernel that the device has."""
    for name in NAMES[kind]:
        for dtype in dtypes_for(device):
            if dtype in FLOATS or name not in OF_FLOATS:
                for shape, axes, layout in cases_for(device, name):
                    check(device, name, dtype, shape, axes, "packed")
                    check(device, name, dtype, shape, axes, layout)


@pytest.mark.parametrize("name", ["sum", "argmin"])
def test_kernels_for_gpus(device, name):  # noqa: F811
    limits = ((256, ir.FLOAT32), (256, ir.INT64), (64, ir.FLOAT32), (8, ir.FLOAT32))
    for limit, dtype in limits if is_intel(device) else limits[2:]:
        for shape, axes, layout in cases_for(device, name):
            check(as_gpu(device, max_workgroup=limit), name, dtype, shape, axes, layout)


def test_kernels_for_cpus(device):  # noqa: F811
    """Which a GPU that takes work-groups of one work-item alone has, too."""
    for shaped in (as_cpu(device), Shaped(device, is_cpu=False, max_workgroup=1)):
        for shape, axes, layout in CASES[:9]:
            check(shaped, "min", ir.FLOAT32, shape, axes, layout)


# ---- sums without fp64


@pytest.fixture(params=["cpu", "gpu"])
def narrow(request):
    """Intel's device, taken for one without fp64, in both shapes."""
    intel = opened("intel")
    return as_cpu(intel, fp64=False) if request.param == "cpu" else as_gpu(intel, fp64=False)


def reduced(shaped, name, x, *more):
    x = np.asarray(x, np.float32)
    return run(shaped, name, (1, x.size, *more), [x], ir.FLOAT32, ())


@pytest.mark.parametrize("name", ["sum", "mean", "nansum", "vector_norm"])
def test_without_fp64(narrow, name):
    for shape, axes, layout in CASES + LARGE:
        check(narrow, name, ir.FLOAT32, shape, axes, layout)


def test_sums_without_fp64_keep_what_float32_loses(narrow):
    ones = 2**24 + 8
    x = place(narrow.device, np.ones(1, np.float32))._replace(shape=(ones,), strides=(0,))
    y = narrow.empty_array(ir.FLOAT32, ())
    run_op(narrow, "sum", (1, ones), [x], y)
    assert narrow.download(y) == ones
    assert reduced(narrow, "sum", [1e8, 1, -1e8]) == 1


def test_range_without_fp64(narrow):
    """What overflows or vanishes on the way and not at the end."""
    assert reduced(narrow, "sum", [2e38, 2e38, -2e38]) == np.float32(2e38)
    assert reduced(narrow, "mean", [3e38] * 5) == np.float32(3e38)
    assert reduced(narrow, "sum", [3e38, 3e38]) == np.inf
    assert reduced(narrow, "sum", [np.inf, 3e38, 3e38]) == np.inf
    assert np.isnan(reduced(narrow, "sum", [np.inf, -np.inf]))
    for size in (1e30, 1e-30):
        assert abs(reduced(narrow, "vector_norm", [size] * 4) / np.float32(2 * size) - 1) <= 2 * EPS
    assert abs(reduced(narrow, "std", [1e30, 3e30], *divisor(2.0)) / np.float32(1e30) - 1) <= 4 * EPS
    assert abs(reduced(narrow, "std", [1e-30, 3e-30], *divisor(2.0)) / np.float32(1e-30) - 1) <= 4 * EPS


# ---- variance and sums of products


def divisor(number):
    return struct.unpack("q", struct.pack("d", number))


@pytest.mark.parametrize("of_gpu", [False, True])
def test_variance(device, of_gpu):  # noqa: F811
    """Two units in the last place of the cpu's; 0 for equal values, NaN without degrees of freedom."""
    shaped = as_gpu(device, max_workgroup=64) if of_gpu else device
    for dtype in dtypes_of(device, *(FLOATS if is_intel(device) else FLOATS[:1])):
        for shape, axes, layout in CASES[:9] if is_slow(device) else CASES + LARGE:
            n = together(shape, axes)
            x = (RNG.standard_normal(shape) + 100).astype(NUMPY[dtype])
            for name, free in (("var", float(n)), ("std", n - 1.0)):
                params = (mask_of(axes), n, *divisor(free))
                got = run(shaped, name, params, [x], dtype, kept(shape, axes), layout)
                want = cpu(name, params, [x], dtype, kept(shape, axes))
                assert np.array_equal(np.isnan(got), np.isnan(want)), (name, shape, axes)
                assert np.allclose(
                    got, want, rtol=(2 if device.fp64 else 64) * np.finfo(want.dtype).eps, atol=0, equal_nan=True
                ), (got, want)
        same = np.full(1000, 0.1, NUMPY[dtype])
        assert run(shaped, "std", (1, 1000, *divisor(999.0)), [same], dtype, ()) == 0
        same[7] = np.nan
        assert np.isnan(run(shaped, "var", (1, 1000, *divisor(999.0)), [same], dtype, ()))


def test_variance_without_fp64(narrow):
    for n in (3, CHUNK + 3):
        x = (RNG.standard_normal(n) + 1000).astype(np.float32)
        want = x.astype(np.float64).var()
        assert abs(reduced(narrow, "var", x, *divisor(float(n))) - want) <= 8 * EPS * want
    assert reduced(narrow, "var", np.full(7777, 0.1), *divisor(7777.0)) == 0
    assert np.isnan(reduced(narrow, "var", [1.0], *divisor(0.0)))


@pytest.mark.parametrize("of_gpu", [False, True])
def test_vecdot(device, of_gpu):  # noqa: F811
    shaped = as_gpu(device, max_workgroup=64) if of_gpu else device
    for dtype in dtypes_of(device, *(FLOATS if is_intel(device) else FLOATS[:1])):
        for shape, axes, layout in CASES[:9] if is_slow(device) else CASES + LARGE:
            a, b = (RNG.standard_normal(shape).astype(NUMPY[dtype]) for _ in range(2))
            got = run(shaped, "vecdot", (mask_of(axes),), [a, b], dtype, kept(shape, axes), [layout, "packed"])
            want = cpu("vecdot", (mask_of(axes),), [a, b], dtype, kept(shape, axes))
            if device.fp64:
                assert_bits(got, want, (shape, axes, layout))
            else:
                assert (np.abs(got - want) <= 4 * EPS * np.abs(a * b).sum(axes)).all(), (shape, axes, layout)


# ---- the rest


def test_broadcast_operands(device):  # noqa: F811
    x = np.broadcast_to(RNG.standard_normal((5, 1, 3)).astype(np.float32), (5, 4, 3))
    for axes in ((0,), (1,), (2,), (0, 1)):
        got = run(device, "max", (mask_of(axes), together(x.shape, axes)), [x], ir.FLOAT32, kept(x.shape, axes), None)
        assert_bits(got, x.max(axes), axes)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_of_nothing(device, name):  # noqa: F811
    with pytest.raises(ShapeError, match=rf"\[{name}\] the reduced axes of shape \(3, 0\) hold no elements"):
        run(device, name, (2, 0), [np.zeros((3, 0), np.float32)], result(name, ir.FLOAT32), (3,))
    assert run(device, name, (1, 3), [np.zeros((3, 0), np.float32)], result(name, ir.FLOAT32), (0,)).shape == (0,)


def test_shapes_build_nothing(device):  # noqa: F811
    """One text for all sizes and strides; the same bits at every run."""
    if is_slow(device):
        cases = [((40,), (0,)), ((3, 40), (1,)), ((3, 4, 5), (1,))]
    else:
        cases = [((40,), (0,)), ((9, 1000), (1,)), ((300, 200), (0,)), ((CHUNK + 1,), (0,)), ((FAN * CHUNK + 5,), (0,))]
    for longer in (0, 1):
        builds = device.builds
        for shape, axes in cases:
            x = RNG.standard_normal([n + longer for n in shape]).astype(np.float32)
            params, left = (mask_of(axes), together(x.shape, axes)), kept(x.shape, axes)
            first = run(device, "max", params, [x], ir.FLOAT32, left)
            assert_bits(run(device, "max", params, [x], ir.FLOAT32, left, "reversed"), first)
            assert_bits(first, x.max(axes))
        assert not longer or device.builds == builds


def test_many_chunks(device):  # noqa: F811
    """More than one work-item joins: also of rows that lie across."""
    if is_slow(device):
        pytest.skip(f"a million elements take {device.name} too long")
    x = RNG.standard_normal(FAN * CHUNK + 3 * CHUNK + 1).astype(np.float32)
    for view, axes in ((x, (0,)), (x[: FAN * CHUNK // 2 * 2].reshape(-1, 2), (0,))):
        for name in ("sum", "argmax"):
            params, to = (mask_of(axes), together(view.shape, axes)), result(name, ir.FLOAT32)
            got = run(device, name, params, [view], to, kept(view.shape, axes))
            assert_bits(got, cpu(name, params, [view], to, kept(view.shape, axes)), (name, view.shape))


def test_groups_shrink_to_what_a_kernel_takes():
    """The shape for a limit: fewer units, then fewer lanes, then more lanes for each work-item."""
    whole = reductions.Shape(1, 4, 64)
    assert [whole.within(n) for n in (256, 255, 64, 63, 16, 8, 1)] == [
        (1, 4, 64),
        (1, 2, 64),
        (1, 1, 64),
        (1, 1, 32),
        (1, 1, 16),
        (2, 1, 16),
        (16, 1, 16),
    ]
