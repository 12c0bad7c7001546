"""How far the rules of the elementwise ops are from what their formulas say: the fused gradient against the same rule
on wider numbers, over the domain and every exponent. That the formulas are the derivatives, and what they give at the
special values, is for test_ops.py."""

import numpy as np
import pytest
from helpers import FLOATS, INF, NAN, WIDE, assert_ulps, gradients, rng_for
from references import EXACT, operands, reference

import tapeflow as tp
from tapeflow import ops

RULES = [(name, i) for name, entry in ops.TABLE.items() for i in range(entry.nin) if entry.vjp_kind(i) == "LOOP"]
RULES.remove(("remainder", 1))  # exact, by floor_divide; test_ops.py compares that with NumPy
# The rule's own terms cancel where its value is small: so many epsilons are allowed beside the units of the result.
ABSOLUTE = {"tanh": 2, "sinc": 4, "silu": 4, "gelu": 4, "gelu_tanh": 4, "digamma": 200, "expm1": 2}
# A rounded argument is magnified by the function: units in the last place, by default four more than the value's bound.
UNITS = {"pow": 200, "erf": 100, "erfc": 100, "erfinv": 100, "gelu": 100, "gelu_tanh": 100}
UNITS["logaddexp"] = 800  # sigmoid(a - b) for a result near the smallest normal number


def in_wide(name, i, *arrays):
    """The rule for input i, in the wide type throughout, for a cotangent of 1."""
    wide = [a.astype(WIDE) if a.dtype.kind == "f" else a for a in arrays]
    scope = {
        op: lambda *x, op=op: reference(op, *(np.asarray(v, WIDE if isinstance(v, (int, float)) else None) for v in x))
        for op in ops.TABLE
    }
    scope |= dict(zip("abc", wide, strict=False)) | {"y": reference(name, *wide), "g": np.ones(arrays[-1].shape, WIDE)}
    with np.errstate(all="ignore"):
        return eval(ops.composed_vjp(name, i), scope | {"inf": INF, "nan": NAN})


def in_range(dtype, *arrays):
    """Where products and quotients of three operands are normal numbers: no factor of a rule over- or underflows."""
    limit = np.finfo(dtype).maxexp / 3 - 8
    sizes = [np.abs(np.log2(np.abs(a.astype(float)))) for a in arrays if a.dtype.kind == "f"]
    return np.logical_and.reduce([size <= limit for size in sizes])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name,i", RULES)
def test_partials_over_the_whole_range(name, i, dtype):
    """Dense in the domain, and every exponent with both signs of which the parts of a rule are normal numbers."""
    n = 600 if name not in EXACT else 40
    rng, info, entry = rng_for("partials", name, dtype), np.finfo(dtype), ops.TABLE[name]
    exponents = rng.uniform(-info.maxexp / 3, info.maxexp / 3, (entry.nin, n))
    broad = [(rng.choice([-1, 1], n) * 2.0**e).astype(dtype) for e in exponents]
    samples = [operands(name, (n,), dtype, "partials")]
    if name not in (
        "pow",
        "lgamma",
        "digamma",
        "polygamma",
        "spherical_ratio",
    ):  # most of the plane over- or underflows, or is slow
        samples.append(broad)
    for sample in samples:
        if entry.kind == "select":
            sample[0] = sample[0] != 0
        got = gradients(lambda *x: getattr(tp, name)(*x), *sample, seed=np.ones(n, dtype))[i]
        with np.errstate(all="ignore"):
            want = in_wide(name, i, *sample)
            tested = in_range(dtype, *sample)
            near = np.abs(got - want) <= ABSOLUTE.get(name, 0) * float(info.eps)
            got = np.where(near | ~tested, np.asarray(want).astype(dtype), got)
        assert_ulps(got, want, UNITS.get(name, 4) + entry.ulp, f"{name} {i} {dtype}", sample)
