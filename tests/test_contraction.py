"""einsum, tensordot, vecdot, dot, inner, outer, cross, kron, multi_dot: NumPy's values on drawn calls, gradients by the
adjoint identity and by differences, layouts, dtypes, the order of contraction, errors."""

import functools
import itertools
import math

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FLOATS,
    INTS,
    LAYOUTS,
    assert_same,
    check_fused,
    check_vjp,
    close,
    draw,
    dtype_of,
    gradients,
    host,
    name_of,
    rng_for,
    stretched,
)
from hypothesis import given
from hypothesis import strategies as st

import tapeflow as tp
from tapeflow import contraction, cross, dot, einsum, inner, kron, multi_dot, outer, tensordot, vecdot


def same_as_numpy(got, want, dtype, label=""):
    """Integers and bool to the bit; floats to a few roundings of small sums."""
    assert name_of(got) == dtype, label
    if dtype in FLOATS:
        close(
            got,
            np.asarray(want, dtype),
            1e-4 if dtype == "float32" else 1e-12,
            1e-4 if dtype == "float32" else 1e-12,
            label,
        )
    else:
        assert_same(got, np.asarray(want), label=label)


def adjoint(f, reference, arrays, label=""):
    """<v, f(.., u, ..)> = <gradient of operand k, u>, for an f linear in each of its operands."""
    rng = rng_for("adjoint", label)
    v = rng.uniform(-1, 1, np.shape(reference(*arrays)))
    for create_graph in (False, True):
        got = gradients(f, *arrays, seed=v, create_graph=create_graph)
        for k, g in enumerate(got):
            u = rng.uniform(-1, 1, arrays[k].shape)
            want = np.sum(v * reference(*arrays[:k], u, *arrays[k + 1 :]))
            assert g.shape == u.shape, label
            assert abs(np.sum(g * u) - want) <= 1e-9 * (1 + abs(want)), (label, k)


# ---- einsum against NumPy ----


@st.composite
def specs(draw_, most=4):
    """Subscripts and shapes that np.einsum takes: repeated and broadcast labels, ellipses, both ways to end."""
    sizes = {c: draw_(st.sampled_from([2, 3, 4, 1, 2, 3, 0])) for c in "abcdeXY"}
    free = [draw_(st.sampled_from([2, 3, 1])) for _ in range(2)]
    terms, shapes, any_dots = [], [], False
    for _ in range(draw_(st.integers(1, most))):
        letters = draw_(st.text("abcdeXY", max_size=3))
        shape = [1 if letters.count(c) == 1 and draw_(st.integers(0, 7)) == 7 else sizes[c] for c in letters]
        if draw_(st.integers(0, 3)) == 3:
            at, n = draw_(st.integers(0, len(letters))), draw_(st.integers(0, 2))
            dims = [1 if draw_(st.integers(0, 4)) == 4 else m for m in free[2 - n :]]
            letters, shape = letters[:at] + "..." + letters[at:], shape[:at] + dims + shape[at:]
            any_dots = True
        terms.append(letters)
        shapes.append(tuple(shape))
    text = ",".join(terms)
    if draw_(st.booleans()):
        used = sorted({c for c in text if c.isalpha()})
        out = draw_(st.permutations(used))[: draw_(st.integers(0, len(used)))]
        if any_dots:
            out.insert(draw_(st.integers(0, len(out))), "...")
        text += "->" + "".join(out)
    return text, shapes


@given(spec=specs(), dtype=st.sampled_from(DTYPES), layout=st.sampled_from(sorted(LAYOUTS)), optimize=st.booleans())
def test_einsum_is_numpys(spec, dtype, layout, optimize):
    text, shapes = spec
    xs = [draw(rng_for(text, k), s, dtype, -2, 2) for k, s in enumerate(shapes)]
    got = einsum(text, *(LAYOUTS[layout](x) for x in xs), optimize=optimize)
    same_as_numpy(got, np.einsum(text, *xs), dtype, f"{text} {shapes} {dtype} {layout}")


@given(spec=specs(3))
def test_gradients_of_einsum(spec):
    text, shapes = spec
    xs = [draw(rng_for(text, k), s) for k, s in enumerate(shapes)]
    adjoint(functools.partial(einsum, text), functools.partial(np.einsum, text), xs, f"{text} {shapes}")


