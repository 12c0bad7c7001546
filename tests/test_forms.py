"""Loops with more than one way to the same bits: divisors, shifts and exponents that are one number, blocks without
special values."""

import numpy as np
import pytest
from helpers import FLOATS, INF, INTS, NAN, WIDE, assert_same, assert_ulps, host, rng_for

import tapeflow as tp


@pytest.mark.parametrize("dtype", INTS)
def test_divided_and_shifted_by_one_number(dtype):
    """The loops over one divisor (multiplication by its inverse) and over one shift, against NumPy."""
    info, rng = np.iinfo(dtype), rng_for("one divisor", dtype)
    x = np.concatenate([rng.integers(info.min, info.max, 300, dtype, endpoint=True), [info.min, info.max, 0, 1]])
    powers = [2**k + d for k in range(1, info.bits - 1) for d in (-1, 0, 1)]
    for d in {*powers, info.max, info.max - 1, info.max // 2 + 1, 7, 10, *rng.integers(1, info.max, 50)}:
        at = np.concatenate([x, x // d * d, x // d * d + (d - 1)]).astype(dtype)
        number = np.asarray(d, dtype)
        assert_same(tp.tensor(at) // int(d), at // number, label=f"// {d}")
        assert_same(tp.tensor(at) % int(d), at % number, label=f"% {d}")
    for shift in range(info.bits):
        assert_same(tp.tensor(x.astype(dtype)) >> shift, x.astype(dtype) >> number.dtype.type(shift))


@pytest.mark.parametrize("dtype", FLOATS)
def test_exponents_with_a_form_of_their_own(dtype):
    """The bits of a power depend neither on how its exponent came nor on the exponents beside it."""
    special = [0.0, -0.0, INF, -INF, NAN, -2.5, -3.0, 1.0]
    x = np.concatenate([rng_for("forms").uniform(0.01, 9, 70), special]).astype(dtype)
    exponents = [2.0, 0.5, -1.0, 1.0, 3.0, -2.0, 0.75]
    mixed = tp.tensor(np.tile(x, len(exponents))) ** tp.tensor(np.repeat(np.array(exponents, dtype), len(x)))
    for exponent, together in zip(exponents, host(mixed).reshape(len(exponents), -1), strict=True):
        assert_same(tp.tensor(x) ** exponent, together)
        with np.errstate(all="ignore"):
            want = x.astype(WIDE) ** WIDE(exponent)
        assert_ulps(together, want, 2, f"pow {exponent}", (x,))
    for exponent in (2, 1, -1):
        assert_same(tp.tensor(x) ** exponent, host(tp.tensor(x) ** float(exponent)))
