"""The price of an option by simulation, and how it moves: delta, vega and gamma, each with its statistical error.

    python -m examples.greeks

The option pays what a share is above the strike in a year. Its price is the mean over many futures; its Greeks are
derivatives of that mean: delta by the share's price today, vega by its volatility, gamma twice by the price. One
future is a formula of 0-d numbers. It is recorded once with its derivatives, and vmap replays it for all futures.

Two ways, after Glasserman (Monte Carlo Methods in Financial Engineering, 2003, chapter 7). `pathwise` differentiates
the payoff of each future: little noise, but the payoff has a kink, and along a path its second derivative is 0 where it
exists, so gamma is lost. `by_likelihood` leaves each future where it is and differentiates how likely it is: right at
every order, with more noise.
"""

import math
from typing import Any

from scipy.special import ndtr

import tapeflow as tp

SPOT, STRIKE, VOLATILITY, RATE, YEARS = 100.0, 105.0, 0.25, 0.03, 1.0
PATHS = 200_000
Estimates = dict[str, tuple[float, float]]  # name -> estimate and its standard error


def future(spot: Any, volatility: Any, z: Any) -> Any:
    """The share's price in the end, when z is the (normal) news."""
    return spot * tp.exp((RATE - 0.5 * volatility**2) * YEARS + volatility * math.sqrt(YEARS) * z)


def worth(price: Any) -> Any:
    """What the option pays then, in money of today."""
    return math.exp(-RATE * YEARS) * tp.relu(price - STRIKE)


def along_path(spot: Any, volatility: Any, z: Any) -> Any:
    """The payoff of one future."""
    return worth(future(spot, volatility, z))


def weighted(spot: Any, volatility: Any, z: Any) -> Any:
    """The payoff of one future that stays where it is, times how much likelier it becomes: 1, but with derivatives."""
    price = tp.stop_gradient(future(spot, volatility, z))
    spread = volatility * math.sqrt(YEARS)
    news = (tp.log(price / spot) - (RATE - 0.5 * volatility**2) * YEARS) / spread
    log_density = -0.5 * news**2 - tp.log(spread)
    return worth(price) * tp.exp(log_density - tp.stop_gradient(log_density))


@tp.function
def pathwise(spot: Any, volatility: Any, z: Any) -> Any:
    """Price, delta and vega of one future."""
    price, (delta, vega) = tp.value_and_grad(along_path, argnums=(0, 1))(spot, volatility, z)
    return {"price": price, "delta": delta, "vega": vega}


@tp.function
def by_likelihood(spot: Any, volatility: Any, z: Any) -> Any:
    """Price, delta, vega and gamma of one future."""
    price, (delta, vega) = tp.value_and_grad(weighted, argnums=(0, 1))(spot, volatility, z)
    [gamma] = tp.hvp(lambda s: weighted(s, volatility, z), (spot,), (tp.ones_like(spot),))
    return {"price": price, "delta": delta, "vega": vega, "gamma": gamma}


def simulate(method: Any, paths: int = PATHS, seed: int = 0) -> Estimates:
    """Means over the futures, and the errors of these means."""
    z = tp.random.Generator(seed).normal(shape=paths, dtype="float64")
    today = (tp.tensor(x, dtype="float64") for x in (SPOT, VOLATILITY))
    each = tp.vmap(method, in_axes=(None, None, 0))(*today, z)
    return {name: (x.mean().item(), (tp.std(x) / math.sqrt(paths)).item()) for name, x in each.items()}


def closed_form() -> dict[str, float]:
    """What the means tend to (Black and Scholes, 1973)."""
    spread = VOLATILITY * math.sqrt(YEARS)
    d = (math.log(SPOT / STRIKE) + (RATE + 0.5 * VOLATILITY**2) * YEARS) / spread
    density = math.exp(-0.5 * d * d) / math.sqrt(2 * math.pi)
    price = SPOT * ndtr(d) - STRIKE * math.exp(-RATE * YEARS) * ndtr(d - spread)
    vega, gamma = SPOT * density * math.sqrt(YEARS), density / (SPOT * spread)
    return {"price": float(price), "delta": float(ndtr(d)), "vega": vega, "gamma": gamma}


def main() -> None:
    """Both ways beside the closed form."""
    exact = closed_form()
    for method in (pathwise, by_likelihood):
        print(f"{method.__name__.replace('_', ' ')}, {PATHS:,} futures")
        for name, (mean, error) in simulate(method).items():
            print(f"  {name:5} {mean:9.5f} +- {error:.5f}; the closed form says {exact[name]:.5f}")


if __name__ == "__main__":
    main()
