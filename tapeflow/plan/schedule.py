"""From a program to what runs: storage for its values, and the instructions of the executor.

Three steps. `schedule` (grouping.py) puts the instructions into nodes. `place` gives every value storage: a view of
another one, fresh memory (what outlives the run), a cell of eight bytes (0-d), or a range of the arena that nobody else
uses while the value lives. `Linker` writes both down for _core.Executable.
"""

from __future__ import annotations

from typing import Any

from tapeflow import _core
from tapeflow.plan.blocks import Blocks, Layout, operand_dtype
from tapeflow.plan.grouping import (
    ALIGN,
    ASTYPE,
    DO_COPY,
    DO_GROUP,
    DO_GUARD,
    DO_SCALARS,
    REDUCTIONS,
    Node,
    View,
    base_of,
    lives_of,
)
from tapeflow.plan.ir import CODES, CONST, GRAD_GUARD, INPUT, IR, ITEMSIZE, TENSOR, Instr, compute_dtype

SLOT_ARENA, SLOT_VIEW, SLOT_INPUT, SLOT_TENSOR, SLOT_GRAD, SLOT_CONST, SLOT_FRESH = range(7)

_CHANGES = {CODES[name] for name in ("assign", "scatter_add", "put")}


# ---- storage


def place(ir: IR, nodes: list[Node], views: dict[int, View], reuse: bool = True) -> Layout:
    """Storage for every value that a node makes and another reads, or that outlives the run."""
    values = ir.values
    layout = Layout({}, {}, set(), [], [], {})
    made, last, read_outside = lives_of(nodes, views)
    results = set(ir.results())
    for k in results:
        base = base_of(k, views)
        read_outside.add(base)
        if (
            base == k and k in made and values[k].shape != () and k not in layout.outputs
        ):  # made right where it is to stay
            layout.fresh.add(k)
            layout.outputs[k] = k
    for k in sorted(results):
        if k not in layout.outputs:
            copy = ir.new_value(values[k]._replace(kind=0))
            layout.fresh.add(copy)
            layout.outputs[k] = copy
            layout.copies.append((k, copy))
            last[base_of(k, views)] = len(nodes)
    inside = {  # values that only their own group reads
        instr.out
        for node in nodes
        for instr in node.instrs
        if node.kind == DO_GROUP and instr.out not in read_outside and instr.op not in REDUCTIONS
    }
    _place_cells(ir, nodes, views, layout, made, last)
    made = {k: at for k, at in made.items() if k not in inside and k not in layout.cells}
    place_arrays(ir, layout, made, last, _taken_over(ir, nodes, views, made, last) if reuse else None)
    return layout


def _taken_over(
    ir: IR, nodes: list[Node], views: dict[int, View], made: dict[int, int], last: dict[int, int]
) -> dict[int, int]:
    """Results that may be written over an operand: value -> operand.

    A step of a group writes the positions that it has read; so the operand must be as large, element by element, read
    by no later step and nobody else, and not through a view. What changes elements of its first operand needs no copy
    of it when nobody else reads that.
    """
    values = ir.values
    taken: dict[int, int] = {}
    for at, node in enumerate(nodes):
        if node.kind != DO_GROUP:
            first = node.instrs[0]
            if first.op in _CHANGES and first.out in made:
                k = first.ins[0]
                others = [base_of(other, views) for other in first.ins[1:]]
                if k not in views and made.get(k, at) < at and last[k] == at and k not in others:
                    taken[first.out] = k
            continue
        read: dict[int, int] = {}
        packed: set[int] = set()
        for i, instr in enumerate(node.instrs):
            for k in instr.ins:
                read[k] = i
                if k in views:
                    packed.add(views[k].base)
        for i, instr in enumerate(node.instrs):
            y = instr.out
            if y not in made or y in node.per_row:
                continue
            for k in instr.ins:
                x = values[k]
                if (
                    read[k] == i
                    and made.get(k, at) < at
                    and last[k] == at
                    and k not in packed
                    and x.shape == node.shape
                    and x.nbytes == values[y].nbytes
                ):
                    taken[y] = k
                    read[k] = -1
                    break
    return taken


