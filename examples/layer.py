"""Teach a network of a layer of your own to tell ten patterns apart, however noisy the picture.

    python -m examples.layer

Ten random patterns of 28 x 28 pixels each belong to a class; a picture is one of them under noise six times as strong.
Which was it? `Dense` is the layer: a class with two named parameters and a `forward`, nothing to register. Two of them
in a row make a model 784 - 64 - 10. Its input is made here, so nothing is downloaded.
"""

from collections.abc import Callable

import tapeflow as tp
from tapeflow import nn, optim

PIXELS, HIDDEN, CLASSES = 784, 64, 10
NOISE, STEPS, BATCH = 6.0, 150, 64


class Dense(nn.Module):
    """activation(x @ weight + bias), (n, n_in) -> (n, n_out)."""

    def __init__(
        self,
        n_in: int,
        n_out: int,
        activation: Callable[[tp.Tensor], tp.Tensor] | None = None,
        rng: tp.random.Generator | None = None,
    ) -> None:
        self.weight = nn.Parameter(nn.init.kaiming_normal((n_in, n_out), mode="fan_out", generator=rng))
        self.bias = nn.Parameter(tp.zeros(n_out))
        self.activation = activation

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        y = x @ self.weight + self.bias
        return y if self.activation is None else self.activation(y)


class Patterns:
    """Ten patterns, and noisy pictures of them."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = tp.random.Generator(seed)
        self.patterns = self.rng.normal(shape=(CLASSES, PIXELS))

    def pictures(self, count: int) -> tuple[tp.Tensor, tp.Tensor]:
        """Pictures (count, 784) and their classes (count,)."""
        labels = self.rng.integers(CLASSES, shape=(count,))
        return self.patterns[labels] + NOISE * self.rng.normal(shape=(count, PIXELS)), labels


def network(seed: int = 0) -> nn.Sequential:
    rng = tp.random.Generator(seed)
    return nn.Sequential(Dense(PIXELS, HIDDEN, tp.relu, rng), Dense(HIDDEN, CLASSES, rng=rng))


def train(model: nn.Module, data: Patterns, steps: int = STEPS) -> list[float]:
    """Train on new pictures in every step; return the loss of each."""
    adam = optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        x, labels = data.pictures(BATCH)
        adam.zero_grad()
        loss = tp.cross_entropy(model(x), labels)
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return losses


def accuracy(model: nn.Module, data: Patterns, count: int = 500) -> float:
    """The share of new pictures whose pattern is recognised."""
    x, labels = data.pictures(count)
    with tp.no_grad():
        return tp.mean((tp.argmax(model(x), axis=1) == labels).astype("float32")).item()


def main() -> None:
    """Train and say how often it is right."""
    model, data = network(), Patterns()
    for name, p in model.named_parameters():
        print(f"{name:8} {p.shape}")
    before = accuracy(model, data)
    losses = train(model, data)
    print(f"Loss {losses[0]:.2f} -> {losses[-1]:.2f} in {len(losses)} steps.")
    print(f"Recognised: {before:.0%} before, {accuracy(model, data):.0%} after.")


if __name__ == "__main__":
    main()
