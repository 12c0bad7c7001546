"""Clients of the derivatives: the examples that hand them to an optimizer, to a sampler, to Newton's method, and those
that differentiate a solver and a simulation. Each comes to the numbers that are known."""

import gc
import json
import math

import numpy as np
import pytest
from scipy import optimize

import tapeflow as tp
from examples import fitting, greeks, newton, posteriors, sensitivities

# ---- scipy.optimize


@pytest.mark.parametrize(("method", "close"), [("L-BFGS-B", 1e-7), ("trust-ncg", 1e-7)])
def test_optimizers_go_down_the_valley(method, close):
    found = fitting.valley(method, variables=20)
    assert found.success, found.message
    assert np.max(np.abs(found.x - 1.0)) < close and found.fun < close**2
    assert found.nfev < 500  # differences would take 21 for each gradient
    if method == "trust-ncg":
        assert found.nhev > found.nit


def test_what_optimizers_are_given_agrees_with_scipys_own():
    x, v = (np.random.default_rng(0).normal(size=20) for _ in range(2))
    value, gradient = fitting.value_and_gradient(x)
    assert value.item() == pytest.approx(optimize.rosen(x), rel=1e-14)
    assert np.asarray(gradient) == pytest.approx(optimize.rosen_der(x), rel=1e-13, abs=1e-10)
    product = np.asarray(fitting.hessian_product(x, v))
    assert product == pytest.approx(optimize.rosen_hess_prod(x, v), rel=1e-13, abs=1e-10)


def test_least_squares_finds_the_curve():
    t, y = fitting.points()
    p, errors, report = fitting.decay(t, y)
    truth = np.array([*fitting.AMPLITUDES, *fitting.RATES, fitting.OFFSET])
    assert report.success and np.all(errors < 0.05)
    assert np.all(np.abs(p - truth) < 4 * errors)
    by_differences, covariance = optimize.curve_fit(
        lambda t, a, b, k, m, c: a * np.exp(-k * t) + b * np.exp(-m * t) + c, t, y, p0=truth, ftol=1e-15, xtol=1e-15
    )
    assert p == pytest.approx(by_differences, rel=1e-5)
    assert errors == pytest.approx(np.sqrt(np.diag(covariance)), rel=1e-3)
    exact, _, _ = fitting.decay(t, truth[:2] @ np.exp(-np.outer(truth[2:4], t)) + truth[4])
    assert exact == pytest.approx(truth, abs=1e-9)


# ---- Newton's method


def test_newton_converges_quadratically_to_where_the_chain_hangs(capsys):
    n = 30
    x, sizes, path = newton.minimize(n)
    gap = 1.0 / (n + 1)
    force = gap * (np.arange(n + 1) - n / 2)  # slope + slope^3: it grows by each mass's weight, and is odd
    slope = [np.real(r) for f in force for r in np.roots([1.0, 0.0, 1.0, -f]) if abs(np.imag(r)) < 1e-12]
    hangs = gap * np.cumsum(slope)[:-1]
    assert x == pytest.approx(hangs, abs=1e-15)
    off = [np.max(np.abs(point - hangs)) for point in path]
    assert len(sizes) < 9 and sizes[-1] < 1e-15
    near = [(e, after) for e, after in zip(off, off[1:]) if 1e-7 < e < 2e-2]
    assert len(near) >= 2 and all(after < 10 * e**2 for e, after in near)
    newton.main()
    assert "one recording: 1 plan." in capsys.readouterr().out


# ---- sensitivities of a differential equation


def test_forward_and_reverse_agree_with_the_variational_equations(capsys):
    z = np.array(list(sensitivities.INPUTS.values()))
    there, back = sensitivities.forward(z), sensitivities.reverse(z)
    end, by_hand = sensitivities.variational(z)
    scale = np.max(np.abs(by_hand))
    assert there.shape == back.shape == (2, 6)
    assert np.max(np.abs(there - back)) < 1e-12 * scale
    assert np.max(np.abs(there - by_hand)) < 1e-6 * scale
    assert sensitivities.end(tp.tensor(z)).numpy() == pytest.approx(end, rel=1e-6)
    dense = tp.jacobian(lambda z: sensitivities.end(z, 20))(z).numpy()
    coarse = sensitivities.forward(z, steps=20)
    assert np.max(np.abs(dense - coarse)) < 1e-12 * scale
    finer = [np.max(np.abs(sensitivities.reverse(z, steps=n) - by_hand)) for n in (50, 100)]
    assert 12 < finer[0] / finer[1] < 20  # the order of the method is 4, and that of its derivative, too
    sensitivities.main()
    assert "1 % more u(0), 34.000: +0.315 hares, -0.007 lynxes" in capsys.readouterr().out


