"""Gather, scatter, places, masks, class numbers and order on OpenCL devices: the cpu's bits and errors."""

import numpy as np
import pytest

import tapeflow as tp
from tapeflow import _core
from tapeflow._core import GuardFailed
from tapeflow.backend.opencl import gather, moves, order
from tapeflow.errors import TensorIndexError
from tapeflow.plan import ir
from tapeflow.testing.layouts import special_points
from tests.opencl_arrays import (
    LAYOUTS,
    NUMPY,
    as_gpu,
    assert_bits,
    both_shapes,
    check,
    cpu,
    dtypes_of,
    place,
    run,
    run_op,
    values,
)
from tests.opencl_devices import device  # noqa: F401

RNG = np.random.default_rng(6)
CASES = [  # shape, axis, shape of the indices
    ((10,), 0, (4,)),
    ((10,), 0, ()),
    ((7, 5), 0, (3, 2)),
    ((7, 5), 1, (9,)),
    ((4, 6, 20), 1, (13,)),
    ((3, 4, 5), 2, (300,)),
    ((2, 3, 4, 33), 2, (2, 5)),
    ((5,), 0, (0,)),
    ((0, 3), 1, (2,)),
    ((3, 0), 0, (2,)),
    ((1, 1), 1, (70,)),
]


def taken(shape, axis, idx):
    return (*shape[:axis], *idx, *shape[axis + 1 :])


@pytest.mark.parametrize("shape, axis, idx_shape", CASES)
def test_take(device, shape, axis, idx_shape):  # noqa: F811
    idx = RNG.integers(0, max(shape[axis], 1), idx_shape)
    for dtype in dtypes_of(device):
        x = values(RNG, dtype, shape)
        for layout in LAYOUTS if dtype == ir.FLOAT32 else ("packed", "transposed"):
            check(device, "take", (axis,), [x, idx], dtype, taken(shape, axis, idx_shape), (layout, "packed"))


def test_take_of_a_strided_table_copies_nothing(device):  # noqa: F811
    x = values(RNG, ir.FLOAT32, (50, 20))
    arrays = [place(device, x.T), place(device, np.array([3, 3, 49]))]
    table = arrays[0]._replace(shape=x.shape, strides=arrays[0].strides[::-1])
    out = device.empty_array(ir.FLOAT32, (3, 20))
    before = device.launches
    run_op(device, "take", (0,), [table, arrays[1]], out)
    assert device.launches == before + 1
    assert_bits(device.download(out), x[[3, 3, 49]])


