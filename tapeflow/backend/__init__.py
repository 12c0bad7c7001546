"""Devices other than the processor tapeflow runs on. Nothing heavy is imported before one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tapeflow.backend.opencl.discovery import DeviceInfo
    from tapeflow.backend.opencl.host import Device


def devices() -> list[DeviceInfo]:
    """The OpenCL devices that work here, in the order of their numbers. None without pyopencl or without a driver."""
    from tapeflow.backend.opencl import opened

    return opened.devices()


def open(name: str) -> Device:
    """The device of a name: "opencl", "opencl:1", "opencl:NVIDIA" (a number, or part of a name in any case).

    It is opened when it is first asked for. DeviceError, with what there is or what to install, when there is none.
    """
    from tapeflow.backend.opencl import opened

    return opened.device(name)


def number(device: Device) -> int:
    """The number of an open device among those of `devices`."""
    from tapeflow.backend.opencl import discovery

    return [info.place for info in discovery.usable()].index(device.info.place)
