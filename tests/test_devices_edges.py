"""Tensors on devices at the edges: where results, gradients and constants are, and what numbers of the cpu may do."""

import pickle

import numpy as np
import pytest

import tapeflow as tp
from tapeflow import nn
from tapeflow.errors import DeviceError
from tests.opencl_devices import device  # noqa: F401


@pytest.fixture
def name(device):  # noqa: F811
    return str(tp.device(f"opencl:{device.info.platform}"))


ROW = np.float32([0.4, 1.6, -2.5])


# ---- gradients are where their tensors are


@pytest.mark.parametrize("op", [tp.floor, tp.ceil, tp.round, tp.rint, tp.trunc, tp.sign], ids=lambda op: op.__name__)
def test_gradients_of_zero(name, op):
    x = tp.tensor(ROW, device=name, requires_grad=True)
    op(x).sum().backward()
    assert x.grad.device == name and x.grad.tolist() == [0.0] * 3
    assert tp.hessian(lambda a: (op(a) * a).sum())(x.detach()).device == name
    assert tp.jvp(op, (x.detach(),), (x.detach(),))[1].device == name


def test_gradients_of_zero_beside_numbers(name):
    x = tp.tensor(ROW, device=name, requires_grad=True)
    s = tp.tensor(2.0, requires_grad=True)
    (tp.floor_divide(x, s) + tp.copysign(x, s)).sum().backward()
    assert (x.grad.device, s.grad.device) == (name, "cpu") and s.grad.item() == 0.0


def test_a_gradient_from_elsewhere(name):
    x = tp.tensor([1.0, 2.0], device=name, requires_grad=True)
    with pytest.raises(DeviceError, match=r"\[grad\].*cpu"):
        x.grad = tp.ones(2)
    y = x * 2.0
    y.register_hook(lambda g: tp.ones(2))
    with pytest.raises(DeviceError, match="register_hook"):
        (y * y).sum().backward()
    x.register_hook(lambda g: tp.ones(2))
    with pytest.raises(DeviceError, match="register_hook"):
        (x * x).sum().backward()
    assert x.grad is None
    for tangent in (tp.jvp, tp.hvp):
        with pytest.raises(DeviceError, match="cpu"):
            tangent(lambda a: (a * a).sum(), (x.detach(),), (tp.ones(2),))
    value, t = tp.jvp(lambda a: a * 2.0, (tp.tensor(1.0, device=name),), (tp.tensor(1.0),))
    assert (value.device, t.device) == (name, name)


def test_a_rule_of_the_users_for_a_number_of_the_cpu(name):
    scaled = tp.custom_vjp(lambda x, s: x * s)
    scaled.defvjp(lambda x, s: (x * s, (x, s)), lambda kept, g: (g * kept[1], (g * kept[0]).sum()))
    x = tp.tensor([1.0, 2.0], device=name, requires_grad=True)
    s = tp.tensor(3.0, requires_grad=True)
    scaled(x, s).sum().backward()
    assert (x.grad.device, s.grad.device) == (name, "cpu") and s.grad.item() == 3.0


def test_data_of_python_in_layer_norm(name):
    x = np.linspace(-1.0, 1.0, 12, dtype="float32").reshape(3, 4)
    found = []
    for where in ("cpu", name):
        w = tp.ones(4, device=where, requires_grad=True)
        (tp.layer_norm(x, weight=w) ** 2).sum().backward()
        assert w.grad.device == where
        found.append(w.grad.numpy())
    assert np.allclose(*found, atol=1e-5)


# ---- a user's tensor of the cpu never slips onto a device


def test_what_is_computed_on_the_cpu_stays_there(name):
    x = tp.tensor([3.0, 1.0, 2.0], requires_grad=True)
    made = [tp.diag(x.detach()), tp.median(tp.ones((3, 2)), axis=0), tp.broadcast_to(tp.tensor(1.0), (3,))]
    made += [tp.from_dlpack(np.ones(3, np.float32)), pickle.loads(pickle.dumps(x)).detach()]
    x[1:].sum().backward()
    made += [x.grad, tp.grad(lambda a: a[:1].sum())(np.ones(2)), tp.grad(lambda a: tp.flip(a).sum())(tp.ones(3))]
    for t in made:
        with pytest.raises(DeviceError, match="cpu"):
            t.astype("float32") + tp.ones(t.shape, device=name)


def test_the_default_device_leaves_others_alone(name):
    here = tp.ones((2, 3))
    with tp.default_device(name):
        for t in (
            tp.zeros_like(here),
            tp.full_like(here, 2.0),
            tp.tensor(here),
            tp.pad(here, 1),
            tp.pad(here, 1, constant_values=3.0),
            tp.median(here),
            tp.diff(here, prepend=1.0),
            tp.average(here, axis=0, weights=[1.0, 2.0]),
            tp.average(here, returned=True)[1],
            tp.put_along_axis(here, [[0], [1]], 5.0, axis=1),
        ):
            assert t.device == "cpu"
        assert tp.zeros_like([1.0]).device == name and tp.meshgrid([1.0], [2.0])[0].device == name


# ---- numbers and Python's data, wherever they are written, joined or looked up


