# Storage: buffers, the pool that keeps them, and values (a typed, strided look at a buffer).
#
# A Value is immutable while it has more than one owner, and so is its Buffer: whoever wants to write asks
# `value_is_mine` first and copies when the answer is no. Owner counts are ours, plain integers under the GIL.
# A Buffer's header and its data are one block up to SMALL bytes. Freed blocks are kept by size class; memory that
# is touched again costs nothing, the first touch of a fresh page costs more than most kernels.

cdef enum:
    SMALL_CLASSES = 7            # data of 64, 128, ... 4096 bytes, header in front
    LARGE_CLASSES = 256          # four steps to an octave
    HEADER = 64
    SMALL = 4096
    HUGE_PAGE = 1 << 21
    INLINE_NDIM = 4
    SLOT_OF_PLAN = -2            # Value.program of what a plan writes, by its layout and not by owners
    KEEP_SMALL = 1 << 21         # bytes kept of each small class
    BORROWED = 1                 # Buffer.foreign: memory of another library's, never written by us
    REMOTE = 2                   # memory of a device (devices.pxi): `data` of its values is an offset, not an address

cdef struct Buffer:
    int64_t owners
    int64_t nbytes
    char *data
    PyObject *base               # the owner of foreign memory, of a device's its Memory, or NULL
    Buffer *next                 # in a free list
    int size_class               # >= 0 small, < 0: ~class of a large one
    int foreign

cdef struct Value:
    int64_t owners
    Buffer *buf                  # NULL: only a shape and a dtype ("meta"); in a free list: the next
    char *data
    int64_t size
    int64_t *shape
    int64_t *strides             # bytes
    int dtype
    int ndim
    bint contiguous              # packed, and there for loops to read: never so on a device
    bint loose                   # made of Python's data within an op: goes to whichever device it meets
    PyObject *tensor             # borrowed: the one Tensor of the user's that holds this value, or NULL
    int64_t program, number      # in the program of a recording (program.pxi)
    int64_t dims[8]              # shape and strides of up to INLINE_NDIM axes

cdef Buffer *small_free[SMALL_CLASSES]
cdef int64_t small_kept[SMALL_CLASSES]
cdef Buffer *large_free[LARGE_CLASSES]
cdef int64_t large_kept = 0
cdef int64_t large_limit = <int64_t>1 << 30
cdef Value *value_free = NULL
cdef int64_t values_kept = 0
cdef int64_t bytes_in_use = 0
cdef int64_t bytes_peak = 0      # the most of them since reset_peak
cdef int64_t fresh_blocks = 0    # blocks asked of the system: flat in steady state


cdef void pool_clear() noexcept:
    """Give every kept block back to the system."""
    global large_kept
    cdef int c
    cdef Buffer *b
    for c in range(SMALL_CLASSES):
        while small_free[c] != NULL:
            b = small_free[c]
            small_free[c] = b.next
            tpf_aligned_free(b)
        small_kept[c] = 0
    for c in range(LARGE_CLASSES):
        while large_free[c] != NULL:
            b = large_free[c]
            large_free[c] = b.next
            tpf_aligned_free(b.data)
            free(b)
    large_kept = 0


