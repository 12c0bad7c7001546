"""Optimizers against references in NumPy, float64, written from the papers' formulas; schedules, clipping, state.

A reference takes the gradients, a (steps, n) array in which NaN stands for "no gradient", and returns the parameter
after each step.
"""

import copy
import math
import pickle

import numpy as np
import pytest
from helpers import close, rng_for

import tapeflow as tp
from tapeflow.errors import NumberRangeError, StateError

STEPS = 50


# ---- references


def sgd(p, gradients, lr, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False):
    velocity, path = None, []
    for k, g in enumerate(gradients):
        if not np.isnan(g).any():
            g = g + weight_decay * p
            if momentum:
                velocity = g if velocity is None else momentum * velocity + (1 - dampening) * g
                g = g + momentum * velocity if nesterov else velocity
            p = p - (lr(k) if callable(lr) else lr) * g
        path.append(p)
    return np.array(path)


def adam(p, gradients, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, decoupled=False):
    m = v = np.zeros_like(p)
    t, path = 0, []
    for k, g in enumerate(gradients):
        if not np.isnan(g).any():
            t += 1
            rate = lr(k) if callable(lr) else lr
            if decoupled:
                p = p - rate * weight_decay * p
            else:
                g = g + weight_decay * p
            m = betas[0] * m + (1 - betas[0]) * g
            v = betas[1] * v + (1 - betas[1]) * g * g
            p = p - rate * (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
        path.append(p)
    return np.array(path)


def adamw(p, gradients, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
    return adam(p, gradients, lr, betas, eps, weight_decay, decoupled=True)


def rmsprop(p, gradients, lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False):
    square = mean = velocity = np.zeros_like(p)
    path = []
    for k, g in enumerate(gradients):
        if not np.isnan(g).any():
            g = g + weight_decay * p
            square = alpha * square + (1 - alpha) * g * g
            mean = alpha * mean + (1 - alpha) * g
            spread = np.sqrt(square - mean * mean * centered) + eps
            velocity = momentum * velocity + g / spread
            p = p - (lr(k) if callable(lr) else lr) * (velocity if momentum else g / spread)
        path.append(p)
    return np.array(path)


CASES = [
    (tp.optim.SGD, sgd, dict(lr=0.1)),
    (tp.optim.SGD, sgd, dict(lr=0.1, weight_decay=0.3)),
    (tp.optim.SGD, sgd, dict(lr=0.05, momentum=0.9)),
    (tp.optim.SGD, sgd, dict(lr=0.05, momentum=0.9, dampening=0.4)),
    (tp.optim.SGD, sgd, dict(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)),
    (tp.optim.SGD, sgd, dict(lr=lambda k: 0.1 / (1 + k), momentum=0.5, dampening=0.5, weight_decay=0.1)),
    (tp.optim.Adam, adam, dict()),
    (tp.optim.Adam, adam, dict(lr=0.05, betas=(0.8, 0.95), eps=1e-3)),
    (tp.optim.Adam, adam, dict(lr=0.05, weight_decay=0.1)),
    (tp.optim.Adam, adam, dict(lr=lambda k: 0.1 / (1 + k), betas=(0.0, 0.5))),
    (tp.optim.AdamW, adamw, dict()),
    (tp.optim.AdamW, adamw, dict(lr=0.05, weight_decay=0.5, betas=(0.8, 0.95), eps=1e-6)),
    (tp.optim.AdamW, adamw, dict(lr=lambda k: 0.1 / (1 + k), weight_decay=0.5)),
    (tp.optim.RMSprop, rmsprop, dict()),
    (tp.optim.RMSprop, rmsprop, dict(lr=0.02, alpha=0.9, eps=1e-5, weight_decay=0.1)),
    (tp.optim.RMSprop, rmsprop, dict(lr=0.02, momentum=0.9)),
    (tp.optim.RMSprop, rmsprop, dict(lr=0.02, alpha=0.9, centered=True, momentum=0.5, weight_decay=0.01)),
]
IDS = [f"{kind.__name__}-{','.join(options) or 'defaults'}" for kind, _, options in CASES]


def trajectory(kind, start, gradients, options):
    """The parameter after each step; gradients of NaN are left out."""
    p = tp.nn.Parameter(start)
    optimizer = kind([p], **options)
    path = []
    for g in gradients:
        optimizer.zero_grad()
        if not np.isnan(g).any():
            (p * tp.tensor(g.astype(start.dtype))).sum().backward()
        optimizer.step()
        path.append(p.numpy(copy=True))
    return np.array(path)


@pytest.mark.parametrize("kind, reference, options", CASES, ids=IDS)
@pytest.mark.parametrize("gaps", [False, True])
def test_trajectories(kind, reference, options, gaps):
    rng = rng_for(kind.__name__, options)
    start = rng.normal(size=(3, 2))
    gradients = rng.normal(size=(STEPS, 3, 2)) * np.exp(rng.normal(size=(3, 2))) + 0.3
    if gaps:
        gradients[[0, 7, 8, 30]] = np.nan
    want = reference(start, gradients, **options)
    got = trajectory(kind, start, gradients, options)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    single = trajectory(kind, start.astype(np.float32), gradients, options)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, want, rtol=0, atol=2e-6 * np.abs(want).max() * math.sqrt(STEPS))


@pytest.mark.parametrize("kind", [tp.optim.SGD, tp.optim.Adam, tp.optim.AdamW, tp.optim.RMSprop])
def test_a_descent_converges(kind):
    target = tp.tensor([1.0, -2.0, 3.0])
    p = tp.nn.Parameter(tp.zeros(3))
    optimizer = kind([p], lr=tp.optim.cosine(0.1, 300), weight_decay=0.0)
    for _ in range(300):
        optimizer.zero_grad()
        tp.sum((p - target) ** 2).backward()
        optimizer.step()
    close(p, target, atol=1e-3)


def test_a_parameter_that_was_behind_is_corrected_by_its_own_count():
    """Two parameters, one of which gets its first gradient at step 5, step as two optimizers would."""
    g = rng_for("behind").normal(size=(STEPS, 2))
    g[:5, 1] = np.nan
    a, b = (tp.nn.Parameter(tp.tensor(1.0, dtype="float64")) for _ in range(2))
    optimizer = tp.optim.Adam([a, b], lr=0.1)
    for ga, gb in g:
        a.grad, b.grad = tp.tensor(ga, dtype="float64"), None if np.isnan(gb) else tp.tensor(gb, dtype="float64")
        optimizer.step()
    for p, column in ((a, 0), (b, 1)):
        close(p, adam(np.ones(1), g[:, column, None], lr=0.1)[-1, 0], rtol=1e-12, atol=1e-12)


def test_dtypes_mix_in_a_group():
    p32, p64 = tp.nn.Parameter(tp.ones(3)), tp.nn.Parameter(tp.ones(3, dtype="float64"))
    for kind in (tp.optim.SGD, tp.optim.Adam, tp.optim.AdamW, tp.optim.RMSprop):
        optimizer = kind([p32, p64], lr=0.1, weight_decay=0.1)
        for p in (p32, p64):
            p.grad = tp.ones_like(p)
        optimizer.step()
        assert (p32.dtype, p64.dtype) == (tp.float32, tp.float64)
        close(p32, p64.numpy(), rtol=1e-6)


# ---- groups, rates


def test_groups_have_options_of_their_own():
    a, b = tp.nn.Parameter(tp.ones(2)), tp.nn.Parameter(tp.ones(2))
    optimizer = tp.optim.SGD([{"params": [a]}, {"params": b, "lr": 0.5, "momentum": 0.5}], lr=0.25)
    for _ in range(2):
        a.grad, b.grad = tp.ones(2), tp.ones(2)
        optimizer.step()
    assert a.tolist() == [0.5, 0.5] and b.tolist() == [-0.25, -0.25]
    c = tp.nn.Parameter(tp.ones(1))
    optimizer.add_param_group({"params": [c], "lr": 1.0})
    c.grad = tp.ones(1)
    optimizer.zero_grad()
    assert c.grad is None and [float(g["lr"]) for g in optimizer.param_groups] == [0.25, 0.5, 1.0]
    optimizer.lr = 0.125
    assert [float(g["lr"]) for g in optimizer.param_groups] == [0.125] * 3
    optimizer.param_groups[1]["lr"] *= 2
    optimizer.lr *= 3  # the first group's, for all
    assert [float(g["lr"]) for g in optimizer.param_groups] == [0.375] * 3


def test_rates_are_tensors_that_stay_the_same_objects():
    p = tp.nn.Parameter(tp.ones(1))
    optimizer = tp.optim.SGD([p], lr=0.1, momentum=0.9, weight_decay=0.1)
    group = optimizer.param_groups[0]
    state = {id(t) for t in optimizer._state_tensors().values()}
    optimizer.lr = tp.optim.linear(1.0, 0.0, 10)
    assert float(optimizer.lr) == 1.0
    for _ in range(4):
        p.grad = tp.ones(1)
        optimizer.step()
    assert float(optimizer.lr) == 0.7 and int(optimizer.steps) == 4
    optimizer.lr = 0.5  # ends the schedule
    group["momentum"], group["weight_decay"] = 0.0, 0.0
    before = p.item()
    optimizer.step()
    assert float(optimizer.lr) == 0.5 and p.item() == pytest.approx(before - 0.5, abs=1e-6)
    assert {id(t) for t in optimizer._state_tensors().values()} == state
    assert group["nesterov"] is False and len(group) == 6 and "lr: 0.5" in repr(optimizer)
    with pytest.raises(StateError, match="no option 'rate'"):
        group["rate"] = 1.0


def test_an_option_that_was_off_stays_off():
    optimizer = tp.optim.SGD([tp.nn.Parameter(tp.ones(1))], lr=0.1)
    optimizer.param_groups[0]["momentum"] = 0.0
    with pytest.raises(StateError, match="momentum was 0 when the optimizer was made"):
        optimizer.param_groups[0]["momentum"] = 0.9


# ---- gradients


def test_gradients_add_up_over_micro_batches():
    """Four micro-batches, whose losses are divided by four, step as the whole batch does."""
    rng = rng_for("micro")
    x, y = rng.normal(size=(16, 3)), rng.normal(size=(16, 1))
    ends = []
    for parts in (1, 4):
        model = tp.nn.Linear(3, 1, dtype="float64", generator=tp.random.Generator(0))
        optimizer = tp.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(10):
            for part in range(parts):
                rows = slice(part * 16 // parts, (part + 1) * 16 // parts)
                (tp.mse_loss(model(tp.tensor(x[rows])), tp.tensor(y[rows])) / parts).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert model.weight.grad is None
        ends.append(model.weight.numpy())
    close(ends[1], ends[0], rtol=1e-12, atol=1e-12)


def test_step_without_zero_grad_uses_the_sum():
    w = tp.nn.Parameter(tp.tensor([0.0]))
    optimizer = tp.optim.SGD([w], lr=1.0)
    for want in (-1.0, -3.0):  # 1, then 1 + 1
        w.sum().backward()
        optimizer.step()
        assert w.item() == want


def test_a_step_leaves_gradients_and_earlier_looks_alone():
    w = tp.nn.Parameter(tp.ones(3))
    optimizer = tp.optim.Adam([w], lr=0.1, weight_decay=0.1)
    w.grad = tp.tensor([1.0, 2.0, 3.0])
    look, snapshot = w.numpy(), w.detach()
    optimizer.step()
    assert w.grad.tolist() == [1.0, 2.0, 3.0] and look.tolist() == snapshot.tolist() == [1.0] * 3
    assert w.is_leaf and w.requires_grad


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.5, 1e3])
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float64", "float64"), ("float32", "float64")])
def test_clip_grad_norm(norm_type, max_norm, dtypes):
    rng = rng_for("clip", norm_type)
    arrays = [rng.normal(size=(3, 2)).astype(dtypes[0]), rng.normal(size=4).astype(dtypes[1])]
    params = [tp.nn.Parameter(tp.zeros(a.shape, dtype=a.dtype)) for a in arrays] + [tp.nn.Parameter(tp.zeros(1))]
    for p, a in zip(params, arrays):
        p.grad = tp.tensor(a)
    total = tp.optim.clip_grad_norm(iter(params), max_norm, norm_type)
    want = np.linalg.norm(np.concatenate([a.ravel().astype(float) for a in arrays]), norm_type)
    close(total, want, rtol=1e-6)
    for p, a in zip(params, arrays):
        if want <= max_norm:
            assert p.grad.numpy().tolist() == a.tolist()
        else:
            close(p.grad, a * (max_norm / want), rtol=1e-6)
        assert p.grad.dtype == a.dtype
    assert params[-1].grad is None


