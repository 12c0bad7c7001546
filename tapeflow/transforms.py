"""grad and value_and_grad, the run of a function that every transform begins with, and the containers that arguments
and gradients come in.

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
        return contained(kind, [(key, _build(part, leaves)) for key, part in parts])
    return contained(kind, [_build(part, leaves) for part in parts])


def contained(kind: Any, items: list[Any]) -> Any:
    """A container of this class with these items, of a dict pairs; what its constructor takes is its own affair (a
    named tuple, a defaultdict, a Counter)."""
    if kind is tuple or kind is list or kind is dict:
        return kind(items)
    if issubclass(kind, tuple):
        return tuple.__new__(kind, items)
    made = kind.__new__(kind)
    if issubclass(kind, dict):
        made.update(dict(items))
    else:
        list.extend(made, items)
    return made


def under(mode: Any, f: Callable[..., Any]) -> Callable[..., Any]:
    """f, run inside a context of the class mode."""

    @functools.wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        with mode():
            return f(*args, **kwargs)

    return run


def leaves_as(structure: Any, tree: Any, name: str, what: str) -> list[Any]:
    """The leaves of tree, which must have this structure (a tuple for a list and the other way will do), in its order;
    what: the argument that it is, for errors."""
    leaves: list[Any] = []
    _match(structure, tree, name, what, leaves)
    return leaves


def _match(structure: Any, tree: Any, name: str, where: str, leaves: list[Any]) -> None:
    if structure is None:
        if isinstance(tree, (tuple, list, dict)):
            raise errors.TapeError(f"[{name}] {where} is a {type(tree).__name__}, expected a tensor.")
        leaves.append(tree)
        return
    kind, parts = structure
    if not isinstance(tree, dict if issubclass(kind, dict) else (tuple, list)):
        raise errors.TapeError(f"[{name}] {where} is a {type(tree).__name__}, expected a {kind.__name__}.")
    keys = [part[0] for part in parts] if issubclass(kind, dict) else list(range(len(parts)))
    if len(tree) != len(keys) or (issubclass(kind, dict) and set(tree) != set(keys)):
        given = f"the keys {list(tree)}" if issubclass(kind, dict) else f"{len(tree)} items"
        expected = f"{keys}" if issubclass(kind, dict) else f"{len(keys)}"
        raise errors.TapeError(f"[{name}] {where} has {given}, expected {expected}.")
    for key, part in zip(keys, parts, strict=True):
        part = part[1] if issubclass(kind, dict) else part
        _match(part, tree[key], name, f"{where}[{key!r}]", leaves)


# ---- one run of a function


class Run:
    """A function's run on fresh places of the tape, for arguments (numbers) that are to be differentiated.

    `primals` are the leaves of these arguments, in order, `structure` their containers. After `call`, `sources` are the
    primals at their fresh places, `nodes` these; `value` is what the function returned, `aux` what it returned beside
    it. `linked`: value or aux depend on something that was recorded before, so whatever is made of them is recorded.
    """

    def __init__(self, name: str, args: tuple[Any, ...], numbers: list[int]) -> None:
        self.name, self.args, self.numbers = name, args, numbers
        leaves, self.structure = flatten([args[n] for n in numbers])
        self.primals = [_primal(x, name) for x in leaves]

    def call(self, f: Callable[..., Any], kwargs: dict[str, Any], has_aux: bool) -> Run:
        args = list(self.args)
        token = _core.trace_begin()
        try:
            with _core.enable_grad():
                self.sources = [_core.fresh_source(x) for x in self.primals]
                for n, arg in zip(self.numbers, unflatten(self.structure, self.sources), strict=True):
                    args[n] = arg
                self.nodes = [_core.tensor_node(s) for s in self.sources]
                value = f(*args, **kwargs)
        finally:
            linked = _core.trace_end(token)
        aux = None
        if has_aux:
            if not isinstance(value, tuple) or len(value) != 2:
                raise errors.TapeError(f"[{self.name}] with has_aux the function must return a pair (value, aux).")
            value, aux = value
        linked = linked or any(_core.recorded_before(t, token) for t in flatten((value, aux))[0])
        self.linked = linked and _core.is_grad_enabled()
        self.value, self.aux = value, aux
        return self

    def results(self) -> tuple[Any, Any]:
        """value and aux as a caller may have them: recorded only where they are linked."""
        return (self.value, self.aux) if self.linked else (_unlinked(self.value), _unlinked(self.aux))

    def outputs(self) -> tuple[list[Tensor], Any]:
        """The leaves of value, which must be tensors, and their containers."""
        leaves, structure = flatten(self.value)
        for t in leaves:
            if not isinstance(t, Tensor):
                raise errors.TapeError(
                    f"[{self.name}] the function must return tensors, or tuples, lists and dicts of them, "
                    f"got {type(t).__name__}. What is not to be differentiated it may return beside, with has_aux."
                )
        return leaves, structure

    def scalar(self) -> Tensor:
        """value, which must be a float scalar."""
        value = self.value
        if not isinstance(value, Tensor):
            raise errors.TapeError(
                f"[{self.name}] the function must return a tensor, got {type(value).__name__}. "
                "It may return (value, aux) with has_aux."
            )
        if value.size != 1:
            raise errors.TapeError(
                f"[{self.name}] the function must return a scalar, got shape {value.shape}. "
                "Reduce it, for example with .sum()."
            )
        if value.dtype.kind != "f":
            raise errors.DTypeError(f"[{self.name}] the function must return a float, got dtype {value.dtype}.")
        return value

    def gradients(self, composed: bool, retain: bool) -> list[Tensor]:
        """The gradients of the scalar value, zeros where it does not depend on a source."""
        value = self.scalar()
        grads: list[Tensor | None] = [None] * len(self.sources)
        if value.requires_grad:
            grads = _core.run_backward([value], [None], self.nodes, composed, retain)
        return self.filled(grads)

    def filled(self, grads: list[Tensor | None]) -> list[Tensor]:
        return [_core.zeros_like(s) if g is None else g for s, g in zip(self.sources, grads, strict=True)]


def checked_function(f: Any, name: str) -> None:
    if not callable(f):
        raise errors.TapeError(f"[{name}] expected a function, got {type(f).__name__}.")


def checked_argnums(argnums: Any, name: str) -> tuple[int, ...]:
    wanted: tuple[int, ...] = tuple(argnums) if isinstance(argnums, (tuple, list)) else (argnums,)
    for n in wanted:
        if isinstance(n, bool) or not isinstance(n, int):
            raise errors.TapeError(f"[{name}] argnums must be an int or a tuple of ints, got {argnums!r}.")
    return wanted


def argument_numbers(argnums: Any, wanted: tuple[int, ...], count: int, name: str) -> list[int]:
    """argnums as 0 .. count-1, for a call with count positional arguments."""
    for n in wanted:
        if not -count <= n < count:
            raise errors.TapeError(
                f"[{name}] argnums names argument {n}, but the function was called with {count} positional arguments."
            )
    numbers = [n % count for n in wanted]
    if len(set(numbers)) < len(numbers):
        raise errors.TapeError(f"[{name}] argnums names an argument twice: {argnums!r}.")
    return numbers


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
    checked_function(f, "grad")
    several = isinstance(argnums, (tuple, list))
    wanted = checked_argnums(argnums, "grad")

    @functools.wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        traced = Run("grad", args, argument_numbers(argnums, wanted, len(args), "grad")).call(f, kwargs, has_aux)
        grads = traced.gradients(traced.linked, traced.linked)
        result = unflatten(traced.structure, grads)
        result = tuple(result) if several else result[0]
        value, aux = traced.results()
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


def _primal(x: Any, name: str) -> Tensor:
    """An argument to differentiate, as a float tensor."""
    if type(x) is int:
        x = float(x)
    if not isinstance(x, (Tensor, float, np.ndarray, np.generic)):
        raise errors.DTypeError(
            f"[{name}] cannot differentiate with respect to a {type(x).__name__}. Use tensors, arrays or numbers."
        )
    t = _core.asarray(x)
    if t.dtype.kind != "f":
        raise errors.DTypeError(
            f"[{name}] cannot differentiate with respect to an argument of dtype {t.dtype}. Use float32 or float64."
        )
    return t


def _unlinked(tree: Any) -> Any:
    leaves, structure = flatten(tree)
    return unflatten(structure, [_core.unlinked(x) if isinstance(x, Tensor) else x for x in leaves])


# ---- for Tape.gradient


def checked_places(name: str, targets: list[Any], sources: list[Any], node_of: Callable[[Tensor], Any]) -> list[Any]:
    """The places of the targets of Tape.gradient or Tape.jacobian (name) on the tape: None for a target that depends on
    nothing that was recorded, which one of them must."""
    for kind, items in (("target", targets), ("source", sources)):
        for t in items:
            if not isinstance(t, Tensor):
                raise errors.TapeError(f"[Tape.{name}] every {kind} must be a Tensor, got {type(t).__name__}.")
    for t in sources:
        if t.dtype.kind != "f":
            raise errors.DTypeError(
                f"[Tape.{name}] a source of dtype {t.dtype} has no derivative. Use float32 or float64."
            )
    # a watched tensor may be a target, too, and has left its place when the tape was closed
    places = [node_of(t) for t in targets]
    places = [node if node is not None and node.requires_grad else None for node in places]
    if not any(places):
        raise errors.TapeError(
            f"[Tape.{name}] the target{'' if len(targets) == 1 else 's'} {', '.join(str(t.shape) for t in targets)} "
            f"depend{'s' if len(targets) == 1 else ''} on nothing that was recorded. "
            "Watch a tensor, or use one that requires grad, inside the tape."
        )
    return places


def tape_gradient(
    target: Any, sources: Any, seeds: Any, unconnected: str, recorded: bool, node_of: Callable[[Tensor], Any]
) -> Any:
    """Tape.gradient: the gradients of targets (added up) in the structure of sources."""
    targets, containers = flatten(target)
    given, structure = flatten(sources)
    places = checked_places("gradient", targets, given, node_of)
    starts = [None] * len(targets)
    if seeds is not None:
        starts = leaves_as(containers, seeds, "Tape.gradient", "output_gradients")
    started = [part for part in zip(targets, starts, places, strict=True) if part[2] is not None]
    roots, cotangents, nodes = (list(part) for part in zip(*started, strict=True))
    grads = _core.run_backward(roots, cotangents, [node_of(s) for s in given], recorded, True, nodes)
    if unconnected == "zero":
        grads = [_core.zeros_like(s) if g is None else g for s, g in zip(given, grads, strict=True)]
    return unflatten(structure, grads)
