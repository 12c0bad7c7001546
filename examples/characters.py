"""Write in the style of a text, character by character: a small transformer reads this project's documents.

    python -m examples.characters

Which character comes next? A network that is asked this at every place of a text learns spelling, words and habits of
its author, and can then write on by itself. The text is README.md, ARCHITECTURE.md and the documents in docs/; a tenth
at the end of it is never trained on. `Block` and `Transformer` are the whole of the network, attention included.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tapeflow as tp
from tapeflow import nn, optim

CONTEXT, BATCH = 48, 24  # characters that are looked at, pieces of text in a step
WIDTH, HEADS, BLOCKS = 64, 4, 2
STEPS, RATE = 1000, 3e-3
PICTURES = Path("out")
Array = np.ndarray[Any, np.dtype[Any]]


def read_documents() -> tuple[str, list[str]]:
    """The text, and the characters that are in it."""
    root = Path(__file__).resolve().parent.parent
    paths = [root / "README.md", root / "ARCHITECTURE.md", *sorted((root / "docs").glob("*.md"))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    return text, sorted(set(text))


class Block(nn.Module):
    """Attention to the characters before, then a step of thought at each place; both added to what was there."""

    def __init__(self, rng: tp.random.Generator) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.ask, self.offer, self.tell, self.join = (nn.Linear(WIDTH, WIDTH, generator=rng) for _ in range(4))
        self.think = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH, generator=rng), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH, generator=rng)
        )

    def forward(self, x: tp.Tensor, future: tp.Tensor) -> tp.Tensor:
        n, length, _ = x.shape

        def split(y: tp.Tensor) -> tp.Tensor:
            """(n, length, WIDTH) -> (n, HEADS, length, WIDTH / HEADS)."""
            return tp.permute_dims(tp.reshape(y, (n, length, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

        y = self.norm1(x)
        scores = split(self.ask(y)) @ split(self.offer(y)).mT * (HEADS / WIDTH) ** 0.5
        weights = tp.softmax(scores + future)  # -inf: what comes later is not looked at
        seen = tp.permute_dims(weights @ split(self.tell(y)), (0, 2, 1, 3))
        x = x + self.join(tp.reshape(seen, (n, length, WIDTH)))
        thought: tp.Tensor = self.think(self.norm2(x))
        return x + thought


class Transformer(nn.Module):
    """Numbers of characters (n, length) -> scores for the next one at each place (n, length, characters)."""

    future: tp.Tensor

    def __init__(self, characters: int, seed: int = 0) -> None:
        rng = tp.random.Generator(seed)
        self.character = nn.Embedding(characters, WIDTH, generator=rng)
        self.place = nn.Embedding(CONTEXT, WIDTH, generator=rng)
        self.blocks = nn.ModuleList(Block(rng) for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, characters, generator=rng)
        later = np.triu(np.full((CONTEXT, CONTEXT), -np.inf, np.float32), 1)
        self.register_buffer("future", tp.tensor(later), persistent=False)

    def forward(self, numbers: tp.Tensor) -> tp.Tensor:
        length = numbers.shape[1]
        x = self.character(numbers) + self.place.weight[:length]
        for block in self.blocks:
            x = block(x, self.future[:length, :length])
        scores: tp.Tensor = self.out(self.norm(x))
        return scores


def loss_of(model: Transformer, pieces: tp.Tensor) -> tp.Tensor:
    """The mean of -log p of each next character in pieces of text (n, length + 1)."""
    scores = model(pieces[:, :-1])
    return tp.cross_entropy(tp.reshape(scores, (-1, scores.shape[-1])), tp.reshape(pieces[:, 1:], (-1,)))


def pieces_at(numbers: Array, starts: Array) -> tp.Tensor:
    """The pieces of the text that begin at starts, as a tensor (n, CONTEXT + 1)."""
    return tp.tensor(numbers[starts[:, None] + np.arange(CONTEXT + 1)])


def train(
    numbers: Array,
    characters: int,
    steps: int = STEPS,
    seed: int = 0,
    progress: Callable[[range], Iterable[int]] = lambda steps: steps,
) -> tuple[Transformer, list[float], list[tuple[int, float]]]:
    """Train on nine tenths of the text; return the model, the loss of each step, and (step, loss) on the last tenth."""
    model = Transformer(characters, seed)
    rng = np.random.default_rng(seed)
    cut = len(numbers) * 9 // 10
    test = pieces_at(numbers, np.linspace(cut, len(numbers) - CONTEXT - 1, 50).astype(int))
    rate = optim.linear_warmup(optim.cosine(RATE, steps, final=RATE / 20), min(50, steps))
    adam = optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    losses, checks = list[float](), list[tuple[int, float]]()
    for step in progress(range(steps)):
        adam.zero_grad()
        loss = loss_of(model, pieces_at(numbers, rng.integers(cut - CONTEXT, size=BATCH)))
        loss.backward()
        optim.clip_grad_norm(model.parameters(), 1.0)
        adam.step()
        losses.append(loss.item())
        if step % 50 == 49:
            with tp.no_grad():
                checks.append((step + 1, loss_of(model, test).item()))
    return model, losses, checks


def write(model: Transformer, start: Sequence[int], count: int, seed: int = 0) -> list[int]:
    """Numbers of characters: start, and count more, each drawn as likely as the model says, a little bolder."""
    rng, numbers = np.random.default_rng(seed), list(start)
    with tp.no_grad():
        for _ in range(count):
            scores = model(tp.tensor([numbers[-CONTEXT:]]))[0, -1]
            likely = tp.softmax(scores.astype("float64") / 0.7).numpy()
            numbers.append(int(rng.choice(len(likely), p=likely / likely.sum())))
    return numbers


def draw(losses: list[float], checks: list[tuple[int, float]], characters: int) -> None:
    """The loss on both parts of the text, in bits per character."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    axes.plot(np.array(losses) / np.log(2), color="tab:blue", alpha=0.5, linewidth=0.8, label="training")
    steps, values = np.array(checks).T
    axes.plot(steps, values / np.log(2), color="tab:orange", marker=".", label="text it has never seen")
    axes.axhline(np.log2(characters), color="0.6", linestyle=":", label="guessing")
    axes.set(xlabel="step", ylabel="bits per character", title="Predicting the next character")
    axes.grid(alpha=0.3)
    axes.legend()
    PICTURES.mkdir(exist_ok=True)
    figure.savefig(PICTURES / "characters.png", dpi=110)


def main() -> None:
    """Train, say how well it predicts, let it write, draw."""
    from tqdm import tqdm

    tp.set_num_threads(1)  # the matrices are small: sharing them out costs more than it brings
    text, alphabet = read_documents()
    number = {character: i for i, character in enumerate(alphabet)}
    numbers = np.array([number[character] for character in text])
    start = time.perf_counter()
    model, losses, checks = train(numbers, len(alphabet), progress=partial(tqdm, unit=" steps", smoothing=0))
    seconds = time.perf_counter() - start
    size = sum(p.size for p in model.parameters())
    print(f"{size:,} parameters; {len(losses) * BATCH * CONTEXT / seconds:,.0f} characters a second.")
    print(f"{checks[-1][1] / np.log(2):.2f} bits per unseen character; guessing takes {np.log2(len(alphabet)):.2f}.")
    print("It writes:")
    print("".join(alphabet[i] for i in write(model, [number[c] for c in "A tensor "], 200)))
    draw(losses, checks, len(alphabet))
    print(f"Picture: {PICTURES / 'characters.png'}")


if __name__ == "__main__":
    main()
