# Ops that move elements: views, casts, slices, concatenation, gather and scatter. Views share memory; nobody can tell.

cdef int64_t as_index(object x, const char *op, str what) except? -1:
    cdef int over = 0
    cdef int64_t i
    if PyLong_CheckExact(x):
        i = PyLong_AsLongLongAndOverflow(x, &over)
        if not over:
            return i
    try:
        return operator.index(x)
    except TypeError:
        raise errors.DTypeError(f"[{op.decode()}] {what} must be an int, got {type(x).__name__}.") from None
    except OverflowError:
        raise errors.ShapeError(f"[{op.decode()}] {what} {short(x)} does not fit 64 bits.") from None


cdef int normal_axis(object axis, int ndim, const char *op) except -1:
    """axis as 0 .. ndim-1."""
    cdef int64_t a = as_index(axis, op, "axis")
    if a < -ndim or a >= ndim:
        raise errors.AxisError(f"[{op.decode()}] axis {a} is out of range for a tensor of {ndim} dimensions. "
                               f"Use an axis from {-ndim} to {ndim - 1}." if ndim else
                               f"[{op.decode()}] axis {a} is out of range: a 0-d tensor has no axes.")
    return <int>(a + ndim if a < 0 else a)


cdef int read_shape(object shape, int64_t *out, const char *op) except -1:
    """A shape argument (an int or a sequence of ints, -1 allowed for the caller to judge) into out; returns ndim."""
    cdef int i
    cdef Tensor t
    cdef tuple sizes
    if isinstance(shape, _ndarray) and shape.ndim:
        shape = shape.tolist()
    if type(shape) is tuple:
        pass
    elif PyLong_CheckExact(shape):
        out[0] = as_index(shape, op, "a size")
        return 1
    elif isinstance(shape, Tensor):
        t = shape
        if t.v.ndim == 0:
            shape = (shape,)
    elif not isinstance(shape, (tuple, list)):
        if hasattr(shape, "__index__"):
            shape = (shape,)
        elif not hasattr(shape, "__iter__") or isinstance(shape, (str, bytes, dict)):
            raise errors.DTypeError(f"[{op.decode()}] a shape must be an int or a sequence of ints, "
                                    f"got {type(shape).__name__}.")
    sizes = tuple(shape)
    if len(sizes) > TPF_MAX_NDIM:
        raise errors.ShapeError(f"[{op.decode()}] {len(sizes)} dimensions are more than the {TPF_MAX_NDIM} that a "
                                "tensor can have.")
    for i in range(<int>len(sizes)):
        out[i] = as_index(sizes[i], op, "a size")
    return <int>len(sizes)


cdef int check_sizes(int ndim, const int64_t *shape, const char *op) except -1:
    cdef int d
    for d in range(ndim):
        if shape[d] < 0:
            raise errors.ShapeError(f"[{op.decode()}] sizes must not be negative, "
                                    f"got {tuple([shape[i] for i in range(ndim)])}.")
    return 0


cdef Tensor recorded1(int op, Tensor x, Value *y, const int64_t *params, double start=0.0):
    """The tensor of y = op(x); y is taken over, params are copied. Of x at most the shape is kept, where it differs.
    start: when it was begun, of what takes a while."""
    cdef ThreadState *ts = thread_state()
    cdef Entry *e = NULL
    y.loose = x.v.loose
    if wants_record(ts, x.node, y.dtype):
        try:
            e = record(ts, op, 1, &x.node, &x.v, y, 0)
            if params != NULL:
                e.params = params_copy(params)
        except:
            value_release(y)
            entry_release(e)
            raise
    step_ends(ts, start, op, 1, &x.v, y)
    return wrap(y, e)


cdef Tensor op_identity(Tensor x):
    return recorded1(OP_IDENTITY, x, owned(x.v), NULL)


cdef Tensor op_astype(Tensor x, int dtype):
    if x.v.dtype == dtype:
        return x
    cdef double start = step_begins(thread_state())
    return recorded1(OP_ASTYPE, x, value_cast(x.v, dtype), NULL, start)


# ---- reshape, permute, broadcast


