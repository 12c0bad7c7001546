"""Threads: graphs of their own, one shared leaf, and fork after the pool has been used.

CASES.md, burn#5573 and pytorch#17566, #18333, #37020. The interpreter switches threads as often as it can here.
"""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from helpers import together

import tapeflow as tp

THREADS = 8
ROUNDS = 1000 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 120
BIG = 1 << 19  # elements: enough for the pool


@pytest.fixture(autouse=True)
def busy_switching():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


FIRST_PRODUCTS = """
import threading
import tapeflow as tp

barrier, errors = threading.Barrier(8), []

def run():
    x = tp.ones((60, 60))
    barrier.wait()
    try:
        assert (x @ x).tolist() == [[60.0] * 60] * 60
    except BaseException as error:
        errors.append(error)

threads = [threading.Thread(target=run) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
assert not errors, errors
"""


def test_the_first_matrix_products_of_several_threads():
    """They load the library of BLAS together."""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", FIRST_PRODUCTS], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr


def test_burn_5573_own_graphs_are_independent():
    def work(k):
        for r in range(ROUNDS):
            x = tp.tensor([1.0 * k, 2.0, r % 7], dtype=tp.float64, requires_grad=True)
            y = x
            for _ in range(5):
                y = y * x
            with tp.Tape() as tape:
                z = (x * x).sum()
            y.sum().backward(create_graph=r % 2 == 0)
            assert x.grad.tolist() == [6.0 * k**5, 6.0 * 2**5, 6.0 * (r % 7) ** 5]
            assert tape.gradient(z, x).tolist() == [2.0 * k, 4.0, 2.0 * (r % 7)]

    together(work)


def test_pytorch_37020_a_shared_leaf_gets_the_exact_sum():
    w = tp.tensor([1.0, 2.0, 3.0], dtype=tp.float64, requires_grad=True)
    added = [0.0] * THREADS

    def work(k):
        for r in range(ROUNDS):
            loss = (w * float(k + r)).sum()
            try:
                loss.backward()
            except tp.TapeError:
                continue
            added[k] += k + r

    together(work)
    assert w.grad.tolist() == [sum(added)] * 3


def test_pytorch_17566_a_shared_trunk():
    """One recorded trunk, a loss and a backward of it in each thread: right, or refused by name."""
    w = tp.tensor([2.0, 3.0], dtype=tp.float64, requires_grad=True)
    trunk = w * w * w
    done = [0] * THREADS

    def work(k):
        for _ in range(ROUNDS):
            try:
                (trunk * 2.0).sum().backward(retain_graph=True)
            except tp.TapeError:
                continue
            done[k] += 1

    together(work)
    assert w.grad.tolist() == [24.0 * sum(done), 54.0 * sum(done)]


def test_a_write_and_reads_of_shared_tensors():
    """Views of one buffer are written by their threads: no thread sees another's write."""
    base = tp.tensor(np.arange(64.0))

    def work(k):
        for _ in range(ROUNDS):
            mine = base[k:]
            mine += 1.0
            mine[0] = -1.0
            assert mine[1].item() == k + 2 and base[k].item() == k

    together(work)
    assert base.tolist() == list(range(64))


def test_a_graph_moves_between_threads():
    x = tp.tensor([1.0, 2.0], dtype=tp.float64, requires_grad=True)
    made = []
    together(lambda k: made.append((x * x * (k + 1.0)).sum()), 3)
    extra = made[0] + made[1]
    together(lambda k: (extra if k == 0 else made[2]).backward(), 2)
    assert x.grad.tolist() == [12.0, 24.0]


def test_threads_end_with_tapes_and_graphs_alive():
    kept = []

    def work(k):
        tape = tp.Tape()
        tape.__enter__()
        x = tp.tensor(1.0 * k, requires_grad=True)
        kept.append((x, x * x, tape))

    together(work)
    for x, y, _ in kept:
        y.backward()
        assert x.grad.item() == 2 * x.item()


def test_large_ops_in_many_threads(two_threads):
    x = tp.tensor(np.arange(BIG) % 13.0, requires_grad=True)
    want = float(np.sum(np.arange(BIG) % 13.0 * 2))

    def work(k):
        for _ in range(3):
            y = (x + x).sum()
            assert y.item() == want
            assert tp.grad(lambda t: tp.sum(t * t))(x.detach())[12].item() == 24.0

    together(work, 4)


def pool_work():
    """Elementwise ops and a reduction above the thresholds of the pool, forward and backward."""
    x = tp.tensor(np.arange(BIG) % 13.0, requires_grad=True)
    (x * x * 2.0 + x).sum().backward()
    return np.array_equal(x.grad.numpy(), np.arange(BIG) % 13.0 * 4 + 1)


def large_work():
    """The same and a matmul, which has threads of the BLAS."""
    a = tp.tensor(np.ones((300, 300)), requires_grad=True)
    (a @ a).sum().backward()
    return pool_work() and bool(np.all(a.grad.numpy() == 600.0))


