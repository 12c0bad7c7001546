# Gather and scatter: places (positions computed from index tensors, csrc/gather.c), take, put, scatter_add, masks.
#
# Positions are int64, checked, from the start. They are a value of the tape: an op of the index tensors, so that who
# replays an entry follows an index that changed. How many elements of a mask are true is a look.

# ---- places


cdef Tensor index_tensor(object indices, int axis, int64_t extent, const char *op):
    """indices as a tensor of integers."""
    cdef Tensor t
    if isinstance(indices, Tensor):
        t = indices
    else:
        if (isinstance(indices, (_ndarray, _np_generic)) and indices.dtype.kind in "iu"
                and indices.dtype not in _numpy_codes):
            if indices.size and indices.max() > LARGEST:
                raise errors.TensorIndexError(f"[{op.decode()}] index {indices.max()} is out of range for axis {axis} "
                                              f"of size {extent}.")
            indices = indices.astype("int64")
        t = as_tensor(indices)
        if t.v.size == 0 and is_float(t.v.dtype):
            return op_astype(t, TPF_INT64)  # an empty list says nothing about its dtype
    if is_float(t.v.dtype) or t.v.dtype == TPF_BOOL:
        raise errors.DTypeError(f"[{op.decode()}] indices must be integers, got dtype {dtype_name(t.v.dtype)}. "
                                "Use .astype('int64').")
    return t


cdef void places_start(tpf_places *p, int ndim, const int64_t *shape) noexcept:
    cdef int d
    p.ndim = ndim
    p.nidx = 0
    for d in range(ndim):
        p.shape[d] = shape[d]
        p.coef[d] = 0


cdef void places_add(tpf_places *p, Value *idx, int ndim, int64_t extent, int64_t times) noexcept:
    """An index along the first ndim axes of the places, to which its shape broadcasts."""
    cdef tpf_index *i = &p.index[p.nidx]
    cdef int d, s
    p.nidx += 1
    i.data = idx.data
    i.dtype = idx.dtype
    i.extent = extent
    i.times = times
    for d in range(p.ndim):
        s = d - (ndim - idx.ndim)
        i.strides[d] = 0 if s < 0 or d >= ndim or idx.shape[s] == 1 else idx.strides[s]


cdef int64_t *places_params(tpf_places *p, int ndim, const int *axes) except NULL:
    """How many axes the indices have together, then shape and steps of the places, then (extent, times, axis) of each
    one."""
    cdef int64_t *out = params_new(2 + 2 * p.ndim + 3 * p.nidx)
    cdef int d
    out[1] = p.ndim
    out[2] = ndim
    for d in range(p.ndim):
        out[3 + d] = p.shape[d]
        out[3 + p.ndim + d] = p.coef[d]
    for d in range(p.nidx):
        out[3 + 2 * p.ndim + 3 * d] = p.index[d].extent
        out[4 + 2 * p.ndim + 3 * d] = p.index[d].times
        out[5 + 2 * p.ndim + 3 * d] = axes[d]
    return out


cdef int execute_places(const int64_t *params, int nin, Value **ins, Value *y) except -1:
    """y = the positions that params, as places_params has them, make of index tensors."""
    cdef tpf_places p
    cdef int ndim = <int>params[1]
    cdef const int64_t *of = params + 3 + 2 * ndim
    cdef int axes[64]
    cdef int d
    places_start(&p, ndim, params + 3)
    memcpy(p.coef, params + 3 + ndim, ndim * sizeof(int64_t))
    for d in range(nin):
        places_add(&p, ins[d], <int>params[2], of[3 * d], of[3 * d + 1])
        axes[d] = <int>of[3 * d + 2]
    tpf_places_simplify(&p)
    if y.size and tpf_place_all(&p, <int64_t *>y.data, y.size):
        raise_index(&p, [wrap(value_alias(ins[d]), NULL) for d in range(nin)], axes, b"index")
    return 0


