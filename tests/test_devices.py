"""Tensors on devices: where they are, what may meet, and that values, gradients and errors are the cpu's."""

import copy
import pickle
import threading

import numpy as np
import pytest

import tapeflow as tp
from tapeflow import _core, nn, optim
from tapeflow.errors import DeviceError, DeviceOutOfMemory, NonFiniteError, PlanError, ShapeError
from tests.opencl_devices import device  # noqa: F401


@pytest.fixture
def name(device):  # noqa: F811
    return str(tp.device(f"opencl:{device.info.platform}"))


def matrix(dtype="float32"):
    return np.linspace(-1.0, 2.0, 12, dtype=dtype).reshape(3, 4)


# ---- where a tensor is


def test_there_and_back(name):
    x = tp.tensor(matrix())
    there = x.to(name)
    assert (x.device, there.device, there.to("cpu").device) == ("cpu", name, "cpu")
    assert there.device.kind in ("cpu", "gpu", "accelerator") and there.shape == x.shape and there.dtype == x.dtype
    assert there.numpy().tobytes() == there.to("cpu").numpy().tobytes() == x.numpy().tobytes()
    assert there.to(name) is not there and there.to(name).tolist() == x.tolist()
    assert not there.numpy().flags.writeable and there.numpy(copy=True).flags.writeable


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float32"])
def test_dtypes_and_layouts_travel(name, dtype):
    x = tp.tensor(np.arange(24).reshape(2, 3, 4).astype(dtype))
    for view in (x, x.mT, x[::-1, 1:], tp.broadcast_to(x[0], (5, 3, 4)), x[:, :0], x[1, 2, 3]):
        there = view.to(name)
        assert there.dtype == view.dtype and np.array_equal(there.numpy(), view.numpy())
        assert np.array_equal(there.to("cpu").numpy(), view.numpy())


def test_looks(name):
    x = tp.tensor([[1.5, -2.0], [0.0, 4.0]], device=name)
    assert x[1, 1].item() == float(x[1, 1]) == 4.0 and int(x[1, 1]) == 4 and bool(x[1, 1])
    assert x.tolist() == [[1.5, -2.0], [0.0, 4.0]] and np.asarray(x).shape == (2, 2)
    assert f"device='{name}'" in repr(x) and f"{x[0, 0]:.2f}" == "1.50"
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(x, copy=False)
    with pytest.raises(BufferError, match=r"to\('cpu'\)"):
        x.__dlpack__()
    assert x.__dlpack_device__()[0] == 4


def test_creation(name):
    makers = [
        lambda **k: tp.zeros((2, 3), **k),
        lambda **k: tp.ones(3, dtype="int32", **k),
        lambda **k: tp.full((2,), 7.5, **k),
        lambda **k: tp.arange(5, **k),
        lambda **k: tp.linspace(0.0, 1.0, 4, **k),
        lambda **k: tp.eye(3, **k),
        lambda **k: tp.tensor([[1.0, 2.0]], **k),
        lambda **k: tp.asarray(matrix(), **k),
        lambda **k: tp.asarray(tp.ones(2), **k),
    ]
    for make in makers:
        here, there = make(), make(device=name)
        assert there.device == name and here.device == "cpu" and there.tolist() == here.tolist()
        assert there.dtype == here.dtype
    for make in makers[:-1]:
        with tp.default_device(name) as default:
            made, asked = make(), make(device="cpu")
        assert default == name and made.device == name and asked.device == "cpu" and make().device == "cpu"
    x = tp.zeros(3, device=name)
    for like in (tp.zeros_like, tp.ones_like, tp.empty_like):
        assert like(x).device == name and like(x, device="cpu").device == "cpu"
    assert tp.full_like(x, 2.0).tolist() == [2.0] * 3 and tp.tensor(x).device == name and x.clone().device == name
    assert tp.empty((2, 2), device=name).shape == (2, 2) and tp.ones(2, device=name, requires_grad=True).is_leaf


