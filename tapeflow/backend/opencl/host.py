"""A device that is open: context, queue, memory, kernels, transfers. What ops use."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tapeflow.backend.opencl import cache, faults, loader
from tapeflow.backend.opencl.discovery import DeviceInfo
from tapeflow.backend.opencl.expansion import Wanted
from tapeflow.backend.opencl.memory import Array, Memory, Pool, contiguous_strides
from tapeflow.backend.opencl.programs import Kernel, Programs
from tapeflow.backend.opencl.table import implementation, load
from tapeflow.errors import DeviceError, NumberRangeError, ShapeError, TapeflowError
from tapeflow.plan import ir

__all__ = ["Array", "Device", "Download", "Kernel", "Launch", "Memory", "contiguous_strides"]

IDENTITY = ir.CODES["identity"]
DTYPES = tuple(np.dtype(name) for name in ir.DTYPES)
SHARE = {"gpu": 0.9, "accelerator": 0.9, "cpu": 0.5}  # of the memory, for the default limit
COPIED = 1 << 20  # bytes from the caller's memory that are copied first, so that nobody waits for the queue
IN_FLIGHT = 64 << 20  # bytes of host memory that uploads under way may hold
FLUSH_EVERY = 32  # launches: some drivers begin only when told to

_devices: weakref.WeakSet[Device] = weakref.WeakSet()


def _after_fork() -> None:
    """In a child: its parent's devices are not to be used, and nothing of theirs is to be released, which may hang."""
    for device in list(_devices):
        device.lost = faults.FORKED.format(device.name)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(device))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def environment_number(name: str, default: int) -> int:
    """A positive number in an environment variable."""
    text = os.environ.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise NumberRangeError(f"[device] {name} is {text!r}, expected a whole number from 1 on.")
    return int(text)


class Launch:
    """A kernel with its arguments set, to be enqueued again and again. It keeps what it was given alive."""

    __slots__ = ("arguments", "empty", "global_size", "handle", "kernel", "local_size")

    def __init__(self, kernel: Kernel, global_size: Any, local_size: Any, arguments: tuple[Any, ...]) -> None:
        self.kernel, self.global_size, self.local_size, self.arguments = kernel, global_size, local_size, arguments
        self.handle, self.empty = kernel.handle, 0 in global_size


class Notes:
    """The commands that a thread gives to a device, to be given again. looked: some result was read by the host.

    flag: a word that is 0; where there is one, an op that would tell of an index out of range writes 1 in it, makes a
    result that harms nobody, and does not look (flagged: there was such an op).
    """

    __slots__ = ("commands", "flag", "flagged", "looked")

    def __init__(self, flag: Array | None = None) -> None:
        self.commands: list[Any] = []
        self.looked, self.flag, self.flagged = False, flag, False


class Current(threading.local):
    """What a thread is at: the op that it executes, for messages, and where its commands are noted, if they are."""

    op = "device"
    notes: Notes | None = None


class Survey(Notes):
    """Notes of which kernels would be needed, where nothing is computed."""

    __slots__ = ("kernels",)

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Wanted] = []


class Unknown(Exception):
    """What comes next depends on what the device would compute, and a survey does not."""


class Unbuilt:
    """A kernel as a survey sees it."""

    __slots__ = ("max_group",)

    def __init__(self, max_group: int) -> None:
        self.max_group = max_group


class Download:
    """Bytes on their way to the host. result() waits for them."""

    __slots__ = ("_array", "_device", "_event", "_low", "_raw")

    def __init__(self, device: Device, array: Array, event: Any, raw: np.ndarray, low: int) -> None:
        self._device, self._array, self._event, self._raw, self._low = device, array, event, raw, low

    def result(self) -> np.ndarray:
        """The elements, packed."""
        array = self._array
        if self._event is not None:
            self._device.wait(self._event)
            self._event = None
        view: np.ndarray = np.ndarray(
            array.shape, DTYPES[array.dtype], self._raw, array.offset - self._low if array.size else 0, array.strides
        )
        return view if array.is_contiguous else view.copy()


