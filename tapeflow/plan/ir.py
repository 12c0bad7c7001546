"""The program of a plan: values by number, and instructions that make one value each from others.

An `Instr` names its op by opcode (tapeflow._core knows the names), with the integers that the op needs; `ins` and `out`
are numbers of values. A value is made once. Passes take an `IR` and return it changed; none of them sees a Tensor but
as an object that a value came from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

from tapeflow import _core
from tapeflow._core import Tensor
from tapeflow.errors import PlanError

NAMES: tuple[str, ...] = _core.op_names()
CODES: dict[str, int] = {name: code for code, name in enumerate(NAMES)}
N_ELEMENTWISE: int = _core.n_elementwise()
ITEMSIZE = (1, 1, 4, 8, 4, 8)
DTYPES = ("bool", "uint8", "int32", "int64", "float32", "float64")
BOOL, UINT8, INT32, INT64, FLOAT32, FLOAT64 = range(6)  # their codes

# Where a value comes from.
MADE, INPUT, TENSOR, GRAD, CONST = range(5)

# What is an instruction without being an op.
GUARD = -1  # the value must have the bits that Python saw
GRAD_GUARD = -2  # the .grad of a tensor must be there, or not, as it was

RANDOM, ACCUMULATE = CODES["random"], CODES["accumulate"]
# Their kernels trust the positions, operand 1: in range, and without gaps, so that no view takes their place.
INDEXED = (CODES["take"], CODES["put"], CODES["scatter_add"])


class Value(NamedTuple):
    """kind: MADE by an instruction, INPUT, TENSOR, GRAD or CONST; dtype: a code."""

    kind: int
    dtype: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * ITEMSIZE[self.dtype]


def contiguous(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides of elements side by side, in C order."""
    strides = []
    step = itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


class Rewrite(NamedTuple):
    """What a pass that may change bits (fast.py) did; line: index into IR.lines."""

    name: str
    what: str
    line: int


class Instr:
    """out = op(ins), with params; line: index into IR.lines. extra: what a guard compares; of an op that was computed
    again, to save memory, the number of that recomputation."""

    __slots__ = ("extra", "ins", "line", "op", "out", "params")

    def __init__(
        self, op: int, params: tuple[int, ...], ins: tuple[int, ...], out: int, line: int, extra: Any = None
    ) -> None:
        self.op, self.params, self.ins, self.out, self.line, self.extra = op, params, ins, out, line, extra

    def __repr__(self) -> str:
        return f"%{self.out} = {name_of(self.op)}{list(self.params)}({', '.join(f'%{i}' for i in self.ins)})"


def name_of(op: int) -> str:
    return NAMES[op] if op >= 0 else ("guard", "grad_guard")[-1 - op]


@dataclass
class IR:
    """A program. objects: the tensor behind each value that no instruction makes."""

    values: list[Value]
    objects: dict[int, Tensor]
    instrs: list[Instr]
    inputs: list[int]
    outputs: list[int]
    states: list[tuple[Tensor, int]]
    grads: list[tuple[Tensor, int | None]]
    generators: list[list[Any]]
    lines: list[tuple[str, int, str]]
    hooks: list[tuple[int, Any]] = field(default_factory=list)  # before passes: (value, function) of register_hook
    regions: list[Any] = field(default_factory=list)  # before passes: calls with rules (tapeflow/custom.py)
    counts: list[tuple[str, int]] = field(default_factory=list)  # of instructions, after each pass
    ungraded: set[int] = field(default_factory=set)  # values made outside of grad mode
    rewrites: list[Rewrite] = field(default_factory=list)  # what may have changed bits

    def copy(self) -> IR:
        """The same program, for passes to change."""
        instrs = [Instr(i.op, i.params, i.ins, i.out, i.line, i.extra) for i in self.instrs]
        return replace(
            self, values=list(self.values), objects=dict(self.objects), instrs=instrs, counts=[], rewrites=[]
        )

    def results(self) -> Iterable[int]:
        """The values that outlive a run."""
        yield from self.outputs
        for _, number in self.states:
            yield number
        for _, grad in self.grads:
            if grad is not None:
                yield grad

    def new_value(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def positions(self) -> set[int]:
        """The values that ops trust as positions."""
        return {instr.ins[1] for instr in self.instrs if instr.op in INDEXED}

    def used(self) -> set[int]:
        """The values that an instruction reads or that outlive a run."""
        return {k for instr in self.instrs for k in instr.ins} | set(self.results())

    def tensors(self) -> dict[int, Tensor]:
        """The tensors from outside that a run reads or writes, or whose .grad it does, by the number of the value that
        they begin a run with; one that is only written gets a number, too."""
        used = self.used()
        number = {id(x): k for k, x in self.objects.items() if self.values[k].kind == TENSOR}
        found: dict[int, Tensor] = {}
        for t in (
            *(x for k, x in self.objects.items() if k in used and self.values[k].kind in (TENSOR, GRAD)),
            *(instr.extra[0] for instr in self.instrs if instr.op == GRAD_GUARD),
            *(t for t, _ in self.states),
            *(t for t, _ in self.grads),
        ):
            if id(t) not in number:
                number[id(t)] = self.new_value(Value(TENSOR, DTYPES.index(t.dtype.name), t.shape))
                self.objects[number[id(t)]] = t
            found[number[id(t)]] = t
        return dict(sorted(found.items()))

    def check_aliases(self, arguments: Iterable[Any], op: str) -> None:
        """What is written must not be an argument, too: that is read as it was before the run, whatever comes first."""
        written = {id(t) for t, _ in self.states} | {id(t.grad) for t, _ in self.grads if t.grad is not None}
        for x in arguments:
            if isinstance(x, Tensor) and id(x) in written:
                raise PlanError(
                    f"[{op}] an argument {x.dtype}{list(x.shape)} is a tensor that the function also writes. Pass a "
                    "copy (x.clone()), or let the function have it from outside alone."
                )

    def constant(self, number: int) -> Tensor | None:
        return self.objects[number] if self.values[number].kind == CONST else None

    def renamed(self, names: dict[int, int]) -> None:
        """Read names[k] wherever k was read."""
        if not names:
            return
        get = names.get
        for instr in self.instrs:
            instr.ins = tuple([get(k, k) for k in instr.ins])
        self.outputs = [get(k, k) for k in self.outputs]
        self.states = [(t, get(k, k)) for t, k in self.states]
        self.grads = [(t, None if k is None else get(k, k)) for t, k in self.grads]


def compute_dtype(ir: IR, instr: Instr) -> int:
    """The dtype in which an elementwise op is computed."""
    values = ir.values
    kind = _core.op_kind(instr.op)
    if kind == "compare":
        return max([values[k].dtype for k in instr.ins])
    return values[instr.out].dtype
