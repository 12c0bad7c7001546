"""Plans over tensors that live on a device: where results and state are, what is sent, what is refused."""

import gc

import numpy as np
import pytest
from helpers import draw, rng_for
from worlds import WORLDS

import tapeflow as tp
from tapeflow import _core
from tapeflow.errors import DeviceError, PlanError
from tapeflow.plan.placed import DevicePlan
from tapeflow.transforms import flatten
from tests.opencl_devices import IMPLEMENTATIONS, opened


@pytest.fixture(params=IMPLEMENTATIONS)
def there(request):
    """The name of a device, whose tensors say so in their `device`."""
    opened(request.param)
    return str(tp.zeros(()).to(f"opencl:{request.param}").device)


def tensor(name, *shape):
    return tp.tensor(draw(rng_for(name), shape, "float32"))


def close(got, want, rtol=1e-4):
    a, b = np.asarray(got.to("cpu")), np.asarray(want)
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * float(np.abs(b).max(initial=0.0)) + 1e-30)


class Transfers:
    """Counts what goes between a device and the host, in bytes."""

    def __init__(self, monkeypatch, name):
        device = _core.place_of(tp.zeros(()).to(name))
        self.sent, self.fetched = [], []
        upload, begin = device.upload, device.begin_download
        monkeypatch.setattr(device, "upload", lambda a, *more, **k: self.sent.append(a.nbytes) or upload(a, *more, **k))
        monkeypatch.setattr(device, "begin_download", lambda a: self.fetched.append(a.nbytes) or begin(a))


def model(name, optimizer):
    """Parameters on a device, or the cpu, and a step of training."""
    layers = tp.nn.Sequential(
        tp.nn.Linear(6, 8, generator=tp.random.Generator(1)), tp.nn.Tanh(),
        tp.nn.Dropout(0.25, generator=tp.random.Generator(5)), tp.nn.Linear(8, 3, generator=tp.random.Generator(2)),
    ).to(name)  # fmt: skip
    updates = optimizer(layers.parameters())

    def step(x, labels):
        updates.zero_grad()
        loss = tp.cross_entropy(layers(x), labels)
        loss.backward()
        updates.step()
        return loss

    return step, list(layers.parameters())


X, LABELS = tensor("x", 10, 6), tp.tensor(np.arange(10) % 3)


@pytest.mark.parametrize("way", ["freeze", "function", "to"])
@pytest.mark.parametrize(
    "optimizer", [lambda p: tp.optim.SGD(p, lr=0.1, momentum=0.9), tp.optim.Adam], ids=["SGD", "Adam"]
)
def test_training_where_the_parameters_are(there, optimizer, way, monkeypatch):
    """Losses and parameters are those of the cpu, on the device; runs send and fetch a word or two for labels and
    rates, and nothing else."""
    (cpu, expected), (step, params) = model("cpu", optimizer), model(there, optimizer)
    want = [float(cpu(X, LABELS)) for _ in range(6)]
    x, labels = X.to(there), LABELS.to(there)
    run = tp.function(step) if way == "function" else tp.freeze(step, x, labels)
    run = run.to(there) if way == "to" else run
    losses = [run(x, labels) for _ in range(3)]
    moved = Transfers(monkeypatch, there)
    losses += [run(x, labels) for _ in range(3)]
    assert sum(moved.fetched) <= 3 * 4 and sum(moved.sent) <= 3 * 32
    assert all(str(t.device) == there for t in (*losses, *params))
    np.testing.assert_allclose([float(loss) for loss in losses], want, rtol=1e-4)
    for p, q in zip(params, expected, strict=True):
        close(p.detach(), q.detach(), rtol=1e-3)


def test_a_step_without_labels_moves_nothing(there, monkeypatch):
    w = tensor("w", 6, 3).to(there)
    w.requires_grad = True

    def step(x, y):
        loss = tp.mean((x @ w - y) ** 2)
        loss.backward()
        with tp.no_grad():
            w.assign_sub(0.1 * w.grad)
            w.grad = None
        return loss

    x, y = X.to(there), tensor("y", 10, 3).to(there)
    plan = tp.freeze(step, x, y)
    plan(x, y)
    moved = Transfers(monkeypatch, there)
    losses = [plan(x, y) for _ in range(5)]
    assert not moved.sent and not moved.fetched
    values = [float(loss) for loss in losses]
    assert values == sorted(values, reverse=True) and str(w.device) == there


