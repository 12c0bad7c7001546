"""How each op works on a batch: one rule for each entry of the op table, by its kind.

A batched tensor has its batch on axis 0; behind it are the axes of the single value, of which the program speaks. A
rule gets the operands of one instruction, at least one of them batched, and computes the batch of results with the ops
of the table: nothing is done element after element, and every rule can be differentiated, recorded and mapped again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tapeflow import _core
from tapeflow._core import Tensor
from tapeflow.errors import TapeError
from tapeflow.plan.interpret import DETACHED, apply_op
from tapeflow.plan.ir import CODES, DTYPES, INT64, N_ELEMENTWISE, NAMES, Value


@dataclass
class Operand:
    """A tensor and the shape of its single value; batched: that many of them along axis 0."""

    x: Tensor
    shape: tuple[int, ...]
    batched: bool


@dataclass
class Call:
    """An instruction over a batch of n: out is its single result, where the line of the user's that it comes from."""

    op: int
    params: tuple[int, ...]
    operands: list[Operand]
    out: Value
    n: int
    where: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the batch of results."""
        return (self.n, *self.out.shape)

    def do(self, params: tuple[int, ...], *xs: Tensor) -> Tensor:
        """The instruction's op, with other params, on batched operands."""
        return apply_op(self.op, params, list(xs), self.out.dtype, self.shape)

    def full(self, i: int) -> Tensor:
        """Operand i with a batch axis, stretched where it has none."""
        operand = self.operands[i]
        return operand.x if operand.batched else _core.broadcast_to(operand.x, (self.n, *operand.shape))

    def aligned(self, i: int, ndim: int) -> Tensor:
        """Operand i so that it broadcasts, as its single value among values of ndim axes does."""
        operand = self.operands[i]
        if not operand.batched or len(operand.shape) == ndim:
            return operand.x
        return _reshape(operand.x, (self.n, *(1,) * (ndim - len(operand.shape)), *operand.shape))


def batch(call: Call) -> Tensor:
    """The batch of results of an instruction; an error that names the line where it depends on what is in the batch."""
    y = RULES[call.op](call)
    assert y.shape == call.shape, (NAMES[call.op], y.shape, call.shape)
    return y


# ---- tools


