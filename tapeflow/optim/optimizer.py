"""What all optimizers share: parameter groups, rates, state.

Whatever changes from step to step (the step number, rate, momentum, weight decay, moments) is a tensor that is there
from the start and is updated by assign, so a recording of a step stays right when it is replayed. Other options, and
whether an option is used at all, are constants.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import tapeflow as tp
from tapeflow import _state
from tapeflow.errors import DTypeError, NumberRangeError, StateError, TapeError
from tapeflow.optim.schedules import Schedule

Active = list[tuple[int, tp.Tensor, tp.Tensor]]
RATES = ("lr", "momentum", "weight_decay")  # options that are tensors, 0-d float64


class ParamGroup(MutableMapping[str, Any]):
    """Parameters with the options of their steps: `group["params"]`, `group["lr"]` and so on.

    group["lr"] is a tensor, the rate of the next step (with a schedule, of the latest); a number, a 0-d tensor or a
    schedule may be set. momentum and weight_decay are alike, except that one which was 0 when the optimizer was made
    stays 0.
    """

    def __init__(self, options: Mapping[str, Any], names: list[str], slots: Sequence[str], op: str) -> None:
        self.op, self.names = op, names
        self.schedule: Schedule | None = None
        self._options = dict(options)
        for key in RATES:
            if key in options and (key == "lr" or callable(options[key]) or options[key] != 0):
                self._options[key] = tp.zeros((), dtype="float64", device="cpu")
                self[key] = options[key]
        self.slots: dict[str, list[tp.Tensor]] = {slot: [tp.zeros_like(p) for p in self["params"]] for slot in slots}
        # how often each parameter was updated: one that had no gradient at times is behind
        self.counts = tp.zeros(len(names), dtype="float64", device="cpu")

    def __getitem__(self, key: str) -> Any:
        return self._options[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self._options:
            raise StateError(f"[{self.op}] there is no option {key!r}; expected one of {', '.join(self)}.")
        if key in RATES:
            self._set_rate(key, value)
        else:
            self._options[key] = value

    def __delitem__(self, key: str) -> None:
        raise StateError(f"[{self.op}] option {key!r} cannot be deleted. Set it.")

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def _set_rate(self, key: str, value: Any) -> None:
        tensor, schedule = self[key], None
        if value is tensor:  # group["lr"] *= 0.5
            return
        if callable(value):
            if key != "lr":
                raise DTypeError(f"[{self.op}] {key} is a function; only lr takes a schedule. Set it before each step.")
            schedule, value = value, value(0)
        if not isinstance(value, tp.Tensor) and not value >= 0.0:
            raise NumberRangeError(f"[{self.op}] {key} is {value}, expected 0 or more.")
        if isinstance(tensor, tp.Tensor):
            with tp.no_grad():
                tensor.assign(value)
        elif isinstance(value, tp.Tensor) or value != 0:
            raise StateError(
                f"[{self.op}] {key} was 0 when the optimizer was made and cannot become {value}. Make a new one."
            )
        if key == "lr":
            self.schedule = schedule

    def rate(self, key: str, dtype: Any) -> tp.Tensor | None:
        """An option that is a tensor in the dtype of a parameter; None for one that is not used."""
        value = self[key]
        return value.astype(dtype) if isinstance(value, tp.Tensor) else None


class Optimizer:
    """The base: `step()` updates every parameter that has a gradient; gradients add up until `zero_grad()`.

    A subclass names its state per parameter in `slots`, gives __init__ its options and defines `update`.
    """

    slots: tuple[str, ...] = ()

    def __init__(self, params: Any, **options: Any) -> None:
        self.defaults = options
        self.param_groups: list[ParamGroup] = []
        self.steps = tp.zeros(
            (), dtype="float64", device="cpu"
        )  # made so far; float64, so that a schedule calculates in it
        if isinstance(params, tp.Tensor):
            raise DTypeError(f"[{self._op}] params is one Tensor, expected a list of them: [w].")
        items = list(params)
        if not items:
            raise StateError(f"[{self._op}] there are no parameters. Give model.parameters() or a list of leaves.")
        for group in items if isinstance(items[0], Mapping) else [{"params": items}]:
            self.add_param_group(group)

    @property
    def _op(self) -> str:
        return type(self).__name__

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add parameters with options of their own: {"params": [...], "lr": 0.01}. The rest is as for the first ones.

        Raises TapeError for a tensor that was computed, StateError for a parameter that is there already or an option
        that this optimizer does not have.
        """
        unknown = [key for key in group if key not in self.defaults and key != "params"]
        if unknown or "params" not in group:
            raise StateError(
                f"[{self._op}] a group has {', '.join(map(str, group)) or 'nothing'}; expected params, and of options "
                f"{', '.join(self.defaults)}."
            )
        known = {id(p) for g in self.param_groups for p in g["params"]}
        start = len(known)
        given = group["params"]
        names, params = [], []
        for i, item in enumerate([given] if isinstance(given, tp.Tensor) else given, start):
            name, p = item if isinstance(item, tuple) else (str(i), item)
            if not isinstance(p, tp.Tensor):
                raise DTypeError(f"[{self._op}] parameter {name} is a {type(p).__name__}, expected a Tensor.")
            if not p.is_leaf:
                raise TapeError(
                    f"[{self._op}] parameter {name} of shape {p.shape} was computed; only a leaf can be optimized. "
                    "Use nn.Parameter(tensor) or .detach().requires_grad_()."
                )
            if id(p) in known:
                raise StateError(f"[{self._op}] parameter {name} of shape {p.shape} is given twice. Give it once.")
            known.add(id(p))
            names.append(name)
            params.append(p)
        options = {**self.defaults, **group, "params": params}
        self.check(options)
        self.param_groups.append(ParamGroup(options, names, self.used_slots(options), self._op))

    def check(self, options: dict[str, Any]) -> None:
        """Refuse options that make no sense."""

    def used_slots(self, options: dict[str, Any]) -> Sequence[str]:
        """The state that these options need."""
        return self.slots

    def _check_range(self, options: dict[str, Any], *keys: str, below: float = float("inf")) -> None:
        for key in keys:
            if not 0.0 <= options[key] < below:
                limit = f"0 <= {key} < {below}" if below < float("inf") else "0 or more"
                raise NumberRangeError(f"[{self._op}] {key} is {options[key]}, expected {limit}.")

    # ---- steps

    @property
    def lr(self) -> tp.Tensor:
        """The rate of the first group, a 0-d tensor; setting it, a number or a schedule, sets that of all groups."""
        rate: tp.Tensor = self.param_groups[0]["lr"]
        return rate

    @lr.setter
    def lr(self, value: float | tp.Tensor | Schedule) -> None:
        for group in self.param_groups:
            group["lr"] = value

    def zero_grad(self) -> None:
        """Set .grad of every parameter to None."""
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient, in place; those with .grad None stay as they are."""
        with tp.no_grad():
            for group in self.param_groups:
                if group.schedule is not None:
                    group["lr"].assign(group.schedule(self.steps))
                params = group["params"]
                active = [(i, p, g) for i, p in enumerate(params) if (g := p.grad) is not None]
                if not active:
                    continue
                if len(active) == len(params):
                    group.counts.assign_add(1.0)
                else:
                    group.counts.assign_add([float(p.grad is not None) for p in params])
                self.update(group, active)
            self.steps.assign_add(1.0)

    def update(self, group: ParamGroup, active: Active) -> None:
        """The step of one group: (position in the group, parameter, gradient) of each one that has a gradient, at least
        one; called under no_grad."""
        raise NotImplementedError(f"[{self._op}] update is not defined. Define update(self, group, active).")

    # ---- state

    def _state_tensors(self) -> dict[str, tp.Tensor]:
        state = {"steps": self.steps}
        for i, group in enumerate(self.param_groups):
            state |= {f"group.{i}.{key}": group[key] for key in RATES if isinstance(group.get(key), tp.Tensor)}
            state[f"group.{i}.counts"] = group.counts
            for slot, tensors in group.slots.items():
                state |= {f"{slot}.{name}": t for name, t in zip(group.names, tensors)}
        return state

    def state_dict(self) -> dict[str, tp.Tensor]:
        """All that changes between steps, by name: their values now, which later steps do not change.

        Parameters bear the names they were given by (model.named_parameters()) or their numbers.

        >>> w = tp.nn.Parameter(tp.zeros(3))
        >>> list(tp.optim.SGD([w], lr=0.1, momentum=0.9).state_dict())
        ['steps', 'group.0.lr', 'group.0.momentum', 'group.0.counts', 'velocity.0']
        """
        return {name: t.detach() for name, t in self._state_tensors().items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> _state.UnmatchedKeys:
        """Assign the values of a state_dict; schedules and other options stay as this optimizer has them.

        Returns the names that were (missing, unexpected), which only strict=False allows.
        Raises StateError, which names all that is missing, unexpected or of another shape; then nothing has changed.
        """
        return _state.load(self._state_tensors(), state_dict, strict, "load_state_dict", self._op)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write state_dict() to a safetensors file (needs the package safetensors)."""
        _state.write_file(self.state_dict(), path)

    def load(self, path: str | os.PathLike[str], strict: bool = True) -> _state.UnmatchedKeys:
        """load_state_dict from a safetensors file (needs the package safetensors)."""
        return self.load_state_dict(_state.read_file(path), strict)

    def __repr__(self) -> str:
        lines = [f"{self._op} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"  group {i}: {len(group['params'])} parameters")
            for key, value in group.items():
                if key != "params":
                    shown = f"{float(value):.6g}" if isinstance(value, tp.Tensor) else value
                    lines.append(
                        f"    {key}: {shown}" + " (by a schedule)" * (key == "lr" and group.schedule is not None)
                    )
        return "\n".join([*lines, ")"])


def per_dtype(function: Callable[[Any], Any], active: Active) -> dict[Any, Any]:
    """function(dtype) for each dtype among the parameters."""
    return {dtype: function(dtype) for dtype in {p.dtype for _, p, _ in active}}
