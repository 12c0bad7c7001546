# Basic indexing: ints, slices, None and Ellipsis become a window (shape_ops.pxi). One integer array among slices
# becomes a take, any other advanced index is worked out in _advanced.py.

cdef struct Window:
    int64_t params[257]          # ndim * 4, then start, step, count, extent of each axis
    int ndim                     # of the result
    int64_t shape[64]
    int64_t axis[64]             # the axis behind each axis of the result, -1 for a new one


cdef bint is_array_index(object i):
    """An index that selects element by element."""
    if isinstance(i, (list, _ndarray, _np_bool)) or PyBool_Check(i):
        return True
    return isinstance(i, Tensor) and ((<Tensor>i).v.ndim > 0 or (<Tensor>i).v.dtype == TPF_BOOL)


cdef tuple index_tuple(Tensor t, object index):
    """The index as a tuple in which an Ellipsis, if there was one, is spelled out; its length in axes checked."""
    cdef int used = 0
    cdef int dots = 0
    if not isinstance(index, tuple):
        index = (index,)
    for i in index:
        if i is Ellipsis:
            dots += 1
        elif i is not None:
            used += 1
    if dots > 1:
        raise errors.TensorIndexError("[index] an index can have only one Ellipsis (...).")
    if used > t.v.ndim:
        raise errors.TensorIndexError(f"[index] {used} indices are too many for a tensor of {t.v.ndim} dimensions, "
                                      f"shape {shape_of(t.v)}.")
    fill = (slice(None),) * (t.v.ndim - used)
    if not dots:
        return <tuple>index + fill
    out = []
    for i in index:
        if i is Ellipsis:
            out.extend(fill)
        else:
            out.append(i)
    return tuple(out)


cdef int add_axis(Window *w, int64_t size, int axis) except -1:
    if w.ndim == TPF_MAX_NDIM:
        raise errors.TensorIndexError(f"[index] the result would have more than {TPF_MAX_NDIM} dimensions.")
    w.shape[w.ndim] = size
    w.axis[w.ndim] = axis
    w.ndim += 1
    return 0


cdef int read_index(Tensor t, tuple index, Window *w) except -1:
    """The window of an index of ints, slices and None."""
    cdef int axis = 0
    cdef int64_t extent, at
    cdef Py_ssize_t start, stop, step, count
    cdef int64_t *p
    w.ndim = 0
    w.params[0] = 4 * t.v.ndim
    for i in index:
        if i is None:
            add_axis(w, 1, -1)
            continue
        extent = t.v.shape[axis]
        p = &w.params[4 * axis + 1]
        p[3] = extent
        if PySlice_Check(i):
            try:
                PySlice_Unpack(i, &start, &stop, &step)
            except TypeError:
                raise errors.TensorIndexError("[index] slice bounds and steps must be ints or None, "
                                              f"got {i!r}.") from None
            except ValueError:
                raise errors.TensorIndexError(f"[index] the step of a slice cannot be 0, got {i!r}.") from None
            count = PySlice_AdjustIndices(extent, &start, &stop, step)
            p[0], p[1], p[2] = start, step if count > 1 else 1, count
            add_axis(w, count, axis)
        else:
            at = index_int(i, axis, extent)
            p[0], p[1], p[2] = at, 1, 1
        axis += 1
    return 0


cdef int64_t index_int(object i, int axis, int64_t extent) except -1:
    cdef int64_t at
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
    if PyLong_CheckExact(index) and t.v.ndim == 1:
        # the loop over a vector
        at = index_int(index, 0, t.v.shape[0])
        w.ndim = 0
        w.params[0], w.params[1], w.params[2], w.params[3], w.params[4] = 4, at, 1, 1, t.v.shape[0]
        return op_window(t, w.params, 0, w.shape, w.axis)
    index = exact_index(index)
    if isinstance(index, list):
        index = index_list(index)
    cdef bint advanced = has_array_index(index)
    if advanced and not isinstance(index, tuple) and is_int_array(index) and t.v.ndim:
        return op_take(t, checked_indices(index, t.v.shape[0], 0, b"index"), 0)  # rows of a table
    if advanced:
        return _advanced.get(t, index)
    read_index(t, index_tuple(t, index), &w)
    return op_window(t, w.params, w.ndim, w.shape, w.axis)


cdef object exact_index(object index):
    """A tuple's items as they are: a subclass could tell its length and its items differently."""
    return tuple(index) if isinstance(index, tuple) and type(index) is not tuple else index


cdef Tensor index_list(list index):
    """A list of indices as a tensor; one without elements says nothing about its dtype."""
    cdef Tensor t = as_tensor(index)
    return op_astype(t, TPF_INT64) if t.v.size == 0 and is_float(t.v.dtype) else t


cdef bint has_array_index(object index) except -1:
    if not isinstance(index, tuple):
        return is_array_index(index)
    for i in index:
        if is_array_index(i):
            return True
    return False


cdef bint is_int_array(object i) except -1:
    if isinstance(i, Tensor):
        return (<Tensor>i).v.dtype != TPF_BOOL
    return isinstance(i, _ndarray) and i.dtype.kind in "iu"


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


cdef int set_item(Tensor t, object index, object value) except -1:
    cdef Window w
    cdef Value *target
    cdef Tensor v, r
    index = exact_index(index)
    cdef bint advanced = has_array_index(index)
    if not advanced:
        read_index(t, index_tuple(t, index), &w)
    if is_number(value):
        v = number_tensor(value, t.v.dtype, b"setitem")
    else:
        v = as_tensor(value)
        v = cast_for_write(v, t.v.dtype, "setitem")
    check_write(t, "setitem")  # now: making a tensor of value may have run the caller's code
    if advanced:
        return rebind(t, _advanced.put(t, index, v))
    target = value_raw(w.ndim)
    if target == NULL:
        raise MemoryError()
    try:
        target.dtype = t.v.dtype
        memcpy(target.shape, w.shape, w.ndim * sizeof(int64_t))
        v = op_broadcast_for_write(v, target, "setitem")
    finally:
        value_release(target)
    r = op_assign(t, w.params, v, value_is_mine(t.v) and v.v != t.v)
    rebind(t, r)
    return 0
