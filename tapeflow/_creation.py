"""Tensors from Python data, and the protocols of Tensor that are not hot: conversion, printing, NumPy, DLPack."""

from __future__ import annotations

import contextlib
import contextvars
import types
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tapeflow import _core, errors
from tapeflow._core import Tensor

_NUMBERS = (bool, int, float)


# ---- devices


class Device(str):
    """A device, which compares equal to its name. name, vendor, driver, kind ("cpu", "gpu", "accelerator"), memory in
    bytes (0: not known), fp64, fp16: what it is and has."""

    name: str
    vendor: str
    driver: str
    kind: str
    memory: int
    fp64: bool
    fp16: bool

    def __new__(cls, label: str, info: Any = None) -> Device:
        self = super().__new__(cls, label)
        self.name, self.vendor, self.driver, self.kind = label, "", "", "cpu"
        self.memory, self.fp64, self.fp16 = 0, True, False
        if info is not None:
            self.name, self.vendor, self.driver, self.kind = info.name, info.vendor, info.driver, info.kind
            self.memory, self.fp64, self.fp16 = info.memory_bytes, info.fp64, info.fp16
        return self

    def __repr__(self) -> str:
        return f"device({str(self)!r})"


CPU = Device("cpu")


def device(name: str) -> Device:
    """The device of a name: "cpu", or "opencl", "opencl:1", "opencl:NVIDIA" (a number, or part of a name in any case).

    DeviceError, with what there is or what to install, for one that is not there.

    >>> tp.device("cpu") == tp.zeros(3).device
    True
    """
    if isinstance(name, str) and name.startswith("opencl"):
        from tapeflow.backend.opencl import discovery

        info = discovery.find(name)
        places = [one.place for one in discovery.usable()]
        return Device(f"opencl:{places.index(info.place)}" if info.place in places else name, info)
    if name != "cpu":
        raise errors.DeviceError(
            f"[device] there is no device {name!r}. Known: 'cpu', 'opencl', 'opencl:<number>', "
            "'opencl:<part of a name>'; see tp.devices()."
        )
    return CPU


def devices() -> list[Device]:
    """The cpu, then the OpenCL devices that work here, in the order of their numbers.

    The first call tries drivers that it has not met before, which may take seconds.

    >>> str(tp.devices()[0])
    'cpu'
    """
    from tapeflow import backend

    return [CPU, *(Device(f"opencl:{k}", info) for k, info in enumerate(backend.devices()))]


_default: contextvars.ContextVar[Any] = contextvars.ContextVar("tapeflow_default_device", default=None)
_labels: weakref.WeakKeyDictionary[Any, Device] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def default_device(name: str) -> Iterator[Device]:
    """Inside, tensors are made on a device unless another one is asked for, in this thread (and its tasks).

    >>> with tp.default_device("cpu"):
    ...     print(tp.zeros(2).device)
    cpu
    """
    there = place(name, "default_device")
    token = _default.set((there,))
    _core.count_asked(1)
    try:
        yield label(there)
    finally:
        _core.count_asked(-1)
        _default.reset(token)


def place(name: Any, op: str) -> Any:
    """The open device of a name, None for the cpu; for None that of `default_device`, which is the cpu at first."""
    if name is None:
        asked = _default.get()
        return None if asked is None else asked[0]
    if name == "cpu":
        return None
    if not isinstance(name, str):
        raise errors.DeviceError(f"[{op}] a device is named by a str, got {type(name).__name__}. See tp.devices().")
    if not name.startswith("opencl"):
        device(name)  # raises
    from tapeflow import backend

    return backend.open(name)


def label(place: Any) -> Device:
    """The device, by name, of an open one; the cpu for None."""
    if place is None:
        return CPU
    found = _labels.get(place)
    if found is None:
        from tapeflow import backend

        found = _labels[place] = Device(f"opencl:{backend.number(place)}", place.info)
    return found


@contextlib.contextmanager
def allocation(op: str, what: str) -> Iterator[None]:
    """NumPy's MemoryError as ours."""
    try:
        yield
    except MemoryError as error:
        if isinstance(error, errors.TapeflowError):
            raise
        raise errors.DeviceOutOfMemory(f"[{op}] {what} does not fit into memory. Use smaller pieces.") from None


# ---- conversion


def convert(obj: Any, op: str, dtype: Any = None) -> Tensor:
    """Anything that data can come in as a new constant tensor; lists with tensors inside are stacked (and recorded)."""
    kind = type(obj)
    if kind in _NUMBERS:
        return _core.from_number(obj, dtype, op)
    if isinstance(obj, (np.ndarray, np.generic)):
        t = _core.from_numpy(np.asarray(obj), True, op, loose=True)
        return t if dtype is None else t.astype(dtype)
    if isinstance(obj, (list, tuple, range)):
        return _from_nested(obj, op, dtype)
    if hasattr(obj, "__dlpack__"):
        t = _core.from_numpy(from_dlpack(obj).numpy(), True, op, loose=True)
        return t if dtype is None else t.astype(dtype)
    if hasattr(obj, "__array__") or hasattr(obj, "__array_interface__") or isinstance(obj, (memoryview, bytearray)):
        t = _core.from_numpy(np.asarray(obj), True, op, loose=True)
        return t if dtype is None else t.astype(dtype)
    raise errors.DTypeError(
        f"[{op}] a {kind.__name__} cannot become a tensor. Use numbers, nested lists of them, NumPy arrays or tensors."
    )


