"""Memory of a device: allocations that go back to a pool when their last reference goes.

The queue of a device runs commands in order, so memory may be handed out again while earlier commands still use it.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from tapeflow.backend.opencl import faults
from tapeflow.errors import DeviceOutOfMemory, NumberRangeError
from tapeflow.plan.ir import ITEMSIZE, contiguous

if TYPE_CHECKING:
    from tapeflow.backend.opencl.host import Device

SMALLEST = 256
AT_HAND = 16  # allocations that were freed and not yet taken in
SHOWN = 5  # of the largest allocations, in an error


class Memory:
    """One allocation: buffer, a pyopencl.Buffer of at least nbytes."""

    __slots__ = ("__weakref__", "_give_back", "_key", "_size", "buffer", "device", "nbytes")

    def __init__(self, buffer: Any, nbytes: int, device: Device, key: int, size: int, give_back: Any) -> None:
        self.buffer, self.nbytes, self.device = buffer, nbytes, device
        self._key, self._size, self._give_back = key, size, give_back

    def __del__(self) -> None:
        # Runs anywhere, also while this thread holds the pool's lock: an append, which is atomic, and no more.
        self._give_back((self._key, self._size, self.buffer))


class Array(NamedTuple):
    """A view of memory. offset, strides: in bytes, strides may be 0 or negative; dtype: a code of tapeflow.plan.ir."""

    memory: Memory
    offset: int
    dtype: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * ITEMSIZE[self.dtype]

    @property
    def is_contiguous(self) -> bool:
        step = ITEMSIZE[self.dtype]
        for extent, stride in zip(reversed(self.shape), reversed(self.strides)):
            if extent != 1 and stride != step and self.size:
                return False
            step *= extent
        return True

    def span(self) -> tuple[int, int]:
        """The bytes of the memory, from and to, that hold its elements."""
        if not self.size:
            return self.offset, self.offset
        reach = [(extent - 1) * stride for extent, stride in zip(self.shape, self.strides)]
        low = self.offset + sum(r for r in reach if r < 0)
        return low, self.offset + sum(r for r in reach if r > 0) + ITEMSIZE[self.dtype]


def contiguous_strides(dtype: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return contiguous(shape, ITEMSIZE[dtype])


def size_class(nbytes: int) -> int:
    """What is allocated for nbytes: one of eight sizes for each doubling, so that sizes meet again."""
    if nbytes <= SMALLEST:
        return SMALLEST
    step = 1 << (nbytes.bit_length() - 4)
    return -(-nbytes // step) * step


def readable(nbytes: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"


class Pool:
    """Allocations of one device. live: bytes in use; kept: bytes for reuse; peak: the most that was in use.

    exact: buffers have exactly the size asked for and are never used again, so that a checker of kernels sees every
    access out of bounds.
    """

    def __init__(self, device: Device, create: Callable[[int], Any], limit: int, largest: int, exact: bool) -> None:
        self._device, self._create, self.exact = device, create, exact
        self.largest = largest
        self._lock = threading.Lock()
        self._freed: deque[tuple[int, int, Any]] = deque()
        self._kept: dict[int, list[Any]] = {}
        self._live: dict[int, tuple[int, str]] = {}
        self._keys = itertools.count()
        self._limit, self._live_bytes, self._kept_bytes, self.peak, self.created = limit, 0, 0, 0, 0

    @property
    def limit(self) -> int:
        return self._limit

    @limit.setter
    def limit(self, nbytes: int) -> None:
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
            raise NumberRangeError(f"[memory_limit] got {nbytes!r}, expected a number of bytes, 0 or more.")
        with self._lock:
            self._limit = nbytes
            self._drain()
            if self._live_bytes + self._kept_bytes > nbytes:
                self._drop_kept()

    @property
    def live(self) -> int:
        with self._lock:
            self._drain()
            return self._live_bytes

    @property
    def kept(self) -> int:
        with self._lock:
            self._drain()
            return self._kept_bytes

    def alloc(self, nbytes: int, label: str = "") -> Memory:
        """Memory of nbytes, with a name for messages."""
        if nbytes > self.largest:
            raise DeviceOutOfMemory(
                f"[{label or 'alloc'}] wants {readable(nbytes)} in one piece, and {self._device.name} allocates at "
                f"most {readable(self.largest)} at once. Split the tensor."
            )
        with self._lock:
            size = max(nbytes, 1) if self.exact else size_class(nbytes)
            if 0 < len(self._freed) < AT_HAND and not self.exact:  # mostly the one that was freed last fits
                latest = self._freed.pop()
                if latest[1] == size:
                    self._live[latest[0]] = (size, label)
                    return Memory(latest[2], nbytes, self._device, latest[0], size, self._freed.append)
                self._freed.append(latest)
            self._drain()
            if size > self.largest or self._live_bytes + size > self._limit:
                size = max(nbytes, 1)
            kept = self._kept.get(size)
            if kept:
                buffer = kept.pop()
                self._kept_bytes -= size
            else:
                buffer = self._fresh(size, label)
            key = next(self._keys)
            self._live[key] = (size, label)
            self._live_bytes += size
            self.peak = max(self.peak, self._live_bytes)
            return Memory(buffer, nbytes, self._device, key, size, self._freed.append)

    def empty(self) -> None:
        """Give what is kept for reuse back to the driver."""
        with self._lock:
            self._drain()
            self._drop_kept()

    def _drain(self) -> None:
        """Take in what was freed since."""
        while self._freed:
            key, size, buffer = self._freed.popleft()
            del self._live[key]
            self._live_bytes -= size
            if not self.exact:
                self._kept.setdefault(size, []).append(buffer)
                self._kept_bytes += size
        if self._live_bytes + self._kept_bytes > self._limit:
            self._drop_kept()

    def _drop_kept(self) -> None:
        self._kept.clear()
        self._kept_bytes = 0

    def _fresh(self, size: int, label: str) -> Any:
        if self._live_bytes + self._kept_bytes + size > self._limit:
            self._drop_kept()
        if self._live_bytes + size > self._limit:
            raise self.shortage(size, label)
        try:
            buffer = self._create(size)
        except Exception as error:
            if faults.code_of(error) not in faults.ALLOCATION:
                raise
            # Drivers free memory when the commands that use it have run.
            self._drop_kept()
            self._device.finish()
            try:
                buffer = self._create(size)
            except Exception as again:
                if faults.code_of(again) not in faults.ALLOCATION:
                    raise
                raise self.shortage(size, label, again) from None
        self.created += 1
        return buffer

    def shortage(self, nbytes: int, label: str, error: Exception | None = None) -> DeviceOutOfMemory:
        """The error for memory that is not there; the lock is held, or nothing else runs."""
        largest = sorted(self._live.values(), reverse=True)[:SHOWN]
        held = ", ".join(readable(size) + (f" ({name})" if name else "") for size, name in largest) or "none"
        free = max(self._limit - self._live_bytes, 0)
        refused = f" The driver refused it: {error}." if error else ""
        return DeviceOutOfMemory(
            f"[{label or 'alloc'}] wants {readable(nbytes)} on {self._device.name}, where {readable(free)} of the "
            f"limit of {readable(self._limit)} are free.{refused} The largest live: {held}. Free tensors, take less at "
            "a time, or raise the device's memory_limit."
        )

    def late_shortage(self, op: str, error: Exception) -> DeviceOutOfMemory:
        """The error for memory that a driver found missing when a kernel was to use it."""
        with self._lock:
            self._drain()
            size, label = max(self._live.values(), default=(0, ""))
            return self.shortage(size, label or op, error)