def test_clip_grad_norm_at_its_edges():
    w = tp.nn.Parameter(tp.zeros(2))
    assert float(tp.optim.clip_grad_norm([w], 1.0)) == 0.0
    w.grad = tp.zeros(2)
    assert float(tp.optim.clip_grad_norm([w], 1.0)) == 0.0 and w.grad.tolist() == [0.0, 0.0]
    w0 = tp.nn.Parameter(5.0)  # 0-d
    w0.grad = tp.tensor(-8.0)
    assert float(tp.optim.clip_grad_norm([w0], 2.0)) == 8.0 and w0.grad.item() == -2.0
    w.grad = tp.tensor([1.0, float("nan")])
    with pytest.raises(tp.TapeError, match="norm of the gradients is nan"):
        tp.optim.clip_grad_norm([w], 1.0, error_if_nonfinite=True)
    assert w.grad[0].item() == 1.0
    with pytest.raises(NumberRangeError, match="max_norm is 0"):
        tp.optim.clip_grad_norm([w], 0.0)
    with pytest.raises(NumberRangeError, match="clip_value is -1"):
        tp.optim.clip_grad_value([w], -1.0)
    w.grad = tp.tensor([5.0, -0.5])
    tp.optim.clip_grad_value(w, 2.0)
    assert w.grad.tolist() == [2.0, -0.5]


