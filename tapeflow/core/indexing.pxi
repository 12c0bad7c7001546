# Indexing. Ints, slices, None and Ellipsis become a window (shape_ops.pxi). What is left of an advanced index, arrays
# of ints and masks, becomes places (gather.pxi) within the axes that it names, which are taken or put as one axis.

cdef struct Window:
    int64_t params[257]          # ndim * 4, then start, step, count, extent of each axis
    int ndim                     # of the result
    int64_t shape[64]
    int64_t axis[64]             # the axis behind each axis of the result, -1 for a new one


cdef bint is_array_index(object i):
    """An index that selects element by element."""
    if PyLong_CheckExact(i) or PySlice_Check(i) or i is None or i is Ellipsis:
        return False
    if type(i) is _ndarray or isinstance(i, list) or PyBool_Check(i) or isinstance(i, (_ndarray, _np_bool)):
        return True
    return isinstance(i, Tensor) and ((<Tensor>i).v.ndim > 0 or not is_float((<Tensor>i).v.dtype))


cdef int check_length(Tensor t, int used, int dots) except -1:
    if dots > 1:
        raise errors.TensorIndexError("[index] an index can have only one Ellipsis (...).")
    if used > t.v.ndim:
        raise errors.TensorIndexError(f"[index] {used} indices are too many for a tensor of {t.v.ndim} dimensions, "
                                      f"shape {shape_of(t.v)}.")
    return 0


cdef int add_axis(Window *w, int64_t size, int axis) except -1:
    if w.ndim == TPF_MAX_NDIM:
        raise errors.TensorIndexError(f"[index] the result would have more than {TPF_MAX_NDIM} dimensions.")
    w.shape[w.ndim] = size
    w.axis[w.ndim] = axis
    w.ndim += 1
    return 0


cdef int read_index(Tensor t, object index, Window *w) except -1:
    """The window of an index of ints, slices, None and Ellipsis."""
    cdef int axis = 0
    cdef int used = 0
    cdef int dots = 0
    cdef tuple items = index if isinstance(index, tuple) else (index,)
    w.ndim = 0
    w.params[0] = 4 * t.v.ndim
    for i in items:
        if i is Ellipsis:
            dots += 1
        elif i is not None:
            used += 1
    check_length(t, used, dots)
    for i in items:
        if i is None:
            add_axis(w, 1, -1)
        elif i is Ellipsis:
            whole_axes(t, w, axis, t.v.ndim - used)
            axis += t.v.ndim - used
        else:
            read_axis(t, i, axis, w)
            axis += 1
    whole_axes(t, w, axis, t.v.ndim - axis)
    return 0


cdef int read_axis(Tensor t, object i, int axis, Window *w) except -1:
    """A slice or an int along an axis."""
    cdef Py_ssize_t start, stop, step, count
    cdef int64_t extent = t.v.shape[axis]
    cdef int64_t *p = &w.params[4 * axis + 1]
    p[3] = extent
    if not PySlice_Check(i):
        p[0], p[1], p[2] = index_int(i, axis, extent), 1, 1
        return 0
    try:
        PySlice_Unpack(i, &start, &stop, &step)
    except TypeError:
        raise errors.TensorIndexError(f"[index] slice bounds and steps must be ints or None, got {i!r}.") from None
    except ValueError:
        raise errors.TensorIndexError(f"[index] the step of a slice cannot be 0, got {i!r}.") from None
    count = PySlice_AdjustIndices(extent, &start, &stop, step)
    p[0], p[1], p[2] = start, step if count > 1 else 1, count
    return add_axis(w, count, axis)


cdef int whole_axes(Tensor t, Window *w, int axis, int count) except -1:
    """count axes as they are."""
    cdef int d
    for d in range(axis, axis + count):
        w.params[4 * d + 1], w.params[4 * d + 2] = 0, 1
        w.params[4 * d + 3] = w.params[4 * d + 4] = t.v.shape[d]
        add_axis(w, t.v.shape[d], d)
    return 0


