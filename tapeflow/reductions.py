"""Statistics, norms, running reductions and order statistics, composed of ops of the core.

Derivatives of every order follow from the ops used here; nothing in this file knows of the tape. What is not here: the
reductions with kernels of their own (sum, mean, max, min, prod, argmax, logsumexp). Order statistics and cumulative_max
look at the values, on the host, to find where the chosen elements stand; a recorded op takes them from x.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, overload

import numpy as np

from tapeflow import _core, _creation, errors
from tapeflow._arguments import as_axis, as_tensor, fresh, recorded
from tapeflow._core import Tensor

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

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


# ---- truth, counts, positions


def any(x: _Array, axis: _Axes = None, keepdims: bool = False) -> Tensor:
    """Whether any element along the axes is true, that is not 0; NaN is true. False over no elements.

    >>> tp.any(tp.tensor([[0.0, 2.0], [0.0, 0.0]]), axis=1).tolist()
    [True, False]
    """
    x = as_tensor(x, "any")
    axes = _axes(axis, x.ndim, "any")
    true = x if x.dtype.kind == "b" else _core.not_equal(x, 0)
    if 0 in x.shape:
        return _core.not_equal(_core.sum(true, axes, keepdims), 0)
    return _core.max(true, axes, keepdims)


def all(x: _Array, axis: _Axes = None, keepdims: bool = False) -> Tensor:
    """Whether all elements along the axes are true, that is not 0; NaN is true. True over no elements.

    >>> tp.all(tp.tensor([[1.0, 2.0], [0.0, 3.0]]), axis=1).tolist()
    [True, False]
    """
    x = as_tensor(x, "all")
    axes = _axes(axis, x.ndim, "all")
    true = x if x.dtype.kind == "b" else _core.not_equal(x, 0)
    if 0 in x.shape:
        return _core.equal(_core.sum(_core.equal(true, False), axes, keepdims), 0)
    return _core.min(true, axes, keepdims)


def count_nonzero(x: _Array, axis: _Axes = None, keepdims: bool = False) -> Tensor:
    """How many elements along the axes are not 0, as int64; NaN counts.

    >>> tp.count_nonzero(tp.tensor([[0.0, 2.0], [3.0, 4.0]]), axis=1).tolist()
    [1, 2]
    """
    x = as_tensor(x, "count_nonzero")
    axes = _axes(axis, x.ndim, "count_nonzero")
    return _core.sum(x if x.dtype.kind == "b" else _core.not_equal(x, 0), axes, keepdims)


def argmin(x: _Array, axis: SupportsIndex | None = None, keepdims: bool = False) -> Tensor:
    """Position of the first smallest element along an axis, or in the flattened x for None, as int64; NaN comes first.

    Raises ShapeError where the axis holds no elements.

    >>> tp.argmin(tp.tensor([[3.0, 1.0, 1.0], [0.0, 5.0, 6.0]]), axis=1).tolist()
    [1, 0]
    """
    x = as_tensor(x, "argmin")
    a = None if axis is None else as_axis(axis, x.ndim, "argmin")
    if _extent(x.shape, None if a is None else (a,)) == 0:
        raise errors.ShapeError(f"[argmin] the reduced axes of shape {x.shape} hold no elements. Give at least one.")
    kind = x.dtype.kind
    # of integers the order is turned round by ~, which cannot overflow
    turned = (
        _core.negative(x) if kind == "f"
        else _core.equal(x, False) if kind == "b"
        else _core.subtract(255 if kind == "u" else -1, x)
    )  # fmt: skip
    return _core.argmax(turned, a, keepdims)


# ---- moments


def var(x: _Array, axis: _Axes = None, keepdims: bool = False, *, correction: float = 0) -> Tensor:
    """Mean squared distance from the mean along the axes.

    Parameters
    ----------
    x : Tensor
        Integers and bool are taken in the default dtype.
    axis : int, tuple of ints or None
        None: all axes.
    keepdims : bool
        Keep the reduced axes, with size 1.
    correction : number
        What is taken off the number of elements in the divisor (NumPy: ddof); 1 for an unbiased estimate. With no
        degrees of freedom left, value and gradient are NaN.

    The sum over (x - m)^2 is corrected for the rounding of m (Chan, Golub and LeVeque, 1983, equation 1.7).

    >>> tp.var(tp.tensor([1.0, 2.0, 3.0, 6.0])).item()
    3.5
    """
    return _variance(x, axis, keepdims, correction, "var")


def std(x: _Array, axis: _Axes = None, keepdims: bool = False, *, correction: float = 0) -> Tensor:
    """Standard deviation along the axes: the square root of var, with the same arguments.

    Where all elements are equal the gradient is 0.

    >>> tp.std(tp.tensor([1.0, 1.0, 3.0, 3.0])).item()
    1.0
    """
    return _root(_variance(x, axis, keepdims, correction, "std"))


LONG = 128  # from here on one pass over x costs more than a few calls for small tensors


def _variance(x: Any, axis: Any, keepdims: bool, correction: Any, op: str) -> Tensor:
    x = _float(x, op)
    axes = _axes(axis, x.ndim, op)
    if isinstance(correction, bool) or not isinstance(correction, _REAL):
        raise errors.DTypeError(f"[{op}] correction must be a number, got {type(correction).__name__}.")
    n = _extent(x.shape, axes)
    # any shift gives the same variance, so the derivative need not go through this one
    c = _core.subtract(x, _core.stop_gradient(_core.mean(x, axes, True)))
    if n <= LONG:
        c = _core.subtract(c, _core.mean(c, axes, True))
        total = _core.sum(_core.square(c), axes, keepdims)
    else:
        squares = _core.sum(_core.square(c), axes, keepdims)
        total = _core.subtract(squares, _core.square(_core.sum(c, axes, keepdims)) / n)
        # what is less than the rounding of squares is 0; its derivatives are right as they are
        noise = _core.less_equal(total, squares * (4 * np.finfo(x.dtype).eps).item())
        total = _core.subtract(total, _core.where(noise, _core.stop_gradient(total), 0))
    free = n - correction
    return _core.divide(total, free) if free > 0 else _core.multiply(total, math.nan)


def _root(s: Tensor) -> Tensor:
    """The square root of sums of squares; at 0 its gradient is 0."""
    zero = _core.equal(s, 0)
    return _core.where(zero, 0, _core.sqrt(_core.where(zero, 1, s)))


def nansum(x: _Array, axis: _Axes = None, keepdims: bool = False) -> Tensor:
    """Sum over the axes, NaN taken as 0; the gradient of a NaN is 0.

    >>> tp.nansum(tp.tensor([1.0, float("nan"), 3.0])).item()
    4.0
    """
    x = as_tensor(x, "nansum")
    axes = _axes(axis, x.ndim, "nansum")
    return _core.sum(_core.where(_core.equal(x, x), x, 0) if x.dtype.kind == "f" else x, axes, keepdims)


def nanmean(x: _Array, axis: _Axes = None, keepdims: bool = False) -> Tensor:
    """Mean over the axes of the elements that are not NaN, whose gradient is 0; NaN where there are no others.

    >>> tp.nanmean(tp.tensor([1.0, float("nan"), 3.0])).item()
    2.0
    """
    x = _float(x, "nanmean")
    axes = _axes(axis, x.ndim, "nanmean")
    there = _core.equal(x, x)
    total = _core.sum(_core.where(there, x, 0), axes, keepdims)
    return _core.divide(total, _core.sum(there, axes, keepdims).astype(x.dtype))


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
        return (y, _core.full(y.shape, _extent(x.shape, axes), x.dtype)) if returned else y
    w = _fit(as_tensor(weights, "average"), x, axes)
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

    The gradient of a norm that is 0 is 0.

    >>> tp.vector_norm(tp.tensor([3.0, 4.0])).item()
    5.0
    """
    return _vector_norm(_float(x, "vector_norm"), axis, keepdims, ord, "vector_norm")


