"""The gate, the rounds and the ratios; what a workload is.

A contender is timed only after its value and every gradient agreed with the float64 NumPy reference, on two calls in
a row (a gradient that accumulates fails the second). Samples are taken in rounds, contender after contender, so that a
slow minute of the machine hits all of them; the ratio is the median over the rounds of time / tapeflow's time in
the same round. Two fixed NumPy jobs, the controls, are sampled in every round too: when they moved, the machine was
slow; when they did not, the commit was. One runs on one thread; the other on all of BLAS's, and shows a machine that is
shared: where a core is taken, libraries that wait at a barrier lose a hundredfold, and no ratio to them means a thing.
"""

import gc
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from .peers import Peer, Step, version

TOLERANCE = {"float32": 1e-4, "float64": 1e-9}  # of the largest element of each expected array
BASE = "tapeflow"
# Who takes part in a workload that says nothing else.
ALL = (
    "tapeflow",
    "tapeflow-frozen",
    "torch",
    "mygrad",
    "autograd",
    "tensorflow",
    "jax-eager",
    "jax",
    "torch-compiled",
    "tensorflow-xla",
)


@dataclass(frozen=True)
class Workload:
    """One computation: data, reference, formula, and what tapeflow has to reach on it.

    `make(rng, **size)` gives NumPy arrays, the first `leaves` of which are differentiated; `reference` takes them in
    float64 and gives [value, *gradients]; `formula(ns, **size)` gives the function of the arrays in the words of a
    peer. With `lr` the step is one of gradient descent on the leaves, which the gate checks by how they moved. What is
    no gradient of a scalar names contenders of its own: each needs a peer and makes its step of (peer, arrays, size).
    """

    name: str
    title: str
    make: Callable[..., list]
    reference: Callable[..., list]
    formula: Callable[..., Callable]
    leaves: int
    size: dict
    small: dict
    peers: Sequence[str]
    dtype: str = "float32"
    rtol: float | None = None  # in place of TOLERANCE, where rounding grows in the formula itself
    lr: float | None = None
    check: dict | None = None  # a size that the gate looks at besides the one that is timed
    special: dict[str, Callable] = field(default_factory=dict)  # peer -> its own formula
    own: dict[str, tuple[str, Callable[..., Step]]] = field(default_factory=dict)  # contender -> (peer, its step)
    base: str = BASE  # whose time the ratios are to
    ops: int | None = None  # recorded ops of a step, for the time per op
    vs_torch: float | None = 1.0  # goal: torch eager takes at least this many times tapeflow's time
    ratios: Sequence[tuple[str, str, str, float, bool]] = ()  # goals: (what, over, under, limit, is it the least)
    us_per_op: float | None = None  # goal, backward included
    frozen: float | None = None  # goal: eager takes at least this many times the time of the plan
    ahead: float | None = None  # goal: the fastest compiled program of others takes this many times the plan's time
    aim: float | None = None  # seconds; what the project aims at on the machine that its goals were set on
    aim_frozen: float | None = None  # the same for the plan

    def arrays(self, size: dict) -> list[np.ndarray]:
        """The inputs: the same ones at every call."""
        rng = np.random.default_rng(7)
        return [a.astype(self.dtype) if a.dtype.kind == "f" else a for a in map(np.asarray, self.make(rng, **size))]

    @property
    def tolerance(self) -> float:
        return self.rtol or TOLERANCE[self.dtype]

    def needs(self, contender: str) -> str:
        """The peer of a contender."""
        return self.own[contender][0] if contender in self.own else contender

    def step(self, peer: Peer, size: dict, contender: str = "") -> Step:
        """What is timed: value and gradients, one step of gradient descent, or what is the contender's own."""
        arrays = self.arrays(size)
        if contender in self.own:
            return self.own[contender][1](peer, arrays, size)
        f = self.special.get(peer.name, self.formula)(peer.ns, **size)
        leaves, consts = arrays[: self.leaves], arrays[self.leaves :]
        return peer.sgd(f, leaves, consts, self.lr) if self.lr else peer.value_and_grad(f, leaves, consts)


@dataclass
class Row:
    """What the table says of one contender; without a passed gate only its status."""

    contender: str
    kind: str = ""
    status: str = "ok"  # ok | FAILED: ... | absent: ...
    note: str = ""
    error: float | None = None  # the largest of the gate, relative
    first: float | None = None  # seconds of the first call, compilation included
    median: float | None = None
    best: float | None = None
    ratio: float | None = None
    beside: float | None = None  # the median while another process keeps a core busy
    slower: float | None = None  # how many times the fastest quiet sample that is
    number: int = 0
    samples: list[float] = field(default_factory=list)


