"""The OpenCL devices of the machine: which there are, which of them work, and what they are called.

A device is usable when it has built and run a kernel with the right result. The first time a driver is met, that is
tried in a child process, since a compiler may end the process it runs in; the verdict is kept in the cache by device,
driver and platform.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tapeflow.backend.opencl import cache, hints, loader
from tapeflow.errors import DeviceError

KIND = "verdicts"  # their folder in the cache
ON_REQUEST = ("oclgrind",)  # platforms that are asked for by name: interpreters that check kernels
REJECTED_FOR = 24 * 3600.0  # seconds, after which a device that failed is tried again
TRIAL_TIMEOUT = 120.0
KINDS = ("gpu", "accelerator", "cpu")  # in the order of devices


@dataclass(frozen=True)
class DeviceInfo:
    """What a device says of itself. handle: pyopencl's device; place: its numbers among platforms and their devices."""

    name: str
    vendor: str
    kind: str  # "gpu", "accelerator" or "cpu"
    driver: str
    version: str
    platform: str
    platform_version: str
    memory_bytes: int
    max_allocation: int
    local_memory: int
    max_workgroup: int
    compute_units: int
    fp64: bool
    fp16: bool
    place: tuple[int, int]
    handle: Any = field(repr=False, compare=False, default=None)

    @property
    def key(self) -> bytes:
        return cache.key_of(self.name, self.vendor, self.driver, self.version, self.platform, self.platform_version)


@dataclass
class Listing:
    """The devices that platforms list: those that may be usable, in tapeflow's order, and why others are not."""

    candidates: list[DeviceInfo]
    rejected: list[tuple[str, str]]


_lock = threading.Lock()
_listing: Listing | None = None
_verdicts: dict[bytes, str] = {}  # of this process: "" or what is wrong
_listed_by = 0  # the process that has asked drivers for devices; its children must not


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def listing() -> Listing:
    """What the platforms list; asked once in a process."""
    global _listing, _listed_by
    with _lock:
        if _listed_by not in (0, os.getpid()):
            raise DeviceError(
                "[device] OpenCL was in use before this process was forked, and its drivers do not survive that. Start "
                "processes by 'spawn' or 'forkserver' (multiprocessing.set_start_method), or ask for devices in the "
                "child alone."
            )
        if _listing is None:
            cl = loader.binding()
            _listed_by = os.getpid()
            _listing = _list(cl)
        return _listing


def _list(cl: Any) -> Listing:
    found = Listing([], [])
    try:
        platforms = cl.get_platforms()
    except cl.Error:
        return found  # no platform
    for p, platform in enumerate(platforms):
        try:
            name = platform.name.strip()
            devices = platform.get_devices()
        except cl.Error as error:
            found.rejected.append((f"platform {p}", str(error)))
            continue
        if not devices:
            more = "; RUSTICL_ENABLE=radeonsi, iris or llvmpipe makes it do so" if name == "rusticl" else ""
            found.rejected.append((name, f"the platform lists no device{more}"))
        for d, device in enumerate(devices):
            try:
                info = describe(cl, platform, device, (p, d))
                reason = unfit(device)
            except cl.Error as error:
                found.rejected.append((f"{name}, device {d}", str(error)))
                continue
            if reason:
                found.rejected.append((f"{info.name} ({name})", reason))
            else:
                found.candidates.append(info)
    found.candidates.sort(key=_order)
    return found


def _order(info: DeviceInfo) -> tuple[int, bool, str, tuple[int, int]]:
    """GPUs first, those with memory of their own before others; then by name, since loaders list in any order."""
    shares = info.kind != "cpu" and bool(info.handle.host_unified_memory)
    return KINDS.index(info.kind), shares, info.platform.lower(), info.place


def describe(cl: Any, platform: Any, device: Any, place: tuple[int, int]) -> DeviceInfo:
    types = cl.device_type
    platform_name = platform.name.strip()
    if device.type & types.GPU and not device.type & types.CPU:
        kind = "gpu"
    else:
        kind = "cpu" if device.type & types.CPU else "accelerator"
    extensions = device.extensions.split()
    return DeviceInfo(
        name=device.name.strip(),
        vendor=device.vendor.strip(),
        kind=kind,
        driver=device.driver_version.strip(),
        version=device.version.strip(),
        platform=platform_name,
        platform_version=platform.version.strip(),
        memory_bytes=device.global_mem_size,
        max_allocation=device.max_mem_alloc_size,
        local_memory=device.local_mem_size,
        max_workgroup=device.max_work_group_size,
        compute_units=device.max_compute_units,
        fp64="cl_khr_fp64" in extensions,
        fp16="cl_khr_fp16" in extensions,
        place=place,
        handle=device,
    )


def unfit(device: Any) -> str:
    """Why tapeflow cannot use the device, by what it says; or nothing."""
    version = tuple(int(part) for part in device.version.split()[1].split(".")[:2])
    if version < (1, 2):
        return f"{device.version.strip()}; tapeflow needs OpenCL 1.2"
    if not device.available:
        return "the driver says that it is not available"
    if not device.compiler_available:
        return "its driver has no compiler"
    if device.profile != "FULL_PROFILE":
        return f"it has the {device.profile}, which may lack 64-bit integers"
    if not device.endian_little:
        return "it is big-endian"
    return ""


