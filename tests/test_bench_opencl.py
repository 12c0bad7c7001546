"""The bench of OpenCL devices: every part runs in small on the implementation from PyPI, and judges by what it saw."""

import json
from types import SimpleNamespace

import pytest

from bench import devices, opencl, rivals
from tests.opencl_devices import opened

SMALL = devices.Effort(rounds=2, target=1e-4, seconds=0.0, small=True)
NAME = "opencl:intel"


@pytest.fixture(scope="module")
def intel():
    return opened("intel")


def rows_of(part, device):
    found = list(devices.measured(part, device, NAME, SMALL))
    assert found and json.loads(json.dumps(found)) == found
    assert not [r["note"] for r in found if r["note"].startswith("FAILED")]
    text = opencl.table(found)
    assert len({len(line) for line in text.splitlines()}) == 1
    return found


def test_products_are_compared_in_three_ways(intel):
    found = [r for r in rows_of("matmul", intel) if r["peer"] == "NumPy"]
    assert [r["what"].partition(", float32, ")[2] for r in found] == [
        "in blocks", "single calls after a rest", "single calls in turn",
    ]  # fmt: skip
    for r in found:
        ours, theirs = r["samples"]
        assert ours and len(ours) == len(theirs) and r["ours_quiet"] == min(ours) <= r["ours"]
        assert r["goal"]["measured"] == r["ratio"] > 0 and r["goal"]["met"] is (r["ratio"] >= 0.6)


def test_elementwise_is_compared_with_an_addition(intel):
    assert [r["peer"] for r in rows_of("elementwise", intel)] == ["NumPy's add"] * 2


def test_launches_are_compared_with_a_loop_in_c(intel):
    (found,) = rows_of("launch", intel)
    assert found["peer"] == "C loop" and found["goal"]["limit"] == 1.5 and not found["goal"]["at_least"]
    assert found["goal"]["measured"] > 0 and 0 < found["ours"] < 1e-2


def test_without_a_compiler_the_loop_is_named_absent(intel, monkeypatch):
    monkeypatch.setattr(rivals.shutil, "which", lambda name: None)
    monkeypatch.delenv("CC", raising=False)
    absent, found = rows_of("launch", intel)
    assert absent["note"] == "absent: there is no C compiler (cc)" and found["ours"] and found["goal"] is None


def test_a_new_shape_builds_nothing(intel):
    (found,) = rows_of("shapes", intel)
    assert found["goal"]["measured"] == 0 and found["goal"]["met"]


def test_a_part_that_fails_is_a_row(intel, monkeypatch):
    def wrong(array):
        return type(intel).download(intel, array) + 1

    broken = SimpleNamespace(**{
        name: getattr(intel, name)
        for name in ("empty_array", "upload", "execute", "sync", "max_allocation", "is_cpu", "vector_width")
    }, download=wrong)  # fmt: skip
    (found,) = devices.measured("matmul", broken, NAME, SMALL)
    assert found["note"].startswith("FAILED: AssertionError: matmul 64 x 64, float32: value is off")
    assert opencl.failed({"devices": [{"rows": [found]}]})
    assert not opencl.failed({"devices": [{"rows": [devices.missing("x", "CLBlast", "FAILED: no")]}]})
