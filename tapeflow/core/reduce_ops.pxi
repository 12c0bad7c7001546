# Reductions, the softmax family and cross-entropy: one kernel each, their values and entries.

cdef uint64_t axes_mask(object axis, int ndim, const char *op) except? 0xffffffffffffffff:
    """axis (None, an int or a tuple of ints) as a bit mask."""
    cdef uint64_t mask = 0
    cdef int a
    if axis is None:
        return ((<uint64_t>1 << ndim) - 1) if ndim < 64 else <uint64_t>0xfffffffffffffffe | 1
    if not isinstance(axis, (tuple, list)):
        axis = (axis,)
    for one in axis:
        a = normal_axis(one, ndim, op)
        if mask >> a & 1:
            raise errors.AxisError(f"[{op.decode()}] axis {one} is named twice in {tuple(axis)}.")
        mask |= <uint64_t>1 << a
    return mask


cdef void reduced_shape(Value *x, uint64_t mask, bint keepdims, int *ndim, int64_t *shape, int64_t *n) noexcept:
    cdef int d
    ndim[0] = 0
    n[0] = 1
    for d in range(x.ndim):
        if mask >> d & 1:
            # beside an axis of size 0 the product can pass 64 bits; then nothing is computed from it
            n[0] = n[0] * x.shape[d] if x.shape[d] == 0 or n[0] <= LARGEST // x.shape[d] else LARGEST
            if not keepdims:
                continue
            shape[ndim[0]] = 1
        else:
            shape[ndim[0]] = x.shape[d]
        ndim[0] += 1


cdef Value *reduction_order(Value *x, uint64_t mask, int64_t *outer, int64_t *n, int64_t *inner) except NULL:
    """x as a contiguous (outer, n, inner), n being the reduced extents in C order."""
    cdef int first = -1
    cdef int last = -1
    cdef int d, k
    cdef bint run = True
    cdef Value *moved
    cdef Value *v
    outer[0] = n[0] = inner[0] = 1
    if x.size == 0:  # the caller knows what to make of nothing; products need not fit 64 bits
        return value_contiguous(x)
    for d in range(x.ndim):
        if x.shape[d] == 1:
            continue
        if mask >> d & 1:
            if first < 0:
                first = d
            last = d
            n[0] *= x.shape[d]
    for d in range(x.ndim):
        if x.shape[d] == 1 or mask >> d & 1:
            continue
        if first < 0 or d < first:
            outer[0] *= x.shape[d]
        elif d > last:
            inner[0] *= x.shape[d]
        else:
            run = False
    if run:
        if first < 0:  # nothing is reduced but axes of size 1
            outer[0], inner[0] = 1, outer[0]
        return value_contiguous(x)
    # kept axes before reduced ones
    moved = value_view(x, x.ndim)
    k = 0
    outer[0] = inner[0] = 1
    for d in range(x.ndim):
        if not mask >> d & 1:
            moved.shape[k], moved.strides[k] = x.shape[d], x.strides[d]
            outer[0] *= x.shape[d]
            k += 1
    for d in range(x.ndim):
        if mask >> d & 1:
            moved.shape[k], moved.strides[k] = x.shape[d], x.strides[d]
            k += 1
    view_done(moved)
    try:
        v = value_contiguous(moved)
    finally:
        value_release(moved)
    return v


