"""Draws the pictures of docs/how-it-works.md from real tapes: python tools/draw_tape.py.

A program is run under a Tape; the entries, their operands, values and gradients are what the tape and its backward say.
A test compares the files in docs/pictures with text().
"""

import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import tapeflow as tp

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
STEP, TOP, LEFT = 34, 58, 96  # pixels: between rows, above the first, left of the first box
WIDTHS = (250, 170, 150)  # of the columns: entry, value, gradient
INK, FORWARD, BACKWARD, PAPER = "#222", "#1f77b4", "#c44e20", "#fbfaf7"


def formula(a: tp.Tensor, b: tp.Tensor, c: tp.Tensor) -> list[tp.Tensor]:
    """F = 3 (a + b c), every intermediate result."""
    product = b * c
    total = a + product
    return [product, total, 3 * total]


def layer(x: tp.Tensor, w: tp.Tensor, b: tp.Tensor) -> list[tp.Tensor]:
    """The sum of the squares of a layer's outputs."""
    product = x @ w
    shifted = product + b
    output = tp.tanh(shifted)
    squares = tp.square(output)
    return [product, shifted, output, squares, tp.sum(squares)]


def number(t: tp.Tensor) -> str:
    return f"{t.item():g}"


def extents(t: tp.Tensor) -> str:
    return " x ".join(map(str, t.shape)) or "0-d"


Program = Callable[..., list[tp.Tensor]]
PICTURES: dict[str, tuple[Program, dict[str, tp.Tensor], Callable[[tp.Tensor], str], Sequence[str]]] = {
    "formula": (
        formula,
        {"a": tp.tensor(5.0), "b": tp.tensor(3.0), "c": tp.tensor(2.0)},
        number,
        ("the tape of F = 3 (a + b c)", "value", "dF / d(it)"),
    ),
    "layer": (
        layer,
        {"x": tp.ones((64, 784)), "w": tp.zeros((784, 10)), "b": tp.zeros(10)},
        extents,
        ("the tape of a layer", "shape of the value", "of its gradient"),
    ),
}


def entries(program: Program, inputs: dict[str, tp.Tensor]) -> list[tuple[str, list[str], tp.Tensor, tp.Tensor]]:
    """Each input, then each entry: what was computed, from which rows' names, the value, the gradient of the last."""
    with tp.Tape(persistent=True, watch=list(inputs.values())) as tape:
        results = program(*inputs.values())
    lines = re.findall(r"^%(\d+) = (\w+)\(([^)]*)\)", str(tape), re.M)
    assert len(lines) == len(results), "a program must return every intermediate result"
    operands = {int(n) for _, _, text in lines for n in re.findall(r"%(\d+)", text)}
    leaves = sorted(operands - {int(line[0]) for line in lines})  # in the order in which they were watched
    names = {f"%{n}": name for n, name in zip(leaves, inputs, strict=True)}
    names |= {f"%{line[0]}": f"%{k}" for k, line in enumerate(lines, 1)}
    rows: list[tuple[str, list[str]]] = [(name, []) for name in inputs]
    for k, (_, op, text) in enumerate(lines, 1):
        arguments = [names.get(operand, operand) for operand in text.split(", ")]
        rows.append((f"%{k} = {op}({', '.join(arguments)})", arguments))
    tensors = [*inputs.values(), *results]
    gradients = tape.gradient(results[-1], tensors)
    return [(*row, value, gradient) for row, value, gradient in zip(rows, tensors, gradients)]


def text(name: str) -> str:
    """A picture as SVG: a row for each input and entry, curves from operands to results."""
    program, inputs, show, titles = PICTURES[name]
    rows = entries(program, inputs)
    place = {row[0].split(" = ")[0]: k for k, row in enumerate(rows)}
    width, height = LEFT + sum(WIDTHS) + 60, TOP + STEP * len(rows) + 8
    columns = [LEFT + 10, LEFT + WIDTHS[0] + 20, LEFT + WIDTHS[0] + WIDTHS[1] + 30]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' font-family="monospace" font-size="13" fill="{INK}">',
        f"<title>{escape(titles[0])}</title>",
        f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{FORWARD}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
    ]
    for x, title, color in zip(columns, titles, (INK, FORWARD, BACKWARD)):
        parts.append(f'<text x="{x}" y="24" font-weight="bold" fill="{color}">{escape(title)}</text>')
    forward, backward = columns[1] - 10, columns[2] + WIDTHS[2] - 6
    middle = [TOP + STEP * k for k in range(len(rows))]
    for k, (entry, operands, value, gradient) in enumerate(rows):
        y = middle[k]
        dash = "" if operands else ' stroke-dasharray="4 3"'
        parts.append(
            f'<rect x="{LEFT}" y="{y - 15}" width="{WIDTHS[0]}" height="27" rx="3" fill="white" stroke="{INK}"{dash}/>'
        )
        for x, word, color in zip(columns, (entry, show(value), show(gradient)), (INK, FORWARD, BACKWARD)):
            parts.append(f'<text x="{x}" y="{y + 3}" fill="{color}">{escape(word)}</text>')
        for operand in dict.fromkeys(operands):
            if operand in place:
                y0, bend = middle[place[operand]], LEFT - 10 - 16 * (k - place[operand])
                parts.append(
                    f'<path d="M{LEFT} {y0}C{bend} {y0} {bend} {y} {LEFT - 2} {y - 2}" fill="none"'
                    f' stroke="{FORWARD}" marker-end="url(#tip)"/>'
                )
    for x, color, start, end in ((forward, FORWARD, 0, -1), (backward, BACKWARD, -1, 0)):
        y0, y1 = middle[start], middle[end]
        sign = 1 if y1 > y0 else -1
        parts.append(
            f'<path d="M{x} {y0}V{y1}m-4 {-7 * sign}l4 {7 * sign}l4 {-7 * sign}" fill="none" stroke="{color}"/>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        (FOLDER / f"{name}.svg").write_text(text(name), encoding="utf-8")
