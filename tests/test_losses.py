"""softmax, log_softmax, cross_entropy and mse_loss: values against wide NumPy, extremes, gradients to the second order,
and the losses against their composed forms."""

import itertools
import math

import numpy as np
import pytest
from helpers import (
    FLOATS,
    INF,
    INTS,
    LAYOUTS,
    NAN,
    WIDE,
    assert_gradients,
    assert_same,
    assert_ulps,
    check_fused,
    check_vjp,
    close,
    draw,
    gradients,
    host,
    leaves,
    name_of,
    rng_for,
    second,
)
from hypothesis import given
from hypothesis import strategies as st

import tapeflow as tp


def naive_log_softmax(x, axis=-1):
    x = np.asarray(x, WIDE)
    with np.errstate(all="ignore"):
        shifted = x - x.max(axis, keepdims=True, initial=-INF)
        return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def naive_softmax(x, axis=-1):
    return np.exp(naive_log_softmax(x, axis))


def naive_cross_entropy(x, labels):
    return -naive_log_softmax(x)[np.arange(len(labels)), labels].mean()


SOFTMAXES = {"softmax": naive_softmax, "log_softmax": naive_log_softmax}
softmaxes = pytest.mark.parametrize("name", SOFTMAXES)


@pytest.mark.parametrize("dtype", FLOATS)
@softmaxes
def test_values_on_every_axis_and_layout(name, dtype):
    f, reference = getattr(tp, name), SOFTMAXES[name]
    for shape in ((4,), (1,), (3, 5), (2, 3, 4), (7, 1), (2, 130), (129, 3)):
        x = draw(rng_for(name, shape), shape, dtype, -6, 6)
        assert_same(f(tp.tensor(x)), f(tp.tensor(x), axis=-1))
        for axis, (layout, make) in itertools.product(range(-len(shape), len(shape)), LAYOUTS.items()):
            got = f(make(x), axis=axis)
            assert name_of(got) == dtype
            # 1 - p cancels in log_softmax near 0: there the error is absolute.
            close(
                got,
                reference(x, axis).astype(dtype),
                8 * np.finfo(dtype).eps,
                4 * np.finfo(dtype).eps,
                f"{layout} {axis}",
            )
            assert_same(got, f(tp.tensor(x), axis=axis), label=f"{layout} {axis}")
            moved = tp.permute_dims(make(x), tuple(range(len(shape)))[::-1])
            assert_same(f(moved, axis=-1 - axis), host(got).T.copy(), label="the tree depends on the extent alone")


@softmaxes
def test_integers_become_the_default_float(name):
    for dtype in ("bool", *INTS):
        x = draw(rng_for(dtype), (2, 3), dtype, 0, 5)
        got = getattr(tp, name)(tp.tensor(x))
        assert name_of(got) == "float32" and not got.requires_grad
        close(got, SOFTMAXES[name](x.astype(float)).astype("float32"), 1e-6)


@softmaxes
def test_softmax_gradients(name):
    f = getattr(tp, name)
    for shape in ((4,), (1,), (3, 2), (2, 3, 2)):
        for axis in range(-len(shape), len(shape)):
            check_vjp(lambda t, axis=axis: f(t, axis=axis), draw(rng_for(shape), shape), label=f"{name} {shape} {axis}")
    for n in (127, 1000, 5003):
        check_fused(f, draw(rng_for(n), (2, n)), seed=draw(rng_for("seed"), (2, n)), label=f"{name} {n}")


EXTREME = [  # logits, softmax, log_softmax
    ([0, 0], [0.5, 0.5], [-math.log(2)] * 2),
    ([1e4, 0], [1, 0], [0, -1e4]),
    ([-1e4, -1e4], [0.5, 0.5], [-math.log(2)] * 2),
    ([3e38, 3e38], [0.5, 0.5], [-math.log(2)] * 2),
    ([3e38, -3e38], [1, 0], [0, -INF]),
    ([-INF, 2], [0, 1], [-INF, 0]),
    ([-INF, 2, 2], [0, 0.5, 0.5], [-INF, -math.log(2), -math.log(2)]),
    ([88.9, 89.9], [1 / (1 + math.e), math.e / (1 + math.e)], [-math.log1p(math.e), 1 - math.log1p(math.e)]),
    ([5], [1], [0]),
]


