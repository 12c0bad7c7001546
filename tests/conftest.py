"""Hypothesis profiles and the guard that no test leaves global state behind.

HYPOTHESIS_PROFILE: ci (the default; the same examples in every run), deep (twenty times as many, new ones each
time), quick (few, for builds that are slow because they check). Tests marked slow run in deep only.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = 40
COMMON = dict(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
settings.register_profile("ci", derandomize=True, max_examples=EXAMPLES, database=None, **COMMON)
settings.register_profile("deep", max_examples=20 * EXAMPLES, **COMMON)
settings.register_profile("quick", derandomize=True, max_examples=EXAMPLES // 4, database=None, **COMMON)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
settings.load_profile(PROFILE)


# With TAPEFLOW_TEST_DEVICE every tensor that a test makes is on that device, also those made when it is collected.
DEVICE = os.environ.get("TAPEFLOW_TEST_DEVICE", "cpu")
if DEVICE != "cpu":
    import tapeflow

    default = tapeflow.default_device(DEVICE)
    default.__enter__()


def pytest_collection_modifyitems(items):
    """Leave the slow tests to the deep profile, and those about the cpu's memory and bits to the cpu."""
    if DEVICE != "cpu":
        skip = pytest.mark.skip(reason=f"about the cpu, and this is {DEVICE}")
        for item in items:
            if "cpu" in item.keywords:
                item.add_marker(skip)
    if PROFILE != "deep":
        skip = pytest.mark.skip(reason="only with HYPOTHESIS_PROFILE=deep")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """On a device without float64 a test that needs it is skipped, by name."""
    try:
        return (yield)
    except Exception as error:
        if DEVICE != "cpu" and "has no float64" in str(error):
            pytest.skip(str(error))
        raise


def global_state():
    """What a test must leave as it was: default dtype, number of threads, whether ops are recorded."""
    import tapeflow as tp

    recorded = tp.tensor(1.0, requires_grad=True) + 1.0
    return str(tp.get_default_dtype()), tp.get_num_threads(), recorded.requires_grad


@pytest.fixture(autouse=True)
def no_leaked_state():
    """Fail the test that leaves global state behind, not the one after it."""
    before = global_state()
    yield
    assert global_state() == before, "the test left the default dtype, the threads or the grad mode changed"


@pytest.fixture
def two_threads():
    import tapeflow as tp

    before = tp.get_num_threads()
    tp.set_num_threads(2)
    yield
    tp.set_num_threads(before)


@pytest.fixture
def threads():
    """tp.set_num_threads; afterwards there are as many as before."""
    import tapeflow as tp

    before = tp.get_num_threads()
    yield tp.set_num_threads
    tp.set_num_threads(before)


@pytest.fixture
def first():
    """The first OpenCL implementation that is here, for what is the same on all of them."""
    from tests import opencl_devices  # which says where drivers are, before one is loaded

    found = opencl_devices.backend.devices()
    if not found:
        pytest.skip("no OpenCL implementation is here")
    return found[0]
