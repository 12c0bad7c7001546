"""What the elementwise ops of the table must give, and where they are asked: exact values by mpmath or NumPy in a wider
type, the dtypes an op is defined for, operands inside its domain, grids of special values.

Nothing here computes with tapeflow: it reads the table only. An op that NumPy lacks needs a line in REFERENCE.
"""

import math

import mpmath
import numpy as np
from helpers import DTYPES, FLOATS, INF, INTS, NAN, WIDE, draw, rng_for, specials

from tapeflow import ops

TABLE = ops.TABLE
NAMES = tuple(TABLE)
SHORT = {long: short for short, (long, _) in ops.DTYPES.items()}

CUBIC = WIDE(44715) / 10**6
GELU_TANH = np.sqrt(8 / WIDE("3.14159265358979323846264338327950288"))


def _lgamma(x):
    if x == -INF or x <= 0 and x == mpmath.floor(x):
        return INF
    return mpmath.log(mpmath.pi / abs(mpmath.sinpi(x))) - mpmath.loggamma(1 - x) if x < 0 else mpmath.loggamma(x)


def _polygamma(n, x):
    if x == -INF or x < 0 and x == mpmath.floor(x) and n % 2 == 0 or not 0 <= n <= 40 or n != int(n):
        return NAN
    if x == 0 or x < 0 and x == mpmath.floor(x):
        return INF if n % 2 else -INF
    if x == INF:
        return 0 if n else INF
    if x < 0 and n == 0:
        return mpmath.digamma(1 - x) - mpmath.pi * mpmath.cospi(x) / mpmath.sinpi(x)
    return mpmath.psi(int(n), x)


def _sinc(x):
    return NAN if abs(x) == INF else mpmath.sinpi(x) / (mpmath.pi * x) if x else 1


def _spherical_ratio(n, x):
    if abs(x) == INF or not 0 <= n <= 40 or n != int(n):
        return NAN
    with mpmath.workprec(1400 if abs(x) > 1e9 else 300):
        z, before, y = mpmath.pi * x, mpmath.mpf(0), _sinc(x)
        if abs(z) < n + 10:
            return mpmath.hyp0f1(n + 1.5, -z * z / 4) / mpmath.fac2(2 * n + 1)
        for k in range(int(n)):
            before, y = y, ((2 * k + 1) * y - before) / z**2 if k else (y - mpmath.cospi(x)) / z**2
        return y


def _gelu(x):
    return (x if x > 0 else 0) if abs(x) > 50 else x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2


EXACT = {  # by mpmath, one number at a time
    "erf": lambda x: mpmath.erf(x) if abs(x) < 50 else mpmath.sign(x),
    "erfc": lambda x: mpmath.erfc(x) if abs(x) < 50 else 1 - mpmath.sign(x),
    "erfinv": lambda x: NAN if abs(x) > 1 else x * INF if abs(x) == 1 else mpmath.erfinv(x),
    "lgamma": _lgamma,
    "digamma": lambda x: _polygamma(0, x),
    "polygamma": _polygamma,
    "sinc": _sinc,
    "spherical_ratio": _spherical_ratio,
    "gelu": _gelu,
}


def exact(name, *arrays):
    """To about 100 bits, rounded to the wide type. At 0 zeros and digamma's infinity go by the sign of the operand."""

    def one(*x):
        if any(map(math.isnan, x)):
            return WIDE(NAN)
        with mpmath.workprec(160):
            y = EXACT[name](*map(mpmath.mpf, x))
            high = float(y)
            return WIDE(high) + WIDE(float(y - high)) if math.isfinite(high) else WIDE(high)

    y = np.frompyfunc(one, len(arrays), 1)(*(a.astype(float) for a in arrays))
    y, x = np.asarray(y).astype(WIDE), arrays[-1]
    pole = np.isinf(y) & (x == 0) if "gamma" in name and name != "lgamma" else np.zeros(y.shape, bool)
    if name == "polygamma":
        pole &= np.isin(arrays[0], range(0, 41, 2))
    return np.where(pole, -np.copysign(INF, x), np.where((y == 0) & (x == 0), x, y))


def forgiven(name, got, want, *arrays):
    """got, but want where the entry's note allows the difference: its bound is not in units of the result there."""
    x, eps = arrays[-1].astype(float), float(np.finfo(got.dtype).eps)
    with np.errstate(all="ignore"):
        if name == "logaddexp":
            unit = eps * np.abs(np.maximum(*arrays)).astype(float)
        elif name == "spherical_ratio":
            unit = eps / np.abs(np.pi * x) ** (arrays[0] + 1)
        else:
            unit = eps * np.maximum(np.maximum(1, np.abs(x)), np.abs(x * np.log(np.abs(x))))
            unit = np.where(x < 0, np.maximum(unit, eps * np.abs(want)), 0)
            unit = unit * (arrays[0] + 1) if name == "polygamma" else unit
        near = np.isfinite(want) & (np.abs(got - want) <= TABLE[name].ulp * unit)
        return np.where(near, want.astype(got.dtype), got)


