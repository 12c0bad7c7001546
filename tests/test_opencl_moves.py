"""Moves on OpenCL devices: bits, layouts, nothing written outside, nothing compiled for a new shape."""

import numpy as np
import pytest

from tapeflow.backend.opencl import moves
from tapeflow.backend.opencl.host import contiguous_strides
from tapeflow.backend.opencl.moves import merged, permuted, reshaped
from tapeflow.plan import ir
from tests.opencl_arrays import LAYOUTS, NUMPY, as_gpu, assert_bits, both_shapes, check, dtypes_of, place, run, values
from tests.opencl_devices import device  # noqa: F401

RNG = np.random.default_rng(5)
WHOLE = slice(None)


def window_params(shape, index):
    """start, step, count, extent of each axis; and the shape of the window."""
    params, counts = [], []
    for n, i in zip(shape, index):
        begin, _, step = i.indices(n)
        count = len(range(n)[i])
        params += [begin, step if count > 1 else 1, count, n]
        counts.append(count)
    return tuple(params), tuple(counts)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies(device, layout):  # noqa: F811
    for dtype in dtypes_of(device):
        for shape in ((), (1,), (7,), (300,), (5, 3), (3, 1, 4), (2, 3, 5, 2), (0,), (3, 0, 2)):
            x = values(RNG, dtype, shape)
            check(device, "identity", (), [x], dtype, shape, layout)
            if x.size == 30:
                check(device, "reshape", (), [x], dtype, (6, 10), layout)


def test_every_order_of_axes(device):  # noqa: F811
    for shaped in both_shapes(device):
        for dtype in dtypes_of(device, ir.UINT8, ir.FLOAT32, ir.INT64):
            x = values(RNG, dtype, (3, 17, 2, 33))
            for axes in ((3, 2, 1, 0), (0, 1, 3, 2), (1, 0, 2, 3), (2, 3, 0, 1), (0, 3, 2, 1), (3, 0, 1, 2)):
                shape = tuple([x.shape[a] for a in axes])
                check(shaped, "permute_dims", axes, [x], dtype, shape)
                check(shaped, "permute_dims", axes, [x], dtype, shape, "strided")


@pytest.mark.parametrize("shape", [(15, 16), (16, 17), (40, 33), (16, 3, 47), (2, 31, 18)])
def test_transposed_by_tiles(device, shape):  # noqa: F811
    for dtype in dtypes_of(device, ir.BOOL, ir.INT32, ir.FLOAT64):
        x = values(RNG, dtype, shape)
        axes = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        for shaped in both_shapes(device):
            check(shaped, "permute_dims", axes, [x], dtype, tuple([shape[a] for a in axes]))
            check(shaped, "permute_dims", axes, [x], dtype, tuple([shape[a] for a in axes]), "reversed")
            check(shaped, "permute_dims", tuple(range(len(shape)))[::-1], [x], dtype, shape[::-1], "offset")


def test_tiles_are_used(device):  # noqa: F811
    axes = merged((33, 20), (20, 1), (1, 33))
    assert moves._turned(axes) == axes
    assert moves._turned(merged((33, 20), (20, 1), (20, 1))) is None


@pytest.mark.parametrize("ndim", [5, 8, 9, 16])
def test_many_axes(device, ndim):  # noqa: F811
    """Axes of which no two are neighbours on both sides, for every rank of kernel."""
    shape = (2,) * min(ndim, 12) + (1,) * max(ndim - 12, 0)
    x = values(RNG, ir.INT32, shape)
    axes = tuple(reversed(range(ndim)))
    for shaped in both_shapes(device):
        check(shaped, "permute_dims", axes, [x], ir.INT32, shape[::-1])


def test_more_axes_than_any_kernel_has(device, monkeypatch):  # noqa: F811
    monkeypatch.setattr(moves, "RANKS", (1, 2))
    x = values(RNG, ir.FLOAT32, (2, 3, 4, 5))
    check(device, "permute_dims", (3, 2, 1, 0), [x], ir.FLOAT32, (5, 4, 3, 2), "strided")


def test_broadcast(device):  # noqa: F811
    for shape, to in (
        ((), (3,)),
        ((1,), (4, 5)),
        ((3, 1), (2, 3, 4)),
        ((1, 4), (6, 4)),
        ((2, 1, 3), (2, 0, 3)),
        ((1,), (0,)),
    ):
        for dtype in dtypes_of(device):
            x = values(RNG, dtype, shape)
            for layout in ("packed", "offset"):
                check(device, "broadcast_to", (), [x], dtype, to, layout)
    stretched = np.broadcast_to(np.arange(5, dtype=np.int32), (4, 5))
    check(device, "identity", (), [stretched], ir.INT32, (4, 5), None)


WINDOWS = [
    ((10,), (slice(2, 9, 3),)),
    ((10,), (slice(None, None, -1),)),
    ((10,), (slice(5, 5),)),
    ((6, 7), (slice(1, 5), slice(None, None, 2))),
    ((6, 7), (slice(3, 4), slice(5, 1, -2))),
    ((6, 7), (slice(0, 0), WHOLE)),
    ((4, 5, 6), (WHOLE, slice(4, None, -1), slice(2, 3))),
    ((3, 1, 4), (slice(2, None, -2), WHOLE, WHOLE)),
    ((0, 3), (WHOLE, slice(1, 3))),
]


