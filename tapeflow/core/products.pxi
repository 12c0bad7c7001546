# Matrix products and sums of products: which routine computes one, their values and entries.

# ---- matmul


cdef bint blas_layout(Value *v, int64_t rows, int64_t cols, int64_t row_step, int64_t col_step, char *flag,
                      int *ld) noexcept:
    """Can BLAS read this matrix as it lies? flag and ld as its column-major eyes see it."""
    cdef int64_t size = tpf_itemsize(v.dtype)
    cdef int64_t step
    if (col_step == size or cols == 1) and (row_step >= cols * size or rows == 1) and row_step % size == 0:
        flag[0] = b'N'
        step = row_step // size if rows > 1 else cols
    elif (row_step == size or rows == 1) and (col_step >= rows * size or cols == 1) and col_step % size == 0:
        flag[0] = b'T'
        step = col_step // size if cols > 1 else rows
    else:
        return False
    if step > 0x7fffffff:
        return False
    ld[0] = <int>step if step > 0 else 1
    return True


cdef enum:
    BY_LOOP
    BY_DOT
    BY_MATVEC
    BY_GEMM

cdef struct Product:
    # One product (m, k) @ (k, n), or a batch of them alike; steps in elements.
    int routine, dtype, lda, ldb, ldc
    char ta, tb
    int64_t m, n, k, ar, ac, br, bc


cdef int choose_product(Product *p, Value *a, Value *b, int64_t m, int64_t n, int64_t k, int64_t ar, int64_t ac,
                        int64_t br, int64_t bc) except -1:
    """Which routine with which flags, for steps in bytes: by shapes, layout and dtype alone, so that the bits are."""
    cdef int64_t size = tpf_itemsize(a.dtype)
    cdef bint fits = m <= 0x7fffffff and n <= 0x7fffffff and k <= 0x7fffffff
    p.routine, p.dtype, p.m, p.n, p.k, p.ldc = BY_LOOP, a.dtype, m, n, k, <int>n
    p.ar, p.ac, p.br, p.bc = ar // size, ac // size, br // size, bc // size
    if not is_float(a.dtype):
        return 0
    if m == 1 and n == 1:
        if (p.ac == 1 or k == 1) and (p.br == 1 or k == 1):
            p.routine = BY_DOT
        return 0
    if (not fits or m * n * k <= (TINY_MATVEC if m == 1 or n == 1 else TINY_MATMUL)
            or not blas_layout(a, m, k, ar, ac, &p.ta, &p.lda) or not blas_layout(b, k, n, br, bc, &p.tb, &p.ldb)):
        return 0
    if m > 1 and n > 1:
        p.routine = BY_GEMM
        return load_blas()
    # along a row of the matrix it pays from some length on, for a vector without gaps; across the rows always
    if (p.ta == b'T' if n == 1 else p.tb == b'N') or k >= MATVEC_ROW and (p.br if n == 1 else p.ac) == 1:
        p.routine = BY_MATVEC
    return 0


cdef void run_product(const Product *p, char *out, char *a, char *b) noexcept nogil:
    """out (m, n), contiguous = a @ b."""
    cdef char ta = p.ta
    cdef char tb = p.tb
    cdef int m, n, k, lda, ldb, ldc
    cdef float onef = 1
    cdef float zerof = 0
    cdef double oned = 1
    cdef double zerod = 0
    if p.routine == BY_LOOP:
        kernels.matmul[p.dtype](out, a, b, p.m, p.n, p.k, p.ar, p.ac, p.br, p.bc)
    elif p.routine == BY_DOT:
        kernels.dot[p.dtype - TPF_FLOAT32](out, a, b, 1, p.k, 1, 0, 0)
    elif p.routine == BY_MATVEC:
        run_matvec(p, out, a, b)
    else:  # row-major y = a b is column-major y^T = b^T a^T
        m, n, k, lda, ldb, ldc = <int>p.m, <int>p.n, <int>p.k, p.lda, p.ldb, p.ldc
        if p.dtype == TPF_FLOAT32:
            sgemm(&tb, &ta, &n, &m, &k, &onef, <float *>b, &ldb, <float *>a, &lda, &zerof, <float *>out, &ldc)
        else:
            dgemm(&tb, &ta, &n, &m, &k, &oned, <double *>b, &ldb, <double *>a, &lda, &zerod, <double *>out, &ldc)