cdef Tensor op_reduce(int op, Tensor x, uint64_t mask, bint all_axes, bint keepdims):
    """A reduction with a kernel of its own, over the axes in mask (over all, with all_axes)."""
    cdef ThreadState *ts = thread_state()
    cdef int64_t shape[64]
    cdef int64_t n
    cdef int ndim
    cdef int dtype = x.v.dtype
    cdef Value *y
    cdef Entry *e = NULL
    cdef double start
    x = steady(x)
    if all_axes:
        mask = axes_mask(None, x.v.ndim, b"reduce")
    reduced_shape(x.v, mask, keepdims, &ndim, shape, &n)
    if n == 0 and OP_MAX <= op <= OP_ARGMIN:
        raise errors.ShapeError(f"[{tpf_op_name[op].decode()}] the reduced axes of shape {shape_of(x.v)} hold no "
                                "elements, and there is no identity to give instead.")
    if op == OP_MEAN and not is_float(dtype):
        x = op_astype(x, default_float)
        dtype = default_float
    if op == OP_SUM and not is_float(dtype):
        dtype = TPF_INT64
    elif op == OP_ARGMAX or op == OP_ARGMIN or op == OP_COUNT_NONZERO:
        dtype = TPF_INT64
    start = step_begins(ts)
    if is_remote(x.v):
        y = remote_result(op, (<int64_t>mask, n), x.v, NULL, NULL, ndim, shape, dtype)
    else:
        y = value_new(ndim, shape, dtype)
        try:
            execute_reduce(op, mask, x.v, y)
        except:
            value_release(y)
            raise
    if wants_record(ts, x.node, y.dtype):
        try:
            e = record(ts, op, 1, &x.node, &x.v, y, SAVE_A | SAVE_Y if op == OP_MAX or op == OP_MIN
                       or op == OP_VECTOR_NORM else SAVE_A if op == OP_NANSUM else 0)
            e.params = params_new(2)
        except:
            value_release(y)
            entry_release(e)
            raise
        e.params[1] = <int64_t>mask
        e.params[2] = n if x.v.size else 0
    step_ends(ts, start, op, 1, &x.v, y)
    return wrap(y, e)


cdef void run_reduce(tpf_reduce f, char *y, Value *src, int64_t outer, int64_t n, int64_t inner) noexcept:
    if src.size >= RELEASE_GIL:
        with nogil:
            f(y, src.data, outer, n, inner)
    else:
        f(y, src.data, outer, n, inner)


cdef Tensor op_prod(Tensor x, uint64_t mask, bint keepdims):
    """The product over axes as a tree of multiplications, so that every derivative is exact, with zeros too."""
    cdef int64_t shape[64]
    cdef int64_t rest[64]
    cdef int axes[64]
    cdef int64_t n, half
    cdef int ndim, d
    cdef int k = 0
    cdef int at = 0
    cdef int last = -1
    cdef list odd = []
    cdef Tensor t
    reduced_shape(x.v, mask, keepdims, &ndim, shape, &n)
    if not is_float(x.v.dtype):
        x = op_astype(x, TPF_INT64)
    if mask == 0:
        return op_identity(x)
    if n == 0:  # 1, still connected to x
        return call2(OP_ADD, op_reduce(OP_SUM, x, mask, False, keepdims), 1)
    # the reduced axes as one, in the place of the last of them: there it is, or it is moved
    for d in range(x.v.ndim):
        if mask >> d & 1:
            last = d
    for d in range(x.v.ndim):
        if not mask >> d & 1:
            if d < last:
                at = k + 1
            rest[k + (d > last)] = x.v.shape[d]
            k += 1
    rest[at] = n
    half = 0
    for d in range(x.v.ndim):
        if not mask >> d & 1 and d < last:
            axes[half] = d
            half += 1
    for d in range(x.v.ndim):
        if mask >> d & 1:
            axes[half] = d
            half += 1
    for d in range(last + 1, x.v.ndim):
        axes[d] = d
    for d in range(x.v.ndim):
        if axes[d] != d:
            x = op_permute(x, axes)
            break
    t = op_reshape(x, k + 1, rest)
    while n > 1:
        half = n // 2
        if n % 2:
            odd.append(narrow(t, at, n - 1, 1))
        t = call2(OP_MULTIPLY, narrow(t, at, 0, half), narrow(t, at, half, half))
        n = half
    for part in reversed(odd):
        t = call2(OP_MULTIPLY, t, part)
    return op_reshape(t, ndim, shape)


# ---- along the last axis