def test_numbers_of_the_cpu_are_written(name):
    s = tp.tensor(2.0, requires_grad=True)
    x = tp.tensor(ROW, device=name)
    index = tp.tensor([0, 1], device=name)

    def written(at):
        y = x * 1.0
        y[at] = s
        return y

    for y in (
        written(1),
        written(slice(0, 2)),
        written([0, 2]),
        written(index),
        written(x > 0),
        (x * 1.0).assign(s),
        tp.stack([s, x[0]]),
        tp.asarray([x[0], s, 1.0]),
        tp.index_add(x, 0, index, s),
        tp.scatter_add(x, index, s),
        tp.put_along_axis(x, index, s, axis=0),
        tp.diff(x, prepend=s),
        tp.full_like(x, s),
        tp.pad(x, 1, constant_values=s),
    ):
        assert y.device == name
        if y.requires_grad:
            y.sum().backward()
    assert s.grad.device == "cpu" and s.grad.item() == 1 + 2 + 2 + 2 + 2 + 3 + 1 + 1 + 2 + 2 + 2 - 1 + 2
    assert x[tp.tensor(True)].shape == (1, 3)


def test_data_of_python_goes_along(name):
    x = tp.tensor(ROW, device=name)
    m = tp.ones((3, 2), device=name)
    for y in (
        tp.pad(x, 2),
        tp.repeat([1.0, 2.0], tp.tensor([1, 2], device=name)),
        tp.pad(x, 1, mode="edge"),
        tp.diff(x, append=[1.0]),
        tp.diff([1.0, 2.0], prepend=x),
        tp.average(m, axis=0, weights=[1.0, 2.0, 3.0]),
        tp.random.normal(np.zeros(3, np.float32), tp.tensor(1.0, device=name)),
        tp.random.uniform([0.0] * 3, x + 3.0),
        *tp.broadcast_arrays(x, [[1.0], [2.0]]),
        *tp.meshgrid(x, [1.0, 2.0]),
    ):
        assert y.device == name
    for mixed in (
        lambda: tp.broadcast_arrays(x, tp.ones(3)),
        lambda: tp.meshgrid(x, tp.ones(3)),
        lambda: tp.quantile(tp.ones(3), tp.tensor([0.5], device=name)),
        lambda: tp.full_like(tp.ones(3), x[0]),
        lambda: tp.pad(tp.ones(3), 1, constant_values=x[0]),
    ):
        with pytest.raises(DeviceError, match="cpu"):
            mixed()


def test_what_the_host_finds_goes_back(name):
    x = tp.tensor(np.float32([[3, 1, 2], [6, 5, 4]]), device=name)
    for y in (tp.median(x), tp.median(x, axis=1), tp.quantile(x, 0.3, axis=0), tp.quantile(x, [0.1, 0.9])):
        assert y.device == name
    assert tp.quantile(x, tp.tensor([0.5], device=name)).item() == 3.5


def test_lanes_have_their_offsets_where_they_are(name):
    x = tp.tensor(np.float32([[3, 1, 2], [6, 5, 4]]), device=name)
    for f in (tp.sort, tp.argsort, lambda r: r[r.argmax()], lambda r: tp.take(r, tp.argsort(r)), tp.median):
        y = tp.vmap(f)(x)
        assert y.device == name and y.tolist() == tp.vmap(f)(x.to("cpu")).tolist()


# ---- where what is asked for is made


def test_made_of_tensors(name):
    x = tp.tensor(1.5, device=name)
    assert [tp.full((2,), x).device, tp.asarray([x, x]).device, tp.tensor([x, 1.0]).device] == [name] * 3
    for y in (
        tp.full((2,), x, device="cpu"),
        tp.tensor(x, device="cpu"),
        tp.tensor([x, x], device="cpu"),
        tp.asarray([x, x], device="cpu"),
    ):
        assert y.device == "cpu" and np.all(y.numpy() == 1.5)
    plan = tp.freeze(lambda s: tp.full((2,), s), x)
    assert plan(x).device == name


def test_probabilities_without_float64(name):
    p = np.linspace(0.0, 1.0, 50, dtype="float32")
    here, there = tp.random.Generator(4), tp.random.Generator(4)
    assert there.bernoulli(tp.tensor(p, device=name)).tolist() == here.bernoulli(tp.tensor(p)).tolist()


def test_init_fills_where_the_tensor_is(name):
    w = nn.Linear(3, 4).to(name).weight
    for fill in (nn.init.zeros, nn.init.normal, nn.init.uniform, nn.init.orthogonal):
        assert fill(w) is w and w.device == name


def test_a_plan_of_a_device_runs_on_the_cpu(name):
    def f(x):
        y = x * 1.0
        y[0] = 5.0
        y[[1]] = 2.0
        return y, tp.concat([y, [1.0]]), tp.stack([y.sum(), 1.0]), tp.index_add(y, 0, [0], 1.0), tp.pad(y, 1)

    plan = tp.freeze(f, tp.tensor(ROW, device=name))
    for here, there in zip(plan(tp.tensor(ROW)), plan(tp.tensor(ROW, device=name))):
        assert (here.device, there.device) == ("cpu", name) and np.allclose(here.numpy(), there.numpy())


def test_what_goes_along_by_two_ways_has_one_gradient(name):
    """An array as an argument: once an operand of a product, once moved by an op of its own."""
    rows = np.random.default_rng(0).uniform(-1, 1, (3, 6))
    w = tp.tensor(np.random.default_rng(1).uniform(-1, 1, (5, 6)).astype("float32"))

    def f(w):
        return lambda a: tp.tanh(w @ a) * a[:5] + w[0, 0] * a[1:]

    here = tp.vmap(tp.jacobian(f(w)))(rows.astype("float32"))
    with tp.default_device(name):
        there = tp.vmap(tp.jacobian(f(w.to(name))))(rows.astype("float32"))
    assert np.allclose(here.numpy(), there.numpy(), atol=1e-5)