@pytest.mark.parametrize("x,p,log_p", EXTREME, ids=str)
def test_extremes(x, p, log_p):
    for dtype in FLOATS:
        v = np.array(x, dtype)
        if dtype == "float64" and max(map(abs, x)) == 3e38:
            log_p = [max(q, -6e38) for q in log_p]
        for t, axis in ((tp.tensor(v), 0), (tp.tensor(np.stack([v, np.zeros_like(v)], 1))[:, 0], -1)):
            close(tp.softmax(t, axis=axis), np.array(p, dtype), 1e-6)
            close(tp.log_softmax(t, axis=axis), np.array(log_p, dtype), 1e-6)
        rows = np.stack([v, np.zeros_like(v)])
        close(tp.softmax(tp.tensor(rows))[1], np.full(len(x), 1 / len(x), dtype), 1e-6)
        for i in range(len(x)):
            one = np.eye(len(x), dtype=dtype)[i]
            for create_graph in (False, True):
                (g,) = gradients(tp.softmax, v, seed=one, create_graph=create_graph)
                close(g, (p[i] * (one - p)).astype(dtype), 1e-5, 1e-6)
                (g,) = gradients(tp.log_softmax, v, seed=one, create_graph=create_graph)
                close(g, (one - p).astype(dtype), 1e-5, 1e-6)


@softmaxes
def test_rows_that_have_no_distribution_are_nan_and_stay_alone(name):
    for row in ([-INF, -INF], [INF, 1], [NAN, 1], [INF, -INF]):
        x = np.array([row, [1, 1], [0, 3]], "float32")
        got = host(getattr(tp, name)(tp.tensor(x)))
        assert np.isnan(got[0]).any()
        close(got[1:], SOFTMAXES[name](x[1:]).astype("float32"), 1e-6)
        for create_graph in (False, True):  # a zero cotangent shields the row from its NaN
            seed = np.array([[0, 0], [1, 2], [3, 4]], "float32")
            (g,) = gradients(getattr(tp, name), x, seed=seed, create_graph=create_graph)
            assert not g[0].any()
            assert np.isfinite(g).all()


@softmaxes
def test_zero_sizes(name):
    f = getattr(tp, name)
    for shape, axis in itertools.product(((0, 3), (3, 0), (0,), (2, 0, 3)), (0, -1)):
        for create_graph in (False, True):
            (g,) = gradients(lambda t, axis=axis: f(t, axis=axis), np.zeros(shape), create_graph=create_graph)
            assert g.shape == shape
            assert f(tp.zeros(shape), axis=axis).shape == shape


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 5),
    n=st.integers(1, 40),
    scale=st.sampled_from([1, 10, 100, 1e4]),
    dtype=st.sampled_from(FLOATS),
)
def test_drawn_rows(seed, rows, n, scale, dtype):
    x = np.random.default_rng(seed).normal(0, scale, (rows, n)).astype(dtype)
    eps = np.finfo(dtype).eps
    p = tp.softmax(tp.tensor(x))
    close(tp.sum(p, axis=1), np.ones(rows, dtype), 8 * eps, 0)
    # The logits are subtracted before exp, so the relative error grows with their spread.
    close(p, naive_softmax(x).astype(dtype), (8 + 4 * scale) * eps * 10, np.finfo(dtype).tiny)
    close(tp.log_softmax(tp.tensor(x)), naive_log_softmax(x).astype(dtype), 8 * eps, 8 * eps * max(1, scale))
    labels = np.random.default_rng(seed).integers(0, n, rows)
    got = tp.cross_entropy(tp.tensor(x), tp.tensor(labels))
    assert got.shape == () and name_of(got) == dtype
    close(got, np.array(naive_cross_entropy(x, labels), dtype), 16 * eps, 16 * eps * max(1, scale))


