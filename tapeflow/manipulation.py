"""Functions that move elements: axes, pieces, copies and borders, diagonals, choice by index or mask.

All composed. Indices and masks are worked out by NumPy on values and carry no gradient; what they select moves by
slices, concat, take, where and broadcast_to, so gradients of any order follow from those. Where an element is taken
more than once its gradients add up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from tapeflow import _core, _creation, errors
from tapeflow._arguments import (
    NUMBERS,
    as_axes,
    as_axis,
    as_indices,
    as_int,
    as_ints,
    as_mask,
    as_tensor,
    common_shape,
    fitting,
    flat,
    in_range,
    is_sequence,
    recorded,
)
from tapeflow._core import Tensor

if TYPE_CHECKING:
    from tapeflow._core import _Array, _Axes, _Shape

    _Pairs = Any  # an int, a pair, or a pair for each axis

_LARGE = 1 << 16  # elements from which it pays to move each once, piece by piece


# ---- axes


def matrix_transpose(x: _Array) -> Tensor:
    """x with its last two axes exchanged.

    Parameters
    ----------
    x : Tensor
        Of at least two axes; otherwise a ShapeError.

    >>> tp.matrix_transpose(tp.tensor([[1, 2], [3, 4]])).tolist()
    [[1, 3], [2, 4]]
    """
    x = as_tensor(x, "matrix_transpose")
    if x.ndim < 2:
        raise errors.ShapeError(
            f"[matrix_transpose] expected at least two axes, got shape {x.shape}. Use expand_dims first."
        )
    return x.mT


def moveaxis(x: _Array, source: _Axes, destination: _Axes) -> Tensor:
    """x with the axes `source` at the places `destination`; the others keep their order.

    >>> tp.moveaxis(tp.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = as_tensor(x, "moveaxis")
    taken, places = (as_axes(a, x.ndim, "moveaxis") for a in (source, destination))
    if len(taken) != len(places):
        raise errors.ShapeError(
            f"[moveaxis] {len(taken)} source axes and {len(places)} destinations: give as many of one as of the other."
        )
    order = [a for a in range(x.ndim) if a not in taken]
    for place, a in sorted(zip(places, taken, strict=True)):
        order.insert(place, a)
    return _core.permute_dims(x, order)


def swapaxes(x: _Array, axis1: SupportsIndex, axis2: SupportsIndex) -> Tensor:
    """x with two axes exchanged.

    >>> tp.swapaxes(tp.zeros((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    x = as_tensor(x, "swapaxes")
    a, b = (as_axis(axis, x.ndim, "swapaxes") for axis in (axis1, axis2))
    order = list(range(x.ndim))
    order[a], order[b] = b, a
    return _core.permute_dims(x, order)


def broadcast_arrays(*arrays: _Array) -> tuple[Tensor, ...]:
    """The tensors stretched to the shape they have in common.

    >>> [t.shape for t in tp.broadcast_arrays(tp.zeros((2, 1)), tp.zeros(3))]
    [(2, 3), (2, 3)]
    """
    tensors = [as_tensor(a, "broadcast_arrays") for a in arrays]
    shape = common_shape("broadcast_arrays", *(t.shape for t in tensors))
    return tuple(_core.broadcast_to(t, shape) for t in tensors)


def ravel(x: _Array) -> Tensor:
    """All elements, in C order, along one axis.

    >>> tp.ravel(tp.tensor([[1, 2], [3, 4]])).tolist()
    [1, 2, 3, 4]
    """
    return flat(as_tensor(x, "ravel"))


def flatten(x: _Array, start_axis: SupportsIndex = 0, end_axis: SupportsIndex = -1) -> Tensor:
    """The axes start_axis to end_axis (included) as one. A 0-d tensor becomes 1-D.

    >>> tp.flatten(tp.zeros((2, 3, 4)), 1).shape
    (2, 12)
    """
    x = as_tensor(x, "flatten")
    first, last = (as_axis(a, max(x.ndim, 1), "flatten") for a in (start_axis, end_axis))
    if first > last:
        raise errors.ShapeError(f"[flatten] start_axis {start_axis} comes after end_axis {end_axis}. Exchange them.")
    shape = x.shape
    return _core.reshape(x, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))


def _at_least(arrays: tuple[Any, ...], op: str, new_axes: Any) -> Any:
    """Each tensor with the axes of size 1 that new_axes(ndim) puts before and behind; one tensor comes alone."""
    out = []
    for a in arrays:
        x = as_tensor(a, op)
        before, behind = new_axes(x.ndim)
        one = (1,)
        out.append(_core.reshape(x, one * before + x.shape + one * behind) if before + behind else x)
    return out[0] if len(out) == 1 else tuple(out)


def atleast_1d(*arrays: _Array) -> Any:
    """The tensor, a 0-d one as 1-D; several come back as a tuple.

    >>> tp.atleast_1d(tp.tensor(3.0)).shape
    (1,)
    """
    return _at_least(arrays, "atleast_1d", lambda ndim: (max(1 - ndim, 0), 0))


def atleast_2d(*arrays: _Array) -> Any:
    """The tensor with leading axes of size 1 up to two axes; several come back as a tuple.

    >>> tp.atleast_2d(tp.zeros(3)).shape
    (1, 3)
    """
    return _at_least(arrays, "atleast_2d", lambda ndim: (max(2 - ndim, 0), 0))


def atleast_3d(*arrays: _Array) -> Any:
    """The tensor as at least 3-D: (n,) becomes (1, n, 1), (m, n) becomes (m, n, 1); several come back as a tuple.

    >>> tp.atleast_3d(tp.zeros(3)).shape
    (1, 3, 1)
    """
    return _at_least(arrays, "atleast_3d", lambda ndim: ((1, 2), (1, 1), (0, 1))[ndim] if ndim < 3 else (0, 0))


# ---- order along axes, pieces


def _part(x: Tensor, axis: int, start: int | None, stop: int | None, step: int | None = None) -> Tensor:
    """x[start:stop:step] along an axis."""
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


def flip(x: _Array, axis: _Axes = None) -> Tensor:
    """x with the elements along the axes (all, for None) in reverse.

    >>> tp.flip(tp.tensor([[1, 2], [3, 4]]), axis=1).tolist()
    [[2, 1], [4, 3]]
    """
    x = as_tensor(x, "flip")
    index = [slice(None)] * x.ndim
    for a in range(x.ndim) if axis is None else as_axes(axis, x.ndim, "flip"):
        index[a] = slice(None, None, -1)
    return x[tuple(index)]


def rot90(x: _Array, k: SupportsIndex = 1, axes: Sequence[SupportsIndex] = (0, 1)) -> Tensor:
    """x turned k times by 90 degrees in the plane of two axes, from the first towards the second.

    >>> tp.rot90(tp.tensor([[1, 2], [3, 4]])).tolist()
    [[2, 4], [1, 3]]
    """
    x = as_tensor(x, "rot90")
    plane = as_axes(axes, x.ndim, "rot90")
    if len(plane) != 2:
        raise errors.ShapeError(f"[rot90] axes must name two axes, got {axes}.")
    turns = as_int(k, "rot90", "k") % 4
    if turns == 0:
        return x
    if turns == 2:
        return flip(x, plane)
    return swapaxes(flip(x, plane[1]), *plane) if turns == 1 else flip(swapaxes(x, *plane), plane[1])


def roll(x: _Array, shift: _Shape, axis: _Axes = None) -> Tensor:
    """x with the elements moved by `shift` places along the axes, those that leave coming in at the other end.

    Parameters
    ----------
    x : Tensor
    shift : int or sequence of ints
        Positive: towards higher indices.
    axis : int, sequence of ints, or None
        As many as shifts, or one of either; an axis named twice moves by the sum. None: along the flattened tensor.

    >>> tp.roll(tp.tensor([1, 2, 3, 4]), 1).tolist()
    [4, 1, 2, 3]
    """
    x = as_tensor(x, "roll")
    if axis is None:
        return _core.reshape(roll(flat(x), shift, 0), x.shape)
    shifts = as_ints(shift, "roll", "shift")
    axes = [as_axis(a, x.ndim, "roll") for a in as_ints(axis, "roll", "axis")]
    if len(shifts) != len(axes) and 1 not in (len(shifts), len(axes)):
        raise errors.ShapeError(
            f"[roll] {len(shifts)} shifts for {len(axes)} axes. Give one shift for each axis, or one for all."
        )
    total: dict[int, int] = {}
    for s, a in np.broadcast(shifts, axes) if len(shifts) != len(axes) else zip(shifts, axes):
        total[int(a)] = total.get(int(a), 0) + int(s)
    cuts = {a: -s % x.shape[a] for a, s in total.items() if x.size and s % x.shape[a]}
    if len(cuts) > 1 and x.size >= _LARGE and not recorded(x):
        return _roll_once(x, cuts)
    for a, cut in cuts.items():
        x = _core.concat([_part(x, a, cut, None), _part(x, a, None, cut)], axis=a)
    return x


def _roll_once(x: Tensor, cuts: dict[int, int]) -> Tensor:
    """x with the parts before and from the cut of each axis exchanged, each element moved once."""
    y = _core.empty(x.shape, x.dtype)
    whole = [[(slice(None), slice(None))]] * x.ndim
    for a, cut in cuts.items():
        whole[a] = [
            (slice(cut, None), slice(0, x.shape[a] - cut)),
            (slice(0, cut), slice(x.shape[a] - cut, None)),
        ]
    for block in itertools.product(*whole):
        y[tuple(to for _, to in block)] = x[tuple(of for of, _ in block)]
    return y


def unstack(x: _Array, axis: SupportsIndex = 0) -> tuple[Tensor, ...]:
    """The slices of x along an axis, without that axis: what tp.stack puts together.

    >>> [t.tolist() for t in tp.unstack(tp.tensor([[1, 2], [3, 4]]), axis=1)]
    [[1, 3], [2, 4]]
    """
    x = as_tensor(x, "unstack")
    a = as_axis(axis, x.ndim, "unstack")
    if a == 0:
        return tuple(x)
    before = (slice(None),) * a
    return tuple(x[before + (i,)] for i in range(x.shape[a]))


def split(x: _Array, indices_or_sections: Any, axis: SupportsIndex = 0) -> list[Tensor]:
    """x cut along an axis, into equal parts or at indices.

    Parameters
    ----------
    x : Tensor
    indices_or_sections : int or sequence of ints
        An int: the number of equal parts; a ShapeError when they are not (see array_split). A sequence: where to cut.
    axis : int

    >>> [t.tolist() for t in tp.split(tp.tensor([1, 2, 3, 4]), [1, 3])]
    [[1], [2, 3], [4]]
    """
    return _split(x, indices_or_sections, axis, "split")


def array_split(x: _Array, indices_or_sections: Any, axis: SupportsIndex = 0) -> list[Tensor]:
    """As split, but parts may differ by one in size: the first ones are the longer ones.

    >>> [t.tolist() for t in tp.array_split(tp.tensor([1, 2, 3, 4]), 3)]
    [[1, 2], [3], [4]]
    """
    return _split(x, indices_or_sections, axis, "array_split")


def _split(array: Any, where: Any, axis: Any, op: str) -> list[Tensor]:
    x = as_tensor(array, op)
    a = as_axis(axis, x.ndim, op)
    n = x.shape[a]
    if is_sequence(where):
        cuts: list[Any] = [0, *as_ints(where, op, "an index"), None]
    else:
        parts = as_int(where, op, "the number of parts")
        if parts < 1:
            raise errors.ShapeError(f"[{op}] the number of parts must be at least 1, got {parts}.")
        if n % parts and op == "split":
            raise errors.ShapeError(
                f"[split] axis {a} of size {n} does not divide into {parts} equal parts. Use array_split, or indices."
            )
        each, longer = divmod(n, parts)
        cuts = [i * each + min(i, longer) for i in range(parts + 1)]
    return [_part(x, a, start, stop) for start, stop in zip(cuts, cuts[1:])]


# ---- copies and borders


def tile(x: _Array, repetitions: _Shape) -> Tensor:
    """Copies of x side by side, `repetitions` of them along each axis.

    The shorter of x.shape and repetitions is filled up with ones from the left. Gradients are summed over the copies.

    >>> tp.tile(tp.tensor([1, 2]), (2, 2)).tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    x = as_tensor(x, "tile")
    reps = as_ints(repetitions, "tile", "a repetition")
    if any(r < 0 for r in reps):
        raise errors.ShapeError(f"[tile] repetitions must not be negative, got {repetitions}.")
    ndim = max(x.ndim, len(reps))
    shape = (1,) * (ndim - x.ndim) + x.shape
    reps = [1] * (ndim - len(reps)) + reps
    one, many = [], []
    for r, n in zip(reps, shape, strict=True):
        if r != 1 and n != 1:
            one.append(1)
            many.append(r)
        one.append(n)
        many.append(r if n == 1 else n)
    result = [r * n for r, n in zip(reps, shape, strict=True)]
    return _core.reshape(_core.broadcast_to(_core.reshape(x, one), many), result)


def repeat(x: _Array, repeats: Any, axis: SupportsIndex | None = None) -> Tensor:
    """Each element of x repeated along an axis (of the flattened x for None).

    Parameters
    ----------
    x : Tensor
    repeats : int, or integer Tensor, array or list
        How often: one number, or one for each element along the axis.
    axis : int or None

    >>> tp.repeat(tp.tensor([1, 2]), [1, 3]).tolist()
    [1, 2, 2, 2]
    """
    x = as_tensor(x, "repeat")
    if axis is None:
        x, axis = flat(x), 0
    a = as_axis(axis, x.ndim, "repeat")
    n = x.shape[a]
    counts = np.array(repeats) if type(repeats) is int else as_indices(repeats, "repeat")
    if counts.ndim > 1 or counts.size not in (1, n):
        raise errors.ShapeError(
            f"[repeat] repeats of shape {counts.shape} for an axis of size {n}. Give one number, or one per element."
        )
    if counts.size and counts.min() < 0:
        raise errors.ShapeError(f"[repeat] repeats must not be negative, got {counts.min()}.")
    if counts.size != 1:
        with _creation.allocation("repeat", f"{counts.sum()} repetitions"):
            at = np.repeat(np.arange(n), counts)
        return _core.take(x, at, a)
    count = int(counts.reshape(()))
    if count == 1:
        return x
    before, behind = x.shape[:a], x.shape[a + 1 :]
    stretched = _core.broadcast_to(_core.reshape(x, (*before, n, 1, *behind)), (*before, n, count, *behind))
    return _core.reshape(stretched, (*before, n * count, *behind))


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
    y = _core.empty(shape, x.dtype)
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
    given = np.asarray(pad_width.numpy() if isinstance(pad_width, Tensor) else pad_width)
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


def _pad_constant(x: Tensor, widths: list[tuple[int, int]], values: Any) -> Tensor:
    shape, inside = _pad_frame(x, widths)
    one = None if is_sequence(values) else fitting(values, x.dtype, "pad")
    if one is not None and one.requires_grad:
        y = _core.broadcast_to(one, shape)
    elif one is not None and x.size < _LARGE:
        y = _core.full(shape, one)
    else:  # the border alone
        y = _core.empty(shape, x.dtype)
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


# ---- diagonals


def diagonal(x: _Array, offset: SupportsIndex = 0, axis1: SupportsIndex = 0, axis2: SupportsIndex = 1) -> Tensor:
    """The diagonal of x in the plane of two axes, as the last axis of the result.

    Parameters
    ----------
    x : Tensor
        Of at least two axes.
    offset : int
        Which diagonal: positive ones lie above the main one (at higher indices of axis2).
    axis1, axis2 : int
        The axes of rows and of columns; for stacks of matrices they are -2 and -1.

    >>> tp.diagonal(tp.tensor([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
    x = as_tensor(x, "diagonal")
    if x.ndim < 2:
        raise errors.ShapeError(f"[diagonal] expected at least two axes, got shape {x.shape}. tp.diag makes a matrix.")
    row, column = (as_axis(a, x.ndim, "diagonal") for a in (axis1, axis2))
    k = as_int(offset, "diagonal", "offset")
    if row == column:
        raise errors.ShapeError(f"[diagonal] axis1 and axis2 are the same axis, {row}. Name two.")
    if row > column:
        row, column, k = column, row, -k
    if column != row + 1:
        x, row = moveaxis(x, (row, column), (-2, -1)), x.ndim - 2
    rows, columns = x.shape[row : row + 2]
    start = k if k >= 0 else -k * columns
    count = max(0, min(rows, columns - k) if k >= 0 else min(rows + k, columns))
    before, behind = x.shape[:row], x.shape[row + 2 :]
    lines = _core.reshape(x, (*before, rows * columns, *behind))
    if count:
        y = _part(lines, row, start, start + (count - 1) * (columns + 1) + 1, columns + 1)
    else:
        y = _part(lines, row, 0, 0)
    return moveaxis(y, row, -1) if behind else y


def diag(x: _Array, k: SupportsIndex = 0) -> Tensor:
    """The k-th diagonal of a matrix, or the matrix of zeros that has a vector as its k-th diagonal.

    >>> tp.diag(tp.tensor([1, 2])).tolist()
    [[1, 0], [0, 2]]
    """
    x = as_tensor(x, "diag")
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise errors.ShapeError(f"[diag] expected a vector or a matrix, got shape {x.shape}. See tp.diagonal.")
    offset = as_int(k, "diag", "k")
    n = x.size + abs(offset)
    lines = _core.zeros((n * n,), x.dtype)
    if x.size:
        start = offset if offset >= 0 else -offset * n
        lines[start : start + (x.size - 1) * (n + 1) + 1 : n + 1] = x
    return _core.reshape(lines, (n, n))


# ---- by index


def index_add(x: _Array, axis: SupportsIndex, indices: _Array, updates: _Array, *, alpha: float | Tensor = 1) -> Tensor:
    """A new tensor: x with alpha * updates added at indices along an axis; repeated indices add up, in order.

    The order of arguments is PyTorch's. See also scatter_add.

    Parameters
    ----------
    x : Tensor
    axis : int
    indices : integer Tensor, array or list
        1-D.
    updates : Tensor
        Broadcasts to x's shape with the length of indices along the axis; of x's dtype or narrower.

    >>> tp.index_add(tp.zeros(3), 0, [0, 2, 0], tp.tensor([1.0, 2.0, 3.0])).tolist()
    [4.0, 0.0, 2.0]
    """
    x = as_tensor(x, "index_add")
    a = as_axis(axis, x.ndim, "index_add")
    index = as_indices(indices, "index_add")
    if index.ndim != 1:
        raise errors.ShapeError(f"[index_add] indices must be 1-D, got shape {index.shape}. Use tp.ravel.")
    updates = fitting(updates, x.dtype, "index_add")
    shape = (*x.shape[:a], index.size, *x.shape[a + 1 :])
    if common_shape("index_add", updates.shape, shape) != shape:
        raise errors.ShapeError(f"[index_add] updates of shape {updates.shape} do not fit {shape}, what is added to.")
    if not (type(alpha) in (int, float) and alpha == 1):
        updates = _core.multiply(updates, fitting(alpha, x.dtype, "index_add"))
    return _core.scatter_add(x, in_range(index, x.shape[a], a, "index_add"), updates, a)


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
    dtype = _creation.result_type(*values)
    result: Any = fitting(values[-1], dtype, "select")
    for condition, value in zip(reversed(conditions), reversed(values[:-1])):
        result = _core.where(condition, fitting(value, dtype, "select"), result)
    return result
