# The VJPs of the structured ops, written in ops: in an eager walk they only compute, in a recorded one they are
# recorded. vals are the entry's a b c y; a cotangent pushed with `like` is summed and cast to that shape and dtype.

cdef inline Tensor with_node(Value *v, Entry *node):
    """A saved value as a tensor again, with its place on the tape."""
    if node != NULL:
        node.refs += 1
    return wrap(value_share(v), node)


cdef inline bint needs(Walk w, Entry *e, int i) noexcept:
    """Does the walk want the cotangent of input i?"""
    return w.wants(e.src[i])


cdef Tensor stretched(Tensor g, uint64_t mask, Value *x):
    """g, the cotangent of a reduction of x over mask, as large as x."""
    cdef int64_t shape[64]
    cdef int d
    for d in range(x.ndim):
        shape[d] = 1 if mask >> d & 1 else x.shape[d]
    g = op_reshape(g, x.ndim, shape)
    return op_broadcast(g, x.ndim, x.shape)


cdef int structured_vjp(Walk w, Entry *e, Value **vals, Tensor g) except -1:
    cdef int op = e.opcode
    cdef int axes[64]
    cdef int d
    cdef Tensor x
    if op == OP_CONCAT:
        return concat_vjp(w, e, g)
    if op == OP_CUSTOM_RESULT:
        return custom_result_vjp(w, e, g)
    if op == OP_CUSTOM:
        return custom_vjp(w, e)
    if op == OP_ASSIGN:
        return assign_vjp(w, e, vals, g)
    if op == OP_SCATTER_ADD:
        if needs(w, e, 0):
            w.push_tensor(e.src[0], g, vals[0])
        if needs(w, e, 2):
            w.push_tensor(e.src[2], op_take(g, with_node(vals[1], e.src[1]), <int>e.params[1]), vals[2])
        return 0
    if op == OP_PUT:
        return put_vjp(w, e, vals, g)
    if op == OP_MATMUL:
        return matmul_vjp(w, e, vals, g)
    if op == OP_LAYER_NORM:
        return norm_vjp(w, e, vals, g)
    if op == OP_VECDOT:
        return vecdot_vjp(w, e, vals, g)
    if op == OP_TAKE:
        return take_vjp(w, e, vals, g)
    if op == OP_GETITEM:
        return getitem_vjp(w, e, vals, g)
    if op == OP_CROSS_ENTROPY:
        return cross_entropy_vjp(w, e, vals, g)
    if OP_CUMULATIVE_SUM <= op <= OP_RECURRENCE:
        return scan_vjp(w, e, vals, g)
    if not needs(w, e, 0):
        return 0
    if op == OP_RESHAPE:
        if vals[0] != NULL:
            g = reshape_like(g, vals[0])
    elif op == OP_PERMUTE_DIMS:
        for d in range(g.v.ndim):
            axes[e.params[d + 1]] = d
        g = op_permute(g, axes)
    elif op == OP_UNSLICE:
        g = window_like(g, e.params, vals[0] if vals[0] != NULL else g.v)
    elif op == OP_SUM or op == OP_MEAN:
        if op == OP_MEAN:
            g = call2(OP_DIVIDE, g, e.params[2])
        g = stretched(g, <uint64_t>e.params[1], vals[0] if vals[0] != NULL else g.v)
    elif op == OP_MAX or op == OP_MIN:
        g = extremum_vjp(e, vals, g)
    elif op == OP_NANSUM:
        g = stretched(g, <uint64_t>e.params[1], vals[0])
        x = wrap(value_share(vals[0]), NULL)
        g = call3(OP_WHERE, call2(OP_EQUAL, x, x), g, 0)
    elif op == OP_VECTOR_NORM:
        x = with_node(vals[3], e)
        g = call3(OP_WHERE, call2(OP_EQUAL, x, 0), 0, call2(OP_SMUL, g, call1(OP_RECIPROCAL, x)))
        g = call2(OP_SMUL, stretched(g, <uint64_t>e.params[1], vals[0]), with_node(vals[0], e.src[0]))
    elif op == OP_VAR or op == OP_STD:
        g = variance_vjp(e, vals, g)
    elif op == OP_SOFTMAX or op == OP_LOG_SOFTMAX or op == OP_LOGSUMEXP:
        g = rows_vjp(e, vals, g, w.composed)
    elif op == OP_IDENTITY and e.params != NULL and e.params[1] == MOVED:
        g = op_move(g, _places[e.params[2]])
    # identity, astype and broadcast_to pass g on: push casts and sums it
    return w.push_tensor(e.src[0], g, vals[0])


