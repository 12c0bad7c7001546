"""Rules of the user's own (tp.custom_vjp) over a batch: vmap of f, fwd, bwd and the rule of forward mode.

In a program the call of such a function is its notes, which would be differentiated as any others; what runs a program
again where gradients are wanted calls the function itself instead (interpret.py), or over a batch one made of it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tapeflow import _core
from tapeflow._core import Tensor
from tapeflow.custom import Region, custom_vjp, matched
from tapeflow.transforms import flatten, unflatten


class MappedRule:
    """The function of a region, of its tensors alone: xs in order, each with the batch in front, or axis None."""

    def __init__(self, region: Region, xs: Sequence[Tensor], axes: Sequence[int | None]) -> None:
        from tapeflow.plan.batching import vmap  # which runs programs with this

        self.vmap, self.axes = vmap, tuple(axes)
        self.structure, self.leaves = region.arguments
        self.rule = region.rule
        shapes = iter([x.shape if a is None else x.shape[1:] for x, a in zip(xs, axes, strict=True)])
        dtypes = iter([x.dtype for x in xs])
        self.likes = [(next(shapes), next(dtypes), True) if type(x) is list else None for x in self.leaves]
        self.mapped = custom_vjp(lambda *xs: vmap(self.fun, self.axes)(*xs))
        self.mapped.name = self.rule.name
        if self.rule.bwd is not None:
            self.mapped.defvjp(self.fwd, self.bwd)
        if self.rule.jvp is not None:
            self.mapped.defjvp(self.jvp)

    def arguments(self, xs: Sequence[Any], tangents: bool = False) -> Any:
        """The arguments with xs in place of the tensors; of tangents with None for all else."""
        given = iter(xs)
        leaves = [next(given) if type(x) is list else None if tangents else x for x in self.leaves]
        return unflatten(self.structure, leaves)

    def fun(self, *xs: Tensor) -> tuple[Tensor, ...]:
        return _tensors(self.rule.fun(*self.arguments(xs)))

    def fwd(self, *xs: Tensor) -> tuple[Any, Any]:
        shape: list[Any] = []  # what one call's residuals and value look like

        def one(*xs: Tensor) -> tuple[Any, Any]:
            value, residuals = self.rule.fwd(*self.arguments(xs))
            leaves, structure = flatten(residuals)
            results, result_structure = flatten(value)
            floats = [isinstance(x, Tensor) and x.dtype.kind == "f" for x in results]
            shape[:] = [structure, [None if isinstance(x, Tensor) else [x] for x in leaves], result_structure, floats]
            return _tensors(value), _tensors(residuals)

        value, residuals = self.vmap(one, self.axes)(*xs)
        return value, (residuals, _Held(shape))

    def bwd(self, residuals: Any, cotangents: Any) -> tuple[Any, ...]:
        structure, constants, result_structure, floats = residuals[1].value
        there: list[bool] = []

        def one(tensors: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
            given, gs = iter(tensors), iter(cotangents)
            kept = unflatten(structure, [next(given) if x is None else x[0] for x in constants])
            g = unflatten(result_structure, [next(gs) if f else None for f in floats])
            found = self.rule.bwd(kept, g)
            grads = matched(self.rule.name, self.structure, self.likes, found)
            there[:] = [x is not None for x in grads]
            return tuple(x for x in grads if x is not None)

        given = tuple(g for g in cotangents if g is not None)
        found = iter(self.vmap(one)(residuals[0], given))
        grads = [next(found) if x else None for x in there]
        return tuple(
            g if g is None or axis is not None else _core.sum(g, axis=0)
            for g, axis in zip(grads, self.axes, strict=True)
        )

    def jvp(self, primals: Sequence[Tensor], tangents: Sequence[Any]) -> tuple[Any, Any]:
        moving = [t is not None for t in tangents]

        def one(primals: Sequence[Tensor], tangents: Sequence[Tensor]) -> tuple[Any, Any]:
            given = iter(tangents)
            moved = self.arguments([next(given) if m else None for m in moving], True)
            value, tangent = self.rule.jvp(self.arguments(primals), moved)
            return _tensors(value), _tensors(tangent)

        axes = tuple(a for a, m in zip(self.axes, moving, strict=True) if m)
        given = tuple(t for t in tangents if t is not None)
        found: tuple[Any, Any] = self.vmap(one, (self.axes, axes))(tuple(primals), given)
        return found


class _Held:
    """A residual that is no container."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _tensors(tree: Any) -> tuple[Tensor, ...]:
    return tuple(x for x in flatten(tree)[0] if isinstance(x, Tensor))
