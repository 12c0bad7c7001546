"""What an OpenCL device takes, and beside whom: the parts of `python -m bench --opencl` and `python -m bench.gpu`.

A part is a function of (device, its name, Effort) that gives rows. Where NumPy computes beside a device that is the
same processor, OpenBLAS's idle threads spin for some 120 ms on cores that the device's need; Intel's runtime and PoCL
let theirs sleep at once. So such pairs are timed thrice: in blocks (a rest, then many calls), in single calls after a
rest, when all threads sleep, and in single calls in turn without a rest, when the device finds a core taken by threads
that do nothing. All three stand in the table.
"""

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tapeflow as tp
from tapeflow.backend.opencl.host import Device, Launch
from tapeflow.backend.opencl.reductions import has_vectors
from tapeflow.plan import ir
from tapeflow.plan.placed import DevicePlan

from . import harness, peers, rivals
from .workloads import ALL

Row = dict[str, Any]
Steps = dict[str, Callable[[], Any]]
OURS = "tapeflow"
PRODUCT = 1024
ELEMENTS = 16 << 20
CHAIN = 200  # instructions of the plan whose launches are timed
EAGER = 200  # ops before the device is waited for


@dataclass(frozen=True)
class Effort:
    """How long to measure: rounds of samples that last about target seconds; seconds for single calls in turn."""

    rounds: int = 9
    target: float = 30e-3
    seconds: float = 3.0
    small: bool = False  # sizes for a test of the bench itself

    def size(self, whole: int, small: int) -> int:
        return small if self.small else whole


# ---- rows ----


def row(what: str, ours: Sequence[float], peer: str = "", theirs: Sequence[float] = (), note: str = "") -> Row:
    """Samples of both, in seconds, round by round; ratio: the median over the rounds of theirs / ours."""
    found: Row = {"what": what, "peer": peer, "note": note, "goal": None, "samples": [list(ours), list(theirs)]}
    found["ours"], found["ours_quiet"] = statistics.median(ours), min(ours)
    found["theirs"] = statistics.median(theirs) if theirs else None
    found["theirs_quiet"] = min(theirs) if theirs else None
    found["ratio"] = harness.paired_ratio(theirs, ours) if theirs else None
    found["quiet"] = min(theirs) / min(ours) if theirs else None
    return found


def missing(what: str, peer: str, why: str) -> Row:
    """A row without figures."""
    return {
        "what": what, "peer": peer, "note": why, "goal": None, "samples": [], "ours": None, "ours_quiet": None,
        "theirs": None, "theirs_quiet": None, "ratio": None, "quiet": None,
    }  # fmt: skip


def judged(found: Row, limit: float, value: float | None = None, unit: str = "x", at_least: bool = True) -> Row:
    """The row with a goal for its ratio, or for a value."""
    measured = found["ratio"] if value is None else value
    found["goal"] = harness._goal(found["what"], limit, measured, unit, at_least)
    return found


# ---- samples ----


def in_blocks(steps: Steps, effort: Effort) -> dict[str, list[float]]:
    """Samples of many calls, with a rest before each."""
    return harness.measure(steps, effort.rounds, effort.target)[0]