def _leaf_kinds(obj: Any, kinds: set[type], depth: int, op: str) -> None:
    """Collect the exact types of the leaves of nested lists."""
    if depth > 64:
        raise errors.ShapeError(f"[{op}] lists are nested more than 64 deep (or contain themselves).")
    if isinstance(obj, (list, tuple, range)):
        for x in obj:
            _leaf_kinds(x, kinds, depth + 1, op)
    else:
        kinds.add(type(obj))


def _from_nested(obj: Sequence[Any], op: str, dtype: Any) -> Tensor:
    kinds: set[type] = set()
    _leaf_kinds(obj, kinds, 0, op)
    if any(issubclass(k, Tensor) for k in kinds):
        t = _stack_nested(obj, op)
        return t if dtype is None else t.astype(dtype)
    for k in kinds:
        if k not in _NUMBERS and not issubclass(k, (np.ndarray, np.generic)):
            raise errors.DTypeError(
                f"[{op}] a list holds a {k.__name__}. "
                "Only numbers, lists of them, NumPy arrays and tensors can become a tensor."
            )
    plain = all(k in _NUMBERS for k in kinds)
    wanted: Any = dtype
    if dtype is None and plain:
        # the kind of the widest number decides
        wanted = _core.get_default_dtype() if float in kinds or not kinds else np.int64 if int in kinds else np.bool_
    try:
        array = np.asarray(obj) if wanted is None else _numbers_to_array(obj, np.dtype(wanted), kinds)
    except OverflowError:
        raise errors.NumberRangeError(f"[{op}] a number in the list does not fit dtype {np.dtype(wanted)}.") from None
    except ValueError as error:
        raise errors.ShapeError(
            f"[{op}] the lists are ragged: all lists at one depth must be of the same length. ({error})"
        ) from None
    return _core.from_numpy(array, True, op, loose=True)


def _numbers_to_array(obj: Any, dtype: np.dtype[Any], kinds: set[type]) -> np.ndarray[Any, Any]:
    if dtype.kind in "iu" and float in kinds:
        return np.asarray(obj, dtype=np.float64).astype(dtype)
    with np.errstate(over="ignore"):  # what is too large for float32 is inf, as everywhere
        return np.asarray(obj, dtype=dtype)


def _stack_nested(obj: Any, op: str) -> Tensor:
    if isinstance(obj, Tensor):
        return obj
    if isinstance(obj, (list, tuple, range)):
        if not any(_holds_tensor(x) for x in obj):
            return _from_nested(obj, op, None) if len(obj) else _core.operand([])
        parts = [x if type(x) in _NUMBERS else _stack_nested(x, op) for x in obj]
        try:
            return _core.stack(parts)
        except errors.ShapeError as error:
            raise errors.ShapeError(f"[{op}] the lists are ragged: {error}") from None
    return convert(obj, op)


def _holds_tensor(obj: Any) -> bool:
    return isinstance(obj, Tensor) or (isinstance(obj, (list, tuple)) and any(_holds_tensor(x) for x in obj))


def shared(obj: Any, dtype: Any) -> Tensor:
    """What asarray(obj, dtype, copy=False) does for other than a tensor: a tensor over the memory of obj."""
    if not isinstance(obj, np.ndarray):
        if not hasattr(obj, "__dlpack__"):
            raise ValueError(f"[asarray] a {type(obj).__name__} cannot be taken without a copy. Leave copy=False out.")
        return shared(np.from_dlpack(obj), dtype)
    if dtype is not None and obj.dtype != np.dtype(_name(dtype)):
        raise ValueError(f"[asarray] a {obj.dtype} array cannot become {dtype} without a copy. Leave copy=False out.")
    return _core.from_numpy(np.asarray(obj), False, "asarray", obj)


def _name(dtype: Any) -> Any:
    """A dtype argument as NumPy knows it; Python's float is the default dtype."""
    return _core.get_default_dtype() if dtype is float else dtype


def from_dlpack(obj: Any) -> Tensor:
    """A tensor over the memory of another library's CPU array, without a copy. The writes of its owner show."""
    if isinstance(obj, Tensor):
        return obj.detach()
    try:
        array = np.from_dlpack(obj)
    except (AttributeError, TypeError) as error:
        raise errors.DTypeError(
            f"[from_dlpack] expected an object with __dlpack__ on the CPU, got {type(obj).__name__}: {error}"
        ) from None
    return _core.from_numpy(array, False, "from_dlpack")


