"""Plans: what `tp.freeze`, `tp.function` and `Tape.freeze` make, and how they are called."""

from __future__ import annotations

import functools
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tapeflow import _core, _creation, random
from tapeflow._core import Tensor
from tapeflow.custom import custom_vjp
from tapeflow.errors import DeviceError, PlanError, TapeError
from tapeflow.plan import grouping as _grouping
from tapeflow.plan import passes as _passes
from tapeflow.plan import schedule as _schedule
from tapeflow.plan.interpret import Interpreter
from tapeflow.plan.ir import CONST, DTYPES, INPUT, IR, MADE, RANDOM
from tapeflow.plan.record import Recording, as_input, build, is_read_in_place, record
from tapeflow.plan.steps import check_repeats, flops_of, profile
from tapeflow.profiling import Profile
from tapeflow.random import Generator
from tapeflow.transforms import contained, flatten, leaves_as

_NO_GRADIENT = (
    "[plan] the plan cannot be differentiated: it was read from a file or a text without what that takes. "
    "Freeze it with differentiable=True before it is saved, or call it on x.detach()."
)

_PLAIN = frozenset((Tensor, np.ndarray))  # types of arguments that need no other look


class Plan(_core.Runner):
    """A frozen run: forward, backward, updates and draws as one program, replayed without Python.

    Made by `tp.freeze` and by `Tape.freeze`. Call it with what the function took: tensors or arrays of the shapes and
    dtypes that it was frozen for; it returns fresh tensors.

    Attributes: instructions (a list of `Instr`), nbytes (of the arena and of results, known before it runs), flops.
    """

    def __init__(
        self,
        ir: IR,
        recording: Recording | None = None,
        passes: tuple[str, ...] | None = None,
        plan_memory: bool = True,
        name: str = "plan",
        differentiable: bool = False,
    ) -> None:
        self.name = name
        self.differentiable = differentiable
        self._recording = recording
        self._noted: IR | None = None
        self._depends: dict[tuple[bool, ...], list[bool]] = {}
        self._placed: dict[Any, Any] = {}  # this plan on devices, by device
        self.mapped: dict[Any, Plan] = {}  # plans of this one over a batch (batching.py)
        self.passes = _passes.DEFAULT if passes is None else tuple(passes)
        _passes.run(ir, self.passes)
        self._ir = ir
        self._tensors = ir.tensors()
        self._flags = [(t, t.requires_grad) for t in self._tensors.values()]
        # where it runs when no tensor says so; one that it captured does
        self._home = recording.home if recording and not any(t.ndim for t in self._tensors.values()) else None
        self._nodes, self._views = _grouping.schedule(ir, "fuse" in self.passes)
        self._layout = _schedule.place(ir, self._nodes, self._views, plan_memory)
        self._inputs = [ir.values[k] for k in ir.inputs]
        # the outputs in the structure that the function returned
        self._result = _assembler(recording.result, iter(recording.leaves)) if recording else list
        self._flat = _flat_positions(recording)
        self._prepare(None if self._is_away() else self._link(), len(self._inputs), self._flat)

    def _link(self) -> Any:
        return _schedule.Linker(self._ir, self._nodes, self._views, self._layout, _codes()).link()

    # ---- calling

    def _is_away(self) -> bool:
        """Whether a captured tensor or constant is on a device, now, or results are to be."""
        return self._home is not None or any(_core.place_of(x) is not None for x in self._ir.objects.values())

    def _check_flags(self) -> None:
        """Whether captured tensors require grad decides what was recorded."""
        for t, flag in self._flags:
            if t.requires_grad != flag:
                was, now = ("required", "does not") if flag else ("did not require", "does")
                raise PlanError(
                    f"[plan] a captured tensor {t.dtype}{list(t.shape)} {was} grad when the plan was recorded and "
                    f"{now} now. Freeze it again, or use tp.function, which keeps both."
                )

    def _followed(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of a run that a recording, or a gradient, is to notice op by op."""
        if not self.can_be_noted:
            if not any(x.requires_grad for x in inputs):
                return self._noted_as_it_is(inputs)
            raise PlanError(_NO_GRADIENT)
        self.check(inputs)
        # what looks at an array of the caller's must not go on: a gradient may need it later (see as_input)
        inputs = [x if x.requires_grad else _core.asarray(x, copy=True) for x in inputs]
        return Interpreter(self.noted()).run(inputs)

    def _elsewhere(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of a run over tensors on a device, by a plan there; with trace_nan on, what would not be finite
        is found on the cpu before."""
        self.check(inputs)
        if _core.is_tracing():
            self._trace(list(inputs))
        return self._beside(inputs).outputs(inputs)

    def _beside(self, inputs: Sequence[Tensor]) -> Any:
        """This plan on the device where a captured tensor is, or else one of the inputs, or where results are to be;
        kept."""
        from tapeflow.plan.placed import DevicePlan

        captured = [_core.place_of(x) for x in self._ir.objects.values()]
        place = next(p for p in (*captured, *map(_core.place_of, inputs), self._home) if p is not None)
        if place not in captured:  # it was frozen on the cpu
            self._check_captured(place)
        with _core.get_state_lock():
            found = self._placed.get(place)
            if found is None:
                mine = weakref.proxy(self)  # so that memory of the device goes when this plan does
                found = self._placed[place] = DevicePlan(mine, place, str(_creation.label(place)))
        return found

    def _check_captured(self, place: Any) -> None:
        """Do arguments on a device meet no captured tensor of the cpu but what goes along?"""
        for t in self._tensors.values():
            if not _core.goes_along(t):
                there = str(_creation.label(place))
                raise DeviceError(
                    f"[plan] arguments are on {there}, and a captured tensor {t.dtype}{list(t.shape)} is on cpu. Move "
                    f"it with .to({there!r}) and freeze again, or the plan with plan.to({there!r})."
                )

    def _noted_as_it_is(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of a run, of what the passes left, that a recording notices; who differentiates it is refused."""
        self.check(inputs)

        def run(*xs: Tensor) -> list[Tensor]:
            with _core.no_grad():
                return Interpreter(self._ir).run(xs)

        def refused(*xs: Any) -> Any:
            raise PlanError(_NO_GRADIENT)

        if self._ir.states or self._ir.grads:  # which a rule has no place for
            return run(*inputs)
        rule = custom_vjp(run)
        rule.defvjp(refused, refused)
        rule.defjvp(refused)
        rule.name = self.name
        outputs: list[Tensor] = rule(*inputs)
        return outputs

    def check(self, inputs: Sequence[Tensor]) -> None:
        """Are these of the shapes and dtypes that the plan was frozen for?"""
        for n, (x, wanted) in enumerate(zip(inputs, self._inputs, strict=True)):
            if x.shape != wanted.shape or x.dtype.name != DTYPES[wanted.dtype]:
                raise PlanError(
                    f"[plan] argument {n} is {x.dtype}{list(x.shape)}, and the plan was frozen for "
                    f"{DTYPES[wanted.dtype]}{list(wanted.shape)}. Freeze it again for the new shape or dtype."
                )

    @property
    def can_be_noted(self) -> bool:
        """Whether the program is known as it was noted, so that it can be differentiated or mapped."""
        return self._recording is not None and self._recording.again is not None

    def depends(self, mapped: tuple[bool, ...]) -> list[bool]:
        """Which outputs depend on these of the inputs, or on draws; kept."""
        found = self._depends.get(mapped)
        if found is None:
            ir = self._ir
            known = {k for k, yes in zip(ir.inputs, mapped, strict=True) if yes}
            for instr in ir.instrs:
                if instr.op == RANDOM or not known.isdisjoint(instr.ins):
                    known.add(instr.out)
            found = self._depends[mapped] = [k in known for k in ir.outputs]
        return found

    @functools.cached_property
    def is_scalar(self) -> bool:
        """Whether a run is a program of 0-d values alone and changes nothing outside."""
        ir = self._ir
        return (
            all(node.kind == _grouping.DO_SCALARS for node in self._nodes)
            and not (ir.states or ir.grads or ir.generators)
            and all(value.shape == () for value in self._inputs)
        )

    def noted(self) -> IR:
        """The program as it was noted, before any pass; kept."""
        if self._noted is None:
            assert self._recording is not None and self._recording.again is not None
            self._noted = self._recording.again()
        return self._noted

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The inputs among the arguments; the static ones are compared with what was frozen."""
        r = self._recording
        if r is None:
            if kwargs or len(args) != len(self._inputs):
                raise PlanError(f"[plan] {len(args)} arguments given, and the plan has {len(self._inputs)} inputs.")
            return [as_input(x) for x in args]
        if self._flat and not kwargs and len(args) == len(self._inputs) and _PLAIN.issuperset(map(type, args)):
            return [as_input(x) for x in args]
        leaves, structure = flatten((args, kwargs))
        if structure != r.arguments:
            leaves = _leaves_as(r.arguments, (args, kwargs), "arguments (args, kwargs)")
        for i, wanted in r.static.items():
            if type(leaves[i]) is not type(wanted) or leaves[i] != wanted:
                raise PlanError(
                    f"[plan] argument {i} is {leaves[i]!r}; it is static, and was {wanted!r} when the plan was frozen. "
                    "Freeze the function again for another value."
                )
        return [self._input(leaves[i], n) for n, i in enumerate(r.dynamic)]

    def _input(self, x: Any, n: int) -> Tensor:
        if not isinstance(x, (Tensor, float, int, np.ndarray, np.generic)) or isinstance(x, bool):
            raise PlanError(f"[plan] argument {n} is a {type(x).__name__}, and the plan takes a tensor or array there.")
        wanted = self._inputs[n]
        if type(x) in (float, int):
            if wanted.shape != ():
                raise PlanError(f"[plan] argument {n} is a number, and the plan was frozen for shape {wanted.shape}.")
            return _core.from_number(float(x), DTYPES[wanted.dtype], "plan")
        return as_input(x)

    def run(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Replay and write the results into tensors or arrays of yours: out, in the structure of the result, or a
        plain list of them in its order."""
        return self.bind(*args, out=out, **kwargs)()

    def bind(self, *args: Any, out: Any = None, **kwargs: Any) -> Callable[[], Any]:
        """A function without arguments that replays with these.

        Arrays are read, and arrays in out are written, in place at each call; tensors are read by their value at the
        time. The call returns out, or fresh results where there is none.

        >>> import numpy as np
        >>> plan = tp.freeze(lambda x: x + 1, tp.zeros(()))
        >>> x, y = np.array(1.0, np.float32), np.array(0.0, np.float32)
        >>> bound = plan.bind(x, out=y)
        >>> x[...] = 41.0
        >>> float(bound())
        42.0
        """
        return _core.Bound(self, *self._bindable(args, kwargs, out), out)

    def _bindable(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> tuple[list[Tensor], list[Tensor] | None]:  # fmt: skip
        """Inputs and targets of what binds these arguments."""
        for x in flatten((args, kwargs))[0]:
            if isinstance(x, np.ndarray) and not is_read_in_place(x):
                raise PlanError(
                    f"[plan.bind] an array {x.dtype}{list(x.shape)} cannot be read in place: it is not aligned, not in "
                    "native byte order, or of bools other than 0 and 1. Bind a copy of it, or call the plan with it."
                )
        inputs = self._bound(args, kwargs)
        return inputs, None if out is None else self._targets(out)

    def _out_leaves(self, out: Any) -> list[Any]:
        """The leaves of out, in the structure of the result or a plain list, in the order of the outputs."""
        r = self._recording
        count = len(self._ir.outputs)
        leaves, structure = flatten(out)
        if len(leaves) != count and (r is None or len(leaves) != len(r.leaves)):
            raise PlanError(f"[plan] out has {len(leaves)} leaves, and the plan has {count} results.")
        listed = isinstance(out, (tuple, list)) and len(leaves) == len(out) == count
        if r is None or listed:
            return leaves
        return _results_among(leaves if structure == r.result else _leaves_as(r.result, out, "out"), r)

    def _targets(self, out: Any) -> list[Tensor]:
        """The leaves of out, checked; an array as a tensor over its memory."""
        ir = self._ir
        leaves = self._out_leaves(out)
        targets = []
        for x, k in zip(leaves, ir.outputs, strict=True):
            result = ir.values[k]
            if not isinstance(x, (Tensor, np.ndarray)):
                raise PlanError(f"[plan] out has a {type(x).__name__}. It must hold tensors or arrays, one a result.")
            if x.shape != result.shape or str(x.dtype) != DTYPES[result.dtype]:
                raise PlanError(
                    f"[plan] out has a {type(x).__name__} {x.dtype}{list(x.shape)} where the result is "
                    f"{DTYPES[result.dtype]}{list(result.shape)}."
                )
            if isinstance(x, np.ndarray):
                if not x.flags.writeable:
                    raise PlanError("[plan] out has an array that is read-only.")
                x = _core.asarray(x, copy=False)
            targets.append(x)
        return targets

    def profile(self, *args: Any, repeats: int = 10, **kwargs: Any) -> Profile:
        """Where a run with these arguments spends its time, step by step: the least of some runs, which change nothing.

        A step is timed by itself, at some 50 ns; so a plan of small steps takes less time than their sum. Arguments
        that a call would not take raise what the call would.

        >>> plan = tp.freeze(lambda x: tp.sum(tp.exp(x)), tp.zeros(1000))
        >>> [step.name for step in plan.profile(tp.ones(1000)).steps]
        ['exp sum', 'copy']
        """
        check_repeats(repeats)
        inputs = self._bound(args, kwargs)
        self._check_flags()
        if self._is_away() or any(_core.place_of(x) is not None for x in inputs):
            found: Profile = self._beside(inputs).profile(*args, repeats=repeats, **kwargs)
            return found
        linker = _schedule.Linker(self._ir, self._nodes, self._views, self._layout, _codes())
        seconds = linker.link().time(inputs, repeats)
        return profile(self._ir, self._nodes, self._layout, linker.node_of, seconds, self.name)

    def _trace(self, inputs: list[Tensor]) -> None:
        """Run op by op and name the one that made something that is not finite, when trace_nan is on."""
        from tapeflow.plan import origin

        origin.find(self._ir, inputs, self.name)

    # ---- facts

    @property
    def instructions(self) -> list[Any]:
        """What is left of the program after the passes."""
        return list(self._ir.instrs)

    @property
    def nbytes(self) -> int:
        """Bytes that a run needs beside its arguments and captured tensors: the arena, results and new state."""
        values = self._ir.values
        return self._layout.arena_bytes + sum(values[k].nbytes for k in self._layout.fresh)

    @property
    def flops(self) -> int:
        """Arithmetic operations of a run: 2 m n k of a product, one an element for each operation of an elementwise op
        or a sum, and of exp and its like those of their polynomials."""
        return sum(flops_of(self._ir, instr) for instr in self._ir.instrs)

    @functools.cached_property
    def moved(self) -> int:
        """Bytes that the steps of a run read and write."""
        return sum(s.nbytes for s in profile(self._ir, self._nodes, self._layout, [], [], self.name).steps)

    @property
    def state(self) -> dict[str, Tensor]:
        """The captured tensors by name, `tensor5` for what the text of the plan calls %5: assign to them, or set their
        .grad, to change what the next run begins with.

        >>> w = tp.tensor([1.0, 2.0])
        >>> plan = tp.freeze(lambda x: x * w, tp.ones(2))
        >>> [t.tolist() for t in plan.state.values()]
        [[1.0, 2.0]]
        """
        return {f"tensor{k}": x for k, x in self._tensors.items()}

    @property
    def generators(self) -> dict[str, Generator]:
        """The generators that a run draws from or seeds, by name: `default_generator`, which is that of tp.random, and
        `generator0` and so on. Those of a loaded plan are its own, and begin where they were when it was saved.

        >>> rng = tp.random.Generator(7)
        >>> plan = tp.freeze(lambda x: tp.dropout(x, 0.5, generator=rng), tp.ones(2))
        >>> plan.generators
        {'generator0': Generator(seed=7, draw=0)}
        """
        names: dict[str, Generator] = {}
        for stretch in self._ir.generators:
            if not any(g is stretch[0] for g in names.values()):
                own = stretch[0] is not random.default_generator
                names[f"generator{len(names)}" if own else "default_generator"] = stretch[0]
        return names

    def explain(self) -> str:
        """What the plan was frozen for, what is constant in it, and what the passes left."""
        ir = self._ir
        constants = [k for k in ir.used() if ir.values[k].kind == CONST]
        guards = [instr for instr in ir.instrs if instr.op < 0]
        lines = [
            f"plan {self.name}: {len(self._inputs)} inputs, {len(ir.outputs)} results, {len(ir.states)} tensors and "
            f"{len(ir.grads)} .grad slots written, {sum(g[4] for g in ir.generators)} draws",
            "  instructions: " + ", ".join(f"{count} {name}" for name, count in ir.counts),
            f"  {len(self._nodes)} steps, {self.nbytes:,} bytes, {self.flops:,} flops",
            f"  {len(self._tensors)} captured tensors, read at each run",
        ]
        places = dict.fromkeys(str(x.device) for x in ir.objects.values() if _core.place_of(x) is not None)
        if places:
            lines.append(f"  on {' and '.join(places)}, where captured tensors are")
        for (name, what, line), times in Counter(ir.rewrites).items():
            again = f", {times} times" if times > 1 else ""
            lines.append(f"  fast, {name}: {what} ({'{}:{}'.format(*ir.lines[line][:2])}{again})")
        for k in sorted(constants)[:20]:
            v = ir.values[k]
            what = repr(_core.number_in(ir.objects[k])) if v.size == 1 else f"{DTYPES[v.dtype]}{list(v.shape)}"
            lines.append(f"  constant %{k}: {what}")
        if len(constants) > 20:
            lines.append(f"  and {len(constants) - 20} more constants")
        if self._recording is not None and self._recording.static:
            lines.append(f"  static arguments: {', '.join(map(repr, self._recording.static.values()))}")
        for instr in guards:
            file, number, _ = ir.lines[instr.line]
            lines.append(f"  guard: Python looked at a value in {file}:{number}")
        return "\n".join(lines)

    def to_dot(self, path: str | os.PathLike[str] | None = None) -> str:
        """The program as a graph in the language of Graphviz; what runs as one step stands in one frame.

        Parameters
        ----------
        path : str or path, optional
            Write it there, too: as text where it ends in .dot or .gv; as a picture, drawn by Graphviz's program `dot`,
            where it ends in .svg, .png or .pdf.

        Raises
        ------
        PlanError
            The file ends in something else, or a picture is asked for and Graphviz is not installed.

        >>> tp.freeze(lambda x: tp.exp(x), tp.zeros(3)).to_dot().splitlines()[0]
        'digraph plan {'
        """
        from tapeflow.plan import drawing

        text = drawing.to_dot(self._ir, self._nodes)
        if path is not None:
            drawing.write(text, path)
        return text

    def _repr_svg_(self) -> str | None:
        """The picture that a notebook shows; None, and the notebook shows repr, where Graphviz is not installed."""
        from tapeflow.plan import drawing

        picture = drawing.render(drawing.to_dot(self._ir, self._nodes), "svg")
        return None if picture is None else picture.decode()

    def to(self, device: Any) -> Any:
        """The plan on a device: "opencl", "opencl:1", "opencl:NVIDIA" (a number, part of a name); itself for "cpu".

        There it is called as here. Arguments that are on the host are sent; results are on the device where an argument
        or a captured tensor is, otherwise on the host. Constants, captured tensors and what lies between stay on the
        device. Kernels are built once for each structure. (A plan whose arguments or captured tensors are on a device
        runs there by itself.)

        Raises
        ------
        DeviceError
            There is no such device, or it lacks a dtype or an op of the plan.

        >>> plan = tp.freeze(lambda x: x + 1, tp.zeros(3))
        >>> plan.to("cpu") is plan
        True
        """
        if device is None or device == "cpu":
            return self
        from tapeflow import backend
        from tapeflow.plan.placed import DevicePlan

        return DevicePlan(self, backend.open(device), str(device))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file for tp.load_plan: with its constants, and with captured tensors, their .grad and
        generators as they are now.

        Raises PlanError where an argument or a result holds what is no number, string or plain container.
        """
        from tapeflow.plan import files

        files.save(self, path)

    def __str__(self) -> str:
        from tapeflow.plan import text

        return text.to_text(self)

    def __repr__(self) -> str:
        return f"<Plan {self.name}: {len(self._ir.instrs)} instructions, {self.nbytes:,} bytes>"


def _leaves_as(structure: Any, tree: Any, what: str) -> list[Any]:
    """The leaves of tree in the order of this structure, which it must have."""
    try:
        return leaves_as(structure, tree, "plan", what)
    except TapeError as error:
        raise PlanError(f"{error} That is how it was when the plan was frozen.") from None


def _results_among(leaves: list[Any], r: Recording) -> list[Any]:
    """Without what is in the place of what is no tensor in the result, which may be anything."""
    return [x for x, result in zip(leaves, r.leaves, strict=True) if type(result) is list]


def _assembler(structure: Any, leaves: Iterator[Any]) -> Callable[[list[Tensor]], Any]:
    """A function that puts outputs into a structure; a leaf is the place of an output, in a list, or a constant."""
    if structure is None:
        leaf = next(leaves)
        if type(leaf) is not list:
            return lambda outputs: leaf
        (place,) = leaf
        return lambda outputs: outputs[place]
    kind, parts = structure
    if issubclass(kind, dict):
        items = [(key, _assembler(part, leaves)) for key, part in parts]
        return lambda outputs: contained(kind, [(key, make(outputs)) for key, make in items])
    makers = [_assembler(part, leaves) for part in parts]
    if kind is not tuple and kind is not list:
        return lambda outputs: contained(kind, [make(outputs) for make in makers])
    return lambda outputs: kind([make(outputs) for make in makers])


def _flat_positions(r: Recording | None) -> int:
    """1: plain positional inputs and one tensor as result; 2: plain inputs only; 0: neither."""
    if r is None or r.static:
        return 0
    args, kwargs = r.arguments[1]
    if kwargs[1] or any(a is not None for a in args[1]):
        return 0
    return 1 if r.result is None and len(r.leaves) == 1 and type(r.leaves[0]) is list else 2


_CODES: dict[Any, int] = {}


def _codes() -> dict[Any, int]:
    """The scalar machine's instruction of (opcode, dtype code)."""
    if not _CODES:
        from tapeflow.codegen import scalar_codes
        from tapeflow.ops import DTYPES as suffixes
        from tapeflow.plan.ir import CODES

        order = list(suffixes)
        _CODES.update({(CODES[name], order.index(dtype)): code for (name, dtype), code in scalar_codes().items()})
    return _CODES


def freeze(
    f: Callable[..., Any],
    *args: Any,
    passes: Any = None,
    plan_memory: bool = True,
    differentiable: bool = False,
    fast: bool = False,
    **kwargs: Any,
) -> Plan:
    """Record one run of f with example arguments and freeze it: a Plan.

    State (captured tensors, .grad, generators) is as it was before, also when it fails. A plan can be differentiated
    where it is called inside a recording, or with what requires grad; differentiable: also after plan.save. With
    fast=True what is equal but for rounding is taken, too, where it costs less: `plan.explain()` names each place.

    >>> product = lambda a, b: tp.sum(a @ b)
    >>> exact, fast = (tp.freeze(product, *2 * [tp.ones((400, 400))], fast=x) for x in (False, True))
    >>> exact.flops > 20 * fast.flops
    True
    """
    if not callable(f):
        raise PlanError(f"[freeze] expected a function, got {type(f).__name__}.")
    passes = _passes.chosen(passes, fast, "freeze")
    r, _ = record(f, args, kwargs, "freeze")
    return Plan(r.ir, r, passes, plan_memory, getattr(f, "__name__", "plan"), differentiable)


def _number_on(program: Any, x: Tensor, what: str) -> int:
    """The number of x's value on the notes of a tape."""
    known = len(program.problems)
    number: int = program.number_of(x)
    if len(program.problems) > known:  # of this tensor, not of the tape
        del program.problems[known:]
        raise PlanError(
            f"[Tape.freeze] {what} {x.dtype}{list(x.shape)} was computed, or written, outside of the tape. Do so "
            "inside of it."
        )
    return number


def freeze_tape(
    tape: Any,
    inputs: Any,
    outputs: Any,
    passes: Any = None,
    plan_memory: bool = True,
    differentiable: bool = False,
    fast: bool = False,
) -> Plan:
    """What `Tape.freeze` does: the notes of a closed tape as a plan."""
    passes = _passes.chosen(passes, fast, "Tape.freeze")
    program = tape.program
    if program is None or tape.finished is None:
        raise PlanError("[Tape.freeze] the tape holds no program: it was not closed yet, or was used up by gradient().")
    leaves, structure = flatten(outputs)
    if not isinstance(inputs, (tuple, list)):
        raise PlanError(f"[Tape.freeze] inputs must be a list of tensors, got a {type(inputs).__name__}.")
    for what, xs in (("inputs", inputs), ("outputs", leaves)):
        for x in xs:
            if not isinstance(x, Tensor):
                raise PlanError(f"[Tape.freeze] {what} must be tensors, got {type(x).__name__}.")
    for text, line in program.problems:
        raise PlanError(f"[Tape.freeze] {text} ({':'.join(map(str, program.lines[line][:2]))}).")
    if tape.start:
        raise PlanError("[Tape.freeze] the tape was opened inside another one. Freeze the outer one.")
    numbers = [_number_on(program, x, f"input {n}") for n, x in enumerate(inputs)]
    results = [_number_on(program, x, f"output {n}") for n, x in enumerate(leaves)]
    if len(set(numbers)) < len(numbers):
        raise PlanError("[Tape.freeze] a tensor is an input twice. Give each one once.")
    states, grads = tape.finished

    def again() -> IR:
        ir = build(program, tape.start, tape.stop, numbers, results, states, grads, "Tape.freeze", set(numbers))
        for n, k in enumerate(numbers):
            if ir.values[k].kind == MADE:
                raise PlanError(
                    f"[Tape.freeze] input {n} was computed inside of the tape. Inputs are what it began with."
                )
            ir.values[k] = ir.values[k]._replace(kind=INPUT)
            ir.objects.pop(k, None)
        return ir

    arguments = (tuple, [(tuple, [None] * len(numbers)), (dict, [])])
    places = [[n] for n in range(len(results))]
    r = Recording(again(), arguments, {}, list(range(len(numbers))), structure, places, False, again)
    return Plan(r.ir, r, passes, plan_memory, "tape", differentiable)
