"""The textbook, slowly: reverse mode over single Python floats, as an oracle for whole programs.

An array is a NumPy object array of Scalar, so shapes, broadcasting, indexing and writes are NumPy's, and a
write is a copy. Nothing here knows tapes, buffers or fused rules. A decision at a kink that rounding could
turn round raises Ambiguous: a program that needs it is no test. `gradient` also returns the mass, the same
sums over absolute values, which is the scale that rounding errors have to be measured against.
"""

import itertools
import math

import numpy as np

_numbers = itertools.count()


class Ambiguous(Exception):
    """The two sides of a kink are closer than rounding, and not equal for certain."""


class Scalar:
    """One float, the scalars it was made from, and its partial derivative to each of them."""

    __slots__ = ("exact", "number", "parents", "value")

    def __init__(self, value, parents=(), exact=False):
        self.value = float(value)
        self.parents = tuple(parents)
        self.number = next(_numbers)
        scaled = self.value * 65536.0  # few enough bits that sums and products of it do not round
        self.exact = exact and abs(scaled) < 2**32 and scaled.is_integer()

    def __gt__(self, other):
        other = other if isinstance(other, Scalar) else Scalar(other, exact=True)
        gap = self.value - other.value
        certain = self is other or (self.exact and other.exact) or abs(gap) > 1e-7 * (1 + abs(self.value))
        if not certain:
            raise Ambiguous(f"{self.value!r} > {other.value!r}")
        return gap > 0

    def __lt__(self, other):
        return (other if isinstance(other, Scalar) else Scalar(other, exact=True)) > self


def ties(a, b):
    """The share of a in max(a, b): 1, 0, or a half."""
    return 0.5 * ((a > b) + 1 - (b > a))


def elementwise(count, rule, exact=False):
    """rule(*scalars) -> (value, partial, ...), over object arrays that broadcast."""

    def scalar(*xs):
        xs = [x if isinstance(x, Scalar) else Scalar(x, exact=True) for x in xs]
        value, *partials = rule(*xs)
        return Scalar(value, zip(xs, partials, strict=True), exact and all(x.exact for x in xs))

    ufunc = np.frompyfunc(scalar, count, 1)

    def arrays(*operands):
        return np.asarray(ufunc(*operands), dtype=object)

    arrays.scalar = scalar
    return arrays


def unary(value, partial, exact=False):
    def rule(a):
        y = value(a.value)
        return y, partial(a.value, y)

    return elementwise(1, rule, exact)


def _sigmoid(x):
    return 1 / (1 + math.exp(-x))


def _abs(a):
    return abs(a.value), 2 * ties(a, Scalar(0, exact=True)) - 1


def _relu(a):
    return max(a.value, 0.0), float(a > 0)


def _sign(a):
    return float(a > 0) - float(a < 0), 0.0


def _maximum(a, b):
    share = ties(a, b)
    return max(a.value, b.value), share, 1 - share


def _minimum(a, b):
    share = ties(b, a)
    return min(a.value, b.value), share, 1 - share


def _power(a, b):
    return a.value**b.value, b.value * a.value ** (b.value - 1), a.value**b.value * math.log(a.value)


negative = unary(lambda a: -a, lambda a, y: -1.0, exact=True)
square = unary(lambda a: a * a, lambda a, y: 2 * a, exact=True)
exp = unary(math.exp, lambda a, y: y)
expm1 = unary(math.expm1, lambda a, y: y + 1)
log = unary(math.log, lambda a, y: 1 / a)
log1p = unary(math.log1p, lambda a, y: 1 / (1 + a))
sqrt = unary(math.sqrt, lambda a, y: 0.5 / y)
rsqrt = unary(lambda a: 1 / math.sqrt(a), lambda a, y: -0.5 * y / a)
sin = unary(math.sin, lambda a, y: math.cos(a))
cos = unary(math.cos, lambda a, y: -math.sin(a))
tanh = unary(math.tanh, lambda a, y: 1 - y * y)
sigmoid = unary(_sigmoid, lambda a, y: y * (1 - y))
softplus = unary(lambda a: max(a, 0.0) + math.log1p(math.exp(-abs(a))), lambda a, y: _sigmoid(a))
abs_ = elementwise(1, _abs, exact=True)
relu = elementwise(1, _relu, exact=True)
sign = elementwise(1, _sign, exact=True)
add = elementwise(2, lambda a, b: (a.value + b.value, 1.0, 1.0), exact=True)
subtract = elementwise(2, lambda a, b: (a.value - b.value, 1.0, -1.0), exact=True)
multiply = elementwise(2, lambda a, b: (a.value * b.value, b.value, a.value), exact=True)
divide = elementwise(2, lambda a, b: (a.value / b.value, 1 / b.value, -a.value / b.value**2))
maximum = elementwise(2, _maximum, exact=True)
minimum = elementwise(2, _minimum, exact=True)
power = elementwise(2, _power)
for _name, _f in {"add": add, "sub": subtract, "mul": multiply, "truediv": divide}.items():  # for object arrays
    setattr(Scalar, f"__{_name}__", lambda a, b, f=_f.scalar: f(a, b))
    setattr(Scalar, f"__r{_name}__", lambda a, b, f=_f.scalar: f(b, a))
