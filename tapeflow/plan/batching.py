"""vmap: a function of single values, run once and then over a whole batch.

The run on the first element of the batch is recorded (record.py), and the program is then run on the batch, op by op
(interpret.py) with a rule for each (batch_rules.py). What does not depend on the batch is computed once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapeflow import _core
from tapeflow._core import Tensor
from tapeflow.errors import DTypeError, ShapeError, TapeError
from tapeflow.plan.batch_rules import Call, Operand, batch
from tapeflow.plan.functions import Function
from tapeflow.plan.interpret import Interpreter, is_followed
from tapeflow.plan.ir import ACCUMULATE, IR, RANDOM, Instr
from tapeflow.plan.mapped_rules import MappedRule
from tapeflow.plan.plans import Plan, freeze
from tapeflow.plan.record import Captured, as_input, capture
from tapeflow.transforms import flatten, unflatten


class Batcher(Interpreter):
    """A run of a program whose inputs are batches of n; `batched` says which values are."""

    def __init__(self, ir: IR, n: int) -> None:
        super().__init__(ir)
        self.n = n
        self.batched = set(ir.inputs)

    def step(self, instr: Instr) -> None:
        if instr.op < 0:
            if any(k in self.batched for k in instr.ins):
                raise TapeError(
                    f"[vmap] Python looked at a value that differs within the batch ({self.line(instr)}): it can take "
                    "only one path for all. Use tp.where, or functions of tapeflow on the value."
                )
            super().step(instr)
        elif instr.op == RANDOM:
            self.env[instr.out] = self.draw(instr, (self.n, *self.ir.values[instr.out].shape))
            self.batched.add(instr.out)
        elif any(k in self.batched for k in instr.ins):
            if instr.op == ACCUMULATE:
                raise TapeError(
                    f"[vmap] backward adds a gradient that differs within the batch into the .grad of a captured "
                    f"tensor ({self.line(instr)}). Take the gradient with tp.grad and return it."
                )
            self.env[instr.out] = batch(self.call(instr))
            self.batched.add(instr.out)
        else:
            super().step(instr)

    def calls_rule(self, region: Any) -> bool:
        """Over the batch, where one of the arguments differs within it."""
        numbers = [x[0] for x in region.arguments[1] if type(x) is list]
        if not any(k in self.batched for k in numbers):
            return super().calls_rule(region)
        xs = [self.value(k) for k in numbers]
        if not is_followed(xs):
            return False
        axes = [0 if k in self.batched else None for k in numbers]
        found = iter(MappedRule(region, xs, axes).mapped(*xs))
        leaves = region.results[1]
        self.enter_results(region, [next(found) if type(x) is list else x for x in leaves])
        self.batched.update(x[0] for x in leaves if type(x) is list)
        return True

    def hook_of(self, k: int, fn: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        """Of the gradient of a whole batch, where it differs within it."""
        if k not in self.batched:
            return fn

        def one(g: Tensor) -> tuple[Tensor, ...]:
            found = fn(g)
            return () if found is None else (found,)

        over = vmap(one)
        return lambda g: next(iter(over(g)), None)

    def call(self, instr: Instr) -> Call:
        values = self.ir.values
        operands = [Operand(self.value(k), values[k].shape, k in self.batched) for k in instr.ins]
        return Call(instr.op, instr.params, operands, values[instr.out], self.n, self.line(instr))

    def commit(self) -> None:
        made = {instr.out: instr for instr in self.ir.instrs}
        for t, k in (*self.ir.states, *self.ir.grads):
            if k is not None and k in self.batched:
                raise TapeError(
                    f"[vmap] a captured tensor {t.dtype}{list(t.shape)} is given a value that differs within the batch"
                    f"{f' ({self.line(made[k])})' if k in made else ''}. Return the value instead."
                )
        super().commit()


# ---- axes


def _axes(axes: Any, tree: Any, what: str, name: str) -> list[Any]:
    """The axis of each leaf of a tree: axes is an int or None for all of them, or containers like the tree's."""
    if axes is None or (isinstance(axes, int) and not isinstance(axes, bool)):
        return [axes] * len(flatten(tree)[0])
    if isinstance(axes, (tuple, list)):
        if not isinstance(tree, (tuple, list)) or len(axes) != len(tree):
            has = f"{len(tree)} parts" if isinstance(tree, (tuple, list, dict)) else f"a {type(tree).__name__}"
            raise ShapeError(f"[vmap] {what} has {len(axes)} axes for {name}, which has {has}. Give one axis for each.")
        return [a for i, (x, y) in enumerate(zip(axes, tree, strict=True)) for a in _axes(x, y, what, f"{name}[{i}]")]
    if isinstance(axes, dict):
        if not isinstance(tree, dict) or axes.keys() != tree.keys():
            has = f"the keys {list(tree)}" if isinstance(tree, dict) else f"no keys: it is a {type(tree).__name__}"
            raise ShapeError(f"[vmap] {what} names the keys {list(axes)} of {name}, which has {has}.")
        return [a for key in tree for a in _axes(axes[key], tree[key], what, f"{name}[{key!r}]")]
    raise DTypeError(f"[vmap] {what} must hold ints and None, in tuples, lists and dicts; got {axes!r}.")


