"""The ways to hold the same values in memory, and the values at which functions go wrong.

>>> import numpy as np
>>> from tapeflow.testing.layouts import LAYOUTS
>>> [LAYOUTS[name](np.eye(2)).tolist() == [[1.0, 0.0], [0.0, 1.0]] for name in LAYOUTS]
[True, True, True, True, True, True]
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

import tapeflow as tp


def special_points(dtype: DTypeLike) -> np.ndarray:
    """Every kind of value: of floats signed zeros, subnormals, extremes, infinities, NaN, and values about 1; of
    integers 0, 1 and the extremes; both bools.

    >>> special_points("uint8").tolist()
    [0, 1, 2, 254, 255]
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        return np.array(sorted({0, 1, 2, high - 1, high, low} | ({-1, low + 1} if low else set())), dtype)
    info = np.finfo(dtype)
    tiny = info.smallest_subnormal
    finite = [0.0, tiny, info.tiny / 4, info.tiny, info.eps, 0.5, 1.0, 1.5, 2.0, 3.0, 88.5, 710.0, 1e15, info.max]
    return np.array([*finite, *(-v for v in finite), np.inf, -np.inf, np.nan], dtype)


def _embedded(x: np.ndarray, pad: int, step: int) -> tp.Tensor:
    """x inside a larger contiguous tensor full of a value that would show, and the slices that get it back."""
    big = np.full([2 * pad + max(n * step, 1) for n in x.shape], 77).astype(x.dtype)
    where = tuple(slice(pad, pad + n * step, step) for n in x.shape)
    big[where] = x
    return tp.tensor(big)[where]


def _transposed(x: np.ndarray) -> tp.Tensor:
    return tp.permute_dims(tp.tensor(np.array(x.T, order="C")), tuple(range(x.ndim))[::-1])


def _reversed(x: np.ndarray) -> tp.Tensor:
    backwards = (slice(None, None, -1),) * x.ndim
    return tp.tensor(x[backwards].copy())[backwards]


def _foreign(x: np.ndarray) -> tp.Tensor:
    """Memory of NumPy's, read-only, by columns; with another default device than the cpu a packed copy there."""
    x = np.array(x, order="F")
    x.setflags(write=False)
    default = tp.empty(0).device
    t = tp.asarray(x, copy=False)
    return t if default == "cpu" else t.to(default)


LAYOUTS: dict[str, Callable[[np.ndarray], tp.Tensor]] = {
    "plain": lambda x: tp.tensor(x),
    "transposed": _transposed,
    "reversed": _reversed,
    "stepped": lambda x: _embedded(x, 0, 2),
    "offset": lambda x: _embedded(x, 1, 1),
    "foreign": _foreign,
}
