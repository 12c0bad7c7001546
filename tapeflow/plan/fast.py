"""Passes that may change bits, for `fast=True`: programs to programs with the same values but for rounding.

    reassociate        constants of a chain of products, or of sums, become one; negations cancel or become subtractions
    strength           a division by a constant is a product, a power with a constant exponent is products or a root
    hoist_scalars      a constant that all summands are multiplied with is taken out of the sum; a sum of sums is one
    zero_windows       what is added to zeros that a window still has is what is there then
    concat_windows     an array that is written window by window, all of it, is its windows side by side
    uniform_operands   of a product with an operand whose rows, or columns, are alike, one row, or column, is computed
    concat_products    a sum of products is one product of the operands side by side
    concat_sums        a sum of reductions is one, where what they reduce is side by side
    contract_sums      the sum of a matrix product is a product of sums
    batch_products     products with the same right operand are one, where their left operands are there at once
    transpose_products a transposed product is the product of the transposed operands, the other way round

Each is a named function IR -> None, as those of passes.py, and notes in `IR.rewrites` what it did, which
`plan.explain()` shows. All keep this: the error stays a small multiple of eps times the sum of the magnitudes that are
added; NaN stays NaN, an infinity stays what it is, and where the exact plan is finite so is this one, but for sums
whose partial sums overflow in one order of the terms and not in another. A docstring says what else may change: no more
than the sign of a zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from tapeflow import _core
from tapeflow.plan.fast_products import (
    batch_products,
    concat_products,
    concat_sums,
    contract_sums,
    transpose_products,
    uniform_operands,
)
from tapeflow.plan.ir import CODES, DTYPES, FLOAT32, IR, Instr, Value, name_of
from tapeflow.plan.rewriting import FLOATS, Rewriter, axes_of, extents, has, word

_SUM, _MEAN = CODES["sum"], CODES["mean"]
_ADD, _SUBTRACT, _MULTIPLY, _DIVIDE, _NEGATIVE, _POW = (
    CODES[name] for name in ("add", "subtract", "multiply", "divide", "negative", "pow")
)
_ASSIGN, _UNSLICE, _GETITEM, _CONCAT = (CODES[name] for name in ("assign", "unslice", "getitem", "concat"))
_HOISTED = 1000  # elements that are not multiplied, from which on it is worth a step more
_WRITES = 64  # into an array, that are looked through for a window of zeros

# ---- constants


def _number(w: Rewriter, k: int, y: Value) -> float | None:
    """The number that a constant of one element and y's dtype holds, if that is finite and not 0."""
    x = w.ir.constant(k)
    if x is None or x.size != 1 or w.values[k].dtype != y.dtype or len(w.values[k].shape) > len(y.shape):
        return None
    number = float(_core.number_in(x))
    return number if math.isfinite(number) and number else None


def _rounded(number: Fraction, dtype: int) -> float | None:
    """A number in a dtype; None where it is 0, subnormal or too large."""
    info = np.finfo(DTYPES[dtype])
    if not Fraction(float(info.tiny)) <= abs(number) <= Fraction(float(info.max)):
        return None
    return float(np.dtype(DTYPES[dtype]).type(float(number)))


def _scaled(w: Rewriter, k: int) -> tuple[int, Fraction] | None:
    """(x, factor) where k is x times a constant, x / a constant or -x, of k's shape."""
    instr = w.made.get(k)
    if instr is None or w.values[k].dtype not in FLOATS:
        return None
    y = w.values[k]
    if instr.op == _NEGATIVE:
        return instr.ins[0], Fraction(-1)
    if instr.op not in (_MULTIPLY, _DIVIDE):
        return None
    for x, c in (instr.ins, instr.ins[::-1])[: 1 + (instr.op == _MULTIPLY)]:
        number = _number(w, c, y)
        if number is not None and w.values[x][1:] == y[1:]:
            return x, Fraction(number) if instr.op == _MULTIPLY else 1 / Fraction(number)
    return None


def _shifted(w: Rewriter, k: int) -> tuple[int, Fraction] | None:
    """(x, number) where k is x plus or minus a constant, of k's shape."""
    instr = w.made.get(k)
    if instr is None or instr.op not in (_ADD, _SUBTRACT) or w.values[k].dtype not in FLOATS:
        return None
    y = w.values[k]
    for x, c in (instr.ins, instr.ins[::-1])[: 1 + (instr.op == _ADD)]:
        number = _number(w, c, y)
        if number is not None and w.values[x][1:] == y[1:]:
            return x, Fraction(number) if instr.op == _ADD else -Fraction(number)
    return None


