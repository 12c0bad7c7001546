"""Draw from real posteriors with NUTS: log densities in tapeflow, the sampler from elsewhere.

    pip install mici
    python -m examples.posteriors

A sampler that follows gradients (Hoffman and Gelman, 2014) asks for a log density and its gradient, tens of thousands
of times, one after another. Here both are one frozen plan, which `for_a_sampler` makes of a plain function. The sampler
is Mici's: it takes plain functions of NumPy arrays, is kept up, and needs NumPy and SciPy alone.

The four posteriors and the moments that they must have come from posteriordb (stan-dev/posteriordb, BSD-3-Clause). Each
function below takes the data and returns two functions of an unconstrained vector q: the log density, without
constants, and what the parameters are there. A positive parameter is exp(q), one between 0 and 1 is sigmoid(q), and the
density has the logarithm of that derivative added.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tapeflow as tp
from examples.sensitivities import change, runge_kutta

FILE = Path(__file__).parent / "data" / "posteriors.json"
STEPS_A_YEAR = 4  # of the solver in lotka_volterra: its error is a thousandth of the noise's
Array = np.ndarray[Any, np.dtype[np.float64]]
Function = Callable[[tp.Tensor], tp.Tensor]


def normal(x: Any, mean: Any, sd: Any) -> tp.Tensor:
    """Log density of independent normal numbers."""
    sd = tp.asarray(sd, dtype="float64")
    return -tp.sum(0.5 * ((x - mean) / sd) ** 2 + tp.log(sd))


def half_cauchy(x: tp.Tensor, scale: float) -> tp.Tensor:
    """Log density of a positive number with a heavy tail."""
    return -tp.log1p((x / scale) ** 2)


# ---- the posteriors


def eight_schools(data: dict[str, Any]) -> tuple[Function, Function]:
    """Effects of coaching in eight schools, which have a mean and a spread in common (Rubin, 1981)."""
    y, sigma = (tp.tensor(data[name], dtype="float64") for name in ("y", "sigma"))

    def log_density(q: tp.Tensor) -> tp.Tensor:
        standard, mu, log_tau = q[:8], q[8], q[9]
        tau = tp.exp(log_tau)
        prior = normal(standard, 0.0, 1.0) + normal(mu, 0.0, 5.0) + half_cauchy(tau, 5.0) + log_tau
        return prior + normal(y, mu + tau * standard, sigma)

    def parameters(q: tp.Tensor) -> tp.Tensor:
        mu, tau = q[8:9], tp.exp(q[9:10])
        return tp.concat([mu + tau * q[:8], mu, tau])

    return log_density, parameters


def kid_scores(data: dict[str, Any]) -> tuple[Function, Function]:
    """A line through children's scores over their mothers' IQ; q has its height at the mean IQ, not at 0."""
    score, iq = (tp.tensor(data[name], dtype="float64") for name in ("kid_score", "mom_iq"))
    mean = tp.mean(iq)

    def log_density(q: tp.Tensor) -> tp.Tensor:
        height, slope, log_sigma = q[0], q[1], q[2]
        sigma = tp.exp(log_sigma)
        return half_cauchy(sigma, 2.5) + log_sigma + normal(score, height + slope * (iq - mean), sigma)

    def parameters(q: tp.Tensor) -> tp.Tensor:
        return tp.stack([q[0] - mean * q[1], q[1], tp.exp(q[2])])

    return log_density, parameters


def garch(data: dict[str, Any]) -> tuple[Function, Function]:
    """A series whose variance today depends on yesterday's surprise and variance (Bollerslev, 1986)."""
    y, variance_0 = tp.tensor(data["y"], dtype="float64"), data["sigma1"] ** 2

    def parameters(q: tp.Tensor) -> tp.Tensor:
        alpha_1 = tp.sigmoid(q[2])
        return tp.stack([q[0], tp.exp(q[1]), alpha_1, (1.0 - alpha_1) * tp.sigmoid(q[3])])

    def log_density(q: tp.Tensor) -> tp.Tensor:
        mu, alpha_0, alpha_1, beta_1 = (parameters(q)[i] for i in range(4))
        surprise = alpha_0 + alpha_1 * (y - mu) ** 2
        variances = [alpha_1 * 0.0 + variance_0]
        for t in range(1, len(y)):
            variances.append(surprise[t - 1] + beta_1 * variances[-1])
        logistic = -tp.softplus(q[2:]) - tp.softplus(-q[2:])  # logarithms of the derivatives of the two sigmoids
        return q[1] + tp.sum(logistic) + tp.log(1.0 - alpha_1) + normal(y, mu, tp.sqrt(tp.stack(variances)))

    return log_density, parameters