def one_by_one(steps: Steps, effort: Effort, rest: float) -> dict[str, list[float]]:
    """Single calls, in turn, with a rest before each."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + effort.seconds
    while not all(map(len, taken.values())) or time.perf_counter() < end:
        for name, step in steps.items():
            time.sleep(rest)
            begin = time.perf_counter()
            step()
            taken[name].append(time.perf_counter() - begin)
    return taken


def beside(what: str, steps: Steps, effort: Effort, limits: dict[str, float], same_processor: bool) -> list[Row]:
    """Rows of tapeflow's step beside each other one's; limits: goals, by peer."""
    ways = {"": in_blocks(steps, effort)}
    if same_processor and len(steps) > 1:
        ways = {
            ", in blocks": ways[""],
            ", single calls after a rest": one_by_one(steps, effort, harness.SETTLE),
            ", single calls in turn": one_by_one(steps, effort, 0.0),
        }
    rows = []
    for way, taken in ways.items():
        for peer in [name for name in steps if name != OURS] or [""]:
            rows.append(row(what + way, taken[OURS], peer, taken[peer] if peer else ()))
            if peer in limits:
                judged(rows[-1], limits[peer])
    return rows


# ---- what lies on the device ----


def placed(device: Any, x: np.ndarray) -> Any:
    """A copy of a NumPy array on the device."""
    array = device.empty_array(ir.DTYPES.index(x.dtype.name), x.shape, "bench")
    device.upload(array, x, owned=True)
    return array


def op(device: Any, name: str, ins: Sequence[Any], out: Any) -> Callable[[], None]:
    """Enqueue an op and wait for it."""
    code = ir.CODES[name]

    def step() -> None:
        device.execute(code, (), ins, out)
        device.sync()

    return step


def launches_of(plan: Any) -> list[Launch]:
    """What a plan on a device enqueues, after it has run once; all of it must be launches."""
    found = [command for commands in plan._commands for command in commands]
    assert all(type(command) is Launch for command in found), "the plan asks for more than launches"
    return found


def agrees(got: np.ndarray, want: np.ndarray, rtol: float, what: str) -> None:
    """No number without a passed check."""
    error, wrong = harness.difference([got], [want], rtol)
    if wrong:
        raise AssertionError(f"{what}: {wrong} ({error:.1e})")


# ---- the parts ----


def matmul(device: Any, name: str, effort: Effort, sizes: Sequence[int] = (PRODUCT,)) -> Iterator[Row]:
    """float32 products beside NumPy's BLAS, where both are the processor, and beside CLBlast."""
    rng = np.random.default_rng(3)
    largest = largest_product(device, effort)
    for n in sorted({min(effort.size(n, 64), largest) for n in sizes}):
        what = f"matmul {n} x {n}, float32"
        x, y = (rng.normal(size=(n, n)).astype(np.float32) for _ in range(2))
        a, b, out = placed(device, x), placed(device, y), placed(device, np.zeros((n, n), np.float32))
        steps: Steps = {OURS: op(device, "matmul", [a, b], out)}
        steps[OURS]()
        agrees(device.download(out), x @ y, 1e-5, what)
        limits = {"CLBlast": 1.0}
        if device.is_cpu:
            steps["NumPy"] = lambda x=x, y=y: x @ y
            if has_vectors(device):  # llvmpipe, an interpreter of shaders, has no part in the goal
                limits["NumPy"] = 0.6
        try:
            other = placed(device, np.zeros((n, n), np.float32))
            enqueue = rivals.clblast(device, a, b, other)

            def theirs(enqueue: Callable[[], None] = enqueue) -> None:
                enqueue()
                device.sync()

            theirs()
            agrees(device.download(other), x @ y, 1e-5, "CLBlast")
            steps["CLBlast"] = theirs
        except Exception as error:  # a peer that fails must not end ours
            yield missing(what, "CLBlast", f"{'absent' if isinstance(error, rivals.Absent) else 'FAILED'}: {error}")
        for found in beside(what, steps, effort, limits, device.is_cpu):
            found["note"] = f"{2 * n**3 / found['ours_quiet'] / 1e9:.0f} GFLOP/s at best"
            yield found


def largest_product(device: Any, effort: Effort) -> int:
    """The largest power of two of which a product takes this device less than half a second."""
    n = effort.size(128, 32)
    a, out = placed(device, np.ones((n, n), np.float32)), placed(device, np.zeros((n, n), np.float32))
    step = op(device, "matmul", [a, a], out)
    step()
    seconds = min(harness.sample(step, 1) for _ in range(3))
    while seconds < 0.06 and n < 1 << 14:
        n, seconds = 2 * n, 8 * seconds
    return n


def chain(x: Any, y: Any) -> Any:
    """Five steps that read two arrays and write one, as an addition does."""
    return tp.maximum(x * y + x, 0.25) * 0.5 - y


