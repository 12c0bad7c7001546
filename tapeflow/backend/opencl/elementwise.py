"""Every elementwise op of the table, and astype: groups of one step."""

from __future__ import annotations

from functools import cache
from typing import Any

from tapeflow import ops
from tapeflow.backend.opencl.fused import ASTYPE, Body, Step, run_op
from tapeflow.backend.opencl.table import implements


@cache
def body(op: int, inputs: tuple[int, ...], dtype: int) -> Body:
    """The one step of an op of operands of these dtypes, whose result is of this dtype."""
    if op != ASTYPE and _entries[op].kind == "compare":
        dtype = max(inputs)
    return Body(inputs, (), (Step(op, dtype, tuple(range(len(inputs)))),), (len(inputs),))


_entries = list(ops.TABLE.values())


@implements(*ops.TABLE, "astype")
def elementwise(device: Any, op: int, params: tuple[int, ...], ins: list[Any], out: Any) -> None:
    """out = op(ins), computed in out's dtype (a comparison: in the widest of theirs)."""
    run_op(device, op, ins, out, body)