def _vector_norm(x: Tensor, axis: Any, keepdims: bool, ord: Any, op: str) -> Tensor:
    axes = _axes(axis, x.ndim, op)
    if isinstance(ord, bool) or not isinstance(ord, _REAL) or ord != ord:
        raise errors.NumberRangeError(f"[{op}] the ord of a vector must be a number, got {ord!r}. Use 1, 2 or inf.")
    if ord == 2:
        return _root(_core.sum(_core.square(x), axes, keepdims))
    if ord == 0:
        return count_nonzero(x, axes, keepdims).astype(x.dtype)
    size = _core.abs(x)
    if ord == 1:
        return _core.sum(size, axes, keepdims)
    if math.isinf(ord):
        if _extent(x.shape, axes) == 0:
            raise errors.ShapeError(f"[{op}] the reduced axes of shape {x.shape} hold no elements. Use another ord.")
        return (_core.max if ord > 0 else _core.min)(size, axes, keepdims)
    total = _core.sum(_core.pow(size, float(ord)), axes, keepdims)
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


# ---- running reductions
#
# A scan of n elements in blocks: each block by itself, then the scan of the blocks' results, then both together. Every
# prefix is a tree of depth O(log n), so sums in float32 err as pairwise ones do; the work is O(n). Measured for a
# million float32: 3.1 ms with blocks of 4, 3.8 with 2, 6.1 with 16 (numpy.cumsum 2.9). Where there is little, calls
# are what costs: then every prefix is reduced by itself, 16 elements in 3 us instead of 16.

