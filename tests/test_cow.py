"""Copy on write, at random: tensors, views, writes, exports and gradients against NumPy arrays that are never shared.

Each tensor has a model, a plain copy. After every step each tensor equals its model, each export what it was when it
was taken, and a gradient is that of the values at the time of recording, whatever was written since. All values are
small whole numbers, so equality is exact.
"""

import copy
import operator
import pickle

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import tapeflow as tp
from tapeflow.testing.programs import INDICES, index

LIMIT = 1e6
SHAPES = ((), (1,), (4,), (2, 3), (3, 2), (2, 1, 2), (0, 2))
INDEX = (*map(index, INDICES), (), 2, (None, slice(0, 2)), (slice(1, None), [0, 0]))
VIEWS = {
    "detach": (lambda t: t.detach(), np.copy),
    "clone": (lambda t: t.clone(), np.copy),
    "copy": (copy.copy, np.copy),
    "deepcopy": (copy.deepcopy, np.copy),
    "pickle": (lambda t: pickle.loads(pickle.dumps(t)), np.copy),
    "tensor": (tp.tensor, np.copy),
    "flatten": (lambda t: t.reshape((-1,)), lambda m: m.reshape(-1)),
    "transpose": (lambda t: tp.permute_dims(t, tuple(range(t.ndim))[::-1]), np.transpose),
    "broadcast": (lambda t: tp.broadcast_to(t, (2, *t.shape)), lambda m: np.broadcast_to(m, (2, *m.shape))),
    "expand": (lambda t: tp.expand_dims(t, axis=0), lambda m: m[None]),
    "astype": (lambda t: t.astype(tp.float64), np.copy),
    "export": (lambda t: tp.asarray(t.numpy(), copy=False), np.copy),
    "dlpack": (lambda t: tp.from_dlpack(np.from_dlpack(t)), np.copy),
}
EXPORTS = {
    "numpy": lambda t: t.numpy(),
    "asarray": np.asarray,
    "from_dlpack": np.from_dlpack,
    "part": lambda t: t.numpy().T[..., ::-1] if t.ndim else t.numpy(),
    "buffer": lambda t: np.asarray(memoryview(t.numpy())),
}
OPERATORS = {"add": operator.iadd, "sub": operator.isub, "mul": operator.imul}

picks = st.integers(0, 30)
amounts = st.integers(-2, 2)


class Slot:
    """A tensor, what it must hold, and the gradient that has been added to it so far."""

    def __init__(self, tensor, model):
        self.tensor, self.model = tensor, model
        self.grad = np.zeros(self.model.shape) if tensor.requires_grad else None

    def __setattr__(self, name, value):
        """Models are arrays of their own, also the 0-d ones, which NumPy likes to turn into scalars."""
        super().__setattr__(name, value if name == "tensor" or value is None else np.array(value, float))


