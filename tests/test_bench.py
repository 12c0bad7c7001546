"""The bench: its gate lets no wrong value through, its rounds interleave, and tapeflow passes on every workload.

The references are checked here against differences, so that they lean on nobody's gradients. Sizes are reduced; how
fast anything is, is no business of a test.
"""

import json
import math
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tapeflow as tp
from bench import cases, harness, micro, ops, peers, report
from bench.workloads import ALL

ROOT = Path(__file__).resolve().parent.parent


def square_workload(**changes):
    """sum(x x) over three numbers, with everything that a Workload has to say."""

    def formula(ns, n):
        return lambda x: ns.sum(x * x)

    settings = dict(
        name="S", title="sum of squares", make=lambda rng, n: [rng.uniform(1, 2, n)], formula=formula, leaves=1,
        reference=lambda x, n: [np.sum(x * x), 2 * x], size={"n": 3}, small={"n": 2}, peers=("tapeflow", "torch"),
    )  # fmt: skip
    return harness.Workload(**{**settings, **changes})


def fake(name="tapeflow", value=0.0, gradient=1.0, step=1.0, accumulate=False):
    """A library that squares in NumPy, wrong by what it is told."""

    def value_and_grad(f, leaves, consts):
        total = [0.0]

        def run():
            (x,) = leaves
            total[0] = (total[0] if accumulate else 0.0) + 2 * x * gradient
            return [f(x) + value, total[0]]

        return run

    def sgd(f, leaves, consts, lr):
        ps = [x.copy() for x in leaves]

        def run():
            loss = f(ps[0])
            ps[0] = ps[0] - np.float32(lr * step) * 2 * ps[0]
            return [loss, *ps]

        return run

    return peers.Peer(name, "eager", SimpleNamespace(sum=np.sum), value_and_grad, sgd)


def admitted(peer, **changes):
    w = square_workload(**changes)
    row, step = harness.admit(w, peer, "tapeflow", w.size)
    return row, step


# ---- the gate ----


def test_the_gate_lets_right_values_through():
    row, step = admitted(fake())
    assert row.status == "ok" and step is not None and row.error < 1e-6 and row.first > 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (dict(value=0.01), "value is off"),
        (dict(value=math.nan), "value is off"),
        (dict(gradient=1.001), "gradient 0 is off"),
        (dict(gradient=math.nan), "gradient 0 is off"),
        (dict(gradient=-1.0), "gradient 0 is off"),
        (dict(accumulate=True), "at the second call"),
        (dict(gradient=np.ones((1, 3), np.float32)), "gradient 0 has shape (1, 3), not (3,)"),
    ],
)
def test_the_gate_refuses_wrong_values_and_times_nothing(wrong, said):
    row, step = admitted(fake(**wrong))
    assert row.status.startswith("FAILED: ") and said in row.status
    assert step is None and row.median is None and row.first is None


@pytest.mark.parametrize(("step", "passes"), [(1.0, True), (1.01, False), (0.0, False), (-1.0, False)])
def test_a_step_of_descent_is_judged_by_where_it_went(step, passes):
    row, _ = admitted(fake(step=step), lr=0.05)
    assert (row.status == "ok") is passes, row.status


def test_a_descent_that_forgets_its_first_step_fails_at_the_second_call():
    peer = fake()
    forgetful = peers.Peer("tapeflow", "eager", peer.ns, peer.value_and_grad, lambda *a: lambda: fake().sgd(*a)())
    row, _ = admitted(forgetful, lr=0.05)
    assert "at the second call" in row.status


def test_what_else_the_gate_refuses():
    right = [np.float32(1.0), np.ones(2, np.float32)]
    assert harness.difference(right, [1.0, np.ones(2)], 1e-6) == (0.0, "")
    assert "1 results instead of 2" in harness.difference(right[:1], [1.0, np.ones(2)], 1e-6)[1]
    assert "dtype object" in harness.difference([right[0], np.array([None, None])], [1.0, np.ones(2)], 1e-6)[1]
    assert "dtype int" in harness.difference([np.array(1), right[1]], [1.0, np.ones(2)], 1e-6)[1]
    assert harness.difference([np.float32(1), np.zeros(2)], [1.0, np.zeros(2)], 1e-6)[1] == ""
    assert harness.difference([np.float32(1), np.full(2, 1e-12)], [1.0, np.zeros(2)], 1e-6)[1] != ""


