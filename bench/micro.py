"""Single costs and limits: one op recorded, a chain of a million, many losses over one trunk, memory, import, size.

Costs of an op are compared in this process, in turn, like workloads. Limits run in a process of their own
(`python -m bench.micro NAME LIBRARY` prints JSON): a crash there is a result, and memory is not shared with anybody.
"""

import gc
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module, util
from itertools import repeat
from pathlib import Path
from typing import Any

LOOP = 1000
CHAIN = 1_000_000
STACK = 256 * 1024


# ---- the cost of an op, in this process ----


def _loops(kind: str, lib: str) -> Callable[[], Any]:
    """A loop of LOOP ops: `mul` records a 0-d product, `add` computes x + 1 with nothing to differentiate."""
    np = import_module("numpy")
    m = import_module("jax.numpy" if lib == "jax" else lib)
    make = {"numpy": np.asarray, "jax": getattr(m, "asarray", None), "autograd": None}.get(lib) or m.tensor
    shape = (16,) if kind == "add16" else ()
    x = make(np.full(shape, 1.5, np.float32))
    if kind == "mul":
        x = make(np.array(1.5, np.float32), **({"requires_grad": True} if lib in ("tapeflow", "torch") else {}))
        y = make(np.array(0.5, np.float32))

        def mul(x=x, y=y):
            for _ in repeat(None, LOOP):
                z = x * y
            return z

        expected, got = 0.75, mul()
    else:

        def add(x=x):
            for _ in repeat(None, LOOP):
                z = x + 1
            return z

        expected, got = 2.5, add()
    values = np.asarray(got.detach() if hasattr(got, "detach") else got)
    assert values.shape == shape and (values == expected).all(), f"{lib}: {got}"
    return mul if kind == "mul" else add


def _empty(x: float = 1.5) -> float:
    for _ in repeat(None, LOOP):
        z = x
    return z


def op_costs(libs: list[str], rounds: int, target: float) -> list[dict]:
    """ns of one op, the bare loop subtracted."""
    from . import harness

    out: list[dict] = []
    for kind, name, among in (
        ("mul", "0-d multiply, recorded", ("tapeflow", "torch", "mygrad")),
        ("add", "0-d x + 1, not recorded", ("tapeflow", "numpy", "torch", "jax")),
        ("add16", "x + 1 of 16, not recorded", ("tapeflow", "numpy", "torch", "jax")),
    ):
        steps: dict[str, Callable] = {"loop": _empty}
        failed = {}
        for lib in among:
            if lib in libs:
                try:
                    steps[lib] = _loops(kind, lib)
                except Exception as error:
                    failed[lib] = f"FAILED: {error}"
        samples, _ = harness.measure(steps, rounds, target)
        loop = statistics.median(samples["loop"])
        for lib in among:
            if lib in failed:
                out.append({"name": name, "contender": lib, "text": failed[lib]})
            if lib not in steps:
                continue
            ns = (statistics.median(samples[lib]) - loop) / LOOP * 1e9
            best = (min(samples[lib]) - loop) / LOOP * 1e9
            r = {"name": name, "contender": lib, "value": ns, "unit": "ns", "text": f"{ns:.0f} ns (quiet {best:.0f})"}
            r["note"] = f"loop of {loop / LOOP * 1e9:.1f} ns subtracted"
            if lib == "tapeflow" and kind == "mul":
                r["goals"] = [harness._goal("0-d multiply recorded from Python", 100, ns, "ns")]
            out.append(r)
    return out


# ---- limits, each in a process of its own ----


def _wait(x: Any) -> float:
    return float(x.detach() if hasattr(x, "detach") else x)


def _leaf(m: Any, value: float) -> Any:
    return m.tensor(value, requires_grad=True)