def elementwise(device: Any, name: str, effort: Effort) -> Iterator[Row]:
    """An addition and a fused chain over 16 M float32 (64 MB each): bytes per second beside NumPy's addition."""
    n = effort.size(ELEMENTS, 1000)
    if device.max_allocation < 4 * n or device.memory_limit < 28 * n:
        n = min(device.max_allocation, device.memory_limit // 7) // 4
    rng = np.random.default_rng(4)
    x, y = (rng.normal(size=n).astype(np.float32) for _ in range(2))
    z, a, b = np.empty_like(x), placed(device, x), placed(device, y)
    out = placed(device, z)
    add = op(device, "add", [a, b], out)
    add()
    agrees(device.download(out), x + y, 1e-7, "add")
    plan = tp.freeze(chain, tp.tensor(x), tp.tensor(y)).to(name)
    agrees(np.asarray(plan(tp.tensor(x), tp.tensor(y)).to("cpu")), np.maximum(x * y + x, 0.25) * 0.5 - y, 1e-6, "chain")
    launches = launches_of(plan)

    def fused() -> None:
        device.replay(launches)
        device.sync()

    limit = {"NumPy's add": 0.8} if has_vectors(device) else {}
    for what, step in ((f"add, {n:,} float32", add), (f"chain of 5, frozen, {n:,} float32", fused)):
        steps: Steps = {OURS: step}
        if device.is_cpu:
            steps["NumPy's add"] = lambda: np.add(x, y, out=z)
        for found in beside(what, steps, effort, limit, same_processor=False):
            found["note"] = f"{12 * n / found['ours_quiet'] / 1e9:.1f} GB/s at best"
            if found["theirs"]:
                found["note"] += f", NumPy {12 * n / found['theirs_quiet'] / 1e9:.1f}"
            yield found


def launch(device: Any, name: str, effort: Effort) -> Iterator[Row]:
    """What an instruction of a plan costs when the plan is repeated, beside a loop in C over the same kernels."""

    def program(x: Any) -> Any:
        for k in range(CHAIN):
            x = tp.sin(x) if k % 2 else x * 1.01
        return x

    x = np.linspace(0.0, 1.0, 16, dtype=np.float32)
    plan = tp.freeze(program, tp.tensor(x), passes=("dce",)).to(name)
    want = x
    for k in range(CHAIN):
        want = np.sin(want) if k % 2 else want * np.float32(1.01)
    agrees(np.asarray(plan(tp.tensor(x)).to("cpu")), want, 1e-4, "the plan")
    launches = launches_of(plan)

    def waited(enqueue: Callable[[], None]) -> Callable[[], None]:
        def step() -> None:
            enqueue()
            device.sync()

        return step

    steps: Steps = {OURS: waited(lambda: device.replay(launches))}
    what = f"launches of a frozen plan, {len(launches)} of one kernel each, per launch"
    try:
        with rivals.c_loop() as bound:
            steps["C loop"] = waited(bound(device, launches))
            taken = in_blocks(steps, effort)
    except rivals.Absent as error:
        taken = in_blocks({OURS: steps[OURS]}, effort)
        yield missing(what, "C loop", f"absent: {error}")
    each = {key: [t / len(launches) for t in taken[key]] for key in steps if key in taken}
    found = row(what, each[OURS], "C loop" if "C loop" in each else "", each.get("C loop", ()))
    if found["ratio"]:
        judged(found, 1.5, statistics.median(a / b for a, b in zip(*found["samples"], strict=True)), at_least=False)
        found["note"] = "goal: tapeflow / C loop"
    yield found


def eager(device: Any, name: str, effort: Effort) -> Iterator[Row]:
    """x + x of 16 numbers on the device, nothing recorded: many in a row, then wait for them."""
    x = tp.tensor(np.arange(16, dtype=np.float32)).to(name)
    if not np.array_equal(np.asarray((x + x).to("cpu")), 2 * np.arange(16, dtype=np.float32)):
        raise AssertionError("x + x is wrong")

    def step() -> None:
        for _ in range(EAGER):
            x + x
        device.sync()

    samples = [t / EAGER for t in in_blocks({OURS: step}, effort)[OURS]]
    yield judged(row("x + x of 16, eager, per op", samples), 15.0, statistics.median(samples) * 1e6, "us", False)


def training(device: Any, name: str, effort: Effort) -> Iterator[Row]:
    """A frozen step of W3, its loss read, beside TinyJit of tinygrad on the same device: the parameters on the device,
    and on the host, where each step writes them."""
    w = ALL["W3"]
    size = w.small if effort.small else w.size
    ways = {}
    for where, step in (("device", _step_there(w, size, name)), ("host", _step_from_here(w, size, name))):
        before = device.launches
        error, wrong, _, _ = harness.gate(w, size, step)
        if wrong or device.launches == before:
            raise AssertionError(f"parameters on the {where}: {wrong or 'nothing ran on the device'} ({error:.1e})")
        ways[f"W3: a step of training, frozen, its loss read, parameters on the {where}"] = _loss_of(step)
    try:
        theirs = rivals.TinyStep(device, effort.small)
    except rivals.Absent as why:
        for what, step in ways.items():
            yield row(what, in_blocks({OURS: step}, effort)[OURS])
        yield missing("W3", "tinygrad", f"absent: {why}")
        return
    with contextlib.closing(theirs):
        numbers = {what: _number(harness.sample(step, 5), effort) for what, step in ways.items()}
        theirs.sample(5)  # TinyJit records
        their_number = _number(theirs.sample(5), effort)
        samples: dict[str, list[float]] = {what: [] for what in ways}
        others = []
        for _ in range(effort.rounds):
            for what, step in ways.items():
                samples[what].append(harness.settled(step, numbers[what], effort.target))
            time.sleep(harness.SETTLE if effort.target >= 0.01 else 0)
            others.append(theirs.sample(their_number))
        for what in ways:
            note = "tinygrad in a process of its own"
            yield judged(row(what, samples[what], f"tinygrad {theirs.version}", others, note), 1.0)


def _number(seconds: float, effort: Effort) -> int:
    """How many calls of so many seconds last about as long as a sample should."""
    return max(1, round(effort.target / max(seconds, 1e-6)))


def _loss_of(step: peers.Step) -> Callable[[], float]:
    return lambda: float(step()[0])


def _step_there(w: harness.Workload, size: dict, name: str) -> peers.Step:
    """A step with parameters and data on the device."""
    with tp.default_device(name):
        return w.step(peers.tapeflow_frozen(tp.get_num_threads()), size)


def _step_from_here(w: harness.Workload, size: dict, name: str) -> peers.Step:
    """A step by `plan.to(name)`, the parameters tensors of the host."""
    arrays = w.arrays(size)
    f = w.formula(peers.tapeflow(tp.get_num_threads()).ns, **size)
    ps, update = peers._descent(tp, f, arrays[: w.leaves], arrays[w.leaves :], w.lr)
    plan = tp.freeze(update).to(name)
    return lambda: [plan(), *ps]


@contextlib.contextmanager
def cold(device: Any) -> Iterator[Device]:
    """The device opened once more, knowing no kernel, with an empty cache on disk."""
    before = os.environ.get("TAPEFLOW_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="tapeflow-bench-", ignore_cleanup_errors=True) as folder:
        os.environ["TAPEFLOW_CACHE_DIR"] = folder
        try:
            yield Device(device.info)
        finally:
            if before is None:
                del os.environ["TAPEFLOW_CACHE_DIR"]
            else:
                os.environ["TAPEFLOW_CACHE_DIR"] = before


def shapes(device: Any, name: str, effort: Effort) -> Iterator[Row]:
    """New shapes of a known structure: how many programs they build, where no kernel was known before the first."""

    def program(x: Any, y: Any) -> Any:
        z = tp.tanh(x) * y + tp.sum(x, axis=0)
        parts = [z @ tp.matrix_transpose(y), tp.softmax(z, axis=1), tp.cumsum(x, axis=1), tp.sort(y, axis=1)]
        parts += [tp.take(x, tp.argmax(y, axis=0), axis=0), tp.concat([x, z]), tp.max(y, axis=1), tp.var(x, axis=0)]
        return sum(tp.sum(part) for part in parts)

    built = []
    rng = np.random.default_rng(6)
    with cold(device) as own:
        for m, n in ((40, 50), (41, 62), (57, 33)):
            x, y = (tp.tensor(rng.normal(size=(m, n)).astype(np.float32)) for _ in range(2))
            before = own.builds
            plan = tp.freeze(tp.value_and_grad(program, argnums=(0, 1)), x, y)
            got, want = DevicePlan(plan, own, name)(x, y), plan(x, y)
            for a, b in zip((got[0], *got[1]), (want[0], *want[1]), strict=True):
                agrees(np.asarray(a.to("cpu")), np.asarray(b), 1e-4, "the program")
            built.append(own.builds - before)
    found = missing("programs built for two new shapes of a known structure", "", f"{built[0]} for the first shape")
    yield judged(found, 0.0, float(sum(built[1:])), "", at_least=False)


def transfers(device: Any, name: str, effort: Effort) -> Iterator[Row]:
    """Bytes to the device, from it, within it, and how long one number takes there and back."""
    n = min(effort.size(ELEMENTS, 1000), min(device.max_allocation, device.memory_limit // 4) // 4)
    x = np.random.default_rng(8).normal(size=n).astype(np.float32)
    here, there = placed(device, x), placed(device, np.zeros_like(x))
    device.copy(here, there)
    agrees(device.download(there), x, 1e-12, "copy")
    one = placed(device, x[:1])

    def upload() -> None:
        device.upload(here, x, owned=True)
        device.sync()

    def copy() -> None:
        device.copy(here, there)
        device.sync()

    def both() -> None:
        device.upload(one, x[:1])
        device.download(one)

    ways: list[tuple[str, Callable[[], Any], int]] = [
        ("upload", upload, 4), ("download", lambda: device.download(there), 4), ("copy on the device", copy, 8),
    ]  # fmt: skip
    for what, step, width in ways:
        found = row(f"{what}, {4 * n:,} bytes", in_blocks({OURS: step}, effort)[OURS])
        found["note"] = f"{width * n / found['ours_quiet'] / 1e9:.1f} GB/s at best"
        yield found
    yield row("one number there and back", in_blocks({OURS: both}, effort)[OURS])


PARTS: dict[str, Callable[..., Iterator[Row]]] = {
    f.__name__: f for f in (matmul, elementwise, launch, eager, training, shapes, transfers)
}


def measured(part: str, device: Any, name: str, effort: Effort, **more: Any) -> Iterator[Row]:
    """The rows of a part; what it raises is a row too."""
    try:
        yield from PARTS[part](device, name, effort, **more)
    except Exception as error:  # the other parts go on
        said = str(error).splitlines()[0] if str(error) else ""
        yield missing(part, "", f"FAILED: {type(error).__name__}: {said}")
