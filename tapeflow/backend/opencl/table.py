"""Which ops OpenCL devices have: {opcode: function(device, op, params, ins, out)}, filled by the modules that write them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from tapeflow.plan import ir

IMPLEMENTED: dict[int, Callable[..., None]] = {}


def implements(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator: the function computes the ops of these names."""

    def note(function: Callable[..., None]) -> Callable[..., None]:
        IMPLEMENTED.update({ir.CODES[name]: function for name in names})
        return function

    return note


@lru_cache(maxsize=None)
def source(name: str) -> str:
    """The text of a file of kernels/, which an installation has as tapeflow/kernels/ and a checkout beside tapeflow/."""
    package = Path(__file__).parents[2]
    path = package / "kernels" / name
    return (path if path.exists() else package.parent / "kernels" / name).read_text(encoding="utf-8")
