"""`tp.custom_vjp`: functions with derivatives of the user's own.

A call whose gradient is wanted runs fwd on constants. Its results become results of one entry of the tape, which keeps
the arguments, as far as they are needed, and the residuals (core/custom.pxi); a walk that comes there calls bwd.

When the walk itself is recorded, for a gradient of the gradient, residuals must know what they depend on. One that is
an argument is that argument again; one that is a result is a result of this call again, with the same rule; any other
one is computed once more, by fwd on the arguments, recorded.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tapeflow import _core
from tapeflow._core import Tensor
from tapeflow._draws import Draws
from tapeflow.errors import DTypeError, ShapeError, TapeError
from tapeflow.transforms import flatten, unflatten


class Region(NamedTuple):
    """A call in the notes of a recording: notes start .. stop are its f, or its fwd where forward is true.

    arguments, results: (structure, leaves); of a tensor the leaf is [number of its value].
    """

    start: int
    stop: int
    rule: custom_vjp
    forward: bool
    arguments: tuple[Any, list[Any]]
    results: tuple[Any, list[Any]]


class custom_vjp:
    """f with a derivative of your own, set by `f.defvjp(fwd, bwd)` or `f.defjvp(rule)`. A decorator.

    Parameters
    ----------
    f : callable
        Of positional arguments: tensors, nested containers of them, and anything else, which is not differentiated.

    `defvjp(fwd, bwd)`: ``fwd(*args)`` returns ``(value, residuals)``; ``bwd(residuals, cotangent)`` returns a tuple
    with one gradient an argument, in its structure; None for no gradient. A cotangent has the structure of the value;
    it is zeros where nothing arrived, None for what is no float tensor.
    `defjvp(rule)`: ``rule(primals, tangents)`` returns ``(value, tangent)``, where tangents are None for what is not
    differentiated. Either of them will do for both modes: it is transposed, as it is linear in the tangents or
    cotangents.

    f must take what it differentiates by its arguments: a captured tensor that requires grad is a TapeError.

    >>> @tp.custom_vjp
    ... def clipped(x):
    ...     return x * 1.0
    >>> clipped.defvjp(lambda x: (x * 1.0, None), lambda residuals, g: (tp.clip(g, -1.0, 1.0),))
    >>> tp.grad(lambda x: 5.0 * clipped(x))(2.0).item()
    1.0
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        if not callable(f):
            raise TapeError(f"[custom_vjp] expected a function, got {type(f).__name__}.")
        functools.update_wrapper(self, f)
        self.fun = f
        self.name = getattr(f, "__name__", type(f).__name__)
        self._parameters = _positional_parameters(f)
        self.fwd: Callable[..., Any] | None = None
        self.bwd: Callable[..., Any] | None = None
        self.jvp: Callable[..., Any] | None = None

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Set the rule of reverse mode."""
        self._check_rules("defvjp", fwd, bwd)
        self.fwd, self.bwd = fwd, bwd

    def defjvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule of forward mode; returns it, so that it is a decorator, too."""
        self._check_rules("defjvp", rule)
        self.jvp = rule
        return rule

    def _check_rules(self, op: str, *rules: Any) -> None:
        for rule in rules:
            if not callable(rule):
                raise TapeError(f"[{op}] the rule of {self.name} must be a function, got {type(rule).__name__}.")

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """f's value."""
        if self.bwd is None and self.jvp is None:
            raise TapeError(f"[custom_vjp] {self.name} has no rule yet. Call {self.name}.defvjp(fwd, bwd) first.")
        if kwargs or len(args) < self._parameters:
            args = self._positional(args, kwargs)
        leaves, structure = flatten(args)
        wanted = _core.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in leaves)
        program = _core.program_now()
        first = 0 if program is None else len(program)
        value = self._recorded(leaves, structure) if wanted else self.fun(*args)
        if program is not None:
            value = _apart(value, leaves)
            program.regions.append(
                Region(
                    first,
                    len(program),
                    self,
                    wanted,
                    (structure, [[program.number_of(x)] if isinstance(x, Tensor) else x for x in leaves]),
                    _numbered(program, value),
                )
            )
        return value

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        bound = inspect.signature(self.fun).bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.kwargs:
            raise TapeError(
                f"[custom_vjp] {self.name} takes {', '.join(bound.kwargs)} by keyword alone. Rules are called with "
                "positional arguments: make them positional."
            )
        return bound.args

    def _recorded(self, leaves: list[Any], structure: Any) -> Any:
        """The value as results of a call."""
        call = _Call(self, structure, leaves)
        constants = [x.detach() if isinstance(x, Tensor) else x for x in leaves]
        with call.draws.noted():
            pair = call.forward(unflatten(structure, constants))
        results, result_structure = flatten(pair[0])
        residuals = flatten(pair[1])
        self._check_captured(results, residuals[0])
        return unflatten(result_structure, call.enter(constants, results, result_structure, residuals))

    def _check_captured(self, results: list[Any], residuals: list[Any]) -> None:
        for what, xs in (("value", results), ("residuals", residuals)):
            for x in xs:
                if isinstance(x, Tensor) and x.requires_grad:
                    raise TapeError(
                        f"[custom_vjp] the {what} of {self.name} depends on a captured tensor that requires grad, for "
                        "which its rule has no gradient. Pass it as an argument, or use tp.stop_gradient on it."
                    )
                if what == "value" and isinstance(x, (np.ndarray, np.generic)):
                    raise TapeError(
                        f"[custom_vjp] {self.name} returned a {type(x).__name__}. Return tensors: tp.asarray(...)."
                    )


