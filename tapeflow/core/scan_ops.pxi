# Running reductions along an axis, and the recurrence that is the rule of some: values and entries, rules, functions.

cdef int execute_scan(int op, int axis, bint reverse, Value *x, Value *a, Value *y, Value *places) except -1:
    """y = x scanned along axis; a: the factors of a recurrence, like x, else NULL; places: of a maximum, for where in
    C order each element's stands, or NULL."""
    cdef tpf_scan scan = kernels.scan[op - OP_CUMULATIVE_SUM][x.dtype]
    cdef tpf_scan_call call
    cdef Value *src = value_contiguous(x)
    cdef Value *factors = NULL
    try:
        factors = NULL if a == NULL else value_contiguous(a)
        call.y, call.x = y.data, src.data
        call.a = NULL if factors == NULL else factors.data
        call.where = NULL if places == NULL else <int64_t *>places.data
        call.reverse = reverse
        around_axis(src, axis, &call.outer, &call.inner)
        call.n = src.shape[axis]
        if src.size >= RELEASE_GIL // 4:
            with nogil:
                scan(&call)
        elif src.size:
            scan(&call)
    finally:
        value_release(src)
        value_release(factors)
    return 0


cdef int execute_argmax_scan(int axis, Value *x, Value *places) except -1:
    """places = where in C order each element's maximum so far stands."""
    cdef Value *y = value_like(x, x.dtype)
    try:
        return execute_scan(OP_CUMULATIVE_MAX, axis, False, x, NULL, y, places)
    finally:
        value_release(y)


cdef Tensor argmax_scan(Tensor x, int axis):
    """Where in C order each element's maximum so far stands."""
    cdef int64_t params[2]
    cdef double start = step_begins(thread_state())
    cdef Value *y
    params[0], params[1] = 1, axis
    if is_remote(x.v):
        y = remote_result(OP_CUMULATIVE_ARGMAX, (axis,), x.v, NULL, NULL, x.v.ndim, x.v.shape, TPF_INT64)
        return recorded1(OP_CUMULATIVE_ARGMAX, x, y, params, start)
    y = value_like(x.v, TPF_INT64)
    try:
        execute_argmax_scan(axis, x.v, y)
    except:
        value_release(y)
        raise
    return recorded1(OP_CUMULATIVE_ARGMAX, x, y, params, start)


cdef Tensor op_scan(int op, Tensor x, Tensor a, int axis, bint reverse):
    """x scanned along axis; a: the factors of a recurrence, like x, else None."""
    x = steady(x)
    a = None if a is None else steady(a)
    cdef ThreadState *ts = thread_state()
    cdef double start = step_begins(ts)
    cdef Value *places = NULL
    cdef Value *y = NULL
    cdef Value *vals[2]
    cdef Entry *nodes[2]
    cdef Entry *e = NULL
    cdef Value *there = away(x.v, NULL if a is None else a.v, NULL)
    cdef bint placed = there == NULL and not ts.flags & T_TAPE  # positions come from the scan itself
    cdef int saves = (0 if op == OP_CUMULATIVE_SUM or op == OP_CUMULATIVE_MAX and placed
                      else SAVE_A if op == OP_CUMULATIVE_MAX  # a recording computes the positions from it
                      else SAVE_B | SAVE_Y if op == OP_RECURRENCE else SAVE_A | SAVE_Y)
    cdef bint wanted = wants_record(ts, x.node, x.v.dtype) or (a is not None and wants_record(ts, a.node, a.v.dtype))
    try:
        if there != NULL:
            y = remote_result(op, (axis, <int>reverse), x.v, NULL if a is None else a.v, NULL, x.v.ndim, x.v.shape,
                              x.v.dtype)
        else:
            y = value_new(x.v.ndim, x.v.shape, x.v.dtype)
            if op == OP_CUMULATIVE_MAX and wanted:
                places = value_new(x.v.ndim, x.v.shape, TPF_INT64)
            execute_scan(op, axis, reverse, x.v, NULL if a is None else a.v, y, places)
        vals[0], nodes[0] = x.v, x.node
        if a is not None:
            vals[1], nodes[1] = a.v, a.node
        step_ends(ts, start, op, 1 if a is None else 2, vals, y)
        if wanted:
            e = record(ts, op, 1 if a is None else 2, nodes, vals, y, saves)
            if places != NULL and e.flags & E_GRAD:
                e.val[1] = value_share(places)
            e.params = params_new(2)
            e.params[1] = axis
            e.params[2] = reverse
    except:
        value_release(y)
        entry_release(e)
        raise
    finally:
        value_release(places)
    return wrap(y, e)


# ---- rules


cdef Tensor shifted(Tensor t, int axis, double first):
    """t moved one place on along axis; `first` comes in, the last goes out."""
    cdef int64_t shape[64]
    cdef int d
    for d in range(t.v.ndim):
        shape[d] = 1 if d == axis else t.v.shape[d]
    cdef Tensor start = op_broadcast(number_tensor(first, t.v.dtype, b"shift"), t.v.ndim, shape)
    return op_concat([start, narrow(t, axis, 0, t.v.shape[axis] - 1)], axis)


