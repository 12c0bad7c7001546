"""Functions of functions: grad and value_and_grad, and the containers that arguments and gradients come in.

A function is run once on fresh places of the tape, then the walk goes back over what it recorded. When the function
read something that was recorded before (an argument of an outer grad, a leaf that requires grad), the walk is recorded,
too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tapeflow import _core, errors
from tapeflow._core import Tensor

# ---- nested containers: tuples (named ones, too), lists and dicts


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of nested containers in order, and what unflatten needs to build the same containers."""
    leaves: list[Any] = []
    return leaves, _describe(tree, leaves)


def _describe(tree: Any, leaves: list[Any]) -> Any:
    if isinstance(tree, (tuple, list)):
        return type(tree), [_describe(x, leaves) for x in tree]
    if isinstance(tree, dict):
        return type(tree), [(key, _describe(x, leaves)) for key, x in tree.items()]
    leaves.append(tree)
    return None


def unflatten(structure: Any, leaves: Any) -> Any:
    """The containers that structure describes, with these leaves."""
    return _build(structure, iter(leaves))


def _build(structure: Any, leaves: Any) -> Any:
    if structure is None:
        return next(leaves)
    kind, parts = structure
    if issubclass(kind, dict):
        return kind((key, _build(part, leaves)) for key, part in parts)
    items = [_build(part, leaves) for part in parts]
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def under(mode: Any, f: Callable[..., Any]) -> Callable[..., Any]:
    """f, run inside a context of the class mode."""

    @functools.wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        with mode():
            return f(*args, **kwargs)

    return run


# ---- reverse mode