@pytest.mark.parametrize("shape, index", WINDOWS)
def test_windows(device, shape, index):  # noqa: F811
    for dtype in dtypes_of(device, ir.BOOL, ir.FLOAT32, ir.FLOAT64):
        x = values(RNG, dtype, shape)
        params, counts = window_params(shape, index)
        squeezed = tuple([n for n in counts if n != 1])
        part = values(RNG, dtype, squeezed)
        assert_bits(run(device, "getitem", params, [x], dtype, squeezed, "reversed"), x[index].reshape(squeezed))
        check(device, "getitem", params, [x], dtype, (1, *squeezed))
        check(device, "unslice", params, [part], dtype, shape, "transposed")
        check(device, "assign", params, [x, part], dtype, shape, ("strided", "offset"))


def test_concat(device):  # noqa: F811
    for dtype in dtypes_of(device):
        for axis in range(3):
            shapes = [[2, 3, 4] for _ in range(4)]
            for shape, n in zip(shapes, (1, 5, 0, 2)):
                shape[axis] = n
            parts = [values(RNG, dtype, tuple(shape)) for shape in shapes]
            total = [2, 3, 4]
            total[axis] = 8
            for layout in ("packed", "transposed", "reversed"):
                check(device, "concat", (axis,), parts, dtype, tuple(total), layout)
    check(device, "concat", (0,), [np.zeros((0, 2), np.int32)] * 2, ir.INT32, (0, 2))


def test_accumulate(device):  # noqa: F811
    """Into a .grad that is empty, and one that is not."""
    for dtype in dtypes_of(device, ir.FLOAT32, ir.FLOAT64):
        before, g = (RNG.standard_normal((5, 3)).astype(NUMPY[dtype]) for _ in range(2))
        for held, want in ((None, g), (place(device, before, "transposed"), before + g)):
            out = device.empty_array(dtype, (5, 3))
            moves.accumulate(device, ir.ACCUMULATE, (), [held, place(device, g, "strided")], out)
            assert_bits(device.download(out), want)


def test_work_groups_of_one(device):  # noqa: F811
    shaped = as_gpu(device, max_workgroup=1)
    x = values(RNG, ir.FLOAT32, (19, 18))
    check(shaped, "permute_dims", (1, 0), [x], ir.FLOAT32, (18, 19))
    check(shaped, "identity", (), [x], ir.FLOAT32, (19, 18), "strided")


def test_rows_go_round_when_groups_are_few(device, monkeypatch):  # noqa: F811
    monkeypatch.setattr(moves, "MOST_ROWS", 2)
    monkeypatch.setattr(moves, "MOST_GROUPS", 3)
    x = values(RNG, ir.INT32, (9, 5, 20))
    check(device, "identity", (), [x], ir.INT32, (9, 5, 20), "strided")
    check(device, "permute_dims", (0, 2, 1), [values(RNG, ir.INT32, (9, 40, 33))], ir.INT32, (9, 33, 40))


def test_a_new_shape_compiles_nothing(device):  # noqa: F811
    def moved(*shape):
        x = values(RNG, ir.INT32, shape)
        check(device, "permute_dims", (2, 0, 1), [x], ir.INT32, (shape[2], shape[0], shape[1]), "strided")
        check(device, "concat", (1,), [x, x], ir.INT32, (shape[0], 2 * shape[1], shape[2]))

    moved(3, 4, 5)
    before = device.builds
    moved(7, 2, 9)
    moved(20, 1, 70)
    assert device.builds == before


def test_merging():
    assert merged((2, 3, 4), (12, 4, 1), (12, 4, 1)) == [(24, 1, 1)]
    assert merged((2, 3, 4), (12, 4, 1), (24, 8, 2)) == [(24, 1, 2)]
    assert merged((2, 3, 4), (12, 4, 1), (1, 8, 2)) == [(12, 1, 2), (2, 12, 1)]
    assert merged((1, 3, 1), (3, 1, 1), (9, -1, 7)) == [(3, 1, -1)]
    assert merged((), (), ()) == [(1, 0, 0)]
    assert merged((2**20, 2**20), (2**20, 1), (2**20, 1)) == [(2**40, 1, 1)]


def test_places_past_32_bits():
    """The arithmetic alone: what is given to a kernel for arrays that no test can hold."""
    calls = []

    class Recorder:
        is_cpu, is_surveyed, max_workgroup = False, False, 256

        def kernel(self, text, name, options, types):
            return name, types

        def launch(self, kernel, size, local, *args):
            assert all(g % w == 0 for g, w in zip(size, local))
            calls.append((kernel[0], size, args))
            for value, kind in zip(args, kernel[1], strict=True):
                assert kind is None or int(kind(value)) == int(value)

    shape = (1 << 17, 1 << 18)
    x = moves.Array(None, 4 << 33, ir.FLOAT32, shape, (4, 4 << 17))
    y = moves.Array(None, 0, ir.FLOAT32, shape, contiguous_strides(ir.FLOAT32, shape))
    moves.copy(Recorder(), x, y)
    moves.copy(Recorder(), x._replace(strides=(8 << 18, 8)), y)
    assert [c[0] for c in calls] == ["transpose", "copy_1"]
    assert calls[0][2][3] == 1 << 33 and calls[0][2][4] == 1 << 27
    assert calls[1][1][0] >= 1 << 35 and not moves.narrow(1 << 33)


def test_views():
    x = moves.Array(None, 8, ir.FLOAT32, (2, 3), (12, 4))
    assert permuted(x, (1, 0)).strides == (4, 12)
    assert reshaped(x, (3, 2)).strides == (8, 4)
    assert x.is_contiguous and not permuted(x, (1, 0)).is_contiguous
    assert [NUMPY[c].itemsize for c in range(6)] == list(ir.ITEMSIZE)
