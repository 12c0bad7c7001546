"""Which ops a plan runs together: sums over rows within a group, what waits for it, and the same bits as eager."""

import numpy as np
import pytest
from helpers import assert_same, draw, rng_for

import tapeflow as tp
from tapeflow.plan.grouping import DO_GROUP, row_of

FLOATS = ["float32", "float64"]
LONG = [15, 16, 17, 100, 127, 128, 129, 1000, 1024, 1030, 4095, 4096, 4097, 8192, 9000, 70_001]


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


def composed_layer_norm(x, weight):
    mean = tp.mean(x, axis=-1, keepdims=True)
    centred = x - mean
    scale = tp.rsqrt(tp.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)
    return centred * scale * weight


def composed_softmax(x, weight):
    e = tp.exp(x - tp.max(x, axis=-1, keepdims=True))
    return e / tp.sum(e, axis=-1, keepdims=True) * weight


def by_reshape(x, weight):
    """A value for each row without the axis of the row, brought back by reshape; a bool one; a cast one."""
    rows = tp.sum(x, axis=-1)
    low = tp.reshape(rows < 0.0, (*x.shape[:-1], 1))
    wide = tp.reshape(tp.astype(rows, "float64") * 2.0, (*x.shape[:-1], 1))
    return tp.where(low, x, -x) * weight + tp.astype(wide, x.dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [2, 7, 16, 100, 255, 256, 511, 512, 513, 2000])
@pytest.mark.parametrize("f", [composed_layer_norm, composed_softmax, by_reshape])
def test_what_is_computed_for_each_row_stays_in_the_block(threads, f, n, dtype):
    """Up to 512 elements a row: one group; longer rows take several, with the same bits."""
    a = draw(rng_for("a", n), (3, 40, n), dtype)
    a[0, 0, 0], a[1, 1, 1] = np.nan, np.inf
    x, w = tp.tensor(a), tp.tensor(draw(rng_for("w", n), (n,), dtype))
    plan = tp.freeze(f, x, w)
    grad = tp.value_and_grad(lambda x, w: tp.sum(f(x, w) * x), argnums=(0, 1))
    both = tp.freeze(grad, x, w)
    for count in (1, 2, 3):
        threads(count)
        assert_same(plan(x, w), f(x, w))
        (value, grads), (expected, expected_grads) = both(x, w), grad(x, w)
        assert_equal([value, *grads], [expected, *expected_grads])
    large = [node for node in plan._nodes if node.kind == DO_GROUP and node.shape == x.shape]
    assert len(large) == 1 or n > 512


def test_what_a_row_group_reads_elsewhere():
    """A value for each row from outside, one for all, a strided one, and one that another open group makes."""
    x = tp.tensor(draw(rng_for("x"), (60, 30), "float32"))
    per_row, one = tp.tensor(draw(rng_for("r"), (60, 1), "float32")), tp.tensor(0.25)
    strided = tp.tensor(draw(rng_for("s"), (1, 60), "float32"))
    other = tp.tensor(draw(rng_for("o"), (60, 1), "float32"))

    def f(x, per_row, one, strided, other):
        mean = tp.mean(x * 2.0, axis=1, keepdims=True)
        shift = mean * per_row + one
        y = x * 2.0 - shift
        z = tp.sum(y * y, axis=1, keepdims=True) + tp.permute_dims(strided, (1, 0))
        exp = tp.exp(other)
        return y * z, y / (z + exp), exp, mean, shift

    args = (x, per_row, one, strided, other)
    assert_equal(tp.freeze(f, *args)(*args), f(*args))


def test_part_of_the_values_of_rows_is_not_taken_for_a_row():
    x = tp.tensor(draw(rng_for("x"), (4, 5), "float32"))

    def f(x):
        rows = tp.sum(tp.exp(x), axis=1)
        return x * rows[1], x * tp.reshape(rows[::-1], (4, 1)), x[:, :4] * rows, x + tp.sum(rows)

    assert_equal(tp.freeze(f, x)(x), f(x))


def test_square_shapes_where_rows_could_be_columns():
    x = tp.tensor(draw(rng_for("x"), (6, 6), "float32"))

    def f(x):
        y = tp.exp(x)
        rows = tp.sum(y, axis=1)
        return y * rows, y * tp.reshape(rows, (6, 1)), y - tp.sum(y, axis=0), y - tp.sum(y, axis=0, keepdims=True)

    assert_equal(tp.freeze(f, x)(x), f(x))
