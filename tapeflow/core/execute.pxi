# One structured op into memory that is there: what a frozen plan runs. The same kernels as the eager ops, in the same
# order and on the same layouts, so that the bits are the same; only the allocation and the record are left out.

cdef int copy_value(Value *y, Value *x) except -1:
    """y = x, of one dtype and shape; y is contiguous."""
    if x.contiguous:
        if x.size and x.data != y.data:
            memcpy(y.data, x.data, x.size * tpf_itemsize(x.dtype))
    else:
        tpf_copy(y.data, y.strides, x.data, x.strides, tpf_itemsize(x.dtype), x.ndim, x.shape)
    return 0


cdef int execute_reduce(int op, uint64_t mask, Value *x, Value *y) except -1:
    cdef int64_t outer, n, inner
    cdef Value *src = reduction_order(x, mask, &outer, &n, &inner)
    try:
        if src.size == 0:
            outer, n, inner = y.size, 0, 1
        if y.size:
            run_reduce(kernels.reduce[op - OP_SUM][src.dtype], y.data, src, outer, n, inner)
    finally:
        value_release(src)
    return 0


cdef int execute_take(int axis, Value *x, Value *idx, Value *y) except -1:
    cdef int64_t outer, inner
    cdef Value *src
    around_axis(x, axis, &outer, &inner)
    if x.contiguous or idx.size >= x.shape[axis]:
        src = value_contiguous(x)
        if y.size:
            tpf_take(y.data, src.data, <int64_t *>idx.data, outer, x.shape[axis], idx.size,
                     inner * tpf_itemsize(x.dtype))
        value_release(src)
    else:
        take_strided(y, x, idx, axis)
    return 0


cdef int execute_rows(int op, Value *x, Value *y) except -1:
    cdef int k = x.dtype - TPF_FLOAT32
    cdef int64_t n = x.shape[x.ndim - 1]
    cdef int64_t rows = y.size if op == OP_LOGSUMEXP or n == 0 else y.size // n
    cdef Value *src
    cdef tpf_rows f = (kernels.softmax[k] if op == OP_SOFTMAX else kernels.log_softmax[k] if op == OP_LOG_SOFTMAX
                       else kernels.logsumexp[k])
    if y.size == 0:
        return 0
    src = value_contiguous(x)
    if src.size >= RELEASE_GIL // 4:
        with nogil:
            f(y.data, src.data, rows, n)
    else:
        f(y.data, src.data, rows, n)
    value_release(src)
    return 0


cdef int cross_entropy_alone(int op, Value **ins, Value *y) except -1:
    """The loss, or its rule without the loss at hand."""
    cdef bint rule = op == OP_CROSS_ENTROPY_VJP
    cdef Value *stats = cross_entropy_stats(ins[rule], ins[1 + rule])
    cdef Value *loss = NULL
    try:
        loss = value_scalar(y.dtype)
        execute_cross_entropy(ins[rule], ins[1 + rule], loss if rule else y, stats)
        if rule:
            execute_cross_entropy_vjp(ins[0], ins[1], ins[2], y, stats)
    finally:
        value_release(stats)
        value_release(loss)
    return 0


