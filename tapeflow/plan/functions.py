"""`tp.function`: the one-line switch from eager to frozen, and `tp.eager`, the way back."""

from __future__ import annotations

import functools
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tapeflow import _core, _epoch
from tapeflow._core import GuardFailed, Tensor
from tapeflow.errors import PlanError
from tapeflow.plan import passes
from tapeflow.plan.plans import Plan
from tapeflow.plan.record import Recording, is_dynamic, record
from tapeflow.transforms import flatten, unflatten

_VARIANTS = 8  # values at one and the same guard, after which the signature runs eagerly
# what a key begins with
_MODES = (
    "grad mode, trace_nan or the default device",
    "the default dtype",
    "train or eval",
    "the structure of the arguments",
)
_FIRST = len(_MODES)
_state = threading.local()


@contextmanager
def eager() -> Iterator[None]:
    """Inside `with tp.eager():` every tp.function runs as the plain function that it was made of.

    >>> twice = tp.function(lambda x: 2 * x)
    >>> with tp.eager():
    ...     float(twice(tp.tensor(3.0)))
    6.0
    """
    _state.eager = _depth() + 1
    try:
        yield
    finally:
        _state.eager -= 1


def _depth() -> int:
    depth: int = getattr(_state, "eager", 0)
    return depth


class _Entry:
    """What one signature has: plans, one for each path that Python took, or a reason to run eagerly."""

    __slots__ = ("plans", "reason", "used")

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.reason = ""
        self.used = False  # since the cache was last looked through for one to drop