cdef int64_t index_int(object i, int axis, int64_t extent) except -1:
    cdef int over = 0
    cdef int64_t at
    if PyLong_CheckExact(i):
        at = PyLong_AsLongLongAndOverflow(i, &over)
        if not over and -extent <= at < extent:
            return at + extent if at < 0 else at
    if PyBool_Check(i) or isinstance(i, (float, str, bytes)):
        raise errors.TensorIndexError("[index] an index must be an int, a slice, None, Ellipsis or an integer array, "
                                      f"got {type(i).__name__}.")
    try:
        number = operator.index(i)
    except TypeError:
        raise errors.TensorIndexError("[index] an index must be an int, a slice, None, Ellipsis or an integer array, "
                                      f"got {type(i).__name__}.") from None
    if number < -extent or number >= extent:
        raise errors.TensorIndexError(f"[index] index {short(number)} is out of range for axis {axis} of size "
                                      f"{extent}.")
    at = number
    return at + extent if at < 0 else at


cdef Tensor get_item(Tensor t, object index):
    cdef Window w
    cdef int64_t at
    cdef Value *v
    if PyLong_CheckExact(index) and t.v.ndim == 1:
        # the loop over a vector
        at = index_int(index, 0, t.v.shape[0])
        if not wants_record(thread_state(), t.node, t.v.dtype):
            v = value_view(t.v, 0)
            v.data += at * t.v.strides[0]
            v.size, v.contiguous = 1, not is_remote(v)
            return wrap(v, NULL)
        w.ndim = 0
        w.params[0], w.params[1], w.params[2], w.params[3], w.params[4] = 4, at, 1, 1, t.v.shape[0]
        return op_window(t, w.params, 0, w.shape, w.axis)
    if PyLong_CheckExact(index):
        read_index(t, (index,), &w)
        return op_window(t, w.params, w.ndim, w.shape, w.axis)
    if isinstance(index, Tensor) and t.v.ndim:
        if (<Tensor>index).v.dtype == TPF_BOOL:
            if (<Tensor>index).v.ndim and same_shape((<Tensor>index).v, t.v):
                return compressed(t, index)
        elif (<Tensor>index).v.ndim and not is_float((<Tensor>index).v.dtype):
            return rows_at(t, index)
    index = exact_index(index)
    if has_array_index(index):
        return get_advanced(t, index)
    read_index(t, index, &w)
    return op_window(t, w.params, w.ndim, w.shape, w.axis)


cdef object exact_index(object index):
    """A tuple's items as they are: a subclass could tell its length and its items differently."""
    return tuple(index) if isinstance(index, tuple) and type(index) is not tuple else index


cdef bint has_array_index(object index) except -1:
    if not isinstance(index, tuple):
        return is_array_index(index)
    for i in index:
        if is_array_index(i):
            return True
    return False


cdef Tensor op_broadcast_for_write(Tensor v, Value *like, str op):
    """v stretched to like's shape for a write; v may have more leading axes of size 1, as in NumPy."""
    cdef int extra = v.v.ndim - like.ndim
    cdef int d
    if extra > 0:
        for d in range(extra):
            if v.v.shape[d] != 1:
                break
        else:
            v = reshape_to(v, like.ndim, v.v.shape + extra)
    for d in range(1, v.v.ndim + 1):
        if (v.v.ndim > like.ndim
                or not (v.v.shape[v.v.ndim - d] == like.shape[like.ndim - d] or v.v.shape[v.v.ndim - d] == 1)):
            raise errors.ShapeError(f"[{op}] a value of shape {shape_of(v.v)} does not fit what is written, "
                                    f"{shape_of(like)}: aligned from the right, its sizes must be equal or 1.")
    return op_broadcast(v, like.ndim, like.shape)


cdef inline bint writable_now(Tensor t) noexcept:
    """May a constant be written into t's memory as it is: no other owner, nothing recorded?"""
    return t.node == NULL and value_is_mine(t.v) and not thread_state().flags & T_TAPE


cdef int64_t window_size(Window *w) noexcept:
    cdef int64_t n = 1
    cdef int d
    for d in range(w.ndim):
        n *= w.shape[d]
    return n


