"""Learn to read handwritten digits: a small network, its gradients and Adam.

    make demo        or        python -m examples.digits

The data are the 1,797 real digits of 8 x 8 pixels that scikit-learn ships. A quarter of them is never trained on.
Below, `network` and `train` are the whole of the learning; the rest shows the result.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tapeflow as tp
from tapeflow import _core, nn, optim

SIZES = (64, 128, 64, 10)  # pixels, two hidden layers, classes
EPOCHS, BATCH, RATE = 25, 32, 3e-3
NOISE = 0.2  # added to the pixels while training, so that the network cannot learn single images by heart
APART = 1e-2  # of the losses of an epoch on another device, whose functions round differently
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


@dataclass
class Run:
    """What a training leaves: of each step the loss and how long it took; the memory and the plan behind it."""

    model: nn.Sequential
    losses: list[float]
    seconds: list[float]
    peak: int  # bytes of tapeflow's memory, at the most, beyond data, parameters and the state of Adam
    plan: tp.Plan | None


def train(
    x_train: Array,
    y_train: Array,
    epochs: int = EPOCHS,
    seed: int = 0,
    frozen: bool = False,
    progress: Callable[[range], Iterable[int]] = lambda steps: steps,
    device: str = "cpu",
    most: int | None = None,
) -> Run:
    """Train on NumPy arrays; frozen: with a plan of the step. `progress` may wrap the steps, at most `most`."""
    with tp.default_device(device):  # the other switch: weights, data and draws are there
        return _train(x_train, y_train, epochs, seed, frozen, progress, most)


def _train(
    x_train: Array, y_train: Array, epochs: int, seed: int, frozen: bool, progress: Any, most: int | None
) -> Run:
    rng = tp.random.Generator(seed)
    model = network(rng)
    per_epoch = len(x_train) // BATCH
    steps = epochs * per_epoch
    adam = optim.Adam(model.parameters(), lr=optim.linear(RATE, 0.05 * RATE, steps))
    x_all, y_all = tp.tensor(x_train), tp.tensor(y_train)

    def step(batch: tp.Tensor) -> tp.Tensor:
        x = x_all[batch]
        x = x + NOISE * rng.normal(shape=x.shape)
        loss = tp.cross_entropy(model(x), y_all[batch])  # forward: writes the tape
        adam.zero_grad()
        loss.backward()  # backward: reads it, last entry first
        adam.step()
        return loss

    run: Any = tp.function(step) if frozen else step  # the switch: recorded once, replayed from then on
    losses, seconds = [], []
    before = _core.pool_info()["in_use"]
    for i in progress(range(steps if most is None else most)):
        if i == 1:
            _core.reset_peak()  # the first step of a tp.function is an eager one that is written down
        k = i % per_epoch
        if k == 0:
            order = rng.permutation(len(x_train))
        batch = order[k * BATCH : (k + 1) * BATCH]
        start = time.perf_counter()
        losses.append(run(batch).item())
        seconds.append(time.perf_counter() - start)
    peak = _core.pool_info()["peak"] - before
    return Run(model, losses, seconds, peak, run.plans[0] if frozen else None)


def predict(model: nn.Module, x: Array) -> Array:
    """The likeliest class of each image, as a NumPy array."""
    with tp.no_grad():
        return tp.argmax(model(tp.tensor(x, device=next(model.parameters()).device)), axis=1).numpy()


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


def draw_plan(plan: tp.Plan) -> Path:
    """The program of a step: a picture where Graphviz is installed, otherwise the text that Graphviz reads."""
    PICTURES.mkdir(exist_ok=True)
    path = PICTURES / ("plan.svg" if shutil.which("dot") else "plan.dot")
    plan.to_dot(path)
    return path


def compare(eager: Run, frozen: Run) -> str:
    """What freezing changed, in words, and what it must not change: the losses."""
    plan = frozen.plan
    assert plan is not None
    if eager.losses != frozen.losses:
        raise SystemExit("The frozen step has other losses than the eager one: this is a fault, please report it.")
    slow, fast = (1e3 * float(np.median(run.seconds)) for run in (eager, frozen))
    return "\n".join(
        [
            f"Eager {slow:.3f} ms a step, frozen {fast:.3f} ms: {slow / fast:.2f} times as fast. To record and freeze "
            f"it took {1e3 * frozen.seconds[0]:.0f} ms, once.",
            f"The losses of all {len(eager.losses):,} steps are the same, to the last bit.",
            f"Memory beyond data, parameters and Adam's state: eager {eager.peak / 1e3:,.0f} kB at its peak; the plan "
            f"{plan.nbytes / 1e3:,.0f} kB, known",
            "before it runs (new state is kept beside the old one until the whole step has gone well).",
            *plan.explain().splitlines()[:3],  # the program before and after each pass
        ]
    )


def check_devices(x_train: Array, y_train: Array, losses: list[float]) -> Iterator[str]:
    """Train the first epoch on every other device: a line about each, with how far its losses are from the cpu's."""
    for device in tp.devices()[1:]:
        run = train(x_train, y_train, frozen=True, device=device, most=len(x_train) // BATCH)
        apart = max(abs(there / here - 1) for there, here in zip(run.losses, losses))
        if not apart < APART:
            raise SystemExit(
                f"On {device} ({device.name}) losses differ by {apart:.1e}: this is a fault, please report it."
            )
        yield (
            f"{device} ({device.name}): {1e3 * float(np.median(run.seconds)):.3f} ms a step; the losses of the first "
            f"epoch are the cpu's to {apart:.0e}."
        )


def main() -> None:
    """Train eagerly and frozen, measure, draw, and say where to look."""
    from tqdm import tqdm

    x_train, x_test, y_train, y_test = digits()
    layers = " - ".join(map(str, SIZES))
    print(f"Training a {layers} network on {len(x_train):,} handwritten digits, testing on {len(x_test)} others:")
    eager = train(x_train, y_train, progress=lambda steps: tqdm(steps, "eager "))
    frozen = train(x_train, y_train, frozen=True, progress=lambda steps: tqdm(steps, "frozen"))
    print(compare(eager, frozen))
    for line in check_devices(x_train, y_train, eager.losses):
        print(line)

    guess = predict(frozen.model, x_test)
    correct = int((guess == y_test).sum())
    print(f"Test accuracy: {correct / len(y_test):.1%} ({correct} of {len(y_test)} digits it has never seen).")
    draw_loss(frozen.losses, len(x_train) // BATCH)
    draw_confusion(y_test, guess)
    draw_samples(x_test, y_test, guess)
    assert frozen.plan is not None
    drawn = [*(PICTURES / f"{name}.png" for name in ("loss", "confusion", "samples")), draw_plan(frozen.plan)]
    print(f"Pictures: {', '.join(map(str, drawn))} (the plan of a step)")
    print("Read on: README.md for a tour, examples/digits.py for this program, ARCHITECTURE.md for how it works.")


if __name__ == "__main__":
    main()
