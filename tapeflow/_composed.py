"""The derivative rules of the elementwise ops as functions of tensors, compiled from the op table at their first use.

They are what a recorded backward runs; the fused C loops of an eager one are made from the same expressions.
"""

import math
from collections.abc import Callable
from typing import Any

from tapeflow import _core

_rules: dict[tuple[int, int], Callable[..., Any] | None] = {}


def rule(opcode: int, i: int) -> Callable[..., Any] | None:
    """The rule (g, a, b, c, y) -> cotangent of input i, or None where the derivative is 0 everywhere."""
    key = opcode, i
    if key not in _rules:
        from tapeflow import ops  # reading the table takes longer than the rest of the import: only when it is needed

        names = list(ops.TABLE)
        source = ops.composed_vjp(names[opcode], i)
        namespace = {"inf": math.inf, "nan": math.nan, **{name: getattr(_core, name) for name in names}}
        _rules[key] = None if source is None else eval(f"lambda g, a, b, c, y: {source}", namespace)
    return _rules[key]