def reassociate(ir: IR) -> None:
    """(x c) d, (x / c) d and -(x c) are x times one constant, if that is neither 0 nor subnormal nor infinite;
    (x + c) + d is x + (c + d), if c + d is exact; a + (-b) is a - b, (-a) (-b) is a b, -(a - b) is b - a.

    What over- or underflowed between the two factors does so no more. -(a - a) is 0 in place of -0.
    """
    w = Rewriter(ir, "reassociate")
    w.run(lambda instr: _chained(w, instr) or _negated(w, instr))


def _chained(w: Rewriter, instr: Instr) -> bool:
    y = w.values[instr.out] if instr.op >= 0 else None
    outer = _scaled(w, instr.out)
    if y is not None and outer is not None and w.uses[outer[0]] == 1:
        inner = _scaled(w, outer[0])
        factor = None if inner is None else _rounded(outer[1] * inner[1], y.dtype)
        if inner is not None and factor is not None:
            w.elementwise("multiply", inner[0], w.constant(factor, y.dtype), out=instr.out)
            w.note(f"two factors of {extents(y)} are {factor!r}")
            return True
    outer = _shifted(w, instr.out)
    if y is not None and outer is not None and w.uses[outer[0]] == 1:
        inner = _shifted(w, outer[0])
        number = None if inner is None else outer[1] + inner[1]
        if inner is not None and number is not None and number == Fraction(_rounded(number, y.dtype) or 0):
            w.elementwise("add", inner[0], w.constant(float(number), y.dtype), out=instr.out)
            w.note(f"two numbers that are added to {extents(y)} are {float(number)!r}")
            return True
    return False


def _negated(w: Rewriter, instr: Instr) -> bool:
    """Negations of the result's shape that another form has no need of."""
    if instr.op not in (_ADD, _SUBTRACT, _MULTIPLY, _NEGATIVE) or w.values[instr.out].dtype not in FLOATS:
        return False

    def negated(k: int) -> int | None:
        inner = w.alone(k, _NEGATIVE)
        return None if inner is None or w.values[k] != w.values[instr.out] else inner.ins[0]

    if instr.op == _NEGATIVE:
        inner = w.alone(instr.ins[0], _SUBTRACT)
        if inner is None:
            return False
        name, ins = "subtract", inner.ins[::-1]
    else:
        a, b = instr.ins
        x, y = negated(a), negated(b)
        if instr.op == _MULTIPLY and x is not None and y is not None:
            name, ins = "multiply", (x, y)
        elif instr.op == _ADD and y is not None:
            name, ins = "subtract", (a, y)
        elif instr.op == _ADD and x is not None:
            name, ins = "subtract", (b, x)
        elif instr.op == _SUBTRACT and y is not None:
            name, ins = "add", (a, y)
        else:
            return False
    w.elementwise(name, *ins, out=instr.out)
    w.note(f"a negation of {extents(w.values[instr.out])} is part of the {name}")
    return True


def strength(ir: IR) -> None:
    """x / c is x (1 / c), if 1 / c is neither 0 nor subnormal nor infinite; x**2, x**3, x**4, x**-1 and x**-2 are
    products, x**0.5, x**-0.5 and x**1.5 square roots, with the values of the power at infinities and -0.

    Each adds up to three roundings. x**1.5 of -0 is -0 in place of 0.
    """
    if not has(ir, _DIVIDE, _POW):
        return
    w = Rewriter(ir, "strength")
    w.run(lambda instr: _product_for_division(w, instr) or _product_for_power(w, instr))


def _product_for_division(w: Rewriter, instr: Instr) -> bool:
    found = _scaled(w, instr.out) if instr.op == _DIVIDE else None
    if found is None:
        return False
    x, factor = found
    y = w.values[instr.out]
    number = _rounded(factor, y.dtype)
    if number is None:
        return False
    w.elementwise("multiply", x, w.constant(number, y.dtype), out=instr.out)
    w.note(f"{extents(y)} / {float(1 / factor)!r} is a product")
    return True