def _place_cells(
    ir: IR, nodes: list[Node], views: dict[int, View], layout: Layout, made: dict[int, int], last: dict[int, int]
) -> None:
    """A cell for each 0-d value that is made, and for what 0-d programs read from elsewhere."""
    values = ir.values
    count = 0
    free: list[int] = []
    ends: dict[int, list[int]] = {}  # node -> 0-d values that it is the last to read
    cells = layout.cells
    for k in made:
        if values[k].shape == () and k not in last:
            last[k] = made[k]
    for node in nodes:
        if node.kind == DO_SCALARS:
            for instr in node.instrs:
                for k in instr.ins:
                    if k not in cells and k not in made and k not in views:
                        cells[k] = count
                        layout.loads.append((k, count, values[k].kind == CONST))
                        count += 1
    for at, node in enumerate(nodes):
        uses: dict[int, int] = {}
        freed: set[int] = set()
        if node.kind == DO_SCALARS:  # within a program of 0-d values cells are reused instruction by instruction
            for i, instr in enumerate(node.instrs):
                for k in instr.ins:
                    uses[k] = i
        for i, instr in enumerate(node.instrs):
            dying = [
                k for k in dict.fromkeys(instr.ins if uses else ())
                if uses[k] == i and last.get(k) == at and k in made and k in cells and k not in freed
            ]  # fmt: skip
            k = instr.out
            # over lanes the result may take the cell of an operand only where it is as wide
            width = ITEMSIZE[values[k].dtype] if instr.op >= 0 else 0
            free.extend([cells[d] for d in dying if ITEMSIZE[values[d].dtype] == width])
            freed.update(dying)
            if instr.op >= 0 and values[k].shape == ():
                if free:
                    cells[k] = free.pop()
                else:
                    cells[k] = count
                    count += 1
                ends.setdefault(last[k], []).append(k)
            free.extend([cells[d] for d in dying if ITEMSIZE[values[d].dtype] != width])
        for k in ends.pop(at, ()):
            if k not in freed:
                free.append(cells[k])
    layout.arena_bytes = 8 * count