# ---- the gate ----


def to_numpy(x: Any) -> np.ndarray:
    """A copy of anybody's array."""
    for look in ("detach", "numpy"):
        x = getattr(x, look)() if hasattr(x, look) else x
    return np.array(x)


def difference(got: Sequence, expected: Sequence, rtol: float, slack: Sequence[float] = ()) -> tuple[float, str]:
    """(the largest relative error, what is wrong or ""): equal shapes, each array within rtol of its largest element.

    slack, one number per array, adds to what is allowed where a gradient could be observed only so well.
    """
    if len(got) != len(expected):
        return math.inf, f"{len(got)} results instead of {len(expected)}"
    worst = 0.0
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        what = f"gradient {i - 1}" if i else "value"
        a, b = to_numpy(a), np.asarray(b, float)
        if a.dtype.kind != "f":
            return math.inf, f"{what} is of dtype {a.dtype}"
        if a.shape != b.shape:
            return math.inf, f"{what} has shape {a.shape}, not {b.shape}"
        scale = float(np.max(np.abs(b), initial=0.0)) + (slack[i] / rtol if slack else 0.0) + 1e-30
        error = float(np.max(np.abs(a.astype(float) - b), initial=0.0)) / scale
        if not error <= rtol:  # a NaN too
            return error, f"{what} is off by {error:.1e} of its largest element, allowed {rtol:.0e}"
        worst = max(worst, error)
    return worst, ""


def gate(workload: Workload, size: dict, step: Step) -> tuple[float, str, str, float]:
    """Two calls against the reference: (largest error, what is wrong, dtype of the gradients, seconds of the first)."""
    arrays = [a.astype(float) if a.dtype.kind == "f" else a for a in workload.arrays(size)]
    rtol, worst, first, dtype = workload.tolerance, 0.0, 0.0, ""
    expected: list[np.ndarray] = []
    for call in range(2):
        if not expected or workload.lr:
            expected = [np.asarray(e, float) for e in workload.reference(*arrays, **size)]
        begin = time.perf_counter()
        got = step()
        first = first or time.perf_counter() - begin
        got = [to_numpy(x) for x in got]
        dtype = str(got[-1].dtype)
        slack: list[float] = []
        if workload.lr:  # the step gives the moved leaves: their gradients to rounding, and where the next call starts
            leaves, moved = arrays[: workload.leaves], got[1:]
            ulps = 4 * float(np.finfo(workload.dtype).eps) / workload.lr
            slack = [0.0, *(ulps * float(np.max(np.abs(p))) for p in leaves)]
            got = [got[0], *((p - q) / workload.lr for p, q in zip(leaves, moved, strict=True))]
            arrays[: workload.leaves] = [p - workload.lr * g for p, g in zip(leaves, expected[1:], strict=True)]
        error, wrong = difference(got, expected, rtol, slack)
        if wrong:
            return error, wrong + (" at the second call" if call else ""), dtype, first
        worst = max(worst, error)
    return worst, "", dtype, first


def admit(workload: Workload, peer: Peer | str, name: str, size: dict) -> tuple[Row, Step | None]:
    """The row of a contender, and its step if it may be timed."""
    if isinstance(peer, str):
        return Row(name, status=f"absent: {peer}"), None
    row = Row(name, peer.kind)
    try:
        step = workload.step(peer, size, name)
        row.error, wrong, dtype, row.first = gate(workload, size, step)
        if not wrong and workload.check:
            error, wrong, _, _ = gate(workload, workload.check, workload.step(peer, workload.check, name))
            row.error = max(row.error, error)
    except Exception as error:  # a contender that raises is a failed one; the others go on
        wrong, dtype = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", ""
    if wrong:
        row.status, row.first = f"FAILED: {wrong}", None
        return row, None
    row.note = "" if dtype == workload.dtype else dtype
    return row, step


# ---- time ----


def control_one() -> float:
    """Half NumPy and half interpreter on one thread: under a millisecond that no commit of ours can change."""
    x = np.tanh(CONTROL).sum()
    n = 0
    for i in range(8000):
        n += i & 7
    return float(x) + n


def control_all() -> float:
    """Small matrix products on all threads of NumPy's BLAS."""
    for _ in range(4):
        x = CONTROL_MATRIX @ CONTROL_MATRIX
    return float(x[0, 0])


