"""Modules: what becomes a member and what does not, names, modes, state, copies; layers and initial values against
NumPy; the programs of other frameworks that use a custom layer, a regression, a sequential model."""

import copy
import dataclasses
import math
import pickle
import sys

import numpy as np
import pytest
from helpers import assert_same, close, rng_for

import tapeflow as tp
from tapeflow import _epoch, nn
from tapeflow.errors import NumberRangeError, StateError, TensorIndexError
from tapeflow.nn import init


class Dense(nn.Module):
    """A user's own layer."""

    def __init__(self, n_in, n_out):
        self.w = nn.Parameter(init.kaiming_normal((n_in, n_out), mode="fan_out"))
        self.b = nn.Parameter(tp.zeros(n_out))

    def forward(self, x):
        return x @ self.w + self.b


class RunningMean(nn.Module):
    """A layer with a state that is not trained."""

    def __init__(self, size):
        super().__init__()
        self.register_buffer("mean", tp.zeros(size))
        self.register_buffer("latest", tp.zeros(size), persistent=False)

    def forward(self, x):
        if self.training:
            with tp.no_grad():
                self.latest = tp.mean(x, axis=0)
                self.mean.assign(0.5 * self.mean + 0.5 * self.latest)
        return x - self.mean


@dataclasses.dataclass(eq=False, repr=False)
class Affine(nn.Module):
    """Fields as members, no __init__ at all."""

    factor: tp.Tensor
    inner: nn.Module

    def forward(self, x):
        return self.factor * self.inner(x)


def names(iterator):
    return [name for name, _ in iterator]


# ---- what becomes a member


@pytest.mark.parametrize("call_super", [False, True])
def test_attributes_become_members(call_super):
    class Model(nn.Module):
        def __init__(self):
            if call_super:
                super().__init__()
            self.scale = nn.Parameter(2.0)
            self.bare = tp.zeros(2, requires_grad=True)
            self.layer = nn.Linear(2, 3)
            self.constant = tp.ones(2)
            self.computed = self.scale * 2
            self.name = "model"
            self.numbers = [1, 2]
            self.absent = None

    m = Model()
    assert names(m.named_parameters()) == ["scale", "bare", "layer.weight", "layer.bias"]
    assert names(m.named_parameters(recurse=False)) == ["scale", "bare"]
    assert names(m.named_children()) == ["layer"] and names(m.named_modules()) == ["", "layer"]
    assert list(m.children()) == [m.layer] and list(m.modules()) == [m, m.layer]
    assert not list(m.buffers()) and m.computed.item() == 4.0
    assert list(m.state_dict()) == ["scale", "bare", "layer.weight", "layer.bias"]


def test_parameter():
    source = tp.ones(2)
    p = nn.Parameter(source)
    with tp.no_grad():
        p += 1
    assert p.is_leaf and p.requires_grad and source.tolist() == [1.0, 1.0] and not source.requires_grad
    assert nn.Parameter(np.zeros(2)).dtype == tp.float64 and nn.Parameter(1.0).dtype == tp.float32
    assert not nn.Parameter(p * 2, requires_grad=False).requires_grad
    with pytest.raises(tp.DTypeError, match="int64 cannot require grad"):
        nn.Parameter([1, 2])


def tiny():
    """A module with a parameter p, a buffer b, a child c and a plain attribute."""
    m = nn.Module()
    m.p, m.c, m.plain = nn.Parameter(tp.zeros(2)), nn.Linear(1, 1), 5
    m.register_buffer("b", tp.zeros(2))
    return m


REASSIGNED = {  # (attribute, value) -> names of parameters, buffers, children afterwards; None: refused
    ("p", "parameter"): (["p"], ["b"], ["c"]),
    ("p", "none"): ([], ["b"], ["c"]),
    ("p", "module"): ([], ["b"], ["p", "c"]),
    ("p", "constant"): None,
    ("p", "computed"): None,
    ("p", "number"): None,
    ("b", "constant"): (["p"], ["b"], ["c"]),
    ("b", "parameter"): (["p", "b"], [], ["c"]),
    ("b", "none"): (["p"], [], ["c"]),
    ("b", "number"): None,
    ("c", "module"): (["p"], ["b"], ["c"]),
    ("c", "none"): (["p"], ["b"], []),
    ("c", "parameter"): (["p", "c"], ["b"], []),
    ("c", "constant"): None,
    ("plain", "parameter"): (["p", "plain"], ["b"], ["c"]),
    ("plain", "constant"): (["p"], ["b"], ["c"]),
    ("plain", "module"): (["p"], ["b"], ["c", "plain"]),
    ("new", "computed"): (["p"], ["b"], ["c"]),
}


