"""Which calls `bench.ops` compares with NumPy: every public function that has a counterpart in NumPy or scipy.special.

A call is the text of an expression in which `m` is tapeflow or numpy and the other names are those of `ops.pool`:
capital letters are matrices. Where the two libraries spell a call differently it is a pair (tapeflow's, NumPy's), in
which `special` is scipy.special; where only NumPy writes in place, it writes into a copy (`c := ...`). A statement is
judged by what it leaves in `t`.
"""

Call = str | tuple[str, str]


def _each(operands: str, names: str) -> dict[str, list[Call]]:
    return {name: [f"m.{name}({operands})"] for name in names.split()}


def _special(operands: str, **names: str) -> dict[str, list[Call]]:
    return {ours: [(f"m.{ours}({operands})", f"special.{theirs}({operands})")] for ours, theirs in names.items()}


def _axes(name: str, one: str, matrix: str, rest: str = "") -> list[Call]:
    """Of a vector, and along each axis of a matrix."""
    return [f"m.{name}({one}{rest})", *(f"m.{name}({matrix}{rest}, axis={axis})" for axis in (0, 1))]


ELEMENTWISE: dict[str, list[Call]] = {
    **_each("x", "abs ceil cbrt cos exp exp2 expm1 floor isfinite isinf isnan negative positive round sign signbit"),
    **_each("x", "sin sinc sinh cosh tan tanh trunc square reciprocal atan asinh logical_not"),
    **_each("p", "log log1p log2 log10 sqrt"),
    **_each("u", "acos asin atanh"),
    **_each("g", "acosh"),
    **_each("z", "nan_to_num"),
    **_each("x, y", "add subtract multiply divide maximum minimum hypot atan2 copysign nextafter logaddexp"),
    **_each("x, y", "equal not_equal less less_equal greater greater_equal floor_divide remainder"),
    **_each("b, c", "logical_and logical_or logical_xor"),
    **_each("i, j", "bitwise_and bitwise_or bitwise_xor"),
    **_each("i, k", "bitwise_left_shift bitwise_right_shift"),
    "bitwise_invert": ["m.bitwise_invert(i)"],
    "pow": ["m.pow(p, q)", "m.pow(x, 2)", "m.pow(x, 3)", "m.pow(p, 0.5)"],
    "where": ["m.where(b, x, y)", "m.where(b, x, 0.0)"],
    "clip": ["m.clip(x, -1.0, 1.0)"],
    "relu": [("m.relu(x)", "m.maximum(x, 0)")],
    "rsqrt": [("m.rsqrt(p)", "1 / m.sqrt(p)")],
    "softplus": [("m.softplus(x)", "m.logaddexp(x, 0)")],
    **_special("x", sigmoid="expit", erf="erf", erfc="erfc"),
    **_special("u", erfinv="erfinv"),
    **_special("p", lgamma="gammaln", digamma="psi"),
    **_special("2, p", polygamma="polygamma"),
    **_special("x, p", xlogy="xlogy", xlog1py="xlog1py"),
    "huber_loss": [("m.huber_loss(x, y, reduction='none')", "special.huber(1.0, x - y)")],
    "l1_loss": [("m.l1_loss(x, y)", "m.mean(m.abs(x - y))")],
    "mse_loss": [("m.mse_loss(x, y)", "m.mean(m.square(x - y))")],
    "select": ["m.select([b, c], [x, y], 0.0)"],
}