def _positional_parameters(f: Callable[..., Any]) -> int:
    """How many parameters can be given by position; a rule is called with all of them."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):  # of a builtin
        return 0
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _apart(value: Any, arguments: list[Any]) -> Any:
    """value, in which an argument that is returned as it is becomes a value of its own: in a recording values are
    known by identity, and this one goes on with the rule."""
    results, structure = flatten(value)
    return unflatten(structure, [x.clone() if any(x is a for a in arguments) and isinstance(x, Tensor) else x
                                 for x in results])  # fmt: skip


def _numbered(program: Any, value: Any) -> tuple[Any, list[Any]]:
    results, structure = flatten(value)
    return structure, [[program.number_of(x)] if isinstance(x, Tensor) else x for x in results]


class _Call:
    """What the tape keeps of a call besides tensors.

    Tensors are kept by the entry, in this order: those among the arguments, results that are residuals, other residual
    tensors.
    """

    again = False  # core/custom.pxi: the rule is bwd

    def __init__(self, rule: custom_vjp, structure: Any, leaves: list[Any]) -> None:
        self.name = rule.name
        self.draws = Draws()
        self._rule = rule
        self._structure = structure
        self._tensors = [x for x in leaves if isinstance(x, Tensor)]  # until the call is entered
        self._likes = [(x.shape, x.dtype, x.requires_grad) if isinstance(x, Tensor) else None for x in leaves]
        self._leaves = [None if isinstance(x, Tensor) else [x] for x in leaves]

    def forward(self, args: tuple[Any, ...]) -> tuple[Any, Any]:
        """(value, residuals) of fwd; without one the residuals are the arguments, for the rule of forward mode."""
        rule = self._rule
        if rule.fwd is None:
            return rule.fun(*args), args
        pair = rule.fwd(*args)
        if not isinstance(pair, tuple) or len(pair) != 2:
            what = f"a tuple of {len(pair)}" if isinstance(pair, tuple) else f"a {type(pair).__name__}"
            raise TapeError(f"[custom_vjp] fwd of {self.name} must return (value, residuals), got {what}.")
        return pair

    def enter(self, constants: list[Any], results: list[Any], structure: Any, residuals: tuple[list[Any], Any]) -> Any:
        """Put the call on the tape; the results with its rule."""
        arguments = [x for x in constants if isinstance(x, Tensor)]
        places = [i for i, x in enumerate(results) if isinstance(x, Tensor) and x.dtype.kind == "f"]
        made = [results[i] for i in places]
        self._results = structure
        self._result_likes = [(x.shape, x.dtype) if i in places else None for i, x in enumerate(results)]
        kept = list(self._tensors)
        gives = [False] * len(kept)
        self._residuals, self._sources = residuals[1], []
        self._computed = False  # whether a residual is neither an argument nor a result
        for x in residuals[0]:
            self._sources.append(self._source(x, arguments, made, kept, gives))
        if self._computed or self._rule.jvp is not None:
            gives[: len(arguments)] = [True] * len(arguments)
        self._tensors = []
        out = list(results)
        for i, t in zip(places, _core.custom_call(self, kept, gives, made, False), strict=True):
            out[i] = t
        return out

    def _source(
        self, x: Any, arguments: list[Tensor], made: list[Tensor], kept: list[Tensor], gives: list[bool]
    ) -> tuple[str, Any, int]:
        """Where bwd has a leaf of the residuals from: (kind, place among what is kept, place among the results)."""
        if not isinstance(x, Tensor):
            return "constant", x, 0
        for i, t in enumerate(arguments):
            if t is x:
                gives[i] = True
                return "argument", i, 0
        kept.append(x)
        gives.append(True)
        for i, t in enumerate(made):
            if t is x:
                return "result", len(kept) - 1, i
        self._computed = self._computed or x.dtype.kind == "f"
        return "residual", len(kept) - 1, 0

    # ---- in a walk (core/custom.pxi)

    def pull(self, kept: list[Any], cotangents: dict[int, Tensor], place: Any) -> list[Any]:
        """The cotangents of the arguments that are tensors. place: the call's Node where the walk is recorded."""
        residuals = unflatten(self._residuals, self._residual_leaves(kept, place))
        order = iter(range(len(self._result_likes)))
        leaves: list[Tensor | None] = []
        for like in self._result_likes:
            if like is None:
                leaves.append(None)
                continue
            g = cotangents.get(next(order))
            leaves.append(_zeros(like, [*kept, *cotangents.values()]) if g is None else g)
        g = unflatten(self._results, leaves)
        rule = self._rule
        found = self._transposed(residuals, leaves) if rule.bwd is None else rule.bwd(residuals, g)
        return matched(self.name, self._structure, self._likes, found)

    def _residual_leaves(self, kept: list[Any], place: Any) -> list[Any]:
        again: list[Any] = []
        if place is not None and self._computed:
            tensors = iter(kept)
            leaves = [next(tensors) if x is None else x[0] for x in self._leaves]
            with self.draws.repeated():
                again = flatten(self.forward(unflatten(self._structure, leaves))[1])[0]
            if len(again) != len(self._sources):
                raise TapeError(f"[custom_vjp] fwd of {self.name} returned other residuals when it was called again.")
        out = []
        for i, (kind, at, n) in enumerate(self._sources):
            if kind == "constant":
                out.append(at)
            elif kind == "result" and place is not None:
                out.append(_core.result_again(place, kept[at], n))
            else:
                out.append(again[i] if kind == "residual" and again else kept[at])
        return out

    def push(self, kept: list[Any], tangents: list[Any], place: Any) -> dict[int, Tensor]:
        """The tangents of the results that are float tensors, by number, from those (or None) of what is kept."""
        given = iter(tangents)
        leaves = [None if like is None else next(given) for like in self._likes]
        rule = self._rule
        if rule.jvp is None:
            found = self._transposed_bwd(kept, leaves, place)
        else:
            for i, like in enumerate(self._likes):
                if leaves[i] is None and like is not None and like[2]:
                    leaves[i] = _zeros(like, [*kept, *tangents])
            tensors = iter(kept)
            primals = [next(tensors) if x is None else x[0] for x in self._leaves]
            found = self._checked_tangents(
                rule.jvp(unflatten(self._structure, primals), unflatten(self._structure, leaves))
            )
        return {i: t for i, t in enumerate(found) if t is not None}

    def _checked_tangents(self, pair: Any) -> list[Any]:
        name = f"the rule of {self.name}"
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TapeError(f"[custom_vjp] {name} must return (value, tangent), got a {type(pair).__name__}.")
        leaves = flatten(pair[1])[0]
        if len(leaves) != len(self._result_likes):
            raise TapeError(
                f"[custom_vjp] {name} returned {len(leaves)} tangents for {len(self._result_likes)} results."
            )
        found = []
        for t, like in zip(leaves, self._result_likes, strict=True):
            if like is not None:
                found.append(_like(t, (*like, True), name, "tangent"))
        return found

    def _transposed_bwd(self, kept: list[Any], tangents: list[Any], place: Any) -> list[Any]:
        """The rule of forward mode by bwd, which is linear in the cotangent: transposed."""
        with _core.enable_grad():
            sources = [
                None if like is None else _core.fresh_source(_zeros(like, [*kept, *tangents]))
                for like in self._result_likes
            ]
            residuals = unflatten(self._residuals, self._residual_leaves(kept, place))
            found = self._rule.bwd(residuals, unflatten(self._results, sources))  # type: ignore[misc]
            grads = matched(self.name, self._structure, self._likes, found)
        pushed = [t for t, like in zip(tangents, self._likes, strict=True) if like is not None]
        pairs = [(g, t) for g, t in zip(grads, pushed, strict=True) if g is not None and t is not None]
        pairs = [(g, t) for g, t in pairs if g.requires_grad]
        nodes = [_core.tensor_node(s) for s in sources if s is not None]
        if not pairs:
            return [None] * len(nodes)
        recorded = place is not None
        return _core.run_backward([g for g, _ in pairs], [t for _, t in pairs], nodes, recorded, recorded)

    def _transposed(self, primals: tuple[Any, ...], cotangents: list[Any]) -> tuple[Any, ...]:
        """bwd by the rule of forward mode: the tangent is linear in the tangents, so its gradient by them, at zeros, is
        the transposed map."""
        structure = flatten(primals)[1]
        recorded = _core.is_grad_enabled()
        with _core.enable_grad():
            sources = [
                _core.fresh_source(_zeros(like, cotangents)) if like is not None and like[2] else None
                for like in self._likes
            ]
            _, tangent = self._rule.jvp(primals, unflatten(structure, sources))  # type: ignore[misc]
        pairs = [
            (t, g)
            for t, g in zip(flatten(tangent)[0], cotangents, strict=True)
            if isinstance(t, Tensor) and t.requires_grad and g is not None
        ]
        nodes = [None if s is None else _core.tensor_node(s) for s in sources]
        grads: list[Any] = [None] * len(nodes)
        if pairs:
            grads = _core.run_backward([t for t, _ in pairs], [g for _, g in pairs], nodes, recorded, recorded)
        return unflatten(structure, grads)


