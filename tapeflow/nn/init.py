"""Initial values: `init.xavier_uniform((64, 784))` makes a tensor, `init.xavier_uniform(layer.weight)` fills one.

The first argument is a shape, or a tensor, which is filled outside of any recording and returned. Draws come from
`generator` (a tp.random.Generator), by default from the one that tp.random.manual_seed seeds; each call takes one.

Fans: of a shape (out, in, *window), fan_in = in * window and fan_out = out * window, as the weights of nn.Linear, (out,
in), have it. For a matrix that is used as x @ w, of shape (in, out), ask for the other: mode="fan_out".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tapeflow as tp
from tapeflow import _core
from tapeflow.errors import DTypeError, NumberRangeError, ShapeError

__all__ = [
    "calculate_gain",
    "constant",
    "kaiming_normal",
    "kaiming_uniform",
    "normal",
    "ones",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
]

Target = tp.Tensor | int | tuple[int, ...] | list[int]
_GAINS = {"linear": 1.0, "identity": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2.0), "selu": 0.75}


# ---- arguments


def _shape(target: Target) -> tuple[int, ...]:
    if isinstance(target, tp.Tensor):
        return target.shape
    return tuple(target) if isinstance(target, (tuple, list)) else (target,)


def _dtype(target: Target, dtype: Any, op: str) -> Any:
    """The dtype to draw in: that of the tensor to fill, or as asked for."""
    if isinstance(target, tp.Tensor):
        if dtype is not None:
            raise DTypeError(f"[init.{op}] dtype is for new tensors; the one to fill has {target.dtype}. Leave it out.")
        dtype = target.dtype
    found = tp.get_default_dtype() if dtype is None else np.dtype(dtype)
    if found.kind != "f":
        raise DTypeError(f"[init.{op}] dtype is {found}, expected float32 or float64.")
    return found


def _given(target: Target, values: tp.Tensor) -> tp.Tensor:
    """The values, in the tensor to fill if there is one."""
    if not isinstance(target, tp.Tensor):
        return values
    with tp.no_grad():
        return target.assign(_core.move(values, _core.place_of(target)))


def _fans(target: Target, op: str) -> tuple[int, int]:
    shape = _shape(target)
    if len(shape) < 2:
        raise ShapeError(f"[init.{op}] shape {shape} has no fans; expected (out, in, ...). Use init.uniform or normal.")
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def _fan(target: Target, mode: str, op: str) -> int:
    if mode not in ("fan_in", "fan_out"):
        raise DTypeError(f"[init.{op}] mode is {mode!r}, expected 'fan_in' or 'fan_out'.")
    return _fans(target, op)[mode == "fan_out"]


def _positive(value: float, what: str, op: str) -> float:
    if not value >= 0.0:
        raise NumberRangeError(f"[init.{op}] {what} is {value}, expected 0 or more.")
    return value


def calculate_gain(nonlinearity: str, negative_slope: float = 0.01) -> float:
    """The factor that keeps the variance through a nonlinearity: its name as in nn, small.

    >>> tp.nn.init.calculate_gain("leaky_relu", 1.0)
    1.0
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1.0 + negative_slope**2))
    if nonlinearity not in _GAINS:
        raise DTypeError(
            f"[init.calculate_gain] {nonlinearity!r} is not known, expected leaky_relu, {', '.join(_GAINS)}. "
            "Give the gain as a number where one is taken."
        )
    return _GAINS[nonlinearity]


# ---- constants


def constant(target: Target, value: float, *, dtype: Any = None) -> tp.Tensor:
    """Every element is value.

    >>> tp.nn.init.constant((2,), 0.5).tolist()
    [0.5, 0.5]
    """
    return _given(target, tp.full(_shape(target), value, dtype=_dtype(target, dtype, "constant")))


def zeros(target: Target, *, dtype: Any = None) -> tp.Tensor:
    """Every element is 0."""
    return constant(target, 0.0, dtype=dtype)


def ones(target: Target, *, dtype: Any = None) -> tp.Tensor:
    """Every element is 1."""
    return constant(target, 1.0, dtype=dtype)


# ---- draws


def _draws(generator: tp.random.Generator | None) -> tp.random.Generator:
    return tp.random.default_generator if generator is None else generator


def uniform(
    target: Target,
    low: float = 0.0,
    high: float = 1.0,
    *,
    generator: tp.random.Generator | None = None,
    dtype: Any = None,
) -> tp.Tensor:
    """Uniform in low <= x < high."""
    dtype = _dtype(target, dtype, "uniform")
    return _given(target, _draws(generator).uniform(low, high, _shape(target), dtype))


def normal(
    target: Target,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    generator: tp.random.Generator | None = None,
    dtype: Any = None,
) -> tp.Tensor:
    """Normal with this mean and standard deviation."""
    dtype = _dtype(target, dtype, "normal")
    return _given(target, _draws(generator).normal(mean, std, _shape(target), dtype))