def _names(tree: Any, name: str) -> list[str]:
    """What to call each leaf in a message."""
    if isinstance(tree, (tuple, list)):
        return [n for i, x in enumerate(tree) for n in _names(x, f"{name}[{i}]")]
    if isinstance(tree, dict):
        return [n for key, x in tree.items() for n in _names(x, f"{name}[{key!r}]")]
    return [name]


class Arguments:
    """The arguments of a mapped function: which leaves are mapped, as batches with the batch in front."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], in_axes: Any) -> None:
        if isinstance(in_axes, (tuple, list)) and len(in_axes) != len(args):
            raise ShapeError(f"[vmap] in_axes has {len(in_axes)} entries for {len(args)} positional arguments.")
        each = in_axes if isinstance(in_axes, (tuple, list)) else [in_axes] * len(args)
        self.leaves, self.structure = flatten((args, kwargs))
        axes: list[Any] = []
        names: list[str] = []
        for i, (a, x) in enumerate(zip(each, args, strict=True)):
            axes += _axes(a, x, "in_axes", f"argument {i}")
            names += _names(x, f"argument {i}")
        for key, x in kwargs.items():
            found = _names(x, f"argument {key}")
            axes += [0] * len(found)
            names += found
        self.mapped = [i for i, a in enumerate(axes) if a is not None]
        self.batches = [_batch(self.leaves[i], axes[i], names[i]) for i in self.mapped]
        sizes = {names[i]: x.shape[0] for i, x in zip(self.mapped, self.batches, strict=True)}
        if not sizes:
            raise ShapeError("[vmap] no argument is mapped: in_axes is None for all. Call the function itself.")
        if len(set(sizes.values())) > 1:
            given = ", ".join(f"{size} of {name}" for name, size in sizes.items())
            raise ShapeError(f"[vmap] the mapped axes have different sizes: {given}. They must be the same.")
        self.n: int = self.batches[0].shape[0]
        self._examples: list[Tensor] | None = None

    @property
    def examples(self) -> list[Tensor]:
        """A single value of each batch."""
        if self._examples is None:
            self._examples = [_example(x) for x in self.batches]
        return self._examples

    def is_followed(self) -> bool:
        """Is something recorded or traced, or does an argument require grad, so that a replay would not do?"""
        leaves = [*self.leaves, *self.batches]
        return (_core.is_recording() or _core.is_tracing()) or (
            _core.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in leaves)
        )

    def call(self, f: Callable[..., Any], singles: Sequence[Any]) -> Any:
        """f of single values in place of what is mapped."""
        leaves = list(self.leaves)
        for i, x in zip(self.mapped, singles, strict=True):
            leaves[i] = x
        positional, named = unflatten(self.structure, leaves)
        return f(*positional, **named)


def _batch(x: Any, axis: int, name: str) -> Tensor:
    """A mapped leaf with its batch in front."""
    if not isinstance(x, (Tensor, np.ndarray)):
        raise DTypeError(
            f"[vmap] {name} is a {type(x).__name__}, which has no axes to map over. Pass a tensor or an array, or give "
            "in_axes None for it."
        )
    t = as_input(x, copy=True)
    if not -t.ndim <= axis < t.ndim:
        raise ShapeError(f"[vmap] in_axes is {axis} for {name}, whose shape is {t.shape}.")
    return t if axis % t.ndim == 0 else _core.moveaxis(t, axis, 0)


def _example(x: Tensor) -> Tensor:
    """A single value to record with: the first of the batch, zeros where it is empty."""
    with _core.no_grad(), _core.aside():
        one = x.detach()[0] if x.shape[0] else _core.zeros(x.shape[1:], dtype=x.dtype, device=x.device)
    return one.requires_grad_() if x.requires_grad else one


# ---- vmap


def vmap(f: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """A function that maps f over an axis of its arguments, all at once: f itself speaks of single values.

    Parameters
    ----------
    f : callable
        Of tensors, arrays and nested tuples, lists and dicts of them; returns tensors, or nested containers of them.
        It is run once, with the first element of the batch. It must not look at values that differ within the batch
        (`if x > 0`: use tp.where), nor write them to captured tensors. Draws differ within the batch; one draw of the
        generator covers it.
    in_axes : int, None, or a tuple with one entry for each positional argument
        The axis that is mapped, None for an argument that is the same for all. An entry may be a container like the
        argument, with an int or None for each part. Keyword arguments are mapped over axis 0.
    out_axes : int, None, or a container like the result
        Where the batch is in the results. None: the result must not depend on the batch, and comes without it.

    Returns
    -------
    callable
        Of f's arguments, with one axis more where they are mapped. It can be differentiated, recorded and mapped again.

    Raises
    ------
    ShapeError
        For an axis that is out of range, or mapped axes of different sizes.
    TapeError
        Where f looks at, or writes, what differs within the batch.

    >>> x, y = tp.tensor([[1.0, 2.0], [3.0, 4.0]]), tp.tensor([1.0, 10.0])
    >>> tp.vmap(lambda a, b: (a * b).sum())(x, y).tolist()
    [3.0, 70.0]
    >>> tp.vmap(tp.grad(lambda a, b: (a * a).sum() * b), in_axes=(0, None))(x, 1.0).tolist()
    [[2.0, 4.0], [6.0, 8.0]]
    """
    if not callable(f):
        raise TapeError(f"[vmap] expected a function, got {type(f).__name__}.")
    _check_axes(in_axes, "in_axes")
    _check_axes(out_axes, "out_axes")

    def run(*args: Any, **kwargs: Any) -> Any:
        arguments = Arguments(args, kwargs, in_axes)
        plan = None if arguments.is_followed() else _plan_of(f, arguments)
        if plan is not None:
            return replayed(plan, arguments, out_axes)
        noted = trace(f, arguments)
        batcher = Batcher(noted.ir, arguments.n)
        outputs = batcher.run(arguments.batches)
        batched = [k in batcher.batched for k in noted.ir.outputs]
        return results(noted.structure, outputs, batched, arguments.n, out_axes)

    return functools.update_wrapper(run, f)


def _check_axes(axes: Any, what: str) -> None:
    for a in flatten(axes)[0]:
        if a is not None and (isinstance(a, bool) or not isinstance(a, int)):
            raise DTypeError(f"[vmap] {what} must hold ints and None, in tuples, lists and dicts; got {axes!r}.")


def trace(f: Callable[..., Any], arguments: Arguments) -> Captured:
    """f's program for single values."""

    def call(program: Any) -> tuple[int, Any]:
        result = arguments.call(f, [program.add_input(x) for x in arguments.examples])
        for x in flatten(result)[0]:
            if not isinstance(x, Tensor):
                raise TapeError(
                    f"[vmap] the function returned a {type(x).__name__}. Return tensors, and nested tuples, lists and "
                    "dicts of them."
                )
        return len(arguments.batches), result

    return capture(call, "vmap", replayed=False)