# ---- Greeks


@pytest.mark.parametrize("method", [greeks.pathwise, greeks.by_likelihood])
def test_greeks_are_those_of_black_and_scholes(method):
    exact = greeks.closed_form()
    found = greeks.simulate(method, paths=100_000, seed=3)
    assert found.keys() == exact.keys() - ({"gamma"} if method is greeks.pathwise else set())
    for name, (mean, error) in found.items():
        assert abs(mean - exact[name]) < 4 * error, name
        assert error < 0.05 * exact[name], name
    assert method.plans[0].is_scalar  # one program of 0-d values, in lanes


def test_the_closed_form_has_these_derivatives():
    def price(spot, volatility):
        spread = volatility * math.sqrt(greeks.YEARS)
        d = (tp.log(spot / greeks.STRIKE) + (greeks.RATE + 0.5 * volatility**2) * greeks.YEARS) / spread
        below = [0.5 * (1.0 + tp.erf(x / math.sqrt(2.0))) for x in (d, d - spread)]
        discounted = greeks.STRIKE * math.exp(-greeks.RATE * greeks.YEARS)
        return spot * below[0] - discounted * below[1]

    at = [tp.tensor(x, dtype="float64") for x in (greeks.SPOT, greeks.VOLATILITY)]
    value, (delta, vega) = tp.value_and_grad(price, argnums=(0, 1))(*at)
    gamma = tp.grad(tp.grad(price))(*at)
    got = {"price": value, "delta": delta, "vega": vega, "gamma": gamma}
    assert {k: x.item() for k, x in got.items()} == pytest.approx(greeks.closed_form(), rel=1e-12)


# ---- a sampler


