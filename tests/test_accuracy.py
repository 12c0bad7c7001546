"""How far the elementary functions are from the truth: float64 against mpmath, float32 against float64, the special
values of C99 Annex F exactly. Points cover every exponent, the ranges where algorithms change, and the arguments that
are hardest to reduce. A value must not depend on its neighbours in the block either."""

import mpmath
import numpy as np
import pytest
import scipy.special
from helpers import FLOATS, INF, NAN, assert_same, rng_for

import tapeflow as tp
from tapeflow import ops

NAMES = ("exp", "expm1", "log", "log1p", "tanh", "sigmoid", "sin", "cos", "sqrt", "cbrt", "exp2", "log2", "log10",
         "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf", "erfc")  # fmt: skip
REFERENCES = {
    **{name: getattr(mpmath, name) for name in NAMES if name not in ("sigmoid", "exp2", "log2")},
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "log2": lambda x: mpmath.log(x) / mpmath.log(2),
    "erf": lambda x: mpmath.erf(x) if abs(x) < 50 else mpmath.sign(x),
    "erfc": lambda x: mpmath.erfc(x) if abs(x) < 50 else 1 - mpmath.sign(x),
}
WIDE = {
    **{name: getattr(np, name) for name in NAMES if name not in ("sigmoid", "erf", "erfc")},
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
}
DOMAIN = {
    "log": (5e-324, INF),
    "log2": (5e-324, INF),
    "log10": (5e-324, INF),
    "asin": (-1, 1),
    "acos": (-1, 1),
    "acosh": (1, INF),
}
DOMAIN |= {"log1p": (np.nextafter(-1, 0), INF), "atanh": (np.nextafter(-1, 0), np.nextafter(1, 0))}
DOMAIN |= dict.fromkeys(
    ["exp", "expm1", "sigmoid", "tanh", "exp2", "sinh", "cosh"], (-1100, 1100)
)  # numbers of mpmath's


def bound_of(name):
    return ops.TABLE[name].ulp or 2


def all_exponents(rng, count, dtype):
    """Random bits: every sign, exponent, subnormal; infinities and NaN now and then."""
    bits = rng.integers(0, 2 ** (32 if dtype == "float32" else 64), count, np.uint64, endpoint=False)
    return bits.astype("uint32" if dtype == "float32" else "uint64").view(dtype)


