"""layer_norm, rms_norm, dropout, one_hot and the composed losses: values in a wider type, gradients of two orders,
extremes, what is at the kinks, layouts, dtypes, errors."""

import functools

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
    check_fused,
    check_vjp,
    close,
    draw,
    gradients,
    host,
    name_of,
    rng_for,
)
from hypothesis import given
from hypothesis import strategies as st

import tapeflow as tp
from tapeflow._core import huber_loss
from tapeflow.functional import (
    binary_cross_entropy_with_logits as bce,
)
from tapeflow.functional import (
    dropout,
    kl_div,
    l1_loss,
    layer_norm,
    nll_loss,
    one_hot,
    rms_norm,
)

TOLERANCE = {"float32": 2e-6, "float64": 1e-13}


def in_every_layout(f, *xs):
    """f(*xs), the same for every way to hold the operands up to rounding."""
    want = f(*map(tp.tensor, xs))
    for make in LAYOUTS.values():
        close(f(*(make(x) for x in xs)), want, 1e-5, 1e-5)
    return want


# ---- layer_norm, rms_norm ----


def wide_norm(x, axes, weight, bias, eps, centre=True):
    x = x.astype(WIDE)
    shape = [n if d in axes else 1 for d, n in enumerate(x.shape)]
    y = x - x.mean(axes, keepdims=True) if centre else x
    y = y / np.sqrt((y * y).mean(axes, keepdims=True) + WIDE(eps))
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


NORMS = [  # shape, arguments, axes
    ((5,), {}, (0,)),
    ((4, 6), {}, (1,)),
    ((2, 3, 4), {"normalized_shape": (3, 4)}, (1, 2)),
    ((2, 3, 4), {"normalized_shape": 4}, (2,)),
    ((2, 3, 4), {"normalized_shape": [2, 3, 4]}, (0, 1, 2)),
    ((2, 3, 4), {"axis": 1}, (1,)),
    ((2, 3, 4), {"axis": (-1, 0)}, (0, 2)),
    ((2, 3, 4), {"axis": (0, 1)}, (0, 1)),
    ((3, 1), {}, (1,)),
]


@pytest.mark.parametrize("shape,where,axes", NORMS, ids=str)
def test_norms(shape, where, axes):
    sizes = tuple(shape[a] for a in axes)
    for dtype in FLOATS:
        x, w, b = (draw(rng_for(shape, k), s, dtype) for k, s in enumerate((shape, sizes, sizes)))
        for weight, bias in ((None, None), (w, None), (None, b), (w, b)):
            got = layer_norm(tp.tensor(x), weight=weight, bias=bias, **where)
            assert name_of(got) == dtype
            want = wide_norm(x, axes, weight, bias, 1e-5)
            close(got, want.astype(dtype), 300 * TOLERANCE[dtype], 300 * TOLERANCE[dtype])
        got = rms_norm(tp.tensor(x), weight=w, **where)
        want = wide_norm(x, axes, w, None, np.finfo(dtype).eps, False)
        close(got, want.astype(dtype), 4 * TOLERANCE[dtype], 4 * TOLERANCE[dtype])
    in_every_layout(lambda t: layer_norm(t, **where), x)
    f = lambda x, w, b: layer_norm(x, weight=w, bias=b, eps=0.1, **where)  # noqa: E731
    check_vjp(f, x, w, b, label=f"layer_norm {where}")
    check_vjp(lambda x, w: rms_norm(x, weight=w, eps=0.1, **where), x, w, label=f"rms_norm {where}")