@pytest.mark.parametrize("shape, axis, idx_shape", CASES)
def test_put(device, shape, axis, idx_shape):  # noqa: F811
    """Of positions that repeat the last one wins."""
    idx = RNG.integers(0, max((shape[axis] + 1) // 2, 1), idx_shape)
    for shaped in both_shapes(device):
        for dtype in dtypes_of(device, ir.BOOL, ir.INT32, ir.FLOAT64):
            x = values(RNG, dtype, shape)
            v = values(RNG, dtype, taken(shape, axis, idx_shape))
            check(shaped, "put", (axis, 0), [x, idx, v], dtype, shape, ("strided", "packed", "transposed"))


def test_put_without_repeats_and_of_one_number(device):  # noqa: F811
    idx = RNG.permutation(40)[:25]
    for shaped in both_shapes(device):
        for shape, v_shape in (((40,), (25,)), ((3, 40, 2), (3, 25, 2)), ((40, 20), (25, 20))):
            x, v = values(RNG, ir.FLOAT32, shape), values(RNG, ir.FLOAT32, v_shape)
            axis = shape.index(40)
            check(shaped, "put", (axis, 1), [x, idx, v], ir.FLOAT32, shape)
            same = np.broadcast_to(np.float32(7), v_shape)
            check(shaped, "put", (axis, 1), [x, idx, same], ir.FLOAT32, shape, ("packed", "packed", None))


def test_last_writers_in_several_turns(device, monkeypatch):  # noqa: F811
    monkeypatch.setattr(gather, "MOST_WRITERS", 7)
    x, idx, v = values(RNG, ir.INT64, (5, 3)), RNG.integers(0, 5, 40), values(RNG, ir.INT64, (40, 3))
    check(as_gpu(device), "put", (0, 0), [x, idx, v], ir.INT64, (5, 3))


@pytest.mark.parametrize("shape, axis, idx_shape", CASES)
def test_scatter_add(device, shape, axis, idx_shape):  # noqa: F811
    """What is added to one place is added in the order of the indices: so the cpu's bits."""
    idx = RNG.integers(0, max((shape[axis] + 1) // 2, 1), idx_shape)
    for shaped in both_shapes(device):
        for dtype in dtypes_of(device, *range(1, 6)):
            x = values(RNG, dtype, shape)
            u = values(RNG, dtype, taken(shape, axis, idx_shape))
            check(shaped, "scatter_add", (axis,), [x, idx, u], dtype, shape, ("transposed", "packed", "reversed"))


def test_many_repeats_give_the_same_bits_each_time(device):  # noqa: F811
    x = np.zeros(3, np.float32)
    for m in (1500, 5000):  # beyond what one group puts in order
        idx = RNG.integers(0, 3, m)
        u = (RNG.standard_normal(m) * 10.0 ** RNG.integers(-6, 6, m)).astype(np.float32)
        for shaped in both_shapes(device):
            for _ in range(2):
                check(shaped, "scatter_add", (0,), [x, idx, u], ir.FLOAT32, (3,))


# ---- places


def places_params(shape, together, steps, each):
    return (len(shape), together, *shape, *steps, *[n for one in each for n in one])


PLACES = [  # shape, together, steps, (extent, times, axis) and shape of each index
    ((4,), 1, (0,), [((9, 1, 0), (4,))]),
    ((), 0, (), [((9, 5, 0), ())]),
    ((3, 5), 2, (0, 0), [((6, 7, 0), (3, 1)), ((7, 1, 1), (5,))]),
    ((3, 5, 2), 2, (0, 0, 1), [((6, 14, 0), (1, 5)), ((7, 2, 1), (3, 5))]),
    ((2, 3, 4), 3, (12, 0, 1), [((3, 4, 1), (2, 3, 1))]),
    ((2, 2, 2, 2, 2), 5, (0,) * 5, [((3, 1, 0), (2, 1, 2, 1, 2)), ((3, 3, 1), (1, 2, 1, 2, 1))]),
    ((40, 3), 2, (3, 0), [((5, 1, 1), (40, 3))]),
    ((0, 3), 2, (0, 0), [((5, 1, 0), (0, 3))]),
]


@pytest.mark.parametrize("shape, together, steps, each", PLACES)
def test_places(device, shape, together, steps, each):  # noqa: F811
    for dtype in (ir.UINT8, ir.INT32, ir.INT64):
        ins = []
        for (extent, _, _), index in each:
            low = 0 if dtype == ir.UINT8 else -extent
            ins.append(RNG.integers(low, extent, index).astype(NUMPY[dtype]))
        params = places_params(shape, together, steps, [one for one, _ in each])
        for shaped in both_shapes(device):
            for layout in ("packed", "strided"):
                check(shaped, "places", params, ins, ir.INT64, shape, layout)


def test_places_of_more_axes_than_any_kernel_has(device, monkeypatch):  # noqa: F811
    monkeypatch.setattr(gather, "PLACE_RANKS", (1, 2))
    shape, together, steps, each = PLACES[5]
    ins = [RNG.integers(-extent, extent, index) for (extent, _, _), index in each]
    check(device, "places", places_params(shape, together, steps, [one for one, _ in each]), ins, ir.INT64, shape)


def assert_same_error(device, name, params, ins, dtype, shape):  # noqa: F811
    with pytest.raises(Exception) as want:
        cpu(name, params, ins, dtype, shape)
    with pytest.raises(type(want.value)) as got:
        run(device, name, params, ins, dtype, shape)
    assert str(got.value) == str(want.value)
    return got.value


def test_an_index_out_of_range_is_the_cpus_error(device):  # noqa: F811
    params = places_params((2, 3), 2, (0, 0), [(4, 5, 2), (5, 1, 3)])
    for rows, columns in (
        ([[1], [4]], [0, 1, 2]),
        ([[1], [-5]], [0, 1, 2]),
        ([[1], [3]], [0, 9, -77]),
        ([[-4], [2**40]], [5, 5, 5]),
    ):
        error = assert_same_error(device, "places", params, [np.array(rows), np.array(columns)], ir.INT64, (2, 3))
        assert isinstance(error, TensorIndexError) and isinstance(error, IndexError)
    bad = np.array([0, 200, 3], np.uint8)
    assert_same_error(device, "places", places_params((3,), 1, (0,), [(200, 1, 0)]), [bad], ir.INT64, (3,))


# ---- masks


def test_nonzero(device):  # noqa: F811
    for shaped in both_shapes(device):
        for dtype in dtypes_of(device):
            for shape in ((0,), (1,), (37,), (5, 0), (4, 9), (3, 4, 5), (5000,)):
                if shape == (5000,) and dtype != ir.BOOL:
                    continue
                x = values(RNG, dtype, shape)
                x[RNG.random(shape) < 0.5] = 0
                count = int(np.count_nonzero(x))
                layout = "strided" if shape == (4, 9) else "offset"
                check(shaped, "nonzero", (1,), [x], ir.INT64, (count,), layout)
                check(shaped, "nonzero", (0,), [x], ir.INT64, (x.ndim, count), layout)


def test_nonzero_of_special_values(device):  # noqa: F811
    for dtype in dtypes_of(device):
        x = special_points(NUMPY[dtype].name)
        check(device, "nonzero", (1,), [x], ir.INT64, (int(np.count_nonzero(x)),))


def test_nonzero_finds_its_own_count(device):  # noqa: F811
    x = np.array([[0, 7, 0], [8, 0, 9]], np.int32)
    for array, flat, want in (
        (x, True, [1, 3, 5]),
        (x, False, [[0, 1, 1], [1, 0, 2]]),
        (x * 0, True, []),
        (np.float32(3), True, [0]),
        (np.zeros((0, 2), np.float32), False, [[], []]),
    ):
        found = gather.nonzero_of(device, place(device, array), flat)
        assert device.download(found).tolist() == want


def test_another_count_is_the_cpus_guard(device):  # noqa: F811
    error = assert_same_error(device, "nonzero", (1,), [np.array([1, 0, 1])], ir.INT64, (3,))
    assert isinstance(error, GuardFailed)


# ---- class numbers


def test_one_hot_and_class_positions(device):  # noqa: F811
    for shape in ((), (5,), (3, 4), (0, 2)):
        for classes in (1, 3, 40):
            ids = RNG.integers(0, classes, shape)
            for dtype in dtypes_of(device):
                check(device, "one_hot", (classes,), [ids], dtype, (*shape, classes), "strided")
            check(device, "class_positions", (classes,), [ids], ir.INT64, shape, "transposed")


def test_a_class_out_of_range_is_the_cpus_error(device):  # noqa: F811
    for ids in ([0, 3, -1], [0, 1, -1], [2, 2, 2**35]):
        x = [np.array(ids)]
        assert_same_error(device, "one_hot", (3,), x, ir.FLOAT32, (3, 3))
        assert_same_error(device, "class_positions", (3,), x, ir.INT64, (3,))
    assert_same_error(device, "one_hot", (0,), [np.array([0])], ir.FLOAT32, (1, 0))


# ---- order

ROWS = [
    ((1,), 0),
    ((2,), 0),
    ((9,), 0),
    ((64,), 0),
    ((65,), 0),
    ((5, 17), 1),
    ((17, 5), 0),
    ((3, 20, 4), 1),
    ((2, 600), 1),
    ((0, 4), 1),
    ((4, 0), 1),
]


@pytest.mark.parametrize("descending", [0, 1])
def test_argsort(device, descending):  # noqa: F811
    """Stable, NaN last in either direction, zeros equal."""
    for shaped in both_shapes(device):
        for dtype in dtypes_of(device):
            for shape, axis in ROWS:
                x = values(RNG, dtype, shape)
                if dtype > ir.UINT8:
                    x = np.where(RNG.random(shape) < 0.5, x, x.ravel()[:1].repeat(x.size).reshape(shape))
                n = shape[axis]
                layout = "strided" if n < 50 else "packed"
                for first in {n, min(n, 3)}:
                    result = (*shape[:axis], first, *shape[axis + 1 :])
                    check(shaped, "argsort", (axis, descending, first), [x], ir.INT64, result, layout)


def test_argsort_of_special_values(device):  # noqa: F811
    for shaped in both_shapes(device):
        for dtype in dtypes_of(device):
            points = special_points(NUMPY[dtype].name)
            x = RNG.permutation(np.concatenate([points, -points if points.dtype.kind == "f" else points]))
            for descending in (0, 1):
                check(shaped, "argsort", (0, descending, x.size), [x], ir.INT64, x.shape)


@pytest.mark.parametrize("n", [2047, 2049, 20000])
def test_argsort_of_long_rows(device, n):  # noqa: F811
    """By radix passes, with edges of blocks inside."""
    for shaped in both_shapes(device):
        for dtype in dtypes_of(device, ir.UINT8, ir.FLOAT32) if n != 2049 else dtypes_of(device, ir.INT64, ir.FLOAT64):
            x = values(RNG, dtype, (2, n))
            x[0, : n // 2] = x[0, 0]
            check(shaped, "argsort", (1, 1, n), [x], ir.INT64, (2, n))
            check(shaped, "argsort", (1, 0, 5), [x], ir.INT64, (2, 5))


def test_order_with_small_groups(device):  # noqa: F811
    x = values(RNG, ir.FLOAT32, (2, 1500))
    for most in (1, 8):
        shaped = as_gpu(device, max_workgroup=most)
        check(shaped, "argsort", (1, 0, 1500), [x], ir.INT64, (2, 1500))
        check(shaped, "argsort", (1, 0, 90), [x[:, :90]], ir.INT64, (2, 90))
        check(shaped, "nonzero", (1,), [x > 0], ir.INT64, (int(np.count_nonzero(x > 0)),))


def test_order_of_integers_below_a_bound(device):  # noqa: F811
    for shaped in both_shapes(device):
        for n, below in ((30, 1), (3000, 1), (3000, 17), (3000, 2**33)):
            x = RNG.integers(0, below, n)
            out = device.empty_array(ir.INT64, (n,))
            order.order_rows(shaped, place(device, x), 1, n, False, out, below=below)
            assert_bits(device.download(out), np.argsort(x, kind="stable"))


def test_searchsorted(device):  # noqa: F811
    for table_type in dtypes_of(device):
        table = np.sort(np.concatenate([special_points(NUMPY[table_type].name), values(RNG, table_type, (9,))]))
        for value_type in dtypes_of(device):
            v = np.concatenate([special_points(NUMPY[value_type].name), values(RNG, value_type, (13,))]).reshape(-1, 1)
            for right in (0, 1):
                check(device, "searchsorted", (right,), [table, v], ir.INT64, v.shape, ("reversed", "strided"))


def test_searchsorted_of_integers_that_float64_rounds(device):  # noqa: F811
    """An int64 and a float are compared in float64, on devices without it, too."""
    table = np.array([2.0**53, 2.0**53 + 2.0**31, 2.0**60, 2.0**63], np.float32)
    near = [
        int(t) + k for t in table[:3] for k in (-2000, -129, -128, -127, -65, -64, -1, 0, 1, 2, 3, 64, 65, 128, 129)
    ]
    v = np.array([*near, 2**63 - 1, -(2**63), 2**63 - 512, 2**63 - 513], np.int64)
    for right in (0, 1):
        check(device, "searchsorted", (right,), [table, v], ir.INT64, v.shape)
    tiny = np.array([-1e-45, 0.0, 1e-45, 1e-40, 1.2e-38, 1e-37], np.float32)
    check(device, "searchsorted", (0,), [tiny, np.array([0, 1, -1], np.int32)], ir.INT64, (3,))
    for shape in ((0,), (2, 0)):
        check(device, "searchsorted", (0,), [tiny, np.zeros(shape, np.int32)], ir.INT64, shape)
    check(device, "searchsorted", (1,), [tiny[:0], tiny], ir.INT64, tiny.shape)


def test_a_new_shape_compiles_nothing(device):  # noqa: F811
    def gathered(n):
        x, idx = values(RNG, ir.FLOAT32, (n, 3)), RNG.integers(0, n, (n, 2))
        check(device, "take", (0,), [x, idx], ir.FLOAT32, (n, 2, 3))
        check(device, "scatter_add", (0,), [x, idx[:, 0].copy(), x], ir.FLOAT32, (n, 3))
        check(device, "argsort", (0, 0, n), [x], ir.INT64, (n, 3))
        check(device, "nonzero", (1,), [x], ir.INT64, (int(np.count_nonzero(x)),))

    gathered(5)
    before = device.builds
    gathered(50)
    gathered(11)
    assert device.builds == before


def test_the_cpu_gathers_as_the_functions_do():
    """The oracle of this file, compute_op, beside the public functions."""
    x = tp.tensor([[3.0, 1.0], [2.0, 4.0]])
    idx = tp.tensor([1, 1, 0])
    code = ir.CODES["take"]
    assert _core.compute_op(code, (0,), [x, idx], ir.FLOAT32, (3, 2)).tolist() == tp.take(x, idx, 0).tolist()
    assert moves.TEXT and order.TEXT
