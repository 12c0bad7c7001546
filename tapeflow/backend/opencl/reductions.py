"""Reductions over axes, variance and sums of products: kernels/reduce.cl."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tapeflow.backend.opencl.moves import merged, packed, start
from tapeflow.backend.opencl.table import implements, source
from tapeflow.errors import ShapeError
from tapeflow.plan import ir

if TYPE_CHECKING:
    from tapeflow.backend.opencl.host import Array, Device, Kernel, Memory

LANES = 16  # as in kernels/lanes.cl
CHUNK, FAN = 4096, 64  # elements of a chunk; chunks that one work-item joins
BLOCK = 64  # columns that a CPU takes side by side, as in kernels/reduce.cl
GROUP = 256  # work-items of a work-group, on a GPU that takes as many
WORK = 16384  # elements that a work-item of a CPU takes before the next one begins
FLOATS = (ir.FLOAT32, ir.FLOAT64)

PLAIN, MEAN, ROOT, RAW, ANY, ALL = range(6)  # what becomes of a row's root
KINDS = {
    "sum": ("SUM", PLAIN),
    "mean": ("SUM", MEAN),
    "nansum": ("NANSUM", PLAIN),
    "vector_norm": ("NORM", ROOT),
    "count_nonzero": ("COUNT", PLAIN),
    "any": ("COUNT", ANY),
    "all": ("COUNT", ALL),
    "max": ("EXTREMUM", 0),
    "min": ("EXTREMUM", -1),
    "argmax": ("POSITION", 0),
    "argmin": ("POSITION", -1),
}

TYPES = ("uchar", "uchar", "int", "long", "float", "double")  # in OpenCL C, by code of dtype
_INT = ("-DLOWEST=INT_MIN", "-DHIGHEST=INT_MAX", "-DKEY=int")
_LONG = ("-DLOWEST=LONG_MIN", "-DHIGHEST=LONG_MAX", "-DKEY=long")
_OPTIONS = (
    ("-DBITS=uchar", *_INT),
    ("-DBITS=uchar", *_INT),
    ("-DBITS=int", *_INT),
    ("-DBITS=long", *_LONG),
    ("-DBITS=int", *_INT, "-DFLOAT", "-DINFINITE=0x7f800000", "-DQUIET_NAN=0x7fc00000"),
    ("-DBITS=long", *_LONG, "-DFLOAT", "-DINFINITE=0x7ff0000000000000L", "-DQUIET_NAN=0x7ff8000000000000L"),
)
_HOW = "".join(
    [f"#define {name} {value}\n" for value, name in enumerate(("PLAIN", "MEAN", "ROOT", "RAW", "ANY", "ALL"))]
)


class Shape(NamedTuple):
    """How many lanes a work-item holds, how many chunks or rows a work-group takes, and how many lanes those have."""

    width: int
    units: int
    lanes: int = LANES

    @property
    def group(self) -> int:
        return self.lanes // self.width * self.units

    def within(self, limit: int) -> Shape:
        """The same, or smaller, with work-groups of at most `limit`."""
        width, units, lanes = self
        while lanes // width * units > limit:
            if units > 1:
                units //= 2
            elif lanes > LANES:
                lanes //= 2
            else:
                width *= 2
        return Shape(width, units, lanes)


def has_vectors(device: Device) -> bool:
    """Which of the two shapes a kernel has: wide registers, or local memory and neighbours side by side. A driver for
    CPUs that makes no registers of vectors (llvmpipe) wants the other one."""
    return device.is_cpu and device.vector_width >= 4


def shape_for(device: Device, lanes: int = LANES) -> Shape:
    """One work-item with all lanes for a CPU, one lane each for a GPU, more where work-groups are small."""
    return Shape(LANES, 1) if has_vectors(device) else Shape(1, GROUP // lanes, lanes).within(device.max_workgroup)


def fitting_kernel(
    device: Device, text: str, name: str, options: tuple[str, ...], argtypes: tuple[Any, ...], shape: Shape
) -> tuple[Kernel, Shape]:
    """The kernel for a shape, or a smaller one that the device takes for this kernel."""
    while True:
        kernel = device.kernel(text, name, _all_options(options, device.fp64, shape, CHUNK, FAN), argtypes)
        if shape.group <= kernel.max_group:
            return kernel, shape
        shape = shape.within(kernel.max_group)


@cache
def _value_options(dtype: int) -> tuple[str, ...]:
    """Options of reduce.cl."""
    return (f"-DT={TYPES[dtype]}", *_OPTIONS[dtype])


@cache
def _all_options(options: tuple[str, ...], fp64: bool, shape: Shape, chunk: int, fan: int) -> tuple[str, ...]:
    """With those of lanes.cl and of the tree."""
    real = ("-DFP64", "-DREAL=double", "-DEPSILON=DBL_EPSILON") if fp64 else ("-DREAL=float", "-DEPSILON=FLT_EPSILON")
    tree = f"-DCHUNK={chunk}", f"-DFAN={fan}"
    return (*options, f"-DW={shape.width}", f"-DUNITS={shape.units}", f"-DLANES={shape.lanes}", *tree, *real)


@cache
def _text(kind: str) -> str:
    return f"{_HOW}{source('lanes.cl')}#define NAME reduce_{kind.lower()}\n#define {kind}\n{source('reduce.cl')}"


@cache
def _argtypes(kind: str, fp64: bool) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Of the kernel of chunks, and of the one that joins parts."""
    long, real = np.int64, np.float64 if fp64 else np.float32
    view = (None, long, long, long, long)
    more = view if kind == "DOT" else (None,) if kind == "VAR" else ()
    last = (np.int32, real)
    return (*view, *more, None, None, *[long] * 6, np.int32, *last), (None, None, None, *[long] * 4, *last)


