"""Plans where a recording or a replay could go wrong unseen: modes, failures, interrupts, threads, fork."""

import os
import signal
import sys
import threading
import time
import warnings
from functools import partial

import numpy as np
import pytest
from helpers import assert_same
from test_threads import forked, together
from worlds import WORLDS, run_and_look, snapshot

import tapeflow as tp
from tapeflow import _core
from tapeflow.plan import ir, passes
from tapeflow.plan import schedule as sched


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


def test_a_leaf_that_is_frozen_and_thawed():
    w, x = tp.tensor([1.0, 2.0], requires_grad=True), tp.tensor([3.0, 4.0])
    f = tp.function(lambda x: x * w)
    for flag in (True, False, True, False):
        w.requires_grad_(flag)
        for _ in range(3):
            y = f(x)
            assert y.requires_grad == flag
            assert y.tolist() == [3.0, 8.0]
    assert len(f.plans) == 1  # of the frozen leaf; the other case runs eagerly

    def step(x):
        loss = tp.sum((x * w + v) ** 2)
        loss.backward()
        return loss

    v = tp.ones(2, requires_grad=True)
    g = tp.function(step)
    for flag in (True, False, True, False):
        w.requires_grad_(flag)
        for _ in range(2):
            v.grad = w.grad = None
            g(x)
            assert v.grad.tolist() == [8.0, 18.0]
            assert (w.grad is None) if not flag else w.grad.tolist() == [24.0, 72.0]
    assert len(g.plans) == 2
    w.requires_grad_(True)
    plan = tp.freeze(step, x)
    w.requires_grad_(False)
    with pytest.raises(tp.PlanError, match="required grad when the plan was recorded and does not now"):
        plan(x)
    w.requires_grad_(True)
    u = tp.tensor(2.0, requires_grad=True)
    mapped = tp.vmap(tp.freeze(tp.grad(lambda a: a * a * u), 3.0))
    assert mapped(tp.ones(3, dtype="float64")).tolist() == [4.0, 4.0, 4.0]
    u.requires_grad_(False)
    with pytest.raises(tp.PlanError, match="required grad when the plan was recorded and does not now"):
        mapped(tp.ones(3, dtype="float64"))
    v.grad = w.grad = None
    plan(x)
    assert w.grad.tolist() == [24.0, 72.0]


def test_plans_do_not_hold_their_examples():
    before = _core.pool_info()["in_use"]
    x = tp.ones(1_000_000)
    plan = tp.freeze(lambda a: tp.sum(a[:10] * 2), x)
    f = tp.function(lambda a: tp.sum(a[:10] * 2))
    f(x)
    del x
    assert _core.pool_info()["in_use"] - before < 100_000
    assert len(f.plans) == 1 and plan.nbytes < 100_000


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


# ---- what fails leaves everything as it was ----


def ways_to_run(plan, args):
    """How a plan is run, and the tensors and arrays that a run is to write."""
    like = [(v.shape, ir.DTYPES[v.dtype]) for v in (plan._ir.values[k] for k in plan._ir.outputs)]
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


# ---- Ctrl-C and exceptions ----


class Interrupted:
    """Within it, KeyboardInterrupt at the n-th place where Python looks for signals: calls and returns from C."""

    def __init__(self, n):
        self.left, self.fired = n, False

    def __call__(self, frame, event, arg):
        if event in ("call", "c_return"):
            self.left -= 1
            if self.left < 0:
                sys.setprofile(None)
                self.fired = True
                raise KeyboardInterrupt

    def __enter__(self):
        sys.setprofile(self)

    def __exit__(self, *exc):
        sys.setprofile(None)


def clear_of_recordings():
    lock = _core.get_state_lock()
    free = []
    thread = threading.Thread(target=lambda: free.append(lock.acquire(timeout=1)) or lock.release())
    thread.start()
    thread.join()
    return free == [True] and not _core.is_recording()


def interrupted(n, call):
    """Whether a call that is interrupted at n came to its end, and whether it was interrupted."""
    trap = Interrupted(n)
    try:
        with trap:
            call()
    except KeyboardInterrupt:
        return False, True
    return True, trap.fired  # both: Python drops what is raised while a generator is closed


