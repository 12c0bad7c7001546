"""Random numbers that depend on (seed, draw, element) alone: Philox 4x32-10 (csrc/random.h).

    tp.random.manual_seed(0)
    x = tp.random.normal(0.0, 1.0, (3, 4))
    g = tp.random.Generator(7)
    i = g.integers(10, shape=(5,))

Every call takes the next draw number of its generator, whatever its shape, also for an empty one; a call that
raises takes none. A shorter draw is a prefix of a longer one (not for permutation). The numbers are the same on every
device and for every number of threads. The module's functions are those of one generator, `default_generator`,
seeded by the system at import. Sources: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import math
import operator
import os
from typing import Any, TypeGuard

import numpy as np

from tapeflow import _core, _creation, _draws
from tapeflow._core import Tensor
from tapeflow.errors import DTypeError, NumberRangeError, ShapeError

__all__ = [
    "Generator",
    "bernoulli",
    "default_generator",
    "integers",
    "manual_seed",
    "normal",
    "permutation",
    "uniform",
]

_WORD = 1 << 64
_FLOATS = ("float32", "float64")
_INTEGERS = ("uint8", "int32", "int64")


# ---- arguments


def _word(value: Any, what: str, op: str) -> int:
    """An integer that fits in 64 bits, unsigned."""
    try:
        number = operator.index(value)
    except TypeError:
        raise DTypeError(f"[random.{op}] expected an integer as {what}, got {type(value).__name__}.") from None
    if not 0 <= number < _WORD:
        raise NumberRangeError(f"[random.{op}] {what} is {number}, outside 0 .. 2**64 - 1.")
    return number


def _read_shape(shape: Any, op: str) -> tuple[int, ...]:
    """A shape argument as a tuple; one integer is a vector's length."""
    try:
        sizes = tuple(map(operator.index, shape)) if isinstance(shape, (tuple, list)) else (operator.index(shape),)
    except TypeError:
        raise ShapeError(f"[random.{op}] expected an integer or a tuple of integers as shape, got {shape!r}.") from None
    if any(size < 0 for size in sizes):
        raise ShapeError(f"[random.{op}] shape {sizes} has a negative size. Sizes are 0 or more.")
    return sizes


def _read_dtype(dtype: Any, allowed: tuple[str, ...], op: str) -> str:
    """The name of a dtype argument, which must be one of allowed."""
    if dtype is float:
        dtype = _core.get_default_dtype()
    elif dtype is int:
        dtype = "int64"
    try:
        name = np.dtype(dtype).name if dtype is not None else "None"
    except TypeError:
        name = repr(dtype)
    if name not in allowed:
        raise DTypeError(f"[random.{op}] dtype is {name}, expected {' or '.join(allowed)}.")
    return name


def _read_parameter(value: Any, what: str, op: str) -> float | Tensor:
    """A number as a float; a tensor, or what becomes one, as a tensor."""
    if isinstance(value, (int, float, np.number, np.bool_)):
        if isinstance(value, np.complexfloating):
            raise DTypeError(f"[random.{op}] {what} is complex, expected a real number or a tensor.")
        try:
            return float(value)
        except OverflowError:
            raise NumberRangeError(f"[random.{op}] {what} is beyond the largest float.") from None
    if value is None or isinstance(value, str):
        raise DTypeError(f"[random.{op}] {what} is {value!r}, expected a number or a tensor.")
    return value if isinstance(value, Tensor) else _creation.convert(value, f"random.{op}")


def _is_tensor(value: Any) -> TypeGuard[Tensor]:
    """Whether a parameter has a shape and dtype of its own: a float that a recording made a tensor of has none."""
    return isinstance(value, Tensor) and not isinstance(value, _core.WeakFloat)


