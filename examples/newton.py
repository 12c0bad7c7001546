"""Newton's method with a frozen Hessian: correct digits double from step to step.

    python -m examples.newton

What is minimized is the energy of a chain of masses that hang between two points, each pair held by a spring that
stiffens as it is stretched. Value, gradient and Hessian are one plan, recorded at the first step. Near the minimum an
error e becomes some constant times e squared: that is what exact second derivatives buy, and what differences lose.
"""

from typing import Any

import numpy as np

import tapeflow as tp

MASSES = 30
Array = np.ndarray[Any, np.dtype[np.float64]]


def energy(heights: tp.Tensor) -> tp.Tensor:
    """Of masses in a row of length 1, whose ends are fixed at height 0: springs, then gravity."""
    ends = tp.zeros(1, dtype="float64")
    line = tp.concat([ends, heights, ends])
    gap = 1.0 / (heights.shape[0] + 1)
    slope = (line[1:] - line[:-1]) / gap
    return gap * tp.sum(0.5 * slope**2 + 0.25 * slope**4) + gap * tp.sum(heights)


@tp.function
def derivatives(x: tp.Tensor) -> tuple[tp.Tensor, tp.Tensor, tp.Tensor]:
    """Value, gradient and Hessian in one plan."""
    value, gradient = tp.value_and_grad(energy)(x)
    return value, gradient, tp.hessian(energy)(x)


def minimize(masses: int = MASSES, steps: int = 20) -> tuple[Array, list[float], list[Array]]:
    """Where the chain hangs, the largest component of the gradient at each step, and all points on the way."""
    x = np.zeros(masses)
    sizes, path = [], [x]
    for _ in range(steps):
        _, gradient, hessian = map(np.asarray, derivatives(x))
        sizes.append(float(np.max(np.abs(gradient))))
        if sizes[-1] < 1e-15:
            break
        x = x - np.linalg.solve(hessian, gradient)
        path.append(x)
    return x, sizes, path


def main() -> None:
    """Print the gradient at each step, and the distance to where the chain comes to hang."""
    x, sizes, path = minimize()
    for step, (size, point) in enumerate(zip(sizes, path, strict=True)):
        print(f"step {step}: largest gradient {size:.1e}, off by {np.max(np.abs(point - x)):.1e}")
    print(f"The chain hangs down to {x.min():.6f}; one recording: {len(derivatives.plans)} plan.")


if __name__ == "__main__":
    main()