cdef Value *value_reshape(Value *x, int ndim, const int64_t *shape) except NULL:
    """x's elements in C order under another shape of the same size; a view when x is contiguous."""
    cdef Value *src = value_contiguous(x)
    cdef Value *v
    cdef int d
    try:
        v = value_view(src, ndim)
    finally:
        value_release(src)
    for d in range(ndim):
        v.shape[d] = shape[d]
    v.size = x.size
    set_contiguous_strides(v)
    return v


cdef Tensor op_reshape(Tensor x, int ndim, const int64_t *shape):
    cdef int64_t wanted[64]
    cdef int64_t known = 1
    cdef double start = step_begins(thread_state())
    cdef int hole = -1
    cdef int d
    for d in range(ndim):
        wanted[d] = shape[d]
        if shape[d] == -1:
            if hole >= 0:
                raise errors.ShapeError("[reshape] only one size may be -1, to be worked out from the others.")
            hole = d
    if hole >= 0:
        wanted[hole] = 1
    check_sizes(ndim, wanted, "reshape")
    known = checked_size(ndim, wanted, 1)
    if hole >= 0 and known > 0 and x.v.size % known == 0:
        wanted[hole] = x.v.size // known
        known = x.v.size
    if known != x.v.size or (hole >= 0 and checked_size(ndim, wanted, 1) != x.v.size):
        raise errors.ShapeError(f"[reshape] cannot make shape {tuple([shape[d] for d in range(ndim)])} of the "
                                f"{x.v.size} elements of shape {shape_of(x.v)}. "
                                "The product of the sizes must be the number of elements.")
    if hole >= 0 and checked_size(ndim, shape, 1) == 0:
        raise errors.ShapeError("[reshape] the size for -1 is not determined in "
                                f"{tuple([shape[d] for d in range(ndim)])}: another size is 0. Name the size.")
    return recorded1(OP_RESHAPE, x, value_reshape(x.v, ndim, wanted), NULL, start)


cdef Tensor reshape_like(Tensor x, Value *like):
    """x under like's shape (same size)."""
    if same_shape(x.v, like):
        return x
    cdef double start = step_begins(thread_state())
    return recorded1(OP_RESHAPE, x, value_reshape(x.v, like.ndim, like.shape), NULL, start)


cdef Tensor op_permute(Tensor x, const int *axes):
    """Axis d of the result is axis axes[d] of x."""
    cdef Value *v = value_view(x.v, x.v.ndim)
    cdef int64_t params[65]
    cdef int d
    params[0] = v.ndim
    for d in range(v.ndim):
        v.shape[d] = x.v.shape[axes[d]]
        v.strides[d] = x.v.strides[axes[d]]
        params[d + 1] = axes[d]
    view_done(v)
    return recorded1(OP_PERMUTE_DIMS, x, v, params)


cdef Tensor swap_last(Tensor x):
    """x with its last two axes exchanged."""
    cdef int axes[64]
    cdef int d
    for d in range(x.v.ndim):
        axes[d] = d
    axes[x.v.ndim - 1], axes[x.v.ndim - 2] = x.v.ndim - 2, x.v.ndim - 1
    return op_permute(x, axes)


cdef Tensor op_broadcast(Tensor x, int ndim, const int64_t *shape):
    cdef int d, s
    if ndim == x.v.ndim and memcmp(shape, x.v.shape, ndim * sizeof(int64_t)) == 0:
        return x
    for s in range(x.v.ndim):
        d = s + ndim - x.v.ndim
        if d < 0 or not (x.v.shape[s] == shape[d] or x.v.shape[s] == 1):
            raise errors.ShapeError(f"[broadcast_to] shape {shape_of(x.v)} does not broadcast to "
                                    f"{tuple([shape[i] for i in range(ndim)])}: aligned from the right, "
                                    "sizes must be equal or 1.")
    if checked_size(ndim, shape, 8) < 0:
        raise errors.ShapeError(f"[broadcast_to] shape {tuple([shape[i] for i in range(ndim)])} has too many elements.")
    return recorded1(OP_BROADCAST_TO, x, value_broadcast(x.v, ndim, shape), NULL)