def test_the_default_device_is_of_a_thread(name):
    seen = []
    with tp.default_device(name):
        other = threading.Thread(target=lambda: seen.append(tp.zeros(1).device))
        other.start()
        other.join()
        with tp.default_device("cpu"):
            seen.append(tp.zeros(1).device)
        seen.append(tp.zeros(1).device)
        with pytest.raises(ZeroDivisionError), tp.default_device("cpu"):
            raise ZeroDivisionError
        seen.append(tp.zeros(1).device)
    assert seen == ["cpu", "cpu", name, name] and tp.zeros(1).device == "cpu"


@pytest.mark.parametrize("wrong", ["cuda", "opencl:99", "opencl:no such card", "", 3])
def test_a_device_that_is_not_there(name, wrong):
    for ask in (
        lambda: tp.zeros(3, device=wrong),
        lambda: tp.ones(3).to(wrong),
        lambda: tp.default_device(wrong).__enter__(),
        lambda: nn.Linear(2, 2).to(wrong),
    ):
        with pytest.raises(DeviceError):
            ask()
    assert tp.zeros(1).device == "cpu"


def test_float64_where_there_is_none(name, device):  # noqa: F811
    if device.fp64:
        assert tp.ones(3, dtype="float64", device=name).dtype == np.float64
        return
    x = tp.ones(3, device=name)
    for ask in (
        lambda: tp.ones(3, dtype="float64").to(name),
        lambda: tp.ones(3, dtype="float64", device=name),
        lambda: x.astype("float64"),
        lambda: x + np.ones(3),
    ):
        with pytest.raises(DeviceError, match="has no float64"):
            ask()
    assert (x * 2.5).dtype == np.float32


# ---- what may meet


def test_devices_do_not_mix(name):
    here, there = tp.ones(3), tp.ones(3, device=name)
    index = tp.tensor([0, 1])
    w, t = tp.ones((3, 3)), tp.ones((3, 3), device=name)
    for op in (
        lambda: here + there,
        lambda: there * here,
        lambda: tp.where(here > 0, there, there),
        lambda: w @ t,
        lambda: tp.concat([here, there]),
        lambda: there[index],
        lambda: here[index.to(name)],
        lambda: tp.take(here, index.to(name), axis=0),
        lambda: tp.index_add(there, 0, index.to(name), tp.ones(2)),
        lambda: tp.layer_norm(t, weight=here),
        lambda: there.assign(here),
        lambda: here.assign(there),
        lambda: there.__setitem__(slice(None), here),
        lambda: here.__setitem__(slice(None), there),
        lambda: here.__iadd__(there),
        lambda: there.__iadd__(here),
        lambda: tp.searchsorted(there, here),
        lambda: tp.vecdot(here, there),
    ):
        with pytest.raises(DeviceError, match="cpu") as error:
            op()
        assert name in str(error.value)
    assert here.tolist() == there.tolist() == [1.0] * 3 and (here.device, there.device) == ("cpu", name)


def test_numbers_and_pythons_data_go_along(name):
    x = tp.tensor([1.0, 2.0, 3.0], device=name)
    assert (x * 2 + 1.5).tolist() == [3.5, 5.5, 7.5] and (2 - x).tolist() == [1.0, 0.0, -1.0]
    assert (x * tp.tensor(3.0)).tolist() == [3.0, 6.0, 9.0]
    assert (x + np.float32([1, 1, 1])).tolist() == tp.add(x, [1.0, 1.0, 1.0]).tolist() == [2.0, 3.0, 4.0]
    assert x[[2, 0]].tolist() == x[np.array([2, 0])].tolist() == [3.0, 1.0]
    assert x[np.array([True, False, True])].tolist() == [1.0, 3.0] and tp.repeat(x, [1, 0, 2]).tolist() == [
        1.0,
        3.0,
        3.0,
    ]
    assert tp.tril(tp.ones((2, 2), device=name)).tolist() == [[1.0, 0.0], [1.0, 1.0]]
    for y in (x * 2, x[[0]], x * tp.tensor(3.0), tp.where([True, False, True], x, 0.0)):
        assert y.device == name


