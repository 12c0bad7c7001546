"""vjp, jvp, hvp, jacobian, hessian: what a function's one run gives with cotangents and tangents pushed through it.

Each runs the function once (`transforms.Run`). A pullback is a backward through that record, a pushforward the walk of
tangents the other way; both are recorded in turn where an outer transform, a tape or a leaf is behind what the function
read or what is pushed. So any nesting of forward and reverse is right: every run has places of its own on the tape.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tapeflow import _core, errors
from tapeflow._core import Tensor
from tapeflow.transforms import (
    Run,
    argument_numbers,
    checked_argnums,
    checked_function,
    checked_places,
    flatten,
    leaves_as,
    unflatten,
)

FEW = 8  # so many walks, one after the other, are cheaper than a batch


def _as_like(x: Any, like: Tensor, name: str, what: str) -> Tensor:
    """A tangent or cotangent of like: a tensor, an array or a number of its shape and dtype."""
    if isinstance(x, (bool, complex)) or not isinstance(x, (Tensor, int, float, np.ndarray, np.generic)):
        raise errors.TapeError(f"[{name}] a {what} must be a tensor, an array or a number, got {type(x).__name__}.")
    t = _core.asarray(x, dtype=like.dtype if type(x) in (int, float) else None)
    if not isinstance(x, Tensor):
        t = _core.move(t, _core.place_of(like))
    t = _core.put_beside(t, like, name)
    if t.shape != like.shape:
        raise errors.ShapeError(f"[{name}] a {what} has shape {t.shape}, expected {like.shape}, as what it belongs to.")
    if t.dtype != like.dtype:
        raise errors.DTypeError(
            f"[{name}] a {what} has dtype {t.dtype}, expected {like.dtype}, as what it belongs to. "
            f"Use .astype('{like.dtype}')."
        )
    return t


def _recorded(tensors: list[Any]) -> bool:
    """Does one of them depend on something that is recorded for gradients?"""
    return _core.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


class _Pull:
    """The reverse direction of a run: from cotangents of its outputs to gradients of its sources."""

    def __init__(self, run: Run, outputs: list[Tensor]) -> None:
        self.run = run
        self.outputs = [_core.unlinked(t) for t in outputs]
        nodes = [_core.tensor_node(t) for t in outputs]
        self.nodes = [node if node is not None and node.requires_grad else None for node in nodes]

    def __call__(self, cotangents: list[Any], composed: bool | None = None) -> list[Tensor]:
        """Of each output a cotangent like it, or None. composed: whether the walk is recorded, unless it follows from
        what it is about."""
        run = self.run
        parts = [
            (t, g, node)
            for t, g, node in zip(self.outputs, cotangents, self.nodes, strict=True)
            if node is not None and g is not None
        ]
        grads: list[Tensor | None] = [None] * len(run.sources)
        if parts:
            targets, seeds, nodes = (list(part) for part in zip(*parts, strict=True))
            composed = run.linked or _recorded(seeds) if composed is None else composed
            grads = _core.run_backward(targets, seeds, run.nodes, composed, True, nodes)
        return run.filled(grads)


class _Push:
    """The forward direction of a run: from tangents of its sources to those of its outputs (None: of integers)."""

    def __init__(self, run: Run, outputs: list[Tensor]) -> None:
        self.run = run
        self.outputs = [_core.unlinked(t) for t in outputs]
        self.forward = _core.Pushforward(run.nodes, [_core.tensor_node(t) for t in outputs], self.outputs)

    def __call__(self, tangents: list[Any], composed: bool | None = None) -> list[Any]:
        """Of each source a tangent like it, or None for zeros; composed as for _Pull."""
        composed = self.run.linked or _recorded(tangents) if composed is None else composed
        found = self.forward.push_tangents(tangents, composed)
        return [
            None if t.dtype.kind != "f" else _core.zeros_like(t) if d is None else d
            for t, d in zip(self.outputs, found, strict=True)
        ]


def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """f's value, and a function that pulls cotangents back to gradients.

    Parameters
    ----------
    f : callable
        Of the primals; returns a tensor, or nested tuples, lists and dicts of tensors.
    *primals : tensors, arrays, numbers, or nested tuples, lists and dicts of them
        Of float dtype; what is not to be differentiated f takes from outside.
    has_aux : bool
        f returns (value, aux); aux, which may be anything, is handed on and not differentiated.

    Returns
    -------
    value, pullback : or value, pullback, aux with has_aux
        `pullback(cotangent)`, with a cotangent in the structure of value and of its shapes and dtypes (None for an
        integer or bool output), is a tuple: for each primal the gradient, in the primal's structure. It may be called
        any number of times, and keeps what f recorded as long as it lives.

    Raises
    ------
    TapeError
        Where f returns something else, or a cotangent has another structure.
    ShapeError, DTypeError
        For a cotangent that is not like its output, an integer primal.

    >>> value, pullback = tp.vjp(lambda x, y: x * y, tp.tensor([1.0, 2.0]), tp.tensor([3.0, 4.0]))
    >>> value.tolist(), [g.tolist() for g in pullback(tp.tensor([1.0, 10.0]))]
    ([3.0, 8.0], [[3.0, 40.0], [1.0, 20.0]])
    """
    checked_function(f, "vjp")
    run = Run("vjp", primals, list(range(len(primals)))).call(f, {}, has_aux)
    outputs, structure = run.outputs()
    pull = _Pull(run, outputs)
    value, aux = run.results()

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        given = leaves_as(structure, cotangent, "vjp", "the cotangent")
        return tuple(unflatten(run.structure, pull(_cotangents(given, pull.outputs, "vjp"))))

    run.value = run.aux = None
    return (value, pullback, aux) if has_aux else (value, pullback)


def _cotangents(given: list[Any], outputs: list[Tensor], name: str) -> list[Tensor | None]:
    cotangents: list[Tensor | None] = []
    for g, t in zip(given, outputs, strict=True):
        if t.dtype.kind == "f":
            cotangents.append(_as_like(g, t, name, "cotangent"))
        elif g is None:
            cotangents.append(None)
        else:
            raise errors.DTypeError(
                f"[{name}] an output of dtype {t.dtype} has no cotangent: got a {type(g).__name__}, expected None."
            )
    return cotangents


def jvp(f: Callable[..., Any], primals: Any, tangents: Any, has_aux: bool = False) -> Any:
    """f's value, and its derivative along tangents, by forward mode.

    f runs once; then tangents are pushed over what it recorded, in the order of recording. The rules are those of the
    op table, as in reverse mode, with its conventions at kinks: a zero tangent stays zero times any derivative, and a
    branch that was not selected does not leak.

    Parameters
    ----------
    f : callable
        Returns a tensor, or nested tuples, lists and dicts of tensors.
    primals : tuple or list
        The arguments of f: tensors, arrays, numbers, or nested tuples, lists and dicts of them, of float dtype.
    tangents : tuple or list
        In the structure of primals, of their shapes and dtypes.
    has_aux : bool
        f returns (value, aux); aux is handed on and not differentiated.

    Returns
    -------
    value, tangent : or value, tangent, aux with has_aux
        The tangent has the structure of value; of an integer or bool output it is None.

    Raises
    ------
    TapeError
        Where f returns something else, or tangents have another structure.
    ShapeError, DTypeError
        For a tangent that is not like its primal, an integer primal.

    >>> value, tangent = tp.jvp(lambda x: x * x * x, (2.0,), (1.0,))
    >>> float(value), float(tangent)
    (8.0, 12.0)
    """
    checked_function(f, "jvp")
    _argument_tuple(primals, "jvp", "primals")
    run = Run("jvp", tuple(primals), list(range(len(primals))))
    pushed = _along(tangents, run, "jvp", "tangents")
    run.call(f, {}, has_aux)
    outputs, structure = run.outputs()
    push = _Push(run, outputs)
    value, aux = run.results()
    tangent = unflatten(structure, push(pushed))
    return (value, tangent, aux) if has_aux else (value, tangent)


def _argument_tuple(given: Any, name: str, what: str) -> None:
    if not isinstance(given, (tuple, list)):
        raise errors.TapeError(
            f"[{name}] {what} must be a tuple, one item for each argument, got {type(given).__name__}. Write (x,)."
        )


def _along(tangents: Any, run: Run, name: str, what: str) -> list[Tensor]:
    """The leaves of tangents, one for each argument of the run."""
    _argument_tuple(tangents, name, what)
    leaves = leaves_as(run.structure, list(tangents), name, what)
    return [_as_like(t, x, name, "tangent") for t, x in zip(leaves, run.primals, strict=True)]


def hvp(f: Callable[..., Any], primals: Any, v: Any) -> Any:
    """The product of f's Hessian with v.

    Parameters
    ----------
    f : callable
        Returns a scalar.
    primals : tuple or list
        The arguments of f, as for jvp.
    v : tuple or list
        In the structure of primals, of their shapes and dtypes.

    Returns
    -------
    tuple
        In the structure of v.

    Raises
    ------
    TapeError, ShapeError, DTypeError
        As jvp; TapeError where f returns no scalar.

    >>> [h] = tp.hvp(lambda x: tp.sum(x * x * x), (tp.tensor([1.0, 2.0]),), (tp.tensor([1.0, 1.0]),))
    >>> h.tolist()
    [6.0, 12.0]
    """
    checked_function(f, "hvp")
    _argument_tuple(primals, "hvp", "primals")
    run = Run("hvp", tuple(primals), list(range(len(primals))))
    vectors = _along(v, run, "hvp", "v")
    run.call(f, {}, False)
    # forward over reverse: the gradients are recorded like any result, and few entries lie behind them
    products = _Push(run, run.gradients(True, True))(vectors)
    return type(v)(unflatten(run.structure, products))


# ---- Jacobians


def jacobian(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """A function that returns f's Jacobian: the derivative of every output by every input.

    f runs once. Then the unit tangents of all inputs are pushed forward together, or those of all outputs are pulled
    back together, whichever are fewer: as one batch (see vmap).

    Parameters
    ----------
    f : callable
        Returns a float tensor, or nested tuples, lists and dicts of them.
    argnums : int or tuple of ints
        Which positional arguments to differentiate, as for grad.

    Returns
    -------
    callable
        Of f's arguments. The result has the structure of f's value, and in place of each tensor the structure of the
        argument (a tuple of argnums gives a tuple) with tensors of shape `out.shape + in.shape`.

    Raises
    ------
    TapeError
        Where f returns something else, or argnums does not fit the call.
    DTypeError
        For an integer argument or output.

    >>> tp.jacobian(lambda x: x * x)(tp.tensor([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    return _jacobian(f, argnums, "jacobian")


def hessian(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """A function that returns f's Hessian: the Jacobian of its Jacobian.

    Parameters
    ----------
    f : callable
        Usually of a scalar value; nested containers of float tensors as for jacobian.
    argnums : int or tuple of ints
        Which positional arguments to differentiate; a tuple gives a tuple of tuples of blocks.

    Returns
    -------
    callable
        Of f's arguments; for tensors of shape `out.shape + in.shape + in.shape`, in the structure of f's value, then
        twice that of the argument.

    Raises
    ------
    TapeError, DTypeError
        As jacobian.

    >>> tp.hessian(lambda x: x[0] * x[1] * x[1])(tp.tensor([1.0, 2.0])).tolist()
    [[0.0, 4.0], [4.0, 2.0]]
    """
    return _jacobian(_jacobian(f, argnums, "hessian"), argnums, "hessian", even=True)


def _jacobian(f: Callable[..., Any], argnums: Any, name: str, even: bool = False) -> Callable[..., Any]:
    """even: forward mode for as many inputs as outputs, which is faster over a reverse pass; otherwise reverse."""
    checked_function(f, name)
    several = isinstance(argnums, (tuple, list))
    wanted = checked_argnums(argnums, name)

    @functools.wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        traced = Run(name, args, argument_numbers(argnums, wanted, len(args), name)).call(f, kwargs, False)
        outputs, structure = traced.outputs()
        for t in outputs:
            if t.dtype.kind != "f":
                raise errors.DTypeError(f"[{name}] an output of dtype {t.dtype} has no derivative. Use has_aux of vjp.")
        forward = sum(s.size for s in traced.sources) < sum(t.size for t in outputs) + even
        blocks = (_columns if forward else _rows)(traced, outputs)
        parts = [unflatten(traced.structure, row) for row in blocks]
        return unflatten(structure, [tuple(part) if several else part[0] for part in parts])

    return run


def _rows(run: Run, outputs: list[Tensor]) -> list[list[Tensor]]:
    """For each output, the derivatives by each source; by reverse mode."""
    pull = _Pull(run, outputs)
    forward = _core.Pushforward(run.nodes, pull.nodes, pull.outputs)
    blocks = []
    for j, t in enumerate(outputs):

        def one(g: Tensor, composed: bool, j: int = j) -> list[Tensor]:
            return pull([g if k == j else None for k in range(len(outputs))], composed)

        if pull.nodes[j] is None or t.size == 0:
            blocks.append([_core.zeros(t.shape + s.shape, dtype=s.dtype, device=s.device) for s in run.sources])
        else:
            rows = _over_identity(one, t, forward, run.linked)
            blocks.append([_core.reshape(r, t.shape + s.shape) for r, s in zip(rows, run.sources, strict=True)])
    return blocks


def _columns(run: Run, outputs: list[Tensor]) -> list[list[Tensor]]:
    """For each output, the derivatives by each source; by forward mode."""
    push = _Push(run, outputs)
    blocks: list[list[Tensor]] = [[] for _ in outputs]
    for i, s in enumerate(run.sources):

        def one(d: Tensor, composed: bool, i: int = i) -> list[Tensor]:
            return push([d if k == i else None for k in range(len(run.sources))], composed)

        columns = [_core.zeros((0, *t.shape), dtype=t.dtype, device=t.device) for t in outputs]
        if s.size:
            columns = _over_identity(one, s, push.forward, run.linked)
        for row, t, c in zip(blocks, outputs, columns, strict=True):
            row.append(_core.reshape(_core.moveaxis(c, 0, -1), t.shape + s.shape))
    return blocks


def _over_identity(
    f: Callable[[Tensor, bool], list[Tensor]], like: Tensor, forward: _core.Pushforward, linked: bool
) -> list[Tensor]:
    """f(seed, whether the walk is recorded) of every unit tensor of like's shape and dtype, along a new first axis."""
    return over(
        f,
        _core.reshape(_core.eye(like.size, dtype=like.dtype, device=like.device), (like.size, *like.shape)),
        forward,
        linked,
    )


def over(
    f: Callable[[Tensor, bool], list[Tensor]], seeds: Tensor, forward: _core.Pushforward, linked: bool
) -> list[Tensor]:
    """f(seed, whether the walk is recorded) of every seed along the first axis, along a new first axis.

    Where these are not few, a vmap of one walk over entries that are there already (forward), so that what they saved,
    a draw for example, is the same for all. linked: the entries were recorded for an outer transform.
    """
    from tapeflow.plan.batching import vmap  # what makes plans is imported when it is first needed

    count = seeds.shape[0]
    if count <= FEW:
        return [_core.stack(rows) for rows in zip(*[f(seeds[k], linked) for k in range(count)], strict=True)]

    def walk(seed: Tensor) -> list[Tensor]:
        forward.lend(linked)
        return f(seed, False)  # notes are enough: the batch's run is recorded where it must be

    found: list[Tensor] = vmap(walk)(seeds)
    return found


def tape_jacobian(target: Any, sources: Any, unconnected: str, recorded: bool, node_of: Callable[[Tensor], Any]) -> Any:
    """Tape.jacobian: the derivatives of target in the structure of sources."""
    given, structure = flatten(sources)
    places = checked_places("jacobian", [target], given, node_of)
    nodes = [node_of(s) for s in given]
    reached = [False] * len(given)

    def one(g: Tensor, composed: bool) -> list[Tensor]:
        grads = _core.run_backward([target], [g], nodes, composed, True, places)
        for i, d in enumerate(grads):
            reached[i] = reached[i] or d is not None
        return [_core.zeros_like(s) if d is None else d for s, d in zip(given, grads, strict=True)]

    blocks: list[Any] = [_core.zeros((0, *s.shape), dtype=s.dtype, device=s.device) for s in given]
    if target.size:
        forward = _core.Pushforward([node for node in nodes if node is not None], places, [target])
        blocks = _over_identity(one, target, forward, recorded)
    blocks = [_core.reshape(r, target.shape + s.shape) for r, s in zip(blocks, given, strict=True)]
    if unconnected == "none":
        blocks = [r if there else None for r, there in zip(blocks, reached, strict=True)]
    return unflatten(structure, blocks)
