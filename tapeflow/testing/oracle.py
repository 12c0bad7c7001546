"""The textbook, slowly: reverse mode over single Python floats, as an oracle for values and gradients.

The module has tapeflow's names, so a program written against `tp` runs on it with `oracle` in tp's place. An Array is
a NumPy object array of Scalar: shapes, broadcasting and indexing are NumPy's, and every write is a copy. Nothing here
knows tapes, buffers or fused rules. A decision at a kink that rounding could turn round raises Ambiguous: a program
that needs it is no test. `gradients` also returns the mass, the same sums over absolute values, which is the scale
that rounding errors have to be measured against.

Of the ops only what float64 programs need is here; `elementwise` and `reduction` make more.

>>> from tapeflow.testing import oracle
>>> x = oracle.tensor([1.0, 2.0, 3.0])
>>> y = oracle.sum(x * x)
>>> y.tolist()
14.0
>>> [g] = oracle.gradients(y, [x])
>>> g.value.tolist()
[2.0, 4.0, 6.0]
"""

from __future__ import annotations

import builtins
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

_numbers = itertools.count()


class Ambiguous(Exception):
    """The two sides of a kink are closer than rounding, and not equal for certain."""


class Scalar:
    """One float, the scalars it was made from, and its partial derivative to each of them."""

    __slots__ = ("exact", "number", "parents", "value")

    def __init__(self, value: float, parents: Iterable[tuple[Scalar, float]] = (), exact: bool = False):
        self.value = float(value)
        self.parents = tuple(parents)
        self.number = next(_numbers)
        scaled = self.value * 65536.0  # few enough bits that sums and products of it do not round
        self.exact = exact and math.fabs(scaled) < 2**32 and scaled.is_integer()

    def __gt__(self, other: Scalar) -> bool:
        gap = self.value - other.value
        certain = self is other or (self.exact and other.exact)
        if not certain and math.fabs(gap) <= 1e-7 * (1 + math.fabs(self.value)):
            raise Ambiguous(f"{self.value!r} > {other.value!r}")
        return gap > 0

    def __lt__(self, other: Scalar) -> bool:
        return other > self


def _constant(value: float) -> Scalar:
    return Scalar(value, exact=True)


_constants = np.frompyfunc(_constant, 1, 1)
_values = np.frompyfunc(lambda x: x.value, 1, 1)
_greater = np.frompyfunc(lambda a, b: a > b, 2, 1)
_pick = np.frompyfunc(lambda c, a, b: a if c else b, 3, 1)
_ZERO = _constant(0.0)


def _data(x: Any) -> np.ndarray:
    """The scalars of an Array, or of what can be made one."""
    return x.data if isinstance(x, Array) else np.asarray(_constants(np.asarray(x, float)), dtype=object)


def _array(data: Any) -> Array:
    return Array(np.asarray(data, dtype=object))


