"""Plans where a recording or a replay could go wrong unseen: modes, failures, interrupts, threads, fork, files."""

import hashlib
import subprocess
import sys
import warnings

import numpy as np
import pytest
from helpers import assert_same

import tapeflow as tp
from tapeflow import _core
from tapeflow.plan import files, passes
from tapeflow.plan import schedule as sched
from tapeflow.transforms import flatten


@pytest.fixture(autouse=True)
def verified(monkeypatch):
    monkeypatch.setattr(passes, "VERIFY", True)
    yield
    _core.disturb_runs()


# ---- modes ----


def dropout_model(seed):
    rng = tp.random.Generator(seed)
    layer = tp.nn.Linear(4, 3, generator=tp.random.Generator(1))
    return tp.nn.Sequential(layer, tp.nn.Dropout(0.5, generator=rng)), rng


def test_train_and_eval_have_plans_of_their_own():
    model, rng = dropout_model(5)
    eager, other = dropout_model(5)
    x = tp.random.Generator(2).normal(shape=(6, 4))
    f = tp.function(lambda x: model(x).detach())
    modes = (True, True, False, False, True, False, True)
    for training in modes:
        model.train(training)
        eager.train(training)
        assert_same(f(x), eager(x).detach())
        assert rng.state == other.state
    assert len(f.plans) == 2
    assert rng.state == (5, sum(modes))


def test_the_mode_of_one_module_of_several_counts():
    a, b = tp.nn.Dropout(0.5, generator=tp.random.Generator(1)), tp.nn.Dropout(0.5, generator=tp.random.Generator(2))
    f = tp.function(lambda x: a(x) + b(x))
    x = tp.ones(64)
    drawn = lambda: (a.generator.state[1], b.generator.state[1])  # noqa: E731
    f(x)
    a.eval()
    f(x), f(x)
    assert drawn() == (1, 3)
    b.eval()
    assert_same(f(x), x + x)
    a.train()
    f(x), f(x)
    assert drawn() == (3, 3)
    assert len(f.plans) == 4


def test_grad_mode_and_default_dtype_have_plans_of_their_own():
    w = tp.tensor([1.0, 2.0], requires_grad=True)
    f = tp.function(lambda x: tp.sum(x * w) * tp.ones(2))
    x = tp.tensor([3.0, 4.0])
    for _ in range(2):
        with tp.no_grad():
            assert_same(f(x), tp.full(2, 11.0))
        w.grad = None
        f(x).sum().backward()
        assert w.grad.tolist() == [6.0, 8.0]
    assert len(f.plans) == 1
    make = tp.function(lambda: tp.ones(2) / 3)
    before = tp.get_default_dtype()
    try:
        for dtype in ("float32", "float64") * 2:
            tp.set_default_dtype(dtype)
            assert make().dtype == np.dtype(dtype)
    finally:
        tp.set_default_dtype(before)
    assert len(make.plans) == 2