# ---- cross entropy ----


def composed_cross_entropy(x, labels):
    rows = tp.arange(x.shape[0]) * x.shape[1]
    picked = tp.take(tp.reshape(tp.log_softmax(x), (-1,)), rows + tp.tensor(labels), axis=0)
    return -tp.mean(picked)


@pytest.mark.parametrize("rows,n", [(1, 1), (1, 3), (4, 3), (5, 10), (2, 2), (64, 10), (3, 1001)])
def test_cross_entropy_against_its_composed_form(rows, n):
    for dtype in FLOATS:
        x = draw(rng_for(rows, n), (rows, n), dtype, -4, 4)
        labels = rng_for("labels").integers(0, n, rows)
        f = lambda t, i=labels: tp.cross_entropy(t, tp.tensor(i))  # noqa: E731
        g = lambda t, i=labels: composed_cross_entropy(t, i)  # noqa: E731
        tolerance = 1e-5 if dtype == "float32" else 1e-12
        close(f(tp.tensor(x)), g(tp.tensor(x)), tolerance, tolerance)
        close(f(tp.tensor(x)), np.array(naive_cross_entropy(x, labels), dtype), tolerance, tolerance)
        want = (naive_softmax(x) - np.eye(n)[labels]) / rows
        for create_graph in (False, True):
            close(gradients(f, x, create_graph=create_graph)[0], want.astype(dtype), tolerance, tolerance)
            close(gradients(g, x, create_graph=create_graph)[0], want.astype(dtype), tolerance, tolerance)
        for make in LAYOUTS.values():
            assert_same(f(make(x)), f(tp.tensor(x)))
            held = make(x).requires_grad_()
            f(held).backward()
            assert_same(held.grad, gradients(f, x)[0])
    if rows * n < 40:
        check_vjp(f, x, label=f"cross entropy {rows} {n}")


def test_cross_entropy_takes_any_integer_labels():
    x = draw(rng_for("x"), (3, 4), "float32")
    want = tp.cross_entropy(tp.tensor(x), tp.tensor([3, 0, 1]))
    for dtype in INTS:
        labels = np.array([3, 0, 1], dtype)
        assert_same(tp.cross_entropy(tp.tensor(x), tp.tensor(labels)), want)
        assert_same(tp.cross_entropy(tp.tensor(x), labels), want)
        assert_same(tp.cross_entropy(tp.tensor(x), tp.tensor(np.repeat(labels, 2))[::2]), want)
    with pytest.raises(TypeError, match="bool"):
        tp.cross_entropy(tp.tensor(x), tp.tensor([True, False, True]))
    with pytest.raises((TypeError, ValueError), match="cross_entropy"):
        tp.cross_entropy(tp.tensor(x), tp.tensor([0.0, 1.0, 2.0]))


@pytest.mark.parametrize("shape", [(4,), (1, 4), (2, 3, 4), (2, 1, 3, 4)])
def test_cross_entropy_of_any_rank_averages_over_every_row(shape):
    x = draw(rng_for(shape), shape)
    labels = rng_for("labels").integers(0, 4, shape[:-1])
    want = naive_cross_entropy(x.reshape(-1, 4), labels.reshape(-1))
    close(tp.cross_entropy(tp.tensor(x), tp.tensor(labels)), np.array(want, float), 1e-12)
    check_vjp(lambda t: tp.cross_entropy(t, tp.tensor(labels)), x, label=f"rank {shape}")


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.cpu
def test_cross_entropy_keeps_the_labels_it_has_checked(create_graph):
    labels, logits = np.array([0, 3, 1, 2]), np.ones((4, 5))
    (want,) = gradients(lambda x: tp.cross_entropy(x, tp.tensor(labels)), logits)
    for step in (1, 2):
        held = np.repeat(labels, step)
        x = leaves(logits)[0]
        loss = tp.cross_entropy(x, tp.asarray(held, copy=False)[::step])
        held[:] = 10**9  # their owner may write to them after the check
        loss.backward(create_graph=create_graph)
        assert_same(x.grad, want)


