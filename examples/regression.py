"""Find the line behind noisy points, three times: as one writes it in TensorFlow 2, in PyTorch, and in small pieces.

    python -m examples.regression

Given points near y = 3 x + 2, which slope and intercept made them? Each of the three functions walks downhill on the
mean squared error and finds the same two numbers. Whoever comes from another framework finds its habits here:
`with_a_tape` has TensorFlow's GradientTape and assign_sub, `with_backward` PyTorch's .grad and zero_(), and
`in_micro_batches` adds the gradients of parts of the data up, as one does when all of it does not fit at once.
"""

import numpy as np

import tapeflow as tp

SLOPE, INTERCEPT, NOISE = 3.0, 2.0, 0.1
STEPS, RATE = 200, 0.5


def points(count: int = 120, seed: int = 0) -> tuple[tp.Tensor, tp.Tensor]:
    """x and y of noisy points near the line, columns."""
    rng = tp.random.Generator(seed)
    x = rng.uniform(-1.0, 1.0, (count, 1))
    return x, SLOPE * x + INTERCEPT + NOISE * rng.normal(shape=(count, 1))


def exact(x: tp.Tensor, y: tp.Tensor) -> tuple[float, float]:
    """What least squares says without any steps, by NumPy: the answer that all three must come to."""
    slope, intercept = np.polyfit(x.numpy()[:, 0].astype(float), y.numpy()[:, 0].astype(float), 1)
    return float(slope), float(intercept)


def with_a_tape(x: tp.Tensor, y: tp.Tensor, steps: int = STEPS) -> tuple[float, float]:
    """TensorFlow's way: record under a tape, ask it for gradients, subtract them in place."""
    w, b = tp.zeros((1, 1)), tp.zeros(1)
    for step in range(steps):
        with tp.Tape(watch=[w, b]) as tape:
            loss = tp.mean(tp.square(x @ w + b - y))
        dw, db = tape.gradient(loss, [w, b])
        w.assign_sub(RATE * dw)
        b.assign_sub(RATE * db)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.numpy():.4f}, w {w.numpy()[0, 0]:.3f}")
    return w.item(), b.item()


def with_backward(x: tp.Tensor, y: tp.Tensor, steps: int = STEPS) -> tuple[float, float]:
    """PyTorch's way: parameters require gradients, backward adds into .grad, which is used and set to zero."""
    w, b = tp.zeros((1, 1), requires_grad=True), tp.zeros(1, requires_grad=True)
    for _ in range(steps):
        loss = ((x @ w + b - y) ** 2).mean()
        loss.backward()
        with tp.no_grad():
            for p in (w, b):
                assert p.grad is not None
                p -= RATE * p.grad
                p.grad.zero_()
    return w.item(), b.item()


def in_micro_batches(x: tp.Tensor, y: tp.Tensor, parts: int = 4, steps: int = STEPS) -> tuple[float, float]:
    """A part of the points at a time: gradients add up in .grad until all parts are through, then one step."""
    w, b = tp.zeros((1, 1), requires_grad=True), tp.zeros(1, requires_grad=True)
    size = len(x) // parts
    for _ in range(steps):
        for k in range(parts):
            rows = slice(k * size, (k + 1) * size)
            (tp.mse_loss(x[rows] @ w + b, y[rows]) / parts).backward()  # a mean of means: divided by their number
        with tp.no_grad():
            for p in (w, b):
                assert p.grad is not None
                p.assign_sub(RATE * p.grad)
                p.zero_grad()
    return w.item(), b.item()


def main() -> None:
    """Fit in all three ways and compare with the exact answer."""
    x, y = points()
    for fit in (with_a_tape, with_backward, in_micro_batches, exact):
        slope, intercept = fit(x, y)
        print(f"{fit.__name__.replace('_', ' '):16}  y = {slope:.4f} x + {intercept:.4f}")


if __name__ == "__main__":
    main()
