"""Functions that move elements and are not hot: borders, choice by conditions. The others are in core/moves.pxi.

Composed of slices, concat, take, where and broadcast_to, so gradients of any order follow from those. Where an element
is taken more than once its gradients add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tapeflow import _core, _creation, errors
from tapeflow._arguments import (
    NUMBERS,
    as_axis,
    as_mask,
    as_tensor,
    common_shape,
    fitting,
    is_sequence,
    recorded,
)
from tapeflow._core import Tensor

if TYPE_CHECKING:
    from tapeflow._core import _Array

    _Pairs = Any  # an int, a pair, or a pair for each axis

_LARGE = 1 << 16  # elements from which it pays to move each once, piece by piece


def _part(x: Tensor, axis: int, start: int | None, stop: int | None, step: int | None = None) -> Tensor:
    """x[start:stop:step] along an axis."""
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


def pad(x: _Array, pad_width: _Pairs, mode: str = "constant", constant_values: Any = 0) -> Tensor:
    """x with a border.

    Parameters
    ----------
    x : Tensor
    pad_width : int, (before, after), or one pair for each axis
        The number of elements to add at both ends; or a dict from axis to int or pair, the other axes staying as they
        are.
    mode : "constant", "edge", "reflect", "symmetric" or "wrap"
        What the border holds: constant_values, the outermost element, the mirror image without or with that element,
        or the elements of the other end. Gradients go to the elements that were copied, and add up.
    constant_values : number or Tensor, (before, after), or one pair for each axis
        They must fit x's dtype. Where borders meet, the later axis has its value.

    Raises
    ------
    ShapeError
        For negative widths, widths that do not fit x's axes, and an empty axis with nothing to copy from.

    >>> tp.pad(tp.tensor([1.0, 2.0]), (1, 2)).tolist()
    [0.0, 1.0, 2.0, 0.0, 0.0]
    >>> tp.pad(tp.tensor([1.0, 2.0, 3.0]), 2, mode="reflect").tolist()
    [3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0]
    """
    x = as_tensor(x, "pad")
    widths = _pad_widths(pad_width, x.ndim)
    if mode == "constant":
        return _pad_constant(x, widths, constant_values)
    if mode not in ("edge", "reflect", "symmetric", "wrap"):
        raise errors.ShapeError(
            f"[pad] mode {mode!r} is not known. Use 'constant', 'edge', 'reflect', 'symmetric' or 'wrap'."
        )
    if is_sequence(constant_values) or type(constant_values) is not int or constant_values != 0:
        raise errors.ShapeError(f"[pad] constant_values go with mode 'constant', not {mode!r}. Leave them out.")
    axes = [axis for axis, width in enumerate(widths) if any(width)]
    if not axes:
        return x.clone()
    for axis in axes:
        if not x.shape[axis]:
            raise errors.ShapeError(f"[pad] axis {axis} is empty: mode {mode!r} has nothing to copy. Use 'constant'.")
    if len(axes) > 1 and x.size >= _LARGE and not recorded(x):
        return _pad_once(x, widths, axes, mode)
    for axis in axes:
        x = _pad_axis(x, axis, widths[axis], mode)
    return x


def _pad_axis(x: Tensor, axis: int, width: tuple[int, int], mode: str) -> Tensor:
    """x with copies of its own elements at the ends of an axis."""
    left, right = _borders(x, axis, width, mode)
    return _core.concat([p for p in (left, x, right) if p is not None], axis=axis)


def _pad_once(x: Tensor, widths: list[tuple[int, int]], axes: list[int], mode: str) -> Tensor:
    """The same along several axes, with x moved once: the borders of each axis are padded along those before it."""
    shape, inside = _pad_frame(x, widths)
    y = _core.empty(shape, x.dtype, x.device)
    y[inside] = x
    for i, axis in enumerate(axes):
        before, after = widths[axis]
        places = slice(0, before), slice(shape[axis] - after, None)
        for border, place in zip(_borders(x, axis, widths[axis], mode), places, strict=True):
            if border is not None:
                for earlier in axes[:i]:
                    border = _pad_axis(border, earlier, widths[earlier], mode)
                y[(slice(None),) * axis + (place,) + inside[axis + 1 :]] = border
    return y


def _borders(x: Tensor, axis: int, width: tuple[int, int], mode: str) -> list[Tensor | None]:
    """What x's own elements give for the borders at both ends of an axis; None for one of no width."""
    n = x.shape[axis]
    before, after = width
    if mode == "edge":
        borders: list[Tensor | None] = []
        for count, at in ((before, 0), (after, n - 1)):
            shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
            borders.append(_core.broadcast_to(_part(x, axis, at, at + 1), shape) if count else None)
        return borders
    if max(width) > n - (mode == "reflect"):  # further than one copy of x reaches
        at = np.pad(np.arange(n), width, mode)  # type: ignore[call-overload]
        return [_core.take(x, i, axis) for i in (at[:before], at[before + n :])]
    if mode == "wrap":
        cuts: Any = (n - before, n, 1), (0, after, 1)
    else:  # a mirror image, without or with the outermost element
        inner = int(mode == "reflect")
        last = n - 1 - inner
        cuts = (
            (before - 1 + inner, inner - 1 if inner else None, -1),
            (last, last - after if last >= after else None, -1),
        )
    return [_part(x, axis, *cut) if count else None for count, cut in zip(width, cuts, strict=True)]


