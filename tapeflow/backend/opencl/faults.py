"""What a driver reports, as tapeflow's errors."""

from __future__ import annotations

import re

from tapeflow.errors import DeviceError, DeviceOutOfMemory, TapeflowError

# Codes of the OpenCL specification, and one of NVIDIA's.
DEVICE_NOT_AVAILABLE, ALLOCATION_FAILURE, OUT_OF_RESOURCES, OUT_OF_HOST_MEMORY = -2, -4, -5, -6
INVALID_CONTEXT, INVALID_QUEUE, INVALID_BUFFER_SIZE, ILLEGAL_ACCESS = -34, -36, -61, -9999

MEMORY = (ALLOCATION_FAILURE, OUT_OF_HOST_MEMORY)  # from whatever call
ALLOCATION = (*MEMORY, OUT_OF_RESOURCES, INVALID_BUFFER_SIZE)  # from a call that allocates
LOST = (DEVICE_NOT_AVAILABLE, INVALID_CONTEXT, INVALID_QUEUE, ILLEGAL_ACCESS)

FORKED = (
    "[device] {} was opened before this process was forked, and drivers of OpenCL do not survive a fork. Start "
    "processes by 'spawn' or 'forkserver' (multiprocessing.set_start_method), or open devices in the child alone."
)


def code_of(error: Exception) -> int:
    """The driver's code for an error of pyopencl."""
    code = getattr(error, "code", None)
    return code if isinstance(code, int) else 0


def explain(error: Exception, op: str, device: str) -> TapeflowError:
    """The error to raise for one of pyopencl's, in a call that does not allocate."""
    code, said = code_of(error), str(error).splitlines()[0] if str(error) else type(error).__name__
    if code in LOST:
        return DeviceError(f"[{op}] {device} is lost: {said}. Tensors on it are gone; open the device anew.")
    if code in MEMORY:
        return DeviceOutOfMemory(f"[{op}] {device} has no memory for what the driver needs: {said}. Free tensors.")
    if code == OUT_OF_RESOURCES:
        return DeviceError(
            f"[{op}] {device} is out of resources: {said}. Another program may use its memory, a kernel need more of "
            "the device than there is, or an earlier kernel have failed. Free tensors; if it stays, report it."
        )
    return DeviceError(f"[{op}] the driver of {device} failed: {said}. Report it with `python -m tapeflow info`.")


def build_failure(name: str, device: str, options: str, source: str, log: str) -> DeviceError:
    """A kernel that does not build: the compiler's first complaint, the line it is about, and all it said."""
    lines, where = source.splitlines(), ""
    found = re.search(r":(\d+):\d+: (?:fatal )?error|error: [^\n:]*:(\d+):\d+|[:(](\d+)[):]", log)
    if found:
        number = int(found[1] or found[2] or found[3])
        if 1 <= number <= len(lines):
            where = f" at line {number}: {lines[number - 1].strip()}"
    return DeviceError(
        f"[{name}] the kernel does not build on {device} ({options}){where}\n{log.strip()}\n"
        "That is a fault of tapeflow's or of the driver's. Report it with `python -m tapeflow info`."
    )
