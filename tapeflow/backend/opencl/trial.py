"""The trial of a device: a kernel is built, run, and its result looked at. Run in a child process by discovery.py."""

from __future__ import annotations

import json

import numpy as np

from tapeflow.backend.opencl import discovery
from tapeflow.backend.opencl.host import Array, Device
from tapeflow.backend.opencl.table import source
from tapeflow.errors import DeviceError
from tapeflow.plan.ir import FLOAT32

N, OFFSET = 100, 3


def check(device: Device) -> str:
    """What is wrong with the device; nothing when it computes what it should."""
    data = np.arange(OFFSET + N, dtype=np.float32)
    memory = [device.alloc(4 * n, "trial") for n in (OFFSET + N, N)]
    x, y = (Array(m, 0, FLOAT32, (m.nbytes // 4,), (4,)) for m in memory)
    device.upload(x, data)
    kernel = device.kernel(source("probe.cl"), "probe", argtypes=(None, None, None, np.int64, np.int32))
    width = device.group_size(kernel, 32)
    device.launch(kernel, N, 32, memory[0], memory[1], device.local(4 * width), OFFSET, N)
    got = device.download(y)
    padded = np.zeros(-(-N // width) * width, np.float32)
    padded[:N] = data[OFFSET:]
    want = 2 * padded + padded.reshape(-1, width)[:, ::-1].reshape(-1)
    return "" if np.array_equal(got, want[:N]) else "a first kernel computed wrong numbers"


def run(info: discovery.DeviceInfo) -> tuple[str, bool]:
    """The verdict on a device, in this process, and whether it will be the same tomorrow."""
    try:
        return check(Device(info)), True
    except DeviceError as error:
        return str(error), True
    except Exception as error:  # memory that is short, a file that cannot be read: not the device's fault
        return f"{type(error).__name__}: {error}", False


def main(place: tuple[int, int], key: str) -> None:
    """Print that the trial begins and, as JSON, what `run` says."""
    print(discovery.TRIAL_BEGAN, flush=True)
    found = [info for info in discovery.listing().candidates if (info.place, info.key.hex()) == (place, key)]
    said = run(found[0]) if found else ("the driver lists other devices in another process", False)
    print(json.dumps(said), flush=True)
