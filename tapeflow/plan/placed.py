"""Plans on devices: what `Plan.to` makes.

The program of a plan, laid out for a device: groups are kernels, other ops the device's own, values live in one piece
of its memory. The first run computes node by node and notes the commands that each gives to the device; where none of
them depends on what the host sees, later runs give just these again. What looks at a value (a guard, an index that may
be out of range), draws, or adds to a .grad is computed anew each time.

A run has the two phases of plans: whatever goes wrong before its end leaves tensors, .grad slots and generators as they
were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tapeflow import _core
from tapeflow._core import Tensor
from tapeflow.backend.opencl.fused import Body, Step, run
from tapeflow.backend.opencl.memory import Array
from tapeflow.backend.opencl.table import implementation
from tapeflow.errors import PlanError
from tapeflow.plan.arenas import ALWAYS, Life, pack
from tapeflow.plan.grouping import ASTYPE, DO_GROUP, DO_SCALARS, Node, base_of, lives_of, schedule
from tapeflow.plan.interpret import compare_grad, compare_look, is_followed, write_state
from tapeflow.plan.ir import (
    ACCUMULATE,
    CONST,
    DTYPES,
    GRAD_GUARD,
    GUARD,
    ITEMSIZE,
    RANDOM,
    TENSOR,
    Instr,
    compute_dtype,
    contiguous,
)

_SPECIAL = (GUARD, GRAD_GUARD, RANDOM, ACCUMULATE)  # they depend on more than values on the device


class DevicePlan:
    """A plan on a device, called as the plan itself; its arguments and results are tensors and arrays of the host.

    Constants, captured tensors and what lies between stay on the device: a captured tensor is sent again only after
    somebody else has written it. The numbers are the cpu's up to the rounding of the device's functions; draws have the
    same bits. Where a call is recorded or differentiated it runs on the cpu.

    Attributes: plan, device (its name), instructions, flops, nbytes (of the device's memory that runs use).
    """

    def __init__(self, plan: Any, device: Any, name: str) -> None:
        self.plan, self.name, self.device = plan, plan.name, name
        self._device = device
        self._ir = ir = plan._ir
        for k in {k for instr in ir.instrs for k in (*instr.ins, instr.out) if k >= 0}.union(ir.inputs):
            device.check_dtype(ir.values[k].dtype, "plan.to")
        for instr in ir.instrs:
            if instr.op >= 0:
                implementation(instr.op, device.name)
        self._nodes, self._views = schedule(ir, "fuse" in plan.passes, rows=False)
        self._arrays: dict[int, Array] = {}
        self._sent: dict[int, Tensor] = {}  # captured tensors as they were when they were sent
        self._place()
        self._captured = {  # the numbers of captured tensors that runs read
            id(t): k for k, t in ir.objects.items() if ir.values[k].kind == TENSOR and k in self._arrays
        }
        # What a run does: lists of commands to be given again, functions to be called, and instructions that depend on
        # more than values on the device. Nothing in it has this plan, whose memory goes when the plan does.
        self._commands: list[Any] = []
        self._numbers = [(0, 0)] * len(ir.generators)  # of each stretch of draws its seed and first draw, in a run
        device.prepare(self._surveyed())

    # ---- where values are

    def _place(self) -> None:
        ir, device = self._ir, self._device
        made, last, outside = lives_of(self._nodes, self._views)
        kept = {base_of(k, self._views) for k in ir.results()}
        self._written = {  # of each group: what others read
            id(node): [i.out for i in node.instrs if i.out in outside or i.out in kept] for node in self._nodes
        }
        inner = {
            instr.out
            for node in self._nodes
            for instr in node.instrs
            if node.kind in (DO_GROUP, DO_SCALARS) and instr.out not in outside
        }
        sources = {k for i in ir.instrs for k in i.ins if k not in self._views and k not in made}
        stay = {*sources, *ir.inputs, *kept}
        lives = [Life(k, ir.values[k].nbytes, *ALWAYS) for k in sorted(stay)]
        lives += [
            Life(k, ir.values[k].nbytes, at, last.get(k, at))
            for k, at in made.items()
            if k not in inner and k not in stay
        ]
        places = pack(lives, device.max_allocation)
        pieces = [device.alloc(nbytes, "plan") for nbytes in places.pieces]
        for k, (piece, offset) in places.of.items():
            value = ir.values[k]
            strides = contiguous(value.shape, ITEMSIZE[value.dtype])
            self._arrays[k] = Array(pieces[piece], offset, value.dtype, value.shape, strides)
            if value.kind == CONST:
                device.upload(self._arrays[k], _host(ir.objects[k]))
        for k, view in self._views.items():
            of, value = self._arrays.get(view.base), ir.values[k]
            if of is not None:
                self._arrays[k] = Array(of.memory, of.offset + view.offset, value.dtype, value.shape, view.strides)

    @property
    def instructions(self) -> list[Instr]:
        """Those of the plan."""
        return list(self._ir.instrs)

    @property
    def flops(self) -> int:
        """Of a run, as `Plan.flops` counts them."""
        count: int = self.plan.flops
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the device's memory: of constants, captured tensors, arguments, results and what lies between."""
        memories = {id(a.memory): a.memory.nbytes for a in self._arrays.values()}
        return sum(memories.values())

    # ---- calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result for these arguments, in fresh tensors of the host."""
        inputs = self.plan._bound(args, kwargs)
        if is_followed(inputs):
            return self.plan(*args, **kwargs)
        self.plan.check(inputs)
        self.plan._check_flags()
        with _core.get_state_lock():  # also where nothing is written: arguments have one place on the device
            self._ir.check_aliases(inputs, "plan")
            return self.plan._result(self._run(inputs))

    def explain(self) -> str:
        """Of the plan, and where it runs."""
        text: str = self.plan.explain()
        return f"{text}\n  on {self.device} ({self._device.name}): {self.nbytes:,} bytes"

    def to(self, device: Any) -> Any:
        """The plan on another device, or for "cpu" the plan itself."""
        return self.plan.to(device)

    def __repr__(self) -> str:
        return f"<DevicePlan {self.name} on {self.device}: {len(self._ir.instrs)} instructions, {self.nbytes:,} bytes>"

    def _run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        ir, device = self._ir, self._device
        self._send(inputs)
        self._numbers = self._draws()
        if self._commands:
            for commands in self._commands:
                if type(commands) is list:
                    device.again(commands)
                elif type(commands) is Instr:
                    self._special(commands)
                else:
                    commands()
        else:
            self._first_run()
        wanted = dict.fromkeys([*ir.outputs, *[k for _, k in ir.states], *[k for _, k in ir.grads if k is not None]])
        under_way = {k: device.begin_download(self._arrays[k]) for k in wanted}
        found = {k: download.result() for k, download in under_way.items()}
        outputs = [_core.from_numpy(found[k], True, "plan") for k in ir.outputs]
        self._commit(found)
        return outputs

    def _send(self, inputs: Sequence[Tensor]) -> None:
        ir, device = self._ir, self._device
        for k, x in zip(ir.inputs, inputs, strict=True):
            device.upload(self._arrays[k], _host(x))
        for k, x in ir.objects.items():
            if ir.values[k].kind != TENSOR or k not in self._arrays:
                continue
            sent = self._sent.get(k)
            if sent is None or _address(sent) != _address(x):
                wanted = ir.values[k]
                if x.shape != wanted.shape or x.dtype.name != DTYPES[wanted.dtype]:
                    raise PlanError(
                        f"[plan] a captured tensor is {x.dtype}{list(x.shape)}, and the plan was frozen for "
                        f"{DTYPES[wanted.dtype]}{list(wanted.shape)}. Freeze it again for the new shape or dtype."
                    )
                held = x.detach()  # while it is held nobody writes that memory
                device.upload(self._arrays[k], _host(held))
                self._sent[k] = held

    def _draws(self) -> list[tuple[int, int]]:
        """Of each stretch of draws, as the generators are now: its seed and the number of its first draw."""
        now: dict[int, tuple[int, int]] = {}
        found = []
        for generator, absolute, seed, first, draws in self._ir.generators:
            if not absolute:
                seed, first = now.get(id(generator)) or generator._read()
            found.append((seed, first))
            now[id(generator)] = (seed, (first + draws) % 2**64)
        return found

    def _commit(self, found: dict[int, np.ndarray[Any, Any]]) -> None:
        """Write what the run has computed, on the device first, where a write may fail."""
        ir, device = self._ir, self._device
        written = [(t, _core.from_numpy(found[k], True, "plan")) for t, k in ir.states]
        grads = [(t, None if k is None else _core.from_numpy(found[k], True, "plan")) for t, k in ir.grads]
        captured = [(t, k, self._captured[id(t)]) for t, k in ir.states if id(t) in self._captured]
        for _, k, at in captured:  # what it is then is on the device already
            self._sent.pop(at, None)
            device.copy(self._arrays[k], self._arrays[at])
        for (generator, *_, draws), (seed, first) in zip(ir.generators, self._numbers, strict=True):
            generator._write(seed, (first + draws) % 2**64)
        for t, value in written:
            write_state(t, value)
        for t, grad in grads:
            _core.give_grad(t, grad)
        for t, _, at in captured:
            self._sent[at] = t.detach()

    # ---- nodes

    def _first_run(self) -> None:
        """Compute, and note for each node what to do the next time."""
        commands: list[Any] = []
        for node in self._nodes:
            if node.instrs[0].op in _SPECIAL:
                self._special(node.instrs[0])
                commands.append(node.instrs[0])
                continue
            compute = self._computation(node)
            with self._device.noting() as notes:
                compute()
            if notes.looked:
                commands.append(compute)
            elif commands and type(commands[-1]) is list:
                commands[-1] += notes.commands
            else:
                commands.append(list(notes.commands))
        self._commands = commands

    def _computation(self, node: Node) -> Callable[[], None]:
        instr = node.instrs[0]
        if node.kind in (DO_GROUP, DO_SCALARS):
            return self._group(node)
        ins = [self._arrays[k] for k in instr.ins]
        return partial(self._device.execute, instr.op, instr.params, ins, self._arrays[instr.out])

    def _surveyed(self) -> list[Callable[[], None]]:
        """Of each node what it computes, as far as it is kernels."""
        found: list[Callable[[], None]] = []
        for node in self._nodes:
            instr = node.instrs[0]
            if instr.op == ACCUMULATE:
                g, out = self._arrays[instr.ins[1]], self._arrays[instr.out]
                befores = [None, *([self._arrays[instr.ins[0]]] if instr.ins[0] in self._arrays else [])]
                found += [
                    partial(self._device.execute, ACCUMULATE, instr.params, [before, g], out) for before in befores
                ]
            elif instr.op == RANDOM:
                found.append(partial(self._random, instr))
            elif instr.op not in _SPECIAL:
                found.append(self._computation(node))
        return found

    def _group(self, node: Node) -> Callable[[], None]:
        ir = self._ir
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
        ins, outs = [self._arrays[k] for k in inputs], [self._arrays[k] for k in written]
        return partial(run, self._device, body, ins, (), outs) if outs else lambda: None

    def _special(self, instr: Instr) -> None:
        if instr.op == GUARD:
            self._guard(instr)
        elif instr.op == GRAD_GUARD:
            compare_grad(self._ir, instr)
        elif instr.op == RANDOM:
            self._random(instr)
        else:
            self._accumulate(instr)

    def _guard(self, instr: Instr) -> None:
        seen = self._device.download(self._arrays[instr.ins[0]])
        if instr.extra is not None:
            compare_look(self._ir, instr, seen.tobytes(), seen.dtype)

    def _random(self, instr: Instr) -> None:
        kind, stretch, place, *limits = instr.params
        seed, first = self._numbers[stretch]
        self._device.execute(RANDOM, (kind, seed, (first + place) % 2**64, *limits), [], self._arrays[instr.out])

    def _accumulate(self, instr: Instr) -> None:
        held = self._ir.objects[instr.ins[0]].grad
        before = None
        if held is not None:
            before = self._arrays[instr.ins[0]]
            self._device.upload(before, _host(held))
        operands = [before, self._arrays[instr.ins[1]]]
        self._device.execute(ACCUMULATE, instr.params, operands, self._arrays[instr.out])


def _host(x: Tensor) -> np.ndarray[Any, Any]:
    return x.detach().numpy()


def _address(x: Tensor) -> int:
    address: int = x.detach().numpy().__array_interface__["data"][0]
    return address
