"""Order: sort, argsort, topk, searchsorted, unique_values.

The order is worked out by NumPy on values and carries no gradient; what is put in order is taken by it, so that
gradients of any order go back to where each element came from. It is stable, and NaN come last, in both directions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex

import numpy as np

from tapeflow import _core, _creation, errors
from tapeflow._arguments import NUMBERS, as_axis, as_int, as_tensor, flat, fresh, positions, recorded
from tapeflow._core import Tensor

if TYPE_CHECKING:
    from tapeflow._arguments import Host
    from tapeflow._core import _Array

_SHORT = 64  # up to this length NumPy's stable sort is the fastest


class TopK(NamedTuple):
    """What topk and top_k return."""

    values: Tensor
    indices: Tensor


def sort(x: _Array, axis: SupportsIndex | None = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """x in order along an axis (of the flattened x for None). NaN come last, in either direction.

    Parameters
    ----------
    x : Tensor
    axis : int or None
    descending : bool
        From high to low; equal elements keep their order all the same.
    stable : bool
        The order is always stable.

    Returns
    -------
    Tensor
        The gradient goes back to where each element came from.

    >>> tp.sort(tp.tensor([3.0, 1.0, 2.0]), descending=True).tolist()
    [3.0, 2.0, 1.0]
    """
    x, a = _to_order(x, axis, "sort")
    if not recorded(x):
        return fresh(_ordered(x.numpy(), a, descending))
    return _core.take(flat(x), positions(x.shape, _order(x.numpy(), a, descending), a), 0)


def argsort(x: _Array, axis: SupportsIndex | None = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices, int64, that put x in order along an axis; see sort. Equal elements keep their order.

    >>> tp.argsort(tp.tensor([3.0, 1.0, 2.0])).tolist()
    [1, 2, 0]
    """
    x, a = _to_order(x, axis, "argsort")
    return fresh(_order(x.numpy(), a, descending))


def topk(x: _Array, k: SupportsIndex, axis: SupportsIndex = -1, largest: bool = True) -> TopK:
    """The k largest (or smallest) elements along an axis, in order, and their indices.

    What sort and argsort give for the first k: among equal elements those with the lowest index, and NaN only when
    there is nothing else.

    Parameters
    ----------
    x : Tensor
    k : int
        From 0 to the size of the axis.
    axis : int
    largest : bool

    Returns
    -------
    (values, indices)
        A named tuple; indices are int64.

    >>> values, indices = tp.topk(tp.tensor([3.0, 1.0, 2.0]), 2)
    >>> values.tolist(), indices.tolist()
    ([3.0, 2.0], [0, 2])
    """
    return _topk(x, k, axis, bool(largest), "topk")


def top_k(
    x: _Array, k: SupportsIndex, axis: SupportsIndex = -1, mode: Literal["largest", "smallest"] = "largest"
) -> TopK:
    """topk under the name and with the arguments of the Python Array API.

    >>> tp.top_k(tp.tensor([3.0, 1.0, 2.0]), 1, mode="smallest").indices.tolist()
    [1]
    """
    if mode not in ("largest", "smallest"):
        raise errors.ShapeError(f"[top_k] mode must be 'largest' or 'smallest', got {mode!r}.")
    return _topk(x, k, axis, mode == "largest", "top_k")


def _topk(array: Any, k: Any, axis: Any, largest: bool, op: str) -> TopK:
    x, a = _to_order(array, axis, op)
    count = as_int(k, op, "k")
    if not 0 <= count <= x.shape[a]:
        raise errors.ShapeError(f"[{op}] k = {count} does not fit axis {a} of size {x.shape[a]}. Use 0 to that size.")
    index = _first(x.numpy().swapaxes(a, -1), count, largest).swapaxes(a, -1)
    values = _core.take(flat(x), positions(x.shape, index, a), 0)
    return TopK(values, fresh(index))


def searchsorted(x1: _Array, x2: _Array, side: Literal["left", "right"] = "left") -> Tensor:
    """Where the elements of x2 would go in x1, which is in order.

    Parameters
    ----------
    x1 : Tensor
        1-D, ascending, NaN last.
    x2 : Tensor or number
    side : "left" or "right"
        Before or behind elements that are equal: x1[i-1] < v <= x1[i], or x1[i-1] <= v < x1[i].

    Returns
    -------
    Tensor
        int64, of x2's shape.

    >>> tp.searchsorted(tp.tensor([1.0, 2.0, 3.0]), tp.tensor([2.0, 9.0])).tolist()
    [1, 3]
    """
    x1 = as_tensor(x1, "searchsorted")
    if x1.ndim != 1:
        raise errors.ShapeError(f"[searchsorted] x1 must be 1-D, got shape {x1.shape}. Search row by row.")
    if side not in ("left", "right"):
        raise errors.ShapeError(f"[searchsorted] side must be 'left' or 'right', got {side!r}.")
    if type(x2) in NUMBERS:
        values: Host = np.asarray(x2, _creation.result_type(x1, x2))
    else:
        values = as_tensor(x2, "searchsorted").numpy()
    return fresh(np.asarray(np.searchsorted(x1.numpy(), values, side)))