def two_worlds(name):
    """A program and its arguments, its twin, and plans of both that know what is outside of them."""
    (f, args), (eager, _) = WORLDS[name](), WORLDS[name]()
    return f, args, eager, tp.freeze(f, *args), tp.freeze(eager, *args)


INTERRUPTED = ("adam_and_dropout", "accumulated_grads", "draws_of_two_generators", "guarded")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interrupt_anywhere_in_a_first_call(name):
    """State is as it was or as it is after the call, and the next calls have the bits of eager."""
    kept = []
    n = 0
    while True:
        f, args, eager, plan, twin = two_worlds(name)
        run, want = partial(tp.function(f), *args), partial(eager, *args)
        tp.random.manual_seed(3)
        before = snapshot(plan)
        ended, fired = interrupted(n, run)
        assert clear_of_recordings()
        if not fired:
            break
        after = snapshot(plan)
        if after == before:
            kept.append(n)
        else:
            tp.random.manual_seed(3)
            want()
            assert after == snapshot(twin), f"half of it is done at {n}"
        assert after != before or not ended
        for seed in (4, 5):
            assert run_and_look(seed, run, plan) == run_and_look(seed, want, twin)
        n += 1 + n // 5
    assert len(kept) > 10


@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interrupt_anywhere_in_a_replay(name):
    for n in range(1000):
        f, args, eager, plan, twin = two_worlds(name)
        run, want = partial(tp.function(f), *args), partial(eager, *args)
        assert run_and_look(3, run, plan) == run_and_look(3, want, twin)
        tp.random.manual_seed(4)
        before = snapshot(plan)
        _, fired = interrupted(n, run)
        if not fired:
            break
        after = snapshot(plan)
        if after != before:
            tp.random.manual_seed(4)
            want()
            assert after == snapshot(twin)
        assert run_and_look(5, run, plan) == run_and_look(5, want, twin)
    assert n > 3


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_ctrl_c_in_the_middle_of_a_long_replay():
    """A signal that comes while a large group computes ends the run, and nothing has changed."""
    count = tp.tensor(0.0)
    rng = tp.random.Generator(1)

    def f(x):
        count.assign_add(1.0)
        y = x + rng.uniform(shape=())
        for _ in range(30):
            y = tp.cumulative_sum(tp.sin(y)) * 1e-3
        return y

    x = tp.random.Generator(2).normal(shape=(300_000,))
    plan = tp.freeze(f, x)
    stopped = 0
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for delay in (0.002, 0.004, 0.008, 0.016, 0.032):
            seen = float(count), rng.state
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                plan(x)
                time.sleep(1)
            except KeyboardInterrupt:
                if (float(count), rng.state) == seen:
                    stopped += 1
                else:
                    assert (float(count), rng.state) == (seen[0] + 1, (1, seen[1][1] + 1))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert stopped
    runs = rng.state[1]
    rng.state = (1, runs)
    got = plan(x)
    rng.state = (1, runs)
    assert_same(got, f(x))


@pytest.mark.parametrize("name", ["draws_of_two_generators", "a_seed_inside"])
def test_a_run_that_is_differentiated_and_fails_leaves_generators(name):
    """It is run op by op, not as a plan (and here an index is out of range at its end)."""
    f, args = WORLDS[name]()
    plan = tp.freeze(lambda x, i: (f(x), tp.take(x, i)), *args, tp.tensor([0]))
    before = snapshot(plan)
    for wanted in (False, True):
        x = args[0].detach().requires_grad_(wanted)
        with pytest.raises(IndexError):
            plan(x, tp.tensor([99]))
        assert snapshot(plan) == before