class Function:
    """A function that is recorded once for each signature and replayed from then on. Made by tp.function."""

    def __init__(self, f: Callable[..., Any], max_plans: int, passes: tuple[str, ...]) -> None:
        functools.update_wrapper(self, f)
        self._f = f
        self._max_plans = max_plans
        self._passes = passes
        self._entries: OrderedDict[Any, _Entry] = OrderedDict()
        self._dropped = 0

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _core.is_recording() or _depth():
            return self._f(*args, **kwargs)
        key = self._key(args, kwargs)
        entry = self._entries.get(key)
        if entry is None:
            with _core.get_state_lock():  # of several threads one records, and the others wait for its plan
                entry = self._entries.get(key)
                if entry is None:
                    return self._first(key, args, kwargs)
        entry.used = True
        tried: list[Plan] = []
        while not entry.reason:
            for plan in entry.plans:
                if plan in tried:
                    continue
                try:
                    result = plan(*args, **kwargs)
                except GuardFailed:
                    tried.append(plan)
                    continue
                if tried:
                    self._to_front(entry, plan)
                return result
            with _core.get_state_lock():
                if all(plan in tried for plan in entry.plans):
                    return self._another(entry, args, kwargs)
        return self._f(*args, **kwargs)

    @staticmethod
    def _to_front(entry: _Entry, plan: Plan) -> None:
        """The path that was taken last is tried first."""
        try:
            entry.plans.remove(plan)
        except ValueError:  # another thread does the same
            return
        entry.plans.insert(0, plan)

    # ---- recording

    def _first(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entry = _Entry()
        result = self._record(entry, args, kwargs)
        self._entries[key] = entry
        while len(self._entries) > self._max_plans:
            oldest, other = next(iter(self._entries.items()))
            if other.used or other is entry:
                other.used = False
                self._entries.move_to_end(oldest)
                continue
            del self._entries[oldest]
            self._dropped += 1
            if self._dropped == self._max_plans:
                text = f"[tp.function] {self._name} is recorded again and again: {self._churning()}. "
                warnings.warn(text + "Pass what changes as a tensor, or call the plain function.", stacklevel=4)
        return result

    def _another(self, entry: _Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A path that was not taken before: record it, too, unless there are too many."""
        if len(entry.plans) >= _VARIANTS:
            try:
                entry.plans[0](*args, **kwargs)
            except GuardFailed as error:
                entry.reason = f"Python looked at values that are new at each call. {error}"
            entry.plans = []
            warnings.warn(f"[tp.function] {self._name} runs eagerly from now on: {entry.reason}", stacklevel=4)
            return self._f(*args, **kwargs)
        return self._record(entry, args, kwargs)

    def _record(self, entry: _Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # what a recording is given has places of its own on the tape: a run that a backward from outside is to
        # go through is done again
        outside = _core.is_grad_enabled() and any(
            isinstance(x, Tensor) and x.requires_grad for x in flatten((args, kwargs))[0]
        )

        def make(r: Recording) -> bool:
            if r.differentiable:
                entry.reason = (
                    "a result can still be differentiated with respect to something captured or passed: gradients "
                    "outside of the function need its tape. Take the gradients inside, or call it under no_grad."
                )
            else:
                entry.plans.insert(0, Plan(r.ir, r, self._passes, name=self._name))
            return not outside

        r, result = record(self._f, args, kwargs, "tp.function", make)
        if outside:
            return self._f(*args, **kwargs) if r.differentiable else entry.plans[0](*args, **kwargs)
        if r.differentiable:
            return result
        leaves, structure = flatten(result)
        with _core.aside():  # whatever is being recorded knows nothing of these tensors
            return unflatten(structure, [x.detach() if isinstance(x, Tensor) else x for x in leaves])

    def plan_for(self, *args: Any, **kwargs: Any) -> Plan | None:
        """The plan for arguments like these, recorded without effects where it is the first; None where there are
        several paths or none."""
        key = self._key(args, kwargs)
        entry = self._entries.get(key)
        if entry is None:
            r, _ = record(self._f, args, kwargs, "tp.function")
            if r.differentiable:
                return None
            entry = self._entries[key] = _Entry()
            entry.plans.append(Plan(r.ir, r, self._passes, name=self._name))
        return entry.plans[0] if len(entry.plans) == 1 and not entry.reason else None

    # ---- signatures

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        parts: list[Any] = [
            (_core.is_grad_enabled(), _core.is_tracing(), _core.default_place()),
            _core.get_default_dtype(),
            _epoch.current(),
            None,
        ]
        simple = not kwargs
        for x in args if simple else ():  # without containers there is no structure to look at
            kind = type(x)
            if kind is Tensor:
                parts.append(_signature(x))
            elif kind is np.ndarray:
                parts.append((x.shape, x.dtype))
            elif kind is float:
                parts.append("float")
            else:
                simple = False
                break
        if simple:
            return tuple(parts)
        leaves, structure = flatten((args, kwargs))
        parts[_FIRST - 1 :] = [_hashable(structure)]
        for x in leaves:
            if is_dynamic(x):
                if type(x) is float:
                    parts.append("float")
                elif isinstance(x, Tensor):
                    parts.append(_signature(x))
                else:
                    parts.append((np.shape(x), np.asarray(x).dtype))
            else:
                try:
                    hash(x)
                except TypeError:
                    raise PlanError(
                        f"[tp.function] an argument of type {type(x).__name__} is neither a tensor, array or float nor "
                        "hashable. Pass tensors, or values that can be compared."
                    ) from None
                parts.append((type(x), x))
        return tuple(parts)

    def _churning(self) -> str:
        """Which part of the signature changes."""
        keys = [k for k in self._entries if len(k) == len(next(iter(self._entries)))]
        for i in range(len(keys[0])):
            if len({k[i] for k in keys}) == len(keys) > 1:
                what = _MODES[i] if i < _FIRST else f"argument {i - _FIRST}"
                return f"{what} is another at each call, last {keys[-1][i]!r}"
        return "its signatures are many"

    # ---- facts

    @property
    def _name(self) -> str:
        return getattr(self._f, "__name__", "function")

    @property
    def plans(self) -> list[Plan]:
        """The plans of all signatures."""
        return [plan for entry in list(self._entries.values()) for plan in entry.plans]

    def explain(self) -> str:
        """Why each plan exists, and what is constant in it."""
        lines = [f"{self._name}: {len(self._entries)} signatures"]
        for key, entry in list(self._entries.items()):
            lines.append(f"- {', '.join(map(str, key[_FIRST:])) or 'no arguments'}")
            if entry.reason:
                lines.append(f"  runs eagerly: {entry.reason}")
            lines += [f"  {line}" for plan in entry.plans for line in plan.explain().splitlines()]
        return "\n".join(lines)


def _signature(x: Tensor) -> tuple[Any, ...]:
    there = _core.place_of(x)
    return (x.shape, x.dtype, x.requires_grad) if there is None else (x.shape, x.dtype, x.requires_grad, there)


def _hashable(structure: Any) -> Any:
    if structure is None:
        return None
    kind, parts = structure
    if issubclass(kind, dict):
        return kind, tuple((k, _hashable(v)) for k, v in parts)
    return kind, tuple(_hashable(part) for part in parts)


def function(f: Callable[..., Any] | None = None, *, max_plans: int = 32, fast: bool = False) -> Any:
    """f, recorded at its first call with each signature and replayed as a plan afterwards.

    Parameters
    ----------
    f : callable
        May call backward or grad, update captured tensors in place, draw random numbers; returns tensors, numbers and
        nested containers of them.
    max_plans : int
        Signatures that are kept; one that was not used for long goes.
    fast : bool
        Plans may differ from f by rounding where that costs less, as those of ``tp.freeze(..., fast=True)`` may.

    Returns
    -------
    Function
        Called as f is. A signature is: shapes, dtypes, devices and requires_grad of tensors and arrays, the values of
        ints, strings and bools, grad mode, trace_nan, the default dtype and device, the modes of modules (train or
        eval) and where they are. Floats are inputs: another value is no new signature.

    >>> square = tp.function(lambda x: x * x)
    >>> [float(square(tp.tensor(v))) for v in (2.0, 3.0)]
    [4.0, 9.0]
    """
    if f is None:
        return lambda g: function(g, max_plans=max_plans, fast=fast)
    if not callable(f):
        raise PlanError(f"[tp.function] expected a function, got {type(f).__name__}.")
    if isinstance(max_plans, bool) or not isinstance(max_plans, int) or max_plans < 1:
        raise PlanError(f"[tp.function] max_plans must be an int of at least 1, got {max_plans!r}.")
    return Function(f, max_plans, passes.chosen(None, fast, "tp.function"))
