"""What `python -m tapeflow info` says: where tapeflow runs, on what, and whether it computes what it should.

The self-test is a handful of checks that take a moment together and would notice a bad build, library or processor.
It takes nothing from tests/, which an installation does not have.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import tapeflow as tp
from tapeflow import _blas, _core

if TYPE_CHECKING:
    from tapeflow.backend.opencl.discovery import DeviceInfo


def compiler() -> str:
    """What the compiler wrote into the core, where it did."""
    found = re.search(rb"GCC: \([^)\0]*\) [0-9.]+|[a-zA-Z ]*clang version [0-9.]+", Path(_core.__file__).read_bytes())
    return found[0].decode() if found else "unknown"


def processor() -> str:
    """The processor's name, as the system tells it."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def opencl() -> tuple[dict[str, str], bool]:
    """Facts of OpenCL and its devices by name, or what to install; and that no device computes wrongly."""
    try:
        return _opencl_devices()
    except Exception as error:  # a driver may fail in any way; that is what there is to report
        text = str(error) if isinstance(error, tp.errors.DeviceError) else f"{type(error).__name__}: {error}"
        return {"OpenCL": text.removeprefix("[device] ")}, True


def _opencl_devices() -> tuple[dict[str, str], bool]:
    from tapeflow import backend
    from tapeflow.backend.opencl import discovery, hints, loader, selftest

    binding = loader.binding()
    for info in discovery.listing().candidates:
        discovery.verdict(info, again=True)
    found = backend.devices()
    facts = {"OpenCL": f"pyopencl {binding.VERSION_TEXT}, {len(found)} device{'s' * (len(found) != 1)}"}
    sound = True
    for k, info in enumerate(found):
        facts[f"  OpenCL {k}"] = describe_device(info)
        try:
            device = backend.open(f"opencl:{k}")
        except tp.errors.TapeflowError as error:
            facts[f"    OpenCL {k} opened"], sound = str(error), False
            continue
        for name in selftest.PROGRAMS:
            wrong = attempt(partial(selftest.verdict, device, name))
            facts[f"    OpenCL {k} {name}"] = wrong or "ok"
            sound = sound and not wrong
    remarks = [f"{what} is not usable: {why}" for what, why in discovery.not_usable()] + discovery.notes()
    if not found:
        remarks.append(hints.advice())
    return facts | {f"  note {k}": remark for k, remark in enumerate(remarks, 1)}, sound


def describe_device(info: DeviceInfo) -> str:
    """The capabilities of an OpenCL device."""
    size = f"{info.memory_bytes / 2**30:.1f} GiB (at most {info.max_allocation / 2**30:.1f} at once)"
    return (
        f"{info.name} ({info.platform}, {info.version}, driver {info.driver}), {info.kind}, "
        f"{info.compute_units} units, {size}, {info.local_memory // 1024} KiB local, "
        f"work-groups to {info.max_workgroup}, {'fp64' if info.fp64 else 'no fp64'}, "
        f"{'fp16' if info.fp16 else 'no fp16'}"
    )


def memory() -> str:
    """The pool's state."""
    pool = _core.pool_info()
    return f"{pool['in_use']:,} bytes in use, {pool['kept']:,} kept for reuse"


# ---- the self-test: each check raises AssertionError with what it saw


def check_values() -> None:
    """float64 functions within the documented 2 units in the last place of the C library's."""
    pairs = [(tp.exp, math.exp), (tp.log, math.log), (tp.sin, math.sin), (tp.cos, math.cos), (tp.tanh, math.tanh)]
    points = [1e-3, 0.5, 1.0, 2.75, 30.0]
    for ours, theirs in pairs:
        for x, y in zip(points, ours(tp.tensor(points, dtype="float64")).tolist()):
            off = abs(y - theirs(x)) / math.ulp(theirs(x))
            assert off <= 3, f"{theirs.__name__}({x}) is {y}, {off:.0f} units in the last place off"


def program(x: tp.Tensor, w: tp.Tensor) -> tp.Tensor:
    """Something of everything, (3, 4) and (4, 2) -> a number."""
    y = tp.tanh(tp.matmul(x, w)) * tp.sigmoid(x[:, :2]) + tp.exp(-(x[:, 2:] ** 2)) / (2.0 + tp.sin(x[:, :1]))
    return tp.sum(tp.log_softmax(y, axis=1) * y) + tp.mean(tp.where(x > 0, x, 0.1 * x))


def program_arguments() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(3, 4)), rng.normal(size=(4, 2))


