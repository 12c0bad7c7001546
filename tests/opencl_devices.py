"""The OpenCL implementations that tests run on, and the `device` fixture over those that are here.

Intel's runtime and Oclgrind come from PyPI with the test extra, PoCL and rusticl from the system. What is missing is
skipped by name, so that pytest's summary tells. Oclgrind, an interpreter, is asked for by TAPEFLOW_TEST_OCLGRIND=1 and
then stands alone. A test file takes the fixture by `from tests.opencl_devices import device  # noqa: F401`.
"""

import os
from pathlib import Path

import pytest

from tapeflow import backend
from tapeflow.errors import DeviceError

# Before any driver is loaded: rusticl's device for processors; verdicts and binaries beside what the build leaves.
os.environ.setdefault("RUSTICL_ENABLE", "llvmpipe")
os.environ.setdefault("TAPEFLOW_CACHE_DIR", str(Path(__file__).resolve().parent.parent / "build" / "test-cache"))

IMPLEMENTATIONS = ("intel", "pocl", "rusticl")  # a part of the platform's name
if os.environ.get("TAPEFLOW_TEST_OCLGRIND") == "1":
    IMPLEMENTATIONS = ("oclgrind",)


def opened(name):
    """The device of an implementation, the same in all tests; the test is skipped where it is not."""
    try:
        return backend.open(f"opencl:{name}")
    except DeviceError as error:
        pytest.skip(f"{name} is not here: {error}")


@pytest.fixture(params=IMPLEMENTATIONS)
def device(request):
    return opened(request.param)
