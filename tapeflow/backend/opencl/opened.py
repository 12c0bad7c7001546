"""The devices that this process has opened, by name."""

from __future__ import annotations

import os
import threading

from tapeflow.backend.opencl import discovery, loader, trial
from tapeflow.backend.opencl.host import Device
from tapeflow.errors import DeviceError

_lock = threading.RLock()
_opened: dict[tuple[int, int], Device] = {}  # by place
_named: dict[str, Device] = {}


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    _opened.clear()
    _named.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def devices() -> list[discovery.DeviceInfo]:
    """What works here; nothing where OpenCL is not installed."""
    try:
        loader.binding()
    except DeviceError:
        return []
    return discovery.usable()


def device(name: str) -> Device:
    """The open device of a name; one that was lost is opened anew."""
    known = _named.get(name)
    if known is not None and not known.lost:
        return known
    with _lock:
        info = discovery.find(name)
        found = _opened.get(info.place)
        if found is None or found.lost:
            found = Device(info)
            wrong = trial.check(found)
            if wrong:
                raise DeviceError(f"[device] {info.name}: {wrong}.")
            _opened[info.place] = found
        _named[name] = found
        return found