def test_norms_far_from_zero_and_of_constants():
    for dtype in FLOATS:
        x = draw(rng_for("far"), (3, 64), "float64")
        far = (x + 1000).astype(dtype)
        want = wide_norm(far, (1,), None, None, 1e-5)
        rounding = 1000 * np.finfo(dtype).eps  # of the mean
        close(layer_norm(tp.tensor(far)), want.astype(dtype), rounding, rounding)
    for f in (layer_norm, rms_norm):
        for value in (0.0, 7.0):
            y = f(tp.full((2, 3), value), eps=1e-5)
            close(y, np.zeros((2, 3)) if f is layer_norm or not value else np.ones((2, 3)), 1e-5)
        g = gradients(lambda t, f=f: f(t, eps=1e-5), np.zeros((2, 3)))[0]
        assert np.isfinite(g).all()
    assert name_of(layer_norm(tp.tensor([[1, 2, 3]]))) == "float32" == name_of(rms_norm(tp.tensor([[1, 2, 3]])))
    assert layer_norm(tp.zeros((0, 3))).shape == (0, 3)


# ---- dropout ----


@given(seed=st.integers(0, 2**32 - 1), p=st.floats(0.05, 0.95), dtype=st.sampled_from(FLOATS))
def test_dropout(seed, p, dtype):
    x = draw(np.random.default_rng(seed), (40, 50), dtype, 0.5, 2)
    y = host(dropout(tp.tensor(x), p, generator=tp.random.Generator(seed)))
    kept = y != 0
    assert y.dtype == x.dtype and y.shape == x.shape
    close(y[kept], (x / (1 - p))[kept].astype(dtype), 1e-6)
    assert abs(kept.mean() - (1 - p)) < 6 * np.sqrt(p * (1 - p) / x.size)
    (g,) = gradients(lambda t: dropout(t, p, generator=tp.random.Generator(seed)), x)
    close(g, (kept / (1 - p)).astype(dtype), 1e-6)


def test_dropout_draws_and_edges():
    x = np.array([1.0, INF, NAN, -2.0], "float32")
    generator = tp.random.Generator(3)
    for p, training, want in ((0.0, True, x), (0.7, False, x), (1.0, False, x), (1.0, True, None)):
        y = dropout(tp.tensor(x), p, training, generator)
        assert_same(y, np.zeros(4, "float32") if want is None else x)
        assert_gradients(lambda t, p=p, r=training: dropout(t, p, r, generator), (x,), want is not None, rtol=1e-6)
    assert generator.state == (3, 0)
    y = tp.ones(3)
    dropped = dropout(y, 0.0)
    dropped += 1
    assert y.tolist() == [1.0] * 3
    many = tp.tensor(np.full(1000, INF, "float32"))
    y = host(dropout(many, 0.5, generator=generator))
    assert generator.state == (3, 1) and set(y) == {0.0, INF}
    a, b = (dropout(many, 0.5, generator=tp.random.Generator(5)) for _ in range(2))
    assert_same(a, b)
    tp.random.manual_seed(1)
    a, b = (dropout(many, 0.5) for _ in range(2))
    assert (host(a) != host(b)).any()
    assert name_of(dropout(tp.tensor([1, 2]), 0.5)) == "float32"
    check_vjp(
        lambda t: dropout(t * t, 0.4, generator=tp.random.Generator(1)), draw(rng_for("d"), (2, 3)), label="dropout"
    )


# ---- one_hot ----


@given(
    data=st.data(),
    classes=st.integers(1, 6),
    shape=st.lists(st.integers(0, 3), max_size=3),
    dtype=st.sampled_from(INTS),
)
def test_one_hot(data, classes, shape, dtype):
    labels = rng_for(classes, shape).integers(0, classes, shape).astype(dtype)
    axis = data.draw(st.integers(-len(shape) - 1, len(shape)))
    want = np.moveaxis(np.eye(classes, dtype="int64")[labels], -1, axis)
    assert_same(one_hot(tp.tensor(labels), classes, axis=axis), want)
    assert_same(one_hot(labels, classes, axis=axis, dtype="float32"), want.astype("float32"))
    if labels.size:
        assert_same(one_hot(labels), np.eye(int(labels.max()) + 1, dtype="int64")[labels])