@pytest.mark.parametrize("name, value", REASSIGNED)
def test_attributes_reassigned(name, value):
    m, p = tiny(), nn.Parameter(tp.ones(2))
    values = dict(parameter=p, constant=tp.ones(2), computed=p * 2, none=None, number=1, module=nn.Identity())
    want = REASSIGNED[name, value]
    if want is None:
        before = getattr(m, name)
        with pytest.raises(tp.DTypeError, match=f"{name!r} is a .*expected.*assign.*del"):
            setattr(m, name, values[value])
        assert getattr(m, name) is before
        want = (["p"], ["b"], ["c"])
    else:
        setattr(m, name, values[value])
        assert getattr(m, name) is values[value]
    assert sorted(names(m.named_parameters(recurse=False))) == sorted(want[0])
    assert names(m.named_buffers()) == want[1] and names(m.named_children()) == want[2]


def test_attributes_deleted_and_written_in_place():
    m = tiny()
    p = m.p
    with tp.no_grad():
        m.p += 1.0
        m.b += 2.0
    assert m.p is p and p.tolist() == [1.0, 1.0] and m.b.tolist() == [2.0, 2.0]
    m.requires_grad_(False)
    m.p -= 1.0  # a frozen parameter is a constant, still the same object
    assert m.p is p and names(m.named_parameters(recurse=False)) == ["p"]
    del m.p, m.b, m.c, m.plain
    assert not m.state_dict() and not list(m.children()) and not hasattr(m, "p")
    m.p = 3
    with pytest.raises(AttributeError, match="nothing"):
        m.nothing  # noqa: B018


def test_members_in_plain_containers_are_refused():
    m, p = nn.Module(), nn.Parameter(1.0)
    for value, remedy in (
        ([nn.Identity()], r"ModuleList\("),
        ((1, nn.Identity()), r"ModuleList\("),
        ({"a": nn.Identity()}, r"ModuleDict\("),
        ([p], "register_parameter"),
    ):
        with pytest.raises(tp.DTypeError, match=remedy):
            m.layers = value
    assert not hasattr(m, "layers")


def test_a_property_of_the_class_is_called():
    class Scaled(nn.Module):
        @property
        def factor(self):
            return self.log.detach()

        @factor.setter
        def factor(self, value):
            self.log = value

    m = Scaled()
    m.factor = nn.Parameter(1.0)
    assert names(m.named_parameters()) == ["log"]


BAD_REGISTRATIONS = {
    "dotted": (lambda m: m.register_parameter("a.b", None), StateError, "without dots"),
    "empty": (lambda m: m.register_buffer("", tp.zeros(1)), StateError, "not empty"),
    "number": (lambda m: m.add_module(3, nn.Identity()), StateError, "a string"),
    "taken": (lambda m: m.register_buffer("plain", tp.zeros(1)), StateError, "has an attribute 'plain' already"),
    "method": (lambda m: m.add_module("train", nn.Identity()), StateError, "has an attribute 'train' already"),
    "computed": (lambda m: m.register_parameter("w", m.p * 2), tp.TapeError, "'w' is a computed tensor"),
    "array": (lambda m: m.register_parameter("w", np.zeros(2)), tp.DTypeError, "expected a Tensor, got ndarray"),
    "buffer array": (lambda m: m.register_buffer("w", 1.0), tp.DTypeError, "expected a Tensor, got float"),
    "trained buffer": (lambda m: m.register_buffer("w", m.p), tp.TapeError, "requires grad; a buffer is not trained"),
    "no module": (lambda m: m.add_module("f", tp.relu), tp.DTypeError, "expected a Module"),
    "in a row": (lambda m: nn.Sequential(nn.Identity(), abs), tp.DTypeError, "expected a Module"),
    "no forward": (lambda m: m(1), NotImplementedError, r"\[Module\] forward is not defined"),
    "no row": (lambda m: nn.Sequential()[0], TensorIndexError, "index 0 is out of range for 0 modules"),
    "features": (lambda m: nn.Linear(2.0, 3), tp.ShapeError, "in_features is 2.0, expected an int"),
    "negative": (lambda m: nn.Embedding(2, -3), tp.ShapeError, "embedding_dim is -3"),
    "probability": (lambda m: nn.Dropout(1.5), NumberRangeError, "p is 1.5"),
    "flat": (lambda m: nn.Flatten(2)(tp.ones(3)), tp.ShapeError, "expected at least 2 axes"),
    "sizes": (lambda m: nn.Linear(2, 3)(tp.ones((4, 5))), tp.ShapeError, "matmul"),
    "ids": (lambda m: nn.Embedding(2, 3)(tp.tensor([2])), IndexError, "2"),
}


