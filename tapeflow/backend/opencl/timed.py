"""How long a device computes: its launches on a queue of their own, which keeps the time of each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from tapeflow._roofline import LENGTH, SIZES, Machine
from tapeflow.backend.opencl.host import Array, Device, Kernel, Launch
from tapeflow.backend.opencl.moves import fill
from tapeflow.plan.ir import CODES, FLOAT32, FLOAT64

RUNS = 5  # of what is measured once; the best counts
CHECKED = 4 << 20  # bytes that are written to see whether a device's clock goes
IMPOSSIBLE = 1e14  # bytes a second
LONGER = 8  # times, the side of the products that the peak of a GPU is measured by


class Timed(Device):
    """A device that is open already, seen by who measures. What it is given must not need what others, who use the
    device itself, have not finished."""

    def __init__(self, device: Device) -> None:
        cl = device.cl
        self.__dict__.update(device.__dict__)
        self.kept = None  # what it launches is for its own queue
        self._events: list[Any] = []
        self._has_clock: bool | None = None
        try:
            self.queue = cl.CommandQueue(
                device.context, device.info.handle, properties=cl.command_queue_properties.PROFILING_ENABLE
            )
        except cl.Error as error:
            raise device.fault(error, "profile") from None

    def _enqueue(self, kernel: Kernel, whole: tuple[int, ...], local: tuple[int, ...]) -> None:
        try:
            self._events.append(self.cl.enqueue_nd_range_kernel(self.queue, kernel.handle, whole, local))
        except self.cl.Error as error:
            raise self.fault(error, kernel.name) from None

    def replay(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            if not launch.empty:
                self._enqueue(launch.kernel, launch.global_size, launch.local_size)

    def seconds(self, compute: Callable[[], object]) -> float:
        """That the device takes for what this launches, without what lies between launches; with it, by the host's
        clock, where the device's does not go."""
        if self._has_clock is None:
            self._has_clock = self._check_clock()
        by_device, by_host = self._times(compute)
        return by_device if self._has_clock else by_host

    def _times(self, compute: Callable[[], object]) -> tuple[float, float]:
        """By the device's clock, and by the host's, with what launching and waiting take."""
        self.sync()
        self._events.clear()
        start = perf_counter()
        compute()
        self.sync()
        stop = perf_counter()
        try:
            return sum(event.profile.end - event.profile.start for event in self._events) * 1e-9, stop - start
        except self.cl.Error as error:
            raise self.fault(error, "profile") from None

    def _check_clock(self) -> bool:
        """Some drivers say of every launch that it took a tick: is there a time that a device can have taken?"""
        x = self.empty_array(FLOAT32, (CHECKED // 4,), "profile")
        by_device, _ = self._times(lambda: fill(self, x))
        return by_device > CHECKED / IMPOSSIBLE


# ---- what the device does at best

_measured: dict[Device, Machine] = {}
_lock = threading.Lock()


def machine(device: Device) -> Machine:
    """Bandwidths and peaks of a device, measured at the first call: by sums, copies and additions, and by products."""
    with _lock:
        if device not in _measured:
            timed = Timed(device)
            bandwidths = tuple([_bandwidth(timed, size) for size in SIZES if size <= device.max_allocation])
            peaks = {"float32": _peak(timed, FLOAT32)} | ({"float64": _peak(timed, FLOAT64)} if device.fp64 else {})
            _measured[device] = Machine(device.compute_units, bandwidths, peaks)
        return _measured[device]


def _best(timed: Timed, op: str, params: tuple[int, ...], ins: list[Array], out: Array) -> float:
    """The least time of an op."""
    times = [timed.seconds(lambda: timed.execute(CODES[op], params, ins, out)) for _ in range(RUNS)]
    return max(min(times), 1e-9)


def _filled(timed: Timed, dtype: int, shape: tuple[int, ...]) -> Array:
    found = timed.empty_array(dtype, shape, "profile")
    timed.fill(found, 1.0)
    return found


def _bandwidth(timed: Timed, size: int) -> float:
    """As of the processor (tapeflow/_roofline.py)."""
    n = size // 8
    a, b = _filled(timed, FLOAT32, (n,)), _filled(timed, FLOAT32, (n,))
    one = timed.empty_array(FLOAT32, (), "profile")
    return max(
        4 * n / _best(timed, "sum", (1, n), [a], one),
        8 * n / _best(timed, "identity", (), [a], b),
        12 * n / _best(timed, "add", (), [a, b], b),
    )


def _peak(timed: Timed, dtype: int) -> float:
    n = LENGTH if timed.is_cpu else LONGER * LENGTH
    a = _filled(timed, dtype, (n, n))
    return 2 * n**3 / _best(timed, "matmul", (), [a, a], timed.empty_array(dtype, (n, n), "profile"))