def test_numbers_of_the_cpu_that_are_trained(name):
    """Their gradients come back to them, through whatever they were computed by."""
    w = tp.tensor([1.0, 2.0], requires_grad=True)
    s = tp.tensor(3.0, requires_grad=True)
    x = tp.tensor([1.0, 2.0, 4.0], device=name, requires_grad=True)
    loss = (x * (w * w).sum() * s).sum()
    loss.backward()
    assert (w.grad.device, s.grad.device, x.grad.device) == ("cpu", "cpu", name)
    assert w.grad.tolist() == [42.0, 84.0] and s.grad.item() == 35.0 and x.grad.tolist() == [15.0] * 3


def test_gradients_cross_devices(name):
    x = tp.tensor(matrix(), requires_grad=True)
    there = x.to(name)
    y = (tp.tanh(there) * 2.0).to("cpu")
    (y * y).sum().backward()
    t = np.tanh(matrix())
    assert x.grad.device == "cpu" and np.allclose(x.grad.numpy(), 8 * t * (1 - t * t), atol=1e-6)
    g = tp.grad(lambda a: (a.to(name) ** 3).sum())(tp.tensor([2.0]))
    assert g.device == "cpu" and g.tolist() == [12.0]
    h = tp.hessian(lambda a: (a.to(name) ** 3).sum())(tp.tensor([2.0, 3.0]))
    assert h.tolist() == [[12.0, 0.0], [0.0, 18.0]]


def test_seeds_and_grads_stay_beside_their_tensors(name):
    x = tp.tensor([1.0, 2.0], device=name, requires_grad=True)
    (x * x).backward([1.0, 10.0])
    assert x.grad.tolist() == [2.0, 40.0] and x.grad.device == name
    (x * x).backward(tp.tensor([1.0, 1.0], device=name))
    assert x.grad.tolist() == [4.0, 44.0]
    with pytest.raises(DeviceError, match="backward"):
        (x * x).backward(tp.tensor([1.0, 1.0]))
    assert x.grad.tolist() == [4.0, 44.0]


# ---- writes


def test_writes(name):
    x = tp.arange(6.0, device=name).reshape(2, 3)
    y = x.clone()
    y[0] = 7.0
    y[:, 1] = [8.0, 9.0]
    y[1, 2] += 1.0
    y[y > 8.5] = 0.0
    y[[0, 0], [0, 2]] = np.float32([1.0, 2.0])
    expected = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    expected[0] = 7.0
    expected[:, 1] = [8.0, 9.0]
    expected[1, 2] += 1.0
    expected[expected > 8.5] = 0.0
    expected[[0, 0], [0, 2]] = [1.0, 2.0]
    assert y.tolist() == expected.tolist() and y.device == name and x.tolist() == [[0, 1, 2], [3, 4, 5]]
    y += 1
    y *= tp.tensor(2.0)
    assert y.tolist() == ((expected + 1) * 2).tolist()
    y.assign(3.0)
    assert y.tolist() == [[3.0] * 3] * 2 and y.device == name
    y.zero_()
    assert y.device == name and not y.any()
    with pytest.raises(ShapeError):
        y.assign([1.0, 2.0])
    assert not y.any()


def test_copies_and_pickles(name):
    x = tp.tensor([1.0, 2.0], device=name, requires_grad=True)
    (x * x).sum().backward()
    for twin in (copy.copy(x), copy.deepcopy(x)):
        assert twin.device == name and twin.tolist() == x.tolist() and twin.requires_grad
    assert copy.deepcopy(x).grad.device == name
    read = pickle.loads(pickle.dumps(x))
    assert read.tolist() == x.tolist() and read.requires_grad and read.device == "cpu"


# ---- ops that depend on data, and errors


