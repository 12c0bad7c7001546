"""One run of a function, recorded: its program, the structure of its arguments and of its result."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tapeflow import _core
from tapeflow._core import Tensor
from tapeflow.errors import PlanError
from tapeflow.plan.ir import GRAD_GUARD, GUARD, INPUT, IR, Instr, Value
from tapeflow.transforms import flatten, unflatten

if TYPE_CHECKING:
    from tapeflow._arguments import Host

_STATIC = (bool, int, str, bytes, type(None), type(Ellipsis))


def is_dynamic(x: Any) -> bool:
    """Whether an argument is a value of the program, rather than part of what is frozen."""
    return isinstance(x, (Tensor, float, np.ndarray, np.generic)) and not isinstance(x, np.str_)


@dataclass
class Recording:
    """What a run left: `program` to make plans of; the arguments' and the result's structure."""

    ir: IR
    arguments: Any  # structure of (args, kwargs)
    static: dict[int, Any]  # position of a leaf -> its value
    dynamic: list[int]  # positions of leaves that are inputs
    result: Any  # structure of the result
    leaves: list[Any]  # of the result: the place among the outputs (an int in a list), or the thing itself
    differentiable: bool  # a result can be differentiated with respect to something captured
    again: Callable[[], IR] | None  # the program as it was noted, for those who differentiate it
    home: Any = None  # the device of results that got there without an argument that was there: by draws, say


@dataclass
class Captured:
    """Notes of a run as a program, and what the run returned."""

    ir: IR
    again: Callable[[], IR]
    out: list[Any]  # leaves of the result
    structure: Any
    numbers: list[int]  # of the tensors among them


def as_input(x: Any, copy: bool = False) -> Tensor:
    """An argument as a tensor; what is none is on the default device, or goes to that of what it meets.

    A replay looks at arrays where that can be, for its results are fresh; a run op by op takes copies, for results,
    state and what gradients need may be the argument itself, or views of it."""
    if isinstance(x, Tensor):
        return x
    if type(x) is float:
        return _core.from_number(x, "float64", "plan")
    if _core.default_place() is not None:
        return _core.asarray(x)
    shared = isinstance(x, np.ndarray) and not copy and is_read_in_place(x)
    return _core.loosened(_core.asarray(x, copy=False) if shared else _core.asarray(x))


def is_read_in_place(x: Host) -> bool:
    """Whether a tensor over the memory of an array means what the array does."""
    if not (x.flags.aligned and x.dtype.isnative):
        return False
    return x.dtype != np.bool_ or not (x.view(np.uint8) > 1).any()


def capture(
    call: Callable[[Any], tuple[int, Any]],
    op: str,
    replayed: bool = True,
    then: Callable[[Captured], bool] | None = None,
) -> Captured:
    """Take notes of call(program), which returns how many inputs it made and a result.

    replayed: the program is to be run later, so that nothing computed may outlive the run, and no array be looked at.
    then: what is done with the notes; the effects of the run stay where it returns True, otherwise state is put back,
    as after an error. A recording that is under way in this thread notices nothing of it.
    """
    with _core.get_state_lock(), _core.aside():  # one at a time, and those within it: a value has the mark of one
        tape = _core.Tape()
        tape._only_notes = True
        program: Any = None
        done = False
        young = replayed and not gc.get_freeze_count()  # it walks what is frozen: 30 ms where libraries were
        try:
            if young:
                gc.freeze()  # what the collector lists afterwards was made in here
            with tape:
                program = tape.program
                program.nested = True
                inputs, result = call(program)
                out, structure = flatten(result)
                numbers = _outputs(program, out, op)
                states, grads = program.finish()
                _check(program, op)
                again = functools.partial(
                    build, program, 0, len(program), list(range(inputs)), numbers, states, grads, op,
                    looks=not replayed,
                )  # fmt: skip
                run = Captured(again(), again, out, structure, numbers)
                if replayed:
                    _check_escapes(program, run.ir, out, op)
            done = then is not None and then(run)
        finally:
            try:  # an interrupt comes after a call
                if young:
                    gc.unfreeze()
            finally:
                if program is not None:
                    try:
                        program.unmark()
                    finally:
                        if not done:
                            program.restore()
        # the program may live on, and need not hold what was there before its run, or what it was run with
        program.before.clear()
        for k in range(inputs):
            program.objects.pop(k, None)
        return run


def record(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    op: str,
    then: Callable[[Recording], bool] | None = None,
) -> tuple[Recording, Any]:
    """Run f once and take notes; also f's result. The effects of the run stay where `then` returns True."""
    leaves, structure = flatten((args, kwargs))
    static: dict[int, Any] = {}
    dynamic: list[int] = []
    made: list[Recording] = []
    result: Any = None

    def call(program: Any) -> tuple[int, Any]:
        nonlocal result
        inputs = _arguments(program, leaves, static, dynamic)
        positional, named = unflatten(structure, inputs)
        result = f(*positional, **named)
        return len(dynamic), result

    def keep(run: Captured) -> bool:
        run.ir.check_aliases(leaves, op)
        outputs = iter(range(len(run.numbers)))
        places = [[next(outputs)] if isinstance(x, Tensor) else x for x in run.out]
        differentiable = any(isinstance(x, Tensor) and _core.is_differentiable(x) for x in run.out)
        home = None if _first_place(leaves) else _first_place(run.out)
        made.append(
            Recording(run.ir, structure, static, dynamic, run.structure, places, differentiable, run.again, home)
        )
        return then is not None and then(made[0])

    capture(call, op, then=keep)
    return made[0], result


