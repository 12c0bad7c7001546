"""pyopencl, imported when a device is first asked for, with the drivers that pip has installed made known to it.

The loader of OpenCL reads a folder of .icd files, each the name of a driver's library: /etc/OpenCL/vendors, or instead
of it the folder that OCL_ICD_VENDORS names. A driver from PyPI cannot write there. So where there is one, a folder is
made that holds the system's files and one for it. Who has set OCL_ICD_VENDORS has decided, and is left alone.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import tempfile
from functools import cache as cached
from pathlib import Path
from types import ModuleType

from tapeflow.backend.opencl import cache, hints
from tapeflow.errors import DeviceError

VARIABLE = "OCL_ICD_VENDORS"
# Drivers for processors on PyPI: distribution, library, and the distribution it needs without saying so.
PACKAGED = (("intel-opencl-rt", "libintelocl.so", "intel-cmplr-lib-rt"),)
_temporary: list[tempfile.TemporaryDirectory[str]] = []  # removed at exit


def installed(distribution: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def packaged_drivers() -> list[Path]:
    """Libraries of drivers that pip has installed and that can be loaded."""
    found = []
    for distribution, library, needed in PACKAGED:
        there = installed(distribution)
        if there is not None and installed(needed) is not None:
            paths = (Path(str(there.locate_file(file))) for file in there.files or () if file.name == library)
            found += [path.resolve() for path in paths if path.exists()]
    return found


def incomplete_drivers() -> list[str]:
    """What to do about drivers that pip has installed without what they need."""
    return [
        f"{distribution} is installed without {needed}: pip install {needed}"
        for distribution, _, needed in PACKAGED
        if installed(distribution) is not None and installed(needed) is None
    ]


def vendor_folders() -> list[Path]:
    """Where .icd files are: the system's folder, and that of the environment, which conda's loader reads."""
    return [Path("/etc/OpenCL/vendors"), Path(sys.prefix) / "etc" / "OpenCL" / "vendors"]


def vendor_files() -> dict[str, str]:
    """Name -> content of the .icd files there, but for those that name a library by a path where there is none."""
    found: dict[str, str] = {}
    for folder in vendor_folders():
        try:
            files = sorted(folder.glob("*.icd"))
            texts = {file.name: file.read_text(encoding="utf-8").strip() for file in files}
        except (OSError, UnicodeDecodeError):
            continue
        for name, library in texts.items():
            if library and (not os.path.isabs(library) or os.path.exists(library)) and library not in found.values():
                found.setdefault(name, library)
    return found


def register_packaged() -> None:
    """Set OCL_ICD_VENDORS to a folder with the system's drivers and those from PyPI, where there are any."""
    if VARIABLE in os.environ or not sys.platform.startswith("linux"):
        return
    files = vendor_files()
    known = {os.path.basename(library) for library in files.values()}
    new = {f"tapeflow-{path.stem}.icd": str(path) for path in packaged_drivers() if path.name not in known}
    if new:
        os.environ[VARIABLE] = str(vendor_folder(files | new))


def vendor_folder(files: dict[str, str]) -> Path:
    """A folder with these files and no others, in the cache or, where that cannot be written, for this process."""
    folder = cache.folder() / "vendors" / cache.key_of(sorted(files.items())).hex()[:16]
    for _ in range(2):
        written = all(
            _holds(folder / name, text) or cache.write_file(folder / name, text.encode())
            for name, text in files.items()
        )
        if written:
            return folder
        _temporary.append(tempfile.TemporaryDirectory(prefix="tapeflow-opencl-"))
        folder = Path(_temporary[-1].name)
    raise DeviceError(f"[device] drivers of OpenCL cannot be listed: {folder} is not writable. Set {VARIABLE}.")


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False


@cached
def binding() -> ModuleType:
    """pyopencl. DeviceError, with what to install, where it is not."""
    register_packaged()
    _spare_pyopencl_its_cache()
    try:
        return importlib.import_module("pyopencl")
    except ModuleNotFoundError as error:
        raise DeviceError(f"[device] OpenCL needs pyopencl, which is not here ({error}). {hints.advice()}") from error
    except Exception as error:  # of another NumPy, or with a loader that fails
        raise DeviceError(
            f"[device] pyopencl cannot be imported: {type(error).__name__}: {error}. Renew it: "
            "`pip install --upgrade pyopencl`."
        ) from error


def _spare_pyopencl_its_cache() -> None:
    """pyopencl fails at the first kernel where it cannot write its own cache, unless told not to keep one."""
    if "pyopencl" in sys.modules or sys.platform == "win32":
        return
    mac = sys.platform == "darwin"
    folder = os.path.expanduser("~/Library/Caches" if mac else os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        os.makedirs(folder, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