REDUCTIONS: dict[str, list[Call]] = {
    **{name: _axes(name, "x", "X") for name in ("sum", "mean", "max", "min", "argmax", "argmin", "var", "std")},
    **{name: _axes(name, "x", "X") for name in ("cumulative_sum", "cumsum", "median", "diff", "trapezoid")},
    **{name: _axes(name, "o", "O") for name in ("prod", "cumulative_prod", "cumprod")},
    **{name: _axes(name, "z", "Z") for name in ("nansum", "nanmean")},
    **{name: _axes(name, "d", "D") for name in ("sort", "argsort")},
    "all": _axes("all", "yes", "YES"),
    "any": _axes("any", "no", "NO"),
    "count_nonzero": _axes("count_nonzero", "b", "B"),
    "average": ["m.average(x, weights=p)", "m.average(X, axis=0, weights=v)"],
    "quantile": _axes("quantile", "x", "X", ", 0.3"),
    "logsumexp": [(t, t.replace("m.", "special.")) for t in _axes("logsumexp", "x", "X") if isinstance(t, str)],
    "softmax": [(f"m.softmax(X, axis={a})", f"special.softmax(X, axis={a})") for a in (0, 1)],
    "log_softmax": [(f"m.log_softmax(X, axis={a})", f"special.log_softmax(X, axis={a})") for a in (0, 1)],
    "logcumsumexp": [("m.logcumsumexp(x)", "m.logaddexp.accumulate(x)")],
    "cumulative_max": [
        ("m.cumulative_max(x)", "m.maximum.accumulate(x)"),
        *((f"m.cumulative_max(X, axis={a})", f"m.maximum.accumulate(X, axis={a})") for a in (0, 1)),
    ],
    "norm": [(t, t.replace("m.", "m.linalg.")) for t in _axes("norm", "x", "X") if isinstance(t, str)],
    "vector_norm": [("m.vector_norm(x)", "m.linalg.vector_norm(x)")],
    "matrix_norm": [("m.matrix_norm(X)", "m.linalg.matrix_norm(X)")],
    "searchsorted": ["m.searchsorted(s, x)"],
    "unique_values": [(f"m.unique_values({name})", f"m.unique({name})") for name in "xi"],  # NumPy's own is unsorted
    **{
        name: [(f"m.{name}(d, 4)", "d[h := m.argpartition(d, -4)[-4:]][o := m.argsort(-d[h])], h[o]")]
        for name in ("topk", "top_k")
    },
}

CONTRACTIONS: dict[str, list[Call]] = {
    "matmul": ["m.matmul(X, Y)", "m.matmul(X, v)"],
    "dot": ["m.dot(x, y)"],
    "inner": ["m.inner(x, y)", "m.inner(X, v)"],
    "outer": ["m.outer(v, w)"],
    "vecdot": ["m.vecdot(x, y)", "m.vecdot(X, Y)"],
    "tensordot": ["m.tensordot(X, Y, axes=2)", "m.tensordot(X, v, axes=1)"],
    "cross": ["m.cross(X3, Y3)"],
    "kron": ["m.kron(K, K)"],
    "multi_dot": [("m.multi_dot([X, Y, v])", "m.linalg.multi_dot([X, Y, v])")],
    "einsum": [
        "m.einsum('i,i->', x, y)",
        "m.einsum('ij,ij->i', X, Y)",
        "m.einsum('ij,j->i', X, v)",
        "m.einsum('i,j->ij', v, w)",
        "m.einsum('ij->j', X)",
        "m.einsum('ii->i', X)",
        "m.einsum('bij,bjk->bik', X4, Y4)",
        "m.einsum('ij,jk->ik', X, Y, optimize=True)",
    ],
}

SHAPES: dict[str, list[Call]] = {
    "reshape": ["m.reshape(x, shape)"],
    "ravel": ["m.ravel(X)"],
    "flatten": [("m.flatten(X)", "X.flatten()")],
    "permute_dims": ["m.permute_dims(X, (1, 0))"],
    "matrix_transpose": ["m.matrix_transpose(X)"],
    "moveaxis": ["m.moveaxis(X, 0, 1)"],
    "swapaxes": ["m.swapaxes(X, 0, 1)"],
    "broadcast_to": ["m.broadcast_to(v, shape)"],
    "broadcast_arrays": ["m.broadcast_arrays(X, v)"],
    "expand_dims": ["m.expand_dims(x, 0)"],
    "squeeze": ["m.squeeze(row)"],
    **_each("x", "atleast_1d atleast_2d atleast_3d"),
    "flip": ["m.flip(x)", "m.flip(X, axis=0)", "m.flip(X, axis=1)"],
    "rot90": ["m.rot90(X)"],
    "roll": ["m.roll(x, 5)", "m.roll(X, 3, axis=0)", "m.roll(X, 3, axis=1)"],
    "split": ["m.split(x, 4)", "m.split(X, 2, axis=1)"],
    "array_split": ["m.array_split(x, 3)"],
    "unstack": ["m.unstack(X)"],
    "concat": ["m.concat([x, y])", "m.concat([X, Y], axis=1)"],
    "stack": ["m.stack([x, y])", "m.stack([x, y], axis=1)"],
    "tile": ["m.tile(x, 3)", "m.tile(X, (2, 2))"],
    "repeat": ["m.repeat(x, 3)", "m.repeat(X, 2, axis=0)"],
    "pad": ["m.pad(X, 2)"],
    "diag": ["m.diag(X)", "m.diag(v)"],
    "diagonal": ["m.diagonal(X)"],
    "tril": ["m.tril(X)"],
    "triu": ["m.triu(X)"],
    "meshgrid": ["m.meshgrid(v, w)"],
}

