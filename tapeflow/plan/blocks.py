"""A group as the executor runs it: operands, blocks and steps.

A step reads and writes whole blocks. An operand is a block of the group's own, contiguous memory of its shape, one
element for all, strided memory that is packed into a block, or memory with one element for each row. A step over rows
goes over one element a row; what a step over elements reads of those is stretched into a block first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tapeflow import _core
from tapeflow.plan.grouping import (
    ALIGN,
    ASTYPE,
    REDUCTIONS,
    SMALLEST,
    TILE,
    Node,
    View,
    base_of,
    broadcast_strides,
    contiguous,
    is_contiguous,
)
from tapeflow.plan.ir import BOOL, IR, ITEMSIZE, Instr, compute_dtype

BLOCK, DIRECT, CONSTANT, PACKED, ROWS = range(5)
STRETCH = -1  # in place of an op

_CACHE = 40 * 1024  # what the blocks of a group should take
_PARALLEL = 50_000  # steps times elements from which threads that are awake share a group
_SHARE = 25_000  # of them, a thread's share at least
_CHUNKS = 64  # shares at most
_SUM_CHUNK = 4096  # elements of a row that a thread sums in one go, as exec.h has it


@dataclass
class Layout:
    """Where values are. offsets: of the arena, in bytes; cells: 0-d values in cells of eight bytes at its start."""

    offsets: dict[int, int]
    cells: dict[int, int]
    fresh: set[int]
    loads: list[tuple[int, int, bool]]  # (value, cell, once)
    copies: list[tuple[int, int]]  # (value, fresh value) at the end
    outputs: dict[int, int]  # a result -> the fresh value that holds it
    arena_bytes: int = 0
    lifetimes: dict[int, tuple[int, int]] = field(default_factory=dict)  # of values of the arena: first, last node


def operand_dtype(op: int, position: int, have: int, dtype: int) -> int:
    """The dtype that the loop of an op over dtype takes an operand in: a condition as bool, whatever it was."""
    if op == ASTYPE:
        return have
    return BOOL if position == 0 and _core.op_kind(op) == "select" else dtype


class Blocks:
    """Writes a group down for _core.Executable."""

    def __init__(self, ir: IR, views: dict[int, View], layout: Layout, slot: Callable[[int], int], node: Node) -> None:
        self.values, self.ir, self.views, self.layout, self.slot, self.node = ir.values, ir, views, layout, slot, node
        self.shape = node.shape or ()
        self.operands: list[tuple[Any, ...]] = []
        self.steps: list[tuple[int, ...]] = []
        self.number_of: dict[Any, int] = {}  # a value, or how it is read -> its operand
        self.free: list[int] = []  # operands that are blocks nobody reads any more
        self.made: set[int] = set()  # values that are in blocks
        self.n_blocks = 0
        self.wide = max([ITEMSIZE[self.values[k].dtype] for instr in node.instrs for k in (*instr.ins, instr.out)])

    def link(self) -> tuple[Any, ...]:
        last: dict[int, int] = {}
        for i, instr in enumerate(self.node.instrs):
            for k in instr.ins:
                last[k] = i
        for i, instr in enumerate(self.node.instrs):
            self.add(instr, [k for k in set(instr.ins) if last[k] == i], instr.out in last)
        size, row = prod(self.shape), self.node.row
        length = max(min(_CACHE // max(self.n_blocks * self.wide, 1) // 64 * 64, 1024), SMALLEST)
        length = max(min(length, -(-size // 8) * 8), row if row <= TILE else 0)
        unit, together = 1, max(length, 1)  # elements that threads do not divide, and how many of these make a block
        if row > length:
            unit, together = _SUM_CHUNK, 1
        elif row:
            length = length // row * row
            unit, together = row, length // row
        work = size * len(self.steps)
        share = max(_SHARE // len(self.steps), size // _CHUNKS)
        grain = -(-share // (unit * together)) * together
        shared = work >= _PARALLEL and size > grain * unit
        nbytes = -(-length * self.wide // ALIGN) * ALIGN
        return (
            self.shape, row, length, nbytes, self.n_blocks, self.operands, self.steps, work if shared else 0, grain
        )  # fmt: skip

    def add(self, instr: Instr, ends: list[int], is_read: bool) -> None:
        """The steps of an instruction, the last one here that reads what ends."""
        values, op = self.values, instr.op
        out = values[instr.out]
        as_it_is = op == ASTYPE or op in REDUCTIONS
        per_row = instr.out in self.node.per_row and op not in REDUCTIONS
        dtype = out.dtype if as_it_is else compute_dtype(self.ir, instr)
        abc, casts = [], []
        for position, k in enumerate(instr.ins):
            have = values[k].dtype
            at = self.operand(k, per_row)
            wanted = have if as_it_is else operand_dtype(op, position, have, dtype)
            if have != wanted:
                to = self.block()
                casts.append(to)
                self.steps.append((ASTYPE, have, wanted, to, at, -1, -1, per_row))
                at = to
            abc.append(at)
        # y may be written over an operand that is read for the last time, but only where their elements are as wide
        dead = [(self.number_of[key], ITEMSIZE[values[k].dtype]) for k in ends for key in (k, (k, "row"))
                if key in self.number_of and (k in self.made or key != k)]  # fmt: skip
        width = ITEMSIZE[out.dtype]
        self.free.extend([at for at, size in dead if size == width])
        y = self.number_of[instr.out] = self.result(instr, is_read)
        self.free.extend([at for at, size in dead if size != width])
        self.free.extend(casts)
        a, b, c = (*abc, -1, -1)[:3]
        if as_it_is:
            self.steps.append((op, values[instr.ins[0]].dtype, out.dtype, y, a, -1, -1, per_row))
        else:
            self.steps.append((op, dtype, 0, y, a, b, c, per_row))

    def result(self, instr: Instr, is_read: bool) -> int:
        """The operand that an instruction writes."""
        k = instr.out
        itemsize = ITEMSIZE[self.values[k].dtype]
        if k in self.layout.offsets or k in self.layout.fresh or k in self.layout.cells:
            return self.new(ROWS if k in self.node.per_row else DIRECT, itemsize, self.slot(k))
        y = self.block()
        self.made.add(k)
        if not is_read:
            self.free.append(y)
        return y

    def new(self, kind: int, itemsize: int, slot: int, strides: tuple[int, ...] | None = None) -> int:
        number = 0
        if kind in (BLOCK, CONSTANT, PACKED):
            number = self.n_blocks
            self.n_blocks += 1
        self.operands.append((kind, number, itemsize, slot, strides))
        return len(self.operands) - 1

    def block(self) -> int:
        return self.free.pop() if self.free else self.new(BLOCK, self.wide, -1)

    def operand(self, k: int, per_row: bool) -> int:
        """The operand by which a step, over rows or elements, reads a value."""
        base = base_of(k, self.views)
        is_row = base in self.node.per_row and base in self.number_of
        if is_row and per_row:
            return self.number_of[base]
        key: Any = (k, "row") if is_row else (k, per_row) if per_row and self.values[k].size > 1 else k
        found = self.number_of.get(key)
        if found is None:
            if is_row:
                found = self.block()
                itemsize = ITEMSIZE[self.values[k].dtype]
                self.steps.append((STRETCH, itemsize, 0, found, self.number_of[base], -1, -1, False))
            else:
                found = self.outside(k, per_row)
            self.number_of[key] = found
        return found

    def outside(self, k: int, per_row: bool) -> int:
        value = self.values[k]
        itemsize = ITEMSIZE[value.dtype]
        view = self.views.get(k)
        strides = view.strides if view is not None else contiguous(value.shape, itemsize)
        if value.size == 1:
            return self.new(CONSTANT, itemsize, self.slot(k))
        if per_row:
            return self.new(ROWS, itemsize, self.slot(k))
        if value.shape == self.shape and is_contiguous(self.shape, strides, itemsize):
            return self.new(DIRECT, itemsize, self.slot(k))
        return self.new(PACKED, itemsize, self.slot(k), broadcast_strides(value.shape, strides, len(self.shape)))
