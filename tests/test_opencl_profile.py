"""Profiles of plans on devices: each step by the device's clock, and a replay as a step of eager code's profile."""

import json

import pytest
from worlds import LABELS, WORLDS, X, snapshot

import tapeflow as tp
from tapeflow.errors import PlanError
from tapeflow.plan.placed import DevicePlan
from tests.opencl_devices import device, opened  # noqa: F401


def placed(name, device):  # noqa: F811
    f, args = WORLDS[name]()
    plan = tp.freeze(f, *args)
    return plan, DevicePlan(plan, device, "opencl"), args


@pytest.mark.parametrize("name", WORLDS)
def test_each_step_is_timed_and_nothing_changes(device, name):  # noqa: F811
    plan, there, args = placed(name, device)
    before = snapshot(plan)
    profile = there.profile(*args, repeats=2)
    assert snapshot(plan) == before
    assert len(profile.steps) == len(there._placing.nodes)
    assert all(0 <= s.seconds < 5 for s in profile.steps) and sum(s.seconds for s in profile.steps) > 0
    hosted = len(there._hosted)
    assert sum(s.flops for s in profile.steps) == plan.flops or hosted
    assert all("worlds.py" in s.line or "tapeflow" in s.line for s in profile.steps)
    assert [s.start for s in profile.steps] == sorted(s.start for s in profile.steps)
    want = plan(*args)
    assert type(want) is type(there(*args))


def test_of_a_training_step():
    _, there, args = placed("adam_and_dropout", opened("intel"))
    profile = there.profile(*args)
    assert {"matmul", "cross_entropy", "random"} <= {op for s in profile.steps for op in s.ops}
    (first, *_) = [s for s in profile.steps if s.name == "matmul"]
    assert first.result == "float32[8, 5]" and first.nbytes == 4 * (8 * 4 + 4 * 5 + 8 * 5)
    assert first.flops == 2 * 8 * 4 * 5
    text = str(profile)
    assert "GB/s" in text and len(text.splitlines()) == len(profile.steps) + 2
    assert profile.name == "step on opencl" and len(json.loads(profile.to_chrome())["traceEvents"]) > 3
    machine = profile.machine
    assert machine.threads == opened("intel").compute_units and machine is there.profile(*args, repeats=1).machine
    assert all(1e8 < b < 1e13 for b in machine.bandwidths) and 1e9 < machine.peaks["float32"] < 1e14


def test_a_large_step_takes_what_the_device_takes():
    """By the device's clock, not longer than the host waits; a copy of more takes longer."""
    from time import perf_counter

    times = []
    for n in (1 << 12, 1 << 22):
        plan = tp.freeze(lambda x: tp.sqrt(x), tp.zeros(n))
        there = DevicePlan(plan, opened("intel"), "opencl")
        (step,) = there.profile(tp.zeros(n), repeats=3).steps
        start = perf_counter()
        there(tp.zeros(n))
        assert step.seconds < perf_counter() - start and step.nbytes == 8 * n
        times.append(step.seconds)
    assert times[1] > 3 * times[0]


def test_what_a_call_would_not_take(device):  # noqa: F811
    plan, there, (x,) = placed("guarded", device)
    before = snapshot(plan)
    for args, more, text in (
        ((tp.zeros(3),), {}, "argument 0"),
        ((x - 9.0,), {}, "Python looked at a value"),
        ((x,), {"repeats": 0}, "repeats must be"),
        ((x,), {"repeats": True}, "repeats must be"),
    ):
        with pytest.raises(PlanError, match=text):
            there.profile(*args, **more)
        assert snapshot(plan) == before
    assert there.profile(x, repeats=1).steps


def test_a_replay_is_a_step_of_an_open_profile(device):  # noqa: F811
    plan, there, (x,) = placed("guarded", device)
    with tp.profile("outer") as outer:
        tp.sum(x)
        with tp.profile() as inner:
            there(x)
        with pytest.raises(PlanError):
            there(x - 9.0)
        tp.exp(x)
    assert [s.name for s in outer.steps] == ["sum", "plan f", "subtract", "exp"]
    (step,) = inner.steps
    assert step.result == "float32[]" and step.flops == plan.flops and step.nbytes == there.moved > 0
    assert "test_opencl_profile.py" in step.line and 0 < step.seconds <= inner.wall
    with tp.profile() as after:
        there(x)
    assert [s.name for s in after.steps] == ["plan f"]


def test_a_plan_of_several_results_in_a_profile():
    plan = tp.freeze(lambda x, labels: (x + 1.0, labels), X, LABELS)
    with tp.profile() as p:
        DevicePlan(plan, opened("intel"), "opencl")(X, LABELS)
    (step,) = p.steps
    assert step.result == "" and step.ops == ("plan <lambda>",)
