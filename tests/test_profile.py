"""Profiles: what a step costs and at least takes, and the files that say so."""

import json
import math
from xml.etree import ElementTree

import numpy as np
import pytest

import tapeflow as tp
from tapeflow import _roofline, _timeline, ops
from tapeflow.profiling import Profile, Step

# ---- costs


def test_the_flops_of_known_ops():
    def flops(name, ins, out, dtype="float32"):
        return _roofline.flops(name, ins, out, dtype)

    assert flops("matmul", [(8, 4), (4, 3)], (8, 3)) == 2 * 8 * 4 * 3
    assert flops("matmul", [(5, 8, 4), (5, 4, 3)], (5, 8, 3)) == 5 * 2 * 8 * 4 * 3
    assert flops("add", [(10,), (10,)], (10,)) == flops("sum", [(10,)], ()) == 10
    assert flops("add", [(10,), (3, 1)], (3, 10)) == 30
    assert flops("vecdot", [(10,), (10,)], ()) == 20
    assert flops("lerp", [(10,)] * 3, (10,)) == 30  # a + c*(b - a)
    assert flops("exp", [(10,)], (10,)) == 10 * _roofline.element_cost("exp", True) > 100
    assert flops("exp", [(10,)], (10,), "float64") > flops("exp", [(10,)], (10,))
    assert flops("softmax", [(2, 5)], (2, 5)) == 10 * (4 + _roofline.element_cost("exp", True))
    assert flops("scatter_add", [(100,), (3,), (3,)], (100,)) == 3
    for moves in ("reshape", "getitem", "concat", "random", "identity"):
        assert flops(moves, [(10,)], (10,)) == 0, moves


@pytest.mark.parametrize("single", [True, False])
def test_every_elementwise_op_costs_something(single):
    costs = {name: _roofline.element_cost(name, single) for name in ops.TABLE}
    assert min(costs.values()) >= 1
    assert costs["multiply"] == costs["add"] == costs["sqrt"] == 1 and costs["tanh"] > 10
    assert costs["softplus"] >= costs["exp"] + costs["log1p"]
    # what has no text but its own name is either listed or done in an instruction or two
    listed = set(_roofline._PRIMITIVES)
    assert listed <= set(ops.TABLE)
    cheap = {n for n, e in ops.TABLE.items() if e.primitive} - listed
    assert cheap == {
        "floor", "ceil", "trunc", "copysign", "nextafter", "bitwise_invert", "bitwise_and", "bitwise_or",
        "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift",
    }  # fmt: skip


def test_the_cost_of_a_partial():
    assert _roofline.partial_cost("add", 0, True) == 0
    assert _roofline.partial_cost("exp", 0, True) == 2  # g*y, with a comparison for the strong zero
    assert _roofline.partial_cost("sin", 0, True) > _roofline.element_cost("cos", True)
    assert _roofline.partial_cost("exp", 1, True) == 0


# ---- the bound


def test_the_bound_is_what_takes_longest():
    peaks = {"float32": 4e9, "float64": 2e9}
    machine = _roofline.Machine(1, (8e9, 4e9, 2e9, 1e9), peaks)
    large = 1 << 30
    assert machine.bound(large, 0, "float32") == large / 1e9
    assert machine.bound(64, 0, "") == 64 / 8e9
    assert machine.bound(_roofline.SIZES[2], 0, "float32") == _roofline.SIZES[2] / 2e9
    assert machine.bound(_roofline.SIZES[2] - 1, 0, "float32") == pytest.approx(_roofline.SIZES[2] / 4e9)
    assert machine.bound(64, 10**9, "float32") == 0.25 and machine.bound(64, 10**9, "float64") == 0.5
    assert machine.bound(0, 0, "bool") == 0.0
    # what is slower in less memory was disturbed while it was measured
    disturbed = _roofline.Machine(1, (1e9, 4e9, 2e9, 1e9), peaks)
    assert disturbed.bound(64, 0, "") == 64 / 4e9


def test_the_machine_is_measured_once_and_leaves_nothing_behind():
    threads = tp.get_num_threads()
    x = tp.ones(3, requires_grad=True)
    with tp.Tape() as tape, tp.trace_nan():
        machine = _roofline.machine(threads)
        y = x * 2.0
    assert len(tape) == 1 and y.requires_grad
    assert tp.get_num_threads() == threads
    assert machine is _roofline.machine(threads) and machine.threads == threads
    assert machine.peaks["float32"] > 1e8 and machine.peaks["float64"] > 1e8
    assert all(1e8 < b < 1e14 for b in machine.bandwidths)
    more = _roofline.machine(threads + 1)
    assert more is not machine and more.threads == threads + 1 and tp.get_num_threads() == threads


# ---- profiles of plans


def loss(w, x):
    return tp.mean(tp.tanh(x @ w) ** 2)


W, X = tp.ones((4, 3)), tp.ones((8, 4))


def profiled():
    return tp.freeze(tp.value_and_grad(loss), W, X).profile(W, X, repeats=2)


