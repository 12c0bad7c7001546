# layer_norm and rms_norm: one kernel forward, one backward; the rule as single ops for recorded walks.

cdef union Bits:
    double number
    int64_t bits


cdef Value *norm_stats(Value *x, int axes) except NULL:
    """Memory for the mean and the scale of what is normalised together: the last axes of x."""
    cdef int64_t shape[2]
    cdef int64_t n = extent_of(x, x.ndim - axes, x.ndim)
    shape[0], shape[1] = x.size // n if n else 0, 2
    return value_new(2, shape, x.dtype)


cdef int execute_norm(Value *x, Value *weight, Value *bias, double eps, bint centred, Value *y, Value *stats) except -1:
    """y = x normalised; weight and bias may be NULL."""
    cdef int k = x.dtype - TPF_FLOAT32
    cdef int64_t rows = stats.shape[0]
    cdef int64_t n = x.size // rows if rows else 0
    cdef const void *w = NULL
    cdef const void *b = NULL
    cdef Value *own[3]
    cdef int i
    own[0] = own[1] = own[2] = NULL
    try:
        own[0] = value_contiguous(x)
        if weight != NULL:
            own[1] = value_contiguous(weight)
            w = own[1].data
        if bias != NULL:
            own[2] = value_contiguous(bias)
            b = own[2].data
        if y.size >= RELEASE_GIL // 4:
            with nogil:
                kernels.layer_norm[k](y.data, stats.data, own[0].data, w, b, rows, n, eps, centred)
        elif y.size:
            kernels.layer_norm[k](y.data, stats.data, own[0].data, w, b, rows, n, eps, centred)
    finally:
        for i in range(3):
            value_release(own[i])
    return 0


cdef int execute_norm_alone(const int64_t *params, int nin, Value **ins, Value *y) except -1:
    """execute_norm where nobody asks for the statistics."""
    cdef Bits eps
    cdef Value *stats = norm_stats(ins[0], <int>params[1])
    eps.bits = params[2]
    try:
        return execute_norm(ins[0], ins[1] if nin > 1 else NULL, ins[2] if nin > 2 else NULL, eps.number,
                            params[3] != 0, y, stats)
    finally:
        value_release(stats)


cdef Tensor op_norm(Tensor x, Tensor weight, Tensor bias, int axes, double eps, bint centred):
    """x, less its mean if centred, divided by the root of its mean square plus eps, over its last axes (one or more);
    then times weight, plus bias, which have the shape of those axes, or are None. All of one float dtype."""
    cdef ThreadState *ts = thread_state()
    cdef int nin = 1 if weight is None else 2 if bias is None else 3
    cdef int d
    cdef Tensor t
    cdef list given = [hold(x), None if weight is None else hold(weight), None if bias is None else hold(bias)]
    cdef Value *vals[3]
    cdef Value *stats = NULL
    cdef Value *y = NULL
    cdef Entry *nodes[3]
    cdef Entry *e = NULL
    cdef Bits as_bits
    cdef bint wanted = False
    cdef double start = step_begins(ts)
    vals[0] = vals[1] = vals[2] = NULL
    if any_tensor_away(given[:nin]):
        given = sent_together(given[:nin], b"layer_norm")
    try:
        for d in range(nin):  # contiguous: the rule reads them as they are
            t = given[d]
            vals[d], nodes[d] = value_contiguous(t.v), t.node
            wanted = wanted or wants_record(ts, t.node, t.v.dtype)
        as_bits.number = eps
        if any_away(nin, vals) != NULL:
            y = remote_many(OP_LAYER_NORM, (axes, as_bits.bits, <int>centred), nin, vals, x.v.ndim, x.v.shape,
                            x.v.dtype)
        else:
            y = value_like(vals[0], x.v.dtype)
            stats = norm_stats(y, axes)
            execute_norm(vals[0], vals[1], vals[2], eps, centred, y, stats)
        step_ends(ts, start, OP_LAYER_NORM, nin, vals, y)
        if wanted:
            for d in range(nin):  # packed or not, they are the values that a recording has numbered
                note_packed(vals[d], (<Tensor>given[d]).v)
            e = record(ts, OP_LAYER_NORM, nin, nodes, vals, y, SAVE_A if nin == 1 else SAVE_A | SAVE_B)
            e.params = params_new(3)
            e.params[1], e.params[2], e.params[3] = axes, as_bits.bits, centred
            if e.flags & E_GRAD and stats != NULL:
                e.val[3] = value_share(stats)
        value_share(y)
    except:
        entry_release(e)
        raise
    finally:
        for d in range(3):
            value_release(vals[d])
        value_release(stats)
        value_release(y)
    return wrap(y, e)