def _product_for_power(w: Rewriter, instr: Instr) -> bool:
    if instr.op != _POW or w.values[instr.ins[0]][1:] != w.values[instr.out][1:]:
        return False
    x, y = instr.ins[0], w.values[instr.out]
    exponent = _number(w, instr.ins[1], y) if y.dtype in FLOATS else None

    def root() -> int:
        return w.elementwise("sqrt", w.elementwise("add", x, w.constant(0.0, y.dtype)))  # (of -0, too, it is 0)

    def but_for_infinity(power: int, value: float) -> None:
        lowest = w.elementwise("equal", x, w.constant(-math.inf, y.dtype))
        w.elementwise("where", lowest, w.constant(value, y.dtype), power, out=instr.out)

    if exponent == 2:
        w.elementwise("square", x, out=instr.out)
    elif exponent == 3:
        w.elementwise("multiply", w.elementwise("square", x), x, out=instr.out)
    elif exponent == 4:
        w.elementwise("square", w.elementwise("square", x), out=instr.out)
    elif exponent == -1:
        w.elementwise("reciprocal", x, out=instr.out)
    elif exponent == -2:
        w.elementwise("square", w.elementwise("reciprocal", x), out=instr.out)
    elif exponent == 0.5:
        but_for_infinity(root(), math.inf)
    elif exponent == -0.5:
        but_for_infinity(w.elementwise("reciprocal", root()), 0.0)
    elif exponent == 1.5:
        but_for_infinity(w.elementwise("multiply", x, root()), math.inf)
    else:
        return False
    w.note(f"{extents(y)} to the power of {exponent!r} has none")
    return True


def hoist_scalars(ir: IR) -> None:
    """sum(c x) is c sum(x), or (c n) mean(x) where sum(x) could overflow; mean(c x) is c mean(x) for |c| < 1; the sum,
    or mean, of -x is the negative one; a sum of sums, or float32 mean of means, is one.

    The sum of nothing but zeros, or of nothing at all, may be -0 in place of 0.
    """
    if not has(ir, _SUM, _MEAN):
        return
    w = Rewriter(ir, "hoist_scalars")
    w.run(lambda instr: _hoisted(w, instr) or _reduced_twice(w, instr))


def _hoisted(w: Rewriter, instr: Instr) -> bool:
    if instr.op not in (_SUM, _MEAN) or w.uses[instr.ins[0]] != 1:
        return False
    found = _scaled(w, instr.ins[0])
    y = w.values[instr.out]
    if found is None or y.size + _HOISTED > w.values[instr.ins[0]].size:
        return False
    x, factor = found
    op = instr.op
    if abs(factor) < 1 and y.dtype == FLOAT32:  # (whose mean does not overflow)
        factor, op = (factor * instr.params[1], _MEAN) if op == _SUM else (factor, op)
    elif abs(factor) < 1 or (op == _MEAN and factor != -1):
        return False
    number = _rounded(factor, y.dtype)
    if number is None:
        return False
    total = w.emit(op, (x,), y.shape, y.dtype, instr.params)
    if number == -1:
        w.elementwise("negative", total, out=instr.out)
    else:
        w.elementwise("multiply", total, w.constant(number, y.dtype), out=instr.out)
    w.note(f"the {name_of(instr.op)} of {extents(w.values[x])} times {float(found[1])!r} is multiplied afterwards")
    return True


def _reduced_twice(w: Rewriter, instr: Instr) -> bool:
    y = w.values[instr.out] if instr.op in (_SUM, _MEAN) else None
    inner = None if y is None else w.alone(instr.ins[0], instr.op)
    if y is None or inner is None or y.dtype not in ((FLOAT32,) if instr.op == _MEAN else FLOATS):
        return False
    x, between = w.values[inner.ins[0]], w.values[inner.out]
    first = axes_of(inner.params[0], len(x.shape))
    left = list(range(len(x.shape)))  # the axes of x that those between are
    if len(between.shape) < len(x.shape):
        left = [d for d in left if d not in first]
    axes = sorted({*first, *(left[d] for d in axes_of(instr.params[0], len(between.shape)))})
    kept = tuple([1 if d in axes else n for d, n in enumerate(x.shape)])
    params = (word(sum(1 << d for d in axes)), math.prod([x.shape[d] for d in axes]))
    if not x.size:
        return False
    w.names[instr.out] = w.reshape(w.emit(instr.op, inner.ins, kept, y.dtype, params), y.shape)
    w.note(f"the {name_of(instr.op)} of one of {extents(x)} is one")
    return True


# ---- windows


