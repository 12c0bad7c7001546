"""What each op takes and gives: a rule for each entry of the op table, for programs that nobody has recorded.

A text may have been edited and a file may come from anywhere. The kernels trust opcodes, parameters, shapes and dtypes,
so `check` goes through a program before it is laid out: every number names something, every instruction has as many
operands and parameters as its op takes, parameters are in range, and the result has the dtype and shape that the op
gives. What depends on elements (class numbers, how many are not 0) the kernels look at themselves, but for positions of
take, put and scatter_add: see positions.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

from tapeflow._core import Tensor
from tapeflow.errors import PlanError
from tapeflow.ops import DTYPES as SUFFIXES
from tapeflow.ops import TABLE
from tapeflow.plan.interpret import DETACHED, PLACED
from tapeflow.plan.ir import (
    ACCUMULATE,
    BOOL,
    CODES,
    CONST,
    DTYPES,
    FLOAT32,
    FLOAT64,
    GRAD,
    GRAD_GUARD,
    GUARD,
    INPUT,
    INT32,
    INT64,
    IR,
    ITEMSIZE,
    MADE,
    TENSOR,
    UINT8,
    Instr,
    Value,
    name_of,
)

Type = tuple[int, tuple[int, ...]]  # dtype code, shape

FLOATS = (FLOAT32, FLOAT64)
INTEGERS = (UINT8, INT32, INT64)
ALL = tuple(range(6))

MAX_NDIM = 64
MAX_BYTES = 1 << 62  # of a value, and beyond any position: products of int64 stay exact below it
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
DRAW_INTEGERS = 4  # as in core/random.pxi
_DRAWN = (FLOATS, FLOATS, (INT64,), (INT64,), INTEGERS, (INT64,))  # dtypes by kind of draw


class Mismatch(Exception):
    """What an instruction has, and what its op takes."""


class Site(NamedTuple):
    """An instruction with the types of what it reads and makes."""

    op: int
    params: tuple[int, ...]
    xs: list[Value]
    y: Value
    ir: IR

    @property
    def x(self) -> Value:
        return self.xs[0]


class Rule(NamedTuple):
    """How many operands and parameters an op takes (None: the rule says), and the type of its result."""

    least: int
    most: int
    params: int | None
    result: Callable[[Site], Type]


def typed(v: Value) -> str:
    """A value's type as the text of a plan has it."""
    return f"{DTYPES[v.dtype]}[{', '.join(map(str, v.shape))}]"


def listed(words: Iterable[Any]) -> str:
    """a, b or c"""
    *most, last = map(str, words)
    return f"{', '.join(most)} or {last}" if most else last


# ---- tools of the rules


def _fail(text: str) -> NoReturn:
    raise Mismatch(text)


def _dtype(v: Value, allowed: tuple[int, ...], what: str = "the operand") -> int:
    if v.dtype not in allowed:
        _fail(f"{what} is {DTYPES[v.dtype]}, expected {listed(DTYPES[d] for d in allowed)}")
    return v.dtype


def _like(v: Value, dtype: int, shape: tuple[int, ...], what: str) -> None:
    if v.dtype != dtype or v.shape != shape:
        _fail(f"{what} is {typed(v)}, expected {typed(Value(MADE, dtype, shape))}")


def _axis(s: Site, axis: int) -> int:
    if not 0 <= axis < len(s.x.shape):
        _fail(f"the axis is {axis}, and the operand has {len(s.x.shape)} axes")
    return axis


def _flag(n: int, what: str) -> bool:
    if n not in (0, 1):
        _fail(f"{what} is {n}, expected 0 or 1")
    return n == 1


def _mask(s: Site, mask: int) -> list[int]:
    """The axes of a mask, a word of 64 bits."""
    word = mask % (1 << 64)
    if word >> len(s.x.shape):
        _fail(f"the mask of axes is {mask}, and the operand has {len(s.x.shape)} axes")
    return [d for d in range(len(s.x.shape)) if word >> d & 1]


def broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that shapes have in common."""
    result = [1] * max([len(shape) for shape in shapes])
    for shape in shapes:
        for d in range(1, len(shape) + 1):
            n = shape[-d]
            if n != 1 and n != result[-d]:
                if result[-d] != 1:
                    _fail(f"shapes {' and '.join(str(list(s)) for s in shapes)} do not broadcast")
                result[-d] = n
    return tuple(result)


def _window(params: tuple[int, ...], shape: tuple[int, ...]) -> list[int]:
    """The extents of a basic index into shape, without those of 1: start, step, count, extent of each axis."""
    if len(params) != 4 * len(shape):
        _fail(f"it has {len(params)} parameters, expected 4 for each axis of {list(shape)}")
    counts = []
    for d, n in enumerate(shape):
        start, step, count, extent = params[4 * d : 4 * d + 4]
        last = start + step * (count - 1)
        inside = 0 <= start < extent and 0 <= last < extent if count > 0 else count == 0 and -1 <= start <= extent
        # (of less than two elements the step says nothing, and is the user's)
        if extent != n or not inside or abs(step) > extent + MAX_NDIM:
            _fail(
                f"the window of axis {d} has start, step, count, extent {params[4 * d : 4 * d + 4]}, "
                f"which is not within an axis of size {n}"
            )
        counts.append(count)
    return [n for n in counts if n != 1]


def _in_window(v: Value, window: list[int], what: str) -> None:
    if [n for n in v.shape if n != 1] != window:
        _fail(f"{what} has shape {list(v.shape)}, and the window {window}, but for axes of size 1")


# ---- elementwise ops

_ORDER = list(SUFFIXES)  # by dtype code
_LOOPS = {entry.opcode: tuple(_ORDER.index(dtype) for dtype in entry.dtypes) for entry in TABLE.values()}
_KINDS = {entry.opcode: entry.kind for entry in TABLE.values()}


def _elementwise(s: Site) -> Type:
    kind, loops = _KINDS[s.op], _LOOPS[s.op]
    shape = broadcast([x.shape for x in s.xs])
    dtype = max([x.dtype for x in (s.xs[1:] if kind == "select" else s.xs)])  # a condition is taken as bool
    if kind == "float" and dtype not in FLOATS:
        dtype = _dtype(s.y, FLOATS, "the result")  # that of the default dtype then
    if dtype not in loops:
        _fail(f"it is computed in {DTYPES[dtype]}, and defined for {listed(DTYPES[d] for d in loops)}")
    return (BOOL if kind == "compare" else dtype), shape


# ---- moves


def _identity(s: Site) -> Type:
    if s.params not in ((), DETACHED, PLACED) or len(s.xs) != 1 + (s.params == PLACED):
        _fail(f"it has {len(s.xs)} operands and the parameters {s.params}, expected (x), [1](x) or [2](x, place)")
    if s.params == PLACED:
        _like(s.xs[1], s.x.dtype, s.x.shape, "the place")
    return s.x.dtype, s.x.shape


def _astype(s: Site) -> Type:
    return s.y.dtype, s.x.shape


def _reshape(s: Site) -> Type:
    if s.x.size != s.y.size:
        _fail(f"shape {list(s.x.shape)} holds {s.x.size} elements, and {list(s.y.shape)} {s.y.size}")
    return s.x.dtype, s.y.shape


def _permute(s: Site) -> Type:
    if sorted(s.params) != list(range(len(s.x.shape))):
        _fail(f"the axes are {s.params}, expected an order of the {len(s.x.shape)} axes of the operand")
    return s.x.dtype, tuple([s.x.shape[a] for a in s.params])


def _broadcast_to(s: Site) -> Type:
    if len(s.x.shape) > len(s.y.shape) or broadcast([s.y.shape, s.x.shape]) != s.y.shape:
        _fail(f"shape {list(s.x.shape)} does not broadcast to {list(s.y.shape)}")
    return s.x.dtype, s.y.shape


def _getitem(s: Site) -> Type:
    _in_window(s.y, _window(s.params, s.x.shape), "the result")
    return s.x.dtype, s.y.shape


def _unslice(s: Site) -> Type:
    _in_window(s.x, _window(s.params, s.y.shape), "the operand")
    return s.x.dtype, s.y.shape


def _assign(s: Site) -> Type:
    _in_window(s.xs[1], _window(s.params, s.x.shape), "what is written")
    _dtype(s.xs[1], (s.x.dtype,), "what is written")
    return s.x.dtype, s.x.shape


def _concat(s: Site) -> Type:
    axis = _axis(s, s.params[0])
    shape = s.x.shape
    for n, x in enumerate(s.xs):
        along = x.shape[axis] if axis < len(x.shape) else 0
        _like(x, s.x.dtype, (*shape[:axis], along, *shape[axis + 1 :]), f"operand {n}")
    return s.x.dtype, (*shape[:axis], sum([x.shape[axis] for x in s.xs]), *shape[axis + 1 :])


# ---- along axes


def _reduced(s: Site, dtypes: tuple[int, ...], empty: bool = True) -> tuple[int, ...]:
    """The shape of a reduction, params: mask of axes, elements that go together (0, too, where there are none)."""
    axes = _mask(s, s.params[0])
    _dtype(s.x, dtypes)
    count = math.prod([s.x.shape[d] for d in axes])
    if s.x.size and s.params[1] != count:
        _fail(f"{s.params[1]} elements go together by the parameters, and {count} by shape and axes")
    if not empty and count == 0:
        _fail("the axes hold no elements, expected one or more")
    kept = tuple([1 if d in axes else n for d, n in enumerate(s.x.shape)])
    return kept if s.y.shape == kept else tuple([n for d, n in enumerate(s.x.shape) if d not in axes])


def _sum(s: Site) -> Type:
    return (s.x.dtype if s.x.dtype in FLOATS else INT64), _reduced(s, ALL)


def _float_reduction(s: Site) -> Type:
    return s.x.dtype, _reduced(s, FLOATS)


def _extremum(s: Site) -> Type:
    return s.x.dtype, _reduced(s, ALL, empty=False)


def _position(s: Site) -> Type:
    return INT64, _reduced(s, ALL, empty=False)


def _count(s: Site) -> Type:
    return INT64, _reduced(s, ALL)


def _truth(s: Site) -> Type:
    return BOOL, _reduced(s, ALL)


def _rows(s: Site) -> Type:
    _dtype(s.x, FLOATS)
    _axis(s, len(s.x.shape) - 1)
    return s.x.dtype, s.x.shape


def _logsumexp(s: Site) -> Type:
    dtype, shape = _rows(s)
    return dtype, shape[:-1]


def _scan(dtypes: tuple[int, ...], reverse: bool = False) -> Callable[[Site], Type]:
    def rule(s: Site) -> Type:
        _axis(s, s.params[0])
        if _flag(s.params[1], "whether it goes from the end") and not reverse:
            _fail("it does not go from the end")
        _dtype(s.x, dtypes)
        for factors in s.xs[1:]:
            _like(factors, s.x.dtype, s.x.shape, "operand 1")
        return s.x.dtype, s.x.shape

    return rule


def _running_positions(s: Site) -> Type:
    _axis(s, s.params[0])
    return INT64, s.x.shape


def _argsort(s: Site) -> Type:
    axis = _axis(s, s.params[0])
    _flag(s.params[1], "whether it descends")
    first = s.params[2]
    if not 0 <= first <= s.x.shape[axis]:
        _fail(f"{first} elements come first, of an axis of size {s.x.shape[axis]}")
    return INT64, (*s.x.shape[:axis], first, *s.x.shape[axis + 1 :])


def _norm(s: Site) -> Type:
    """params: how many of the last axes, the bits of eps, whether the mean is taken off."""
    axes = s.params[0]
    _dtype(s.x, FLOATS)
    if not 1 <= axes <= len(s.x.shape):
        _fail(f"{axes} of the last axes go together, and the operand has {len(s.x.shape)}")
    _flag(s.params[2], "whether the mean is taken off")
    for n, more in enumerate(s.xs[1:], 1):
        _like(more, s.x.dtype, s.x.shape[-axes:], f"operand {n}")
    return s.x.dtype, s.x.shape


# ---- products


def _matmul(s: Site) -> Type:
    a, b = s.xs
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        _fail(f"shapes {list(a.shape)} and {list(b.shape)} are not (..., m, k) and (..., k, n)")
    return max(a.dtype, b.dtype), (*broadcast([a.shape[:-2], b.shape[:-2]]), a.shape[-2], b.shape[-1])


def _vecdot(s: Site) -> Type:
    axes = _mask(s, s.params[0])
    _dtype(s.x, FLOATS)
    _like(s.xs[1], s.x.dtype, s.x.shape, "operand 1")
    return s.x.dtype, tuple([n for d, n in enumerate(s.x.shape) if d not in axes])


# ---- positions


def _taken(s: Site) -> tuple[int, ...]:
    axis = _axis(s, s.params[0])
    _dtype(s.xs[1], (INT64,), "positions")
    if s.xs[1].size and not s.x.shape[axis]:
        _fail(f"there are {s.xs[1].size} positions in an axis of size 0")
    return (*s.x.shape[:axis], *s.xs[1].shape, *s.x.shape[axis + 1 :])


def _take(s: Site) -> Type:
    return s.x.dtype, _taken(s)


def _scatter_add(s: Site) -> Type:
    _like(s.xs[2], _dtype(s.x, ALL[1:]), _taken(s), "what is added")
    return s.x.dtype, s.x.shape


def _put(s: Site) -> Type:
    _flag(s.params[1], "whether no position repeats")
    _like(s.xs[2], s.x.dtype, _taken(s), "what is written")
    return s.x.dtype, s.x.shape


def highest_place(params: tuple[int, ...]) -> int:
    """The last position that places (params as in _places) can make."""
    ndim = params[0]
    shape, steps, each = params[2 : 2 + ndim], params[2 + ndim : 2 + 2 * ndim], params[2 + 2 * ndim :]
    total = sum([(n - 1) * step for n, step in zip(shape, steps, strict=True)])
    return total + sum([(extent - 1) * times for extent, times in zip(each[0::3], each[1::3], strict=True)])


def _places(s: Site) -> Type:
    """params: axes of the places, axes of the indices together, shape and steps of the places; then extent, stride and
    axis of each index."""
    ndim, together = (*s.params, -1, -1)[:2]
    if not 0 <= together <= ndim <= MAX_NDIM or len(s.params) != 2 + 2 * ndim + 3 * len(s.xs):
        _fail(
            f"it has {len(s.params)} parameters that begin with {ndim}, {together} for {len(s.xs)} operands; expected "
            "m and n <= m, m sizes, m steps, and 3 for each operand"
        )
    shape = s.params[2 : 2 + ndim]
    for n, x in enumerate(s.xs):
        _dtype(x, INTEGERS, f"operand {n}")
        if len(x.shape) > together or broadcast([shape[:together], x.shape]) != shape[:together]:
            _fail(f"operand {n} of shape {list(x.shape)} does not broadcast to {list(shape[:together])}")
    if min(s.params) < 0 or max([0, *s.params[4 + 2 * ndim :: 3]]) >= MAX_NDIM:
        _fail(f"the parameters {s.params} are not all sizes, steps, and axes below {MAX_NDIM}")
    if s.y.size and highest_place(s.params) >= MAX_BYTES:
        _fail(f"the parameters {s.params} make positions that do not fit 62 bits")
    return INT64, shape


def _nonzero(s: Site) -> Type:
    flat = _flag(s.params[0], "whether positions are flat")
    count = s.y.shape[-1] if s.y.shape else -1
    if not 0 <= count <= s.x.size:
        _fail(f"the result has shape {list(s.y.shape)}, and the operand {s.x.size} elements")
    return INT64, ((count,) if flat else (len(s.x.shape), count))


def _searchsorted(s: Site) -> Type:
    _flag(s.params[0], "the side")
    if len(s.x.shape) != 1:
        _fail(f"the table has shape {list(s.x.shape)}, expected one axis")
    return INT64, s.xs[1].shape


def _classes(s: Site) -> int:
    _dtype(s.x, (INT64,))
    classes = s.params[0]
    if not 0 <= classes * max(s.x.size, 1) < MAX_BYTES:
        _fail(f"there are {classes} classes, expected a size")
    return classes


def _one_hot(s: Site) -> Type:
    return s.y.dtype, (*s.x.shape, _classes(s))


def _class_positions(s: Site) -> Type:
    _classes(s)
    return INT64, s.x.shape


# ---- losses, state and draws


def _labelled(x: Value, labels: Value) -> None:
    _dtype(x, FLOATS, "the logits")
    if not x.shape:
        _fail("the logits have no axis of classes")
    _like(labels, INT64, x.shape[:-1], "the labels")


def _cross_entropy(s: Site) -> Type:
    _labelled(*s.xs)
    return s.x.dtype, ()


def _cross_entropy_vjp(s: Site) -> Type:
    g, x, labels = s.xs
    _labelled(x, labels)
    _like(g, x.dtype, (), "the cotangent")
    return x.dtype, x.shape


def _accumulate(s: Site) -> Type:
    if s.x.kind != GRAD:
        _fail("operand 0 is not what a .grad holds")
    _like(s.xs[1], s.x.dtype, s.x.shape, "operand 1")
    return s.x.dtype, s.x.shape


def _random(s: Site) -> Type:
    """params: kind, stretch, place in it; of integers how many (0: 2**64) and the lowest."""
    kind, stretch, place = (*s.params, -1, -1, -1)[:3]
    if not 0 <= kind < len(_DRAWN) or len(s.params) != (5 if kind == DRAW_INTEGERS else 3):
        _fail(f"the parameters are {s.params}, expected the kind of draw, a stretch, a place in it, of integers 2 more")
    if not 0 <= stretch < len(s.ir.generators):
        _fail(f"it draws from stretch {stretch} of {len(s.ir.generators)}")
    if not 0 <= place < s.ir.generators[stretch][4]:
        _fail(f"it is draw {place} of a stretch of {s.ir.generators[stretch][4]}")
    if kind == len(_DRAWN) - 1 and not s.y.shape:
        _fail("the result has no axis to permute")
    return _dtype(s.y, _DRAWN[kind], "the result"), s.y.shape


# ---- the table

_RULES: dict[str, Rule] = {
    "identity": Rule(1, 2, None, _identity),
    "astype": Rule(1, 1, 0, _astype),
    "reshape": Rule(1, 1, 0, _reshape),
    "permute_dims": Rule(1, 1, None, _permute),
    "broadcast_to": Rule(1, 1, 0, _broadcast_to),
    "getitem": Rule(1, 1, None, _getitem),
    "unslice": Rule(1, 1, None, _unslice),
    "assign": Rule(2, 2, None, _assign),
    "concat": Rule(1, 1 << 31, 1, _concat),
    "sum": Rule(1, 1, 2, _sum),
    "mean": Rule(1, 1, 2, _float_reduction),
    "max": Rule(1, 1, 2, _extremum),
    "min": Rule(1, 1, 2, _extremum),
    "argmax": Rule(1, 1, 2, _position),
    "argmin": Rule(1, 1, 2, _position),
    "count_nonzero": Rule(1, 1, 2, _count),
    "nansum": Rule(1, 1, 2, _float_reduction),
    "vector_norm": Rule(1, 1, 2, _float_reduction),
    "any": Rule(1, 1, 2, _truth),
    "all": Rule(1, 1, 2, _truth),
    "var": Rule(1, 1, 3, _float_reduction),
    "std": Rule(1, 1, 3, _float_reduction),
    "logsumexp": Rule(1, 1, 0, _logsumexp),
    "softmax": Rule(1, 1, 0, _rows),
    "log_softmax": Rule(1, 1, 0, _rows),
    "cumulative_sum": Rule(1, 1, 2, _scan((INT64, *FLOATS), reverse=True)),
    "cumulative_prod": Rule(1, 1, 2, _scan((INT64, *FLOATS))),
    "cumulative_max": Rule(1, 1, 2, _scan(ALL)),
    "logcumsumexp": Rule(1, 1, 2, _scan(FLOATS)),
    "recurrence": Rule(2, 2, 2, _scan(FLOATS, reverse=True)),
    "cumulative_argmax": Rule(1, 1, 1, _running_positions),
    "argsort": Rule(1, 1, 3, _argsort),
    "layer_norm": Rule(1, 3, 3, _norm),
    "matmul": Rule(2, 2, 0, _matmul),
    "vecdot": Rule(2, 2, 1, _vecdot),
    "take": Rule(2, 2, 1, _take),
    "scatter_add": Rule(3, 3, 1, _scatter_add),
    "put": Rule(3, 3, 2, _put),
    "places": Rule(1, MAX_NDIM, None, _places),
    "nonzero": Rule(1, 1, 1, _nonzero),
    "searchsorted": Rule(2, 2, 1, _searchsorted),
    "one_hot": Rule(1, 1, 1, _one_hot),
    "class_positions": Rule(1, 1, 1, _class_positions),
    "cross_entropy": Rule(2, 2, 0, _cross_entropy),
    "cross_entropy_vjp": Rule(3, 3, 0, _cross_entropy_vjp),
    "accumulate": Rule(2, 2, 0, _accumulate),
    "random": Rule(0, 0, None, _random),
}
RULES: dict[int, Rule] = {
    **{entry.opcode: Rule(entry.nin, entry.nin, 0, _elementwise) for entry in TABLE.values()},
    **{CODES[name]: rule for name, rule in _RULES.items()},
}


# ---- programs


def check(ir: IR, op: str) -> None:
    """Raise PlanError, as op's, unless the program can be laid out and run."""
    try:
        _values(ir)
        known = _outside(ir)
        _draws(ir)
        guarded: set[int] = set()  # ids of tensors whose .grad is there
        for instr in ir.instrs:
            try:
                _instruction(ir, instr, known, guarded)
            except Mismatch as error:
                raise Mismatch(f"{described(ir, instr)}: {error}") from None
        _results(ir, known, guarded)
    except Mismatch as error:
        raise PlanError(f"[{op}] {error}. Write what the op takes, or freeze the function again.") from None


