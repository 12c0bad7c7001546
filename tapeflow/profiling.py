"""Where time goes: `Profile`, what `Plan.profile` and `tp.profile` give, as a table, a trace or a picture."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from tapeflow import _core, _roofline
from tapeflow.errors import PlanError, TapeError

_PACKAGE = str(Path(__file__).parent) + os.sep
_ENDINGS = (".json", ".svg", ".txt")
_WIDEST = 48  # characters of a step's name in a table


class Step(NamedTuple):
    """What runs as one: ops in order, dtype and shape of its results, seconds, bytes moved, arithmetic, source line,
    when it began, and the seconds of the steps that ran within it, which are not among its own."""

    ops: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    seconds: float
    nbytes: int
    flops: int
    line: str
    start: float = 0.0
    inside: float = 0.0

    @property
    def name(self) -> str:
        """The ops by how many there are of each."""
        return " ".join(f"{n} {op}" if n > 1 else op for op, n in Counter(self.ops).most_common())

    @property
    def result(self) -> str:
        return f"{self.dtype}{list(self.shape)}" if self.dtype else ""


class Total(NamedTuple):
    """All steps of one name: how many, and what they take together."""

    name: str
    calls: int
    seconds: float
    nbytes: int
    flops: int
    bound: float


class Totals(list[Total]):
    """Totals by name, those that take longest first. print() shows a table."""

    def __str__(self) -> str:
        total = sum(row.seconds for row in self) or 1.0
        rows: list[tuple[str, ...]] = [("step", "calls", "us", "share", "GB/s", "GFLOP/s", "bound us", "of bound")]
        for row in self:
            numbers = _numbers(row.seconds, total, row.nbytes, row.flops, row.bound)
            rows.append((_shortened(row.name), str(row.calls), *numbers))
        return "\n".join(_aligned(rows, (0,)))


@dataclass(eq=False)
class Profile:
    """Steps in the order in which they ran, each with its time.

    Bytes are those of a step's operands and of the results that it leaves in memory; flops count what an op computes,
    an exp as the operations of its polynomial. The bound is the least time that the machine needs for the bytes or for
    the flops, whichever is more: bandwidth and peak are measured once, when a bound is first asked for. print() shows a
    table, `save` writes a trace or a picture.

    Attributes: steps (a list of `Step`), name, threads, wall (seconds from the beginning to the end, with what is no
    step; 0 of a plan, whose steps are timed one by one).
    """

    steps: list[Step] = field(default_factory=list)
    name: str = "plan"
    threads: int = 1
    wall: float = 0.0

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return sum(step.seconds for step in self.steps)

    @cached_property
    def machine(self) -> _roofline.Machine:
        """Bandwidths and peaks of this machine, with as many threads as were used."""
        return _roofline.machine(self.threads)

    def bound(self, step: Step) -> float:
        """The seconds that a step takes at least."""
        return self.machine.bound(step.nbytes, step.flops, step.dtype)

    def by_op(self) -> Totals:
        """The steps of one name together, those that take longest first.

        >>> x = tp.ones(1000)
        >>> with tp.profile() as p:
        ...     y = tp.sum(tp.exp(x)) + tp.sum(x)
        >>> sorted((row.name, row.calls) for row in p.by_op())
        [('add', 1), ('exp', 1), ('sum', 2)]
        """
        found: dict[str, list[Step]] = {}
        for step in self.steps:
            found.setdefault(step.name, []).append(step)
        rows = [
            Total(
                name,
                len(steps),
                sum(s.seconds for s in steps),
                sum(s.nbytes for s in steps),
                sum(s.flops for s in steps),
                sum(map(self.bound, steps)),
            )
            for name, steps in found.items()
        ]
        return Totals(sorted(rows, key=lambda row: -row.seconds))

    def __str__(self) -> str:
        total = self.seconds or 1.0
        rows: list[tuple[str, ...]] = [
            ("", "step", "result", "us", "share", "GB/s", "GFLOP/s", "bound us", "of bound", "line")
        ]
        for n, s in enumerate(self.steps):
            numbers = _numbers(s.seconds, total, s.nbytes, s.flops, self.bound(s))
            rows.append((str(n), _shortened(s.name), s.result, *numbers, s.line))
        wall = f" of {self.wall * 1e6:.1f} us" if self.wall else ""
        return "\n".join([*_aligned(rows, (1, 2, 9)), f"{len(self.steps)} steps, {self.seconds * 1e6:.1f} us{wall}"])

    def __repr__(self) -> str:
        return f"<Profile {self.name}: {len(self.steps)} steps, {self.seconds * 1e6:.1f} us>"

    def to_chrome(self) -> str:
        """JSON in the Trace Event Format, which https://ui.perfetto.dev and chrome://tracing open: one complete event
        a step, with its bytes, rates and bound as arguments."""
        from tapeflow import _timeline

        return _timeline.chrome(self)

    def to_svg(self) -> str:
        """A picture: the steps that take longest as bars over time, red where they are far from their bound, green
        where they are near it."""
        from tapeflow import _timeline

        return _timeline.svg(self)

    _repr_svg_ = to_svg

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile to a file, as its ending says: .json a trace (`to_chrome`), .svg a picture (`to_svg`),
        .txt the table.

        Raises
        ------
        PlanError
            The file ends in something else.
        """
        ending = Path(path).suffix.lower()
        if ending not in _ENDINGS:
            raise PlanError(
                f"[profile.save] cannot write {os.fspath(path)!r}. It may end in {', '.join(_ENDINGS)}: a trace for "
                "Perfetto, a picture, the table."
            )
        text = self.to_chrome() if ending == ".json" else self.to_svg() if ending == ".svg" else f"{self}\n"
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")


