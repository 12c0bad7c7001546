"""What is checked of a device before anything is timed: each check says "" or what is wrong, and what it looked at.

Functions of tapeflow by the calls of cases.py, programs by the workloads and their gate, both with tensors on the
device; a training's losses beside the cpu's; the same bits twice; memory that runs out; new work-group limits.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tapeflow as tp
from tapeflow.backend.opencl import selftest
from tapeflow.plan import ir

from . import cases, harness, ops, peers
from .workloads import ALL

Verdict = tuple[str, str]  # what is wrong, what was looked at
STEPS = 20
LOSSES = 1e-4  # relative, of the losses of STEPS steps in float32
MEGABYTES = 64
BOUND = ("tapeflow-replays", "tapeflow-replayed")  # contenders whose plans are bound to memory of the host


def facts(device: Any, name: str, seconds: float) -> Verdict:
    """What the driver says of the device."""
    handle = device.info.handle
    told = {
        "name": device.name, "vendor": device.vendor, "platform": device.info.platform, "driver": device.driver,
        "version": device.info.version, "kind": device.kind, "units": device.compute_units,
        "memory": device.memory_bytes, "largest allocation": device.max_allocation, "local": device.local_memory,
        "work-group": device.max_workgroup, "fp64": device.fp64, "fp16": device.fp16, "options": device.build_options,
    }  # fmt: skip
    for key in ("max_clock_frequency", "global_mem_cache_size", "mem_base_addr_align", "host_unified_memory",
                "single_fp_config", "profiling_timer_resolution", "extensions"):  # fmt: skip
        try:
            told[key] = getattr(handle, key)
        except Exception as error:  # a driver need not answer everything
            told[key] = f"not told ({type(error).__name__})"
    return "", "; ".join(f"{key}: {value}" for key, value in told.items())


def self_test(device: Any, name: str, seconds: float) -> Verdict:
    """The programs of `python -m tapeflow info`: each kind of op, op by op, beside the cpu's values."""
    wrong = {kind: _attempt(lambda kind=kind: selftest.verdict(device, kind)) for kind in selftest.PROGRAMS}
    said = "; ".join(f"{kind}: {text}" for kind, text in wrong.items() if text)
    return said, f"{len(wrong)} kinds of ops, work-groups to {device.max_workgroup}"


def functions(device: Any, name: str, seconds: float) -> Verdict:
    """Every call of cases.py with 16 elements on the device, beside NumPy in float64."""
    end = time.perf_counter() + seconds
    calls = [(key, call) for key, listed in cases.CASES.items() for call in listed]
    wrong, done, absent = [], 0, 0
    with np.errstate(all="ignore"), tp.default_device(name):
        ours, theirs, wide = ops.pools(16, "float32", [call for _, call in calls])
        if not device.fp64:
            ours = {k: v for k, v in ours.items() if not (isinstance(v, tp.Tensor) and v.dtype == tp.float64)}
        for key, call in calls:
            if time.perf_counter() > end:
                break
            spelling, other = ops.spelled(call)
            if "special" in ops.names_in(other) and theirs["special"] is None:
                absent += 1
                continue
            done += 1
            said = _attempt(lambda s=spelling, o=other: _compare(ours, theirs, wide, s, o))
            if said:
                wrong.append(f"{key}, `{spelling.replace('m.', 'tp.')}`: {said}")
    looked = f"{done} of {len(calls)} calls" + (f", {absent} without SciPy" if absent else "")
    return "; ".join(wrong), looked


def _compare(ours: dict, theirs: dict, wide: dict, spelling: str, other: str) -> str:
    got = _home(ops.result(spelling, ours))
    return ops.difference(got, ops.result(other, theirs), ops.result(other, wide), ops.TOLERANCE["float32"])


def _home(value: Any) -> Any:
    """A result as arrays of the host."""
    if isinstance(value, (tuple, list)):
        return [_home(x) for x in value]
    return np.array(value.detach().to("cpu").numpy()) if isinstance(value, tp.Tensor) else value


def programs(device: Any, name: str, seconds: float) -> Verdict:
    """Every workload in small on the device, as it is and frozen: values and gradients within the gate."""
    end = time.perf_counter() + seconds
    wrong, done, left, narrow = [], 0, 0, 0
    with tp.default_device(name):
        for w in ALL.values():
            for contender in [c for c in w.peers if c.startswith("tapeflow") and c not in BOUND]:
                if w.dtype == "float64" and not device.fp64:
                    narrow += 1
                elif time.perf_counter() > end:
                    left += 1
                else:
                    done += 1
                    row, _ = harness.admit(w, peers.load(w.needs(contender), tp.get_num_threads()), contender, w.small)
                    if row.status != "ok":
                        wrong.append(f"{w.name}, {contender}: {row.status}")
    looked = f"{done} programs" + (f", {narrow} need float64" if narrow else "")
    return "; ".join(wrong), looked + (f", {left} left for want of time" if left else "")


def _losses(name: str, frozen: bool) -> list[float]:
    """Of STEPS steps of W3 on a device."""
    w = ALL["W3"]
    with tp.default_device(name):
        peer = peers.load("tapeflow-frozen" if frozen else "tapeflow", tp.get_num_threads())
        assert isinstance(peer, peers.Peer), peer
        step = w.step(peer, w.size)
        return [float(step()[0]) for _ in range(STEPS)]