cdef Tensor extremum_vjp(Entry *e, Value **vals, Tensor g):
    """max and min over axes: split evenly among the ties; where the result is NaN, among the NaNs."""
    cdef uint64_t mask = <uint64_t>e.params[1]
    cdef Tensor x = wrap(value_share(vals[0]), NULL)
    cdef Tensor y = stretched(wrap(value_share(vals[3]), NULL), mask, vals[0])
    cdef Tensor chosen = call2(OP_EQUAL, x, y)
    cdef Tensor nans = call2(OP_GREATER, call2(OP_NOT_EQUAL, x, x), call2(OP_EQUAL, y, y))
    chosen = call2(OP_MAXIMUM, chosen, nans)
    cdef Tensor count = op_astype(op_reduce(OP_SUM, chosen, mask, False, True), g.v.dtype)
    return call3(OP_WHERE, chosen, call2(OP_DIVIDE, stretched(g, mask, vals[0]), count), 0)


cdef Tensor variance_vjp(Entry *e, Value **vals, Tensor g):
    """2/divisor (x - mean) for var, 1/(divisor y) of it for std; NaN where nothing is left to divide by."""
    cdef uint64_t mask = <uint64_t>e.params[1]
    cdef double divisor
    cdef Tensor x = with_node(vals[0], e.src[0])
    cdef Tensor y
    memcpy(&divisor, &e.params[3], sizeof(double))
    divisor = divisor if divisor > 0 else math.nan
    if e.opcode == OP_VAR:
        g = call2(OP_SMUL, g, 2 / divisor)
    else:
        y = with_node(vals[3], e)
        g = call2(OP_SMUL, g, call1(OP_RECIPROCAL, call2(OP_MULTIPLY, y, divisor)))
        g = call3(OP_WHERE, call2(OP_EQUAL, y, 0), 0, g)
    x = call2(OP_SUBTRACT, x, op_reduce(OP_MEAN, x, mask, False, True))
    x = call2(OP_SUBTRACT, x, op_reduce(OP_MEAN, x, mask, False, True))  # what the rounding of the mean left
    return call2(OP_SMUL, stretched(g, mask, vals[0]), x)


cdef Tensor last_axis(Tensor t, Value *x):
    """t, which lacks x's last axis, stretched along it."""
    return stretched(t, <uint64_t>1 << (x.ndim - 1), x)


cdef Tensor rows_vjp(Entry *e, Value **vals, Tensor g, bint composed):
    """softmax, log_softmax, logsumexp along the last axis."""
    cdef Tensor x, y, p
    cdef int op = e.opcode
    cdef Value *like = vals[0] if op == OP_LOGSUMEXP else vals[3]
    cdef uint64_t mask = <uint64_t>1 << (like.ndim - 1)
    composed = composed or is_remote(g.v)
    if not composed and op != OP_LOGSUMEXP:
        return rows_grad(op, vals[3], g)
    y = with_node(vals[3], e)
    if op == OP_SOFTMAX:
        p = op_reduce(OP_SUM, call2(OP_SMUL, g, y), mask, False, True)
        return call2(OP_SMUL, call2(OP_SUBTRACT, g, p), y)
    if op == OP_LOG_SOFTMAX:
        p = op_reduce(OP_SUM, g, mask, False, True)
        return call2(OP_SUBTRACT, g, call2(OP_SMUL, p, call1(OP_EXP, y)))
    # the weights have a maximum and a sum of their own: exp(x - y) would carry the rounding of y
    x = with_node(vals[0], e.src[0])
    p = op_rows(OP_SOFTMAX, x)
    if composed or has_infinite(vals[3]):
        y = call1(OP_ISINF, wrap(value_share(vals[3]), NULL))
        p = call3(OP_WHERE, last_axis(y, like), shares_of_inf(x, mask), p)
    return call2(OP_SMUL, last_axis(g, like), p)


