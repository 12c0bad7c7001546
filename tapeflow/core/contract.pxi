# Contractions planned in Python (contraction.py) and run from here, and the products of two that need no plan.

cdef enum:
    MOVE_PERMUTE
    MOVE_RESHAPE
    MOVE_SUM
    MOVE_DIAGONAL                # at: axis, step
    MOST_PLANS = 1024            # of one kind; when they are as many, all are forgotten

cdef struct Move:
    int kind
    int n
    int64_t at[64]

cdef dict _moves = {"permute": MOVE_PERMUTE, "reshape": MOVE_RESHAPE, "sum": MOVE_SUM, "diagonal": MOVE_DIAGONAL}


cdef class Pipe:
    """What is done to one tensor: moves of its axes and sums, in order."""
    cdef int count
    cdef Move *moves

    def __cinit__(self, items):
        cdef int i
        self.moves = <Move *>malloc((len(items) + 1) * sizeof(Move))
        if self.moves == NULL:
            raise MemoryError()
        for kind, numbers in items:
            self.moves[self.count].kind = _moves[kind]
            self.moves[self.count].n = len(numbers)
            for i, number in enumerate(numbers):
                self.moves[self.count].at[i] = number
            self.count += 1

    def __dealloc__(self):
        free(self.moves)

    cdef Tensor run(self, Tensor x):
        cdef int i, d
        cdef int axes[64]
        cdef Move *move
        for i in range(self.count):
            move = &self.moves[i]
            if move.kind == MOVE_RESHAPE:
                x = op_reshape(x, move.n, move.at)
            elif move.kind == MOVE_PERMUTE:
                for d in range(move.n):
                    axes[d] = <int>move.at[d]
                x = op_permute(x, axes)
            elif move.kind == MOVE_SUM:
                x = sum_in_kind(x, axes_bits(move.n, move.at))
            else:
                x = every(x, <int>move.at[0], move.at[1])
        return x


cdef uint64_t axes_bits(int n, const int64_t *axes) noexcept:
    cdef uint64_t mask = 0
    cdef int d
    for d in range(n):
        mask |= <uint64_t>1 << axes[d]
    return mask


cdef Tensor sum_in_kind(Tensor x, uint64_t mask):
    """The sum in x's own dtype: small integers wrap, bool is any."""
    return op_astype(op_reduce(OP_SUM, x, mask, False, False), x.v.dtype)


cdef Tensor every(Tensor x, int axis, int64_t step):
    """x[..., ::step, ...] along axis."""
    cdef int64_t params[257]
    cdef int64_t axes[64]
    cdef int64_t shape[64]
    cdef int d
    params[0] = 4 * x.v.ndim
    for d in range(x.v.ndim):
        shape[d] = x.v.shape[d]
        if d == axis:
            shape[d] = (shape[d] + step - 1) // step
        params[4 * d + 1] = 0
        params[4 * d + 2] = step if d == axis else 1
        params[4 * d + 3] = shape[d]
        params[4 * d + 4] = x.v.shape[d]
        axes[d] = d
    return op_window(x, params, x.v.ndim, shape, axes)


cdef class Step:
    """One pair: the slots it takes, how each is laid out, what is done, and what is done to the result."""
    cdef int i, j
    cdef Pipe left, right, after
    cdef bint matrices
    cdef uint64_t mask           # of the axes of a product by elements to sum over

    def __init__(self, i, j, left, right, product, after):
        self.i, self.j, self.matrices = i, j, product is None
        self.left, self.right, self.after = Pipe(left), Pipe(right), Pipe(after)
        for axis in product or ():
            self.mask |= <uint64_t>1 << <int>axis

    cdef Tensor run(self, Tensor a, Tensor b):
        a, b = self.left.run(a), self.right.run(b)
        if self.matrices:
            a = op_matmul(a, b)
        elif self.mask == 0:
            a = call2(OP_MULTIPLY, a, b)
        else:
            a = sum_of_products(a, b, self.mask)
        return self.after.run(a)


cdef class Contraction:
    """A plan: what becomes of some operands at first, the pairs, and what becomes of the last result."""
    cdef list first, steps
    cdef Pipe last

    def __init__(self, first, steps, last):
        self.first = [(k, Pipe(items)) for k, items in first]
        self.steps = [Step(*step) for step in steps]
        self.last = Pipe(last)

    cdef Tensor run(self, tuple operands):
        cdef list slots = list(operands)
        cdef Tensor x, y
        cdef Step step
        cdef int k
        for item in self.first:
            k = (<tuple>item)[0]
            slots[k] = (<Pipe>(<tuple>item)[1]).run(<Tensor>slots[k])
        for step in self.steps:
            x, y = slots[step.i], slots[step.j]
            slots[step.i] = slots[step.j] = None  # what nobody needs goes
            slots.append(step.run(x, y))
        return self.last.run(<Tensor>slots[len(slots) - 1])