def test_the_steps_of_a_plan_follow_each_other():
    p = profiled()
    assert p.name == "loss" and p.threads == tp.get_num_threads() and p.wall == 0.0
    assert p.seconds == pytest.approx(sum(s.seconds for s in p.steps))
    start = 0.0
    for step in p.steps:
        assert step.start == pytest.approx(start) and step.inside == 0.0
        start += step.seconds
    assert sum(s.flops for s in p.steps) == tp.freeze(tp.value_and_grad(loss), W, X).flops
    first = p.steps[0]
    assert first.name == "matmul" and first.nbytes == 4 * (8 * 4 + 4 * 3 + 8 * 3) and first.flops == 2 * 8 * 4 * 3
    assert p.bound(first) == p.machine.bound(first.nbytes, first.flops, "float32") > 0
    assert repr(p).startswith("<Profile loss: ")


def test_a_step_that_takes_reads_what_it_takes():
    table, at = tp.zeros((1000, 8)), tp.tensor([1, 999, 1])
    p = tp.freeze(lambda t, i: tp.take(t, i, axis=0) * 2.0, table, at).profile(table, at, repeats=1)
    (step,) = (s for s in p.steps if "take" in s.ops)
    assert step.nbytes == 3 * 8 + 2 * 3 * 8 * 4


def test_a_profile_counts_what_a_comparison_compares():
    x = tp.ones(10, "float64")
    plan = tp.freeze(lambda x: tp.isfinite(tp.exp(x)), x)
    assert plan.flops == 10 * (_roofline.element_cost("exp", False) + _roofline.element_cost("isfinite", False))


def bad_calls():
    plan = tp.freeze(loss, W, X)
    wide = tp.ones((8, 5))
    w = tp.ones(3, requires_grad=True)
    moved = tp.freeze(lambda x: (x * w).detach(), tp.ones(3))
    w.requires_grad_(False)
    plan2 = tp.freeze(lambda x, n: x * n, X, 2)
    state = tp.zeros(3)
    writes = tp.freeze(lambda x: state.assign_add(x), tp.ones(3))
    guard = tp.freeze(lambda x: x if x > 0.0 else -x, tp.tensor(1.0))
    return {
        "too few": (plan, (W,), {}),
        "too many": (plan, (W, X, X), {}),
        "a keyword": (plan, (W, X), {"z": 1}),
        "shape": (plan, (W, wide), {}),
        "dtype": (plan, (W, X.astype("float64")), {}),
        "type": (plan, (W, "x"), {}),
        "structure": (plan, (W, [X]), {}),
        "static": (plan2, (X, 3), {}),
        "a flag that has moved": (moved, (tp.ones(3),), {}),
        "what is written": (writes, (state,), {}),
        "a guard": (guard, (tp.tensor(-1.0),), {}),
    }


@pytest.mark.parametrize("name", bad_calls())
def test_bad_arguments_are_those_of_a_call(name):
    plan, args, kwargs = bad_calls()[name]
    with pytest.raises(tp.PlanError) as called:
        plan(*args, **kwargs)
    with pytest.raises(type(called.value)) as profiled:
        plan.profile(*args, **kwargs)
    assert str(profiled.value) == str(called.value)


# ---- tables


def test_the_table_has_a_row_a_step():
    p = profiled()
    head, *rows, end = str(p).splitlines()
    assert head.split("  ")[0].strip() == "" and "bound us  of bound" in head
    assert len(rows) == len(p.steps) and end.startswith(f"{len(p.steps)} steps, ")
    assert "test_profile.py" in rows[0] and "%" in rows[0]
    assert len({row.index("%") for row in rows}) == 1


def steps_for_totals():
    return [
        Step(("exp",), "float32", (4,), 1e-6, 32, 100, "a.py:1"),
        Step(("sum",), "float32", (), 5e-6, 20, 4, "a.py:2"),
        Step(("exp",), "float32", (8,), 2e-6, 64, 200, "a.py:3"),
    ]


def test_totals_by_op():
    p = Profile(steps_for_totals())
    first, second = p.by_op()
    assert (first.name, first.calls, first.seconds, first.nbytes) == ("sum", 1, 5e-6, 20)
    assert (second.name, second.calls, second.nbytes, second.flops) == ("exp", 2, 96, 300)
    assert second.seconds == pytest.approx(3e-6)
    assert second.bound == pytest.approx(p.bound(p.steps[0]) + p.bound(p.steps[2]))
    lines = str(p.by_op()).splitlines()
    assert len(lines) == 3 and lines[0].split()[:2] == ["step", "calls"] and lines[1].split()[:2] == ["sum", "1"]


# ---- files

FIELDS = {"name": str, "cat": str, "ph": str, "ts": float, "dur": float, "pid": int, "tid": int, "args": dict}


