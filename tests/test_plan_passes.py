"""What single passes take out of a program, and that they change no bit: also of -0.0, infinities and NaN."""

import numpy as np
import pytest
from helpers import assert_same

import tapeflow as tp
from tapeflow.plan import passes
from tapeflow.plan.ir import CODES

ODD = [1.5, -0.0, 0.0, np.inf, -2.0, np.nan, 5e-324, 0.0, -np.inf, 1e308]


@pytest.fixture(autouse=True)
def verified(monkeypatch):
    monkeypatch.setattr(passes, "VERIFY", True)


def assert_frozen_alike(f, *args, **options):
    """The plan of f, which has its bits for these arguments."""
    plan = tp.freeze(f, *args, **options)
    got, want = plan(*args), f(*args)
    for a, b in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
        assert_same(a.detach(), b.detach(), label=str(plan))
    return plan


def count(plan, name):
    return [i.op for i in plan.instructions].count(CODES[name])


def test_a_gradient_of_slices_has_no_window_of_zeros_to_read_and_write_again():
    def f(x):
        return tp.sum(x[1:] * x[:-1] ** 2 + (1.0 - x[:-1]) ** 3)

    for x in (np.array(ODD), np.linspace(-1, 1, 7, dtype=np.float32)):
        x = tp.tensor(x)
        plan = assert_frozen_alike(tp.grad(f), x)
        without = tp.freeze(tp.grad(f), x, passes=("dce", "fold", "forward", "cse", "dce", "fuse"))
        names = ("unslice", "assign", "getitem")
        assert [count(plan, n) for n in names] == [1, 1, 3] and sum(count(without, n) for n in names) == 7


@pytest.mark.parametrize("key", [slice(1, 4), slice(None, None, -2), (Ellipsis, 2), (slice(0, 2), None)])
def test_windows_by_themselves(key):
    def f(x, y):
        w = x * 1.5
        w[key] = y
        read = w[key]
        w[key] = read + y
        return read, w, w[key], w[0:3]

    x = tp.tensor(np.array([ODD, ODD[::-1], ODD, ODD, ODD]))
    y = x[key] - 1.0
    for way in (None, ("windows",), ("windows", "dce")):
        plan = assert_frozen_alike(f, x, y, passes=way)
    assert count(plan, "assign") == 1 and count(plan, "getitem") == 1


def test_writes_to_other_windows_stay():
    def f(x, y):
        w = x * 1.0
        w[1:4] = y
        w[2:5] = y
        return w[1:4], w

    plan = assert_frozen_alike(f, tp.tensor(ODD), tp.tensor([7.0, 8.0, 9.0]))
    assert count(plan, "assign") == 2 and count(plan, "getitem") == 1


def test_one_number_all_over_is_computed_once():
    def f(x):
        even = tp.broadcast_to(tp.tensor([2.0]), (10,))
        y = tp.exp(even) * 3.0
        return tp.where(even > 1.0, x * y, x + y), y

    plan = assert_frozen_alike(f, tp.tensor(ODD))
    assert [count(plan, n) for n in ("exp", "greater", "where", "multiply", "add")] == [0, 0, 0, 1, 0]


def test_the_rule_of_smul_with_numbers():
    """Second derivatives are full of smul(1, g), smul(g, 1) and of conditions on numbers."""

    def f(x):
        return tp.sum((1.0 - x) ** 2 * 3.0 + 2.0 * x**3 * (x - 1.0))

    for dtype in ("float32", "float64"):
        x, v = tp.tensor(ODD, dtype=dtype), tp.tensor(ODD[::-1], dtype=dtype)
        plan = assert_frozen_alike(tp.grad(lambda x, v: tp.sum(tp.grad(f)(x) * v)), x, v)
        raw = tp.freeze(tp.grad(lambda x, v: tp.sum(tp.grad(f)(x) * v)), x, v, passes=("fold", "cse", "dce"))
        assert len(plan.instructions) < 0.75 * len(raw.instructions)


@pytest.mark.parametrize("first", [0.0, -0.0, 1.0, -2.5, np.inf, np.nan])
def test_smul_of_a_number(first):
    plan = assert_frozen_alike(lambda x: tp.smul(tp.tensor(first), x), tp.tensor(ODD))
    assert count(plan, "smul") == (first == 0)
    for x in (tp.tensor(ODD), tp.tensor(ODD, dtype="float64")):
        assert_frozen_alike(lambda x: tp.smul(tp.smul(x, 1.0), first), x)
        assert_frozen_alike(lambda x: -tp.smul(x, tp.tensor([1.0], dtype="float64")), x)
        for zero in (0.0, -0.0):
            assert_frozen_alike(lambda x, zero=zero: tp.where(x == zero, tp.smul(x, first), x * 2.0), x)