cdef void run_matvec(const Product *p, char *out, char *a, char *b) noexcept nogil:
    """out = a matrix times a vector: a (m, k) times the column b, or b^T (n, k) times the row a."""
    if p.n == 1:
        kernels.matvec[p.dtype - TPF_FLOAT32](out, a, b, p.m, p.k, p.lda, p.br, p.ta == b'T')
    else:
        kernels.matvec[p.dtype - TPF_FLOAT32](out, b, a, p.n, p.k, p.ldb, p.ac, p.tb == b'N')


cdef struct Batch:
    Product product
    char *out
    char *a
    char *b
    int64_t *shape               # of the leading axes, and the steps of a and b along them in bytes
    int64_t *sa
    int64_t *sb
    int ndim
    int64_t out_step             # from a product to the next
    int64_t pieces, each         # a product is computed in so many pieces, of so many rows or columns each
    bint by_columns


cdef void run_piece(const Batch *batch, int64_t piece, char *out, char *a, char *b) noexcept nogil:
    cdef Product part = batch.product
    cdef int64_t size = tpf_itemsize(part.dtype)
    cdef int64_t first = piece * batch.each
    cdef int64_t count = (part.n if batch.by_columns else part.m) - first
    if count > batch.each:
        count = batch.each
    if batch.by_columns:
        part.n = count
        run_product(&part, out + first * size, a, b + first * part.bc * size)
    else:
        part.m = count
        run_product(&part, out + first * part.ldc * size, a + first * part.ar * size, b)


cdef void run_batch(void *ctx, int64_t begin, int64_t end) noexcept nogil:
    cdef Batch *batch = <Batch *>ctx
    cdef int64_t at[64]
    cdef char *a = batch.a
    cdef char *b = batch.b
    cdef char *out = batch.out + begin // batch.pieces * batch.out_step
    cdef int64_t i
    cdef int64_t piece = begin % batch.pieces
    cdef int64_t rest = begin // batch.pieces
    cdef int d
    for d in range(batch.ndim - 1, -1, -1):
        at[d] = rest % batch.shape[d]
        rest //= batch.shape[d]
        a += at[d] * batch.sa[d]
        b += at[d] * batch.sb[d]
    for i in range(begin, end):
        if batch.pieces > 1:
            run_piece(batch, piece, out, a, b)
            piece += 1
            if piece < batch.pieces:
                continue
            piece = 0
        else:
            run_product(&batch.product, out, a, b)
        out += batch.out_step
        d = batch.ndim - 1
        while d >= 0:
            at[d] += 1
            a += batch.sa[d]
            b += batch.sb[d]
            if at[d] < batch.shape[d]:
                break
            a -= batch.sa[d] * batch.shape[d]
            b -= batch.sb[d] * batch.shape[d]
            at[d] = 0
            d -= 1


cdef bint matrices_readable(Value *v) noexcept:
    """Are the last two axes laid out so that gemm need not fall back for their strides?"""
    cdef char flag
    cdef int ld
    return is_remote(v) or blas_layout(v, v.shape[v.ndim - 2], v.shape[v.ndim - 1], v.strides[v.ndim - 2],
                                       v.strides[v.ndim - 1], &flag, &ld)


cdef Value *matmul_value(Value *a, Value *b) except NULL:
    """a (..., m, k) @ b (..., k, n) with the leading axes broadcast."""
    cdef int dtype = a.dtype if a.dtype > b.dtype else b.dtype
    cdef Value *y
    cdef int ndim = a.ndim if a.ndim > b.ndim else b.ndim
    cdef int64_t shape[64]
    cdef int d, p
    for d in range(ndim - 2):
        p = d - (ndim - a.ndim)
        shape[d] = 1 if p < 0 else a.shape[p]
        p = d - (ndim - b.ndim)
        if p >= 0 and b.shape[p] != 1:
            shape[d] = b.shape[p]
    shape[ndim - 2], shape[ndim - 1] = a.shape[a.ndim - 2], b.shape[b.ndim - 1]
    if away(a, b, NULL) != NULL:
        return remote_result(OP_MATMUL, (), a, b, NULL, ndim, shape, dtype)
    y = value_new(ndim, shape, dtype)
    try:
        execute_matmul(a, b, y)
    except:
        value_release(y)
        raise
    return y