TABLE = """
i->i 3 | ij->ji 2,3 | ij-> 2,3 | ii-> 3,3 | ii->i 3,3 | iij->ij 2,2,3 | iji->j 2,3,2 | iii->i 2,2,2 | ijij->ij 2,3,2,3
i,i-> 4 4 | i,i->i 4 4 | i,j->ij 2 3 | i,j->ji 2 3 | ij,j->i 2,3 3 | ij,jk->ik 2,3 3,4 | ij,jk->ki 2,3 3,4
ji,kj->ik 3,2 4,3 | ij,ij-> 2,3 2,3 | ij,ij->i 2,3 2,3 | ij,ij->j 2,3 2,3 | ij,ji->j 2,3 3,2 | bij,bjk->bik 2,3,4 2,4,2
ijb,jkb->ikb 2,3,2 3,2,2 | bij,bj->bi 2,3,4 2,4 | bhqd,bhkd->bhqk 2,2,3,4 2,2,2,4
bqhd,bkhd->bhqk 2,3,2,2 2,2,2,2 | ijk,jil->kl 2,3,2 3,2,2
aij,bji->ab 2,2,3 3,3,2 | ...ij,jk->...ik 2,2,3 3,2 | ...,...->... 2,3 3 | i...,i->... 2,3 2 | i,ij,j-> 2 2,3 3
ij,jk,kl->il 2,3 3,2 2,3 | ij,kj,j->ik 2,3 2,3 3 | i,i,i->i 3 3 3 | ij,jk->ik 1,3 3,1 | ij,j->i 2,1 3 | i,j,k->kji 2 3 2
"""
CASES = [c.split() for line in TABLE.strip().splitlines() for c in line.split("|")]


@pytest.mark.parametrize("words", CASES, ids=lambda w: w[0])
def test_derivatives_of_einsum(words):
    text, shapes = words[0], [tuple(map(int, w.split(","))) for w in words[1:]]
    xs = [draw(rng_for(text, k), s) for k, s in enumerate(shapes)]
    check_vjp(lambda *ts: einsum(text, *ts), *xs, label=text)
    for make in LAYOUTS.values():
        held = [make(x).requires_grad_() for x in xs]
        seed = draw(rng_for("seed"), np.einsum(text, *xs).shape)
        einsum(text, *held).backward(tp.tensor(seed))
        for h, g in zip(held, gradients(lambda *ts: einsum(text, *ts), *xs, seed=seed), strict=True):
            close(h.grad, g, 1e-12, 1e-12, text)


def test_stretched_operands_and_one_operand_twice():
    x = draw(rng_for("row"), (4,))
    rows = stretched(x, 3)
    close(einsum("ij,ij->j", rows, rows), 3 * x * x, 1e-12)
    t = tp.tensor(draw(rng_for("square"), (3, 3)), requires_grad=True)
    einsum("ij,ji->", t, t).backward()
    close(t.grad, 2 * host(t).T, 1e-12)


def test_a_result_is_a_tensor_of_its_own():
    for text, shape in (("ij->ij", (2, 3)), ("i", (3,)), ("...", (2,)), ("", ())):
        x = tp.ones(shape)
        y = einsum(text, x)
        y += 1
        assert_same(x, np.ones(shape, "float32"))


def test_dtypes_and_numbers():
    i, f, d = tp.tensor([1, 2]), tp.tensor([0.5, 2.0]), tp.tensor([0.5, 2.0], dtype="float64")
    for xs, dtype, value in (
        ((i, f), "float32", 4.5),
        ((f, d), "float64", 4.25),
        ((i, i), "int64", 5),
        ((i.astype("uint8"), i.astype("int32")), "int32", 5),
        ((np.array([0.5, 2.0]), f), "float64", 4.25),
        (([1, 2], i), "int64", 5),
    ):
        for f_ in (lambda *s: einsum("i,i", *s), dot, inner, vecdot, functools.partial(tensordot, axes=1)):
            got = f_(*xs)
            assert name_of(got) == dtype and got.item() == value
    for number, dtype in ((2, "float64"), (2.0, "float64"), (True, "float64")):
        assert name_of(einsum("i,->i", d, number)) == dtype
    assert name_of(einsum("i,->i", i, 2)) == "int64" and name_of(einsum("i,->i", i, 2.0)) == "float32"
    x = np.full((300,), 2, "uint8")
    assert_same(einsum("i->", tp.tensor(x)), np.einsum("i->", x))
    assert_same(einsum("i,i->", tp.tensor(x), tp.tensor(x)), np.einsum("i,i->", x, x))


