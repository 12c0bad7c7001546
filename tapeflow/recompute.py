"""`tp.checkpoint`: a call that keeps its arguments alone and is computed again in backward.

Forward, the call runs as any, and what it recorded is dropped: its results become results of one entry of the tape that
keeps the arguments (core/custom.pxi). When a walk comes there it runs the call again and goes on through what that
recorded, with the cotangents in the order of a run that kept everything. So the bits are the same, leaves that f
captures get their gradients, and every order exists.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tapeflow import _core
from tapeflow._core import Tensor
from tapeflow._draws import Draws
from tapeflow.errors import TapeError
from tapeflow.transforms import flatten, unflatten


def checkpoint(f: Callable[..., Any]) -> Callable[..., Any]:
    """f, keeping its arguments alone for the backward, which computes it again: less memory for more time.

    Parameters
    ----------
    f : callable
        Of tensors, and nested containers of them, and anything else; it must do the same when it is called again:
        random draws are repeated by themselves, and leave the generators as they are.

    Returns
    -------
    callable
        Of f's arguments. Gradients, those of captured leaves included, have the bits of f's own, also inside of plans;
        of higher order, and in forward mode, up to the order of sums. Nests; also a decorator.

    Raises
    ------
    TapeError
        In backward, when a captured leaf was written meanwhile, or f does something else than before.

    Source: Griewank and Walther, "Algorithm 799: revolve", ACM TOMS 26 (2000).

    >>> w = tp.tensor(2.0, requires_grad=True)
    >>> block = tp.checkpoint(lambda x: tp.tanh(w * x))
    >>> block(tp.tensor(0.0)).backward()
    >>> w.grad.item()
    0.0
    """
    if not callable(f):
        raise TapeError(f"[checkpoint] expected a function, got {type(f).__name__}.")

    @functools.wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        return _forward(f, args, kwargs) if _core.is_grad_enabled() else f(*args, **kwargs)

    return run


def _forward(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves, structure = flatten((args, kwargs))
    arguments = [_core.held(x) for x in leaves if isinstance(x, Tensor)]
    draws = Draws()
    token = _core.passing_begin()
    try:
        with draws.noted():
            value = f(*args, **kwargs)
    finally:
        _core.passing_end(token)
    since = token[1]
    results, result_structure = flatten(value)
    places = [i for i, t in enumerate(results) if _core.made_since(t, since)]
    if not places:
        return value
    made = [results[i] for i in places]
    captured = _core.captured_leaves(made, since, arguments)
    call = _Call(f, structure, leaves, len(arguments), draws, places, made)
    kept = arguments + captured
    for i, t in zip(places, _core.custom_call(call, kept, [True] * len(kept), made, True), strict=True):
        results[i] = t
    return unflatten(result_structure, results)


class _Call:
    """What the tape keeps of a call besides tensors."""

    __slots__ = ("_draws", "_dtype", "_f", "_leaves", "_likes", "_n", "_places", "_structure", "name")
    again = True  # core/custom.pxi: this rule is the call itself

    def __init__(
        self,
        f: Callable[..., Any],
        structure: Any,
        leaves: list[Any],
        n: int,
        draws: Draws,
        places: list[int],
        made: list[Tensor],
    ) -> None:
        self.name = getattr(f, "__name__", type(f).__name__)
        self._f, self._structure, self._n, self._draws, self._places = f, structure, n, draws, places
        self._leaves = [None if isinstance(x, Tensor) else [x] for x in leaves]  # a list: no tensor
        self._likes = [(t.shape, t.dtype) for t in made]
        self._dtype = _core.get_default_dtype()

    def run_again(self, kept: list[Tensor], place: Any) -> list[Tensor]:
        """The results once more, recorded; place: the call's Node."""
        if not _core.unchanged(place, self._n):
            raise TapeError(
                f"[checkpoint] a tensor that {self.name} captures was written between forward and backward: what is "
                "computed again would be another function. Call backward before the update, or pass it as an argument."
            )
        arguments = iter(kept)
        args, kwargs = unflatten(self._structure, [next(arguments) if x is None else x[0] for x in self._leaves])
        program = _core.program_now()
        first = 0 if program is None else len(program)
        before = _core.get_default_dtype()
        _core.set_default_dtype(self._dtype)
        try:
            with self._draws.repeated():
                results = flatten(self._f(*args, **kwargs))[0]
        finally:
            _core.set_default_dtype(before)
            if program is not None:
                program.repeats.append((first, len(program)))
        made: list[Any] = [results[i] if i < len(results) else None for i in self._places]
        for t, (shape, dtype) in zip(made, self._likes, strict=True):
            if not isinstance(t, Tensor) or (t.shape, t.dtype) != (shape, dtype) or not t.requires_grad:
                now = f"{t.dtype}{list(t.shape)}" if isinstance(t, Tensor) else type(t).__name__
                raise TapeError(
                    f"[checkpoint] computed again, {self.name} returned {now}"
                    f"{'' if getattr(t, 'requires_grad', True) else ' that requires no grad'} where it was "
                    f"{dtype}{list(shape)}. It must do the same each time."
                )
        return made