def test_the_trace_has_the_fields_of_the_format():
    p = profiled()
    trace = json.loads(p.to_chrome())
    assert set(trace) <= {"traceEvents", "displayTimeUnit", "otherData", "stackFrames", "samples", "systemTraceEvents"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    named = [e for e in trace["traceEvents"] if e["ph"] == "M"]
    assert {e["name"] for e in named} == {"process_name", "thread_name"}
    assert all(isinstance(e["args"]["name"], str) for e in named)
    events = [e for e in trace["traceEvents"] if e["ph"] != "M"]
    assert len(events) == len(p.steps)
    for e, step in zip(events, p.steps, strict=True):
        assert {key: type(value) for key, value in e.items()} == FIELDS and e["ph"] == "X"
        assert e["ts"] == pytest.approx(step.start * 1e6) and e["dur"] == pytest.approx(step.seconds * 1e6)
        args = e["args"]
        assert args["ops"].split() == list(step.ops) and args["shape"] == list(step.shape)
        assert (args["dtype"], args["bytes"], args["flops"]) == (step.dtype, step.nbytes, step.flops)
        assert args["GB/s"] == pytest.approx(step.nbytes / step.seconds / 1e9)
        assert args["of bound"] == pytest.approx(p.bound(step) / step.seconds)
        assert args["line"] == step.line
    assert trace["otherData"]["threads"] == p.threads


NAMESPACE = "{http://www.w3.org/2000/svg}"


def texts(svg):
    root = ElementTree.fromstring(svg)
    assert root.tag == NAMESPACE + "svg"
    return root, [e.text for e in root.iter(NAMESPACE + "text")]


def test_the_picture_is_xml_with_a_bar_a_step():
    p = profiled()
    root, words = texts(p.to_svg())
    groups = list(root.iter(NAMESPACE + "g"))
    assert len(groups) == len(p.steps)
    for group, step in zip(groups, p.steps, strict=True):
        _, bar = group.iter(NAMESPACE + "rect")
        assert float(bar.get("x")) >= _timeline._LEFT and float(bar.get("width")) >= 1.0
        assert float(bar.get("x")) + float(bar.get("width")) <= _timeline._WIDTH - _timeline._RIGHT + 1.01
        assert f"{step.nbytes} bytes" in group.find(NAMESPACE + "title").text
    assert p._repr_svg_() == p.to_svg()
    assert any(word.startswith("loss: ") for word in words)


def test_names_of_a_user_cannot_break_a_file():
    odd = '<&>"\x00\x1b\udcff\U0001f600' + "'"
    p = Profile([Step((odd,), "float32", (1,), 1e-6, 4, 1, f"{odd}.py:1")], name=odd)
    _, words = texts(p.to_svg())
    assert words[0].startswith('<&>"\ufffd\ufffd\ufffd\U0001f600' + "'")
    (event,) = (e for e in json.loads(p.to_chrome())["traceEvents"] if e["ph"] == "X")
    assert event["name"] == odd
    assert odd in str(p)


def test_colours_go_from_red_to_green():
    assert _timeline._colour(0.0).startswith("hsl(0,") and _timeline._colour(1.0).startswith("hsl(120,")
    assert _timeline._colour(7.0) == _timeline._colour(1.0) and _timeline._colour(0.5).startswith("hsl(60,")


def test_a_long_profile_shows_the_longest_steps():
    steps = [Step((f"op{n}",), "float32", (), (n % 100 + 1) * 1e-6, 4, 1, "", n * 1e-4) for n in range(500)]
    p = Profile(steps)
    _, words = texts(p.to_svg())
    shown = [w for w in words if w.startswith("op")]
    assert len(shown) == _timeline.ROWS and shown[0] == "op88" and shown[-1] == "op499"
    assert f"and {500 - _timeline.ROWS} shorter steps" in words[-1]


def test_an_empty_profile_is_one_too(tmp_path):
    p = Profile()
    assert str(p).splitlines()[-1] == "0 steps, 0.0 us" and p.by_op() == []
    assert texts(p.to_svg())[1][0] == "plan: 0 steps, 0.0 us"
    assert [e["ph"] for e in json.loads(p.to_chrome())["traceEvents"]] == ["M", "M"]


def test_files_by_their_endings(tmp_path):
    p = profiled()
    for ending, text in ((".json", p.to_chrome()), (".svg", p.to_svg()), (".txt", f"{p}\n"), (".JSON", p.to_chrome())):
        path = tmp_path / f"profile{ending}"
        p.save(path)
        assert path.read_text(encoding="utf-8") == text
        p.save(str(path))
    p = Profile([Step(("\udcff",), "", (), 1e-6, 0, 0, "")])
    for ending in (".json", ".svg", ".txt"):
        p.save(tmp_path / f"odd{ending}")


@pytest.mark.parametrize("name", ["profile.png", "profile", "json", ".json.gz"])
def test_an_ending_that_is_not_known(name, tmp_path):
    path = tmp_path / name
    with pytest.raises(tp.PlanError, match=r"may end in \.json, \.svg, \.txt"):
        Profile().save(path)
    assert not path.exists()


def test_a_share_is_a_number_whatever_was_measured():
    p = Profile([Step(("exp",), "float32", (4,), 0.0, 32, 100, "")])
    (event,) = (e for e in json.loads(p.to_chrome())["traceEvents"] if e["ph"] == "X")
    assert all(math.isfinite(event["args"][key]) for key in ("GB/s", "GFLOP/s", "of bound"))
    assert "nan" not in str(p) and np.isfinite(p.by_op()[0].bound)