def described(ir: IR, instr: Instr) -> str:
    """An instruction as the text of a plan has it, as far as its numbers are those of values."""
    params = f"[{', '.join(map(str, instr.params))}]" if instr.params else ""
    call = f"{name_of(instr.op)}{params}({', '.join(f'%{k}' for k in instr.ins)})"
    if instr.op < 0 or not _is_number(ir, instr.out):
        return call
    return f"%{instr.out} = {call}  {typed(ir.values[instr.out])}"


def _is_number(ir: IR, k: Any) -> bool:
    return type(k) is int and 0 <= k < len(ir.values)


def _values(ir: IR) -> None:
    before = None
    for k, v in enumerate(ir.values):
        if v is before:  # numbers that a text leaves out
            continue
        before = v
        if type(v.kind) is not int or not MADE <= v.kind <= CONST or v.dtype not in ALL:
            _fail(f"%{k} has kind {v.kind} and dtype {v.dtype}, expected one of each")
        size = 1
        for n in v.shape:
            if type(n) is not int or n < 0:
                _fail(f"%{k} has shape {list(v.shape)}, expected sizes")
            size *= n or 1
        if len(v.shape) > MAX_NDIM or size * ITEMSIZE[v.dtype] >= MAX_BYTES:
            _fail(f"%{k} has shape {list(v.shape)}, expected at most {MAX_NDIM} axes and 62 bits of bytes")