cdef int large_class(int64_t nbytes, int64_t *rounded) noexcept:
    """The class of a large block, and its size: the next of four steps in the octave."""
    cdef int octave = 63 - clz64(<uint64_t>(nbytes - 1))
    cdef int64_t step = <int64_t>1 << (octave - 2)
    rounded[0] = (nbytes + step - 1) & ~(step - 1)
    return octave * 4 + <int>((rounded[0] - 1 - (<int64_t>1 << octave)) // step)


cdef Buffer *large_new(int64_t nbytes) noexcept:
    global large_kept, fresh_blocks
    cdef int64_t size
    cdef int c = large_class(nbytes, &size)
    cdef Buffer *b = large_free[c]
    if b != NULL:
        large_free[c] = b.next
        large_kept -= size
        return b
    b = <Buffer *>malloc(sizeof(Buffer))
    if b == NULL:
        return NULL
    b.data = <char *>tpf_aligned_alloc(HUGE_PAGE if size >= 2 * HUGE_PAGE else HEADER, size)
    if b.data == NULL:
        pool_clear()
        b.data = <char *>tpf_aligned_alloc(HEADER, size)
        if b.data == NULL:
            free(b)
            return NULL
    if size >= 2 * HUGE_PAGE:
        tpf_advise_huge(b.data, size)
    fresh_blocks += 1
    b.nbytes = size
    b.size_class = ~c
    return b


cdef inline Buffer *buffer_new(int64_t nbytes) noexcept:
    """A buffer of at least nbytes, one owner; NULL when memory is out (no exception set)."""
    global bytes_in_use, bytes_peak, fresh_blocks
    cdef int c
    cdef Buffer *b
    if nbytes <= SMALL and POOLED:
        c = 0 if nbytes <= 64 else 58 - clz64(<uint64_t>(nbytes - 1))
        b = small_free[c]
        if b != NULL:
            small_free[c] = b.next
            small_kept[c] -= b.nbytes
        else:
            b = <Buffer *>tpf_aligned_alloc(HEADER, HEADER + (<int64_t>64 << c))
            if b == NULL:
                return NULL
            fresh_blocks += 1
            b.nbytes = <int64_t>64 << c
            b.data = <char *>b + HEADER
            b.size_class = c
    elif POOLED:
        b = large_new(nbytes)
        if b == NULL:
            return NULL
    else:
        b = <Buffer *>malloc(sizeof(Buffer))
        if b == NULL:
            return NULL
        b.data = <char *>tpf_aligned_alloc(HEADER, nbytes if nbytes > 0 else 1)
        if b.data == NULL:
            free(b)
            return NULL
        b.nbytes = nbytes
        b.size_class = 0
    b.owners = 1
    b.base = NULL
    b.foreign = 0
    bytes_in_use += b.nbytes
    if bytes_in_use > bytes_peak:
        bytes_peak = bytes_in_use
    return b


cdef Buffer *buffer_foreign(char *data, int64_t nbytes, object owner, int kind) except NULL:
    """A buffer over memory that `owner` keeps alive: BORROWED or REMOTE."""
    cdef Buffer *b = <Buffer *>malloc(sizeof(Buffer))
    if b == NULL:
        raise MemoryError()
    b.owners = 1
    b.nbytes = nbytes
    b.data = data
    b.base = <PyObject *>owner
    b.foreign = kind
    Py_INCREF(owner)
    return b


cdef Buffer *foreign_dead = NULL     # foreign buffers whose owners are about to be released
cdef bint foreign_busy = False


cdef void foreign_free(Buffer *b) noexcept:
    """Release the owner of foreign memory. It may own the next one, and so on: in a loop, not by recursion."""
    global foreign_dead, foreign_busy
    cdef PyObject *base
    b.next = foreign_dead
    foreign_dead = b
    if foreign_busy:
        return
    foreign_busy = True
    while foreign_dead != NULL:
        b = foreign_dead
        foreign_dead = b.next
        base = b.base
        free(b)
        Py_XDECREF(base)
    foreign_busy = False


cdef void buffer_free(Buffer *b) noexcept:
    global bytes_in_use, large_kept
    if b.foreign:
        foreign_free(b)
        return
    bytes_in_use -= b.nbytes
    if not POOLED:
        tpf_aligned_free(b.data)
        free(b)
    elif b.size_class >= 0:
        if small_kept[b.size_class] >= KEEP_SMALL:
            tpf_aligned_free(b)
            return
        b.next = small_free[b.size_class]
        small_free[b.size_class] = b
        small_kept[b.size_class] += b.nbytes
    elif large_kept + b.nbytes > large_limit:
        tpf_aligned_free(b.data)
        free(b)
    else:
        b.next = large_free[~b.size_class]
        large_free[~b.size_class] = b
        large_kept += b.nbytes


cdef inline void buffer_release(Buffer *b) noexcept:
    b.owners -= 1
    if b.owners == 0:
        buffer_free(b)


# ---- values


cdef inline Value *value_raw(int ndim) noexcept:
    """A Value with room for ndim axes, one owner, nothing else set; NULL when memory is out."""
    global value_free, values_kept
    cdef Value *v = value_free
    if v != NULL:
        value_free = <Value *>v.buf
        values_kept -= 1
    else:
        v = <Value *>malloc(sizeof(Value))
        if v == NULL:
            return NULL
    v.owners = 1
    v.buf = NULL
    v.data = NULL
    v.tensor = NULL
    v.program = 0
    v.loose = False
    v.ndim = ndim
    if ndim <= INLINE_NDIM:
        v.shape = v.dims
    else:
        v.shape = <int64_t *>malloc(2 * ndim * sizeof(int64_t))
        if v.shape == NULL:
            free(v)
            return NULL
    v.strides = v.shape + ndim
    return v


cdef void value_free_it(Value *v) noexcept:
    global value_free, values_kept
    if v.shape != v.dims:
        free(v.shape)
    if v.buf != NULL:
        buffer_release(v.buf)
    if values_kept < 16384 and POOLED:
        v.buf = <Buffer *>value_free
        value_free = v
        values_kept += 1
    else:
        free(v)


cdef inline void value_release(Value *v) noexcept:
    if v != NULL:
        v.owners -= 1
        if v.owners == 0:
            value_free_it(v)


cdef inline Value *value_share(Value *v) noexcept:
    v.owners += 1
    return v


cdef inline bint value_is_mine(Value *v) noexcept:
    """May the single owner of v write into it?"""
    return v.owners == 1 and v.buf.owners == 1 and not v.buf.foreign and v.contiguous


cdef inline void ensure_writable(Value *v) noexcept:
    if ASSERTING and v.size and v.program != SLOT_OF_PLAN:
        ensure(v.buf.owners == 1 and not v.buf.foreign, b"memory with more than one owner is never written")


cdef inline bint is_remote(Value *v) noexcept:
    """Is v's memory a device's?"""
    return v.buf != NULL and v.buf.foreign == REMOTE


cdef inline void set_contiguous_strides(Value *v) noexcept:
    cdef int64_t step = tpf_itemsize(v.dtype)
    cdef int d = v.ndim - 1
    while d >= 0:
        v.strides[d] = step
        if v.size > 0:           # beside an empty axis the product may not fit, and nothing is read
            step *= v.shape[d]
        d -= 1
    v.contiguous = not is_remote(v)


cdef inline bint is_contiguous(Value *v) noexcept:
    cdef int64_t expected = tpf_itemsize(v.dtype)
    cdef int d = v.ndim - 1
    if v.size == 0:
        return True
    while d >= 0:
        if v.shape[d] != 1 and v.strides[d] != expected:
            return False
        expected *= v.shape[d]
        d -= 1
    return True


cdef int64_t checked_size(int ndim, const int64_t *shape, int itemsize) noexcept:
    """The product of the extents, or -1 where the bytes do not fit 62 bits."""
    cdef int64_t size = 1
    cdef int64_t limit = (<int64_t>1 << 62) // itemsize
    cdef int d
    for d in range(ndim):
        if shape[d] == 0:
            return 0
    for d in range(ndim):
        if size > limit // shape[d]:
            return -1
        size *= shape[d]
    return size


cdef int raise_memory(int ndim, const int64_t *shape, int dtype) except -1:
    cdef tuple dims = tuple([shape[d] for d in range(ndim)])
    raise errors.DeviceOutOfMemory(
        f"[tensor] a {dtype_name(dtype)} tensor of shape {dims} does not fit into memory: "
        f"{bytes_in_use:,} bytes are in use. Use smaller pieces or free tensors.")


cdef Value *value_new(int ndim, const int64_t *shape, int dtype) except NULL:
    """A fresh contiguous value, contents undefined."""
    cdef int d
    cdef int itemsize = tpf_itemsize(dtype)
    cdef int64_t size = 1
    if ndim == 1:
        size = shape[0]
        if size > (<int64_t>1 << 58):
            size = -1
    elif ndim > 1:
        size = checked_size(ndim, shape, itemsize)
    if size < 0:
        raise_memory(ndim, shape, dtype)
    cdef Value *v = value_raw(ndim)
    if v == NULL:
        raise MemoryError()
    v.dtype = dtype
    v.size = size
    for d in range(ndim):
        v.shape[d] = shape[d]
    v.buf = buffer_new(size * itemsize)
    if v.buf == NULL:
        value_release(v)
        raise_memory(ndim, shape, dtype)
    v.data = v.buf.data
    set_contiguous_strides(v)
    return v


cdef inline Value *value_scalar(int dtype) except NULL:
    """A fresh 0-d value, contents undefined."""
    cdef Value *v = value_raw(0)
    if v == NULL:
        raise MemoryError()
    v.buf = buffer_new(8)
    if v.buf == NULL:
        value_release(v)
        raise MemoryError()
    v.data = v.buf.data
    v.dtype = dtype
    v.size = 1
    v.contiguous = True
    return v


cdef Value *value_like(Value *x, int dtype) except NULL:
    """A fresh contiguous value of x's shape."""
    if x.ndim == 0:
        return value_scalar(dtype)
    return value_new(x.ndim, x.shape, dtype)


cdef Value *value_meta(Value *x) except NULL:
    """x's shape and dtype without its memory."""
    cdef Value *v = value_raw(x.ndim)
    if v == NULL:
        raise MemoryError()
    v.dtype = x.dtype
    v.size = x.size
    memcpy(v.shape, x.shape, x.ndim * sizeof(int64_t))
    set_contiguous_strides(v)
    return v


cdef Value *value_view(Value *x, int ndim) except NULL:
    """A value over x's buffer with ndim axes; the caller sets shape and strides, then calls view_done."""
    cdef Value *v = value_raw(ndim)
    if v == NULL:
        raise MemoryError()
    v.buf = x.buf
    if x.buf != NULL:
        x.buf.owners += 1
    v.data = x.data
    v.dtype = x.dtype
    v.loose = x.loose
    return v


cdef void view_done(Value *v) noexcept:
    cdef int d
    v.size = 1
    for d in range(v.ndim):
        if v.shape[d] == 0:      # the others' product need not fit 64 bits
            v.size = 0
    if v.size:
        for d in range(v.ndim):
            v.size *= v.shape[d]
    v.contiguous = not is_remote(v) and is_contiguous(v)


cdef inline bint same_shape(Value *x, Value *y) noexcept:
    cdef int d
    if x.ndim != y.ndim:
        return False
    for d in range(x.ndim):
        if x.shape[d] != y.shape[d]:
            return False
    return True


cdef Value *value_contiguous(Value *x) except NULL:
    """x itself (shared) when contiguous, a packed copy otherwise."""
    if x.contiguous or (is_remote(x) and is_contiguous(x)):
        return value_share(x)
    return value_copy(x)


cdef Value *value_copy(Value *x) except NULL:
    """A packed copy in fresh memory."""
    cdef Value *v
    if is_remote(x):
        return remote_result(OP_IDENTITY, (), x, NULL, NULL, x.ndim, x.shape, x.dtype)
    v = value_new(x.ndim, x.shape, x.dtype)
    if x.contiguous:
        memcpy(v.data, x.data, x.size * tpf_itemsize(x.dtype))
    else:
        tpf_copy(v.data, v.strides, x.data, x.strides, tpf_itemsize(x.dtype), x.ndim, x.shape)
    return v


cdef Value *value_alias(Value *x) except NULL:
    """The same value for another tensor: two that a user holds never share one, so that each is known by it."""
    cdef Value *v = value_view(x, x.ndim)
    memcpy(v.shape, x.shape, 2 * x.ndim * sizeof(int64_t))
    v.size, v.contiguous = x.size, x.contiguous
    v.program, v.number = x.program, x.number
    return v


cdef inline Value *owned(Value *x) except NULL:
    """x for another tensor: an alias, or a copy where another library may write to its memory."""
    if x.buf.foreign != BORROWED:
        return value_alias(x)
    cdef Value *v = value_copy(x)
    v.program, v.number = x.program, x.number
    if v.dtype == TPF_BOOL:  # bytes other than 0 and 1 are true, too
        kernels.cast[TPF_UINT8][TPF_BOOL](v.data, v.data, v.size)
    return v


cdef Value *value_cast(Value *x, int dtype) except NULL:
    """x in another dtype, contiguous; x itself (shared) when it has it."""
    if x.dtype == dtype:
        return value_share(x)
    if is_remote(x):
        return remote_result(OP_ASTYPE, (), x, NULL, NULL, x.ndim, x.shape, dtype)
    cdef Value *src = value_contiguous(x)
    cdef Value *v
    try:
        v = value_new(x.ndim, x.shape, dtype)
        kernels.cast[x.dtype][dtype](v.data, src.data, x.size)
    finally:
        value_release(src)
    v.loose = x.loose
    return v


cdef Value *value_broadcast(Value *x, int ndim, const int64_t *shape) except NULL:
    """A view of x stretched to shape by zero strides; x's shape must broadcast to it."""
    cdef Value *v = value_view(x, ndim)
    cdef int d, s
    for d in range(ndim):
        s = d - (ndim - x.ndim)
        v.shape[d] = shape[d]
        v.strides[d] = 0 if s < 0 or x.shape[s] != shape[d] or x.shape[s] == 1 else x.strides[s]
    view_done(v)
    return v


cdef tuple shape_of(Value *v):
    cdef int d
    cdef tuple t = PyTuple_New(v.ndim)
    cdef object n
    for d in range(v.ndim):
        n = v.shape[d]
        Py_INCREF(n)
        PyTuple_SET_ITEM(t, d, n)
    return t


def pool_info():
    """Bytes in use, the most of them since reset_peak, bytes kept for reuse and blocks asked of the system so far, as a
    dict (for tests and reports)."""
    cdef int64_t kept = large_kept
    cdef int c
    for c in range(SMALL_CLASSES):
        kept += small_kept[c]
    return {"in_use": bytes_in_use, "peak": bytes_peak, "kept": kept, "fresh_blocks": fresh_blocks}


def reset_peak():
    """Count the peak of pool_info from now on."""
    global bytes_peak
    bytes_peak = bytes_in_use


def empty_cache():
    """Give the memory that is kept for reuse back to the system."""
    pool_clear()
