"""The demo learns: real digits, the public interface only, at least 97 % on digits it has not seen."""

import shutil

import numpy as np
import pytest

import tapeflow as tp

pytest.importorskip("sklearn")

from examples import digits


@pytest.fixture(scope="module")
def data():
    return digits.digits()


def test_digits_are_learned(data):
    x_train, x_test, y_train, y_test = data
    run = digits.train(x_train, y_train, frozen=True)
    assert np.mean(run.losses[-42:]) < 0.1 * np.mean(run.losses[:42])
    accuracy = (digits.predict(run.model, x_test) == y_test).mean()
    assert accuracy >= 0.97


def test_training_repeats_bit_for_bit(data):
    x_train, _, y_train, _ = data
    first, second = (digits.train(x_train, y_train, epochs=1).losses for _ in range(2))
    assert first == second


def test_a_frozen_step_is_the_eager_one(data):
    x_train, _, y_train, _ = data
    eager, frozen = (digits.train(x_train, y_train, epochs=2, frozen=f) for f in (False, True))
    assert eager.plan is None and frozen.plan is not None
    text = digits.compare(eager, frozen)
    assert "The losses of all 84 steps are the same" in text and f", {len(frozen.plan.instructions)} dce" in text
    assert f"eager {eager.peak / 1e3:,.0f} kB" in text and f"the plan {frozen.plan.nbytes / 1e3:,.0f} kB" in text
    weights = sum(p.size * 4 for p in eager.model.parameters())
    assert eager.peak > weights  # the gradients alone
    assert frozen.plan.nbytes <= frozen.peak <= 1.3 * (frozen.plan.nbytes + weights)  # and the gradients before
    frozen.losses[-1] = np.nextafter(frozen.losses[-1], 0)
    with pytest.raises(SystemExit, match="other losses"):
        digits.compare(eager, frozen)


def test_pictures(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(digits, "PICTURES", tmp_path / "out")
    rng = np.random.default_rng(0)
    truth, guess = rng.integers(0, 10, (2, 60))
    digits.draw_loss(list(rng.uniform(0.1, 2, 84)), 42)
    digits.draw_confusion(truth, guess)
    digits.draw_samples(rng.uniform(size=(60, 64)), truth, guess)
    for name in ("loss", "confusion", "samples"):
        assert (tmp_path / "out" / f"{name}.png").stat().st_size > 5000
    plan = tp.freeze(lambda x: tp.exp(x), tp.zeros(3))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert digits.draw_plan(plan) == tmp_path / "out" / "plan.dot"
    assert (tmp_path / "out" / "plan.dot").read_text() == plan.to_dot()