def _zeros(like: tuple[Any, ...], beside: list[Any]) -> Tensor:
    """Zeros of this shape and dtype, on the device of the first of some tensors that is on one."""
    device = next((t.device for t in beside if t is not None and t.device != "cpu"), "cpu")
    return _core.zeros(like[0], like[1], device)


# ---- what rules return


def matched(name: str, structure: Any, likes: list[Any], grads: Any) -> list[Tensor | None]:
    """What bwd returned for the arguments in this structure: one for each tensor among them, of its shape and dtype, or
    None. likes: of each leaf (shape, dtype, ...), None of what is no tensor."""
    parts = structure[1]
    if not isinstance(grads, tuple):
        raise TapeError(
            f"[custom_vjp] bwd of {name} must return a tuple with one gradient for each of the {len(parts)} arguments, "
            f"got a {type(grads).__name__}."
        )
    if len(grads) != len(parts):
        raise TapeError(
            f"[custom_vjp] bwd of {name} returned {len(grads)} gradients, and {name} was called with {len(parts)} "
            "arguments. Return one for each, None where there is none."
        )
    leaves: list[Any] = []
    for i, (g, part) in enumerate(zip(grads, parts, strict=True)):
        _match(g, part, leaves, f"[custom_vjp] bwd of {name} returned, for argument {i}, ")
    checked = [_like(g, like, f"bwd of {name}", "gradient") for g, like in zip(leaves, likes, strict=True)]
    return [g for g, like in zip(checked, likes, strict=True) if like is not None]


