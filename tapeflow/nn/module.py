"""Modules: objects with named parameters, buffers and other modules inside.

The members stand in the object's own __dict__, where Python finds them fast; `_members` has only their names, in the
order in which they came, and what each is. It is made by __new__, so a subclass need not call super().__init__().
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from reprlib import recursive_repr
from typing import Any, TypeVar

import tapeflow as tp
from tapeflow import _core, _epoch, _state
from tapeflow._creation import place
from tapeflow.errors import DTypeError, StateError, TapeError

PARAMETER, BUFFER, PASSING_BUFFER, MODULE = "parameter", "buffer", "buffer that is not saved", "module"
_WHAT_FITS = {
    PARAMETER: "a leaf that requires grad, as nn.Parameter makes",
    BUFFER: "a tensor",
    PASSING_BUFFER: "a tensor",
    MODULE: "a module",
}

M = TypeVar("M", bound="Module")


def Parameter(data: Any, requires_grad: bool = True) -> tp.Tensor:
    """A leaf tensor whose gradient is wanted; assigned to an attribute of a module, it is one of its parameters.

    Parameters
    ----------
    data : Tensor, array, number or nested lists
        The initial value; a tensor of its own is made, of data's dtype.
    requires_grad : bool
        False for a parameter that is frozen from the start: give it to `Module.register_parameter`, since as an
        attribute it would be a tensor like any other.

    Raises
    ------
    DTypeError
        For integers or bools with requires_grad.

    >>> w = tp.nn.Parameter(tp.zeros(3))
    >>> w.requires_grad, w.is_leaf
    (True, True)
    """
    value = data.detach().clone() if isinstance(data, tp.Tensor) else tp.tensor(data)
    return value.requires_grad_(requires_grad)


def _kind(value: Any) -> str | None:
    """What a value is as the attribute of a module, None for nothing in particular."""
    if isinstance(value, tp.Tensor):
        return PARAMETER if value.requires_grad and value.is_leaf else None
    return MODULE if isinstance(value, Module) else None


def _describe(value: Any) -> str:
    if isinstance(value, tp.Tensor):
        return f"a {'constant' if value.is_leaf else 'computed'} tensor of shape {value.shape}"
    return f"a {type(value).__name__}"


class Module:
    """The base of layers and models. A subclass sets parameters and modules as attributes and defines `forward`.

    - An attribute that is a leaf tensor that requires grad (`nn.Parameter(...)`) is a parameter; one that is a Module
      is a child; any other tensor is just an attribute, unless `register_buffer` names it.
    - A parameter's name keeps to parameters: assigning another tensor to it is an error, as it would no longer be
      trained. Change the value with `assign`, under `tp.no_grad()`.
    - `module(x)` is `module.forward(x)`.

    >>> class Scale(tp.nn.Module):
    ...     def __init__(self, size):
    ...         self.factor = tp.nn.Parameter(tp.ones(size))
    ...     def forward(self, x):
    ...         return self.factor * x
    >>> model = tp.nn.Sequential(Scale(2), tp.nn.Tanh())
    >>> model(tp.tensor([0.0, 0.0])).tolist(), [name for name, _ in model.named_parameters()]
    ([0.0, 0.0], ['0.factor'])
    """

    training: bool = True
    _members: dict[str, str]
    _token: int

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = super().__new__(cls)
        self.__dict__["_members"] = {}
        self.__dict__["_token"] = _epoch.new_token()
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; every subclass that is called defines it."""
        raise NotImplementedError(
            f"[{type(self).__name__}] forward is not defined. Define forward(self, ...) in the class."
        )

    # ---- attributes

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(getattr(type(self), name, None), "__set__"):  # a property of the class: its setter decides
            object.__setattr__(self, name, value)
            return
        if name == "training":
            if bool(value) != self.training:
                _epoch.switch(self._token)
            value = bool(value)
        kind, known = _kind(value), self._members.get(name)
        if kind is not None:
            self._members[name] = kind
        elif known is not None:
            fits = value is None or value is self.__dict__.get(name)
            if not fits and not (known in (BUFFER, PASSING_BUFFER) and isinstance(value, tp.Tensor)):
                raise DTypeError(
                    f"[{type(self).__name__}] {name!r} is a {known} and was given {_describe(value)}; expected "
                    f"{_WHAT_FITS[known]}. For a new value use .assign under tp.no_grad(); to give up the {known}, "
                    "`del` it first."
                )
        elif isinstance(value, (list, tuple, dict)):
            self._refuse_hidden(name, value)
        object.__setattr__(self, name, value)

    def _refuse_hidden(self, name: str, value: Any) -> None:
        """Members inside of a list would be trained by nobody, silently."""
        for item in value.values() if isinstance(value, dict) else value:
            if _kind(item) is not None:
                remedy = f"nn.Module{'Dict' if isinstance(value, dict) else 'List'}(...)"
                if _kind(item) == PARAMETER:
                    remedy = "attributes: self.register_parameter(f'w{i}', w)"
                raise DTypeError(
                    f"[{type(self).__name__}] {name!r} is a {type(value).__name__} with a {_kind(item)} in it, which "
                    f"would not be found there. Use {remedy}."
                )

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        self._members.pop(name, None)

    def _check_name(self, name: Any, op: str) -> None:
        if not isinstance(name, str) or not name or "." in name:
            raise StateError(f"[{op}] a name must be a string without dots and not empty, got {name!r}.")
        if name not in self._members and hasattr(self, name):
            raise StateError(f"[{op}] {type(self).__name__} has an attribute {name!r} already. Choose another name.")

    def register_parameter(self, name: str, parameter: tp.Tensor | None) -> None:
        """Make a leaf tensor a parameter under a name that need not be known when the program is written.

        None reserves the name. A tensor that was computed: TapeError; a name that is taken: StateError.
        """
        self._check_name(name, "register_parameter")
        if parameter is not None:
            if not isinstance(parameter, tp.Tensor):
                raise DTypeError(f"[register_parameter] expected a Tensor, got {type(parameter).__name__}.")
            if not parameter.is_leaf:
                raise TapeError(
                    f"[register_parameter] {name!r} is a computed tensor and cannot be trained. "
                    "Use nn.Parameter(tensor)."
                )
        self._members[name] = PARAMETER
        self.__dict__[name] = parameter

    def register_buffer(self, name: str, tensor: tp.Tensor | None, persistent: bool = True) -> None:
        """Make a tensor that is not trained part of the state: a running mean, a mask.

        It changes by `self.name.assign(...)`. persistent=False: not in state_dict. None reserves the name. A tensor
        that requires grad: TapeError; a name that is taken: StateError.
        """
        self._check_name(name, "register_buffer")
        if tensor is not None:
            if not isinstance(tensor, tp.Tensor):
                raise DTypeError(f"[register_buffer] expected a Tensor, got {type(tensor).__name__}.")
            if tensor.requires_grad:
                raise TapeError(f"[register_buffer] {name!r} requires grad; a buffer is not trained. Use .detach().")
        self._members[name] = BUFFER if persistent else PASSING_BUFFER
        self.__dict__[name] = tensor

    def add_module(self, name: str, module: Module | None) -> None:
        """Make a module a child under a name that need not be known when the program is written."""
        self._check_name(name, "add_module")
        if module is not None and not isinstance(module, Module):
            raise DTypeError(f"[add_module] expected a Module, got {type(module).__name__}.")
        self._members[name] = MODULE
        self.__dict__[name] = module

    # ---- what is inside

    def _children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) right inside, under every name."""
        for name, kind in self._members.items():
            if kind == MODULE and self.__dict__[name] is not None:
                yield name, self.__dict__[name]

    def _tree(self, prefix: str, above: set[int], unique: bool) -> Iterator[tuple[str, Module]]:
        """This module and those inside; each once, or under every name that leads to it without a circle."""
        above.add(id(self))
        yield prefix, self
        for name, child in self._children():
            if id(child) not in above:
                yield from child._tree(f"{prefix}.{name}" if prefix else name, above if unique else set(above), unique)

    def _tensors(self, kinds: tuple[str, ...], recurse: bool = True, unique: bool = True) -> Iterator[Any]:
        """(dotted name, tensor) of the members of these kinds; each tensor once, or under every name."""
        seen: set[int] = set()
        for prefix, module in self._tree("", set(), unique) if recurse else [("", self)]:
            for name, kind in module._members.items():
                value = module.__dict__[name]
                if kind in kinds and value is not None and not (unique and id(value) in seen):
                    seen.add(id(value))
                    yield f"{prefix}.{name}" if prefix else name, value

    def named_parameters(self, recurse: bool = True) -> Iterator[tuple[str, tp.Tensor]]:
        """(dotted name, parameter), in the order in which they were set; one that is shared, once."""
        return self._tensors((PARAMETER,), recurse)

    def parameters(self, recurse: bool = True) -> Iterator[tp.Tensor]:
        """The parameters of this module and, with recurse, of those inside; one that is shared, once."""
        return (tensor for _, tensor in self.named_parameters(recurse))

    def named_buffers(self, recurse: bool = True) -> Iterator[tuple[str, tp.Tensor]]:
        """(dotted name, buffer)."""
        return self._tensors((BUFFER, PASSING_BUFFER), recurse)

    def buffers(self, recurse: bool = True) -> Iterator[tp.Tensor]:
        """The buffers of this module and, with recurse, of those inside."""
        return (tensor for _, tensor in self.named_buffers(recurse))

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of the modules right inside; one under two names, once."""
        seen: set[int] = set()
        for name, child in self._children():
            if id(child) not in seen:
                seen.add(id(child))
                yield name, child

    def children(self) -> Iterator[Module]:
        """The modules right inside."""
        return (module for _, module in self.named_children())

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """(dotted name, module) of this module, whose name is empty, and of all inside, each once."""
        return self._tree("", set(), unique=True)

    def modules(self) -> Iterator[Module]:
        """This module and all inside, each once."""
        return (module for _, module in self.named_modules())

    # ---- for all inside

    def apply(self: M, fn: Callable[[Module], Any]) -> M:
        """Call fn with every module inside, then with this one; returns this module."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def train(self: M, mode: bool = True) -> M:
        """Set the mode that Dropout and its kin ask for, here and in all modules inside; returns this module."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: M) -> M:
        """train(False)."""
        return self.train(False)

    def to(self: M, device: Any) -> M:
        """Move every parameter, its .grad and every buffer to a device, each staying the tensor that it is.

        Optimizers are made after that: what they keep of a parameter stays where it was. Returns this module.
        Raises DeviceError for a device that is not there, or one that lacks a dtype; then nothing has moved.

        >>> tp.nn.Linear(2, 3).to("cpu").weight.device == "cpu"
        True
        """
        _core.move_all([t for _, t in self._tensors((PARAMETER, BUFFER, PASSING_BUFFER))], place(device, "Module.to"))
        return self

    def zero_grad(self) -> None:
        """Set .grad of every parameter to None."""
        for parameter in self.parameters():
            parameter.zero_grad()

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Freeze every parameter with False, thaw it with True; returns this module."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    # ---- state

    def _state_tensors(self) -> dict[str, tp.Tensor]:
        return dict(self._tensors((PARAMETER, BUFFER), unique=False))

    def state_dict(self) -> dict[str, tp.Tensor]:
        """The parameters and persistent buffers by dotted name: their values now, which later steps do not change.

        >>> {name: value.shape for name, value in tp.nn.Linear(2, 3).state_dict().items()}
        {'weight': (3, 2), 'bias': (3,)}
        """
        return {name: tensor.detach() for name, tensor in self._state_tensors().items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> _state.UnmatchedKeys:
        """Assign the values of a state_dict (tensors or arrays; floats are cast to the dtype here).

        Returns the names that were (missing, unexpected), which only strict=False allows.
        Raises StateError, which names all that is missing, unexpected or of another shape; then nothing has changed.
        """
        return _state.load(self._state_tensors(), state_dict, strict, "load_state_dict", type(self).__name__)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write state_dict() to a safetensors file (needs the package safetensors)."""
        _state.write_file(self.state_dict(), path)

    def load(self, path: str | os.PathLike[str], strict: bool = True) -> _state.UnmatchedKeys:
        """load_state_dict from a safetensors file (needs the package safetensors)."""
        return self.load_state_dict(_state.read_file(path), strict)

    # ---- Python's protocols

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_members": dict(self._members)}
        del state["_token"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def extra_repr(self) -> str:
        """What stands in the brackets of repr beside the modules inside."""
        return ""

    @recursive_repr("(...)")
    def __repr__(self) -> str:
        extra = self.extra_repr()
        inside = [f"({name}): " + repr(child).replace("\n", "\n  ") for name, child in self._children()]
        if not inside:
            return f"{type(self).__name__}({extra})"
        return f"{type(self).__name__}(\n  " + "\n  ".join([extra] * bool(extra) + inside) + "\n)"