cdef void cut_products(Batch *batch, int64_t count) noexcept:
    """Cut `count` products of BLAS along their longer side, so that each thread has a piece: by shapes and the number
    of threads alone, so that the bits are."""
    cdef Product *p = &batch.product
    cdef double work = <double>p.m * <double>p.n * <double>p.k
    cdef int64_t threads = tpf_get_num_threads()
    cdef int64_t pieces = (threads + count - 1) // count
    cdef int64_t side
    batch.by_columns = p.n > p.m
    side = p.n if batch.by_columns else p.m
    batch.pieces, batch.each = 1, side
    if count >= 4 * threads:
        return
    if pieces == 1 and threads > 1 and count % threads:  # 3 products on 2 threads: 6 pieces
        pieces = threads
    if pieces > side // PIECE_LEAST:
        pieces = side // PIECE_LEAST
    if pieces > work / PIECE_WORK:
        pieces = <int64_t>(work / PIECE_WORK)
    if pieces > 1:
        batch.each = ((side + pieces - 1) // pieces + PIECE_STEP - 1) // PIECE_STEP * PIECE_STEP
        batch.pieces = (side + batch.each - 1) // batch.each


cdef int matmul_into(Value *a, Value *b, Value *y) except -1:
    """y = a @ b; y is contiguous, of the shape that matmul_value gives it."""
    cdef int64_t m = a.shape[a.ndim - 2]
    cdef int64_t k = a.shape[a.ndim - 1]
    cdef int64_t n = b.shape[b.ndim - 1]
    cdef int ndim = y.ndim
    cdef int64_t sa[64]
    cdef int64_t sb[64]
    cdef int64_t size
    cdef int64_t each = tpf_itemsize(a.dtype)
    cdef int64_t count = 1
    cdef int d, p
    cdef Batch batch
    for d in range(ndim - 2):
        p = d - (ndim - a.ndim)
        size = 1 if p < 0 else a.shape[p]
        sa[d] = 0 if size == 1 else a.strides[p]
        p = d - (ndim - b.ndim)
        sb[d] = 0 if p < 0 or b.shape[p] == 1 else b.strides[p]
    if y.size == 0:
        return 0
    if k == 0:
        memset(y.data, 0, y.size * each)
        return 0
    batch.ndim = ndim - 2
    if a.contiguous and b.ndim == 2 and a.ndim > 2:  # a shared right factor: one product over all rows
        choose_product(&batch.product, a, b, a.size // k, n, k, k * each, each, b.strides[0], b.strides[1])
        batch.ndim = 0
    else:
        choose_product(&batch.product, a, b, m, n, k, a.strides[a.ndim - 2], a.strides[a.ndim - 1],
                       b.strides[b.ndim - 2], b.strides[b.ndim - 1])
        count = y.size // (m * n)
    batch.out, batch.a, batch.b, batch.out_step = y.data, a.data, b.data, m * n * each
    batch.shape, batch.sa, batch.sb = y.shape, sa, sb
    batch.pieces = 1
    return run_products(&batch, count)


cdef int run_products(Batch *batch, int64_t count) except -1:
    """All of a batch, on as many threads as pay."""
    cdef double work = <double>batch.product.m * <double>batch.product.n * <double>batch.product.k
    cdef double all_work = work * count
    cdef bint held = False
    cdef bint shared = all_work > BATCH_PARALLEL
    cdef int64_t grain = count
    if all_work <= TINY_MATMUL:
        run_batch(batch, 0, count)
        return 0
    if batch.product.routine == BY_GEMM and work > BLAS_ALONE:
        held = hold_blas()
        if held:
            cut_products(batch, count)
        else:
            shared = False
    count *= batch.pieces
    if shared:
        grain = <int64_t>(PIECE_WORK * batch.pieces / work) + 1
    with nogil:
        if all_work > BATCH_AWAKE:
            tpf_parallel(run_batch, batch, count, grain)
        else:
            tpf_parallel_light(run_batch, batch, count, grain)
    if held:
        release_blas()
    return 0


cdef Value *matmul_operand(Value *v, int dtype, int along) except NULL:
    """v in dtype, packed when BLAS could not read it as it lies, or, for along >= 0, when that axis has gaps."""
    cdef Value *w = value_cast(v, dtype)
    cdef Value *packed
    if w.size == 0 or matrices_readable(w) and (along < 0 or w.strides[along] == tpf_itemsize(dtype)):
        return w
    try:
        packed = value_copy(w)
    finally:
        value_release(w)
    return packed


cdef int execute_matmul(Value *a, Value *b, Value *y) except -1:
    """y = a @ b, with the operands cast and packed as y and BLAS want them."""
    cdef bint row = a.shape[a.ndim - 2] == 1
    cdef bint column = b.shape[b.ndim - 1] == 1
    cdef Value *va = matmul_operand(a, y.dtype, a.ndim - 1 if row else -1)
    cdef Value *vb = NULL
    try:
        vb = matmul_operand(b, y.dtype, b.ndim - 2 if column else -1)
        matmul_into(va, vb, y)
    finally:
        value_release(va)
        value_release(vb)
    return 0


cdef Tensor op_matmul(Tensor a, Tensor b):
    """The product of the last two axes; both have at least two."""
    cdef ThreadState *ts = thread_state()
    cdef Value *y
    cdef Value *vals[2]
    cdef Entry *nodes[2]
    cdef Entry *e = NULL
    cdef double start = step_begins(ts)
    a, b = hold(a), hold(b)
    y = matmul_value(a.v, b.v)
    try:
        vals[0], vals[1] = a.v, b.v
        step_ends(ts, start, OP_MATMUL, 2, vals, y)
        if wants_record(ts, a.node, y.dtype) or wants_record(ts, b.node, y.dtype):
            nodes[0], nodes[1] = a.node, b.node
            e = record(ts, OP_MATMUL, 2, nodes, vals, y, product_saves(a, b))
    except:
        value_release(y)
        raise
    return wrap(y, e)


cdef int check_matmul(Value *a, Value *b, const char *op) except -1:
    cdef int d
    cdef int ndim = a.ndim if a.ndim < b.ndim else b.ndim
    cdef int64_t p, q
    if a.shape[a.ndim - 1] != b.shape[b.ndim - 2]:
        raise errors.ShapeError(f"[{op.decode()}] inner sizes differ: {shape_of(a)} @ {shape_of(b)}. "
                                "Transpose one side with .T or .mT.")
    for d in range(3, ndim + 1):
        p, q = a.shape[a.ndim - d], b.shape[b.ndim - d]
        if p != q and p != 1 and q != 1:
            raise errors.ShapeError(f"[{op.decode()}] leading axes do not broadcast: {shape_of(a)} @ {shape_of(b)}. "
                                    "Sizes must be equal or 1.")
    return 0


# ---- sums of products over axes


cdef int execute_vecdot(uint64_t mask, Value *a, Value *b, Value *y) except -1:
    """y = the sum of a * b over the axes in mask."""
    cdef int64_t outer, n, inner, step
    cdef int k = y.dtype - TPF_FLOAT32
    cdef Value *va = reduction_order(a, mask, &outer, &n, &inner)
    cdef Value *vb = NULL
    try:
        vb = reduction_order(b, mask, &outer, &n, &inner)
        if va.size == 0:
            outer, n, inner = y.size, 0, 1
        step = n * inner
        if va.size >= RELEASE_GIL:
            with nogil:
                kernels.dot[k](y.data, va.data, vb.data, outer, n, inner, step, step)
        elif y.size:
            kernels.dot[k](y.data, va.data, vb.data, outer, n, inner, step, step)
    finally:
        value_release(va)
        value_release(vb)
    return 0


cdef Tensor op_vecdot(Tensor a, Tensor b, uint64_t mask):
    """The sum over the axes in mask of a * b, floats of one shape and dtype; the bits are multiply's and sum's."""
    cdef ThreadState *ts = thread_state()
    cdef int64_t shape[64]
    cdef int64_t n
    cdef int ndim
    cdef Value *y
    cdef Value *vals[2]
    cdef Entry *nodes[2]
    cdef Entry *e = NULL
    cdef double start = step_begins(ts)
    a, b = steady(a), steady(b)
    reduced_shape(a.v, mask, False, &ndim, shape, &n)
    if away(a.v, b.v, NULL) != NULL:
        y = remote_result(OP_VECDOT, (<int64_t>mask,), a.v, b.v, NULL, ndim, shape, a.v.dtype)
    else:
        y = value_new(ndim, shape, a.v.dtype)
    try:
        if not is_remote(y):
            execute_vecdot(mask, a.v, b.v, y)
        vals[0], vals[1] = a.v, b.v
        step_ends(ts, start, OP_VECDOT, 2, vals, y)
        if wants_record(ts, a.node, y.dtype) or wants_record(ts, b.node, y.dtype):
            nodes[0], nodes[1] = a.node, b.node
            e = record(ts, OP_VECDOT, 2, nodes, vals, y, product_saves(a, b))
            e.params = params_new(1)
            e.params[1] = <int64_t>mask
    except:
        value_release(y)
        entry_release(e)
        raise
    return wrap(y, e)


cdef int product_saves(Tensor a, Tensor b) noexcept:
    """The rule of a product needs of each operand the other one."""
    cdef int saves = 0
    if a.node != NULL and a.node.flags & E_GRAD:
        saves |= SAVE_B
    if b.node != NULL and b.node.flags & E_GRAD:
        saves |= SAVE_A
    return saves


def matmul(x1, x2, /):
    """The matrix product, as NumPy's: 1-D operands are a row (left) and a column (right); leading axes broadcast.

    Parameters
    ----------
    x1 : Tensor of shape (..., m, k) or (k,)
    x2 : Tensor of shape (..., k, n) or (k,)
        Transposed views are not copied. Integers are multiplied with wraparound.

    >>> tp.matmul(tp.tensor([[1.0, 2.0]]), tp.tensor([[3.0], [4.0]])).tolist()
    [[11.0]]
    """
    return product_of(as_tensor_for(OP_MATMUL, x1), as_tensor_for(OP_MATMUL, x2), b"matmul")


cdef Tensor product_of(Tensor a, Tensor b, const char *op):
    """matmul under the name of op."""
    cdef Tensor y
    cdef int64_t shape[64]
    cdef bint row = a.v.ndim == 1
    cdef bint column = b.v.ndim == 1
    cdef int d
    if a.v.ndim == 0 or b.v.ndim == 0:
        raise errors.ShapeError(f"[{op.decode()}] operands must have at least one axis, "
                                f"got {shape_of(a.v)} @ {shape_of(b.v)}. Use * for scalars.")
    if row:
        if a.v.shape[0] != b.v.shape[0 if column else b.v.ndim - 2]:
            raise errors.ShapeError(f"[{op.decode()}] inner sizes differ: {shape_of(a.v)} @ {shape_of(b.v)}.")
        if column and is_float(a.v.dtype) and a.v.dtype == b.v.dtype:
            return op_vecdot(a, b, 1)
        shape[0], shape[1] = 1, a.v.shape[0]
        a = op_reshape(a, 2, shape)
    if column:
        if b.v.shape[0] != a.v.shape[a.v.ndim - 1]:
            raise errors.ShapeError(f"[{op.decode()}] inner sizes differ: {shape_of(a.v)} @ {shape_of(b.v)}.")
        shape[0], shape[1] = b.v.shape[0], 1
        b = op_reshape(b, 2, shape)
    check_matmul(a.v, b.v, op)
    y = op_matmul(a, b)
    if not (row or column):
        return y
    for d in range(y.v.ndim - 2):
        shape[d] = y.v.shape[d]
    d = y.v.ndim - 2
    if not row:
        shape[d] = y.v.shape[y.v.ndim - 2]
        d += 1
    if not column:
        shape[d] = y.v.shape[y.v.ndim - 1]
        d += 1
    return op_reshape(y, d, shape)


# ---- BLAS: SciPy's function pointers, loaded at the first product that is worth it

ctypedef void (*sgemm_t)(char *, char *, int *, int *, int *, float *, float *, int *, float *, int *, float *,
                         float *, int *) noexcept nogil
ctypedef void (*dgemm_t)(char *, char *, int *, int *, int *, double *, double *, int *, double *, int *, double *,
                         double *, int *) noexcept nogil
cdef sgemm_t sgemm = NULL
cdef dgemm_t dgemm = NULL


cdef void *blas_routine(dict api, str name) except NULL:
    capsule = api[name]
    return PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule))


