"""Python floats given to a recorded function do in it what floats do, so a plan has the dtypes and bits of eager."""

import math
import operator

import numpy as np
import pytest
from helpers import assert_same

import tapeflow as tp

A, B = (0.1, 0.30000001), (-2.7, 3.1)  # recorded with, and replayed with: no float32 numbers


def alike(f, *args, also=()):
    """f frozen with args gives what it gives eagerly, for each of the argument lists."""
    plan = tp.freeze(f, *args)
    for values in (args, *also):
        got, want = plan(*values), f(*values)
        if isinstance(want, tp.Tensor):
            assert_same(got.detach(), want.detach(), label=f"{values}\n{plan}")
        else:
            assert got.item() == want and (got.dtype == tp.float64 or isinstance(want, bool)), (values, got, want)


OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv]
OPERATORS += [operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge]


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.__name__)
def test_floats_among_themselves_are_pythons(op):
    alike(op, *A, also=[B, B[::-1], (0.1, 0.1)])
    for number in (2, 0.7, True):
        alike(lambda a, number=number: op(a, number), 0.1, also=[(-2.7,)])
        alike(lambda a, number=number: op(number, a), 0.1, also=[(-2.7,)])


def test_other_operators_of_floats():
    for f in (operator.neg, operator.pos, abs, lambda a: a**2, lambda a: (2 - a) * a / 3 - -a):
        alike(f, 0.1, also=[(-2.7,)])
    alike(lambda a, b: a // b + a % b, 7.1, 2.3, also=[(-7.1, 2.3)])
    alike(lambda a, b: sum(divmod(a, b)), 7.1, 2.3, also=[(-7.1, 2.3)])

    def in_place(a, x):
        b = a
        a += 0.2
        a *= 3
        a -= b
        a /= 7.0
        return x * a, a == b

    plan = tp.freeze(in_place, 0.1, tp.ones(2))
    for a in A:
        y, same = plan(a, tp.ones(2))
        assert_same(y, in_place(a, tp.ones(2))[0])
        assert not bool(same)
    assert hash(tp.freeze(lambda a: a * (hash(a) != 0), 0.5)) is not None


FUNCTIONS = [tp.sin, tp.exp, tp.sigmoid, tp.square, tp.negative, tp.floor, tp.abs]


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_functions_take_floats_as_they_take_numbers(f):
    alike(f, 0.1, also=[(2.7,)])
    alike(lambda a: f(a * 3 + 0.2) * 2.0, 0.1, also=[(2.7,)])
    for dtype in ("float32", "float64"):
        x = tp.tensor([0.3, 0.7], dtype=dtype)
        alike(lambda a, x: f(a) * x + a, 0.1, x, also=[(2.7, x)])


@pytest.mark.parametrize("f", [tp.add, tp.multiply, tp.maximum, tp.pow, tp.greater, tp.hypot], ids=lambda f: f.__name__)
def test_functions_of_two(f):
    alike(f, *A, also=[(2.7, 3.1)])
    alike(lambda a: f(a, 2.0), 0.1, also=[(2.7,)])
    for dtype in ("float32", "float64"):
        x = tp.tensor([0.3, 0.7], dtype=dtype)
        alike(f, x, 0.1, also=[(x, 2.7)])
        alike(f, 0.1, x, also=[(2.7, x)])


def test_a_schedule_of_a_float():
    def step(x, t):
        rate = 0.5 * (1.0 + tp.cos(math.pi * t))
        return x - (rate if t < 1.0 else 0.1) * x

    x = tp.tensor([1.0, 3.0])
    alike(step, x, 0.1, also=[(x, 0.30000001), (x, 0.9)])


@pytest.mark.parametrize("default", ["float32", "float64"])
def test_gradients_with_respect_to_floats(default):
    tp.set_default_dtype(default)
    try:
        for f in (lambda a, b: (a + b) * (b - 3.0 * a), lambda a, b: tp.sin(a) * b**2):
            g = tp.value_and_grad(f, argnums=(0, 1))
            plan = tp.freeze(g, *A)
            for values in (A, B):
                (y, slopes), (z, wanted) = plan(*values), g(*values)
                for got, want in zip((y, *slopes), (z, *wanted), strict=True):
                    assert_same(got, want)
                    assert got.dtype == default
    finally:
        tp.set_default_dtype("float32")


@pytest.mark.parametrize("dtype", [None, "float32", "float64", "int64"])
def test_what_is_filled_with_an_argument_follows_it(dtype):
    if dtype != "int64":
        alike(lambda a: tp.full((2, 3), a, dtype=dtype), 2.1, also=[(6.3,), (-0.1,)])
        alike(lambda a: tp.full_like(tp.zeros(3, dtype="float64"), a, dtype=dtype), 2.1, also=[(6.3,), (-0.1,)])
    for kind in ("float32", "float64", "int64"):
        x, y = tp.tensor([[5]], dtype=kind), tp.tensor([[7]], dtype=kind)
        alike(lambda a: tp.full((2, 3), a, dtype=dtype), x, also=[(y,)])
        alike(lambda a: tp.full((), a[0], dtype=dtype) * 2, x, also=[(y,)])
    with pytest.raises(tp.ShapeError, match="one number"):
        tp.freeze(lambda a: tp.full((2,), a), tp.ones(2))


def test_what_is_made_or_drawn_of_a_float():
    alike(lambda a: tp.asarray(a), 0.1, also=[(2.7,)])
    alike(lambda a: tp.asarray(a, dtype="float64"), 0.1, also=[(2.7,)])
    draw = tp.function(lambda high: tp.random.uniform(0.0, high, (4,)))
    for high in (2.0, 5.5):
        tp.random.manual_seed(3)
        want = tp.random.uniform(0.0, high, (4,))
        tp.random.manual_seed(3)
        assert_same(draw(high), want)
    assert len(draw.plans) == 1
    for dtype in ("float32", "float64", "int64"):
        x, i = tp.tensor([1, 2], dtype=dtype), tp.tensor([0, 1])
        alike(lambda a, x: tp.concat([x[:1], tp.asarray(x)]) * a, 0.1, x, also=[(2.7, x)])
        alike(lambda a, x: tp.stack([x[0], a, a * 2]), 0.1, x, also=[(2.7, x)])
        alike(lambda a, x: tp.stack([a, x[0]]), 0.1, x, also=[(2.7, x)])
        if dtype != "int64":
            alike(lambda a, x, i=i: tp.scatter_add(x, i, a), 0.1, x, also=[(2.7, x)])
            alike(lambda a, x: tp.masked_fill(x, x > 1, a), 0.1, x, also=[(2.7, x)])
        else:
            for f in (lambda a, x, i=i: tp.scatter_add(x, i, a), lambda a, x: tp.masked_fill(x, x > 1, a)):
                with pytest.raises(tp.errors.DTypeError, match="fit"):
                    tp.freeze(f, 0.1, x)
    alike(lambda a: tp.stack([a, 2.0, a * a]), 0.1, also=[(2.7,)])
    w = tp.tensor([1.0, 2.0], dtype="float64")
    assign = tp.function(lambda a: w.assign(a))
    for a in (0.1, 0.7):
        assign(a)
        np.testing.assert_array_equal(w.numpy(), [a, a])