cdef Tensor op_rows(int op, Tensor x):
    """softmax, log_softmax or logsumexp (which drops the axis) along the last axis."""
    x = steady(x)
    cdef ThreadState *ts = thread_state()
    cdef double start = step_begins(ts)
    cdef int ndim = x.v.ndim - 1 if op == OP_LOGSUMEXP else x.v.ndim
    cdef Value *y
    cdef Entry *e = NULL
    if is_remote(x.v):
        y = remote_result(op, (), x.v, NULL, NULL, ndim, x.v.shape, x.v.dtype)
    else:
        y = value_new(ndim, x.v.shape, x.v.dtype)
        try:
            execute_rows(op, x.v, y)
        except:
            value_release(y)
            raise
    if wants_record(ts, x.node, y.dtype):
        try:
            e = record(ts, op, 1, &x.node, &x.v, y, SAVE_A | SAVE_Y if op == OP_LOGSUMEXP else SAVE_Y)
        except:
            value_release(y)
            raise
    step_ends(ts, start, op, 1, &x.v, y)
    return wrap(y, e)


cdef Tensor as_float(Tensor x):
    return x if is_float(x.v.dtype) else op_astype(x, default_float)


cdef Tensor along_axis(int op, Tensor x, int axis):
    """softmax or log_softmax along any axis."""
    cdef int axes[64]
    cdef int d
    x = as_float(x)
    if axis == x.v.ndim - 1:
        return op_rows(op, x)
    for d in range(x.v.ndim):
        axes[d] = d
    axes[axis], axes[x.v.ndim - 1] = x.v.ndim - 1, axis
    return op_permute(op_rows(op, op_permute(x, axes)), axes)


cdef Tensor op_logsumexp(Tensor x, uint64_t mask, bint keepdims):
    cdef int axes[64]
    cdef int64_t rows[64]
    cdef int64_t shape[64]
    cdef int64_t n
    cdef int ndim, d
    cdef int k = 0
    cdef int j
    x = as_float(x)
    if mask == 0:  # nothing is reduced
        return op_identity(x)
    reduced_shape(x.v, mask, keepdims, &ndim, shape, &n)
    for d in range(x.v.ndim):
        if not mask >> d & 1:
            axes[k] = d
            rows[k] = x.v.shape[d]
            k += 1
    rows[k] = n
    j = k
    for d in range(x.v.ndim):
        if mask >> d & 1:
            axes[j] = d
            j += 1
    for d in range(x.v.ndim):
        if axes[d] != d:
            x = op_permute(x, axes)
            break
    if x.v.ndim != k + 1:
        x = op_reshape(x, k + 1, rows)
    x = op_rows(OP_LOGSUMEXP, x)
    return op_reshape(x, ndim, shape) if ndim != x.v.ndim else x


cdef Value *cross_entropy_stats(Value *x, Value *labels) except NULL:
    """Memory for what the rule needs of each row: its maximum and 1 / sum."""
    cdef int64_t shape[2]
    shape[0], shape[1] = labels.size, 2
    return value_new(2, shape, x.dtype)


cdef int execute_cross_entropy(Value *x, Value *labels, Value *y, Value *stats) except -1:
    """y = the loss; labels are int64."""
    cdef int64_t n = x.shape[x.ndim - 1]
    cdef int64_t bad
    cdef int k = x.dtype - TPF_FLOAT32
    cdef Value *src = value_contiguous(x)
    cdef Value *id = NULL
    try:
        id = value_contiguous(labels)
        if src.size >= RELEASE_GIL // 4:
            with nogil:
                bad = kernels.cross_entropy[k](y.data, stats.data, src.data, <int64_t *>id.data, id.size, n)
        else:
            bad = kernels.cross_entropy[k](y.data, stats.data, src.data, <int64_t *>id.data, id.size, n)
        if bad >= 0:
            raise errors.TensorIndexError(f"[cross_entropy] label {(<int64_t *>id.data)[bad]} at position {bad} is out "
                                          f"of range for the axis of {n} classes.")
    finally:
        value_release(src)
        value_release(id)
    return 0


