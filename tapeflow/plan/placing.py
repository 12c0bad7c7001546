"""A program laid out for a device: which kernels each step launches, and where values lie in the device's memory."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from typing import Any

from tapeflow.backend.opencl.fused import ARGUMENTS, STEPS, Body, Step, run
from tapeflow.backend.opencl.memory import Array
from tapeflow.backend.opencl.table import implementation
from tapeflow.plan.arenas import ALWAYS, Life, pack
from tapeflow.plan.grouping import ASTYPE, DO_GROUP, DO_SCALARS, Node, base_of, lives_of, schedule
from tapeflow.plan.ir import (
    ACCUMULATE,
    CONST,
    GRAD_GUARD,
    GUARD,
    IR,
    ITEMSIZE,
    RANDOM,
    TENSOR,
    Instr,
    compute_dtype,
    contiguous,
)

SPECIAL = (GUARD, GRAD_GUARD, RANDOM, ACCUMULATE)  # instructions that depend on more than values on the device


class Placing:
    """ir: what runs on the device. made_here: values that it gets otherwise, but for those from outside.

    nodes, views: its steps; arrays: where values are, of those that somebody reads; captured: the numbers of captured
    tensors among them, by id; in_place: values that take the place of one of those.
    """

    def __init__(self, ir: IR, device: Any, fuse: bool, made_here: set[int]) -> None:
        self.ir, self.device = ir, device
        for k in {k for instr in ir.instrs for k in (*instr.ins, instr.out) if k >= 0} - made_here:
            device.check_dtype(ir.values[k].dtype, "plan.to")
        for instr in ir.instrs:
            if instr.op >= 0:
                implementation(instr.op, device.name)
        self.nodes, self.views = schedule(ir, fuse, rows=False)
        self.arrays: dict[int, Array] = {}
        self._written: dict[int, list[int]] = {}  # of each group, by id: what others read
        self._place(made_here)
        self.captured = {
            id(t): k for k, t in ir.objects.items() if ir.values[k].kind == TENSOR and k in self.arrays
        }  # fmt: skip

    def _place(self, made_here: set[int]) -> None:
        ir, device, views = self.ir, self.device, self.views
        made, last, outside = lives_of(self.nodes, views)
        kept = {base_of(k, views) for k in ir.results()} - made_here
        inner: set[int] = set()
        for node in self.nodes:
            self._written[id(node)] = [i.out for i in node.instrs if i.out in outside or i.out in kept]
            if node.kind in (DO_GROUP, DO_SCALARS):
                inner |= {instr.out for instr in node.instrs if instr.out not in outside}
        sources = {k for instr in ir.instrs for k in instr.ins if k not in views and k not in made}
        sources |= {view.base for view in views.values() if view.base not in made}
        self.in_place = self._written_in_place(made, last, kept)
        stay = (sources | kept) - self.in_place.keys()
        lives = [Life(k, ir.values[k].nbytes, *ALWAYS) for k in sorted(stay)]
        lives += [
            Life(k, ir.values[k].nbytes, at, last.get(k, at))
            for k, at in made.items()
            if k not in inner and k not in stay and k not in self.in_place
        ]
        if device.pool.exact:  # a buffer for each value, whose end a checker of kernels sees
            lives = [Life(life.number, life.nbytes, *ALWAYS) for life in lives]
        places = pack(lives, 0 if device.pool.exact else device.max_allocation)
        pieces = [device.alloc(nbytes, "plan") for nbytes in places.pieces]
        for k, (piece, offset) in places.of.items():
            value = ir.values[k]
            strides = contiguous(value.shape, ITEMSIZE[value.dtype])
            self.arrays[k] = Array(pieces[piece], offset, value.dtype, value.shape, strides)
            if value.kind == CONST:
                device.upload(self.arrays[k], ir.objects[k].detach().numpy())
        for k, at in self.in_place.items():
            self.arrays[k] = self.arrays[at]
        for k, view in views.items():
            of, value = self.arrays.get(view.base), ir.values[k]
            if of is not None:
                self.arrays[k] = Array(of.memory, of.offset + view.offset, value.dtype, value.shape, view.strides)

    def _written_in_place(self, made: dict[int, int], last: dict[int, int], kept: set[int]) -> dict[int, int]:
        """State that may be written over what the run has of the captured tensor, which itself stays as it is until all
        went well: new value -> value of the tensor.

        A group writes it, reads the old one element by element, and nobody reads that afterwards.
        """
        ir, views = self.ir, self.views
        number = {id(t): k for k, t in ir.objects.items() if ir.values[k].kind == TENSOR}
        found: dict[int, int] = {}
        for t, k in ir.states:
            at, node = number.get(id(t), -1), self.nodes[made[k]] if k in made else None
            if node is None or node.kind not in (DO_GROUP, DO_SCALARS) or at in kept or at not in last or k in found:
                continue
            read = {i for instr in node.instrs for i in instr.ins}
            if (
                ir.values[k][1:] == ir.values[at][1:]
                and last[at] <= made[k]
                and at not in found.values()
                and not any(i in views and views[i].base == at for i in read)
                and len(node.instrs) <= STEPS // 2
                and len(read) <= ARGUMENTS // 4
            ):
                found[k] = at
        return found

    def is_captured(self, k: int) -> bool:
        """Whether the value is a captured tensor's, or a view of one."""
        return base_of(k, self.views) in self.captured.values()

    @property
    def stored(self) -> Container[int]:
        """The values that are in memory."""
        return self.arrays

    @property
    def nbytes(self) -> int:
        """Of the pieces of memory."""
        return sum({id(a.memory): a.memory.nbytes for a in self.arrays.values()}.values())

    # ---- steps

    def computation(self, node: Node, device: Any) -> Callable[[], None]:
        """What computes a node, none of those that are special. device: the one that it is laid out for, or who stands
        in for it."""
        instr = node.instrs[0]
        if node.kind in (DO_GROUP, DO_SCALARS):
            return self._group(node, device)
        ins = [self.arrays[k] for k in instr.ins]
        return partial(device.execute, instr.op, instr.params, ins, self.arrays[instr.out])

    def random(self, instr: Instr, seed: int, first: int, device: Any) -> Callable[[], None]:
        """What makes a draw, of a stretch that begins with this one."""
        kind, _, place, *limits = instr.params
        params = (kind, seed, (first + place) % 2**64, *limits)
        return partial(device.execute, RANDOM, params, [], self.arrays[instr.out])

    def accumulate(self, instr: Instr, before: Array | None, device: Any) -> Callable[[], None]:
        """What adds to a .grad."""
        operands = [before, self.arrays[instr.ins[1]]]
        return partial(device.execute, ACCUMULATE, instr.params, operands, self.arrays[instr.out])

    def everything(self) -> list[Callable[[], None]]:
        """All that a run may launch."""
        found: list[Callable[[], None]] = []
        device = self.device
        for node in self.nodes:
            instr = node.instrs[0]
            if instr.op == ACCUMULATE:
                found += [self.accumulate(instr, before, device) for before in (None, self.arrays.get(instr.ins[0]))]
            elif instr.op == RANDOM:
                found.append(self.random(instr, 0, 0, device))
            elif instr.op not in SPECIAL:
                found.append(self.computation(node, device))
        return found

    def _group(self, node: Node, device: Any) -> Callable[[], None]:
        ir = self.ir
        made = {instr.out for instr in node.instrs}
        inputs = list(dict.fromkeys([k for instr in node.instrs for k in instr.ins if k not in made]))
        number = {k: n for n, k in enumerate([*inputs, *(instr.out for instr in node.instrs)])}
        steps = [
            Step(
                instr.op,
                ir.values[instr.out].dtype if instr.op == ASTYPE else compute_dtype(ir, instr),
                tuple([number[k] for k in instr.ins]),
            )
            for instr in node.instrs
        ]
        written = self._written[id(node)]
        dtypes = tuple([ir.values[k].dtype for k in inputs])
        body = Body(dtypes, (), tuple(steps), tuple([number[k] for k in written]))
        ins, outs = [self.arrays[k] for k in inputs], [self.arrays[k] for k in written]
        return partial(run, device, body, ins, (), outs) if outs else lambda: None
