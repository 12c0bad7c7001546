"""Plans on devices: what `Plan.to` makes.

The program of a plan, laid out for a device (placing.py). The first run computes step by step and notes the commands
that each gives to the device; later runs give just these again. The host waits in mid-run only where it must see a
value: for a guard, or to know how many elements are not 0. An index that is out of range raises a flag, which is looked
at when all is done; then the run is made again, step by step, to tell which it was.

A run has the two phases of plans: whatever goes wrong before its end leaves tensors, .grad slots and generators as they
were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from tapeflow import _core
from tapeflow._core import Tensor
from tapeflow._roofline import Machine
from tapeflow.backend.opencl.memory import Array
from tapeflow.backend.opencl.random import redraw
from tapeflow.backend.opencl.timed import Timed, machine
from tapeflow.errors import DeviceError, PlanError, TapeflowError
from tapeflow.plan.grouping import Node
from tapeflow.plan.hosted import compute, split
from tapeflow.plan.interpret import compare_grad, compare_look, write_state
from tapeflow.plan.ir import CODES, DTYPES, GRAD_GUARD, GUARD, INT32, RANDOM, Instr
from tapeflow.plan.placing import SPECIAL, Placing
from tapeflow.plan.steps import check_repeats, steps_of
from tapeflow.profiling import Profile, Step, replayed

IDENTITY = CODES["identity"]


class DevicePlan(_core.Runner):
    """A plan on a device, called, run and bound as the plan itself, with tensors and arrays of the host or the device.

    Where an argument or a captured tensor is on the device, results are, too, otherwise on the host; what a run writes
    stays where it is. Constants, captured tensors and what lies between stay on the device: a captured tensor is sent
    again only after somebody else has written it. The numbers are the cpu's up to the rounding of the device's
    functions; draws have the same bits. Where a call is recorded or differentiated it runs op by op where its tensors
    are.

    Attributes: plan, device (its name), instructions, flops, nbytes (of the device's memory that runs use).
    """

    def __init__(self, plan: Any, device: Any, name: str) -> None:
        self.plan, self.name, self.device = plan, plan.name, name
        self._result = plan._result
        self._device, self._ir, self.flops = device, plan._ir, plan.flops
        self._hosted, rest = split(plan._ir, device.fp64)
        self._placing = Placing(rest, device, "fuse" in plan.passes, {instr.out for instr in self._hosted})
        self._arrays = self._placing.arrays
        self._sent: dict[int, Tensor] = {}  # captured tensors as they were when they were sent
        # What a run does: lists of commands to be given again, functions to be called, and instructions that depend on
        # more than values on the device. Nothing in it has this plan, whose memory goes when the plan does.
        self._commands: list[Any] = []
        self._noted: dict[tuple[int, bool], list[Any]] = {}  # of draws and of sums with a .grad, which may be empty
        self._flag, self._flagged = device.empty_array(INT32, (1,), "plan"), False  # see host.Notes
        device.upload(self._flag, np.zeros(1, np.int32))
        self._numbers: list[tuple[int, int]] = []  # of each stretch of draws its seed and first draw, in a run
        self._env: dict[int, Tensor] = {}  # in a run, what the host has computed
        self._numbers_sent: dict[int, Tensor] = {}  # of that, what is on the device
        self._tensors = list(plan._ir.objects.values())
        device.prepare(self._placing.everything())
        self._prepare(None, len(plan._inputs), plan._flat)

    @property
    def instructions(self) -> list[Instr]:
        """Those of the plan."""
        return list(self._ir.instrs)

    @property
    def moved(self) -> int:
        """Bytes that the steps of a run read and write."""
        nodes = self._placing.nodes
        steps = steps_of(self._ir, nodes, self._placing.stored, [0.0] * len(nodes))
        return sum(step.nbytes for step in steps)

    @property
    def nbytes(self) -> int:
        """Bytes of the device's memory: of constants, captured tensors, arguments, results and what lies between."""
        return self._placing.nbytes

    # ---- calling

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        inputs: list[Tensor] = self.plan._bound(args, kwargs)
        return inputs

    def _check_flags(self) -> None:
        self.plan._check_flags()

    def _is_away(self) -> bool:
        return True

    def _followed(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        outputs: list[Tensor] = self.plan._followed(inputs)
        return outputs

    def _elsewhere(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        self.plan.check(inputs)
        if _core.is_tracing():
            self.plan._trace(list(inputs))
        return self.outputs(inputs)

    def run(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """As `Plan.run`: the results written into tensors or arrays of yours, wherever these are."""
        return self.bind(*args, out=out, **kwargs)()

    def bind(self, *args: Any, out: Any = None, **kwargs: Any) -> Callable[[], Any]:
        """As `Plan.bind`: a function without arguments that runs with these; arrays are read, sent and written at each
        call."""
        inputs, targets = self.plan._bindable(args, kwargs, out)
        return _core.Bound(self, inputs, targets, out)

    def outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The results of a run with inputs that were checked."""
        with _core.get_state_lock():  # also where nothing is written: arguments have one place on the device
            self._ir.check_aliases(inputs, "plan")
            return replayed(self, lambda: self._run(inputs))

    def profile(self, *args: Any, repeats: int = 10, **kwargs: Any) -> Profile:
        """Where a run with these arguments spends the device's time, as `Plan.profile` tells it of the cpu.

        Of each step the least of some runs, which change nothing: by the device's own clock, without what lies between
        kernels, or by the host's where a driver has none. Bounds are those of the device, measured when one is first
        asked for.
        """
        check_repeats(repeats)
        inputs = self.plan._bound(args, kwargs)
        self.plan.check(inputs)
        self.plan._check_flags()
        nodes = self._placing.nodes
        with _core.get_state_lock():
            self._send(inputs)
            for at in self._placing.in_place.values():
                self._sent.pop(at, None)
            self._numbers = self._draws()
            timed = Timed(self._device)
            steps = [self._step(node, timed) for node in nodes]
            runs = []
            for _ in range(repeats):
                self._bring_again()
                self._device.sync()
                runs.append([timed.seconds(step) for step in steps])
        found = steps_of(self._ir, nodes, self._placing.stored, [min(times) for times in zip(*runs, strict=True)])
        return DeviceProfile(self._device, found, f"{self.name} on {self.device}")

    def explain(self) -> str:
        """Of the plan, and where it runs."""
        lines = [self.plan.explain(), f"  on {self.device} ({self._device.name}): {self.nbytes:,} bytes"]
        if self._hosted:
            lines.append(f"  {len(self._hosted)} instructions on the host, over numbers that are there")
        return "\n".join(lines)

    def to(self, device: Any) -> Any:
        """The plan on another device, or for "cpu" the plan itself."""
        return self.plan.to(device)

    def __repr__(self) -> str:
        return f"<DevicePlan {self.name} on {self.device}: {len(self._ir.instrs)} instructions, {self.nbytes:,} bytes>"

    def _run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        self._check_places(inputs)
        self._send(inputs)
        for at in self._placing.in_place.values():
            self._sent.pop(at, None)
        self._numbers = self._draws()
        try:
            self._compute()
            outputs, states, grads = self._fetch(self._is_here(inputs))
        except TapeflowError:
            if self._flagged and not self._device.lost and self._device.download(self._flag)[0]:
                self._at_once()  # an index was out of range before that: its error comes first
            raise
        self._commit(states, grads)
        return outputs

    def _compute(self) -> None:
        device = self._device
        if not self._commands:
            self._first_run()
            return
        for commands in self._commands:
            if type(commands) is list:
                device.again(commands)
            elif type(commands) is Instr:
                self._special(commands, device)
            else:
                commands()

    def _at_once(self) -> None:
        """Compute step by step, each looking at what it has to look at. The flag is lowered first."""
        self._device.upload(self._flag, np.zeros(1, np.int32))
        self._bring_again()
        for node in self._placing.nodes:
            self._step(node, self._device)()

    def _step(self, node: Node, device: Any) -> Callable[[], None]:
        """What computes a node, on the plan's device or who stands in for it."""
        if node.instrs[0].op in SPECIAL:
            return partial(self._special, node.instrs[0], device)
        return self._placing.computation(node, device)

    # ---- what goes to the device and comes back

    def _is_here(self, inputs: Sequence[Tensor]) -> bool:
        """Whether results are to be on the device."""
        return self.plan._home is self._device or any(map(_core.place_of, (*inputs, *self._tensors)))

    def _check_places(self, inputs: Sequence[Tensor]) -> None:
        """Is everything here, or on the cpu?"""
        written = [t for t, _ in self._ir.states]
        for what, xs in (
            ("argument {}", inputs),
            ("a captured tensor or constant", self._tensors),
            ("what is written", written),
        ):
            for n, x in enumerate(xs):
                if _core.place_of(x) not in (None, self._device):
                    raise DeviceError(
                        f"[plan] {what.format(n)} is on {x.device}, and the plan runs on {self.device}. Bring them "
                        f"together with .to({self.device!r}), or the plan with plan.to({str(x.device)!r})."
                    )

    def _send(self, inputs: Sequence[Tensor]) -> None:
        ir = self._ir
        for k, x in zip(ir.inputs, inputs, strict=True):
            if k in self._arrays:
                self._bring(x, self._arrays[k])
        for k in self._placing.captured.values():
            x, sent = ir.objects[k], self._sent.get(k)
            if sent is None or not _is_same(sent, x):
                self._check_captured(k, x)
                held = x.detach()  # while it is held nobody writes that memory
                self._bring(held, self._arrays[k])
                self._sent[k] = held
        if self._hosted:
            self._env = compute(ir, self._hosted, inputs)
            for k, x in self._env.items():
                if k in self._arrays and (k not in self._numbers_sent or not _is_equal(self._numbers_sent[k], x)):
                    self._numbers_sent.pop(k, None)
                    self._bring(x, self._arrays[k])
                    self._numbers_sent[k] = x

    def _bring(self, x: Tensor, to: Array) -> None:
        """Copy a tensor, from wherever it is, to its place on the device."""
        there = _core.device_array(x)
        if there is None:
            self._device.upload(to, _host(x))
        else:
            self._copy(there, to)

    def _bring_again(self) -> None:
        """Bring what a run that has begun may have written over."""
        for at in self._placing.in_place.values():
            self._bring(self._ir.objects[at].detach(), self._arrays[at])

    def _copy(self, x: Array, to: Array) -> None:
        if x.is_contiguous:
            self._device.copy(x, to)
        else:
            self._device.execute(IDENTITY, (), [x], to)

    def _check_captured(self, k: int, x: Tensor) -> None:
        wanted = self._ir.values[k]
        if x.shape != wanted.shape or x.dtype.name != DTYPES[wanted.dtype]:
            raise PlanError(
                f"[plan] a captured tensor is {x.dtype}{list(x.shape)}, and the plan was frozen for "
                f"{DTYPES[wanted.dtype]}{list(wanted.shape)}. Freeze it again for the new shape or dtype."
            )

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

    def _fetch(
        self, here: bool
    ) -> tuple[list[Tensor], list[tuple[Tensor, int, Tensor]], list[tuple[Tensor, Tensor | None]]]:
        """Results, on the device if they are to be here, what is to be written to which tensors, and what to become
        their .grad, where those are."""
        ir = self._ir
        begin = self._device.begin_download
        written = [(t, k) for t, k in (*ir.states, *ir.grads) if k is not None]
        wanted = {k for t, k in written if _core.place_of(t) is None}
        there = {k for k in ir.outputs if here and k not in self._env and self._device.has(ir.values[k].dtype)}
        wanted.update(k for k in ir.outputs if k not in there)
        flag = begin(self._flag) if self._flagged else None
        under_way = {k: begin(self._arrays[k]) for k in wanted if k in self._arrays}
        if flag is not None and flag.result()[0]:
            self._at_once()  # which raises, unless a run that was interrupted has left the flag
            under_way = {k: begin(self._arrays[k]) for k in under_way}
        found = {k: download.result() for k, download in under_way.items()}

        def value(k: int, here: bool) -> Tensor:
            if k in self._env:
                return _core.move(self._env[k], self._device) if here else self._env[k]
            if not here:
                return _core.from_numpy(found[k], True, "plan")
            own = self._device.empty_array(ir.values[k].dtype, ir.values[k].shape, "plan")
            self._copy(self._arrays[k], own)
            return _core.from_array(own)

        def beside(t: Tensor, k: int) -> Tensor:
            return value(k, _core.place_of(t) is not None)

        return (
            [value(k, k in there) for k in ir.outputs],
            [(t, k, beside(t, k)) for t, k in ir.states],
            [(t, None if k is None else beside(t, k)) for t, k in ir.grads],
        )

    def _commit(
        self, states: list[tuple[Tensor, int, Tensor]], grads: list[tuple[Tensor, Tensor | None]]
    ) -> None:  # fmt: skip
        """Write what the run has computed, on the device first, where a write may fail."""
        places = self._placing.captured
        # What becomes another one's old value is sent anew: it lies where this writes.
        made = [(t, k) for t, k, _ in states if k in self._arrays and not self._placing.is_captured(k)]
        captured = [(t, k, places[id(t)]) for t, k in made if id(t) in places]
        for _, k, at in captured:  # what it is then is on the device already
            if self._placing.in_place.get(k) != at:
                self._sent.pop(at, None)
                self._copy(self._arrays[k], self._arrays[at])
        for (generator, *_, draws), (seed, first) in zip(self._ir.generators, self._numbers, strict=True):
            generator._write(seed, (first + draws) % 2**64)
        for t, _, value in states:
            write_state(t, value)
        for t, grad in grads:
            _core.give_grad(t, grad)
        for t, _, at in captured:
            self._sent[at] = t.detach()

    # ---- steps

    def _first_run(self) -> None:
        """Compute, and note for each step what to do the next time."""
        device = self._device
        commands: list[Any] = []
        for node in self._placing.nodes:
            if node.instrs[0].op in SPECIAL:
                self._special(node.instrs[0], device)
                commands.append(node.instrs[0])
                continue
            compute = self._placing.computation(node, device)
            with device.noting(self._flag) as notes:
                compute()
            self._flagged |= notes.flagged
            if notes.looked:
                commands.append(compute)
            elif commands and type(commands[-1]) is list:
                commands[-1] += notes.commands
            else:
                commands.append(list(notes.commands))
        self._commands = commands

    def _special(self, instr: Instr, device: Any) -> None:
        """device: the plan's, or who stands in for it."""
        if instr.op == GUARD:
            self._guard(instr)
        elif instr.op == GRAD_GUARD:
            compare_grad(self._ir, instr)
        elif instr.op == RANDOM:
            self._draw(instr, device)
        else:
            self._accumulate(instr, device)

    def _draw(self, instr: Instr, device: Any) -> None:
        seed, first = self._numbers[instr.params[1]]
        noted = self._noted.get((instr.out, False))
        if noted is not None and device is self._device:
            redraw(noted, seed, first + instr.params[2])
            device.again(noted)
        else:
            self._note(self._placing.random(instr, seed, first, device), (instr.out, False), device)

    def _accumulate(self, instr: Instr, device: Any) -> None:
        held, before = self._ir.objects[instr.ins[0]].grad, None
        if held is not None:
            before = self._arrays[instr.ins[0]]
            self._bring(held, before)
        key = (instr.out, held is not None)
        noted = self._noted.get(key)
        if noted is not None and device is self._device:
            device.again(noted)
        else:
            self._note(self._placing.accumulate(instr, before, device), key, device)

    def _note(self, compute: Callable[[], None], key: tuple[int, bool], device: Any) -> None:
        """Compute, and keep what the plan's own device was given."""
        with device.noting() as notes:
            compute()
        if device is self._device:
            self._noted[key] = notes.commands

    def _guard(self, instr: Instr) -> None:
        k = instr.ins[0]
        seen = _host(self._env[k]) if k in self._env else self._device.download(self._arrays[k])
        if instr.extra is not None:
            compare_look(self._ir, instr, seen.tobytes(), seen.dtype)


class DeviceProfile(Profile):
    """The profile of a plan on a device."""

    def __init__(self, device: Any, steps: list[Step], name: str) -> None:
        super().__init__(steps, name, device.compute_units)
        self._device = device

    @cached_property
    def machine(self) -> Machine:
        """Bandwidths and peaks of the device."""
        return machine(self._device)


def _host(x: Tensor) -> np.ndarray[Any, Any]:
    return x.detach().numpy()


def _is_same(x: Tensor, y: Tensor) -> bool:
    """Whether they are the same elements of memory that nobody writes while both hold it."""
    a, b = _core.device_array(x), _core.device_array(y)
    if a is None or b is None:
        return a is b and not _core.is_borrowed(x) and _place(x) == _place(y)
    return a.memory is b.memory and a[1:] == b[1:]


def _is_equal(x: Tensor, y: Tensor) -> bool:
    return x.numpy().tobytes() == y.numpy().tobytes()


def _place(x: Tensor) -> tuple[int, tuple[int, ...]]:
    """Address and strides."""
    array = _host(x)
    return array.__array_interface__["data"][0], array.strides