class CopyOnWrite(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.slots, self.exports, self.losses, self.owners = [], [], [], []
        self.make(2, 1, False)

    # ---- helpers ----

    def pick(self, i):
        return self.slots[-1 - i % len(self.slots)]

    def leaf(self, i):
        leaves = [s for s in self.slots if s.grad is not None]
        return leaves[i % len(leaves)]

    def has_leaf(self):
        return any(s.grad is not None for s in self.slots)

    def add(self, tensor, model):
        if model.size <= 40 and model.ndim <= 4:
            self.slots = [*self.slots[-7:], Slot(tensor, model)]

    def fitting(self, slot, j, amount):
        """A value that can be written over the slot, and its model: another slot's, the slot's own, or a number."""
        other = self.pick(j)
        try:
            fits = np.broadcast_shapes(other.model.shape, slot.model.shape) == slot.model.shape
        except ValueError:
            fits = False
        return (other.tensor, other.model.copy()) if fits else (amount, amount)

    @staticmethod
    def small(model):
        return not model.size or np.abs(model).max() < LIMIT

    # ---- making ----

    @rule(shape=st.integers(0, len(SHAPES) - 1), first=amounts, requires_grad=st.booleans())
    def make(self, shape, first, requires_grad):
        source = (np.arange(np.prod(SHAPES[shape], dtype=int)) % 5.0 + first).reshape(SHAPES[shape])
        self.add(tp.tensor(source, requires_grad=requires_grad), source)
        source += 1  # the tensor is a copy

    @rule(i=picks, view=st.sampled_from(sorted(VIEWS)))
    def view(self, i, view):
        make, model = VIEWS[view]
        with tp.no_grad():
            slot = self.pick(i)
            t = make(slot.tensor)
        if t.requires_grad:  # of a leaf with copy or pickle
            t.requires_grad_(False)
        assert t is not slot.tensor
        self.add(t, model(slot.model))

    @rule(i=picks, index=st.sampled_from(INDEX))
    def index(self, i, index):
        slot = self.pick(i)
        try:
            model = slot.model[index]
        except IndexError:
            with pytest.raises(IndexError):
                slot.tensor[index]
            return
        with tp.no_grad():
            self.add(slot.tensor[index], np.asarray(model))

    @rule(i=picks, export=st.sampled_from(sorted(EXPORTS)))
    def export(self, i, export):
        with tp.no_grad():
            array = EXPORTS[export](self.pick(i).tensor)
        self.exports = [*self.exports[-7:], (array, array.copy())]

    @rule(i=picks)
    def drop(self, i):
        if len(self.slots) > 1:
            del self.slots[i % len(self.slots)]

    # ---- writing ----

    @rule(i=picks, j=picks, amount=amounts, op=st.sampled_from(sorted(OPERATORS)))
    def update(self, i, j, amount, op):
        slot = self.pick(i)
        value, model = self.fitting(slot, j, amount)
        want = OPERATORS[op](slot.model.copy(), model)
        if self.small(want):
            with tp.no_grad():
                assert OPERATORS[op](slot.tensor, value) is slot.tensor
            slot.model = want

    @rule(i=picks, j=picks, amount=amounts, index=st.sampled_from(INDEX))
    def set_item(self, i, j, amount, index):
        slot = self.pick(i)
        try:
            part = slot.model[index]
        except IndexError:
            with pytest.raises(IndexError), tp.no_grad():
                slot.tensor[index] = amount
            return
        value, model = self.fitting(Slot(tp.zeros(()), part), j, amount)
        slot.model[index] = model
        with tp.no_grad():
            slot.tensor[index] = value

    @rule(i=picks, j=picks, amount=amounts, index=st.sampled_from(INDEX), op=st.sampled_from(sorted(OPERATORS)))
    def update_part(self, i, j, amount, index, op):
        slot = self.pick(i)
        try:
            part = np.array(slot.model[index])
        except IndexError:
            return
        value, model = self.fitting(Slot(tp.zeros(()), part), j, amount)
        want = slot.model.copy()
        want[index] = OPERATORS[op](part, model)
        if self.small(want):
            with tp.no_grad():
                slot.tensor[index] = OPERATORS[op](slot.tensor[index], value)
            slot.model = want

    @rule(i=picks, residue=st.integers(0, 2), amount=amounts)
    def set_mask(self, i, residue, amount):
        slot = self.pick(i)
        mask = np.arange(slot.model.size).reshape(slot.model.shape) % 3 == residue
        slot.model[mask] = amount
        with tp.no_grad():
            slot.tensor[tp.tensor(mask)] = amount

    @rule(i=picks, j=picks, amount=amounts, name=st.sampled_from(["assign", "assign_add", "assign_sub", "zero_"]))
    def assign(self, i, j, amount, name):
        slot = self.pick(i)
        value, model = self.fitting(slot, j, amount)
        change = {"assign": 0 * slot.model + model, "assign_add": slot.model + model, "assign_sub": slot.model - model}
        want = change.get(name, 0 * slot.model)
        if self.small(want):
            value = tp.broadcast_to(tp.asarray(value, dtype=tp.float64), slot.model.shape).detach()
            with tp.no_grad():
                slot.tensor.zero_() if name == "zero_" else getattr(slot.tensor, name)(value)
            slot.model = want

    @rule(i=picks, amount=amounts)
    def foreign_write(self, i, amount):
        """Memory of NumPy's: its owner's writes show until ours, then never again."""
        owner = self.pick(i).model.copy()
        t = tp.asarray(owner, copy=False)
        owner += amount
        assert t.tolist() == owner.tolist()
        with tp.no_grad():
            t += 1.0
        assert t.size == 0 or not np.shares_memory(t.numpy(), owner)
        self.add(t, owner + 1)

    # ---- gradients ----

    @precondition(has_leaf)
    @rule(i=picks, j=picks, amount=amounts, kind=st.sampled_from(["product", "write", "mask", "matmul", "view"]))
    def record(self, i, j, amount, kind):
        slot = self.leaf(i)
        x, m = slot.tensor, slot.model.copy()
        c, cm = self.fitting(slot, j, amount)
        if not isinstance(c, int):
            c = c.detach()
        if kind == "product":
            loss, gradient = (x * x * c).sum(), 2 * m * cm + 0 * m
        elif kind == "write":
            y = x * 1.0
            y[...] = c
            y *= 2.0
            y += x * x
            loss, gradient = (y * y).sum(), 4 * m * (2 * cm + m * m)
        elif kind == "mask":
            mask = np.arange(m.size).reshape(m.shape) % 2 == 0
            y = x * 3.0
            y[tp.tensor(mask)] = amount
            loss, gradient = (y * x).sum(), np.where(mask, amount, 6 * m)
        elif kind == "matmul":
            row = x.reshape((1, -1))
            loss, gradient = (row @ row.T).sum(), 2 * m
        else:
            y = x.reshape((-1,))[::-1] * 1.0
            y[1:] += y[:-1]
            flat = m.reshape(-1)[::-1]
            gradient = np.ones(flat.shape) + (np.arange(flat.size) < flat.size - 1)
            loss, gradient = y.sum(), gradient[::-1].reshape(m.shape)
        self.losses = [*self.losses[-3:], (loss, slot, np.broadcast_to(gradient, m.shape))]

    @precondition(lambda self: self.losses)
    @rule(i=picks, create_graph=st.booleans(), again=st.booleans())
    def backward(self, i, create_graph, again):
        loss, slot, gradient = self.losses.pop(i % len(self.losses))
        for _ in range(1 + again):
            loss.backward(create_graph=create_graph, retain_graph=again)
            slot.grad = slot.grad + gradient
        if create_graph:
            slot.tensor.grad = slot.tensor.grad.detach()

    @precondition(has_leaf)
    @rule(i=picks, amount=amounts, how=st.sampled_from(["take", "scale", "write", "clear", "step"]))
    def use_gradient(self, i, amount, how):
        slot = self.leaf(i)
        g = slot.tensor.grad
        if g is None:
            return
        if how == "take":
            self.add(g.detach(), slot.grad)
        elif how == "scale":
            if self.small(slot.grad * amount):
                g *= amount
                slot.grad = slot.grad * amount
        elif how == "write":
            g[...] = amount
            slot.grad = np.full(slot.grad.shape, float(amount))
        elif how == "clear":
            slot.tensor.zero_grad()
            slot.grad = np.zeros(slot.grad.shape)
        elif self.small(slot.model + amount * slot.grad):
            with tp.no_grad():
                slot.tensor += amount * g
            slot.model = slot.model + amount * slot.grad

    # ---- what always holds ----

    @invariant()
    def values_are_the_models(self):
        for slot in self.slots:
            assert slot.tensor.shape == slot.model.shape
            assert slot.tensor.tolist() == slot.model.tolist()
            if slot.grad is not None:
                got = 0 * slot.grad if slot.tensor.grad is None else slot.tensor.grad.numpy()
                assert np.array_equal(got, slot.grad) or not self.small(slot.grad)

    @invariant()
    def exports_never_change(self):
        for array, copied in self.exports:
            assert np.array_equal(array, copied)


TestCopyOnWrite = CopyOnWrite.TestCase
TestCopyOnWrite.settings = settings(stateful_step_count=40, max_examples=4 * settings.default.max_examples)


# What is taken without a copy shows its owner's writes, and so do views of it; nothing else does.
TAKEN = {
    "clone": lambda f: f.clone(),
    "astype": lambda f: f.astype("float64"),
    "astype_function": lambda f: tp.astype(f, "float64"),
    "to": lambda f: f.to("cpu"),
    "pos": operator.pos,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda f: pickle.loads(pickle.dumps(f)),
    "tensor": tp.tensor,
    "asarray": lambda f: tp.asarray(f, copy=True),
    "stacked": lambda f: tp.asarray([f, f])[1],
    "clip": tp.clip,
    "sum_nothing": lambda f: tp.sum(f, axis=()),
    "max_nothing": lambda f: tp.max(f, axis=()),
    "prod_nothing": lambda f: tp.prod(f, axis=()),
    "logsumexp_nothing": lambda f: tp.logsumexp(f, axis=()),
    "broadcast": lambda f: tp.broadcast_to(f, (3,)),
    "concat": lambda f: tp.concat([f]),
    "where": lambda f: tp.where(True, f, 0.0),
    "full": lambda f: tp.full(3, f[0]),
    "take": lambda f: tp.take(f, [0, 1, 2]),
    "index": lambda f: f[[0, 1, 2]],
    "mask": lambda f: f[np.ones(3, bool)],
    "tril": lambda f: tp.tril(f[None])[0, :1],
    "assign": lambda f: tp.zeros(3, dtype="float64").assign(f),
    "assign_view": lambda f: tp.zeros((3, 1), dtype="float64").assign(f[:, None]),
    "assign_broadcast": lambda f: tp.zeros((2, 3), dtype="float64").assign(f),
    "assign_add": lambda f: tp.zeros(3, dtype="float64").assign_add(f),
    "setitem": lambda f: operator.setitem(t := tp.zeros(3, dtype="float64"), slice(None), f) or t,
    "meshgrid_saved": lambda f: tp.meshgrid(f)[0] * 1.0,
    "gradient": lambda f: tp.grad(lambda x: (x * f).sum())(tp.zeros(3, dtype="float64")),
}


@pytest.mark.parametrize("name", sorted(TAKEN))
def test_memory_of_others_shows_in_no_copy(name):
    array = np.ones(3)
    t = TAKEN[name](tp.from_dlpack(array))
    array[:] = 5.0
    assert set(t.numpy().ravel().tolist()) == {1.0}
