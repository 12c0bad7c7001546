# Elementwise ops: from Python arguments to one loop, one value, one entry.

cdef object _float = float
cdef object _int = int
cdef object _bool = bool


cdef inline bint is_float(int dtype) noexcept:
    return dtype >= TPF_FLOAT32


cdef inline bint is_number(object x) noexcept:
    """A Python number, by exact type: NumPy's scalars keep their dtype and are taken as arrays."""
    return PyFloat_CheckExact(x) or PyLong_CheckExact(x) or PyBool_Check(x)


cdef int write_number(void *dst, int dtype, object x, const char *op) except -1:
    """Write a Python number in a dtype; an int that does not fit is an error, a float goes to floats only."""
    cdef int64_t n = 0
    cdef double d
    if dtype == TPF_FLOAT32:
        d = PyFloat_AsDouble(x)
        if d == -1.0 and PyErr_Occurred():
            raise_int_range(op, x, dtype)
        (<float *>dst)[0] = <float>d
        return 0
    if dtype == TPF_FLOAT64:
        d = PyFloat_AsDouble(x)
        if d == -1.0 and PyErr_Occurred():
            raise_int_range(op, x, dtype)
        (<double *>dst)[0] = d
        return 0
    if dtype == TPF_BOOL:
        (<uint8_t *>dst)[0] = 1 if x else 0
        return 0
    if PyFloat_CheckExact(x):
        raise errors.DTypeError(f"[{op.decode()}] the number {x!r} does not fit the dtype {dtype_name(dtype)}. "
                                "Cast the tensor with .astype('float32') first.")
    try:
        n = x
    except OverflowError:
        raise_int_range(op, x, dtype)
    if dtype == TPF_INT64:
        (<int64_t *>dst)[0] = n
    elif dtype == TPF_INT32:
        if n != <int32_t>n:
            raise_int_range(op, x, dtype)
        (<int32_t *>dst)[0] = <int32_t>n
    else:
        if n < 0 or n > 255:
            raise_int_range(op, x, dtype)
        (<uint8_t *>dst)[0] = <uint8_t>n
    return 0


cdef int raise_int_range(const char *op, object x, int dtype) except -1:
    PyErr_Clear()
    raise errors.NumberRangeError(f"[{op.decode()}] the Python number {short(x)} is out of range for dtype "
                                  f"{dtype_name(dtype)}. Cast the tensor to a wider dtype first.")


# ---- running one loop


cdef inline bint direct(Value *v, int want, int64_t size) noexcept:
    return v == NULL or (v.contiguous and v.size == size and v.dtype == want)


cdef void set_operand(tpf_operand *op, Value *v, int want, Value *out, int64_t *strides) noexcept:
    """v, broadcast to out's shape, as an operand of the block executor."""
    cdef int d, s
    if v == NULL:
        op.data = NULL
        return
    for d in range(out.ndim):
        s = d - (out.ndim - v.ndim)
        strides[d] = 0 if s < 0 or v.shape[s] == 1 else v.strides[s]
    op.data = v.data
    op.strides = strides
    op.dtype = v.dtype
    op.want = want


cdef void set_result(tpf_call *call, Value *out) noexcept:
    """The shape that operands are stretched to, and where the result goes."""
    call.kernels = kernels
    call.ndim = out.ndim
    call.shape = out.shape
    call.size = out.size
    call.out = out.data
    call.first = 0
    call.out_itemsize = tpf_itemsize(out.dtype)


cdef void execute_blocks(tpf_call *call, Value *out, bint release) noexcept:
    set_result(call, out)
    if release and out.size >= RELEASE_GIL:
        with nogil:
            tpf_execute(call)
    else:
        tpf_execute(call)