def test_a_contender_that_raises_has_failed_and_one_not_installed_is_named_absent():
    def broken(ns, n):
        raise RuntimeError("no such op\nsecond line")

    row, step = admitted(fake(), formula=broken)
    assert row.status == "FAILED: RuntimeError: no such op" and step is None
    row, step = admitted("not installed")
    assert row.status == "absent: not installed" and step is None


def test_a_wider_dtype_than_the_workload_says_is_noted():
    row, _ = admitted(fake(gradient=np.float64(1.0) * np.ones(3)))
    assert row.status == "ok" and row.note == "float64"


# ---- rounds, medians, ratios ----


def test_rounds_are_interleaved_and_every_step_is_sampled():
    calls = []
    steps = {name: (lambda name=name: calls.append(name)) for name in "ab"}
    samples, numbers = harness.measure(steps, rounds=3, target=1e-5)
    assert set(samples) == {*harness.CONTROLS, "a", "b"} and all(len(s) == 3 for s in samples.values())
    tail = calls[-3 * (numbers["a"] + numbers["b"] + 2) :]
    changes = [x for i, x in enumerate(tail) if i == 0 or tail[i - 1] != x]
    assert changes == ["a", "b"] * 3


def test_a_round_on_a_busy_machine_is_repeated(monkeypatch):
    calls = [0]

    def control():  # slow in the first round
        calls[0] += 1
        time.sleep(2e-2 if calls[0] == 4 else 1e-3)

    monkeypatch.setattr(harness, "CONTROLS", {"control": control})
    samples, _ = harness.measure({"a": lambda: None}, rounds=2, target=1e-5)
    assert len(samples["a"]) == 2 and max(samples["control"]) < 1e-2


def test_calibration_fills_the_target():
    assert harness.calibrate(lambda: sum(range(1000)), 5e-2) > 10
    assert harness.calibrate(lambda: sum(range(1_000_000)), 1e-6) == 1


def test_the_ratio_is_the_median_over_rounds():
    assert harness.paired_ratio([2.0, 20.0, 6.0], [1.0, 10.0, 2.0]) == 2.0  # a slow round hits both


def test_a_run_compares_what_passed_and_is_json():
    found = {"tapeflow": fake(), "torch": fake("torch", gradient=2.0)}
    result = harness.run(square_workload(), found, rounds=2, target=1e-4)
    ours, theirs = result["rows"]
    assert ours["status"] == "ok" and ours["ratio"] == 1.0 and len(ours["samples"]) == 2
    assert ours["best"] <= ours["median"] and ours["number"] >= 1
    assert theirs["status"].startswith("FAILED") and theirs["median"] is None and theirs["samples"] == []
    assert result["goals"][0]["met"] is None  # nothing to compare with
    assert json.loads(json.dumps(result)) == result
    text = report.workload(result)
    assert "FAILED: gradient 0" in text and len({len(x) for x in text.splitlines() if x.startswith("|")}) == 1


def test_goals_are_judged_by_what_was_measured():
    w = square_workload(vs_torch=15, us_per_op=0.25, ops=1000, aim=1e-3, aim_frozen=1e-4)
    rows = {
        "tapeflow": harness.Row("tapeflow", median=2e-4, samples=[2e-4, 1e-4]),
        "tapeflow-frozen": harness.Row("tapeflow-frozen", "compiled", median=5e-5),
        "torch": harness.Row("torch", median=4e-3, samples=[4e-3, 4e-3]),
    }
    ratio, per_op, aim, frozen = harness.goals(w, rows)
    assert ratio["measured"] == pytest.approx(30) and ratio["met"] is True
    assert per_op["measured"] == pytest.approx(0.2) and per_op["met"] is True
    assert aim["met"] is None and frozen["met"] is None
    assert aim["measured"] == pytest.approx(0.2) and frozen["measured"] == pytest.approx(0.05)
    assert harness.goals(w, {})[1]["measured"] is None


def test_a_busy_machine_is_said_and_spoils_its_verdicts():
    controls = [{name: [1.0, t, t] for name in harness.CONTROLS} for t in (1.0, 3.0)]
    goal = dict(what="ratio", limit=1.0, at_least=True, measured=2.0, unit="x", met=True)
    results = [{"name": f"W{i}", "controls": c, "goals": [goal]} for i, c in enumerate(controls)]
    busy = harness.busy(results)
    assert all(names == ["W1"] for names in busy.values())
    lines = report.goals(results, [], busy).splitlines()
    assert lines[-2].count("machine busy") == 0 and lines[-1].count("machine busy (met)") == 1
    assert "busy during W1" in report.controls(results, busy)


