"""Learn to read handwritten digits: a small network, its gradients and Adam.

    make demo        or        python -m examples.digits

The data are the 1,797 real digits of 8 x 8 pixels that scikit-learn ships. A quarter of them is never trained on.
Below, `network` and `train` are the whole of the learning; the rest shows the result.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import tapeflow as tp
from tapeflow import nn, optim

SIZES = (64, 128, 64, 10)  # pixels, two hidden layers, classes
EPOCHS, BATCH, RATE = 25, 32, 3e-3
NOISE = 0.2  # added to the pixels while training, so that the network cannot learn single images by heart
PICTURES = Path("out")
Array = np.ndarray[Any, np.dtype[Any]]


def digits() -> list[Array]:
    """The images, 0 to 1, and their labels, split class by class: x_train, x_test, y_train, y_test."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    labels = labels.astype(np.int64)
    return list(train_test_split(images, labels, test_size=0.25, stratify=labels, random_state=0))


def network(rng: tp.random.Generator) -> nn.Sequential:
    """Images (n, 64) -> scores (n, 10): the larger, the likelier the class. Weights begin as suits relu."""
    model = nn.Sequential()
    for n_in, n_out in zip(SIZES, SIZES[1:]):
        model.extend([nn.Linear(n_in, n_out), nn.ReLU()])
        nn.init.kaiming_normal(model[-2].weight, generator=rng)
        nn.init.zeros(model[-2].bias)
    return model[:-1]


def train(
    x_train: Array,
    y_train: Array,
    epochs: int = EPOCHS,
    seed: int = 0,
    progress: Callable[[range], Iterable[int]] = lambda steps: steps,
) -> tuple[nn.Sequential, list[float]]:
    """Train on NumPy arrays; return the model and the loss of each step. `progress` may wrap the steps."""
    rng = tp.random.Generator(seed)
    model = network(rng)
    per_epoch = len(x_train) // BATCH
    steps = epochs * per_epoch
    adam = optim.Adam(model.parameters(), lr=optim.linear(RATE, 0.05 * RATE, steps))
    losses = []
    x_all, y_all = tp.tensor(x_train), tp.tensor(y_train)
    for step in progress(range(steps)):
        k = step % per_epoch
        if k == 0:
            order = rng.permutation(len(x_train))
        batch = order[k * BATCH : (k + 1) * BATCH]
        x = x_all[batch]
        x = x + NOISE * rng.normal(shape=x.shape)
        loss = tp.cross_entropy(model(x), y_all[batch])  # forward: writes the tape
        adam.zero_grad()
        loss.backward()  # backward: reads it, last entry first
        adam.step()
        losses.append(loss.item())
    return model, losses


def predict(model: nn.Module, x: Array) -> Array:
    """The likeliest class of each image, as a NumPy array."""
    with tp.no_grad():
        return tp.argmax(model(tp.tensor(x)), axis=1).numpy()


def new_figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (7, 4.5)) -> tuple[Any, Any]:
    """A figure that needs no screen, and its axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=size, layout="constrained")


def save(figure: Any, name: str) -> None:
    """Write a figure into the folder of pictures."""
    PICTURES.mkdir(exist_ok=True)
    figure.savefig(PICTURES / name, dpi=110)


def draw_loss(losses: list[float], per_epoch: int) -> None:
    """The loss of each step and its mean over each epoch."""
    figure, axes = new_figure()
    epochs = np.arange(len(losses)) / per_epoch
    axes.semilogy(epochs, losses, color="tab:blue", alpha=0.3, linewidth=0.8, label="each step")
    means = np.reshape(losses, (-1, per_epoch)).mean(axis=1)
    axes.semilogy(np.arange(len(means)) + 0.5, means, color="tab:blue", marker=".", label="mean of the epoch")
    axes.set(xlabel="epoch", ylabel="cross entropy", title="Training loss")
    axes.grid(alpha=0.3)
    axes.legend()
    save(figure, "loss.png")


def draw_confusion(truth: Array, guess: Array) -> None:
    """How often each digit was read as each digit."""
    counts = np.zeros((10, 10), int)
    np.add.at(counts, (truth, guess), 1)
    figure, axes = new_figure(size=(5.6, 5.2))
    axes.imshow(np.sqrt(counts), cmap="Blues")
    for (row, column), n in np.ndenumerate(counts):
        if n:
            axes.text(column, row, n, ha="center", va="center", color="white" if n > counts.max() / 3 else "black")
    axes.set(xticks=range(10), yticks=range(10), xlabel="read as", ylabel="the digit", title="Test digits")
    save(figure, "confusion.png")


def draw_samples(images: Array, truth: Array, guess: Array) -> None:
    """Test digits with what the network reads; the wrong ones first, in red."""
    order = np.argsort(truth == guess, kind="stable")[:40]
    figure, axes = new_figure(4, 10, size=(9, 4.4))
    for ax, i in zip(axes.flat, order):
        ax.imshow(images[i].reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        right = guess[i] == truth[i]
        text = f"{guess[i]}" if right else f"{guess[i]}, is {truth[i]}"
        ax.set_title(text, color="black" if right else "tab:red", fontsize=10)
        ax.axis("off")
    save(figure, "samples.png")


def main() -> None:
    """Train, measure, draw, and say where to look."""
    from tqdm import tqdm

    x_train, x_test, y_train, y_test = digits()
    layers = " - ".join(map(str, SIZES))
    print(f"Training a {layers} network on {len(x_train):,} handwritten digits, testing on {len(x_test)} others.")
    start = time.perf_counter()
    model, losses = train(x_train, y_train, progress=lambda steps: tqdm(steps, unit=" steps", smoothing=0))
    seconds = time.perf_counter() - start

    guess = predict(model, x_test)
    correct = int((guess == y_test).sum())
    print(f"{len(losses) / seconds:,.0f} steps a second, {BATCH * len(losses) / seconds:,.0f} images a second.")
    print(f"Test accuracy: {correct / len(y_test):.1%} ({correct} of {len(y_test)} digits it has never seen).")
    draw_loss(losses, len(x_train) // BATCH)
    draw_confusion(y_test, guess)
    draw_samples(x_test, y_test, guess)
    print(f"Pictures: {', '.join(str(PICTURES / f'{name}.png') for name in ('loss', 'confusion', 'samples'))}")
    print("Read on: README.md for a tour, examples/digits.py for this program, ARCHITECTURE.md for how it works.")


if __name__ == "__main__":
    main()
