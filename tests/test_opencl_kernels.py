"""The checker of kernels (tools/check_kernels.py) as a test: every kernel passes, and each kind of fault is found."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kernel_cases import CASES
from tests.opencl_devices import opened

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import check_kernels

SAID = {  # what the log says of a planted fault; of a wrong result nothing
    "result": "",
    "bounds": "Invalid write of size 4 at global memory address",
    "race": "data race at local memory address",
    "uninitialized": "Uninitialized value",
    "divergence": "Work-group divergence detected (barrier)",
}


@pytest.fixture(scope="module")
def oclgrind():
    return opened("oclgrind")


def test_every_kernel(oclgrind):
    verdict = check_kernels.check(list(CASES), edges=False, every=True)
    assert verdict, str(verdict)


@pytest.mark.slow
def test_every_kernel_at_its_edges(oclgrind):
    verdict = check_kernels.check(list(CASES), every=True)
    assert verdict, str(verdict)


@pytest.fixture(scope="module")
def planted(oclgrind):
    """The verdicts on kernels with one fault each."""

    def found(fault):
        return check_kernels.check(["filled" if fault in ("result", "bounds") else "masks"], False, fault)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(check_kernels.PLANTS, pool.map(found, check_kernels.PLANTS), strict=True))


@pytest.mark.parametrize("fault", check_kernels.PLANTS)
def test_a_planted_fault_is_found(planted, fault):
    verdict = planted[fault]
    assert verdict.here and not verdict
    assert SAID[fault] in verdict.log and bool(verdict.log) == bool(SAID[fault])
    if fault in ("result", "bounds"):  # the one is seen in the result alone, the other in the log alone
        assert bool(verdict.failures) == (fault == "result")


def test_a_kernel_that_no_case_launches_is_named(oclgrind):
    verdict = check_kernels.check(["filled"], edges=False, every=True)
    assert not verdict and not verdict.log and not verdict.failures
    assert {"softmax", "reduce_sum_parts", "copy_runs_8", "fused"} <= verdict.missed and "fill" not in verdict.missed
    assert "no case launches " in str(verdict)


def test_kernels_are_found_in_their_texts():
    text = """
    /* __kernel void no(int a) */
    #define FN(name) CAT(NAME, name)
    #define BOTH(rank) ONE(a_##rank, rank) ONE(b_##rank, rank)
    #define ONE(name, rank) \\
        __kernel void name(__global int *y) \\
        { y[0] = rank; }
    BOTH(4)
    #define KERNEL __kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
    KERNEL void plain(int a) {}
    __kernel __attribute__((reqd_work_group_size(1, 1, 1))) void FN(rows)(int a) {}
    static void helper(int a) {}
    """
    assert check_kernels.definitions(text, "reduce_sum") == {"a_4", "b_4", "plain", "reduce_sum_rows"}
    assert {"reduce_isum_parts", "transpose_tiles", "places_8", "draw"} <= check_kernels.kernels()