def test_a_busy_core_is_shown_beside_the_quiet_times(monkeypatch):
    burning = []

    @contextmanager
    def busy_core():
        burning.append(True)
        yield
        burning.pop()

    def step():
        time.sleep(4e-2 if burning else 2e-3)
        return fake().value_and_grad(lambda x: np.sum(x * x), square_workload().arrays({"n": 3}), [])()

    monkeypatch.setattr(harness, "busy_core", busy_core)
    own = {"tapeflow": ("tapeflow", lambda *a: step)}
    w = square_workload(peers=("tapeflow", "torch"), own=own)
    result = harness.run(w, {"tapeflow": fake()}, 2, 1e-4, beside=True)
    (row,) = result["rows"]
    assert row["slower"] > 3 and row["beside"] >= 4e-2 and not burning
    collapsed = result["goals"][-1]
    assert collapsed["what"] == "tapeflow, beside a busy core / quiet" and collapsed["met"] is False
    text = report.workload(result)
    assert "busy / quiet" in text and len({len(x) for x in text.splitlines() if x.startswith("|")}) == 1
    quiet = harness.run(square_workload(), {"tapeflow": fake()}, rounds=1, target=1e-4)
    assert quiet["rows"][0]["slower"] is None and "busy / quiet" not in report.workload(quiet)


def test_the_burner_takes_a_core_and_goes():
    before = os.times().children_user
    with harness.busy_core():
        time.sleep(0.4)
    assert os.times().children_user - before > 0.1  # it was waited for, so it is gone


def test_a_workload_is_ahead_by_the_fastest_compiled_peer():
    w = square_workload(ahead=0.95, vs_torch=None, ratios=[("torch / tapeflow", "torch", "tapeflow", 1, True)])
    rows = {
        name: harness.Row(name, kind, samples=[t, t])
        for name, kind, t in (
            ("tapeflow-frozen", "compiled", 1.0), ("tapeflow-frozen-fast", "compiled", 0.1), ("torch", "eager", 0.5),
            ("jax", "compiled", 0.97), ("casadi", "compiled", 2.0),
        )
    }  # fmt: skip
    goal = harness.goals(w, rows)[-1]
    assert goal["what"] == "best compiled / frozen" and goal["measured"] == pytest.approx(0.97) and goal["met"]


# ---- the workloads ----


@pytest.mark.parametrize("name", [name for name in ALL if name != "W18"])
def test_the_reference_agrees_with_differences(name):
    w = ALL[name]
    arrays = [a.astype(float) if a.dtype.kind == "f" else a for a in w.arrays(w.small)]
    _, *grads = w.reference(*arrays, **w.small)
    rng, h = np.random.default_rng(1), 1e-5
    for i, g in enumerate(grads):
        direction = rng.normal(size=arrays[i].shape)

        def value(t, i=i, direction=direction):
            moved = [*arrays[:i], arrays[i] + t * direction, *arrays[i + 1 :]]
            return float(np.sum(w.reference(*moved, **w.small)[0]))

        slope = (8 * (value(h) - value(-h)) - (value(2 * h) - value(-2 * h))) / (12 * h)
        assert np.sum(g * direction) == pytest.approx(slope, rel=1e-6, abs=1e-8), f"gradient {i}"


def test_the_reference_of_the_jacobian_agrees_with_differences():
    w = ALL["W18"]
    x, a, b = w.arrays(w.small)
    (jacobian,) = w.reference(x, a, b, **w.small)
    f = w.formula(np, **w.small)
    for column, e in zip(jacobian.T, 1e-6 * np.eye(len(x))):
        assert column == pytest.approx((f(x + e, a, b) - f(x - e, a, b)) / 2e-6, rel=1e-7, abs=1e-9)


OURS = [(name, c) for name, w in ALL.items() for c in w.peers if c.startswith("tapeflow")]


@pytest.mark.parametrize(("name", "contender"), OURS)
def test_tapeflow_passes_the_gate(name, contender):
    w = ALL[name]
    peer = peers.load(w.needs(contender), tp.get_num_threads())
    assert not isinstance(peer, str), peer
    row, step = harness.admit(w, peer, contender, w.small)
    assert row.status == "ok" and row.note == "" and step is not None, row.status