def test_where_results_are(there):
    """On the device if an argument or a captured tensor is there; the sent plan takes tensors of the host, too."""
    w = tensor("w", 4)
    x = tensor("x", 3, 4)
    f = lambda x: (x * w, tp.sum(x, axis=0), x)  # noqa: E731
    plan = tp.freeze(f, x)
    sent = plan.to(there)
    assert [str(t.device) for t in sent(x)] == ["cpu"] * 3
    for run in (sent, plan):
        w_there = w.to(there)
        if run is plan:
            run = tp.freeze(lambda x: (x * w_there, tp.sum(x, axis=0), x), x.to(there))  # noqa: B023
        results = run(x.to(there))
        assert [str(t.device) for t in results] == [there] * 3
        for a, b in zip(results, f(x), strict=True):
            close(a, b)
    assert [str(t.device) for t in sent(x.numpy())] == ["cpu"] * 3


def test_views_slices_and_what_is_kept(there):
    """Arguments that are views are read as they lie; results are nobody else's memory and stay as they were."""
    x = tensor("x", 5, 6).to(there)
    plan = tp.freeze(lambda x: (x + 1.0, x.T, x[1:]), tp.zeros((3, 5), device=there))
    kept = []
    for view in (x[:, ::2].T, x.T[::2], x.T[1:4]):
        got = plan(view)
        for a, b in zip(got, (view + 1.0, view.T, view[1:]), strict=True):
            assert a.tolist() == b.tolist() and str(a.device) == there
        kept.append((got, [t.tolist() for t in got]))
    assert all([t.tolist() for t in got] == values for got, values in kept)


def test_a_captured_tensor_that_others_write(there, monkeypatch):
    w = tensor("w", 4).to(there)
    x = tensor("x", 4).to(there)
    plan = tp.freeze(lambda x: x * w, x)
    close(plan(x), (x * w).to("cpu"))
    before = w.detach()
    w.assign(w + 1.0)
    moved = Transfers(monkeypatch, there)
    got = plan(x)
    w += 1.0
    again = plan(x)
    assert not moved.sent and not moved.fetched
    close(got, (x * (before + 1.0)).to("cpu"))
    close(again, (x * (before + 2.0)).to("cpu"))


def test_state_is_written_where_it_is(there):
    """A total on the device, a count on the cpu, a .grad on the device; a snapshot keeps what it was."""
    total, count = tp.zeros(3, device=there), tp.tensor(0)
    w = tp.ones(3, device=there)
    w.requires_grad = True

    def f(x):
        total.assign_add(x * 2.0)
        count.assign_add(1)
        tp.sum(x * w).backward()
        return total + 0.0

    x = tp.tensor([1.0, 2.0, 3.0], device=there)
    plan = tp.freeze(f, x)
    seen = []
    for n in range(1, 4):
        snapshot = total.detach()
        seen.append((snapshot, snapshot.tolist()))
        result = plan(x)
        assert result.tolist() == total.tolist() == [2.0 * n, 4.0 * n, 6.0 * n]
        assert w.grad.tolist() == [1.0 * n, 2.0 * n, 3.0 * n] and int(count) == n
    assert str(total.device) == str(w.grad.device) == there and count.device == "cpu"
    assert all(t.tolist() == values for t, values in seen)


