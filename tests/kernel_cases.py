"""Every kernel of the OpenCL backend on a few elements: what the checker of kernels runs, and devices with limits.

A case takes a device and whether it goes on to the edges: of tiles, blocks, groups and lanes. Its results are compared
with the cpu's. Tiles and blocks are made small, so that 200 elements have edges enough (a tile of the transposed has
256). tools/check_kernels.py sees to it that no kernel is left out.
"""

import contextlib
import struct
from types import SimpleNamespace
from unittest import mock

import numpy as np

import tapeflow as tp
from tapeflow import _core, ops
from tapeflow.backend.opencl import fused, gather, matmul, moves, order, random, reductions, scans, trial
from tapeflow.backend.opencl.fused import Body, Step
from tapeflow.backend.opencl.host import Device
from tapeflow.backend.opencl.programs import Kernel
from tapeflow.errors import TensorIndexError
from tapeflow.plan import ir
from tests.opencl_arrays import NUMPY, Shaped, cpu, dtypes_of, guarded, place, run, run_op

RNG = np.random.default_rng(17)
FLOATS = (ir.FLOAT32, ir.FLOAT64)
SMALL = [  # module, name, and what it is in tests
    (reductions, "CHUNK", 32),
    (reductions, "FAN", 4),
    (order, "SHORT_LINE", 32),
    (order, "SHORT_GROUP", 32),
    (order, "RADIX", {True: (8, 1, 32), False: (4, 8, 32)}),
    (gather, "MASK_BLOCK", 32),
    (scans, "LONG_LINE", 64),
    (moves, "MOST_ROWS", 5),
    (moves, "MOST_GROUPS", 3),
]
TILES = (matmul.CpuTile(2, 4, 2), matmul.GpuTile(2, 2, 2, 2, 3))


@contextlib.contextmanager
def small():
    """Inside, tiles, blocks and chunks are small."""
    with contextlib.ExitStack() as stack:
        for module, name, value in SMALL:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


@contextlib.contextmanager
def capped(limit):
    """Inside, no kernel takes larger work-groups than this, whatever its device does: as where it wants registers."""
    init = Kernel.__init__

    def made(self, *args):
        init(self, *args)
        self.max_group = min(self.max_group, limit)

    with mock.patch.object(Kernel, "__init__", made):
        yield


def shapes(device, most=8):
    """The device with the kernels of CPUs, and with those of GPUs, in work-groups of at most `most`."""
    return (
        Shaped(device, is_cpu=True, vector_width=16),
        Shaped(device, is_cpu=False, max_workgroup=min(most, device.max_workgroup), local_memory=16384),
    )


def numbers(dtype, shape):
    """Whole numbers, of which any order of summing makes the same, with repeats and zeros."""
    low = 0 if dtype <= ir.UINT8 else -6
    return RNG.integers(low, 2 if dtype == ir.BOOL else 7, shape).astype(NUMPY[dtype])


