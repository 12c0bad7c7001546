"""The examples, shortened: each does what it says it does and draws its picture."""

import numpy as np
import pytest

import tapeflow as tp
from examples import basics, characters, graphs, layer, pendulum, regression


def test_the_formula_and_its_derivatives(capsys):
    assert basics.formula(5.0, 3.0, 2.0) == (33.0, [3.0, 6.0, 9.0])
    y, slopes, tape = basics.areas(2.0, 3.0, 1.0)
    assert (y, slopes) == (10.0, [2.0, 7.0, -5.0])
    assert [line.split(" = ")[1].split("(")[0] for line in tape.splitlines()[1:]] == ["add", "subtract", "multiply"]
    answers, plan = basics.frozen_areas((2.0, 3.0, 1.0), (5.0, 3.0, 2.0))
    assert answers == [(y, slopes), (8.0, [1.0, 9.0, -8.0])]
    assert basics.areas(5.0, 3.0, 2.0)[:2] == answers[1]
    assert len(plan.instructions) == 5  # b - c is also dY/da
    total = basics.constants()
    assert total.tolist() == [[11.0, 22.0], [33.0, 44.0]] and not total.requires_grad
    basics.main()
    printed = capsys.readouterr().out
    assert "dF/da = 3, dF/db = 6, dF/dc = 9" in printed and "\n8; dY/da = 1, dY/db = 9, dY/dc = -8\n" in printed


@pytest.mark.parametrize("fit", [regression.with_a_tape, regression.with_backward, regression.in_micro_batches])
def test_each_way_finds_the_line_of_least_squares(fit):
    x, y = regression.points()
    assert fit(x, y) == pytest.approx(regression.exact(x, y), abs=1e-4)
    assert fit(x, y, steps=1) != pytest.approx(regression.exact(x, y), abs=0.1)


def test_micro_batches_give_the_gradient_of_the_whole():
    x, y = regression.points()
    whole, parts = (regression.in_micro_batches(x, y, parts=n, steps=1) for n in (1, 4))
    assert parts == pytest.approx(whole, rel=1e-5)


def test_a_session_loop_is_one_plan_and_descends_as_numpy_does(capsys):
    losses, w, b, plans = graphs.session_loop()
    assert plans == 1 and (w, b) == pytest.approx((2.0, 10.0), abs=1e-4)
    slope, intercept, want = 0.3, 0.0, []
    for _ in range(len(losses)):
        error = slope * graphs.X + intercept - graphs.Y
        want.append(np.mean(error**2))
        slope -= graphs.RATE * 2 * np.mean(error * graphs.X)
        intercept -= graphs.RATE * 2 * np.mean(error)
    assert losses == pytest.approx(want, rel=1e-4, abs=1e-6)
    assert f"step 50: loss {losses[50]:.4f}, w 1.953, b 10.000" in capsys.readouterr().out


def test_a_traced_function_records_each_way_once(capsys):
    got = graphs.traced()
    assert got == [[1.0, 4.0], [9.0, 16.0], [0.5, 1.0], [25.0, 36.0], [1.5, 2.0], [1.0, 4.0, 9.0]]
    assert capsys.readouterr().out.splitlines() == [f"recording for shape {s}" for s in ("(2,)", "(2,)", "(3,)")]


def test_both_modes_have_the_same_losses():
    dynamic, static = (graphs.in_mode(static, steps=100) for static in (False, True))
    assert dynamic == static and static[-1] < static[0] / 10


def test_constants_are_folded(capsys):
    recorded, plan = graphs.folded()
    assert [len(p.instructions) for p in (recorded, plan)] == [1, 0] and "constant" in plan.explain()
    assert recorded().tolist() == plan().tolist() == [[11.0, 22.0], [33.0, 44.0]]
    graphs.main()
    assert "C = A + B: 1 instruction recorded, 0 left\n" in capsys.readouterr().out


def test_the_layer_learns_the_patterns():
    model, data = layer.network(), layer.Patterns()
    assert [(name, p.shape) for name, p in model.named_parameters()] == [
        ("0.weight", (784, 64)),
        ("0.bias", (64,)),
        ("1.weight", (64, 10)),
        ("1.bias", (10,)),
    ]
    before = layer.accuracy(model, data)
    losses = layer.train(model, data, steps=60)
    assert losses[-1] < losses[0] / 4 and before < 0.3 and layer.accuracy(model, data) > 0.7


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
    model.damping = tp.nn.Parameter(np.array(0.3))
    want = (after - 2 * at + before) / h**2 + 2 * 0.3 * (after - before) / (2 * h) + pendulum.FREQUENCY**2 * at
    np.testing.assert_allclose(model.violation(tp.tensor(t)).numpy(), want, rtol=1e-4, atol=1e-5)


def test_the_transformer_learns_and_writes(tmp_path, monkeypatch):
    threads = tp.get_num_threads()
    tp.set_num_threads(1)
    try:
        text, alphabet = characters.read_documents()
        numbers = np.array([alphabet.index(c) for c in text[:20000]])
        model, losses, checks = characters.train(numbers, len(alphabet), steps=50)
        assert losses[0] > 4.0 and checks[-1][1] < 3.6  # guessing: 4.5
        written = characters.write(model, numbers[:5], 60)
        assert written[:5] == numbers[:5].tolist() and len(written) == 65 and max(written) < len(alphabet)
    finally:
        tp.set_num_threads(threads)
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(characters, "PICTURES", tmp_path / "out")
    characters.draw(losses, [*checks, (100, 2.0)], len(alphabet))
    assert (tmp_path / "out" / "characters.png").stat().st_size > 5000


def test_the_transformer_looks_at_nothing_that_comes_later():
    model = characters.Transformer(20)
    numbers = np.random.default_rng(0).integers(20, size=(2, 12))
    changed = numbers.copy()
    changed[:, 7:] = 19 - changed[:, 7:]
    before, after = (model(tp.tensor(n)).numpy() for n in (numbers, changed))
    np.testing.assert_allclose(after[:, :7], before[:, :7], rtol=1e-5, atol=1e-5)
    assert np.abs(after[:, 7:] - before[:, 7:]).max() > 0.1