def _reshape(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x if x.shape == shape else _core.reshape(x, shape)


def _apply(name: str, params: tuple[int, ...], xs: list[Tensor], dtype: int, shape: tuple[int, ...]) -> Tensor:
    return apply_op(CODES[name], params, xs, dtype, shape)


def _permuted(x: Tensor, axes: list[int]) -> Tensor:
    return x if axes == list(range(x.ndim)) else _core.permute_dims(x, tuple(axes))


def _offsets(n: int, step: int, ndim: int) -> Tensor:
    """0, step, 2 step, ... along the axis of the batch, of tensors of ndim axes beside it."""
    return _core.reshape(_core.counted(n) * step, (n, *(1,) * ndim))


def _shifted(mask: int) -> int:
    """A mask of axes, all one further, as a signed word."""
    word = (mask << 1) & (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


# ---- one element after another, and moves


def _elementwise(call: Call) -> Tensor:
    ndim = len(call.out.shape)
    xs = [call.aligned(i, ndim) for i in range(len(call.operands))]
    return apply_op(call.op, (), xs, call.out.dtype, call.shape)


def _identity(call: Call) -> Tensor:
    x = call.full(0)
    if not call.params:
        return call.do((), x)
    return x.detach() if call.params == DETACHED else _core.placed(x, call.full(1))


def _as_it_is(call: Call) -> Tensor:
    """Elements, or the last axis: more axes in front change nothing."""
    return call.do(call.params, call.full(0))


def _reshaped(call: Call) -> Tensor:
    return _reshape(call.full(0), call.shape)


def _permute(call: Call) -> Tensor:
    return call.do((0, *[a + 1 for a in call.params]), call.full(0))


def _broadcast(call: Call) -> Tensor:
    return _core.broadcast_to(call.aligned(0, len(call.out.shape)), call.shape)


def _window(call: Call) -> Tensor:
    return call.do((0, 1, call.n, call.n, *call.params), call.full(0))


def _assign(call: Call) -> Tensor:
    return call.do((0, 1, call.n, call.n, *call.params), call.full(0), call.full(1))


def _concat(call: Call) -> Tensor:
    return call.do((call.params[0] + 1, *call.params[1:]), *[call.full(i) for i in range(len(call.operands))])


# ---- along axes


def _reduce(call: Call) -> Tensor:
    return call.do((_shifted(call.params[0]), *call.params[1:]), call.full(0))


def _scan(call: Call) -> Tensor:
    return call.do((call.params[0] + 1, *call.params[1:]), *[call.full(i) for i in range(len(call.operands))])


def _running_positions(call: Call) -> Tensor:
    """In C order of each single value."""
    return _scan(call) - _offsets(call.n, math.prod(call.out.shape), len(call.out.shape))


def _argsort(call: Call) -> Tensor:
    return call.do((call.params[0] + 1, *call.params[1:]), call.full(0))


def _norm(call: Call) -> Tensor:
    """A weight or bias of each one's own comes after a plain normalisation."""
    x = call.full(0)
    more = call.operands[1:]
    if not any(operand.batched for operand in more):
        return call.do(call.params, x, *[operand.x for operand in more])
    y = call.do(call.params, x)
    ndim = len(call.out.shape)
    y = y * call.aligned(1, ndim)
    return y + call.aligned(2, ndim) if len(more) > 1 else y


# ---- products


def _matmul(call: Call) -> Tensor:
    """One product where a matrix is shared by the batch, a batch of products otherwise."""
    a, b = call.operands
    ndim = len(call.out.shape)
    if len(a.shape) == len(b.shape) == 2:
        m, n = call.out.shape
        k = a.shape[1]
        if a.batched and not b.batched:  # rows of all, one after the other
            rows = _reshape(a.x, (call.n * m, k))
            return _reshape(_product(call, rows, b.x, (call.n * m, n)), call.shape)
        if b.batched and not a.batched and n == 1:  # columns, taken as rows
            rows = _reshape(b.x, (call.n, k))
            return _reshape(_product(call, rows, _core.permute_dims(a.x, (1, 0)), (call.n, m)), call.shape)
    return _product(call, call.aligned(0, ndim), call.aligned(1, ndim), call.shape)


def _product(call: Call, a: Tensor, b: Tensor, shape: tuple[int, ...]) -> Tensor:
    return apply_op(call.op, (), [a, b], call.out.dtype, shape)


def _vecdot(call: Call) -> Tensor:
    return call.do((_shifted(call.params[0]),), call.full(0), call.full(1))


# ---- positions


def _axis_first(x: Tensor, axis: int) -> Tensor:
    """A batch with an axis of its values next to that of the batch, and both as one axis."""
    ndim = x.ndim
    x = _permuted(x, [0, axis + 1, *[d for d in range(1, ndim) if d != axis + 1]])
    return _reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def _positions(call: Call, extent: int) -> Tensor:
    """Operand 1, positions of each in an axis of that extent, as positions in the axis that all share."""
    idx = call.full(1)
    return idx + _offsets(call.n, extent, idx.ndim - 1)


def _take(call: Call) -> Tensor:
    axis = call.params[0]
    x, idx = call.operands
    taken = len(idx.shape)
    if not idx.batched:
        return call.do((axis + 1,), x.x, idx.x)
    if x.batched:
        y = _core.apply_op(
            call.op, (0,), [_axis_first(x.x, axis), _positions(call, x.shape[axis])], call.out.dtype,
            (call.n, *idx.shape, *x.shape[:axis], *x.shape[axis + 1 :]),
        )  # fmt: skip
        first = 1 + taken  # the axes that were in front of the one taken from are behind the indices now
        order = [0, *range(first, first + axis), *range(1, first), *range(first + axis, y.ndim)]
    else:
        y = _core.apply_op(
            call.op, (axis,), [x.x, idx.x + 0], call.out.dtype,
            (*x.shape[:axis], call.n, *idx.shape, *x.shape[axis + 1 :]),
        )  # fmt: skip
        order = [axis, *range(axis), *range(axis + 1, y.ndim)]
    return _permuted(y, order)


def _scatter(call: Call) -> Tensor:
    axis = call.params[0]
    idx = call.operands[1]
    if not idx.batched:
        return call.do((axis + 1, *call.params[1:]), call.full(0), idx.x, call.full(2))
    extent = call.out.shape[axis]
    v = call.full(2)
    first = 1 + axis  # of the axes of the indices in the values
    order = [0, *range(first, first + len(idx.shape)), *range(1, first), *range(first + len(idx.shape), v.ndim)]
    flat = _axis_first(call.full(0), axis)
    y = apply_op(
        call.op, (0, *call.params[1:]), [flat, _positions(call, extent), _permuted(v, order)], call.out.dtype,
        flat.shape,
    )  # fmt: skip
    y = _reshape(y, (call.n, extent, *flat.shape[1:]))
    return _permuted(y, [0, *range(2, 2 + axis), 1, *range(2 + axis, y.ndim)])


def _places(call: Call) -> Tensor:
    """params: axes of the places, axes of the indices together, shape and steps of the places, extents and strides."""
    ndim, together = call.params[:2]
    shape, rest = call.params[2 : 2 + ndim], call.params[2 + ndim :]
    xs = [call.aligned(i, together) for i in range(len(call.operands))]
    return call.do((ndim + 1, together + 1, call.n, *shape, 0, *rest), *xs)


def _class_positions(call: Call) -> Tensor:
    """The rows of all are counted on; what counts is where a class is among the rows of one."""
    labels = call.full(0)
    rows = math.prod(call.out.shape)
    y = apply_op(call.op, call.params, [_reshape(labels, (call.n * rows,))], call.out.dtype, (call.n * rows,))
    return _reshape(y, call.shape) - _offsets(call.n, rows * call.params[0], len(call.out.shape))


def _searchsorted(call: Call) -> Tensor:
    table, x = call.operands
    if not table.batched:
        return call.do(call.params, table.x, x.x)
    return _halving(call, table.x, call.full(1), bool(call.params[0]))


def _halving(call: Call, tables: Tensor, x: Tensor, right: bool) -> Tensor:
    """A search in many tables at once: as many steps as the length of one has bits."""
    n, extent = tables.shape
    dtype = "float64" if tables.dtype.kind == "f" or x.dtype.kind == "f" else "int64"
    if tables.dtype != x.dtype:
        tables, x = tables.astype(dtype), x.astype(dtype)
    flat = _reshape(tables, (n * extent,))
    start = _offsets(n, extent, x.ndim - 1)
    low = _core.zeros_like(x, dtype="int64")
    high = low + extent
    for _ in range(extent.bit_length()):
        middle = (low + high) // 2
        # where nothing is left to search, anything may be read
        at = _core.minimum(middle, extent - 1) + start
        seen = _apply("take", (0,), [flat, at], DTYPES.index(flat.dtype.name), at.shape)
        # NaN come last: behind all numbers, and beside one another
        before = seen <= x if right else seen < x
        before = before | ((x != x) & ((seen == seen) | right))
        before = before & (low < high)
        low = _core.where(before, middle + 1, low)
        high = _core.where(before, high, middle)
    return low


def _nonzero(call: Call) -> Tensor:
    raise TapeError(
        f"[vmap] how many elements a mask selects, or are not 0, differs within the batch ({call.where}): the results "
        "would have different shapes. Use tp.where, which keeps the shape."
    )


# ---- losses


def _cross_entropy(call: Call) -> Tensor:
    """The mean over rows of each one's own: the rows of all, without the mean."""
    x, labels = call.full(0), call.full(1)
    classes = x.shape[-1]
    rows = math.prod(call.operands[1].shape)
    dtype = call.out.dtype
    flat = _reshape(_apply("log_softmax", (), [x], dtype, x.shape), (call.n * rows * classes,))
    ids = _reshape(labels, (call.n * rows,)).astype("int64")
    at = _apply("class_positions", (classes,), [ids], INT64, ids.shape)
    losses = _apply("take", (0,), [flat, at], dtype, at.shape)
    return -_core.mean(_reshape(losses, (call.n, rows)), axis=1)


def _cross_entropy_vjp(call: Call) -> Tensor:
    g, labels = call.aligned(0, len(call.out.shape)), call.full(2)
    x = call.full(1)
    dtype = call.out.dtype
    p = _apply("softmax", (), [x], dtype, x.shape)
    ones = _apply("one_hot", (x.shape[-1],), [labels.astype("int64")], dtype, x.shape)
    g = g / math.prod(call.operands[2].shape)
    return _apply("smul", (), [_core.broadcast_to(g, x.shape), p - ones], dtype, x.shape)


# ---- the table

_BY_NAME: dict[str, Callable[[Call], Tensor]] = {
    "identity": _identity,
    "astype": _as_it_is,
    "softmax": _as_it_is,
    "log_softmax": _as_it_is,
    "logsumexp": _as_it_is,
    "one_hot": _as_it_is,
    "reshape": _reshaped,
    "permute_dims": _permute,
    "broadcast_to": _broadcast,
    "getitem": _window,
    "unslice": _window,
    "assign": _assign,
    "concat": _concat,
    "sum": _reduce,
    "mean": _reduce,
    "max": _reduce,
    "min": _reduce,
    "argmax": _reduce,
    "argmin": _reduce,
    "count_nonzero": _reduce,
    "nansum": _reduce,
    "vector_norm": _reduce,
    "any": _reduce,
    "all": _reduce,
    "var": _reduce,
    "std": _reduce,
    "cumulative_sum": _scan,
    "cumulative_prod": _scan,
    "cumulative_max": _scan,
    "cumulative_argmax": _running_positions,
    "logcumsumexp": _scan,
    "recurrence": _scan,
    "argsort": _argsort,
    "layer_norm": _norm,
    "matmul": _matmul,
    "vecdot": _vecdot,
    "take": _take,
    "scatter_add": _scatter,
    "put": _scatter,
    "places": _places,
    "class_positions": _class_positions,
    "searchsorted": _searchsorted,
    "nonzero": _nonzero,
    "cross_entropy": _cross_entropy,
    "cross_entropy_vjp": _cross_entropy_vjp,
}
RULES = {
    **dict.fromkeys(range(N_ELEMENTWISE), _elementwise),
    **{CODES[name]: rule for name, rule in _BY_NAME.items()},
}
