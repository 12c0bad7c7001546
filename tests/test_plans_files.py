"""Saved plans and plans as text: they go on as the plan does, anywhere; what is damaged is refused."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from worlds import OBSERVED, WORLDS, accumulated_grads, asks_for_a_grad, observed, world

import tapeflow as tp
from tapeflow.plan import files, passes


@pytest.fixture(autouse=True)
def verified(monkeypatch):
    monkeypatch.setattr(passes, "VERIFY", True)


def assert_observed(got, want):
    assert list(got) == list(want)
    for name in want:
        assert np.asarray(got[name]).tobytes() == np.asarray(want[name]).tobytes(), name


@pytest.mark.parametrize("runs", [0, 2])
@pytest.mark.parametrize("name", WORLDS)
def test_a_saved_plan_goes_on_as_the_plan_does(name, runs, tmp_path):
    plan, args = world(name, runs)
    plan.save(tmp_path / "a.plan")
    loaded = tp.load_plan(tmp_path / "a.plan")
    loaded.save(tmp_path / "b.plan")
    read = [tp.parse_plan(str(plan)), tp.parse_plan(str(loaded)), tp.load_plan(tmp_path / "b.plan")]
    for other in read:
        assert str(other) == str(plan)
        assert [i.op for i in other.instructions] == [i.op for i in plan.instructions]
    want = observed(plan, args)
    for other in (loaded, *read):
        assert_observed(observed(other, args), want)


ELSEWHERE = (
    OBSERVED
    + """
import sys
for name in sys.argv[2:]:
    args = np.load(f"{sys.argv[1]}/{name}.args.npz")
    plan = tp.load_plan(f"{sys.argv[1]}/{name}.plan")
    np.savez(f"{sys.argv[1]}/{name}.npz", **observed(plan, [args[k] for k in args]))
"""
)


def test_a_saved_plan_runs_where_its_code_is_not(tmp_path):
    want = {}
    for name in WORLDS:
        plan, args = world(name, 1)
        plan.save(tmp_path / f"{name}.plan")
        np.savez(tmp_path / f"{name}.args.npz", *[x.numpy() for x in args])
        want[name] = observed(plan, args)
    command = [sys.executable, "-I", "-c", ELSEWHERE, str(tmp_path), *WORLDS]
    command[1:2] = []  # the package may be found by PYTHONPATH
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for name in WORLDS:
        with np.load(tmp_path / f"{name}.npz") as got:
            assert_observed({key: got[key] for key in got}, want[name])


def test_grads_of_a_loaded_plan_can_be_emptied_and_set(tmp_path):
    f, args = accumulated_grads()
    plan = tp.freeze(f, *args)
    plan(*args)
    plan.save(tmp_path / "a.plan")
    loaded = tp.load_plan(tmp_path / "a.plan")
    assert all(t.requires_grad and t.is_leaf and t.grad is not None for t in loaded.state.values())
    for p in (plan, loaded):
        w, b = p.state.values()
        w.grad = None
        b.grad = tp.tensor(10.0)
    assert_observed(observed(loaded, args), observed(plan, args))


def test_a_grad_guard_of_a_loaded_plan_names_the_line(tmp_path):
    f, args = asks_for_a_grad()
    plan = tp.freeze(f, *args)
    plan.save(tmp_path / "a.plan")
    for again in (tp.load_plan(tmp_path / "a.plan"), tp.parse_plan(str(plan))):
        (w,) = again.state.values()
        again(*args)
        w.grad = tp.ones(4)
        with pytest.raises(tp.PlanError, match=r"was empty when .*worlds\.py:\d+"):
            again(*args)
        assert w.grad.tolist() == [1.0] * 4
        w.grad = None
        again(*args)


def test_generators_of_a_loaded_plan(tmp_path):
    """Own ones are the plan's and go on where they were; the default one is that of the process."""
    rng = tp.random.Generator(4)
    f = lambda: (rng.uniform(shape=(3,)), tp.random.uniform(shape=(3,)))  # noqa: E731
    f()
    plan = tp.freeze(f)
    plan.save(tmp_path / "a.plan")
    loaded = tp.load_plan(tmp_path / "a.plan")
    assert list(loaded.generators) == list(plan.generators) == ["generator0", "default_generator"]
    assert loaded.generators["default_generator"] is tp.random.default_generator
    mine = loaded.generators["generator0"]
    assert mine is not rng and mine.state == rng.state == (4, 1)
    tp.random.manual_seed(1)
    want = f()
    tp.random.manual_seed(1)
    got = loaded()
    assert all(a.tolist() == b.tolist() for a, b in zip(got, want, strict=True))
    assert mine.state == rng.state == (4, 2)
    mine.state = (4, 0)
    assert loaded()[0].tolist() == tp.random.Generator(4).uniform(shape=(3,)).tolist()