@pytest.mark.parametrize("name", BAD_REGISTRATIONS)
def test_errors(name):
    call, kind, message = BAD_REGISTRATIONS[name]
    m = tiny()
    with pytest.raises(kind, match=message):
        call(m)
    assert list(m.state_dict()) == ["p", "b", "c.weight", "c.bias"]


def test_register():
    m = nn.Module()
    for i in range(3):
        m.register_parameter(f"w{i}", nn.Parameter(tp.zeros(1)) if i != 1 else None)
    m.register_parameter("frozen", tp.zeros(1))
    m.add_module("later", None)
    assert names(m.named_parameters()) == ["w0", "w2", "frozen"] and not list(m.children())
    m.later = nn.Identity()
    assert names(m.named_children()) == ["later"]


# ---- what is inside


def test_shared_members_count_once():
    shared = nn.Linear(2, 2)
    m = nn.Sequential(shared, nn.ReLU(), shared)
    m.tied = shared.weight
    assert names(m.named_parameters()) == ["tied", "0.bias"]
    assert sum(p.size for p in m.parameters()) == 6
    assert len(list(m.modules())) == 3 and len(list(m.children())) == 2 and len(m) == 3
    assert list(m.state_dict()) == ["tied", "0.weight", "0.bias", "2.weight", "2.bias"]
    x = tp.ones((1, 2))
    m(x).sum().backward()
    optimizer = tp.optim.SGD(m.parameters(), lr=0.1)
    before, gradient = shared.weight.numpy(copy=True), shared.weight.grad.numpy()
    optimizer.step()
    close(m[2].weight, before - 0.1 * gradient)
    for again in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert again[0] is again[2] and again.tied is again[0].weight and again.tied is not m.tied


def test_circles_end():
    m = nn.Sequential(nn.Linear(1, 1))
    m[0].parent = m
    assert len(list(m.modules())) == 2 and len(list(m.parameters())) == 2
    assert list(m.state_dict()) == ["0.weight", "0.bias"]
    assert "(parent): (...)" in repr(m)
    m.eval()
    assert not m[0].training


def test_apply():
    m = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    seen = []

    def fill(module):
        seen.append(type(module).__name__)
        if isinstance(module, nn.Linear):
            init.constant(module.weight, 0.25)

    assert m.apply(fill) is m
    assert seen == ["Linear", "Linear", "Sequential", "Sequential"]
    assert m[1][0].weight.tolist() == [[0.25, 0.25]] * 2 and m[0].weight.requires_grad


def test_zero_grad_and_requires_grad():
    m = nn.Sequential(Dense(2, 2), nn.Linear(2, 1))
    m[0].requires_grad_(False)
    m(tp.ones((1, 2))).sum().backward()
    assert m[0].w.grad is None and m[1].weight.grad is not None
    m.zero_grad()
    assert m.requires_grad_() is m and all(p.requires_grad and p.grad is None for p in m.parameters())


REPR = """Sequential(
  (first): Linear(in_features=2, out_features=3, bias=False)
  (rest): ModuleList(
    (0): ReLU()
    (1): Dropout(p=0.5)
  )
  (norm): LayerNorm((3,), eps=1e-05, elementwise_affine=True)
  (table): Embedding(4, 3)
  (activation): GELU(approximate='tanh')
)"""


def test_repr():
    rest = nn.ModuleList([nn.ReLU(), nn.Dropout()])
    layers = dict(norm=nn.LayerNorm(3), table=nn.Embedding(4, 3), activation=nn.GELU("tanh"))
    assert repr(nn.Sequential(dict(first=nn.Linear(2, 3, bias=False), rest=rest, **layers))) == REPR
    assert repr(nn.Softmax()) == "Softmax(axis=-1)" and repr(nn.Module()) == "Module()"