CONTROL = np.linspace(-1.0, 1.0, 40_000)
CONTROL_MATRIX = np.full((200, 200), 0.01, np.float32)
CONTROLS: dict[str, Callable[[], Any]] = {"control, one thread": control_one, "control, all threads": control_all}
SETTLE = 0.16  # seconds before each sample
BUSY = 2.0  # how much slower than its quiet time a control may be at its median before it counts as busy


def sample(step: Callable[[], Any], number: int) -> float:
    """Seconds a call, after one call that is not counted (threads of the one before may still be spinning)."""
    step()
    begin = time.perf_counter()
    for _ in repeat(None, number):
        step()
    return (time.perf_counter() - begin) / number


def settled(step: Callable[[], Any], number: int, target: float) -> float:
    """A sample on a quiet machine: idle threads of another library's pool spin for some 120 ms (OpenBLAS) after its
    work, on the core that the next contender's second thread needs. Quick runs of the tests do not wait."""
    if target >= 0.01:
        time.sleep(SETTLE)
    return sample(step, number)


def calibrate(step: Callable[[], Any], target: float) -> int:
    """How many calls last about `target` seconds."""
    number = 1
    while True:
        seconds = sample(step, number) * number
        if seconds > target / 4 or number > 1e8:
            return max(1, round(number * target / max(seconds, 1e-9)))
        number *= 4


def measure(steps: dict[str, Callable[[], Any]], rounds: int, target: float) -> tuple[dict[str, list[float]], dict]:
    """Samples of each step, one per round and in turn, the controls among them; and how often each was called.

    A round in which a control was slow is repeated, up to thrice as many in all; the ones with the fastest controls
    stay. The choice looks at nothing that is compared.
    """
    steps = {**CONTROLS, **steps}
    numbers = {name: calibrate(step, target) for name, step in steps.items()}
    taken: list[dict[str, float]] = []
    gc.collect()
    gc.freeze()  # so that a collection looks at what a step made, not at eight imported libraries
    try:
        while len(taken) < rounds or (len(taken) < 3 * rounds and _slowness(taken)[rounds - 1][0] > BUSY):
            taken.append({name: settled(step, numbers[name], target) for name, step in steps.items()})
    finally:
        gc.unfreeze()
    kept = sorted(i for _, i in _slowness(taken)[:rounds])
    return {name: [taken[i][name] for i in kept] for name in steps}, numbers


# What the burner runs: it ends with the process that started it, however that ended.
BURN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1000000): pass"
COLLAPSE = 3.0  # how many times its quiet time a step may take beside a busy core: half of one of two is still there


@contextmanager
def busy_core() -> Iterator[None]:
    """Another process that never rests, on the last of the cores that are ours, while the block runs."""
    burner = subprocess.Popen([sys.executable, "-c", BURN])
    try:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(burner.pid, {max(os.sched_getaffinity(0))})
        time.sleep(0.1)
        yield
    finally:
        burner.kill()
        burner.wait()