def near(got, want, what, rtol=None):
    """Integers are equal, floats within rounding of another order or another library."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    if want.dtype.kind != "f":
        same = got == want
    else:
        rtol = rtol or (2e-6 if want.dtype == np.float32 else 1e-13)
        scale = np.max(np.abs(want), initial=1.0, where=np.isfinite(want))
        with np.errstate(invalid="ignore"):
            close = np.abs(got.astype(np.float64) - want) <= rtol * np.maximum(scale, np.abs(want))
        same = close | (got == want) | (np.isnan(got) & np.isnan(want))
    assert same.all(), f"{what}: {got[~same][:4]} for {want[~same][:4]}, {np.count_nonzero(~same)} of {same.size}"


def agrees(device, name, params, ins, dtype, shape, layouts="packed", rtol=None):
    got = run(device, name, params, ins, dtype, shape, layouts)
    near(got, cpu(name, params, ins, dtype, shape), (name, params, [x.shape for x in ins], layouts), rtol)


def refuses(device, name, params, ins, dtype, shape):
    try:
        run(device, name, params, ins, dtype, shape)
    except TensorIndexError:
        return
    raise AssertionError(f"{name} takes an index that is out of range")


# ---- moves


def copies(device, edges):
    for shaped in shapes(device):
        for dtype in (ir.UINT8, ir.FLOAT32, ir.INT64) if edges else (ir.FLOAT32,):
            for rank in moves.RANKS:
                extents = (3, 2, 3, 2)[4 - min(rank, 4) :]
                x = numbers(dtype, (*extents, 5))
                swapped = (*range(len(extents)), len(extents))
                if rank > 1:
                    swapped = (*range(len(extents) - 1, -1, -1), len(extents))
                with mock.patch.object(moves, "RANKS", (rank,)):  # runs of x that are runs of the result; none
                    agrees(shaped, "permute_dims", swapped, [x], dtype, tuple(x.shape[a] for a in swapped))
                    agrees(shaped, "permute_dims", swapped, [x], dtype, tuple(x.shape[a] for a in swapped), "strided")


def copied_runs(device, edges):
    """Of every rank: an axis of runs, and others that are not joined."""
    for rank in moves.RANKS:
        with mock.patch.object(moves, "RANKS", (rank,)):
            for shaped in shapes(device):
                n = 17 if shaped.is_cpu else 3
                x, axes = numbers(ir.FLOAT32, (2, 3, n)), (1, 0, 2)
                if rank == 1:
                    x, axes = x[0, 0], (0,)
                agrees(shaped, "permute_dims", axes, [x], ir.FLOAT32, tuple(x.shape[a] for a in axes))
            if edges and rank == 1:
                for n in (1, 7, 8, 9, 15, 16, 17, 64, 65):
                    for shaped in shapes(device):
                        agrees(shaped, "identity", (), [numbers(ir.BOOL, (n,))], ir.BOOL, (n,), "offset")


def transposed(device, edges):
    for shaped in shapes(device, 16):
        for shape in ((16, 17), (17, 16)) if edges else ((17, 16),):
            for dtype in (ir.UINT8, ir.FLOAT32, ir.INT64) if edges else (ir.FLOAT32,):
                agrees(shaped, "permute_dims", (1, 0), [numbers(dtype, shape)], dtype, shape[::-1])


def filled(device, edges):
    for shaped in shapes(device):
        for n in (1, 7, 8, 9, 65) if edges else (7,):
            out = guarded(device, ir.INT32, (n,))
            moves.fill(shaped, out, 41)
            near(device.download(out), np.full(n, 41, np.int32), "fill")


def windows(device, edges):
    x = numbers(ir.FLOAT32, (5, 6))
    for shaped in shapes(device):
        agrees(shaped, "getitem", (1, 2, 2, 5, 5, -2, 3, 6), [x], ir.FLOAT32, (2, 3), "transposed")
        part = numbers(ir.FLOAT32, (2, 3))
        agrees(shaped, "unslice", (1, 2, 2, 5, 5, -2, 3, 6), [part], ir.FLOAT32, (5, 6))
        agrees(shaped, "assign", (1, 2, 2, 5, 5, -2, 3, 6), [x, part], ir.FLOAT32, (5, 6))
        agrees(shaped, "concat", (1,), [x, x[:, :1], x[:, :0]], ir.FLOAT32, (5, 7))
        agrees(shaped, "broadcast_to", (), [x[:, :1]], ir.FLOAT32, (3, 5, 4), "offset")


# ---- gather


def takes(device, edges):
    for shaped in shapes(device):
        for dtype in (ir.BOOL, ir.FLOAT32, ir.INT64) if edges else (ir.FLOAT32,):
            for shape, axis, m in (((4, 17), 0, 3), ((4, 5), 1, 9), ((2, 3, 4), 1, 5), ((9,), 0, 1)):
                x, idx = numbers(dtype, shape), RNG.integers(0, shape[axis], m)
                to = (*shape[:axis], m, *shape[axis + 1 :])
                agrees(shaped, "take", (axis,), [x, idx], dtype, to, ("strided", "packed"))


def puts(device, edges):
    for shaped in shapes(device):
        for dtype in (ir.BOOL, ir.FLOAT32, ir.INT64) if edges else (ir.FLOAT32,):
            for shape, axis, m in (((4, 17), 0, 7), ((2, 5, 3), 1, 9), ((9,), 0, 9)):
                x, v = numbers(dtype, shape), numbers(dtype, (*shape[:axis], m, *shape[axis + 1 :]))
                repeated = RNG.integers(0, (shape[axis] + 1) // 2, m)
                agrees(shaped, "put", (axis, 0), [x, repeated, v], dtype, shape, ("strided", "packed", "reversed"))
                some = RNG.permutation(shape[axis])[:m]
                v = v[(slice(None),) * axis + (slice(0, some.size),)]
                agrees(shaped, "put", (axis, 1), [x, some, v], dtype, shape)


def scattered(device, edges):
    for shaped in shapes(device):
        dtypes = (ir.UINT8, ir.INT32, ir.FLOAT32, ir.INT64, ir.FLOAT64) if edges else (ir.FLOAT32,)
        for dtype in dtypes_of(device, *dtypes):
            for shape, axis, m in (((4, 17), 0, 5), ((2, 5, 3), 1, 9), ((5,), 0, 40)):
                x, u = numbers(dtype, shape), numbers(dtype, (*shape[:axis], m, *shape[axis + 1 :]))
                idx = RNG.integers(0, (shape[axis] + 1) // 2, m)
                agrees(shaped, "scatter_add", (axis,), [x, idx, u], dtype, shape, ("packed", "packed", "transposed"))


def placed(device, edges):
    shape, together = (3, 5, 2), 2
    for shaped in shapes(device):
        for rank in gather.PLACE_RANKS:
            for dtype in (ir.UINT8, ir.INT32, ir.INT64) if edges else (ir.INT64,):
                rows, columns = (RNG.integers(0 if dtype == ir.UINT8 else -n, n, s).astype(NUMPY[dtype])
                                 for n, s in ((6, (3, 1)), (7, (5,))))  # fmt: skip
                params = (3, together, *shape, 0, 0, 1, 6, 14, 0, 7, 2, 1)
                with mock.patch.object(gather, "PLACE_RANKS", (rank,)):
                    agrees(shaped, "places", params, [rows, columns], ir.INT64, shape, "strided")
        bad = np.array([3, 9, -9], np.int64)
        refuses(shaped, "places", (1, 1, 3, 0, 6, 1, 0), [bad], ir.INT64, (3,))


def masks(device, edges):
    for shaped in shapes(device):
        for dtype in dtypes_of(device, *range(6)) if edges else (ir.BOOL,):
            for shape in ((1,), (7,), (32,), (33,), (9, 13)) if edges else ((9, 13),):
                x = numbers(dtype, shape)
                count = int(np.count_nonzero(x))
                agrees(shaped, "nonzero", (1,), [x], ir.INT64, (count,), "offset")
                agrees(shaped, "nonzero", (0,), [x], ir.INT64, (len(shape), count))


def classes(device, edges):
    ids = RNG.integers(0, 5, (3, 4))
    for shaped in shapes(device):
        for dtype in (ir.BOOL, ir.FLOAT32, ir.INT64) if edges else (ir.FLOAT32,):
            agrees(shaped, "one_hot", (5,), [ids], dtype, (3, 4, 5), "strided")
        agrees(shaped, "class_positions", (5,), [ids], ir.INT64, (3, 4))
        wrong = np.array([1, 5, -1, 7])
        refuses(shaped, "one_hot", (5,), [wrong], ir.FLOAT32, (4, 5))
        refuses(shaped, "class_positions", (5,), [wrong], ir.INT64, (4,))


# ---- order


def sorts(device, edges):
    for shaped in shapes(device):
        for dtype in dtypes_of(device, *range(6)) if edges else (ir.FLOAT32,):
            rows = ((1,), (2, 3), (8,), (9,), (3, 17), (32,), (33,), (2, 65)) if edges else ((3, 17), (2, 65))
            for shape in rows:
                n = shape[-1]
                axis = len(shape) - 1
                for descending, first in {(0, n), (1, min(n, 3))}:
                    to = (*shape[:-1], first)
                    agrees(shaped, "argsort", (axis, descending, first), [numbers(dtype, shape)], ir.INT64, to)


def searches(device, edges):
    for table_type in dtypes_of(device, *range(6)) if edges else (ir.FLOAT32,):
        for dtype in dtypes_of(device, *range(6)) if edges else (ir.INT64,):
            for n in (0, 1, 9) if edges else (9,):
                table, x = np.sort(numbers(table_type, (n,))), numbers(dtype, (3, 5))
                for shaped in shapes(device):
                    agrees(shaped, "searchsorted", (n % 2,), [table, x], ir.INT64, x.shape, ("reversed", "strided"))


# ---- scans


def running(device, edges):
    names = ("cumulative_sum", "cumulative_prod", "logcumsumexp", "cumulative_max", "cumulative_argmax", "recurrence")
    for shaped in shapes(device):
        for name in names:
            whole = name in ("cumulative_sum", "cumulative_prod", "recurrence")
            dtypes = range(6) if name.startswith("cumulative_") and "max" in name else (ir.INT64, *FLOATS)
            for dtype in dtypes_of(device, *(dtypes if edges else (ir.FLOAT32,))):
                if dtype == ir.INT64 and name in ("logcumsumexp", "recurrence"):
                    continue
                lines = ((130,), 0), ((3, 17), 0), ((5, 2), 1)
                for shape, axis in (*lines, ((64,), 0), ((65, 2), 0), ((1,), 0)) if edges else lines:
                    x = numbers(dtype, shape)
                    if name in ("cumulative_prod", "recurrence"):
                        x = np.sign(x)
                    ins = [x, np.sign(x)] if name == "recurrence" else [x]
                    to = ir.INT64 if name == "cumulative_argmax" else dtype
                    for reverse in (0, 1) if whole and name != "cumulative_prod" else (0,):
                        params = (axis,) if name == "cumulative_argmax" else (axis, reverse)
                        agrees(shaped, name, params, ins, to, shape, "reversed", 1e-5)


# ---- reductions

ROWS = (((150,), 0), ((3, 31), 1), ((70, 2), 0))  # by chunks; along; across
MORE_ROWS = (((1,), 0), ((15,), 0), ((16,), 0), ((17,), 0), ((32, 3), 0), ((33, 3), 0), ((2, 65), 0), ((3, 64), 0),
             ((129,), 0), ((5, 7), 1))  # fmt: skip


def reduced(device, edges, names):
    for shaped in shapes(device, 64 if edges else 8):
        for name in names:
            for dtype in dtypes_of(device, *(range(6) if edges else (ir.INT32, ir.FLOAT32))):
                if dtype not in FLOATS and name in ("mean", "nansum", "vector_norm"):
                    continue
                to = dtype
                if name in ("any", "all"):
                    to = ir.BOOL
                elif "arg" in name or "count" in name or name == "sum" and dtype not in FLOATS:
                    to = ir.INT64
                for shape, axis in (*ROWS, *MORE_ROWS) if edges and dtype in (ir.BOOL, ir.FLOAT32) else ROWS:
                    x = numbers(dtype, shape)
                    left = shape[:axis] + shape[axis + 1 :]
                    layout = "packed" if len(shape) == 1 else "transposed"
                    for each in {"packed", layout}:
                        agrees(shaped, name, (1 << axis, shape[axis]), [x], to, left, each)


def sums(device, edges):
    reduced(device, edges, ("sum", "mean", "nansum", "vector_norm"))


def counts(device, edges):
    reduced(device, edges, ("count_nonzero", "any", "all"))


def extrema(device, edges):
    reduced(device, edges, ("max", "min", "argmax", "argmin"))


def bits(number):
    return struct.unpack("q", struct.pack("d", number))[0]


def variances(device, edges):
    for shaped in shapes(device, 64 if edges else 8):
        for dtype in dtypes_of(device, *(FLOATS if edges else (ir.FLOAT32,))):
            for shape, axis in (*ROWS, *MORE_ROWS) if edges else ROWS:
                n, x, y = shape[axis], numbers(dtype, shape), numbers(dtype, shape)
                left = shape[:axis] + shape[axis + 1 :]
                for layout in ("packed", "reversed"):
                    agrees(shaped, "var", (1 << axis, n, bits(n)), [x], dtype, left, layout, 1e-5)
                    agrees(shaped, "vecdot", (1 << axis,), [x, y], dtype, left, layout)
        agrees(shaped, "std", (1, 9, bits(8)), [numbers(ir.FLOAT32, (9, 3))], ir.FLOAT32, (3,), "packed", 1e-5)


def single(device, edges):
    """Sums of pairs of float32, where there is no float64."""
    for shaped in shapes(Shaped(device, fp64=False)):
        for name, params in (("sum", (1, 150)), ("vector_norm", (1, 150)), ("var", (1, 150, bits(150)))):
            agrees(shaped, name, params, [numbers(ir.FLOAT32, (150,))], ir.FLOAT32, (), "packed", 1e-5)
        agrees(shaped, "vecdot", (1,), [numbers(ir.FLOAT32, (70, 2))] * 2, ir.FLOAT32, (2,))
        for name in ("cumulative_sum", "cumulative_prod", "logcumsumexp"):
            for shape in ((130,), (3, 17)):
                agrees(shaped, name, (0, 0), [np.sign(numbers(ir.FLOAT32, shape))], ir.FLOAT32, shape, "packed", 1e-5)
        agrees(shaped, "softmax", (), [numbers(ir.FLOAT32, (3, 20))], ir.FLOAT32, (3, 20), "packed", 1e-5)


# ---- rows


def softmaxes(device, edges):
    lengths = (1, 15, 16, 17, 63, 64, 65) if edges else (17,)
    for most in (8, 64) if edges else (8,):
        for shaped in shapes(device, most):
            for dtype in dtypes_of(device, *(FLOATS if edges else (ir.FLOAT32,))):
                for n in lengths:
                    x, g = numbers(dtype, (3, n)), np.asarray(0.5, NUMPY[dtype])
                    labels = RNG.integers(0, n, 3)
                    for name in ("softmax", "log_softmax"):
                        agrees(shaped, name, (), [x], dtype, (3, n), "transposed", 1e-5)
                    agrees(shaped, "logsumexp", (), [x], dtype, (3,), "packed", 1e-5)
                    agrees(shaped, "cross_entropy", (), [x, labels], dtype, (), "packed", 1e-5)
                    agrees(shaped, "cross_entropy_vjp", (), [g, x, labels], dtype, (3, n), "packed", 1e-5)
            wrong = [numbers(ir.FLOAT32, (3, 4)), np.array([0, 4, -1])]
            refuses(shaped, "cross_entropy", (), wrong, ir.FLOAT32, ())
            refuses(shaped, "cross_entropy_vjp", (), [np.float32(1), *wrong], ir.FLOAT32, (3, 4))


def norms(device, edges):
    for most in (8, 64) if edges else (8,):
        for shaped in shapes(device, most):
            for dtype in dtypes_of(device, *(FLOATS if edges else (ir.FLOAT32,))):
                for n in (1, 15, 16, 17, 63, 64, 65) if edges else (17,):
                    x, weight, bias = numbers(dtype, (3, n)), numbers(dtype, (n,)), numbers(dtype, (n,))
                    for more in ([], [weight], [weight, bias]) if edges else ([weight, bias],):
                        params = (1, bits(1e-3), int(len(more) != 1))
                        agrees(shaped, "layer_norm", params, [x, *more], dtype, (3, n), "reversed", 2e-5)


# ---- products


def products(device, edges):
    """With small tiles: whole ones, ragged ones, deeper than one."""
    cpu_shape, gpu_shape = shapes(device)
    sizes = [(3, 9, 4), (2, 8, 3)] + [(1, 1, 1), (4, 4, 3), (5, 17, 7), (17, 5, 6), (2, 3, 0), (1, 8, 5)] * edges
    for shaped, tile in ((cpu_shape, TILES[0]), (gpu_shape, TILES[1])):
        for dtype in dtypes_of(device, *(range(6) if edges else (ir.FLOAT32,))):
            for m, n, k in sizes:
                a, b = numbers(dtype, (m, k)), numbers(dtype, (k, n))
                for layouts in ("packed", "transposed", ("reversed", "strided")):
                    layouts = [layouts] * 2 if isinstance(layouts, str) else layouts
                    out = guarded(device, dtype, (m, n))
                    arrays = [place(device, x, layout) for x, layout in zip((a, b), layouts)]
                    matmul.execute_matmul(shaped, ir.CODES["matmul"], (), arrays, out, tile=tile)
                    near(device.download(out), cpu("matmul", (), [a, b], dtype, (m, n)), ("matmul", m, n, k, layouts))
    a, b = numbers(ir.FLOAT32, (2, 3, 4)), numbers(ir.FLOAT32, (2, 4, 5))
    for shaped in (cpu_shape, gpu_shape) if edges else ():
        agrees(shaped, "matmul", (), [a, b], ir.FLOAT32, (2, 3, 5))  # tiles that are larger than the operands
        agrees(shaped, "matmul", (), [a[:, :1], b], ir.FLOAT32, (2, 1, 5), "reversed")


# ---- generated kernels


def groups_of(dtype):
    """The elementwise ops of a dtype, some to a group, of one number of operands."""
    suffix = tuple(ops.DTYPES)[dtype]
    for nin in (1, 2, 3):
        some = [e for e in ops.TABLE.values() if suffix in e.dtypes and e.nin == nin and e.kind != "select"]
        some = [e for e in some if dtype in FLOATS or e.kind != "float"]
        yield from ((nin, some[k : k + 20]) for k in range(0, len(some), 20))


def elementwise(device, edges):
    for dtype in dtypes_of(device, *(range(6) if edges else (ir.INT32, ir.FLOAT32))):
        for nin, entries in groups_of(dtype):
            xs = [numbers(dtype, (9,)) for _ in range(nin)]
            if dtype in FLOATS:
                xs = [np.abs(x) / 8 + x.dtype.type(0.1) for x in xs]
            else:
                xs = [np.abs(x) for x in xs]
            steps = tuple(Step(e.opcode, dtype, tuple(range(nin))) for e in entries)
            body = Body((dtype,) * nin, (), steps, tuple(range(nin, nin + len(steps))))
            results = body.dtypes()[nin:]
            outs = [guarded(device, result, (9,)) for result in results]
            fused.run(device, body, [place(device, x) for x in xs], (), outs)
            for entry, result, out in zip(entries, results, outs, strict=True):
                want = _core.compute_op(entry.opcode, (), [tp.asarray(x) for x in xs], result, (9,)).numpy()
                near(device.download(out), want, entry.name, 1e-5 if dtype == ir.FLOAT32 else 1e-11)
        agrees(device, "where", (), [numbers(ir.BOOL, (9,)), *[numbers(dtype, (9,))] * 2], dtype, (9,))


def casts(device, edges):
    astype = ir.CODES["astype"]
    targets = dtypes_of(device, *range(6))
    for have in targets if edges else (ir.FLOAT32,):
        x = numbers(have, (9,))
        body = Body((have,), (), tuple(Step(astype, k, (0,)) for k in targets), tuple(range(1, 1 + len(targets))))
        outs = [guarded(device, k, (9,)) for k in targets]
        fused.run(device, body, [place(device, x)], (), outs)
        for k, out in zip(targets, outs, strict=True):
            near(device.download(out), cpu("astype", (), [x], k, (9,)), ("astype", have, k))


def schemes(device, edges):
    """Operands that lie flat, in rows, in any way, and as more than 2^31 elements would."""
    body = Body((ir.INT32,) * 2, (), (Step(ir.CODES["subtract"], ir.INT32, (0, 1)),), (2,))
    portable = SimpleNamespace(platform="Portable Computing Language")  # whose kernels have no guard in full groups
    for narrow, long_row in ((1 << 31, 128), (1 << 31, 5), (4, 128)):
        with mock.patch.object(fused, "NARROW", narrow), mock.patch.object(fused, "LONG_ROW", long_row):
            for where in (device, Shaped(device, info=portable)):
                for shape in ((9,), (3, 7), (2, 3, 5)) if edges else ((3, 7),):
                    a, b = numbers(ir.INT32, shape), numbers(ir.INT32, shape)
                    for layouts in (("packed", "packed"), ("transposed", "strided"), ("packed", None)):
                        right = b if layouts[1] else np.broadcast_to(b[..., :1], shape)
                        ins = [place(device, x, layout) for x, layout in zip((a, right), layouts)]
                        out = guarded(device, ir.INT32, shape)
                        strides = [fused.strides_within(x, shape) for x in ins]
                        fused.Fused(where, body, shape, strides)(ins, (), [out])
                        near(device.download(out), a - right, ("subtract", narrow, long_row, shape, layouts))


KINDS = ("uniform", "normal", "bits32", "bits64", "integers", "permutation")


def draws(device, edges):
    kinds = [("uniform", ir.FLOAT32, 0), ("normal", ir.FLOAT32, 0), ("bits32", ir.INT64, 0), ("bits64", ir.INT64, 0),
             ("integers", ir.INT32, 7), ("integers", ir.INT64, 1 << 40), ("permutation", ir.INT64, 0)]  # fmt: skip
    if edges:
        kinds += [("uniform", ir.FLOAT64, 0), ("normal", ir.FLOAT64, 0), ("integers", ir.UINT8, 200)]
    for kind, dtype, count in kinds:
        if dtype not in dtypes_of(device):
            continue
        for n in (1, 3, 4, 5, 41) if edges else (5,):
            generator = tp.random.Generator(3)
            want = _core.random_fill(generator, kind, (n,), ir.DTYPES[dtype], count, -2 * (dtype > 1)).numpy()
            out = guarded(device, dtype, (n,))
            random.fill(device, KINDS.index(kind), out, 3, 0, count, -2 * (dtype > 1))
            near(device.download(out), want, kind)


def probes(device, edges):
    assert trial.check(device) == ""


# ---- beyond 2^31, without the memory

FAR = 1 << 33  # elements that are not there; those behind them are


@contextlib.contextmanager
def last_groups(axis=0):
    """Inside, of all work-groups of a launch only those along a dimension run that begin at 2^33, or the last one."""

    def enqueue(self, kernel, whole, local):
        size, offset = list(whole), [0] * len(whole)
        offset[axis] = FAR if whole[axis] > FAR else whole[axis] - local[axis]
        size[axis] -= offset[axis]
        self.cl.enqueue_nd_range_kernel(self.queue, kernel.handle, tuple(size), local, tuple(offset))

    with mock.patch.object(Device, "_enqueue", enqueue):
        yield


def tail(device, x, stride=1):
    """An array of FAR more rows than x, of which the memory, with every stride-th element, is that of x alone."""
    x = np.ascontiguousarray(x)
    array = place(device, np.repeat(x, stride))
    item = x.itemsize * stride * (x.size // len(x))
    shape = (FAR + len(x), *x.shape[1:])
    strides = tuple(s * stride for s in x.strides)
    return array._replace(offset=-FAR * item, shape=shape, strides=strides)


def far_moves(device, edges):
    x = np.arange(7, dtype=np.int32)
    for shaped in shapes(device):
        for stride in (1, 3):
            out = tail(device, x * 0)
            with last_groups():
                moves.copy(shaped, tail(device, x, stride), out)
            near(device.download(out._replace(offset=0, shape=(7,))), x, "copy")
        with last_groups():
            moves.fill(shaped, out, 5)
        near(device.download(out._replace(offset=0, shape=(7,))), x * 0 + 5, "fill")
        rows = np.arange(80, dtype=np.int32).reshape(40, 2)
        out, source = tail(device, rows * 0), tail(device, rows)
        with last_groups(0 if shaped.is_cpu else 2):  # of which no more than 40 rows are
            moves.copy(shaped, source._replace(strides=(8, -4), offset=source.offset + 4), out)
        got = device.download(out._replace(offset=0, shape=(40, 2)))
        filled = got.any(1)
        assert filled[-1] and np.array_equal(got[filled], rows[:, ::-1][filled])


def far_gather(device, edges):
    x, idx = np.arange(7, dtype=np.float32), np.array([4, 0, 6])
    for shaped in shapes(device):
        table = tail(device, x)
        out = guarded(device, ir.FLOAT32, (3,))
        run_op(shaped, "take", (0,), [table, place(device, idx + FAR)], out)
        near(device.download(out), x[idx], "take")
        whole = tail(device, x * 0)
        with last_groups():
            run_op(shaped, "take", (0,), [place(device, x), tail(device, np.arange(7)[::-1])], whole)
        near(device.download(whole._replace(offset=0, shape=(7,))), x[::-1], "take")
        with mock.patch.object(gather, "copy"):  # of operand 0 into the result
            for name, params in (("put", (0, 1)), ("scatter_add", (0,))):
                out = tail(device, x * 0)
                given = [out, place(device, idx + FAR), place(device, x[:3] + 1)]
                run_op(shaped, name, params, given, out)
                want = np.array([2, 0, 0, 0, 1, 0, 3], np.float32)
                near(device.download(out._replace(offset=0, shape=(7,))), want, name)
        table = place(device, np.array([5.0], np.float32))._replace(shape=(FAR,), strides=(0,))
        out = guarded(device, ir.INT64, (3,))
        run_op(shaped, "searchsorted", (1,), [table, place(device, np.array([4, 5, 6]))], out)
        near(device.download(out), np.array([0, FAR, FAR]), "searchsorted")
        agrees(shaped, "places", (1, 1, 3, FAR, FAR, FAR, 0), [np.array([-1, 2, FAR - 1])], ir.INT64, (3,))
        agrees(shaped, "class_positions", (FAR,), [np.array([1, FAR - 1, 0])], ir.INT64, (3,))


def far_lines(device, edges):
    x = numbers(ir.FLOAT32, (7, 3))
    for shaped in shapes(device):
        out = tail(device, x * 0)
        with last_groups():
            run_op(shaped, "cumulative_max", (1, 0), [tail(device, x)], out)
        near(device.download(out._replace(offset=0, shape=(7, 3))), np.maximum.accumulate(x, 1), "cumulative_max")


def far_groups(device, edges):
    """flat, wide and rows."""
    body = Body((ir.INT32,), (), (Step(ir.CODES["negative"], ir.INT32, (0,)),), (1,))
    x = np.arange(7, dtype=np.int32)
    for stride in (1, 3):
        out = tail(device, x * 0)
        with last_groups():
            fused.Fused(device, body, (FAR + 7,), ((stride,),))([tail(device, x, stride)], (), [out])
        near(device.download(out._replace(offset=0, shape=(7,))), -x, ("negative", stride))
    with mock.patch.object(fused, "LONG_ROW", 3), mock.patch.object(moves, "MOST_ROWS", 1 << 40):
        x = np.arange(21, dtype=np.int32).reshape(7, 3)
        out = tail(device, x * 0)
        rows = tail(device, x)
        with last_groups(1):
            backwards = rows._replace(offset=rows.offset + 8, strides=(12, -4))
            fused.Fused(device, body, out.shape, ((3, -1),))([backwards], (), [out])
        got = device.download(out._replace(offset=0, shape=(7, 3)))
        near(got[-1], -x[-1, ::-1], "negative of rows")


CASES = {f.__name__: f for f in (  # the long ones first, in turns of about the same length
    extrema, softmaxes, sums, counts, products, sorts, norms, variances, running, searches, placed, draws, puts,
    schemes, single, copies, elementwise, masks, scattered, windows, classes, transposed, casts, copied_runs, takes,
    probes, filled, far_moves, far_gather, far_lines, far_groups,
)}  # fmt: skip