def test_cross_entropy_of_probabilities():
    x, p = draw(rng_for("x"), (3, 4)), naive_softmax(draw(rng_for("p"), (3, 4))).astype(float)
    want = -(p * naive_log_softmax(x)).sum(1).mean()
    close(tp.cross_entropy(tp.tensor(x), tp.tensor(p)), np.array(want, float), 1e-12)
    check_vjp(tp.cross_entropy, x, p, label="probabilities")
    onehot = np.eye(4)[[3, 0, 1]]
    close(
        tp.cross_entropy(tp.tensor(x), tp.tensor(onehot)), tp.cross_entropy(tp.tensor(x), tp.tensor([3, 0, 1])), 1e-12
    )
    x[:, 2] = -INF  # a class of probability 0 adds 0, also where its log is -inf
    assert np.isfinite(tp.cross_entropy(tp.tensor(x), tp.tensor(onehot)).item())
    close(
        gradients(lambda t: tp.cross_entropy(t, tp.tensor(onehot)), x)[0], (naive_softmax(x).astype(float) - onehot) / 3
    )


@pytest.mark.parametrize(
    "labels,bad", [([0, 4, 1], 4), ([-1, 0, 0], -1), ([0, 0, 2**31 - 1], 2**31 - 1), ([0, -5, 9], -5)]
)
def test_labels_out_of_range_are_refused(labels, bad):
    x = tp.tensor(draw(rng_for("x"), (3, 4), "float32"), requires_grad=True)
    with pytest.raises(IndexError) as info:
        tp.cross_entropy(x, tp.tensor(labels))
    text = str(info.value)
    assert "cross_entropy" in text and str(bad) in text and "4" in text, text
    assert x.grad is None


@pytest.mark.parametrize(
    "shapes", [((3, 4), (2,)), ((3, 4), (3, 1)), ((4,), (4,)), ((3, 4), ()), ((2, 3, 4), (2,))], ids=str
)
def test_cross_entropy_shapes_that_do_not_fit(shapes):
    with pytest.raises(ValueError, match="cross_entropy"):
        tp.cross_entropy(tp.ones(shapes[0]), tp.zeros(shapes[1], dtype=tp.int64))


CROSS_ENTROPY = [  # logits, label, loss, gradient
    ([1e4, 0], 0, 0, [0, 0]),
    ([1e4, 0], 1, 1e4, [1, -1]),
    ([-1e4, -1e4], 0, math.log(2), [-0.5, 0.5]),
    ([-INF, 2], 1, 0, [0, 0]),
    ([-INF, 2], 0, INF, [-1, 1]),
    ([-INF, 0, 0], 2, math.log(2), [0, 0.5, -0.5]),
    ([3e38, -3e38], 0, 0, [0, 0]),
    ([3e38, 3e38], 0, math.log(2), [-0.5, 0.5]),
    ([7], 0, 0, [0]),
]


@pytest.mark.parametrize("x,label,loss,gradient", CROSS_ENTROPY, ids=str)
def test_cross_entropy_extremes(x, label, loss, gradient):
    for dtype in FLOATS:
        v = np.array([x], dtype)
        f = lambda t: tp.cross_entropy(t, tp.tensor([label]))  # noqa: E731
        close(f(tp.tensor(v)), np.array(loss, dtype), 1e-6)
        assert_gradients(f, [v], [gradient])


def test_cross_entropy_zero_seed_and_nan_rows():
    x = np.array([[NAN, 1], [INF, 1], [-INF, -INF]])
    for dtype, create_graph in itertools.product(FLOATS, (False, True)):
        f = lambda t: tp.cross_entropy(t, tp.tensor([0, 1, 0]))  # noqa: E731
        (g,) = gradients(f, x.astype(dtype), seed=np.array(0, dtype), create_graph=create_graph)
        assert not g.any()
        assert np.isnan(f(tp.tensor(x.astype(dtype))).item())


