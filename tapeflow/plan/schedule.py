"""From a program to what runs: groups of elementwise ops, views, one arena.

Three steps. `schedule` puts the instructions into nodes: a group of elementwise ops of one shape, a program of 0-d ops,
or one op by itself. `place` gives every value storage: a view of another one, fresh memory (what outlives the run), a
cell of eight bytes (0-d), or a range of the arena that nobody else uses while the value lives. `link` writes both down
for _core.Executable.

A group is kept open while elementwise ops of its shape arrive. What else reads what it makes (a sum, a product) waits
until an elementwise op reads its result: then the group is closed, and what waits runs in its order. So a gradient
joins the group of the value, past the sum between them; whatever an open group reads is made already, and no open group
reads from another.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tapeflow import _core
from tapeflow.plan.ir import (
    ACCUMULATE,
    BOOL,
    CODES,
    CONST,
    GRAD,
    GRAD_GUARD,
    GUARD,
    INPUT,
    IR,
    ITEMSIZE,
    N_ELEMENTWISE,
    RANDOM,
    TENSOR,
    Instr,
    compute_dtype,
)

SLOT_ARENA, SLOT_VIEW, SLOT_INPUT, SLOT_TENSOR, SLOT_GRAD, SLOT_CONST, SLOT_FRESH = range(7)
DO_OP, DO_GROUP, DO_SCALARS, DO_RANDOM, DO_ACCUMULATE, DO_GUARD, DO_COPY = range(7)
BLOCK, DIRECT, CONSTANT, PACKED = range(4)

ASTYPE = CODES["astype"]
_VIEWS = {CODES[name] for name in ("identity", "reshape", "permute_dims", "broadcast_to", "getitem")}

_ALIGN = 64
_GROUP_BYTES = 192 * 1024  # of all blocks of a group, as plan.h has it
_GROUP_OPERANDS = 4096
_CACHE = 40 * 1024  # what the blocks of a group should take
_STEPS = 64  # of a group over a large shape
_SMALL = 256  # elements up to which a group may have any number of steps
_PARALLEL = 50_000  # steps times elements from which threads that are awake share a group
_SHARE = 25_000  # of them, a thread's share at least
_CHUNKS = 64  # shares at most


@dataclass
class Node:
    """Instructions that run together. kind: DO_GROUP, DO_SCALARS, or another DO_ with one instruction."""

    kind: int
    shape: tuple[int, ...] | None
    instrs: list[Instr] = field(default_factory=list)
    waits: bool = False


class View(NamedTuple):
    base: int  # a value that is no view
    offset: int
    strides: tuple[int, ...]


def contiguous(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = []
    step = itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


# ---- groups


def schedule(ir: IR, fuse: bool = True) -> tuple[list[Node], dict[int, View]]:
    """The nodes in the order they run, and the values that are views."""
    values = ir.values
    nodes: list[Node] = []
    open_groups: dict[tuple[int, ...], Node] = {}
    group_of: dict[int, Node] = {}  # a value made in an open group, or a view of one
    waiting: deque[Node] = deque()
    waited_for: dict[int, Node] = {}  # a value that such a node makes, or a view of one
    views: dict[int, View] = {}

    def is_open(node: Node) -> bool:
        return node.shape is not None and open_groups.get(node.shape) is node

    def close(node: Node) -> None:
        assert node.shape is not None
        del open_groups[node.shape]
        nodes.extend(_parts(ir, node))
        for instr in node.instrs:
            group_of.pop(instr.out, None)

    def release(until: Node | None) -> None:
        """Let nodes run that wait, in their order, up to this one; first the groups that they read."""
        while waiting:
            node = waiting.popleft()
            node.waits = False
            for k in node.instrs[0].ins:
                if k in group_of and is_open(group_of[k]):
                    close(group_of[k])
            nodes.append(node)
            if node is until:
                break

    for instr in ir.instrs:
        op = instr.op
        if 0 <= op < N_ELEMENTWISE or (op == ASTYPE and fuse):
            shape = values[instr.out].shape
            for k in instr.ins:
                if k in waited_for and waited_for[k].waits:
                    release(waited_for[k])
                node = group_of.get(k)
                if node is not None and is_open(node) and (node.shape != shape or k in views):
                    close(node)
            node = open_groups.get(shape)
            if node is None:
                node = open_groups[shape] = Node(DO_SCALARS if shape == () else DO_GROUP, shape)
            node.instrs.append(instr)
            group_of[instr.out] = node
            if not fuse or len(node.instrs) >= (_STEPS if values[instr.out].size > _SMALL else _GROUP_OPERANDS // 4):
                close(node)
            continue
        if op in _VIEWS:
            view = _view(ir, instr, views)
            if view is not None:
                views[instr.out] = view
                if view.base in group_of:
                    group_of[instr.out] = group_of[view.base]
                elif view.base in waited_for:
                    waited_for[instr.out] = waited_for[view.base]
                continue
        node = Node(_kind(op), None, [instr])
        if any(
            (k in waited_for and waited_for[k].waits) or (k in group_of and is_open(group_of[k])) for k in instr.ins
        ):
            node.waits = True
            waiting.append(node)
            waited_for[instr.out] = node
            if op < 0:  # what a guard protects comes after it
                release(node)
        else:
            nodes.append(node)
    release(None)
    for node in list(open_groups.values()):
        close(node)
    return nodes, views


def _parts(ir: IR, node: Node) -> list[Node]:
    """A group, or several where its blocks would not fit a thread's stack."""
    if node.kind != DO_GROUP or _blocks(ir, node) * _block_bytes(ir, node) <= _GROUP_BYTES:
        return [node]
    half = len(node.instrs) // 2
    halves = (Node(DO_GROUP, node.shape, part) for part in (node.instrs[:half], node.instrs[half:]))
    return [part for one in halves for part in _parts(ir, one)]


