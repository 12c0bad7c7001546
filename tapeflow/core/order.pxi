# Order: sort, argsort, topk, searchsorted. Stable, NaN last in both directions. Short rows are put in order here, long
# ones by NumPy (ordering.py), whose sorts are vectorised. An order is an op of its own on the tape (argsort, with its
# axis, its direction and how many come first), and what is put in order is taken by it, so gradients of any order go
# back to where each element came from.

cdef enum:
    SHORT_ROW = 64               # as in order.c
    FEW = 1024                   # elements up to which rows of that length are put in order here; shorter ones always
    SHORTER_ROW = 24


cdef bint order_here(Value *x, int64_t n) noexcept:
    return n <= SHORTER_ROW or (n <= SHORT_ROW and x.size <= FEW)


cdef Value *axis_last(Value *x, int axis) except NULL:
    """x with an axis last, contiguous; a share of x where it is like that."""
    cdef Value *v
    cdef Value *packed_
    if axis == x.ndim - 1 and x.contiguous:
        return value_share(x)
    v = value_view(x, x.ndim)
    swap_value_axes(v, x, axis)
    try:
        packed_ = value_copy(v)
    finally:
        value_release(v)
    return packed_


cdef void swap_value_axes(Value *v, Value *x, int axis) noexcept:
    """v, a view of x: with an axis and the last one exchanged."""
    cdef int d, s
    for d in range(x.ndim):
        s = x.ndim - 1 if d == axis else axis if d == x.ndim - 1 else d
        v.shape[d] = x.shape[s]
        v.strides[d] = x.strides[s]
    view_done(v)


cdef Value *axis_back(Value *y, int axis) except NULL:
    """y, which is taken over, with its last axis at axis again, contiguous."""
    cdef Value *v
    if axis == y.ndim - 1:
        return y
    try:
        v = axis_last(y, axis)
    finally:
        value_release(y)
    return v


cdef object writable_rows(Value *v, int64_t n):
    """A NumPy array of rows over v's memory, for as long as v lives."""
    view = PyMemoryView_FromMemory(v.data, v.size * tpf_itemsize(v.dtype), PyBUF_WRITE)
    return numpy.frombuffer(view, _numpy_dtypes[v.dtype]).reshape(-1, n)


cdef int execute_argsort(Value *x, int axis, bint descending, Value *y) except -1:
    """y = the indices of the first elements in order along an axis, as many as y has there."""
    cdef int64_t n = x.shape[axis]
    cdef int64_t first = y.shape[axis]
    cdef int64_t shape[64]
    cdef Value *rows = NULL
    cdef Value *out = NULL
    cdef Value *back = NULL
    if y.size == 0:
        return 0
    try:
        rows = axis_last(x, axis)
        memcpy(shape, rows.shape, x.ndim * sizeof(int64_t))
        shape[x.ndim - 1] = first
        out = value_share(y) if axis == x.ndim - 1 else value_new(x.ndim, shape, TPF_INT64)
        if order_here(x, n):
            tpf_order_rows(<int64_t *>out.data, rows.data, tpf_itemsize(rows.dtype), rows.dtype, rows.size // n, n,
                           first, descending)
        else:
            writable_rows(out, first)[...] = _ordering.first_of_rows(to_numpy(rows).reshape(-1, n), first, descending)
        if out != y:
            back = value_view(out, out.ndim)
            swap_value_axes(back, out, axis)
            copy_value(y, back)
    finally:
        value_release(rows)
        value_release(out)
        value_release(back)
    return 0


cdef Tensor op_argsort(Tensor x, int axis, bint descending, int64_t first):
    cdef int64_t params[4]
    cdef int64_t shape[64]
    cdef double start = step_begins(thread_state())
    cdef Value *y
    memcpy(shape, x.v.shape, x.v.ndim * sizeof(int64_t))
    shape[axis] = first
    params[0], params[1], params[2], params[3] = 3, axis, descending, first
    if is_remote(x.v):
        y = remote_result(OP_ARGSORT, (axis, <int>descending, first), x.v, NULL, NULL, x.v.ndim, shape, TPF_INT64)
        return recorded1(OP_ARGSORT, x, y, params, start)
    y = value_new(x.v.ndim, shape, TPF_INT64)
    try:
        execute_argsort(x.v, axis, descending, y)
    except:
        value_release(y)
        raise
    return recorded1(OP_ARGSORT, x, y, params, start)


