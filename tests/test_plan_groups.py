"""Which ops a plan runs together: sums over rows within a group, what waits for it, and the same bits as eager."""

import numpy as np
import pytest
from helpers import assert_same, draw, rng_for

import tapeflow as tp
from tapeflow.plan.grouping import DO_GROUP, row_of

FLOATS = ["float32", "float64"]
LONG = [15, 16, 17, 100, 127, 128, 129, 1000, 1024, 1030, 4095, 4096, 4097, 8192, 9000, 70_001]


@pytest.fixture
def threads():
    before = tp.get_num_threads()
    yield tp.set_num_threads
    tp.set_num_threads(before)


def assert_equal(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert_same(a, b)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", LONG)
def test_sums_over_rows_of_any_length(threads, n, dtype):
    """Of what is made and what is read, in one group; several threads share rows or chunks."""
    rows = 5 if n < 1000 else 3
    a, b = draw(rng_for("a", n), (rows, n), dtype), draw(rng_for("b", n), (rows, n), dtype)
    x, y = tp.tensor(a), tp.tensor(b)

    def f(x, y):
        z = tp.tanh(x) * y + 0.5
        return z, tp.sum(z * z, axis=1), tp.mean(z, axis=-1, keepdims=True), tp.sum(z), tp.sum(tp.exp(z) - y, axis=1)

    plan = tp.freeze(f, x, y)
    for count in (1, 2, 3):
        threads(count)
        assert_equal(plan(x, y), f(x, y))
    assert [node.row for node in plan._nodes if node.kind == DO_GROUP] == [n]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [2, 3, 10, 100, 128])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "argmax", "argmin", "count_nonzero", "vector_norm"])
def test_short_rows_are_reduced_in_their_block(threads, name, n, dtype):
    a = draw(rng_for(name, n), (700, n), dtype)
    a[3, 1] = np.nan
    a[5] = -0.0
    reduce = getattr(tp, name)
    x = tp.tensor(a)
    plan = tp.freeze(lambda x: reduce(x * 1.5, axis=1), x)
    assert len(plan._nodes) == 1
    for count in (1, 2, 3):
        threads(count)
        assert_same(plan(x), reduce(x * 1.5, axis=1))


def test_a_row_may_span_axes():
    x = tp.tensor(draw(rng_for("x"), (6, 1, 7, 30), "float32"))

    def f(x):
        y = tp.exp(x)
        return tp.sum(y, axis=(2, 3)), tp.sum(y * 2.0, axis=(1, 2, 3)), tp.sum(y, axis=0), tp.sum(y, axis=(0, 2))

    plan = tp.freeze(f, x)
    assert plan._nodes[0].row == 210 and len(plan._nodes[0].instrs) == 4
    assert_equal(plan(x), f(x))


@pytest.mark.parametrize(
    "shape,axes,row",
    [
        ((3, 4), (1,), 4),
        ((3, 4), (0, 1), 12),
        ((3, 4), (0,), 0),
        ((3, 1), (0,), 3),
        ((3, 1), (1,), 0),
        ((2, 3, 4), (0, 2), 0),
        ((2, 1, 4), (0, 2), 8),
        ((2, 3, 4), (2,), 4),
    ],
)
def test_rows(shape, axes, row):
    assert row_of(shape, sum(1 << axis for axis in axes)) == row


def test_sums_that_are_added_up_do_not_end_a_group():
    """The gradients to a few parameters, added over a loop: one group, though each sum is read between."""
    x = tp.tensor(draw(rng_for("x"), (3, 5000), "float32"))

    def f(x):
        total = tp.zeros((3, 1))
        y = x
        for _ in range(6):
            y = y * 1.01 + x
            total = total + tp.sum(y * x, axis=1, keepdims=True)
        return y, total

    plan = tp.freeze(f, x)
    assert sum(node.kind == DO_GROUP and node.shape == (3, 5000) for node in plan._nodes) == 1
    assert_equal(plan(x), f(x))


def test_a_group_that_would_wait_for_itself_is_closed():
    """A value of the shape of the group is computed from a sum over it."""
    x = tp.tensor(draw(rng_for("x"), (4, 600), "float64"))

    def f(x):
        y = tp.exp(x)
        mean = tp.mean(y, axis=1, keepdims=True) * 0.5
        z = y - mean
        return z, tp.sum(z * y), tp.softmax(z * mean)

    plan = tp.freeze(f, x)
    assert_equal(plan(x), f(x))
    g = tp.value_and_grad(lambda x: tp.sum(f(x)[0] * f(x)[2]))
    assert_equal(tp.freeze(g, x)(x), g(x))


def test_many_sums_of_long_rows():
    """More than a group has room for."""
    x = tp.tensor(draw(rng_for("x"), (2, 3000), "float32"))

    def f(x):
        return [tp.sum(x * float(k), axis=1) for k in range(150)]

    assert_equal(tp.freeze(f, x)(x), f(x))


def test_what_a_sum_reads_may_be_written_over_later_in_its_group():
    x = tp.tensor(draw(rng_for("x"), (300, 40), "float32"))

    def f(x):
        y = tp.sin(x)
        return tp.sum(tp.matmul(y, tp.ones((40, 40))), axis=1), tp.sum(y, axis=1), tp.cos(y), tp.sum(tp.cos(y), axis=1)

    assert_equal(tp.freeze(f, x)(x), f(x))


def test_nan_and_infinities_go_through():
    a = np.zeros((3, 5000), np.float32)
    a[0, 4999], a[1, 0], a[2, 17] = np.nan, np.inf, -np.inf
    x = tp.tensor(a)
    plan = tp.freeze(lambda x: (tp.sum(x * 2.0, axis=1), tp.mean(x + 0.0)), x)
    assert_equal(plan(x), [tp.sum(x * 2.0, axis=1), tp.mean(x + 0.0)])
