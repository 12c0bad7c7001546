"""The suite itself on other devices: pytest in a process of its own, with TAPEFLOW_TEST_DEVICE.

Every tensor of a test is made there, so whatever the suite says of ops, gradients, transforms, modules and optimizers
is said of the device. `make test` has the quick files on one device, `make test-deep` all on each.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.opencl_devices import IMPLEMENTATIONS, opened

TESTS = Path(__file__).parent
QUICK = """
    tape tape_edges forms partials containers losses compositions custom checkpoint nn interpret optim generators_within
    functional
""".split()
# About files, processes, the cpu's memory and threads, or about plans, which tests/test_opencl_suite.py has on devices.
OTHERS = """
    bench build clients cow demo devices docs errors examples info memory opencl plan plans profile recordings sparse
    stubs tensor threads worlds
""".split()
LONG = 3600  # seconds


def names():
    found = sorted(path.stem.removeprefix("test_") for path in TESTS.glob("test_*.py"))
    return [name for name in found if name.partition("_")[0] not in OTHERS and name not in QUICK]


def check(implementation, files):
    opened(implementation)
    paths = [str(TESTS / f"test_{name}.py") for name in files]
    environment = {**os.environ, "TAPEFLOW_TEST_DEVICE": f"opencl:{implementation}"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *paths]
    run = subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, timeout=LONG)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " passed" in run.stdout.splitlines()[-1]


def test_quick_files():
    check("intel", QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", [name for name in IMPLEMENTATIONS if name != "intel"])
def test_quick_files_elsewhere(implementation):
    check(implementation, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("implementation", [name for name in IMPLEMENTATIONS if name != "rusticl"])
def test_file(implementation, name):
    check(implementation, [name])
