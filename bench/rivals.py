"""Who else computes on OpenCL devices: CLBlast's products, a bare loop in C, tinygrad's step in its own process.

Each is made by a function that gives something to call, or raises Absent with the reason why it is not there.
"""

import contextlib
import ctypes
import ctypes.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROW_MAJOR, AS_IT_IS = 101, 111  # of CLBlast's enumerations


class Absent(Exception):
    """Why somebody takes no part."""


def clblast(device: Any, a: Any, b: Any, out: Any) -> Callable[[], None]:
    """out = a @ b by CLBlast, enqueued; three contiguous float32 matrices on the device."""
    found = ctypes.util.find_library("clblast")
    if found is None:
        raise Absent("libclblast is not installed (Debian, Ubuntu: libclblast1)")
    try:
        sgemm = ctypes.CDLL(found).CLBlastSgemm
    except (OSError, AttributeError) as error:
        raise Absent(f"{found} does not load: {error}") from None
    size, real, pointer = ctypes.c_size_t, ctypes.c_float, ctypes.c_void_p
    operand = [pointer, size, size]
    sgemm.argtypes = [*[ctypes.c_int] * 3, size, size, size, real, *operand, *operand, real, *operand, pointer, pointer]
    sgemm.restype = ctypes.c_int
    (m, k), n = a.shape, b.shape[1]
    queue = ctypes.c_void_p(device.queue.int_ptr)
    where = [[pointer(x.memory.buffer.int_ptr), x.offset // 4, x.shape[1]] for x in (a, b, out)]

    def step() -> None:
        status = sgemm(
            ROW_MAJOR, AS_IT_IS, AS_IT_IS, m, n, k, 1.0, *where[0], *where[1], 0.0, *where[2], ctypes.byref(queue), None
        )
        if status:
            raise RuntimeError(f"CLBlastSgemm gives {status}")

    return step


# ---- the loop in C ----


@contextlib.contextmanager
def c_loop() -> Iterator[Callable[[Any, Sequence[Any]], Callable[[], None]]]:
    """(device, launches) -> a function that enqueues them by the compiled loop of launch.c."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Absent("there is no C compiler (cc)")
    with tempfile.TemporaryDirectory(prefix="tapeflow-bench-", ignore_cleanup_errors=True) as folder:
        library = Path(folder) / "launch.so"
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(HERE / "launch.c")]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Absent(f"{compiler} fails: {done.stderr.strip().splitlines()[-1:]}")
        launch_all = ctypes.CDLL(str(library)).launch_all
        launch_all.restype = ctypes.c_int32
        yield lambda device, launches: _bound_loop(launch_all, device, launches)


def _bound_loop(launch_all: Any, device: Any, launches: Sequence[Any]) -> Callable[[], None]:
    # The binding's own library: what it is linked with is looked through, and that is the loader that it uses.
    loader = ctypes.CDLL(device.cl._cl.__file__)
    try:
        enqueue = ctypes.cast(loader.clEnqueueNDRangeKernel, ctypes.c_void_p)
    except AttributeError:
        raise Absent("the loader of pyopencl does not show clEnqueueNDRangeKernel") from None
    n = len(launches)
    kernels = (ctypes.c_void_p * n)(*[x.kernel.handle.int_ptr for x in launches])
    dims = (ctypes.c_uint32 * n)(*[len(x.global_size) for x in launches])
    whole, local = (
        (ctypes.c_size_t * (3 * n))(*[side for x in launches for side in (*sizes(x), 1, 1)[:3]])
        for sizes in (lambda x: x.global_size, lambda x: x.local_size)
    )
    queue, count = ctypes.c_void_p(device.queue.int_ptr), ctypes.c_int64(n)

    def step() -> None:
        status = launch_all(enqueue, queue, count, kernels, dims, whole, local)
        if status:
            raise RuntimeError(f"clEnqueueNDRangeKernel gives {status}")

    return step


# ---- tinygrad, which takes the first platform that there is: alone in a process with one driver ----


class TinyStep:
    """tinygrad's step of W3 on a device, sampled in a process of its own; it sleeps between samples."""

    def __init__(self, device: Any, small: bool = False) -> None:
        if ctypes.util.find_library("OpenCL") is None:
            raise Absent("tinygrad needs a loader of OpenCL (Debian, Ubuntu: ocl-icd-libopencl1)")
        wrong = []
        self._folder = tempfile.TemporaryDirectory(prefix="tapeflow-bench-", ignore_cleanup_errors=True)
        for number, library in enumerate(_drivers()):
            folder = Path(self._folder.name) / str(number)
            folder.mkdir()
            (folder / "one.icd").write_text(library)
            env = {**os.environ, "OCL_ICD_VENDORS": str(folder), "DEV": "CL", "CL": "1"}
            command = [sys.executable, "-m", "bench.tiny", device.name, *(["small"] if small else [])]
            self._process = subprocess.Popen(
                command, cwd=HERE.parent, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            said = self._line()
            if said.get("ready"):
                self.error, self.version = said["error"], said["version"]
                return
            self.close()
            if said.get("wrong") and said["wrong"] not in wrong:
                wrong.append(said["wrong"])
            if said.get("last"):
                break
        self._folder.cleanup()
        raise Absent("; ".join(wrong) or "there is no driver to give to tinygrad")

    def _line(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"wrong": f"tinygrad's process ended ({self._process.wait()})"}

    def sample(self, number: int) -> float:
        """Seconds per step, of so many."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        said = self._line()
        if "seconds" not in said:
            raise RuntimeError(said.get("wrong", "tinygrad says nothing"))
        return float(said["seconds"])

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _drivers() -> list[str]:
    """The libraries of the drivers of OpenCL that are installed, as .icd files name them."""
    from tapeflow.backend.opencl import loader

    files = loader.vendor_files()
    return list(dict.fromkeys([*files.values(), *map(str, loader.packaged_drivers())]))
