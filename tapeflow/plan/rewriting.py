"""How a pass of fast.py writes a program anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapeflow import _core
from tapeflow.plan.ir import BOOL, CODES, CONST, DTYPES, FLOAT32, FLOAT64, IR, MADE, Instr, Rewrite, Value
from tapeflow.plan.passes import dce

FLOATS = (FLOAT32, FLOAT64)
_MATMUL, _BROADCAST, _PERMUTE, _RESHAPE = (
    CODES[name] for name in ("matmul", "broadcast_to", "permute_dims", "reshape")
)


class Rewriter:
    """A program that is being written anew, instruction by instruction, into `kept`."""

    def __init__(self, ir: IR, name: str) -> None:
        self.ir, self.name, self.values = ir, name, ir.values
        self.made = {instr.out: instr for instr in ir.instrs if instr.op >= 0}
        self.uses = Counter(k for instr in ir.instrs for k in instr.ins)
        self.uses.update(ir.results())
        self.kept: list[Instr] = []
        self.names: dict[int, int] = {}  # a value -> what stands for it now
        self.line = 0

    def run(self, rewrite: Callable[[Instr], bool]) -> None:
        """Keep the instructions for which rewrite has not written others."""
        for instr in self.ir.instrs:
            self.line = instr.line
            if not rewrite(instr):
                self.kept.append(instr)
        self.ir.instrs = self.kept
        self.ir.renamed(self.names)
        dce(self.ir)  # what was replaced is read by nothing

    def note(self, what: str) -> None:
        self.ir.rewrites.append(Rewrite(self.name, what, self.line))

    def alone(self, k: int, op: int) -> Instr | None:
        """The instruction of op that made k, where k is read once."""
        instr = self.made.get(k)
        return instr if instr is not None and instr.op == op and self.uses[k] == 1 else None

    # ---- writing

    def emit(
        self, op: int, ins: Sequence[int], shape: tuple[int, ...], dtype: int, params: tuple[int, ...] = (),
        out: int | None = None,
    ) -> int:  # fmt: skip
        """Write an instruction; out: the value that it makes, if that has a number."""
        number = self.ir.new_value(Value(MADE, dtype, shape)) if out is None else out
        instr = self.made[number] = Instr(op, params, tuple(ins), number, self.line)
        self.kept.append(instr)
        return number

    def elementwise(self, name: str, *ins: int, out: int | None = None) -> int:
        """An op on values of one dtype, which it keeps unless it asks a question."""
        values = [self.values[k] for k in ins]
        shape = np.broadcast_shapes(*[v.shape for v in values])
        dtype = BOOL if _core.op_kind(CODES[name]) == "compare" else values[-1].dtype
        return self.emit(CODES[name], ins, shape, dtype, out=out)

    def reduce(self, name: str, x: int, axis: int) -> int:
        """Along an axis (from the end), which stays with one element."""
        v = self.values[x]
        at = len(v.shape) + axis
        shape = (*v.shape[:at], 1, *v.shape[at + 1 :])
        return self.emit(CODES[name], (x,), shape, v.dtype, (word(1 << at), v.shape[at]))

    def matmul(self, a: int, b: int, out: int | None = None) -> int:
        x, y = self.values[a], self.values[b]
        batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        return self.emit(_MATMUL, (a, b), (*batch, x.shape[-2], y.shape[-1]), x.dtype, out=out)

    def transposed(self, x: int) -> int:
        """The last two axes the other way round, read past where they are already."""
        instr = self.made.get(x)
        if instr is not None and instr.op == _PERMUTE and instr.params == swapped(len(instr.params)):
            return instr.ins[0]
        v = self.values[x]
        params = swapped(len(v.shape))
        return self.emit(_PERMUTE, (x,), tuple([v.shape[d] for d in params]), v.dtype, params)

    def reshape(self, x: int, shape: tuple[int, ...]) -> int:
        return x if self.values[x].shape == shape else self.emit(_RESHAPE, (x,), shape, self.values[x].dtype)

    def broadcast(self, x: int, shape: tuple[int, ...]) -> int:
        return x if self.values[x].shape == shape else self.emit(_BROADCAST, (x,), shape, self.values[x].dtype)

    def constant(self, elements: Any, dtype: int) -> int:
        x = _core.from_numpy(np.asarray(elements, DTYPES[dtype]), True, "freeze", loose=True)
        number = self.ir.new_value(Value(CONST, dtype, x.shape))
        self.ir.objects[number] = x
        return number


def has(ir: IR, *ops: int) -> bool:
    """Is there an instruction of one of these?"""
    return any(instr.op in ops for instr in ir.instrs)


def word(mask: int) -> int:
    """A mask of axes as a signed word of 64 bits."""
    return mask - (1 << 64) if mask >> 63 else mask


def axes_of(word: int, ndim: int) -> list[int]:
    return [d for d in range(ndim) if word >> d & 1]


def swapped(ndim: int) -> tuple[int, ...]:
    """The order of axes that transposes matrices."""
    return (*range(ndim - 2), ndim - 1, ndim - 2)


def extents(v: Value) -> str:
    return str(list(v.shape))