# ---- verdicts


def verdict(info: DeviceInfo, again: bool = False) -> str:
    """Nothing for a device that works, otherwise what is wrong with it. again: try anew one that has failed."""
    known = _verdicts.get(info.key)
    if known is None:
        known = _remembered(info)
    if known is None or (known and again):
        known, lasting = try_in_child(info)
        if lasting:
            cache.write(KIND, info.key, json.dumps([known, time.time()]).encode())
    _verdicts[info.key] = known
    return known


def _remembered(info: DeviceInfo) -> str | None:
    body = cache.read(KIND, info.key)
    try:
        said, when = json.loads(body or b"")
        fresh = not said or 0 <= time.time() - when < REJECTED_FOR
    except (ValueError, TypeError):
        return None
    return str(said) if fresh else None


TRIAL = "import sys; sys.path[:] = {path!r}; from tapeflow.backend.opencl import trial; trial.main({place!r}, {key!r})"
TRIAL_BEGAN = "the trial begins"


def try_in_child(info: DeviceInfo) -> tuple[str, bool]:
    """What a child process found, and whether that will be so tomorrow."""
    code = TRIAL.format(path=sys.path, place=info.place, key=info.key.hex())
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TRIAL_TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"a first kernel took more than {TRIAL_TIMEOUT:.0f} seconds", False
    except OSError:
        return try_here(info)
    lines = done.stdout.splitlines()
    if TRIAL_BEGAN not in lines:  # an interpreter that does not run this, as in a program with Python inside
        return try_here(info)
    if done.returncode:
        return f"its driver ended the process with status {done.returncode} at a first kernel", True
    said, lasting = json.loads(lines[-1])
    return said, lasting


def try_here(info: DeviceInfo) -> tuple[str, bool]:
    """The same without a child."""
    from tapeflow.backend.opencl import trial

    return trial.run(info)[0], False


def usable() -> list[DeviceInfo]:
    """The devices that work, GPUs first; without those that are asked for by name."""
    found = [info for info in listing().candidates if not _on_request(info)]
    with ThreadPoolExecutor(4) as pool:
        verdicts = list(pool.map(verdict, found))
    return [info for info, wrong in zip(found, verdicts) if not wrong]


def not_usable() -> list[tuple[str, str]]:
    """(device, what is wrong with it) of those that do not work."""
    there = listing()
    failed = [(f"{i.name} ({i.platform})", _verdicts[i.key]) for i in there.candidates if _verdicts.get(i.key)]
    return there.rejected + failed


def _on_request(info: DeviceInfo) -> bool:
    return info.platform.lower() in ON_REQUEST


# ---- names


def matches(info: DeviceInfo, part: str) -> int:
    """How well a part of a name, in lower case, fits: 2 for that of the platform, 1 for the device's own, 0 for not."""
    if any(part in text.lower() for text in (info.platform, info.platform_version)):
        return 2  # before the name of a processor, which every driver for processors repeats
    return int(any(part in text.lower() for text in (info.name, info.vendor, info.driver)))


def find(name: str) -> DeviceInfo:
    """The device that a name means: "opencl", "opencl:1", "opencl:NVIDIA"; DeviceError when there is none."""
    family, _, part = name.partition(":")
    if family.strip().lower() != "opencl":
        raise DeviceError(f"[device] got {name!r}, expected 'opencl', 'opencl:1' or 'opencl:' and a part of a name.")
    part = part.strip().lower()
    if not part:
        for info in listing().candidates:
            if not _on_request(info) and not verdict(info):
                return info
        raise missing(name)
    if part.isdecimal():
        there = usable()
        if int(part) < len(there):
            return there[int(part)]
        raise missing(name)
    ranked = [(matches(info, part), info) for info in listing().candidates]
    for rank in (2, 1):
        for fit, info in ranked:
            if fit == rank and not verdict(info):
                return info
    raise missing(name)


def missing(name: str) -> DeviceError:
    """The error for a device that is not there: what is, and what to do."""
    there = [f"opencl:{k} {info.name} ({info.platform}, {info.kind})" for k, info in enumerate(usable())]
    wrong = [f"{what}: {why}" for what, why in not_usable()]
    text = (
        f"[device] there is no OpenCL device {name!r}." if there else "[device] there is no OpenCL device that works."
    )
    if wrong:
        text += f" Not usable: {'; '.join(wrong)}."
    if there:
        return DeviceError(f"{text} There are: {'; '.join(there)}. Take an index, or a part of a name.")
    return DeviceError(f"{text} {' '.join((*notes(), hints.advice()))}")


def notes() -> list[str]:
    """Remarks on drivers that should have been found."""
    said = [f"{remark}." for remark in loader.incomplete_drivers()]
    drivers = loader.packaged_drivers()
    if drivers and not any("intel" in info.platform.lower() for info in listing().candidates):
        cause = "OCL_ICD_VENDORS names others, or pyopencl was used before tapeflow's first OpenCL device"
        said.append(f"{drivers[0]} is installed but not loaded: {cause}.")
    return said
