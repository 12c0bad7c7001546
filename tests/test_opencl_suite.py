"""What plans of the suite do on devices beside the cpu: programs with a world around them, calls of every function,
random programs; failures at any command."""

import contextlib
import itertools
import os

import numpy as np
import pytest
from helpers import together
from hypothesis import given, settings
from test_plans_calls import POOL, all_calls, function_of, orders
from worlds import WORLDS, outside, snapshot

import tapeflow as tp
from tapeflow.backend.opencl.host import Device
from tapeflow.errors import DeviceError, TapeflowError
from tapeflow.plan import passes
from tapeflow.plan.ir import FLOAT64, RANDOM
from tapeflow.plan.placed import DevicePlan
from tapeflow.testing.strategies import programs
from tapeflow.transforms import flatten
from tests.opencl_devices import device, opened  # noqa: F401

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"


@pytest.fixture(autouse=True)
def verified(monkeypatch):
    monkeypatch.setattr(passes, "VERIFY", True)


def tensors(tree):
    return [t for t in flatten(tree)[0] if isinstance(t, tp.Tensor)]


def assert_close(got, want, label="", rtol=1e-4):
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape), label
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, label)
        return
    finite = want[np.isfinite(want)]
    scale = float(np.abs(finite).max(initial=0.0))
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * scale + 1e-30, err_msg=label)


def assert_all_close(got, want, label="", rtol=1e-4):
    got, want = tensors(got), tensors(want)
    assert len(got) == len(want), label
    for g, w in zip(got, want, strict=True):
        assert_close(g.detach().numpy(), w.detach().numpy(), label, rtol)


# ---- worlds


def looks(plan, run, runs=4):
    """Results, state, gradients and generators of some runs."""
    tp.random.manual_seed(21)
    found = []
    for _ in range(runs):
        found += [("result", "", t.numpy(copy=True)) for t in tensors(run())]
        found += [(kind, name, np.array(x)) for kind, name, x in outside(plan)]
    return found


@pytest.mark.parametrize("name", WORLDS)
def test_a_world(device, name):  # noqa: F811
    """Results, captured tensors, .grad and generators go the way of the cpu; draws have its bits."""
    (f, args), (twin, _) = WORLDS[name](), WORLDS[name]()
    plan, expected = tp.freeze(f, *args), tp.freeze(twin, *args)
    there = DevicePlan(plan, device, "opencl")
    want = looks(expected, lambda: expected(*args))
    got = looks(plan, lambda: there(*args))
    assert [x[:2] for x in got] == [x[:2] for x in want]
    for (kind, of, a), (_, _, b) in zip(got, want, strict=True):
        assert_close(a, b, f"{kind} {of}")
        assert kind != "generator" or a.tobytes() == b.tobytes()
    with pytest.raises(tp.PlanError, match="argument 0"):
        there(tp.zeros((3, 9)), *args[1:])


class Planted(DeviceError):
    pass


class Failing(Device):
    """A device whose n-th launch from now on fails."""

    fail_at = -1

    def _enqueue(self, kernel, whole, local):
        if self.fail_at == 0:
            self.fail_at = -1
            raise Planted
        self.fail_at -= 1
        super()._enqueue(kernel, whole, local)

    def replay(self, launches):
        for launch in launches:
            if not launch.empty:
                self._enqueue(launch.kernel, launch.global_size, launch.local_size)


@pytest.mark.parametrize("name", WORLDS)
def test_a_failure_at_any_launch_changes_nothing(name):
    """In the first run, which notes what it does, and in one that repeats it."""
    f, args = WORLDS[name]()
    plan = tp.freeze(f, *args)
    there = None
    own = Failing(opened("intel").info)
    for first in (True, False):
        steps = 0
        for step in range(10_000):
            if first or there is None:
                there = DevicePlan(plan, own, "opencl")
            before = snapshot(plan)
            own.fail_at = step
            try:
                there(*args)
            except Planted:
                assert snapshot(plan) == before, f"step {step}"
                steps += 1
            else:
                break
            finally:
                own.fail_at = -1
        assert steps > 0


def test_errors_in_mid_run_are_those_of_the_cpu(device):  # noqa: F811
    """An index, a guard, a label: the class, the text, and everything as it was."""
    rng, w = tp.random.Generator(1), tp.ones(3, requires_grad=True)
    count = tp.tensor(0.0)

    def f(x, i, labels):
        count.assign_add(1.0)
        tp.sum(w * x * rng.uniform(shape=(3,))).backward()
        y = tp.take(x, i) + tp.cross_entropy(tp.reshape(x, (1, 3)), labels)
        return y * 2 if x[0] > 0 else y

    x, i, labels = tp.ones(3), tp.tensor([0, 2]), tp.tensor([1])
    plan = tp.freeze(f, x, i, labels)
    there = DevicePlan(plan, device, "opencl")
    there(x, i, labels)
    w.grad = None
    before = snapshot(plan)
    for args in ((-x, i, labels), (x, i + 1, labels), (x, i, labels + 2), (x, -i - 2, labels), (tp.ones(4), i, labels)):
        messages = []
        for run in (plan, there):
            with pytest.raises((TapeflowError, IndexError)) as caught:
                run(*args)
            messages.append((type(caught.value), str(caught.value)))
            assert snapshot(plan) == before
        assert messages[0] == messages[1]