def zero_windows(ir: IR) -> None:
    """x added to a window of an array of zeros in which only other windows were written, as the gradients of slices are
    gathered, is x: the sign of a zero may change."""
    if not has(ir, _UNSLICE):
        return
    w = Rewriter(ir, "zero_windows")

    def rewrite(instr: Instr) -> bool:
        if instr.op != _ADD:
            return False
        y = w.values[instr.out]
        for window, x in (instr.ins, instr.ins[::-1]):
            read = w.made.get(window)
            if read is None or read.op != _GETITEM or w.values[window][1:] != y[1:] or w.values[x].dtype != y.dtype:
                continue
            if _still_zero(w, read):
                w.note(f"{extents(w.values[x])} is added to zeros of {extents(y)}")
                w.names[instr.out] = w.broadcast(w.names.get(x, x), y.shape)
                return True
        return False

    w.run(rewrite)


def _still_zero(w: Rewriter, read: Instr) -> bool:
    """Are there zeros where a window is read?"""
    k = read.ins[0]
    for _ in range(_WRITES):
        made = w.made.get(k)
        if made is None or made.op not in (_ASSIGN, _UNSLICE) or not _apart(made.params, read.params):
            return False
        if made.op == _UNSLICE:
            return True
        k = made.ins[0]
    return False


def _apart(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Have two windows of an array no element in common, by the ranges of an axis?"""
    for at in range(0, len(one), 4):
        ranges = []
        for start, step, count, _ in (one[at : at + 4], other[at : at + 4]):
            last = start + step * (count - 1)
            ranges.append((min(start, last), max(start, last)))
        if ranges[0][1] < ranges[1][0] or ranges[1][1] < ranges[0][0]:
            return True
    return False


def concat_windows(ir: IR) -> None:
    """An array of zeros into which windows side by side were written, all of it, is these windows side by side.
    Changes no bit."""
    if not has(ir, _UNSLICE):
        return
    w = Rewriter(ir, "concat_windows")
    inner = {
        instr.ins[0] for instr in ir.instrs if instr.op == _ASSIGN and w.uses[instr.ins[0]] == 1
    }  # written into by nothing but another write

    def rewrite(root: Instr) -> bool:
        if root.op != _ASSIGN or root.out in inner:
            return False
        writes = [root]
        while writes[-1].op == _ASSIGN and writes[-1].ins[0] in inner:
            below = w.made.get(writes[-1].ins[0])
            if below is None or below.op not in (_ASSIGN, _UNSLICE):
                return False
            writes.append(below)
        y = w.values[root.out]
        found = _tiles(writes, y.shape) if writes[-1].op == _UNSLICE else None
        if found is None:
            return False
        axis, order = found
        parts = []
        for write in order:
            shape = (*y.shape[:axis], write.params[4 * axis + 2], *y.shape[axis + 1 :])
            parts.append(w.reshape(write.ins[-1], shape))
        w.emit(_CONCAT, parts, y.shape, y.dtype, (axis,), out=root.out)
        w.note(f"{extents(y)} is {len(parts)} windows side by side")
        return True

    w.run(rewrite)


def _tiles(writes: list[Instr], shape: tuple[int, ...]) -> tuple[int, list[Instr]] | None:
    """The axis along which windows lie side by side, from end to end, and their order there."""
    partial = {
        d for write in writes for d, n in enumerate(shape) if write.params[4 * d : 4 * d + 3] != (0, 1, n)
    }  # axes of which a window is not all
    if len(partial) != 1:
        return None
    (axis,) = partial
    order = sorted(writes, key=lambda write: write.params[4 * axis])
    stop = 0
    for write in order:
        start, step, count, _ = write.params[4 * axis : 4 * axis + 4]
        if start != stop or count < 1 or (step != 1 and count != 1):
            return None
        stop = start + count
    return (axis, order) if stop == shape[axis] else None


_FIRST = (
    zero_windows, concat_windows, reassociate, strength, hoist_scalars, uniform_operands, concat_products, concat_sums,
)  # fmt: skip
_THEN = (contract_sums, batch_products, transpose_products)
PASSES: dict[str, Callable[[IR], None]] = {f.__name__: f for f in (*_FIRST, *_THEN)}
# between them, what was put side by side twice is one value, with which products may be batched
ORDER = (*(f.__name__ for f in _FIRST), "cse", *(f.__name__ for f in _THEN))