cdef int execute_op(int op, const int64_t *params, int nin, Value **ins, Value *y) except -1:
    """y = op(ins): of the ops that are not elementwise, those that a plan runs without making a tensor."""
    cdef Value *raw
    cdef Value *into
    cdef int d
    if op == OP_ASTYPE:
        raw = value_contiguous(ins[0])
        kernels.cast[raw.dtype][y.dtype](y.data, raw.data, raw.size)
        value_release(raw)
        return 0
    if op == OP_IDENTITY:
        return copy_value(y, ins[0])
    if op == OP_BROADCAST_TO:
        raw = value_broadcast(ins[0], y.ndim, y.shape)
        copy_value(y, raw)
        value_release(raw)
        return 0
    if op == OP_RESHAPE:
        into = value_reshape(y, ins[0].ndim, ins[0].shape)
        copy_value(into, ins[0])
        value_release(into)
        return 0
    if op == OP_PERMUTE_DIMS:
        raw = value_view(ins[0], y.ndim)
        for d in range(y.ndim):
            raw.shape[d] = y.shape[d]
            raw.strides[d] = ins[0].strides[params[d + 1]]
        view_done(raw)
        copy_value(y, raw)
        value_release(raw)
        return 0
    if op == OP_GETITEM:
        raw = window_view(ins[0], params)
        into = value_reshape(y, raw.ndim, raw.shape)
        copy_value(into, raw)
        value_release(raw)
        value_release(into)
        return 0
    if op == OP_UNSLICE:
        memset(y.data, 0, y.size * tpf_itemsize(y.dtype))
        return copy_into_window(y, params, ins[0])
    if op == OP_ASSIGN:
        copy_value(y, ins[0])
        return copy_into_window(y, params, ins[1])
    if op == OP_CONCAT:
        return execute_concat(<int>params[1], nin, ins, y)
    if OP_SUM <= op <= OP_VECTOR_NORM:
        return execute_reduce(op, <uint64_t>params[1], ins[0], y)
    if op == OP_SOFTMAX or op == OP_LOG_SOFTMAX or op == OP_LOGSUMEXP:
        return execute_rows(op, ins[0], y)
    if op == OP_TAKE:
        return execute_take(<int>params[1], ins[0], ins[1], y)
    if op == OP_SCATTER_ADD:
        copy_value(y, ins[0])
        return scatter_into(y, ins[1], ins[2], <int>params[1])
    if op == OP_MATMUL:
        return execute_matmul(ins[0], ins[1], y)
    if op == OP_CROSS_ENTROPY or op == OP_CROSS_ENTROPY_VJP:
        return cross_entropy_alone(op, ins, y)
    return execute_more(op, params, nin, ins, y)


cdef int execute_more(int op, const int64_t *params, int nin, Value **ins, Value *y) except -1:
    """execute_op for what is less common."""
    cdef double number
    if op == OP_ANY or op == OP_ALL:
        return execute_truth(op, <uint64_t>params[1], ins[0], y)
    if op == OP_VAR or op == OP_STD:
        memcpy(&number, &params[3], sizeof(double))
        return execute_var(op, <uint64_t>params[1], number, ins[0], y)
    if OP_CUMULATIVE_SUM <= op <= OP_RECURRENCE:
        return execute_scan(op, <int>params[1], params[2] != 0, ins[0], ins[1] if nin > 1 else NULL, y, NULL)
    if op == OP_CUMULATIVE_ARGMAX:
        return execute_argmax_scan(<int>params[1], ins[0], y)
    if op == OP_VECDOT:
        return execute_vecdot(<uint64_t>params[1], ins[0], ins[1], y)
    if op == OP_PLACES:
        return execute_places(params, nin, ins, y)
    if op == OP_PUT:
        copy_value(y, ins[0])
        return put_into(y, ins[1], ins[2], <int>params[1])
    if op == OP_LAYER_NORM:
        return execute_norm_alone(params, nin, ins, y)
    if op == OP_NONZERO:
        return execute_nonzero(params[1] != 0, ins[0], y)
    if op == OP_ARGSORT:
        return execute_argsort(ins[0], <int>params[1], params[2] != 0, y)
    if op == OP_SEARCHSORTED:
        return execute_searchsorted(ins[0], ins[1], params[1] != 0, y)
    if op == OP_ONE_HOT:
        return execute_one_hot(ins[0], params[1], y)
    if op == OP_CLASS_POSITIONS:
        return execute_class_positions(ins[0], params[1], b"cross_entropy", y)
    raise errors.PlanError(f"[plan] {tpf_op_name[op].decode()} cannot be replayed.")