def test_masks_and_positions(name):
    a = np.float32([[0, 3, 0], [5, 0, 7]])
    x = tp.tensor(a, device=name)
    assert [i.tolist() for i in tp.nonzero(x)] == [i.tolist() for i in np.nonzero(a)]
    assert tp.argwhere(x).tolist() == np.argwhere(a).tolist() and x[x > 4].tolist() == [5.0, 7.0]
    w = tp.tensor(a, device=name, requires_grad=True)
    w[w > 4].sum().backward()
    assert w.grad.tolist() == (a > 4).astype(float).tolist()
    assert tp.unique_values(x).tolist() == [0.0, 3.0, 5.0, 7.0]


def test_errors_are_the_cpus(name):
    def message(call, x):
        with pytest.raises(Exception) as error:
            call(x)
        return type(error.value), str(error.value)

    for call in (
        lambda x: x[[0, 5]],
        lambda x: x[7],
        lambda x: tp.take(x, tp.tensor([-4], device=x.device), axis=0),
        lambda x: x @ x[:2],
        lambda x: x + x[:2],
        lambda x: tp.cross_entropy(x.reshape(1, 3), tp.tensor([3], device=x.device)),
        lambda x: tp.one_hot(tp.tensor([4], device=x.device), 3),
        lambda x: x.reshape(2, 2),
        lambda x: tp.max(x[:0]),
        lambda x: x.backward(),
        lambda x: x << 1,
    ):
        assert message(call, tp.ones(3)) == message(call, tp.ones(3, device=name))


def test_trace_nan(name):
    x = tp.tensor([1.0, 0.0], device=name)
    with pytest.raises(NonFiniteError, match="log"), tp.trace_nan():
        tp.log(x)
    w = tp.tensor([0.0, 1.0], device=name, requires_grad=True)
    with pytest.raises(NonFiniteError, match="sqrt"), tp.trace_nan():
        tp.sqrt(w).sum().backward()


def test_memory_goes_back_and_a_limit_holds(name, device):  # noqa: F811
    x = tp.ones(1000, device=name)
    _core.place_of(x).sync()
    before = device.pool.live
    for _ in range(3):
        y = tp.exp(x) + x
        w = x.detach().requires_grad_()
        (w * w).sum().backward()
        del y, w
    assert device.pool.live == before
    limit = device.memory_limit
    device.memory_limit = before + 8192
    try:
        with pytest.raises(DeviceOutOfMemory, match="exp"):
            tp.exp(tp.broadcast_to(x, (1000, 1000)))
        assert tp.exp(x[:3]).shape == (3,)
    finally:
        device.memory_limit = limit
    assert device.pool.live == before


# ---- draws, modules, optimizers


def test_draws_have_the_cpus_bits(name):
    for draw in (
        lambda g, **k: g.uniform(shape=(5, 3), dtype="float32", **k),
        lambda g, **k: g.integers(0, 100, shape=(40,), **k),
        lambda g, **k: g.permutation(20, **k),
        lambda g, **k: g.bernoulli(0.3, shape=(50,), **k),
    ):
        here, there = tp.random.Generator(3), tp.random.Generator(3)
        a, b = draw(here), draw(there, device=name)
        assert b.device == name and a.tolist() == b.tolist() and here.state == there.state
        with tp.default_device(name):
            assert draw(there).device == name
    x = tp.ones((4, 5), device=name)
    assert tp.dropout(x, 0.5, generator=tp.random.Generator(1)).tolist() == (
        tp.dropout(x.to("cpu"), 0.5, generator=tp.random.Generator(1)).tolist()
    )
    assert tp.random.normal(tp.zeros(3, device=name), 1.0).device == name


