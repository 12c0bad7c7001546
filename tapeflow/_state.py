"""Named tensors as the state of something (a module, an optimizer): checked against what is there, then assigned; and
kept in safetensors files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

import tapeflow as tp
from tapeflow.errors import DTypeError, StateError


class UnmatchedKeys(NamedTuple):
    """Names that loading a state left alone."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def _misfit(own: tp.Tensor, value: Any) -> str | None:
    """Why value cannot be assigned to own, if it cannot."""
    if not isinstance(value, (tp.Tensor, np.ndarray)):
        return f"is a {type(value).__name__}, expected a tensor or array"
    if value.shape != own.shape:
        return f"has shape {tuple(value.shape)}, here {own.shape}"
    if value.dtype.kind == "f" and own.dtype.kind != "f" or value.dtype.kind not in "biuf":
        return f"has dtype {value.dtype}, here {own.dtype}"
    return None


def load(own: Mapping[str, tp.Tensor], state: Mapping[str, Any], strict: bool, op: str, owner: str) -> UnmatchedKeys:
    """Assign to each tensor of own the value of its name; all of them, or on any error none."""
    if not isinstance(state, Mapping):
        raise DTypeError(f"[{op}] expected a dict of tensors by name, got {type(state).__name__}.")
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    problems = [
        f"{name} {why}" for name, t in own.items() if name in state and (why := _misfit(t, state[name])) is not None
    ]
    if strict and missing:
        problems.append(f"missing: {', '.join(missing)}")
    if strict and unexpected:
        problems.append(f"unexpected: {', '.join(map(str, unexpected))}")
    if problems:
        hint = "Make one of the same structure" + (
            ", or leave names out with strict=False." if strict and (missing or unexpected) else "."
        )
        raise StateError(f"[{op}] the state does not fit this {owner}: {'; '.join(problems)}. {hint}")
    with tp.no_grad():
        for name, t in own.items():
            if name in state:
                t.assign(tp.asarray(state[name], device=t.device))
    return UnmatchedKeys(missing, unexpected)


def _safetensors(op: str) -> ModuleType:
    try:
        import safetensors.numpy
    except ImportError:
        raise ImportError(
            f"[{op}] the package safetensors, which reads and writes the file, is not installed. "
            "Install it: pip install safetensors"
        ) from None
    return safetensors.numpy


def write_file(state: Mapping[str, tp.Tensor], path: str | os.PathLike[str]) -> None:
    """Write a state; a file that is there is replaced once the new one is complete."""
    package = _safetensors("save")
    target = os.fspath(path)
    draft = f"{target}.{os.getpid()}.part"
    try:
        package.save_file({name: np.array(t.numpy(), order="C") for name, t in state.items()}, draft)
        os.replace(draft, target)
    finally:
        if os.path.exists(draft):
            os.remove(draft)


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arrays of a file by name."""
    package = _safetensors("load")
    if not os.path.exists(path):
        raise FileNotFoundError(f"[load] no file {os.fspath(path)}.")
    try:
        arrays: dict[str, Any] = package.load_file(path)
    except Exception as error:
        raise StateError(
            f"[load] {os.fspath(path)} cannot be read as safetensors ({error}). Save the state again."
        ) from None
    return arrays
