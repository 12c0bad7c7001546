"""What the test files share: dtype lists, exact and ULP comparison, Richardson differences, odd memory layouts.

A reference here is NumPy in a wider type, never tapeflow itself. `check_vjp` is the one gradient check: the first
order against differences, the second against differences of the first, the fused backward against the composed one
bit for bit, and shapes and dtypes of every gradient.
"""

import threading
import zlib

import numpy as np

import tapeflow as tp
from tapeflow.testing import layouts

FLOATS = ("float32", "float64")
INTS = ("uint8", "int32", "int64")
DTYPES = ("bool", *INTS, *FLOATS)
WIDE = np.longdouble

NAN, INF = float("nan"), float("inf")
LAYOUTS, specials = layouts.LAYOUTS, layouts.special_points


def dtype_of(name):
    """The tapeflow dtype of that name."""
    return getattr(tp, name)


def name_of(x):
    """The NumPy name of the dtype of a tensor, an array or a dtype."""
    return str(getattr(x, "dtype", x)).rsplit(".", 1)[-1]


def rng_for(*key):
    """A generator that depends on nothing but the key, so that a failure repeats."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def draw(rng, shape, dtype="float64", low=-2.0, high=2.0):
    """Random values of any dtype; integers span low..high too, clipped to what the dtype holds."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in INTS:
        low, high = (max(int(low), 0), max(int(high), 9)) if dtype == "uint8" else (int(low), int(high))
        return rng.integers(low, high + 1, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)


# ---- comparison ----


def host(x):
    """The values as a NumPy array."""
    return x.numpy() if isinstance(x, tp.Tensor) else np.asarray(x)


def assert_same(got, want, zero_sign=True, label=""):
    """Shape, dtype and every bit; one NaN is as good as another, and zero_sign=False forgives -0.0 for 0.0."""
    got, want = host(got), host(want)
    assert (got.shape, got.dtype) == (want.shape, want.dtype), label
    same = got == want
    if got.dtype.kind == "f":
        if zero_sign:
            same = same & (np.signbit(got) == np.signbit(want))
        same = same | (np.isnan(got) & np.isnan(want))
    if not np.all(same):
        at = np.argwhere(~np.atleast_1d(same))[0]
        raise AssertionError(
            f"{label} at {tuple(at)}: {np.atleast_1d(got)[tuple(at)]!r} for {np.atleast_1d(want)[tuple(at)]!r}"
        )


def ulps(got, want):
    """The distance in units of the last place of got's dtype; want is wider. NaN is 0 from NaN, else infinitely far."""
    got, want = np.atleast_1d(host(got)), np.atleast_1d(np.asarray(want, WIDE))
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        unit = np.spacing(np.where(np.isfinite(rounded), np.abs(rounded), np.finfo(got.dtype).max))
        distance = np.abs(got.astype(WIDE) - want) / unit
    distance = np.where(got == rounded, np.minimum(np.nan_to_num(distance, nan=0.0, posinf=0.0), 0.5), distance)
    nans = np.isnan(got).astype(int) + np.isnan(want)
    return np.where(nans == 2, 0.0, np.where(nans == 1, INF, np.nan_to_num(distance, nan=INF))).astype(float)


def assert_ulps(got, want, bound, label="", operands=()):
    """Every value within `bound` units of the last place of a wider reference."""
    distance = ulps(got, want)
    worst = np.unravel_index(np.argmax(distance), distance.shape) if distance.size else None
    if worst is not None and not distance[worst] <= bound:
        at = [np.broadcast_to(o, host(got).shape).reshape(distance.shape)[worst] for o in operands]
        raise AssertionError(
            f"{label} {distance[worst]:.3g} ULP (bound {bound}) at {at}: "
            f"{np.atleast_1d(host(got))[worst]!r} for {np.atleast_1d(want)[worst]!r}"
        )


def close(got, want, rtol=1e-6, atol=1e-6, label=""):
    """Approximate equality of shape and values, NaN equal to NaN."""
    np.testing.assert_allclose(host(got), host(want), rtol=rtol, atol=atol, equal_nan=True, err_msg=str(label))
    assert host(got).shape == host(want).shape, label


def stretched(row, n):
    """n equal rows with stride 0, as a tensor."""
    return tp.broadcast_to(tp.tensor(row), (n, *row.shape))


# ---- derivatives ----


def richardson(f, x, h=2.0**-4, levels=8):
    """df/dx of an f that maps each element on its own: central differences at h, h/2, ..., extrapolated. Of the table's
    entries the one whose neighbours agree best is taken, element by element. Returns value and error estimate."""
    x = np.asarray(x, float)
    previous, best, error = [], np.zeros(()), np.full((), INF)
    for level in range(levels):
        step = np.broadcast_to(h / 2.0**level, x.shape)
        row = [(np.asarray(f(x + step), float) - f(x - step)) / ((x + step) - (x - step))]
        for j, old in enumerate(previous, 1):
            row.append(row[-1] + (row[-1] - old) / (4.0**j - 1))
            estimate = np.maximum(abs(row[j] - row[j - 1]), abs(row[j] - old))
            better = estimate < error
            best, error = np.where(better, row[j], best), np.where(better, estimate, error)
        previous = row
    return best, error


def leaves(*arrays):
    """Tensors that require grad (integers and bools stay as they are)."""
    tensors = []
    for a in arrays:
        a = np.asarray(a)
        tensors.append(tp.tensor(a, requires_grad=True) if a.dtype.kind == "f" else tp.tensor(a))
    return tensors


