"""Frozen plans: the same tape, replayed. See docs/plans.md."""

from tapeflow.plan.batching import vmap
from tapeflow.plan.files import load_plan
from tapeflow.plan.functions import Function, eager, function
from tapeflow.plan.plans import Plan, freeze, freeze_tape
from tapeflow.plan.sparse import sparse_hessian, sparse_jacobian
from tapeflow.plan.text import parse_plan

__all__ = [
    "Function",
    "Plan",
    "eager",
    "freeze",
    "freeze_tape",
    "function",
    "load_plan",
    "parse_plan",
    "sparse_hessian",
    "sparse_jacobian",
    "vmap",
]