def near_quarter_turns(rng, count):
    """The doubles about multiples of pi/2, small and large, and two of those known to come closest."""
    with mpmath.workprec(1200):
        whole = [int(k) for k in rng.integers(1, 2**60, count) >> rng.integers(0, 60, count)]
        large = [2.0**e for e in rng.integers(60, 1000, count // 4)]
        x = np.array([float(int(k) * mpmath.pi / 2) for k in [*whole, *large]])
    hardest = [6381956970095103 * 2.0**797, 5319372648326541 * 2.0**-52, 6411027962775774 * 2.0**-48]
    return np.concatenate([x, np.nextafter(x, INF), np.nextafter(x, 0), hardest])


def points(name, dtype):
    rng = rng_for(name, dtype)
    about_one = 1 + rng.uniform(-1, 1, 400) * 2.0 ** -rng.integers(0, 52, 400)
    parts = [
        all_exponents(rng, 600, dtype),
        rng.uniform(-760, 760, 400),
        rng.uniform(-120, 120, 400),
        rng.uniform(-3, 3, 400),
        rng.uniform(-1, 1, 300) * 2.0 ** rng.integers(-60, 40, 300),
        about_one,
        about_one - 1,
        -about_one,
        2.0**20 + rng.uniform(-8, 8, 50),
        near_quarter_turns(rng, 200) if name in ("sin", "cos", "tan") else [],
    ]
    with np.errstate(over="ignore"):
        x = np.concatenate([np.asarray(part, dtype) for part in parts])
    return np.abs(x) if name in ("log", "log2", "log10", "acosh", "sqrt") else x


def exact(function, *operands):
    """The reference as a sum of two doubles, which holds on every platform."""
    with mpmath.workprec(150):
        want = [function(*map(mpmath.mpf, map(float, at))) for at in zip(*operands)]
        high = [float(w) for w in want]
        low = [float(w - h) if mpmath.isfinite(w) and np.isfinite(h) else 0.0 for w, h in zip(want, high)]
    return np.array(high), np.array(low)


def assert_close(got, high, low, bound, label, *operands):
    """Within bound ULP, in units of got's dtype at the reference; infinities and NaN where it has them."""
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        rounded = high.astype(got.dtype)
        unit = np.spacing(np.minimum(np.abs(rounded), info.max)).astype("float64")
        error = np.abs((got.astype("float64") - high) - low) / unit
    error = np.where((got == rounded) | (np.isnan(got) & np.isnan(high)), 0.0, np.nan_to_num(error, nan=INF))
    worst = int(np.argmax(error))
    assert error[worst] <= bound, (
        f"{label}{tuple(float(o[worst]).hex() for o in operands)}: {error[worst]:.3g} ULP, bound {bound}: "
        f"{float(got[worst]).hex()} for {high[worst].hex()}"
    )


def apply(name, *operands):
    operands = [tp.asarray(o) for o in operands]
    return (operands[0] ** operands[1] if name == "pow" else getattr(tp, name)(*operands)).numpy()


@pytest.mark.parametrize("name", NAMES)
def test_float64_against_mpmath(name):
    x = points(name, "float64")
    low, high = DOMAIN.get(name, (-INF, INF))
    x = x[np.isfinite(x) & (x >= low) & (x <= high)]
    assert_close(apply(name, x), *exact(REFERENCES[name], x), bound_of(name), name, x)


@pytest.mark.parametrize("name", NAMES)
def test_float32_against_float64(name):
    everywhere = np.arange(0, 2**32, 40961, np.uint64).astype("uint32").view("float32")
    x = np.concatenate([points(name, "float32"), everywhere])
    with np.errstate(all="ignore"):
        want = WIDE[name](x.astype("float64"))
    assert_close(apply(name, x), want, 0.0, bound_of(name), name, x)


@pytest.mark.parametrize("name", ("sin", "cos", "tan"))
def test_hardest_float32_reductions(name):
    largest = np.finfo("float32").max
    x = np.array(
        [16367173 * 2.0**72, largest, -largest, 11.0, 22.0, 2.0**20, 2.0**20 + 0.125, 2.0**47, 2.0**101], "float32"
    )
    assert_close(apply(name, x), *exact(REFERENCES[name], x), bound_of(name), name, x)


# ---- pow ----


def pow_points(dtype):
    """Every exponent; results that span the whole range; bases near one; integer exponents of both signs."""
    rng = rng_for("pow", dtype)
    top = 150 if dtype == "float32" else 1075
    base = np.abs(all_exponents(rng, 800, dtype))
    base = base[np.isfinite(base) & (base > 0) & (base != 1)].astype("float64")
    near = 1 + rng.uniform(-1, 1, 600) * 2.0 ** -rng.integers(1, 23 if dtype == "float32" else 52, 600)
    near = near.astype(dtype).astype("float64")
    near = near[near != 1]
    spread = np.concatenate([base, near])
    a = np.concatenate([spread, rng.uniform(0, 10, 600), rng.integers(-9, 9, 400) + 0.5])
    b = np.concatenate(
        [
            rng.uniform(-top, top, spread.size) / np.log2(spread),
            rng.uniform(-40, 40, 600),
            rng.integers(-30, 30, 400),
        ]
    )
    with np.errstate(over="ignore"):
        a, b = a.astype(dtype), b.astype(dtype)
    keep = np.isfinite(b) & (a != 0)
    return a[keep], b[keep]


@pytest.mark.parametrize("dtype", FLOATS)
def test_pow(dtype):
    a, b = pow_points(dtype)
    got = apply("pow", a, b)
    assert_close(got, *exact(mpmath.power, a, b), bound_of("pow"), "pow", a, b)


@pytest.mark.parametrize("dtype", FLOATS)
def test_pow_specials(dtype):
    """C's pow, which NumPy calls one value at a time for float64, settles each case."""
    info = np.finfo(dtype)
    whole = [2.0**52 + 1, 2.0**53, 2.0**23 + 1, 2.0**24, 3.0, 2.0, 1.0]
    values = [0.0, *whole, 0.5, 1.5, float(info.smallest_subnormal), float(info.max), INF]
    values = np.array([*values, *(-v for v in values), NAN], dtype)
    a, b = (v.ravel() for v in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        want = np.power(a.astype("float64"), b.astype("float64")).astype(dtype)
    got = apply("pow", a, b)
    outside = ~np.isfinite(want) | (want == 0) | (np.abs(want) == 1)
    assert_same(got[outside], want[outside], label=f"pow {dtype}")
    assert_close(got, want.astype("float64"), 0.0, bound_of("pow") + 0.5, "pow", a, b)


# ---- special values ----

SPECIALS = {
    "exp": {-INF: 0.0, INF: INF, 0.0: 1.0, 1e5: INF, -1e5: 0.0},
    "expm1": {-INF: -1.0, INF: INF, 0.0: 0.0, -1e5: -1.0, 1e5: INF},
    "log": {0.0: -INF, 1.0: 0.0, INF: INF, -1.0: NAN, -INF: NAN},
    "log1p": {0.0: 0.0, -1.0: -INF, INF: INF, -2.0: NAN, -INF: NAN},
    "tanh": {0.0: 0.0, INF: 1.0, -INF: -1.0, 1e30: 1.0, -1e30: -1.0},
    "sigmoid": {0.0: 0.5, INF: 1.0, -INF: 0.0, 1e30: 1.0, -1e30: 0.0},
    "sin": {0.0: 0.0, INF: NAN, -INF: NAN},
    "cos": {0.0: 1.0, INF: NAN, -INF: NAN},
    "sqrt": {0.0: 0.0, INF: INF, 4.0: 2.0, -1.0: NAN, -INF: NAN},
    "cbrt": {0.0: 0.0, INF: INF, -INF: -INF, 8.0: 2.0, -27.0: -3.0},
    "exp2": {-INF: 0.0, INF: INF, 0.0: 1.0, 10.0: 1024.0, -3.0: 0.125, 1e5: INF, -1e5: 0.0},
    "log2": {0.0: -INF, 1.0: 0.0, 8.0: 3.0, 0.125: -3.0, INF: INF, -1.0: NAN, -INF: NAN},
    "log10": {0.0: -INF, 1.0: 0.0, 1000.0: 3.0, 1e10: 10.0, INF: INF, -1.0: NAN, -INF: NAN},
    "tan": {0.0: 0.0, INF: NAN, -INF: NAN},
    "asin": {0.0: 0.0, 1.5: NAN, -1.5: NAN, INF: NAN, -INF: NAN},
    "acos": {1.0: 0.0, 1.5: NAN, -1.5: NAN, INF: NAN, -INF: NAN},
    "atan": {0.0: 0.0},
    "sinh": {0.0: 0.0, INF: INF, -INF: -INF, 1e5: INF, -1e5: -INF},
    "cosh": {0.0: 1.0, INF: INF, -INF: INF, 1e5: INF, -1e5: INF},
    "asinh": {0.0: 0.0, INF: INF, -INF: -INF},
    "acosh": {1.0: 0.0, 0.5: NAN, -1.0: NAN, INF: INF, -INF: NAN},
    "atanh": {0.0: 0.0, 1.0: INF, -1.0: -INF, 1.5: NAN, -1.5: NAN, INF: NAN, -INF: NAN},
    "erf": {0.0: 0.0, INF: 1.0, -INF: -1.0, 1e30: 1.0, -1e30: -1.0},
    "erfc": {0.0: 1.0, INF: 0.0, -INF: 2.0, 1e30: 0.0, -1e30: 2.0},
}
ODD_AT_ZERO = ("expm1", "log1p", "tanh", "sin", "sqrt", "cbrt", "tan", "asin", "atan", "sinh", "asinh", "atanh", "erf")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", NAMES)
def test_special_values(name, dtype):
    x = np.array([*SPECIALS[name], NAN], dtype)
    assert_same(apply(name, x), np.array([*SPECIALS[name].values(), NAN], dtype), label=name)
    if name in ODD_AT_ZERO:
        assert_same(apply(name, np.array([-0.0], dtype)), np.array([-0.0], dtype), label=name)
    if name in ("log", "log2", "log10"):
        assert apply(name, np.array([-0.0], dtype))[0] == -INF


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ("expm1", "log1p", "tanh", "sin", "tan", "asin", "atan", "sinh", "asinh", "atanh"))
def test_tiny_arguments_are_their_own_values(name, dtype):
    info = np.finfo(dtype)
    tiny = np.array([info.smallest_subnormal, info.smallest_subnormal * 5, info.tiny, info.tiny * info.eps], dtype)
    x = np.concatenate([tiny, -tiny])
    assert_same(apply(name, x), x, label=name)


def test_subnormal_results():
    x = np.array([-100.0, -103.0, -88.0], "float32")
    with np.errstate(all="ignore"):
        want = np.exp(x.astype("float64"))
    for name in ("exp", "sigmoid"):
        assert_close(apply(name, x), want, 0.0, bound_of(name), name, x)
        y = np.array([-745.0, -740.0, -710.0])
        assert_close(apply(name, y), *exact(mpmath.exp, y), bound_of(name), name, y)


# ---- blocks ----


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", NAMES)
def test_a_value_does_not_depend_on_its_neighbours(name, dtype):
    """Vector body, tail, one element, and blocks with or without arguments that need the long reduction."""
    x = points(name, dtype)[:701]
    together = apply(name, x)
    for size in (1, 7, 64):
        some = x[: 60 * size]
        parts = [apply(name, some[i : i + size]) for i in range(0, some.size, size)]
        assert_same(np.concatenate(parts), together[: some.size], label=f"{name} in pieces of {size}")
    order = np.argsort(np.abs(x), kind="stable")
    assert_same(apply(name, x[order]), together[order], label=f"{name} sorted")


@pytest.mark.parametrize("low, high", [(-9.0, 9.0), (-760.0, -700.0), (-120.0, 40.0)])
def test_silu_in_dense_samples(low, high):
    x = rng_for("silu", low).uniform(low, high, 400_000)
    wide = x.astype(np.longdouble)
    want = wide / (1 + np.exp(-wide))
    near = want.astype(np.float64)
    assert_close(apply("silu", x), near, (want - near).astype(np.float64), bound_of("silu"), "silu", x)


def test_gelu_in_dense_samples():
    x = rng_for("gelu").uniform(-38.0, 5.0, 12_000)
    high, low = exact(lambda t: t * mpmath.erfc(-t / mpmath.sqrt(2)) / 2, x)
    assert_close(apply("gelu", x), high, low, bound_of("gelu"), "gelu", x)


def test_sinc_is_exact_where_it_can_be():
    whole = np.array([0, -0.0, 1, -1, 2, 3, 1e5, 2.0**23 + 1, 2.0**53, 1e30])
    assert tp.sinc(tp.tensor(whole)).tolist() == [1.0, 1.0] + [0.0] * 8
    assert tp.sinc(tp.tensor(whole.astype(np.float32))).tolist() == [1.0, 1.0] + [0.0] * 8


def derivatives(f, x, count):
    """f and its first derivatives at a number."""
    found = [f]
    for _ in range(count):
        found.append(tp.grad(found[-1]))
    return [g(tp.tensor(x, dtype="float64")).item() for g in found]


def test_pytorch_196703_every_derivative_of_sinc_at_0_and_near():
    assert derivatives(lambda t: tp.sinc(2 * t), 0.0, 2) == pytest.approx([1, 0, -4 * np.pi**2 / 3], 1e-15)
    taylor = [1, 0, -(np.pi**2) / 3, 0, np.pi**4 / 5, 0, -(np.pi**6) / 7]
    assert derivatives(tp.sinc, 0.0, 6) == pytest.approx(taylor, 1e-14)
    for x in (1e-300, -1e-9, 1e-5, 0.01, 0.3, -0.7, 1.0, 2.5, 30.25):
        with mpmath.workprec(200):
            want = [float(d) for d in mpmath.taylor(lambda t: mpmath.sincpi(t), mpmath.mpf(x), 4)]
        want = [w * np.prod(range(1, k + 1)) for k, w in enumerate(want)]
        got = derivatives(tp.sinc, x, 4)
        for k in range(5):
            assert got[k] == pytest.approx(want[k], 1e-12, 1e-13), (x, k)
