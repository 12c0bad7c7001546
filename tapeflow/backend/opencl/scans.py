"""Running reductions along an axis (kernels/scan.cl, which says how they round).

A work-item does a line from one end to the other. Sums, maxima and logs of sums go by blocks of 64; where there are few
lines, and long ones, a work-item does a block instead, in three launches: with the same bits.
"""

from __future__ import annotations

from tapeflow.backend.opencl.gather import around
from tapeflow.backend.opencl.host import Array, Device
from tapeflow.backend.opencl.moves import INT, LONG, launch_rows, packed, start
from tapeflow.backend.opencl.table import implements, source
from tapeflow.plan import ir

TEXT = source("scan.cl")
BLOCK = 64  # as in scan.cl
LONG_LINE = 4 * BLOCK  # longer lines may be done by blocks
_ONE = ("-DCOLUMNS=1",)
STATE_BYTES = 16  # the most that a state takes
COLUMNS = 16  # of a work-item on a CPU
MANY = 4096  # work-items, from which on a CPU gets them in groups
LINES = {True: 64, False: 16384}  # by is_cpu: so many lines are enough to have all processors at work

_LINES = (None, LONG, None, LONG, LONG, LONG, LONG, INT, LONG, LONG)
_TWO = (None, LONG, None, LONG, None, LONG, LONG, LONG, LONG, INT, LONG, LONG)
_TOTALS = (None, None, LONG, LONG, LONG, LONG, INT, LONG)
_BEFORE = (None, None, LONG, LONG)
_BLOCKS = (None, LONG, None, None, LONG, LONG, LONG, LONG, INT, LONG)

_BITS = ("uchar", "uchar", "uint", "ulong", "uint", "ulong")  # by dtype
_KEYS = ("uchar", "uchar", "int", "long", "int", "long")
_INFINITY = {ir.FLOAT32: "0x7f800000", ir.FLOAT64: "0x7ff0000000000000L"}


def _numbers(device: Device, what: str, dtype: int) -> tuple[str, ...]:
    """The options of a scan that computes."""
    if dtype == ir.INT64:
        return f"-D{what}", "-DT=ulong", "-DWIDE=ulong"
    if dtype == ir.FLOAT32:
        return f"-D{what}", "-DT=float", *(("-DWIDE=double", "-DFP64") if device.fp64 else ("-DPAIRS",))
    return f"-D{what}", "-DT=double", "-DWIDE=double", "-DFP64"


def _maxima(dtype: int, *more: str) -> tuple[str, ...]:
    real = (f"-DREAL={_INFINITY[dtype]}",) if dtype in _INFINITY else ()
    return "-DMAXIMUM", f"-DT={_BITS[dtype]}", f"-DKEY={_KEYS[dtype]}", *real, *more


def _by_lines(
    device: Device,
    options: tuple[str, ...],
    types: tuple[object, ...],
    outer: int,
    n: int,
    inner: int,
    reverse: int,
    arrays: tuple[object, ...],
) -> None:
    """A work-item for each line, or, on a CPU, for several neighbours."""
    lanes = not device.is_cpu or "-DLOGSUMEXP" in options  # of one vector; else a CPU's are neighbours
    whole = 0 if lanes else inner // COLUMNS
    surveyed = device.is_surveyed and not lanes and inner > 1  # what more or fewer lines take
    for columns, first, items in ((COLUMNS, 0, whole), (1, whole * COLUMNS, inner - whole * COLUMNS)):
        if not (items or surveyed):
            continue
        kernel = device.kernel(TEXT, "scan_lines", (*options, f"-DCOLUMNS={columns}"), types)
        args = (*arrays, outer, n, inner, reverse, first, items)
        if lanes or items * outer >= MANY:
            launch_rows(device, kernel, items * outer, 1, *args)
        else:
            device.launch(kernel, items * outer, 1, *args)


def _by_blocks(device: Device, options: tuple[str, ...], params: tuple[int, ...], x: Array, out: Array) -> None:
    axis, reverse = params
    if 0 in x.shape:
        return
    x = packed(device, x)
    (outer, inner), n = around(x.shape, axis), x.shape[axis]
    lines = outer * inner
    here = (x.memory, start(x), lines, n, inner, reverse)
    short = n <= LONG_LINE or lines >= LINES[device.is_cpu]
    if short or device.is_surveyed:
        _by_lines(device, options, _LINES, outer, n, inner, reverse, (out.memory, start(out), x.memory, start(x)))
    if short and not device.is_surveyed:
        return
    blocks = -(-n // BLOCK)
    units = blocks * lines
    totals, starts = device.alloc(units * STATE_BYTES), device.alloc(units * STATE_BYTES)
    kernel = device.kernel(TEXT, "scan_totals", options + _ONE, _TOTALS)
    launch_rows(device, kernel, units, 1, totals, *here, units)
    kernel = device.kernel(TEXT, "scan_before", options + _ONE, _BEFORE)
    launch_rows(device, kernel, lines, 1, starts, totals, lines, blocks)
    kernel = device.kernel(TEXT, "scan_blocks", options + _ONE, _BLOCKS)
    launch_rows(device, kernel, units, 1, out.memory, start(out), starts, *here, units)


def _in_order(
    device: Device, options: tuple[str, ...], params: tuple[int, ...], x: Array, a: Array, out: Array
) -> None:
    """From element to element."""
    axis, reverse = params
    if 0 in x.shape:
        return
    x, a = packed(device, x), packed(device, a)
    (outer, inner), n = around(x.shape, axis), x.shape[axis]
    place = (out.memory, start(out), x.memory, start(x), a.memory, start(a))
    _by_lines(device, options, _TWO, outer, n, inner, reverse, place)


# ---- the ops: params are the axis and whether it goes from the end


@implements("cumulative_sum")
def cumulative_sum(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    _by_blocks(device, _numbers(device, "SUM", out.dtype), params, ins[0], out)


@implements("logcumsumexp")
def logcumsumexp(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    _by_blocks(device, _numbers(device, "LOGSUMEXP", out.dtype), params, ins[0], out)


@implements("cumulative_max")
def cumulative_max(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    _by_blocks(device, _maxima(out.dtype), params, ins[0], out)


@implements("cumulative_argmax")
def cumulative_argmax(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    """Where in C order each maximum stands. params: the axis."""
    _by_blocks(device, _maxima(ins[0].dtype, "-DPLACES"), (params[0], 0), ins[0], out)


@implements("cumulative_prod")
def cumulative_prod(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    _in_order(device, _numbers(device, "PRODUCT", out.dtype), params, ins[0], ins[0], out)


@implements("recurrence")
def recurrence(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    """y[k] = x[k] + y[k - 1] a[k], operand 1 being a; from the end with a[k + 1]."""
    _in_order(device, _numbers(device, "RECURRENCE", out.dtype), params, ins[0], ins[1], out)