def forked(work, seconds=30):
    """The exit code of work() in a child; a child that hangs is ended and gives None."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("nested", [False, True])
def test_fork_after_threads_were_used(two_threads, nested):
    assert large_work()
    if hasattr(os, "fork"):
        assert forked((lambda: large_work() and forked(large_work) == 0) if nested else large_work) == 0
    assert large_work()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_while_the_pool_is_busy(two_threads):
    stop = threading.Event()

    def keep_busy():
        while not stop.is_set():
            pool_work()

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        for _ in range(4 if hasattr(os, "fork") else 0):
            assert forked(pool_work) == 0
    finally:
        stop.set()
        busy.join(30)
    assert not busy.is_alive() and pool_work()


def test_walks_of_one_graph_with_and_without_retain_graph():
    """Each gives the whole gradient or TapeError; none sees a graph that is half freed."""
    weights = np.random.default_rng(0).uniform(-0.1, 0.1, (64, 64))
    for _ in range(ROUNDS // 4):
        x, w = (tp.tensor(weights, requires_grad=True) for _ in range(2))
        h = x
        for _ in range(3):
            h = tp.concat([tp.tanh(h @ w)[:32], tp.softmax(h)[32:]])
        y = h.sum()
        refused = []

        def work(k, y=y, refused=refused):
            try:
                y.backward(retain_graph=k > 0)
            except tp.TapeError:
                refused.append(k)

        y.backward(retain_graph=True)
        want = x.grad.numpy(copy=True)
        x.zero_grad()
        together(work, 3)
        assert 0 <= len(refused) <= 2
        if x.grad is not None:
            assert np.allclose(x.grad.numpy(), (3 - len(refused)) * want, rtol=1e-12)


@pytest.mark.parametrize("size", [5000, 200_000])
def test_an_operand_assigned_while_it_is_read_is_read_whole(size):
    """x is never written in place: each result is of one of the values that x has had."""
    r = tp.tensor(np.ones(size), requires_grad=True)
    plain, recorded, done = tp.tensor(np.ones(size)), r * 1.0, threading.Event()

    def work(k):
        if k == 0:
            i = 0
            while not done.is_set():  # what is let go is given out again
                i = i % 4 + 1
                plain.assign(tp.full(size, float(i), "float64"))
                recorded.assign(tp.full(size, float(i), "float64"))
            return
        try:
            for _ in range(ROUNDS):
                for x in (plain, recorded):
                    a = (x * 2.0).numpy()
                    assert a.min() == a.max() and a[0] in (2.0, 4.0, 6.0, 8.0)
                tp.multiply(recorded, r).sum().backward(retain_graph=True)
        finally:
            done.set()

    together(work, 2)
    grad = r.grad.numpy()
    assert grad.min() == grad.max()


def test_a_tape_is_closed_for_the_thread_that_opened_it():
    tape = tp.Tape()
    tape.__enter__()
    errors = []

    def close():
        try:
            tape.__exit__(None, None, None)
        except tp.TapeError as error:
            errors.append(error)

    thread = threading.Thread(target=close)
    thread.start()
    thread.join(30)
    if errors:
        tape.__exit__(None, None, None)
    length = len(tape)
    _ = tp.ones(3) * 2.0
    assert len(tape) == length
    with tp.Tape() as other:
        _ = tp.ones(3) * 2.0
    assert len(other) == 1


def test_one_mode_object_in_two_threads():
    mode, inside, done, out = tp.no_grad(), threading.Event(), threading.Event(), []

    def first():
        with mode:
            inside.set()
            done.wait(10)
        out.append(tp.is_grad_enabled())

    def second():
        inside.wait(10)
        with tp.no_grad():
            with mode:
                done.set()
                one.join(10)
            out.append(tp.is_grad_enabled())

    one, two = threading.Thread(target=first), threading.Thread(target=second)
    one.start()
    two.start()
    two.join(10)
    assert out == [True, False]


def test_a_second_opening_elsewhere_changes_nothing():
    tape, errors = tp.Tape(), []

    def enter():
        try:
            tape.__enter__()
        except tp.TapeError as error:
            errors.append(error)

    with tape:
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join(30)
        _ = tp.ones(3) * 2.0
    length = len(tape)
    _ = tp.ones(3) * 2.0
    assert len(errors) == 1 and len(tape) == length


def test_what_another_thread_recorded_is_older_than_a_functions_arguments():
    made = []

    def record(k):
        w = y = tp.tensor(2.0, dtype=tp.float64, requires_grad=True)
        for _ in range(1000):
            y = y * 1.0
        made.extend([w, y])

    together(record, 1)  # it ends before the next begins
    together(lambda k: made.append(tp.grad(lambda x: x * made[1])(1.0)), 1)
    w, y, g = made
    assert g.requires_grad and g.item() == 2.0
    g.backward(retain_graph=True)
    y.backward()
    assert w.grad.item() == 2.0