# ---- the order of contraction ----


def cost_of(pairs, groups, out, sizes):
    """The multiplications of a sequence of pairs of slots."""
    live, total = dict(enumerate(map(set, groups))), 0
    for k, (i, j) in enumerate(pairs):
        both = live.pop(i) | live.pop(j)
        total += math.prod(sizes[c] for c in both)
        live[len(groups) + k] = both & set(out).union(*live.values())
    return total


def every_order(live, new):
    if len(live) == 1:
        yield []
    for i, j in itertools.combinations(live, 2):
        for rest in every_order([k for k in live if k not in (i, j)] + [new], new + 1):
            yield [(i, j), *rest]


@given(data=st.data(), n=st.integers(3, 5))
def test_the_order_is_the_cheapest(data, n):
    groups = [tuple(data.draw(st.sets(st.integers(0, 5), min_size=1, max_size=3))) for _ in range(n)]
    used = sorted(set().union(*groups))
    sizes = {c: data.draw(st.integers(2, 9)) for c in used}
    out = tuple(data.draw(st.sets(st.sampled_from(used), max_size=2)))
    # what one operand alone has was summed before
    groups = [tuple(c for c in g if c in out or sum(c in h for h in groups) > 1) for g in groups]
    got = cost_of(contraction._order(groups, out, sizes, True), groups, out, sizes)
    assert got == min(cost_of(p, groups, out, sizes) for p in every_order(list(range(n)), n))


def test_long_chains_and_multi_dot_are_cheap():
    rng = rng_for("chain")
    sizes = [int(n) for n in rng.integers(2, 5, 13)]
    xs = [draw(rng, (m, n)) for m, n in itertools.pairwise(sizes)]
    letters = "abcdefghijklm"
    want = functools.reduce(np.matmul, xs)
    text = ",".join(map("".join, itertools.pairwise(letters))) + "->am"
    for optimize in (True, False):
        close(einsum(text, *map(tp.tensor, xs), optimize=optimize), want, 1e-9, 1e-9)
    close(multi_dot([tp.tensor(x) for x in xs]), want, 1e-9, 1e-9)
    for n in (3, 8):
        order = contraction._chain(tuple(sizes[: n + 1]))
        groups, out = [(k, k + 1) for k in range(n)], (0, n)
        best = contraction._order(groups, out, dict(enumerate(sizes)), True)
        assert cost_of(order, groups, out, dict(enumerate(sizes))) == cost_of(best, groups, out, dict(enumerate(sizes)))


def test_large_products_need_no_large_intermediates():
    n = 3000  # n**2 is 36 MB in float32; n**3 could not be had
    a = tp.tensor(draw(rng_for("large"), (n, n), "float32"))
    v, w = a[0], a[1]
    close(einsum("i,j,ij->", v, w, a), host(v) @ host(a) @ host(w), 1e-3, 1e-1)
    close(einsum("ij,jk,kl,l->i", a, a, a, v), host(a) @ (host(a) @ (host(a) @ host(v))), 1e-2, 1e2)
    close(einsum("ij,kj->", a, a), np.sum(np.sum(host(a).astype(float), 0) ** 2), 1e-3)


# ---- the others against NumPy ----


