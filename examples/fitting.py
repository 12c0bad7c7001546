"""Hand exact derivatives to SciPy's optimizers: gradients, Hessian-vector products and a Jacobian, each a frozen plan.

    python -m examples.fitting

SciPy looks for a minimum, and asks for derivatives; left alone it takes differences, one evaluation for each variable.
`valley` goes down Rosenbrock's valley in a hundred variables, by L-BFGS-B, which wants gradients, and by a
trust-region Newton method, which wants products of the Hessian with vectors. `decay` fits a sum of two exponentials to
noisy points by least squares, which wants the Jacobian of the residuals.
"""

from typing import Any

import numpy as np
from scipy import optimize

import tapeflow as tp

VARIABLES = 100
AMPLITUDES, RATES, OFFSET, NOISE = (3.0, 1.0), (1.5, 0.3), 0.5, 0.01
Array = np.ndarray[Any, np.dtype[np.float64]]


def rosenbrock(x: tp.Tensor) -> tp.Tensor:
    """A long curved valley that ends where all variables are 1 (Rosenbrock, 1960, chained)."""
    return tp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


# Each is recorded at its first call and replayed afterwards. NumPy arrays go in; SciPy reads tensors as arrays.
value_and_gradient = tp.function(tp.value_and_grad(rosenbrock))
hessian_product = tp.function(lambda x, v: tp.hvp(rosenbrock, (x,), (v,))[0])


def valley(method: str, variables: int = VARIABLES) -> Any:
    """The minimum of rosenbrock by a method of scipy.optimize.minimize."""
    start = np.tile([-1.2, 1.0], variables // 2)
    second = {} if method == "L-BFGS-B" else {"hessp": hessian_product}
    tight = {"gtol": 1e-8, "maxiter": 10_000} | ({"ftol": 0.0, "maxfun": 20_000} if method == "L-BFGS-B" else {})
    return optimize.minimize(value_and_gradient, start, jac=True, method=method, options=tight, **second)


def points(count: int = 200, seed: int = 0) -> tuple[Array, Array]:
    """Times and noisy values of the curve that AMPLITUDES, RATES and OFFSET make."""
    t = np.linspace(0.0, 8.0, count)
    clean = OFFSET + sum(a * np.exp(-k * t) for a, k in zip(AMPLITUDES, RATES, strict=True))
    return t, clean + NOISE * np.random.default_rng(seed).normal(size=count)


def decay(t: Array, y: Array) -> tuple[Array, Array, Any]:
    """Amplitudes, rates and offset of least squares; their standard errors; what SciPy reports."""
    times, values = tp.tensor(t), tp.tensor(y)

    def residuals(p: tp.Tensor) -> tp.Tensor:
        amplitudes, rates, offset = p[:2], p[2:4], p[4]
        return tp.exp(-times[:, None] * rates) @ amplitudes + offset - values

    f, jacobian = tp.function(residuals), tp.function(tp.jacobian(residuals))
    found = optimize.least_squares(f, [2.0, 2.0, 2.0, 0.1, 0.0], jac=jacobian, xtol=1e-15, ftol=1e-15, gtol=1e-12)
    variance = 2 * found.cost / (len(t) - len(found.x))
    return found.x, np.sqrt(variance * np.diag(np.linalg.inv(found.jac.T @ found.jac))), found


def main() -> None:
    """Minimize and fit; say how far it is from the truth, and how much was asked for."""
    for method in ("L-BFGS-B", "trust-ncg"):
        found = valley(method)
        products = f", {found.nhev} Hessian products" if method == "trust-ncg" else ""
        print(
            f"{method:10} {found.nit} iterations, {found.nfev} values and gradients{products}; "
            f"furthest variable from 1: {np.max(np.abs(found.x - 1)):.0e}"
        )
    p, errors, report = decay(*points())
    print(f"The fit took {report.nfev} values and {report.njev} Jacobians.")
    truth = (*AMPLITUDES, *RATES, OFFSET)
    for name, value, error, true in zip("a1 a2 k1 k2 offset".split(), p, errors, truth, strict=True):
        print(f"{name:>6} = {value:.3f} +- {error:.3f}; the truth is {true}")


if __name__ == "__main__":
    main()