def test_exceptions_of_the_function_at_any_of_its_steps():
    w = tp.ones(3, requires_grad=True)
    m = tp.zeros(3)
    rng = tp.random.Generator(1)
    at = []

    def f(x):
        def step(n):
            if at == [n]:
                raise KeyError(n)

        step(0)
        loss = tp.sum(w * x * rng.uniform(shape=(3,)))
        step(1)
        loss.backward()
        step(2)
        m.assign(0.9 * m + w.grad)
        step(3)
        with tp.no_grad():
            w.assign_sub(0.1 * m)
            step(4)
        w.grad = None
        tp.random.manual_seed(1)
        step(5)
        return loss, tp.random.normal(shape=(2,))

    tp.random.manual_seed(8)
    before = [w.tolist(), m.tolist(), w.grad, rng.state, tp.random.default_generator.state]
    g = tp.function(f)
    for n in range(6):
        at[:] = [n]
        for call in (g, tp.freeze):
            with pytest.raises(KeyError):
                call(f, tp.ones(3)) if call is tp.freeze else call(tp.ones(3))
            assert [w.tolist(), m.tolist(), w.grad, rng.state, tp.random.default_generator.state] == before
            assert w.requires_grad and w.is_leaf and clear_of_recordings() and tp.is_grad_enabled()
    at.clear()
    loss, noise = g(tp.ones(3))
    assert float(loss) == float(tp.sum(tp.random.Generator(1).uniform(shape=(3,))))
    assert noise.tolist() == tp.random.Generator(1).normal(shape=(2,)).tolist()


# ---- threads ----

ROUNDS = 30


@pytest.mark.parametrize("again", range(5))
def test_one_function_first_called_by_many_threads_at_once(again):
    """One thread records, the others wait for its plan; no update is lost and no draw given twice."""
    count = tp.tensor(0.0)
    rng = tp.random.Generator(1)
    recorded, drawn = [], []

    @tp.function
    def f(x):
        recorded.append(1)
        count.assign_add(1.0)
        return x * 2.0, rng.uniform(shape=())

    def work(k):
        for r in range(ROUNDS):
            y, u = f(tp.tensor([1.0 * k, r]))
            assert y.tolist() == [2.0 * k, 2.0 * r]
            drawn.append(float(u))

    together(work, 6)
    assert len(recorded) == 1 and len(f.plans) == 1
    assert float(count) == 6 * ROUNDS and rng.state == (1, 6 * ROUNDS)
    other = tp.random.Generator(1)
    assert sorted(drawn) == sorted(float(other.uniform(shape=())) for _ in range(6 * ROUNDS))


def test_functions_recorded_by_many_threads_at_once():
    """Each has its own function and state; they share a parameter that they read and another that they write."""
    w = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)
    total = tp.tensor(0.0)
    with tp.no_grad():
        want = [host_steps(k, w) for k in range(6)]

    def work(k):
        mine = tp.tensor(1.0 * k)

        @tp.function
        def f(x):
            total.assign_add(1.0)
            mine.assign(mine * 0.5 + tp.sum(w * x))
            return tp.grad(lambda x: tp.sum(tp.sin(w * x)) * mine)(x)

        for r in range(ROUNDS):
            with tp.no_grad():
                y = f(tp.tensor([1.0, k, r]))
            assert y.tolist() == want[k][r]
        assert len(f.plans) == 1

    together(work, 6)
    assert float(total) == 6 * ROUNDS


def host_steps(k, w):
    mine = tp.tensor(1.0 * k)
    found = []
    for r in range(ROUNDS):
        x = tp.tensor([1.0, k, r])
        mine = mine * 0.5 + tp.sum(w * x)
        found.append(tp.grad(lambda x, mine=mine: tp.sum(tp.sin(w * x)) * mine)(x).tolist())
    return found


def test_tapes_of_other_threads_beside_a_recording():
    """A tape in another thread numbers the values that it reads of tensors that both know."""
    w = tp.tensor([1.0, 2.0], dtype="float64", requires_grad=True)
    done = threading.Event()

    def work(k):
        if k:
            while not done.is_set():
                with tp.Tape() as tape:
                    y = tp.sum(w * w * w)
                assert tape.gradient(y, w).tolist() == [3.0, 12.0]
            return
        try:
            for r in range(ROUNDS):
                plan = tp.freeze(lambda x, r=r: tp.sum(w * x) + tp.sum(w * w) * (w[0] + r), tp.zeros(2, "float64"))
                x = tp.tensor([1.0 * r, 1.0], dtype="float64")
                assert float(plan(x)) == r + 2.0 + 5.0 * (1.0 + r)
        finally:
            done.set()

    together(work, 3)


