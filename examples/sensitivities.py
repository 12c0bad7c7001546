"""How the end of a simulation depends on its beginning and on its parameters: derivatives through an ODE solver.

    python -m examples.sensitivities

Hares u and lynxes v: u' = (a - b v) u, v' = (-c + d u) v, stepped by the classical Runge-Kutta method. Differentiating
the steps themselves gives the exact derivative of what was computed: forward, a column of the Jacobian for each input;
in reverse, a row for each output. The same comes from the variational equations, which one would otherwise derive by
hand and solve beside (Hairer, Norsett, Wanner: Solving Ordinary Differential Equations I, section I.14).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import integrate

import tapeflow as tp

YEARS, STEPS = 10.0, 200
INPUTS = {"u(0)": 34.0, "v(0)": 5.9, "a": 0.55, "b": 0.028, "c": 0.80, "d": 0.024}
Array = np.ndarray[Any, np.dtype[np.float64]]
State = tuple[Any, ...]  # of numbers or 0-d tensors


def change(state: Any, a: Any, b: Any, c: Any, d: Any) -> State:
    """Births and deaths in a year (Lotka, 1925; Volterra, 1926)."""
    u, v = state
    return (a - b * v) * u, (d * u - c) * v


def runge_kutta(slope: Callable[[State], State], state: State, step: float) -> State:
    """The state a step later, by the classical method of order 4."""

    def moved(k: State, h: float) -> State:
        return tuple(x + h * y for x, y in zip(state, k, strict=True))

    k1 = slope(state)
    k2 = slope(moved(k1, step / 2))
    k3 = slope(moved(k2, step / 2))
    k4 = slope(moved(k3, step))
    each = zip(state, k1, k2, k3, k4, strict=True)
    return tuple(x + step / 6 * (p + 2.0 * q + 2.0 * r + s) for x, p, q, r, s in each)


def end(z: tp.Tensor, steps: int = STEPS) -> tp.Tensor:
    """Hares and lynxes after YEARS; z holds the six INPUTS."""
    state, parameters = (z[0], z[1]), [z[i] for i in range(2, 6)]
    for _ in range(steps):
        state = runge_kutta(lambda s: change(s, *parameters), state, YEARS / steps)
    return tp.stack(state)


# One input's tangent, one output's cotangent, as plans; vmap runs them for all at once.
column = tp.function(lambda z, tangent, steps: tp.jvp(lambda z: end(z, steps), (z,), (tangent,))[1])
row = tp.function(lambda z, cotangent, steps: tp.vjp(lambda z: end(z, steps), z)[1](cotangent)[0])


def forward(z: Array, steps: int = STEPS) -> Array:
    """The Jacobian, 2 by 6, from six columns."""
    columns: tp.Tensor = tp.vmap(lambda t: column(z, t, steps), out_axes=1)(np.eye(6))
    return columns.numpy()


def reverse(z: Array, steps: int = STEPS) -> Array:
    """The Jacobian, 2 by 6, from two rows."""
    rows: tp.Tensor = tp.vmap(lambda c: row(z, c, steps))(np.eye(2))
    return rows.numpy()


def variational(z: Array) -> tuple[Array, Array]:
    """End and Jacobian by SciPy: S' = (df/dstate) S + df/dinputs beside the state, both written by hand."""
    a, b, c, d = z[2:]

    def slope(_: float, y: Array) -> Array:
        u, v = y[:2]
        by_state = np.array([[a - b * v, -b * u], [d * v, d * u - c]])
        by_input = np.array([[0, 0, u, -u * v, 0, 0], [0, 0, 0, 0, -v, u * v]])
        return np.concatenate([change(y[:2], a, b, c, d), (by_state @ y[2:].reshape(2, 6) + by_input).ravel()])

    begin = np.concatenate([z[:2], np.eye(2, 6).ravel()])
    y = integrate.solve_ivp(slope, (0.0, YEARS), begin, method="DOP853", rtol=1e-12, atol=1e-12).y[:, -1]
    return y[:2], y[2:].reshape(2, 6)


def main() -> None:
    """What a percent more of each input does to hares and lynxes."""
    z = np.array(list(INPUTS.values()))
    hares, lynxes = end(tp.tensor(z)).tolist()
    there, back, (_, by_hand) = forward(z), reverse(z), variational(z)
    print(f"After {YEARS:.0f} years: {hares:.2f} thousand hares, {lynxes:.2f} thousand lynxes.")
    for name, value, change in zip(INPUTS, z, (0.01 * z * there).T, strict=True):
        print(f"1 % more {name + ',':5} {value:6.3f}: {change[0]:+.3f} hares, {change[1]:+.3f} lynxes")
    scale = np.max(np.abs(by_hand))
    print(f"Forward against reverse: {np.max(np.abs(there - back)) / scale:.0e} of the largest derivative;")
    print(f"against the variational equations: {np.max(np.abs(there - by_hand)) / scale:.0e}, the error of the steps.")


if __name__ == "__main__":
    main()