def bilinear():
    """(name, f, NumPy's, shapes)"""
    t = lambda axes: functools.partial(tensordot, axes=axes)  # noqa: E731
    n = lambda axes: lambda a, b: np.tensordot(a, b, axes=axes)  # noqa: E731
    for axes, a, b in (
        (0, (2,), (3, 2)), (1, (2, 3), (3, 2)), (2, (2, 3, 4), (3, 4, 2)), (2, (3, 2), (3, 2)), (0, (), (2,)),
        (((1, 2), (1, 0)), (2, 3, 4), (4, 3, 5)), ((0, 1), (3, 2), (2, 3)), (((-1,), (0,)), (2, 1), (1, 3)),
        ((([0, 2]), ([2, 0])), (2, 3, 4), (4, 2, 2)), (((), ()), (2,), (2,)), (1, (2, 0), (0, 3)),
        (((0, 1), (1, 0)), (2, 3), (3, 2)),
    ):  # fmt: skip
        yield f"tensordot {axes}", t(axes), n(axes), (a, b)
    for a, b in (((4,), (4,)), ((2, 3), (3,)), ((3,), (2, 3)), ((2, 1, 3), (4, 3)), ((0, 3), (3,)), ((2, 0), (2, 0))):
        yield f"vecdot {a} {b}", vecdot, np.vecdot, (a, b)
    yield "vecdot axis", functools.partial(vecdot, axis=0), functools.partial(np.vecdot, axis=0), ((3, 2), (3, 2))
    yield "vecdot -2", functools.partial(vecdot, axis=-2), functools.partial(np.vecdot, axis=-2), ((2, 3, 2), (3, 1))
    for a, b in (((), ()), ((), (2, 3)), ((3,), (3,)), ((2, 3), (3,)), ((2, 3), (3, 2)), ((2, 3), (2, 3, 2)),
                 ((2, 3, 2), (2,)), ((2, 2, 3), (2, 3, 2)), ((2, 0), (0, 2)), ((3,), (2, 3, 2))):  # fmt: skip
        yield f"dot {a} {b}", dot, np.dot, (a, b)
    for a, b in (((), (2,)), ((3,), (3,)), ((2, 3), (3,)), ((2, 3), (4, 3)), ((2, 2, 3), (3,)), ((2, 1), (3, 1))):
        yield f"inner {a} {b}", inner, np.inner, (a, b)
    for a, b in (((2,), (3,)), ((2, 3), (2,)), ((), ()), ((0,), (2,))):
        yield f"outer {a} {b}", outer, np.outer, (a, b)
        yield f"kron {a} {b}", kron, np.kron, (a, b)
    for a, b in (((2, 3), (3, 2)), ((2, 1, 2), (3,)), ((2,), (2, 3, 2))):
        yield f"kron {a} {b}", kron, np.kron, (a, b)
    for axis, a, b in ((-1, (3,), (3,)), (-1, (2, 3), (3,)), (-1, (3,), (2, 2, 3)), (0, (3, 2), (3, 2)),
                       (1, (2, 3, 2), (1, 3, 2)), (-2, (4, 3, 2), (3, 1)), (-1, (0, 3), (3,))):  # fmt: skip
        f, g = functools.partial(cross, axis=axis), lambda p, q, axis=axis: numpy_cross(p, q, axis)
        yield f"cross {axis} {a} {b}", f, g, (a, b)


def numpy_cross(p, q, axis):
    return np.cross(p, q, axisa=axis, axisb=axis, axisc=axis)


BILINEAR = list(bilinear())


@pytest.mark.parametrize("f,g,shapes", [b[1:] for b in BILINEAR], ids=[b[0] for b in BILINEAR])
def test_products_of_two(f, g, shapes):
    for dtype in DTYPES:
        if dtype == "bool" and getattr(f, "func", f) is cross:
            continue  # NumPy cannot subtract bool, nor can we
        xs = [draw(rng_for(k, s), s, dtype, -3, 3) for k, s in enumerate(shapes)]
        want = g(*xs)
        for make in LAYOUTS.values():
            same_as_numpy(f(*map(make, xs)), want, dtype, dtype)
    xs = [draw(rng_for(k, s), s) for k, s in enumerate(shapes)]
    adjoint(f, g, xs, str(shapes))
    if np.size(g(*xs)):
        check_vjp(f, *xs, label=str(shapes))