def test_guards_errors_and_what_was_there_before(there):
    total = tp.zeros(3, device=there)

    def f(x, at):
        total.assign_add(tp.take(x, at, axis=0))
        return total * 2.0 if tp.sum(x) > 0.0 else total

    x, at = tp.tensor([1.0, 2.0, 3.0, 4.0], device=there), tp.tensor([0, 3, 1], device=there)
    plan = tp.freeze(f, x, at)
    plan(x, at)
    for args, error in (((x, at + 7), IndexError), ((-x, at), PlanError), ((x[:3], at), PlanError)):
        with pytest.raises(error):
            plan(*args)
        assert total.tolist() == [1.0, 4.0, 2.0]
    assert plan(x, at).tolist() == [4.0, 16.0, 8.0]
    g = tp.function(f)
    for sign in (1.0, -1.0, 1.0):
        before = np.array(total.tolist())
        g(x * sign, at)
        np.testing.assert_allclose(total.tolist(), before + sign * np.array([1.0, 4.0, 2.0]))
    assert len(g.plans) == 2


def test_a_function_has_a_plan_for_each_device(there):
    f = tp.function(lambda x: tp.exp(x) * 2.0)
    x = tensor("x", 4)
    for _ in range(2):
        assert f(x).device == "cpu" and str(f(x.to(there)).device) == there
    assert len(f.plans) == 2
    assert any(f"on {there}" in repr(p._beside([x.to(there)])) for p in f.plans)
    close(f(x.to(there)), f(x))


def test_tensors_of_two_devices():
    """Both are named, and nothing has run."""
    names = [str(tp.zeros(()).to(f"opencl:{name}").device) for name in ("intel", "pocl") if opened(name)]
    total = tp.zeros(3)

    def f(x):
        total.assign_add(x)
        return total * 2.0

    sent = tp.freeze(f, tp.ones(3)).to(names[0])
    with pytest.raises(DeviceError, match=f"argument 0 is on {names[1]}, and the plan runs on {names[0]}"):
        sent(tp.ones(3).to(names[1]))
    w = tp.ones(3).to(names[1])
    with pytest.raises(DeviceError, match=f"a captured tensor or constant is on {names[1]}"):
        tp.freeze(lambda x: x * w, tp.ones(3).to(names[1])).to(names[0])(tp.ones(3))
    assert total.tolist() == [0.0] * 3


def test_where_a_plan_runs_is_told(there):
    w = tp.ones(3, device=there)
    plan = tp.freeze(lambda x: x * w, w)
    assert f"on {there}, where captured tensors are" in plan.explain()
    assert f"on {there}" in plan.to(there).explain()
    assert {op for s in plan.profile(w).steps for op in s.ops} == {"multiply"}
    with tp.profile() as p:
        plan(w)
    assert [s.name for s in p.steps] == ["plan <lambda>"]
    out = tp.zeros(3, device=there)
    assert plan.run(w * 3.0, out=out) is out and out.tolist() == [3.0] * 3
    assert plan.bind(w * 2.0)().tolist() == [2.0] * 3


def test_a_run_that_is_differentiated_is_recorded_there(there):
    x = tensor("x", 4).to(there)
    plan = tp.freeze(lambda x: tp.sum(tp.sin(x)), x)
    x.requires_grad = True
    for run in (plan, plan.to(there)):
        x.grad = None
        run(x).backward()
        assert str(x.grad.device) == there
        close(x.grad, tp.cos(x.detach()).to("cpu"))


def test_constants_on_a_device_and_no_arguments(there):
    plan = tp.freeze(lambda: tp.cumulative_sum(tp.ones(3, device=there)) * 2.0)
    for _ in range(2):
        result = plan()
        assert result.tolist() == [2.0, 4.0, 6.0] and str(result.device) == there
    f = tp.freeze(lambda x: x + tp.ones(3, device=there), tp.zeros((), device=there))
    assert f(tp.tensor(1.0).to(there)).tolist() == [2.0] * 3


def test_memory_goes_with_the_plan(there):
    """At once, without the collector of cycles; a profile that saw it knows what it was."""
    device = _core.place_of(tp.zeros(()).to(there))
    x = tensor("x", 100, 100).to(there)
    device.empty_cache()
    live = device.pool.live
    gc.disable()
    try:
        with tp.profile() as p:
            tp.freeze(lambda x: tp.exp(x) + x, x)(x)
            f = tp.function(lambda x: tp.exp(x) - x)
            f(x), f(x)
            assert device.pool.live > live
            del f
        assert device.pool.live <= live + 4096
    finally:
        gc.enable()
    assert [(s.name, s.flops > 0, s.nbytes) for s in p.steps if "plan" in s.name][:1] == [
        ("plan <lambda>", True, 80000)
    ]


