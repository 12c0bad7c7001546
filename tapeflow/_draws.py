"""The draws of a run, to be made again: for tp.checkpoint, and for rules of tp.custom_vjp that are run again.

Generators (random.py) ask `taken` at each draw, and `repeating` when they are seeded. One that was made within a run is
made again with it, and draws by itself.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tapeflow.errors import TapeError


class Draws:
    """The draws of a run, so that a later run makes the same ones, and leaves generators as they are meanwhile."""

    __slots__ = ("made",)

    def __init__(self) -> None:
        self.made: list[tuple[Any, int, int]] = []  # (generator, None where the run made it, too; seed, number)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """The run itself."""
        with _on_stack(_Run(self, None)):
            yield

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """A run that makes them again, all of them and in order; otherwise TapeError."""
        run = _Run(self, 0)
        with _on_stack(run):
            yield
        if run.at != len(self.made):
            raise TapeError(
                f"[checkpoint] computed again, the function made {run.at} random draws, and {len(self.made)} before. "
                "It must do the same each time: a mode or a flag has changed between forward and backward."
            )


class _Run:
    """A run under way in this thread. at: of the draws made again, how many there were; None: they are noted."""

    __slots__ = ("at", "draws", "serial")

    def __init__(self, draws: Draws, at: int | None) -> None:
        self.draws, self.at, self.serial = draws, at, next(_serials)


_serials = itertools.count(1)
_runs = threading.local()  # .stack: the runs under way, the innermost last


@contextmanager
def _on_stack(run: _Run) -> Iterator[None]:
    if not hasattr(_runs, "stack"):
        _runs.stack = []
    _runs.stack.append(run)
    try:
        yield
    finally:
        _runs.stack.pop()


def run_now() -> int:
    """The serial of the innermost run under way in this thread, which a generator keeps that is made now; 0: none."""
    stack = getattr(_runs, "stack", ())
    serial: int = stack[-1].serial if stack else 0
    return serial


def taken(generator: Any, draw: tuple[int, int] | None) -> tuple[int, int] | None:
    """For the runs under way: the draw to make again, or draw, the one that was made now; None: it is a new one."""
    noting = []
    for run in reversed(getattr(_runs, "stack", ())):
        if run.at is None:
            noting.append(run)
            continue
        if generator._born < run.serial:
            draw = _next(run, generator) if draw is None else draw
        elif draw is not None and _next(run, None) != draw:
            raise _another()
        break
    if draw is not None:
        for run in noting:
            run.draws.made.append((generator if generator._born < run.serial else None, *draw))
    return draw


def _next(run: _Run, generator: Any) -> tuple[int, int]:
    made = run.draws.made
    assert run.at is not None
    if run.at == len(made) or made[run.at][0] is not generator:
        raise _another()
    run.at += 1
    return made[run.at - 1][1:]


def _another() -> TapeError:
    return TapeError(
        "[checkpoint] computed again, the function makes other random draws than before. It must do the same each "
        "time: a mode or a flag has changed between forward and backward."
    )


def repeating(generator: Any) -> bool:
    """Whether a run is under way in this thread that makes the generator's draws again."""
    stack = getattr(_runs, "stack", ())
    return any(run.at is not None and generator._born < run.serial for run in stack)
