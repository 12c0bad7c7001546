"""Passes: programs to programs with the same bits.

    dce         what no result, guard or state needs is left out
    fold        what constants alone decide is computed now
    windows     what a window of a value was written with is read from there; what is written over is not written
    forward     what only repeats or renames a value is read past: broadcasts under elementwise ops, x*1, -(-x), x.T.T
    cse         what was computed already is not computed again
    fuse        elementwise ops run in groups, block by block: done by schedule.py when the plan is laid out

Those of fast.py may change bits, and are asked for by name or with fast=True.

Each is a named function IR -> None that changes the IR in place; `run` applies them in order and counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tapeflow import _core
from tapeflow._core import Tensor
from tapeflow.errors import PlanError
from tapeflow.plan.ir import ACCUMULATE, CODES, CONST, IR, N_ELEMENTWISE, RANDOM, Instr, Value

_ADD, _SUBTRACT, _MULTIPLY, _DIVIDE, _SMUL, _NEGATIVE, _POSITIVE = (
    CODES[name] for name in ("add", "subtract", "multiply", "divide", "smul", "negative", "positive")
)
_IDENTITY, _RESHAPE, _BROADCAST, _PERMUTE = (
    CODES[name] for name in ("identity", "reshape", "broadcast_to", "permute_dims")
)
_GETITEM, _ASSIGN, _UNSLICE, _WHERE, _EQUAL = (
    CODES[name] for name in ("getitem", "assign", "unslice", "where", "equal")
)
_NOT_FOLDED = (RANDOM, ACCUMULATE, _BROADCAST)  # (a broadcast costs nothing: it is a view)
_FOLDED_SIZE = 1 << 16  # elements of a constant that is larger than what it was computed from


def dce(ir: IR) -> None:
    """Keep guards and what the results, and they, depend on."""
    needed = set(ir.results())
    kept = []
    for instr in reversed(ir.instrs):
        if instr.op < 0 or instr.out in needed:
            needed.update(instr.ins)
            kept.append(instr)
    kept.reverse()
    ir.instrs = kept


def fold(ir: IR) -> None:
    """Compute what only constants go into, unless it would be much larger than they are; one number all over once."""
    values, objects = ir.values, ir.objects
    kept = []
    even: dict[int, int] = {}  # a broadcast of a constant that is one number -> that constant
    for instr in ir.instrs:
        if instr.op == _BROADCAST and values[instr.ins[0]].kind == CONST and values[instr.ins[0]].size == 1:
            even[instr.out] = instr.ins[0]
        if even and 0 <= instr.op < N_ELEMENTWISE and any(k in even for k in instr.ins):
            _fold_even(ir, instr, even)
        if instr.op < 0 or instr.op in _NOT_FOLDED or not instr.ins or len(instr.ins) > 16:
            kept.append(instr)
            continue
        for k in instr.ins:
            if values[k].kind != CONST:
                kept.append(instr)
                break
        else:
            out = values[instr.out]
            if out.size > max(_FOLDED_SIZE, *(values[k].size for k in instr.ins)):
                kept.append(instr)
                continue
            objects[instr.out] = _core.compute_op(
                instr.op, instr.params, [objects[k] for k in instr.ins], out.dtype, out.shape
            )
            values[instr.out] = Value(CONST, out.dtype, out.shape)
    ir.instrs = kept


def _fold_even(ir: IR, instr: Instr, even: dict[int, int]) -> None:
    """Of operands that are one number all over compute one element, and broadcast it."""
    values = ir.values
    ins = tuple([even.get(k, k) for k in instr.ins])
    if all(values[k].kind == CONST and values[k].size == 1 for k in ins):
        shape = max([values[k].shape for k in ins], key=len)
        one = ir.new_value(Value(CONST, values[instr.out].dtype, shape))
        ir.objects[one] = _core.compute_op(
            instr.op, instr.params, [ir.objects[k] for k in ins], values[one].dtype, shape
        )
        even[instr.out] = one
        instr.op, instr.params, instr.ins = _BROADCAST, (), (one,)


def _number(x: Tensor | None) -> float | None:
    """The one number that a small constant holds."""
    return _core.number_in(x) if x is not None and x.size == 1 else None


def forward(ir: IR) -> None:
    """Read past identities: a broadcast under an elementwise op (which broadcasts by itself), x*1, x/1, x-0, -(-x), a
    known condition, a permutation or reshape of another, the 1 in smul(smul(x, 1), y), a smul that is only taken where
    it is 0. smul of a number that is not 0 is a product."""
    values = ir.values
    made = {instr.out: instr for instr in ir.instrs}
    names: dict[int, int] = {}
    positions = ir.positions()

    def behind(k: int) -> int:
        """What k repeats, as far as an elementwise op can tell."""
        while True:
            instr = made.get(k)
            if instr is None:
                return k
            if (
                instr.op == _BROADCAST
                or instr.op == _RESHAPE
                and values[instr.ins[0]].size == 1
                and values[instr.ins[0]].shape == ()
            ):
                k = instr.ins[0]
            else:
                return k

    for instr in ir.instrs:
        ins = instr.ins
        if names:
            ins = instr.ins = tuple([names.get(k, k) for k in ins])
        op = instr.op
        if op < 0:
            continue
        if op < N_ELEMENTWISE:
            shape = values[instr.out].shape
            passed = tuple([behind(k) for k in ins])
            if passed != ins and _same_result(values, passed, shape):
                ins = instr.ins = passed
            if op == _SMUL:
                inner = made.get(ins[0])
                if inner is not None and _is_smul_by_one(ir, inner):
                    ins = instr.ins = (inner.ins[0], ins[1])
                if _number(ir.constant(ins[0])):
                    op = instr.op = _MULTIPLY  # a first factor that is not 0
            if op == _WHERE and _is_zero_there(ir, made, ins):
                ins = instr.ins = (ins[0], made[ins[0]].ins[1], ins[2])
            same = _unchanged(ir, made, op, ins)
            if same is None or values[same].shape != shape or values[same].dtype != values[instr.out].dtype:
                continue
            if instr.out in positions:
                continue
            names[instr.out] = same
            continue
        inner = made.get(ins[0]) if op in (_RESHAPE, _PERMUTE) else None
        if inner is not None and inner.op == op:
            ins = instr.ins = inner.ins
            if op == _PERMUTE:
                instr.params = tuple([inner.params[axis] for axis in instr.params])
        if op == _PERMUTE:
            same_order = instr.params == tuple(range(len(instr.params)))
        else:
            same_order = op in (_RESHAPE, _BROADCAST) and values[ins[0]].shape == values[instr.out].shape
        if (same_order or op == _IDENTITY) and instr.out not in positions:
            names[instr.out] = ins[0]
    ir.renamed(names)
    ir.renamed(names)  # a result that was renamed twice


def _is_smul_by_one(ir: IR, instr: Instr) -> bool:
    """Is it smul(x, 1), which is x but for the sign of a zero? (Another smul does not look at that.)"""
    if instr.op != _SMUL:
        return False
    return _number(ir.constant(instr.ins[1])) == 1 and _alike(ir.values, instr.ins[0], instr.out)


def _is_zero_there(ir: IR, made: dict[int, Instr], ins: tuple[int, ...]) -> bool:
    """Of where(a == 0, smul(a, g), y), the rule of smul, of y's shape: is the second 0 wherever it is taken?"""
    test, zero = made.get(ins[0]), made.get(ins[1])
    if test is None or zero is None or test.op != _EQUAL or zero.op != _SMUL or test.ins[0] != zero.ins[0]:
        return False
    number = ir.constant(test.ins[1])
    return (
        number is not None
        and _number(number) == 0
        and not _core.signbit_of(number)
        and _alike(ir.values, ins[1], ins[2])
        and ir.values[test.ins[1]].dtype == ir.values[ins[2]].dtype
    )