def truncated_normal(
    target: Target,
    mean: float = 0.0,
    std: float = 1.0,
    low: float = -2.0,
    high: float = 2.0,
    *,
    generator: tp.random.Generator | None = None,
    dtype: Any = None,
) -> tp.Tensor:
    """Normal with this mean and standard deviation (before truncation), given that low <= x <= high.

    By the quantile function at uniform numbers between the probabilities of the bounds. Raises NumberRangeError for
    bounds between which there is next to no probability.

    >>> x = tp.nn.init.truncated_normal((1000,), std=0.02, low=-0.04, high=0.04)
    >>> float(tp.max(tp.abs(x))) <= 0.04
    True
    """
    dtype = _dtype(target, dtype, "truncated_normal")
    if not _positive(std, "std", "truncated_normal"):
        return constant(target, min(max(mean, low), high), dtype=None if isinstance(target, tp.Tensor) else dtype)
    below, above = (math.erf((bound - mean) / (std * math.sqrt(2.0))) for bound in (low, high))
    if not above - below > 1e-12:
        raise NumberRangeError(
            f"[init.truncated_normal] between low {low} and high {high} there are no normal numbers of mean {mean} "
            f"and std {std}. Move the bounds to where the numbers are."
        )
    u = _draws(generator).uniform(below, above, _shape(target), "float64")
    x = mean + std * math.sqrt(2.0) * tp.erfinv(u)
    # the bounds once more in the dtype of the result: rounding must not lead out of them
    low, high = (float(np.nextafter(b, mean, dtype=dtype)) if np.dtype(dtype).type(b) != b else b for b in (low, high))
    return _given(target, tp.clip(x, low, high).astype(dtype))


def xavier_uniform(
    target: Target, gain: float = 1.0, *, generator: tp.random.Generator | None = None, dtype: Any = None
) -> tp.Tensor:
    """Uniform in -b .. b, b = gain * sqrt(6 / (fan_in + fan_out)).

    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010.
    """
    bound = gain * math.sqrt(6.0 / max(1, sum(_fans(target, "xavier_uniform"))))
    return uniform(target, -bound, bound, generator=generator, dtype=dtype)


def xavier_normal(
    target: Target, gain: float = 1.0, *, generator: tp.random.Generator | None = None, dtype: Any = None
) -> tp.Tensor:
    """Normal with std gain * sqrt(2 / (fan_in + fan_out)); source: see xavier_uniform."""
    std = gain * math.sqrt(2.0 / max(1, sum(_fans(target, "xavier_normal"))))
    return normal(target, 0.0, std, generator=generator, dtype=dtype)


def kaiming_uniform(
    target: Target,
    negative_slope: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    generator: tp.random.Generator | None = None,
    dtype: Any = None,
) -> tp.Tensor:
    """Uniform in -b .. b, b = gain * sqrt(3 / fan), the gain that of the nonlinearity (with slope 0, of relu).

    He, Zhang, Ren and Sun, "Delving deep into rectifiers", ICCV 2015.
    """
    bound = calculate_gain(nonlinearity, negative_slope) * math.sqrt(
        3.0 / max(1, _fan(target, mode, "kaiming_uniform"))
    )
    return uniform(target, -bound, bound, generator=generator, dtype=dtype)


def kaiming_normal(
    target: Target,
    negative_slope: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    generator: tp.random.Generator | None = None,
    dtype: Any = None,
) -> tp.Tensor:
    """Normal with std gain / sqrt(fan); gain and source as in kaiming_uniform."""
    fan = max(1, _fan(target, mode, "kaiming_normal"))
    std = calculate_gain(nonlinearity, negative_slope) / math.sqrt(fan)
    return normal(target, 0.0, std, generator=generator, dtype=dtype)


def orthogonal(
    target: Target, gain: float = 1.0, *, generator: tp.random.Generator | None = None, dtype: Any = None
) -> tp.Tensor:
    """A matrix (all axes but the first taken as one) with orthonormal rows or, if it is taller, columns; times gain.

    The Q of a QR decomposition of normal numbers, the signs such that R's diagonal is positive, so that it is uniform
    among all. Saxe, McClelland and Ganguli, "Exact solutions to the nonlinear dynamics of learning", ICLR 2014.

    >>> w = tp.nn.init.orthogonal((2, 3), dtype="float64")
    >>> bool(tp.all(tp.abs(w @ w.T - tp.eye(2, dtype="float64")) < 1e-12))
    True
    """
    dtype = _dtype(target, dtype, "orthogonal")
    shape = _shape(target)
    if len(shape) < 2:
        raise ShapeError(f"[init.orthogonal] shape {shape} is not that of a matrix. Give two or more axes.")
    rows, columns = shape[0], math.prod(shape[1:])
    draws = _draws(generator).normal(shape=(max(rows, columns), min(rows, columns)), dtype="float64", device="cpu")
    q, r = np.linalg.qr(draws.numpy())
    q = q * np.where(np.diagonal(r) < 0.0, -1.0, 1.0)
    return _given(target, tp.tensor((gain * (q if rows >= columns else q.T).reshape(shape)).astype(dtype)))
