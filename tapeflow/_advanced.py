"""Advanced indexing by NumPy's rules: arrays of ints, masks, and any mixture with slices.

The index is applied once, by NumPy, to the positions 0 .. size-1; reading is then a take of those positions and writing
a where over a take, so gradients of any order follow from ops that have them.
"""

import math
from typing import Any

import numpy as np

from tapeflow import _core, _creation, errors
from tapeflow._core import Tensor


def _plain(index: Any) -> Any:
    """The index with tensors as arrays."""
    if isinstance(index, tuple):
        return tuple(_plain(i) for i in index)
    if isinstance(index, list):
        index = _creation.asarray(index)
        if index.size == 0 and index.dtype.kind == "f":  # a list without elements says nothing about its dtype
            index = index.astype(np.int64)
    return index.numpy() if isinstance(index, Tensor) else index


def positions(shape: tuple[int, ...], index: Any, op: str) -> np.ndarray[Any, Any]:
    """The positions, in C order, of the elements that index selects from a tensor of this shape."""
    index = _plain(index)
    for i in index if isinstance(index, tuple) else (index,):
        if isinstance(i, np.ndarray) and i.dtype.kind not in "biu":
            raise errors.TensorIndexError(
                f"[{op}] index arrays must be integers or bool, got dtype {i.dtype}. Use .astype('int64')."
            )
        if isinstance(i, np.ndarray) and i.dtype == np.uint64 and i.size and i.max() >= 1 << 63:
            raise errors.TensorIndexError(f"[{op}] index {i.max()} is out of range for a tensor of shape {shape}.")
    size = math.prod(shape)
    try:
        with _creation.allocation(op, f"an array of the {size} positions"):
            found = np.arange(size).reshape(shape)[index]
    except IndexError as error:
        raise errors.TensorIndexError(f"[{op}] {error}, for a tensor of shape {shape}.") from None
    except (ValueError, TypeError) as error:
        raise errors.TensorIndexError(f"[{op}] {error}, for a tensor of shape {shape}.") from None
    return np.asarray(found)


def get(x: Tensor, index: Any) -> Tensor:
    """x[index]."""
    return _core.take(x, positions(x.shape, index, "index"), None)


def put(x: Tensor, index: Any, value: Tensor) -> Tensor:
    """x with value, of x's dtype, at index; where a position is named more than once, the last one wins."""
    where = positions(x.shape, index, "setitem")
    try:
        np.broadcast_to(np.empty(value.shape, np.bool_), where.shape)
    except ValueError:
        extra = value.ndim - where.ndim
        if extra > 0 and value.shape[:extra] == (1,) * extra:
            return put(x, index, _core.reshape(value, value.shape[extra:]))
        raise errors.ShapeError(
            f"[setitem] a value of shape {value.shape} does not fit what is written, {where.shape}: "
            "aligned from the right, its sizes must be equal or 1."
        ) from None
    if where.size == 0:
        return x
    writer = np.full(x.size, -1)
    writer[where.ravel()] = np.arange(where.size)
    written = (writer >= 0).reshape(x.shape)
    flat = _core.broadcast_to(value, where.shape)
    return _core.where(written, _core.reshape(_core.take(flat, np.maximum(writer, 0), None), x.shape), x)
