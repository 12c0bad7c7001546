"""Large arrays: W4 elementwise, W9 Bayesian logistic regression, W13 a matrix product."""

import numpy as np

from ..harness import ALL, Workload

# ---- W4: sum(tanh(x) exp(-x x) + sin(x)) ----


def elementwise(ns, n):
    tanh, exp, sin, total = ns.tanh, ns.exp, ns.sin, ns.sum
    return lambda x: total(tanh(x) * exp(-x * x) + sin(x))


def elementwise_reference(x, n):
    t, e = np.tanh(x), np.exp(-x * x)
    return [np.sum(t * e + np.sin(x)), (1 - t * t) * e - 2 * x * t * e + np.cos(x)]


def make_elementwise(rng, n):
    return [rng.uniform(-1, 2, n)]


def _elementwise(name, n, aim, aim_frozen):
    return Workload(
        name, f"sum(tanh(x) exp(-x x) + sin(x)), {n:,} elements", make_elementwise, elementwise_reference,
        elementwise, 1, size={"n": n}, small={"n": 1000}, peers=ALL, frozen=2, ahead=1.0, aim=aim,
        aim_frozen=aim_frozen,
    )  # fmt: skip


W4 = _elementwise("W4", 10_000_000, 60e-3, 10e-3)
W4S = _elementwise("W4s", 10_000, 50e-6, 10e-6)


# ---- W9: the log posterior of logistic regression with a normal prior ----


def log_posterior(ns, n, d):
    softplus, total = ns.softplus, ns.sum

    def f(w, x, y):
        z = x @ w
        return total(y * z - softplus(z)) - 0.5 * total(w * w)

    return f


def log_posterior_reference(w, x, y, n, d):
    z = x @ w
    value = np.sum(y * z - np.logaddexp(0, z)) - 0.5 * np.sum(w * w)
    return [value, x.T @ (y - 1 / (1 + np.exp(-z))) - w]


def log_posterior_matvec(ns, n, d):
    """TensorFlow has no matrix @ vector."""
    f = log_posterior(ns, n, d)
    return lambda w, x, y: f(w[:, None], x, y[:, None])


def make_regression(rng, n, d):
    x = rng.normal(size=(n, d))
    w = rng.normal(size=d) / 2
    y = (rng.uniform(size=n) < 1 / (1 + np.exp(-(x @ w)))).astype(float)
    return [w + rng.normal(size=d) / 10, x, y]


W9 = Workload(
    "W9", "Bayesian logistic regression, 1000 x 20, float64", make_regression, log_posterior_reference, log_posterior,
    1, size={"n": 1000, "d": 20}, small={"n": 50, "d": 3}, dtype="float64", peers=ALL, ahead=1.0, aim=25e-6,
    aim_frozen=15e-6,
    special={"tensorflow": log_posterior_matvec, "tensorflow-xla": log_posterior_matvec},
)  # fmt: skip


# ---- W13: sum(A @ B) ----


def product(ns, n):
    total = ns.sum
    return lambda a, b: total(a @ b)


def product_reference(a, b, n):
    left, right = a.sum(axis=0), b.sum(axis=1)  # sum(A @ B) = the dot of these two
    return [left @ right, np.tile(right, (n, 1)), np.tile(left[:, None], (1, n))]


def make_product(rng, n):
    return [rng.uniform(size=(n, n)), rng.uniform(size=(n, n))]


W13 = Workload(
    "W13", "sum(A @ B), 1024, gradient to both", make_product, product_reference, product, 2,
    size={"n": 1024}, small={"n": 24}, peers=(*ALL[:2], "tapeflow-frozen-fast", *ALL[2:]), ahead=0.95, aim=17e-3,
    aim_frozen=17e-3,
)  # fmt: skip