def test_paths_of_one_function_in_many_threads():
    """Guards fail and paths are recorded while other threads go through the list of plans."""
    f = tp.function(lambda x: x * 2 if x[0] > 0 else (x - 1 if x[1] > 0 else -x))
    points = [[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0]]
    want = [[2.0, 2.0], [-2.0, 0.0], [1.0, 1.0]]

    def work(k):
        for r in range(4 * ROUNDS):
            at = (k + r) % 3
            assert f(tp.tensor(points[at])).tolist() == want[at]

    together(work, 6)
    assert len(f.plans) == 3


def test_runs_of_one_plan_that_writes_lose_nothing():
    w = tp.zeros(40_000, requires_grad=True)
    count = tp.tensor(0)

    def f(x):
        count.assign_add(1)
        tp.sum(w * x).backward()

    plan = tp.freeze(f, tp.zeros(40_000))

    def work(k):
        for r in range(ROUNDS):
            plan(tp.full(40_000, float(k + r)))

    together(work, 4)
    total = float(sum(k + r for k in range(4) for r in range(ROUNDS)))
    assert int(count) == 4 * ROUNDS
    assert np.array_equal(w.grad.numpy(), np.full(40_000, total, np.float32))


# ---- fork ----


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_plan_made_before_a_fork_runs_on_both_sides(two_threads):
    count = tp.tensor(0.0)

    def f(x):
        count.assign_add(1.0)
        return tp.sum(tp.exp(tp.sin(x) * tp.cos(x) - x * x)) * 1.0, (x @ x[:200].T)[0]

    x = tp.random.Generator(1).normal(shape=(2000, 200))  # its group is shared by threads
    plan, g = tp.freeze(f, x), tp.function(f)
    want = [y.tolist() for y in plan(x)]

    def child():
        same = [y.tolist() for y in plan(x)] == want and [y.tolist() for y in g(x)] == want
        return same and float(count) == 4 and [y.tolist() for y in tp.freeze(f, x)(x)] == want

    g(x)
    assert forked(child) == 0
    assert float(count) == 2
    assert [y.tolist() for y in plan(x)] == want and forked(lambda: plan(x)[0].tolist() == want[0]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_while_other_threads_record_and_run(two_threads):
    stop = threading.Event()
    w = tp.tensor([1.0, 2.0])
    large = tp.random.Generator(1).normal(shape=(300_000,))

    def f(x):
        w.assign(w * 1.0)
        return tp.sum(w * x)

    plan = tp.freeze(f, tp.ones(2))
    group = tp.freeze(lambda x: tp.sum(tp.exp(tp.sin(x) * tp.cos(x))), large)
    want = float(group(large))

    def record():
        while not stop.is_set():
            tp.freeze(f, tp.ones(2))
            tp.function(f)(tp.ones(2))

    def run():
        while not stop.is_set():
            plan(tp.ones(2))
            group(large)

    def child():
        fresh = tp.function(lambda x: x * 2)
        same = float(plan(tp.ones(2))) == 3 and float(group(large)) == want
        return same and float(tp.freeze(f, tp.ones(2))(tp.ones(2))) == 3 and fresh(tp.ones(2)).tolist() == [2.0, 2.0]

    others = [threading.Thread(target=work) for work in (record, run)]
    for t in others:
        t.start()
    try:
        for _ in range(8):
            assert forked(child) == 0
    finally:
        stop.set()
        for t in others:
            t.join(30)
    assert not any(t.is_alive() for t in others) and float(plan(tp.ones(2))) == 3


# ---- footguns ----


def test_captured_numbers_and_arrays_are_constants_and_named():
    scale, offsets, name = 3, np.array([1.0, 2.0], np.float32), ["a"]

    def f(x):
        return x * scale + tp.asarray(offsets), name[0]

    plan = tp.freeze(f, tp.zeros(2))
    assert "3.0" in plan.explain() and "float32[2]" in plan.explain()
    scale, name[0] = 5, "b"
    offsets[:] = 9.0
    y, kept = plan(tp.ones(2))
    assert (y.tolist(), kept) == ([4.0, 5.0], "a")
    assert tp.freeze(f, tp.zeros(2))(tp.ones(2))[0].tolist() == [14.0, 14.0]


def test_a_captured_tensor_that_is_rebound_is_still_the_old_one():
    """By reference: a plan reads the tensor that it saw, whatever its name is given to later."""
    w = tp.tensor([1.0, 2.0])
    old = w
    plan = tp.freeze(lambda x: x * w, tp.ones(2))
    w = tp.tensor([7.0, 7.0])
    assert plan(tp.ones(2)).tolist() == [1.0, 2.0]
    old.assign([3.0, 4.0])
    assert plan(tp.ones(2)).tolist() == [3.0, 4.0]


class Model:
    def __init__(self):
        self.w = tp.tensor([1.0, 2.0], requires_grad=True)

    def rebind(self, x):
        g = tp.grad(lambda w: tp.sum(w * x))(self.w)
        self.w = self.w - 0.1 * g
        return tp.sum(g)

    def assign(self, x):
        g = tp.grad(lambda w: tp.sum(w * x))(self.w)
        with tp.no_grad():
            self.w.assign(self.w - 0.1 * g)
        return tp.sum(g)


@pytest.mark.parametrize("call", [tp.freeze, lambda f, *args: tp.function(f)(*args)])
def test_rebinding_in_place_of_assign_is_refused(call):
    model = Model()
    with pytest.raises(tp.PlanError, match=r"test_plans_safety\.py:\d+ outlives .* write it with assign"):
        call(model.rebind, tp.ones(2))
    model, eager = Model(), Model()
    f = tp.function(model.assign)
    for _ in range(4):
        assert_same(f(tp.ones(2)), eager.assign(tp.ones(2)))
    assert_same(model.w.detach(), eager.w.detach())


def test_one_tensor_as_two_arguments_and_arguments_that_share_memory():
    f = tp.function(lambda a, b: (a * b + a, a - b))
    x = tp.tensor([1.0, 2.0, 3.0])
    y = tp.tensor([4.0, 5.0, 6.0])
    for a, b in ((x, x), (x, y), (y, x), (x, x[::-1]), (x[:], x), (x, x.detach())):
        got = f(a, b)
        assert_same(got[0], a * b + a), assert_same(got[1], a - b)
    base = np.arange(6, dtype=np.float32)
    plan = tp.freeze(lambda a, b: (a * b + a, a - b), x, y)
    a, b = base[:3], base[2:5]  # they overlap
    bound = plan.bind(a, b, out=(a, b))
    want = a * b + a, a - b
    bound()
    assert base[5] == 5 and base[:2].tolist() == want[0][:2].tolist() and base[2:5].tolist() == want[1].tolist()


def test_an_argument_that_is_captured_and_written_too():
    """Eager reads in it what was written; a run would read what it was before. So it is refused, whenever it comes."""
    w = tp.tensor([1.0, 2.0], requires_grad=True)
    other = tp.tensor([5.0, 6.0])

    def assigns(a):
        with tp.no_grad():
            w.assign(a * 2 + w)
            return a + w

    def accumulates(a):
        tp.sum(w * 2).backward()
        return a + 1

    w.grad = tp.ones(2)
    for f, alias in ((assigns, w), (accumulates, w.grad)):
        switched, plan = tp.function(f), tp.freeze(f, other)
        switched(other)
        held = w.tolist(), w.grad.tolist()
        refused = (lambda f=f, x=alias: tp.freeze(f, x), lambda p=plan, x=alias: p(x), plan.bind(alias))
        for run in (*refused, lambda f=f, x=alias: tp.function(f)(x), lambda g=switched, x=alias: g(x)):
            with pytest.raises(tp.PlanError, match=r"is a tensor that the (function|plan) also writes"):
                run()
            assert (w.tolist(), w.grad.tolist()) == held
        copy = alias.clone().detach()
        got = switched(copy)
        assert_same(got, copy + (w.detach() if f is assigns else 1))
    held = w.clone().detach()
    assert_same(tp.freeze(lambda a: (a + w).detach(), w)(w), held + held)  # both are only read


def test_state_that_is_swapped_or_shares_a_value():
    a, b, c = tp.tensor([1.0, 2.0]), tp.tensor([3.0, 4.0]), tp.tensor([0.0, 0.0])

    def f():
        old = a.clone()
        a.assign(b)
        b.assign(old)
        c.assign(a)
        return a, c

    plan = tp.freeze(f)
    for k in range(4):
        x, y = plan()
        want = ([3.0, 4.0], [1.0, 2.0]) if k % 2 == 0 else ([1.0, 2.0], [3.0, 4.0])
        assert (a.tolist(), b.tolist()) == want and c.tolist() == x.tolist() == y.tolist() == want[0]
        x[0] = 99.0
        c[1] = 98.0
        assert a.tolist() == want[0]


def test_outputs_are_kept_and_fed_back():
    f = tp.function(lambda x, h: (tp.tanh(x + h), h * 0.5 + x))
    x, h, g = tp.tensor([0.5, 1.0]), tp.zeros(2), tp.zeros(2)
    kept, want = [], []
    for k in range(12):
        y, h = f(x + float(k), h)
        z, g = tp.tanh(x + float(k) + g), g * 0.5 + (x + float(k))
        kept.append((y, h)), want.append((z, g))
    for (y, h), (z, g) in zip(kept, want, strict=True):
        assert_same(y, z), assert_same(h, g)
    assert len(f.plans) == 1


def test_nested_functions_freezes_and_plans():
    x = tp.tensor([0.5, 1.5])
    inner = tp.function(lambda x: tp.sin(x) + 1)
    plan = tp.freeze(lambda x: tp.cos(x), x)
    for _ in range(2):
        assert_same(tp.freeze(lambda x: inner(x) * 2, x)(x), (tp.sin(x) + 1) * 2)
        assert_same(tp.freeze(inner, x)(x), tp.sin(x) + 1)
        assert_same(inner(x), tp.sin(x) + 1)
    for call in (tp.freeze, lambda f, *args: tp.function(f)):  # a freeze and a plan within another
        for f in (lambda x: tp.freeze(lambda y: y * 3, x)(x) + 1, lambda x: plan(x) + 1):
            made = call(f, x)
            for _ in range(2):
                assert_same(made(2 * x), f(2 * x))
    with tp.Tape():
        assert_same(tp.freeze(lambda x: x * 2, x)(x), x * 2)
    assert clear_of_recordings()


def test_gradients_through_the_first_call_of_a_function():
    """The first call has recorded something else than the caller's tensors: its result is tied to these, too."""
    w, c = tp.tensor([1.0, 2.0], requires_grad=True), tp.tensor([3.0, 4.0], requires_grad=True)
    f = tp.function(lambda x: x * 3 * c)
    for _ in range(3):
        w.grad = c.grad = None
        tp.sum(f(w) * w).backward()
        assert w.grad.tolist() == [18.0, 48.0] and c.grad.tolist() == [3.0, 12.0]
    f = tp.function(lambda x: x * 3)
    for _ in range(3):
        assert tp.grad(lambda x: tp.sum(f(x) * x))(tp.tensor([1.0, 2.0])).tolist() == [6.0, 12.0]


def test_the_first_call_keeps_nothing_alive():
    import gc
    import weakref

    f = tp.function(lambda x: (x * 2, tp.zeros(1000)))
    gone = [weakref.ref(t) for t in f(tp.ones(1000))]
    gc.collect()
    assert [r() for r in gone] == [None, None]


def test_signatures_that_are_used_stay():
    x = tp.ones(1)
    recorded = []
    g = tp.function(lambda x, n: recorded.append(n) or x + n, max_plans=3)
    for n in range(12):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert g(x, -1).tolist() == [0.0] and g(x, n).tolist() == [1.0 + n]
    assert recorded.count(-1) == 1 and len(g.plans) == 3


def test_draws_beside_a_recording_are_nobody_elses():
    """Another thread draws from the same generator while a function is recorded: the plan's draws follow each other."""
    rng = tp.random.Generator(1)

    def elsewhere():
        thread = threading.Thread(target=lambda: rng.uniform(shape=(2,)))
        thread.start()
        thread.join()

    def f():
        a = rng.uniform(shape=())
        elsewhere()
        return a, rng.uniform(shape=())

    g = tp.function(f)
    g()
    assert rng.state == (1, 3)
    got = [float(u) for u in g()]
    other = tp.random.Generator(1)
    other.state = (1, 3)
    assert got == [float(other.uniform(shape=())) for _ in range(2)]
    assert rng.state == (1, 5)
    tp.freeze(f)
    assert rng.state == (1, 8)  # numbers that another thread has gone on from are not given again
