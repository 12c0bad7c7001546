"""Moves: what changes where elements are, by item size. Strided copies, windows, concat; a sum with what .grad holds.

A copy has one kernel for each item size and number of axes. Neighbours that one stride describes on both sides are one
axis; what is left goes to a kernel of the next rank there is, as arguments, so that a new shape compiles nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from tapeflow.backend.opencl.host import Array, Device, Kernel, contiguous_strides
from tapeflow.backend.opencl.table import implements, source
from tapeflow.plan import ir

TEXT = source("index.cl")
ITEM = {1: "uchar", 4: "uint", 8: "ulong"}  # by item size
RANKS = (1, 2, 4, 8, 16)  # of the copies in index.cl
WIDTH = 256  # work-items of a group
SHORT = 16  # lanes that an axis should fill on a CPU
TILE = 16  # of the transposed, as in index.cl
MOST_ROWS = 32768  # groups along dimensions 1 and 2: drivers that run on CUDA take fewer than 2^16
MOST_GROUPS = 1 << 20
LONG, INT = np.int64, np.int32

Axis = tuple[int, ...]  # extent, then the stride in each operand, in elements


def packed(device: Device, x: Array) -> Array:
    """x with its elements, in C order, next to each other: itself or a copy."""
    if x.is_contiguous:
        return x
    y = device.empty_array(x.dtype, x.shape)
    copy(device, x, y)
    return y


def start(x: Array) -> int:
    """The offset in elements."""
    return x.offset // ir.ITEMSIZE[x.dtype]


def joined(shape: Sequence[int], *strides: Sequence[int]) -> list[Axis]:
    """The axes, innermost first, without those of size 1; neighbours that one stride describes in each operand are
    one."""
    axes: list[Axis] = []
    for n, *steps in zip(shape, *strides):
        if n == 1:
            continue
        if axes and all(outer == n * inner for outer, inner in zip(axes[-1][1:], steps)):
            axes[-1] = (axes[-1][0] * n, *steps)
        else:
            axes.append((n, *steps))
    return axes[::-1]


def merged(shape: Sequence[int], *strides: Sequence[int]) -> list[Axis]:
    """The same, with one axis at least."""
    return joined(shape, *strides) or [(1, *(0 for _ in strides))]


def group(device: Device, most: int = WIDTH) -> int:
    """How many work-items a group may have: a power of two."""
    return 1 << (min(most, device.max_workgroup).bit_length() - 1)


def launch_rows(device: Device, kernel: Kernel, lanes: int, rows: int, *args: object) -> None:
    """Run a kernel whose dimension 0 is lanes and whose others are rows."""
    width = group(device)
    if device.is_cpu:  # three local sizes, because PoCL compiles a kernel anew for each
        across, down = 1 if lanes == 1 else min(SHORT, width) if lanes <= SHORT else width, 1
    else:
        across = min(width, 1 << (lanes - 1).bit_length())
        down = min(width // across, 1 << (rows - 1).bit_length())
    columns, groups = -(-lanes // across), -(-rows // down)
    turns = -(-groups // MOST_ROWS)
    device.launch(kernel, (columns * across, -(-groups // turns) * down, turns), (across, down, 1), *args)


def launch_groups(device: Device, kernel: Kernel, groups: int, *args: object, width: int = WIDTH) -> None:
    """Run a kernel of groups that go through units of work, each as wide as width and the device let it be."""
    local = group(device, width)
    device.launch(kernel, (min(groups, MOST_GROUPS) * local,), (local,), *args)


def options_of(item: int, *kernels: str) -> tuple[str, ...]:
    """Of the kernels for an item size."""
    return (f"-DITEM={ITEM[item]}", *kernels)


def narrow(rows: int) -> bool:
    """Do row numbers fit 32 bits?"""
    return rows < 1 << 32


def copy(device: Device, x: Array, y: Array) -> None:
    """y = x, of one shape and item size."""
    if 0 in y.shape:
        return
    item = ir.ITEMSIZE[y.dtype]
    axes = merged(y.shape, [s // item for s in y.strides], [s // item for s in x.strides])
    _copy_axes(device, item, y, start(y), x, start(x), axes)


def _copy_axes(device: Device, item: int, y: Array, to: int, x: Array, at: int, axes: list[Axis]) -> None:
    if len(axes) > RANKS[-1]:
        n, y_step, x_step = axes[-1]
        for k in range(n):
            _copy_axes(device, item, y, to + k * y_step, x, at + k * x_step, axes[:-1])
        return
    survey = device.is_surveyed  # what longer and shorter axes take
    turned = _turned(axes, 2 if survey else TILE)
    if turned is not None:
        _transpose(device, item, y, to, x, at, turned)
        if not survey:
            return
    rank = next(r for r in RANKS if r >= len(axes))
    options = options_of(item, "-DCOPIES=4" if rank <= 4 else "-DCOPIES=16")
    if survey and device.is_cpu and rank > 1 and axes[0][1:] == (1, 1):
        for name in (f"copy_{rank}", f"copy_runs_{rank}"):
            device.kernel(TEXT, name, options, _COPY[rank])
    if device.is_cpu and axes[0][0] < SHORT:  # the longest axis for the lanes, whatever its strides
        axes.sort(key=lambda axis: -axis[0])
    runs = "runs_" if axes[0][1:] == (1, 1) else ""
    kernel = device.kernel(TEXT, f"copy_{runs}{rank}", options, _COPY[rank])
    rows = prod([n for n, *_ in axes[1:]])
    flat = [number for axis in axes for number in axis] + [1, 0, 0] * (rank - len(axes))
    launch_rows(device, kernel, axes[0][0], rows, y.memory, to, x.memory, at, rows, narrow(rows), *flat)


_COPY = {rank: (None, LONG, None, LONG, LONG, INT, *(LONG,) * (3 * rank)) for rank in RANKS}
_TRANSPOSE = (None, LONG, None, LONG, *(LONG,) * 11)
_FILL = (None, LONG, LONG, np.uint64)


def _turned(axes: list[Axis], least: int = TILE) -> list[Axis] | None:
    """The axes, where y runs along one of at least so many and x along another: those two first, and at most one
    more."""
    if len(axes) > 3 or axes[0][1] != 1 or axes[0][2] == 1 or axes[0][0] < least:
        return None
    for d, (n, _, x_step) in enumerate(axes):
        if x_step == 1 and n >= least:
            return [axes[0], axes[d], *(axis for k, axis in enumerate(axes) if k not in (0, d))]
    return None


def _transpose(device: Device, item: int, y: Array, to: int, x: Array, at: int, axes: list[Axis]) -> None:
    (n0, y0, x0), (n1, y1, x1) = axes[:2]
    matrices, y2, x2 = axes[2] if len(axes) == 3 else (1, 0, 0)
    across, down = -(-n0 // TILE), -(-n1 // TILE)
    units = matrices * across * down
    steps = (n0, y0, x0, n1, y1, x1, y2, x2)
    name = "transpose_tiles" if device.is_cpu else "transpose"
    kernel = device.kernel(TEXT, name, options_of(item, "-DCOPIES=4"), _TRANSPOSE)
    args = (y.memory, to, x.memory, at, units, across, down, *steps)
    if device.is_cpu:
        device.launch(kernel, units, 1, *args)
    else:
        launch_groups(device, kernel, units, *args)


def fill(device: Device, y: Array, bits: int = 0) -> None:
    """Every element of y, which is packed, = these bits: by a kernel, since plans replay those."""
    n = y.size
    if n:
        kernel = device.kernel(TEXT, "fill", options_of(ir.ITEMSIZE[y.dtype], "-DCOPIES=4"), _FILL)
        launch_rows(device, kernel, n, 1, y.memory, start(y), n, bits)


def reshaped(x: Array, shape: Sequence[int]) -> Array:
    """x, which is packed, in another shape."""
    return x._replace(shape=tuple(shape), strides=contiguous_strides(x.dtype, tuple(shape)))


def window(x: Array, params: Sequence[int]) -> Array:
    """What a basic index selects of x, with an axis for each of x: params are start, step, count, extent of each."""
    offset, shape, strides = x.offset, [], []
    for d, stride in enumerate(x.strides):
        first, step, count, _ = params[4 * d : 4 * d + 4]
        offset += first * stride if count > 0 else 0
        shape.append(count)
        strides.append(step * stride)
    return x._replace(offset=offset if 0 not in shape else x.offset, shape=tuple(shape), strides=tuple(strides))


def without_ones(x: Array) -> Array:
    """x without its axes of size 1."""
    kept = [(n, stride) for n, stride in zip(x.shape, x.strides) if n != 1]
    return x._replace(shape=tuple([n for n, _ in kept]), strides=tuple([s for _, s in kept]))


def _copy_window(device: Device, x: Array, y: Array) -> None:
    """y = x, of the same shape but for axes of size 1."""
    copy(device, without_ones(x), without_ones(y))


def permuted(x: Array, axes: Iterable[int]) -> Array:
    """x with its axes in this order."""
    order = list(axes)
    return x._replace(shape=tuple([x.shape[a] for a in order]), strides=tuple([x.strides[a] for a in order]))


# ---- the ops


@implements("identity")
def identity(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    """A copy. (With a place, operand 1, that is looked at by others.)"""
    copy(device, ins[0], out)


@implements("reshape")
def reshape(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    copy(device, ins[0], reshaped(out, ins[0].shape))


@implements("permute_dims")
def permute_dims(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    copy(device, permuted(ins[0], params), out)


@implements("broadcast_to")
def broadcast_to(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    x = ins[0]
    more = len(out.shape) - len(x.shape)
    strides = [0] * more + [0 if n == 1 else s for n, s in zip(x.shape, x.strides)]
    copy(device, x._replace(shape=out.shape, strides=tuple(strides)), out)


@implements("getitem")
def getitem(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    _copy_window(device, window(ins[0], params), out)


@implements("unslice")
def unslice(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    fill(device, out)
    _copy_window(device, ins[0], window(out, params))


@implements("assign")
def assign(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    copy(device, ins[0], out)
    _copy_window(device, ins[1], window(out, params))


@implements("concat")
def concat(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    axis, at = params[0], out.offset
    for x in ins:
        copy(device, x, out._replace(offset=at, shape=x.shape))
        at += x.shape[axis] * out.strides[axis]


@implements("accumulate")
def accumulate(device: Device, op: int, params: tuple[int, ...], ins: Sequence[Array | None], out: Array) -> None:
    """What a .grad holds, or None where it is empty, plus a cotangent."""
    before, g = ins
    assert g is not None
    if before is None:
        copy(device, g, out)
    else:
        device.execute(ir.CODES["add"], (), [before, g], out)