REFERENCE = {  # where NumPy's function of that name is not the meaning, or is missing
    "pow": np.power,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "softplus": lambda a: np.logaddexp(0, a),
    "relu": lambda a: np.maximum(a, 0),
    "clip": lambda a, b, c: np.minimum(np.maximum(a, b), c),
    "smul": lambda a, b: np.where(a == 0, 0 * np.nan_to_num(a), a * b),
    "negative": lambda a: np.negative(a),
    "silu": lambda a: np.where(a == -INF, -0.0, a / (1 + np.exp(-a))),
    "gelu_tanh": lambda a: np.where(a < -99, -0.0, a / (1 + np.exp(-a * GELU_TANH * (1 + CUBIC * a * a)))),
    "elu": lambda a, b: np.where(a > 0, a, b * np.expm1(a)),
    "leaky_relu": lambda a, b: np.where(a > 0, a, a * b),
    "xlogy": lambda a, b: np.where(np.isnan(b), b, np.where(a == 0, 0, a * np.log(b))),
    "xlog1py": lambda a, b: np.where(np.isnan(b), b, np.where(a == 0, 0, a * np.log1p(b))),
    "lerp": lambda a, b, c: a + c * (b - a),
}  # fmt: skip
OWN_DTYPE = {"floor_divide", "remainder", "nextafter", "lerp"}  # computed by NumPy in the dtype itself
ZERO_SIGN_FREE = {
    "sign",
    "relu",
    "maximum",
    "minimum",
    "clip",
    "smul",
    "where",
    "silu",
    "gelu",
    "polygamma",
    "spherical_ratio",
}


def reference(name, *arrays):
    """In the wide type for floats, in their own for the rest."""
    if name in EXACT:
        return exact(name, *arrays)
    f = REFERENCE.get(name) or getattr(np, name)
    with np.errstate(all="ignore"):
        return f(*(a.astype(WIDE) if a.dtype.kind == "f" and name not in OWN_DTYPE else a for a in arrays))


def promote(*dtypes):
    return max(dtypes, key=DTYPES.index)


def compute_dtype(name, dtypes):
    """The dtype in which an op computes: the widest operand's, or the default float for the "float" kind."""
    wide = promote(*(dtypes[1:] if TABLE[name].kind == "select" else dtypes))
    return "float32" if TABLE[name].kind == "float" and wide not in FLOATS else wide


def defined(name, dtype):
    return SHORT[compute_dtype(name, [dtype] * TABLE[name].nin)] in TABLE[name].dtypes


def operand_dtypes(name, dtype):
    """That dtype for each input, but bool for a condition."""
    return ["bool" if TABLE[name].kind == "select" and i == 0 else dtype for i in range(TABLE[name].nin)]


def operands(name, shape, dtype, *key):
    """One array per input, inside the entry's domain."""
    rng, made = rng_for(name, shape, dtype, *key), []
    for i, (d, (low, high)) in enumerate(zip(operand_dtypes(name, dtype), TABLE[name].domain, strict=True)):
        if dtype in INTS:
            low, high = (0, 5) if name == "pow" and i == 1 or low >= 0 else (low * 3, high * 3)
        if name in ("polygamma", "spherical_ratio") and i == 0 and dtype in FLOATS:  # the order is a whole number
            made.append(rng.integers(0, 6, shape).astype(dtype))
            continue
        made.append(draw(rng, shape, d, low, high))
    return made


def special_operands(name, dtype):
    """The product of all special values, one flat array per input."""
    pools = [np.array([True, False]) if d == "bool" else specials(d) for d in operand_dtypes(name, dtype)]
    if len(pools) == 3:
        pools[1:] = [p[::3] if TABLE[name].kind != "select" else p for p in pools[1:]]
    return [np.ascontiguousarray(p.ravel()) for p in np.meshgrid(*pools, indexing="ij")]


INTEGER_POOL = {"uint8": [0, 1, 2, 3, 127, 128, 254, 255], "bool": [0, 1]}


def integer_operands(name, dtype):
    """The product of integers at and about the ends of the dtype, one flat array per input."""
    if dtype in ("int32", "int64"):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        pool = np.array([0, 1, -1, 2, -2, 3, 7, -100, 46341, 65536, low, low + 1, high, high - 1], dtype)
    else:
        pool = np.array(INTEGER_POOL[dtype], dtype)
    pools = [np.array([True, False]) if d == "bool" != dtype else pool for d in operand_dtypes(name, dtype)]
    if name == "pow":
        pools[1] = np.abs(pool[pool != np.min(pool)]) if dtype != "uint8" else pool
    return [np.ascontiguousarray(p.ravel()) for p in np.meshgrid(*pools, indexing="ij")]


CANCELLING = {  # where a careless formula loses everything
    "expm1": lambda t: t,
    "log1p": lambda t: t,
    "log": lambda t: 1 + t,
    "sin": lambda t: np.pi + t,
    "tanh": lambda t: t,
    "cos": lambda t: np.pi / 2 + t,
    "softplus": lambda t: -30 + t,
    "sigmoid": lambda t: -20 + t,
    "exp": lambda t: 88 + t,
    "log2": lambda t: 1 + t,
    "log10": lambda t: 1 + t,
    "tan": lambda t: np.pi + t,
    "asin": lambda t: t,
    "acos": lambda t: 1 - abs(t),
    "sinh": lambda t: t,
    "asinh": lambda t: t,
    "acosh": lambda t: 1 + abs(t),
    "atanh": lambda t: t,
    "erf": lambda t: t,
    "erfc": lambda t: 3 + t,
    "erfinv": lambda t: 1 - abs(t),
    "lgamma": lambda t: 1 + t[::4],
    "sinc": lambda t: 1 + t,
    "digamma": lambda t: 1.4616321449683623 + t[::4],
    "silu": lambda t: -20 + t,
    "gelu": lambda t: -5 + t[::4],
    "gelu_tanh": lambda t: -5 + t,
}