def place_arrays(
    ir: IR, layout: Layout, made: dict[int, int], last: dict[int, int], taken_over: dict[int, int] | None
) -> None:
    """Ranges of the arena, first fit, so that values that live at the same time are apart; None: no range twice."""
    values = ir.values
    base = -(-layout.arena_bytes // ALIGN) * ALIGN
    top = base
    holes: list[tuple[int, int]] = []  # (offset, bytes), by offset
    ending: dict[int, list[int]] = {}  # node -> values that it is the last to read
    size_of: dict[int, int] = {}
    now = 0
    for k, at in sorted(made.items(), key=lambda item: item[1]):
        if k in layout.fresh:
            continue
        while taken_over is not None and now < at:
            for gone in ending.pop(now, ()):
                give_back(holes, (layout.offsets[gone], size_of[gone]))
            now += 1
        size = max(-(-values[k].nbytes // ALIGN) * ALIGN, ALIGN)
        operand = taken_over.get(k) if taken_over is not None else None
        if operand in layout.offsets:
            offset = layout.offsets[operand]
            ending[at].remove(operand)
        else:
            for i, (offset, nbytes) in enumerate(holes):
                if nbytes >= size:
                    if nbytes == size:
                        del holes[i]
                    else:
                        holes[i] = (offset + size, nbytes - size)
                    break
            else:
                offset = top
                top += size
        layout.offsets[k] = offset
        size_of[k] = size
        end = last.get(k, at)
        layout.lifetimes[k] = (at, end)
        ending.setdefault(end, []).append(k)
    layout.arena_bytes = top


def give_back(holes: list[tuple[int, int]], hole: tuple[int, int]) -> None:
    """Insert a hole and join it with its neighbours."""
    offset, size = hole
    i = 0
    while i < len(holes) and holes[i][0] < offset:
        i += 1
    if i < len(holes) and offset + size == holes[i][0]:
        size += holes[i][1]
        del holes[i]
    if i and holes[i - 1][0] + holes[i - 1][1] == offset:
        offset, size = holes[i - 1][0], holes[i - 1][1] + size
        del holes[i - 1]
        i -= 1
    holes.insert(i, (offset, size))


# ---- linking


class Linker:
    """Writes nodes and storage down for _core.Executable: slots in an order in which a base comes before its views."""

    def __init__(
        self, ir: IR, nodes: list[Node], views: dict[int, View], layout: Layout, codes: dict[Any, int]
    ) -> None:
        self.ir, self.nodes, self.views, self.layout, self.codes = ir, nodes, views, layout, codes
        self.slots: list[tuple[Any, ...]] = []
        self.slot_of: dict[int, int] = {}
        self.instrs: list[tuple[Any, ...]] = []
        self.spare_cells = 0
        self.node_of: list[int] = []  # of each instruction; len(nodes): the copies at the end

    def slot(self, k: int) -> int:
        """The slot of a value."""
        found = self.slot_of.get(k)
        if found is None:
            found = self.slot_of[k] = self._new_slot(k)
        return found

    def _new_slot(self, k: int) -> int:
        ir, layout = self.ir, self.layout
        value = ir.values[k]
        strides: tuple[int, ...] | None = None
        base: Any = None
        offset = 0
        if k in self.views:
            view = self.views[k]
            kind, base, offset, strides = SLOT_VIEW, self.slot(view.base), view.offset, view.strides
        elif k in layout.fresh:
            kind = SLOT_FRESH
        elif k in layout.cells and k not in self._loaded:
            kind, offset = SLOT_ARENA, 8 * layout.cells[k]
        elif k in layout.offsets:
            kind, offset = SLOT_ARENA, layout.offsets[k]
        elif value.kind == CONST:
            kind, base = SLOT_CONST, _core.packed_constant(ir.objects[k])
        elif value.kind == INPUT:
            kind = SLOT_INPUT
        else:
            kind, base = (SLOT_TENSOR if value.kind == TENSOR else SLOT_GRAD), ir.objects[k]
        self.slots.append((kind, value.dtype, value.shape, strides, base, offset))
        return len(self.slots) - 1

    def link(self) -> Any:
        ir, layout = self.ir, self.layout
        self._loaded = {k for k, _, _ in layout.loads}
        for k in ir.inputs:
            self.slot(k)
        for n, node in enumerate(self.nodes):
            if node.kind == DO_GROUP:
                self.instrs.append(
                    (DO_GROUP, 0, None, (), -1, Blocks(self.ir, self.views, layout, self.slot, node).link())
                )
            elif node.kind == DO_SCALARS:
                self._scalars(node)
            else:
                self._single(node.kind, node.instrs[0])
            self.node_of += [n] * (len(self.instrs) - len(self.node_of))
        for k, copy in layout.copies:
            self.instrs.append((DO_COPY, 0, None, (self.slot(k),), self.slot(copy), None))
        self.node_of += [len(self.nodes)] * len(layout.copies)
        at = layout.outputs
        return _core.Executable(
            layout.arena_bytes + 8 * self.spare_cells,
            self.slots,
            self.instrs,
            [(self.slot(k), cell, once) for k, cell, once in layout.loads],
            [self.slot(at[k]) for k in ir.outputs],
            [(t, self.slot(at[k])) for t, k in ir.states],
            [(t, -1 if k is None else self.slot(at[k])) for t, k in ir.grads],
            ir.generators,
        )

    def _single(self, kind: int, instr: Instr) -> None:
        if kind == DO_GUARD:
            line = "{}:{}".format(*self.ir.lines[instr.line][:2])
            if instr.op == GRAD_GUARD:
                self.instrs.append((kind, 0, None, (), -2, (*instr.extra, line)))
            else:
                self.instrs.append((kind, 0, None, (self.slot(instr.ins[0]),), -1, (instr.extra, line)))
            return
        ins = tuple([self.slot(k) for k in instr.ins])
        self.instrs.append((kind, instr.op, instr.params, ins, self.slot(instr.out), None))

    # ---- programs of 0-d values

    def _cell(self, k: int) -> int:
        cell = self.layout.cells.get(k)
        if cell is not None:
            return cell
        # a view, or part of the arena that is no cell: copied into a cell of its own first
        cell = self.layout.arena_bytes // 8 + self.spare_cells
        self.spare_cells += 1
        value = self.ir.values[k]
        source = self.slot(k)
        self.slots.append((SLOT_ARENA, value.dtype, (), None, None, 8 * cell))
        self.instrs.append((DO_COPY, 0, None, (source,), len(self.slots) - 1, None))
        return cell

    def _scalars(self, node: Node) -> None:
        values, codes, cells = self.ir.values, self.codes, self.layout.cells
        code: list[tuple[int, ...]] = []
        copied: dict[int, int] = {}
        for instr in node.instrs:
            for k in instr.ins:
                if k not in cells and k not in copied:
                    copied[k] = self._cell(k)
        for instr in node.instrs:
            op = instr.op
            y = cells[instr.out]
            dtype = values[instr.out].dtype if op == ASTYPE else compute_dtype(self.ir, instr)
            operands = []
            for position, k in enumerate(instr.ins):
                cell = cells[k] if k in cells else copied[k]
                have = values[k].dtype
                wanted = operand_dtype(op, position, have, dtype)
                if have != wanted:
                    spare = self.layout.arena_bytes // 8 + self.spare_cells
                    self.spare_cells += 1
                    code.append((1, spare, cell, 0, -1, 0, have, wanted))
                    cell = spare
                operands.append(cell)
            if op == ASTYPE:
                code.append((1, y, operands[0], 0, -1, 0, values[instr.ins[0]].dtype, dtype))
                continue
            number = codes.get((op, dtype), 0)
            a, b, c = (*operands, 0, 0)[:3] if len(operands) < 3 else operands
            code.append((number, y, a, b, c if len(operands) == 3 else -1, op, dtype, 0))
        self.instrs.append((DO_SCALARS, 0, None, (), -1, code))
