"""Where a plan's non-finite result comes from: the program op by op, under trace_nan."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapeflow import _core
from tapeflow._core import Tensor
from tapeflow.nonfinite import check_op, made
from tapeflow.plan.ir import ACCUMULATE, DTYPES, GRAD, IR, N_ELEMENTWISE, RANDOM, Instr, name_of
from tapeflow.random import Generator


def find(ir: IR, inputs: list[Tensor], name: str) -> None:
    """Raise NonFiniteError for the op that a result, state or .grad which is not finite goes back to; return where
    all of them go back to inputs, captured tensors or constants that were not finite.

    Only what a result depends on is blamed: a partial that is infinite, and multiplied by 0, is nobody's fault.
    """
    tracing = _core.set_tracing(None)
    try:
        with _core.no_grad():
            values = _run(ir, inputs)
    finally:
        _core.set_tracing(tracing)
    arrays = {k: _core.array_of(t) for k, t in values.items() if t is not None}
    made_by = {instr.out: instr for instr in ir.instrs if instr.op >= 0}
    todo = [k for k in ir.results() if _bad(arrays.get(k))]
    seen = set(todo)
    guilty: list[tuple[int, Instr]] = []
    while todo:
        k = todo.pop()
        instr = made_by.get(k)
        if instr is None:
            continue
        operands = [arrays[i] for i in instr.ins if i in arrays]
        if made(instr.op < N_ELEMENTWISE, arrays[k], operands) is not None:
            guilty.append((k, instr))
        for i in instr.ins:
            if i not in seen and _bad(arrays.get(i)):
                seen.add(i)
                todo.append(i)
    if guilty:
        order = {instr.out: n for n, instr in enumerate(ir.instrs)}
        k, instr = min(guilty, key=lambda one: order[one[0]])
        check_op(
            name_of(instr.op),
            instr.op < N_ELEMENTWISE,
            arrays[k],
            [arrays.get(i) for i in instr.ins],
            ir.lines[instr.line][:2],
        )


def _bad(x: np.ndarray | None) -> bool:
    return x is not None and x.dtype.kind == "f" and not np.isfinite(x).all()


def _run(ir: IR, inputs: list[Tensor]) -> dict[int, Tensor | None]:
    """Every value of a run; None: the .grad that is empty."""
    found: dict[int, Tensor | None] = dict(zip(ir.inputs, inputs, strict=True))
    for k, t in ir.objects.items():
        if k not in found:
            found[k] = t.grad if ir.values[k].kind == GRAD else t
    values = {k: None if t is None else _core.move(t.detach(), None) for k, t in found.items()}
    for instr in ir.instrs:
        if instr.op < 0:
            continue
        out = ir.values[instr.out]
        xs: list[Any] = [values[i] for i in instr.ins]
        if instr.op == RANDOM:
            values[instr.out] = _draw(ir, instr)
        elif instr.op == ACCUMULATE:
            values[instr.out] = xs[1] if xs[0] is None else _core.add(xs[0], xs[1])
        elif len(xs) > 16:  # of a concat
            values[instr.out] = _core.apply_op(instr.op, instr.params, xs, out.dtype, out.shape)
        else:
            values[instr.out] = _core.compute_op(instr.op, instr.params, xs, out.dtype, out.shape)
    return values


def _draw(ir: IR, instr: Instr) -> Tensor:
    kind, stretch, place, *limits = instr.params
    generator, absolute, seed, first = ir.generators[stretch][:4]
    if not absolute:
        seed, first = generator.state
    own = Generator(0)  # the run's generators stay as they are
    own._write(seed, (first + place) % (1 << 64))
    out = ir.values[instr.out]
    more = (limits[0] % (1 << 64), limits[1]) if limits else ()
    with _core.aside():
        return _core.random_fill(own, _core.draw_kind(kind), out.shape, DTYPES[out.dtype], *more)