cdef Tensor shares_of_inf(Tensor x, uint64_t mask):
    """1 for an element that is inf, and 0 for others: what the weights of logsumexp tend to; several share evenly."""
    cdef Tensor there = op_astype(call2(OP_EQUAL, wrap(value_share(x.v), NULL), math.inf), x.v.dtype)
    return call2(OP_DIVIDE, there, call2(OP_MAXIMUM, op_reduce(OP_SUM, there, mask, False, True), 1.0))


cdef bint has_infinite(Value *y) noexcept:
    """Is an element of y, a contiguous value, infinite?"""
    cdef int64_t i
    if y.dtype == TPF_FLOAT32:
        for i in range(y.size):
            if (<float *>y.data)[i] - (<float *>y.data)[i] != 0 and (<float *>y.data)[i] == (<float *>y.data)[i]:
                return True
        return False
    for i in range(y.size):
        if (<double *>y.data)[i] - (<double *>y.data)[i] != 0 and (<double *>y.data)[i] == (<double *>y.data)[i]:
            return True
    return False


cdef Tensor rows_grad(int op, Value *y, Tensor g):
    """The rule of softmax or log_softmax in one kernel; rows_vjp has the same operations one by one."""
    cdef int k = y.dtype - TPF_FLOAT32
    cdef int64_t n = y.shape[y.ndim - 1]
    cdef int64_t rows = y.size // n if n else 0
    cdef tpf_rows_vjp f = kernels.softmax_vjp[k] if op == OP_SOFTMAX else kernels.log_softmax_vjp[k]
    cdef ThreadState *ts = thread_state()
    cdef double start = step_begins(ts)
    cdef Value *gc = value_contiguous(g.v)
    cdef Value *gx = NULL
    try:
        gx = value_like(y, y.dtype)
        if y.size >= RELEASE_GIL // 4:
            with nogil:
                f(gx.data, gc.data, y.data, rows, n)
        elif y.size:
            f(gx.data, gc.data, y.data, rows, n)
        if ts.flags & T_STEPS:
            step_note(ts, start, tpf_op_name[op], b"_vjp", 1, &gc, gx, 3 * bytes_there(gx), 0)
        return wrap(value_share(gx), NULL)
    finally:
        value_release(gc)
        value_release(gx)


cdef int cross_entropy_vjp(Walk w, Entry *e, Value **vals, Tensor g) except -1:
    if not w.composed or not thread_state().flags & T_GRAD:  # nobody differentiates the walk
        g = cross_entropy_grad(g, vals[0], vals[1], vals[2])
    else:
        g = cross_entropy_rule(g, with_node(vals[0], e.src[0]), vals[1])
    return w.push_tensor(e.src[0], g, NULL)


cdef Tensor cross_entropy_rule(Tensor g, Tensor x, Value *ids):
    """cross_entropy_grad in single ops."""
    cdef Tensor p = op_rows(OP_SOFTMAX, x)
    cdef Tensor onehot = one_hot(ids, x.v)
    g = call2(OP_DIVIDE, g, ids.size)
    return call2(OP_SMUL, g, call2(OP_SUBTRACT, p, onehot))


cdef Tensor one_hot(Value *ids, Value *like):
    """1 at the labels, 0 elsewhere, of like's shape and dtype."""
    cdef int64_t n = like.shape[like.ndim - 1]
    cdef Tensor classes = arange_int(n)
    cdef int64_t shape[64]
    cdef int d
    for d in range(ids.ndim):
        shape[d] = ids.shape[d]
    shape[ids.ndim] = 1
    cdef Tensor column = op_reshape(wrap(value_share(ids), NULL), ids.ndim + 1, shape)
    return op_astype(call2(OP_EQUAL, column, classes), like.dtype)