_pick = np.frompyfunc(lambda c, a, b: a if c else b, 3, 1)


def where(c, a, b):
    return np.asarray(_pick(c, a, b), dtype=object)


def whole_power(a, n):
    """a to the power of a Python int."""
    return unary(lambda x: x**n, lambda x, y: n * x ** (n - 1) if n else 0.0, exact=True)(a)


def clip(a, low, high):
    """With two numbers for bounds: the gradient is kept inside, bounds included."""

    def rule(x):
        return min(max(x.value, low), high), float(not x < low and not x > high)

    return elementwise(1, rule, exact=True)(a)


def reduction(rule, exact=False):
    """rule(list of scalars) -> (value, partials), along one axis or all."""

    def whole(xs):
        value, partials = rule(xs)
        return Scalar(value, zip(xs, partials, strict=True), exact and all(x.exact for x in xs))

    def reduce(a, axis=None, keepdims=False):
        axes = tuple(range(a.ndim)) if axis is None else (axis % a.ndim,)
        kept = [size for i, size in enumerate(a.shape) if i not in axes]
        rows = np.moveaxis(a, axes, range(-len(axes), 0)) if axes else a
        rows = rows.reshape(math.prod(kept), -1 if a.size else math.prod(a.shape[i] for i in axes))
        out = np.empty(len(rows), dtype=object)
        for i, row in enumerate(rows):
            out[i] = whole(list(row))
        shape = [1 if i in axes else size for i, size in enumerate(a.shape)] if keepdims else kept
        return out.reshape(shape)

    return reduce


def _extreme(pick, beats):
    def rule(xs):
        best = pick(x.value for x in xs)
        top = next(x for x in xs if x.value == best)
        share = [float(not beats(top, x)) for x in xs]
        return best, [s / math.fsum(share) for s in share]

    return rule


def _product(xs):
    values = [x.value for x in xs]
    return math.prod(values), [math.prod(values[:i] + values[i + 1 :]) for i in range(len(values))]


def _logsumexp(xs):
    top = max(x.value for x in xs)
    weights = [math.exp(x.value - top) for x in xs]
    total = math.fsum(weights)
    return top + math.log(total), [w / total for w in weights]


sum_ = reduction(lambda xs: (math.fsum(x.value for x in xs), [1.0] * len(xs)), exact=True)
mean = reduction(lambda xs: (math.fsum(x.value for x in xs) / len(xs), [1 / len(xs)] * len(xs)))
max_ = reduction(_extreme(max, lambda top, x: top > x), exact=True)
min_ = reduction(_extreme(min, lambda top, x: x > top), exact=True)
prod = reduction(_product, exact=True)
logsumexp = reduction(_logsumexp)


def log_softmax(a, axis):
    return subtract(a, logsumexp(a, axis, keepdims=True))


def softmax(a, axis):
    return exp(log_softmax(a, axis))


def matmul(a, b):
    """Of 1-D and 2-D operands."""
    rows = a.reshape(-1, a.shape[-1])
    columns = (b if b.ndim == 2 else b[:, None]).T
    products = multiply(rows[:, None, :], columns[None, :, :])
    return sum_(products, axis=2).reshape(a.shape[:-1] + b.shape[1:])


def leaf(values):
    """A NumPy array as an array of leaves."""
    return np.asarray(np.frompyfunc(lambda v: Scalar(v, exact=True), 1, 1)(values), dtype=object)


def values(array):
    return np.asarray(np.frompyfunc(lambda x: x.value, 1, 1)(array), dtype=np.float64)


def gradient(target, seed, sources):
    """The cotangents of `sources`, and their mass, for the cotangent `seed` of `target`."""
    pending = {}
    for x, g in zip(target.ravel(), seed.ravel(), strict=True):
        before = pending.get(x, (0.0, 0.0))
        pending[x] = before[0] + float(g), before[1] + abs(float(g))
    seen, stack = set(pending), list(pending)
    while stack:
        fresh = [p for p, _ in stack.pop().parents if p not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    for x in sorted(seen, key=lambda x: -x.number):
        g, mass = pending[x]
        for parent, d in x.parents:
            before = pending.get(parent, (0.0, 0.0))
            pending[parent] = before[0] + (g * d if g else 0.0), before[1] + mass * abs(d)
    pairs = [np.frompyfunc(lambda x: pending.get(x, (0.0, 0.0)), 1, 2)(s) for s in sources]
    return [(np.asarray(g, np.float64), np.asarray(mass, np.float64)) for g, mass in pairs]