cdef Value *sorted_value(Value *x, int axis, bint descending) except NULL:
    """x, without negative zeros where its rows are long, in order along an axis."""
    cdef int64_t n = x.shape[axis]
    cdef int itemsize = tpf_itemsize(x.dtype)
    cdef int flip_op = OP_NEGATIVE if is_float(x.dtype) else OP_BITWISE_INVERT
    cdef Value *rows = axis_last(x, axis)
    cdef Value *y = NULL
    try:
        if order_here(x, n):
            y = value_new(x.ndim, rows.shape, x.dtype)
            if y.size:
                tpf_sort_rows(y.data, rows.data, itemsize, x.dtype, y.size // n, n, descending)
        else:
            y = value_share(rows) if rows.owners == 1 and rows != x else value_copy(rows)
            if descending and y.size:
                kernels.loop[flip_op][y.dtype](y.data, y.data, NULL, NULL, y.size)
            if y.size:
                writable_rows(y, n).sort(axis=-1, kind="stable" if itemsize == 1 else None)
            if descending and y.size:
                kernels.loop[flip_op][y.dtype](y.data, y.data, NULL, NULL, y.size)
    except:
        value_release(y)
        raise
    finally:
        value_release(rows)
    return axis_back(y, axis)


cdef Tensor in_order(Tensor x, int axis, bint descending):
    cdef bint zeros = False
    cdef Value *raw
    cdef ThreadState *ts = thread_state()
    cdef double start = step_begins(ts)
    if not recorded_now(x) and not is_remote(x.v):
        if not order_here(x.v, x.v.shape[axis]) and is_float(x.v.dtype):
            # -0.0 equals 0.0: a vectorised sort may exchange them, or make one of the other
            raw = value_contiguous(x.v)
            zeros = tpf_has_negative_zero(raw.data, raw.dtype, raw.size)
            value_release(raw)
        if not zeros:
            raw = sorted_value(x.v, axis, descending)
            if ts.flags & T_STEPS:
                step_note(ts, start, b"sort", b"", 1, &x.v, raw, 2 * bytes_there(raw), 0)
            return wrap(raw, NULL)
    return along(x, op_argsort(x, axis, descending, x.v.shape[axis]), axis)


cdef Tensor along(Tensor x, Tensor idx, int axis):
    """x at idx along an axis, as take_along_axis."""
    cdef tpf_places p
    places_along(&p, x.v, idx.v, axis, b"take_along_axis")
    return gather(x, 0, x.v.ndim, &p, [idx], x.v.ndim, &axis, b"take_along_axis")


def sort(x, axis=-1, descending=False, stable=True):
    """x in order along an axis (of the flattened x for None). NaN come last, in either direction.

    Parameters
    ----------
    x : Tensor
    axis : int or None
    descending : bool
        From high to low; equal elements keep their order all the same.
    stable : bool
        The order is always stable.

    Returns
    -------
    Tensor
        The gradient goes back to where each element came from.

    >>> tp.sort(tp.tensor([3.0, 1.0, 2.0]), descending=True).tolist()
    [3.0, 2.0, 1.0]
    """
    cdef Tensor t = given(x, "sort")
    if axis is None:
        return in_order(op_reshape_flat(t), 0, descending)
    return in_order(t, axis_of(axis, t.v.ndim, b"sort"), descending)


def argsort(x, axis=-1, descending=False, stable=True):
    """The indices, int64, that put x in order along an axis; see sort. Equal elements keep their order.

    >>> tp.argsort(tp.tensor([3.0, 1.0, 2.0])).tolist()
    [1, 2, 0]
    """
    cdef Tensor t = given(x, "argsort")
    cdef int a = 0
    if axis is None:
        t = op_reshape_flat(t)
    else:
        a = axis_of(axis, t.v.ndim, b"argsort")
    return op_argsort(t, a, descending, t.v.shape[a])


def topk(x, k, axis=-1, largest=True):
    """The k largest (or smallest) elements along an axis, in order, and their indices.

    What sort and argsort give for the first k: among equal elements those with the lowest index, and NaN only when
    there is nothing else.

    Parameters
    ----------
    x : Tensor
    k : int
        From 0 to the size of the axis.
    axis : int
    largest : bool

    Returns
    -------
    (values, indices)
        A named tuple; indices are int64.

    >>> values, indices = tp.topk(tp.tensor([3.0, 1.0, 2.0]), 2)
    >>> values.tolist(), indices.tolist()
    ([3.0, 2.0], [0, 2])
    """
    return first_in_order(given(x, "topk"), k, axis, largest, b"topk")


def top_k(x, k, axis=-1, mode="largest"):
    """topk under the name and with the arguments of the Python Array API.

    >>> tp.top_k(tp.tensor([3.0, 1.0, 2.0]), 1, mode="smallest").indices.tolist()
    [1]
    """
    if mode not in ("largest", "smallest"):
        raise errors.ShapeError(f"[top_k] mode must be 'largest' or 'smallest', got {mode!r}.")
    return first_in_order(given(x, "top_k"), k, axis, mode == "largest", b"top_k")


cdef object _new_tuple = tuple.__new__  # of a named one, without its Python frame


cdef object first_in_order(Tensor x, object k, object axis, bint largest, const char *op):
    cdef int a = 0
    if axis is None:
        x = op_reshape_flat(x)
    else:
        a = axis_of(axis, x.v.ndim, op)
    cdef int64_t count = as_index(k, op, "k")
    if not 0 <= count <= x.v.shape[a]:
        raise errors.ShapeError(f"[{op.decode()}] k = {count} does not fit axis {a} of size {x.v.shape[a]}. "
                                "Use 0 to that size.")
    cdef Tensor idx = op_argsort(x, a, largest, count)
    return _new_tuple(_ordering.TopK, (along(x, idx, a), idx))


def searchsorted(x1, x2, side="left"):
    """Where the elements of x2 would go in x1, which is in order.

    Parameters
    ----------
    x1 : Tensor
        1-D, ascending, NaN last.
    x2 : Tensor or number
    side : "left" or "right"
        Before or behind elements that are equal: x1[i-1] < v <= x1[i], or x1[i-1] <= v < x1[i].

    Returns
    -------
    Tensor
        int64, of x2's shape.

    >>> tp.searchsorted(tp.tensor([1.0, 2.0, 3.0]), tp.tensor([2.0, 9.0])).tolist()
    [1, 3]
    """
    cdef Tensor t = given(x1, "searchsorted")
    cdef Tensor v
    cdef int dtype
    if t.v.ndim != 1:
        raise errors.ShapeError(f"[searchsorted] x1 must be 1-D, got shape {shape_of(t.v)}. Search row by row.")
    if side not in ("left", "right"):
        raise errors.ShapeError(f"[searchsorted] side must be 'left' or 'right', got {side!r}.")
    if type(x2) is WeakFloat:
        v = op_astype(hold(x2), t.v.dtype if is_float(t.v.dtype) else default_float)
    elif is_number(x2):
        dtype = default_float if PyFloat_CheckExact(x2) and not is_float(t.v.dtype) else t.v.dtype
        if dtype == TPF_BOOL and not PyBool_Check(x2):
            dtype = TPF_INT64
        v = number_tensor(x2, dtype, b"searchsorted")
    else:
        v = given(x2, "searchsorted")
    return op_searchsorted(t, v, side == "right")


cdef int execute_searchsorted(Value *t, Value *v, bint right, Value *y) except -1:
    """y = where the elements of v would go in t; both are compared in one dtype that holds the values of both."""
    cdef int dtype = t.dtype
    cdef Value *table = NULL
    cdef Value *x = NULL
    if dtype != v.dtype or not is_float(dtype):
        dtype = TPF_FLOAT64 if is_float(dtype) or is_float(v.dtype) else TPF_INT64
    try:
        table = in_dtype(t, dtype)
        x = in_dtype(v, dtype)
        tpf_search(<int64_t *>y.data, table.data, table.size, x.data, x.size, dtype, right)
    finally:
        value_release(table)
        value_release(x)
    return 0


cdef Tensor op_searchsorted(Tensor t, Tensor v, bint right):
    cdef ThreadState *ts = thread_state()
    cdef double start = step_begins(ts)
    cdef Value *y
    cdef Value *vals[2]
    cdef Entry *nodes[2]
    cdef Entry *e = NULL
    if away(t.v, v.v, NULL) != NULL:
        y = remote_result(OP_SEARCHSORTED, (<int>right,), t.v, v.v, NULL, v.v.ndim, v.v.shape, TPF_INT64)
    else:
        y = value_new(v.v.ndim, v.v.shape, TPF_INT64)
    try:
        if not is_remote(y):
            execute_searchsorted(t.v, v.v, right, y)
        vals[0], vals[1] = t.v, v.v
        step_ends(ts, start, OP_SEARCHSORTED, 2, vals, y)
        if ts.flags & T_TAPE:
            nodes[0], nodes[1] = t.node, v.node
            e = record(ts, OP_SEARCHSORTED, 2, nodes, vals, y, 0)
            e.params = params_new(1)
            e.params[1] = right
    except:
        value_release(y)
        entry_release(e)
        raise
    return wrap(y, e)


cdef Value *in_dtype(Value *x, int dtype) except NULL:
    """x in a dtype, contiguous."""
    return value_contiguous(x) if x.dtype == dtype else value_cast(x, dtype)
