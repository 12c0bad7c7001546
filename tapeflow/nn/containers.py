"""Modules that hold modules: in a row, in a list, by key."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

from tapeflow.errors import TensorIndexError
from tapeflow.nn.module import Module

S = TypeVar("S", bound="_Row")


class _Row(Module):
    """Modules in an order, under the names "0", "1", ... unless they were given others."""

    def _names(self) -> list[str]:
        return [name for name, _ in self._children()]

    def _name(self, index: int) -> str:
        names, i = self._names(), operator.index(index)
        if not -len(names) <= i < len(names):
            raise TensorIndexError(f"[{type(self).__name__}] index {i} is out of range for {len(names)} modules.")
        return names[i]

    def append(self: S, module: Module) -> S:
        """Add a module at the end; returns the container."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self: S, modules: Iterable[Module]) -> S:
        """Add modules at the end; returns the container."""
        for module in list(modules):
            self.append(module)
        return self

    def __len__(self) -> int:
        return len(self._names())

    def __iter__(self) -> Iterator[Any]:
        return iter([child for _, child in self._children()])

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self: S, index: slice) -> S: ...
    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return self.__dict__[self._name(index)]
        part = type(self)()
        for name, child in list(self._children())[index]:
            part.add_module(str(len(part)) if name.isdecimal() else name, child)
        return part

    def __setitem__(self, index: int, module: Module) -> None:
        self.add_module(self._name(index), module)


class Sequential(_Row):
    """Modules one after the other, each called with what the one before returned. With a dict: under its names.

    An integer index gives a module, a slice a Sequential of some of them.

    >>> model = tp.nn.Sequential(tp.nn.Linear(784, 64), tp.nn.ReLU(), tp.nn.Linear(64, 10))
    >>> model(tp.zeros((5, 784))).shape, len(model)
    ((5, 10), 3)
    """

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        only = modules[0] if len(modules) == 1 else None
        named = only if isinstance(only, Mapping) else {str(i): module for i, module in enumerate(modules)}
        for name, module in named.items():
            self.add_module(name, module)  # type: ignore[arg-type]  # a Mapping among modules is refused there

    def forward(self, x: Any) -> Any:
        """x: what the first module takes."""
        for _, module in self._children():
            x = module(x)
        return x


class ModuleList(_Row):
    """A list of modules that the module which holds it finds; it has no forward.

    >>> blocks = tp.nn.ModuleList(tp.nn.Linear(4, 4) for _ in range(3))
    >>> len(blocks), len(list(blocks.parameters()))
    (3, 6)
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self.extend(modules)


class ModuleDict(Module):
    """Modules by key that the module which holds it finds; it has no forward.

    >>> heads = tp.nn.ModuleDict({"digit": tp.nn.Linear(4, 10), "parity": tp.nn.Linear(4, 2)})
    >>> sorted(heads), heads["parity"].out_features
    (['digit', 'parity'], 2)
    """

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        for key, module in (modules or {}).items():
            self[key] = module

    def __getitem__(self, key: str) -> Any:
        return dict(self._children())[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        delattr(self, key)

    def __contains__(self, key: object) -> bool:
        return key in dict(self._children())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def keys(self) -> list[str]:
        """The keys, in the order in which they came."""
        return list(dict(self._children()))

    def values(self) -> list[Any]:
        """The modules."""
        return list(dict(self._children()).values())

    def items(self) -> list[tuple[str, Any]]:
        """(key, module)."""
        return list(self._children())