def _outside(ir: IR) -> set[int]:
    """The numbers of what no instruction makes."""
    values = ir.values
    for k in ir.inputs:
        if not _is_number(ir, k) or values[k].kind != INPUT:
            _fail(f"%{k} is among the inputs, and is none")
    for k, t in ir.objects.items():
        if not _is_number(ir, k) or values[k].kind not in (TENSOR, GRAD, CONST):
            _fail(f"%{k} comes from nowhere")
        _holds(ir, t, k, f"%{k}")
    return {*ir.inputs, *ir.objects}


def _holds(ir: IR, t: Tensor, k: int, what: str) -> None:
    v = ir.values[k]
    if t.shape != v.shape or t.dtype.name != DTYPES[v.dtype]:
        _fail(f"{what} is {typed(v)}, expected {t.dtype.name}[{', '.join(map(str, t.shape))}] as its tensor is")


def _draws(ir: IR) -> None:
    for n, (_, _, seed, first, count) in enumerate(ir.generators):
        for what, word in (("seed", seed), ("first draw", first), ("number of draws", count)):
            if type(word) is not int or not 0 <= word < 1 << 64:
                _fail(f"draws {n}: the {what} is {word}, expected a word of 64 bits")


def _instruction(ir: IR, instr: Instr, known: set[int], guarded: set[int]) -> None:
    values = ir.values
    if type(instr.line) is not int or not 0 <= instr.line < len(ir.lines):
        _fail(f"it is of line {instr.line} of {len(ir.lines)}")
    for i, k in enumerate(instr.ins):
        if type(k) is not int or k not in known:
            _fail(f"it reads %{k} before that is made")
        if values[k].kind == GRAD and (instr.op != ACCUMULATE or i):
            _is_there(ir, k, guarded)
    if instr.op < 0:
        _guard(ir, instr, guarded)
        return
    if not _is_number(ir, instr.out) or values[instr.out].kind != MADE or instr.out in known:
        _fail(f"it makes %{instr.out}, which is there already, or is no value that is made")
    rule = RULES.get(instr.op)
    if rule is None:
        _fail("this op cannot be replayed")
    if not rule.least <= len(instr.ins) <= rule.most:
        least, most = rule.least, rule.most
        _fail(f"it has {len(instr.ins)} operands, expected {least if least == most else f'{least} to {most}'}")
    if rule.params is not None and len(instr.params) != rule.params:
        _fail(f"it has {len(instr.params)} parameters, expected {rule.params}")
    for n in instr.params:
        if type(n) is not int or not INT64_MIN <= n <= INT64_MAX:
            _fail(f"the parameter {n} is no int of 64 bits")
    y = values[instr.out]
    dtype, shape = rule.result(Site(instr.op, instr.params, [values[k] for k in instr.ins], y, ir))
    if y.dtype != dtype or y.shape != shape:
        _fail(f"the result is {typed(y)}, expected {typed(Value(MADE, dtype, shape))}")
    known.add(instr.out)