cdef Tensor op_places(tpf_places *p, list indices, int ndim, const int *axes, const char *op):
    """The positions as a tensor; p is used up. axes: of each index, for the message."""
    cdef ThreadState *ts = thread_state()
    cdef int64_t *params = NULL
    cdef Entry *e = NULL
    cdef double start = step_begins(ts)
    cdef bint remote = any_tensor_away(indices)
    cdef Value *y = NULL
    try:
        if ts.flags & T_TAPE or remote:
            params = places_params(p, ndim, axes)
        if remote:
            y = remote_places(p, params, indices, axes, op)
        else:
            y = value_new(p.ndim, p.shape, TPF_INT64)
            tpf_places_simplify(p)
            y.loose = all_loose(indices)
            if y.size and tpf_place_all(p, <int64_t *>y.data, y.size):
                raise_index(p, indices, axes, op)
        if ts.flags & T_TAPE:
            e = record_many(ts, OP_PLACES, indices, y, 0)
            free(e.params)
            e.params = params
        else:
            free(params)
        params = NULL
        step_of_parts(ts, start, OP_PLACES, indices, y)
    except:
        value_release(y)
        free(params)
        raise
    return wrap(y, e)


cdef Value *remote_places(tpf_places *p, const int64_t *params, list indices, const int *axes,
                          const char *op) except NULL:
    """The positions on the device where the indices are; a bad index is the op's error."""
    cdef Value *ins[64]
    cdef int i
    for i in range(len(indices)):
        ins[i] = (<Tensor>indices[i]).v
    try:
        return remote_many(OP_PLACES, params_tuple(params), <int>len(indices), ins, p.ndim, p.shape, TPF_INT64)
    except errors.TensorIndexError:
        raise_index(p, indices, axes, op)


cdef int raise_index(tpf_places *p, list indices, const int *axes, const char *op) except -1:
    """Names the first index that is out of range."""
    cdef int i
    cdef int64_t extent
    for i in range(len(indices)):
        extent = p.index[i].extent
        for at in (<Tensor>op_reshape_flat(indices[i])).tolist():
            if at < -extent or at >= extent:
                raise errors.TensorIndexError(f"[{op.decode()}] index {at} is out of range for axis {axes[i]} of size "
                                              f"{extent}.")
    raise errors.TensorIndexError(f"[{op.decode()}] an index changed while it was read.")


cdef Tensor op_reshape_flat(Tensor t):
    return t if t.v.ndim == 1 else recorded1(OP_RESHAPE, t, value_reshape(t.v, 1, &t.v.size), NULL)


cdef Tensor checked_indices(object indices, int64_t extent, int axis, const char *op):
    """indices as a contiguous int64 tensor of values 0 .. extent-1."""
    cdef tpf_places p
    cdef Tensor t = index_tensor(indices, axis, extent, op)
    places_start(&p, t.v.ndim, t.v.shape)
    places_add(&p, t.v, t.v.ndim, extent, 1)
    return op_places(&p, [t], t.v.ndim, &axis, op)


