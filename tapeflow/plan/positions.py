"""Positions that no recording has checked.

The kernels of take, put and scatter_add trust their positions, which eager has made by `places`: wrapped, checked and
without gaps. In a program that was read from elsewhere they may come from anything. `check` works out the bounds of
integers, by interval arithmetic over the ops that positions are made with, and lets what it cannot bound go through
`places` first, which raises IndexError at run time as eager does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tapeflow import _core
from tapeflow.plan.ir import BOOL, CODES, CONST, DTYPES, INDEXED, INT32, INT64, IR, MADE, UINT8, Instr, Value
from tapeflow.plan.types import DRAW_INTEGERS, INTEGERS, highest_place

Bounds = tuple[int, int]  # lowest, highest

_PLACES = CODES["places"]
_VIEWS = tuple(CODES[name] for name in ("identity", "permute_dims", "broadcast_to", "getitem"))  # may have gaps
_HELD: dict[int, Bounds] = {
    BOOL: (0, 1),
    UINT8: (0, 255),
    INT32: (-(1 << 31), (1 << 31) - 1),
    INT64: (-(1 << 63), (1 << 63) - 1),
}
_ANY = -(1 << 200), 1 << 200  # of floats


def check(ir: IR) -> None:
    """Put `places` before what would trust a position that may be out of range, or be read with the wrong strides. Of a
    program whose types were checked."""
    if not any(instr.op in INDEXED for instr in ir.instrs):
        return
    bounds = _bounds(ir)
    views: set[int] = set()
    checked: dict[tuple[int, int], int] = {}  # positions and the extent of their axis -> those that are checked
    instrs: list[Instr] = []
    for instr in ir.instrs:
        if instr.op in _VIEWS:
            views.add(instr.out)
        if instr.op in INDEXED:
            axis, k = instr.params[0], instr.ins[1]
            extent = ir.values[instr.ins[0]].shape[axis]
            low, high = bounds.get(k, _HELD[INT64])
            if ir.values[k].size and (k in views or low < 0 or high >= extent):
                if (k, extent) not in checked:
                    instrs.append(_checked(ir, k, extent, axis, instr.line))
                    checked[k, extent] = instrs[-1].out
                instr.ins = (instr.ins[0], checked[k, extent], *instr.ins[2:])
        instrs.append(instr)
    ir.instrs = instrs


def _checked(ir: IR, k: int, extent: int, axis: int, line: int) -> Instr:
    """Positions in an axis of this extent, each wrapped and checked."""
    shape = ir.values[k].shape
    params = (len(shape), len(shape), *shape, *[0] * len(shape), extent, 1, axis)
    return Instr(_PLACES, params, (k,), ir.new_value(Value(MADE, INT64, shape)), line)


# ---- bounds


def _bounds(ir: IR) -> dict[int, Bounds]:
    """Of the integers whose bounds are known."""
    known: dict[int, Bounds] = {}
    for k, x in ir.objects.items():
        v = ir.values[k]
        if v.kind == CONST and v.dtype in INTEGERS and v.size:
            elements = np.frombuffer(_core.bytes_of(x), DTYPES[v.dtype])
            known[k] = int(elements.min()), int(elements.max())
    for instr in ir.instrs:
        rule = _RULES.get(instr.op)
        if rule is None or ir.values[instr.out].dtype not in INTEGERS or not ir.values[instr.out].size:
            continue
        lowest, highest = _HELD[ir.values[instr.out].dtype]
        xs = [known.get(k) or _HELD.get(ir.values[k].dtype, _ANY) for k in instr.ins]
        low, high = rule(ir, instr, xs)
        if lowest <= low <= high <= highest:  # otherwise it may have wrapped
            known[instr.out] = low, high
    return known


Rule = Callable[[IR, Instr, list[Bounds]], Bounds]


def _operands(*which: int) -> Rule:
    """The elements are those of these operands."""

    def rule(ir: IR, instr: Instr, xs: list[Bounds]) -> Bounds:
        among = [xs[i] for i in which] if which else xs
        return min([low for low, _ in among]), max([high for _, high in among])

    return rule


def _of_corners(f: Callable[[int, int], int]) -> Rule:
    """A function of two that is monotonic in each: its extremes are at the ends."""

    def rule(ir: IR, instr: Instr, xs: list[Bounds]) -> Bounds:
        ends = [f(a, b) for a in xs[0] for b in xs[1]]
        return min(ends), max(ends)

    return rule


def _below(limit: Callable[[IR, Instr], int]) -> Rule:
    """Counted from 0, below a limit."""
    return lambda ir, instr, xs: (0, limit(ir, instr) - 1)


def _size(ir: IR, instr: Instr) -> int:
    return ir.values[instr.ins[0]].size


def _along(ir: IR, instr: Instr) -> int:
    return ir.values[instr.ins[0]].shape[instr.params[0]]


def _drawn(ir: IR, instr: Instr, xs: list[Bounds]) -> Bounds:
    if instr.params[0] != DRAW_INTEGERS:
        return _HELD[INT64]
    count, lowest = instr.params[3] % (1 << 64), instr.params[4]
    return (lowest, lowest + count - 1) if count else _HELD[INT64]


_RULES: dict[int, Rule] = {
    CODES[name]: rule
    for names, rule in {
        "identity reshape permute_dims broadcast_to getitem take max min cumulative_max positive": _operands(0),
        "astype": lambda ir, instr, xs: xs[0],
        "concat": _operands(),
        "maximum": _of_corners(max),
        "minimum": _of_corners(min),
        "where": _operands(1, 2),
        "assign": _operands(0, 1),
        "put": _operands(0, 2),
        "unslice": lambda ir, instr, xs: (min(xs[0][0], 0), max(xs[0][1], 0)),
        "add": _of_corners(lambda a, b: a + b),
        "subtract": _of_corners(lambda a, b: a - b),
        "multiply": _of_corners(lambda a, b: a * b),
        "places": lambda ir, instr, xs: (0, highest_place(instr.params)),
        "nonzero": _below(lambda ir, instr: max(_size(ir, instr), 1)),
        "class_positions": _below(lambda ir, instr: _size(ir, instr) * instr.params[0]),
        "argsort": _below(_along),
        "argmax argmin": _below(lambda ir, instr: instr.params[1]),
        "cumulative_argmax": _below(_size),
        "random": _drawn,
    }.items()
    for name in names.split()
}
