"""The demo learns: real digits, the public interface only, at least 97 % on digits it has not seen."""

import numpy as np
import pytest

pytest.importorskip("sklearn")

from examples import digits


def test_digits_are_learned():
    x_train, x_test, y_train, y_test = digits.digits()
    model, losses = digits.train(x_train, y_train)
    assert np.mean(losses[-42:]) < 0.1 * np.mean(losses[:42])
    accuracy = (digits.predict(model, x_test) == y_test).mean()
    assert accuracy >= 0.97


def test_training_repeats_bit_for_bit():
    x_train, _, y_train, _ = digits.digits()
    first, second = (digits.train(x_train, y_train, epochs=1)[1] for _ in range(2))
    assert first == second


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
