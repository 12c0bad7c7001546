"""Kernels: built once per device and text, kept on disk as the driver's binaries."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from tapeflow.backend.opencl import cache, faults

if TYPE_CHECKING:
    from tapeflow.backend.opencl.host import Device

KIND = "programs"  # their folder in the cache
VERSION = 1  # of how kernels are built and kept; a new one leaves the binaries of older ones unused


class Kernel:
    """A kernel of a device. max_group: how many work-items one work-group of it may have.

    handle, pyopencl's kernel, holds arguments: whoever sets them holds the device's lock until it is enqueued, or has
    a kernel of his own (`again`).
    """

    __slots__ = ("argtypes", "handle", "max_group", "name", "program")

    def __init__(self, device: Device, program: Program, name: str, argtypes: tuple[Any, ...]) -> None:
        cl = device.cl
        self.name, self.argtypes = name, argtypes
        self.program = program  # Intel's runtime wants programs to live as long as their kernels
        self.handle = cl.Kernel(program.handle, name)
        if argtypes:
            self.handle.set_scalar_arg_dtypes(argtypes)
        own = self.handle.get_work_group_info(cl.kernel_work_group_info.WORK_GROUP_SIZE, device.info.handle)
        self.max_group = max(1, min(own, device.max_workgroup))

    def again(self, device: Device) -> Kernel:
        """Another kernel object of the same program, with arguments of its own."""
        return Kernel(device, self.program, self.name, self.argtypes)


class Program:
    """A built program. cached: it came from the disk."""

    __slots__ = ("cached", "handle")

    def __init__(self, handle: Any, cached: bool) -> None:
        self.handle, self.cached = handle, cached


class Programs:
    """The programs and kernels of one device. made: programs so far; compiled: those among them not found on disk."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._building: dict[tuple[str, tuple[str, ...]], threading.Lock] = {}
        self._programs: dict[tuple[str, tuple[str, ...]], Program] = {}
        self._kernels: dict[tuple[str, str, tuple[str, ...]], Kernel] = {}
        self.made, self.compiled = 0, 0

    def kernel(self, source: str, name: str, options: tuple[str, ...], argtypes: tuple[Any, ...]) -> Kernel:
        found = self._kernels.get((source, name, options))
        if found is not None:
            return found
        with self._lock:
            building = self._building.setdefault((source, options), threading.Lock())
        with building:
            if (source, name, options) not in self._kernels:
                made = self._make_kernel(source, name, options, argtypes)
                self._kernels[source, name, options] = made
            return self._kernels[source, name, options]

    def _make_kernel(self, source: str, name: str, options: tuple[str, ...], argtypes: tuple[Any, ...]) -> Kernel:
        cl, device = self._device.cl, self._device
        program = self._programs.get((source, options))
        if program is None:
            program = self._make(source, name, options)
        try:
            made = Kernel(device, program, name, argtypes)
        except cl.Error as error:
            if not program.cached:
                raise device.fault(error, name) from None
            program = self._make(source, name, options, fresh=True)
            try:
                made = Kernel(device, program, name, argtypes)
            except cl.Error as again:
                raise device.fault(again, name) from None
        self._programs[source, options] = program
        return made

    def _make(self, source: str, name: str, options: tuple[str, ...], fresh: bool = False) -> Program:
        cl, device = self._device.cl, self._device
        text = " ".join((*device.build_options, *options))
        info = device.info
        facts = (VERSION, info.name, info.vendor, info.driver, info.platform, info.platform_version, text, source)
        key = cache.key_of(*facts)
        handle = None
        body = None if fresh else cache.read(KIND, key)
        if body:
            try:
                handle = cl._cl._Program(device.context, [info.handle], [body])
                handle._build(text.encode(), [info.handle])
            except cl.Error:
                handle = None  # the driver has changed its mind about it
        self.made += 1
        if handle is not None:
            return Program(handle, cached=True)
        handle = self._compile(source, name, text)
        self.compiled += 1
        try:
            (binary,) = handle.get_info(cl.program_info.BINARIES)
        except (cl.Error, ValueError):
            binary = b""  # a driver may have none to give
        if binary:
            cache.write(KIND, key, binary)
        return Program(handle, cached=False)

    def _compile(self, source: str, name: str, options: str) -> Any:
        cl, device = self._device.cl, self._device
        # The inner class of pyopencl's: the outer one has a cache of its own, and leaves sources that fail in /tmp.
        try:
            handle = cl._cl._Program(device.context, source)
        except cl.Error as error:
            raise device.fault(error, name) from None
        try:
            handle._build(options.encode(), [device.info.handle])
        except cl.Error as error:
            if faults.code_of(error) in (*faults.LOST, *faults.MEMORY):
                raise device.fault(error, name) from None
            try:
                log = handle.get_build_info(device.info.handle, cl.program_build_info.LOG)
            except cl.Error:
                log = str(error)
            raise faults.build_failure(name, device.name, options, source, log or str(error)) from None
        return handle
