"""Kernels: built once per device and text, kept on disk as the driver's binaries.

A kernel that is asked for by itself brings its whole file. What a plan needs is one program (`Programs.prepare`);
beside its binary the disk then knows of each kernel in which program it is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tapeflow.backend.opencl import cache, faults
from tapeflow.backend.opencl.expansion import Wanted, can_merge, merge
from tapeflow.errors import DeviceError

if TYPE_CHECKING:
    from tapeflow.backend.opencl.host import Device

KIND = "programs"  # their folder in the cache
PLACES = "kernels"  # the folder of where kernels are: the key of a program, and the name there
SILENT = ("-w",)  # the options of what was merged
# PoCL compiles each kernel a second time to give a binary, which lacks what it then compiles for sizes of work-groups;
# it has files of its own for that.
KEEPS_FILES = ("portable computing language",)
VERSION = 1  # of how kernels are built and kept; a new one leaves the binaries of older ones unused


class Kernel:
    """A kernel of a device. max_group: how many work-items one work-group of it may have.

    handle, pyopencl's kernel, holds arguments: whoever sets them holds the device's lock until it is enqueued, or has
    a kernel of his own (`again`).
    """

    __slots__ = ("argtypes", "entry", "handle", "max_group", "name", "program")

    def __init__(self, device: Device, program: Program, name: str, argtypes: tuple[Any, ...], entry: str = "") -> None:
        cl = device.cl
        self.name, self.argtypes = name, argtypes
        self.entry = entry or name  # its name in the program
        self.program = program  # Intel's runtime wants programs to live as long as their kernels
        self.handle = cl.Kernel(program.handle, self.entry)
        if argtypes:
            self.handle.set_scalar_arg_dtypes(argtypes)
        own = self.handle.get_work_group_info(cl.kernel_work_group_info.WORK_GROUP_SIZE, device.info.handle)
        self.max_group = max(1, min(own, device.max_workgroup))

    def again(self, device: Device) -> Kernel:
        """Another kernel object of the same program, with arguments of its own."""
        return Kernel(device, self.program, self.name, self.argtypes, self.entry)


class Program:
    """A built program. cached: it came from the disk."""

    __slots__ = ("cached", "handle")

    def __init__(self, handle: Any, cached: bool) -> None:
        self.handle, self.cached = handle, cached


class Programs:
    """The programs and kernels of one device. made: programs so far; compiled: those among them not found on disk;
    usual_group: how many work-items a work-group of the latest kernel may have."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._building: dict[tuple[str, tuple[str, ...]], threading.Lock] = {}
        self._programs: dict[tuple[str, tuple[str, ...]], Program] = {}
        self._merged: dict[bytes, Program] = {}  # by key
        self._kernels: dict[tuple[str, str, tuple[str, ...]], Kernel] = {}
        self.made, self.compiled, self.usual_group = 0, 0, device.max_workgroup
        self.kept_by_driver = device.info.platform.lower() in KEEPS_FILES

    def known(self, source: str, name: str, options: tuple[str, ...]) -> Kernel | None:
        """The kernel, if it was built."""
        return self._kernels.get((source, name, options))

    def kernel(self, source: str, name: str, options: tuple[str, ...], argtypes: tuple[Any, ...]) -> Kernel:
        found = self._kernels.get((source, name, options))
        if found is not None:
            return found
        with self._lock:
            building = self._building.setdefault((source, options), threading.Lock())
        with building:
            if (source, name, options) not in self._kernels:
                wanted = Wanted(source, name, options, argtypes)
                made = self._placed(wanted) or self._make_kernel(source, name, options, argtypes)
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
        self.usual_group = made.max_group
        return made

    # ---- several kernels as one program

    def prepare(self, kernels: Iterable[Wanted]) -> bool:
        """Build what is missing of these kernels, as one program, and say whether there was such; what does not build
        there is left to be built by itself when it is asked for."""
        missing = []
        for wanted in dict.fromkeys(kernels):
            key = wanted[:3]
            if key in self._kernels or wanted[0::2] in self._programs or not can_merge(wanted):
                continue
            found = self._placed(wanted)
            if found is not None:
                self._kernels.setdefault(key, found)
            elif self.kept_by_driver or cache.read(KIND, self._key(wanted.source, wanted.options)) is None:
                missing.append(wanted)
        if not missing:
            return False
        try:
            if len(missing) == 1:
                self.kernel(*missing[0])
                return True
            text, entries = merge(missing)
            program = self._make(text, "plan", SILENT, fresh=True)
        except DeviceError:
            if self._device.lost:
                raise
            return False
        own = self._key(text, SILENT)
        with self._lock:
            self._merged[own] = program
        for wanted, entry in zip(missing, entries, strict=True):
            made = self._entered(program, wanted, entry)
            if made is not None:
                self._kernels.setdefault(wanted[:3], made)
                if not self.kept_by_driver:
                    cache.write(PLACES, self._place_key(wanted), own + entry.encode())
        return True

    def _placed(self, wanted: Wanted) -> Kernel | None:
        """The kernel from a program that was built for several, in this process or an earlier one."""
        place = None if self.kept_by_driver else cache.read(PLACES, self._place_key(wanted))
        if place is None:
            return None
        key, entry = place[:32], place[32:].decode()
        with self._lock:
            program = self._merged.get(key)
            if program is None:
                program = self._from_disk(key, self._text_of(SILENT))
                if program is None:
                    return None
                self.made += 1
                self._merged[key] = program
        return self._entered(program, wanted, entry)

    def _entered(self, program: Program, wanted: Wanted, entry: str) -> Kernel | None:
        try:
            made = Kernel(self._device, program, wanted.name, wanted.argtypes, entry)
            self.usual_group = made.max_group
            return made
        except self._device.cl.Error:
            return None  # it is built by itself, and its error is told then

    # ---- programs

    def _text_of(self, options: tuple[str, ...]) -> str:
        return " ".join((*self._device.build_options, *options))

    def _key(self, source: str, options: tuple[str, ...], *more: str) -> bytes:
        info = self._device.info
        facts = (info.name, info.vendor, info.driver, info.platform, info.platform_version, self._text_of(options))
        return cache.key_of(VERSION, *facts, source, *more)

    def _place_key(self, wanted: Wanted) -> bytes:
        return self._key(wanted.source, wanted.options, wanted.name)

    def _from_disk(self, key: bytes, options: str) -> Program | None:
        cl, device = self._device.cl, self._device
        body = cache.read(KIND, key)
        if not body:
            return None
        try:
            handle = cl._cl._Program(device.context, [device.info.handle], [body])
            handle._build(options.encode(), [device.info.handle])
        except cl.Error:
            return None  # the driver has changed its mind about it
        return Program(handle, cached=True)

    def _make(self, source: str, name: str, options: tuple[str, ...], fresh: bool = False) -> Program:
        cl, key, text = self._device.cl, self._key(source, options), self._text_of(options)
        found = None if fresh or self.kept_by_driver else self._from_disk(key, text)
        self.made += 1
        if found is not None:
            return found
        try:
            handle = self._compile(source, name, text)
        except BaseException:
            self.made -= 1
            raise
        self.compiled += 1
        if not self.kept_by_driver:
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
