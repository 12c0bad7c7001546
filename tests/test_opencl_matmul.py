"""Matrix products on OpenCL devices, in both shapes of kernel, with small tiles so that every edge is met."""

import numpy as np
import pytest

from tapeflow.backend.opencl import matmul, reductions
from tapeflow.plan import ir
from tests.opencl_arrays import NUMPY, Shaped, cpu, dtypes_of, guarded, kept_memory, place, run, values  # noqa: F401
from tests.opencl_devices import device, opened  # noqa: F401

RNG = np.random.default_rng(5)
FLOATS = (ir.FLOAT32, ir.FLOAT64)
SMALL = {"cpu": matmul.CpuTile(2, 4, 2), "gpu": matmul.GpuTile(2, 2, 2, 2, 3)}
SIZES = [  # m, n, k around tiles of 2 x 8 and 4 x 4, 3 deep
    (1, 1, 1),
    (2, 8, 3),
    (3, 9, 4),
    (4, 7, 6),
    (5, 4, 2),
    (1, 8, 5),
    (7, 1, 5),
    (2, 3, 0),
    (17, 17, 3),
]
BATCHES = [  # the shapes of a and b
    ((3, 4, 5), (5, 6)),
    ((4, 5), (3, 5, 6)),
    ((2, 3, 4, 5), (3, 5, 6)),
    ((2, 1, 4, 5), (3, 5, 6)),
    ((2, 1, 3, 4, 5), (1, 4, 1, 5, 6)),
    ((0, 4, 5), (5, 6)),
]

VECTORS = [((1, 40), (40, 7)), ((7, 40), (40, 1)), ((1, 40), (40, 1)), ((3, 7, 20), (20, 1)), ((2, 1, 9), (2, 9, 5))]


def operand(dtype, shape):
    if dtype in FLOATS:
        return RNG.standard_normal(shape).astype(NUMPY[dtype])
    return values(RNG, dtype, shape)


def product(device, a, b, layouts="packed", tile=None):  # noqa: F811
    """a @ b by the device, with a tile of the test's."""
    dtype = max(NUMPY.index(a.dtype), NUMPY.index(b.dtype))
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    if tile is None:
        return run(device, "matmul", (), [a, b], dtype, shape, layouts)
    layouts = [layouts] * 2 if isinstance(layouts, str) else layouts
    arrays = [place(device, x, layout) for x, layout in zip((a, b), layouts)]
    out = guarded(device, dtype, shape)
    matmul.execute_matmul(device, ir.CODES["matmul"], (), arrays, out, tile=tile)
    return getattr(device, "device", device).download(out)


def check(device, a, b, layouts="packed", tile=None):  # noqa: F811
    """Integers and bool to the bit, floats within k roundings of each element."""
    got = product(device, a, b, layouts, tile)
    if got.dtype.kind != "f":
        want = cpu("matmul", (), [a, b], NUMPY.index(got.dtype), got.shape)
        assert np.array_equal(got, want), (a.dtype, b.dtype, a.shape, b.shape, layouts)
        return got
    exact, size = (np.matmul(*[f(x.astype(np.float64)) for x in (a, b)]) for f in (np.asarray, np.abs))
    bound = (a.shape[-1] + 1) * np.finfo(got.dtype).eps * size
    assert (np.abs(got - exact) <= bound).all(), (a.dtype, b.dtype, a.shape, b.shape, layouts)
    return got


def dtypes_for(device):  # noqa: F811
    return range(6) if device.vendor.startswith("Intel") else (ir.BOOL, ir.FLOAT32)


@pytest.mark.parametrize("kind", SMALL)
def test_tile_edges(device, kind):  # noqa: F811
    for dtype in dtypes_of(device, *dtypes_for(device)):
        for m, n, k in SIZES:
            a, b = operand(dtype, (m, k)), operand(dtype, (k, n))
            check(device, a, b, "packed", SMALL[kind])
            check(device, a, b, ["transposed", "reversed"], SMALL[kind])
            check(device, a, b, ["strided", "transposed"], SMALL[kind])


@pytest.mark.parametrize("kind", SMALL)
def test_batches(device, kind):  # noqa: F811
    for dtype in (ir.INT64, ir.FLOAT32):
        for left, right in BATCHES:
            a, b = operand(dtype, left), operand(dtype, right)
            check(device, a, b, "packed", SMALL[kind])
            check(device, a, b, ["reversed", "transposed"], SMALL[kind])