_Combine = Callable[[Tensor, Tensor], Tensor]
_Reduce = Callable[[Tensor, int], Tensor]
LITTLE = 1024


@functools.cache
def _triangle(n: int) -> Tensor:
    """Which elements belong to the prefixes of a row of n."""
    return fresh(np.tri(n, dtype=np.bool_))


def _scan(f: _Combine, whole: _Reduce, neutral: float, x: Tensor) -> Tensor:
    """The running f of x, of shape (outer, n, inner), along its middle axis; f(neutral, a) is a, whole reduces by f."""
    outer, n, inner = x.shape
    if inner == 1 and n > 2 and x.size * n <= LITTLE:
        rows = _core.where(_triangle(n), _core.reshape(x, (outer, 1, n)), neutral)
        return _core.reshape(whole(rows, 2), (outer, n, 1))
    return _blocks(f, neutral, x)


def _blocks(f: _Combine, neutral: float, x: Tensor) -> Tensor:
    outer, n, inner = x.shape
    if n <= 16:
        rows = [_part(x, 1, 0, 1)]
        for k in range(1, n):
            rows.append(f(rows[-1], _part(x, 1, k, k + 1)))
        return _core.concat(rows, 1)
    block = 4 if inner < 8 else 8
    count = -(-n // block)
    if n % block:  # what stands behind the end reaches nothing that is kept
        x = _core.concat([x, _core.zeros((outer, count * block - n, inner), x.dtype)], 1)
    blocks = _core.reshape(x, (outer, count, block, inner))
    rows = [_part(blocks, 2, 0, 1)]
    for k in range(1, block):
        rows.append(f(rows[-1], _part(blocks, 2, k, k + 1)))
    ends = _blocks(f, neutral, _core.reshape(rows[-1], (outer, count, inner)))
    before = _core.concat([_core.full((outer, 1, inner), neutral, x.dtype), _part(ends, 1, None, -1)], 1)
    y = f(_core.reshape(before, (outer, count, 1, inner)), _core.concat(rows, 2))
    y = _core.reshape(y, (outer, count * block, inner))
    return _part(y, 1, None, n) if n % block else y


def _lines(x: Tensor, axis: Any, op: str) -> tuple[tuple[int, int, int], int]:
    """x's shape as (outer, n, inner) around an axis, and the axis; None is the axis of a 1-D tensor."""
    if axis is None and x.ndim != 1:
        raise errors.AxisError(f"[{op}] x has shape {x.shape}; only for a 1-D tensor axis can be None. Name the axis.")
    a = 0 if axis is None else as_axis(axis, x.ndim, op)
    return (math.prod(x.shape[:a]), x.shape[a], math.prod(x.shape[a + 1 :])), a


def _running(
    x: Any, axis: Any, dtype: Any, include_initial: bool, op: str, f: _Combine, whole: _Reduce, neutral: int
) -> Tensor:
    x = as_tensor(x, op)
    lines, a = _lines(x, axis, op)
    x = _core.astype(x, dtype if dtype is not None else x.dtype if x.dtype.kind == "f" else np.int64, copy=False)
    y = _core.reshape(x, x.shape)
    if x.size:
        # -0.0 + a is a, also for a = -0.0
        start = -0.0 if x.dtype.kind == "f" and not neutral else neutral
        y = _core.reshape(_scan(f, whole, start, _core.reshape(x, lines)), x.shape)
    if not include_initial:
        return y
    shape = (*x.shape[:a], 1, *x.shape[a + 1 :])
    return _core.concat([_core.full(shape, neutral, x.dtype), y], a)


def cumulative_sum(
    x: _Array, axis: SupportsIndex | None = None, *, dtype: DTypeLike | None = None, include_initial: bool = False
) -> Tensor:
    """The sums of the first 1, 2, ... elements along an axis.

    Parameters
    ----------
    x : Tensor
    axis : int or None
        None only for a 1-D tensor.
    dtype : dtype, optional
        That of the result. Default: int64 for integers and bool, x's own for floats.
    include_initial : bool
        Begin with the sum of nothing, 0: one element more.

    >>> tp.cumulative_sum(tp.tensor([1.0, 2.0, 3.0]), include_initial=True).tolist()
    [0.0, 1.0, 3.0, 6.0]
    """
    return _running(x, axis, dtype, include_initial, "cumulative_sum", _core.add, _core.sum, 0)


def cumulative_prod(
    x: _Array, axis: SupportsIndex | None = None, *, dtype: DTypeLike | None = None, include_initial: bool = False
) -> Tensor:
    """The products of the first 1, 2, ... elements along an axis; arguments as for cumulative_sum.

    The derivatives are products, too, exact where factors are 0.

    >>> tp.cumulative_prod(tp.tensor([2.0, 3.0, 4.0])).tolist()
    [2.0, 6.0, 24.0]
    """
    return _running(x, axis, dtype, include_initial, "cumulative_prod", _core.multiply, _core.prod, 1)


def cumsum(x: _Array, axis: SupportsIndex | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """cumulative_sum by NumPy's rule for axis: with None x is flattened first.

    >>> tp.cumsum(tp.tensor([[1, 2], [3, 4]])).tolist()
    [1, 3, 6, 10]
    """
    return cumulative_sum(_flat(x, axis, "cumsum"), axis, dtype=dtype)


def cumprod(x: _Array, axis: SupportsIndex | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """cumulative_prod by NumPy's rule for axis: with None x is flattened first.

    >>> tp.cumprod(tp.tensor([[1, 2], [3, 4]])).tolist()
    [1, 2, 6, 24]
    """
    return cumulative_prod(_flat(x, axis, "cumprod"), axis, dtype=dtype)


def _flat(x: Any, axis: Any, op: str) -> Tensor:
    x = as_tensor(x, op)
    return _core.reshape(x, (-1,)) if axis is None else x


def cumulative_max(x: _Array, axis: SupportsIndex | None = None) -> Tensor:
    """The largest of the first 1, 2, ... elements along an axis; axis=None only for a 1-D tensor.

    From a NaN on all is NaN. Among equal elements the first has the gradient.

    >>> tp.cumulative_max(tp.tensor([1.0, 3.0, 2.0, 4.0])).tolist()
    [1.0, 3.0, 3.0, 4.0]
    """
    x = as_tensor(x, "cumulative_max")
    lines, _ = _lines(x, axis, "cumulative_max")
    if x.size == 0:
        return _core.reshape(x, x.shape)
    values = x.numpy().reshape(lines)
    with _creation.allocation("cumulative_max", f"the positions of {x.size} elements"):
        y = np.maximum.accumulate(values, axis=1)
        if not recorded(x):
            return fresh(y.reshape(x.shape))
        return _core.take(x, _records(values, y).reshape(x.shape), None)


def _records(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Where in the flattened x each element of y, its running maximum along the middle axis, stood first."""
    outer, n, inner = x.shape
    before = y[:, :-1]
    new = np.zeros(x.shape, np.bool_)
    new[:, 1:] = ~(y[:, 1:] <= before) & (before == before)  # larger than what was before, or the first NaN
    at: np.ndarray[Any, Any] = np.where(new, np.arange(n)[:, None], 0)
    np.maximum.accumulate(at, axis=1, out=at)
    at *= inner
    at += np.arange(outer)[:, None, None] * (n * inner) + np.arange(inner)
    return at


def logcumsumexp(x: _Array, axis: SupportsIndex | None = None) -> Tensor:
    """log of the sum of the exponentials of the first 1, 2, ... elements along an axis, without overflow.

    axis=None only for a 1-D tensor. -inf has the gradient 0.

    >>> tp.logcumsumexp(tp.tensor([1000.0, -1000.0, 1000.0])).tolist()
    [1000.0, 1000.0, 1000.6931762695312]
    """
    x = _float(x, "logcumsumexp")
    lines, _ = _lines(x, axis, "logcumsumexp")
    if x.size == 0:
        return _core.reshape(x, x.shape)
    # infinities as the largest numbers: their differences are numbers, and exp of them is 0 or 1
    end = np.finfo(x.dtype).max.item()
    t = _core.reshape(_core.where(_core.equal(_core.abs(x), math.inf), _core.clip(x, -end, end), x), lines)
    y = _core.reshape(_scan(_logaddexp, _core.logsumexp, -end, t), x.shape)
    return _core.where(y <= -end, -math.inf, _core.where(y >= end, math.inf, y))


def _logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """log(exp(a) + exp(b)) of finite numbers; smooth in all orders, at a = b, too, since where takes a side."""
    first = _core.greater_equal(a, b)
    high, low = _core.where(first, a, b), _core.where(first, b, a)
    return _core.add(high, _core.softplus(_core.subtract(low, high)))


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
    found = _ranked(x, axes, middle)
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
    points, lead = _points(q)
    n = _extent(x.shape, axes)
    if n == 0:
        return _core.broadcast_to(_core.mean(x, axes, keepdims), lead + _reduced(x.shape, axes, keepdims))
    low, high, part = [], [], []
    for p in points:
        at = p * (n - 1)
        rank = round(at) if method == "nearest" else math.ceil(at) if method == "higher" else math.floor(at)
        low.append(rank)
        high.append(math.ceil(at) if method in ("linear", "midpoint") else rank)
        part.append(0.5 if method == "midpoint" else at - rank)
    ranks = sorted({*low, *high}) or [0]  # some row, also for no q
    found = _ranked(x, axes, ranks)
    y = _chosen(found, ranks, low)
    if low != high:
        y = _between(y, _chosen(found, ranks, high), np.array(part, x.dtype)[:, None])
    return _core.reshape(y, lead + _reduced(x.shape, axes, keepdims))


def _points(q: Any) -> tuple[list[float], tuple[int, ...]]:
    """The values of q and its shape."""
    points, shape = [q], ()
    if type(q) not in (int, float):  # a list in float64: the default dtype would round it
        array = (q if isinstance(q, Tensor) else _creation.convert(q, "quantile", np.float64)).numpy()
        points, shape = array.ravel().tolist(), array.shape
    for p in points:
        if not 0 <= p <= 1:
            raise errors.NumberRangeError(f"[quantile] q must be in 0 .. 1, got {p}.")
    return points, shape


def _chosen(found: Tensor, ranks: list[int], wanted: list[int]) -> Tensor:
    """The rows of found, which stand for ranks, of the wanted ones."""
    if len(wanted) == 1:
        k = ranks.index(wanted[0])
        return found[k : k + 1]
    return _core.take(found, np.searchsorted(ranks, wanted), 0)


def _between(a: Tensor, b: Tensor, t: np.ndarray[Any, Any]) -> Tensor:
    """a + t (b - a), from the nearer end, so that it never passes b; from the number where the other is infinite."""
    d = _core.subtract(b, a)
    near = t < 0.5
    if np.isinf(a.numpy()).any() or np.isinf(b.numpy()).any():
        d = _core.where(_core.greater(_core.equal(a, b), _core.equal(d, d)), 0, d)
        near = np.where(np.isinf(b.numpy()), True, np.where(np.isinf(a.numpy()), False, near))
    if near.all():
        return _core.add(a, _core.multiply(d, t))
    upper = _core.subtract(b, _core.multiply(d, 1 - t))
    return _core.where(near, _core.add(a, _core.multiply(d, t)), upper) if near.any() else upper


def _reduced(shape: tuple[int, ...], axes: _Gone, keepdims: bool) -> tuple[int, ...]:
    """The shape after a reduction."""
    gone = range(len(shape)) if axes is None else axes
    if keepdims:
        return tuple(1 if a in gone else n for a, n in enumerate(shape))
    return tuple(n for a, n in enumerate(shape) if a not in gone)


def _ranked(x: Tensor, axes: _Gone, ranks: list[int]) -> Tensor:
    """The elements of each rank (0: the smallest) along the axes: (ranks, rows); in a row with a NaN, this."""
    gone = range(x.ndim) if axes is None else sorted(axes)
    kept = [a for a in range(x.ndim) if a not in gone]
    order = (*kept, *gone)
    if order != tuple(range(x.ndim)):
        x = _core.permute_dims(x, order)
    rows = math.prod(x.shape[: len(kept)])
    n = math.prod(x.shape[len(kept) :])
    values = x.numpy().reshape(rows, n)
    with _creation.allocation("quantile", f"the order of {x.size} elements"):
        if recorded(x):
            where = _positions(values, ranks) + np.arange(rows) * n
            return _core.take(x, where, None)
        return fresh(_values(values, ranks))


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
    ends = [None if e is None else _end(e, x, a) for e in (prepend, append)]
    if n and (prepend is not None or append is not None):
        x = _core.concat([part for part in (ends[0], x, ends[1]) if part is not None], a)
    y = _core.reshape(x, x.shape)
    f = _core.not_equal if x.dtype.kind == "b" else _core.subtract
    for _ in range(min(n, x.shape[a])):
        y = f(_part(y, a, 1, None), _part(y, a, None, -1))
    return y


def _end(value: Any, x: Tensor, axis: int) -> Tensor:
    """What is joined to x: a number as one element along the axis."""
    if type(value) in (int, float) and x.dtype.kind == "f":
        value = _core.full((), value, x.dtype)
    value = as_tensor(value, "diff")
    if value.ndim:
        return value
    return _core.broadcast_to(value, tuple(1 if a == axis else n for a, n in enumerate(x.shape)))


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
        ends = _core.sum(_part(y, a, 1, None), a) + _core.sum(_part(y, a, None, -1), a)
        return _core.multiply(_core.multiply(ends, 0.5), dx)
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