# ---- modes


def test_modes():
    m = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
    assert m.training and m.eval() is m and not m[1][0].training
    x = tp.ones(100)
    assert m(x).tolist() == x.tolist()
    m.train()
    assert tp.sum(m(x) == 0).item() > 30
    m[0].training = False
    assert m[1][0].training and not m[0].training


def test_the_epoch_is_a_function_of_the_modes():
    m = nn.Sequential(nn.Dropout(), nn.Linear(1, 1))
    start = _epoch.current()
    m.train()
    assert _epoch.current() == start
    m.eval()
    evaluating = _epoch.current()
    assert evaluating != start
    m.eval()
    assert _epoch.current() == evaluating
    m[0].train()
    assert _epoch.current() not in (start, evaluating)
    m[0].training = False
    assert _epoch.current() == evaluating
    copied = copy.deepcopy(m)
    assert not copied.training
    copied.train()  # another module: it does not undo what m did
    assert _epoch.current() not in (start, evaluating)
    copied.eval()
    m.train()
    assert _epoch.current() == start


# ---- state


def test_state_dict_and_back():
    a, b = (nn.Sequential(Dense(3, 4), RunningMean(4), nn.LayerNorm(4)) for _ in range(2))
    a(tp.random.Generator(0).normal(shape=(5, 3)))
    state = a.state_dict()
    assert list(state) == ["0.w", "0.b", "1.mean", "2.weight", "2.bias"]
    assert names(a.named_buffers()) == ["1.mean", "1.latest"]
    kept = b[0].w
    assert b.load_state_dict(state) == ([], [])
    assert b[0].w is kept and kept.requires_grad and not state["0.w"].requires_grad
    x = tp.random.Generator(1).normal(shape=(2, 3))
    assert_same(b.eval()(x), a.eval()(x))
    with tp.no_grad():
        a[0].w += 1.0
    assert_same(b[0].w, state["0.w"])  # a snapshot: neither follows a
    b.load_state_dict({name: t.numpy().astype(np.float64) for name, t in a.state_dict().items()})
    assert b[0].w.dtype == tp.float32
    assert_same(b[0].w, a[0].w)


def test_a_state_that_does_not_fit_is_named_whole_and_changes_nothing():
    m = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    m.register_buffer("count", tp.tensor(0))
    before = {name: t.tolist() for name, t in m.state_dict().items()}
    state = {
        "0.weight": tp.ones((2, 3)),
        "0.bias": tp.ones(3),
        "1.weight": "text",
        "count": tp.tensor(1.5),
        "extra": tp.ones(1),
    }
    with pytest.raises(StateError) as caught:
        m.load_state_dict(state)
    for part in (
        "[load_state_dict] the state does not fit this Sequential",
        "0.weight has shape (2, 3), here (3, 2)",
        "1.weight is a str",
        "count has dtype float32, here int64",
        "missing: 1.bias",
        "unexpected: extra",
        "strict=False",
    ):
        assert part in str(caught.value), part
    with pytest.raises(StateError, match=r"0\.weight has shape"):
        m.load_state_dict(state, strict=False)
    assert {name: t.tolist() for name, t in m.state_dict().items()} == before
    left = m.load_state_dict({"0.bias": tp.ones(3), "extra": tp.ones(1)}, strict=False)
    assert left.missing_keys == ["count", "0.weight", "1.weight", "1.bias"] and left.unexpected_keys == ["extra"]
    assert m[0].bias.tolist() == [1.0] * 3
    with pytest.raises(tp.DTypeError, match="expected a dict of tensors"):
        m.load_state_dict([1])