# Products run on our threads, each with OpenBLAS on one: its own wait for each other at every product, spin long after
# it, and lose a hundredfold where another process has one of their cores.
ctypedef void (*set_threads_t)(int) noexcept nogil
ctypedef int (*get_threads_t)() noexcept nogil
cdef set_threads_t blas_set_threads = NULL
cdef get_threads_t blas_get_threads = NULL
cdef int blas_users = 0          # products under way
cdef int blas_threads = 0        # what OpenBLAS had before them


cdef bint hold_blas() noexcept:
    """OpenBLAS is on one thread until release_blas; False where it cannot be told."""
    global blas_users, blas_threads
    if blas_set_threads == NULL:
        return False
    if blas_users == 0:
        blas_threads = blas_get_threads()
        if blas_threads != 1:
            blas_set_threads(1)
    blas_users += 1
    return True


cdef void release_blas() noexcept:
    global blas_users
    blas_users -= 1
    if blas_users == 0 and blas_threads != 1:
        blas_set_threads(blas_threads)


cdef int load_blas() except -1:
    global sgemm, dgemm, blas_set_threads, blas_get_threads
    if dgemm != NULL:
        return 0
    cdef dict api = _blas.load().__pyx_capi__
    setter, getter = _blas.thread_functions()
    if setter and getter:
        blas_get_threads = <get_threads_t><uintptr_t>getter
        blas_set_threads = <set_threads_t><uintptr_t>setter
    sgemm, dgemm = <sgemm_t>blas_routine(api, "sgemm"), <dgemm_t>blas_routine(api, "dgemm")
    return 0
