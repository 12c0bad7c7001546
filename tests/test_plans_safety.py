"""Plans where a recording or a replay could go wrong unseen: modes, failures, interrupts, threads, fork, files."""

import numpy as np
import pytest
from helpers import assert_same

import tapeflow as tp
from tapeflow.plan import passes


@pytest.fixture(autouse=True)
def verified(monkeypatch):
    monkeypatch.setattr(passes, "VERIFY", True)


# ---- modes ----


def dropout_model(seed):
    rng = tp.random.Generator(seed)
    layer = tp.nn.Linear(4, 3, generator=tp.random.Generator(1))
    return tp.nn.Sequential(layer, tp.nn.Dropout(0.5, generator=rng)), rng


def test_train_and_eval_have_plans_of_their_own():
    model, rng = dropout_model(5)
    eager, other = dropout_model(5)
    x = tp.random.Generator(2).normal(shape=(6, 4))
    f = tp.function(lambda x: model(x).detach())
    modes = (True, True, False, False, True, False, True)
    for training in modes:
        model.train(training)
        eager.train(training)
        assert_same(f(x), eager(x).detach())
        assert rng.state == other.state
    assert len(f.plans) == 2
    assert rng.state == (5, sum(modes))


def test_the_mode_of_one_module_of_several_counts():
    a, b = tp.nn.Dropout(0.5, generator=tp.random.Generator(1)), tp.nn.Dropout(0.5, generator=tp.random.Generator(2))
    f = tp.function(lambda x: a(x) + b(x))
    x = tp.ones(64)
    drawn = lambda: (a.generator.state[1], b.generator.state[1])  # noqa: E731
    f(x)
    a.eval()
    f(x), f(x)
    assert drawn() == (1, 3)
    b.eval()
    assert_same(f(x), x + x)
    a.train()
    f(x), f(x)
    assert drawn() == (3, 3)
    assert len(f.plans) == 4


def test_grad_mode_and_default_dtype_have_plans_of_their_own():
    w = tp.tensor([1.0, 2.0], requires_grad=True)
    f = tp.function(lambda x: tp.sum(x * w) * tp.ones(2))
    x = tp.tensor([3.0, 4.0])
    for _ in range(2):
        with tp.no_grad():
            assert_same(f(x), tp.full(2, 11.0))
        w.grad = None
        f(x).sum().backward()
        assert w.grad.tolist() == [6.0, 8.0]
    assert len(f.plans) == 1
    make = tp.function(lambda: tp.ones(2) / 3)
    before = tp.get_default_dtype()
    try:
        for dtype in ("float32", "float64") * 2:
            tp.set_default_dtype(dtype)
            assert make().dtype == np.dtype(dtype)
    finally:
        tp.set_default_dtype(before)
    assert len(make.plans) == 2


def test_a_churning_mode_is_named():
    layer = tp.nn.Dropout(0.5, generator=tp.random.Generator(1))
    x = tp.ones(3)
    f = tp.function(lambda x: layer(x), max_plans=2)
    with pytest.warns(UserWarning, match="train or eval is another at each call"):
        for _ in range(8):
            tp.nn.Dropout(0.5).eval()  # every new module that is switched is another set of modes
            f(x)
    assert len(f.plans) <= 2
