"""Random numbers: Philox against its published vectors, the transforms against scalar references, and the contract:
seeds, draw numbers, prefixes, threads, dtypes, gradients, bad calls."""

import copy
import os
import pickle
import threading

import numpy as np
import pytest
from helpers import host
from scipy import special, stats

import tapeflow as tp
from tapeflow import _core
from tapeflow.random import Generator

N = 100_000
MASK = 0xFFFFFFFF

# (counter, key, output): the known answers that come with Random123.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK,) * 4, (MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox(counter, key):
    """Philox 4x32-10, one block, in Python integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def words(element, seed, draw):
    """The block that holds an element of 32 bits."""
    block = element // 4
    return philox((block & MASK, block >> 32, draw & MASK, draw >> 32), (seed & MASK, seed >> 32))


def fill(kind, n, dtype, seed, draw, *more):
    g = Generator()
    g.state = seed, draw
    return host(_core.random_fill(g, kind, (n,), dtype, *more))


def bits(kind, n, seed, draw):
    return fill(kind, n, "int64", seed, draw)


@pytest.fixture(autouse=True)
def default_stream():
    """Leave the default generator as it was."""
    before = tp.random.default_generator.state
    yield
    tp.random.default_generator.state = before


# ---- the words


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_reference_gives_the_known_answers(counter, key, output):
    assert tuple(philox(counter, key)) == output


def test_known_answer_through_the_kernel():
    assert bits("bits32", 4, 0, 0).tolist() == list(KNOWN[0][2])


@pytest.mark.parametrize("seed", [0, 1, 0x299F31D0A4093822, 2**64 - 1])
@pytest.mark.parametrize("draw", [0, 7, 2**32, 0x0370734413198A2E, 2**64 - 1])
def test_words_are_philox_of_seed_draw_and_element(seed, draw):
    n = 70_003
    w32, w64 = bits("bits32", n, seed, draw), bits("bits64", n // 2, seed, draw).view(np.uint64)
    for e in (0, 1, 2, 3, 4, 1022, 1023, 1024, 65_535, 65_536, n - 1):
        assert w32[e] == words(e, seed, draw)[e % 4]
    np.testing.assert_array_equal(w64 & np.uint64(MASK), w32[0 : n - 1 : 2].astype(np.uint64))
    np.testing.assert_array_equal(w64 >> np.uint64(32), w32[1:n:2].astype(np.uint64))


def test_uniform_is_the_top_bits():
    w32, w64 = bits("bits32", N, 5, 6), bits("bits64", N, 5, 6).view(np.uint64)
    got = fill("uniform", N, "float32", 5, 6)
    np.testing.assert_array_equal(got, (w32 >> 8).astype(np.float32) * np.float32(2.0**-24))
    got = fill("uniform", N, "float64", 5, 6)
    np.testing.assert_array_equal(got, (w64 >> np.uint64(11)).astype(np.float64) * 2.0**-53)


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 2e-7), ("float64", 2e-13)])
def test_normal_is_the_quantile_of_its_word(dtype, bound):
    n = 1_000_000 if dtype == "float32" else 300_000
    z = fill("normal", n, dtype, 8, 9).astype(np.float64)
    if dtype == "float32":
        w, top = bits("bits32", n, 8, 9).astype(np.uint64), np.uint64(2**32 - 1)
    else:
        w, top = bits("bits64", n, 8, 9).view(np.uint64), np.uint64(2**64 - 1)
    upper = w > top // np.uint64(2)
    tail = np.where(upper, top - w, w)
    p = (tail.astype(np.float64) + 0.5) / (float(top) + 1.0)
    want = np.where(upper, -1.0, 1.0) * special.ndtri(p)
    exact = tail < 2**52 if dtype == "float64" else slice(None)  # p itself is rounded near 1/2, in float64
    near = np.abs(z - want) <= bound * np.maximum(np.abs(want), 1e-3)
    assert near.all()
    assert (np.abs(z / want - 1.0)[exact] <= bound).all()
    assert ((z > 0) == upper).all()


# ---- distributions


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_and_normal_fit_their_distributions(dtype):
    g = Generator(2024)
    u, z = host(g.uniform(shape=(N,), dtype=dtype)), host(g.normal(shape=(N,), dtype=dtype))
    assert u.min() >= 0.0
    assert u.max() < 1.0
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert abs(u.mean() - 0.5) < 4 / np.sqrt(12 * N)
    assert abs(z.mean()) < 4 / np.sqrt(N)
    assert abs(z.var() - 1) < 4 * np.sqrt(2 / N)
    assert abs(stats.skew(z)) < 4 * np.sqrt(6 / N)
    assert abs(stats.kurtosis(z)) < 4 * np.sqrt(24 / N)


def test_elements_draws_and_seeds_are_uncorrelated():
    draws = np.stack([host(Generator(s).normal(shape=(N,))) for s in (1, 2, 1 << 32)])
    g = Generator(1)
    draws = np.vstack([draws, host(g.normal(shape=(N,)))[None], host(g.normal(shape=(N,)))[None]])
    np.testing.assert_array_equal(draws[0], draws[3])
    distinct = np.vstack([draws[:3], draws[4:], draws[0, None, ::-1], np.roll(draws[0], 1)[None]])
    correlation = np.corrcoef(distinct) - np.eye(len(distinct))
    assert np.abs(correlation).max() < 5 / np.sqrt(N)


@pytest.mark.parametrize(("low", "high"), [(0, 10), (-3, 4), (0, 65_536), (0, 65_537), (-5, 2**33), (-(2**63), 2**63)])
def test_integers_are_uniform_over_their_range(low, high):
    x = host(Generator(3).integers(low, high, (N,)))
    assert x.dtype == np.int64
    assert x.min() >= low
    assert x.max() < high
    cells = min(high - low, 16)
    cell = [(int(v) - low) * cells // (high - low) for v in x[:20_000]]
    assert stats.chisquare(np.bincount(cell, minlength=cells)).pvalue > 1e-3


@pytest.mark.parametrize("n", [1, 2, 7, 65_536, 65_537, 2**32 - 1, 2**32, 2**32 + 1, 3**39, 2**63, 2**64 - 1, 2**64])
def test_integers_are_the_high_half_of_a_product(n):
    low = -(2**63) if n > 2**63 else -5
    w = bits("bits32" if n <= 65_536 else "bits64", 500, 1, 2)
    got = fill("integers", 500, "int64", 1, 2, n % 2**64, low)
    width = 32 if n <= 65_536 else 64
    want = [((int(v) % 2**width) * n >> width) + low for v in w]
    assert got.tolist() == want


def test_bernoulli_has_its_rate_and_its_extremes():
    g = Generator(4)
    for p in (0.0, 0.1, 0.5, 0.97, 1.0):
        x = host(g.bernoulli(p, (N,)))
        assert x.dtype == np.bool_
        assert abs(x.mean() - p) <= 4 * np.sqrt(p * (1 - p) / N)
    assert not host(g.bernoulli(0.0, (N,))).any()
    assert host(g.bernoulli(1.0, (N,))).all()


@pytest.mark.parametrize("p", [0.25, 0.1, 1e-3, 2.0**-32, 1.0])
def test_bernoulli_of_a_tensor_is_that_of_the_number(p):
    a, b = Generator(6), Generator(6)
    want = host(a.bernoulli(p, (5000,)))
    got = host(b.bernoulli(tp.tensor(p, dtype="float64"), (5000,)))
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(want, bits("bits32", 5000, 6, 0) < p * 2**32)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 100, 1024, 1025, 30_000])
def test_permutation_holds_each_once(n):
    x = host(Generator(n).permutation(n))
    assert x.dtype == np.int64
    np.testing.assert_array_equal(np.sort(x), np.arange(n))
    assert n < 100 or (x != np.arange(n)).mean() > 0.9


def test_permutation_orders_are_equally_likely():
    g = Generator(9)
    seen = {}
    for _ in range(6000):
        key = tuple(g.permutation(3).tolist())
        seen[key] = seen.get(key, 0) + 1
    assert len(seen) == 6
    assert stats.chisquare(list(seen.values())).pvalue > 1e-3


def test_permutation_of_a_tensor_takes_its_rows():
    x = np.arange(12.0).reshape(4, 3)
    order = host(Generator(5).permutation(4))
    np.testing.assert_array_equal(host(Generator(5).permutation(tp.tensor(x))), x[order])
    np.testing.assert_array_equal(host(Generator(5).permutation(x)), x[order])
    t = tp.tensor(x, requires_grad=True)
    (Generator(5).permutation(t) * tp.tensor(x)).sum().backward()
    np.testing.assert_array_equal(host(t.grad)[order], x)


# ---- the contract


KINDS = {
    "uniform": lambda g, n: g.uniform(-2.0, 3.0, (n,)),
    "uniform64": lambda g, n: g.uniform(shape=(n,), dtype="float64"),
    "normal": lambda g, n: g.normal(1.0, 2.0, (n,)),
    "normal64": lambda g, n: g.normal(shape=(n,), dtype="float64"),
    "integers": lambda g, n: g.integers(1000, shape=(n,)),
    "integers64": lambda g, n: g.integers(-7, 2**40, (n,)),
    "bernoulli": lambda g, n: g.bernoulli(0.3, (n,)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_shorter_draw_is_a_prefix(kind):
    longest = host(KINDS[kind](Generator(11), 200_001))
    for n in (0, 1, 2, 3, 4, 5, 127, 128, 129, 1023, 1024, 1025, 65_537, 131_072):
        np.testing.assert_array_equal(host(KINDS[kind](Generator(11), n)), longest[:n])


@pytest.mark.parametrize("kind", KINDS)
def test_threads_change_nothing(kind, threads):
    threads(1)
    want = host(KINDS[kind](Generator(12), 400_003))
    for n in (2, 3):
        threads(n)
        np.testing.assert_array_equal(host(KINDS[kind](Generator(12), 400_003)), want)


def test_the_shape_only_arranges():
    a = host(Generator(1).normal(shape=(24,)))
    np.testing.assert_array_equal(host(Generator(1).normal(shape=[2, 3, 4])), a.reshape(2, 3, 4))
    assert host(Generator(1).normal()) == a[0]
    assert Generator(1).normal(shape=5).shape == (5,)
    assert Generator(1).uniform(shape=(3, 0)).shape == (3, 0)
    assert Generator(1).integers(5).shape == ()


def test_each_call_takes_one_draw_whatever_its_shape():
    g = Generator(3)
    calls = [
        lambda: g.normal(),
        lambda: g.normal(shape=(1000, 3)),
        lambda: g.uniform(shape=(0,)),
        lambda: g.integers(5, shape=(2,)),
        lambda: g.integers(2**50, shape=(2,)),
        lambda: g.permutation(10),
        lambda: g.permutation(0),
        lambda: g.permutation(tp.zeros((4, 2))),
        lambda: g.bernoulli(0.5, (3,)),
    ]
    for i, call in enumerate(calls):
        assert g.state == (3, i)
        call()
    assert g.state == (3, len(calls))


def test_state_goes_back_and_forth():
    g = Generator(21)
    g.normal()
    state = g.state
    a = g.normal(shape=(5,)).tolist()
    g.state = state
    assert g.normal(shape=(5,)).tolist() == a
    g.state = (21, 2**64 - 1)  # the last draw; then it starts over
    g.uniform()
    assert g.state == (21, 0)
    assert repr(g) == "Generator(seed=21, draw=0)"


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
def test_copies_go_on_from_the_same_place_alone(twin):
    g = Generator(2**64 - 1)
    g.normal()
    other = twin(g)
    assert other is not g
    assert other.state == g.state
    assert other.normal(shape=(4,)).tolist() == g.normal(shape=(4,)).tolist()
    other.normal()
    assert g.state == (2**64 - 1, 2)


def test_manual_seed_restarts_the_module_functions():
    for _ in range(2):
        assert tp.random.manual_seed(5) is tp.random.default_generator
        g = Generator(5)
        assert tp.random.normal(shape=(3,)).tolist() == g.normal(shape=(3,)).tolist()
        assert tp.random.uniform(shape=(3,)).tolist() == g.uniform(shape=(3,)).tolist()
        assert tp.random.integers(9, shape=(3,)).tolist() == g.integers(9, shape=(3,)).tolist()
        assert tp.random.permutation(5).tolist() == g.permutation(5).tolist()
        assert tp.random.bernoulli(shape=(9,)).tolist() == g.bernoulli(shape=(9,)).tolist()


def test_generators_without_a_seed_differ():
    assert Generator().state != Generator().state


def test_threads_share_a_generator_without_losing_draws():
    g, got = Generator(1), []

    def run():
        mine = [g.normal(shape=(2,)).tolist()[0] for _ in range(200)]
        got.extend(mine)

    workers = [threading.Thread(target=run) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    other = Generator(1)
    assert sorted(got) == sorted(other.normal(shape=(2,)).tolist()[0] for _ in range(800))
    assert g.state == (1, 800)


@pytest.mark.cpu  # devices do not survive a fork
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_process_draws_too():
    child = os.fork()
    if child == 0:
        os._exit(0 if Generator(1).integers(5).shape == () else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_dtypes():
    g = Generator(0)
    assert g.normal().dtype == g.uniform().dtype == np.float32
    assert g.normal(dtype=tp.float64).dtype == g.uniform(dtype="float64").dtype == np.float64
    assert g.normal(tp.zeros(2, dtype="float64")).dtype == np.float64
    assert g.uniform(tp.zeros(2, dtype="int64"), 3).dtype == np.float32
    assert g.uniform(tp.zeros(2, dtype="float64"), 3, dtype="float32").dtype == np.float32
    for name in ("uint8", "int32", "int64"):
        assert g.integers(100, shape=(3,), dtype=name).dtype == np.dtype(name)
    assert g.integers(-(2**31), 2**31, (3,), dtype="int32").dtype == np.int32
    tp.set_default_dtype("float64")
    try:
        assert g.normal().dtype == g.uniform(dtype=float).dtype == np.float64
    finally:
        tp.set_default_dtype("float32")


def test_uniform_stays_below_high():
    """low + width * u rounds up to high for the largest u; and a range of no width is low."""
    for low, high in ((1.0, 2.0), (1.0, np.nextafter(np.float32(1), np.float32(2))), (-1.0, 0.0), (1e8, 1e8 + 8)):
        x = host(Generator(7).uniform(low, high, (N,)))
        assert x.min() >= low
        assert x.max() < high
    assert host(Generator(7).uniform(3.0, 3.0, (5,))).tolist() == [3.0] * 5


def test_parameters_that_are_tensors_broadcast_and_have_gradients():
    loc = tp.tensor([[1.0], [2.0]], requires_grad=True)
    scale = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x = Generator(3).normal(loc, scale)
    assert x.shape == (2, 3)
    z = host(Generator(3).normal(shape=(2, 3)))
    np.testing.assert_array_equal(host(x), host(scale) * z + host(loc))
    x.sum().backward()
    np.testing.assert_array_equal(host(loc.grad), [[3.0], [3.0]])
    np.testing.assert_allclose(host(scale.grad), z.sum(0), rtol=1e-6)

    low, high = (tp.tensor([v], requires_grad=True) for v in (-1.0, 2.0))
    u = host(Generator(4).uniform(shape=(4, 3)))
    Generator(4).uniform(low, high, (4, 3)).sum().backward()
    np.testing.assert_allclose(host(low.grad), [(1 - u).sum()], rtol=1e-6)
    np.testing.assert_allclose(host(high.grad), [u.sum()], rtol=1e-6)
    assert Generator(4).normal(np.zeros((2, 1)), [1.0, 2.0]).shape == (2, 2)
    assert Generator(4).bernoulli(tp.full((3, 2), 0.5)).shape == (3, 2)


BAD = [
    ("Generator", lambda g: Generator(-1), ValueError, "seed is -1"),
    ("Generator", lambda g: Generator(2**64), ValueError, r"outside 0 .. 2\*\*64 - 1"),
    ("Generator", lambda g: Generator(1.5), TypeError, "expected an integer as seed, got float"),
    ("Generator", lambda g: setattr(g, "state", 3), TypeError, "expected (seed, draw)"),
    ("manual_seed", lambda g: tp.random.manual_seed("a"), TypeError, "got str"),
    ("uniform", lambda g: g.uniform(2.0, 1.0), ValueError, "low is 2.0, high is 1.0"),
    ("uniform", lambda g: g.uniform(0.0, np.inf), ValueError, "finite"),
    ("uniform", lambda g: g.uniform(0.0, 1e39), ValueError, "finite numbers of float32"),
    ("uniform", lambda g: g.uniform(0.0, 10**400), ValueError, "beyond the largest float"),
    ("uniform", lambda g: g.uniform(np.nan, 1.0), ValueError, "finite"),
    ("uniform", lambda g: g.uniform("a", 1.0), TypeError, "low is 'a'"),
    ("uniform", lambda g: g.uniform(None), TypeError, "low is None"),
    ("uniform", lambda g: g.uniform(1j), TypeError, ""),
    ("uniform", lambda g: g.uniform(shape=(2, -1)), ValueError, "negative size"),
    ("uniform", lambda g: g.uniform(shape=2.5), ValueError, "got 2.5"),
    ("uniform", lambda g: g.uniform(shape="ab"), ValueError, "got 'ab'"),
    ("uniform", lambda g: g.uniform(dtype="int64"), TypeError, "dtype is int64, expected float32 or float64"),
    ("uniform", lambda g: g.uniform(dtype="nonsense"), TypeError, "nonsense"),
    ("uniform", lambda g: g.uniform(tp.zeros(3), tp.zeros(2)), ValueError, "do not broadcast"),
    ("normal", lambda g: g.normal(scale=-1.0), ValueError, "scale is -1.0, expected 0 or more"),
    ("normal", lambda g: g.normal(scale=np.nan), ValueError, "scale is nan"),
    ("normal", lambda g: g.normal(tp.zeros(3), shape=(2,)), ValueError, "do not broadcast for shape (2,)"),
    ("normal", lambda g: g.normal(tp.zeros((2, 3)), shape=(3,)), ValueError, "do not broadcast for shape (3,)"),
    ("integers", lambda g: g.integers(3, 3), ValueError, "no integer in 3 <= x < 3"),
    ("integers", lambda g: g.integers(0), ValueError, "no integer in 0 <= x < 0"),
    ("integers", lambda g: g.integers(1.5), TypeError, "got float"),
    ("integers", lambda g: g.integers(0, 257, dtype="uint8"), ValueError, "does not fit in uint8"),
    ("integers", lambda g: g.integers(2**63 + 1), ValueError, "does not fit in int64"),
    ("integers", lambda g: g.integers(5, dtype="float32"), TypeError, "dtype is float32"),
    ("integers", lambda g: g.integers(5, shape=None), ValueError, "got None"),
    ("permutation", lambda g: g.permutation(-1), ValueError, "-1 elements"),
    ("permutation", lambda g: g.permutation(2.0), TypeError, "got float"),
    ("permutation", lambda g: g.permutation(tp.tensor(3.0)), ValueError, "0-d tensor"),
    ("bernoulli", lambda g: g.bernoulli(1.5), ValueError, "p is 1.5"),
    ("bernoulli", lambda g: g.bernoulli(-0.1), ValueError, "p is -0.1"),
    ("bernoulli", lambda g: g.bernoulli(np.nan), ValueError, "p is nan"),
]


@pytest.mark.parametrize(("op", "call", "kind", "text"), BAD)
def test_bad_calls_say_so_and_take_no_draw(op, call, kind, text):
    g = Generator(1)
    with pytest.raises(kind) as caught:
        call(g)
    assert isinstance(caught.value, tp.TapeflowError)
    assert str(caught.value).startswith(f"[random.{op}]")
    assert text.replace("\\", "") in str(caught.value)
    assert g.state == (1, 0)


def test_a_shape_beyond_memory_is_refused_and_takes_no_draw():
    g = Generator(1)
    for draw in (g.normal, g.uniform):
        with pytest.raises(MemoryError, match=r"\(1099511627776, 1099511627776\) does not fit into memory"):
            draw(shape=(2**40, 2**40))
    assert g.state == (1, 0)