def results(structure: Any, outputs: list[Tensor], batched: list[bool], n: int, out_axes: Any) -> Any:
    """The outputs of a run over a batch as the mapped function returns them."""
    axes = _axes(out_axes, unflatten(structure, outputs), "out_axes", "the result")
    found = []
    for y, each, axis in zip(outputs, batched, axes, strict=True):
        if axis is None:
            if each:
                raise ShapeError("[vmap] out_axes is None for a result that differs within the batch.")
            found.append(y)
            continue
        if not each:
            y = _core.broadcast_to(y, (n, *y.shape))
        if not -y.ndim <= axis < y.ndim:
            raise ShapeError(f"[vmap] out_axes is {axis} for a result whose shape, with the batch, is {y.shape}.")
        found.append(y if axis % y.ndim == 0 else _core.moveaxis(y, 0, axis))
    return unflatten(structure, found)


# ---- plans over a batch


def _plan_of(f: Any, arguments: Arguments) -> Plan | None:
    """The plan to replay, where f is a plan, or a tp.function with one path for single values like these."""
    if isinstance(f, Plan):
        return f
    return arguments.call(f.plan_for, arguments.examples) if isinstance(f, Function) else None


def replayed(plan: Plan, arguments: Arguments, out_axes: Any) -> Any:
    """The results of a plan over a batch: in lanes where it is of 0-d values alone, in blocks otherwise."""
    singles = arguments.call(lambda *args, **kwargs: plan._bound(args, kwargs), arguments.examples)
    batches = {id(one): x for one, x in zip(arguments.examples, arguments.batches, strict=True)}
    each = [id(x) in batches for x in singles]
    inputs = [batches.get(id(x), x) for x in singles]
    plan.check(singles)
    batched = plan.depends(tuple(each))
    if plan.is_scalar and all(x.device == "cpu" for x in inputs):
        outputs = plan._over(inputs, each, arguments.n)
        # (one that is returned twice is two tensors)
        outputs = [_core.unlinked(y) if b or not arguments.n else y[0] for y, b in zip(outputs, batched, strict=True)]
        batched = [b or not arguments.n for b in batched]
    else:
        outputs = _in_blocks(plan, inputs, tuple(each), batched, arguments.n)
    r = plan._recording
    if r is None:
        return results((list, [None] * len(outputs)), outputs, batched, arguments.n, out_axes)
    leaves = [x for x in r.leaves if type(x) is not list]
    if leaves:
        raise TapeError(f"[vmap] the plan returns a {type(leaves[0]).__name__}. Map a plan that returns tensors.")
    return results(
        r.result, [outputs[x[0]] for x in r.leaves], [batched[x[0]] for x in r.leaves], arguments.n, out_axes
    )