def measure_beside(steps: dict[str, Callable[[], Any]], numbers: dict[str, int], rounds: int) -> dict[str, list[float]]:
    """Samples of each step beside a busy core: shorter ones and fewer rounds, for a step may take a hundred times as
    long."""
    with busy_core():
        taken = [
            {name: sample(step, -(-numbers[name] // 8)) for name, step in steps.items()} for _ in range(min(rounds, 5))
        ]
    return {name: [t[name] for t in taken] for name in steps}


def _slowness(taken: list[dict[str, float]]) -> list[tuple[float, int]]:
    """(how many times its quiet time the slower control took, the round), the calmest round first."""
    quiet = {name: min(t[name] for t in taken) for name in CONTROLS}
    return sorted((max(t[name] / quiet[name] for name in CONTROLS), i) for i, t in enumerate(taken))


def paired_ratio(samples: Sequence[float], base: Sequence[float]) -> float:
    """The median over the rounds of sample / base."""
    return statistics.median(a / b for a, b in zip(samples, base, strict=True))


def run(workload: Workload, found: dict, rounds: int, target: float, small: bool = False, beside: bool = False) -> dict:
    """Admits, times and compares the contenders of one workload; found: name -> Peer, or why it is absent; beside: time
    them once more beside a busy core."""
    size = workload.small if small else workload.size
    rows, steps = [], {}
    for name in workload.peers:
        if workload.needs(name) in found:
            row, step = admit(workload, found[workload.needs(name)], name, size)
            rows.append(row)
            if step:
                steps[name] = step
    samples, numbers = measure(steps, rounds, target)
    for row in rows:
        if row.contender in steps:
            row.samples, row.number = samples[row.contender], numbers[row.contender]
            row.median, row.best = statistics.median(row.samples), min(row.samples)
            row.ratio = paired_ratio(row.samples, samples[workload.base]) if workload.base in steps else None
    crowded = measure_beside(steps, numbers, rounds) if beside else {}
    for row in rows:
        if row.contender in crowded and row.best:
            row.beside = statistics.median(crowded[row.contender])
            row.slower = row.beside / row.best
    return {
        "name": workload.name,
        "title": workload.title,
        "dtype": workload.dtype,
        "tolerance": workload.tolerance,
        "size": size,
        "controls": {name: samples[name] for name in CONTROLS},
        "rows": [asdict(row) for row in rows],
        "goals": goals(workload, {row.contender: row for row in rows}),
    }


def busy(results: Sequence[dict]) -> dict[str, list[str]]:
    """For each control the workloads during which it took more than BUSY times its quiet time of the whole run."""
    out: dict[str, list[str]] = {}
    for name in CONTROLS if results else ():
        quiet = min(min(r["controls"][name]) for r in results)
        out[name] = [r["name"] for r in results if statistics.median(r["controls"][name]) > BUSY * quiet]
    return out


def goals(workload: Workload, rows: dict[str, Row]) -> list[dict]:
    """What tapeflow has to reach on this workload, what it reached (None: not measured), and whether that will do."""
    ours = rows[BASE].median if BASE in rows else None
    theirs = rows["torch"].samples if "torch" in rows else []
    ratio = paired_ratio(theirs, rows[BASE].samples) if ours and theirs else None
    out = [_goal("torch eager / tapeflow", workload.vs_torch, ratio, "x", at_least=True)] if workload.vs_torch else []
    for what, over, under, limit, at_least in workload.ratios:
        both = [rows[name].samples if name in rows else [] for name in (over, under)]
        out.append(_goal(what, limit, paired_ratio(*both) if all(both) else None, "x", at_least))
    if workload.us_per_op and workload.ops:
        per_op = ours / workload.ops * 1e6 if ours else None
        out.append(_goal("time per op, backward included", workload.us_per_op, per_op, "us"))
    plan = rows.get("tapeflow-frozen")
    if workload.frozen and plan and plan.samples and BASE in rows:
        gain = paired_ratio(rows[BASE].samples, plan.samples)
        out.append(_goal("eager / frozen", workload.frozen, gain, "x", at_least=True))
    rivals = [r for r in rows.values() if r.kind == "compiled" and r.samples and not r.contender.startswith("tapeflow")]
    if workload.ahead and plan and plan.samples and rivals:
        lead = min(paired_ratio(r.samples, plan.samples) for r in rivals)
        out.append(_goal("best compiled / frozen", workload.ahead, lead, "x", at_least=True))
    for row in (rows.get(BASE), plan):
        if row and row.slower:
            out.append(_goal(f"{row.contender}, beside a busy core / quiet", COLLAPSE, row.slower, "x"))
    frozen = plan.median if plan else None
    aims = [("time", workload.aim, ours), ("time, frozen", workload.aim_frozen, frozen)]
    for what, aim, reached in aims:  # these hold on another machine: shown beside, never judged
        if aim:
            out.append(_goal(f"{what} (set on another machine)", aim * 1e3, reached and reached * 1e3, "ms"))
            out[-1]["met"] = None
    return out


def _goal(what: str, limit: float, measured: float | None, unit: str, at_least: bool = False) -> dict:
    met = None if measured is None else (measured >= limit if at_least else measured <= limit)
    return {"what": what, "limit": limit, "at_least": at_least, "measured": measured, "unit": unit, "met": met}


# ---- where and when ----


def machine(threads: int, modules: Sequence[str]) -> dict:
    """Everything that a number without it means nothing: processor, system, versions, commit, date, load."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "threads": threads,
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "blas": _blas(),
        "versions": {module: version(module) for module in modules},
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "warnings": [
            f"{name} is set: it makes OpenBLAS choose other kernels than it would. Unset it for a benchmark."
            for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
            if os.environ.get(name)
        ],
    }


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    def git(*args: str) -> str:
        root = Path(__file__).resolve().parent
        return subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + (" with changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _blas() -> list[str]:
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return []
    found = threadpool_info()
    return sorted({f"{d['internal_api']} {d.get('architecture', '')}, {d['num_threads']} threads" for d in found})
