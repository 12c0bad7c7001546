"""What a plan on a device leaves to the host: the few numbers that steps are made of.

Rates and counts of optimizers are float64 and stay on the cpu, and what a step needs of them is a few operations on a
few numbers before they are cast to the dtype of the parameters; so are Python's floats as arguments. Where these begin
with constants, arguments and captured tensors of the cpu, the host computes them first: on devices without float64, and
where other captured tensors are on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

from tapeflow import _core
from tapeflow._core import Tensor
from tapeflow.plan.ir import CODES, CONST, FLOAT64, IR, N_ELEMENTWISE, TENSOR, Instr

SMALL = 4096  # elements of what the host computes
_MOVES = {CODES[name] for name in ("astype", "identity", "reshape", "permute_dims", "broadcast_to", "getitem")}


def split(ir: IR, fp64: bool) -> tuple[list[Instr], IR]:
    """The instructions for the host, in order, and the program of the rest. fp64: whether the device has it."""
    values = ir.values
    captured = [k for k, x in ir.objects.items() if values[k].kind == TENSOR]
    away = any(_core.place_of(ir.objects[k]) is not None for k in captured)
    if fp64 and not away:
        return [], ir
    known = {
        k for k, x in ir.objects.items()
        if values[k].kind in (TENSOR, CONST) and values[k].size <= SMALL and _core.place_of(x) is None
    }  # fmt: skip
    known |= {k for k in ir.inputs if not fp64 and values[k].dtype == FLOAT64 and not values[k].shape}
    changing = known.intersection(captured)  # what is made of captured tensors of the cpu
    hosted: list[Instr] = []
    rest: list[Instr] = []
    for instr in ir.instrs:
        wide = any(values[k].dtype == FLOAT64 for k in (*instr.ins, instr.out))
        wanted = (wide and not fp64) or (away and not changing.isdisjoint(instr.ins))
        possible = (0 <= instr.op < N_ELEMENTWISE or instr.op in _MOVES) and values[instr.out].size <= SMALL
        if wanted and possible and known.issuperset(instr.ins):
            hosted.append(instr)
            known.add(instr.out)
            changing.add(instr.out)
        else:
            rest.append(instr)
    if not hosted:
        return [], ir
    found = ir.copy()
    found.instrs = rest
    return hosted, found


def compute(ir: IR, hosted: list[Instr], inputs: Sequence[Tensor]) -> dict[int, Tensor]:
    """The values that these instructions make."""
    env: dict[int, Tensor] = {}
    given = dict(zip(ir.inputs, inputs, strict=True))
    for instr in hosted:
        out = ir.values[instr.out]
        operands = [env[k] if k in env else (given[k] if k in given else ir.objects[k]).detach() for k in instr.ins]
        env[instr.out] = _core.compute_op(instr.op, instr.params, operands, out.dtype, out.shape)
    return env
