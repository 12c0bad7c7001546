"""Which instructions of a program run together, and in which order.

`schedule` puts them into nodes: a group of elementwise ops of one shape, a program of 0-d ops, or one op by itself.

A group is kept open while elementwise ops of its shape arrive. A sum over rows of what it makes joins it. What else
reads what it makes (a product, a sum over columns) waits, and so does a group of a much smaller shape: a gradient of
three numbers that sums over a large group are added to does not end it. A node is closed, after those that it waits
for, where an op that belongs to an open group reads from it what would make the two wait for each other, or where the
shapes are alike. So a gradient joins the group of the value, past the sum between them.

Where rows fit a block (TILE), what reads a value for each row, stretched over the row, stays in the group, too, and a
group of one op for each row that waits for it is taken in: a normalised row never leaves the block.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from tapeflow.plan.ir import (
    ACCUMULATE,
    CODES,
    FLOAT32,
    GRAD,
    GRAD_GUARD,
    GUARD,
    IR,
    ITEMSIZE,
    N_ELEMENTWISE,
    RANDOM,
    Instr,
    contiguous,
)

DO_OP, DO_GROUP, DO_SCALARS, DO_RANDOM, DO_ACCUMULATE, DO_GUARD, DO_COPY = range(7)

ASTYPE = CODES["astype"]
_VIEWS = {CODES[name] for name in ("identity", "reshape", "permute_dims", "broadcast_to", "getitem")}
_SUMS = {CODES["sum"], CODES["mean"]}
REDUCTIONS = range(CODES["sum"], CODES["vector_norm"] + 1)

ALIGN = 64
GROUP_OPERANDS = 4096
SMALLEST = 128  # elements of a block, at least
TILE = 512  # elements of a row up to which blocks hold whole rows
_GROUP_BYTES = 192 * 1024  # of all blocks of a group, as plan.h has it
_SUMS_OF_ROWS = 64  # the same, of one whose rows are longer than a block
_STEPS = 64  # of a group over a large shape
_SMALL = 256  # elements up to which a group may have any number of steps
_SMALLER = 8  # times, what waits for a group rather than end it
_WAITING = 64  # nodes that wait at most


@dataclass(eq=False)
class Node:
    """Instructions that run together. kind: DO_GROUP, DO_SCALARS, or another DO_ with one instruction.

    row: elements of a row, where the group reduces rows; per_row: the values it makes of which there is one for each.
    after: what has to run before; only until it is closed.
    """

    kind: int
    shape: tuple[int, ...] | None
    instrs: list[Instr] = field(default_factory=list)
    row: int = 0
    per_row: set[int] = field(default_factory=set)
    after: set[Node] = field(default_factory=set)
    closed: bool = False
    size: int = 0  # elements that a group has a step over; of what waits, that it reads


class View(NamedTuple):
    base: int  # a value that is no view
    offset: int
    strides: tuple[int, ...]


def schedule(ir: IR, fuse: bool = True, rows: bool = True) -> tuple[list[Node], dict[int, View]]:
    """The nodes in the order they run, and the values that are views. rows: whether groups take in reductions."""
    return _Scheduler(ir, fuse, fuse and rows).run()


class _Scheduler:
    def __init__(self, ir: IR, fuse: bool, rows: bool) -> None:
        self.ir, self.fuse, self.rows = ir, fuse, rows
        self.nodes: list[Node] = []
        self.open: dict[tuple[int, ...], Node] = {}
        self.maker: dict[int, Node] = {}  # of a value, or of what it is a view of: the node, if it was open then
        self.waiting: deque[Node] = deque()  # those with one instruction
        self.views: dict[int, View] = {}

    def run(self) -> tuple[list[Node], dict[int, View]]:
        for instr in self.ir.instrs:
            if 0 <= instr.op < N_ELEMENTWISE or (instr.op == ASTYPE and self.fuse):
                self.add_elementwise(instr)
            elif not (instr.op in _VIEWS and self.add_view(instr)) and not self.add_row(instr):
                self.add_single(instr)
        self.release(None)
        for node in list(self.open.values()):
            self.close(node)
        return self.nodes, self.views

    def add_elementwise(self, instr: Instr) -> None:
        values = self.ir.values
        value = values[instr.out]
        shape = value.shape
        node = self.open.get(shape)
        maker, views = self.maker, self.views
        others = []
        for k in instr.ins:
            other = maker.get(k)
            if other is None or other.closed or (other is node and k not in views and values[k].shape == shape):
                continue
            if node is None or node.row == 0 or not self.is_stretched(k, other, node):
                others.append(other)
        if others:
            self.make_way(node, value.size, others)
            node = self.open.get(shape)
        if node is None:
            node = self.open[shape] = Node(DO_SCALARS if shape == () else DO_GROUP, shape, size=value.size)
        for other in others:
            if not other.closed:
                node.after.add(other)
        node.instrs.append(instr)
        maker[instr.out] = node
        if not self.fuse or len(node.instrs) >= (_STEPS if value.size > _SMALL else GROUP_OPERANDS // 4):
            self.close(node)

    def make_way(self, node: Node | None, size: int, others: list[Node]) -> None:
        """Close those of the others that an op over `size` elements, in this group, cannot wait for."""
        for other in others:
            if other.closed:
                continue
            for_rows = 0 < other.row <= TILE and size * other.row == other.size
            if (size * _SMALLER > other.size and not for_rows) or (node is not None and self.waits_for(other, node)):
                if other.shape is None:
                    self.release(other)
                else:
                    self.close(other)

    def waits_for(self, node: Node, other: Node) -> bool:
        seen = {node}
        stack = [node]
        while stack:
            one = stack.pop()
            if one is other:
                return True
            for before in one.after:
                if not before.closed and before not in seen:
                    seen.add(before)
                    stack.append(before)
        return False

    def add_view(self, instr: Instr) -> bool:
        view = view_of(self.ir, instr, self.views)
        if view is None:
            return False
        self.views[instr.out] = view
        if view.base in self.maker:
            self.maker[instr.out] = self.maker[view.base]
        return True

    def add_row(self, instr: Instr) -> bool:
        """Let a reduction over rows join the group that makes what it reduces."""
        if instr.op not in REDUCTIONS or not self.rows:
            return False
        k = instr.ins[0]
        x = self.ir.values[k]
        node = self.maker.get(k)
        if node is None or node.closed or node.kind != DO_GROUP or node.shape != x.shape or k in self.views:
            return False
        row = row_of(x.shape, instr.params[0])
        if not row or (node.row and node.row != row):
            return False
        if row > TILE:  # maybe longer than a block
            sums = sum(one.op in _SUMS for one in node.instrs)
            if instr.op not in _SUMS or x.dtype < FLOAT32 or sums == _SUMS_OF_ROWS:
                return False
        node.row = row
        node.instrs.append(instr)
        node.per_row.add(instr.out)
        self.maker[instr.out] = node
        return True

    def is_stretched(self, k: int, maker: Node, node: Node) -> bool:
        """Whether k, made by an open node, has one value for each row of this group, and can be made in it."""
        if node.row > TILE or not is_per_row(self.ir, k, self.views, node):
            return False
        if maker is not node:
            return self.take_in(maker, node)
        return base_of(k, self.views) in node.per_row

    def take_in(self, small: Node, node: Node) -> bool:
        """Let a group of an op for each row, which waits for nothing but this group, become part of it."""
        values, views = self.ir.values, self.views
        if small.kind != DO_GROUP or small.row or small.size * node.row != node.size:
            return False
        if any(not other.closed and other is not node for other in small.after):
            return False
        made = {instr.out for instr in small.instrs}
        for instr in small.instrs:
            for k in instr.ins:
                base = base_of(k, views)
                inside = base in made or base in node.per_row
                if not inside and base in self.maker and not self.maker[base].closed:
                    return False
                x = values[k]
                if (inside or x.size != 1) and (x.shape != small.shape or not _lies_packed(self.ir, k, views)):
                    return False
        node.instrs += small.instrs
        node.per_row |= made
        for k in made:
            self.maker[k] = node
        assert small.shape is not None
        del self.open[small.shape]
        small.closed = True
        for other in (*self.waiting, *self.open.values()):
            if small in other.after:
                other.after.add(node)
        return True

    def add_single(self, instr: Instr) -> None:
        node = Node(_kind(instr.op), None, [instr])
        for k in instr.ins:
            other = self.maker.get(k)
            if other is not None and not other.closed:
                node.after.add(other)
        if not node.after:
            self.nodes.append(node)
            return
        if instr.op in REDUCTIONS:  # what it makes is small
            node.size = self.ir.values[instr.ins[0]].size
        self.waiting.append(node)
        self.maker[instr.out] = node
        if instr.op < 0:  # what a guard protects comes after it
            self.release(node)
        elif len(self.waiting) > _WAITING:
            self.release(self.waiting[0])

    def close(self, node: Node) -> None:
        """Let it run, after what it waits for."""
        stack = [node]
        while stack:
            one = stack[-1]
            before = [other for other in one.after if not other.closed]
            if before:
                stack += before
                continue
            stack.pop()
            if one.closed:
                continue
            one.closed = True
            one.after.clear()
            if one.shape is None:
                self.nodes.append(one)
            else:
                del self.open[one.shape]
                self.nodes.extend(_parts(self.ir, one))

    def release(self, until: Node | None) -> None:
        """Let nodes run that wait, in their order, up to this one."""
        while self.waiting:
            node = self.waiting.popleft()
            if not node.closed:
                self.close(node)
            if node is until:
                break


class Lives(NamedTuple):
    """Of values: the number of the node that makes them and of the last that reads them, or a view of them; outside:
    those that others than the node that makes them read, or that are read as views."""

    made: dict[int, int]
    last: dict[int, int]
    outside: set[int]


def lives_of(nodes: list[Node], views: dict[int, View]) -> Lives:
    """From when to when values are needed."""
    made: dict[int, int] = {}
    last: dict[int, int] = {}
    outside: set[int] = set()
    for at, node in enumerate(nodes):
        for instr in node.instrs:
            for k in instr.ins:
                base = base_of(k, views)
                last[base] = at
                if made.get(base) != at or k != base:
                    outside.add(base)
            if instr.op >= 0:
                made[instr.out] = at
    return Lives(made, last, outside)


def base_of(k: int, views: dict[int, View]) -> int:
    """The value whose memory k looks at: itself where it is no view."""
    return views[k].base if k in views else k


def row_of(shape: tuple[int, ...], mask: int) -> int:
    """Elements that a reduction over these axes takes together, where they are the last ones; else 0."""
    row = 1
    kept = False
    for d in range(len(shape) - 1, -1, -1):
        if shape[d] == 1:
            continue
        if mask >> d & 1:
            if kept:
                return 0
            row *= shape[d]
        else:
            kept = True
    return row if row > 1 else 0


def _lies_packed(ir: IR, k: int, views: dict[int, View]) -> bool:
    x = ir.values[k]
    return k not in views or is_contiguous(x.shape, views[k].strides, ITEMSIZE[x.dtype])


def is_per_row(ir: IR, k: int, views: dict[int, View], node: Node) -> bool:
    """Whether value k over the shape of a group is, in each row, one element: that of the row's number in its base."""
    x = ir.values[k]
    itemsize = ITEMSIZE[x.dtype]
    shape = node.shape or ()
    if k in views and views[k].offset:
        return False
    strides = broadcast_strides(x.shape, views[k].strides if k in views else contiguous(x.shape, itemsize), len(shape))
    inner = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != (0 if inner < node.row else inner // node.row * itemsize):
            return False
        inner *= n
    return True


def broadcast_strides(shape: tuple[int, ...], strides: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    """Strides of a value over a shape of ndim axes that it is stretched to."""
    extra = ndim - len(shape)
    return tuple([0 if d < extra or shape[d - extra] == 1 else strides[d - extra] for d in range(ndim)])


def _parts(ir: IR, node: Node) -> list[Node]:
    """A group, or several where its blocks would not fit a thread's stack."""
    if node.kind != DO_GROUP or _blocks(ir, node) * _block_bytes(ir, node) <= _GROUP_BYTES:
        return [node]
    half = len(node.instrs) // 2
    halves = [Node(DO_GROUP, node.shape, part) for part in (node.instrs[:half], node.instrs[half:])]
    for one in halves:
        one.per_row = {instr.out for instr in one.instrs if instr.out in node.per_row}
        if one.per_row:
            one.row = node.row
    return [part for one in halves for part in _parts(ir, one)]


def _block_bytes(ir: IR, node: Node) -> int:
    """Of the shortest block that a group may have."""
    assert node.shape is not None
    row = node.row if node.row <= TILE else 0
    return -(-min(prod(node.shape), max(SMALLEST, row)) * 8 // ALIGN) * ALIGN


def _blocks(ir: IR, node: Node) -> int:
    """No fewer than the blocks of a group: what it reads, its values that live at once, casts."""
    last = {k: i for i, instr in enumerate(node.instrs) for k in instr.ins}
    made = {instr.out for instr in node.instrs}
    live = most = 0
    for i, instr in enumerate(node.instrs):
        live += instr.out in last
        most = max(most, live)
        live -= sum(last[k] == i and k in made for k in set(instr.ins))
    return sum(k not in made for k in last) + most + 4


def _kind(op: int) -> int:
    if op in (GUARD, GRAD_GUARD):
        return DO_GUARD
    if op == RANDOM:
        return DO_RANDOM
    if op == ACCUMULATE:
        return DO_ACCUMULATE
    return DO_OP


def view_of(ir: IR, instr: Instr, views: dict[int, View]) -> View | None:
    """The view that an instruction makes of its input; None where elements have to move."""
    source = instr.ins[0]
    x, y = ir.values[source], ir.values[instr.out]
    itemsize = ITEMSIZE[x.dtype]
    if x.kind == GRAD or (source in views and ir.values[views[source].base].kind == GRAD):
        return None
    view = views.get(source) or View(source, 0, contiguous(x.shape, itemsize))
    name = instr.op
    if name == CODES["identity"]:
        return view
    if name == CODES["reshape"]:
        if x.size and not is_contiguous(x.shape, view.strides, itemsize):
            return None
        return View(view.base, view.offset, contiguous(y.shape, itemsize))
    if name == CODES["permute_dims"]:
        return View(view.base, view.offset, tuple([view.strides[a] for a in instr.params]))
    if name == CODES["broadcast_to"]:
        extra = len(y.shape) - len(x.shape)
        strides = [
            0 if d < extra or x.shape[d - extra] == 1 or x.shape[d - extra] != n else view.strides[d - extra]
            for d, n in enumerate(y.shape)
        ]
        return View(view.base, view.offset, tuple(strides))
    return _window(instr.params, x.shape, y.shape, view)


def _window(params: tuple[int, ...], shape: tuple[int, ...], result: tuple[int, ...], view: View) -> View | None:
    """A basic index: start, step, count, extent of each axis; the result's shape differs by axes of size 1."""
    offset = view.offset
    steps = []
    for d, stride in enumerate(view.strides):
        start, step, count = params[4 * d : 4 * d + 3]
        if count > 0:
            offset += start * stride
        if count != 1:
            steps.append((count, step * stride))
    strides = []
    k = 0
    for n in result:
        if n == 1:
            strides.append(0)
        else:
            if k == len(steps) or steps[k][0] != n:
                return None
            strides.append(steps[k][1])
            k += 1
    return View(view.base, offset, tuple(strides)) if k == len(steps) else None


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    expected = itemsize
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True
