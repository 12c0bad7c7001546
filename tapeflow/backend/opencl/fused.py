"""Groups of elementwise steps over one shape as one kernel: what a group of plan/schedule.py is on a device.

A `Body` says what is computed: operands are read once, each value is in a register, and what outlives the group is
written. Its kernel depends on how the operands lie, not on where or how many they are:

    flat     every operand is contiguous or one number: one work-item an element, nothing else
    rows     a long last axis: rows of work-items, so that neighbours read neighbours
    spread   anything else: each element's place from its number, by multiplications (wide: by divisions, from 2^31 on)

Extents, strides and what divides by an extent are in a small constant buffer, which is kept for each geometry. So a new
shape of a known structure compiles nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from tapeflow import ops
from tapeflow.backend.opencl import moves
from tapeflow.backend.opencl.memory import Array
from tapeflow.backend.opencl.text import OPTIONS, TYPES, KernelText, cast, function, program
from tapeflow.plan.ir import BOOL, CODES, INT64, ITEMSIZE, N_ELEMENTWISE, NAMES, contiguous

ASTYPE = CODES["astype"]
LOCAL = 256  # work-items of a group: loops over a grid are 30 times slower on the processors that OpenCL runs on
LONG_ROW = 128  # from here on rows are worth a row of work-groups
NARROW = 1 << 31
ARGUMENTS = 120  # of a kernel; every device takes 1,024 bytes, and none has more than 8
STEPS = 128  # of a kernel: compilers take longer than in proportion
KEPT = 1024  # groups that a device remembers how to launch, and geometries

_SCALARS = (np.uint8, np.uint8, np.int32, np.int64, np.float32, np.float64)


class Step(NamedTuple):
    """An elementwise op or astype, computed in dtype. operands: numbers of inputs, then constants, then steps."""

    op: int
    dtype: int
    operands: tuple[int, ...]


class Body(NamedTuple):
    """steps over inputs and constants of these dtypes; outputs: the numbers of the values that are written."""

    inputs: tuple[int, ...]
    constants: tuple[int, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    def dtypes(self) -> list[int]:
        """Of all values, by number."""
        found = [*self.inputs, *self.constants]
        for step in self.steps:
            compares = step.op < N_ELEMENTWISE and ops.TABLE[NAMES[step.op]].kind == "compare"
            found.append(BOOL if compares else step.dtype)
        return found


class Part(NamedTuple):
    """Some steps of a body as one of its own. reads, writes: numbers of values of the whole; constants: of those."""

    body: Body
    reads: tuple[int, ...]
    constants: tuple[int, ...]
    writes: tuple[int, ...]


@lru_cache(maxsize=4096)
def parts(body: Body, start: int = 0, stop: int | None = None) -> tuple[Part, ...]:
    """A body in pieces, in order, that have few enough arguments and steps for one kernel: mostly one."""
    stop = len(body.steps) if stop is None else stop
    inputs, first = len(body.inputs), len(body.inputs) + len(body.constants)
    made = range(first + start, first + stop)
    read = {k for step in body.steps[start:stop] for k in step.operands if k not in made}
    wanted = {*body.outputs, *(k for step in body.steps[stop:] for k in step.operands)}
    reads = tuple(sorted(k for k in read if not inputs <= k < first))
    constants = tuple(sorted(k - inputs for k in read if inputs <= k < first))
    writes = tuple(k for k in made if k in wanted)
    arguments = 2 + 2 * len(reads) + len(constants) + 2 * len(writes)
    if stop - start > 1 and (arguments > ARGUMENTS or stop - start > STEPS):
        half = (start + stop) // 2
        return parts(body, start, half) + parts(body, half, stop)
    dtypes = body.dtypes()
    numbers = (*reads, *(inputs + k for k in constants), *made)
    renamed = {k: n for n, k in enumerate(numbers)}
    piece = Body(
        tuple([dtypes[k] for k in reads]),
        tuple([body.constants[k] for k in constants]),
        tuple([step._replace(operands=tuple([renamed[k] for k in step.operands])) for step in body.steps[start:stop]]),
        tuple([renamed[k] for k in writes]),
    )
    return (Part(piece, reads, constants, writes),)


class Layout(NamedTuple):
    """How operands lie. scheme: see above; hows: of each input, flat, scalar (one number), unit (neighbours along
    rows), row (one number for a row), general; rank: axes, those merged that lie like one."""

    scheme: str
    hows: tuple[str, ...]
    rank: int
    inner: int
    rows: int
    geometry: tuple[int, ...]


# ---- layouts


def merge(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """The same elements in the same order with as few axes as will do. strides: of each operand."""
    axes = moves.joined(shape, *strides)[::-1]
    return [axis[0] for axis in axes], [[axis[1 + k] for axis in axes] for k in range(len(strides))]


def _how(strides: list[int], packed: list[int]) -> str:
    if not any(strides):
        return "scalar"
    if strides == packed:
        return "flat"
    return {1: "unit", 0: "row"}.get(strides[-1], "general")


def divisor(d: int) -> tuple[int, int]:
    """(m, s) so that x // d is x * m >> s for 0 <= x < 2^31 (Granlund and Montgomery, PLDI 1994)."""
    bits = 31 + (d - 1).bit_length()
    return -(-(1 << bits) // d), bits


def layout(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> Layout:
    """How operands of these strides, in elements, lie within this shape, which is not empty."""
    extents, steps = merge(shape, strides)
    packed = list(contiguous(tuple(extents), 1))
    hows = tuple([_how(mine, packed) for mine in steps])
    size = extents[0] * packed[0] if extents else 1
    if all(how in ("flat", "scalar") for how in hows):
        return Layout("flat", hows, 0, size, 1, ())
    placed = [mine for mine, how in zip(steps, hows, strict=True) if how not in ("flat", "scalar")]
    inner, rank = extents[-1], len(extents)
    if inner >= LONG_ROW:
        geometry = extents[:-1]
        for mine in placed:
            geometry += mine
        return Layout("rows", hows, rank, inner, size // inner, tuple(geometry))
    geometry = list(extents)
    if size < NARROW:
        for n in extents:
            geometry += divisor(n)
    for mine in placed:
        geometry += mine
    return Layout("spread" if size < NARROW else "wide", hows, rank, size, 1, tuple(geometry))


# ---- text

_IDS = {"flat": ("e",), "spread": ("e",), "wide": ("e",), "rows": ("i", "row")}  # the numbers of a work-item
_BY_ROW = {"rows": "spread", "spread": "rows"}
_PLACE = {scheme: tuple([f"const long {place}" for place in places]) for scheme, places in _IDS.items()}


@lru_cache(maxsize=4096)
def kernel_text(
    body: Body, scheme: str, hows: tuple[str, ...], rank: int, split: bool = False, name: str = "fused"
) -> KernelText:
    """The kernel of a body whose operands lie like this.

    Its arguments: how many (elements, or of a row); in rows the first one; the geometry, unless flat; of each input
    memory and the first element; the constants; of each output memory and the first element. split: groups that are
    full have no guard.
    """
    dtypes = body.dtypes()
    first = len(body.inputs)
    parameters = ["const long n", *(["const long top"] if scheme == "rows" else [])]
    argtypes: list[Any] = [np.int64] * len(parameters)
    if scheme != "flat":
        parameters.append("__constant long *g")
        argtypes.append(None)
    for k, dtype in enumerate(body.inputs):
        parameters += [f"__global const {TYPES[dtype]} *a{k}", f"const long o{k}"]
        argtypes += [None, np.int64]
    for k, dtype in enumerate(body.constants, first):
        parameters.append(f"const {TYPES[dtype]} v{k}")
        argtypes.append(_SCALARS[dtype])
    for k, number in enumerate(body.outputs):
        parameters += [f"__global {TYPES[dtypes[number]]} *y{k}", f"const long p{k}"]
        argtypes += [None, np.int64]
    lines = _places(scheme, hows, rank)
    for k, (dtype, how) in enumerate(zip(body.inputs, hows, strict=True)):
        at = {"flat": " + e", "scalar": ""}.get(how, f" + at{k}")
        lines.append(f"const {TYPES[dtype]} v{k} = a{k}[o{k}{at}];")
    needs: dict[str, None] = {}
    for k, step in enumerate(body.steps, first + len(body.constants)):
        lines.append(f"const {TYPES[dtypes[k]]} v{k} = {_value(step, dtypes, needs)};")
    lines += [f"y{k}[p{k} + e] = v{number};" for k, number in enumerate(body.outputs)]
    text = f"static void {name}_at({', '.join([*parameters, *_PLACE[scheme]])})\n{{\n"
    text += "".join(f"    {line}\n" for line in lines) + "}\n"
    text += f"__kernel void {name}({', '.join(parameters)})\n{{\n"
    call = f"{name}_at({', '.join(part.rpartition(' ')[2].lstrip('*') for part in [*parameters, *_PLACE[scheme]])});"
    for d, place in enumerate(_IDS[scheme]):
        text += f"    const long {place} = {'top + ' if place == 'row' else ''}(long)get_global_id({d});\n"
    if split:
        text += f"    if (((long)get_group_id(0) + 1)*(long)get_local_size(0) <= n)\n        {call}\n    else\n"
    text += f"    if ({_IDS[scheme][0]} < n)\n        {call}\n}}\n"
    return KernelText(name, text, tuple(needs), tuple(argtypes))


def _value(step: Step, dtypes: list[int], needs: dict[str, None]) -> str:
    operands = []
    for position, k in enumerate(step.operands):
        wanted = step.dtype
        if step.op != ASTYPE and position == 0 and ops.TABLE[NAMES[step.op]].kind == "select":
            wanted = BOOL
        convert = cast(dtypes[k], wanted)
        if convert is not None:
            needs[convert] = None
        operands.append(f"v{k}" if convert is None else f"{convert}(v{k})")
    if step.op == ASTYPE:
        return operands[0]
    name = function(step.op, step.dtype)
    needs[name] = None
    return f"{name}({', '.join(operands)})"


def _places(scheme: str, hows: tuple[str, ...], rank: int) -> list[str]:
    """e: the number of the work-item's element; at<k>: where it is in an input that is neither flat nor one number."""
    placed = [k for k, how in enumerate(hows) if how not in ("flat", "scalar")]
    if scheme == "flat":
        return []
    if scheme == "rows":
        lines = ["const long e = row*n + i;"]
        lines += _unravelled("row", rank - 1, placed, lambda d, rest: f"{rest} / g[{d}]", rank - 1, rank, "long")
        along = {"unit": " + i", "row": ""}
        for j, k in enumerate(placed):
            step = along.get(hows[k], f" + i*g[{rank - 1 + rank * j + rank - 1}]")
            lines[-len(placed) + j] = lines[-len(placed) + j].replace(";", f"{step};")
        return lines
    if scheme == "wide":
        return _unravelled("e", rank, placed, lambda d, rest: f"{rest} / g[{d}]", rank, rank, "long")

    def quotient(d: int, rest: str) -> str:
        return f"(uint)((ulong){rest}*(ulong)g[{rank + 2 * d}] >> (uint)g[{rank + 2 * d + 1}])"

    return _unravelled("(uint)e", rank, placed, quotient, 3 * rank, rank, "uint")


def _unravelled(
    number: str, axes: int, placed: list[int], quotient: Any, first: int, stride: int, ctype: str
) -> list[str]:
    """The coordinates of an element along `axes` axes, and from them its place in each operand, whose strides begin at
    g[first + stride*j]."""
    lines = []
    if axes:
        lines.append(f"const {ctype} r{axes - 1} = {number};")
    for d in range(axes - 1, 0, -1):
        lines.append(f"const {ctype} r{d - 1} = {quotient(d, f'r{d}')}, c{d} = r{d} - r{d - 1}*({ctype})g[{d}];")
    for j, k in enumerate(placed):
        terms = [f"(long){'r0' if d == 0 else f'c{d}'}*g[{first + stride * j + d}]" for d in range(axes)]
        lines.append(f"const long at{k} = {' + '.join(terms) or '0'};")
    return lines


# ---- launches


class Fused:
    """A body over operands of one layout, on a device: ready to run."""

    __slots__ = ("_first", "_geometry", "_inner", "_kernel", "_rows", "_sizes", "_widths", "device")

    def __init__(self, device: Any, body: Body, shape: Sequence[int], strides: Sequence[Sequence[int]]) -> None:
        """strides: of the inputs, in elements, 0 where they are broadcast; shape: not empty."""
        place = layout(shape, strides)
        # With a guard around each element PoCL makes no vectors: exp takes twice as long.
        split = "portable computing language" in device.info.platform.lower()
        self.device = device
        self._kernel = self._kernel_for(body, place, place.scheme, split)
        if device.is_surveyed and place.scheme in _BY_ROW:  # shorter or longer rows
            self._kernel_for(body, place, _BY_ROW[place.scheme], split)
        self._inner, self._rows = place.inner, place.rows if place.scheme == "rows" else 0
        self._geometry = () if place.scheme == "flat" else (_constants(device, place.geometry),)
        dtypes = body.dtypes()
        self._widths = [ITEMSIZE[dtype] for dtype in body.inputs], [ITEMSIZE[dtypes[k]] for k in body.outputs]
        self._sizes = device.sizes(self._kernel, self._inner, LOCAL)  # of one launch
        self._first = [self._inner, *[memory.buffer for memory in self._geometry]]  # of its arguments

    def _kernel_for(self, body: Body, place: Layout, scheme: str, split: bool) -> Any:
        text = kernel_text(body, scheme, place.hows, place.rank, split)
        return self.device.kernel(program([text]), text.name, OPTIONS, text.argtypes)

    def _arguments(self, ins: Sequence[Array], constants: Sequence[Any], outs: Sequence[Array]) -> list[Any]:
        arguments = list(self._geometry)
        for x, width in zip(ins, self._widths[0], strict=True):
            arguments += (x.memory, x.offset // width)
        arguments += constants
        for y, width in zip(outs, self._widths[1], strict=True):
            arguments += (y.memory, y.offset // width)
        return arguments

    def __call__(self, ins: Sequence[Array], constants: Sequence[Any], outs: Sequence[Array]) -> None:
        """Enqueue it. Arrays as the layout has them, outs contiguous; constants: Python numbers."""
        device = self.device
        if not (self._rows or device.is_watched):  # nearly always, and as quick as it can be: what eager ops wait for
            values = self._first.copy()
            for (memory, offset, *_), width in zip(ins, self._widths[0]):
                values += (memory.buffer, offset // width)
            values += constants
            for (memory, offset, *_), width in zip(outs, self._widths[1]):
                values += (memory.buffer, offset // width)
            device.launch_at_once(self._kernel, *self._sizes, values)
            return
        arguments, n = self._arguments(ins, constants, outs), self._inner
        if not self._rows:
            device.launch(self._kernel, n, LOCAL, n, *arguments)
        for top in range(0, self._rows, moves.MOST_ROWS):
            rows = min(self._rows - top, moves.MOST_ROWS)
            device.launch(self._kernel, (n, rows), (LOCAL, 1), n, top, *arguments)


class _Kept:
    """What is kept for a device: the latest groups, those of single ops by their operands, geometries in its memory."""

    __slots__ = ("geometries", "groups", "single")

    def __init__(self) -> None:
        self.groups: OrderedDict[Any, Fused] = OrderedDict()
        self.single: dict[Any, Fused] = {}
        self.geometries: OrderedDict[tuple[int, ...], Any] = OrderedDict()


def _of(device: Any) -> _Kept:
    found: _Kept | None = device.kept
    if found is None:
        found = device.kept = _Kept()
    return found


def _constants(device: Any, numbers: tuple[int, ...]) -> Any:
    """Memory of the device that holds these numbers."""
    kept = _of(device).geometries
    memory = kept.get(numbers)
    if memory is None:
        memory = device.alloc(8 * len(numbers))
        device.upload(Array(memory, 0, INT64, (len(numbers),), (8,)), np.array(numbers, np.int64), owned=True)
        kept[numbers] = memory
        if len(kept) > KEPT:
            kept.popitem(last=False)
    return memory


def fused(device: Any, body: Body, shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...]) -> Fused:
    """The group, from those that the device has used lately."""
    kept = _of(device).groups
    key = (body, shape, strides)
    found = kept.get(key)
    if found is None:
        found = Fused(device, body, shape, strides)
        if device.is_surveyed:
            return found
        kept[key] = found
        if len(kept) > KEPT:
            kept.popitem(last=False)
    return found


def strides_within(array: Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an array, in elements, that make it as large as shape by repeating it."""
    width = ITEMSIZE[array.dtype]
    if array.shape == shape:
        return tuple([step // width for step in array.strides])
    extra = len(shape) - len(array.shape)
    return tuple(
        [
            0 if d < extra or array.shape[d - extra] != n else array.strides[d - extra] // width
            for d, n in enumerate(shape)
        ]
    )


def run_op(
    device: Any, op: int, ins: Sequence[Array], out: Array, body: Callable[[int, tuple[int, ...], int], Body]
) -> None:
    """Compute one op; body(op, dtypes of ins, dtype of out) says how. What it has met before it enqueues at once."""
    kept = _of(device)
    key = (op, out.dtype, out.shape, *[x[2:] for x in ins])
    found = kept.single.get(key)
    if found is None:
        if 0 in out.shape:
            return
        strides = tuple([strides_within(x, out.shape) for x in ins])
        wanted = body(op, tuple([x.dtype for x in ins]), out.dtype)
        found = fused(device, wanted, out.shape, strides)
        if kept.groups.get((wanted, out.shape, strides)) is found:
            if len(kept.single) >= KEPT:
                kept.single.clear()
            kept.single[key] = found
    found(ins, (), (out,))


def run(device: Any, body: Body, ins: Sequence[Array], constants: Sequence[Any], outs: Sequence[Array]) -> None:
    """Compute a body over the shape of its outputs, by as many kernels as it takes."""
    shape = outs[0].shape
    if 0 in shape:
        return
    dtypes = body.dtypes()
    arrays = {**dict(enumerate(ins)), **dict(zip(body.outputs, outs, strict=True))}
    for part in parts(body):
        for k in part.writes:
            if k not in arrays:
                arrays[k] = device.empty_array(dtypes[k], shape, "fused")
        xs = [arrays[k] for k in part.reads]
        strides = tuple([strides_within(x, shape) for x in xs])
        group = fused(device, part.body, shape, strides)
        group(xs, [constants[k] for k in part.constants], [arrays[k] for k in part.writes])