def test_a_contender_of_its_own_is_compared_and_judged_by_its_ratio():
    def times(factor):
        return lambda peer, arrays, size: lambda: [np.sum(arrays[0] ** 2), factor * arrays[0]]

    own = {name: ("tapeflow", times(factor)) for name, factor in (("once", 2), ("wrong", 3))} | {
        "absent": ("no such library", times(2)),
        "slow": ("tapeflow", lambda *a: lambda: (time.sleep(1e-4), times(2)(*a)())[1]),
    }
    ratios = [(f"{x} / once", x, "once", 2, least) for x in ("slow", "wrong", "absent") for least in (True, False)]
    w = square_workload(peers=tuple(own), own=own, base="once", vs_torch=None, ratios=ratios)
    result = harness.run(w, {"tapeflow": fake()}, rounds=2, target=1e-4)
    rows = {row["contender"]: row for row in result["rows"]}
    assert rows.keys() == own.keys() - {"absent"} and "gradient 0" in rows["wrong"]["status"]
    assert rows["once"]["ratio"] == 1.0 and rows["slow"]["ratio"] > 2
    assert [g["met"] for g in result["goals"]] == [True, False, None, None, None, None]
    assert result["goals"][0]["measured"] == pytest.approx(rows["slow"]["ratio"])


def test_every_workload_names_known_peers_and_is_timed_against_torch():
    names = "W1 W2 W3 W3s W4 W4s W5 W6 W8 W9 W10 W11 W12 W13 W14 W15 W16 W17 W18"
    assert list(ALL) == names.split()
    for w in ALL.values():
        assert set(map(w.needs, w.peers)) <= set(peers.PEERS)
        assert set(w.special) <= set(w.peers) and set(w.own) <= set(w.peers) and w.peers[0] == w.base
        assert w.ratios or (w.base == "tapeflow" and w.vs_torch and "torch" in w.peers)
        assert {name for _, over, under, _, _ in w.ratios for name in (over, under)} <= set(w.peers)


@pytest.mark.parametrize("name", ["chain", "losses", "memory"])
def test_the_limits_run(name, monkeypatch):
    monkeypatch.setattr(micro, "CHAIN", 1000)
    result = micro.LIMITS[name]("tapeflow")
    assert all(isinstance(v, float) for v in result.values())


def test_the_peak_of_memory_counts_what_was_freed():
    if math.isnan(micro._peak()):
        pytest.skip("this system tells no peak")
    before = micro._rss()
    np.ones(4_000_000)
    assert 25 < micro._peak() - before < 60
    assert micro._peak() - before < 25
    for lib in ("tapeflow", "tapeflow-frozen"):
        assert 0 <= micro.block_memory(lib, small=True)["peak_mib"] < 25
        assert 0 <= micro.elementwise_memory(lib, small=True)["peak_mib"] < 25


# ---- every function beside NumPy's ----


@pytest.fixture(scope="module")
def held():
    """The operands of tapeflow, of NumPy, and of NumPy in float64, of 16 elements."""
    return ops.pools(16, "float32", list(ops.pool(16, "float32")))


def test_every_public_function_is_compared_or_named_as_without_counterpart():
    public = {name: getattr(tp, name) for name in tp.__all__}
    functions = {n: f for n, f in public.items() if callable(f) and not isinstance(f, type)}
    compared = [f for n, f in functions.items() if n in cases.CASES]
    reached = {n for n, f in functions.items() if f in compared}  # under other names, too
    assert functions.keys() - reached - cases.WITHOUT_COUNTERPART == set()
    assert reached & cases.WITHOUT_COUNTERPART == set()
    assert functions.keys() >= cases.WITHOUT_COUNTERPART and cases.CASES.keys() <= public.keys()
    for name, calls in cases.CASES.items():
        for call in calls:
            assert name == "Tensor" or ops.spelled(call)[0].startswith(f"m.{name}("), call