cdef int fill_window(Value *y, const int64_t *params, const void *number) except -1:
    """y[window] = number, which has y's dtype; y is ours to write."""
    cdef int64_t still[64]
    cdef int d
    ensure_writable(y)
    cdef Value *w = window_view(y, params)
    if w.contiguous:
        tpf_fill(w.data, number, tpf_itemsize(w.dtype), w.size)
    else:
        for d in range(w.ndim):
            still[d] = 0
        tpf_copy(w.data, w.strides, <const char *>number, still, tpf_itemsize(w.dtype), w.ndim, w.shape)
    value_release(w)
    return 0


cdef bint fill_at(Tensor t, Tensor index, object value) except -1:
    """t[index] = value, a number, where that is a matter of one loop over t's own memory."""
    cdef int64_t number = 0
    cdef int itemsize = tpf_itemsize(t.v.dtype)
    if not (index.v.contiguous and index.v.ndim and t.v.size) or index.v.buf == t.v.buf:
        return False
    if index.v.dtype == TPF_INT64 and t.v.ndim == 1:
        write_number(&number, t.v.dtype, value, b"setitem")
        ensure_writable(t.v)
        return tpf_fill_at(t.v.data, t.v.size, <int64_t *>index.v.data, index.v.size, &number, itemsize)
    if index.v.dtype == TPF_BOOL and index.v.size < RELEASE_GIL and same_shape(index.v, t.v):
        write_number(&number, t.v.dtype, value, b"setitem")
        ensure_writable(t.v)
        tpf_fill_where(t.v.data, <uint8_t *>index.v.data, index.v.size, &number, itemsize)
        return True
    return False


cdef int set_item(Tensor t, object index, object value) except -1:
    cdef Window w
    cdef Value *target
    cdef Tensor v, r
    cdef int64_t number = 0
    cdef bint plain = is_number(value)
    cdef double start = step_begins(thread_state())
    if plain and writable_now(t):
        if PyLong_CheckExact(index) and t.v.ndim == 1:
            number = index_int(index, 0, t.v.shape[0])
            ensure_writable(t.v)
            return write_number(t.v.data + number * tpf_itemsize(t.v.dtype), t.v.dtype, value, b"setitem")
        if isinstance(index, Tensor) and fill_at(t, index, value):
            return step_writes(start, t, (<Tensor>index).v.size)
    index = exact_index(index)
    cdef bint advanced = has_array_index(index)
    if not advanced:
        read_index(t, index, &w)
        if plain and writable_now(t):
            write_number(&number, t.v.dtype, value, b"setitem")
            fill_window(t.v, w.params, &number)
            return step_writes(start, t, window_size(&w))
        if isinstance(value, Tensor):
            v = value
            if (v.node == NULL and not is_remote(v.v) and v.v.dtype == t.v.dtype and v.v.buf != t.v.buf
                    and v.v.ndim == w.ndim and memcmp(v.v.shape, w.shape, w.ndim * sizeof(int64_t)) == 0
                    and writable_now(t)):
                copy_into_window(t.v, w.params, v.v)
                return step_writes(start, t, v.v.size)
    if plain:
        v = number_tensor(value, t.v.dtype, b"setitem")
    else:
        v = as_tensor(value)
        v = cast_for_write(v, t.v.dtype, "setitem")
    v = written_beside(v, t.v)
    check_write(t, "setitem")  # now: making a tensor of value may have run the caller's code
    if advanced:
        return set_advanced(t, index, v)
    target = shape_only(w.ndim, w.shape, t.v.dtype)
    try:
        v = op_broadcast_for_write(v, target, "setitem")
    finally:
        value_release(target)
    r = op_assign(t, w.params, v, value_is_mine(t.v) and v.v != t.v)
    rebind(t, r)
    return 0


# ---- advanced indices

cdef struct Picks:
    Window w                     # everything but the arrays, which take their axes as they are
    bint whole                   # the window is the tensor itself
    bint front                   # the arrays are apart: their axes come first
    int n                        # arrays
    int at[64]                   # of each: the first axis of the window that it is for,
    int wide[64]                 # how many there are,
    int axis[64]                 # and which one of the tensor that is
    bint masked                  # there was a mask