cdef int scan_vjp(Walk w, Entry *e, Value **vals, Tensor g) except -1:
    """The adjoint of a scan is a scan from the other end."""
    cdef int op = e.opcode
    cdef int axis = <int>e.params[1]
    cdef bint reverse = e.params[2]
    cdef Tensor y
    if g.v.size == 0:
        pass
    elif op == OP_CUMULATIVE_SUM:
        g = op_scan(op, g, None, axis, not reverse)
    elif op == OP_CUMULATIVE_MAX:
        g = scattered(g, places_of(e, vals, axis))
    elif op == OP_CUMULATIVE_PROD:
        # h[k] = g[k] + x[k + 1] h[k + 1] is the cotangent of the product up to k; no division, so 0 is like any x
        y = with_node(vals[3], e)
        g = op_scan(OP_RECURRENCE, g, with_node(vals[0], e.src[0]), axis, True)
        g = call2(OP_SMUL, g, shifted(y, axis, 1))
    elif op == OP_LOGCUMSUMEXP:
        g = logcumsumexp_vjp(e, vals, g, axis)
    else:
        return recurrence_vjp(w, e, vals, g, axis, reverse)
    return w.push_tensor(e.src[0], g, vals[0]) if needs(w, e, 0) else 0


cdef Tensor places_of(Entry *e, Value **vals, int axis):
    """Where in C order each running maximum stands. A recording has them as an op of x."""
    cdef int64_t params[2]
    cdef Tensor x
    if vals[1] != NULL and (not thread_state().flags & T_TAPE or vals[0] == NULL):
        return wrap(value_share(vals[1]), NULL)
    params[0], params[1] = 1, axis
    x = with_node(vals[0], e.src[0])
    if vals[1] == NULL:
        return argmax_scan(x, axis)
    return recorded1(OP_CUMULATIVE_ARGMAX, x, value_alias(vals[1]), params)


cdef Tensor scattered(Tensor g, Tensor places):
    """Zeros like g with its elements added at places, positions in C order."""
    cdef int64_t size = g.v.size
    cdef Tensor where = op_reshape(places, 1, &size)
    cdef Tensor zeros = wrap(zeros_value(1, &size, g.v.dtype), NULL)
    return reshape_like(op_scatter_add(zeros, where, op_reshape(g, 1, &size), 0), g.v)


cdef Tensor logcumsumexp_vjp(Entry *e, Value **vals, Tensor g, int axis):
    """y[k] is a mean in which y[k - 1] weighs sigmoid(y[k - 1] - x[k]) and x[k] the rest; exp(x - y) would carry the
    rounding of y. Of equal infinities: nothing where they are -inf, else half to each."""
    cdef Tensor x = with_node(vals[0], e.src[0])
    cdef Tensor y = with_node(vals[3], e)
    cdef Tensor before = shifted(y, axis, -math.inf)
    cdef Tensor d = call2(OP_SUBTRACT, before, x)
    cdef Tensor equal = call2(OP_GREATER, call2(OP_EQUAL, before, x), call2(OP_EQUAL, d, d))
    cdef Tensor half = call3(OP_WHERE, call2(OP_GREATER, x, 0), 0.5, 0.0)
    g = call3(OP_WHERE, call2(OP_EQUAL, y, -math.inf), 0, g)
    g = op_scan(OP_RECURRENCE, g, call3(OP_WHERE, equal, half, call1(OP_SIGMOID, d)), axis, True)
    d = call1(OP_SIGMOID, call1(OP_NEGATIVE, d))
    return call2(OP_SMUL, g, call3(OP_WHERE, equal, half, d))


cdef int recurrence_vjp(Walk w, Entry *e, Value **vals, Tensor g, int axis, bint reverse) except -1:
    cdef Tensor a = with_node(vals[1], e.src[1])
    cdef Tensor h = op_scan(OP_RECURRENCE, g, a, axis, not reverse)
    cdef Tensor y
    if needs(w, e, 0):
        w.push_tensor(e.src[0], h, vals[0])
    if needs(w, e, 1):
        y = with_node(vals[3], e)
        g = call2(OP_SMUL, shifted(h, axis, 0), y) if reverse else call2(OP_SMUL, h, shifted(y, axis, 0))
        w.push_tensor(e.src[1], g, vals[1])
    return 0


# ---- the public functions


cdef int scan_axis(Tensor x, object axis, int op) except -1:
    """axis as 0 .. ndim-1; None is that of a 1-D tensor."""
    if axis is None:
        if x.v.ndim != 1:
            raise errors.AxisError(f"[{tpf_op_name[op].decode()}] x has shape {shape_of(x.v)}; only for a 1-D tensor "
                                   "axis can be None. Name the axis.")
        return 0
    return normal_axis(axis, x.v.ndim, tpf_op_name[op])