_BLOCK_BYTES = 1 << 20  # of all values of a block, so that they stay in a cache
_LEAST, _MOST = 16, 1024  # single values of a block
_KEPT = 8  # plans over blocks that a plan keeps


def _in_blocks(plan: Plan, inputs: list[Tensor], each: tuple[bool, ...], batched: list[bool], n: int) -> list[Tensor]:
    """The outputs of a plan over n: of a plan over a block at a time. The last block begins early enough to be full."""
    ir = plan._ir
    size = n
    if not (ir.states or ir.grads or ir.generators) and n > _LEAST:
        most = max(_LEAST, min(_MOST, _BLOCK_BYTES // max(plan.nbytes, 1)))
        size = -(-n // -(-n // most))
    whole = _block_plan(plan, inputs, each, size)
    starts = [min(start, n - size) for start in range(0, max(n, 1), max(size, 1))]
    parts: list[list[Tensor]] = []
    for at, start in enumerate(starts):
        block = [x[start : start + size] if mapped else x for x, mapped in zip(inputs, each, strict=True)]
        found = whole._replay(block)
        seen = at * size - start  # computed by the block before, too
        parts.append([y[seen:] if b and seen else y for y, b in zip(found, batched, strict=True)])
    if len(parts) == 1:
        return parts[0]
    return [_core.concat([part[j] for part in parts], axis=0) if b else parts[0][j] for j, b in enumerate(batched)]


def _block_plan(plan: Plan, inputs: list[Tensor], each: tuple[bool, ...], size: int) -> Plan:
    """The plan of the plan's program over a batch of that size; kept."""
    key = (each, size)
    found: Plan | None = plan.mapped.get(key)
    if found is None:
        examples = [x[:size] if mapped else x for x, mapped in zip(inputs, each, strict=True)]

        def run(*xs: Tensor) -> list[Tensor]:
            batcher = Batcher(plan._ir, size)
            batcher.batched = {k for k, mapped in zip(plan._ir.inputs, each, strict=True) if mapped}
            return batcher.run(xs)

        found = freeze(run, *examples)
        while len(plan.mapped) >= _KEPT:
            plan.mapped.pop(next(iter(plan.mapped)))
        plan.mapped[key] = found
    return found