cdef Tensor array_index(object i, int axis, int64_t extent):
    """An index that selects element by element as a tensor of integers or bool."""
    cdef Tensor t
    if isinstance(i, Tensor):
        t = i
    elif isinstance(i, _ndarray) and i.dtype.kind not in "biu":
        raise errors.TensorIndexError("[index] index arrays must be integers or bool, got dtype "
                                      f"{i.dtype}. Use .astype('int64').")
    elif isinstance(i, _ndarray) and i.dtype not in _numpy_codes:
        return index_tensor(i, axis, extent, b"index")
    else:
        t = as_tensor(i)
        if t.v.size == 0 and is_float(t.v.dtype):
            return op_astype(t, TPF_INT64)  # an empty list says nothing about its dtype
    if is_float(t.v.dtype):
        raise errors.TensorIndexError(f"[index] index arrays must be integers or bool, got dtype "
                                      f"{dtype_name(t.v.dtype)}. Use .astype('int64').")
    return t


cdef list read_picks(Tensor t, object index, Picks *p):
    """What an advanced index says, and its arrays: masks have become positions."""
    cdef list parts = []
    cdef list basic = []
    cdef list arrays = []
    cdef int used = 0
    cdef int dots = 0
    cdef int axis = 0
    cdef int run = 0             # 1: among arrays and ints, 2: behind them
    cdef int n = 0               # axes of the window
    cdef Tensor m
    p.n = 0
    p.whole = True
    p.front = p.masked = False
    if isinstance(index, Tensor) and t.v.ndim and (<Tensor>index).v.dtype != TPF_BOOL and (<Tensor>index).v.ndim:
        p.n, p.at[0], p.wide[0], p.axis[0] = 1, 0, 1, 0
        return [array_index(index, 0, 0)]
    for i in index if isinstance(index, tuple) else (index,):
        if i is Ellipsis:
            dots += 1
        elif isinstance(i, _ndarray) and i.ndim == 0 and i.dtype.kind in "iu":
            i = int(i)
            used += 1
        elif is_array_index(i):
            m = array_index(i, used, t.v.shape[used] if used < t.v.ndim else 0)
            used += m.v.ndim if m.v.dtype == TPF_BOOL else 1
            i = m
        elif i is not None:
            used += 1
        parts.append(i)
    check_length(t, used, dots)
    if not dots:
        parts.append(Ellipsis)
    for i in parts:
        if isinstance(i, Tensor) and is_array_index(i):
            m = i
            p.front = p.front or run == 2
            run = 1
            p.at[p.n], p.axis[p.n], p.wide[p.n] = n, axis, 1
            if m.v.dtype == TPF_BOOL:
                m = mask_index(t, m, axis)
                p.masked = True
                p.wide[p.n] = (<Tensor>i).v.ndim
            arrays.append(m)
            if p.wide[p.n] == 0:  # of a 0-d mask: an axis of size 1 of its own
                p.wide[p.n] = 1
                p.whole = False
                basic.append(None)
                n += 1
            else:
                for _ in range(p.wide[p.n]):
                    basic.append(_everything)
                axis += p.wide[p.n]
                n += p.wide[p.n]
            p.n += 1
            continue
        if i is Ellipsis:
            basic.extend([_everything] * (t.v.ndim - used))
            axis += t.v.ndim - used
            n += t.v.ndim - used
            run = 2 if run == 1 and dots else run
            continue
        basic.append(i)
        if i is None or PySlice_Check(i):
            run = 2 if run == 1 else run
            n += 1
            axis += i is not None
            p.whole = p.whole and i is not None and i == _everything
        else:
            p.front = p.front or run == 2
            run = 1
            axis += 1
            p.whole = False
    if not p.whole:
        read_index(t, tuple(basic), &p.w)
    return arrays


cdef object _everything = slice(None)


cdef Tensor mask_index(Tensor t, Tensor mask, int axis):
    """The positions that a mask selects from the axes that it is for."""
    cdef int d
    if mask.v.ndim == 0:
        mask = sent_beside(mask, t.v)
    for d in range(mask.v.ndim):
        if mask.v.shape[d] != t.v.shape[axis + d]:
            raise errors.TensorIndexError(f"[index] a mask of shape {shape_of(mask.v)} does not fit axes {axis} to "
                                          f"{axis + mask.v.ndim - 1} of a tensor of shape {shape_of(t.v)}.")
    return op_nonzero(mask, True)