def test_one_hot_of_lists_and_nothing():
    assert_same(one_hot([], 3), np.zeros((0, 3), "int64"))
    assert_same(one_hot([], 0), np.zeros((0, 0), "int64"))
    assert_same(one_hot(2, 3, dtype=bool), np.array([False, False, True]))


# ---- losses ----


def wide_bce(x, t, weight=1.0, pos_weight=1.0):
    x, t = x.astype(WIDE), t.astype(WIDE)
    return weight * (pos_weight * t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x))


def wide_huber(a, b, delta=1.0):
    d = abs(a.astype(WIDE) - b)
    return np.where(d <= delta, d * d / 2, delta * (d - WIDE(delta) / 2))


def wide_kl(x, t, log_target=False):
    x, t = x.astype(WIDE), t.astype(WIDE)
    if log_target:
        return np.exp(t) * (t - x)
    with np.errstate(all="ignore"):
        return np.where(t == 0, 0, t * (np.log(t) - x))


REDUCTIONS = {"mean": np.mean, "sum": np.sum, "none": lambda x: x}
LOSSES = {
    "bce": (bce, wide_bce, {}),
    "bce weights": (bce, wide_bce, {"weight": np.array([0.5, 2, 3]), "pos_weight": np.array([3.0, 0.5, 1])}),
    "huber": (huber_loss, wide_huber, {}),
    "huber 0.3": (huber_loss, wide_huber, {"delta": 0.3}),
    "l1": (l1_loss, lambda a, b: abs(a.astype(WIDE) - b), {}),
    "kl": (kl_div, wide_kl, {}),
    "kl log": (kl_div, wide_kl, {"log_target": True}),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    f, reference, options = LOSSES[name]
    for dtype in FLOATS:
        x, t = draw(rng_for(name, "x"), (4, 3), dtype, -4, 4), draw(rng_for(name, "t"), (4, 3), dtype, 0.05, 0.95)
        cast = {k: v.astype(dtype) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        want = reference(x, t, **options)
        for reduction, reduce in REDUCTIONS.items():
            got = in_every_layout(lambda *s, r=reduction, o=cast: f(*s, reduction=r, **o), x, t)
            assert name_of(got) == dtype
            close(got, np.asarray(reduce(want), dtype), 20 * TOLERANCE[dtype], 20 * TOLERANCE[dtype], (name, reduction))
        close(f(tp.tensor(x), t, **cast), f(x, tp.tensor(t), reduction="mean", **cast), 1e-7)
    for reduction in REDUCTIONS:
        check_vjp(functools.partial(f, reduction=reduction, **cast), x, t, label=f"{name} {reduction}")
    assert f(tp.zeros((0, 3)), tp.zeros((0, 3)), reduction="none").shape == (0, 3)
    scalar = f(tp.tensor(0.5), tp.tensor(0.25), **({} if "weight" in options else options))
    assert scalar.shape == ()


def test_bce_is_accurate_and_does_not_overflow():
    for dtype in FLOATS:
        x = np.array([0, 1e-3, 20, -20, 80, -80, 1000, -1000, 3e38, -3e38, INF, -INF, INF, -INF], dtype)
        t = np.array([1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 1], dtype)
        y = bce(x, t, reduction="none")
        with np.errstate(all="ignore"):
            want = np.logaddexp(0, np.where(t == 1, -1, 1) * x.astype(WIDE)).astype(dtype)
        close(y, want, 8 * TOLERANCE[dtype], 0)
        (g,) = gradients(lambda s, t=t: bce(s, tp.tensor(t), reduction="sum"), x)
        with np.errstate(all="ignore"):
            side = np.where(t == 1, -1, 1)
            want = side / (1 + np.exp(-side * x.astype(WIDE)))
        close(g, want.astype(dtype), 8 * TOLERANCE[dtype], 0)
    assert np.isnan(bce([NAN], [1.0]).item())


def test_huber_at_its_joints():
    x = np.array([0.0, 1.0, -1.0, 2.0, -2.0, 1e30, INF, -INF])
    f = lambda d: huber_loss(d, tp.zeros_like(d), reduction="none")  # noqa: E731
    close(f(tp.tensor(x)), [0, 0.5, 0.5, 1.5, 1.5, 1e30, INF, INF])
    assert_gradients(f, (x,), [0, 1, -1, 1, -1, 1, 1, -1])
    second = tp.grad(lambda d: tp.sum(tp.grad(lambda e: tp.sum(f(e)))(d)))(tp.tensor([0.0, 0.5, 2.0]))
    assert second.tolist() == [1.0, 1.0, 0.0]
    assert np.isnan(huber_loss(tp.tensor([NAN]), tp.zeros(1)).item())
    assert_gradients(lambda d: l1_loss(d, tp.zeros_like(d), "sum"), (np.array([0.0, 2.0, -3.0]),), [0, 1, -1])


def test_kl_div_of_zeros():
    x, t = np.array([-1.0, -INF, -2.0, -INF]), np.array([0.0, 0.0, 0.5, 0.5])
    assert_same(kl_div(x, t, reduction="none"), np.array([0, 0, 0.5 * (np.log(0.5) + 2), INF]))
    assert_gradients(lambda s: kl_div(s, tp.tensor(t), "sum"), (x,), -t)
    p = np.array([[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]])
    q = np.array([[0.5, 0.5], [0.1, 0.9], [0.5, 0.5]])
    want = wide_kl(np.log(q), p).sum() / 3
    close(kl_div(np.log(q), p, reduction="batchmean"), np.asarray(want, float), 1e-12)
    close(kl_div(tp.tensor(1.0), tp.tensor(0.5), "batchmean"), kl_div(1.0, 0.5, "sum"))


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 2, 3)])
def test_nll_loss_is_the_rest_of_cross_entropy(shape):
    for dtype in FLOATS:
        x = draw(rng_for(shape), shape, dtype)
        labels = rng_for("labels").integers(0, 3, shape[:-1])
        f = lambda t, labels=labels: nll_loss(tp.log_softmax(t), labels)  # noqa: E731
        close(in_every_layout(f, x), tp.cross_entropy(tp.tensor(x), labels), 1e-5)
        each = nll_loss(x, labels, reduction="none")
        assert_same(each, -np.take_along_axis(x, labels[..., None], -1)[..., 0])
        close(nll_loss(x, labels, reduction="sum"), np.sum(host(each)), 1e-5)
    check_vjp(f, x, label=f"nll {shape}")


