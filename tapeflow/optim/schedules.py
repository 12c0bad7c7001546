"""Learning rates that change: each function here makes one, a function of the number of steps done (0 at the first).

    adam = tp.optim.Adam(model.parameters(), lr=tp.optim.cosine(1e-3, steps=1000))

A step is a tensor, as in an optimizer, and the rate then a float64 tensor; or an int, and the rate then a float. Any
function of that kind is a schedule. They can be pickled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import tapeflow as tp
from tapeflow.errors import NumberRangeError

Schedule = Callable[[Any], Any]


def _count(steps: float, what: str, op: str) -> float:
    if not steps > 0:
        raise NumberRangeError(f"[{op}] {what} is {steps}, expected more than 0.")
    return float(steps)


def _evaluate(formula: Callable[..., Any], constants: tuple[Any, ...], step: Any) -> Any:
    """The formula at a step, in float64."""
    if isinstance(step, tp.Tensor):
        return formula(step.astype("float64"), *constants)
    return float(formula(tp.tensor(float(step), dtype="float64", device="cpu"), *constants))


def _schedule(formula: Callable[..., Any], *constants: Any) -> Schedule:
    return partial(_evaluate, formula, constants)


def _half_wave(x: Any, start: float, end: float) -> Any:
    """From start, at x <= 0, to end, at x >= 1, along half a wave of the cosine."""
    return end + (start - end) * (0.5 + 0.5 * tp.cos(math.pi * tp.clip(x, 0.0, 1.0)))


def _constant(step: Any, rate: float) -> Any:
    return tp.full((), rate, dtype="float64", device="cpu")


def constant(rate: float) -> Schedule:
    """The same rate at every step.

    >>> tp.optim.constant(0.1)(7)
    0.1
    """
    return _schedule(_constant, float(rate))


def _linear(step: Any, start: float, end: float, steps: float) -> Any:
    return start + (end - start) * tp.minimum(step / steps, 1.0)


def linear(start: float, end: float, steps: float) -> Schedule:
    """In a straight line from start to end within steps; end from then on.

    >>> [tp.optim.linear(1.0, 0.0, 4)(step) for step in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    """
    return _schedule(_linear, float(start), float(end), _count(steps, "steps", "linear"))


def _linear_warmup(step: Any, after: Schedule, steps: float) -> Any:
    return tp.minimum((step + 1.0) / steps, 1.0) * after(tp.maximum(step - steps, 0.0))


def linear_warmup(after: float | Schedule, steps: float) -> Schedule:
    """1, 2, 3, ... of `steps` equal parts of the first rate; from step number `steps` on the schedule itself.

    after: a rate or a schedule, which begins when the warm-up is over.

    >>> [tp.optim.linear_warmup(1.0, 4)(step) for step in (0, 1, 3, 9)]
    [0.25, 0.5, 1.0, 1.0]
    """
    return _schedule(
        _linear_warmup, after if callable(after) else constant(after), _count(steps, "steps", "linear_warmup")
    )


def _cosine(step: Any, rate: float, steps: float, final: float) -> Any:
    return _half_wave(step / steps, rate, final)


def cosine(rate: float, steps: float, final: float = 0.0) -> Schedule:
    """From rate to final within steps, along half a wave of the cosine; final from then on.

    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017, without the restarts.

    >>> [tp.optim.cosine(1.0, 2)(step) for step in (0, 1, 2, 5)]
    [1.0, 0.5, 0.0, 0.0]
    """
    return _schedule(_cosine, float(rate), _count(steps, "steps", "cosine"), float(final))


def _step_decay(step: Any, rate: float, every: float, factor: float) -> Any:
    return rate * factor ** tp.floor(step / every)


def step_decay(rate: float, every: float, factor: float = 0.1) -> Schedule:
    """rate, times factor after each `every` steps.

    >>> [tp.optim.step_decay(1.0, every=2, factor=0.5)(step) for step in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    return _schedule(_step_decay, float(rate), _count(every, "every", "step_decay"), float(factor))


def _exponential_decay(step: Any, rate: float, factor: float, every: float) -> Any:
    return rate * factor ** (step / every)


def exponential_decay(rate: float, factor: float, every: float = 1.0) -> Schedule:
    """rate * factor ** (step / every).

    >>> [tp.optim.exponential_decay(1.0, 0.5)(step) for step in (0, 1, 3)]
    [1.0, 0.5, 0.125]
    """
    return _schedule(_exponential_decay, float(rate), float(factor), _count(every, "every", "exponential_decay"))


def _one_cycle(step: Any, peak: float, steps: float, rise: float, start: float, final: float) -> Any:
    up, down = rise * steps, (1.0 - rise) * steps
    falling = _half_wave((step - up) / down, peak, final)
    return tp.where(step < up, _half_wave(step / up, start, peak), falling)


def one_cycle(
    peak: float, steps: float, rise: float = 0.3, start: float | None = None, final: float | None = None
) -> Schedule:
    """Up from start to peak during the fraction `rise` of the steps, then down to final, both along half a cosine.

    start defaults to peak / 25, final to start / 10,000.
    Smith and Topin, "Super-convergence: very fast training of neural networks using large learning rates", 2018.

    >>> [tp.optim.one_cycle(1.0, 4, rise=0.5, start=0.0, final=0.0)(step) for step in (0, 1, 2, 4)]
    [0.0, 0.5, 1.0, 0.0]
    """
    if not 0.0 < rise < 1.0:
        raise NumberRangeError(f"[one_cycle] rise is {rise}, expected a fraction between 0 and 1.")
    start = peak / 25.0 if start is None else start
    final = start / 1e4 if final is None else final
    return _schedule(_one_cycle, float(peak), _count(steps, "steps", "one_cycle"), rise, float(start), float(final))