class Array:
    """Scalars in the shape of an array, with the operators of a tensor. `tensor` makes one.

    >>> x = tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> y = x[0]
    >>> y *= 10.0
    >>> x.tolist(), y.tolist()
    ([[1.0, 2.0], [3.0, 4.0]], [10.0, 20.0])
    """

    __slots__ = ("data",)
    __array_ufunc__ = None  # so that NumPy leaves the operators to this class
    __hash__ = object.__hash__

    def __init__(self, data: np.ndarray):
        self.data = data

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def size(self) -> int:
        return self.data.size

    def numpy(self) -> np.ndarray:
        """The values, float64."""
        return np.asarray(_values(self.data), dtype=np.float64)

    def tolist(self) -> Any:
        return self.numpy().tolist()

    def __repr__(self) -> str:
        return f"Array({self.tolist()})"

    def __getitem__(self, index: Any) -> Array:
        return _array(self.data[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        value = _data(value)
        self.data = self.data.copy()
        self.data[index] = value if value.ndim else value[()]

    def _write(self, result: Array) -> Array:
        if result.shape != self.shape:
            raise ValueError(f"a write of shape {result.shape} into {self.shape}")
        self.data = result.data
        return self

    def __neg__(self) -> Array:
        return negative(self)

    def __add__(self, other: Any) -> Array:
        return add(self, other)

    def __sub__(self, other: Any) -> Array:
        return subtract(self, other)

    def __mul__(self, other: Any) -> Array:
        return multiply(self, other)

    def __truediv__(self, other: Any) -> Array:
        return divide(self, other)

    def __rsub__(self, other: Any) -> Array:
        return subtract(other, self)

    def __rtruediv__(self, other: Any) -> Array:
        return divide(other, self)

    def __pow__(self, other: Any) -> Array:
        return pow(self, other)

    def __matmul__(self, other: Any) -> Array:
        return matmul(self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __iadd__(self, other: Any) -> Array:
        return self._write(add(self, other))

    def __isub__(self, other: Any) -> Array:
        return self._write(subtract(self, other))

    def __imul__(self, other: Any) -> Array:
        return self._write(multiply(self, other))

    def __itruediv__(self, other: Any) -> Array:
        return self._write(divide(self, other))

    def __gt__(self, other: Any) -> np.ndarray:
        return np.asarray(_greater(self.data, _data(other)), dtype=bool)

    def __lt__(self, other: Any) -> np.ndarray:
        return np.asarray(_greater(_data(other), self.data), dtype=bool)


def tensor(data: Any, dtype: Any = None, requires_grad: bool = False) -> Array:
    """An Array of leaves. dtype and requires_grad are taken for tapeflow's sake: all is float64 and differentiable."""
    return _array(_constants(np.array(data, float)))


# ---- elementwise


def elementwise(count: int, rule: Callable, exact: bool = False) -> Callable[..., Array]:
    """Make a function of `count` arrays that broadcast.

    Args:
        count: the number of operands.
        rule: from the operands' scalars to (value, partial derivative to each).
        exact: whether no result is rounded when the operands have few bits, so that ties are certain.

    >>> cube = elementwise(1, lambda a: (a.value**3, 3 * a.value**2))
    >>> x = tensor([2.0])
    >>> gradients(cube(x), [x])[0].value.tolist()
    [12.0]
    """

    def scalar(*xs: Scalar) -> Scalar:
        value, *partials = rule(*xs)
        return Scalar(value, zip(xs, partials, strict=True), exact and builtins.all(x.exact for x in xs))

    ufunc = np.frompyfunc(scalar, count, 1)
    return lambda *operands: _array(ufunc(*map(_data, operands)))


def _unary(value: Callable, partial: Callable, exact: bool = False) -> Callable[..., Array]:
    """From value(a) and partial(a, y), over floats."""

    def rule(a: Scalar) -> tuple[float, float]:
        y = value(a.value)
        return y, partial(a.value, y)

    return elementwise(1, rule, exact)


def _rounding(value: Callable) -> Callable[..., Array]:
    """Steps: the slope is 0, and next to a step an inexact value could fall either way."""

    def rule(a: Scalar) -> tuple[float, float]:
        if not a.exact and math.fabs(2 * a.value - round_half(2 * a.value)) < 1e-7 * (1 + math.fabs(a.value)):
            raise Ambiguous(f"rounding {a.value!r}")
        return math.copysign(value(a.value), a.value), 0.0

    round_half = builtins.round
    return elementwise(1, rule, exact=True)


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else math.exp(x)


def _ties(a: Scalar, b: Scalar) -> float:
    """The share of a in max(a, b): 1, 0, or a half."""
    return 0.5 * ((a > b) + 1 - (b > a))


def _maximum(a: Scalar, b: Scalar) -> tuple[float, float, float]:
    share = _ties(a, b)
    return builtins.max(a.value, b.value), share, 1 - share


def _minimum(a: Scalar, b: Scalar) -> tuple[float, float, float]:
    share = _ties(b, a)
    return builtins.min(a.value, b.value), share, 1 - share


def _power(a: Scalar, b: Scalar) -> tuple[float, float, float]:
    x, n = a.value, b.value
    y = x**n
    return y, n * x ** (n - 1) if n else 0.0, y * math.log(x) if x else 0.0


def _logaddexp(a: Scalar, b: Scalar) -> tuple[float, float, float]:
    share = _logistic(a.value - b.value)
    gap = math.fabs(a.value - b.value)
    return builtins.max(a.value, b.value) + math.log1p(math.exp(-gap)), share, 1 - share


def _cbrt(x: float) -> float:
    return math.copysign(math.fabs(x) ** (1 / 3), x)


_BELL = 2 / math.sqrt(math.pi)

negative = _unary(lambda a: -a, lambda a, y: -1.0, exact=True)
square = _unary(lambda a: a * a, lambda a, y: 2 * a, exact=True)
reciprocal = _unary(lambda a: 1 / a, lambda a, y: -y * y)
exp = _unary(math.exp, lambda a, y: y)
exp2 = _unary(lambda a: 2.0**a, lambda a, y: y * math.log(2))
expm1 = _unary(math.expm1, lambda a, y: y + 1)
log = _unary(math.log, lambda a, y: 1 / a)
log2 = _unary(math.log2, lambda a, y: 1 / (a * math.log(2)))
log10 = _unary(math.log10, lambda a, y: 1 / (a * math.log(10)))
log1p = _unary(math.log1p, lambda a, y: 1 / (1 + a))
sqrt = _unary(math.sqrt, lambda a, y: 0.5 / y)
rsqrt = _unary(lambda a: 1 / math.sqrt(a), lambda a, y: -0.5 * y / a)
cbrt = _unary(_cbrt, lambda a, y: 1 / (3 * y * y))
sin = _unary(math.sin, lambda a, y: math.cos(a))
cos = _unary(math.cos, lambda a, y: -math.sin(a))
tan = _unary(math.tan, lambda a, y: 1 + y * y)
asin = _unary(math.asin, lambda a, y: 1 / math.sqrt(1 - a * a))
acos = _unary(math.acos, lambda a, y: -1 / math.sqrt(1 - a * a))
atan = _unary(math.atan, lambda a, y: 1 / (1 + a * a))
sinh = _unary(math.sinh, lambda a, y: math.cosh(a))
cosh = _unary(math.cosh, lambda a, y: math.sinh(a))
tanh = _unary(math.tanh, lambda a, y: 1 - y * y)
asinh = _unary(math.asinh, lambda a, y: 1 / math.sqrt(1 + a * a))
acosh = _unary(math.acosh, lambda a, y: 1 / math.sqrt(a * a - 1))
atanh = _unary(math.atanh, lambda a, y: 1 / (1 - a * a))
erf = _unary(math.erf, lambda a, y: _BELL * math.exp(-a * a))
erfc = _unary(math.erfc, lambda a, y: -_BELL * math.exp(-a * a))
sigmoid = _unary(_logistic, lambda a, y: y * (1 - y))
silu = _unary(lambda a: a * _logistic(a), lambda a, y: _logistic(a) * (1 + a * (1 - _logistic(a))))
softplus = _unary(
    lambda a: builtins.max(a, 0.0) + math.log1p(math.exp(-math.fabs(a))),
    lambda a, y: _logistic(a),
)
abs = elementwise(1, lambda a: (math.fabs(a.value), 2 * _ties(a, _ZERO) - 1), exact=True)
relu = elementwise(1, lambda a: (builtins.max(a.value, 0.0), float(a > _ZERO)), exact=True)
sign = elementwise(1, lambda a: (float(a > _ZERO) - float(a < _ZERO), 0.0), exact=True)
floor = _rounding(math.floor)
ceil = _rounding(math.ceil)
trunc = _rounding(math.trunc)
round = _rounding(builtins.round)
add = elementwise(2, lambda a, b: (a.value + b.value, 1.0, 1.0), exact=True)
subtract = elementwise(2, lambda a, b: (a.value - b.value, 1.0, -1.0), exact=True)
multiply = elementwise(2, lambda a, b: (a.value * b.value, b.value, a.value), exact=True)
divide = elementwise(2, lambda a, b: (a.value / b.value, 1 / b.value, -a.value / b.value**2))
maximum = elementwise(2, _maximum, exact=True)
minimum = elementwise(2, _minimum, exact=True)
hypot = elementwise(2, lambda a, b: (h := math.hypot(a.value, b.value), a.value / h, b.value / h))
logaddexp = elementwise(2, _logaddexp)
_pow = elementwise(2, _power)


def pow(a: Any, b: Any) -> Array:
    """a to the power of b. An int has the rule of polynomials, so the base may be 0 or negative."""
    if isinstance(b, int):
        return _unary(lambda x: x**b, lambda x, y: b * x ** (b - 1) if b else 0.0, exact=True)(a)
    return _pow(a, b)


def where(condition: Any, a: Any, b: Any) -> Array:
    """a where the condition (of bools) holds, else b; the other branch gets no gradient."""
    return _array(_pick(condition, _data(a), _data(b)))


def clip(a: Any, min: float, max: float) -> Array:
    """Between two numbers. The gradient is kept inside, bounds included."""

    def rule(x: Scalar) -> tuple[float, float]:
        inside = not x < _constant(min) and not x > _constant(max)
        return builtins.min(builtins.max(x.value, min), max), float(inside)

    return elementwise(1, rule, exact=True)(a)


# ---- along axes


def reduction(rule: Callable, exact: bool = False) -> Callable[..., Array]:
    """Make a function f(a, axis=None, keepdims=False); axis is an int, a tuple, or None for all.

    Args:
        rule: from the list of scalars to (value, list of their partial derivatives).
        exact: as for `elementwise`.

    >>> squares = reduction(lambda xs: (math.fsum(x.value**2 for x in xs), [2 * x.value for x in xs]))
    >>> squares(tensor([[3.0, 4.0]]), axis=1).tolist()
    [25.0]
    """

    def whole(xs: list[Scalar]) -> Scalar:
        value, partials = rule(xs)
        return Scalar(value, zip(xs, partials, strict=True), exact and builtins.all(x.exact for x in xs))

    def reduce(a: Any, axis: Any = None, keepdims: bool = False) -> Array:
        data = _data(a)
        given = range(data.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        axes = tuple(range(data.ndim)[i] for i in given)
        kept = [size for i, size in enumerate(data.shape) if i not in axes]
        rows = np.moveaxis(data, axes, range(-len(axes), 0))
        rows = rows.reshape(math.prod(kept), math.prod(data.shape[i] for i in axes))
        if not rows.shape[1]:
            whole([])  # raises where nothing has no value, also when there are no rows
        out = np.empty(len(rows), dtype=object)
        for i, row in enumerate(rows):
            out[i] = whole(list(row))
        shape = [1 if i in axes else size for i, size in enumerate(data.shape)] if keepdims else kept
        return Array(out.reshape(shape))

    return reduce


def _extreme(pick: Callable, beats: Callable) -> Callable:
    def rule(xs: list[Scalar]) -> tuple[float, list[float]]:
        best = pick(x.value for x in xs)
        top = next(x for x in xs if x.value == best)
        share = [float(not beats(top, x)) for x in xs]
        return best, [s / math.fsum(share) for s in share]

    return rule


def _product(xs: list[Scalar]) -> tuple[float, list[float]]:
    values = [x.value for x in xs]
    return math.prod(values), [math.prod(values[:i] + values[i + 1 :]) for i in range(len(values))]


def _logsumexp(xs: list[Scalar]) -> tuple[float, list[float]]:
    top = builtins.max(x.value for x in xs)
    weights = [math.exp(x.value - top) for x in xs]
    total = math.fsum(weights)
    return top + math.log(total), [w / total for w in weights]


def _variance(xs: list[Scalar]) -> tuple[float, list[float]]:
    centre = math.fsum(x.value for x in xs) / len(xs)
    away = [x.value - centre for x in xs]
    return math.fsum(d * d for d in away) / len(xs), [2 * d / len(xs) for d in away]


sum = reduction(lambda xs: (math.fsum(x.value for x in xs), [1.0] * len(xs)), exact=True)
mean = reduction(lambda xs: (math.fsum(x.value for x in xs) / len(xs), [1 / len(xs)] * len(xs)))
var = reduction(_variance)
max = reduction(_extreme(builtins.max, lambda top, x: top > x), exact=True)
min = reduction(_extreme(builtins.min, lambda top, x: x > top), exact=True)
prod = reduction(_product, exact=True)
logsumexp = reduction(_logsumexp)


def log_softmax(a: Any, axis: int = -1) -> Array:
    return subtract(a, logsumexp(a, axis, keepdims=True))


def softmax(a: Any, axis: int = -1) -> Array:
    return exp(log_softmax(a, axis))


def cumulative_sum(a: Any, axis: int = 0) -> Array:
    """The sums of the first 1, 2, ... along the axis."""
    data = np.moveaxis(_data(a), axis, 0)
    sums = [sum(Array(data[: n + 1]), axis=0).data for n in range(len(data))]
    return _array(np.moveaxis(np.stack(sums), 0, axis)) if sums else _array(_data(a))


def matmul(a: Any, b: Any) -> Array:
    """Of 1-D and 2-D operands."""
    a, b = _data(a), _data(b)
    if not (1 <= a.ndim <= 2 and 1 <= b.ndim <= 2 and a.shape[-1] == b.shape[0]):
        raise ValueError(f"no product of {a.shape} and {b.shape}")
    rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
    columns = (b if b.ndim == 2 else b[:, None]).T
    products = multiply(Array(rows[:, None, :]), Array(columns[None, :, :]))
    return _array(sum(products, axis=2).data.reshape(a.shape[:-1] + b.shape[1:]))


# ---- shapes


def _shaped(function: Callable) -> Callable[..., Array]:
    """NumPy's function, over the scalars; its first argument is an array or a list of them."""

    def shaped(x: Any, *args: Any, **kwargs: Any) -> Array:
        data = [_data(part) for part in x] if isinstance(x, (list, tuple)) else _data(x)
        return _array(function(data, *args, **kwargs))

    return shaped


reshape = _shaped(np.reshape)
permute_dims = _shaped(np.transpose)
broadcast_to = _shaped(np.broadcast_to)
expand_dims = _shaped(np.expand_dims)
squeeze = _shaped(np.squeeze)
concat = _shaped(np.concatenate)
stack = _shaped(np.stack)


def take(x: Any, indices: Any, axis: int) -> Array:
    """Of indices that are in range, also where there is nothing to pick: NumPy looks at none then."""
    if not builtins.all(-_data(x).shape[axis] <= i < _data(x).shape[axis] for i in np.ravel(indices)):
        raise IndexError(f"{indices} for axis {axis} of shape {_data(x).shape}")
    return _array(np.take(_data(x), indices, axis=axis))


# ---- the derivative


class Gradient(NamedTuple):
    """What `gradients` gives for each source: two float64 arrays of its shape.

    `mass` is the sum of the absolute values of all that was summed up to `value`.
    """

    value: np.ndarray
    mass: np.ndarray


def gradients(target: Array, sources: Sequence[Array], seed: Any = None) -> list[Gradient]:
    """The gradient of `target` with respect to each source, zeros where it does not depend on it.

    Args:
        target: an Array of any shape.
        sources: Arrays that it was computed from. A later write to a source changes what the name means.
        seed: the cotangent of the target, of its shape; ones by default, so the target is summed.

    >>> x, y = tensor([1.0, -2.0]), tensor(3.0)
    >>> gx, gy = gradients(relu(x) * y, [x, y])
    >>> gx.value.tolist(), gy.value.tolist()
    ([3.0, 0.0], 1.0)
    """
    pending: dict[Scalar, tuple[float, float]] = {}
    seeds = np.broadcast_to(1.0 if seed is None else np.asarray(seed, float), target.shape)
    for x, g in zip(target.data.ravel(), seeds.ravel(), strict=True):
        before = pending.get(x, (0.0, 0.0))
        pending[x] = before[0] + float(g), before[1] + math.fabs(g)
    seen, todo = set(pending), list(pending)
    while todo:
        fresh = {p for p, _ in todo.pop().parents} - seen
        seen.update(fresh)
        todo.extend(fresh)
    for x in sorted(seen, key=lambda x: -x.number):  # made later, so nothing that is still to come reads it
        g, mass = pending[x]
        for parent, d in x.parents:
            before = pending.get(parent, (0.0, 0.0))
            pending[parent] = before[0] + (g * d if g else 0.0), before[1] + (mass * math.fabs(d) if mass else 0.0)
    collect = np.frompyfunc(lambda x: pending.get(x, (0.0, 0.0)), 1, 2)
    pairs = [collect(source.data) for source in sources]
    return [Gradient(np.asarray(g, np.float64), np.asarray(mass, np.float64)) for g, mass in pairs]