cdef int execute_typed(int op, int dtype, Value *out, Value *a, Value *b, Value *c, bint release) except -1:
    """out = op(a, b, c), computed in dtype; out is contiguous, of the broadcast shape. release: the GIL may be given
    up, so the caller holds shares of everything and nobody else can see out."""
    cdef int first = TPF_BOOL if tpf_op_kind[op] == TPF_KIND_SELECT else dtype
    cdef tpf_loop loop = kernels.loop[op][dtype]
    cdef tpf_call call
    cdef int64_t strides[3][64]
    ensure_writable(out)
    if (out.size < RELEASE_GIL and direct(a, first, out.size) and direct(b, dtype, out.size)
            and direct(c, dtype, out.size)):
        if out.size:
            loop(out.data, a.data, NULL if b == NULL else b.data, NULL if c == NULL else c.data, out.size)
        return 0
    call.loop = loop
    call.vjp = NULL
    call.also = NULL
    call.acc = 0
    call.nops = 3
    set_operand(&call.ops[0], a, first, out, strides[0])
    set_operand(&call.ops[1], b, dtype, out, strides[1])
    set_operand(&call.ops[2], c, dtype, out, strides[2])
    execute_blocks(&call, out, release)
    return 0


cdef void set_partials(tpf_call *call, int64_t[64] *strides, int op, int i, int also, Value *out, Value *g, Value **v,
                       int acc) noexcept:
    """call: the partial i of op, and the partial also; v: those of a b c y that they read."""
    cdef int dtype = g.dtype
    cdef int first = TPF_BOOL if tpf_op_kind[op] == TPF_KIND_SELECT else dtype
    cdef int k
    call.loop = NULL
    call.vjp = kernels.vjp[op][i][dtype - TPF_FLOAT32]
    call.also = NULL if also < 0 else kernels.vjp[op][also][dtype - TPF_FLOAT32]
    call.acc = acc
    call.nops = 5
    set_operand(&call.ops[0], g, dtype, out, strides[0])
    for k in range(4):
        set_operand(&call.ops[k + 1], v[k], first if k == 0 else dtype, out, strides[k + 1])


cdef int64_t summed_run(Value *g, Value *like) noexcept:
    """How many neighbours in g make one element of like, where a sum to its shape is that and nothing else; or 0."""
    cdef int64_t n = 1
    cdef int d = g.ndim - 1
    cdef int extra = g.ndim - like.ndim
    while d >= 0 and (d < extra or like.shape[d - extra] == 1):
        n *= g.shape[d]
        d -= 1
    while d >= 0 and (g.shape[d] == 1 if d < extra else g.shape[d] == like.shape[d - extra]):
        d -= 1
    return n if d < 0 else 0