def test_the_first_error_is_told_and_runs_go_on(device):  # noqa: F811
    """Indices are looked at when all is done; still what is told is what came first, a guard after it or not."""
    count = tp.tensor(0)

    def f(x, i, j, labels):
        count.assign_add(1)
        y = tp.take(x, i)
        if tp.sum(x) > 0:
            y = y * 2.0
        z = x[j] + tp.sum(tp.one_hot(labels, 3))
        w = tp.scatter_add(x, j, y)
        if x[0] < 9.0:
            w = w + 1.0
        return y, z, w

    x, i, j, labels = tp.tensor([1.0, 2.0, 3.0]), tp.tensor([0, 2]), tp.tensor([1, -1]), tp.tensor([0, 2])
    plan = tp.freeze(f, x, i, j, labels)
    there = DevicePlan(plan, device, "opencl")
    wrong = tp.tensor([1, -7])
    for args in (
        (x, i, wrong, labels), (x, wrong, wrong, labels), (-x, wrong, j, labels), (-x, i, wrong, labels),
        (x * 9.0, i, wrong, labels), (x * 9.0, i, j, labels), (x, i, j, labels + 1), (x, i + 5, j, labels + 1),
    ):  # fmt: skip
        messages = []
        for run in (plan, there):
            with pytest.raises((TapeflowError, IndexError)) as caught:
                run(*args)
            messages.append((type(caught.value), str(caught.value)))
        assert messages[0] == messages[1] and int(count) == 0
        assert_all_close(there(x, i, j, labels), f(x, i, j, labels))
        with tp.no_grad():
            count.assign(0)
    there._device.upload(there._flag, np.ones(1, np.int32))  # as a run leaves it that an interrupt has ended
    for _ in range(2):
        assert_all_close(there(x, i, j, labels), f(x, i, j, labels))
    assert there._device.download(there._flag)[0] == 0


def test_a_run_waits_for_nothing_in_its_middle():
    """A training step with labels, indices, draws and sums with .grad is enqueued as a whole."""
    w, rng = tp.ones((4, 3), requires_grad=True), tp.random.Generator(3)

    def step(x, labels, at):
        loss = tp.cross_entropy(tp.dropout(tp.take(x, at, axis=0), 0.5, generator=rng) @ w, labels)
        w.grad = None
        loss.backward()
        with tp.no_grad():
            w.assign_sub(0.1 * w.grad)
        return loss

    x, labels = ARGUMENTS
    plan, at = tp.freeze(step, x, labels, tp.tensor(range(8))), tp.tensor([3, 1, 2, 0, 7, 6, 5, 4])
    there = DevicePlan(plan, opened("intel"), "opencl")
    there(x, labels, at)
    assert there._flagged and all(type(c) is list or c.op == RANDOM for c in there._commands)
    waits = []
    own = there._device
    real, own.wait = own.wait, lambda event: waits.append(own.launches) or real(event)
    launches = own.launches
    try:
        there(x, labels, at)
    finally:
        del own.wait
    assert own.launches - launches >= len(there._placing.nodes)
    assert waits == [own.launches] * 4  # for the flag, the loss, w and its .grad


def test_masks_and_what_is_nonzero(device):  # noqa: F811
    """As many as when it was frozen: wherever they are; others are refused, as on the cpu."""

    def f(x):
        return x[x > 0.0] * 2.0, tp.nonzero(x > 0.0), tp.where(x > 0.0, x, 0.0)

    x = tp.tensor([1.0, -1.0, 2.0, -3.0])
    plan = tp.freeze(f, x)
    there = DevicePlan(plan, device, "opencl")
    for values in ([1.0, -1.0, 2.0, -3.0], [-1.0, 4.0, 2.0, -3.0], [5.0, -4.0, -2.0, 3.0]):
        assert_all_close(there(tp.tensor(values)), plan(tp.tensor(values)))
    for run in (plan, there):
        with pytest.raises(tp.PlanError):
            run(tp.ones(4))
    assert_all_close(there(x), plan(x))