def lotka_volterra(data: dict[str, Any]) -> tuple[Function, Function]:
    """Twenty years of hares and lynxes as a differential equation says, with noise in proportion."""
    first, counts = (tp.log(tp.tensor(data[name], dtype="float64")) for name in ("y_init", "y"))
    place, scale = (tp.tensor(x, dtype="float64") for x in ([1.0, 0.05, 1.0, 0.05], [0.5, 0.05, 0.5, 0.05]))

    def log_density(q: tp.Tensor) -> tp.Tensor:
        rates = tp.exp(q[:4])
        a, b, c, d = (rates[i] for i in range(4))
        state, path = tuple(tp.exp(q[i]) for i in (4, 5)), []
        for _ in data["ts"]:
            for _ in range(STEPS_A_YEAR):
                state = runge_kutta(lambda s: change(s, a, b, c, d), state, 1.0 / STEPS_A_YEAR)
            path.append(tp.stack(state))
        start, log_sigma = q[4:6], q[6:8]  # logarithms, whose densities are normal: no derivative to add
        prior = normal(rates, place, scale) + tp.sum(q[:4]) + normal(start, math.log(10.0), 1.0)
        sigma = tp.exp(log_sigma)
        seen = normal(first, start, sigma) + normal(counts, tp.log(tp.stack(path)), sigma)
        return prior + normal(log_sigma, -1.0, 1.0) + seen

    return log_density, tp.exp


@dataclass(frozen=True)
class Posterior:
    """Its name in the file, its function here, and where chains start."""

    name: str
    model: Callable[[dict[str, Any]], tuple[Function, Function]]
    start: tuple[float, ...]


POSTERIORS = {
    p.model.__name__: p
    for p in (
        Posterior("eight_schools-eight_schools_noncentered", eight_schools, (0.0,) * 10),
        Posterior("kidiq-kidscore_momiq", kid_scores, (90.0, 0.5, 3.0)),
        Posterior("garch-garch11", garch, (5.0, 0.0, 0.0, 0.0)),
        Posterior("hudson_lynx_hare-lotka_volterra", lotka_volterra, (-0.6, -3.6, -0.2, -3.7, 3.5, 1.8, -1.4, -1.4)),
    )
}


# ---- from a log density to draws


def for_a_sampler(log_density: Function) -> Callable[[Array], tuple[float, Array]]:
    """The log density of an array as a float, and its gradient as an array: one plan, recorded at the first call."""
    plan = tp.function(tp.value_and_grad(log_density))

    def value_and_gradient(q: Array) -> tuple[float, Array]:
        value, gradient = plan(q)
        return value.item(), gradient.numpy()

    return value_and_gradient


def sample(f: Callable[[Array], tuple[float, Array]], start: Any, draws: int, chains: int = 2, seed: int = 0) -> Array:
    """Draws of q by NUTS, of shape (chains, draws, size), after half as many that adapt step size and variances."""
    import mici

    def falls(q: Array) -> tuple[Array, float]:  # Mici speaks of what is minimized, and takes both at once
        value, gradient = f(q)
        return -gradient, -value

    rng = np.random.default_rng(seed)
    system = mici.systems.EuclideanMetricSystem(lambda q: falls(q)[1], grad_neg_log_dens=falls)
    sampler = mici.samplers.DynamicMultinomialHMC(system, mici.integrators.LeapfrogIntegrator(system), rng)
    adapters = [mici.adapters.DualAveragingStepSizeAdapter(0.9), mici.adapters.OnlineCovarianceMetricAdapter()]
    starts = [np.array(start) + 0.1 * rng.normal(size=len(start)) for _ in range(chains)]
    out = sampler.sample_chains(draws // 2, draws, starts, adapters=adapters, display_progress=False)
    return np.stack(out.traces["pos"])


def means(x: Array, batches: int = 10) -> tuple[Array, Array]:
    """Means over draws (chains, draws, size), and their errors, from the spread of the means of long batches."""
    each = x.reshape(len(x) * batches, -1, x.shape[-1]).mean(axis=1)
    return each.mean(axis=0), each.std(axis=0, ddof=1) / math.sqrt(len(each))


@dataclass(frozen=True)
class Result:
    """Means of the parameters with their errors, and those that are known; what it took."""

    names: list[str]
    mean: Array
    error: Array
    known: Array
    known_error: Array
    spread: Array  # known standard deviations
    gradients: int
    seconds: float


def run(posterior: Posterior, draws: int = 500, seed: int = 0) -> Result:
    """Draw from a posterior and put its means beside the known ones."""
    entry = json.loads(FILE.read_text(encoding="utf-8"))[posterior.name]
    log_density, parameters = posterior.model(entry["data"])
    f, calls = for_a_sampler(log_density), [0]

    def counted(q: Array) -> tuple[float, Array]:
        calls[0] += 1
        return f(q)

    begin = time.perf_counter()
    q = sample(counted, posterior.start, draws, seed=seed)
    seconds = time.perf_counter() - begin
    x = tp.vmap(parameters)(q.reshape(-1, q.shape[-1])).numpy()
    reference = entry["reference"]
    known, known_error, spread = (np.array([r[key] for r in reference.values()]) for key in ("mean", "mcse", "sd"))
    mean, error = means(x.reshape(len(q), draws, -1))
    return Result(list(reference), mean, error, known, known_error, spread, calls[0], seconds)


def main() -> None:
    """All four, parameter by parameter."""
    for name, posterior in POSTERIORS.items():
        r = run(posterior)
        print(f"{name}: {r.gradients:,} gradients in {r.seconds:.1f} s, the sampler's own time included")
        for row in zip(r.names, r.mean, r.error, r.known, strict=True):
            print("  {:9} {:9.4f} +- {:.4f}; known: {:9.4f}".format(*row))


if __name__ == "__main__":
    main()
