"""Fit a physical law: find the damping of a swing from nine noisy measurements, and how it swings on afterwards.

    python -m examples.pendulum

A swing obeys u'' + 2 c u' + w^2 u = 0, with a damping c that nobody has measured. Its angle u was read nine times, with
noise, during the first seconds only. A network alone would draw any curve through nine points. Here the equation itself
is part of the loss: tapeflow differentiates the network in time (u', u''), and then the loss of that in the parameters
and in c, which is a parameter as well.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import tapeflow as tp
from tapeflow import nn, optim

END = 6.0  # seconds that the curve is wanted for
SEEN = 2.5  # seconds that were measured
FREQUENCY, DAMPING = 2.0, 0.25  # w, which is known, and c, which is to be found
NOISE = 0.03
STEPS = 3000
PICTURES = Path("out")
Array = np.ndarray[Any, np.dtype[np.float64]]


def swing(t: Array) -> Array:
    """The true angle at times t: it begins at 1 and at rest."""
    w = np.sqrt(FREQUENCY**2 - DAMPING**2)
    angle: Array = np.exp(-DAMPING * t) * (np.cos(w * t) + DAMPING / w * np.sin(w * t))
    return angle


def measurements(seed: int = 0) -> tuple[Array, Array]:
    """Nine times and noisy angles, columns."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0.0, SEEN, 9)[:, None]
    return t, swing(t) + NOISE * rng.normal(size=t.shape)


class Swing(nn.Module):
    """The angle as a function of time, and the damping."""

    def __init__(self, seed: int = 0) -> None:
        rng = tp.random.Generator(seed)
        self.curve = nn.Sequential(
            nn.Linear(1, 32, dtype="float64", generator=rng),
            nn.Tanh(),
            nn.Linear(32, 32, dtype="float64", generator=rng),
            nn.Tanh(),
            nn.Linear(32, 1, dtype="float64", generator=rng),
        )
        self.damping = nn.Parameter(np.zeros(()))

    def forward(self, t: tp.Tensor) -> tp.Tensor:
        angle: tp.Tensor = self.curve(t * (4.0 / END) - 2.0)  # times as numbers of a size that suits tanh
        return angle

    def violation(self, t: tp.Tensor) -> tp.Tensor:
        """How far the equation is from holding at each time."""
        velocity = tp.grad(lambda t: tp.sum(self(t)))  # each angle depends on its own time: the sum keeps them apart
        acceleration = tp.grad(lambda t: tp.sum(velocity(t)))
        left: tp.Tensor = acceleration(t) + 2.0 * self.damping * velocity(t) + FREQUENCY**2 * self(t)
        return left


def fit(
    t_seen: Array,
    u_seen: Array,
    physics: bool = True,
    steps: int = STEPS,
    progress: Callable[[range], Iterable[int]] = lambda steps: steps,
) -> tuple[Swing, list[float]]:
    """Train on the measurements and, with physics, on the equation; return the model and the damping at each step."""
    model = Swing()
    adam = optim.Adam(model.parameters(), lr=optim.cosine(1e-2, steps, final=1e-4))
    t_data, u_data = tp.tensor(t_seen), tp.tensor(u_seen)
    t_law = tp.linspace(0.0, END, 40, dtype="float64").reshape(40, 1)
    path = []
    for _ in progress(range(steps)):
        adam.zero_grad()
        loss = tp.mse_loss(model(t_data), u_data)
        if physics:
            loss = loss + 0.02 * tp.mean(model.violation(t_law) ** 2)
        loss.backward()
        optim.clip_grad_norm(model.parameters(), 1.0)
        adam.step()
        path.append(model.damping.item())
    return model, path


def angles(model: Swing, t: Array) -> Array:
    """The model's curve at times t, as NumPy arrays."""
    with tp.no_grad():
        angle: Array = model(tp.tensor(t)).numpy()
        return angle


def draw(t_seen: Array, u_seen: Array, with_law: Swing, without_law: Swing, path: list[float]) -> None:
    """The curves against the truth, and the damping on its way."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), width_ratios=(3, 2), layout="constrained")
    t = np.linspace(0.0, END, 300)[:, None]
    left.plot(t, swing(t), color="0.7", linewidth=5, label="the truth")
    left.plot(t, angles(without_law, t), color="tab:orange", linestyle="--", label="network alone")
    left.plot(t, angles(with_law, t), color="tab:blue", label="network and equation")
    left.plot(t_seen, u_seen, "ko", label="measured")
    left.set(xlabel="time in s", ylabel="angle", title="A damped swing", ylim=(-1.5, 1.5))
    left.legend()
    right.axhline(DAMPING, color="0.7", linewidth=5, label="the truth")
    right.plot(path, color="tab:blue", label="found")
    right.set(xlabel="step", ylabel="damping in 1/s", title="The unknown in the equation")
    right.legend()
    PICTURES.mkdir(exist_ok=True)
    figure.savefig(PICTURES / "pendulum.png", dpi=110)


def main() -> None:
    """Fit with and without the law, say what was found, draw."""
    from tqdm import tqdm

    t_seen, u_seen = measurements()
    start = time.perf_counter()
    model, path = fit(t_seen, u_seen, progress=lambda steps: tqdm(steps, unit=" steps", smoothing=0))
    seconds = time.perf_counter() - start
    alone, _ = fit(t_seen, u_seen, physics=False)
    later = np.linspace(SEEN, END, 100)[:, None]
    print(f"{STEPS / seconds:,.0f} steps a second, each with second derivatives in time and gradients of those.")
    print(f"Damping found: {path[-1]:.3f} per second; the truth is {DAMPING}.")
    for name, m in (("with the equation", model), ("without it", alone)):
        error = np.sqrt(np.mean((angles(m, later) - swing(later)) ** 2))
        print(f"Error of the angle after the last measurement, {name}: {error:.3f}")
    draw(t_seen, u_seen, model, alone, path)
    print(f"Picture: {PICTURES / 'pendulum.png'}")


if __name__ == "__main__":
    main()
