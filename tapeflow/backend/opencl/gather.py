"""Gather and scatter: places, take, put, scatter_add, the positions of what is not 0, class numbers.

Positions that take, put and scatter_add get are in range (places or an argsort made them). Indices from outside are
checked as they are read: a kernel notes in a flag that one is out of range, and the op, which waits for it, names it.

put and scatter_add write in the order of the indices, so of several writers the last one wins, and sums have the bits
of the cpu. A CPU goes through the indices by columns; elsewhere the last writer is found by atomics of integers, and
for sums the indices are put in order, where the first of those that are equal adds for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tapeflow import errors
from tapeflow._core import GuardFailed
from tapeflow.backend.opencl.host import Array, Device, Kernel, Memory, contiguous_strides
from tapeflow.backend.opencl.moves import (
    INT,
    LONG,
    SHORT,
    TEXT,
    copy,
    fill,
    group,
    launch_groups,
    launch_rows,
    merged,
    narrow,
    options_of,
    packed,
    start,
)
from tapeflow.backend.opencl.order import offsets, order_rows, positions_options
from tapeflow.backend.opencl.table import implements
from tapeflow.plan import ir

MOST_WRITERS = 1 << 30  # indices at once whose last writers are looked for: their numbers are int32
PLACE_RANKS = (1, 2, 4, 8)
WIDEST_ITEM = 64  # columns that one work-item goes through at least
MASK_BLOCK = 4096  # elements of a mask that one work-item of a CPU counts
NUMBER = ("uchar", "uchar", "uint", "ulong", "float", "double")  # what scatter_add adds in, by dtype
INDEX = ("uchar", "uchar", "int", "long")
ONES = (1, 1, 1, 1, 0x3F800000, 0x3FF0000000000000)  # the bits of 1, by dtype

_TAKE = (None, LONG, None, LONG, None, LONG, LONG, LONG, LONG, LONG, LONG, LONG)
_PUT = (None, LONG, None, LONG, None, LONG, None, INT, *(LONG,) * 6)
_COLUMNS = (None, LONG, None, LONG, None, LONG, LONG, LONG, LONG, LONG, LONG)
_SEGMENTS = (None, LONG, None, LONG, None, LONG, None, LONG, LONG, LONG, LONG)
_LAST = (None, None, LONG, LONG, LONG)
_ONE_HOT = (None, LONG, None, LONG, LONG, LONG, np.uint64, None)
_CLASSES = (None, LONG, None, LONG, LONG, LONG, None)
_COUNT = (None, None, LONG, LONG, LONG, LONG, np.uint64)
_PLACE = (None, LONG, None, None, LONG, LONG, LONG, LONG, np.uint64)
_COORDINATE = (None, LONG, None, LONG, LONG, LONG)
_PLACES = {
    rank: (None, LONG, None, LONG, LONG, LONG, INT, LONG, None, LONG, INT, *(LONG,) * (4 * rank))
    for rank in PLACE_RANKS
}


class Flag:
    """A word on the device, 0 until a kernel writes 1 in it. Where a plan notes what its ops do they have one of its
    own, which it looks at itself: see Notes."""

    def __init__(self, device: Device) -> None:
        self.device = device
        notes = device.notes
        self.is_shared = notes is not None and notes.flag is not None
        if notes is not None and notes.flag is not None:
            self.word = notes.flag
            notes.flagged = True
        else:
            self.word = device.empty_array(ir.INT32, (1,))
            fill(device, self.word)

    @property
    def memory(self) -> Memory:
        return self.word.memory

    def is_set(self) -> bool:
        """Waits for the device; False where it is not this op that looks."""
        return not (self.is_shared or self.device.is_surveyed) and bool(self.device.download(self.word)[0])


def around(shape: Sequence[int], axis: int) -> tuple[int, int]:
    """The products of the extents before and after an axis."""
    return prod(shape[:axis]), prod(shape[axis + 1 :])


# ---- take, put, scatter_add


def _one_stride(x: Array, axes: range) -> int | None:
    """The stride, in elements, of axes as one; None where they are not one."""
    found = merged([x.shape[d] for d in axes], [x.strides[d] for d in axes])
    return found[0][1] // ir.ITEMSIZE[x.dtype] if len(found) == 1 else None


@implements("take")
def take(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    """params: the axis."""
    if 0 in out.shape:
        return
    x, idx = ins[0], packed(device, ins[1])
    axis, ndim, m = params[0], len(x.shape), idx.size
    x_outer, x_inner = _one_stride(x, range(axis)), _one_stride(x, range(axis + 1, ndim))
    if x_outer is None or x_inner is None:
        x = packed(device, x)
        x_outer, x_inner = _one_stride(x, range(axis)), _one_stride(x, range(axis + 1, ndim))
    outer, inner = around(x.shape, axis)
    x_axis = x.strides[axis] // ir.ITEMSIZE[x.dtype]
    name, lanes, rows = ("inner", inner, outer * m) if inner >= SHORT else ("lanes", m, outer * inner)
    kernel = device.kernel(TEXT, f"take_{name}", options_of(ir.ITEMSIZE[x.dtype], "-DGATHER"), _TAKE)
    args = (
        out.memory,
        start(out),
        x.memory,
        start(x),
        idx.memory,
        start(idx),
        rows,
        m,
        inner,
        x_outer,
        x_axis,
        x_inner,
    )
    launch_rows(device, kernel, lanes, rows, *args)


def _launch_columns(
    device: Device, kernel: Kernel, outer: int, m: int, n: int, inner: int, args: tuple[object, ...]
) -> None:
    """Columns in pieces that vectors fill, and of which there are some for each processor."""
    pieces = -(-4 * device.compute_units // outer)
    width = max(-(-inner // pieces), WIDEST_ITEM)
    device.launch(kernel, (-(-inner // width), outer, 1), (1, 1, 1), *args, outer, m, n, inner, width)


@implements("put")
def put(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    """params: the axis, whether no index repeats."""
    copy(device, ins[0], out)
    axis, unique = params
    idx, v = packed(device, ins[1]), packed(device, ins[2])
    if 0 in v.shape or 0 in out.shape:
        return
    outer, inner = around(out.shape, axis)
    n, m = out.shape[axis], idx.size
    options = options_of(ir.ITEMSIZE[out.dtype], "-DGATHER")
    args = (out.memory, start(out), v.memory, start(v), idx.memory, start(idx))
    if device.is_cpu and not unique:
        kernel = device.kernel(TEXT, "put_columns", options, _COLUMNS)
        _launch_columns(device, kernel, outer, m, n, inner, args)
        return
    last = idx.memory if unique else device.alloc(4 * n)
    step = m if unique else MOST_WRITERS
    for first in range(0, m, step):
        count = min(step, m - first)
        if not unique:
            fill(device, Array(last, 0, ir.INT32, (n,), (4,)), 0xFFFFFFFF)
            kernel = device.kernel(TEXT, "last_of", options, _LAST)
            launch_rows(device, kernel, count, 1, last, idx.memory, start(idx), first, count)
        name, lanes, rows = ("inner", inner, outer * count) if inner >= SHORT else ("lanes", count, outer * inner)
        kernel = device.kernel(TEXT, f"put_{name}", options, _PUT)
        launch_rows(device, kernel, lanes, rows, *args, last, not unique, first, count, rows, m, n, inner)


@implements("scatter_add")
def scatter_add(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    """params: the axis."""
    copy(device, ins[0], out)
    idx, updates = packed(device, ins[1]), packed(device, ins[2])
    if 0 in updates.shape or 0 in out.shape:
        return
    outer, inner = around(out.shape, params[0])
    n, m = out.shape[params[0]], idx.size
    options = (f"-DNUMBER={NUMBER[out.dtype]}", *(["-DFP64"] if out.dtype == ir.FLOAT64 else []))
    args = (out.memory, start(out), updates.memory, start(updates), idx.memory, start(idx))
    if device.is_cpu:
        kernel = device.kernel(TEXT, "add_columns", options, _COLUMNS)
        _launch_columns(device, kernel, outer, m, n, inner, args)
        return
    order = device.empty_array(ir.INT64, (m,))
    order_rows(device, idx, 1, m, False, order, below=n)
    name, lanes, rows = ("inner", inner, outer * m) if inner >= SHORT else ("lanes", m, outer * inner)
    kernel = device.kernel(TEXT, f"add_{name}", options, _SEGMENTS)
    launch_rows(device, kernel, lanes, rows, *args, order.memory, rows, m, n, inner)


# ---- places


@implements("places")
def places(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    """params: axes of the places, axes of the indices together, shape and steps of the places; then extent, stride and
    axis of each index."""
    ndim, together = params[:2]
    shape, steps, each = params[2 : 2 + ndim], params[2 + ndim : 2 + 2 * ndim], params[2 + 2 * ndim :]
    if 0 in shape:
        return
    bad = Flag(device)
    for k, x in enumerate(ins):
        item = ir.ITEMSIZE[x.dtype]
        begin = together - len(x.shape)
        strides = [0] * ndim
        for d, (n, stride) in enumerate(zip(x.shape, x.strides)):
            strides[begin + d] = 0 if n == 1 else stride // item
        axes = merged(shape, [s // 8 for s in out.strides], strides, steps)
        _place_axes(device, bad, out, start(out), x, start(x), each[3 * k : 3 * k + 2], k == 0, 0, axes)
    if bad.is_set():
        _name_bad_index(device, each, ins)


def _place_axes(
    device: Device,
    bad: Flag,
    y: Array,
    to: int,
    x: Array,
    at: int,
    index: Sequence[int],
    first: bool,
    base: int,
    axes: list[tuple[int, ...]],
) -> None:
    if len(axes) > PLACE_RANKS[-1]:
        n, y_step, x_step, step = axes[-1]
        for k in range(n):
            more = (to + k * y_step, x, at + k * x_step, index, first, base + k * step)
            _place_axes(device, bad, y, *more, axes[:-1])
        return
    if device.is_cpu and axes[0][0] < SHORT:
        axes.sort(key=lambda axis: -axis[0])
    rank = next(r for r in PLACE_RANKS if r >= len(axes))
    kernel = device.kernel(TEXT, f"places_{rank}", (f"-DINDEX={INDEX[x.dtype]}",), _PLACES[rank])
    rows = prod([axis[0] for axis in axes[1:]])
    flat = [number for axis in axes for number in axis] + [1, 0, 0, 0] * (rank - len(axes))
    args = (y.memory, to, x.memory, at, *index, first, base, bad.memory, rows, narrow(rows))
    launch_rows(device, kernel, axes[0][0], rows, *args, *flat)


def _name_bad_index(device: Device, each: Sequence[int], ins: list[Array]) -> None:
    """Raise the error of the first index that is out of range."""
    for k, x in enumerate(ins):
        extent, _, axis = each[3 * k : 3 * k + 3]
        values = device.download(x).ravel()
        found = (values < -extent) | (values >= extent) if values.dtype.kind == "i" else values >= extent
        if found.any():
            raise errors.TensorIndexError(
                f"[index] index {int(values[found.argmax()])} is out of range for axis {axis} of size {extent}."
            )
    raise errors.TensorIndexError("[index] an index changed while it was read.")


# ---- what is not 0


class Nonzero:
    """The elements of an array that are not 0, counted; count waits for the device."""

    def __init__(self, device: Device, x: Array) -> None:
        self.device, self.x = device, packed(device, x)
        item = ir.ITEMSIZE[x.dtype]
        self.n = x.size
        self.width = group(device)
        self.block = MASK_BLOCK if device.is_cpu else 8 * self.width
        self.blocks = -(-self.n // self.block)
        self.mask = (1 << (8 * item - (x.dtype >= ir.FLOAT32))) - 1
        self.options = options_of(item, "-DMASKS", f"-DGROUP={self.width}")
        self.before = device.alloc((self.blocks + 1) * 8)
        if self.n:
            self._launch("count", _COUNT, self.before)
            offsets(device, self.before, self.blocks)

    def _launch(self, what: str, types: tuple[object, ...], *args: object) -> None:
        """A kernel over the blocks: a work-item each on a CPU, a group elsewhere."""
        device = self.device
        kernel = device.kernel(TEXT, f"{what}_{'blocks' if device.is_cpu else 'nonzero'}", self.options, types)
        given = (*args, self.x.memory, start(self.x), self.n, self.blocks, self.block, self.mask)
        if device.is_cpu:
            device.launch(kernel, self.blocks, 1, *given)
        else:
            launch_groups(device, kernel, self.blocks, *given, width=self.width)

    def count(self) -> int:
        if not self.n:
            return 0
        return int(self.device.download(Array(self.before, 8 * self.blocks, ir.INT64, (1,), (8,)))[0])

    def positions(self, flat: bool, out: Array) -> None:
        """out = the positions, or the coordinates, a row for each axis, of all of them."""
        if 0 in out.shape:
            return
        device = self.device
        at = out if flat else device.empty_array(ir.INT64, out.shape[-1:])
        self._launch("place", _PLACE, at.memory, start(at), self.before)
        if flat:
            return
        kernel = device.kernel(TEXT, "coordinate", positions_options(device), _COORDINATE)
        count, steps = out.shape[-1], contiguous_strides(ir.BOOL, self.x.shape)
        for d, (extent, step) in enumerate(zip(self.x.shape, steps)):
            launch_rows(device, kernel, count, 1, out.memory, start(out) + d * count, at.memory, count, step, extent)


def nonzero_of(device: Device, x: Array, flat: bool) -> Array:
    """The positions, or the coordinates, of the elements that are not 0: how many there are is read from the device."""
    found = Nonzero(device, x)
    count = found.count()
    out = device.empty_array(ir.INT64, (count,) if flat else (len(x.shape), count))
    found.positions(flat, out)
    return out


@implements("nonzero")
def nonzero(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    """params: whether positions are flat. There must be as many as out has room for."""
    found = Nonzero(device, ins[0])
    count, room = found.count(), out.shape[-1]
    if count != room:
        raise GuardFailed(
            f"[plan] how many elements are not 0, or true, depends on data: it was {room} when the plan was recorded "
            f"and is {count} now. Freeze it for this case, or use tp.function, which keeps both."
        )
    found.positions(bool(params[0]), out)


# ---- class numbers


def _check_classes(device: Device, bad: Flag, x: Array, classes: int, name: str) -> None:
    if bad.is_set():
        values = device.download(x).ravel()
        first = values[(values < 0) | (values >= classes)][0]
        raise errors.TensorIndexError(f"[{name}] class {first} is out of range 0 .. {classes - 1}.")


@implements("one_hot")
def one_hot(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    """params: the number of classes."""
    x, classes = packed(device, ins[0]), params[0]
    rows = x.size
    if not rows:
        return
    bad = Flag(device)
    kernel = device.kernel(TEXT, "one_hot", options_of(ir.ITEMSIZE[out.dtype], "-DGATHER"), _ONE_HOT)
    args = (out.memory, start(out), x.memory, start(x), rows, classes, ONES[out.dtype], bad.memory)
    launch_rows(device, kernel, max(classes, 1), rows, *args)
    _check_classes(device, bad, x, classes, "one_hot")


@implements("class_positions")
def class_positions(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    """params: the number of classes. What is asked for is the label of each row, so errors are cross_entropy's."""
    x = packed(device, ins[0])
    n = x.size
    if not n:
        return
    bad = Flag(device)
    kernel = device.kernel(TEXT, "class_positions", positions_options(device), _CLASSES)
    launch_rows(device, kernel, n, 1, out.memory, start(out), x.memory, start(x), n, params[0], bad.memory)
    _check_classes(device, bad, x, params[0], "cross_entropy")
