"""Programs from the world of static graphs: a session loop, a tf.function, a switch of mode, a folded constant.

    python -m examples.graphs

In those frameworks one first builds a graph and then runs it. Here one writes the function; `tp.function` records what
it does the first time, and replays that from then on. `session_loop` is TensorFlow 1's placeholders, variables,
optimizer and session; `traced` is TensorFlow 2's tf.function with an `if` on a value; `in_mode` has MindSpore's line
that switches a whole program between dynamic and static; `folded` lets the passes compute C = A + B before it runs.
"""

from contextlib import nullcontext

import numpy as np

import tapeflow as tp
from tapeflow import nn, optim

RATE, STEPS = 0.1, 200
X = np.linspace(-1.0, 1.0, 100, dtype=np.float32)[:, None]
Y = 2.0 * X + 10.0


def session_loop(steps: int = STEPS) -> tuple[list[float], float, float, int]:
    """TensorFlow 1: the losses, w and b at the end, and how many plans were made."""
    w = tp.tensor([[0.3]], requires_grad=True)  # tf.Variable
    b = tp.zeros(1, requires_grad=True)
    optimizer = optim.SGD([w, b], lr=RATE)  # tf.train.GradientDescentOptimizer

    @tp.function  # the graph; its arguments are the placeholders
    def train(x: tp.Tensor, y: tp.Tensor) -> tp.Tensor:
        loss = tp.mean(tp.square(x @ w + b - y))
        optimizer.zero_grad()
        loss.backward()  # optimizer.minimize(loss)
        optimizer.step()
        return loss

    losses = []
    for step in range(steps):
        loss = train(X, Y)  # session.run([train, loss], feed_dict={x: X, y: Y})
        losses.append(loss.item())
        if step % 50 == 0:
            print(f"step {step}: loss {loss:.4f}, w {w.item():.3f}, b {b.item():.3f}")
    return losses, w.item(), b.item(), len(train.plans)


def traced() -> list[list[float]]:
    """TensorFlow 2's tf.function: Python runs while it records, as `print` shows; both ways of the `if` are kept."""

    @tp.function
    def f(x: tp.Tensor) -> tp.Tensor:
        print(f"recording for shape {x.shape}")
        if tp.sum(x) > 0:
            return x * x
        return -x / 2

    inputs = ([1.0, 2.0], [3.0, 4.0], [-1.0, -2.0], [5.0, 6.0], [-3.0, -4.0], [1.0, 2.0, 3.0])
    return [f(tp.tensor(x)).tolist() for x in inputs]


def in_mode(static: bool, steps: int = STEPS) -> list[float]:
    """MindSpore: one line for the whole program says whether it runs as a graph. The losses, the same either way."""
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    rng = tp.random.Generator(0)
    for p in model.parameters():
        nn.init.normal(p, std=0.5, generator=rng)
    optimizer = optim.Adam(model.parameters(), lr=0.02)

    @tp.function
    def train_step(x: tp.Tensor, y: tp.Tensor) -> tp.Tensor:
        loss = tp.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    with nullcontext() if static else tp.eager():  # set_context(mode=GRAPH_MODE) or (mode=PYNATIVE_MODE)
        return [train_step(X, tp.sin(3.0 * tp.tensor(X))).item() for _ in range(steps)]


def folded() -> tuple[tp.Plan, tp.Plan]:
    """C = A + B, of constants, as it was recorded and after the passes: nothing is left to run."""

    def graph() -> tp.Tensor:
        a = tp.tensor([[1.0, 2.0], [3.0, 4.0]])
        b = tp.tensor([[10.0, 20.0], [30.0, 40.0]])
        return a + b

    return tp.freeze(graph, passes=()), tp.freeze(graph)


def main() -> None:
    """Run all four."""
    print("A session loop")
    _, w, b, plans = session_loop()
    print(f"y = {w:.3f} x + {b:.3f}, with {plans} plan\n\nA function with an if")
    for y in traced():
        print(y)
    dynamic, static = (in_mode(static) for static in (False, True))
    print(f"\nDynamic and static: losses {dynamic[0]:.4f} to {dynamic[-1]:.4f}, equal: {dynamic == static}")
    recorded, plan = folded()
    print(f"\nC = A + B: {len(recorded.instructions)} instruction recorded, {len(plan.instructions)} left")
    print(f"{plan.explain()}\nC =\n{plan()}")


if __name__ == "__main__":
    main()