cdef int places_picked(tpf_places *q, Tensor x, Picks *p, list arrays, int *lo, int *hi) except -1:
    """The places, within axes lo .. hi-1 of the window x, of all arrays together; returns how many axes these have."""
    cdef int64_t shape[64]
    cdef int64_t steps[64]
    cdef bint named[64]
    cdef int ndim = 0
    cdef int i, d, s, both
    cdef Tensor a
    for i in range(p.n):
        a = arrays[i]
        ndim = a.v.ndim if a.v.ndim > ndim else ndim
    for d in range(ndim):
        shape[d] = 1
    for i in range(p.n):
        a = arrays[i]
        for s in range(a.v.ndim):
            d = s + ndim - a.v.ndim
            if shape[d] == 1:
                shape[d] = a.v.shape[s]
            elif a.v.shape[s] != shape[d] and a.v.shape[s] != 1:
                shapes = ", ".join([str(shape_of((<Tensor>b).v)) for b in arrays])
                raise errors.TensorIndexError(f"[index] index arrays of shapes {shapes} do not broadcast together.")
    lo[0], hi[0] = p.at[0], p.at[p.n - 1] + p.wide[p.n - 1]
    for d in range(lo[0], hi[0]):
        named[d] = False
        steps[d] = extent_of(x.v, d + 1, hi[0])
    for i in range(p.n):
        for d in range(p.at[i], p.at[i] + p.wide[i]):
            named[d] = True
    both = ndim
    for d in range(lo[0], hi[0]):
        if not named[d]:
            if both == TPF_MAX_NDIM:
                raise errors.TensorIndexError(f"[index] the result would have more than {TPF_MAX_NDIM} dimensions.")
            shape[both] = x.v.shape[d]
            both += 1
    places_start(q, both, shape)
    both = ndim
    for d in range(lo[0], hi[0]):
        if not named[d]:
            q.coef[both] = steps[d]
            both += 1
    for i in range(p.n):
        a = arrays[i]
        d = p.at[i] + p.wide[i]
        places_add(q, a.v, ndim, extent_of(x.v, p.at[i], d), steps[d - 1])
    return ndim


cdef Tensor move_picked(Tensor y, int lo, int ndim, bint back):
    """y with the axes lo .. lo+ndim-1, those of the arrays, in front; or put back from there."""
    cdef int axes[64]
    cdef int d
    for d in range(y.v.ndim):
        if d < ndim:
            axes[d] = d + lo
        elif d < ndim + lo:
            axes[d] = d - ndim
        else:
            axes[d] = d
    if back:
        for d in range(y.v.ndim):
            axes[d] = d + ndim if d < lo else d - lo if d < lo + ndim else d
    return op_permute(y, axes)


cdef Tensor rows_at(Tensor t, Tensor idx):
    """t at integers along its first axis."""
    cdef tpf_places q
    cdef ThreadState *ts = thread_state()
    cdef double start = step_begins(ts)
    cdef Value *y
    cdef Value *vals[2]
    cdef int axis = 0
    if (t.v.ndim == 1 and t.v.size and t.v.contiguous and idx.v.dtype == TPF_INT64 and idx.v.contiguous
            and idx.v.size < RELEASE_GIL and not wants_record(thread_state(), t.node, t.v.dtype)):
        y = value_like(idx.v, t.v.dtype)
        if tpf_take_at(y.data, t.v.data, t.v.size, <int64_t *>idx.v.data, y.size, tpf_itemsize(y.dtype)):
            vals[0], vals[1] = t.v, idx.v
            step_ends(ts, start, OP_TAKE, 2, vals, y)
            return wrap(y, NULL)
        value_release(y)
    places_start(&q, idx.v.ndim, idx.v.shape)
    places_add(&q, idx.v, idx.v.ndim, t.v.shape[0], 1)
    return gather(t, 0, 1, &q, [idx], idx.v.ndim, &axis, b"index")


