"""What to install for OpenCL on the machine at hand."""

from __future__ import annotations

import glob
import importlib.util
import os
import platform
import sys
from pathlib import Path

VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
DISPLAY_CLASSES = ("0x03", "0x12")  # of PCI: display controllers, processing accelerators


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def gpu_vendors(root: str = "/sys") -> list[str]:
    """The vendors of the GPUs that Linux sees, by its device files; on other systems none."""
    found = {_read(file) for file in glob.glob(f"{root}/class/drm/card*/device/vendor")}
    for folder in glob.glob(f"{root}/bus/pci/devices/*"):
        if _read(f"{folder}/class").startswith(DISPLAY_CLASSES):
            found.add(_read(f"{folder}/vendor"))
    return sorted(VENDORS[code] for code in found if code in VENDORS)


def for_gpus(vendors: list[str]) -> list[str]:
    drivers = {
        "NVIDIA": "NVIDIA's driver, which brings OpenCL (Debian: nvidia-opencl-icd, Ubuntu: libnvidia-compute-*; in a "
        "container: NVIDIA_DRIVER_CAPABILITIES=compute,utility, and libnvidia-opencl.so.1 in "
        "/etc/OpenCL/vendors/nvidia.icd)",
        "AMD": "ROCm's OpenCL (rocm-opencl-runtime), or mesa-opencl-icd with RUSTICL_ENABLE=radeonsi",
        "Intel": "Intel's compute runtime (Debian, Ubuntu: intel-opencl-icd)",
    }
    return [f"for the {vendor} GPU here {drivers[vendor]}" for vendor in vendors]


def for_processor(system: str, machine: str) -> str:
    if system == "Linux" and machine in ("x86_64", "AMD64"):
        return "for the processor `pip install intel-opencl-rt intel-cmplr-lib-rt`, or PoCL (Debian: pocl-opencl-icd)"
    if system == "Linux":
        return "for the processor PoCL (Debian: pocl-opencl-icd; conda-forge: pocl)"
    if system == "Darwin":
        return "PoCL from conda-forge (pocl, ocl_icd_wrapper_apple)"
    return "the driver of the GPU's vendor, which brings OpenCL, or Intel's CPU Runtime for OpenCL"


def unreadable_devices() -> list[str]:
    """Device files of GPUs that this user may not open."""
    files = glob.glob("/dev/dri/renderD*") + glob.glob("/dev/kfd") + glob.glob("/dev/nvidia[0-9]*")
    return [file for file in files if not os.access(file, os.R_OK | os.W_OK)]


def advice(vendors: list[str] | None = None, system: str = "", machine: str = "") -> str:
    """What to install; the arguments are for other machines than this."""
    vendors = gpu_vendors() if vendors is None else vendors
    steps = []
    if sys.modules.get("pyopencl") is None and not _findable("pyopencl"):
        steps.append('pyopencl: `pip install "tapeflow[opencl]"`')
    steps += for_gpus(vendors)
    steps.append(for_processor(system or platform.system(), machine or platform.machine()))
    text = f"Install {'; '.join(steps)}."
    barred = unreadable_devices()
    if barred:
        text += f" This user may not open {', '.join(barred)}: join the group that owns it (often render or video)."
    return text


def _findable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