def _like(g: Any, like: Any, name: str, what: str) -> Tensor | None:
    """g as a gradient or tangent of what has this shape and dtype."""
    if g is None:
        return None
    if like is None or like[1].kind != "f":
        if like is None and isinstance(g, (Tensor, float, int, np.ndarray, np.generic)):
            return None  # of a number or an array, which is a constant
        what = "no tensor" if like is None else f"of dtype {like[1]}"
        raise DTypeError(f"[custom_vjp] {name} returned a gradient for what is {what}. Return None there.")
    of = "an argument" if what == "gradient" else "a result"
    if type(g) in (float, int):
        g = _core.from_number(float(g), like[1], "custom_vjp")
    if isinstance(g, (np.ndarray, np.generic)):
        g = _core.operand(g)
    if not isinstance(g, Tensor):
        raise TapeError(f"[custom_vjp] {name} returned a {type(g).__name__} as a {what}. Return a tensor or None.")
    if g.shape != like[0]:
        raise ShapeError(
            f"[custom_vjp] {name} returned a {what} of shape {g.shape} for {of} of shape {like[0]}: they "
            "must be the same. Sum what was broadcast."
        )
    if g.dtype != like[1]:
        raise DTypeError(
            f"[custom_vjp] {name} returned a {what} of dtype {g.dtype} for {of} of dtype {like[1]}. "
            "Cast it with .astype."
        )
    return g


def _match(g: Any, structure: Any, leaves: list[Any], text: str) -> None:
    """Append the leaves of g, which has the structure of an argument, or None in place of a part of it."""
    if structure is None:
        leaves.append(g)
        return
    kind, parts = structure
    if g is None:
        for part in parts:
            _match(None, part[1] if issubclass(kind, dict) else part, leaves, text)
        return
    if issubclass(kind, dict):
        keys = [key for key, _ in parts]
        if not isinstance(g, dict) or set(g) != set(keys):
            raise TapeError(f"{text}{_words(g)}; expected a dict with the keys {', '.join(map(repr, keys))}.")
        for key, part in parts:
            _match(g[key], part, leaves, text)
        return
    if not isinstance(g, (tuple, list)) or len(g) != len(parts):
        raise TapeError(f"{text}{_words(g)}; expected a {kind.__name__} of {len(parts)}.")
    for x, part in zip(g, parts, strict=True):
        _match(x, part, leaves, text)


def _words(g: Any) -> str:
    if isinstance(g, dict):
        return f"a dict with the keys {', '.join(map(repr, g))}"
    return f"a {type(g).__name__} of {len(g)}" if isinstance(g, (tuple, list)) else f"a {type(g).__name__}"
