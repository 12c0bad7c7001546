"""Steps of a plan for its profile: what each computes and moves, beside the times that were measured."""

from __future__ import annotations

from collections.abc import Container

from tapeflow import _core, _roofline
from tapeflow.errors import PlanError
from tapeflow.plan.grouping import Node
from tapeflow.plan.ir import CODES, DTYPES, IR, Instr, name_of
from tapeflow.plan.schedule import Layout
from tapeflow.profiling import Profile, Step

_TAKE = CODES["take"]


def flops_of(ir: IR, instr: Instr) -> int:
    """Arithmetic operations of one instruction."""
    values = ir.values
    if instr.op < 0:
        return 0
    out = values[instr.out]
    ins = [values[k].shape for k in instr.ins]
    # a comparison is computed in the dtype of what it compares
    dtype = max([out.dtype, *(values[k].dtype for k in instr.ins)])
    return _roofline.flops(name_of(instr.op), ins, out.shape, DTYPES[dtype])


def profile(ir: IR, nodes: list[Node], layout: Layout, node_of: list[int], seconds: list[float], name: str) -> Profile:
    """The times of linked instructions, node_of says of which node, as steps."""
    times = [0.0] * (len(nodes) + 1)
    for n, took in zip(node_of, seconds, strict=True):
        times[n] += took
    steps = steps_of(ir, nodes, {*layout.offsets, *layout.fresh}, times[: len(nodes)])
    start = sum(times[: len(nodes)])
    copied = sum(ir.values[k].nbytes for k, _ in layout.copies)
    if layout.copies:
        steps.append(Step(("copy",) * len(layout.copies), "", (), times[len(nodes)], 2 * copied, 0, "", start))
    return Profile(steps, name, _core.get_num_threads())


def check_repeats(repeats: int) -> None:
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise PlanError(f"[plan.profile] repeats must be an int of at least 1, got {repeats!r}.")


def steps_of(ir: IR, nodes: list[Node], stored: Container[int], seconds: list[float]) -> list[Step]:
    """Nodes and their times as steps; stored: the values that are made in memory, not within a group."""
    steps = []
    start = 0.0
    for node, took in zip(nodes, seconds, strict=True):
        steps.append(_step(ir, node, stored, took, start))
        start += took
    return steps


def _step(ir: IR, node: Node, stored: Container[int], seconds: float, start: float) -> Step:
    values = ir.values
    made = {instr.out for instr in node.instrs}
    moved = {k for instr in node.instrs for k in instr.ins} - made
    moved |= {k for k in made if k in stored}
    nbytes = sum(values[k].nbytes for k in moved)
    last = node.instrs[-1]
    out = values[last.out] if last.op >= 0 else None
    if out and last.op == _TAKE:  # which reads what it takes
        nbytes -= max(0, values[last.ins[0]].nbytes - out.nbytes)
    file, number, _ = ir.lines[node.instrs[0].line]
    return Step(
        tuple(name_of(instr.op) for instr in node.instrs),
        DTYPES[out.dtype] if out else "",
        out.shape if out else (),
        seconds,
        nbytes,
        sum(flops_of(ir, instr) for instr in node.instrs),
        f"{file}:{number}",
        start,
    )