def trained(where, kind, frozen=False):
    """Losses and weights of a few steps of a small network, made where it is trained."""
    with tp.default_device(where):
        rng = tp.random.Generator(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Dropout(0.1), nn.Linear(8, 3))
        with tp.no_grad():
            for p in model.parameters():
                p.assign(rng.uniform(-0.5, 0.5, shape=p.shape, dtype="float32"))
        opt = kind(model.parameters())
        x = rng.uniform(-1.0, 1.0, shape=(6, 4), dtype="float32")
        labels = rng.integers(0, 3, shape=(6,))
        tp.random.manual_seed(7)

        def step():
            opt.zero_grad()
            loss = tp.cross_entropy(model(x), labels)
            loss.backward()
            optim.clip_grad_norm(model.parameters(), 1.0)
            opt.step()
            return loss

        run = tp.function(step) if frozen else step
        losses = [run().item() for _ in range(4)]
    return losses, model


@pytest.mark.parametrize("frozen", [False, True], ids=["eager", "frozen"])
@pytest.mark.parametrize(
    "kind",
    [
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: optim.Adam(p, lr=optim.linear(0.05, 0.01, 10)),
        lambda p: optim.AdamW(p, lr=0.05, weight_decay=0.1),
        lambda p: optim.RMSprop(p, lr=0.05),
    ],
    ids=["sgd", "adam", "adamw", "rmsprop"],
)
def test_training_has_the_cpus_losses(name, kind, frozen):
    (here, model), (there, moved) = trained("cpu", kind), trained(name, kind, frozen)
    assert np.allclose(here, there, rtol=2e-5)
    for p, q in zip(model.parameters(), moved.parameters()):
        assert q.device == name and q.grad.device == name and np.allclose(p.numpy(), q.numpy(), atol=2e-5)


def test_a_module_moves(name):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    x = tp.ones((2, 3))
    expected = model(x).numpy()
    (model(x) ** 2).sum().backward()
    weights = list(model.parameters())
    assert model.to(name) is model and all(p is q for p, q in zip(weights, model.parameters()))
    assert all(p.device == name == p.grad.device and p.is_leaf and p.requires_grad for p in weights)
    assert np.allclose(model(x.to(name)).numpy(), expected, atol=1e-6)
    state = model.state_dict()
    other = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    other.load_state_dict(state)
    assert next(other.parameters()).device == "cpu" and np.allclose(other(x).numpy(), expected, atol=1e-6)
    model.load_state_dict(other.state_dict())
    assert next(model.parameters()).device == name
    model.to("cpu")
    assert np.allclose(model(x).numpy(), expected, atol=1e-6)


def test_a_module_moves_whole_or_not_at_all(name, device):  # noqa: F811
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(1000, 1000))
    limit = device.memory_limit
    device.memory_limit = device.pool.live + 100_000
    try:
        with pytest.raises(DeviceOutOfMemory):
            model.to(name)
    finally:
        device.memory_limit = limit
    assert all(p.device == "cpu" for p in model.parameters())


# ---- plans


def test_a_plan_of_the_cpu_takes_tensors_of_a_device(name):
    plan = tp.freeze(lambda x: tp.tanh(x * 2) + 1, tp.ones((3, 4)))
    x = tp.tensor(matrix(), device=name)
    y = plan(x)
    assert y.device == name and np.allclose(y.numpy(), np.tanh(matrix() * 2) + 1, atol=1e-6)
    assert plan(tp.tensor(matrix())).device == "cpu"
    f = tp.function(lambda x: (x * x).sum())
    assert f(x).device == name and f(x.to("cpu")).device == "cpu"
    mapped = tp.vmap(lambda row: tp.softmax(row))(x)
    assert mapped.device == name and np.allclose(mapped.numpy(), tp.softmax(x.to("cpu"), axis=-1).numpy(), atol=1e-6)


def test_a_plan_does_not_write_half(name):
    w = tp.tensor([1.0, 2.0])
    plan = tp.freeze(lambda x: w.assign_add(x), tp.ones(2))
    with pytest.raises(DeviceError):
        plan(tp.ones(2, device=name))
    assert w.tolist() == [1.0, 2.0]


def test_a_move_is_not_recorded(name):
    with pytest.raises(PlanError, match="moved from one device to another"):
        tp.freeze(lambda x: (x.to(name) * 2).to("cpu"), tp.ones(3))