def test_elements_in_text_are_exact():
    odd = np.array([0.1, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1.7976931348623157e308, 1 / 3])
    odd = np.append(odd, np.frombuffer(bytes.fromhex("010000000000f4ff"), "<f8"))  # a nan with a sign and a payload
    pieces = [tp.tensor(odd), tp.tensor(odd[:6].astype("float32")), tp.tensor([2**63 - 1, -(2**63)]), tp.zeros((2, 0))]
    pieces += [tp.tensor([True, False]), tp.tensor(7, dtype="uint8")]
    plan = tp.freeze(lambda: [*pieces, *[tp.asarray(host) for host in (np.array(odd), np.arange(3, dtype="int32"))]])
    for got, want in zip(tp.parse_plan(str(plan))(), plan(), strict=True):
        assert got.dtype == want.dtype and got.numpy().tobytes() == want.numpy().tobytes()


def test_text_that_is_no_plan():
    whole = str(world("adam_and_dropout")[0])
    lines = whole.split("\n")
    for n in range(len(lines)):
        for text in ("\n".join(lines[:n]), "\n".join([*lines[:n], "  nonsense", *lines[n:]])):
            with pytest.raises(tp.PlanError):
                tp.parse_plan(text)
    bad = {
        "generator 0": "generator 1",
        "draws 0 = generator 0": "draws 0 = generator 3",
        "float64[4]": "complex64[4]",
        "= random[": "= randomly[",
        "grad = %": "grad = %9",
        "return %": "return %9",
        "0x1p-1": "0x1p-1 0x1p-1",
        "0x1p+1": "0x1p",
    }
    for old, new in bad.items():
        assert old in whole
        with pytest.raises(tp.PlanError):
            tp.parse_plan(whole.replace(old, new, 1))
    large = tp.zeros(65)
    with pytest.raises(tp.PlanError, match="do not stand in the text"):
        tp.parse_plan(str(tp.freeze(lambda x: x + large, tp.zeros(65))))


def sealed(data):
    return data + hashlib.sha256(data).digest()


def test_a_newer_file_names_both_versions(tmp_path):
    path = tmp_path / "a.plan"
    tp.freeze(lambda x: x + 1.0, tp.ones(2)).save(path)
    body = path.read_bytes()[:-32]
    n = len(files.MAGIC)
    newer = body[:n] + (files.VERSION + 1).to_bytes(4, "little") + body[n + 4 :]
    for data in (sealed(newer), newer + bytes(32)):  # whatever the newer one has at its end
        path.write_bytes(data)
        with pytest.raises(tp.PlanError, match=rf"version {files.VERSION + 1}, this tapeflow reads {files.VERSION}"):
            tp.load_plan(path)


def test_a_damaged_file_is_refused_wherever_it_is_damaged(tmp_path):
    """Cut at every length, and with every byte changed: none loads."""
    path = tmp_path / "a.plan"
    w = tp.tensor([1.0, 2.0], requires_grad=True)

    def f(x):
        tp.sum(x * w).backward()
        return tp.dropout(x, 0.5)

    tp.freeze(f, tp.ones(2)).save(path)
    data = path.read_bytes()
    cases = [data[:n] for n in range(len(data))] + [data + b"0", data + data]
    for n, byte in enumerate(data):
        cases.append(data[:n] + bytes([byte ^ (0x01, 0x80, 0xFF)[n % 3]]) + data[n + 1 :])
    loaded = []
    for n, case in enumerate(cases):
        path = tmp_path / str(n)  # (to write a file anew is slow on some systems)
        path.write_bytes(case)
        try:
            loaded.append(tp.load_plan(path))
        except tp.PlanError:
            pass
    assert not loaded
    path.write_bytes(data)
    assert tp.load_plan(path)(tp.ones(2)).shape == (2,)


def test_a_header_that_is_cut_short_is_refused(tmp_path):
    """With a checksum that is right, so that the reader itself has to see it."""
    path = tmp_path / "a.plan"
    world("scalars")[0].save(path)
    body = path.read_bytes()[:-32]
    n = len(files.MAGIC)
    size = int.from_bytes(body[n + 4 : n + 12], "little")
    for cut in range(0, size, 7):
        short = body[: n + 4] + (size - cut - 1).to_bytes(8, "little") + body[n + 12 : n + 12 + size - cut - 1]
        path.write_bytes(sealed(short))
        with pytest.raises(tp.PlanError, match="does not hold a program"):
            tp.load_plan(path)
    for cut in (1, 8, len(body) - n - 12 - size):
        path.write_bytes(sealed(body[:-cut]))
        with pytest.raises(tp.PlanError, match="does not hold a program"):
            tp.load_plan(path)