cdef class Plans:
    """The contractions of one kind, planned at the first call with its shapes and options.

    planner(shapes, *options) gives what Contraction takes; operands(op, xs) makes tensors of one dtype of anything.
    """
    cdef str op
    cdef object operands, planner
    cdef dict kept

    def __init__(self, str op, operands, planner):
        self.op, self.operands, self.planner, self.kept = op, operands, planner, {}

    def run(self, tuple xs, *options):
        """The contraction of tensors, arrays or numbers."""
        return self.contract(xs, options)

    cdef Tensor contract(self, tuple xs, tuple options):
        cdef int64_t sizes[256]
        cdef int n = 0
        cdef Contraction plan
        if not one_dtype(xs):
            xs = tuple(self.operands(self.op, xs))
        for x in xs:
            if n + 65 > 256:
                return self.made(xs, options).run(xs)
            sizes[n] = (<Tensor>x).v.ndim
            memcpy(&sizes[n + 1], (<Tensor>x).v.shape, sizes[n] * sizeof(int64_t))
            n += 1 + <int>sizes[n]
        key = (options, PyBytes_FromStringAndSize(<char *>sizes, n * sizeof(int64_t)))
        found = self.kept.get(key)
        if found is None:
            found = self.made(xs, options)
            if len(self.kept) >= MOST_PLANS:
                self.kept.clear()
            self.kept[key] = found
        plan = found
        return plan.run(xs)

    cdef Contraction made(self, tuple xs, tuple options):
        return Contraction(*self.planner(tuple([shape_of((<Tensor>x).v) for x in xs]), *options))


cdef bint plain_key(object x) noexcept:
    if type(x) is not tuple:
        return PyLong_CheckExact(x)
    for one in <tuple>x:
        if not plain_key(one):
            return False
    return True


def is_plain(x):
    """Is it an int, or a tuple of ints and such tuples? Then it equals nothing but its like, and is a key of plans."""
    return plain_key(x)


cdef bint one_dtype(tuple xs) noexcept:
    """Are all of them tensors, of one dtype?"""
    for x in xs:
        if type(x) is not Tensor or (<Tensor>x).v.dtype != (<Tensor>xs[0]).v.dtype:
            return False
    return True


cdef Tensor sum_of_products(Tensor a, Tensor b, uint64_t mask):
    """The sum over axes of a * b, of one shape and dtype, in that dtype."""
    if is_float(a.v.dtype):
        return op_vecdot(a, b, mask)
    return sum_in_kind(call2(OP_MULTIPLY, a, b), mask)


# ---- products of two: what needs no plan here, the rest by these

cdef Plans _dot_plans = None
cdef Plans _inner_plans = None
cdef Plans _vecdot_plans = None


def set_plans(Plans dot not None, Plans inner not None, Plans vecdot not None):
    """Give the functions below their planners."""
    global _dot_plans, _inner_plans, _vecdot_plans
    _dot_plans, _inner_plans, _vecdot_plans = dot, inner, vecdot


cdef tuple two_operands(Plans plans, str op, object a, object b):
    cdef tuple xs = (a, b)
    return xs if one_dtype(xs) else tuple(plans.operands(op, xs))


def dot(a, b, /):
    """NumPy's dot: a product with a scalar, else the sum over the last axis of a and the last but one of b.

    Vectors and matrices: as matmul. See matmul for leading axes that go together, tensordot for any axes.

    >>> tp.dot(tp.tensor([1.0, 2.0]), tp.tensor([3.0, 4.0])).item()
    11.0
    """
    cdef tuple xs = two_operands(_dot_plans, "dot", a, b)
    cdef Tensor x = xs[0]
    cdef Tensor y = xs[1]
    if x.v.ndim == 0 or y.v.ndim == 0:
        return call2(OP_MULTIPLY, x, y)
    if x.v.ndim <= 2 and y.v.ndim <= 2:
        return product_of(x, y, b"dot")
    return _dot_plans.contract(xs, ())


def inner(a, b, /):
    """The sum of products over the last axis of each; a product with a scalar.

    >>> tp.inner(tp.tensor([[1.0, 2.0], [0.0, 1.0]]), tp.tensor([3.0, 4.0])).tolist()
    [11.0, 4.0]
    """
    cdef tuple xs = two_operands(_inner_plans, "inner", a, b)
    cdef Tensor x = xs[0]
    cdef Tensor y = xs[1]
    if x.v.ndim == 0 or y.v.ndim == 0:
        return call2(OP_MULTIPLY, x, y)
    if x.v.ndim <= 2 and y.v.ndim <= 2 and x.v.shape[x.v.ndim - 1] == y.v.shape[y.v.ndim - 1]:
        return matmul(x, swap_last(y) if y.v.ndim == 2 else y)
    return _inner_plans.contract(xs, ())


def outer(a, b, /):
    """All products of an element of a and one of b, both flattened: shape (a.size, b.size).

    >>> tp.outer(tp.tensor([1.0, 2.0]), tp.tensor([3.0, 4.0])).tolist()
    [[3.0, 4.0], [6.0, 8.0]]
    """
    cdef tuple xs = two_operands(_dot_plans, "outer", a, b)
    cdef Tensor x = xs[0]
    cdef Tensor y = xs[1]
    cdef int64_t column[2]
    cdef int64_t row[2]
    column[0], column[1] = x.v.size, 1
    row[0], row[1] = 1, y.v.size
    return call2(OP_MULTIPLY, op_reshape(x, 2, column), op_reshape(y, 2, row))


def vecdot(x1, x2, /, *, axis=-1):
    """The dot products of vectors along an axis; the other axes broadcast.

    Parameters
    ----------
    x1, x2 : Tensor or array
        Of one size along axis.
    axis : int

    >>> tp.vecdot(tp.tensor([[1.0, 2.0], [3.0, 4.0]]), tp.tensor([1.0, 10.0])).tolist()
    [21.0, 43.0]
    """
    cdef tuple xs = two_operands(_vecdot_plans, "vecdot", x1, x2)
    cdef Tensor a = xs[0]
    cdef Tensor b = xs[1]
    cdef int p = normal_axis(axis, a.v.ndim, b"vecdot")
    cdef int q = normal_axis(axis, b.v.ndim, b"vecdot")
    if same_shape(a.v, b.v):
        return sum_of_products(a, b, <uint64_t>1 << p)
    return _vecdot_plans.contract(xs, (p, q))