cdef int concat_vjp(Walk w, Entry *e, Tensor g) except -1:
    cdef int axis = <int>e.params[1]
    cdef int64_t start = 0
    cdef int64_t count
    cdef int i
    for i in range(e.many.n):
        count = e.many.val[i].shape[axis]
        if w.wants(e.many.src[i]):
            w.push_tensor(e.many.src[i], narrow(g, axis, start, count), e.many.val[i])
        start += count
    return 0


cdef int assign_vjp(Walk w, Entry *e, Value **vals, Tensor g) except -1:
    """To what was there: g with the window cleared; to what was written: the window of g."""
    cdef Tensor v, zeros
    v = window_like(g, e.params, vals[1] if vals[1] != NULL else g.v) if needs(w, e, 1) else None
    if needs(w, e, 0):
        if v is not None and not w.composed:
            # no view of g any more: g is cleared in place, so that many writes stay linear
            v = wrap(value_copy(v.v), NULL)
        zeros = wrap(zeros_value(0, NULL, g.v.dtype), NULL)
        zeros = op_broadcast_window(zeros, e.params)
        w.push_tensor(e.src[0], op_assign(g, e.params, zeros, not w.composed and value_is_mine(g.v)), vals[0])
    if v is not None:
        w.push_tensor(e.src[1], v, vals[1])
    return 0