cdef Tensor gather(Tensor x, int lo, int hi, tpf_places *p, list indices, int ndim, const int *axes, const char *op):
    """x at places within its axes lo .. hi-1, whose axes the places' take the place of; p is used up."""
    cdef ThreadState *ts = thread_state()
    cdef int64_t shape[64]
    cdef int64_t inner = 1
    cdef int64_t outer = 1
    cdef int64_t merged = 1
    cdef int d
    cdef int n = lo
    cdef double start = step_begins(ts)
    cdef Value *y
    cdef Tensor idx
    if x.v.ndim - (hi - lo) + p.ndim > TPF_MAX_NDIM:
        raise errors.ShapeError(f"[{op.decode()}] the result would have {x.v.ndim - (hi - lo) + p.ndim} dimensions, "
                                f"more than {TPF_MAX_NDIM}.")
    for d in range(lo):
        shape[d] = x.v.shape[d]
        outer *= shape[d]
    if (outer == 1 and x.v.contiguous and x.v.size and not wants_record(ts, x.node, x.v.dtype)
            and not any_tensor_away(indices)):
        for d in range(p.ndim):
            shape[n] = p.shape[d]
            n += 1
        for d in range(hi, x.v.ndim):
            shape[n] = x.v.shape[d]
            inner *= shape[n]
            n += 1
        y = value_new(n, shape, x.v.dtype)
        if y.size:
            tpf_places_simplify(p)
            if tpf_gather(y.data, x.v.data, p, y.size // inner, inner * tpf_itemsize(y.dtype)):
                value_release(y)
                raise_index(p, indices, axes, op)
        step_ends(ts, start, OP_TAKE, 1, &x.v, y)
        return wrap(y, NULL)
    idx = op_places(p, indices, ndim, axes, op)
    return op_take(merge_axes(x, lo, hi), idx, lo)


cdef Tensor merge_axes(Tensor x, int lo, int hi):
    """The axes lo .. hi-1 as one."""
    cdef int64_t shape[64]
    cdef int d
    if hi - lo == 1:
        return x
    for d in range(lo):
        shape[d] = x.v.shape[d]
    shape[lo] = extent_of(x.v, lo, hi)
    for d in range(hi, x.v.ndim):
        shape[d - hi + lo + 1] = x.v.shape[d]
    return reshape_to(x, x.v.ndim - (hi - lo) + 1, shape)


cdef int64_t extent_of(Value *x, int lo, int hi) noexcept:
    """The product of the extents of axes lo .. hi-1; 0 where one is 0."""
    cdef int64_t extent = 1
    cdef int d
    for d in range(lo, hi):
        if x.shape[d] == 0:
            return 0
    for d in range(lo, hi):
        extent *= x.shape[d]
    return extent


# ---- take, put, scatter_add


cdef void around_axis(Value *x, int axis, int64_t *outer, int64_t *inner) noexcept:
    """The products of the extents before and after axis."""
    cdef int d
    outer[0] = 1
    inner[0] = 1
    for d in range(x.ndim if x.size else 0):
        if d < axis:
            outer[0] *= x.shape[d]
        elif d > axis:
            inner[0] *= x.shape[d]


cdef void take_strided(Value *y, Value *x, Value *idx, int axis) noexcept:
    """A few indices of a table that is not contiguous: slice by slice, so that the table need not be packed."""
    cdef int64_t shape[64]
    cdef int64_t to[64]
    cdef int64_t step[64]
    cdef int64_t inner = tpf_itemsize(x.dtype)
    cdef int64_t k
    cdef int d
    cdef int n = 0
    if y.size == 0:
        return
    for d in range(x.ndim):
        if d != axis:
            shape[n], step[n] = x.shape[d], x.strides[d]
            to[n] = y.strides[d if d < axis else d - 1 + idx.ndim]
            n += 1
        if d > axis:
            inner *= x.shape[d]
    for k in range(idx.size):
        tpf_copy(y.data + k * inner, to, x.data + (<int64_t *>idx.data)[k] * x.strides[axis], step,
                 tpf_itemsize(x.dtype), n, shape)


cdef Tensor op_take(Tensor x, Tensor idx, int axis):
    """x at idx (checked) along axis."""
    idx = sent_beside(idx, x.v)
    cdef ThreadState *ts = thread_state()
    cdef int64_t shape[64]
    cdef int ndim = x.v.ndim - 1 + idx.v.ndim
    cdef int d
    cdef Value *y
    cdef Entry *e = NULL
    cdef double start = step_begins(ts)
    cdef Value *vals[2]
    cdef Entry *nodes[2]
    if ndim > TPF_MAX_NDIM:
        raise errors.ShapeError(f"[take] the result would have {ndim} dimensions, more than {TPF_MAX_NDIM}.")
    for d in range(ndim):
        shape[d] = (x.v.shape[d] if d < axis else idx.v.shape[d - axis] if d < axis + idx.v.ndim
                    else x.v.shape[d - idx.v.ndim + 1])
    if away(x.v, idx.v, NULL) != NULL:
        y = remote_result(OP_TAKE, (axis,), x.v, idx.v, NULL, ndim, shape, x.v.dtype)
    else:
        y = value_new(ndim, shape, x.v.dtype)
        try:
            execute_take(axis, x.v, idx.v, y)
        except:
            value_release(y)
            raise
    vals[0], vals[1] = x.v, idx.v
    step_ends(ts, start, OP_TAKE, 2, vals, y)
    if wants_record(ts, x.node, y.dtype):
        nodes[0], nodes[1] = x.node, idx.node
        try:
            e = record(ts, OP_TAKE, 2, nodes, vals, y, SAVE_B)
            e.params = params_new(1)
        except:
            value_release(y)
            entry_release(e)
            raise
        e.params[1] = axis
    return wrap(y, e)


cdef int scatter_into(Value *y, Value *idx, Value *updates, int axis) except -1:
    """y[..., idx[k], ...] += updates[..., k, ...] in the order of k; y is ours to write and contiguous."""
    cdef int64_t outer, inner
    cdef Value *src = value_contiguous(updates)
    ensure_writable(y)
    around_axis(y, axis, &outer, &inner)
    if src.size:
        kernels.scatter_add[y.dtype](y.data, <int64_t *>idx.data, src.data, outer, y.shape[axis], idx.size, inner)
    value_release(src)
    return 0


cdef Tensor op_scatter_add(Tensor x, Tensor idx, Tensor updates, int axis):
    """x with updates (of take's shape, x's dtype) added at idx (checked) along axis."""
    idx = sent_beside(idx, x.v)
    cdef ThreadState *ts = thread_state()
    cdef Value *y
    cdef Value *vals[3]
    cdef Entry *nodes[3]
    cdef Entry *e = NULL
    cdef double start = step_begins(ts)
    if kernels.scatter_add[x.v.dtype] == NULL:
        raise errors.DTypeError(f"[scatter_add] is not defined for dtype {dtype_name(x.v.dtype)}. "
                                "Cast with .astype first.")
    if away(x.v, idx.v, updates.v) != NULL:
        y = remote_result(OP_SCATTER_ADD, (axis,), x.v, idx.v, updates.v, x.v.ndim, x.v.shape, x.v.dtype)
    else:
        y = value_copy(x.v)
    try:
        if not is_remote(y):
            scatter_into(y, idx.v, updates.v, axis)
        vals[0], vals[1], vals[2] = x.v, idx.v, updates.v
        step_ends(ts, start, OP_SCATTER_ADD, 3, vals, y)
        if wants_record(ts, x.node, y.dtype) or wants_record(ts, updates.node, y.dtype):
            nodes[0], nodes[1], nodes[2] = x.node, idx.node, updates.node
            e = record(ts, OP_SCATTER_ADD, 3, nodes, vals, y, SAVE_B)
            e.params = params_new(1)
            e.params[1] = axis
    except:
        value_release(y)
        entry_release(e)
        raise
    return wrap(y, e)


cdef int put_into(Value *y, Value *idx, Value *v, int axis) except -1:
    """y[..., idx[k], ...] = v[..., k, ...], for k ascending; y is ours to write and contiguous."""
    cdef int64_t outer, inner
    cdef int d
    cdef bint same = True
    cdef Value *src
    cdef int itemsize = tpf_itemsize(y.dtype)
    if v.size == 0:
        return 0
    ensure_writable(y)
    around_axis(y, axis, &outer, &inner)
    for d in range(v.ndim):
        same = same and (v.strides[d] == 0 or v.shape[d] == 1)
    if same:  # one number
        src = value_new(1, &inner, y.dtype)
        tpf_fill(src.data, v.data, itemsize, inner)
    else:
        src = value_contiguous(v)
    tpf_put(y.data, <int64_t *>idx.data, src.data, outer, y.shape[axis], idx.size, inner * itemsize,
            0 if same else inner * itemsize)
    value_release(src)
    return 0


cdef Tensor op_put(Tensor x, Tensor idx, Tensor v, int axis, bint unique, bint in_place):
    """x with v (of take's shape, x's dtype) at idx (checked) along axis; where an index repeats, the last one wins.
    unique: none repeats. in_place: x's memory may be written."""
    idx = sent_beside(idx, x.v)
    cdef ThreadState *ts = thread_state()
    cdef double start = step_begins(ts)
    # a recording names values by identity: none of them is written; trace_nan compares with what was
    cdef Value *y
    cdef Value *vals[3]
    cdef Entry *nodes[3]
    cdef Entry *e = NULL
    if away(x.v, idx.v, v.v) != NULL:
        y = remote_result(OP_PUT, (axis, <int>unique), x.v, idx.v, v.v, x.v.ndim, x.v.shape, x.v.dtype)
    else:
        y = value_share(x.v) if in_place and not ts.flags & (T_TAPE | T_NAN) else value_copy(x.v)
    try:
        vals[0], vals[1], vals[2] = x.v, idx.v, v.v
        if wants_record(ts, x.node, y.dtype) or wants_record(ts, v.node, y.dtype):
            nodes[0], nodes[1], nodes[2] = x.node, idx.node, v.node
            e = record(ts, OP_PUT, 3, nodes, vals, y, SAVE_B)
            e.params = params_new(2)
            e.params[1], e.params[2] = axis, unique
        if not is_remote(y):
            put_into(y, idx.v, v.v, axis)
            y.loose = y.loose and v.v.loose
        step_ends(ts, start, OP_PUT, 3, vals, y)
    except:
        value_release(y)
        entry_release(e)
        raise
    return wrap(y, e)


cdef Tensor last_writers(Tensor idx, int64_t extent, int behind):
    """Of indices (checked): whether none that follows, in C order, is the same; with so many axes of size 1 behind."""
    cdef int64_t shape[64]
    cdef int d
    cdef Tensor flat = op_reshape_flat(idx)
    cdef Tensor turn = arange_int(flat.v.size)
    cdef Tensor last = op_put(wrap(zeros_value(1, &extent, TPF_INT64), NULL), flat, turn, 0, False, True)
    last = call2(OP_EQUAL, op_take(last, flat, 0), turn)
    for d in range(idx.v.ndim + behind):
        shape[d] = idx.v.shape[d] if d < idx.v.ndim else 1
    return reshape_to(last, idx.v.ndim + behind, shape)


# ---- masks


cdef Value *mask_of(Value *x) except NULL:
    """Whether each element is not 0, contiguous."""
    cdef Value *raw
    if x.dtype == TPF_BOOL:
        return value_contiguous(x)
    return value_cast(x, TPF_BOOL)


cdef int fill_nonzero(Value *mask, int64_t count, bint flat, Value *x, Value *y) except -1:
    """y = the positions (flat), or the coordinates (one row for each axis), of the count true elements of x's mask."""
    cdef Value *at = value_share(y) if flat else value_new(1, &count, TPF_INT64)
    tpf_true_positions(<int64_t *>at.data, <uint8_t *>mask.data, mask.size, count)
    if not flat and y.size:
        tpf_unravel(<int64_t *>y.data, <int64_t *>at.data, count, x.ndim, x.shape)
    value_release(at)
    return 0


cdef int execute_nonzero(bint flat, Value *x, Value *y) except -1:
    """fill_nonzero where x has as many elements that are not 0 as y has room for."""
    cdef Value *mask = mask_of(x)
    cdef int64_t count = tpf_count_true(<uint8_t *>mask.data, mask.size)
    cdef int64_t room = y.shape[y.ndim - 1]
    try:
        if count != room:
            raise GuardFailed(f"[plan] how many elements are not 0, or true, depends on data: it was {room} when the "
                              f"plan was recorded and is {count} now. Freeze it for this case, or use tp.function, "
                              "which keeps both.")
        fill_nonzero(mask, count, flat, x, y)
    finally:
        value_release(mask)
    return 0


cdef Tensor op_nonzero(Tensor x, bint flat):
    """The positions, or the coordinates, of the elements that are not 0."""
    cdef int64_t params[2]
    cdef int64_t shape[2]
    cdef double start = step_begins(thread_state())
    cdef Value *y = NULL
    cdef Value *mask
    params[0], params[1] = 1, flat
    if is_remote(x.v):
        shape[0] = x.v.ndim
        mask = remote_result(OP_COUNT_NONZERO, (-1, x.v.size), x.v, NULL, NULL, 0, NULL, TPF_INT64)
        try:
            shape[1] = to_numpy(mask).item()
        finally:
            value_release(mask)
        y = remote_result(OP_NONZERO, (flat,), x.v, NULL, NULL, 1 if flat else 2, shape + flat, TPF_INT64)
        return recorded1(OP_NONZERO, x, y, params, start)
    mask = mask_of(x.v)
    try:
        shape[0] = x.v.ndim
        shape[1] = tpf_count_true(<uint8_t *>mask.data, mask.size)
        y = value_new(1 if flat else 2, shape + flat, TPF_INT64)
        fill_nonzero(mask, shape[1], flat, x.v, y)
    except:
        value_release(y)
        raise
    finally:
        value_release(mask)
    return recorded1(OP_NONZERO, x, y, params, start)


cdef Tensor compressed(Tensor x, Tensor mask):
    """The elements of x where mask, of its shape, is true."""
    cdef ThreadState *ts = thread_state()
    cdef double start = step_begins(ts)
    cdef int64_t count
    cdef Value *vals[2]
    cdef Value *m
    cdef Value *src
    cdef Value *y
    if wants_record(ts, x.node, x.v.dtype) or away(x.v, mask.v, NULL) != NULL:
        return op_take(op_reshape_flat(x), op_nonzero(mask, True), 0)
    m = value_contiguous(mask.v)
    src = NULL
    try:
        src = value_contiguous(x.v)
        count = tpf_count_true(<uint8_t *>m.data, m.size)
        y = value_new(1, &count, x.v.dtype)
        tpf_compress(y.data, src.data, <uint8_t *>m.data, m.size, count, tpf_itemsize(y.dtype))
        vals[0], vals[1] = src, m
        step_ends(ts, start, OP_TAKE, 2, vals, y)
    finally:
        value_release(m)
        value_release(src)
    return wrap(y, NULL)


# ---- public


def take_along_axis(x, indices, axis=-1):
    """For each place in `indices` the element of x at that index along an axis and at that place along the others.

    Parameters
    ----------
    x : Tensor
    indices : integer Tensor, array or list
        Of as many axes as x; along the other axes x and indices broadcast. Negative indices count from the end.
    axis : int or None
        None: of the flattened x, indices being 1-D.

    Returns
    -------
    Tensor
        Of x's dtype. The gradient adds up where an element is taken more than once.

    Raises
    ------
    IndexError
        For an index out of range, naming axis, index and size.

    >>> x = tp.tensor([[10.0, 20.0], [30.0, 40.0]])
    >>> tp.take_along_axis(x, [[1, 0], [0, 0]], axis=1).tolist()
    [[20.0, 10.0], [30.0, 30.0]]
    """
    cdef tpf_places p
    cdef Tensor t = x if isinstance(x, Tensor) else _creation.convert(x, "take_along_axis")
    if axis is None:
        t = op_reshape_flat(t)
        axis = 0
    cdef int a = normal_axis(axis, t.v.ndim, b"take_along_axis")
    cdef Tensor idx = index_tensor(indices, a, t.v.shape[a], b"take_along_axis")
    places_along(&p, t.v, idx.v, a, b"take_along_axis")
    return gather(t, 0, t.v.ndim, &p, [idx], t.v.ndim, &a, b"take_along_axis")


cdef int places_along(tpf_places *p, Value *x, Value *idx, int axis, const char *op) except -1:
    """The places in the flattened x of an index along an axis."""
    cdef int64_t shape[64]
    cdef int64_t step = 1
    cdef int d
    cdef bint fits = idx.ndim == x.ndim
    if not fits:
        raise errors.ShapeError(f"[{op.decode()}] indices of shape {shape_of(idx)} for a tensor of shape "
                                f"{shape_of(x)}: expected as many axes. Use tp.take for the same indices everywhere.")
    for d in range(x.ndim):
        shape[d] = idx.shape[d] if d == axis or x.shape[d] == 1 else x.shape[d]
        fits = fits and (idx.shape[d] == shape[d] or idx.shape[d] == 1)
    if not fits:
        raise errors.ShapeError(f"[{op.decode()}] indices of shape {shape_of(idx)} do not broadcast with a tensor "
                                f"of shape {shape_of(x)}: besides axis {axis}, sizes must be equal or 1.")
    places_start(p, x.ndim, shape)
    for d in range(x.ndim - 1, -1, -1):
        if d == axis:
            places_add(p, idx, x.ndim, x.shape[d], step)
        elif x.shape[d] != 1:
            p.coef[d] = step
        if x.size:
            step *= x.shape[d]
    return 0


def put_along_axis(x, indices, values, axis=-1):
    """A new tensor: x with values at the places that take_along_axis reads; the last one wins where they repeat.

    Parameters
    ----------
    x : Tensor
    indices : integer Tensor, array or list
        As for take_along_axis.
    values : Tensor or number
        Broadcasts to the shape of what is written; of x's dtype, or one that x's dtype can hold.
    axis : int or None

    >>> tp.put_along_axis(tp.zeros(3), [2, 0], tp.tensor([1.0, 5.0])).tolist()
    [5.0, 0.0, 1.0]
    """
    cdef tpf_places p
    cdef Tensor whole = x if isinstance(x, Tensor) else _creation.convert(x, "put_along_axis")
    cdef Tensor t = whole
    cdef Tensor v = written_beside(fitting(values, t.v.dtype, "put_along_axis"), t.v)
    if axis is None:
        t = op_reshape_flat(t)
        axis = 0
    cdef int a = normal_axis(axis, t.v.ndim, b"put_along_axis")
    cdef Tensor idx = index_tensor(indices, a, t.v.shape[a], b"put_along_axis")
    places_along(&p, t.v, idx.v, a, b"put_along_axis")
    idx = op_places(&p, [idx], t.v.ndim, &a, b"put_along_axis")
    v = op_reshape_flat(op_broadcast_for_write(v, idx.v, "put_along_axis"))
    t = op_put(op_reshape_flat(t), op_reshape_flat(idx), v, 0, False, False)
    return reshape_like(t, whole.v)


cdef Tensor fitting(object value, int dtype, str op):
    """value as a tensor of this dtype; a value of a higher kind (a float for ints) does not fit."""
    cdef Tensor v
    if is_number(value):
        if (dtype == TPF_BOOL and not PyBool_Check(value) and value not in (0, 1)
                or PyFloat_CheckExact(value) and not is_float(dtype)):
            raise errors.DTypeError(f"[{op}] {value!r} does not fit dtype {dtype_name(dtype)}. "
                                    "Cast the tensor with .astype first.")
        return number_tensor(value, dtype, op.encode())
    if type(value) is WeakFloat:
        return weak_tensor(value, dtype, op.encode())
    v = value if isinstance(value, Tensor) else _creation.convert(value, op)
    if kind_of(v.v.dtype) > kind_of(dtype):
        raise errors.DTypeError(f"[{op}] values of dtype {dtype_name(v.v.dtype)} do not fit a tensor of dtype "
                                f"{dtype_name(dtype)}. Cast one of them with .astype.")
    return op_astype(v, dtype)


cdef inline int kind_of(int dtype) noexcept:
    """bool, integer, float: 0, 1, 2."""
    return 0 if dtype == TPF_BOOL else 1 if dtype < TPF_FLOAT32 else 2


def nonzero(x):
    """The indices of the elements that are not 0, in C order: one int64 tensor for each axis.

    A 0-d tensor is a ShapeError.

    >>> [i.tolist() for i in tp.nonzero(tp.tensor([[0, 7], [8, 0]]))]
    [[0, 1], [1, 0]]
    """
    cdef Tensor t = x if isinstance(x, Tensor) else _creation.convert(x, "nonzero")
    if t.v.ndim == 0:
        raise errors.ShapeError("[nonzero] a 0-d tensor has no axes. Use tp.atleast_1d(x), or compare x with 0.")
    if t.v.ndim == 1:
        return (op_nonzero(t, True),)
    return tuple(slices_along(op_nonzero(t, False), 0))


def argwhere(x):
    """The indices of the elements that are not 0, in C order: int64, one row for each.

    >>> tp.argwhere(tp.tensor([[0, 7], [8, 0]])).tolist()
    [[0, 1], [1, 0]]
    """
    cdef Tensor t = x if isinstance(x, Tensor) else _creation.convert(x, "argwhere")
    return swap_last(op_nonzero(t, False))


def masked_select(x, mask):
    """The elements of x where a mask is true, in C order, along one axis. x and mask broadcast.

    >>> x = tp.tensor([1.0, -2.0, 3.0])
    >>> tp.masked_select(x, x > 0).tolist()
    [1.0, 3.0]
    """
    cdef Tensor t = x if isinstance(x, Tensor) else _creation.convert(x, "masked_select")
    cdef Tensor m = as_mask(mask, "masked_select")
    if not same_shape(t.v, m.v):
        t, m = broadcast_pair(t, m, "masked_select")
    return compressed(t, m)


def masked_fill(x, mask, value):
    """A new tensor of x's dtype: value where a mask is true, x elsewhere. All broadcast.

    >>> x = tp.tensor([1.0, -2.0, 3.0])
    >>> tp.masked_fill(x, x < 0, 0.0).tolist()
    [1.0, 0.0, 3.0]
    """
    cdef Tensor t = x if isinstance(x, Tensor) else _creation.convert(x, "masked_fill")
    cdef Tensor m = as_mask(mask, "masked_fill")
    cdef Tensor v = fitting(value, t.v.dtype, "masked_fill")
    if not same_shape(t.v, m.v):
        broadcast_pair(t, m, "masked_fill")
    return call3(OP_WHERE, m, v, t)


cdef Tensor as_mask(object mask, str op):
    """A bool tensor."""
    cdef Tensor m = mask if isinstance(mask, Tensor) else _creation.convert(mask, op)
    if m.v.dtype != TPF_BOOL:
        raise errors.DTypeError(f"[{op}] a mask must be bool, got dtype {dtype_name(m.v.dtype)}. "
                                "Use a comparison, as x > 0.")
    return m


cdef tuple broadcast_pair(Tensor x, Tensor y, str op):
    """Both, stretched to the shape they have in common."""
    cdef int64_t shape[64]
    cdef int ndim = x.v.ndim if x.v.ndim > y.v.ndim else y.v.ndim
    cdef int d, i, j
    cdef int64_t m, n
    for d in range(ndim):
        i, j = d - ndim + x.v.ndim, d - ndim + y.v.ndim
        m = x.v.shape[i] if i >= 0 else 1
        n = y.v.shape[j] if j >= 0 else 1
        if m != n and m != 1 and n != 1:
            raise errors.ShapeError(f"[{op}] shapes {shape_of(x.v)}, {shape_of(y.v)} do not broadcast: aligned from "
                                    "the right, sizes must be equal or 1. Use reshape or expand_dims.")
        shape[d] = n if m == 1 else m
    return op_broadcast(x, ndim, shape), op_broadcast(y, ndim, shape)