def _read_float_dtype(dtype: Any, parameters: tuple[float | Tensor, ...], op: str) -> str:
    """The dtype of a draw: as asked for, or that of the parameters that are float tensors, or the default."""
    if dtype is None:
        floats = [np.dtype(p.dtype) for p in parameters if _is_tensor(p)]
        floats = [d for d in floats if d.kind == "f"]
        dtype = np.result_type(*floats) if floats else _core.get_default_dtype()
    return _read_dtype(dtype, _FLOATS, op)


def _draw_shape(shape: Any, parameters: tuple[float | Tensor, ...], op: str) -> tuple[int, ...]:
    """The shape of a draw: that of the parameters where none is given; else theirs must broadcast to it."""
    shapes = [tuple(p.shape) for p in parameters if _is_tensor(p)]
    wanted = None if shape is None else _read_shape(shape, op)
    if wanted is not None and not shapes:
        return wanted
    try:
        together = np.broadcast_shapes(*shapes, *(() if wanted is None else (wanted,)))
    except ValueError:
        together = None
    if together is None or (wanted is not None and together != wanted):
        given = f" for shape {wanted}" if wanted is not None else ""
        raise ShapeError(f"[random.{op}] parameters of shapes {shapes} do not broadcast{given}.")
    return together


def _place(device: Any, parameters: tuple[Any, ...], op: str) -> Any:
    """Where to draw: on the device asked for, or that of a parameter that is on one, or the default device."""
    if device is None:
        tensors = [p for p in parameters if isinstance(p, Tensor)]
        places = [place for place in map(_core.place_of, tensors) if place is not None]
        if places or any(p.ndim and not _core.goes_along(p) for p in tensors):
            return places[0] if places else None
    return _creation.place(device, f"random.{op}")


# ---- the generator


