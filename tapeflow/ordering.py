"""Order of long rows, for core/order.pxi, and unique_values.

NumPy puts values in order, for its sorts are vectorised; the order is stable, and NaN come last, in both directions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tapeflow import _core
from tapeflow._arguments import fresh
from tapeflow._core import Tensor

if TYPE_CHECKING:
    from tapeflow._arguments import Host
    from tapeflow._core import _Array

_SHORT = 64  # up to this length NumPy's stable sort is the fastest
_FIRST = fresh(np.ones(1, np.bool_))


class TopK(NamedTuple):
    """What topk and top_k return."""

    values: Tensor
    indices: Tensor


def unique_values(x: _Array) -> Tensor:
    """The different elements of x, ascending, along one axis. NaN are different from each other.

    The gradient goes to the first one of each.

    >>> tp.unique_values(tp.tensor([2, 1, 2])).tolist()
    [1, 2]
    """
    values = _core.sort(x, None)
    if not values.size:
        return values
    return _core.masked_select(values, _core.concat([_FIRST, _core.not_equal(values[1:], values[:-1])]))


def first_of_rows(rows: Host, k: int, descending: bool) -> Host:
    """The indices of the first k in stable order in each row."""
    n = rows.shape[-1]
    keys = _keys(rows, descending)
    if 4 * k > n or not k or rows.itemsize == 1:
        return _order_rows(keys)[..., :k]
    chosen = np.sort(np.argpartition(keys, k - 1, axis=-1)[..., :k], axis=-1)
    found = np.take_along_axis(keys, chosen, -1)
    last = found.max(axis=-1, keepdims=True)
    # Which of several that equal the last one are in is not said: then, and with NaN, by the whole order.
    if np.isnan(last).any() or np.count_nonzero(keys == last) != np.count_nonzero(found == last):
        return _order_rows(keys)[..., :k]
    return np.take_along_axis(chosen, _order_rows(found), -1)


def _keys(array: Host, descending: bool) -> Host:
    """Values whose ascending order, NaN last, is the order asked for."""
    if not descending:
        return array
    return np.negative(array) if array.dtype.kind == "f" else np.invert(array)


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