def test_bits_depend_on_neither_layout_nor_tile(device):  # noqa: F811
    """Nor on the shape of kernel: every element is one chain of sums. (A vector times a matrix is another.)"""
    a, b = operand(ir.FLOAT32, (9, 20)), operand(ir.FLOAT32, (20, 11))
    want = product(device, a, b, "packed", SMALL["gpu"])
    for kind in SMALL:
        for layouts in ("packed", "transposed", ["reversed", "strided"]):
            assert product(device, a, b, layouts, SMALL[kind]).tobytes() == want.tobytes()
    if device.vendor.startswith("Intel") or not device.fp64:  # (PoCL takes 4 s to compile a whole tile)
        assert product(device, a, b).tobytes() == want.tobytes()
        assert product(Shaped(device, is_cpu=False), a, b).tobytes() == want.tobytes()


def test_own_tiles(device):  # noqa: F811
    """What a device takes by itself, in sizes with whole and ragged tiles, long and short k."""
    slow = not reductions.has_vectors(device)
    for m, n, k in [(9, 40, 20)] if slow else [(8, 32, 16), (33, 65, 100), (100, 64, 300), (7, 200, 9), (130, 31, 33)]:
        a, b = operand(ir.FLOAT32, (m, k)), operand(ir.FLOAT32, (k, n))
        for layouts in ("packed", "transposed", ["transposed", "reversed"]):
            check(device, a, b, layouts)


@pytest.mark.parametrize("limit", [256, 64, 8, 1])
def test_tiles_of_small_devices(limit):
    intel = opened("intel")
    shaped = Shaped(intel, is_cpu=False, max_workgroup=limit, local_memory=16384)
    for dtype in (ir.FLOAT32, ir.FLOAT64) if limit == 256 else (ir.FLOAT32,):
        tile = matmul.tile_for(shaped, dtype)
        assert tile.group_rows * tile.group_columns <= limit
        assert tile.nbytes(ir.ITEMSIZE[dtype]) <= 16384
        check(shaped, operand(dtype, (70, 33)), operand(dtype, (33, 67)), ["transposed", "packed"])


def test_vectors(device):  # noqa: F811
    """A row or a column: sums of products."""
    for dtype in dtypes_of(device, ir.FLOAT32):
        for left, right in VECTORS:
            a, b = operand(dtype, left), operand(dtype, right)
            check(device, a, b)
            check(device, a, b, "transposed")


def test_mixed_dtypes(device):  # noqa: F811
    pairs = [(ir.BOOL, ir.UINT8), (ir.INT32, ir.FLOAT32), (ir.FLOAT32, ir.INT64), (ir.UINT8, ir.INT64)]
    for kind in SMALL if device.vendor.startswith("Intel") else ("cpu",):
        for left, right in pairs if device.vendor.startswith("Intel") else pairs[1:2]:
            check(device, operand(left, (5, 6)) % 100 if left == ir.INT32 else operand(left, (5, 6)),
                  operand(right, (6, 9)), "packed", SMALL[kind])  # fmt: skip


def test_special_values(device):  # noqa: F811
    """NaN and infinities stay in their rows and columns: nothing that fills a tile multiplies them."""
    a, b = np.ones((3, 5), np.float32), np.ones((5, 9), np.float32)
    a[1, 2], b[4, 8] = np.inf, np.nan
    for kind in SMALL:
        got = product(device, a, b, "packed", SMALL[kind])
        with np.errstate(invalid="ignore"):
            assert np.array_equal(got, a @ b, equal_nan=True)


def test_sizes_build_nothing(device):  # noqa: F811
    for builds in (None, device.builds):
        for m, n, k in ((2, 3, 4), (9, 30, 2), (3, 2, 40)):
            more = builds is not None
            a, b = operand(ir.FLOAT32, (2, m + more, k + more)), operand(ir.FLOAT32, (k + more, n + more))
            check(device, a, b, "packed", SMALL["cpu"])
            check(device, a, b, ["transposed", "transposed"], SMALL["gpu"])
        assert builds is None or device.builds == builds
