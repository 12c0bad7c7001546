"""Where a replay spends its time: what `Plan.profile` returns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from tapeflow.plan.grouping import Node
from tapeflow.plan.ir import DTYPES, IR, N_ELEMENTWISE, Instr, name_of
from tapeflow.plan.schedule import Layout

_REDUCTIONS = ("sum", "mean", "max", "min", "logsumexp", "softmax", "log_softmax", "cross_entropy")


class Step(NamedTuple):
    """What runs as one: ops in order, dtype and shape of its results, seconds, bytes moved, arithmetic, source line."""

    ops: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    seconds: float
    nbytes: int
    flops: int
    line: str

    @property
    def name(self) -> str:
        """The ops by how many there are of each."""
        return " ".join(f"{n} {op}" if n > 1 else op for op, n in Counter(self.ops).most_common())


@dataclass(frozen=True)
class Profile:
    """Steps of a plan in the order in which they run, each with its least time over some runs.

    Bytes are those of a step's operands and of the results that it leaves in memory, flops as `Plan.flops` counts them.
    print() shows a table.
    """

    steps: list[Step]

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return sum(step.seconds for step in self.steps)

    def __str__(self) -> str:
        total = self.seconds or 1.0
        rows = [("", "step", "result", "us", "share", "GB/s", "GFLOP/s", "line")]
        for n, s in enumerate(self.steps):
            took = max(s.seconds, 1e-9)
            rows.append(
                (
                    str(n),
                    s.name if len(s.name) <= 48 else s.name[:45] + "...",
                    f"{s.dtype}{list(s.shape)}",
                    f"{s.seconds * 1e6:.2f}",
                    f"{100 * s.seconds / total:.1f} %",
                    f"{s.nbytes / took / 1e9:.2f}",
                    f"{s.flops / took / 1e9:.2f}",
                    s.line,
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        left = (1, 2, 7)  # columns of words
        lines = [
            "  ".join(x.ljust(w) if i in left else x.rjust(w) for i, (x, w) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        ]
        return "\n".join([*(line.rstrip() for line in lines), f"{len(self.steps)} steps, {self.seconds * 1e6:.1f} us"])


def flops_of(ir: IR, instr: Instr) -> int:
    """Arithmetic operations: 2 m n k of a product, one an element of an elementwise op or a sum."""
    values = ir.values
    if instr.op < 0:
        return 0
    name = name_of(instr.op)
    if name == "matmul":
        return 2 * values[instr.out].size * values[instr.ins[0]].shape[-1]
    if name in _REDUCTIONS:
        return values[instr.ins[0]].size
    return values[instr.out].size if instr.op < N_ELEMENTWISE else 0


def profile(ir: IR, nodes: list[Node], layout: Layout, node_of: list[int], seconds: list[float]) -> Profile:
    """The times of linked instructions, node_of says of which node, as steps."""
    times = [0.0] * (len(nodes) + 1)
    for n, took in zip(node_of, seconds, strict=True):
        times[n] += took
    steps = [_step(ir, node, layout, times[n]) for n, node in enumerate(nodes)]
    copied = sum(ir.values[k].nbytes for k, _ in layout.copies)
    if layout.copies:
        steps.append(Step(("copy",) * len(layout.copies), "", (), times[len(nodes)], 2 * copied, 0, ""))
    return Profile(steps)


def _step(ir: IR, node: Node, layout: Layout, seconds: float) -> Step:
    values = ir.values
    made = {instr.out for instr in node.instrs}
    moved = {k for instr in node.instrs for k in instr.ins} - made
    moved |= {k for k in made if k in layout.offsets or k in layout.fresh}
    last = node.instrs[-1]
    out = values[last.out] if last.op >= 0 else None
    file, number, _ = ir.lines[node.instrs[0].line]
    return Step(
        tuple(name_of(instr.op) for instr in node.instrs),
        DTYPES[out.dtype] if out else "",
        out.shape if out else (),
        seconds,
        sum(values[k].nbytes for k in moved),
        sum(flops_of(ir, instr) for instr in node.instrs),
        f"{file}:{number}",
    )
