"""What the functions written in Python do with their arguments: tensors, axes, shapes, masks, or an error that
says what was given and what to do."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from tapeflow import _core, _creation, errors
from tapeflow._core import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Host = NDArray[Any]

_KINDS = {"b": 0, "u": 1, "i": 1, "f": 2}
NUMBERS = {bool: 0, int: 1, float: 2}  # weak ones, of the same kinds


def as_tensor(x: Any, op: str) -> Tensor:
    """x itself, or anything that data can come in as a new constant."""
    if isinstance(x, Tensor):
        return x if type(x) is Tensor else _core.operand(x)
    return _creation.convert(x, op)


def fresh(array: Host) -> Tensor:
    """A tensor over an array that nobody else has; it goes to the device of what it meets."""
    return _core.from_numpy(array, False, "tensor", loose=True)


def as_int(x: Any, op: str, what: str) -> int:
    """x, if it is an int of any library."""
    try:
        return operator.index(x)
    except TypeError:
        raise errors.DTypeError(f"[{op}] {what} must be an int, got {type(x).__name__}.") from None


def as_axis(axis: Any, ndim: int, op: str) -> int:
    """axis as 0 .. ndim-1."""
    if type(axis) is int and 0 <= axis < ndim:
        return axis
    a = as_int(axis, op, "axis")
    if -ndim <= a < ndim:
        return a % ndim
    if not ndim:
        raise errors.AxisError(f"[{op}] axis {a} is out of range: a 0-d tensor has no axes. Use tp.atleast_1d first.")
    raise errors.AxisError(
        f"[{op}] axis {a} is out of range for a tensor of {ndim} dimensions. Use an axis from {-ndim} to {ndim - 1}."
    )


def is_sequence(x: Any) -> bool:
    """Whether x holds several values, in one of the forms that an argument may have."""
    return isinstance(x, (tuple, list, range)) or (isinstance(x, (np.ndarray, Tensor)) and x.ndim > 0)


def as_ints(x: Any, op: str, what: str) -> list[int]:
    """An int or a sequence of ints as a list."""
    if not is_sequence(x):
        return [as_int(x, op, what)]
    # of a tensor each element is a look of its own
    return [as_int(i, op, what) for i in (x.tolist() if isinstance(x, np.ndarray) else x)]


def as_axes(axis: Any, ndim: int, op: str) -> list[int]:
    """An axis or several, each once."""
    axes = [as_axis(a, ndim, op) for a in as_ints(axis, op, "axis")]
    if len(set(axes)) < len(axes):
        raise errors.ShapeError(f"[{op}] axis {axis} names an axis twice. Name each one once.")
    return axes


def recorded(*tensors: Tensor) -> bool:
    """Whether the gradient of one of them is wanted; otherwise NumPy may work on the values."""
    return any(t.requires_grad for t in tensors) and _core.is_grad_enabled()


def common_shape(op: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that shapes broadcast to."""
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0] if shapes else ()
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise errors.ShapeError(
            f"[{op}] shapes {', '.join(map(str, shapes))} do not broadcast: aligned from the right, sizes must be "
            "equal or 1. Use reshape or expand_dims."
        ) from None


def fitting(value: Any, dtype: np.dtype[Any], op: str) -> Tensor:
    """value as a tensor of this dtype; a value of a higher kind (a float for ints) does not fit."""
    if type(value) in NUMBERS:
        if NUMBERS[type(value)] <= _KINDS[dtype.kind] or type(value) is int and value in (0, 1):
            return _core.from_number(value, dtype, op)
        raise errors.DTypeError(f"[{op}] {value!r} does not fit dtype {dtype}. Cast the tensor with .astype first.")
    if isinstance(value, _core.WeakFloat):
        return value.astype(dtype) if dtype.kind == "f" else fitting(_core.as_number(value), dtype, op)
    value = as_tensor(value, op)
    if _KINDS[value.dtype.kind] > _KINDS[dtype.kind]:
        raise errors.DTypeError(
            f"[{op}] values of dtype {value.dtype} do not fit a tensor of dtype {dtype}. Cast one of them with .astype."
        )
    return value.astype(dtype)


def as_mask(mask: Any, op: str) -> Tensor:
    """A bool tensor."""
    mask = as_tensor(mask, op)
    if mask.dtype != np.bool_:
        raise errors.DTypeError(f"[{op}] a mask must be bool, got dtype {mask.dtype}. Use a comparison, as x > 0.")
    return mask