class Planted(DeviceError):
    pass


@pytest.mark.parametrize("where", ["launch", "copy"])
def test_a_failure_at_any_command_changes_nothing(where, monkeypatch):
    """Of state that is on the device, and on the cpu; the next run is right."""
    device = opened("intel")
    there = f"opencl:{device.name}"
    (cpu, expected), (step, params) = (model(name, tp.optim.Adam) for name in ("cpu", there))
    x, labels = X.to(there), LABELS.to(there)
    plan = tp.freeze(step, x, labels)
    left, copy, replay = [-1], device.copy, device.replay

    def count():
        left[0] -= 1
        if left[0] == -1:
            raise Planted("[device] planted")

    def copies(*arrays):
        count()
        copy(*arrays)

    def replays(launches):
        for launch in launches:
            count()
            replay([launch])

    name, fails = {"launch": ("replay", replays), "copy": ("copy", copies)}[where]
    failures, runs = 0, 0
    for n in range(200):
        state = [t.tolist() for t in plan.state.values()]
        generators = [g.state for g in plan.generators.values()]
        left[0] = n
        with monkeypatch.context() as patch:
            patch.setattr(device, name, fails)
            try:
                plan(x, labels)
                runs += 1
            except Planted:
                failures += 1
                assert [t.tolist() for t in plan.state.values()] == state
                assert [g.state for g in plan.generators.values()] == generators
        if runs == 2:
            break
        plan(x, labels)
    assert failures > {"launch": 20, "copy": 5}[where] and runs == 2
    for _ in range(failures + runs):
        cpu(X, LABELS)
    for p, q in zip(params, expected, strict=True):
        close(p.detach(), q.detach(), rtol=2e-2)


def test_state_takes_the_place_of_what_it_was(there):
    """On the plan's side alone, where a group makes it of the old one, element by element, and it is read no more."""
    a, b, c, d = (tensor(name, 3, 3).to(there) for name in "abcd")

    def f(x):
        was = d * 1.0
        a.assign(a * 0.5 + x)  # in place
        b.assign(b + b.T)  # reads others than its own
        old = c + 0.0
        c.assign(tp.cumulative_sum(c, axis=0))  # by no group
        d.assign(d + x)  # read as it was by a result
        return old, was, d - was

    x = tensor("x", 3, 3).to(there)
    plan = tp.freeze(f, x)
    sent = plan.to(there)
    state = [t.tolist() for t in (a, b, c, d)]
    want = [[t.tolist() for t in (*f(x), a, b, c, d)] for _ in range(3)]
    for run in (plan, sent):
        for t, values in zip((a, b, c, d), state, strict=True):
            t.assign(tp.tensor(values, dtype="float32", device=there))
        for row in want:
            views = [t.detach() for t in (a, b, c, d)]
            before = [t.tolist() for t in views]
            got = [t.tolist() for t in (*run(x), a, b, c, d)]
            np.testing.assert_allclose(got, row, rtol=1e-5)
            assert [t.tolist() for t in views] == before
    places = sent._placing.in_place
    written = {id(t): k for t, k in sent._ir.states}
    assert written[id(a)] in places and written[id(b)] not in places and written[id(c)] not in places


def test_draws_are_made_there(there):
    g = tp.random.Generator(5)
    w = tp.zeros(7, device=there)
    plan = tp.freeze(lambda x: x + w + g.uniform(shape=(7,), device=there), w)
    state, got = g.state, [plan(w) for _ in range(3)]
    after, g.state = g.state, state
    want = [g.uniform(shape=(7,)) for _ in range(3)]
    assert g.state == after
    for a, b in zip(got, want, strict=True):
        assert a.tolist() == b.tolist() and str(a.device) == there


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_with_its_arguments_there(name):
    """Captured tensors on the cpu, arguments on the device, in a plan that was sent there."""
    where = str(tp.zeros(()).to("opencl:intel").device) if opened("intel") else ""
    (f, args), (twin, _) = WORLDS[name](), WORLDS[name]()
    plan, expected = tp.freeze(f, *args), tp.freeze(twin, *args)
    sent = DevicePlan(plan, opened("intel"), where)
    tp.random.manual_seed(4)
    want = [flatten(expected(*args))[0] for _ in range(3)]
    tp.random.manual_seed(4)
    for row in want:
        results = flatten(sent(*[x.to(where) for x in args]))[0]
        for a, b in zip(results, row, strict=True):
            assert str(a.device) == where
            close(a, b)