def rates(seconds: float, nbytes: int, flops: int, bound: float) -> tuple[float, float, float]:
    """GB/s, GFLOP/s and the share of the bound, from 0 to 1 (or above, where other work slowed the measurement)."""
    took = max(seconds, 1e-9)
    return nbytes / took / 1e9, flops / took / 1e9, bound / took


def _numbers(seconds: float, total: float, nbytes: int, flops: int, bound: float) -> tuple[str, ...]:
    """The columns us, share, GB/s, GFLOP/s, bound us, of bound."""
    bandwidth, arithmetic, share = rates(seconds, nbytes, flops, bound)
    return (
        f"{seconds * 1e6:.2f}",
        f"{100 * seconds / total:.1f} %",
        f"{bandwidth:.2f}",
        f"{arithmetic:.2f}",
        f"{bound * 1e6:.2f}",
        f"{100 * share:.0f} %" if bound else "",
    )


def _shortened(name: str) -> str:
    return name if len(name) <= _WIDEST else name[: _WIDEST - 3] + "..."


def _aligned(rows: Sequence[tuple[str, ...]], left: tuple[int, ...]) -> list[str]:
    """The rows as lines; left: the columns of words."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(x.ljust(w) if i in left else x.rjust(w) for i, (x, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )
    return [line.rstrip() for line in lines]


# ---- eager code


class profile:
    """Inside `with tp.profile() as p:` each op that this thread runs is a step of p, a `Profile`, complete afterwards.

    An op is timed from when its arguments are ready until its result is. Steps nest: "backward" holds the ops of the
    rules and, as exp_vjp, the fused loops of elementwise ones; a replay of a plan is one step; a step's seconds are
    without those inside it. `p.wall` is the time of the block: what the steps leave of it is Python's, and that of
    making arrays tensors. A step costs about a microsecond, most of it outside of what is timed. Profiles may be open
    one inside the other; other threads are not looked at.

    Parameters
    ----------
    name : str
        What pictures and traces call it.

    Raises
    ------
    TapeError
        The block is left in another thread.

    >>> x = tp.ones(1000, requires_grad=True)
    >>> with tp.profile() as p:
    ...     tp.sum(tp.exp(x)).backward()
    >>> [step.name for step in p.steps]
    ['exp', 'sum', 'backward', 'reshape', 'broadcast_to', 'exp_vjp']
    """

    def __init__(self, name: str = "profile") -> None:
        self._name = name
        self._entered: dict[int, list[_Open]] = {}

    def __enter__(self) -> Profile:
        opened = Profile(name=self._name, threads=_core.get_num_threads())
        if not _thread.open:
            _thread.records = []
            _core.set_steps(_thread.records)
        entered = _Open(opened, len(_thread.records), _core.clock())
        _thread.open.append(entered)
        self._entered.setdefault(threading.get_ident(), []).append(entered)
        return opened

    def __exit__(self, *exc: object) -> None:
        stop = _core.clock()
        mine = self._entered.get(threading.get_ident())
        if not mine:
            raise TapeError("[profile] the context was left without being entered in this thread.")
        entered = mine.pop()
        _thread.open.remove(entered)
        records = _thread.records
        if not _thread.open:
            _core.set_steps(None)
            _thread.records = []
        entered.profile.steps.extend(_steps(records[entered.first :], entered.start))
        entered.profile.wall = stop - entered.start


class _Open(NamedTuple):
    profile: Profile
    first: int  # of the thread's records
    start: float


class _Thread(threading.local):
    """The profiles that are open in this thread, and the records that they share."""

    def __init__(self) -> None:
        self.open: list[_Open] = []
        self.records: list[tuple[Any, ...]] = []


_thread = _Thread()


def replayed(plan: Any, run: Callable[[], list[Any]]) -> list[Any]:
    """run(), the replay of a plan on a device, as one step of this thread's profiles: what it runs is none."""
    if not _thread.open:
        return run()
    records, start = _thread.records, _core.clock()
    _core.set_steps(None)
    try:
        outputs = run()
    finally:
        _core.set_steps(records)
    y = outputs[0] if len(outputs) == 1 else None
    dtype, shape = (y.dtype.name, y.shape) if y is not None else ("", ())
    records.append((start, _core.clock(), "plan", "", dtype, dtype, shape, [], 0, (plan, 1), _place_of_the_user()))
    return outputs


def _place_of_the_user() -> tuple[str, int]:
    """The file and line that called the package."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _steps(records: list[tuple[Any, ...]], begin: float) -> list[Step]:
    """The records (core/steps.pxi) as steps in the order in which they began; one that began and ended within another
    is inside of it."""
    records = sorted(records, key=lambda r: (r[0], -r[1]))
    inside = [0.0] * len(records)
    around: list[int] = []
    for n, (start, stop, *_) in enumerate(records):
        while around and records[around[-1]][1] < stop:
            around.pop()
        if around:
            inside[around[-1]] += stop - start
        around.append(n)
    return [_step(record, within, begin) for record, within in zip(records, inside, strict=True)]


def _step(record: tuple[Any, ...], inside: float, begin: float) -> Step:
    start, stop, name, suffix, wide, dtype, shape, ins, nbytes, more, (file, line) = record
    if name == "plan":
        plan, runs = more
        name, nbytes, count = f"plan {plan.name}", runs * plan.moved, runs * plan.flops
    elif more:
        count = _roofline.size_of(shape) * _roofline.rule_cost(name, more, dtype)
    else:
        count = _roofline.flops(name + suffix, ins, shape, wide)
    seconds = max(0.0, stop - start - inside)
    return Step((name + suffix,), dtype, shape, seconds, nbytes, count, f"{file}:{line}", start - begin, inside)