def apply_op(int op, tuple params, list xs, int dtype, tuple shape):
    """The eager op of an instruction whose result has this dtype and shape, recorded as any call."""
    cdef int64_t p[260]
    cdef PyObject *args[3]
    cdef Tensor y
    cdef int d
    if op < TPF_N_ELEMENTWISE:
        for d in range(len(xs)):
            args[d] = <PyObject *>xs[d]
        return elementwise(op, len(xs), args)
    p[0] = len(params)
    if p[0] > 257:
        raise errors.PlanError(f"[plan] {tpf_op_name[op].decode()} has {p[0]} parameters.")
    for d in range(len(params)):
        p[d + 1] = params[d]
    y = apply_structured(op, p, xs, dtype, shape)
    if y is None:
        raise errors.PlanError(f"[plan] {tpf_op_name[op].decode()} cannot be replayed.")
    if shape_of(y.v) != shape and y.v.size == size_of(shape):
        y = reshape(y, shape)  # keepdims is in the shape alone
    return y


cdef int64_t size_of(tuple shape) except -1:
    cdef int64_t n = 1
    for extent in shape:
        n *= <int64_t>extent
    return n


cdef Tensor apply_structured(int op, const int64_t *p, list xs, int dtype, tuple shape):
    cdef Tensor x = xs[0]
    cdef Tensor b = xs[1] if len(xs) > 1 else None
    cdef Tensor c = xs[2] if len(xs) > 2 else None
    cdef uint64_t mask = <uint64_t>p[1]
    cdef int axes[64]
    cdef double number
    cdef int d
    if op == OP_IDENTITY:
        return op_identity(x)
    if op == OP_ASTYPE:
        return op_astype(x, dtype)
    if op == OP_RESHAPE or op == OP_BROADCAST_TO:
        return reshape(x, shape) if op == OP_RESHAPE else broadcast_to(x, shape)
    if op == OP_PERMUTE_DIMS:
        for d in range(x.v.ndim):
            axes[d] = <int>p[d + 1]
        return op_permute(x, axes)
    if op == OP_UNSLICE:
        return op_unslice(x, p)
    if op == OP_ASSIGN:
        return op_assign(x, p, b, False)
    if op == OP_GETITEM:
        c = empty(shape, _numpy_dtypes[dtype])
        return window_like(x, p, c.v)
    if op == OP_CONCAT:
        return op_concat(xs, <int>p[1])
    if OP_SUM <= op <= OP_VECTOR_NORM:
        return op_reduce(op, x, mask, False, False)
    if op == OP_ANY or op == OP_ALL:
        return op_truth(op, x, mask, False)
    if op == OP_VAR or op == OP_STD:
        memcpy(&number, &p[3], sizeof(double))
        return op_var(op, x, mask, False, <double>p[2] - number)
    if OP_CUMULATIVE_SUM <= op <= OP_RECURRENCE:
        return op_scan(op, x, b, <int>p[1], p[2] != 0)
    if op == OP_SOFTMAX or op == OP_LOG_SOFTMAX or op == OP_LOGSUMEXP:
        return op_rows(op, x)
    if op == OP_MATMUL or op == OP_VECDOT:
        return op_matmul(x, b) if op == OP_MATMUL else op_vecdot(x, b, mask)
    if op == OP_TAKE or op == OP_SCATTER_ADD:
        return op_take(x, b, <int>p[1]) if op == OP_TAKE else op_scatter_add(x, b, c, <int>p[1])
    if op == OP_PUT:
        return op_put(x, b, c, <int>p[1], p[2] != 0, False)
    if op == OP_PLACES:
        return apply_places(p, xs)
    if op == OP_NONZERO:
        return op_nonzero(x, p[1] != 0)
    if op == OP_ARGSORT:
        return op_argsort(x, <int>p[1], p[2] != 0, p[3])
    if op == OP_SEARCHSORTED:
        return op_searchsorted(x, b, p[1] != 0)
    if op == OP_LAYER_NORM:
        memcpy(&number, &p[2], sizeof(double))
        return op_norm(x, b, c, <int>p[1], number, p[3] != 0)
    if op == OP_CUMULATIVE_ARGMAX:
        return argmax_scan(x, <int>p[1])
    if op == OP_ONE_HOT:
        return one_hot_rows(x, p[1], _numpy_dtypes[dtype])
    if op == OP_CLASS_POSITIONS:
        return class_positions(x, p[1], "cross_entropy")
    if op == OP_CROSS_ENTROPY:
        return op_cross_entropy(x, b)
    if op == OP_CROSS_ENTROPY_VJP:
        return cross_entropy_rule(x, b, c.v)
    return None