def _block_bytes(ir: IR, node: Node) -> int:
    """Of the shortest block that a group may have."""
    length = min(ir.values[node.instrs[0].out].size, 128)
    return -(-length * 8 // _ALIGN) * _ALIGN


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


def _view(ir: IR, instr: Instr, views: dict[int, View]) -> View | None:
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
        if x.size and not _is_contiguous(x.shape, view.strides, itemsize):
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


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    expected = itemsize
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True


# ---- storage


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


def place(ir: IR, nodes: list[Node], views: dict[int, View], reuse: bool = True) -> Layout:
    """Storage for every value that a node makes and another reads, or that outlives the run."""
    values = ir.values
    layout = Layout({}, {}, set(), [], [], {})

    def root(k: int) -> int:
        return views[k].base if k in views else k

    made: dict[int, int] = {}
    last: dict[int, int] = {}
    inside: set[int] = set()  # values that only their own group reads
    maker: dict[int, Node] = {}
    for at, node in enumerate(nodes):
        for instr in node.instrs:
            if instr.op >= 0:
                made[instr.out] = at
                maker[instr.out] = node
    read_outside: set[int] = set()
    for at, node in enumerate(nodes):
        for instr in node.instrs:
            for k in instr.ins:
                base = root(k)
                last[base] = at
                if maker.get(base) is not node or k != base:
                    read_outside.add(base)
    results = set(ir.results())
    for k in results:
        base = root(k)
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
            last[root(k)] = len(nodes)
    inside = {k for k, node in maker.items() if node.kind == DO_GROUP and k not in read_outside}
    _place_cells(ir, nodes, views, layout, made, last)
    made = {k: at for k, at in made.items() if k not in inside and k not in layout.cells}
    _place_arrays(ir, layout, made, last, _taken_over(ir, nodes, views, made, last) if reuse else None)
    return layout


def _taken_over(
    ir: IR, nodes: list[Node], views: dict[int, View], made: dict[int, int], last: dict[int, int]
) -> dict[int, int]:
    """Results of groups that may be written over an operand: value -> operand.

    A step of a group writes the positions that it has read; so the operand must be as large, element by element, read
    by no later step and nobody else, and not through a view.
    """
    values = ir.values
    taken: dict[int, int] = {}
    for at, node in enumerate(nodes):
        if node.kind != DO_GROUP:
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
            if y not in made:
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


def _place_arrays(
    ir: IR, layout: Layout, made: dict[int, int], last: dict[int, int], taken_over: dict[int, int] | None
) -> None:
    """Ranges of the arena, first fit, so that values that live at the same time are apart; None: no range twice."""
    values = ir.values
    base = -(-layout.arena_bytes // _ALIGN) * _ALIGN
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
                _give_back(holes, (layout.offsets[gone], size_of[gone]))
            now += 1
        size = max(-(-values[k].nbytes // _ALIGN) * _ALIGN, _ALIGN)
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


def _give_back(holes: list[tuple[int, int]], hole: tuple[int, int]) -> None:
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


def _operand_dtype(op: int, position: int, have: int, dtype: int) -> int:
    """The dtype that the loop of an op over dtype takes an operand in: a condition as bool, whatever it was."""
    if op == ASTYPE:
        return have
    return BOOL if position == 0 and _core.op_kind(op) == "select" else dtype


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
                self.instrs.append((DO_GROUP, 0, None, (), -1, self._group(node.instrs, node.shape or ())))
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
                wanted = _operand_dtype(op, position, have, dtype)
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

    # ---- groups

    def _group(self, instrs: list[Instr], shape: tuple[int, ...]) -> Any:
        values = self.ir.values
        stored = self.layout
        last: dict[int, int] = {}
        for i, instr in enumerate(instrs):
            for k in instr.ins:
                last[k] = i
        operands: list[tuple[Any, ...]] = []
        number_of: dict[Any, int] = {}
        free: list[int] = []  # operands that are blocks nobody reads any more
        n_blocks = 0
        wide = max([ITEMSIZE[values[k].dtype] for instr in instrs for k in (*instr.ins, instr.out)])

        def block(itemsize: int) -> int:
            nonlocal n_blocks
            if free:
                return free.pop()
            operands.append((BLOCK, n_blocks, itemsize, -1, None))
            n_blocks += 1
            return len(operands) - 1

        def outside(k: int) -> int:
            nonlocal n_blocks
            value = values[k]
            itemsize = ITEMSIZE[value.dtype]
            view = self.views.get(k)
            strides = view.strides if view is not None else contiguous(value.shape, itemsize)
            if value.size == 1:
                kind, steps = CONSTANT, None
            elif value.shape == shape and _is_contiguous(shape, strides, itemsize):
                operands.append((DIRECT, 0, itemsize, self.slot(k), None))
                return len(operands) - 1
            else:
                extra = len(shape) - len(value.shape)
                kind = PACKED
                steps = tuple(
                    [0 if d < extra or value.shape[d - extra] == 1 else strides[d - extra] for d in range(len(shape))]
                )
            operands.append((kind, n_blocks, itemsize, self.slot(k), steps))
            n_blocks += 1
            return len(operands) - 1

        def operand(k: int) -> int:
            found = number_of.get(k)
            if found is None:
                found = number_of[k] = outside(k)
            return found

        steps: list[tuple[int, ...]] = []
        made: set[int] = set()
        for i, instr in enumerate(instrs):
            op = instr.op
            out = values[instr.out]
            dtype = out.dtype if op == ASTYPE else compute_dtype(self.ir, instr)
            abc = []
            casts = []
            for position, k in enumerate(instr.ins):
                have = values[k].dtype
                at = operand(k)
                wanted = _operand_dtype(op, position, have, dtype)
                if have != wanted:
                    to = block(wide)
                    casts.append(to)
                    steps.append((ASTYPE, have, wanted, to, at, -1, -1))
                    at = to
                abc.append(at)
            # y may be written over an operand that is read for the last time, but only where their elements are as wide
            dead = [k for k in set(instr.ins) if last[k] == i and k in made]
            free.extend([number_of[k] for k in dead if ITEMSIZE[values[k].dtype] == ITEMSIZE[out.dtype]])
            if instr.out in stored.offsets or instr.out in stored.fresh:
                operands.append((DIRECT, 0, ITEMSIZE[out.dtype], self.slot(instr.out), None))
                y = len(operands) - 1
            else:
                y = block(wide)
                made.add(instr.out)
                if instr.out not in last:
                    free.append(y)
            number_of[instr.out] = y
            free.extend([number_of[k] for k in dead if ITEMSIZE[values[k].dtype] != ITEMSIZE[out.dtype]])
            free.extend(casts)
            a, b, c = (*abc, -1, -1)[:3]
            if op == ASTYPE:
                steps.append((ASTYPE, values[instr.ins[0]].dtype, dtype, y, a, -1, -1))
            else:
                steps.append((op, dtype, 0, y, a, b, c))
        size = values[instrs[0].out].size
        length = max(min(_CACHE // max(n_blocks * wide, 1) // 64 * 64, 1024), 128)
        length = min(length, -(-size // 8) * 8)
        nbytes = -(-length * wide // _ALIGN) * _ALIGN
        work = size * len(steps)
        grain = -(-max(_SHARE // len(steps), size // _CHUNKS) // length) * length
        return (
            shape,
            length,
            nbytes,
            n_blocks,
            operands,
            steps,
            work if work >= _PARALLEL and size > grain else 0,
            grain,
        )