cdef int norm_vjp(Walk w, Entry *e, Value **vals, Tensor g) except -1:
    cdef Tensor x = with_node(vals[0], e.src[0])
    cdef Tensor weight = None
    cdef Tensor gx, product
    if vals[1] != NULL:
        weight = with_node(vals[1], e.src[1])
    if w.composed or is_remote(g.v):
        gx, product = norm_rule(e, x, weight, g)
    else:
        gx, product = norm_grad(e, vals, g)
    if needs(w, e, 0):
        w.push_tensor(e.src[0], gx, vals[0])
    if weight is not None and needs(w, e, 1):
        w.push_tensor(e.src[1], product, vals[1])
    if e.nin > 2 and needs(w, e, 2):
        w.push_tensor(e.src[2], g, vals[2])
    return 0


cdef tuple norm_grad(Entry *e, Value **vals, Tensor g):
    """The cotangent of x, and what is summed to that of the weight, in one kernel: norm_rule's operations in order."""
    cdef Value *x = vals[0]
    cdef Value *gc = value_contiguous(g.v)
    cdef Value *y = NULL
    cdef Value *product = NULL
    cdef const void *weight = NULL if vals[1] == NULL else vals[1].data
    cdef int64_t rows = vals[3].shape[0]
    cdef int64_t n = x.size // rows if rows else 0
    cdef bint centred = e.params[3] != 0
    cdef int k = x.dtype - TPF_FLOAT32
    cdef ThreadState *ts = thread_state()
    cdef double start = step_begins(ts)
    try:
        y = value_like(x, x.dtype)
        product = value_like(x, x.dtype)
        if x.size >= RELEASE_GIL // 4:
            with nogil:
                kernels.layer_norm_vjp[k](y.data, product.data, gc.data, x.data, vals[3].data, weight, rows, n, centred)
        elif x.size:
            kernels.layer_norm_vjp[k](y.data, product.data, gc.data, x.data, vals[3].data, weight, rows, n, centred)
        if ts.flags & T_STEPS:
            step_note(ts, start, tpf_op_name[OP_LAYER_NORM], b"_vjp", 2, vals, y,
                      4 * bytes_there(x) + bytes_there(vals[1]), 0)
        return wrap(value_share(y), NULL), wrap(value_share(product), NULL)
    finally:
        value_release(gc)
        value_release(y)
        value_release(product)


cdef tuple norm_rule(Entry *e, Tensor x, Tensor weight, Tensor g):
    cdef Bits eps
    cdef int d
    cdef uint64_t mask = 0
    cdef bint centred = e.params[3] != 0
    cdef Tensor z = x
    cdef Tensor scale, h, y
    eps.bits = e.params[2]
    for d in range(x.v.ndim - <int>e.params[1], x.v.ndim):
        mask |= <uint64_t>1 << d
    if centred:
        z = call2(OP_SUBTRACT, x, op_reduce(OP_MEAN, x, mask, False, True))
    scale = call1(OP_RSQRT, call2(OP_ADD, op_reduce(OP_MEAN, call1(OP_SQUARE, z), mask, False, True), eps.number))
    z = call2(OP_MULTIPLY, z, scale)
    h = g if weight is None else call2(OP_SMUL, g, weight)
    y = call2(OP_SUBTRACT, h, op_reduce(OP_MEAN, h, mask, False, True)) if centred else h
    y = call2(OP_SUBTRACT, y, call2(OP_SMUL, op_reduce(OP_MEAN, call2(OP_SMUL, h, z), mask, False, True), z))
    return call2(OP_SMUL, y, scale), call2(OP_SMUL, g, z)


def normalize(Tensor x not None, Tensor weight, Tensor bias, int axes, double eps, bint centred):
    """layer_norm (centred) or rms_norm over the last axes, whose shape weight and bias have, or None."""
    cdef int dtype = as_float(x).v.dtype
    for t in (weight, bias):
        if t is not None and (<Tensor>t).v.dtype > dtype:
            dtype = (<Tensor>t).v.dtype
    x = op_astype(x, dtype)
    if weight is not None:
        weight = op_astype(weight, dtype)
    if bias is not None:
        bias = op_astype(bias, dtype)
        if weight is None:
            return call2(OP_ADD, op_norm(x, None, None, axes, eps, centred), bias)
    return op_norm(x, weight, bias, axes, eps, centred)