def losses(device: Any, name: str, seconds: float) -> Verdict:
    """The losses of a training on the device, as it is and frozen, beside the cpu's."""
    want, wrong, worst = _losses("cpu", False), [], 0.0
    if not want[-1] < want[0]:
        wrong.append(f"the cpu's loss goes from {want[0]:.4f} to {want[-1]:.4f}")
    for frozen in (False, True):
        got = _losses(name, frozen)
        off = max(abs(a - b) / abs(b) for a, b in zip(got, want, strict=True))
        worst = max(worst, off)
        if not off <= LOSSES:
            wrong.append(f"{'frozen' if frozen else 'eager'} they are {off:.1e} off, relative")
    return "; ".join(wrong), f"{STEPS} steps of W3 from {want[0]:.4f} to {want[-1]:.4f}, at most {worst:.0e} off"


def determinism(device: Any, name: str, seconds: float) -> Verdict:
    """The same bits at every run: sums, scatters with repeats, products, gradients, draws, a training."""
    rng = np.random.default_rng(9)
    n, rows = 1 << 18, 1000
    with tp.default_device(name):
        x, at = tp.tensor(rng.normal(size=n).astype(np.float32)), tp.tensor(rng.integers(0, rows, n))
        a, b = (tp.tensor(rng.normal(size=(300, 200)).astype(np.float32)) for _ in range(2))
        runs: dict[str, Callable[[], Any]] = {
            "sum": lambda: tp.sum(x),
            "scatter_add with repeats": lambda: tp.scatter_add(tp.zeros(rows), at, x),
            "product": lambda: a @ tp.matrix_transpose(b),
            "softmax": lambda: tp.softmax(a, axis=1),
            "gradient of take": lambda: tp.grad(lambda t: tp.sum(tp.take(t, at) * x))(x[:rows]),
            "cumulative sum": lambda: tp.cumsum(x),
            "draws": lambda: tp.random.Generator(3).normal(shape=(1000,)),
            "training": lambda: tp.tensor(_losses(name, True)),
        }
        wrong = []
        for what, run in runs.items():
            bits = {_home(run()).tobytes() for _ in range(3)}
            if len(bits) > 1:
                wrong.append(f"{what}: {len(bits)} results of 3 runs")
        with tp.default_device("cpu"):
            same = _home(tp.random.Generator(3).integers(0, 1000, shape=(1000,)))
        if _home(tp.random.Generator(3).integers(0, 1000, shape=(1000,))).tobytes() != same.tobytes():
            wrong.append("draws are not the cpu's")
    return "; ".join(wrong), f"{', '.join(runs)}: 3 runs each; draws beside the cpu's"


def memory(device: Any, name: str, seconds: float) -> Verdict:
    """What does not fit is refused with a clear error and leaves the device usable; what is freed comes back."""
    wrong = []
    device.sync()
    before, limit = device.pool.live, device.memory_limit
    wanted = [("one piece too large", device.max_allocation + (1 << 20), limit)]
    wanted += [("beyond the limit", MEGABYTES << 20, before + (MEGABYTES << 19))]
    for what, nbytes, most in wanted:
        device.memory_limit = most
        try:
            held = device.alloc(nbytes, "check")
            wrong.append(f"{what}: {nbytes:,} bytes were given")
            del held
        except tp.errors.DeviceOutOfMemory as error:
            if device.name not in str(error):
                wrong.append(f"{what}: the error does not name the device: {error}")
        finally:
            device.memory_limit = limit
    created = device.pool.created
    for _ in range(200):
        device.fill(device.empty_array(ir.FLOAT32, (1 << 18,)), 1.0)
    device.sync()
    more = device.pool.created - created
    if more > 8:
        wrong.append(f"200 allocations one after the other made {more} buffers")
    if device.pool.live != before:
        wrong.append(f"{device.pool.live - before:,} bytes stay in use")
    count = min(math.isqrt(min(device.max_allocation, limit // 4) // 4), 8192)
    with tp.default_device(name):
        total = float(tp.sum(tp.full((count, count), 2.0, dtype="float32")))
    if total != 2.0 * count * count:  # which float32 holds
        wrong.append(f"the sum of {count} x {count} twos is {total}")
    return "; ".join(wrong), f"limits, reuse, one array of {4 * count * count:,} bytes"


def _attempt(check: Callable[[], str]) -> str:
    """What a check says is wrong, or fails with."""
    try:
        return check()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


CHECKS: dict[str, Callable[[Any, str, float], Verdict]] = {
    f.__name__: f for f in (facts, self_test, losses, determinism, memory, programs, functions)
}


def checked(check: str, device: Any, name: str, seconds: float) -> Verdict:
    """The verdict of a check; what it raises is one, too, and that nothing ran on the device."""
    looked, before = [""], device.launches

    def run() -> str:
        wrong, looked[0] = CHECKS[check](device, name, seconds)
        return wrong

    wrong, launches = _attempt(run), device.launches - before
    if not wrong and not launches and check != facts.__name__:
        wrong = "nothing ran on the device"
    return wrong, f"{looked[0]}; {launches:,} launches" if launches else looked[0]
