"""What a plan on a device without float64 leaves to the host: the few numbers in it that steps are made of.

Rates and counts of optimizers are float64, and what a step needs of them is a few operations on a few numbers before
they are cast to the dtype of the parameters. Where all of them begin with constants and captured tensors, the host
computes them first.
"""

from __future__ import annotations

from tapeflow import _core
from tapeflow._core import Tensor
from tapeflow.plan.ir import CODES, CONST, FLOAT64, IR, N_ELEMENTWISE, TENSOR, Instr

SMALL = 4096  # elements of what the host computes
_MOVES = {CODES[name] for name in ("astype", "identity", "reshape", "permute_dims", "broadcast_to", "getitem")}


def split(ir: IR, fp64: bool) -> tuple[list[Instr], IR]:
    """The instructions for the host, in order, and the program of the rest: itself where the device has float64."""
    if fp64:
        return [], ir
    values = ir.values
    hosted: list[Instr] = []
    rest: list[Instr] = []
    known = {k for k in range(len(values)) if values[k].kind in (TENSOR, CONST) and values[k].size <= SMALL}
    for instr in ir.instrs:
        if (
            (0 <= instr.op < N_ELEMENTWISE or instr.op in _MOVES)
            and known.issuperset(instr.ins)
            and values[instr.out].size <= SMALL
            and any(values[k].dtype == FLOAT64 for k in (*instr.ins, instr.out))
        ):
            hosted.append(instr)
            known.add(instr.out)
        else:
            rest.append(instr)
    if not hosted:
        return [], ir
    found = ir.copy()
    found.instrs = rest
    return hosted, found


def compute(ir: IR, hosted: list[Instr]) -> dict[int, Tensor]:
    """The values that these instructions make."""
    env: dict[int, Tensor] = {}
    for instr in hosted:
        out = ir.values[instr.out]
        operands = [env[k] if k in env else ir.objects[k].detach() for k in instr.ins]
        env[instr.out] = _core.compute_op(instr.op, instr.params, operands, out.dtype, out.shape)
    return env