def _first_place(leaves: list[Any]) -> Any:
    """The device of the first tensor that is on one."""
    places = (_core.place_of(x) for x in leaves if isinstance(x, Tensor))
    return next((place for place in places if place is not None), None)


def _arguments(program: Any, leaves: list[Any], static: dict[int, Any], dynamic: list[int]) -> list[Any]:
    """The leaves as f gets them; which of them are static, and which are inputs."""
    inputs: list[Any] = []
    for i, x in enumerate(leaves):
        if is_dynamic(x):
            dynamic.append(i)
            x = _core.weak_input(program, x) if type(x) is float else program.add_input(as_input(x, copy=True))
        else:
            static[i] = x
        inputs.append(x)
    return inputs


def _outputs(program: Any, out: list[Any], op: str) -> list[int]:
    numbers = []
    for x in out:
        if isinstance(x, Tensor):
            numbers.append(program.number_of(x))
        elif not isinstance(x, (*_STATIC, float, np.ndarray, np.generic)):
            raise PlanError(
                f"[{op}] the function returned a {type(x).__name__}. Return tensors, numbers, and nested tuples, lists "
                "and dicts of them."
            )
    return numbers


def _check(program: Any, op: str) -> None:
    if program.problems:
        text, line = program.problems[0]
        raise PlanError(f"[{op}] {text} ({_place(program.lines, line)}).")


def _check_escapes(program: Any, ir: IR, out: list[Any], op: str) -> None:
    """What was computed must not outlive the recording but as a result or as state: a replay could not renew it."""
    allowed = {id(x) for x in out} | {id(t) for t, _ in ir.states} | {id(t.grad) for t, _ in ir.grads}
    allowed |= {id(x) for entry in program.before for x in entry}  # what it is put back from
    escaped = [t for t in gc.get_objects() if type(t) is Tensor and id(t) not in allowed and program.knows(t)]
    if not escaped:
        return
    depends = _dependent(ir.values, ir.instrs, frozenset())
    lines = {instr.out: instr.line for instr in ir.instrs}
    for t in escaped:
        number = program.number_of(t)
        if number in lines and number in depends:
            raise PlanError(
                f"[{op}] a tensor {t.dtype}{list(t.shape)} computed in {_place(ir.lines, lines[number])} outlives the "
                "recording without being returned: a replay could not renew it. Return it, or write it with assign to "
                "a tensor that was there before."
            )


def _place(lines: list[tuple[str, int, str]], line: int) -> str:
    file, number, _ = lines[line]
    return f"{file}:{number}"


def build(
    program: Any,
    start: int,
    stop: int,
    inputs: list[int],
    outputs: list[int],
    states: list[tuple[Tensor, int]],
    grads: list[tuple[Tensor, int | None]],
    op: str,
    more: set[int] | frozenset[int] = frozenset(),
    looks: bool = False,
) -> IR:
    """The IR of the notes start .. stop; more: values that are inputs besides those that are known to be; looks: those
    at arrays are guards without a value, not errors."""
    values = [Value(*v) for v in program.values_list()]
    instrs = [Instr(*note) for note in program.notes_list(start, stop)]
    for again, (first, end) in enumerate(program.repeats, 1):
        for instr in instrs[max(first - start, 0) : max(end - start, 0)]:
            instr.extra = again
    notes = list(instrs)
    seen_at = [look for look in program.looks if start <= look[0] <= stop]
    if seen_at:
        depends = _dependent(values, instrs, more)
        merged: list[Instr] = []
        done = 0
        for at, kind, what, seen, line in seen_at:
            merged += instrs[done : at - start]
            done = at - start
            if kind == "grad":
                merged.append(Instr(GRAD_GUARD, (), (), -1, line, (what, seen)))
            elif what not in depends:
                continue
            elif kind == "array" and not looks:
                raise PlanError(
                    f"[{op}] the elements of a tensor that depends on inputs, state or draws were taken into Python "
                    f"({_place(program.lines, line)}): a replay could not do that. Use functions of tapeflow on it."
                )
            else:
                merged.append(Instr(GUARD, (), (what,), -1, line, seen))
        instrs = merged + instrs[done:]
    return IR(
        values,
        {k: x for k, x in program.objects.items() if values[k].kind != INPUT},
        instrs,
        inputs,
        outputs,
        list(states),
        list(grads),
        [list(g) for g in program.generators],
        list(program.lines) or [("", 0, "")],
        hooks=[(k, hook[0]) for k, hook in program.hooks if hook],
        regions=_regions(program, start, notes, instrs),
        ungraded=program.ungraded(start, stop),
    )


def _regions(program: Any, start: int, notes: list[Instr], instrs: list[Instr]) -> list[Any]:
    """The calls with rules of their own, by instructions in place of notes, between which guards have come."""
    if not program.regions:
        return []
    at = {id(instr): i for i, instr in enumerate(instrs)}
    places = [at[id(note)] for note in notes]
    return [
        r._replace(start=places[r.start - start], stop=places[r.stop - start - 1] + 1)
        for r in program.regions
        if start <= r.start < r.stop <= start + len(notes)
    ]


def _dependent(values: list[Value], instrs: list[Instr], more: set[int] | frozenset[int]) -> set[int]:
    """The values that another run may find changed."""
    found = {k for k, v in enumerate(values) if INPUT <= v.kind < 4} | more
    for instr in instrs:
        if not instr.ins or any(k in found for k in instr.ins):
            found.add(instr.out)
    return found