class Device:
    """An open device. Any thread may use it; what it is given runs in the order in which it was given.

    name, vendor, driver, kind, is_cpu, fp64, fp16, local_memory, memory_bytes, max_allocation, compute_units,
    vector_width (of float32): what it is and has; max_workgroup: its own limit, or a smaller TAPEFLOW_MAX_WORKGROUP.
    builds: programs made, compiled or read from the disk; launches: kernels enqueued. lost: why the device cannot be
    used any more, or nothing.
    """

    def __init__(self, info: DeviceInfo) -> None:
        self.cl = cl = loader.binding()
        self.info, self.lost, self.launches = info, "", 0
        self.name, self.vendor, self.driver, self.kind = info.name, info.vendor, info.driver, info.kind
        self.is_cpu, self.fp64, self.fp16 = info.kind == "cpu", info.fp64, info.fp16
        self.local_memory, self.memory_bytes = info.local_memory, info.memory_bytes
        self.max_allocation, self.compute_units = info.max_allocation, info.compute_units
        self.vector_width = info.handle.native_vector_width_float
        self._lock = threading.RLock()
        self._uploads: deque[tuple[Any, Any]] = deque()
        self._uploading = 0
        self._current = Current()
        self.kept: Any = None  # by fused.py
        try:
            self.context = cl.Context([info.handle])
            self.queue = cl.CommandQueue(self.context, info.handle)
            self._item_limits = tuple(info.handle.max_work_item_sizes)
            rounds = info.handle.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        except cl.Error as error:
            raise self.fault(error, "device") from None
        most = min(info.max_workgroup, self._item_limits[0])  # kernels with a size of their own have one dimension
        self.max_workgroup = min(most, environment_number("TAPEFLOW_MAX_WORKGROUP", most))
        # Without the second option, division and square root are off by units in the last place on many GPUs.
        self.build_options = ("-cl-std=CL1.2", *(["-cl-fp32-correctly-rounded-divide-sqrt"] if rounds else []))
        exact = os.environ.get("TAPEFLOW_OPENCL_EXACT") == "1"
        limit = int(info.memory_bytes * SHARE[info.kind])
        cache.limit = environment_number("TAPEFLOW_CACHE_LIMIT", 256) << 20
        self.pool = Pool(self, self._create_buffer, limit, info.max_allocation, exact)
        self.programs = Programs(self)
        _devices.add(self)

    def __repr__(self) -> str:
        return f"<OpenCL device {self.name} ({self.info.platform}, {self.kind})>"

    # ---- memory

    @property
    def memory_limit(self) -> int:
        """Bytes that live allocations and those kept for reuse may have together; can be set."""
        return self.pool.limit

    @memory_limit.setter
    def memory_limit(self, nbytes: int) -> None:
        self.pool.limit = nbytes

    def alloc(self, nbytes: int, label: str = "") -> Memory:
        """Uninitialised memory. label: what it is for, in the error when there is none left."""
        if self.lost:
            raise self.gone()
        return self.pool.alloc(nbytes, label)

    def empty_array(self, dtype: int, shape: tuple[int, ...], label: str = "") -> Array:
        """A contiguous array in memory of its own, uninitialised."""
        strides = contiguous_strides(dtype, shape)
        nbytes = ir.ITEMSIZE[dtype]
        for extent in shape:
            nbytes *= extent
        return Array(self.alloc(nbytes, label), 0, dtype, shape, strides)

    def empty_cache(self) -> None:
        """Give memory that is kept for reuse back to the driver."""
        if not self.lost:
            self.pool.empty()

    def _create_buffer(self, nbytes: int) -> Any:
        try:
            return self.cl.Buffer(self.context, self.cl.mem_flags.READ_WRITE, nbytes)
        except self.cl.Error as error:
            if faults.code_of(error) in faults.ALLOCATION:
                raise
            raise self.fault(error, "alloc") from None

    def has(self, dtype: int) -> bool:
        """Whether the device computes in a dtype."""
        return self.fp64 or dtype != ir.FLOAT64

    def check_dtype(self, dtype: int, op: str) -> None:
        """DeviceError for a dtype that the device lacks."""
        if not self.has(dtype):
            raise DeviceError(f"[{op}] {self.name} has no float64. Use float32 there, or another device.")

    # ---- transfers

    def upload(self, array: Array, data: Any, owned: bool = False) -> None:
        """Fill a contiguous array from host memory: a NumPy array of any layout, or bytes, of as many bytes.

        The caller may change data afterwards; when owned, he will not, and large data are not waited for.
        """
        if self.lost:
            raise self.gone()
        host = np.frombuffer(data, np.uint8) if isinstance(data, (bytes, bytearray, memoryview)) else data
        packed = np.ascontiguousarray(host)
        if packed.nbytes != array.nbytes or not array.is_contiguous:
            raise ShapeError(f"[upload] got {packed.nbytes} bytes, expected {array.nbytes} for a contiguous array.")
        if not packed.nbytes:
            return
        if not owned and np.shares_memory(packed, host):
            owned = packed.nbytes <= COPIED
            if owned:
                packed = packed.copy()
        try:
            event = self.cl.enqueue_copy(
                self.queue, array.memory.buffer, packed, dst_offset=array.offset, is_blocking=not owned
            )
        except self.cl.Error as error:
            raise self.fault(error, "upload") from None
        if owned:
            self._hold(event, packed)

    def _hold(self, event: Any, host: np.ndarray) -> None:
        """Keep host memory until the upload from it is done."""
        with self._lock:
            self._uploads.append((event, host))
            self._uploading += host.nbytes
            complete = self.cl.command_execution_status.COMPLETE
            while self._uploads:
                event, host = self._uploads[0]
                try:
                    if self._uploading > IN_FLIGHT:
                        event.wait()
                    elif event.command_execution_status > complete:
                        break
                except self.cl.Error as error:
                    self._drop_uploads()
                    raise self.fault(error, "upload") from None
                self._uploads.popleft()
                self._uploading -= host.nbytes

    def _drop_uploads(self) -> None:
        self._uploads.clear()
        self._uploading = 0

    def download(self, array: Array) -> np.ndarray:
        """The elements as a packed NumPy array."""
        return self.begin_download(array).result()

    def begin_download(self, array: Array) -> Download:
        """Start a download. Several may be under way, while the host does other things."""
        if self.lost:
            raise self.gone()
        notes = self.notes
        if notes is not None:
            notes.looked = True
            if type(notes) is Survey:
                raise Unknown
        low, high = array.span()
        if high - low > 4 * array.nbytes + (1 << 16) and IDENTITY in load():
            packed = self.empty_array(array.dtype, array.shape, "download")
            self.execute(IDENTITY, (), [array], packed)
            array, (low, high) = packed, packed.span()
        raw = np.empty(high - low, np.uint8)
        event = None
        if raw.size:
            try:
                event = self.cl.enqueue_copy(self.queue, raw, array.memory.buffer, src_offset=low, is_blocking=False)
            except self.cl.Error as error:
                raise self.fault(error, "download") from None
        return Download(self, array, event, raw, low)

    def copy(self, source: Array, target: Array) -> None:
        """Copy the bytes of an array into a contiguous one of the same dtype and shape, on this or another device."""
        if (source.dtype, source.shape) != (target.dtype, target.shape) or not target.is_contiguous:
            raise ShapeError(
                f"[copy] got {ir.DTYPES[source.dtype]} {source.shape} for {ir.DTYPES[target.dtype]} {target.shape}, "
                "expected the same, the target contiguous."
            )
        there, here = target.memory.device, source.memory.device
        for device in (here, there):
            if device.lost:
                raise device.gone()
        if here is not there or not source.is_contiguous:
            there.upload(target, here.download(source), owned=True)
            return
        if not source.nbytes or self.is_surveyed:
            return
        if self.notes is not None:
            self.notes.commands.append(functools.partial(self.copy, source, target))
        apart = abs(source.offset - target.offset) >= source.nbytes
        if source.memory is target.memory and not apart:
            between = self.empty_array(source.dtype, source.shape, "copy")
            self.copy(source, between)
            source = between
        try:
            self.cl.enqueue_copy(
                here.queue,
                target.memory.buffer,
                source.memory.buffer,
                byte_count=source.nbytes,
                src_offset=source.offset,
                dst_offset=target.offset,
            )
        except self.cl.Error as error:
            raise here.fault(error, "copy") from None

    def fill(self, array: Array, value: Any) -> None:
        """Set every element of a contiguous array."""
        if self.lost:
            raise self.gone()
        if not array.is_contiguous:
            raise ShapeError("[fill] expected a contiguous array.")
        if self.is_surveyed:
            return
        if self.notes is not None:
            self.notes.commands.append(functools.partial(self.fill, array, value))
        if array.nbytes:
            pattern = np.array(value, DTYPES[array.dtype])
            try:
                self.cl.enqueue_fill_buffer(self.queue, array.memory.buffer, pattern, array.offset, array.nbytes)
            except self.cl.Error as error:
                raise self.fault(error, "fill") from None

    def sync(self) -> None:
        """Wait until all that was enqueued is done."""
        if self.lost:
            raise self.gone()
        self.finish()

    def finish(self) -> None:
        try:
            self.queue.finish()
        except self.cl.Error as error:
            raise self.fault(error, self.op) from None
        with self._lock:
            self._drop_uploads()

    def wait(self, event: Any) -> None:
        """Wait for one command."""
        if self.lost:
            raise self.gone()
        try:
            event.wait()
        except self.cl.Error as error:
            raise self.fault(error, self.op) from None

    # ---- kernels

    @property
    def builds(self) -> int:
        return self.programs.made

    def kernel(self, source: str, name: str, options: tuple[str, ...] = (), argtypes: tuple[Any, ...] = ()) -> Kernel:
        """The kernel of that name in a text; the same object each time. argtypes: NumPy's types of numbers, None for
        the rest."""
        if self.lost:
            raise self.gone()
        notes = self.notes
        if type(notes) is Survey:
            notes.kernels.append(Wanted(source, name, options, argtypes))
            unbuilt: Any = Unbuilt(self.programs.usual_group)
            return self.programs.known(source, name, options) or unbuilt
        return self.programs.kernel(source, name, options, argtypes)

    def local(self, nbytes: int) -> Any:
        """An argument for local memory."""
        return self.cl.LocalMemory(nbytes)

    def group_size(self, kernel: Kernel, wanted: int) -> int:
        """The size of one-dimensional work-groups that a launch takes where `wanted` is asked for."""
        return self.fit(kernel, (wanted,))[0]

    def fit(self, kernel: Kernel, local_size: Sequence[int]) -> tuple[int, ...]:
        """Halve the longest side until the kernel and the device take it."""
        sides = [min(side, limit) for side, limit in zip(local_size, self._item_limits)]
        total = 1
        for side in sides:
            total *= side
        while total > kernel.max_group:
            at = sides.index(max(sides))
            total = total // sides[at] * (sides[at] // 2)
            sides[at] //= 2
        return tuple(sides)

    def sizes(self, kernel: Kernel, global_size: Any, local_size: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Global and local size as the driver gets them: local within the limits, global a multiple of it."""
        if isinstance(global_size, tuple) and len(global_size) == 1:
            (global_size,), (local_size,) = global_size, local_size
        if isinstance(global_size, int):  # nearly always; the rest is for any number of sides
            side = min(local_size, self._item_limits[0])
            while side > kernel.max_group:
                side //= 2
            return (-(-global_size // side) * side,), (side,)
        wanted, local = tuple(global_size), self.fit(kernel, local_size)
        return tuple(-(-n // side) * side for n, side in zip(wanted, local, strict=True)), local

    def launch(self, kernel: Kernel, global_size: Any, local_size: Any, *args: Any) -> None:
        """Enqueue a kernel. Sizes: an integer or a tuple of up to three. args: Memory or buffers, numbers, local()."""
        if self.lost:
            raise self.gone()
        notes = self.notes
        if type(notes) is Survey:
            return
        whole, local = self.sizes(kernel, global_size, local_size)
        if 0 in whole:
            return
        if notes is not None:
            bound = self.bind(kernel, global_size, local_size, *args)
            notes.commands.append(bound)
            self.replay((bound,))
            return
        self.launch_at_once(kernel, whole, local, [arg.buffer if type(arg) is Memory else arg for arg in args])

    @property
    def is_watched(self) -> bool:
        """Whether what this thread launches is noted, surveyed or timed."""
        return self._current.notes is not None

    def launch_at_once(self, kernel: Kernel, whole: tuple[int, ...], local: tuple[int, ...], values: list[Any]) -> None:
        """Enqueue a kernel whose sizes are fitted, not empty, and whose arguments are buffers and numbers."""
        if self.lost:
            raise self.gone()
        with self._lock:
            self._set_arguments(kernel, values)
            self._enqueue(kernel, whole, local)

    def bind(self, kernel: Kernel, global_size: Any, local_size: Any, *args: Any) -> Launch:
        """A launch to be enqueued many times by `replay`, with a kernel object of its own."""
        if self.lost:
            raise self.gone()
        whole, local = self.sizes(kernel, global_size, local_size)
        own = kernel.again(self)
        self._set_arguments(own, [arg.buffer if type(arg) is Memory else arg for arg in args])
        return Launch(own, whole, local, args)

    def _set_arguments(self, kernel: Kernel, values: list[Any]) -> None:
        try:
            kernel.handle.set_args(*values)
        except self.cl.Error as error:
            raise self.fault(error, kernel.name) from None

    @property
    def notes(self) -> Notes | None:
        """Where this thread's commands are noted, inside of `noting`."""
        return self._current.notes

    @contextlib.contextmanager
    def noting(self, flag: Array | None = None) -> Iterator[Notes]:
        """Inside, what this thread computes on the device is noted, for `again`. flag: see Notes."""
        before, self._current.notes = self.notes, Notes(flag)
        try:
            yield self._current.notes
        finally:
            self._current.notes = before

    @property
    def is_surveyed(self) -> bool:
        """Whether this thread asks for nothing but names of kernels."""
        return type(self.notes) is Survey

    def prepare(self, computations: Sequence[Callable[[], None]]) -> None:
        """Build what these computations need, as one program; a second one where kernels turn out to take smaller
        work-groups than others, and ops choose other ones then."""
        if self.programs.prepare(self._needed(computations)):
            self.programs.prepare(self._needed(computations))

    def _needed(self, computations: Iterable[Callable[[], None]]) -> list[Wanted]:
        """The kernels that they would launch, as far as that can be told without computing."""
        before, self._current.notes = self.notes, Survey()
        try:
            for compute in computations:
                with contextlib.suppress(Unknown, TapeflowError):  # a fault is told by the run, in its turn
                    compute()
            found: list[Wanted] = self._current.notes.kernels
            return found
        finally:
            self._current.notes = before

    def again(self, commands: Sequence[Any]) -> None:
        """Give commands that were noted once more: launches, and functions for the rest."""
        launches: list[Launch] = []
        for command in commands:
            if type(command) is Launch:
                launches.append(command)
                continue
            self.replay(launches)
            launches = []
            command()
        self.replay(launches)

    def replay(self, launches: Sequence[Launch]) -> None:
        """Enqueue bound launches, in order."""
        if self.lost:
            raise self.gone()
        with self._lock:
            enqueue, queue, failed, count = self.cl.enqueue_nd_range_kernel, self.queue, self.cl.Error, self.launches
            try:
                for launch in launches:
                    if launch.empty:
                        continue
                    try:
                        enqueue(queue, launch.handle, launch.global_size, launch.local_size)
                    except failed as error:
                        self._enqueue_with_less(error, launch.kernel, launch.global_size, launch.local_size)
                    count += 1
                    if not count % FLUSH_EVERY:
                        queue.flush()
            finally:
                self.launches = count

    def _enqueue(self, kernel: Kernel, whole: tuple[int, ...], local: tuple[int, ...]) -> None:
        cl = self.cl
        try:
            cl.enqueue_nd_range_kernel(self.queue, kernel.handle, whole, local)
        except cl.Error as error:
            self._enqueue_with_less(error, kernel, whole, local)
        self.launches += 1
        if self.launches % FLUSH_EVERY == 0:
            self.queue.flush()

    def _enqueue_with_less(
        self, error: Exception, kernel: Kernel, whole: tuple[int, ...], local: tuple[int, ...]
    ) -> None:
        """After an error of missing memory once more, without what is kept for reuse: drivers may allocate as late as
        at the first use."""
        if faults.code_of(error) not in faults.ALLOCATION:
            raise self.fault(error, kernel.name) from None
        self.pool.empty()
        self.finish()
        try:
            self.cl.enqueue_nd_range_kernel(self.queue, kernel.handle, whole, local)
        except self.cl.Error as error:
            if faults.code_of(error) in faults.MEMORY:
                raise self.pool.late_shortage(kernel.name, error) from None
            raise self.fault(error, kernel.name) from None

    # ---- ops

    @property
    def op(self) -> str:
        """The op that this thread executes, for messages."""
        return self._current.op

    def execute(self, op: int, params: tuple[int, ...], ins: Sequence[Array], out: Array) -> None:
        """Compute one op into out, as the core does (tapeflow/core/execute.pxi)."""
        if self.lost:
            raise self.gone()
        for array in (*ins, out):
            if array is not None:
                home = array[0].device
                if home is not self and home.context is not self.context:
                    raise self._stranger(op, array)
        compute, current = implementation(op, self.name), self._current
        outer, current.op = current.op, ir.NAMES[op]
        try:
            compute(self, op, params, ins, out)
        finally:
            current.op = outer

    def _stranger(self, op: int, array: Array) -> DeviceError:
        """The error for an operand that is not here, which may be the same processor opened twice."""
        other = array.memory.device
        return DeviceError(
            f"[{ir.name_of(op)}] an operand is on {other!r}, another device than {self!r} that computes. "
            "Move it there: x.to(device)."
        )

    # ---- faults

    def gone(self) -> DeviceError:
        return DeviceError(self.lost)

    def fault(self, error: Exception, op: str) -> TapeflowError:
        """The error to raise for one of pyopencl's; the device is lost when that is what it says."""
        found = faults.explain(error, op, self.name)
        if faults.code_of(error) in faults.LOST:
            self.lost = str(found)
        return found