# ---- errors ----

X = np.ones((2, 3))
BAD = [
    (lambda: layer_norm(X, 4), ValueError, r"normalized_shape \(4,\)"),
    (lambda: layer_norm(X, ()), ValueError, "normalized_shape"),
    (lambda: layer_norm(X, (2, 2, 3)), ValueError, "normalized_shape"),
    (lambda: layer_norm(X, axis=2), IndexError, "axis 2"),
    (lambda: layer_norm(X, axis=()), IndexError, "one or more"),
    (lambda: layer_norm(X, axis=(0, -2)), ValueError, "once"),
    (lambda: layer_norm(X, axis=0.5), TypeError, "axis"),
    (lambda: layer_norm(tp.tensor(1.0)), IndexError, "axis -1"),
    (lambda: layer_norm(X, weight=np.ones(2)), ValueError, r"weight has shape \(2,\), expected \(3,\)"),
    (lambda: rms_norm(X, weight=np.ones((2, 3))), ValueError, r"\[rms_norm\] weight"),
    (lambda: layer_norm(X, bias=np.ones(1)), ValueError, "bias"),
    (lambda: dropout(X, 1.5), ValueError, "p is 1.5"),
    (lambda: dropout(X, NAN), ValueError, "p is nan"),
    (lambda: dropout(X, "half"), TypeError, "number"),
    (lambda: one_hot([0, 3, -1], 3), IndexError, r"class 3 is out of range 0 \.\. 2"),
    (lambda: one_hot([0, -1], 3), IndexError, "class -1"),
    (lambda: one_hot([-1]), ValueError, "num_classes is 0"),
    (lambda: one_hot([]), ValueError, "Give num_classes"),
    (lambda: one_hot([0.0], 2), TypeError, "float32"),
    (lambda: one_hot([True], 2), TypeError, "bool"),
    (lambda: one_hot([0], 2.5), TypeError, "num_classes"),
    (lambda: one_hot([0], 2, axis=2), IndexError, "axis 2"),
    (lambda: bce(X, X[:1]), ValueError, r"logits has shape \(2, 3\), targets has shape \(1, 3\)"),
    (lambda: bce(X, X, reduction="average"), TypeError, "'average'"),
    (lambda: bce(X, X, reduction="batchmean"), TypeError, "batchmean"),
    (lambda: bce(X, X, weight=np.ones(2)), ValueError, "broadcast|shapes"),
    (lambda: huber_loss(X, X, delta=0.0), ValueError, "delta is 0"),
    (lambda: huber_loss(X, X[0]), ValueError, r"\[huber_loss\]"),
    (lambda: kl_div(X, X[0]), ValueError, r"\[kl_div\]"),
    (lambda: l1_loss(X, X.T), ValueError, r"\[l1_loss\]"),
    (lambda: nll_loss(X, [0, 1, 2]), ValueError, "labels of shape"),
    (lambda: nll_loss(X, [0, 3]), IndexError, "class 3"),
    (lambda: nll_loss(X, [0.0, 1.0]), TypeError, "integers"),
]