def _same_result(values: list[Value], ins: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Would the operands still broadcast to shape? One of them must have it."""
    return any(values[k].shape == shape for k in ins)


def _unchanged(ir: IR, made: dict[int, Instr], op: int, ins: tuple[int, ...]) -> int | None:
    """The operand that the op returns as it is."""
    if op == _POSITIVE:
        return ins[0]
    if op == _NEGATIVE:
        inner = made.get(ins[0])
        return inner.ins[0] if inner is not None and inner.op == _NEGATIVE else None
    if op == _MULTIPLY:
        if _number(ir.constant(ins[1])) == 1:
            return ins[0]
        return ins[1] if _number(ir.constant(ins[0])) == 1 else None
    if op == _WHERE:
        condition = _number(ir.constant(ins[0]))
        return None if condition is None else ins[1] if condition else ins[2]
    if op == _DIVIDE:
        return ins[0] if _number(ir.constant(ins[1])) == 1 else None
    if op == _SUBTRACT:
        zero = ir.constant(ins[1])
        return ins[0] if _number(zero) == 0 and zero is not None and not _core.signbit_of(zero) else None
    return None


def windows(ir: IR) -> None:
    """A window (a basic index) that was just written is what was written; of two writes to one window the last counts,
    and nothing is left of zeros that it covers (the rule of x[i] adds into a window of zeros)."""
    values = ir.values
    made: dict[int, Instr] = {}
    names: dict[int, int] = {}
    positions = ir.positions()
    for instr in ir.instrs:
        if names:
            instr.ins = tuple([names.get(k, k) for k in instr.ins])
        op = instr.op
        if op in (_ASSIGN, _GETITEM):
            base = made.get(instr.ins[0])
            if base is not None and base.params == instr.params:
                written = base.ins[-1]
                if op == _GETITEM:
                    if _alike(values, written, instr.out) and instr.out not in positions:
                        names[instr.out] = written
                elif base.op == _ASSIGN:
                    instr.ins = (base.ins[0], instr.ins[1])
                elif _alike(values, written, instr.ins[1]):
                    op = instr.op = _UNSLICE
                    instr.ins = (instr.ins[1],)
        if op in (_ASSIGN, _UNSLICE):
            made[instr.out] = instr
    ir.renamed(names)


def _alike(values: list[Value], a: int, b: int) -> bool:
    return values[a].shape == values[b].shape and values[a].dtype == values[b].dtype


def cse(ir: IR) -> None:
    """One of several instructions that compute the same; one of several small constants that are the same.

    A second shape of a permuted value is a shape of the first one: elements that have to move are moved once.
    """
    values, objects = ir.values, ir.objects
    names: dict[int, int] = {}
    seen: dict[Any, int] = {}
    used = {k for instr in ir.instrs for k in instr.ins}.union(ir.results())
    for k, x in objects.items():
        if k in used and values[k].kind == CONST and x.size <= 16:
            key = (values[k], _core.bytes_of(x))
            first = seen.setdefault(key, k)
            if first != k:
                names[k] = first
    kept = []
    get = names.get
    shaped: dict[int, int] = {}
    permuted: set[int] = set()
    for instr in ir.instrs:
        ins = instr.ins
        if names:
            ins = instr.ins = tuple([get(k, k) for k in ins])
        if instr.op < 0 or instr.op == ACCUMULATE:
            kept.append(instr)
            continue
        out = values[instr.out]
        if instr.op == _PERMUTE:
            permuted.add(instr.out)
        if instr.op == _RESHAPE and ins[0] in permuted and instr.out in used:
            first = shaped.setdefault(ins[0], instr.out)
            if first != instr.out and values[first].shape != out.shape:
                ins = instr.ins = (first,)
        # what is computed again is not the same: that nobody keeps the first result is the point of it
        first = seen.setdefault((instr.op, instr.params, ins, out.dtype, out.shape, instr.extra), instr.out)
        if first == instr.out:
            kept.append(instr)
        else:
            names[instr.out] = first
    ir.instrs = kept
    ir.renamed(names)


VERIFY = os.environ.get("TAPEFLOW_VERIFY") == "1"
PASSES: dict[str, Callable[[IR], None]] = {"dce": dce, "fold": fold, "windows": windows, "forward": forward, "cse": cse}
DEFAULT = ("dce", "fold", "windows", "forward", "cse", "dce", "fuse")


def chosen(passes: Any, fast: bool, op: str) -> tuple[str, ...]:
    """The names of the passes that the options of a freeze ask for."""
    if not isinstance(fast, bool):
        raise PlanError(f"[{op}] fast must be True or False, got {fast!r}.")
    if passes is not None and fast:
        raise PlanError(f"[{op}] both passes= and fast=True are given. Name the passes of fast=True among the others.")
    if passes is not None:
        return tuple(passes)
    if not fast:
        return DEFAULT
    from tapeflow.plan import fast as faster

    return (*DEFAULT[:-2], *faster.ORDER, *DEFAULT)


def run(ir: IR, names: tuple[str, ...]) -> None:
    """Apply passes in order, and note how many instructions each leaves."""
    table = PASSES
    if not PASSES.keys() >= {*names} - {"fuse"}:
        from tapeflow.plan import fast

        table = {**PASSES, **fast.PASSES}
        unknown = [name for name in names if name not in table and name != "fuse"]
        if unknown:
            raise PlanError(f"[freeze] unknown pass {unknown[0]!r}. The passes: {', '.join((*table, 'fuse'))}.")
    ir.counts.append(("recorded", len(ir.instrs)))
    for name in names:
        if name == "fuse":
            continue
        table[name](ir)
        if VERIFY:
            verify(ir)
        ir.counts.append((name, len(ir.instrs)))


def verify(ir: IR, op: str = "freeze") -> None:
    """Is each value made once, before it is read, with the type that its op gives? Otherwise a PlanError, as op's. For
    what is read from text and files, for tests and TAPEFLOW_VERIFY=1."""
    from tapeflow.plan import types

    types.check(ir, op)


def trust(ir: IR, op: str) -> None:
    """Verify a program that was read from elsewhere, and let it check the positions whose bounds are not known."""
    from tapeflow.plan import positions

    verify(ir, op)
    positions.check(ir)