cdef Tensor get_advanced(Tensor t, object index):
    cdef Picks p
    cdef tpf_places q
    cdef int lo, hi, ndim
    cdef list arrays = read_picks(t, index, &p)
    cdef Tensor x = t if p.whole else op_window(t, p.w.params, p.w.ndim, p.w.shape, p.w.axis)
    if p.n == 0:  # 0-d arrays
        return x
    ndim = places_picked(&q, x, &p, arrays, &lo, &hi)
    x = gather(x, lo, hi, &q, arrays, ndim, p.axis, b"index")
    return move_picked(x, lo, ndim, False) if p.front and lo else x


cdef int set_advanced(Tensor t, object index, Tensor v) except -1:
    """t with v, of t's dtype, at index; where an element is named more than once, the last one wins."""
    cdef Picks p
    cdef tpf_places q
    cdef int64_t shape[64]
    cdef int lo, hi, ndim, d, n
    cdef list arrays
    cdef Tensor x, idx, r
    cdef Value *like
    cdef bint mine
    if v.v.size == 1 and v.v.ndim == 0 and isinstance(index, Tensor) and (<Tensor>index).v.dtype == TPF_BOOL:
        if same_shape((<Tensor>index).v, t.v):
            return rebind(t, call3(OP_WHERE, index, v, t))
    arrays = read_picks(t, index, &p)
    x = t if p.whole else op_window(t, p.w.params, p.w.ndim, p.w.shape, p.w.axis)
    if p.n == 0:  # 0-d arrays
        return rebind(t, op_assign(t, p.w.params, op_broadcast_for_write(v, x.v, "setitem"), False))
    ndim = places_picked(&q, x, &p, arrays, &lo, &hi)
    n = 0
    for d in range(lo):
        shape[n] = x.v.shape[d]
        n += 1
    for d in range(q.ndim):
        if n < TPF_MAX_NDIM:
            shape[n] = q.shape[d]
        n += 1
    for d in range(hi, x.v.ndim):
        if n < TPF_MAX_NDIM:
            shape[n] = x.v.shape[d]
        n += 1
    if n > TPF_MAX_NDIM:
        raise errors.TensorIndexError(f"[index] what is written would have more than {TPF_MAX_NDIM} dimensions.")
    like = shape_only(n, shape, t.v.dtype)
    try:
        if p.front and lo:
            v = spread_in_front(v, like, lo, ndim)
        else:
            v = op_broadcast_for_write(v, like, "setitem")
    finally:
        value_release(like)
    idx = op_places(&q, arrays, ndim, p.axis, b"index")
    mine = p.whole and value_is_mine(t.v) and v.v.buf != t.v.buf
    if mine and hi - lo == 1 and not (wants_record(thread_state(), t.node, t.v.dtype)
                                      or wants_record(thread_state(), v.node, t.v.dtype)):
        return rebind(t, op_put(t, idx, v, lo, p.masked and p.n == 1, True))
    r = op_put(merge_axes(x, lo, hi), idx, v, lo, p.masked and p.n == 1, False)
    r = reshape_like(r, x.v)
    if p.whole:
        return rebind(t, r)
    return rebind(t, op_assign(t, p.w.params, r, False))


cdef Value *shape_only(int ndim, const int64_t *shape, int dtype) except NULL:
    """A shape and a dtype, to compare with."""
    cdef Value *v = value_raw(ndim)
    if v == NULL:
        raise MemoryError()
    v.dtype = dtype
    memcpy(v.shape, shape, ndim * sizeof(int64_t))
    return v


cdef Tensor spread_in_front(Tensor v, Value *like, int lo, int ndim):
    """v stretched for a write to axes of like of which lo .. lo+ndim-1 stand in front, and these put back."""
    cdef int64_t shape[64]
    cdef Value *front
    cdef int d
    for d in range(like.ndim):
        shape[d] = like.shape[d + lo] if d < ndim else like.shape[d - ndim] if d < ndim + lo else like.shape[d]
    front = shape_only(like.ndim, shape, like.dtype)
    try:
        v = op_broadcast_for_write(v, front, "setitem")
    finally:
        value_release(front)
    return move_picked(v, lo, ndim, True)