OPTIMIZERS = {
    "SGD": lambda p: tp.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: tp.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: tp.optim.AdamW(p, lr=0.01),
    "RMSprop": lambda p: tp.optim.RMSprop(p, lr=0.01),
    "Adagrad": lambda p: tp.optim.Adagrad(p, lr=0.05),
}


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if hasattr(tp.optim, name)])
def test_an_optimizer(device, name):  # noqa: F811
    """Six steps: losses, parameters and the optimizer's state are those of the cpu."""

    def make():
        model = tp.nn.Sequential(
            tp.nn.Linear(4, 6, generator=tp.random.Generator(1)), tp.nn.ReLU(), tp.nn.LayerNorm(6),
            tp.nn.Dropout(0.25, generator=tp.random.Generator(5)), tp.nn.Linear(6, 3, generator=tp.random.Generator(2)),
        )  # fmt: skip
        optimizer = OPTIMIZERS[name](model.parameters())

        def step(x, labels):
            optimizer.zero_grad()
            loss = tp.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            return loss

        return tp.freeze(step, *ARGUMENTS)

    expected, plan = make(), make()
    there = DevicePlan(plan, device, "opencl")
    losses = [[float(run(*ARGUMENTS)) for _ in range(6)] for run in (expected, there)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    for (kind, of, a), (_, _, b) in zip(outside(plan), outside(expected), strict=True):
        assert_close(a, b, f"{kind} {of}", rtol=1e-3)


ARGUMENTS = tp.random.Generator(7).normal(shape=(8, 4)), tp.tensor([0, 1, 2, 0, 1, 2, 0, 1])


def custom(x, y):
    @tp.custom_vjp
    def clipped(a):
        return tp.exp(a)

    clipped.defvjp(lambda a: (tp.exp(a), a), lambda a, g: (tp.clip(g, -0.5, 0.5) * a,))
    return tp.sum(clipped(x @ y))


TRANSFORMED = {
    "custom": tp.value_and_grad(custom, argnums=(0, 1)),
    "vmap": tp.vmap(lambda x, y: tp.tanh(x @ y) - tp.sum(x), in_axes=(0, None)),
    "vmap of grad": tp.vmap(tp.grad(lambda x, y: tp.sum(tp.sin(x @ y))), in_axes=(0, None)),
    "jacobian": tp.jacobian(lambda x, y: tp.tanh(x[0] @ y)),
    "hvp": lambda x, y: tp.hvp(lambda x: tp.sum(tp.cos(x @ y)), (x,), (x,)),
    "checkpoint": tp.grad(lambda x, y: tp.sum(tp.checkpoint(lambda a: tp.tanh(a @ y))(x))),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms(device, name):  # noqa: F811
    x, y = ARGUMENTS[0], tp.random.Generator(8).normal(shape=(4, 3))
    plan = tp.freeze(TRANSFORMED[name], x, y)
    there = DevicePlan(plan, device, "opencl")
    for a, b in ((x, y), (x * 0.5, -y)):
        assert_all_close(there(a, b), plan(a, b))


def test_two_threads_call_one_plan_that_writes():
    """Every run counts, once: state goes on from what it was."""
    total, runs = tp.zeros(100), 25

    def f(x):
        total.assign_add(tp.cumulative_sum(x))
        return total + 0.0

    there = DevicePlan(tp.freeze(f, tp.ones(100)), opened("intel"), "opencl")
    seen = [set(), set()]

    def call(n):
        for _ in range(runs):
            seen[n].add(float(there(tp.ones(100))[0]))

    together(call, 2)
    assert float(total[0]) == 2 * runs and sorted(seen[0] | seen[1]) == [float(k + 1) for k in range(2 * runs)]


# ---- every function


def placed(plan, device):  # noqa: F811
    """The plan on a device; None where that lacks its float64, and says so."""
    if not device.fp64 and any(v.dtype == FLOAT64 for v in plan._ir.values):
        with contextlib.suppress(DeviceError):  # where only the host needs it
            return DevicePlan(plan, device, "opencl")
        with pytest.raises(DeviceError, match="no float64"):
            DevicePlan(plan, device, "opencl")
        return None
    return DevicePlan(plan, device, "opencl")


CALLS = list(dict.fromkeys(all_calls()))
# Kernels of a call take a compiler for processors a second: all of them in the deep profile.
CHOSEN = CALLS if DEEP else CALLS[::7]


@pytest.mark.parametrize("text", CHOSEN)
def test_call(text):
    """Values, and in the deep profile gradients, of Intel's device (the deep profile: of all)."""
    pool = POOL[16, "float32"]
    f, arrays = function_of(text, pool)
    xs = [tp.tensor(pool[k]) for k in arrays]
    if not xs:
        return  # a function of nothing is a constant
    for what, g in itertools.islice(orders(f, xs), 2 if DEEP else 1):
        plan = tp.freeze(g, *xs)
        want = plan(*xs)
        for name in ("intel", "pocl", "rusticl") if DEEP and what == "value" else ("intel",):
            there = placed(plan, opened(name))
            for _ in range(2 if there else 0):
                assert_all_close(there(*xs), want, f"{what} of {text} on {name}\n{plan}", rtol=5e-4)


# ---- random programs


def check_program(program):
    f = tp.value_and_grad(program, argnums=tuple(range(len(program.leaves))))
    if ".tolist()" in str(program):
        return
    plan = tp.freeze(f, *program.leaves)
    there = DevicePlan(plan, opened("intel"), "opencl")
    for scale in (1.0, 0.875, 1.0):
        values = [np.asarray(a) * scale for a in program.leaves]
        assert_all_close(there(*values), plan(*values), f"{program}\n{plan}", rtol=1e-3)


@given(programs())
@settings(max_examples=200 if DEEP else 4)
def test_random_program(program):
    check_program(program)
