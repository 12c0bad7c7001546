"""Plans as pictures: text in the language of Graphviz, and what its `dot` program draws from it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tapeflow import _core
from tapeflow.errors import PlanError
from tapeflow.plan.grouping import Node
from tapeflow.plan.ir import CONST, DTYPES, GRAD, INPUT, IR, TENSOR, Instr, Value, name_of

_TEXT = (".dot", ".gv")
_DRAWN = (".svg", ".png", ".pdf")
_KINDS = {INPUT: "input", TENSOR: "tensor", GRAD: ".grad", CONST: "constant"}


def to_dot(ir: IR, nodes: list[Node]) -> str:
    """A box for each instruction, those that run as one step in a frame, views dashed; rounded: what comes and leaves.

    A constant that is one number is drawn wherever it is read.
    """
    lines = [
        "digraph plan {",
        "  rankdir=TB; node [shape=box, fontname=monospace, fontsize=10]; edge [color=gray40];",
    ]
    names = {id(instr): f"v{instr.out}" if instr.op >= 0 else f"guard{i}" for i, instr in enumerate(ir.instrs)}
    views = {id(instr) for instr in ir.instrs} - {id(instr) for node in nodes for instr in node.instrs}
    framed: set[int] = set()
    for n, node in enumerate(nodes):
        if len(node.instrs) > 1:
            boxes = [f"  {_box(ir, instr, names[id(instr)])}" for instr in node.instrs]
            lines += [f"  subgraph cluster{n} {{ style=rounded; color=gray;", *boxes, "  }"]
            framed.update(map(id, node.instrs))
    for instr in ir.instrs:
        if id(instr) not in framed:
            lines.append(_box(ir, instr, names[id(instr)], ", style=dashed" if id(instr) in views else ""))
    made = {instr.out for instr in ir.instrs}
    drawn: set[int] = set()

    def source(k: int, reader: str) -> str:
        """The node of a value, drawn here if no instruction makes it."""
        value = ir.values[k]
        if value.kind == CONST and value.size == 1:
            lines.append(f'  c{k}{reader} [label="{_core.number_in(ir.objects[k]):.6g}", shape=plain];')
            return f"c{k}{reader}"
        if k not in made and k not in drawn:
            drawn.add(k)
            lines.append(f'  v{k} [label="{_KINDS[value.kind]} %{k}\\n{_type(value)}", style=rounded];')
        return f"v{k}"

    for instr in ir.instrs:
        reader = names[id(instr)]
        lines += [f"  {source(k, reader)} -> {reader};" for k in dict.fromkeys(instr.ins)]
    for n, (label, k) in enumerate(_ends(ir)):
        lines.append(f'  end{n} [label="{label}", style="rounded,bold"];')
        lines.append(f"  {source(k, f'end{n}')} -> end{n};")
    return "\n".join([*lines, "}", ""])


def _ends(ir: IR) -> Iterator[tuple[str, int]]:
    """What leaves a run: in words, and the value."""
    number = {id(x): f" %{k}" for k, x in ir.objects.items() if ir.values[k].kind == TENSOR}
    for n, k in enumerate(ir.outputs):
        yield f"result {n}", k
    for tensor, k in ir.states:
        yield f"assign to{number.get(id(tensor), ' a tensor')}", k
    for tensor, grad in ir.grads:
        if grad is not None:
            yield f".grad of{number.get(id(tensor), ' a tensor')}", grad


def _type(value: Value) -> str:
    return f"{DTYPES[value.dtype]}{list(value.shape)}"


def _box(ir: IR, instr: Instr, name: str, style: str = "") -> str:
    kind = f"\\n{_type(ir.values[instr.out])}" if instr.op >= 0 else ""
    return f'  {name} [label="{name_of(instr.op)}{kind}"{style}];'


def render(text: str, form: str) -> bytes | None:
    """What `dot -T form` makes of the text; None where Graphviz is not installed."""
    program = shutil.which("dot")
    if program is None:
        return None
    done = subprocess.run([program, f"-T{form}"], input=text.encode(), capture_output=True, check=False)
    if done.returncode:
        raise PlanError(f"[to_dot] Graphviz could not draw the plan: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def write(text: str, path: str | os.PathLike[str]) -> None:
    """The text, or a picture of it, as the ending of the file says."""
    ending = Path(path).suffix.lower()
    if ending not in (*_TEXT, *_DRAWN):
        raise PlanError(f"[to_dot] cannot write {os.fspath(path)!r}. It may end in {', '.join((*_TEXT, *_DRAWN))}.")
    picture = text.encode() if ending in _TEXT else render(text, ending[1:])
    if picture is None:
        raise PlanError(
            f"[to_dot] {os.fspath(path)!r} needs the program `dot` of Graphviz, which is not on the PATH. Install "
            "Graphviz, or write a file that ends in .dot."
        )
    Path(path).write_bytes(picture)