def test_files(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "model.safetensors"
    m = nn.Sequential(nn.Linear(2, 3), nn.Embedding(2, 2, dtype="float64"))
    m.register_buffer("scalar", tp.tensor(7))
    m.register_buffer("mask", tp.tensor([True, False]))
    m.register_buffer("transposed", tp.tensor([[1, 2, 3], [4, 5, 6]], dtype="uint8").T)
    m.save(path)
    m.save(str(path))  # replaces
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
    arrays = safetensors.load_file(path)
    assert {name: a.shape for name, a in arrays.items()} == {n: t.shape for n, t in m.state_dict().items()}
    other = copy.deepcopy(m)
    with tp.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.zero_()
    assert other.load(path) == ([], [])
    for name, t in m.state_dict().items():
        assert_same(other.state_dict()[name], t)
    with pytest.raises(StateError, match=r"1\.weight has shape .* missing: 1\.bias, 2\.weight; unexp"):
        nn.Sequential(nn.Flatten(), *m).load(path)


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    m = nn.Linear(1, 1)
    with pytest.raises(FileNotFoundError, match="no file"):
        m.load(tmp_path / "nothing")
    (tmp_path / "broken").write_bytes(b"\xff" * 100)
    with pytest.raises(StateError, match="cannot be read as safetensors"):
        m.load(tmp_path / "broken")
    for name in list(sys.modules):
        if name.split(".")[0] == "safetensors":
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="pip install safetensors"):
        m.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


# ---- copies


def to_and_from_bytes(m):
    return pickle.loads(pickle.dumps(m)).to(tp.empty(0).device)  # what is read is on the cpu


@pytest.mark.parametrize("way", [copy.deepcopy, to_and_from_bytes], ids=["deepcopy", "pickle"])
def test_copies(way):
    m = nn.Sequential(Dense(2, 3), RunningMean(3), nn.Dropout(0.5, generator=tp.random.Generator(1)))
    x = tp.ones((4, 2))
    m(x)
    again = way(m.eval())
    assert_same(again(x), m(x))
    assert names(again.named_parameters()) == names(m.named_parameters()) and not again[2].training
    assert all(p is not q and p.is_leaf and p.requires_grad for p, q in zip(again.parameters(), m.parameters()))
    again[0].w = nn.Parameter(tp.zeros((2, 3)))
    again[0].extra = nn.Parameter(1.0)
    assert m[0].w is not again[0].w and "extra" not in names(m[0].named_parameters())


def test_a_shallow_copy_has_a_register_of_its_own():
    m = nn.Linear(2, 2)
    again = copy.copy(m)
    again.extra = nn.Parameter(1.0)
    assert again.weight is m.weight and names(m.named_parameters()) == ["weight", "bias"]


def test_a_dataclass_is_a_module():
    m = Affine(nn.Parameter(tp.tensor([2.0])), nn.Linear(1, 1))
    assert names(m.named_parameters()) == ["factor", "inner.weight", "inner.bias"]
    assert m(tp.ones((1, 1))).shape == (1, 1)


# ---- containers


def test_rows():
    a, b, c = nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)
    row = nn.Sequential(a, b, c)
    assert row[-1] is c and list(row) == [a, b, c] and list(row[1:]) == [b, c] and isinstance(row[:1], nn.Sequential)
    assert names(row[1:].named_parameters()) == ["1.weight", "1.bias"]
    row[1] = nn.Tanh()
    assert row.append(nn.Identity()) is row and len(row) == 4 and isinstance(row[1], nn.Tanh)
    named = nn.Sequential({"encode": a, "decode": c})
    assert named.encode is a and list(named[:1].state_dict()) == ["encode.weight", "encode.bias"]
    assert named(tp.ones((1, 1))).shape == (1, 1)
    blocks = nn.ModuleList(nn.Linear(1, 1) for _ in range(2)).extend([b])
    assert len(blocks) == 3 and blocks[2] is b and names(blocks.named_parameters())[0] == "0.weight"
    with pytest.raises(NotImplementedError, match=r"\[ModuleList\] forward"):
        blocks(1)


def test_dicts():
    d = nn.ModuleDict({"a": nn.Linear(1, 1)})
    d["b"] = nn.ReLU()
    assert list(d) == d.keys() == ["a", "b"] and len(d) == 2 and "b" in d and "c" not in d
    assert d.values() == [d["a"], d["b"]] and d.items() == [("a", d["a"]), ("b", d["b"])]
    del d["a"]
    assert d.keys() == ["b"] and not list(d.parameters())
    with pytest.raises(KeyError):
        d["a"]


# ---- layers