@pytest.fixture(scope="module")
def data():
    return json.loads(posteriors.FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", posteriors.POSTERIORS)
def test_what_a_sampler_is_given_is_the_density_and_its_gradient(name, data):
    posterior = posteriors.POSTERIORS[name]
    log_density, _ = posterior.model(data[posterior.name]["data"])
    f = posteriors.for_a_sampler(log_density)
    rng = np.random.default_rng(0)
    for _ in range(2):  # recorded, then replayed
        q = np.array(posterior.start) + 0.1 * rng.normal(size=len(posterior.start))
        value, gradient = f(q)
        assert type(value) is float and type(gradient) is np.ndarray and gradient.dtype == np.float64
        eager, by_tape = tp.value_and_grad(log_density)(q)
        assert value == eager.item() and np.array_equal(gradient, by_tape.numpy())
        v, h = rng.normal(size=len(q)), 1e-4
        ahead = [f(q + k * h * v)[0] for k in (-2, -1, 1, 2)]
        slope = (ahead[0] - 8 * ahead[1] + 8 * ahead[2] - ahead[3]) / (12 * h)
        assert gradient @ v == pytest.approx(slope, rel=1e-6, abs=1e-5)


def test_the_solver_in_a_density_is_fine_enough(data, monkeypatch):
    posterior = posteriors.POSTERIORS["lotka_volterra"]
    density, _ = posterior.model(data[posterior.name]["data"])
    q = tp.tensor(posterior.start, dtype="float64")
    coarse = density(q).item()
    monkeypatch.setattr(posteriors, "STEPS_A_YEAR", 8)
    assert abs(density(q).item() - coarse) < 0.02  # of a logarithm of a density


@pytest.mark.parametrize("name", posteriors.POSTERIORS)
def test_nuts_has_the_moments_of_the_reference(name):
    pytest.importorskip("mici", reason="the sampler: pip install mici")
    r = posteriors.run(posteriors.POSTERIORS[name], draws=400)
    off = (r.mean - r.known) / np.hypot(r.error, r.known_error)
    assert np.all(np.abs(off) < 5), dict(zip(r.names, off))
    assert np.all(r.error < 0.12 * r.spread), dict(zip(r.names, r.error / r.spread))  # so that a shift would show


def test_the_programs_say_what_they_found(monkeypatch, capsys):
    whole = fitting.valley
    monkeypatch.setattr(fitting, "valley", lambda method: whole(method, variables=20))
    fitting.main()
    said = capsys.readouterr().out
    assert (
        "Hessian products; furthest variable from 1: " in said and "    k2 = 0.314 +- 0.012; the truth is 0.3\n" in said
    )
    greeks.main()
    said = capsys.readouterr().out
    assert (
        f"the closed form says {greeks.closed_form()['gamma']:.5f}" in said and "by likelihood, 200,000 futures" in said
    )
    pytest.importorskip("mici", reason="the sampler: pip install mici")
    monkeypatch.setattr(posteriors, "POSTERIORS", {"kid_scores": posteriors.POSTERIORS["kid_scores"]})
    posteriors.main()
    said = capsys.readouterr().out
    assert said.startswith("kid_scores: ") and "known:   18.2758\n" in said


# ---- how arrays come in


def test_arrays_and_floats_are_told_apart_as_tensors_are():
    f = tp.function(lambda x, k: x * k if k is not None else x)
    x = np.array([1.0, 2.0])
    for k in (2.0, 3.0):
        assert f(x, k).tolist() == [k, 2 * k]
    assert len(f.plans) == 1
    assert f(x.astype(np.float32), 2.0).dtype == "float32" and f(x[:1], 2.0).shape == (1,) and len(f.plans) == 3
    assert f(tp.tensor(x), 2.0).dtype == "float64" and f(x, np.float64(2.0)).tolist() == [2.0, 4.0]
    assert f(x, 2).dtype == "float64" and f(x, None).tolist() == [1.0, 2.0] and f(x, k=2.0).tolist() == [2.0, 4.0]
    x[0] = 5.0  # an array is read at each call
    assert f(x, 2.0).tolist() == [10.0, 4.0]
    plan = tp.freeze(lambda a, b: (a + b, a - b), x, tp.tensor(x))
    assert [y.tolist() for y in plan(x, x)] == [[10.0, 4.0], [0.0, 0.0]]
    with pytest.raises(tp.PlanError, match="frozen for"):
        plan(x, x[:1])
    with pytest.raises(tp.PlanError, match="is a list, expected a tensor"):
        plan(x, [x])
    with pytest.raises(tp.PlanError, match="argument 1 is a number"):
        plan(x, 1.0)


def test_a_run_that_is_not_kept_asks_nothing_of_the_collector(monkeypatch):
    def asked(*args):
        raise AssertionError("it takes as long as there are objects")

    for name in ("get_freeze_count", "get_objects", "freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, asked)
    x = tp.tensor([1.0, 2.0])
    assert tp.vmap(lambda a: a * a)(x).tolist() == [1.0, 4.0]
    assert tp.jacobian(lambda a: a * a)(x).tolist() == [[2.0, 0.0], [0.0, 4.0]]
    assert tp.hessian(lambda a: tp.sum(a**3))(x).tolist() == [[6.0, 0.0], [0.0, 12.0]]
    with pytest.raises(AssertionError, match="objects"):
        tp.freeze(lambda a: a * a, x)


def by_function(f, x):
    return tp.function(f)(x)  # recorded


def by_replay(f, x):
    again = tp.function(f)
    again(x)
    return again(x)


def by_plan_in_a_recording(f, x):
    plan = tp.freeze(f, x)
    with tp.Tape():
        return plan(x)


def by_bound_plan_in_a_recording(f, x):
    bound = tp.freeze(f, x).bind(x)
    with tp.Tape():
        return bound()


def by_vmap(f, x):
    return tp.vmap(lambda t: t)(x), tp.vmap(lambda t: t[1:])(x[None])[0], tp.vmap(lambda t: t * 2.0)(x)


@pytest.mark.parametrize(
    "call", [by_function, by_replay, by_plan_in_a_recording, by_bound_plan_in_a_recording, by_vmap]
)
def test_an_array_that_is_written_later_shows_in_no_result(call):
    x = np.arange(3.0)
    results = call(lambda t: (t, t[1:], 2.0 * t), x)
    x += 10.0
    assert [y.tolist() for y in results] == [[0.0, 1.0, 2.0], [1.0, 2.0], [0.0, 2.0, 4.0]]


def test_an_array_that_is_written_later_shows_in_no_state():
    w = tp.zeros(3, dtype="float64")
    write = tp.function(lambda t: w.assign(t).sum())
    for first in (0.0, 5.0):  # recorded, replayed
        x = first + np.arange(3.0)
        write(x)
        x += 10.0
        assert w.tolist() == [first, first + 1.0, first + 2.0]


@pytest.mark.parametrize("bind", [False, True])
def test_an_array_that_is_written_later_shows_in_no_gradient(bind):
    x, w = np.arange(3.0), tp.ones(3, dtype="float64", requires_grad=True)
    plan = tp.freeze(lambda w, t: tp.sum(w * t), w.detach(), x)
    y = plan.bind(w, x)() if bind else plan(w, x)
    x += 10.0
    y.backward()
    assert w.grad.tolist() == [0.0, 1.0, 2.0]
