"""A program run op by op on tensors, so that whatever records notices each of them.

What a replay does in C, at the speed of eager calls: for plans that are called while something is recorded or
differentiated, and, with other rules, for programs over a batch (batching.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapeflow import _core
from tapeflow._core import GuardFailed, Tensor
from tapeflow.plan.ir import ACCUMULATE, CODES, CONST, DTYPES, GRAD, GRAD_GUARD, GUARD, IR, MADE, RANDOM, TENSOR, Instr
from tapeflow.transforms import flatten, unflatten

IDENTITY, NONZERO = CODES["identity"], CODES["nonzero"]
DETACHED, PLACED = (1,), (2,)  # params of an identity that is more (core/program.pxi)


def is_followed(xs: Sequence[Tensor]) -> bool:
    """Would somebody miss the rule of a call with these tensors, were only its notes run?"""
    return _core.is_recording() or any(x.requires_grad for x in xs)


class Interpreter:
    """One run of a program as it was noted, before any pass. Bits and gradients are those of the function it is of."""

    def __init__(self, ir: IR) -> None:
        self.ir = ir
        self.env: dict[int, Tensor] = {}
        self.device: Any = None  # where the first input, or captured tensor, is that is on one: there draws are made
        self.entered = 0  # stretches of draws whose generators were set
        # by params: draws that are made again, where something is computed again (tp.checkpoint)
        self.drawn: dict[tuple[int, ...], Tensor | None] = {
            instr.params: None for instr in ir.instrs if instr.op == RANDOM and instr.extra is not None
        }

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs for these inputs; then state, .grad and generators are as after the function."""
        self.ir.check_aliases(inputs, "plan")
        before = [(g, g.state) for g, *_ in self.ir.generators]
        places = map(_core.place_of, (*inputs, *self.ir.objects.values()))
        self.device = next((place for place in places if place is not None), None) if before else None
        try:
            return self._run(inputs)
        except BaseException:
            for generator, state in reversed(before):
                generator._write(*state)
            raise

    def _run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        ir, env = self.ir, self.env
        for k, x in ir.objects.items():
            kind = ir.values[k].kind
            if kind == CONST:
                env[k] = x
            elif kind == TENSOR:
                env[k] = _core.placed(x, x) if any(x is t for t, _ in ir.states) else x
        env.update(zip(ir.inputs, inputs, strict=True))
        hooked = {k for k, _ in ir.hooks}
        for k in hooked.intersection(ir.inputs):
            env[k] = env[k].clone()  # the caller's tensor has no part in this
            self.hook(k)
        ends = self._ends()
        graded = _core.is_grad_enabled()
        calls = self._calls() if graded else {}
        skipped = 0  # what comes before it was done by a call
        for at, instr in enumerate(ir.instrs):
            region = calls.get(at)
            if at < skipped:
                pass
            elif region is not None and self.calls_rule(region):
                skipped = region.stop
            elif graded and instr.out in ir.ungraded:
                with _core.no_grad():
                    self.step(instr)
            else:
                self.step(instr)
            if instr.out in hooked:
                self.hook(instr.out)
            for k in ends.get(at, ()):
                env.pop(k, None)
        outputs = self.outputs()
        self.commit()
        return outputs

    def outputs(self) -> list[Tensor]:
        """The results, none of them an object that somebody else has."""
        found: list[Tensor] = []
        for k in self.ir.outputs:
            x = self.value(k)
            shared = self.ir.values[k].kind != MADE or any(x is y for y in found)
            found.append(_core.placed(x, x) if shared else x)
        return found

    def hook(self, k: int) -> None:
        """The hooks of a value, for those who differentiate it."""
        if k in self.env and self.env[k].requires_grad:
            for number, fn in self.ir.hooks:
                if number == k:
                    self.env[k].register_hook(self.hook_of(k, fn))

    def hook_of(self, k: int, fn: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        return fn

    # ---- calls with rules of their own (tapeflow/custom.py)

    def _calls(self) -> dict[int, Any]:
        """The calls of functions with a rule, by their first instruction, the outer one where they are nested: those
        of which nothing but the results is read elsewhere, as by a backward that is in the program, too."""
        instrs = self.ir.instrs
        last: dict[int, int] = {k: len(instrs) for k in self.ir.results()}
        for at, instr in enumerate(instrs):
            for k in instr.ins:
                last[k] = max(last.get(k, 0), at)
        calls: dict[int, Any] = {}
        for region in self.ir.regions:
            made = {instr.out for instr in instrs[region.start : region.stop]}
            results = {x[0] for x in region.results[1] if type(x) is list}
            if results <= made and all(last.get(k, 0) < region.stop for k in made - results):
                calls[region.start] = region  # the notes of an outer call end later
        return calls

    def calls_rule(self, region: Any) -> bool:
        """Call the function itself where its rule may be wanted."""
        structure, leaves = region.arguments
        xs = [self.value(x[0]) for x in leaves if type(x) is list]
        if not is_followed(xs):
            return False
        given = iter(xs)
        value = region.rule(*unflatten(structure, [next(given) if type(x) is list else x for x in leaves]))
        self.enter_results(region, flatten(value)[0])
        return True

    def enter_results(self, region: Any, found: list[Any]) -> None:
        for x, y in zip(region.results[1], found, strict=True):
            if type(x) is list:
                self.env[x[0]] = y

    def _ends(self) -> dict[int, list[int]]:
        """The values that an instruction is the last to read or that nobody reads, by its position."""
        last: dict[int, int] = {}
        for at, instr in enumerate(self.ir.instrs):
            if instr.out >= 0:
                last[instr.out] = at
            for k in instr.ins:
                last[k] = at
        stay = {*self.ir.results(), *self.ir.inputs}
        ends: dict[int, list[int]] = {}
        for k, at in last.items():
            if k not in stay and self.ir.values[k].kind != GRAD:
                ends.setdefault(at, []).append(k)
        return ends

    def step(self, instr: Instr) -> None:
        op = instr.op
        if op == GUARD:
            self.guard(instr)
        elif op == GRAD_GUARD:
            compare_grad(self.ir, instr)
        elif op == RANDOM:
            self.env[instr.out] = self.draw(instr, self.ir.values[instr.out].shape)
        elif op == ACCUMULATE:
            self.env[instr.out] = _core.accumulated(self.ir.objects[instr.ins[0]], self.value(instr.ins[1]))
        else:
            self.env[instr.out] = self.apply(instr, [self.value(k) for k in instr.ins])

    def value(self, k: int) -> Tensor:
        found = self.env.get(k)
        if found is None:  # a .grad: as it is now, before anything is committed
            found = self.ir.objects[k].grad
            assert found is not None
            self.env[k] = found
        return found

    def apply(self, instr: Instr, xs: list[Tensor]) -> Tensor:
        """The op of an instruction on these operands."""
        if instr.op == IDENTITY and instr.params:
            return xs[0].detach() if instr.params == DETACHED else _core.placed(xs[0], xs[1])
        out = self.ir.values[instr.out]
        y = apply_op(instr.op, instr.params, xs, out.dtype, out.shape)
        if instr.op == NONZERO and y.shape != out.shape:
            raise GuardFailed(
                f"[plan] nonzero has a result of shape {y.shape}, which depends on data; it was {out.shape} when the "
                f"plan was recorded ({self.line(instr)}). Freeze it for this case."
            )
        return y

    def draw(self, instr: Instr, shape: tuple[int, ...]) -> Tensor:
        """The next draw of the instruction's generator, or the one that it has made before."""
        again = self.drawn.get(instr.params)
        if again is not None:
            return again
        kind, stretch, _, *limits = instr.params
        self.enter(stretch + 1)
        dtype = DTYPES[self.ir.values[instr.out].dtype]
        count, lowest = (limits[0] % 2**64, limits[1]) if limits else (0, 0)
        generator = self.ir.generators[stretch][0]
        result = _core.random_fill(generator, _core.draw_kind(kind), shape, dtype, count, lowest, self.device)
        if instr.params in self.drawn:
            self.drawn[instr.params] = result
        return result

    def enter(self, stop: int) -> None:
        """Set the generators that were set in the function, up to a stretch of draws."""
        for generator, absolute, seed, draw, _ in self.ir.generators[self.entered : stop]:
            if absolute:
                generator.state = (seed, draw)
        self.entered = max(self.entered, stop)

    def guard(self, instr: Instr) -> None:
        x = self.value(instr.ins[0])
        if instr.extra is None:  # an array was looked at: so it is for whoever records this
            x.numpy()
            return
        compare_look(self.ir, instr, _core.look(x), x.dtype)

    def commit(self) -> None:
        self.enter(len(self.ir.generators))
        for t, k in self.ir.states:
            write_state(t, self.value(k))
        for t, grad in self.ir.grads:
            _core.give_grad(t, None if grad is None else self.value(grad))

    def line(self, instr: Instr) -> str:
        return line_of(self.ir, instr)


def line_of(ir: IR, instr: Instr) -> str:
    """The user's file and line behind an instruction."""
    file, number, _ = ir.lines[instr.line]
    return f"{file}:{number}"


def compare_look(ir: IR, instr: Instr, seen: bytes, dtype: Any) -> None:
    """Are these the bits that Python saw when the plan was recorded?"""
    if seen != instr.extra:
        was, now = (np.frombuffer(b, dtype)[0] for b in (instr.extra, seen))
        raise GuardFailed(
            f"[plan] Python looked at a value in {line_of(ir, instr)}: it was {was} when the plan was recorded and "
            f"is {now} now. Freeze it for this case, or use tp.function, which keeps both."
        )


def compare_grad(ir: IR, instr: Instr) -> None:
    """Is the .grad of a captured tensor there, or empty, as it was?"""
    t, seen = instr.extra
    if (t.grad is not None) != seen:
        raise GuardFailed(
            f"[plan] the .grad of a captured tensor was {'there' if seen else 'empty'} when the plan was "
            f"recorded and is not now ({line_of(ir, instr)}). Freeze it for this case, or use tp.function, which "
            "keeps both."
        )


def write_state(t: Tensor, value: Tensor) -> None:
    """What a run makes of a tensor that it writes."""
    with _core.no_grad() if t.is_leaf and t.requires_grad else _core.enable_grad():
        t.assign(value)


def apply_op(op: int, params: tuple[int, ...], xs: list[Tensor], dtype: int, shape: tuple[int, ...]) -> Tensor:
    """The eager op of an instruction, whose result has this dtype (a code) and shape."""
    if _core.op_kind(op) == "float" and not any(x.dtype.kind == "f" for x in xs):
        xs = [x.astype(DTYPES[dtype]) for x in xs]  # whatever the default dtype is now
    return _core.apply_op(op, params, xs, dtype, shape)