def unique_values(x: _Array) -> Tensor:
    """The different elements of x, ascending, along one axis. NaN are different from each other.

    The gradient goes to the first one of each.

    >>> tp.unique_values(tp.tensor([2, 1, 2])).tolist()
    [1, 2]
    """
    x = flat(as_tensor(x, "unique_values"))
    array = x.numpy()
    if not recorded(x):
        values = _ordered(array, 0, False)
        return fresh(values[_starts(values)])
    order = _order(array, 0, False)
    return _core.take(x, order[_starts(array[order])], 0)


def _starts(values: Host) -> Host:
    """Where, in order, another value begins."""
    starts = np.ones(values.shape, np.bool_)
    np.not_equal(values[1:], values[:-1], out=starts[1:])
    return starts


def _to_order(x: Any, axis: Any, op: str) -> tuple[Tensor, int]:
    x = as_tensor(x, op)
    if axis is None:
        return flat(x), 0
    return x, as_axis(axis, x.ndim, op)


def _keys(array: Host, descending: bool) -> Host:
    """Values whose ascending order, NaN last, is the order asked for."""
    if not descending:
        return array
    return np.negative(array) if array.dtype.kind == "f" else np.invert(array)


def _ordered(array: Host, axis: int, descending: bool) -> Host:
    """The values in order, to the sign of zeros as by a stable sort."""
    floats = array.dtype.kind == "f"
    if array.shape[axis] <= _SHORT or array.itemsize == 1:
        return _keys(np.sort(_keys(array, descending), axis, kind="stable"), descending)
    if floats and np.any(array.view(f"i{array.itemsize}") == np.iinfo(f"i{array.itemsize}").min):
        return np.take_along_axis(array, _order(array, axis, descending), axis)  # -0.0 and 0.0 are equal, not the same
    if not (floats and descending):
        return _keys(np.sort(_keys(array, descending), axis), descending)
    return np.subtract(0, np.sort(np.subtract(0, array), axis))  # keeps 0.0 as it is


def _order(array: Host, axis: int, descending: bool) -> Host:
    """The stable order of the values, along an axis."""
    keys = _keys(array, descending)
    if keys.shape[axis] <= _SHORT:
        return np.argsort(keys, axis, kind="stable")
    return _order_rows(keys.swapaxes(axis, -1)).swapaxes(axis, -1)


def _order_rows(keys: Host) -> Host:
    """The stable ascending order along the last axis.

    NumPy's fast sorts are not stable, its stable ones ten times slower. So keys are sorted together with their indices,
    as the upper and lower bits of an int64. Keys of 64 bits may lose their last bits by that; where it matters, the
    few that came out equal are sorted once more.
    """
    n = keys.shape[-1]
    if n <= _SHORT or keys.itemsize == 1 or not keys.size:
        return np.argsort(keys, axis=-1, kind="stable")
    whole = _as_ints(keys) if keys.dtype.kind == "f" else keys.astype(np.int64)
    bits = n.bit_length()
    low = whole.min()
    if int(whole.max()) - int(low) >> (63 - bits):
        return _order_wide(whole, bits)
    whole -= low
    whole <<= bits
    whole |= np.arange(n)
    whole.sort(axis=-1)
    whole &= (1 << bits) - 1
    return whole


def _order_wide(whole: Host, bits: int) -> Host:
    """The stable order along the last axis of int64 that leave no room for the indices, of so many bits."""
    n = whole.shape[-1]
    mask = (1 << bits) - 1
    keys = whole.reshape(-1, n)
    both = keys & ~mask
    both |= np.arange(n)
    both.sort(axis=-1)
    same = (both[:, 1:] ^ both[:, :-1]).view(np.uint64) <= mask
    order = both & mask
    row, column = np.nonzero(same)
    if np.any(keys[row, order[row, column]] != keys[row, order[row, column + 1]]):
        if 8 * row.size > whole.size:
            return np.argsort(whole, axis=-1, kind="stable")
        among = np.zeros(keys.shape, np.bool_)
        among[:, 1:] = same
        among[:, :-1] |= same
        row, _ = np.nonzero(among)
        found = order[among]
        order[among] = found[np.lexsort((keys[row, found], row))]
    return order.reshape(whole.shape)


def _as_ints(keys: Host) -> Host:
    """Floats as int64 in the same order: zeros equal, every NaN above everything."""
    signed = f"i{keys.itemsize}"
    last = np.iinfo(signed).max
    bits = np.add(keys, 0).view(signed)
    whole: Host = (bits ^ ((bits >> (8 * keys.itemsize - 1)) & last)).astype(np.int64)
    nans = np.isnan(keys)
    if nans.any():
        whole[nans] = last
    return whole


def _first(array: Host, k: int, largest: bool) -> Host:
    """The indices of the first k in stable order along the last axis."""
    n = array.shape[-1]
    if n <= _SHORT or 4 * k > n or not k or array.itemsize == 1:
        return _order(array, array.ndim - 1, largest)[..., :k]
    keys = _keys(array, largest)
    chosen = np.sort(np.argpartition(keys, k - 1, axis=-1)[..., :k], axis=-1)
    found = np.take_along_axis(keys, chosen, -1)
    last = found.max(axis=-1, keepdims=True)
    # Which of several that equal the last one are in is not said: then, and with NaN, by the whole order.
    if np.isnan(last).any() or np.count_nonzero(keys == last) != np.count_nonzero(found == last):
        return _order_rows(keys)[..., :k]
    return np.take_along_axis(chosen, _order_rows(found), -1)