def check_gradients() -> None:
    """A gradient against central differences."""
    arguments = program_arguments()
    gradients = tp.grad(program, argnums=(0, 1))(*arguments)
    for k, gradient in enumerate(gradients):
        for place in np.ndindex(gradient.shape):
            values, h = [], 1e-5
            for sign in (1, -1):
                moved = [a.copy() for a in arguments]
                moved[k][place] += sign * h
                values.append(float(program(*map(tp.tensor, moved))))
            want, got = (values[0] - values[1]) / (2 * h), float(gradient[place])
            assert math.isclose(got, want, rel_tol=1e-6, abs_tol=1e-8), f"{got} at {place}; differences say {want}"


def check_fused() -> None:
    """The fused rules have the bits of the composed ones."""
    found = []
    for create_graph in (False, True):
        leaves = [tp.tensor(a, dtype="float32", requires_grad=True) for a in program_arguments()]
        program(*leaves).backward(create_graph=create_graph)
        found.append([leaf.grad.detach().numpy().tobytes() for leaf in leaves if leaf.grad is not None])
    assert len(found[0]) == 2 and found[0] == found[1], "the two kinds of rules disagree"


def check_matmul() -> None:
    """A product by BLAS against NumPy's, in both dtypes."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(96, 80)), rng.normal(size=(80, 72))
    for dtype, bound in (("float32", 1e-4), ("float64", 1e-12)):
        off = np.abs(tp.matmul(tp.tensor(a, dtype=dtype), tp.tensor(b, dtype=dtype)).numpy() - a @ b).max()
        assert off <= bound, f"a product in {dtype} is {off:.1g} off"


def check_random() -> None:
    """Draws repeat, and the draw number moves on."""
    first, again = (tp.random.Generator(7) for _ in range(2))
    draws = [g.normal(shape=(1000,)).numpy() for g in (first, again, again)]
    assert np.array_equal(draws[0], draws[1]), "a seed gives different numbers"
    assert not np.array_equal(draws[1], draws[2]), "two draws are the same"
    assert abs(draws[0].mean()) < 0.2 and abs(draws[0].std() - 1) < 0.2, "normal numbers are not"


def check_threads() -> None:
    """A sum has the same bits on any number of threads."""
    x, before = tp.random.Generator(0).uniform(shape=(1_000_000,)), tp.get_num_threads()
    try:
        sums = []
        for threads in (1, 2, 3):
            tp.set_num_threads(threads)
            sums.append(float(tp.sum(x)))
    finally:
        tp.set_num_threads(before)
    assert sums[0] == sums[1] == sums[2], f"1, 2, 3 threads: {sums}"


CHECKS: dict[str, Callable[[], None]] = {
    "values": check_values,
    "gradients": check_gradients,
    "fused rules": check_fused,
    "matmul": check_matmul,
    "random": check_random,
    "thread counts": check_threads,
}


def attempt(check: Callable[[], str | None]) -> str:
    """What a check says is wrong, or fails with; the report must come out, whatever is broken."""
    try:
        return check() or ""
    except Exception as error:
        return str(error) or type(error).__name__


def self_test() -> dict[str, str]:
    """Name -> "" for what passed, else what went wrong."""
    return {name: attempt(check) for name, check in CHECKS.items()}


def report() -> tuple[str, bool]:
    """The text, and whether the self-test passed."""
    verdicts = self_test()
    devices, devices_sound = opencl()
    sound = devices_sound and not any(verdicts.values())
    facts = {
        "tapeflow": f"{tp.__version__}, in {Path(tp.__file__).parent}",
        "op table": _core.TABLE_HASH,
        "compiled by": compiler(),
        "Python": f"{sys.version.split()[0]}, {platform.platform()}",
        "NumPy": np.__version__,
        "SciPy": importlib.metadata.version("scipy"),
        "processor": f"{processor()}, {os.cpu_count()} CPUs",
        "CPU level": _core.ISA_LEVEL + (", as TAPEFLOW_ISA asks" if "TAPEFLOW_ISA" in os.environ else ""),
        "threads": str(tp.get_num_threads()),
        "BLAS": _blas.description(),
        "memory pool": memory(),
        "default dtype": tp.get_default_dtype().name,
        **devices,
        "self-test": "passed" if sound else "FAILED",
    }
    facts |= {f"  {name}": wrong or "ok" for name, wrong in verdicts.items()}
    return "\n".join(f"{name + ':':16} {fact}" for name, fact in facts.items()), sound