class Generator(_core.GeneratorState):
    """A stream of draws: a seed and the number of the next draw.

    Args: seed, an integer in 0 .. 2**64 - 1, or None for one from the system. Safe to share between threads (which
    thread gets which draw is up to them), to copy and to pickle.

    >>> a, b = (tp.random.Generator(3).integers(100, shape=(n,)).tolist() for n in (3, 5))
    >>> a == b[:3]
    True
    """

    __slots__ = ("__weakref__", "_born")

    def __init__(self, seed: int | None = None) -> None:
        self._born = _draws.run_now()
        if seed is None:
            self._write(int.from_bytes(os.urandom(8), "little"), 0)
        else:  # made in a recording, it begins there at each replay
            self._set(_word(seed, "seed", "Generator"), 0)

    def __repr__(self) -> str:
        return "Generator(seed={}, draw={})".format(*self.state)

    def __getstate__(self) -> tuple[int, int]:
        return self.state

    def __setstate__(self, state: tuple[int, int]) -> None:
        self._born = _draws.run_now()
        self._set(*state)

    @property
    def state(self) -> tuple[int, int]:
        """(seed, number of the next draw); assign it to go back to where it was read."""
        return self._read()

    @state.setter
    def state(self, state: tuple[int, int]) -> None:
        if not isinstance(state, (tuple, list)) or len(state) != 2:
            raise DTypeError(f"[random.Generator] expected (seed, draw) as state, got {state!r}.")
        seed, draw = _word(state[0], "seed", "Generator"), _word(state[1], "draw", "Generator")
        if not _draws.repeating(self):  # set before, in the run that is made again; its draws are known
            self._set(seed, draw)

    def _set(self, seed: int, draw: int) -> None:
        _core.generator_seeded(self, self._write(seed, draw), seed, draw)

    def uniform(
        self, low: Any = 0.0, high: Any = 1.0, shape: Any = None, dtype: Any = None, device: Any = None
    ) -> Tensor:
        """Numbers uniform in low <= x < high.

        Args: low, high: numbers, or tensors that broadcast to shape; the result is low + (high - low) * u, and
        differentiable in them. shape: defaults to that of low and high. dtype: float32 or float64; defaults to that
        of the tensors, else to the default dtype. A unit draw has 24 or 53 random bits.
        Raises: NumberRangeError for numbers low > high or not finite; ShapeError; DTypeError.

        >>> tp.random.Generator(0).uniform(-1, 1, (2, 3)).shape
        (2, 3)
        """
        low, high = _read_parameter(low, "low", "uniform"), _read_parameter(high, "high", "uniform")
        dtype = _read_float_dtype(dtype, (low, high), "uniform")
        shape = _draw_shape(shape, (low, high), "uniform")
        there = _place(device, (low, high), "uniform")
        if _is_tensor(low) or _is_tensor(high):
            u = _core.random_fill(self, "uniform", shape, dtype, device=there)
            low, high = (p.astype(dtype) if isinstance(p, Tensor) else p for p in (low, high))
            return low + (high - low) * u
        width = high - low
        if not (0.0 <= width <= float(np.finfo(dtype).max)):
            raise NumberRangeError(
                f"[random.uniform] low is {low}, high is {high}; expected finite numbers of {dtype}, low <= high."
            )
        u = _core.random_fill(self, "uniform", shape, dtype, device=there)
        if width != 1.0:
            u = u * width
        if low == 0.0:  # u < 1 and one rounding: cannot reach high
            return u
        u = u + low
        if isinstance(high, Tensor):
            top = _core.nextafter(high.astype(dtype), -math.inf)
            return _core.where(top >= low, _core.minimum(u, top), u)
        top = np.nextafter(np.dtype(dtype).type(high), np.dtype(dtype).type(-np.inf))
        return _core.minimum(u, float(top)) if top >= low else u

    def normal(
        self, loc: Any = 0.0, scale: Any = 1.0, shape: Any = None, dtype: Any = None, device: Any = None
    ) -> Tensor:
        """Normal numbers with mean loc and standard deviation scale.

        Args: loc, scale: numbers, or tensors that broadcast to shape; the result is scale * z + loc, and
        differentiable in them. shape: defaults to that of loc and scale. dtype: as in uniform. z is the quantile
        function at (w + 1/2) / 2**32 of a 32-bit word w (64-bit for float64) to within 2e-7 (3e-14) of its value;
        so |z| <= 6.34 (9.16).
        Raises: NumberRangeError for a number scale that is negative or NaN; ShapeError; DTypeError.

        >>> tp.random.Generator(0).normal(shape=(2, 3)).dtype
        dtype('float32')
        """
        loc, scale = _read_parameter(loc, "loc", "normal"), _read_parameter(scale, "scale", "normal")
        dtype = _read_float_dtype(dtype, (loc, scale), "normal")
        shape = _draw_shape(shape, (loc, scale), "normal")
        there = _place(device, (loc, scale), "normal")
        if not _is_tensor(scale) and not scale >= 0.0:
            raise NumberRangeError(f"[random.normal] scale is {scale}, expected 0 or more.")
        z = _core.random_fill(self, "normal", shape, dtype, device=there)
        loc, scale = (p.astype(dtype) if _is_tensor(p) else p for p in (loc, scale))
        if _is_tensor(scale) or scale != 1.0:
            z = scale * z
        if _is_tensor(loc) or loc != 0.0:
            z = z + loc
        return z

    def integers(
        self, low: int, high: int | None = None, shape: Any = (), dtype: Any = "int64", device: Any = None
    ) -> Tensor:
        """Integers uniform in low <= x < high, or in 0 <= x < low where high is None.

        Args: low, high: integers that dtype holds (high - 1). dtype: int64, int32 or uint8. By multiply-high: of a
        32-bit word for at most 2**16 values, else of a 64-bit word; so below 2**48 values no value is more likely
        than another by more than 1 in 65,536.
        Raises: NumberRangeError for an empty range, or one outside the dtype; ShapeError; DTypeError.

        >>> tp.random.Generator(0).integers(1, 7, (4,)).shape
        (4,)
        """
        try:
            low, high = (0, operator.index(low)) if high is None else (operator.index(low), operator.index(high))
        except TypeError:
            given = type(low).__name__ if high is None else f"{type(low).__name__} and {type(high).__name__}"
            raise DTypeError(f"[random.integers] expected integers as bounds, got {given}.") from None
        name = _read_dtype(dtype, _INTEGERS, "integers")
        shape = _read_shape(shape, "integers")
        info = np.iinfo(name)
        if low >= high:
            raise NumberRangeError(f"[random.integers] no integer in {low} <= x < {high}. Give low < high.")
        if low < info.min or high - 1 > info.max:
            raise NumberRangeError(f"[random.integers] {low} .. {high - 1} does not fit in {name}.")
        there = _place(device, (), "integers")
        return _core.random_fill(self, "integers", shape, name, (high - low) % _WORD, low, there)

    def permutation(self, x: Any, device: Any = None) -> Tensor:
        """The integers 0 .. x - 1 in random order; or a tensor's rows, along the first axis.

        Args: x: an integer, or a tensor with at least one axis (the result is differentiable in it). The order is that
        of random 64-bit keys whose low bits hold the position.
        Raises: ShapeError for a negative integer or a tensor without axes; DTypeError.

        >>> sorted(tp.random.Generator(0).permutation(5).tolist())
        [0, 1, 2, 3, 4]
        """
        if isinstance(x, (Tensor, np.ndarray, list, tuple)):
            x = x if isinstance(x, Tensor) else _creation.convert(x, "random.permutation")
            if not x.shape:
                raise ShapeError("[random.permutation] a 0-d tensor has no rows to permute. Give an integer or rows.")
            there = _place(device, (x,), "permutation")
            order = _core.random_fill(self, "permutation", x.shape[:1], "int64", device=there)
            return _core.take(x, order, axis=0)
        try:
            n = operator.index(x)
        except TypeError:
            raise DTypeError(f"[random.permutation] expected an integer or a tensor, got {type(x).__name__}.") from None
        if n < 0:
            raise ShapeError(f"[random.permutation] {n} elements. Give 0 or more.")
        there = _place(device, (), "permutation")
        return _core.random_fill(self, "permutation", (n,), "int64", device=there)

    def bernoulli(self, p: Any = 0.5, shape: Any = None, device: Any = None) -> Tensor:
        """Booleans that are true with probability p (to within 2**-32): a 32-bit word is below p * 2**32.

        Args: p: a number in 0 .. 1, or a tensor of such that broadcasts to shape. shape: defaults to that of p.
        Raises: NumberRangeError for a number outside 0 .. 1; ShapeError; DTypeError.

        >>> tp.random.Generator(0).bernoulli(1.0, (2,)).tolist()
        [True, True]
        """
        p = _read_parameter(p, "p", "bernoulli")
        shape = _draw_shape(shape, (p,), "bernoulli")
        there = _place(device, (p,), "bernoulli")
        if isinstance(p, Tensor):
            words = _core.random_fill(self, "bits32", shape, "int64", device=there)
            if there is not None and not there.fp64:  # a float32 times 2**32 is exact
                return words < _core.ceil(p.astype("float32") * 4294967296.0).astype("int64")
            return words.astype("float64") < p.astype("float64") * 4294967296.0
        if not 0.0 <= p <= 1.0:
            raise NumberRangeError(f"[random.bernoulli] p is {p}, expected a probability in 0 .. 1.")
        return _core.random_fill(self, "bits32", shape, "int64", device=there) < math.ceil(p * 4294967296.0)


default_generator = Generator()
normal = default_generator.normal
uniform = default_generator.uniform
integers = default_generator.integers
permutation = default_generator.permutation
bernoulli = default_generator.bernoulli


def manual_seed(seed: int) -> Generator:
    """Seed the default generator and start it at draw 0; returns it.

    >>> a, b = (tp.random.manual_seed(5).normal(shape=(2,)).tolist() for _ in range(2))
    >>> a == b
    True
    """
    default_generator.state = (_word(seed, "seed", "manual_seed"), 0)
    return default_generator