def _guard(ir: IR, instr: Instr, guarded: set[int]) -> None:
    if instr.out != -1 or instr.params:
        _fail("a guard makes nothing and has no parameters")
    if instr.op == GRAD_GUARD:
        if instr.ins or not isinstance(instr.extra[0], Tensor):
            _fail("it looks at no tensor")
        if instr.extra[1]:
            guarded.add(id(instr.extra[0]))
        return
    if len(instr.ins) != 1:
        _fail(f"it looks at {len(instr.ins)} values, expected 1")
    v = ir.values[instr.ins[0]]
    if instr.op == GUARD and (v.size != 1 or type(instr.extra) is not bytes or len(instr.extra) != ITEMSIZE[v.dtype]):
        seen = len(instr.extra) if type(instr.extra) is bytes else 0
        _fail(f"it compares {typed(v)} with {seen} bytes, expected one element and its {ITEMSIZE[v.dtype]}")


def _is_there(ir: IR, k: int, guarded: set[int]) -> None:
    if id(ir.objects[k]) not in guarded:
        _fail(f"%{k}, what a .grad holds, is read without a grad_guard before that finds it there")


def _results(ir: IR, known: set[int], guarded: set[int]) -> None:
    for k in ir.results():
        if type(k) is not int or k not in known:
            _fail(f"the result %{k} is never made")
        if ir.values[k].kind == GRAD:
            _is_there(ir, k, guarded)
    for t, k in ir.states:
        _holds(ir, t, k, f"what is assigned, %{k},")
    for t, grad in ir.grads:
        if grad is not None:
            _holds(ir, t, grad, f"what becomes a .grad, %{grad},")
    for pairs in (ir.states, ir.grads):
        if len({id(t) for t, _ in pairs}) != len(pairs):
            _fail("a tensor or a .grad is written twice")