cdef Tensor sum_to(Tensor x, Value *like):
    """x summed over what broadcasting stretched, and cast: like's shape and dtype."""
    cdef uint64_t axes = 0
    cdef int extra = x.v.ndim - like.ndim
    cdef int d
    for d in range(x.v.ndim):
        if d < extra or (like.shape[d - extra] == 1 and x.v.shape[d] != 1):
            axes |= <uint64_t>1 << d
    if axes:
        x = op_reduce(OP_SUM, x, axes, False, True)
    return op_astype(reshape_like(x, like), like.dtype)


# ---- windows: the elements that a basic index selects. params: ndim, then start, step, count, extent of each axis


cdef Value *window_view(Value *x, const int64_t *params) except NULL:
    """The window as a view with one axis for each axis of x."""
    cdef Value *v = value_view(x, x.ndim)
    cdef int d
    for d in range(x.ndim):
        if x.size and params[4 * d + 3] > 0:
            v.data += params[4 * d + 1] * x.strides[d]
        v.strides[d] = params[4 * d + 2] * x.strides[d] if x.size else 0
        v.shape[d] = params[4 * d + 3]
    view_done(v)
    return v


cdef int64_t *params_copy(const int64_t *params) except NULL:
    cdef int64_t *p = params_new(params[0])
    memcpy(p, params, (params[0] + 1) * sizeof(int64_t))
    return p


cdef Tensor op_window(Tensor x, const int64_t *params, int ndim, const int64_t *shape, const int64_t *strides_from):
    """x at a basic index. shape: of the result; strides_from[d]: the axis of x behind axis d, or -1 for a new one."""
    cdef Value *v = value_view(x.v, ndim)
    cdef int64_t a
    cdef int d
    for d in range(x.v.ndim if x.v.size else 0):
        if params[4 * d + 3] > 0:
            v.data += params[4 * d + 1] * x.v.strides[d]
    for d in range(ndim):
        a = strides_from[d]
        v.shape[d] = shape[d]
        v.strides[d] = params[4 * a + 2] * x.v.strides[a] if a >= 0 and x.v.size else 0
    view_done(v)
    return recorded1(OP_GETITEM, x, v, params)


cdef Tensor window_like(Tensor x, const int64_t *params, Value *like):
    """x at a basic index, in like's shape (which differs from the window's by axes of size 1)."""
    cdef double start = step_begins(thread_state())
    cdef Value *w = window_view(x.v, params)
    cdef Value *v
    try:
        v = value_reshape(w, like.ndim, like.shape)
    finally:
        value_release(w)
    return recorded1(OP_GETITEM, x, v, params, start)


cdef int copy_into_window(Value *y, const int64_t *params, Value *src) except -1:
    """y[window] = src, which has the window's shape up to axes of size 1, and y's dtype. y must be ours to write."""
    ensure_writable(y)
    cdef Value *w = window_view(y, params)
    cdef Value *s = NULL
    try:
        s = value_reshape(src, w.ndim, w.shape) if not same_shape(src, w) else value_share(src)
        tpf_copy(w.data, w.strides, s.data, s.strides, tpf_itemsize(y.dtype), w.ndim, w.shape)
    finally:
        value_release(w)
        value_release(s)
    return 0


cdef Value *zeros_value(int ndim, const int64_t *shape, int dtype) except NULL:
    cdef Value *v = value_new(ndim, shape, dtype)
    cdef int64_t zero = 0
    if v.size < RELEASE_GIL:
        memset(v.data, 0, v.size * tpf_itemsize(dtype))
    else:
        tpf_fill(v.data, &zero, tpf_itemsize(dtype), v.size)
    return as_constant(v)


