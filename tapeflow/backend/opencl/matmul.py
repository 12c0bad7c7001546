"""Matrix products: kernels/matmul.cl, and sums of products where an operand is a vector."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tapeflow._core import ISA_LEVEL
from tapeflow.backend.opencl.moves import merged, start
from tapeflow.backend.opencl.reductions import FLOATS, PLAIN, TYPES, as_rows, has_vectors, reduce
from tapeflow.backend.opencl.table import implements, source
from tapeflow.plan import ir

if TYPE_CHECKING:
    from tapeflow.backend.opencl.host import Array, Device, Memory

SHARED = 16384  # bytes of local memory that a tile may take: every device has them
PANEL = 8192  # elements of a panel of an operand that one work-item packs
STACK = 8  # tiles that are packed together, as in matmul.cl
DIRECT = 4  # tiles of rows up to which packing b costs more than it saves
WORK = 1 << 20  # multiplications that a work-item of a CPU takes before the next one begins
COMPUTED = ("uint", "uint", "uint", "ulong", "float", "double")  # in which type, by dtype of y: unsigned ones may wrap
STORED = ("uchar", "uchar", "uint", "ulong", "float", "double")


class CpuTile(NamedTuple):
    """rows x (vectors of so many elements)."""

    rows: int
    vector: int
    vectors: int

    @property
    def columns(self) -> int:
        return self.vector * self.vectors


class GpuTile(NamedTuple):
    """A work-group of group_rows x group_columns, each with rows x columns elements, taking depth of k at a time."""

    group_rows: int
    group_columns: int
    rows: int
    columns: int
    depth: int

    def nbytes(self, itemsize: int) -> int:
        return self.depth * (self.group_rows * self.rows + self.group_columns * self.columns + 2) * itemsize


Tile = CpuTile | GpuTile


def tile_for(device: Device, dtype: int) -> Tile:
    """The tile of a device for products of a dtype."""
    itemsize = max(4, ir.ITEMSIZE[dtype])
    if has_vectors(device):
        width = min(16, device.vector_width)
        return CpuTile(8 if width == 16 else 6, width * 4 // itemsize, 2)
    return gpu_tile(device.max_workgroup, min(SHARED, device.local_memory), itemsize)


def gpu_tile(limit: int, local_memory: int, itemsize: int) -> GpuTile:
    """The tile for work-groups of at most `limit` and so much local memory."""
    groups = ((256, (16, 16)), (64, (8, 8)), (32, (8, 4)), (8, (4, 2)), (1, (1, 1)))
    group = next(sides for least, sides in groups if limit >= least)
    depth = 16
    while GpuTile(*group, 4, 4, depth).nbytes(itemsize) > local_memory:
        depth //= 2
    return GpuTile(*group, 4, 4, depth)


def has_fma(device: Device) -> bool:
    """Whether fma is an instruction. Implementations for CPUs do not tell; there it is this process's own CPU, and a
    driver that makes no vectors (llvmpipe) computes it step by step."""
    if device.kind == "cpu":
        fast = ISA_LEVEL in ("v3", "v4") or platform.machine() in ("arm64", "aarch64")
        return fast and device.vector_width >= 4
    return bool(device.info.handle.single_fp_config & device.cl.device_fp_config.FMA)


@cache
def _options(fused: bool, tile: Tile, a: int, b: int, y: int) -> tuple[str, ...]:
    shape: tuple[str, ...]
    if isinstance(tile, CpuTile):
        shape = ("-DON_CPU", f"-DROWS={tile.rows}", f"-DV={tile.vector}", f"-DVECTORS={tile.vectors}")
    else:
        shape = tuple([
            f"-D{name}={n}"
            for name, n in zip(("GROUP_ROWS", "GROUP_COLUMNS", "ROWS", "COLUMNS", "DEPTH"), tile, strict=True)
        ])  # fmt: skip
    flags = (
        *(("-DFP64",) if ir.FLOAT64 in (a, b, y) else ()),
        *(("-DFUSED",) if y in FLOATS and fused else ()),
        *(("-DOR",) if y == ir.BOOL else ()),
    )
    return (*shape, f"-DTA={TYPES[a]}", f"-DTB={TYPES[b]}", f"-DT={COMPUTED[y]}", f"-DTY={STORED[y]}", *flags)


@cache
def _argtypes(name: str) -> tuple[Any, ...]:
    """Of the kernels of matmul.cl."""
    long = np.int64
    return {
        "pack": (None, *[long] * 6, None, *[long] * 3),
        "cpu": (None, *[long] * 7, None, *[long] * 5, None, *[long] * 5),
        "gpu": (None, *[long] * 6, None, *[long] * 5, None, *[long] * 4, np.int32, np.int32),
    }[name]


class Batch(NamedTuple):
    """Products (m, k) @ (k, n): their two operands at starts and with steps in elements, (outer, inner) of them."""

    outer: int
    inner: int
    a: Array
    b: Array
    a_start: int
    b_start: int
    a_batch: tuple[int, int]
    b_batch: tuple[int, int]
    a_steps: tuple[int, int]
    b_steps: tuple[int, int]
    m: int
    n: int
    k: int

    @property
    def products(self) -> int:
        return self.outer * self.inner


@implements("matmul")
def execute_matmul(
    device: Device, op: int, params: tuple[int, ...], ins: Sequence[Array], out: Array, tile: Tile | None = None
) -> None:
    """out = a @ b, (..., m, k) and (..., k, n) with the leading axes broadcast; dtypes may differ."""
    if not out.size:
        return
    a, b = (_broadcast(x, (*out.shape[:-2], *x.shape[-2:])) for x in ins)
    if tile is None:
        if _by_sums(device, a, b, out):
            return
        tile = tile_for(device, out.dtype)
    at = start(out)
    for batch in _batches(a, b):
        if isinstance(tile, CpuTile):
            _on_cpu(device, tile, batch, out, at)
        else:
            _on_gpu(device, tile, batch, out, at)
        at += batch.products * batch.m * batch.n


def _broadcast(x: Array, shape: tuple[int, ...]) -> Array:
    """A view of x repeated to a shape."""
    kept = [0 if n == 1 else stride for n, stride in zip(x.shape, x.strides, strict=True)]
    return x._replace(shape=shape, strides=(*[0] * (len(shape) - len(kept)), *kept))


def _by_sums(device: Device, a: Array, b: Array, out: Array) -> bool:
    """A vector times a matrix is a sum of products over k: no tile would be full."""
    m, k = a.shape[-2:]
    n = b.shape[-1]
    if out.dtype not in FLOATS or a.dtype != b.dtype or m > 1 and n > 1 or k == 0:
        return False
    shape = (*out.shape, k)
    left = a._replace(shape=shape, strides=(*a.strides[:-1], 0, a.strides[-1]))
    right = b._replace(shape=shape, strides=(*b.strides[:-2], 0, b.strides[-1], b.strides[-2]))
    rows = as_rows([left, right], 1 << len(out.shape))
    if rows is None:
        return False
    reduce(device, "DOT", PLAIN, rows, out.memory, start(out))
    return True


def _batches(a: Array, b: Array) -> list[Batch]:
    """The products as batches of two axes: one, but for operands that are broadcast in turns."""
    m, k = a.shape[-2:]
    n = b.shape[-1]
    lead = a.shape[:-2]
    sa, sb = ([stride // ir.ITEMSIZE[x.dtype] for stride in x.strides] for x in (a, b))
    if not any(step for step, extent in zip(sb, lead) if extent > 1):  # a shared right factor: rows of one product
        (rows, step), *more = merged((*lead, m), sa[:-1])
        if not more:
            m, lead, sa = rows, (), [step, sa[-1]]
    axes = merged(lead, sa[: len(lead)], sb[: len(lead)])
    inner, outer, *more = (*axes, (1, 0, 0))[: max(2, len(axes))]
    found = []
    for at in itertools.product(*[range(extent) for extent, _, _ in more[::-1]]):
        a_start, b_start = (
            start(x) + sum(i * axis[own] for i, axis in zip(at, more[::-1], strict=True)) for own, x in ((1, a), (2, b))
        )
        found.append(Batch(
            outer[0], inner[0], a, b, a_start, b_start, (outer[1], inner[1]), (outer[2], inner[2]),
            (sa[-2], sa[-1]), (sb[-2], sb[-1]), m, n, k,
        ))  # fmt: skip
    return found


def _on_cpu(device: Device, tile: CpuTile, batch: Batch, out: Array, at: int) -> None:
    options = _options(has_fma(device), tile, batch.a.dtype, batch.b.dtype, out.dtype)
    m, n, k = batch.m, batch.n, batch.k
    panels, rows = -(-n // tile.columns), -(-m // tile.rows)
    same = batch.b.dtype == out.dtype and ir.ITEMSIZE[out.dtype] >= 4
    a, a_where = (
        batch.a.memory,
        (batch.a_start, batch.inner, *batch.a_batch, tile.rows * batch.a_steps[0], *batch.a_steps),
    )
    b, b_where = batch.b.memory, (batch.b_start, *batch.b_batch, tile.columns, batch.b_steps[0])
    if not (same and batch.b_steps[1] == 1 and n % tile.columns == 0 and rows <= DIRECT):
        size = panels * k * tile.columns
        b, steps = _packed(device, "pack", options, tile.columns, panels, size, batch, batch.b, out.dtype)
        b_where = (0, *steps, k * tile.columns, tile.columns)
    if batch.a.dtype == out.dtype and same and abs(batch.a_steps[1]) > abs(batch.a_steps[0]) and k > 1 and panels > 1:
        size = rows * k * tile.rows
        stacks = -(-rows // STACK)
        a, steps = _packed(device, "pack_rows", options, tile.rows * STACK, stacks, size, batch, batch.a, out.dtype)
        a_where = (0, batch.inner, *steps, k * tile.rows, 1, tile.rows)
    work = tile.rows * tile.columns * k
    tiles = max(1, min(WORK // max(1, work), rows * panels * batch.products // (4 * device.compute_units)))
    items = -(-rows // tiles)
    tiles = -(-rows // items)  # as even as they can be
    kernel = device.kernel(source("matmul.cl"), "product", options, _argtypes("cpu"))
    if device.is_surveyed:  # whether operands are packed depends on sizes, and other sizes shall build nothing
        for name in ("pack", "pack_rows"):
            device.kernel(source("matmul.cl"), name, options, _argtypes("pack"))
    device.launch(
        kernel, (items, panels, batch.products), (1, 1, 1),
        a, *a_where, b, *b_where, out.memory, at, m, n, k, tiles,
    )  # fmt: skip


def _packed(
    device: Device, name: str, options: tuple[str, ...], width: int, blocks: int, size: int, batch: Batch, x: Array,
    dtype: int,
) -> tuple[Memory, tuple[int, int]]:  # fmt: skip
    """One operand of each product in the order in which tiles read it, and how far those are apart."""
    is_a = name == "pack_rows"
    where = batch.a_start if is_a else batch.b_start
    around, steps = (batch.a_batch, batch.a_steps) if is_a else (batch.b_batch, batch.b_steps)
    outer, inner = (1 if step == 0 else extent for step, extent in zip(around, (batch.outer, batch.inner), strict=True))
    to = device.alloc(outer * inner * size * max(4, ir.ITEMSIZE[dtype]), "matmul")
    depth = max(1, PANEL // width)
    kernel = device.kernel(source("matmul.cl"), name, options, _argtypes("pack"))
    device.launch(
        kernel, (-(-batch.k // depth), blocks, outer * inner), (1, 1, 1),
        x.memory, where, inner, *around, *steps, to, batch.m if is_a else batch.n, batch.k, depth,
    )  # fmt: skip
    return to, (0 if outer == 1 else inner * size, 0 if inner == 1 else size)


def _on_gpu(device: Device, tile: GpuTile, batch: Batch, out: Array, at: int) -> None:
    while True:
        options = _options(has_fma(device), tile, batch.a.dtype, batch.b.dtype, out.dtype)
        kernel = device.kernel(source("matmul.cl"), "product_tiles", options, _argtypes("gpu"))
        group = tile.group_rows * tile.group_columns
        if group <= kernel.max_group:
            break
        tile = gpu_tile(kernel.max_group, min(SHARED, device.local_memory), max(4, ir.ITEMSIZE[out.dtype]))
    columns = -(-batch.n // (tile.group_columns * tile.columns))
    rows = -(-batch.m // (tile.group_rows * tile.rows))
    a_across, b_across = (abs(steps[1]) <= abs(steps[0]) for steps in (batch.a_steps, batch.b_steps))
    device.launch(
        kernel, (columns * rows * batch.products * group,), (group,),
        batch.a.memory, batch.a_start, batch.inner, *batch.a_batch, *batch.a_steps,
        batch.b.memory, batch.b_start, *batch.b_batch, *batch.b_steps,
        out.memory, at, batch.m, batch.n, batch.k, int(a_across), int(b_across),
    )  # fmt: skip
