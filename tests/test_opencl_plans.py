"""Plans on OpenCL devices beside the same plans on the cpu: values, gradients, state, draws, guards, errors."""

import numpy as np
import pytest
from helpers import draw, rng_for, together

import tapeflow as tp
from tapeflow.errors import DeviceError, PlanError, TensorIndexError
from tests.opencl_devices import device, opened  # noqa: F401


def placed(plan, device):  # noqa: F811
    from tapeflow.plan.placed import DevicePlan

    return DevicePlan(plan, device, "opencl")


def close(got, expected, rtol=2e-5):
    for a, b in zip(flat(got), flat(expected), strict=True):
        b = b.numpy()
        scale = max(float(np.abs(b).max(initial=0.0)), 1e-6) if b.dtype.kind == "f" else 1.0
        np.testing.assert_allclose(a.numpy(), b, rtol=rtol, atol=rtol * scale)
        assert a.dtype == b.dtype and a.shape == b.shape


def flat(x):
    return [y for part in x for y in flat(part)] if isinstance(x, (tuple, list)) else [x]


def tensor(name, *shape):
    return tp.tensor(draw(rng_for(name), shape, "float32"))


def model():
    """Parameters, and a step of gradient descent on them that returns the loss."""
    x, labels = tensor("x", 32, 12), tp.tensor(np.arange(32) % 5)
    params = [tp.tensor(tensor(n, *s).numpy() * 0.3, requires_grad=True)
              for n, s in (("w", (12, 16)), ("b", (16,)), ("v", (16, 5)))]  # fmt: skip

    def step():
        w, b, v = params
        loss = tp.cross_entropy(tp.tanh(x @ w + b) @ v, labels)
        loss.backward()
        with tp.no_grad():
            for p in params:
                p.assign_sub(0.5 * p.grad)
                p.grad = None
        return loss

    return params, step


def test_a_training_step(device):  # noqa: F811
    """Forward, backward and update; the parameters are those of the cpu after as many steps."""
    params, step = model()
    start = [p.numpy(copy=True) for p in params]
    plan = tp.freeze(step)
    expected = [float(plan()) for _ in range(5)]
    ends = [p.numpy(copy=True) for p in params]
    with tp.no_grad():
        for p, value in zip(params, start, strict=True):
            p.assign(value)
    there = placed(plan, device)
    np.testing.assert_allclose([float(there()) for _ in range(5)], expected, rtol=1e-5)
    for p, end in zip(params, ends, strict=True):
        np.testing.assert_allclose(p.numpy(), end, rtol=1e-4, atol=1e-6)
    builds = device.builds
    there()
    assert device.builds == builds and expected[-1] < expected[0]


def test_captured_tensors_that_others_write_are_sent_again(device):  # noqa: F811
    w = tensor("w", 4)
    there = placed(tp.freeze(lambda x: x * w, tp.ones(4)), device)
    x = tensor("x", 4)
    close(there(x), x * w)
    w.assign(w + 1.0)
    close(there(x), x * w)
    close(there(x * 2.0), x * 2.0 * w)