def test_linear():
    layer = nn.Linear(3, 4, dtype="float64", generator=tp.random.Generator(0))
    x = rng_for("linear").normal(size=(2, 5, 3))
    close(layer(tp.tensor(x)), x @ layer.weight.numpy().T + layer.bias.numpy(), rtol=1e-14)
    assert (layer.weight.shape, layer.bias.shape, layer.weight.dtype) == ((4, 3), (4,), tp.float64)
    again = nn.Linear(3, 4, dtype="float64", generator=tp.random.Generator(0))
    assert_same(again.weight, layer.weight)
    assert nn.Linear(3, 4, bias=False).bias is None and nn.Linear(0, 2)(tp.ones((1, 0))).shape == (1, 2)
    wide = nn.Linear(400, 300)
    for p in wide.parameters():
        assert np.abs(p.numpy()).max() <= 1 / 20 and p.numpy().std() == pytest.approx(1 / 20 / math.sqrt(3), rel=0.1)


def test_embedding():
    layer = nn.Embedding(10, 4)
    ids = tp.tensor([[1, 9], [1, 0]])
    assert_same(layer(ids), layer.weight.numpy()[[[1, 9], [1, 0]]])
    layer(ids).sum().backward()
    assert layer.weight.grad.numpy()[:, 0].tolist() == [1, 2] + [0] * 7 + [1]
    wide = nn.Embedding(300, 100, generator=tp.random.Generator(0)).weight.numpy()
    assert abs(wide.mean()) < 0.02 and wide.std() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("affine", [True, False])
def test_norms(affine):
    x = rng_for("norms").normal(size=(5, 2, 3))
    layer = nn.LayerNorm((2, 3), elementwise_affine=affine, dtype="float64")
    mean, var = x.mean(axis=(1, 2), keepdims=True), x.var(axis=(1, 2), keepdims=True)
    close(layer(tp.tensor(x)), (x - mean) / np.sqrt(var + 1e-5), rtol=1e-12)
    rms = nn.RMSNorm(3, eps=1e-3, elementwise_affine=affine, dtype="float64")
    close(rms(tp.tensor(x)), x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-3), rtol=1e-12)
    assert [len(list(m.parameters())) for m in (layer, rms)] == ([2, 1] if affine else [0, 0])
    assert nn.LayerNorm(3, bias=False).bias is None


def test_dropout_draws_from_its_generator():
    layer = nn.Dropout(0.25, generator=tp.random.Generator(5))
    first, second = layer(tp.ones(1000)), layer(tp.ones(1000))
    assert_same(first, tp.dropout(tp.ones(1000), 0.25, generator=tp.random.Generator(5)))
    assert first.tolist() != second.tolist() and set(np.unique(first.numpy())) == {0.0, np.float32(4 / 3)}


ACTIVATIONS = {
    nn.ReLU(): tp.relu,
    nn.LeakyReLU(0.2): lambda x: tp.leaky_relu(x, 0.2),
    nn.ELU(2.0): lambda x: tp.elu(x, 2.0),
    nn.GELU(): tp.gelu,
    nn.GELU("tanh"): tp.gelu_tanh,
    nn.SiLU(): tp.silu,
    nn.Sigmoid(): tp.sigmoid,
    nn.Tanh(): tp.tanh,
    nn.Softplus(): tp.softplus,
    nn.Softmax(): tp.softmax,
    nn.LogSoftmax(0): lambda x: tp.log_softmax(x, 0),
    nn.Identity(): lambda x: x,
    nn.Flatten(): lambda x: tp.reshape(x, (4, 3)),
    nn.Flatten(0): lambda x: tp.reshape(x, (12,)),
}


@pytest.mark.parametrize("layer", ACTIVATIONS, ids=repr)
def test_activations(layer):
    x = tp.tensor(rng_for("activations").normal(size=(4, 3)))
    assert_same(layer(x), ACTIVATIONS[layer](x))
    assert repr(pickle.loads(pickle.dumps(layer))) == repr(layer)


# ---- initial values