cdef Tensor running(int op, Tensor x, object axis, object dtype, bint include_initial):
    """cumulative_sum or cumulative_prod."""
    cdef int64_t shape[64]
    cdef int a = scan_axis(x, axis, op)
    cdef int d
    cdef Tensor y
    x = op_astype(x, dtype_code(dtype, tpf_op_name[op].decode()) if dtype is not None
                  else x.v.dtype if is_float(x.v.dtype) else TPF_INT64)
    if kernels.scan[op - OP_CUMULATIVE_SUM][x.v.dtype] != NULL:
        y = op_scan(op, x, None, a, False)
    else:  # narrow integers wrap, and any bool is 0 or 1
        y = op_astype(op_scan(op, op_astype(x, TPF_INT64), None, a, False), x.v.dtype)
    if not include_initial:
        return y
    for d in range(x.v.ndim):
        shape[d] = 1 if d == a else x.v.shape[d]
    x = number_tensor(1 if op == OP_CUMULATIVE_PROD else 0, y.v.dtype, tpf_op_name[op])
    return op_concat([op_broadcast(x, y.v.ndim, shape), y], a)


cdef Tensor flat(Tensor x):
    cdef int64_t size = x.v.size
    return x if x.v.ndim == 1 else op_reshape(x, 1, &size)


def cumulative_sum(x, axis=None, *, dtype=None, include_initial=False):
    """The sums of the first 1, 2, ... elements along an axis.

    Parameters
    ----------
    x : Tensor
    axis : int or None
        None only for a 1-D tensor.
    dtype : dtype, optional
        That of the result. Default: int64 for integers and bool, x's own for floats. float32 is added up in float64.
    include_initial : bool
        Begin with the sum of nothing, 0: one element more.

    >>> tp.cumulative_sum(tp.tensor([1.0, 2.0, 3.0]), include_initial=True).tolist()
    [0.0, 1.0, 3.0, 6.0]
    """
    return running(OP_CUMULATIVE_SUM, as_tensor_for(OP_CUMULATIVE_SUM, x), axis, dtype, include_initial)


def cumulative_prod(x, axis=None, *, dtype=None, include_initial=False):
    """The products of the first 1, 2, ... elements along an axis; arguments as for cumulative_sum.

    The derivatives are products, too, exact where factors are 0.

    >>> tp.cumulative_prod(tp.tensor([2.0, 3.0, 4.0])).tolist()
    [2.0, 6.0, 24.0]
    """
    return running(OP_CUMULATIVE_PROD, as_tensor_for(OP_CUMULATIVE_PROD, x), axis, dtype, include_initial)


def cumsum(x, axis=None, dtype=None):
    """cumulative_sum by NumPy's rule for axis: with None x is flattened first.

    >>> tp.cumsum(tp.tensor([[1, 2], [3, 4]])).tolist()
    [1, 3, 6, 10]
    """
    cdef Tensor t = as_tensor_for(OP_CUMULATIVE_SUM, x)
    return running(OP_CUMULATIVE_SUM, flat(t) if axis is None else t, axis, dtype, False)


def cumprod(x, axis=None, dtype=None):
    """cumulative_prod by NumPy's rule for axis: with None x is flattened first.

    >>> tp.cumprod(tp.tensor([[1, 2], [3, 4]])).tolist()
    [1, 2, 6, 24]
    """
    cdef Tensor t = as_tensor_for(OP_CUMULATIVE_PROD, x)
    return running(OP_CUMULATIVE_PROD, flat(t) if axis is None else t, axis, dtype, False)


def cumulative_max(x, axis=None):
    """The largest of the first 1, 2, ... elements along an axis; axis=None only for a 1-D tensor.

    From a NaN on all is NaN. Among equal elements the first has the gradient.

    >>> tp.cumulative_max(tp.tensor([1.0, 3.0, 2.0, 4.0])).tolist()
    [1.0, 3.0, 3.0, 4.0]
    """
    cdef Tensor t = as_tensor_for(OP_CUMULATIVE_MAX, x)
    return op_scan(OP_CUMULATIVE_MAX, t, None, scan_axis(t, axis, OP_CUMULATIVE_MAX), False)


def logcumsumexp(x, axis=None):
    """log of the sum of the exponentials of the first 1, 2, ... elements along an axis, without overflow.

    axis=None only for a 1-D tensor. The gradient of -inf is 0; where a result is inf it goes to what is inf, as that of
    logaddexp taken element after element.

    >>> tp.logcumsumexp(tp.tensor([1000.0, -1000.0, 1000.0])).tolist()
    [1000.0, 1000.0, 1000.6931762695312]
    """
    cdef Tensor t = as_float(as_tensor_for(OP_LOGCUMSUMEXP, x))
    return op_scan(OP_LOGCUMSUMEXP, t, None, scan_axis(t, axis, OP_LOGCUMSUMEXP), False)