@pytest.mark.parametrize("call,kind,message", BAD)
def test_bad_calls(call, kind, message):
    with pytest.raises(kind, match=message) as error:
        call()
    assert isinstance(error.value, tp.TapeflowError)


def single_ops(x, axes, weight, bias, eps, centred=True):
    """layer_norm, or rms_norm, as the ops that its kernels follow."""
    z = x - tp.mean(x, axes, True) if centred else x
    y = z * tp.rsqrt(tp.mean(tp.square(z), axes, True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@pytest.mark.cpu
@pytest.mark.parametrize("shape,count", [((4,), 1), ((3, 5), 1), ((2, 3, 17), 2), ((40, 300), 1), ((2, 9000), 1)])
def test_a_norm_has_the_bits_of_single_ops(shape, count):
    """The value; the eager rule against the recorded one; a row with no cotangent gets none, whatever it holds."""
    rng = rng_for("norm bits", shape)
    axes = tuple(range(len(shape) - count, len(shape)))
    x, w, b, g = (draw(rng, s) for s in (shape, shape[-count:], shape[-count:], shape))
    size = shape[-count:]
    for dtype in FLOATS:
        tx, tw, tb = (tp.tensor(a.astype(dtype)) for a in (x, w, b))
        for weight, bias in ((None, None), (tw, None), (tw, tb)):
            assert_same(layer_norm(tx, size, weight, bias, 0.1), single_ops(tx, axes, weight, bias, 0.1))
        assert_same(rms_norm(tx, size, tw, 0.1), single_ops(tx, axes, tw, None, 0.1, False))
    check_fused(lambda x, w, b: layer_norm(x, size, w, b, 0.1), x, w, b, seed=g)
    check_fused(lambda x, w: rms_norm(x, size, w, 0.1), x, w, seed=g)
    check_fused(lambda x: layer_norm(x, size, eps=0.1), x, seed=g)
    if len(shape) > count:
        x[0], g[0] = np.inf, 0
        got = gradients(lambda x, w: layer_norm(x, size, w), x, w, seed=g)
        assert not got[0][0].any() and np.isfinite(got[1]).all()