cdef Value *execute_vjp_sums(int op, int i, Value *g, Value **vals, int64_t n) except NULL:
    """The cotangent g of op pushed through its partial i and summed to the shape of vals[i], n neighbours each, block
    after block: a product as large as g is never there. float64 alone: a chunk of float32 has no sum in double to be
    joined, and one pass that widens it is slower than two."""
    cdef Value *v[4]
    cdef tpf_call call
    cdef int64_t strides[5][64]
    cdef int64_t room
    cdef Value *parts
    cdef Value *y
    cdef int k
    for k in range(4):
        v[k] = vals[k] if tpf_op_vjp_saves[op][i] >> k & 1 else NULL
    set_partials(&call, strides, op, i, -1, g, g, v, 0)
    set_result(&call, g)
    room = TPF_SUM_PARTS(n) * (g.size // n)
    parts = value_new(1, &room, TPF_FLOAT64)
    try:
        y = value_new(vals[i].ndim, vals[i].shape, g.dtype)
    except:
        value_release(parts)
        raise
    with nogil:
        tpf_execute_sums(&call, <double *>y.data, n, <double *>parts.data)
    value_release(parts)
    return y


cdef int execute_vjp(int op, int i, int also, Value *out, Value *g, Value **vals, int acc) except -1:
    """out = (acc: out +) the cotangent g of op pushed through its partial i, and then (also >= 0) + that pushed through
    the partial also; vals are a b c y as saved."""
    cdef int dtype = g.dtype
    cdef int needs = tpf_op_vjp_saves[op][i] | (tpf_op_vjp_saves[op][also] if also >= 0 else 0)
    cdef int first = TPF_BOOL if tpf_op_kind[op] == TPF_KIND_SELECT else dtype
    cdef tpf_vjp vjp = kernels.vjp[op][i][dtype - TPF_FLOAT32]
    cdef tpf_vjp second = NULL if also < 0 else kernels.vjp[op][also][dtype - TPF_FLOAT32]
    cdef Value *v[4]
    cdef tpf_call call
    cdef int64_t strides[5][64]
    cdef int k
    ensure_writable(out)
    for k in range(4):
        v[k] = vals[k] if needs >> k & 1 else NULL
    if (out.size < RELEASE_GIL and direct(g, dtype, out.size) and direct(v[0], first, out.size)
            and direct(v[1], dtype, out.size) and direct(v[2], dtype, out.size) and direct(v[3], dtype, out.size)):
        if out.size:
            vjp(out.data, g.data, NULL if v[0] == NULL else v[0].data, NULL if v[1] == NULL else v[1].data,
                NULL if v[2] == NULL else v[2].data, NULL if v[3] == NULL else v[3].data, out.size, acc)
            if second != NULL:
                second(out.data, g.data, NULL if v[0] == NULL else v[0].data, NULL if v[1] == NULL else v[1].data,
                       NULL if v[2] == NULL else v[2].data, NULL if v[3] == NULL else v[3].data, out.size, 1)
        return 0
    set_partials(&call, strides, op, i, also, out, g, v, acc)
    execute_blocks(&call, out, True)
    return 0


# ---- from Python arguments


cdef int broadcast_shapes(int op, int nin, Value **v, int64_t *shape) except -1:
    """The broadcast shape of the operands into shape; returns ndim."""
    cdef int ndim = 0
    cdef int i, d, s
    cdef int64_t n
    for i in range(nin):
        if v[i].ndim > ndim:
            ndim = v[i].ndim
    for d in range(ndim):
        shape[d] = 1
    for i in range(nin):
        for s in range(v[i].ndim):
            d = s + ndim - v[i].ndim
            n = v[i].shape[s]
            if n == 1 or n == shape[d]:
                continue
            if shape[d] != 1:
                raise errors.ShapeError(
                    f"[{tpf_op_name[op].decode()}] shapes {' and '.join([str(shape_of(v[k])) for k in range(nin)])} "
                    "do not broadcast: aligned from the right, sizes must be equal or 1. Use reshape or expand_dims.")
            shape[d] = n
    return ndim


cdef int raise_no_loop(int op, int dtype) except -1:
    raise errors.DTypeError(f"[{tpf_op_name[op].decode()}] is not defined for dtype {dtype_name(dtype)}. "
                            "Cast with .astype first.")


cdef inline int compute_dtype(int op, int dtype, int weak) except -1:
    """The dtype that op computes in; weak: 0 none, 1 bool, 2 int, 3 float for the Python numbers among its operands."""
    if dtype < 0:
        dtype = default_float if weak == 3 else TPF_INT64 if weak == 2 else TPF_BOOL
    elif weak == 3 and not is_float(dtype):
        dtype = default_float
    elif weak == 2 and dtype == TPF_BOOL:
        dtype = TPF_INT64
    if tpf_op_kind[op] == TPF_KIND_FLOAT and not is_float(dtype):
        dtype = default_float
    return dtype


cdef Tensor elementwise(int op, int nin, PyObject **args):
    """op over tensors, numbers and whatever as_tensor takes; recorded when an input is."""
    cdef Value *v[3]
    cdef Value *own[3]
    cdef Entry *nodes[3]
    cdef int i, dtype
    cdef int strong = -1
    cdef int weak = 0
    cdef int numbers = 0
    cdef bint select = tpf_op_kind[op] == TPF_KIND_SELECT
    cdef Tensor t
    cdef list made = None
    cdef bint soft = False       # a float argument of a recorded function is among the operands
    for i in range(nin):  # before anything is looked at: conversion may run the caller's code
        if not (isinstance(<object>args[i], Tensor) or is_number(<object>args[i])):
            t = as_tensor_for(op, <object>args[i])
            if made is None:
                made = []
            made.append(t)
            args[i] = <PyObject *>t
    for i in range(nin):
        own[i] = NULL
        if isinstance(<object>args[i], Tensor):
            t = <Tensor>args[i]
        elif is_number(<object>args[i]):
            v[i] = NULL
            nodes[i] = NULL
            numbers += 1
            if not (select and i == 0):
                dtype = 3 if PyFloat_CheckExact(<object>args[i]) else 1 if PyBool_Check(<object>args[i]) else 2
                if dtype > weak:
                    weak = dtype
            continue
        v[i] = t.v
        nodes[i] = t.node
        if type(t) is WeakFloat:
            soft = True
            weak = weak if select and i == 0 else 3
            continue
        if not (select and i == 0) and t.v.dtype > strong:
            strong = t.v.dtype
    if soft:
        return with_weak_tensors(op, nin, args, compute_dtype(op, strong, weak))
    dtype = compute_dtype(op, strong, weak)
    if kernels.loop[op][dtype] == NULL:
        raise_no_loop(op, dtype)
    try:
        if numbers:
            for i in range(nin):
                if v[i] == NULL:
                    own[i] = as_constant(value_scalar(TPF_BOOL if select and i == 0 else dtype))
                    v[i] = own[i]
                    write_number(v[i].data, v[i].dtype, <object>args[i], tpf_op_name[op])
        return computed(op, nin, v, nodes, dtype)
    finally:
        if numbers:
            for i in range(nin):
                value_release(own[i])


cdef Tensor computed(int op, int nin, Value **v, Entry **nodes, int dtype):
    """op over operands that may need broadcasting or casting, recorded when one of them is."""
    cdef ThreadState *ts = thread_state()
    cdef double start = step_begins(ts)
    cdef Tensor t
    cdef list held = None
    cdef int i
    if any_away(nin, v) != NULL:
        held = brought_together(nin, v, nodes)
    for i in range(nin):  # shares of our own: while a large loop runs, another thread may write to the tensors
        v[i].owners += 1
        if nodes[i] != NULL:
            nodes[i].refs += 1
    try:
        t = recorded(ts, op, nin, nodes, v, elementwise_value(op, nin, v, dtype))
        step_ends(ts, start, op, nin, v, t.v)
        return t
    finally:
        for i in range(nin):
            value_release(v[i])
            entry_release(nodes[i])


cdef inline Tensor recorded(ThreadState *ts, int op, int nin, Entry **nodes, Value **v, Value *y):
    """The tensor of y = op(v), which is taken over, with an entry when an input requires grad or a tape is open."""
    cdef Entry *e = NULL
    cdef int saves = 0
    cdef int i
    for i in range(nin):
        if nodes[i] != NULL and nodes[i].flags & ts.flags & E_GRAD:
            saves |= tpf_op_vjp_saves[op][i] | RECORD
    if (saves and is_float(y.dtype)) or ts.flags & (T_TAPE | T_NAN):
        try:
            e = record(ts, op, nin, nodes, v, y, saves)
        except:
            value_release(y)
            raise
    return wrap(y, e)


cdef Value *elementwise_value(int op, int nin, Value **v, int dtype) except NULL:
    """The value of op over operands that may need broadcasting or casting."""
    cdef int out_dtype = TPF_BOOL if tpf_op_kind[op] == TPF_KIND_COMPARE else dtype
    cdef int64_t shape[64]
    cdef Value *y
    cdef Value *big = v[0]
    cdef int i
    for i in range(1, nin):
        if v[i].ndim > big.ndim:
            big = v[i]
    if any_away(nin, v) != NULL:
        return remote_many(op, (), nin, v, broadcast_shapes(op, nin, v, shape), shape, out_dtype)
    for i in range(nin):
        if v[i] != big and v[i].ndim != 0 and not same_shape(v[i], big):
            y = value_new(broadcast_shapes(op, nin, v, shape), shape, out_dtype)
            break
    else:
        y = value_like(big, out_dtype)
    y.loose = True
    for i in range(nin):
        y.loose = y.loose and v[i].loose
    execute_typed(op, dtype, y, v[0], v[1] if nin > 1 else NULL, v[2] if nin > 2 else NULL, True)
    return y


cdef int64_t plain_below = RELEASE_GIL  # 0 while a profile is open in some thread: then all go the general way


cdef inline bint plain(int op, Value *v) noexcept:
    """Can op's loop run over v as it is?"""
    return (v.contiguous and v.size < plain_below and kernels.loop[op][v.dtype] != NULL
            and (v.dtype >= TPF_FLOAT32 or tpf_op_kind[op] != TPF_KIND_FLOAT))


cdef inline Tensor plain_result(int op, int nin, Value **v, Entry **nodes):
    """op over operands of one shape and dtype that its loop takes as they are: the hot path, one branch to the loop."""
    cdef ThreadState *ts = thread_state()
    cdef Value *y = value_like(v[0], TPF_BOOL if tpf_op_kind[op] == TPF_KIND_COMPARE else v[0].dtype)
    if y.size:
        kernels.loop[op][v[0].dtype](y.data, v[0].data, v[1].data if nin > 1 else NULL, NULL, y.size)
    y.loose = v[0].loose and (nin < 2 or v[1].loose)
    return recorded(ts, op, nin, nodes, v, y)


cdef inline Tensor call1(int op, object a):
    cdef PyObject *args[1]
    cdef Value *v[1]
    cdef Entry *nodes[1]
    if type(a) is Tensor and plain(op, (<Tensor>a).v):
        v[0], nodes[0] = (<Tensor>a).v, (<Tensor>a).node
        return plain_result(op, 1, v, nodes)
    args[0] = <PyObject *>a
    return elementwise(op, 1, args)


cdef Tensor with_float(int op, Tensor t, object number, bint number_first):
    """op of a plain float tensor and a Python float, which takes the tensor's dtype."""
    cdef Value *v[2]
    cdef Entry *nodes[2]
    cdef Value *own = as_constant(value_scalar(t.v.dtype))
    if t.v.dtype == TPF_FLOAT32:
        (<float *>own.data)[0] = <float>PyFloat_AS_DOUBLE(number)
    else:
        (<double *>own.data)[0] = PyFloat_AS_DOUBLE(number)
    v[number_first], v[not number_first] = t.v, own
    nodes[number_first], nodes[not number_first] = t.node, NULL
    try:
        return plain_result(op, 2, v, nodes) if t.v.ndim == 0 else computed(op, 2, v, nodes, t.v.dtype)
    finally:
        value_release(own)


cdef inline Tensor call2(int op, object a, object b):
    cdef PyObject *args[2]
    cdef Value *v[2]
    cdef Entry *nodes[2]
    if type(a) is Tensor:
        v[0] = (<Tensor>a).v
        if type(b) is Tensor:
            v[1] = (<Tensor>b).v
            if v[0].dtype == v[1].dtype and v[1].contiguous and plain(op, v[0]) and same_shape(v[0], v[1]):
                nodes[0], nodes[1] = (<Tensor>a).node, (<Tensor>b).node
                return plain_result(op, 2, v, nodes)
        elif PyFloat_CheckExact(b) and is_float(v[0].dtype) and plain(op, v[0]):
            return with_float(op, <Tensor>a, b, False)
    elif PyFloat_CheckExact(a) and type(b) is Tensor and is_float((<Tensor>b).v.dtype) and plain(op, (<Tensor>b).v):
        return with_float(op, <Tensor>b, a, True)
    args[0] = <PyObject *>a
    args[1] = <PyObject *>b
    return elementwise(op, 2, args)


cdef inline Tensor call3(int op, object a, object b, object c):
    cdef PyObject *args[3]
    args[0] = <PyObject *>a
    args[1] = <PyObject *>b
    args[2] = <PyObject *>c
    return elementwise(op, 3, args)


cdef inline Tensor add_tensors(Tensor a, Tensor b):
    return call2(OP_ADD, a, b)


cdef inline bint is_operand(object x) noexcept:
    """What the operators of a Tensor take beside it; anything else gets NotImplemented."""
    return type(x) is Tensor or is_number(x) or is_other_operand(x)


cdef bint is_other_operand(object x) noexcept:
    return isinstance(x, (Tensor, _ndarray, _np_generic))


cdef bint has_negative(Tensor t) except -1:
    return (<Tensor>call2(OP_LESS, op_reduce(OP_MIN, t, 0, True, False), 0)).item()


def pow(x1, x2, /):
    """x1 to the power of x2, elementwise.

    A Python int exponent of an otherwise float base is exact algebra where it is cheap: ``x**2`` is ``square(x)``,
    ``x**1`` is x, and ``x**-1`` is ``reciprocal(x)``. Integers to negative integer powers raise ValueError.

    Derivatives: ``x2 * x1**(x2 - 1)`` (0 where x2 is 0) and ``y * log(x1)`` (0 where y is 0, and for 0**0).

    >>> tp.pow(tp.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [1.0, 4.0, 9.0]
    """
    cdef Tensor t
    if not is_number(x2) and not isinstance(x2, Tensor):
        x2 = as_tensor_for(OP_POW, x2)
    if PyLong_CheckExact(x2) and isinstance(x1, Tensor):
        t = x1
        if x2 == 2 and t.v.dtype != TPF_BOOL:
            return call1(OP_SQUARE, t)
        if x2 < 0 and not is_float(t.v.dtype):
            raise errors.NumberRangeError("[pow] integers to negative integer powers are not integers: "
                                          f"{describe(t.v)} ** {x2}. Cast the base to a float dtype.")
        if is_float(t.v.dtype) and (x2 == 1 or x2 == -1):
            return call1(OP_POSITIVE if x2 == 1 else OP_RECIPROCAL, t)
    elif isinstance(x2, Tensor):
        t = x2
        if not is_float(t.v.dtype) and t.v.dtype > TPF_UINT8 and not isinstance(x1, float):
            base_dtype = (<Tensor>x1).v.dtype if isinstance(x1, Tensor) else TPF_INT64
            if not is_float(base_dtype) and t.v.size and has_negative(t):
                raise errors.NumberRangeError("[pow] integers to negative integer powers are not integers: "
                                              "the exponent has a negative element. Cast the base to a float dtype.")
    return call2(OP_POW, x1, x2)


def round(x, /, decimals=0):
    """x rounded to whole numbers, or to that many decimals, elementwise; halves go to the even neighbour.

    Parameters
    ----------
    x : Tensor, array or number
    decimals : int
        Below 0: to tens, hundreds and so on. Otherwise ``round(x * 10**decimals) / 10**decimals``, as NumPy.

    The derivative is 0. Integers keep their dtype.

    >>> tp.round(tp.tensor([1.5, 2.5, -0.6])).tolist()
    [2.0, 2.0, -1.0]
    >>> tp.round(tp.tensor([0.125, 12.5]), 2).tolist()
    [0.11999999731779099, 12.5]
    """
    if not PyLong_CheckExact(decimals):
        decimals = operator.index(decimals)
    if decimals == 0:
        return call1(OP_ROUND, x)
    cdef Tensor t = as_tensor(x)
    if not is_float(t.v.dtype):  # below 0 through float64, as NumPy
        y = call1(OP_ROUND, t)
        return y if decimals > 0 else op_astype(round(op_astype(y, TPF_FLOAT64), decimals), t.v.dtype)
    cdef object places = decimals if decimals > 0 else -decimals
    cdef object scale = 10.0 ** (places if places < 308 else 308)
    cdef int there = OP_MULTIPLY if decimals > 0 else OP_DIVIDE
    return call2(OP_DIVIDE if decimals > 0 else OP_MULTIPLY, call1(OP_ROUND, call2(there, t, scale)), scale)


def gelu(x, /, approximate="none"):
    """x times the normal distribution function: ``x * erfc(-x / sqrt(2)) / 2``, elementwise.

    Parameters
    ----------
    x : Tensor, array or number
    approximate : "none" or "tanh"
        "tanh": ``gelu_tanh(x)``, the approximation by a hyperbolic tangent.

    Derivative: the distribution function plus x times the density, 0 and 1 at -inf and inf.

    >>> tp.gelu(tp.tensor([0.0, 100.0])).tolist()
    [0.0, 100.0]
    """
    if approximate == "none":
        return call1(OP_GELU, x)
    if approximate == "tanh":
        return call1(OP_GELU_TANH, x)
    raise errors.NumberRangeError(f"[gelu] approximate is {approximate!r}; expected 'none' or 'tanh'.")


def elu(x, /, alpha=1.0):
    """x where x > 0, else ``alpha * (exp(x) - 1)``, elementwise.

    Parameters
    ----------
    x, alpha : Tensor, array or number
        Of shapes that broadcast together.

    Derivative by x: 1 where x > 0, else ``alpha * exp(x)``; by alpha: 0 where x > 0, else ``exp(x) - 1``.

    >>> tp.elu(tp.tensor([2.0, 0.0])).tolist()
    [2.0, 0.0]
    """
    return call2(OP_ELU, x, alpha)


def leaky_relu(x, /, negative_slope=0.01):
    """x where x > 0, else ``negative_slope * x``, elementwise.

    Parameters
    ----------
    x, negative_slope : Tensor, array or number
        Of shapes that broadcast together.

    Derivative by x: 1 where x > 0, else negative_slope; by negative_slope: 0 where x > 0, else x.

    >>> tp.leaky_relu(tp.tensor([2.0, -2.0]), 0.5).tolist()
    [2.0, -1.0]
    """
    return call2(OP_LEAKY_RELU, x, negative_slope)


def nan_to_num(x, /, nan=0.0, posinf=None, neginf=None):
    """x with NaN, inf and -inf replaced by numbers, elementwise.

    Parameters
    ----------
    x : Tensor, array or number
    nan, posinf, neginf : Tensor, array or number
        What stands in for NaN, inf and -inf; None: the largest and the lowest number of the dtype.

    The gradient goes to x where x is finite, else to what stands in for it. Integers are left as they are.

    >>> tp.nan_to_num(tp.tensor([1.0, float("nan"), float("inf")]), posinf=9.0).tolist()
    [1.0, 0.0, 9.0]
    """
    cdef Tensor t = as_tensor(x)
    if not is_float(t.v.dtype):
        return op_identity(t)
    cdef object largest = _float_largest[t.v.dtype]
    if posinf is None and neginf is None and is_number(nan) and math.isfinite(nan):  # the usual case, in fewer passes
        return call3(OP_CLIP, call3(OP_WHERE, call1(OP_ISNAN, t), nan, t), -largest, largest)
    y = call3(OP_WHERE, call1(OP_ISNAN, t), nan, t)
    y = call3(OP_WHERE, call2(OP_EQUAL, t, math.inf), largest if posinf is None else posinf, y)
    return call3(OP_WHERE, call2(OP_EQUAL, t, -math.inf), -largest if neginf is None else neginf, y)


cdef dict _float_largest = {TPF_FLOAT32: float(numpy.finfo("float32").max),
                            TPF_FLOAT64: float(numpy.finfo("float64").max)}


def clip(x, /, min=None, max=None):
    """x limited to min .. max, elementwise: ``minimum(maximum(x, min), max)``, so min > max gives max.

    Parameters
    ----------
    x : Tensor, array or number
    min, max : Tensor, array, number or None
        Bounds that broadcast with x; None: no bound on that side.

    Gradient: 1 to x where min <= x <= max, else 1 to the bound that is active.

    >>> tp.clip(tp.tensor([-1.0, 0.5, 2.0]), 0.0, 1.0).tolist()
    [0.0, 0.5, 1.0]
    """
    if min is None and max is None:
        return op_identity(as_tensor(x))
    if min is None:
        return clip_above(as_tensor(x), max)
    if max is None:
        return clip_below(as_tensor(x), min)
    return call3(OP_CLIP, x, min, max)


cdef Tensor clip_above(Tensor x, object bound):
    """clip with no lower bound: the lowest value of the dtype stands for it."""
    cdef int dtype = promoted(x, bound)
    return call3(OP_CLIP, x, -math.inf if is_float(dtype) else _int_lowest[dtype], bound)


cdef Tensor clip_below(Tensor x, object bound):
    cdef int dtype = promoted(x, bound)
    return call3(OP_CLIP, x, bound, math.inf if is_float(dtype) else _int_highest[dtype])


cdef int promoted(Tensor x, object other) except -1:
    if is_number(other):
        return default_float if isinstance(other, float) and not is_float(x.v.dtype) else x.v.dtype
    cdef int d = as_tensor(other).v.dtype
    return d if d > x.v.dtype else x.v.dtype


cdef dict _int_lowest = {TPF_BOOL: False, TPF_UINT8: 0, TPF_INT32: -2**31, TPF_INT64: -2**63}
cdef dict _int_highest = {TPF_BOOL: True, TPF_UINT8: 255, TPF_INT32: 2**31 - 1, TPF_INT64: 2**63 - 1}