cdef int execute_cross_entropy_vjp(Value *g, Value *x, Value *labels, Value *y, Value *stats) except -1:
    """y = the cotangent of x; cross_entropy_vjp (rules.pxi) has the same operations one by one."""
    cdef int64_t n = x.shape[x.ndim - 1]
    cdef int k = x.dtype - TPF_FLOAT32
    cdef Value *src = value_contiguous(x)
    cdef Value *id = NULL
    try:
        id = value_contiguous(labels)
        if x.size >= RELEASE_GIL // 4:
            with nogil:
                kernels.cross_entropy_vjp[k](y.data, g.data, src.data, stats.data, <int64_t *>id.data, id.size, n)
        elif x.size:
            kernels.cross_entropy_vjp[k](y.data, g.data, src.data, stats.data, <int64_t *>id.data, id.size, n)
    finally:
        value_release(src)
        value_release(id)
    return 0


cdef Tensor op_cross_entropy(Tensor x, Tensor labels):
    """The mean over rows of logsumexp(x) - x[label]; labels are integers of x's shape without the last axis."""
    x = steady(x)
    cdef ThreadState *ts = thread_state()
    cdef Tensor ids = op_astype(labels, TPF_INT64)
    cdef double start = step_begins(ts)
    cdef Value *src = value_contiguous(x.v)
    cdef Value *id = NULL
    cdef Value *stats = NULL
    cdef Value *y = NULL
    cdef Value *vals[2]
    cdef Entry *nodes[2]
    cdef Entry *e = NULL
    try:
        id = owned(ids.v) if ids.v.contiguous else value_copy(ids.v)  # backward trusts that they stay in range
        if away(src, id, NULL) != NULL:
            y = remote_result(OP_CROSS_ENTROPY, (), src, id, NULL, 0, NULL, x.v.dtype)
        else:
            stats = cross_entropy_stats(src, id)
            y = value_scalar(x.v.dtype)
            execute_cross_entropy(src, id, y, stats)
        vals[0], vals[1] = x.v, ids.v
        step_ends(ts, start, OP_CROSS_ENTROPY, 2, vals, y)
        if wants_record(ts, x.node, y.dtype):
            nodes[0], nodes[1] = x.node, ids.node
            e = record(ts, OP_CROSS_ENTROPY, 2, nodes, vals, y, 0)
            note_packed(src, x.v)
            note_packed(id, ids.v)
            if e.flags & E_GRAD:
                entry_drop_values(e)
                e.val[0] = value_share(src)
                e.val[1] = value_share(id)
                e.val[2] = NULL if stats == NULL else value_share(stats)
        value_share(y)
    finally:
        value_release(src)
        value_release(id)
        value_release(stats)
        value_release(y)
    return wrap(y, e)


cdef Tensor cross_entropy_grad(Tensor g, Value *x, Value *ids, Value *stats):
    """The cotangent of x in one kernel; cross_entropy_rule (rules.pxi) has the same operations one by one."""
    cdef ThreadState *ts = thread_state()
    cdef double start = step_begins(ts)
    cdef Value *y
    cdef Value *vals[3]
    cdef Entry *nodes[3]
    cdef Entry *e = NULL
    if is_remote(x):
        y = remote_result(OP_CROSS_ENTROPY_VJP, (), g.v, x, ids, x.ndim, x.shape, x.dtype)
    else:
        y = value_like(x, x.dtype)
    try:
        if not is_remote(y):
            execute_cross_entropy_vjp(g.v, x, ids, y, stats)
        vals[0], vals[1], vals[2] = g.v, x, ids
        step_ends(ts, start, OP_CROSS_ENTROPY_VJP, 3, vals, y)
        if ts.flags & T_TAPE:
            nodes[0] = nodes[1] = nodes[2] = NULL
            e = record(ts, OP_CROSS_ENTROPY_VJP, 3, nodes, vals, y, 0)
    except:
        value_release(y)
        raise
    return wrap(y, e)