def test_clipping_one_gradient_leaves_what_shares_its_memory():
    a, b = tp.nn.Parameter(tp.zeros(2)), tp.nn.Parameter(tp.zeros(2))
    (a + b).backward(tp.tensor([3.0, 4.0]))  # one cotangent for both
    tp.optim.clip_grad_norm([a], 1.0)
    close(a.grad, [0.6, 0.8])
    assert b.grad.tolist() == [3.0, 4.0]


# ---- schedules


SCHEDULES = {
    "constant": (tp.optim.constant(0.3), lambda k: 0.3),
    "linear": (tp.optim.linear(1.0, 0.1, 10), lambda k: 1 - 0.9 * min(k / 10, 1)),
    "linear_warmup": (
        tp.optim.linear_warmup(tp.optim.linear(2.0, 0.0, 8), 4),
        lambda k: 2 * (k + 1) / 4 if k < 4 else max(2 * (1 - (k - 4) / 8), 0),
    ),
    "cosine": (
        tp.optim.cosine(1.0, 12, final=0.2),
        lambda k: 0.2 + 0.8 * (1 + math.cos(math.pi * min(k / 12, 1))) / 2,
    ),
    "step_decay": (tp.optim.step_decay(1.0, 5, 0.5), lambda k: 0.5 ** (k // 5)),
    "exponential_decay": (tp.optim.exponential_decay(1.0, 0.5, every=4), lambda k: 0.5 ** (k / 4)),
    "one_cycle": (
        tp.optim.one_cycle(1.0, 20, rise=0.25),
        lambda k: (
            1 + (0.04 - 1) * (1 + math.cos(math.pi * k / 5)) / 2
            if k < 5
            else 4e-6 + (1 - 4e-6) * (1 + math.cos(math.pi * min((k - 5) / 15, 1))) / 2
        ),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    schedule, want = SCHEDULES[name]
    for k in range(25):
        rate = schedule(k)
        assert type(rate) is float and rate == pytest.approx(want(k), rel=1e-14, abs=1e-15)
        rate = schedule(tp.tensor(k))
        assert rate.shape == () and rate.dtype == tp.float64 and rate.item() == schedule(k)
    assert pickle.loads(pickle.dumps(schedule))(3) == schedule(3)
    p = tp.nn.Parameter(tp.zeros(1, dtype="float64"))
    optimizer = tp.optim.SGD([p], lr=schedule)
    for k in range(25):
        p.grad = tp.ones(1, dtype="float64")
        optimizer.step()
        assert float(optimizer.lr) == schedule(k)
    close(p, [-sum(want(k) for k in range(25))], rtol=1e-12)


def test_schedules_refuse():
    for make in (tp.optim.linear, lambda a, b, n: tp.optim.cosine(a, n), lambda a, b, n: tp.optim.step_decay(a, n)):
        with pytest.raises(NumberRangeError, match="is 0, expected more than 0"):
            make(1.0, 0.0, 0)
    with pytest.raises(NumberRangeError, match="rise is 1"):
        tp.optim.one_cycle(1.0, 10, rise=1.0)


# ---- state


def half_trained(kind, **options):
    model = tp.nn.Sequential(tp.nn.Linear(3, 4), tp.nn.Tanh(), tp.nn.Linear(4, 1))
    return model, kind(model.named_parameters(), **options)


def train(model, optimizer, first, last):
    for k in range(first, last):
        x = tp.random.Generator(k).normal(shape=(8, 3))
        optimizer.zero_grad()
        tp.mse_loss(model(x), tp.sum(x, axis=1, keepdims=True)).backward()
        optimizer.step()
    return [p.tolist() for p in model.parameters()]


RESUMABLE = [
    (tp.optim.SGD, dict(lr=tp.optim.cosine(0.1, 20), momentum=0.9, dampening=0.1)),
    (tp.optim.Adam, dict(lr=0.01)),
    (tp.optim.AdamW, dict(lr=tp.optim.linear_warmup(0.01, 5))),
    (tp.optim.RMSprop, dict(centered=True, momentum=0.5)),
]


@pytest.mark.parametrize("kind, options", RESUMABLE, ids=[k.__name__ for k, _ in RESUMABLE])
@pytest.mark.parametrize("way", ["state_dict", "file", "pickle", "deepcopy"])
@pytest.mark.cpu  # a pickle is read there
def test_training_resumes_bit_for_bit(kind, options, way, tmp_path):
    model, optimizer = half_trained(kind, **options)
    train(model, optimizer, 0, 6)
    if way == "pickle":
        again, resumed = pickle.loads(pickle.dumps((model, optimizer)))
    elif way == "deepcopy":
        again, resumed = copy.deepcopy((model, optimizer))
    else:
        again, resumed = half_trained(kind, **options)
        if way == "file":
            pytest.importorskip("safetensors")
            for thing, copied, name in ((model, again, "model"), (optimizer, resumed, "optimizer")):
                thing.save(tmp_path / name)
                copied.load(tmp_path / name)
        else:
            again.load_state_dict(model.state_dict())
            resumed.load_state_dict(optimizer.state_dict())
    assert train(again, resumed, 6, 12) == train(model, optimizer, 6, 12)


def test_a_state_is_a_snapshot():
    model, optimizer = half_trained(tp.optim.Adam)
    train(model, optimizer, 0, 2)
    state = optimizer.state_dict()
    before = {name: t.tolist() for name, t in state.items()}
    train(model, optimizer, 2, 4)
    assert {name: t.tolist() for name, t in state.items()} == before
    assert list(state) == [
        "steps",
        "group.0.lr",
        "group.0.counts",
        *(f"{slot}.{p}" for slot in ("mean", "square") for p in ("0.weight", "0.bias", "2.weight", "2.bias")),
    ]


def test_a_state_that_does_not_fit_changes_nothing():
    _, optimizer = half_trained(tp.optim.Adam)
    state = {name: t + 1 for name, t in optimizer.state_dict().items()}
    state["mean.0.bias"] = tp.zeros(7)
    del state["steps"]
    state["velocity.0"] = tp.zeros(1)
    with pytest.raises(
        StateError, match=r"mean\.0\.bias has shape \(7,\), here \(4,\); missing: steps; unexpected: vel"
    ):
        optimizer.load_state_dict(state)
    assert float(optimizer.lr) == 1e-3


# ---- errors


W = tp.nn.Parameter(tp.zeros(2))

ERRORS = {
    "no parameters": (lambda: tp.optim.SGD([], lr=0.1), StateError, "there are no parameters"),
    "one tensor": (lambda: tp.optim.SGD(W, lr=0.1), tp.DTypeError, r"expected a list of them: \[w\]"),
    "not a tensor": (lambda: tp.optim.SGD([1.0], lr=0.1), tp.DTypeError, "parameter 0 is a float"),
    "computed": (lambda: tp.optim.SGD([("w", W * 2)], lr=0.1), tp.TapeError, r"parameter w of shape \(2,\) was comp"),
    "twice": (lambda: tp.optim.SGD([W, W], lr=0.1), StateError, "parameter 1 .* is given twice"),
    "twice, in groups": (lambda: tp.optim.SGD([{"params": W}] * 2, lr=0.1), StateError, "is given twice"),
    "an unknown option": (lambda: tp.optim.SGD([{"params": [W], "rate": 1}], lr=1), StateError, "expected params, and"),
    "no params": (lambda: tp.optim.SGD([{"lr": 0.1}], lr=0.1), StateError, "a group has lr; expected params"),
    "lr below 0": (lambda: tp.optim.SGD([W], lr=-0.1), NumberRangeError, "lr is -0.1, expected 0 or more"),
    "lr nan": (lambda: tp.optim.Adam([W], lr=math.nan), NumberRangeError, "lr is nan"),
    "lr of a shape": (lambda: tp.optim.Adam([W], lr=tp.ones(3)), tp.ShapeError, "does not fit|broadcast"),
    "momentum below 0": (lambda: tp.optim.SGD([W], lr=1, momentum=-1), NumberRangeError, "momentum is -1"),
    "a schedule of momentum": (
        lambda: tp.optim.SGD([W], lr=1, momentum=tp.optim.constant(1)),
        tp.DTypeError,
        "only lr takes a schedule",
    ),
    "nesterov alone": (lambda: tp.optim.SGD([W], lr=1, nesterov=True), tp.DTypeError, "expected momentum above 0"),
    "betas": (lambda: tp.optim.Adam([W], betas=(0.9, 1.0)), NumberRangeError, r"betas\[1\] is 1.0, expected 0 <="),
    "eps": (lambda: tp.optim.AdamW([W], eps=-1.0), NumberRangeError, "eps is -1.0, expected 0 or more"),
    "alpha": (lambda: tp.optim.RMSprop([W], alpha=1.5), NumberRangeError, "alpha is 1.5"),
    "deleted option": (
        lambda: tp.optim.SGD([W], lr=1).param_groups[0].pop("lr"),
        StateError,
        "cannot be deleted",
    ),
    "no update": (lambda: bare().step(), NotImplementedError, "update is not defined"),
}


def bare():
    """An optimizer without a rule, and a parameter that has a gradient."""
    p = tp.nn.Parameter(tp.zeros(1))
    p.grad = tp.zeros(1)
    return tp.optim.Optimizer([p], lr=0.1)


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, kind, message = ERRORS[name]
    with pytest.raises(kind, match=message):
        call()


def test_an_optimizer_of_ones_own():
    class Signs(tp.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, lr=lr)

        def update(self, group, active):
            for _, p, g in active:
                p.assign_sub(tp.sign(g) * group.rate("lr", p.dtype))

    p = tp.nn.Parameter(tp.tensor([1.0, -1.0]))
    optimizer = Signs([p], lr=0.25)
    (p * p).sum().backward()
    optimizer.step()
    assert p.tolist() == [0.75, -0.75]