def _pad_frame(x: Tensor, widths: list[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    """The shape with a border, and the index of what is inside."""
    pairs = list(zip(x.shape, widths, strict=True))
    shape = tuple(n + before + after for n, (before, after) in pairs)
    return shape, tuple(slice(before, before + n) for n, (before, _) in pairs)


def _pad_widths(pad_width: Any, ndim: int) -> list[tuple[int, int]]:
    """(before, after) for each axis."""
    if type(pad_width) is int and pad_width >= 0:
        return [(pad_width, pad_width)] * ndim
    if isinstance(pad_width, dict):
        table: list[Any] = [(0, 0)] * ndim
        for axis, width in pad_width.items():
            table[as_axis(axis, ndim, "pad")] = width if is_sequence(width) else (width, width)
        pad_width = table if ndim else 0
    given = np.asarray(_numbers(pad_width) if isinstance(pad_width, Tensor) else pad_width)
    if given.dtype.kind not in "iu":
        raise errors.DTypeError(f"[pad] pad_width must be ints, got dtype {given.dtype}. Use whole numbers.")
    try:
        pairs = np.broadcast_to(given, (ndim, 2)).tolist()
    except ValueError:
        raise errors.ShapeError(
            f"[pad] pad_width of shape {given.shape} for a tensor of {ndim} axes. "
            "Give an int, a pair (before, after), or one pair for each axis."
        ) from None
    if given.size and given.min() < 0:
        raise errors.ShapeError(f"[pad] widths must not be negative, got {given.min()}. Use a slice to cut off.")
    return [(before, after) for before, after in pairs]


def _numbers(t: Tensor) -> Any:
    """The elements of a small tensor, each a look of its own."""
    return t.item() if t.ndim == 0 else [_numbers(x) for x in t]


def _pad_constant(x: Tensor, widths: list[tuple[int, int]], values: Any) -> Tensor:
    shape, inside = _pad_frame(x, widths)
    one = None if is_sequence(values) else fitting(values, x.dtype, "pad")
    if one is not None and isinstance(values, Tensor):
        x, one = _core.put_together([x, one], "pad")
    if one is not None and one.requires_grad:
        y = _core.broadcast_to(one, shape)
    elif one is not None and x.size < _LARGE:
        y = _core.full(shape, one, device=x.device)
    else:  # the border alone
        y = _core.empty(shape, x.dtype, x.device)
        ends = None if one is not None else _pad_values(values, x)
        for axis, (before, after) in enumerate(widths):  # where borders meet, the later axis has its value
            head = (slice(None),) * axis
            for i, where in enumerate((slice(0, before), slice(shape[axis] - after, None))):
                border = one if ends is None else ends[axis, i]
                if border is not None:
                    y[head + (where,)] = border
    y[inside] = x
    return y


def _pad_values(values: Any, x: Tensor) -> Tensor:
    """The values of the border, one pair for each axis of x."""
    given = fitting(values, x.dtype, "pad")
    if not isinstance(values, Tensor) and not given.requires_grad:
        given = _creation.convert(values, "pad", x.dtype)  # floats in lists with every digit
    try:
        return _core.broadcast_to(given, (x.ndim, 2))
    except errors.ShapeError:
        raise errors.ShapeError(
            f"[pad] constant_values of shape {given.shape} for a tensor of {x.ndim} axes. "
            "Give a number, a pair (before, after), or one pair for each axis."
        ) from None


# ---- choice


def select(condlist: Sequence[_Array], choicelist: Sequence[_Array], default: _Array = 0) -> Tensor:
    """For each element the choice whose condition is the first that holds; default where none does. All broadcast.

    Parameters
    ----------
    condlist : sequence of bool tensors
    choicelist : sequence of tensors or numbers
        As many as conditions.
    default : Tensor or number

    Returns
    -------
    Tensor
        Of the dtype that choices and default have in common. The gradient goes to what was chosen, and nothing leaks
        from what was not.

    >>> x = tp.tensor([-2.0, 0.5, 3.0])
    >>> tp.select([x < 0, x < 1], [-x, x * 10], default=1.0).tolist()
    [2.0, 5.0, 1.0]
    """
    if len(condlist) != len(choicelist) or not len(condlist):
        raise errors.ShapeError(
            f"[select] {len(condlist)} conditions and {len(choicelist)} choices: give as many of one as of the other, "
            "and at least one."
        )
    conditions = [as_mask(c, "select") for c in condlist]
    values = [v if type(v) in NUMBERS else as_tensor(v, "select") for v in (*choicelist, default)]
    shapes = [v.shape for v in values if isinstance(v, Tensor)]
    common_shape("select", *(c.shape for c in conditions), *shapes)
    dtype = _core.result_type(*values)
    result: Any = fitting(values[-1], dtype, "select")
    for condition, value in zip(reversed(conditions), reversed(values[:-1])):
        result = _core.where(condition, fitting(value, dtype, "select"), result)
    return result
