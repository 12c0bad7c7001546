"""The examples, shortened: each does what it says it does and draws its picture."""

import numpy as np
import pytest

from examples import pendulum


def test_the_equation_finds_the_swing_and_its_damping(tmp_path, monkeypatch):
    t, u = pendulum.measurements()
    model, path = pendulum.fit(t, u, steps=800)
    alone, unchanged = pendulum.fit(t, u, physics=False, steps=800)
    assert abs(path[-1] - pendulum.DAMPING) < 0.1 and unchanged[-1] == 0.0
    later = np.linspace(pendulum.SEEN, pendulum.END, 50)[:, None]
    error, error_alone = (
        np.sqrt(np.mean((pendulum.angles(m, later) - pendulum.swing(later)) ** 2)) for m in (model, alone)
    )
    assert error < 0.1 and error < error_alone / 3
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(pendulum, "PICTURES", tmp_path / "out")
    pendulum.draw(t, u, model, alone, path)
    assert (tmp_path / "out" / "pendulum.png").stat().st_size > 5000


def test_the_violation_of_the_equation_is_that_of_differences():
    model = pendulum.Swing()
    t, h = np.linspace(0.5, 5.0, 7)[:, None], 1e-3
    before, at, after = (pendulum.angles(model, t + k * h) for k in (-1, 0, 1))
    model.damping = pendulum.nn.Parameter(np.array(0.3))
    want = (after - 2 * at + before) / h**2 + 2 * 0.3 * (after - before) / (2 * h) + pendulum.FREQUENCY**2 * at
    np.testing.assert_allclose(model.violation(pendulum.tp.tensor(t)).numpy(), want, rtol=1e-4, atol=1e-5)