def test_every_small_call_agrees_with_numpy(monkeypatch):
    monkeypatch.setattr(harness, "CONTROLS", {"control": lambda: None})
    pytest.importorskip("scipy")
    rows, meanwhile = ops.run(sizes={"small": 16}, limit=1)
    assert [m["name"] for m in meanwhile] == ["small float32", "small float64"]
    assert all(len(m["controls"]["control"]) > 5 for m in meanwhile)
    assert [f"{r['call']}: {r['status']}" for r in rows if r["status"] != "ok"] == []
    assert {r["name"] for r in rows} == cases.CASES.keys()
    assert all(r["ratio"] > 0 and r["ours"] > 0 and r["theirs"] > 0 for r in rows)
    both = [{r["call"] for r in rows if r["dtype"] == dtype} for dtype in ops.DTYPES]
    assert both[0] - both[1] >= {"m.bitwise_and(i, j)", "m.nonzero(b)"} and "m.sum(x)" in both[1]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("m.sin(x)", "m.cos(x)"), "off by"),
        (("m.argsort(d)", "m.argsort(-d)"), "elements differ"),
        (("m.sum(X, axis=0)", "m.sum(X)"), "of shape"),
        (("m.sin(x)", "m.isnan(x)"), "of shape"),
        (("x.sum()", "(x, x)"), "1 results, not 2"),
        (("m.no_such(x)", "x"), "AttributeError"),
        (("t[1] = 0.5", "t[1] = 0.25"), "off by"),
        (("m.result_type(x, y)", "m.result_type(i, j)"), "float32, not int64"),
        (("m.log(-p)", "m.log(p)"), "off by"),
    ],
)
def test_a_call_with_another_result_is_not_timed(held, call, said):
    row = ops.compare("f", call, held, "small", "float32", 1)
    assert row["status"].startswith("FAILED: ") and said in row["status"], row["status"]
    assert row["ratio"] is None


def test_a_row_says_who_is_faster_and_what_is_a_view(held):
    slow = ops.compare("f", ("x + x + x + x + x + x + x + x + x", "x + 1.0"), held, "small", "float32", 9)
    assert "FAILED" in slow["status"]
    fast = ops.compare("f", ("x + 1.0", "x + 1.0 + 0.0 + 0.0 + 0.0 + 0.0 + 0.0 + 0.0"), held, "small", "float32", 9)
    assert fast["ratio"] > 1.5 and fast["quiet"] > 1.5 and not fast["view"]
    assert ops.compare("f", "X.T", held, "small", "float32", 1)["view"]
    rows = [{**fast, "ratio": 4.0}, {**fast, "ratio": 1.0, "view": True}, {**fast, "ratio": None, "status": "FAILED"}]
    (total,) = ops.summary(rows)
    assert total["geometric_mean"] == pytest.approx(2.0) and total["without_views"] == pytest.approx(4.0)
    assert (total["below"], total["rows"], total["not_timed"]) == (1, 2, 1)
    table = [line for line in ops.markdown(rows).splitlines() if line.startswith("| `")]
    assert ["FAILED" in table[0], "1.00" in table[1], "4.00" in table[2]] == [True] * 3


# ---- the command ----


def command(*args):
    return subprocess.run([sys.executable, "-m", "bench", *args], cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_the_command_measures_and_names_who_is_absent(tmp_path):
    out = tmp_path / "out.json"
    done = command("--quick", "--repeat", "1", "--only", "w3s,W9", "--peers", "none", "--json", str(out))
    assert done.returncode == 0, done.stderr
    assert "## W3s" in done.stdout and "## Goals" in done.stdout
    data = json.loads(out.read_text())
    assert [w["name"] for w in data["workloads"]] == ["W3s", "W9"] and data["micro"] == []
    assert data["workloads"][0]["rows"][0]["median"] > 0
    for key in ("date", "commit", "cpu", "cpus", "threads", "python", "numpy", "versions", "rounds"):
        assert key in data["meta"]


def test_the_command_compares_functions(tmp_path):
    out = tmp_path / "out.json"
    done = command("--ops", "--quick", "--only", "sum,isnan", "--json", str(out))
    assert done.returncode == 0, done.stderr + done.stdout
    data = json.loads(out.read_text())
    assert len(data["ops"]) == 2 * 2 * (3 + 1) and {r["name"] for r in data["ops"]} == {"sum", "isnan"}
    assert data["meta"]["cpu"] and data["meta"]["date"] and data["meta"]["commit"] != ""
    assert "`tp.sum(X, axis=0)`" in done.stdout and "### Small: 16 elements" in done.stdout
    assert "Control, one thread: " in done.stdout and data["busy"].keys() == harness.CONTROLS.keys()


def test_the_command_refuses_what_it_does_not_know():
    done = command("--only", "W99")
    assert done.returncode != 0 and "unknown workloads: w99" in done.stderr
    assert "W10" in command("--list").stdout


def test_an_absent_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mygrad", None)
    assert isinstance(peers.load("mygrad", 2), str)
    assert "ABSENT" in report.head(
        {**harness.machine(2, ["numpy"]), "versions": {"mygrad": None}, "rounds": 1, "target": 1.0}
    )


def test_settings_that_slow_blas_are_warned_of(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert any("OPENBLAS_CORETYPE" in w for w in harness.machine(2, [])["warnings"])