class Rows(NamedTuple):
    """Arrays as (outer, inner) rows of n elements; steps of each array: outer, inner, along a row."""

    outer: int
    inner: int
    n: int
    arrays: Sequence[Array]
    steps: list[tuple[int, ...]]

    @property
    def rows(self) -> int:
        return self.outer * self.inner

    def operands(self) -> list[Any]:
        """The arrays as arguments of a kernel."""
        found: list[Any] = []
        for array, steps in zip(self.arrays, self.steps, strict=True):
            found += [array.memory, start(array), *steps]
        return found


def rows_of(device: Device, arrays: Sequence[Array], mask: int) -> Rows:
    """Arrays of one shape and dtype, reduced over the axes in mask; packed where they are more than two axes beside
    one."""
    found = as_rows(arrays, mask)
    if found is None:
        kept, reduced = _split(len(arrays[0].shape), mask)
        shape = tuple([arrays[0].shape[d] for d in kept + reduced])
        turned = [x._replace(shape=shape, strides=tuple([x.strides[d] for d in kept + reduced])) for x in arrays]
        found = as_rows([packed(device, x) for x in turned], ((1 << len(reduced)) - 1) << len(kept))
        assert found is not None
    return found


def as_rows(arrays: Sequence[Array], mask: int) -> Rows | None:
    """rows_of, where the arrays are rows as they lie."""
    first = arrays[0]
    found = _walk(ir.ITEMSIZE[first.dtype], mask, first.shape, *[x.strides for x in arrays])
    return None if found is None else Rows(*found[:3], arrays, found[3])


def _split(ndim: int, mask: int) -> tuple[list[int], list[int]]:
    """The axes that stay, and those in mask."""
    return [d for d in range(ndim) if not mask >> d & 1], [d for d in range(ndim) if mask >> d & 1]


