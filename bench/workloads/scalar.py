"""Many tiny ops: W1 and W2, a chain of a thousand, and W10, the Lorenz system through 500 steps of Runge-Kutta.

What is measured is the cost of recording an op and of walking over it, not arithmetic.
"""

import numpy as np

from ..harness import Workload

EAGER = ("tapeflow", "tapeflow-frozen", "torch", "mygrad", "autograd", "tensorflow", "jax-eager")
ALL = (*EAGER, "jax", "casadi", "torch-compiled", "tensorflow-xla")


# ---- W1, W2: *1.0001, sin, +0.5, and again ----


def chain(ns, n, shape=()):
    sin = ns.sin
    assert n % 3 == 1

    def f(x):
        for _ in range(n // 3):
            x = sin(x * 1.0001) + 0.5
        return x * 1.0001

    return f


def chain_sum(ns, n, shape):
    f, total = chain(ns, n), ns.sum
    return lambda x: total(f(x))


def make_chain(rng, n, shape=()):
    return [rng.uniform(0.2, 1.2, shape)]


def chain_reference(x, n, shape=()):
    d = np.ones_like(x)
    for _ in range(n // 3):
        x = x * 1.0001
        d = d * 1.0001 * np.cos(x)
        x = np.sin(x) + 0.5
    return [np.sum(x * 1.0001), d * 1.0001]


# The gradient underflows to 0 over 1000 ops, so the gate looks at a chain of 13 as well.
W1 = Workload(
    "W1", "scalar chain, 0-d, 1000 ops", make_chain, chain_reference, chain, 1,
    size={"n": 1000}, small={"n": 13}, check={"n": 13}, peers=ALL, ops=1000, vs_torch=15, us_per_op=0.25,
    ahead=0.95, aim=0.25e-3, aim_frozen=7e-6,
)  # fmt: skip
W2 = Workload(
    "W2", "the same chain on shape (16,), then sum", make_chain, chain_reference, chain_sum, 1,
    size={"n": 1000, "shape": (16,)}, small={"n": 13, "shape": (16,)}, check={"n": 13, "shape": (16,)},
    peers=ALL, ops=1001, vs_torch=15, us_per_op=0.25, frozen=2, ahead=1.0, aim=0.25e-3, aim_frozen=20e-6,
)  # fmt: skip


# ---- W10: dx = s (y - x), dy = x (r - z) - y, dz = x y - b z ----

H = 0.01


def lorenz_step(x, y, z, s, r, b):
    """One step of the classical Runge-Kutta method: 71 operations."""

    def slope(x, y, z):
        return s * (y - x), x * (r - z) - y, x * y - b * z

    k1x, k1y, k1z = slope(x, y, z)
    k2x, k2y, k2z = slope(x + k1x * (H / 2), y + k1y * (H / 2), z + k1z * (H / 2))
    k3x, k3y, k3z = slope(x + k2x * (H / 2), y + k2y * (H / 2), z + k2z * (H / 2))
    k4x, k4y, k4z = slope(x + k3x * H, y + k3y * H, z + k3z * H)
    x = x + (k1x + 2.0 * k2x + 2.0 * k3x + k4x) * (H / 6)
    y = y + (k1y + 2.0 * k2y + 2.0 * k3y + k4y) * (H / 6)
    z = z + (k1z + 2.0 * k2z + 2.0 * k3z + k4z) * (H / 6)
    return x, y, z


def lorenz(ns, steps):
    def f(x, y, z, s, r, b):
        for _ in range(steps):
            x, y, z = lorenz_step(x, y, z, s, r, b)
        return x

    return f


def lorenz_scan(ns, steps):
    """The loop as JAX wants it; unrolled it does not compile in minutes."""

    def f(x, y, z, s, r, b):
        end, _ = ns.scan(lambda u, _: (lorenz_step(*u, s, r, b), None), (x, y, z), None, length=steps)
        return end[0]

    return f


def make_lorenz(rng, steps):
    return [np.array(v) for v in (1.0, 1.5, 20.0, 10.0, 28.0, 8 / 3)]


def lorenz_reference(x, y, z, s, r, b, steps):
    """State and sensitivity to (x, y, z, s, r, b) stepped together: the variational equation, of one point or many."""
    u = np.stack(np.broadcast_arrays(x, y, z))
    S = np.zeros((3, 6, *u.shape[1:]))
    S[range(3), range(3)] = 1.0

    def slope(u, S):
        x, y, z = u
        T = np.stack([s * (S[1] - S[0]), (r - z) * S[0] - S[1] - x * S[2], y * S[0] + x * S[1] - b * S[2]])
        T[range(3), range(3, 6)] += y - x, x, -z
        return np.stack([s * (y - x), x * (r - z) - y, x * y - b * z]), T

    for _ in range(steps):
        k1, K1 = slope(u, S)
        k2, K2 = slope(u + k1 * (H / 2), S + K1 * (H / 2))
        k3, K3 = slope(u + k2 * (H / 2), S + K2 * (H / 2))
        k4, K4 = slope(u + k3 * H, S + K3 * H)
        u, S = u + (k1 + 2 * k2 + 2 * k3 + k4) * (H / 6), S + (K1 + 2 * K2 + 2 * K3 + K4) * (H / 6)
    return [u[0], *S[0]]


W10 = Workload(
    "W10", "Lorenz, 500 Runge-Kutta steps of three 0-d states, float64", make_lorenz, lorenz_reference, lorenz, 6,
    size={"steps": 500}, small={"steps": 5}, dtype="float64", special={"jax": lorenz_scan},
    peers=("tapeflow", "tapeflow-frozen", "torch", "mygrad", "autograd", "jax", "casadi"), ops=35_500, vs_torch=20,
    ahead=1.0, aim=12e-3, aim_frozen=110e-6,
)  # fmt: skip