cdef Tensor op_unslice(Tensor g, const int64_t *params):
    """Zeros of the windowed tensor's shape with g in the window: the adjoint of op_window."""
    cdef int64_t shape[64]
    cdef int ndim = <int>(params[0] // 4)
    cdef int d
    cdef double start = step_begins(thread_state())
    cdef Value *y
    for d in range(ndim):
        shape[d] = params[4 * d + 4]
    if is_remote(g.v):
        y = remote_result(OP_UNSLICE, params_tuple(params), g.v, NULL, NULL, ndim, shape, g.v.dtype)
        return recorded1(OP_UNSLICE, g, y, params, start)
    y = zeros_value(ndim, shape, g.v.dtype)
    try:
        copy_into_window(y, params, g.v)
    except:
        value_release(y)
        raise
    return recorded1(OP_UNSLICE, g, y, params, start)


cdef Tensor op_assign(Tensor x, const int64_t *params, Tensor v, bint in_place):
    """x with v, of the window's shape and x's dtype, in the window. in_place: x's memory may be written."""
    cdef ThreadState *ts = thread_state()
    cdef double start = step_begins(ts)
    # a recording names values by identity: none of them is written; trace_nan compares with what was
    cdef Value *y
    cdef Value *vals[2]
    cdef Entry *nodes[2]
    cdef Entry *e = NULL
    if away(x.v, v.v, NULL) != NULL:
        y = remote_result(OP_ASSIGN, params_tuple(params), x.v, v.v, NULL, x.v.ndim, x.v.shape, x.v.dtype)
    else:
        y = value_share(x.v) if in_place and not ts.flags & (T_TAPE | T_NAN) else value_copy(x.v)
    try:
        vals[0], vals[1] = x.v, v.v
        if wants_record(ts, x.node, y.dtype) or wants_record(ts, v.node, y.dtype):
            nodes[0], nodes[1] = x.node, v.node
            e = record(ts, OP_ASSIGN, 2, nodes, vals, y, 0)
            e.params = params_copy(params)
        if not is_remote(y):
            copy_into_window(y, params, v.v)
            y.loose = y.loose and v.v.loose
        step_ends(ts, start, OP_ASSIGN, 2, vals, y)
    except:
        value_release(y)
        entry_release(e)
        raise
    return wrap(y, e)


# ---- concat


cdef int execute_concat(int axis, int nin, Value **ins, Value *y) except -1:
    """y = ins, one after the other along axis."""
    cdef int64_t start = 0
    cdef bint one = True         # run of memory each
    cdef int i, d
    for d in range(axis):
        one = one and y.shape[d] == 1
    for i in range(nin):
        if ins[i].size and one and ins[i].contiguous and ins[i].size < RELEASE_GIL:
            memcpy(y.data + start * y.strides[axis], ins[i].data, ins[i].size * tpf_itemsize(y.dtype))
        elif ins[i].size:
            tpf_copy(y.data + start * y.strides[axis], y.strides, ins[i].data, ins[i].strides, tpf_itemsize(y.dtype),
                     y.ndim, ins[i].shape)
        start += ins[i].shape[axis]
    return 0


cdef Tensor op_concat(list parts, int axis):
    """The tensors (same dtype, same shape but for axis) one after the other."""
    cdef ThreadState *ts = thread_state()
    cdef double start = step_begins(ts)
    if any_tensor_away(parts):
        parts = sent_together(parts, b"concat")  # an op of its own, so that gradients find their way back
    cdef Tensor t = parts[0]
    cdef Value *first = t.v
    cdef Value *y
    cdef Value *few[16]
    cdef Value **ins = few
    cdef int64_t shape[64]
    cdef int64_t total = 0
    cdef int n = 0
    cdef bint grad = False
    cdef Entry *e
    for t in parts:
        if total > LARGEST - t.v.shape[axis]:
            raise errors.ShapeError(f"[concat] axis {axis} of the result would not fit 64 bits.")
        total += t.v.shape[axis]
        grad = grad or wants_record(ts, t.node, first.dtype)
    memcpy(shape, first.shape, first.ndim * sizeof(int64_t))
    shape[axis] = total
    y = NULL
    try:
        if len(parts) > 16:
            ins = <Value **>malloc(len(parts) * sizeof(Value *))
            if ins == NULL:
                raise MemoryError()
        for t in parts:
            ins[n] = t.v
            n += 1
        if any_away(n, ins) != NULL:
            y = remote_many(OP_CONCAT, (axis,), n, ins, first.ndim, shape, first.dtype)
        else:
            y = value_new(first.ndim, shape, first.dtype)
            execute_concat(axis, n, ins, y)
        e = record_many(ts, OP_CONCAT, parts, y, axis) if grad else NULL
        step_of_parts(ts, start, OP_CONCAT, parts, y)
    except:
        value_release(y)
        raise
    finally:
        if ins != few:
            free(ins)
    return wrap(y, e)


cdef Entry *record_many(ThreadState *ts, int op, list parts, Value *y, int axis) except NULL:
    """An entry with any number of inputs; of each its shape is kept."""
    cdef Entry *e = entry_new(ts, op, 0)
    cdef Many *m
    cdef Tensor t
    cdef int n = len(parts)
    try:
        m = <Many *>calloc(1, sizeof(Many))
        if m == NULL:
            raise MemoryError()
        e.many = m
        m.src = <Entry **>calloc(n, sizeof(Entry *))
        m.val = <Value **>calloc(n, sizeof(Value *))
        if m.src == NULL or m.val == NULL:
            raise MemoryError()
        for t in parts:
            m.val[m.n] = value_meta(t.v)
            m.src[m.n] = t.node
            if t.node != NULL:
                entry_link(ts, e, t.node)
            m.n += 1
        e.params = params_new(1)
        e.params[1] = axis
        if not (ts.flags & T_GRAD and is_float(y.dtype)):
            e.flags &= ~E_GRAD
        if ts.flags & T_TAPE:
            note_many(ts, e, parts, y)
    except:
        entry_release(e)
        raise
    return e


cdef int note_many(ThreadState *ts, Entry *e, list parts, Value *y) except -1:
    cdef Value **vals
    cdef Tensor t
    cdef int i
    tape_note(ts, e, y)
    if ts.program == NULL:
        return 0
    vals = <Value **>malloc(len(parts) * sizeof(Value *))
    if vals == NULL:
        raise MemoryError()
    try:
        for i in range(len(parts)):
            t = parts[i]
            vals[i] = t.v
        (<Program>ts.program).note(e, len(parts), vals, y)
    finally:
        free(vals)
    return 0


cdef Tensor narrow(Tensor x, int axis, int64_t start, int64_t count):
    """x[..., start:start+count, ...] along axis."""
    cdef int64_t params[257]
    cdef int64_t axes[64]
    cdef int64_t shape[64]
    cdef int d
    params[0] = 4 * x.v.ndim
    for d in range(x.v.ndim):
        params[4 * d + 1] = start if d == axis else 0
        params[4 * d + 2] = 1
        params[4 * d + 3] = shape[d] = count if d == axis else x.v.shape[d]
        params[4 * d + 4] = x.v.shape[d]
        axes[d] = d
    return op_window(x, params, x.v.ndim, shape, axes)


cdef list slices_along(Tensor x, int axis):
    """The slices of x along an axis, without that axis."""
    cdef ThreadState *ts = thread_state()
    cdef bint recorded = wants_record(ts, x.node, x.v.dtype)
    cdef int64_t params[257]
    cdef int64_t i
    cdef int d
    cdef Value *x_v = x.v
    cdef Value *v
    cdef list out = []
    if recorded:
        params[0] = 4 * x_v.ndim
        for d in range(x_v.ndim):
            params[4 * d + 1], params[4 * d + 2] = 0, 1
            params[4 * d + 3] = 1 if d == axis else x_v.shape[d]
            params[4 * d + 4] = x_v.shape[d]
    for i in range(x_v.shape[axis]):
        v = value_view(x_v, x_v.ndim - 1)
        v.data += i * x_v.strides[axis]
        for d in range(v.ndim):
            v.shape[d] = x_v.shape[d + (d >= axis)]
            v.strides[d] = x_v.strides[d + (d >= axis)]
        view_done(v)
        if recorded:
            params[4 * axis + 1] = i
            out.append(recorded1(OP_GETITEM, x, v, params))
        else:
            out.append(wrap(v, NULL))
    return out
