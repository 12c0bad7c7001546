"""Order: argsort and searchsorted, on keys (kernels/sort.cl). Stable; NaN last in either direction; zeros are equal.

Short rows are put in order by a work-item each on a CPU, by a group each in local memory elsewhere. Long ones go by
radix passes over blocks: of one work-item and 256 bins on a CPU, of a group and 16 bins elsewhere.
"""

from __future__ import annotations

from tapeflow.backend.opencl.host import Array, Device, Memory
from tapeflow.backend.opencl.moves import (
    INT,
    ITEM,
    LONG,
    WIDTH,
    copy,
    group,
    launch_groups,
    launch_rows,
    packed,
    permuted,
    start,
)
from tapeflow.backend.opencl.moves import TEXT as INDEX_TEXT
from tapeflow.backend.opencl.table import implements, source
from tapeflow.plan import ir

TEXT = source("sort.cl")
SHORT_LINE = 512  # elements of a row that one work-item puts in order
SHORT_GROUP = 1024  # and of one that a group does: 12 bytes each
RADIX = {True: (8, 1, 16384), False: (4, 128, 2048)}  # by is_cpu: bits of a digit, work-items, elements of a block
KIND = {ir.INT32: 1, ir.INT64: 1, ir.FLOAT32: 2, ir.FLOAT64: 2}  # of keys; unsigned: 0
SEARCH_KIND = (0, 0, 1, 2, 3, 4)  # by dtype

_KEYS = (None, None, LONG, LONG, INT, INT, INT)
_LINES = (None, LONG, None, None, None, LONG, LONG, LONG)
_GROUPS = (None, LONG, None, LONG, INT, INT, INT)
_COUNT = (None, None, LONG, LONG, LONG, INT)
_MOVE = (None, None, None, None, None, LONG, LONG, LONG, INT)
_FIRST = (None, LONG, None, LONG, LONG, LONG)
_SEARCH = (None, LONG, None, LONG, LONG, LONG, INT, None, LONG, LONG, INT, INT, INT)


def positions_options(device: Device) -> tuple[str, ...]:
    """Of the kernels of index.cl that move nothing."""
    return "-DPOSITIONS", f"-DGROUP={1 if device.is_cpu else group(device)}"


def offsets(device: Device, counts: Memory, n: int) -> None:
    """counts[i] = the sum of the int64 before it; counts[n], which must be there, of all."""
    kernel = device.kernel(INDEX_TEXT, "offsets", positions_options(device), (None, LONG))
    launch_groups(device, kernel, 1, counts, n, width=1 if device.is_cpu else WIDTH)


def order_rows(device: Device, x: Array, rows: int, n: int, descending: bool, out: Array, below: int = 0) -> None:
    """out, packed (rows, first) = the indices of the first elements of each row of x, packed (rows, n), in order.
    below: x are integers 0 .. below-1, which takes fewer passes."""
    item = ir.ITEMSIZE[x.dtype]
    first = out.size // rows
    bits = max((below - 1).bit_length(), 1) if below else 8 * item
    key = "ulong" if bits > 32 else "uint"
    size = 8 if bits > 32 else 4
    keys = device.alloc(rows * n * size)
    kernel = device.kernel(TEXT, "keys", (f"-DITEM={ITEM[item]}", f"-DKEY={key}"), _KEYS)
    kind = 0 if below else KIND.get(x.dtype, 0)
    width = 8 * min(size, item)
    launch_rows(device, kernel, rows * n, 1, keys, x.memory, start(x), rows * n, kind, width, descending)
    place, place_size = ("int", 4) if n < 1 << 31 else ("long", 8)
    types = (f"-DKEY={key}", f"-DPLACE={place}")
    survey = device.is_surveyed  # rows of any length
    short = n <= (SHORT_LINE if device.is_cpu else SHORT_GROUP)
    if device.is_cpu and (short or survey):
        one, two = (device.alloc(rows * n * place_size) for _ in range(2))
        kernel = device.kernel(TEXT, "order_lines", types, _LINES)
        launch_rows(device, kernel, rows, 1, out.memory, start(out), keys, one, two, rows, n, first)
    elif short or survey:
        kernel = device.kernel(TEXT, "order_groups", (*types, f"-DMOST={SHORT_GROUP}"), _GROUPS)
        padded = 1 << (n - 1).bit_length()
        args = (out.memory, start(out), keys, rows, n, padded, first)
        launch_groups(device, kernel, rows, *args, width=max(padded // 2, 1))
    if survey or not short:
        _radix(device, types, keys, size, place_size, rows, n, first, bits, out)


def _radix(
    device: Device,
    types: tuple[str, ...],
    keys: Memory,
    size: int,
    place_size: int,
    rows: int,
    n: int,
    first: int,
    bits: int,
    out: Array,
) -> None:
    """order_rows by passes over keys (which are lost) of so many bits."""
    digit, most, block = RADIX[device.is_cpu]
    width = group(device, most)
    blocks = -(-n // block)
    options = (*types, f"-DGROUP={width}", f"-DBINS={1 << digit}", f"-DBLOCK={block}")
    count = device.kernel(TEXT, "radix_count", options, _COUNT)
    n_counts = rows * blocks << digit
    counts = device.alloc((n_counts + 1) * 8)
    other_keys = device.alloc(rows * n * size)
    places, other = (device.alloc(rows * n * place_size) for _ in range(2))
    for shift in range(0, bits, digit):
        launch_groups(device, count, rows * blocks, counts, keys, rows, n, blocks, shift, width=width)
        offsets(device, counts, n_counts)
        move = device.kernel(TEXT, "radix_move" if shift else "radix_first", options, _MOVE)
        args = (other_keys, other, keys, places, counts, rows, n, blocks, shift)
        launch_groups(device, move, rows * blocks, *args, width=width)
        keys, other_keys, places, other = other_keys, keys, other, places
    kernel = device.kernel(TEXT, "first_places", options, _FIRST)
    launch_rows(device, kernel, first, rows, out.memory, start(out), places, rows, n, first)


@implements("argsort")
def argsort(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    """params: axis, whether it descends, how many come first."""
    if 0 in out.shape:
        return
    x = ins[0]
    axis, descending = params[0], bool(params[1])
    last = len(x.shape) - 1
    turned = [d for d in range(last + 1) if d != axis] + [axis]
    x = packed(device, permuted(x, turned))
    back = permuted(out, turned)
    y = out if back.is_contiguous else device.empty_array(ir.INT64, back.shape)
    n = x.shape[last]
    order_rows(device, x, x.size // n, n, descending, y)
    if y is not out:
        copy(device, y, back)


@implements("searchsorted")
def searchsorted(device: Device, op: int, params: tuple[int, ...], ins: list[Array], out: Array) -> None:
    """params: whether equal elements are passed."""
    table, x = ins[0], packed(device, ins[1])
    m = x.size
    if not m:
        return
    real = max(table.dtype, x.dtype) >= ir.FLOAT32
    kernel = device.kernel(TEXT, "search", ("-DSEARCH",), _SEARCH)
    (n,), (step,) = table.shape, table.strides
    step //= ir.ITEMSIZE[table.dtype]
    place = (table.memory, start(table), step, n, SEARCH_KIND[table.dtype])
    args = (x.memory, start(x), m, SEARCH_KIND[x.dtype], real, params[0])
    launch_rows(device, kernel, m, 1, out.memory, start(out), *place, *args)
