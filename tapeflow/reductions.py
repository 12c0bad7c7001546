"""Means, norms, order statistics and differences, composed of ops of the core.

Derivatives of every order follow from the ops used here; nothing in this file knows of the tape. What is not here: the
reductions with kernels of their own (core/reduce_ops.pxi, statistics.pxi, scan_ops.pxi). Order statistics look at the
values, on the host, to find where the chosen elements stand; a recorded op takes them from x.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, overload

import numpy as np

from tapeflow import _core, _creation, errors
from tapeflow._arguments import as_axis, as_tensor, fresh, recorded
from tapeflow._core import Tensor

if TYPE_CHECKING:
    from tapeflow._core import _Array, _Axes

_Gone = tuple[int, ...] | None
_REAL = (int, float, np.integer, np.floating)


# ---- arguments


def _float(x: Any, op: str) -> Tensor:
    """x as a tensor of a float dtype: the default one for integers and bool."""
    x = as_tensor(x, op)
    return x if x.dtype.kind == "f" else x.astype(_core.get_default_dtype())


def _axes(axis: Any, ndim: int, op: str) -> _Gone:
    """None, or the axes as a tuple of 0 .. ndim-1, in the order given."""
    if axis is None:
        return None
    if not isinstance(axis, (tuple, list)):
        return (as_axis(axis, ndim, op),)
    axes = tuple(as_axis(a, ndim, op) for a in axis)
    if len(set(axes)) < len(axes):
        raise errors.AxisError(f"[{op}] an axis is named twice in {tuple(axis)}. Name each once.")
    return axes


def _extent(shape: tuple[int, ...], axes: _Gone) -> int:
    """How many elements are reduced to one."""
    return math.prod(shape if axes is None else [shape[a] for a in axes])


def _part(x: Tensor, axis: int, start: int | None, stop: int | None) -> Tensor:
    """x[start:stop] along an axis."""
    return x[(slice(None),) * axis + (slice(start, stop),)]


# ---- means


def nanmean(x: _Array, axis: _Axes = None, keepdims: bool = False) -> Tensor:
    """Mean over the axes of the elements that are not NaN, whose gradient is 0; NaN where there are no others.

    >>> tp.nanmean(tp.tensor([1.0, float("nan"), 3.0])).item()
    2.0
    """
    x = _float(x, "nanmean")
    axes = _axes(axis, x.ndim, "nanmean")
    there = _core.count_nonzero(_core.equal(x, x), axes, keepdims)
    return _core.divide(_core.nansum(x, axes, keepdims), there.astype(x.dtype))


@overload
def average(
    x: _Array,
    axis: _Axes = None,
    weights: _Array | None = None,
    keepdims: bool = False,
    *,
    returned: Literal[False] = False,
) -> Tensor: ...
@overload
def average(
    x: _Array, axis: _Axes = None, weights: _Array | None = None, keepdims: bool = False, *, returned: Literal[True]
) -> tuple[Tensor, Tensor]: ...
def average(
    x: _Array, axis: _Axes = None, weights: _Array | None = None, keepdims: bool = False, *, returned: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Weighted mean over the axes: sum(weights * x) / sum(weights); the plain one without weights.

    Parameters
    ----------
    x : Tensor
    axis : int, tuple of ints or None
    weights : Tensor, optional
        Of x's shape, or of the sizes of the axes alone. Differentiated as x is.
    keepdims : bool
    returned : bool
        Return the sum of the weights, too, in the shape of the result.

    >>> tp.average(tp.tensor([1.0, 3.0]), weights=tp.tensor([3.0, 1.0])).item()
    1.5
    """
    x = _float(x, "average")
    axes = _axes(axis, x.ndim, "average")
    if weights is None:
        y = _core.mean(x, axes, keepdims)
        return (y, _core.full_like(y, _extent(x.shape, axes))) if returned else y
    x, w = _core.put_together([x, as_tensor(weights, "average")], "average")
    w = _fit(w, x, axes)
    total = _core.sum(w, axes, keepdims)
    y = _core.divide(_core.sum(_core.multiply(x, w), axes, keepdims), total)
    return (y, _core.broadcast_to(total.astype(y.dtype), y.shape)) if returned else y


