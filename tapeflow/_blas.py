"""SciPy's BLAS: its function pointers, and the thread count of the OpenBLAS behind them.

The extension module is loaded by its file: that takes 0.03 s, importing the package scipy.linalg 0.15 s.
"""

import ctypes
import glob
import importlib.util
import os
import sys
import threading
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from types import ModuleType
from typing import Any

_NAME = "scipy.linalg.cython_blas"
_setter: Any = None
_threads = 0
_loading = threading.Lock()  # a module that another thread is still running has no functions yet
_module: ModuleType | None = None


def _folder() -> str:
    spec = importlib.util.find_spec("scipy")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("tapeflow needs SciPy for matrix products: pip install scipy")
    return next(iter(spec.submodule_search_locations))


def load() -> ModuleType:
    """The module scipy.linalg.cython_blas."""
    global _module
    with _loading:
        if _module is None:
            _module = _load()
            _find_setter()
            if _threads:
                set_num_threads(_threads)
        return _module


def _load() -> ModuleType:
    if _NAME not in sys.modules:
        for suffix in EXTENSION_SUFFIXES:
            path = os.path.join(_folder(), "linalg", "cython_blas" + suffix)
            if os.path.exists(path):
                loader = ExtensionFileLoader(_NAME, path)
                spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
                assert spec is not None
                module = importlib.util.module_from_spec(spec)
                loader.exec_module(module)
                return module
    return importlib.import_module(_NAME)


def _function(name: str) -> Any:
    """A function of the OpenBLAS beside SciPy, by its name without prefix; None where no library exports it."""
    beside = os.path.join(_folder(), os.pardir, "scipy.libs"), os.path.join(_folder(), ".dylibs")  # (macOS)
    for path in [path for folder in beside for path in glob.glob(os.path.join(folder, "*openblas*"))]:
        library = ctypes.CDLL(path)
        for prefix in ("scipy_openblas_", "openblas_"):
            found = getattr(library, prefix + name, None)
            if found is not None:
                return found
    return None


def _find_setter() -> None:
    """OpenBLAS's own thread setter, where the library beside SciPy exports one."""
    global _setter
    if _setter is None:
        _setter = _function("set_num_threads")


def thread_functions() -> tuple[int, int]:
    """Addresses of OpenBLAS's setter and getter of the number of threads; 0 where there is none."""
    both = _function("set_num_threads"), _function("get_num_threads")
    setter, getter = (ctypes.cast(f, ctypes.c_void_p).value or 0 if f else 0 for f in both)
    return setter, getter


def description() -> str:
    """The library, its version, the processor that its kernels are for, its threads; for reports."""
    load()
    config, core, threads = (_function(f"get_{name}") for name in ("config", "corename", "num_threads"))
    if config is None or core is None or threads is None:
        return "SciPy's, of a kind that does not describe itself"
    config.restype = core.restype = ctypes.c_char_p
    name = " ".join(config().decode().split()[:2])
    return f"{name} (SciPy's), kernels for {core().decode()}, {threads()} threads"


def set_num_threads(n: int) -> None:
    """Tell OpenBLAS, now if it is loaded, otherwise when it will be."""
    global _threads
    _threads = n
    if _setter is not None:
        _setter(n)