def value_and_grad(
    f: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns f's value and its gradient.

    Parameters
    ----------
    f : callable
        Returns a scalar (a tensor of one element), or a pair (scalar, anything) with has_aux.
    argnums : int or tuple of ints
        Which positional arguments to differentiate: float tensors, arrays, numbers, or nested tuples, lists and dicts
        of them. Python ints are taken as the default float dtype.
    has_aux : bool
        f returns (value, aux); the result is then ((value, aux), gradient).

    Returns
    -------
    callable
        Of f's arguments; the gradient has the structure of the argument (a tuple of argnums gives a tuple). Where f
        does not depend on an argument, its gradient is zeros.

    >>> value, g = tp.value_and_grad(lambda x: x * x)(3.0)
    >>> float(value), float(g)
    (9.0, 6.0)
    """
    if not callable(f):
        raise errors.TapeError(f"[grad] expected a function, got {type(f).__name__}.")
    several = isinstance(argnums, (tuple, list))
    wanted: tuple[int, ...] = tuple(argnums) if isinstance(argnums, (tuple, list)) else (argnums,)
    for n in wanted:
        if isinstance(n, bool) or not isinstance(n, int):
            raise errors.TapeError(f"[grad] argnums must be an int or a tuple of ints, got {argnums!r}.")

    @functools.wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        numbers = [_argnum(n, len(args)) for n in wanted]
        if len(set(numbers)) < len(numbers):
            raise errors.TapeError(f"[grad] argnums names an argument twice: {argnums!r}.")
        leaves, structure = flatten([args[n] for n in numbers])
        primals = [_primal(x) for x in leaves]
        token = _core.trace_begin()
        try:
            with _core.enable_grad():
                sources = [_core.fresh_source(x) for x in primals]
                new = list(args)
                for n, arg in zip(numbers, unflatten(structure, sources), strict=True):
                    new[n] = arg
                value = f(*new, **kwargs)
        finally:
            linked = _core.trace_end(token)
        aux = None
        if has_aux:
            if not isinstance(value, tuple) or len(value) != 2:
                raise errors.TapeError("[grad] with has_aux the function must return a pair (value, aux).")
            value, aux = value
        linked = linked or any(_core.recorded_before(t, token) for t in flatten((value, aux))[0])
        linked = linked and _core.is_grad_enabled()
        grads = _gradients(value, sources, linked)
        if not linked:
            value, aux = _unlinked(value), _unlinked(aux)
        result = unflatten(structure, grads)
        result = tuple(result) if several else result[0]
        return ((value, aux), result) if has_aux else (value, result)

    return run


def grad(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns the gradient of f; see value_and_grad. With has_aux it returns (gradient, aux). Nests.

    >>> float(tp.grad(tp.grad(lambda x: x * x * x))(2.0))
    12.0
    """
    both = value_and_grad(f, argnums, has_aux)

    @functools.wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        value, g = both(*args, **kwargs)
        return (g, value[1]) if has_aux else g

    return run


def _argnum(n: int, count: int) -> int:
    if not -count <= n < count:
        raise errors.TapeError(
            f"[grad] argnums names argument {n}, but the function was called with {count} positional arguments."
        )
    return n % count


def _primal(x: Any) -> Tensor:
    """An argument to differentiate, as a float tensor."""
    if type(x) is int:
        x = float(x)
    if not isinstance(x, (Tensor, float, np.ndarray, np.generic)):
        raise errors.DTypeError(
            f"[grad] cannot differentiate with respect to a {type(x).__name__}. Use tensors, arrays or numbers."
        )
    t = _core.asarray(x)
    if t.dtype.kind != "f":
        raise errors.DTypeError(
            f"[grad] cannot differentiate with respect to an argument of dtype {t.dtype}. Use float32 or float64."
        )
    return t


def _gradients(value: Any, sources: list[Tensor], linked: bool) -> list[Tensor]:
    if not isinstance(value, Tensor):
        raise errors.TapeError(
            f"[grad] the function must return a tensor, got {type(value).__name__}. "
            "It may return (value, aux) with has_aux."
        )
    if value.size != 1:
        raise errors.TapeError(
            f"[grad] the function must return a scalar, got shape {value.shape}. Reduce it, for example with .sum()."
        )
    if value.dtype.kind != "f":
        raise errors.DTypeError(f"[grad] the function must return a float, got dtype {value.dtype}.")
    grads: list[Tensor | None] = [None] * len(sources)
    if value.requires_grad:
        grads = _core.run_backward([value], [None], [_core.tensor_node(s) for s in sources], linked, linked)
    return [_core.zeros_like(s) if g is None else g for s, g in zip(sources, grads, strict=True)]


def _unlinked(tree: Any) -> Any:
    leaves, structure = flatten(tree)
    return unflatten(structure, [_core.unlinked(x) if isinstance(x, Tensor) else x for x in leaves])


# ---- for Tape.gradient


def tape_gradient(
    target: Any, sources: Any, seeds: Any, unconnected: str, recorded: bool, node_of: Callable[[Tensor], Any]
) -> Any:
    """Tape.gradient: the gradients of targets (added up) in the structure of sources."""
    targets, _ = flatten(target)
    given, structure = flatten(sources)
    for kind, items in (("target", targets), ("source", given)):
        for t in items:
            if not isinstance(t, Tensor):
                raise errors.TapeError(f"[Tape.gradient] every {kind} must be a Tensor, got {type(t).__name__}.")
    for t in given:
        if t.dtype.kind != "f":
            raise errors.DTypeError(
                f"[Tape.gradient] a source of dtype {t.dtype} has no gradient. Use float32 or float64."
            )
    starts = [None] * len(targets) if seeds is None else flatten(seeds)[0]
    if len(starts) != len(targets):
        raise errors.TapeError(f"[Tape.gradient] output_gradients has {len(starts)} leaves, target {len(targets)}.")
    # a watched tensor may be a target, too, and has left its place when the tape was closed
    started = [(t, s, node_of(t)) for t, s in zip(targets, starts, strict=True)]
    started = [(t, s, place) for t, s, place in started if place is not None and place.requires_grad]
    if not started:
        raise errors.TapeError(
            f"[Tape.gradient] the target{'' if len(targets) == 1 else 's'} {', '.join(str(t.shape) for t in targets)} "
            f"depend{'s' if len(targets) == 1 else ''} on nothing that was recorded. "
            "Watch a tensor, or use one that requires grad, inside the tape."
        )
    roots, cotangents, places = (list(part) for part in zip(*started, strict=True))
    grads = _core.run_backward(roots, cotangents, [node_of(s) for s in given], recorded, True, places)
    if unconnected == "zero":
        grads = [_core.zeros_like(s) if g is None else g for s, g in zip(given, grads, strict=True)]
    return unflatten(structure, grads)