def grads(f, *arrays, seed=None, create_graph=False):
    """Value and gradients by backward. Without a seed the value is summed; unconnected operands give None."""
    xs = leaves(*arrays)
    y = f(*xs)
    if seed is None:
        tp.sum(y).backward(create_graph=create_graph)
    else:
        y.backward(tp.tensor(np.asarray(seed)), create_graph=create_graph)
    return y, [x.grad for x in xs]


def gradients(f, *arrays, **options):
    """The gradients alone, as NumPy arrays."""
    return [None if g is None else host(g) for g in grads(f, *arrays, **options)[1]]


def assert_gradients(f, arrays, *want, rtol=1e-6, **options):
    """The gradients of sum(f) (or of the seed) against stated values, fused and composed; None: not compared."""
    for create_graph in (False, True):
        got = gradients(f, *arrays, create_graph=create_graph, **options)
        for array, g, w in zip(arrays, got, want, strict=True):
            if w is not None:
                assert g.dtype == np.asarray(array).dtype
                close(g, np.broadcast_to(np.asarray(w, g.dtype), g.shape), rtol, rtol, "composed" * create_graph)


def second(f, *arrays, vectors=None):
    """Gradients of sum(v * grad(sum f)) by nested tp.grad; v is ones unless given."""
    where = tuple(range(len(arrays)))
    vectors = [np.ones_like(a) for a in arrays] if vectors is None else vectors

    def contracted(*xs):
        inner = tp.grad(lambda *zs: tp.sum(f(*zs)), argnums=where)(*xs)
        # The squares keep every operand connected when the gradient is a constant; their share is taken off below.
        parts = [tp.sum(g * tp.tensor(v) + x * x) for g, v, x in zip(inner, vectors, xs, strict=True)]
        return sum(parts[1:], parts[0])

    got = tp.grad(contracted, argnums=where)(*(tp.tensor(a) for a in arrays))
    with np.errstate(invalid="ignore"):  # inf - inf
        return [host(g) - 2 * np.asarray(a) for g, a in zip(got, arrays, strict=True)]


def _directions(rng, arrays):
    """All unit vectors when there are few of them, else three random ones."""
    sizes = [a.size for a in arrays]
    if sum(sizes) <= 10:
        for k, a in enumerate(arrays):
            for i in range(a.size):
                one = [np.zeros_like(b) for b in arrays]
                one[k].reshape(-1)[i] = 1.0
                yield one
    else:
        for _ in range(3):
            yield [rng.uniform(-1, 1, a.shape) for a in arrays]


def _along(f, arrays, direction, h):
    return richardson(lambda t: f(*(a + t * d for a, d in zip(arrays, direction, strict=True))), 0.0, h)


def dot(xs, ys):
    return sum(float(np.sum(np.asarray(x, float) * y)) for x, y in zip(xs, ys, strict=True))


def check_vjp(f, *arrays, order=2, h=2.0**-5, rtol=1e-6, label=""):
    """The whole gradient check of f at float64 arrays, see the file's head."""
    rng = rng_for(label, [a.shape for a in arrays])
    arrays = [np.asarray(a, float) for a in arrays]
    w = rng.uniform(0.5, 2, f(*map(tp.tensor, arrays)).shape) * rng.choice([-1, 1])

    def value(*xs):
        return float(np.sum(w * f(*map(tp.tensor, xs)).numpy()))

    def first(*xs):
        return gradients(f, *xs, seed=w)

    got = first(*arrays)
    assert [(g.shape, g.dtype) for g in got] == [(a.shape, a.dtype) for a in arrays], label
    for u in _directions(rng, arrays):
        want, error = _along(value, arrays, u, h)
        scale = max(1.0, abs(want), max((np.max(np.abs(g), initial=0) for g in got), default=0))
        assert abs(dot(got, u) - want) <= rtol * scale + 10 * error, (label, dot(got, u), want)
    check_fused(f, *arrays, seed=w, label=label)
    if order == 2:
        vectors = [rng.uniform(-1, 1, a.shape) for a in arrays]
        hessian = second(lambda *xs: f(*xs) * tp.tensor(w), *arrays, vectors=vectors)
        for u in _directions(rng, arrays):
            want, error = _along(lambda *xs: dot(first(*xs), vectors), arrays, u, h)
            scale = max(1.0, abs(want), max((np.max(np.abs(g), initial=0) for g in hessian), default=0))
            assert abs(dot(hessian, u) - want) <= rtol * scale + 10 * error, (label, "order 2", dot(hessian, u), want)


def check_fused(f, *arrays, seed=None, label=""):
    """backward() gives the bits of backward(create_graph=True), in float32 and float64."""
    for dtype in FLOATS:
        with np.errstate(over="ignore"):
            cast = [np.asarray(a).astype(dtype) if np.asarray(a).dtype.kind == "f" else a for a in arrays]
        s = None if seed is None else np.asarray(seed).astype(dtype)
        fused, composed = (gradients(f, *cast, seed=s, create_graph=c) for c in (False, True))
        for i, (g, c) in enumerate(zip(fused, composed, strict=True)):
            assert_same(g, c, label=f"{label} {dtype} gradient {i}, fused against composed")


def together(work, count=8):
    """work(k) in threads that start from one barrier; raises what any of them raised."""
    barrier, errors = threading.Barrier(count), []

    def run(k):
        try:
            barrier.wait(30)
            work(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
