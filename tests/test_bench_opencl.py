"""The bench of OpenCL devices: every part runs in small on the implementation from PyPI, and judges by what it saw."""

import json
from types import SimpleNamespace

import pytest

from bench import checks, devices, opencl, rivals
from tapeflow.plan import ir
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


def test_eager_ops_and_training_run_on_the_device(intel, monkeypatch):
    before = intel.launches
    (found,) = rows_of("eager", intel)
    assert found["goal"]["unit"] == "us" and 0 < found["goal"]["measured"] == pytest.approx(found["ours"] * 1e6)
    assert intel.launches - before >= devices.EAGER

    def absent(device, small):
        raise rivals.Absent("tinygrad is not here")

    monkeypatch.setattr(rivals, "TinyStep", absent)
    there, here, none = rows_of("training", intel)
    assert there["what"].endswith("on the device") and here["what"].endswith("on the host")
    assert there["ours"] > 0 and here["ours"] > 0 and none["note"] == "absent: tinygrad is not here"


def test_a_rival_in_another_process_is_sampled_in_turn(intel, monkeypatch):
    class Other:
        version, taken = "1.0", []

        def __init__(self, device, small):
            assert small

        def sample(self, number):
            self.taken.append(number)
            return 1.0

        def close(self):
            self.taken.append("closed")

    monkeypatch.setattr(rivals, "TinyStep", Other)
    rows = rows_of("training", intel)
    assert [r["peer"] for r in rows] == ["tinygrad 1.0"] * 2 and all(r["goal"]["met"] for r in rows)
    assert Other.taken == [5, 5, *[1] * SMALL.rounds, "closed"]


def test_transfers(intel):
    assert [r["what"].partition(",")[0] for r in rows_of("transfers", intel)] == [
        "upload", "download", "copy on the device", "one number there and back",
    ]  # fmt: skip


@pytest.mark.parametrize("check", [name for name in checks.CHECKS if name not in ("programs", "functions")])
def test_checks_pass(intel, check):
    assert checks.checked(check, intel, NAME, 60.0)[0] == ""


def test_checks_stop_in_time(intel):
    for check in ("programs", "functions"):
        wrong, looked = checks.checked(check, intel, NAME, 0.3)
        assert wrong == "", wrong
        assert "left for want of time" in looked or not looked.startswith("315 of")


def test_a_check_sees_a_device_that_computes_wrongly_or_not_at_all(intel, monkeypatch):
    run, sums = type(intel).execute, ir.CODES["sum"]

    def wrong(device, op, params, ins, out):
        run(device, op, params, ins, out)
        if op == sums:
            device.fill(out, 3.0)

    monkeypatch.setattr(type(intel), "execute", wrong)
    for check in ("self_test", "losses", "memory"):
        assert checks.checked(check, intel, NAME, 60.0)[0]
    monkeypatch.setitem(checks.CHECKS, "losses", lambda *_: ("", "nothing"))
    assert checks.checked("losses", intel, NAME, 60.0)[0] == "nothing ran on the device"