SHAPE = (300, 200)
INITIAL = {  # name -> (call, mean, standard deviation, bounds)
    "zeros": (init.zeros, 0, 0, 0),
    "ones": (init.ones, 1, 0, 1),
    "constant": (lambda t, **k: init.constant(t, -2.0, **k), -2, 0, 2),
    "uniform": (lambda t, **k: init.uniform(t, -3.0, 1.0, **k), -1, 4 / math.sqrt(12), 3),
    "normal": (lambda t, **k: init.normal(t, 2.0, 0.5, **k), 2, 0.5, 6),
    "truncated_normal": (init.truncated_normal, 0, 0.8796, 2),
    "truncated_normal moved": (lambda t, **k: init.truncated_normal(t, 1.0, 0.1, 0.9, 1.3, **k), 1.0283, 0.0785, 1.3),
    "xavier_uniform": (init.xavier_uniform, 0, math.sqrt(2 / 500), math.sqrt(6 / 500)),
    "xavier_normal": (lambda t, **k: init.xavier_normal(t, 5 / 3, **k), 0, 5 / 3 * math.sqrt(2 / 500), 1),
    "kaiming_uniform": (init.kaiming_uniform, 0, math.sqrt(2 / 200), math.sqrt(6 / 200)),
    "kaiming_normal": (lambda t, **k: init.kaiming_normal(t, mode="fan_out", **k), 0, math.sqrt(2 / 300), 1),
    "kaiming linear": (
        lambda t, **k: init.kaiming_uniform(t, nonlinearity="linear", **k),
        0,
        math.sqrt(1 / 200),
        math.sqrt(3 / 200),
    ),
}


@pytest.mark.parametrize("name", INITIAL)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_initial_values(name, dtype):
    call, mean, std, bound = INITIAL[name]
    random = {} if std == 0 else {"generator": tp.random.Generator(3)}
    made = call(SHAPE, dtype=dtype, **random)
    assert made.shape == SHAPE and made.dtype == dtype and not made.requires_grad
    values = made.numpy().astype(float)
    assert abs(values.mean() - mean) <= 5 * std / math.sqrt(values.size) + 1e-12
    assert values.std() == pytest.approx(std, rel=0.02, abs=1e-12) and np.abs(values).max() <= bound
    random = {} if std == 0 else {"generator": tp.random.Generator(3)}
    p = nn.Parameter(tp.full(SHAPE, 9.0, dtype=dtype))
    assert call(p, **random) is p and p.is_leaf and p.requires_grad
    assert_same(p, made)
    if std:
        state = tp.random.default_generator.state
        try:
            tp.random.manual_seed(3)
            assert_same(call(SHAPE, dtype=dtype), made)
            assert call(SHAPE, dtype=dtype).tolist() != made.tolist()
        finally:
            tp.random.default_generator.state = state


def test_the_truncated_normal_keeps_to_its_bounds_and_distribution():
    x = init.truncated_normal(200_000, 0.0, 0.02, -0.03, 0.04, generator=tp.random.Generator(0)).numpy()
    assert x.min() >= -0.03 and x.max() <= 0.04
    phi = np.vectorize(lambda z: 0.5 * (1 + math.erf(z / math.sqrt(2))))
    points = np.linspace(-0.029, 0.039, 9)
    want = (phi(points / 0.02) - phi(-1.5)) / (phi(2.0) - phi(-1.5))
    close([(x <= point).mean() for point in points], want, rtol=0, atol=0.005)
    assert init.truncated_normal(3, 5.0, 0.0).tolist() == [2.0] * 3


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3), (2, 2, 3), (7, 2, 2)])
def test_orthogonal(shape):
    w = init.orthogonal(shape, 2.0, dtype="float64").numpy().reshape(shape[0], -1)
    product = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
    close(product, 4 * np.eye(min(w.shape)), rtol=1e-12, atol=1e-12)


def test_orthogonal_fills_and_repeats():
    made = [init.orthogonal((30, 20), generator=tp.random.Generator(seed)) for seed in (0, 0, 1)]
    assert made[0].tolist() == made[1].tolist() != made[2].tolist() and made[0].dtype == tp.float32
    p = nn.Parameter(tp.zeros((30, 20)))
    assert init.orthogonal(p, generator=tp.random.Generator(0)) is p and p.requires_grad
    assert_same(p, made[0])
    signs = np.mean([init.orthogonal((1, 1), generator=tp.random.Generator(seed)).item() for seed in range(100)])
    assert abs(signs) < 0.4  # uniform over both, not always 1


def test_fans():
    for shape, fan_in, fan_out in (((3, 5), 5, 3), ((2, 3, 4, 5), 60, 40)):
        for mode, fan in (("fan_in", fan_in), ("fan_out", fan_out)):
            w = init.kaiming_uniform(shape, 1.0, mode, generator=tp.random.Generator(0))
            u = init.uniform(shape, -1.0, 1.0, generator=tp.random.Generator(0))
            close(w, u.numpy() * math.sqrt(3 / fan), rtol=1e-6)
    assert init.calculate_gain("tanh") == 5 / 3 and init.calculate_gain("relu") == math.sqrt(2)