@pytest.mark.parametrize(
    "shape,axis",
    [((7, n), 1) for n in (1, 2, 10, 15, 16, 17, 40)]
    + [((5, 3), 0), ((3000, 10), 1), ((4, 9, 6), 1), ((2, 5000), 1), ((5000, 70), 0), ((3, 0), 1), ((0, 3), 1)],
)
def test_sums_of_products_have_the_bits_of_multiply_and_sum(shape, axis):
    xs = [draw(rng_for(k, shape), shape) for k in "ab"]
    letters = "abc"[: len(shape)]
    spec = f"{letters},{letters}->{letters.replace(letters[axis], '')}"
    for dtype in FLOATS:
        a, b = (x.astype(dtype) for x in xs)
        want = tp.sum(tp.tensor(a) * tp.tensor(b), axis)
        for make in LAYOUTS.values():
            assert_same(vecdot(make(a), make(b), axis=axis), want)
            assert_same(einsum(spec, make(a), make(b)), want)
        assert_same(einsum(f"{letters},{letters}->", a, b), tp.sum(tp.tensor(a) * tp.tensor(b)))
    check_fused(functools.partial(vecdot, axis=axis), *xs)


def test_one_call_with_other_shapes_and_dtypes_between():
    """Plans are kept by shape and options: each call has its own."""
    for _ in range(2):
        for n in (2, 3):
            for dtype in ("float32", "int32"):
                x = np.arange(n * n).reshape(n, n).astype(dtype)
                for spec in ("ij,jk", "ij,kj"):
                    assert_same(einsum(spec, x, tp.tensor(x)), np.einsum(spec, x, x))
                assert_same(tensordot(x, x, axes=1), x @ x)
                assert_same(tensordot(x, x, axes=np.int64(2)), np.tensordot(x, x, 2))
                assert_same(multi_dot([x, x[0]]), x @ x[0])
    for k in range(1100):  # more than are kept
        assert einsum("i,i", np.ones(k % 1100 + 1, "float32"), tp.ones(k + 1, dtype="float32")).item() == k + 1


def test_diagonals_are_views_where_their_axes_are_side_by_side():
    x = draw(rng_for("diagonals"), (3, 3, 4, 4))
    for spec in ("iijk->ijk", "ijkk->ijk", "iijj->ij", "iijj", "iijj->ji"):
        f = functools.partial(einsum, spec)
        close(f(tp.tensor(x)), np.einsum(spec, x), 1e-12)
        check_vjp(f, x, label=spec)


def test_cross_with_a_positive_axis_and_other_ranks():
    a, b = draw(rng_for("a"), (4, 3)), draw(rng_for("b"), (2, 3, 4))
    want = np.cross(a, b, axisa=1, axisb=1, axisc=1)
    close(cross(tp.tensor(a), tp.tensor(b), axis=1), want, 1e-12)


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(2, 6),
    row=st.booleans(),
    column=st.booleans(),
    dtype=st.sampled_from(FLOATS + INTS),
)
def test_multi_dot(seed, n, row, column, dtype):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0 if seed % 5 == 0 else 1, 5, n + 1)
    shapes = [(p, q) for p, q in itertools.pairwise(map(int, sizes))]
    shapes[0] = shapes[0][1:] if row else shapes[0]
    shapes[-1] = shapes[-1][:1] if column else shapes[-1]
    if n == 2 and row and column:
        shapes = [(int(sizes[1]),)] * 2
    xs = [draw(rng, s, dtype, -2, 2) for s in shapes]
    f = lambda *ts: multi_dot(ts)  # noqa: E731
    same_as_numpy(f(*map(tp.tensor, xs)), functools.reduce(np.dot, xs), dtype, str(shapes))
    if dtype == "float64":
        adjoint(f, lambda *arrays: functools.reduce(np.dot, arrays), xs, str(shapes))


def test_float32_is_as_exact_as_matmul():
    a, b = (draw(rng_for(k), (64, 64), "float32") for k in "ab")
    want = tp.matmul(tp.tensor(a), tp.tensor(b))
    for got in (einsum("ij,jk", a, b), tensordot(a, b, axes=1), dot(a, b), multi_dot([a, b]), inner(a, tp.tensor(b).T)):
        assert_same(got, want)
    for name in FLOATS:
        assert einsum("i->", tp.ones(3, dtype_of(name))).dtype == dtype_of(name)


# ---- errors ----

