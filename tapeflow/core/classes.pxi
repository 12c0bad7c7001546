# Class numbers: checked, as positions in a flat (rows, classes), and as one-hot rows.

cdef Tensor class_numbers(Tensor t, const char *op):
    """Integers as int64."""
    if is_float(t.v.dtype) or t.v.dtype == TPF_BOOL:
        raise errors.DTypeError(f"[{op.decode()}] class numbers must be integers, got dtype {dtype_name(t.v.dtype)}. "
                                "Use .astype('int64').")
    return op_astype(t, TPF_INT64)


cdef int check_classes(Value *id, int64_t classes, const char *op) except -1:
    """Are contiguous int64 class numbers, each 0 .. classes-1?"""
    cdef int64_t i
    for i in range(id.size):
        if <uint64_t>(<int64_t *>id.data)[i] >= <uint64_t>classes:
            raise errors.TensorIndexError(f"[{op.decode()}] class {(<int64_t *>id.data)[i]} is out of range "
                                          f"0 .. {classes - 1}.")
    return 0


cdef int execute_class_positions(Value *labels, int64_t classes, const char *op, Value *y) except -1:
    """y = row * classes + label for each row."""
    cdef int64_t i
    cdef Value *id = value_contiguous(labels)
    try:
        check_classes(id, classes, op)
        for i in range(id.size):
            (<int64_t *>y.data)[i] = i * classes + (<int64_t *>id.data)[i]
    finally:
        value_release(id)
    return 0


cdef int execute_one_hot(Value *indices, int64_t classes, Value *y) except -1:
    """y = 1 at each class number along its last axis, 0 elsewhere."""
    cdef int size = tpf_itemsize(y.dtype)
    cdef int64_t one = 0
    cdef int64_t i
    cdef Value *id = value_contiguous(indices)
    try:
        check_classes(id, classes, b"one_hot")
        write_number(&one, y.dtype, 1, b"one_hot")
        memset(y.data, 0, y.size * size)
        for i in range(id.size):
            memcpy(y.data + (i * classes + (<int64_t *>id.data)[i]) * size, &one, size)
    finally:
        value_release(id)
    return 0


cdef Tensor of_classes(int op, Tensor t, Value *y, int64_t classes, double start):
    """The tensor of y, which is taken over, computed from class numbers: recorded where a tape is open."""
    cdef int64_t params[2]
    params[0], params[1] = 1, classes
    return recorded1(op, t, y, params, start)


def class_positions(Tensor labels not None, int64_t classes, str op):
    """row * classes + label for each row: where a flat (rows, classes) holds the class of the row."""
    cdef bytes name = op.encode()
    cdef Tensor t = class_numbers(labels, name)
    cdef double start = step_begins(thread_state())
    cdef Value *y
    if is_remote(t.v):
        y = remote_result(OP_CLASS_POSITIONS, (classes,), t.v, NULL, NULL, t.v.ndim, t.v.shape, TPF_INT64)
        return of_classes(OP_CLASS_POSITIONS, t, y, classes, start)
    y = value_like(t.v, TPF_INT64)
    try:
        execute_class_positions(t.v, classes, name, y)
    except:
        value_release(y)
        raise
    return of_classes(OP_CLASS_POSITIONS, t, y, classes, start)


def one_hot_rows(Tensor indices not None, int64_t classes, dtype):
    """1 at each class number along a new last axis, 0 elsewhere."""
    cdef Tensor t = class_numbers(indices, b"one_hot")
    cdef int code = dtype_code(dtype, "one_hot")
    cdef int64_t shape[65]
    cdef double start = step_begins(thread_state())
    cdef Value *y
    if t.v.ndim >= 64:
        raise errors.ShapeError("[one_hot] the result would have more than 64 dimensions.")
    memcpy(shape, t.v.shape, t.v.ndim * sizeof(int64_t))
    shape[t.v.ndim] = classes
    check_sizes(t.v.ndim + 1, shape, b"one_hot")
    if is_remote(t.v):
        y = remote_result(OP_ONE_HOT, (classes,), t.v, NULL, NULL, t.v.ndim + 1, shape, code)
        return of_classes(OP_ONE_HOT, t, y, classes, start)
    y = value_new(t.v.ndim + 1, shape, code)
    try:
        execute_one_hot(t.v, classes, y)
    except:
        value_release(y)
        raise
    return of_classes(OP_ONE_HOT, t, y, classes, start)