@lru_cache(maxsize=1 << 12)
def _walk(
    itemsize: int, mask: int, shape: tuple[int, ...], *strides: tuple[int, ...]
) -> tuple[int, int, int, list[tuple[int, ...]]] | None:
    """outer, inner, n and steps of Rows."""
    kept, reduced = _split(len(shape), mask)
    if 0 in shape:
        return 1, prod([shape[d] for d in kept]), 0, [(0, 0, 1)] * len(strides)
    inside, outside = (
        merged([shape[d] for d in axes], *[[own[d] // itemsize for d in axes] for own in strides])
        for axes in (reduced, kept)
    )
    if len(inside) > 1 or len(outside) > 2:
        return None
    (n, *along), (inner, *near), (outer, *far) = inside[0], *(*outside, (1, *[0] * len(strides)))[:2]
    return outer, inner, n, list(zip(far, near, along, strict=True))


def reduce(
    device: Device,
    kind: str,
    how: int,
    rows: Rows,
    to: Memory,
    at: int,
    means: Memory | None = None,
    divisor: float = 0.0,
) -> None:
    """to, from element `at` on = the reduction of each row."""
    dtype = rows.arrays[0].dtype
    chunk_types, _ = _argtypes(kind, device.fp64)
    _, near, along = max(rows.steps, key=lambda steps: abs(steps[2]))  # of the array that it matters most to
    across = rows.inner > 1 and along != 1 and abs(near) < abs(along)
    by_columns = has_vectors(device) and (across or rows.n <= LANES <= rows.inner)
    options = _value_options(dtype)
    name = f"reduce_{kind.lower()}_{'columns' if by_columns else 'rows'}"
    kernel, shape = fitting_kernel(device, _text(kind), name, options, chunk_types, shape_for(device))
    if device.is_surveyed:  # what other numbers of rows, and longer ones, take
        _joining_kernel(device, kind, dtype, shape)
        if has_vectors(device) and rows.inner > 1 and not across:
            other = f"reduce_{kind.lower()}_{'rows' if by_columns else 'columns'}"
            fitting_kernel(device, _text(kind), other, options, chunk_types, shape_for(device))
    count = max(1, -(-rows.n // CHUNK))
    part = part_size(kind, dtype, device.fp64)
    parts = device.alloc(part * rows.rows * count, kind) if count > 1 else to
    units, per = rows.rows * count, 1
    if shape.width == LANES:
        work = min(rows.n, CHUNK) + LANES
        if by_columns:
            units, work = rows.outer * -(-rows.inner // BLOCK) * count, work * BLOCK
        per = max(1, min(WORK // work, units // (4 * device.compute_units)))
    device.launch(
        kernel, (-(-units // (per * shape.units)) * shape.group,), (shape.group,),
        *rows.operands(), *([means] if means is not None else []), parts, to, at,
        rows.rows, rows.inner, rows.n, count, per, int(across), how, divisor,
    )  # fmt: skip
    if count > 1:
        join(device, kind, dtype, shape, parts, to, at, rows.rows, rows.n, count, how, divisor)


def _joining_kernel(device: Device, kind: str, dtype: int, shape: Shape) -> Kernel:
    options = _all_options(_value_options(dtype), device.fp64, shape, CHUNK, FAN)
    return device.kernel(_text(kind), f"reduce_{kind.lower()}_parts", options, _argtypes(kind, device.fp64)[1])


def join(
    device: Device, kind: str, dtype: int, shape: Shape, parts: Memory, to: Memory, at: int, rows: int, n: int,
    count: int, how: int, divisor: float = 0.0,
) -> None:  # fmt: skip
    """The results of rows of n from their parts, (count, rows): FAN at a time become one."""
    kernel = _joining_kernel(device, kind, dtype, shape)
    group = 1 if has_vectors(device) else device.group_size(kernel, 64)
    part = part_size(kind, dtype, device.fp64)
    while True:
        blocks = -(-count // FAN)
        fewer = device.alloc(part * rows * blocks, kind) if blocks > 1 else to
        work = -(-rows * blocks // group) * group
        device.launch(kernel, (work,), (group,), parts, fewer, to, at, rows, n, count, how, divisor)
        if blocks == 1:
            return
        parts, count = fewer, blocks


def part_size(kind: str, dtype: int, fp64: bool) -> int:
    """Bytes of what a chunk comes to, PART in reduce.cl."""
    if kind in ("SUM", "NANSUM", "DOT"):
        return 8 if fp64 else 16
    if kind in ("NORM", "VAR"):
        return 8 * ((kind == "VAR") + (1 if fp64 else 3))
    if kind == "EXTREMUM":
        return 8 if dtype in (ir.INT64, ir.FLOAT64) else 4
    return 16 if kind == "POSITION" else 8


@implements(*KINDS)
def execute_reduction(device: Device, op: int, params: tuple[int, ...], ins: Sequence[Array], out: Array) -> None:
    """params: mask of axes, and how many elements go together."""
    name, x = ir.NAMES[op], ins[0]
    kind, how = KINDS[name]
    mask = params[0] % (1 << 64)
    if kind in ("EXTREMUM", "POSITION") and 0 in [n for d, n in enumerate(x.shape) if mask >> d & 1]:
        raise ShapeError(
            f"[{name}] the reduced axes of shape {x.shape} hold no elements, and there is no identity to give instead."
        )
    if kind == "SUM" and x.dtype not in FLOATS:
        kind = "ISUM"
    if out.size:
        reduce(device, kind, how, rows_of(device, [x], mask), out.memory, start(out))


@implements("var", "std")
def execute_variance(device: Device, op: int, params: tuple[int, ...], ins: Sequence[Array], out: Array) -> None:
    """params: mask of axes, how many elements go together, the bits of the divisor."""
    if not out.size:
        return
    (divisor,) = struct.unpack("d", struct.pack("q", params[2]))
    rows = rows_of(device, ins, params[0] % (1 << 64))
    means = device.alloc(8 * rows.rows, ir.NAMES[op])
    reduce(device, "SUM", RAW, rows, means, 0)
    how = ROOT if ir.NAMES[op] == "std" else PLAIN
    reduce(device, "VAR", how, rows, out.memory, start(out), means, divisor)


@implements("vecdot")
def execute_vecdot(device: Device, op: int, params: tuple[int, ...], ins: Sequence[Array], out: Array) -> None:
    """params: mask of axes."""
    if out.size:
        reduce(device, "DOT", PLAIN, rows_of(device, ins, params[0] % (1 << 64)), out.memory, start(out))
