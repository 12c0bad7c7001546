# Class numbers: checked, as positions in a flat (rows, classes), and as one-hot rows.

cdef Tensor class_numbers(Tensor t, int64_t classes, const char *op):
    """Integers as int64, each 0 .. classes-1."""
    cdef int64_t i
    cdef int64_t *id
    cdef Value *v
    if is_float(t.v.dtype) or t.v.dtype == TPF_BOOL:
        raise errors.DTypeError(f"[{op.decode()}] class numbers must be integers, got dtype {dtype_name(t.v.dtype)}. "
                                "Use .astype('int64').")
    t = op_astype(t, TPF_INT64)
    v = value_contiguous(t.v)
    try:
        id = <int64_t *>v.data
        for i in range(v.size):
            if <uint64_t>id[i] >= <uint64_t>classes:
                raise errors.TensorIndexError(f"[{op.decode()}] class {id[i]} is out of range 0 .. {classes - 1}.")
    finally:
        value_release(v)
    return t


cdef Tensor of_classes(int op, Tensor t, Value *y, int64_t classes):
    """The tensor of y, which is taken over, computed from class numbers: recorded where a tape is open."""
    cdef int64_t params[2]
    params[0], params[1] = 1, classes
    return recorded1(op, t, y, params)


def class_positions(Tensor labels not None, int64_t classes, str op):
    """row * classes + label for each row: where a flat (rows, classes) holds the class of the row."""
    cdef Tensor t = class_numbers(labels, classes, op.encode())
    cdef Value *id = value_contiguous(t.v)
    cdef Value *y = NULL
    cdef int64_t i
    try:
        y = value_like(id, TPF_INT64)
        for i in range(id.size):
            (<int64_t *>y.data)[i] = i * classes + (<int64_t *>id.data)[i]
    finally:
        value_release(id)
    return of_classes(OP_CLASS_POSITIONS, t, y, classes)


def one_hot_rows(Tensor indices not None, int64_t classes, dtype):
    """1 at each class number along a new last axis, 0 elsewhere."""
    cdef Tensor t = class_numbers(indices, classes, b"one_hot")
    cdef int code = dtype_code(dtype, "one_hot")
    cdef int size = tpf_itemsize(code)
    cdef int64_t shape[65]
    cdef int64_t one = 0
    cdef int64_t i
    cdef Value *id = NULL
    cdef Value *y = NULL
    if t.v.ndim >= 64:
        raise errors.ShapeError("[one_hot] the result would have more than 64 dimensions.")
    memcpy(shape, t.v.shape, t.v.ndim * sizeof(int64_t))
    shape[t.v.ndim] = classes
    check_sizes(t.v.ndim + 1, shape, b"one_hot")
    write_number(&one, code, 1, b"one_hot")
    id = value_contiguous(t.v)
    try:
        y = zeros_value(t.v.ndim + 1, shape, code)
        for i in range(id.size):
            memcpy(y.data + (i * classes + (<int64_t *>id.data)[i]) * size, &one, size)
    finally:
        value_release(id)
    return of_classes(OP_ONE_HOT, t, y, classes)