def _fit(w: Tensor, x: Tensor, axes: _Gone) -> Tensor:
    """Weights in x's shape, or in one that broadcasts to it along the axes that are kept."""
    if w.shape == x.shape:
        return w
    if axes is None or w.shape != tuple(x.shape[a] for a in axes):
        named = "no axis" if axes is None else f"axes {axes}"
        raise errors.ShapeError(
            f"[average] weights of shape {w.shape} do not fit x of shape {x.shape} and {named}. "
            "Give them in the shape of x, or in the sizes of the axes with these named."
        )
    w = _core.permute_dims(w, sorted(range(w.ndim), key=axes.__getitem__))
    return _core.reshape(w, tuple(n if a in axes else 1 for a, n in enumerate(x.shape)))


# ---- norms


def vector_norm(x: _Array, axis: _Axes = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """The norm of x over the axes as a vector: (sum of abs(x)**ord) ** (1/ord).

    Parameters
    ----------
    x : Tensor
        Integers and bool are taken in the default dtype.
    axis : int, tuple of ints or None
    keepdims : bool
    ord : number
        inf and -inf give the largest and the smallest absolute value, 0 the number of elements that are not 0.

    The gradient of a norm that is 0 is 0. The norm of nothing is 0 (inf if ord is negative, an error if it is -inf).

    >>> tp.vector_norm(tp.tensor([3.0, 4.0])).item()
    5.0
    """
    return _vector_norm(_float(x, "vector_norm"), axis, keepdims, ord, "vector_norm")


def _vector_norm(x: Tensor, axis: Any, keepdims: bool, ord: Any, op: str) -> Tensor:
    axes = _axes(axis, x.ndim, op)
    ord = _core.as_number(ord)
    if isinstance(ord, bool) or not isinstance(ord, _REAL) or ord != ord:
        raise errors.NumberRangeError(f"[{op}] the ord of a vector must be a number, got {ord!r}. Use 1, 2 or inf.")
    if ord == 2:
        return _core.euclidean_norm(x, axes, keepdims, op)
    if ord == 0:
        return _core.count_nonzero(x, axes, keepdims).astype(x.dtype)
    size = _core.abs(x)
    if ord == 1:
        return _core.sum(size, axes, keepdims)
    if math.isinf(ord):
        if _extent(x.shape, axes) == 0:
            if ord > 0:  # no size is below 0
                return _core.sum(size, axes, keepdims)
            raise errors.ShapeError(f"[{op}] the reduced axes of shape {x.shape} hold no elements. Use another ord.")
        return (_core.max if ord > 0 else _core.min)(size, axes, keepdims)
    cube = _core.multiply(_core.square(size), size) if ord == 3 else None  # some ten times as fast as pow
    total = _core.sum(_core.pow(size, float(ord)) if cube is None else cube, axes, keepdims)
    zero = _core.equal(total, 0)
    root = _core.pow(_core.where(zero, 1, total), 1 / float(ord))
    return _core.where(zero, 0.0 if ord > 0 else math.inf, root)


def matrix_norm(x: _Array, keepdims: bool = False, ord: float | Literal["fro"] = "fro") -> Tensor:
    """The norm of each matrix in the last two axes.

    Parameters
    ----------
    x : Tensor
        Of shape (..., rows, columns).
    keepdims : bool
    ord : "fro", 1, -1, inf or -inf
        Root of the sum of squares; largest or smallest absolute sum of a column (1, -1) or of a row (inf, -inf).

    >>> tp.matrix_norm(tp.tensor([[1.0, -2.0], [3.0, 4.0]]), ord=1).item()
    6.0
    """
    return _matrix_norm(_float(x, "matrix_norm"), (-2, -1), keepdims, ord, "matrix_norm")


def _matrix_norm(x: Tensor, axis: Any, keepdims: bool, ord: Any, op: str) -> Tensor:
    if x.ndim < 2:
        raise errors.ShapeError(f"[{op}] expected at least two axes, got shape {x.shape}. Use vector_norm.")
    axes = _axes(axis, x.ndim, op)
    assert axes is not None
    ord = _core.as_number(ord)
    if ord == "fro" or ord is None:
        return _vector_norm(x, axes, keepdims, 2, op)
    known = isinstance(ord, _REAL) and not isinstance(ord, bool)
    if ord == "nuc" or known and abs(ord) == 2:
        raise errors.NumberRangeError(
            f"[{op}] ord={ord!r} needs singular values, which come later. Use 'fro', 1, -1, inf or -inf."
        )
    if not known or abs(ord) not in (1, math.inf):
        raise errors.NumberRangeError(f"[{op}] ord={ord!r} is no norm of a matrix. Use 'fro', 1, -1, inf or -inf.")
    row, column = axes
    inner, outer = (row, column) if abs(ord) == 1 else (column, row)
    if x.shape[outer] == 0 and ord > 0:
        return _core.sum(x, axes, keepdims)
    if x.shape[outer] == 0:
        raise errors.ShapeError(f"[{op}] a matrix of shape {x.shape} has no rows or columns to choose from.")
    sums = _core.sum(_core.abs(x), (inner,), True)
    y = (_core.max if ord > 0 else _core.min)(sums, (outer,), True)
    return y if keepdims else _core.squeeze(y, axes)


def norm(x: _Array, ord: float | Literal["fro"] | None = None, axis: _Axes = None, keepdims: bool = False) -> Tensor:
    """The norm of vectors or matrices (NumPy's linalg.norm).

    Parameters
    ----------
    x : Tensor
    ord : number or "fro", optional
        See vector_norm and matrix_norm. None: the root of the sum of squares.
    axis : int, pair of ints or None
        An int names vectors, a pair matrices (rows, columns). None: all of x, which must be 1-D or 2-D if ord is given.
    keepdims : bool

    >>> tp.norm(tp.tensor([[3.0, 4.0], [6.0, 8.0]]), axis=1).tolist()
    [5.0, 10.0]
    """
    if ord is None and (axis is None or type(axis) is int):
        return _core.euclidean_norm(x, axis, keepdims, "norm")
    x = _float(x, "norm")
    if axis is None:
        if ord is None or x.ndim == 1:
            return _vector_norm(x, None, keepdims, 2 if ord is None else ord, "norm")
        if x.ndim != 2:
            raise errors.ShapeError(
                f"[norm] with ord={ord!r} and no axis, x must be 1-D or 2-D, got shape {x.shape}. Name the axes."
            )
        axis = (0, 1)
    if not isinstance(axis, (tuple, list)) or len(axis) == 1:
        return _vector_norm(x, axis, keepdims, 2 if ord is None else ord, "norm")
    if len(axis) != 2:
        raise errors.ShapeError(f"[norm] axis must be one axis or a pair, got {tuple(axis)}. Use vector_norm.")
    return _matrix_norm(x, axis, keepdims, ord, "norm")


# ---- order statistics


def median(x: _Array, axis: _Axes = None, keepdims: bool = False) -> Tensor:
    """The middle element along the axes in ascending order, or the mean of the middle two.

    Integers and bool are taken in the default dtype. NaN where there is a NaN, or nothing. The gradient goes to the
    elements chosen, the first of equal ones being the smaller.

    >>> tp.median(tp.tensor([5.0, 1.0, 2.0, 9.0])).item()
    3.5
    """
    x = _float(x, "median")
    axes = _axes(axis, x.ndim, "median")
    n = _extent(x.shape, axes)
    if n == 0:
        return _core.mean(x, axes, keepdims)
    middle = sorted({(n - 1) // 2, n // 2})
    found = _ranked(x, axes, np.array(middle))
    y = found[0] if len(middle) == 1 else _core.multiply(found[0], 0.5) + _core.multiply(found[1], 0.5)
    return _core.reshape(y, _reduced(x.shape, axes, keepdims))


METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(x: _Array, q: _Array, axis: _Axes = None, keepdims: bool = False, *, method: str = "linear") -> Tensor:
    """The q-quantiles along the axes: what stands at position q * (n - 1) of the n elements in ascending order.

    Parameters
    ----------
    x : Tensor
        Integers and bool are taken in the default dtype.
    q : number, or nested lists or array of numbers
        In 0 .. 1; constants to the gradient.
    axis : int, tuple of ints or None
    keepdims : bool
    method : "linear", "lower", "higher", "midpoint" or "nearest"
        What to take between two elements.

    Returns
    -------
    Tensor
        Of shape ``q.shape`` + the reduced shape. NaN where there is a NaN, or nothing. The gradient goes to the
        elements chosen, the first of equal ones being the smaller.

    >>> tp.quantile(tp.tensor([4.0, 1.0, 2.0]), [0.5, 0.75]).tolist()
    [2.0, 3.0]
    """
    x = _float(x, "quantile")
    axes = _axes(axis, x.ndim, "quantile")
    if method not in METHODS:
        raise errors.NumberRangeError(f"[quantile] method {method!r} is not known. Use one of {', '.join(METHODS)}.")
    if isinstance(q, Tensor):
        x, q = _core.put_together([x, q], "quantile")
    points, lead = _points(q)
    n = _extent(x.shape, axes)
    if n == 0:
        return _core.broadcast_to(_core.mean(x, axes, keepdims), lead + _reduced(x.shape, axes, keepdims))
    m: Any = np if isinstance(points, np.ndarray) else _core
    at = points * float(n - 1)
    low = (m.round if method == "nearest" else m.ceil if method == "higher" else m.floor)(at)
    if method not in ("linear", "midpoint"):
        y = _ranked(x, axes, low.astype("int64"))
    else:
        y = _ranked(x, axes, m.reshape(m.stack([low, m.ceil(at)]), -1).astype("int64"))
        part = m.full(low.shape, 0.5) if method == "midpoint" else at - low
        k = low.size
        y = _between(y[:k], y[k:], as_tensor(m.reshape(part.astype(x.dtype), (k, 1)), "quantile"))
    return _core.reshape(y, lead + _reduced(x.shape, axes, keepdims))


def _points(q: Any) -> tuple[Any, tuple[int, ...]]:
    """The values of q in float64, 1-D, and its shape. While a plan is recorded they may depend on its inputs."""
    points: Any
    if isinstance(q, Tensor) and _core.is_recording():
        points = _core.reshape(q.detach().astype("float64"), -1)
        found: Any = _core.all(_core.logical_and(points >= 0.0, points <= 1.0))
        return _checked(points, found), q.shape
    if type(q) in (int, float):
        array = np.array(q, np.float64)
    else:  # a list in float64: the default dtype would round it
        array = (q if isinstance(q, Tensor) else _creation.convert(q, "quantile", np.float64)).numpy()
    points = array.ravel().astype(np.float64)
    return _checked(points, ((points >= 0) & (points <= 1)).all()), array.shape


def _checked(points: Any, found: Any) -> Any:
    if not found:
        wrong = next(p for p in points.tolist() if not 0 <= p <= 1)
        raise errors.NumberRangeError(f"[quantile] q must be in 0 .. 1, got {wrong}.")
    return points


def _between(a: Tensor, b: Tensor, t: Tensor) -> Tensor:
    """a + t (b - a), from the nearer end, so that it never passes b; from the number where the other is infinite."""
    d = _core.subtract(b, a)
    d = _core.where(_core.greater(_core.equal(a, b), _core.equal(d, d)), 0, d)  # of equal infinities
    near = _core.where(_core.isinf(b), True, _core.where(_core.isinf(a), False, _core.less(t, 0.5)))
    upper = _core.subtract(b, _core.multiply(d, _core.subtract(1, t)))
    return _core.where(near, _core.add(a, _core.multiply(d, t)), upper)


def _reduced(shape: tuple[int, ...], axes: _Gone, keepdims: bool) -> tuple[int, ...]:
    """The shape after a reduction."""
    gone = range(len(shape)) if axes is None else axes
    if keepdims:
        return tuple(1 if a in gone else n for a, n in enumerate(shape))
    return tuple(n for a, n in enumerate(shape) if a not in gone)


def _ranked(x: Tensor, axes: _Gone, ranks: Any) -> Tensor:
    """The elements of each rank (0: the smallest) along the axes: (ranks, rows); in a row with a NaN, this.

    Where they stand is looked up on the host, unless a plan is recorded, which has to do it again: then in ops.
    """
    gone = range(x.ndim) if axes is None else sorted(axes)
    kept = [a for a in range(x.ndim) if a not in gone]
    order = (*kept, *gone)
    if order != tuple(range(x.ndim)):
        x = _core.permute_dims(x, order)
    rows = math.prod(x.shape[: len(kept)])
    n = math.prod(x.shape[len(kept) :])
    if _core.is_recording():
        found = _core.reshape(x, (rows, n))
        where = _core.add(_places(found, as_tensor(ranks, "quantile")), _core.counted(rows) * n)
        return _core.take(_core.reshape(x, -1), where, 0)
    values = x.numpy().reshape(rows, n)
    with _creation.allocation("quantile", f"the order of {x.size} elements"):
        wanted, back = np.unique(ranks, return_inverse=True)
        wanted = wanted if wanted.size else np.zeros(1, np.int64)  # some row, also for no rank
        if recorded(x):
            return _core.take(x, (_positions(values, wanted.tolist()) + np.arange(rows) * n)[back], None)
        return _core.returned_to(fresh(_values(values, wanted.tolist())[back]), x)


def _places(x: Tensor, ranks: Tensor) -> Tensor:
    """What _positions finds, in ops."""
    places = _core.permute_dims(_core.take(_core.argsort(x, 1), ranks, 1), (1, 0))
    nans = _core.not_equal(x, x)
    return _core.where(_core.any(nans, 1), _core.argmax(nans.astype("uint8"), 1), places)


SHORT = 256  # up to here a whole sort is the fastest


def _values(a: np.ndarray[Any, Any], ranks: list[int]) -> np.ndarray[Any, Any]:
    """The elements of the ranks in each row, (ranks, rows), to the sign of zeros as by a stable sort."""
    if a.shape[1] <= SHORT:
        ordered = np.sort(a, axis=1, kind="stable")
        last = ordered[:, -1]
    else:
        ordered = np.partition(a, ranks, axis=1)
        last = a.max(axis=1)
    found = ordered[:, ranks].T
    if a.shape[1] > SHORT and not found.all():
        found = np.take_along_axis(a.T, _positions(a, ranks), 0)
    nans = last != last
    return np.where(nans, last, found) if nans.any() else found


def _positions(a: np.ndarray[Any, Any], ranks: list[int]) -> np.ndarray[Any, Any]:
    """Where in each row the elements of the ranks stand, (ranks, rows), equal elements in the order they have; where
    there is a NaN, the first."""
    if a.shape[1] <= SHORT or len(ranks) > 4:
        where = np.argsort(a, axis=1, kind="stable")[:, ranks].T
    else:  # a selection is linear, but says nothing about the order among equals
        chosen = np.partition(a, ranks, axis=1)
        where = np.empty((len(ranks), a.shape[0]), np.int64)
        for k, rank in enumerate(ranks):
            value = chosen[:, rank : rank + 1]
            same = a == value
            nth = rank - np.count_nonzero(a < value, axis=1)
            if nth.any():
                same = np.cumsum(same, axis=1) == nth[:, None] + 1
            where[k] = same.argmax(axis=1)
    last = a.max(axis=1)
    nans = last != last
    return np.where(nans, np.isnan(a).argmax(axis=1), where) if nans.any() else where


# ---- differences


def diff(
    x: _Array, n: int = 1, axis: SupportsIndex = -1, prepend: _Array | None = None, append: _Array | None = None
) -> Tensor:
    """The n-th differences of neighbours along an axis, which becomes n shorter; of bool, whether they differ.

    Parameters
    ----------
    x : Tensor
    n : int
        How often to take differences.
    axis : int
    prepend, append : Tensor or number, optional
        What to join to x before; a number as one element.

    >>> tp.diff(tp.tensor([1.0, 4.0, 9.0, 16.0])).tolist()
    [3.0, 5.0, 7.0]
    """
    x = as_tensor(x, "diff")
    a = as_axis(axis, x.ndim, "diff")
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise errors.DTypeError(f"[diff] n must be an int, got {type(n).__name__}.")
    if n < 0:
        raise errors.NumberRangeError(f"[diff] n must not be negative, got {n}.")
    if n and (prepend is not None or append is not None):
        ends = [None if e is None else _as_end(e, x) for e in (prepend, append)]
        parts = _core.put_together([part for part in (ends[0], x, ends[1]) if part is not None], "diff")
        x = _core.concat([_stretched(part, x, a) for part in parts], a)
    return _core.differences(x, n, a)


def _as_end(value: Any, x: Tensor) -> Tensor:
    """What is joined to x as a tensor; of a float tensor a number takes the dtype."""
    if type(value) in (int, float) and x.dtype.kind == "f":
        value = _core.from_number(value, x.dtype, "diff")
    return as_tensor(value, "diff")


def _stretched(part: Tensor, x: Tensor, axis: int) -> Tensor:
    """A number as one element along the axis."""
    if part.ndim:
        return part
    return _core.broadcast_to(part, tuple(1 if a == axis else n for a, n in enumerate(x.shape)))


def trapezoid(y: _Array, x: _Array | None = None, dx: _Array = 1.0, axis: SupportsIndex = -1) -> Tensor:
    """The integral of y along an axis by the trapezoidal rule.

    Parameters
    ----------
    y : Tensor
    x : Tensor, optional
        Where y was sampled: 1-D, as long as the axis, or a shape that broadcasts with y's.
    dx : number or Tensor
        The distance of the samples where x is not given.
    axis : int

    >>> tp.trapezoid(tp.tensor([1.0, 2.0, 3.0]), dx=2.0).item()
    8.0
    """
    y = _float(y, "trapezoid")
    a = as_axis(axis, y.ndim, "trapezoid")
    if x is None:
        return _core.multiply(_core.trapezoid_sum(y, a), dx)
    x = as_tensor(x, "trapezoid")
    if x.ndim == 1 and y.ndim > 1:
        x = _core.reshape(x, (-1,) + (1,) * (y.ndim - 1 - a))
    n = x.shape[a - y.ndim] if x.ndim >= y.ndim - a else 0
    if n != y.shape[a]:
        raise errors.ShapeError(
            f"[trapezoid] x of shape {x.shape} does not fit y of shape {y.shape} along axis {a}. "
            "Give as many positions as samples."
        )
    steps = diff(x, axis=a - y.ndim)
    heights = _part(y, a, 1, None) + _part(y, a, None, -1)
    return _core.multiply(_core.sum(_core.multiply(steps, heights), a - y.ndim), 0.5)
