"""Arguments and results in containers of other classes than tuple, list and dict."""

import collections

import pytest

import tapeflow as tp


class Pair(tuple):
    """A tuple with a constructor of its own, which knows its items by name."""

    def __new__(cls, a, b):
        return super().__new__(cls, (a, b))

    a = property(lambda self: self[0])
    b = property(lambda self: self[1])


class Stack(list):
    def __init__(self, *items):
        super().__init__(items)

    a = property(lambda self: self[0])
    b = property(lambda self: self[1])


Named = collections.namedtuple("Named", "a b")


def default(a, b):
    made = collections.defaultdict(list)
    made.update(a=a, b=b)
    return made


def counter(a, b):
    return collections.Counter({"a": a, "b": b})


def ordered(a, b):
    return collections.OrderedDict(b=b, a=a)


MAKERS = {"named": Named, "tuple": Pair, "list": Stack, "defaultdict": default, "Counter": counter, "ordered": ordered}


def parts(tree):
    return (tree["a"], tree["b"]) if isinstance(tree, dict) else (tree.a, tree.b)


@pytest.mark.parametrize("name", MAKERS)
def test_containers_of_other_classes(name):
    make = MAKERS[name]
    tree = make(2.0, 3.0)

    def product(p):
        a, b = parts(p)
        return a * a * b

    def both(p):
        a, b = parts(p)
        return make(a * 10.0, b * 10.0)

    ways = {
        "grad": (tp.grad(product)(tree), (12.0, 4.0)),
        "vjp": (tp.vjp(product, tree)[1](1.0)[0], (12.0, 4.0)),
        "hvp": (tp.hvp(product, (tree,), (make(1.0, 0.0),))[0], (6.0, 4.0)),
        "freeze": (tp.freeze(both, tree)(tree), (20.0, 30.0)),
        "function": (tp.function(both)(tree), (20.0, 30.0)),
        "checkpoint": (tp.checkpoint(both)(make(tp.tensor(2.0, requires_grad=True), 3.0)), (20.0, 30.0)),
        "vmap": (tp.vmap(both)(make(tp.tensor([2.0]), tp.tensor([3.0]))), (20.0, 30.0)),
    }
    for way, (found, want) in ways.items():
        assert type(found) is type(tree), way
        assert tuple(map(float, parts(found))) == want, way
    f = tp.function(both)
    for _ in range(2):
        assert tuple(map(float, parts(f(tree)))) == (20.0, 30.0)
    assert len(f.plans) == 1