cdef Tensor apply_places(const int64_t *p, list indices):
    """Positions from index tensors, as gather.pxi writes them down."""
    cdef tpf_places places
    cdef int axes[64]
    cdef int d
    cdef int ndim = <int>p[1]
    places_start(&places, ndim, &p[3])
    for d in range(ndim):
        places.coef[d] = p[3 + ndim + d]
    for d in range(len(indices)):
        axes[d] = <int>p[5 + 2 * ndim + 3 * d]
        places_add(&places, (<Tensor>indices[d]).v, <int>p[2], p[3 + 2 * ndim + 3 * d], p[4 + 2 * ndim + 3 * d])
    return op_places(&places, indices, <int>p[2], axes, b"index")


# ---- for the passes


def op_names():
    """The names of all ops, by opcode."""
    return tuple([tpf_op_name[op].decode() for op in range(TPF_N_OPS)])


def n_elementwise():
    """The opcodes below this one are elementwise ops."""
    return TPF_N_ELEMENTWISE


cdef dict _kind_names = {TPF_KIND_FLOAT: "float", TPF_KIND_NUMBER: "number", TPF_KIND_ALL: "all",
                         TPF_KIND_COMPARE: "compare", TPF_KIND_SELECT: "select", TPF_KIND_INTEGER: "integer"}
cdef list _op_kinds = [_kind_names[tpf_op_kind[op]] for op in range(TPF_N_ELEMENTWISE)]


def op_kind(int op):
    """The kind of an elementwise op, as the table has it; None for others."""
    return _op_kinds[op] if 0 <= op < TPF_N_ELEMENTWISE else None


def compute_op(int op, tuple params, list xs, int dtype, tuple shape):
    """The constant that an instruction makes of constants."""
    cdef int64_t sizes[64]
    cdef int64_t p[260]
    cdef Value *ins[16]
    cdef Value *y
    cdef Tensor t
    cdef int d
    if len(xs) > 16:
        raise errors.PlanError("[plan] more than 16 operands are not folded.")
    p[0] = len(params)
    for d in range(len(params)):
        p[d + 1] = params[d]
    for d in range(len(shape)):
        sizes[d] = shape[d]
    for d in range(len(xs)):
        t = xs[d] = op_move((<Tensor>xs[d]).detach(), None) if is_remote((<Tensor>xs[d]).v) else xs[d]
        ins[d] = t.v
    y = value_new(len(shape), sizes, dtype)
    try:
        if op < TPF_N_ELEMENTWISE:
            execute_elementwise(op, len(xs), ins, y)
        else:
            execute_op(op, p, len(xs), ins, y)
    except:
        value_release(y)
        raise
    return wrap(as_constant(y), NULL)


cdef int execute_elementwise(int op, int nin, Value **ins, Value *y) except -1:
    cdef int dtype = y.dtype
    cdef int k
    if tpf_op_kind[op] == TPF_KIND_COMPARE:
        dtype = 0
        for k in range(nin):
            dtype = ins[k].dtype if ins[k].dtype > dtype else dtype
    return execute_typed(op, dtype, y, ins[0], ins[1] if nin > 1 else NULL, ins[2] if nin > 2 else NULL, False)


def look(Tensor x not None):
    """The bytes of a number that Python looks at."""
    note_look(x.v, "number")
    return bytes_of(x)


def number_in(Tensor x not None):
    """The number in a tensor of one element, without a recording's notice."""
    return to_numpy(x.v).item()


def signbit_of(Tensor x not None):
    """Whether the number in a tensor of one element has its sign bit set."""
    return _bool(numpy.signbit(to_numpy(x.v)).item())


def bytes_of(Tensor x not None):
    """The bytes of a tensor's elements, in C order."""
    return to_numpy(x.v).tobytes()


def packed_constant(Tensor x not None):
    """x, contiguous."""
    return x if x.v.contiguous else wrap(as_constant(value_copy(x.v)), NULL)