def chain(lib: str) -> dict:
    """Half a million and a million ops in a thread with a small stack: seconds forward, backward and to free."""
    m = import_module(lib)
    result: dict = {}
    failed: list[BaseException] = []

    def work() -> None:
        try:
            measure()
        except BaseException as error:
            failed.append(error)

    def measure() -> None:
        for n in (CHAIN // 100, CHAIN // 2, CHAIN):  # the first is not kept: memory and pools warm up
            x = _leaf(m, 0.5)
            t = [time.perf_counter()]
            y = x
            for _ in repeat(None, n):
                y = y * 1.000001
            t.append(time.perf_counter())
            y.backward()
            t.append(time.perf_counter())
            del y
            t.append(time.perf_counter())
            got, expected = _wait(x.grad), 1.000001**n
            assert abs(got - expected) < 0.1 * expected, (got, expected)  # float32 rounds the factor
            result[n] = [b - a for a, b in zip(t, t[1:], strict=False)]

    before = threading.stack_size(STACK)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    if failed:
        raise failed[0]
    half, full = result[CHAIN // 2], result[CHAIN]
    return {"forward": full[0], "backward": full[1], "free": full[2], "growth": sum(full) / sum(half)}


def losses(lib: str) -> dict:
    """Many losses, all alive, over one live trunk, each with a branch of its own: seconds for 500 and for 1000."""
    m = import_module(lib)
    seconds = {}
    for count in (50, 500, 1000):
        x = _leaf(m, 0.5)
        trunk = x
        for _ in range(10):
            trunk = trunk * 1.01
        begin = time.perf_counter()
        alive = []
        for _ in range(count):
            y = trunk
            for _ in range(100):
                y = y * 0.999
            alive.append(y)
        for y in alive:
            y.backward(retain_graph=True)
        seconds[count] = time.perf_counter() - begin
        expected = count * 1.01**10 * 0.999**100
        assert abs(_wait(x.grad) - expected) < 1e-2 * expected, (_wait(x.grad), expected)
    return {"t500": seconds[500], "t1000": seconds[1000], "growth": seconds[1000] / seconds[500]}


def _rss() -> float:
    """MiB held by this process; nan where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, ValueError):
        return math.nan


def memory(lib: str) -> dict:
    """A million iterations of forward without backward while an older recorded tensor is alive: MiB of growth."""
    m = import_module(lib)
    x = _leaf(m, 0.5)
    old = x * 2.0
    before = 0.0
    for i in range(CHAIN + CHAIN // 10):
        if i == CHAIN // 10:
            before = _rss()
        y = old * x + 0.25  # on the older one
        y = y * y
    after = _rss()
    old.backward()
    assert _wait(x.grad) == 2.0
    return {"growth_mib": after - before, "rss_mib": after}


def _peak() -> float:
    """MiB that this process held at most since the last call; nan where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        Path("/proc/self/clear_refs").write_text("5")
        return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return math.nan


def _memory_of(workload: Any, lib: str, small: bool) -> dict:
    """MiB that the peak of some steps adds to what inputs and programs take; results go before the next step."""
    from . import peers

    peer = peers.load(lib, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    assert not isinstance(peer, str), peer
    step = workload.step(peer, workload.small if small else workload.size)
    gc.collect()
    if lib.startswith("tapeflow"):  # what the recording of a plan has left for reuse is no part of a run
        import_module("tapeflow._core").empty_cache()
    _peak()
    before = _rss()
    for _ in range(3):
        assert len(step()) == 1 + workload.leaves
    return {"peak_mib": _peak() - before, "before_mib": before}


def elementwise_memory(lib: str, small: bool = False) -> dict:
    """Value and gradient of W4, three times over: MiB at the peak beyond what the data take."""
    from .workloads.dense import W4

    return _memory_of(W4, lib, small)


def block_memory(lib: str, small: bool = False) -> dict:
    """Value and gradients of W6, three times over: MiB at the peak beyond what parameters and data take."""
    from .workloads.sequence import W6

    return _memory_of(W6, lib, small)


def import_time(lib: str) -> dict:
    """Seconds that the import adds to NumPy's."""
    import numpy  # noqa: F401

    begin = time.perf_counter()
    import_module(lib)
    return {"seconds": time.perf_counter() - begin}


def first_gradient(lib: str) -> dict:
    """d(x x)/dx at 3, the first thing that a process does; the caller takes the time."""
    if lib == "jax":
        value = import_module("jax").grad(lambda x: x * x)(3.0)
    elif lib == "autograd":
        value = import_module("autograd").grad(lambda x: x * x)(3.0)
    elif lib == "tensorflow":
        tf = import_module("tensorflow")
        x = tf.Variable(3.0)
        with tf.GradientTape() as tape:
            y = x * x
        value = tape.gradient(y, x)
    else:
        m = import_module(lib)
        x = m.tensor(3.0, **({} if lib == "mygrad" else {"requires_grad": True}))
        (x * x).backward()
        value = x.grad
    assert float(value) == 6.0
    return {}


def installed_size(lib: str) -> dict:
    """MB of the package's own files; in a source checkout, of those that a wheel holds."""
    size = 0
    for name in (lib, "jaxlib") if lib == "jax" else (lib,):
        spec = util.find_spec(name)
        root = Path(spec.origin).parent if spec and spec.origin else Path()
        checkout = (root.parent / "setup.py").exists()
        kept = (f for f in root.rglob("*") if not checkout or f.suffix in (".py", ".pyi", ".so", ".pyd", ".cl"))
        size += sum(f.stat().st_size for f in kept if f.is_file() and "__pycache__" not in f.parts)
    return {"mb": size / 1e6}


_EACH = (
    chain, losses, memory, elementwise_memory, block_memory, import_time, first_gradient, installed_size,
)  # fmt: skip
LIMITS: dict[str, Callable[[str], dict]] = {f.__name__: f for f in _EACH}


def alone(name: str, lib: str, limit: float = 120.0) -> dict:
    """The result of one of LIMITS from a process of its own, with the seconds it took; or why there is none."""
    root = Path(__file__).resolve().parent.parent
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench.micro", name, lib], cwd=root, capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {limit:.0f} s"}
    wall = time.perf_counter() - begin
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        died = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
        return {"failed": lines[-1] if lines and done.returncode > 0 else died}
    return {**json.loads(done.stdout.strip().splitlines()[-1]), "wall": wall}


def limits(libs: list[str], repeats: int) -> list[dict]:
    """All of LIMITS, for those libraries for which each makes sense."""
    from .harness import _goal
    from .workloads.dense import W4
    from .workloads.sequence import W6

    def row(title: str, name: str, lib: str, text: Callable[[dict], str], goal: Callable[[dict], list], times: int = 1):
        runs = [alone(name, lib) for _ in range(times)]
        failed = next((r["failed"] for r in runs if "failed" in r), None)
        if failed is not None:
            return {"name": title, "contender": lib, "text": f"FAILED: {failed}"}
        r = {k: statistics.median(run[k] for run in runs) for k in runs[0]}
        return {
            "name": title, "contender": lib, "values": r, "text": text(r),
            "note": (LIMITS[name].__doc__ or "").rstrip("."), "goals": goal(r) if lib.startswith("tapeflow") else [],
        }  # fmt: skip

    out = []
    for lib in [x for x in libs if x in ("tapeflow", "torch")]:
        out.append(row(
            f"chain of {CHAIN:,} ops, {STACK // 1024} KiB of stack", "chain", lib,
            lambda r: f"{r['forward']:.3f} + {r['backward']:.3f} + {r['free']:.3f} s, {r['growth']:.2f} x half of it",
            lambda r: [_goal("time of a million / of half a million", 2.5, r["growth"], "x")],
        ))  # fmt: skip
        out.append(row(
            "1,000 losses over one live trunk", "losses", lib,
            lambda r: f"{r['t1000']:.3f} s, {r['growth']:.2f} x that of 500",
            lambda r: [_goal("time of 1000 / of 500", 2.5, r["growth"], "x")],
        ))  # fmt: skip
        out.append(row(
            f"{CHAIN:,} forwards, none backward", "memory", lib,
            lambda r: f"{r['growth_mib']:+.2f} MiB of {r['rss_mib']:.0f}",
            lambda r: [_goal("growth of memory", 1.0, r["growth_mib"], "MiB")],
        ))  # fmt: skip
    frozen = ["tapeflow-frozen"] if "tapeflow" in libs else []
    for w, name, most in ((W4, "elementwise_memory", 90), (W6, "block_memory", 40)):
        for lib in [x for x in (*libs, *frozen) if x in w.peers]:
            limit = most if lib in frozen else None

            def judged(r: dict, limit: float | None = limit) -> list[dict]:
                what = "peak of the plan beyond its inputs"
                return [_goal(what, limit, r["peak_mib"] * 2**20 / 1e6, "MB")] if limit else []

            out.append(row(
                f"peak memory of {w.name}", name, lib,
                lambda r: f"{r['peak_mib']:.0f} MiB beyond {r['before_mib']:.0f}", judged, min(repeats, 3),
            ))  # fmt: skip
    for lib in libs:
        if lib in ("numpy", "casadi"):
            continue
        out.append(row(
            "import", "import_time", lib, lambda r: f"{r['seconds'] * 1e3:.0f} ms",
            lambda r: [_goal("import beyond NumPy's", 100, r["seconds"] * 1e3, "ms")], repeats,
        ))  # fmt: skip
        out.append(row(
            "first gradient of a process", "first_gradient", lib, lambda r: f"{r['wall'] * 1e3:.0f} ms",
            lambda r: [_goal("from process start to the first gradient", 200, r["wall"] * 1e3, "ms")], repeats,
        ))  # fmt: skip
        out.append(row(
            "installed size", "installed_size", lib, lambda r: f"{r['mb']:.1f} MB",
            lambda r: [_goal("installed size", 10, r["mb"], "MB")],
        ))  # fmt: skip
    return out


if __name__ == "__main__":
    if sys.argv[1] not in LIMITS:
        sys.exit(f"one of {', '.join(LIMITS)}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    print(json.dumps(LIMITS[sys.argv[1]](sys.argv[2])))