@pytest.mark.parametrize("place", ["cpu", "there"])
def test_captured_tensors_that_change_places(there, place):
    """State that becomes what another one was, or a view of what it was, is known to the next run as it is."""

    def made(name):
        a, b, c = (tensor(n, 3, 3).to(name) for n in "abc")

        def f(x):
            old = a.detach()
            a.assign(b)
            b.assign(c.mT)
            c.assign(old)
            return a * x + b - 2.0 * c

        return f, (a, b, c)

    (want, expected), (got, state) = made("cpu"), made(there if place == "there" else "cpu")
    x = tensor("x", 3, 3)
    plan = tp.freeze(got, x.to(there) if place == "there" else x).to(there)
    for _ in range(4):
        close(plan(x), want(x))
        for s, t in zip(state, expected, strict=True):
            close(s, t)


def test_a_captured_tensor_at_the_same_address(there):
    """A transposed view of the memory that was sent is other elements; another library's memory may have any."""
    square, array = tensor("w", 3, 3), np.arange(9, dtype=np.float32).reshape(3, 3)
    shared = tp.asarray(array, copy=False)
    plan = tp.freeze(lambda x: x * square + shared, tp.ones((3, 3))).to(there)
    x = tensor("x", 3, 3)
    for change in (lambda: None, lambda: square.assign(square.mT), lambda: array.__setitem__(..., 7.0)):
        change()
        close(plan(x), x * square + shared)


def test_a_module_that_is_moved(there):
    """Plans run where their captured tensors are by then; a tp.function is recorded anew where they are new."""
    layer = tp.nn.Linear(4, 3, generator=tp.random.Generator(1))
    f = tp.function(lambda x: tp.tanh(layer(x)) + tp.ones(3, device=layer.weight.device))
    x = draw(rng_for("x"), (2, 4), "float32")
    with tp.no_grad():
        plan = tp.freeze(lambda x: tp.tanh(layer(x)) + 1.0, x)
        bound = plan.bind(x)
        want = f(x)
        for place in (there, "cpu", there, "cpu"):
            layer.to(place)
            for run in (f, f, plan, lambda x: bound()):
                got = run(x)
                assert str(got.device) == place
                close(got, want)
        assert len(f.plans) == 2
        layer.to(there)
        frozen_there = tp.freeze(lambda x: tp.tanh(layer(x)) + 1.0, x)
        close(frozen_there(x), want)
        layer.to("cpu")
        assert frozen_there(x).device == "cpu"
        close(frozen_there(x), want)


def test_arrays_go_to_what_they_meet(there):
    """As in eager ops, at the first call, too, and when gradients are recorded."""
    w = tensor("w", 4).to(there)
    x = draw(rng_for("x"), (3, 4), "float32")
    f = tp.function(lambda x: tp.sum(x * w, axis=1))
    plan = tp.freeze(lambda x: tp.sum(x * w, axis=1), x)
    for run in (f, f, plan, plan.bind(x), plan.to(there)):
        got = run() if type(run).__name__ == "Bound" else run(x)
        assert str(got.device) == there
        close(got, np.asarray(tp.sum(x * w.to("cpu"), axis=1)))
    v = w.detach()
    v.requires_grad = True
    inner = tp.freeze(lambda x, v: x * v, x, w)
    tp.sum(inner(x, v)).backward()
    close(v.grad, x.sum(axis=0))