def rebuild(array: np.ndarray[Any, Any], requires_grad: bool) -> Tensor:
    """What pickle calls."""
    return _core.from_numpy(array, True, "pickle").requires_grad_(requires_grad)


# ---- grids


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Tensor]:
    """Coordinate tensors of a grid from 1-D coordinates; "xy": the first varies along axis 1, "ij": along axis 0.

    >>> [g.tolist() for g in tp.meshgrid(tp.tensor([1, 2]), tp.tensor([3, 4]), indexing="ij")]
    [[[1, 1], [2, 2]], [[3, 4], [3, 4]]]
    """
    if indexing not in ("xy", "ij"):
        raise errors.ShapeError(f"[meshgrid] indexing must be 'xy' or 'ij', got {indexing!r}.")
    tensors = _core.put_together([_core.operand(a) for a in arrays], "meshgrid")
    if not any(isinstance(a, Tensor) for a in arrays):  # on the default device
        tensors = [_core.asarray(a) for a in arrays]
    for t in tensors:
        if t.ndim > 1:
            raise errors.ShapeError(f"[meshgrid] coordinates must be 0-d or 1-D, got shape {t.shape}.")
    order = list(range(len(tensors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    sizes = [0] * len(order)
    for t, axis in zip(tensors, order, strict=True):
        sizes[axis] = t.size
    grids = []
    for t, axis in zip(tensors, order, strict=True):
        shape = [1] * len(order)
        shape[axis] = t.size
        grids.append(_core.broadcast_to(t.reshape(tuple(shape)), tuple(sizes)))
    return grids


# ---- printing


def format_tensor(t: Tensor, requires_grad: bool) -> str:
    """repr: as NumPy prints, with the dtype where it is not the one that printing implies."""
    options = np.get_printoptions()
    text = "tensor(" + np.array2string(t.numpy(), separator=", ", prefix="tensor(", suffix=")")
    extras = []
    if t.device != "cpu":
        extras.append(f"device={str(t.device)!r}")
    if t.size > options["threshold"] or (t.size == 0 and t.ndim > 1):
        extras.append(f"shape={t.shape}")
    if t.dtype.name not in ("bool", "int64", _core.get_default_dtype().name) or t.size == 0:
        extras.append(f"dtype={t.dtype.name}")
    if requires_grad:
        extras.append("requires_grad=True")
    if not extras:
        return text + ")"
    rest = ", ".join(extras) + ")"
    full = len(text) - (text.rfind("\n") + 1) + len(rest) + 2 > options["linewidth"]
    return text + (",\n       " if full else ", ") + rest


# ---- NumPy and other libraries


def copied(array: np.ndarray[Any, Any], dtype: Any, op: str) -> np.ndarray[Any, Any]:
    """A writable copy of an array."""
    with allocation(op, f"a copy of shape {array.shape}"):
        return array.astype(dtype)


_UFUNCS = {"true_divide": "divide", "power": "pow", "absolute": "abs"}


def numpy_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A NumPy ufunc with a tensor among its arguments: the function of the same name here; else NumPy on the values."""
    import tapeflow as tp

    name = _UFUNCS.get(ufunc.__name__, ufunc.__name__)
    if method == "__call__" and not kwargs:
        f = getattr(tp, name, None)
        if f is not None and isinstance(f, types.BuiltinFunctionType):
            return f(*inputs)
    if any(isinstance(x, Tensor) for x in kwargs.get("out", ())):
        raise errors.TapeError(f"[numpy.{ufunc.__name__}] NumPy cannot write into a tensor. Use t.assign(...).")
    for x in inputs:
        if isinstance(x, Tensor) and x.requires_grad and _core.is_grad_enabled():
            raise errors.TapeError(
                f"[numpy.{ufunc.__name__}] a tensor that is being recorded was given to NumPy, "
                "which would make a constant of it. Use .detach() or .numpy() to take the value."
            )
    arrays = [x.numpy() if isinstance(x, Tensor) else x for x in inputs]
    result = getattr(ufunc, method)(*arrays, **kwargs)
    return result


def namespace(api_version: str | None) -> types.ModuleType:
    """The module of the Python Array API that goes with a tensor."""
    import tapeflow as tp

    if api_version is not None and api_version not in ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12"):
        raise ValueError(f"[__array_namespace__] version {api_version!r} of the Array API is not known.")
    return tp


def dlpack(array: Any, stream: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
    """A DLPack capsule of a read-only array; a copy for consumers that cannot be told it is read-only."""
    if dl_device is not None and tuple(dl_device) != (1, 0):
        raise BufferError(f"[dlpack] the tensor is on the CPU, not on device {dl_device}.")
    if copy is not False and (copy or max_version is None or tuple(max_version) < (1, 0)):
        return copied(array, array.dtype, "dlpack").__dlpack__(max_version=max_version)
    return array.__dlpack__(max_version=max_version)
