"""The OpenCL implementations that tests run on, and the `device` fixture over those that are here.

Intel's runtime and Oclgrind come from PyPI with the test extra, PoCL and rusticl from the system. What is missing is
skipped by name, so that pytest's summary tells. Oclgrind, an interpreter, is asked for by TAPEFLOW_TEST_OCLGRIND=1.
A test file takes the fixture by `from tests.opencl_devices import device  # noqa: F401`.
"""

import os
from functools import lru_cache

import pytest

os.environ.setdefault("RUSTICL_ENABLE", "llvmpipe")  # read when the driver is loaded

IMPLEMENTATIONS = {  # part of the name of the platform
    "intel": "Intel",
    "pocl": "Portable Computing Language",
    "rusticl": "rusticl",
}
if os.environ.get("TAPEFLOW_TEST_OCLGRIND") == "1":
    IMPLEMENTATIONS = {"oclgrind": "Oclgrind"}
