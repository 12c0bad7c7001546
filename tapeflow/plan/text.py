"""Plans as text: what `print(plan)` shows, and what `tp.parse_plan` reads back.

plan f(%0 float32[2])                           the name, the inputs
  generator 0 = (7, 3)                          seed and next draw; or: default
  draws 0 = generator 0, 2                      a stretch of its draws, noted from where it is; or: ..., from (9, 0)
  %1 = const  float32[2]  0x1p+0 nan            a constant and its elements
  %2 = leaf  float32[2]  0x1p+0 0x1p+1          a captured tensor that requires grad; others: tensor
  %3 = grad  float32[2]  of %2                  what its .grad holds when a run begins
  %2.grad is 0x1p+0 0x1p+1                      and now, unless it is empty
  %4 = multiply(%0, %1)  float32[2]  # a.py:5, 8 B
  grad_guard(%2)  empty  # a.py:6
  %2.assign(%4)                                 at the end of a run
  %2.grad = %4                                  or: = None
  return %4

and, of a plan that fast=True made, first what may have changed bits:

  fast contract_sums: the sum of [9, 9] @ [9, 9] is a product of sums  # a.py:5
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from tapeflow import _core, random
from tapeflow._core import Tensor
from tapeflow.errors import PlanError, TapeflowError
from tapeflow.plan import passes as _passes
from tapeflow.plan.ir import (
    CODES,
    CONST,
    DTYPES,
    GRAD,
    GRAD_GUARD,
    GUARD,
    INPUT,
    IR,
    MADE,
    TENSOR,
    Instr,
    Rewrite,
    Value,
    name_of,
)
from tapeflow.plan.plans import Plan

_INLINE = 64  # elements of a constant or captured tensor that stand in the text


# ---- writing


def to_text(plan: Plan) -> str:
    """The plan, one line per constant, captured tensor and instruction."""
    ir = plan._ir
    lines = [f"plan {plan.name}({', '.join(f'%{k} {_type(ir.values[k])}' for k in ir.inputs)})"]
    for part in (_rewrites(plan), _draws(plan), _outside(plan), _instructions(plan)):
        lines += [f"  {line}" for line in part]
    number = {id(t): k for k, t in plan._tensors.items()}
    lines += [f"  %{number[id(t)]}.assign(%{k})" for t, k in ir.states]
    lines += [f"  %{number[id(t)]}.grad = {'None' if k is None else f'%{k}'}" for t, k in ir.grads]
    lines.append(f"  return {', '.join(f'%{k}' for k in ir.outputs)}")
    return "\n".join(lines)


def _type(v: Value) -> str:
    return f"{DTYPES[v.dtype]}[{', '.join(map(str, v.shape))}]"


def _place(line: tuple[str, int, str]) -> str:
    return f"{os.path.basename(line[0])}:{line[1]}" if line[0] else "?"


def _rewrites(plan: Plan) -> Iterator[str]:
    for name, what, line in plan._ir.rewrites:
        yield f"fast {name}: {what}  # {_place(plan._ir.lines[line])}"


def _draws(plan: Plan) -> Iterator[str]:
    generators = list(plan.generators.values())
    for n, g in enumerate(generators):
        yield f"generator {n} = {'default' if g is random.default_generator else g.state}"
    for n, (g, absolute, seed, first, count) in enumerate(plan._ir.generators):
        start = f", from {(seed, first)}" if absolute else ""
        yield f"draws {n} = generator {[g is x for x in generators].index(True)}, {count}{start}"


def _outside(plan: Plan) -> Iterator[str]:
    ir, tensors = plan._ir, plan._tensors
    number = {id(t): k for k, t in tensors.items()}
    for k in sorted(ir.used() | set(tensors), key=lambda k: (ir.values[k].kind == GRAD, k)):
        value = ir.values[k]
        if value.kind == CONST:
            yield f"%{k} = const  {_type(value)}  {_elements(ir.objects[k])}"
        elif value.kind == GRAD:
            yield f"%{k} = grad  {_type(value)}  of %{number[id(ir.objects[k])]}"
        elif value.kind == TENSOR:
            t = tensors[k]
            yield f"%{k} = {'leaf' if t.is_leaf and t.requires_grad else 'tensor'}  {_type(value)}  {_elements(t)}"
            if t.grad is not None:
                yield f"%{k}.grad is {_elements(t.grad)}"


def _instructions(plan: Plan) -> Iterator[str]:
    ir = plan._ir
    number = {id(t): k for k, t in plan._tensors.items()}
    for instr in ir.instrs:
        where = _place(ir.lines[instr.line])
        params = f"[{', '.join(map(str, instr.params))}]" if instr.params else ""
        args = ", ".join(f"%{k}" for k in instr.ins)
        if instr.op == GUARD:
            yield f"guard({args})  {instr.extra.hex()}  # {where}"
        elif instr.op == GRAD_GUARD:
            yield f"grad_guard(%{number[id(instr.extra[0])]})  {'there' if instr.extra[1] else 'empty'}  # {where}"
        else:
            value = ir.values[instr.out]
            call = f"{name_of(instr.op)}{params}({args})"
            yield f"%{instr.out} = {call}  {_type(value)}  # {where}, {value.nbytes:,} B"


def _elements(x: Tensor) -> str:
    if x.size > _INLINE:
        return "..."
    return " ".join(map(_word, np.frombuffer(_core.bytes_of(x), x.dtype)))


def _word(v: Any) -> str:
    """An element, exactly."""
    if v.dtype.kind != "f":
        return str(v)
    return f"nan:{v.tobytes().hex()}" if v != v else re.sub(r"\.?0+p", "p", float(v).hex())


# ---- reading

_LINES = {
    name: re.compile(pattern)
    for name, pattern in {
        "rewrite": r"fast (\w+): (.*?)(?:  # (.*))?",
        "generator": r"generator (\d+) = (?:default|\((\d+), (\d+)\))",
        "draws": r"draws (\d+) = generator (\d+), (\d+)(?:, from \((\d+), (\d+)\))?",
        "const": r"%(\d+) = const  (\w+)\[([\d, ]*)\](?:  (.*))?",
        "tensor": r"%(\d+) = (tensor|leaf)  (\w+)\[([\d, ]*)\](?:  (.*))?",
        "slot": r"%(\d+) = grad  (\w+)\[([\d, ]*)\]  of %(\d+)",
        "grad": r"%(\d+)\.grad is ?(.*)",
        "op": r"%(\d+) = (\w+)(?:\[([-\d, ]*)\])?\(([%\d, ]*)\)  (\w+)\[([\d, ]*)\](?:  # (.*))?",
        "guard": r"guard\(%(\d+)\)  ([0-9a-f]*)(?:  # (.*))?",
        "grad_guard": r"grad_guard\(%(\d+)\)  (there|empty)(?:  # (.*))?",
        "assign": r"%(\d+)\.assign\(%(\d+)\)",
        "set_grad": r"%(\d+)\.grad = (?:None|%(\d+))",
        "returns": r"return((?: %\d+,?)*) ?",
    }.items()
}


def parse_plan(text: str) -> Plan:
    """The plan that a text of `print(plan)` describes. It is called with the inputs in order and returns a list of
    tensors. Captured tensors, their .grad and generators are its own, as tp.load_plan has it.

    Constants and captured tensors must be small enough to stand in the text (64 elements).

    Raises PlanError for a text that is no plan, or not a whole one, or in which an instruction does not fit what it
    reads: it is named, with what was expected.

    >>> plan = tp.freeze(lambda x: x + 1.0, tp.tensor([1.0]))
    >>> tp.parse_plan(str(plan))(tp.tensor([2.0]))[0].tolist()
    [3.0]
    """
    lines = text.strip("\n").split("\n")
    head = re.fullmatch(r"plan (.*?)\((.*)\)", lines[0])
    if head is None:
        raise PlanError("[parse_plan] the first line must be `plan name(inputs)`.")
    reader = _Reader()
    line = lines[0]
    try:
        for number, dtype, shape in re.findall(r"%(\d+) (\w+)\[([\d, ]*)\]", head[2]):
            reader.ir.inputs.append(reader.value(number, INPUT, dtype, shape))
        for line in lines[1:]:
            for name, pattern in _LINES.items():
                match = pattern.fullmatch(line.strip())
                if match is not None:
                    getattr(reader, name)(*match.groups())
                    break
            else:
                raise PlanError(f"[parse_plan] cannot read the line {line!r}.")
    except (PlanError, MemoryError):
        raise
    except (TapeflowError, KeyError, IndexError, ValueError, TypeError, OverflowError) as error:
        raise PlanError(f"[parse_plan] the line {line!r} is wrong: {error}.") from None
    if not reader.done:
        raise PlanError("[parse_plan] the last line must be `return` and the results.")
    _passes.trust(reader.ir, "parse_plan")
    return Plan(reader.ir, None, ("fuse",), name=head[1])


class _Reader:
    """Takes the lines of a text; each method has the groups of the pattern of its name."""

    def __init__(self) -> None:
        self.ir = IR([], {}, [], [], [], [], [], [], [("", 0, "")])
        self.generators: list[random.Generator] = []
        self.done = False

    def value(self, number: str, kind: int, dtype: str, shape: str) -> int:
        k = int(number)
        if dtype not in DTYPES:
            raise PlanError(f"[parse_plan] unknown dtype {dtype!r}.")
        if k > 1 << 24:
            raise ValueError(f"there is no value %{k}")
        values = self.ir.values
        values.extend([Value(CONST, 0, (0,))] * (k + 1 - len(values)))  # numbers that nothing has
        values[k] = Value(kind, DTYPES.index(dtype), tuple([int(n) for n in shape.split(",") if n.strip()]))
        return k

    def elements(self, k: int, text: str | None) -> Tensor:
        value = self.ir.values[k]
        dtype = np.dtype(DTYPES[value.dtype])
        words = (text or "").split()
        if len(words) != value.size or words == ["..."]:
            raise ValueError("the elements do not stand in the text")
        if dtype.kind == "f":
            flat = np.array([0.0 if w.startswith("nan:") else float.fromhex(w) for w in words], dtype)
            for i, w in enumerate(words):
                if w.startswith("nan:"):
                    flat[i : i + 1] = np.frombuffer(bytes.fromhex(w[4:]), dtype)
        elif dtype.kind == "b":
            flat = np.array([("False", "True").index(w) for w in words], dtype)
        else:
            flat = np.array([int(w) for w in words], dtype)
        return _core.from_numpy(flat.reshape(value.shape), True, "parse_plan")

    def where(self, comment: str | None) -> int:
        match = re.match(r"(.+):(\d+)", comment or "")
        if match is None:
            return 0
        line = (match[1], int(match[2]), "")
        if line not in self.ir.lines:
            self.ir.lines.append(line)
        return self.ir.lines.index(line)

    def captured(self, number: str) -> Tensor:
        if self.ir.values[int(number)].kind != TENSOR:
            raise ValueError(f"%{number} is no captured tensor")
        return self.ir.objects[int(number)]

    # ---- lines

    def rewrite(self, name: str, what: str, comment: str | None) -> None:
        self.ir.rewrites.append(Rewrite(name, what, self.where(comment)))

    def generator(self, number: str, seed: str | None, draw: str | None) -> None:
        if int(number) != len(self.generators):
            raise ValueError("generators are numbered from 0")
        made = random.default_generator
        if seed is not None and draw is not None:
            made = random.Generator(int(seed))
            made.state = (int(seed), int(draw))
        self.generators.append(made)

    def draws(self, number: str, generator: str, count: str, seed: str | None, first: str | None) -> None:
        if int(number) != len(self.ir.generators):
            raise ValueError("stretches of draws are numbered from 0")
        made = self.generators[int(generator)]
        self.ir.generators.append([made, seed is not None, int(seed or 0), int(first or 0), int(count)])

    def const(self, number: str, dtype: str, shape: str, text: str | None) -> None:
        k = self.value(number, CONST, dtype, shape)
        self.ir.objects[k] = self.elements(k, text)

    def tensor(self, number: str, kind: str, dtype: str, shape: str, text: str | None) -> None:
        k = self.value(number, TENSOR, dtype, shape)
        self.ir.objects[k] = self.elements(k, text).requires_grad_(kind == "leaf")

    def slot(self, number: str, dtype: str, shape: str, of: str) -> None:
        self.ir.objects[self.value(number, GRAD, dtype, shape)] = self.captured(of)

    def grad(self, number: str, text: str) -> None:
        self.captured(number).grad = self.elements(int(number), text)

    def op(
        self, number: str, name: str, params: str | None, ins: str, dtype: str, shape: str, comment: str | None
    ) -> None:
        out = self.value(number, MADE, dtype, shape)
        numbers = tuple([int(n) for n in (params or "").split(",") if n.strip()])
        operands = tuple([int(n) for n in re.findall(r"\d+", ins)])
        self.ir.instrs.append(Instr(CODES[name], numbers, operands, out, self.where(comment)))

    def guard(self, number: str, seen: str, comment: str | None) -> None:
        self.ir.instrs.append(Instr(GUARD, (), (int(number),), -1, self.where(comment), bytes.fromhex(seen)))

    def grad_guard(self, number: str, seen: str, comment: str | None) -> None:
        extra = (self.captured(number), seen == "there")
        self.ir.instrs.append(Instr(GRAD_GUARD, (), (), -1, self.where(comment), extra))

    def assign(self, number: str, to: str) -> None:
        self.ir.states.append((self.captured(number), int(to)))

    def set_grad(self, number: str, to: str | None) -> None:
        self.ir.grads.append((self.captured(number), None if to is None else int(to)))

    def returns(self, numbers: str) -> None:
        self.ir.outputs.extend([int(n) for n in re.findall(r"%(\d+)", numbers)])
        self.done = True