CASES = {
    "elementwise": lambda x, y: tp.exp(x) * tp.sigmoid(y) - tp.where(x > y, x, tp.sin(y)),
    "broadcast": lambda x, y: (x[:, :1] + y[1]) * tp.sum(x, axis=1, keepdims=True) + tp.mean(y),
    "normalised": lambda x, y: tp.layer_norm(x, (6,)) * tp.softmax(y) + tp.logsumexp(x * y, axis=1, keepdims=True),
    "moves": lambda x, y: tp.concat([x.T[1:4], y[::2, ::-1].T[:3]], axis=1),
    "gather": lambda x, y: (
        tp.take(x, [2, 0, 2, 3], axis=0),
        tp.scatter_add(y, [1, 1, 0, 3], x),
        tp.argsort(x, axis=1),
    ),
    "scans": lambda x, y: (tp.cumulative_sum(x, axis=1), tp.cumulative_max(y, axis=0), tp.max(x, axis=0), tp.argmax(y)),
    "products": lambda x, y: (x @ y.T, tp.einsum("ij,ij->i", x, y), tp.var(x, axis=0), tp.vector_norm(y)),
    "integers": lambda x, y: (tp.astype(x * 10.0, "int32") // 3, x > 0.0, tp.count_nonzero(y > 0.0, axis=1)),
}


@pytest.mark.parametrize("name", CASES)
def test_values(device, name):  # noqa: F811
    f, (x, y) = CASES[name], (tensor("x", 4, 6), tensor("y", 4, 6))
    plan = tp.freeze(f, x, y)
    there = placed(plan, device)
    for a, b in ((x, y), (y, x), (x, y)):
        close(there(a, b), f(a, b))


@pytest.mark.parametrize("name", ["elementwise", "broadcast", "normalised", "products"])
def test_gradients(device, name):  # noqa: F811
    x, y = tensor("x", 4, 6), tensor("y", 4, 6)
    f = tp.value_and_grad(lambda x, y: sum(tp.sum(part * part) for part in flat(CASES[name](x, y))), argnums=(0, 1))
    there = placed(tp.freeze(f, x, y), device)
    for _ in range(2):
        close(there(x, y), f(x, y), rtol=2e-4)


def test_draws_have_the_bits_of_the_cpu_and_go_on(device):  # noqa: F811
    g = tp.random.Generator(5)
    plan = tp.freeze(lambda x: x * 0.0 + g.uniform(shape=(7,)), tp.ones(7))
    there, state = placed(plan, device), g.state
    got = [there(tp.ones(7)).tolist() for _ in range(3)]
    after, g.state = g.state, state
    assert got == [plan(tp.ones(7)).tolist() for _ in range(3)] and g.state == after


def test_gradients_are_added_to_what_is_there(device):  # noqa: F811
    w = tp.tensor([1.0, 2.0], requires_grad=True)

    def f(x):
        loss = tp.sum(x * w)
        loss.backward()
        return loss

    there = placed(tp.freeze(f, tp.ones(2)), device)
    there(tp.tensor([3.0, 4.0]))
    there(tp.tensor([1.0, 1.0]))
    assert w.grad.tolist() == [4.0, 5.0]


def test_what_goes_wrong_leaves_state_as_it_was(device):  # noqa: F811
    """An index out of range, a guard: the tensor that the run would have written keeps its value, and runs go on."""
    total = tp.zeros(3)

    def f(x, at):
        total.assign_add(tp.take(x, at, axis=0))
        if tp.sum(x) > 0.0:
            return total * 2.0
        return total

    x, at = tp.tensor([1.0, 2.0, 3.0, 4.0]), tp.tensor([0, 3, 1])
    there = placed(tp.freeze(f, x, at), device)
    there(x, at)
    with pytest.raises(TensorIndexError, match="out of range"):
        there(x, tp.tensor([0, 9, 1]))
    with pytest.raises(PlanError, match="Python looked at a value"):
        there(-x, at)
    assert total.tolist() == [1.0, 4.0, 2.0]
    there(x, at)
    assert total.tolist() == [2.0, 8.0, 4.0]


def test_a_call_that_is_differentiated_runs_here():
    there = placed(tp.freeze(lambda x: tp.sum(x * x), tp.ones(3)), opened("intel"))
    x = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)
    there(x).backward()
    assert x.grad.tolist() == [2.0, 4.0, 6.0]


def test_a_device_without_a_dtype_is_named():
    device = opened("rusticl")  # noqa: F811
    plan = tp.freeze(lambda x: x + 1.0, tp.zeros(5000, dtype="float64"))
    with pytest.raises(DeviceError, match="no float64"):
        placed(plan, device)


def test_names_of_devices():
    opened("intel")
    plan = tp.freeze(lambda x: x + 1.0, tp.zeros(3))
    there = plan.to("opencl:intel")
    assert there(tp.ones(3)).tolist() == [2.0, 2.0, 2.0] and there.to("cpu") is plan
    assert "opencl:intel" in there.explain() and there.nbytes > 0 and there.flops == plan.flops
    with pytest.raises(DeviceError):
        plan.to("opencl:no such thing")
    with pytest.raises(PlanError, match="argument 0"):
        there(tp.ones(4))


def test_calls_from_several_threads_do_not_meet():
    """Arguments have one place on the device: a call that others are in waits for them."""
    there = placed(tp.freeze(lambda x: tp.cumulative_sum(x * 2.0), tp.zeros(20_000)), opened("intel"))
    wrong = []

    def call(number):
        x = tp.full((20_000,), float(number))
        for _ in range(40):
            if there(x).numpy()[-1] != 40_000.0 * number:
                wrong.append(number)

    together(call, 4)
    assert not wrong
