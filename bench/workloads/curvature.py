"""Second derivatives: W12, the Hessian of a function of a thousand variables times a vector.

The product is the gradient of the slope along the vector. `ns.grad` gives the inner gradient the way that a user of the
library would write it; the outer one is the step that is timed.
"""

import numpy as np

from ..harness import Workload


def rosenbrock(ns):
    """The sum over neighbours of 100 (y - x^2)^2 + (1 - x)^2 (Rosenbrock, 1960, chained)."""
    total = ns.sum
    return lambda x: total(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def slope_along(ns, n):
    total, gradient = ns.sum, ns.grad(rosenbrock(ns))
    return lambda x, v: total(gradient(x) * v)


def slope_by_jvp(ns, n):
    """As JAX is fastest: the inner derivative forward."""
    f, jvp = rosenbrock(ns), ns.jvp
    return lambda x, v: jvp(f, (x,), (v,))[1]


def hessian_product(x, v, n):
    """Slope along v and the Hessian, which has three diagonals, times v."""
    a, t = x[:-1], x[1:] - x[:-1] ** 2
    gradient, product = np.zeros(n), np.zeros(n)
    gradient[:-1] = -400 * a * t - 2 * (1 - a)
    gradient[1:] += 200 * t
    product[:-1] = (2 - 400 * t + 800 * a**2) * v[:-1] - 400 * a * v[1:]
    product[1:] += 200 * v[1:] - 400 * a * v[:-1]
    return [gradient @ v, product]


def make_vectors(rng, n):
    return [rng.uniform(-1.5, 1.5, n), rng.normal(size=n)]


W12 = Workload(
    "W12", "Hessian-vector product of Rosenbrock's function, 1000 variables, float64", make_vectors, hessian_product,
    slope_along, 1, size={"n": 1000}, small={"n": 9}, dtype="float64",
    peers=("tapeflow", "tapeflow-frozen", "torch", "autograd", "tensorflow", "jax-eager", "jax", "casadi",
           "tensorflow-xla"),
    special={"jax": slope_by_jvp}, ahead=0.95, aim=60e-6, aim_frozen=6e-6,
)  # fmt: skip
