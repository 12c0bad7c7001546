"""Which ops OpenCL devices have, each as function(device, op, params, ins, out); modules beside this fill the table."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tapeflow.errors import DeviceError
from tapeflow.plan import ir

IMPLEMENTED: dict[int, Callable[..., None]] = {}


def implements(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator: the function computes the ops of these names."""

    def note(function: Callable[..., None]) -> Callable[..., None]:
        IMPLEMENTED.update({ir.CODES[name]: function for name in names})
        return function

    return note


@cache
def load() -> dict[int, Callable[..., None]]:
    """The whole table, filled: every module of this folder is imported, since each may implement ops."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
    return IMPLEMENTED


def implementation(op: int, device: str) -> Callable[..., None]:
    """The function that computes an op; DeviceError, naming the device, for one that has none."""
    found = IMPLEMENTED.get(op) or load().get(op)
    if found is None:
        raise DeviceError(f"[{ir.name_of(op)}] is not available on {device}. Move the operands: x.to('cpu').")
    return found


@cache
def source(name: str) -> str:
    """The text of a file of kernels/: of tapeflow/kernels/ when installed, beside tapeflow/ in a checkout."""
    package = Path(__file__).parents[2]
    path = package / "kernels" / name
    return (path if path.exists() else package.parent / "kernels" / name).read_text(encoding="utf-8")