INITIAL_ERRORS = {
    "no fans": (lambda: init.xavier_uniform(3), tp.ShapeError, r"shape \(3,\) has no fans"),
    "no matrix": (lambda: init.orthogonal((3,)), tp.ShapeError, "not that of a matrix"),
    "mode": (lambda: init.kaiming_normal((2, 2), mode="in"), tp.DTypeError, "mode is 'in'"),
    "gain": (lambda: init.kaiming_normal((2, 2), nonlinearity="mish"), tp.DTypeError, "'mish' is not known"),
    "integers": (lambda: init.normal((2, 2), dtype="int64"), tp.DTypeError, "dtype is int64"),
    "two dtypes": (lambda: init.zeros(tp.zeros(2), dtype="float32"), tp.DTypeError, "dtype is for new tensors"),
    "std": (lambda: init.normal((2, 2), std=-1.0), NumberRangeError, "scale is -1"),
    "std of truncated": (lambda: init.truncated_normal(3, std=-1.0), NumberRangeError, "std is -1"),
    "far bounds": (lambda: init.truncated_normal(3, low=9.0, high=10.0), NumberRangeError, "Move the bounds"),
}


@pytest.mark.parametrize("name", INITIAL_ERRORS)
def test_errors_of_initial_values(name):
    call, kind, message = INITIAL_ERRORS[name]
    with pytest.raises(kind, match=message):
        call()


# ---- programs


def test_a_sequential_model_with_a_custom_layer():
    """784-64-10 with layers of one's own: names, shapes, and it learns."""

    class MyLinear(nn.Module):
        def __init__(self, in_features, units):
            super().__init__()
            self.weight = nn.Parameter(init.normal((in_features, units), std=0.05, generator=tp.random.Generator(1)))
            self.bias = nn.Parameter(tp.zeros(units))

        def forward(self, x):
            return tp.relu(x @ self.weight + self.bias)

    net = nn.Sequential(MyLinear(784, 64), nn.Linear(64, 10, generator=tp.random.Generator(2)))
    shapes = {name: p.shape for name, p in net.named_parameters()}
    assert shapes == {"0.weight": (784, 64), "0.bias": (64,), "1.weight": (10, 64), "1.bias": (10,)}
    rng = tp.random.Generator(0)
    x, labels = rng.normal(shape=(40, 784)), rng.integers(10, shape=(40,))
    optimizer = tp.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = tp.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 2 and losses[-1] < 0.05
    assert tp.argmax(net(x), axis=1).tolist() == labels.tolist()


def test_the_regression_of_pytorch():
    """nn.Linear, mean squared error and SGD find y = 3 x + 2; by hand, with no_grad, the same numbers come out."""
    rng = tp.random.Generator(0)
    x = rng.uniform(-1, 1, (100, 1))
    y = 3 * x + 2 + 0.01 * rng.normal(shape=(100, 1))
    model = nn.Linear(1, 1, generator=rng)
    w, b = (p.detach().clone().requires_grad_() for p in model.parameters())
    optimizer = tp.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(200):
        loss = tp.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tp.mse_loss(x @ w.T + b, y).backward()
        with tp.no_grad():
            for p in (w, b):
                p -= 0.1 * p.grad
                p.grad.zero_()
    assert loss.item() < 2e-4 and model.weight.item() == pytest.approx(3, abs=0.02)
    assert model.bias.item() == pytest.approx(2, abs=0.01)
    assert_same(w, model.weight)
    assert_same(b, model.bias)


def test_a_tape_and_grad_reach_the_parameters():
    model, x = nn.Linear(2, 1, dtype="float64"), tp.tensor([[1.0, 2.0]], dtype="float64")
    with tp.Tape() as tape:
        y = tp.sum(model(x) ** 2)
    want = tape.gradient(y, list(model.parameters()))
    tp.sum(model(x) ** 2).backward()
    for p, g in zip(model.parameters(), want, strict=True):
        assert_same(p.grad, g)


def test_nn_and_optim_are_imported_when_asked_for():
    assert {"nn", "optim"} <= set(dir(tp))
    with pytest.raises(AttributeError, match="no attribute 'nm'"):
        tp.nm  # noqa: B018