def test_a_churning_mode_is_named():
    layer = tp.nn.Dropout(0.5, generator=tp.random.Generator(1))
    x = tp.ones(3)
    f = tp.function(lambda x: layer(x), max_plans=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(8):
            tp.nn.Dropout(0.5).eval()  # every new module that is switched is another set of modes
            f(x)
    assert ["train or eval is another at each call" in str(w.message) for w in caught] == [True]
    assert len(f.plans) <= 2


# ---- programs with a world around them ----

X = tp.random.Generator(7).normal(shape=(8, 4))
LABELS = tp.tensor([0, 1, 2, 0, 1, 2, 0, 1])


def adam_and_dropout():
    rng = tp.random.Generator(3)
    first, last = (tp.nn.Linear(*sizes, generator=tp.random.Generator(k)) for k, sizes in enumerate([(4, 5), (5, 3)]))
    model = tp.nn.Sequential(first, tp.nn.Tanh(), tp.nn.Dropout(0.5, generator=rng), last)
    optimizer = tp.optim.Adam(model.parameters(), lr=0.01)

    def step(x, labels):
        loss = tp.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, (X, LABELS)


def accumulated_grads():
    w, b = tp.tensor([1.0, -2.0, 3.0, 0.5], requires_grad=True), tp.tensor(0.5, requires_grad=True)

    def f(x):
        tp.sum(tp.tanh(x @ w + b)).backward()
        return tp.sum(x)

    return f, (X,)


def halved_grads():
    w = tp.ones(4, requires_grad=True)

    def f(x):
        (x @ w).sum().backward()
        w.grad *= 0.5
        return x * w.grad

    return f, (X,)


def asks_for_a_grad():
    w = tp.ones(4, requires_grad=True)

    def f(x):
        if w.grad is None:
            return x * 3.0
        total = w.grad * 2.0
        w.grad = None
        return x * total

    return f, (X,)


def draws_of_two_generators():
    rng = tp.random.Generator(11)
    total = tp.zeros(4)

    def f(x):
        noise = rng.normal(shape=(4,)) + tp.random.uniform(shape=(4,))
        total.assign_add(noise)
        return x * noise + rng.bernoulli(0.5, (4,)), rng.integers(9, shape=(3,)), tp.random.permutation(x)

    return f, (X,)


def a_seed_inside():
    rng = tp.random.Generator(12)

    def f(x):
        before = rng.normal(shape=(4,))
        rng.state = (2**64 - 1, 5)
        tp.random.manual_seed(9)
        return x + rng.normal(shape=(4,)) * before + tp.random.normal(shape=(4,))

    return f, (X,)


def scalars():
    w, rate = tp.tensor(2.0, requires_grad=True), tp.tensor(0.1)

    def f(x, y):
        g = tp.grad(lambda w: (tp.sin(w * x) - y) ** 2)(w)
        with tp.no_grad():
            w.assign_sub(rate * g)
            rate.assign(rate * 0.9)
        return g, w * 2.0 > g

    return f, (tp.tensor(0.3), tp.tensor(0.7))


def guarded():
    count = tp.tensor(0)
    w = tp.tensor([1.0, 2.0])

    def f(x):
        count.assign_add(1)
        w.assign(w * 0.5 + x)
        return w[0] * 2 if w[1] > 0 else w[1]

    return f, (tp.tensor([0.25, 0.5]),)


WORLDS = {
    f.__name__: f
    for f in (
        adam_and_dropout,
        accumulated_grads,
        halved_grads,
        asks_for_a_grad,
        draws_of_two_generators,
        a_seed_inside,
        scalars,
        guarded,
    )
}


# ---- files and text ----

OBSERVED = """
import numpy as np
import tapeflow as tp
from tapeflow.transforms import flatten

def outside(plan):
    yield from (("state", name, t.numpy()) for name, t in plan.state.items())
    yield from (("grad", name, t.grad.numpy()) for name, t in plan.state.items() if t.grad is not None)
    yield from (("generator", name, np.array(g.state, np.uint64)) for name, g in plan.generators.items())

def observed(plan, args, runs=3):
    tp.random.manual_seed(21)
    found = []
    for _ in range(runs):
        found += [("result", "", t.numpy()) for t in flatten(plan(*args))[0]]
        found += list(outside(plan))
    return {f"{n} {kind} {name} {x.dtype}{x.shape}": x.copy() for n, (kind, name, x) in enumerate(found)}
"""
SCOPE = {}
exec(OBSERVED, SCOPE)
observed, outside = SCOPE["observed"], SCOPE["outside"]


def assert_observed(got, want):
    assert list(got) == list(want)
    for name in want:
        assert np.asarray(got[name]).tobytes() == np.asarray(want[name]).tobytes(), name


def world(name, runs=0):
    """A plan of a program, after some runs, and its arguments."""
    f, args = WORLDS[name]()
    for _ in range(runs):
        f(*args)
    return tp.freeze(f, *args), args


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
        with pytest.raises(tp.PlanError, match=r"was empty when .*test_plans_safety\.py:\d+"):
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


# ---- what fails leaves everything as it was ----


def snapshot(plan, *more):
    """The bits of what is outside of a plan, and of more tensors and arrays."""
    tp_random = ("generator", "default", np.array(tp.random.default_generator.state, np.uint64))
    found = [*outside(plan), tp_random, *(("out", n, np.asarray(x)) for n, x in enumerate(more))]
    return [(kind, name, x.tobytes()) for kind, name, x in found]


def ways_to_run(plan, args):
    """How a plan is run, and the tensors and arrays that a run is to write."""
    like = [(v.shape, files.DTYPES[v.dtype]) for v in (plan._ir.values[k] for k in plan._ir.outputs)]
    tensors = [tp.full(shape, 7, dtype=dtype) for shape, dtype in like]
    arrays = [np.full(shape, 7, dtype) for shape, dtype in like]
    return {
        "call": (lambda: plan(*args), []),
        "run": (lambda: plan.run(*args, out=tensors), tensors),
        "bind": (plan.bind(*args), []),
        "bind into": (plan.bind(*args, out=arrays), arrays),
    }


@pytest.mark.parametrize("way", ["call", "run", "bind", "bind into"])
@pytest.mark.parametrize("name", WORLDS)
def test_a_failure_at_any_step_changes_nothing(name, way):
    """Captured tensors, .grad, generators and out= are as they were; the next run has the bits of eager."""
    eager, _ = WORLDS[name]()
    f, args = WORLDS[name]()
    plan, twin = tp.freeze(f, *args), tp.freeze(eager, *args)
    run, written = ways_to_run(plan, args)[way]
    steps = 0
    for step in range(10_000):
        before = snapshot(plan, *written)
        _core.disturb_runs(fail_at=step)
        try:
            run()
        except MemoryError:
            assert snapshot(plan, *written) == before, f"step {step}"
            steps += 1
        else:
            break
        finally:
            _core.disturb_runs()
        got = run_and_look(step, run, plan)
        want = run_and_look(step, lambda: eager(*args), twin)
        assert got == want, f"after a failure at step {step}"
        if way in ("run", "bind into"):
            assert [np.asarray(x).tobytes() for x in written] == want[0]
    assert steps > len(plan._nodes)  # every instruction, and the commit


def run_and_look(seed, run, plan):
    tp.random.manual_seed(seed)
    results = [np.asarray(t.numpy() if isinstance(t, tp.Tensor) else t).tobytes() for t in flatten(run())[0]]
    return results, snapshot(plan)


def test_a_guard_an_index_and_a_shape_leave_generators_and_grads():
    rng = tp.random.Generator(1)
    w = tp.ones(3, requires_grad=True)

    def f(x, i):
        tp.sum(w * x * rng.uniform(shape=(3,))).backward()
        y = tp.take(x, i)
        return y * 2 if x[0] > 0 else y

    x, i = tp.ones(3), tp.tensor([0, 2])
    plan = tp.freeze(f, x, i)
    plan(x, i)
    before = snapshot(plan)
    for args, error in (((-x, i), tp.PlanError), ((x, i + 1), IndexError), ((tp.ones(4), i), tp.PlanError)):
        with pytest.raises(error):
            plan(*args)
        assert snapshot(plan) == before
    assert rng.state == (1, 1)


def test_a_target_that_cannot_be_written_is_refused_before_the_run():
    count = tp.tensor(0.0)
    leaf = tp.zeros(2, requires_grad=True)

    def f(x):
        count.assign_add(1.0)
        return x + count, x * 2

    plan = tp.freeze(f, tp.ones(2))
    good = tp.zeros(2)
    for bad in (leaf, tp.zeros(3), tp.zeros(2, dtype="float64"), np.zeros(2), None):
        for out in ((good, bad), (bad, good)):
            with pytest.raises((tp.PlanError, tp.TapeError)):
                plan.run(tp.ones(2), out=out)
            assert float(count) == 0 and good.tolist() == [0.0, 0.0]
    with tp.no_grad():
        plan.run(tp.ones(2), out=(good, leaf))
    assert float(count) == 1 and leaf.tolist() == [2.0, 2.0] and leaf.requires_grad and good.tolist() == [2.0, 2.0]


# ---- memory that holds anything before ----


class Outputs(_core.Runner):
    def _result(self, outputs):
        return outputs


def test_the_poison_is_real():
    """A copy of a range that nothing has written shows it."""
    slots = [(sched.SLOT_ARENA, 4, (3,), None, None, 0), (sched.SLOT_FRESH, 4, (3,), None, None, 0)]
    slots += [(sched.SLOT_FRESH, 1, (2,), None, None, 0)]  # and nothing writes this one
    copy = (sched.DO_COPY, 0, None, (0,), 1, None)
    executable = _core.Executable(64, slots, [copy], [], [1, 2], [], [], [])
    _core.disturb_runs(poison=True)
    runner = Outputs()
    runner._prepare(executable, 0, 2)
    floats, integers = runner()
    assert np.isnan(floats.numpy()).all() and integers.tolist() == [255, 255]


@pytest.mark.parametrize("name", WORLDS)
def test_poisoned_memory_shows_nowhere(name):
    """(The tests of test_plans.py run so, all of them.)"""
    eager, _ = WORLDS[name]()
    f, args = WORLDS[name]()
    for passes_, memory in ((None, True), ((), True), (None, False)):
        plan, twin = (tp.freeze(g, *args, passes=passes_, plan_memory=memory) for g in (f, eager))
        for seed in range(3):
            _core.disturb_runs(poison=True)
            got = run_and_look(seed, lambda plan=plan: plan(*args), plan)
            _core.disturb_runs()
            assert got == run_and_look(seed, lambda: eager(*args), twin)
            if name == "asks_for_a_grad":
                for p in (plan, twin):
                    for t in p.state.values():
                        t.grad = None