cdef Tensor op_broadcast_window(Tensor t, const int64_t *params):
    """t stretched to the window's shape."""
    cdef int64_t shape[64]
    cdef int ndim = <int>(params[0] // 4)
    cdef int d
    for d in range(ndim):
        shape[d] = params[4 * d + 3]
    return op_broadcast(t, ndim, shape)


cdef int getitem_vjp(Walk w, Entry *e, Value **vals, Tensor g) except -1:
    """Zeros with g in the window; where a cotangent was collected already, g is added to its window alone, so that a
    loop over the items of a tensor stays linear."""
    cdef Slot *s
    cdef Tensor had, part
    if not needs(w, e, 0):
        return 0
    s = w.find(e.src[0])
    if s.v == NULL:
        return w.push_tensor(e.src[0], op_unslice(g, e.params), vals[0])
    had = w.take_slot(s)
    part = add_tensors(window_like(had, e.params, g.v), g)
    return w.push_tensor(e.src[0], op_assign(had, e.params, part, not w.composed
                                             and value_is_mine_after_view(had.v, part)), NULL)


cdef bint value_is_mine_after_view(Value *v, Tensor part) noexcept:
    """part was computed from a view of v that is gone by now: v is ours when it has one owner again."""
    return part.v.buf != v.buf and value_is_mine(v)


cdef Tensor reshape_to(Tensor x, int ndim, const int64_t *shape):
    return recorded1(OP_RESHAPE, x, value_reshape(x.v, ndim, shape), NULL)


cdef int take_vjp(Walk w, Entry *e, Value **vals, Tensor g) except -1:
    """g scattered onto what was collected already, or onto zeros."""
    cdef int axis = <int>e.params[1]
    cdef Value *x = vals[0] if vals[0] != NULL else g.v
    cdef Tensor had
    cdef Slot *s
    if not needs(w, e, 0):
        return 0
    s = w.find(e.src[0])
    had = w.take_slot(s) if s.v != NULL else zeros_beside(g, x.ndim, x.shape)
    if not w.composed and value_is_mine(had.v) and away(g.v, vals[1], NULL) == NULL:
        scatter_into(had.v, vals[1], g.v, axis)
    else:
        had = op_scatter_add(had, with_node(vals[1], e.src[1]), g, axis)
    return w.push_tensor(e.src[0], had, vals[0])


cdef Tensor zeros_beside(Tensor g, int ndim, const int64_t *shape):
    """Zeros of g's dtype, on its device."""
    if not is_remote(g.v):
        return wrap(zeros_value(ndim, shape, g.v.dtype), NULL)
    return packed(wrap(zeros_stretched(g.v, ndim, shape), NULL))


cdef int put_vjp(Walk w, Entry *e, Value **vals, Tensor g) except -1:
    """To what was there: g with what was written over cleared; to what was written: g at the indices, where it was not
    written over itself."""
    cdef int axis = <int>e.params[1]
    cdef Tensor idx = with_node(vals[1], e.src[1])
    cdef Tensor v, zeros
    if needs(w, e, 2):
        v = op_take(g, idx, axis)
        if not e.params[2]:
            v = call3(OP_WHERE, last_writers(idx, g.v.shape[axis], g.v.ndim - 1 - axis), v, 0)
        w.push_tensor(e.src[2], v, vals[2])
    if needs(w, e, 0):
        zeros = taken_shape(wrap(zeros_value(0, NULL, g.v.dtype), NULL), g.v, idx.v, axis)
        w.push_tensor(e.src[0], op_put(g, idx, zeros, axis, True, not w.composed and value_is_mine(g.v)), vals[0])
    return 0


cdef Tensor taken_shape(Tensor t, Value *x, Value *idx, int axis):
    """t stretched to the shape of x taken at idx along axis."""
    cdef int64_t shape[64]
    cdef int d
    for d in range(axis):
        shape[d] = x.shape[d]
    for d in range(idx.ndim):
        shape[axis + d] = idx.shape[d]
    for d in range(axis + 1, x.ndim):
        shape[d - 1 + idx.ndim] = x.shape[d]
    return op_broadcast(t, x.ndim - 1 + idx.ndim, shape)


cdef int matmul_vjp(Walk w, Entry *e, Value **vals, Tensor g) except -1:
    """g @ b^T and a^T @ g; leading axes that were broadcast are summed by push."""
    cdef Tensor a
    cdef Tensor ga = None
    cdef Tensor gb = None
    if needs(w, e, 0) and needs(w, e, 1) and g.v.size and not matrices_readable(g.v):
        g = packed(g)  # once for both products
    if needs(w, e, 0):
        ga = op_matmul(g, swap_last(cast_like(with_node(vals[1], e.src[1]), g)))
    if needs(w, e, 1):
        a = cast_like(with_node(vals[0], e.src[0]), g)
        if a.v.ndim > 2 and vals[1] != NULL and vals[1].ndim == 2:  # a shared right factor: one product over all rows
            a, g = rows_of(a), rows_of(g)
        if is_transpose(e.src[1]):  # computed as it will lie after that: no copy for the leaf behind
            gb = swap_last(op_matmul(swap_last(g), a))
        else:
            gb = op_matmul(swap_last(a), g)
    if ga is not None:
        w.push_tensor(e.src[0], ga, vals[0])
    if gb is not None:
        w.push_tensor(e.src[1], gb, vals[1])
    return 0


cdef bint is_transpose(Entry *e) noexcept:
    """Is this the entry of a matrix's transpose?"""
    return e.opcode == OP_PERMUTE_DIMS and e.params[0] == 2 and e.params[1] == 1


cdef int vecdot_vjp(Walk w, Entry *e, Value **vals, Tensor g) except -1:
    """g, stretched along the axes that were summed, times the other operand."""
    cdef int i
    g = stretched(g, <uint64_t>e.params[1], vals[0] if vals[0] != NULL else vals[1])
    for i in range(2):
        if needs(w, e, i):
            w.push_tensor(e.src[i], call2(OP_MULTIPLY, g, with_node(vals[1 - i], e.src[1 - i])), NULL)
    return 0


cdef Tensor rows_of(Tensor x):
    """All leading axes as one."""
    cdef int64_t shape[2]
    shape[1] = x.v.shape[x.v.ndim - 1]
    cdef int d
    shape[0] = 1 if x.v.size or shape[1] == 0 else 0
    for d in range(x.v.ndim - 1 if shape[0] else 0):
        shape[0] *= x.v.shape[d]
    return op_reshape(x, 2, shape)


cdef Tensor cast_like(Tensor x, Tensor g):
    return op_astype(x, g.v.dtype)