PICKING: dict[str, list[Call]] = {
    "take": ["m.take(x, idx)", "m.take(X, rows, axis=0)", "m.take(X, rows, axis=1)"],
    "take_along_axis": [f"m.take_along_axis(X, A, axis={axis})" for axis in (0, 1)],
    "put_along_axis": [("m.put_along_axis(X, S, Y, 1)", "m.put_along_axis(c := X.copy(), S, Y, 1) or c")],
    "index_add": [("m.index_add(X, 0, rows, Y)", "m.add.at(c := X.copy(), rows, Y) or c")],
    "scatter_add": [
        ("m.scatter_add(X, rows, Y)", "m.add.at(c := X.copy(), rows, Y) or c"),
        ("m.scatter_add(x, idx, y)", "m.add.at(c := x.copy(), idx, y) or c"),
    ],
    "nonzero": ["m.nonzero(b)", "m.nonzero(B)"],
    "argwhere": ["m.argwhere(B)"],
    "masked_select": [("m.masked_select(x, b)", "x[b]")],
    "masked_fill": [("m.masked_fill(x, b, 0.0)", "m.where(b, 0.0, x)")],
    "one_hot": [("m.one_hot(rows, r)", "m.eye(r, dtype=int)[rows]")],
}

CREATION: dict[str, list[Call]] = {
    "tensor": [("m.tensor(a)", "m.array(a)"), ("m.tensor(numbers, dtype=f)", "m.array(numbers, dtype=f)")],
    "asarray": ["m.asarray(a, copy=True)"],
    "from_dlpack": ["m.from_dlpack(a)"],
    "astype": ["m.astype(x, m.int32)", "m.astype(i, f)"],
    "zeros": ["m.zeros(shape, dtype=f)"],
    "ones": ["m.ones(shape, dtype=f)"],
    "full": ["m.full(shape, 1.5, dtype=f)"],
    **_each("x", "zeros_like ones_like"),
    "full_like": ["m.full_like(x, 1.5)"],
    "arange": ["m.arange(n, dtype=f)"],
    "linspace": ["m.linspace(0.0, 1.0, n, dtype=f)"],
    "eye": ["m.eye(r, dtype=f)"],
    "result_type": ["m.result_type(x, y)"],
}

# What a tensor does without naming a function.
TENSOR: dict[str, list[Call]] = {
    "Tensor": [
        "x + y", "x - y", "x * y", "x / y", "x + 1.0", "1.0 - x", "2 * x", "-x", "x ** 2", "x < 0.5", "x // y", "x % y",
        "X + v", "X * v[:, None]", "X @ Y", "X @ v", "x.sum()", "x.max()", "X.T", "x.reshape(shape)",
        "x[3]", "x[2:-2]", "x[::2]", "x[::-1]", "X[1]", "X[:, 1]", "X[..., None]", "X[::2, ::2]", "x[idx]", "x[b]",
        "X[rows]", "X[rows, rows]", "X[:, rows]", "X[B]",
        "t[3] = 1.5", "t[2:-2] = 1.5", "t[::2] = x[::2]", "t[idx] = 0.5", "t[b] = 0.5",
    ],
}  # fmt: skip

CASES: dict[str, list[Call]] = {
    **ELEMENTWISE, **REDUCTIONS, **CONTRACTIONS, **SHAPES, **PICKING, **CREATION, **TENSOR,
}  # fmt: skip

# Public functions of which neither NumPy nor scipy.special has one, or whose results say nothing (empty).
WITHOUT_COUNTERPART = frozenset(
    """
    binary_cross_entropy_with_logits cross_entropy kl_div nll_loss layer_norm rms_norm dropout
    elu gelu gelu_tanh leaky_relu lerp silu smul spherical_ratio empty empty_like stop_gradient grad value_and_grad
    vjp jvp hvp jacobian hessian checkpoint sparse_jacobian sparse_hessian
    default_device device devices eager freeze function load_plan parse_plan get_default_dtype
    set_default_dtype get_num_threads set_num_threads is_grad_enabled vmap
    """.split()
)