ONES = {n: np.ones((3,) * n) for n in range(5)}
BAD = [
    (lambda: einsum("ij,jk", ONES[2]), ValueError, "2 terms, 1 operands"),
    (lambda: einsum("ij", ONES[1]), ValueError, "operand 0 has 1 dim"),
    (lambda: einsum("i", ONES[2]), ValueError, "Name each axis"),
    (lambda: einsum("i..", ONES[1]), ValueError, "not a term"),
    (lambda: einsum("......", ONES[2]), ValueError, "not a term"),
    (lambda: einsum("i1", ONES[2]), ValueError, "not a term"),
    (lambda: einsum("ij->ik", ONES[2]), ValueError, "'k' of the result is in no operand"),
    (lambda: einsum("ij->ii", ONES[2]), ValueError, "twice"),
    (lambda: einsum("...i->i", ONES[2]), ValueError, r"Add \.\.\."),
    (lambda: einsum("ij,jk", ONES[2], np.ones((2, 3))), ValueError, r"sizes 3 and 2 .*\(3, 3\), \(2, 3\)"),
    (lambda: einsum("ii", np.ones((1, 3))), ValueError, "sizes 1 and 3"),
    (lambda: einsum(ONES[2], "ij"), TypeError, "must be a str"),
    (lambda: einsum("i"), ValueError, "at least one operand"),
    (lambda: einsum("i", "abc"), TypeError, r"\[einsum\]"),
    (lambda: tensordot(ONES[2], np.ones((2, 3)), axes=1), ValueError, "differ in size: 3 and 2"),
    (lambda: tensordot(ONES[2], np.ones((1, 3)), axes=1), ValueError, "differ in size"),
    (lambda: tensordot(ONES[1], ONES[2], axes=2), IndexError, "axes=2"),
    (lambda: tensordot(ONES[1], ONES[2], axes=-1), IndexError, "axes=-1"),
    (lambda: tensordot(ONES[1], ONES[2], axes=((0,), (0, 1))), IndexError, "one length"),
    (lambda: tensordot(ONES[2], ONES[2], axes=((0, 0), (0, 1))), IndexError, "twice"),
    (lambda: tensordot(ONES[2], ONES[2], axes=((0,), (2,))), IndexError, "axis 2"),
    (lambda: tensordot(ONES[2], ONES[2], axes=1.5), TypeError, "axes"),
    (lambda: tensordot(ONES[2], ONES[2], axes=((0.5,), (0,))), TypeError, "float"),
    (lambda: vecdot(ONES[1], np.ones(2)), ValueError, "3 and 2"),
    (lambda: vecdot(ONES[1], np.ones(1)), ValueError, "3 and 1"),
    (lambda: vecdot(ONES[2], np.ones((2, 3))), ValueError, "vecdot"),
    (lambda: vecdot(ONES[0], ONES[1]), IndexError, "axis"),
    (lambda: dot(ONES[1], np.ones(2)), ValueError, "matmul|dot"),
    (lambda: dot(ONES[3], np.ones(2)), ValueError, r"\[dot\]"),
    (lambda: inner(ONES[1], np.ones(2)), ValueError, r"\[inner\]"),
    (lambda: cross(np.ones(2), np.ones(2)), ValueError, "3 elements"),
    (lambda: cross(ONES[1], ONES[1], axis=1), IndexError, "axis 1"),
    (lambda: multi_dot([ONES[2]]), ValueError, "two or more"),
    (lambda: multi_dot(tp.ones((2, 3, 3))), TypeError, "sequence"),
    (lambda: multi_dot([ONES[2], ONES[1], ONES[2]]), ValueError, "no chain"),
    (lambda: multi_dot([ONES[2], np.ones((2, 3))]), ValueError, "no chain"),
    (lambda: multi_dot([ONES[3], ONES[2]]), ValueError, "no chain"),
]


@pytest.mark.parametrize("call,kind,message", BAD)
def test_bad_calls(call, kind, message):
    with pytest.raises(kind, match=message) as error:
        call()
    assert isinstance(error.value, tp.TapeflowError)


def test_dot_names_itself():
    for a, b in (((2, 3), (2, 3)), ((3,), (4,)), ((2, 3), (4,)), ((3,), (4, 2))):
        with pytest.raises(tp.errors.ShapeError, match=r"\[dot\] inner sizes differ"):
            tp.dot(tp.zeros(a), tp.zeros(b))