def test_the_default_device(there):
    """It is part of what a recording depends on, and where draws that meet no tensor are made."""
    f = tp.function(lambda: tp.zeros(3) + 1.0)
    draws = tp.function(lambda: tp.random.normal(shape=(3,)))
    assert f().device == draws().device == "cpu"
    with tp.default_device(there):
        plan = tp.freeze(lambda: tp.random.normal(shape=(3,)))
        assert [str(run().device) for run in (f, f, draws, draws, plan)] == [there] * 5
    assert f().device == draws().device == "cpu" and str(plan().device) == there
    own = tp.freeze(lambda x: tp.random.normal(shape=(3,), device=there), 1.0)
    tp.random.manual_seed(3)
    got = own(2.0)
    tp.random.manual_seed(3)
    assert str(got.device) == there and got.tolist() == tp.random.normal(shape=(3,)).tolist()


@pytest.mark.parametrize("place", ["cpu", "there"])
def test_runs_into_tensors_and_arrays(there, place):
    """Of a plan that was sent: arguments and results wherever they are; arrays are read at each call."""
    count, w = (t.to(there if place == "there" else "cpu") for t in (tp.zeros(4), tensor("w", 4)))

    def f(x):
        count.assign_add(1.0)
        return x * w + count, tp.sum(x)

    plan = tp.freeze(f, w).to(there)
    x = tensor("x", 4)
    array, runs = np.array(x), 0
    for arg in (x, x.to(there), array):
        for out in (
            None, (tp.zeros(4), tp.zeros(())), [tp.zeros(4, device=there), tp.zeros((), device=there)],
            (np.zeros(4, np.float32), np.zeros((), np.float32)),
        ):  # fmt: skip
            bound = plan.bind(arg, out=out)
            for _ in range(2):
                got = bound()
                runs += 1
                assert out is None or got is out
                for y, z in zip(got, (x * w.to("cpu") + float(runs), tp.sum(x)), strict=True):
                    close(tp.asarray(y), z)
    array[...] = 2.0
    out = (np.zeros(4, np.float32), tp.zeros(()))
    assert plan.run(array, out=out) is out
    close(tp.asarray(out[0]), 2.0 * w.to("cpu") + float(runs + 1))
    ends = tp.freeze(lambda x: 2.0 * x, array).to(there).bind(array, out=array)
    ends()
    ends()
    assert array.tolist() == [8.0] * 4


def test_what_is_not_finite_is_found_in_a_plan_that_was_sent(there):
    w = tp.ones(3)
    for plan in (tp.freeze(lambda x: tp.log(x) * w, w).to(there), tp.freeze(lambda x: tp.log(x) * 2.0, w.to(there))):
        for x in (tp.tensor([1.0, -1.0, 2.0]), tp.tensor([1.0, -1.0, 2.0]).to(there)):
            with tp.trace_nan(), pytest.raises(FloatingPointError, match="log"):
                plan(x)
        with tp.trace_nan():
            close(plan(w), tp.zeros(3))


@pytest.mark.parametrize("place", ["cpu", "there"])
def test_numbers_as_arguments(there, place):
    """Floats are float64 inputs, also of a device that has none: the host computes with them, and has them returned."""
    w, x = (tensor(n, 5).to(there if place == "there" else "cpu") for n in "wx")

    def f(x, rate, scale):
        w.assign_sub(rate * scale * x)
        return tp.sum(x) * rate, rate, (w * 2.0 if rate * scale > 0.5 else w)

    run, want = tp.function(f), np.array(w.to("cpu"))
    sent = tp.freeze(f, x, 0.5, 2.0).to(there)
    for call, rate, scale in ((run, 0.25, 1.0), (sent, 2.0, 2.0), (run, 3.0, 0.5), (sent, 1.5, 1.0), (run, 0.125, 2.0)):
        total, same, doubled = call(x, rate, scale)
        want = want - rate * scale * np.array(x.to("cpu"))
        close(total, tp.sum(x.to("cpu")) * rate)
        assert float(same) == rate
        close(doubled, tp.tensor(want * (2.0 if rate * scale > 0.5 else 1.0)))
        close(w, tp.tensor(want))
    with pytest.raises(PlanError, match="looked at a value"):
        sent(x, 0.1, 0.1)
    close(w, tp.tensor(want))