def test_cross_entropy_of_no_rows_is_the_mean_of_nothing():
    for create_graph in (False, True):
        (g,) = gradients(
            lambda t: tp.cross_entropy(t, tp.zeros((0,), dtype=tp.int64)), np.zeros((0, 3)), create_graph=create_graph
        )
        assert g.shape == (0, 3)
    assert math.isnan(tp.cross_entropy(tp.zeros((0, 3)), tp.zeros((0,), dtype=tp.int64)).item())


def test_cross_entropy_bits_do_not_depend_on_the_thread_count():
    x = draw(rng_for("threads"), (20_000, 37), "float32", -9, 9)
    labels = rng_for("threads").integers(0, 37, 20_000)
    before = tp.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            tp.set_num_threads(threads)
            f = lambda t: tp.cross_entropy(t, tp.tensor(labels))  # noqa: E731
            results.append(
                [host(f(tp.tensor(x))), gradients(f, x)[0], *(host(getattr(tp, n)(tp.tensor(x))) for n in SOFTMAXES)]
            )
    finally:
        tp.set_num_threads(before)
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            assert_same(got, want)


def test_softmax_is_accurate():
    for dtype in FLOATS:
        x = draw(rng_for("accuracy", dtype), (50, 64), dtype, -20, 20)
        assert_ulps(tp.softmax(tp.tensor(x)), naive_softmax(x), 40 if dtype == "float32" else 80)


# ---- mean squared error ----


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (2, 0)])
def test_mse_values_and_gradients(shape):
    a, b = (draw(rng_for(shape, i), shape) for i in (0, 1))
    with np.errstate(all="ignore"):
        want = np.mean((a - b) ** 2) if a.size else NAN
    close(tp.mse_loss(tp.tensor(a), tp.tensor(b)), np.asarray(want), 1e-12)
    if a.size:
        check_vjp(tp.mse_loss, a, b, label=f"mse {shape}")
        for dtype in FLOATS:
            d = 2 * (a - b) / a.size
            assert_gradients(
                tp.mse_loss, [a.astype(dtype), b.astype(dtype)], d.astype(dtype), -d.astype(dtype), rtol=1e-5
            )


def test_chainer_684_mse_of_mixed_dtypes():
    x, y = leaves(np.array(3, "float32"), np.array(0.1))
    (x * y).backward()
    assert (name_of(x.grad), name_of(y.grad)) == ("float32", "float64")
    for dtypes in (("float32", "float64"), ("float64", "float32")):
        arrays = [np.array([3.0, 1], dtypes[0]), np.array([0.1, 1], dtypes[1])]
        got = gradients(tp.mse_loss, *arrays)
        assert [str(g.dtype) for g in got] == list(dtypes)
        close(got[0], np.array([2.9, 0], dtypes[0]), 1e-6)
        assert name_of(tp.mse_loss(*map(tp.tensor, arrays))) == "float64"


@pytest.mark.parametrize("shapes", [((3,), (2,)), ((3, 1), (3,)), ((2, 3), (3,)), ((), (2,))], ids=str)
def test_mse_of_two_shapes_is_refused(shapes):
    """Broadcasting a target by accident trains on the wrong loss."""
    with pytest.raises(ValueError, match="mse_loss"):
        tp.mse_loss(tp.ones(shapes[0]), tp.ones(shapes[1]))


def test_losses_at_order_two():
    (h,) = second(lambda t: tp.cross_entropy(t, tp.tensor([0])), np.array([[0.0, 0.0]]), vectors=[np.array([[1.0, 0]])])
    close(h, np.array([[0.25, -0.25]]))
    (h, k) = second(tp.mse_loss, np.array([1.0, 2]), np.array([0.0, 0]), vectors=[np.array([1.0, 0]), np.zeros(2)])
    close(h, np.array([1.0, 0]))
    close(k, np.array([-1.0, 0]))
