# The public functions that are not elementwise: arguments checked here, work done in shape_ops.pxi and reduce_ops.pxi.

def sum(x, axis=None, keepdims=False):
    """The sum over axes.

    Parameters
    ----------
    x : Tensor, array or number
    axis : int, tuple of ints or None
        The axes to sum over; None: all.
    keepdims : bool
        Keep the reduced axes with size 1.

    Returns
    -------
    Tensor
        Of x's dtype; int64 for integers and bool. float32 is accumulated in float64, by a tree that depends on the
        reduced extents alone. The sum of nothing is 0.

    >>> tp.sum(tp.tensor([[1.0, 2.0], [3.0, 4.0]]), axis=0).tolist()
    [4.0, 6.0]
    """
    cdef Tensor t = as_tensor_for(OP_SUM, x)
    return op_reduce(OP_SUM, t, axes_mask(axis, t.v.ndim, b"sum"), False, keepdims)


def mean(x, axis=None, keepdims=False):
    """The mean over axes: as `sum`, divided before it is rounded.

    Integers give the default float dtype. The mean of nothing is NaN.

    >>> tp.mean(tp.tensor([[1.0, 2.0], [3.0, 6.0]]), axis=1).tolist()
    [1.5, 4.5]
    """
    cdef Tensor t = as_tensor_for(OP_MEAN, x)
    return op_reduce(OP_MEAN, t, axes_mask(axis, t.v.ndim, b"mean"), False, keepdims)


def max(x, axis=None, keepdims=False):
    """The maximum over axes; NaN where there is one. The gradient is split evenly among ties.

    >>> tp.max(tp.tensor([1.0, 3.0, 2.0])).item()
    3.0
    """
    cdef Tensor t = as_tensor_for(OP_MAX, x)
    return op_reduce(OP_MAX, t, axes_mask(axis, t.v.ndim, b"max"), False, keepdims)


def min(x, axis=None, keepdims=False):
    """The minimum over axes; NaN where there is one. The gradient is split evenly among ties.

    >>> tp.min(tp.tensor([[1.0, 3.0], [4.0, 2.0]]), axis=0).tolist()
    [1.0, 2.0]
    """
    cdef Tensor t = as_tensor_for(OP_MIN, x)
    return op_reduce(OP_MIN, t, axes_mask(axis, t.v.ndim, b"min"), False, keepdims)


def prod(x, axis=None, keepdims=False):
    """The product over axes: a tree of multiplications, so that all derivatives are exact, with zeros too.

    The product of nothing is 1.

    >>> tp.prod(tp.tensor([5.0, 0.0, -2.0])).item()
    -0.0
    """
    cdef Tensor t = as_tensor_for(OP_MULTIPLY, x)
    return op_prod(t, axes_mask(axis, t.v.ndim, b"prod"), keepdims)


def argmax(x, axis=None, keepdims=False):
    """The index (int64) of the first maximum along an axis, or in the flattened tensor; a NaN counts as the maximum.

    >>> tp.argmax(tp.tensor([[1, 5], [7, 2]]), axis=1).tolist()
    [1, 0]
    """
    cdef Tensor t = as_tensor_for(OP_ARGMAX, x)
    cdef uint64_t mask
    if axis is None:
        mask = axes_mask(None, t.v.ndim, b"argmax")
    else:
        mask = <uint64_t>1 << normal_axis(axis, t.v.ndim, b"argmax")
    return op_reduce(OP_ARGMAX, t, mask, False, keepdims)


def logsumexp(x, axis=None, keepdims=False):
    """log(sum(exp(x))) over axes, without overflow. Of nothing but -inf: -inf, with gradient 0.

    >>> tp.logsumexp(tp.tensor([1000.0, 1000.0])).item() > 1000.0
    True
    """
    cdef Tensor t = as_tensor_for(OP_LOGSUMEXP, x)
    return op_logsumexp(t, axes_mask(axis, t.v.ndim, b"logsumexp"), keepdims)


def softmax(x, axis=-1):
    """exp(x) / sum(exp(x)) along an axis, without overflow.

    >>> tp.softmax(tp.tensor([[0.0, 0.0], [1000.0, 0.0]])).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """
    cdef Tensor t = as_tensor_for(OP_SOFTMAX, x)
    return along_axis(OP_SOFTMAX, t, normal_axis(axis, t.v.ndim, b"softmax"))


def log_softmax(x, axis=-1):
    """log(softmax(x)) along an axis, without overflow or cancellation.

    >>> tp.log_softmax(tp.tensor([1000.0, 0.0])).tolist()
    [0.0, -1000.0]
    """
    cdef Tensor t = as_tensor_for(OP_LOG_SOFTMAX, x)
    return along_axis(OP_LOG_SOFTMAX, t, normal_axis(axis, t.v.ndim, b"log_softmax"))


def cross_entropy(logits, labels):
    """The mean over the batch of -log(softmax(logits)[label]).

    Parameters
    ----------
    logits : Tensor of shape (..., classes)
    labels : integer Tensor of shape (...,), or float Tensor of shape (..., classes)
        Class numbers from 0, or probabilities.

    Returns
    -------
    Tensor
        0-d, of the dtype of logits.

    Raises
    ------
    IndexError
        For a label outside 0 .. classes-1.

    >>> tp.cross_entropy(tp.tensor([[0.0, 0.0]]), tp.tensor([1])).item() > 0.69
    True
    """
    cdef Tensor x = as_float(as_tensor_for(OP_CROSS_ENTROPY, logits))
    cdef Tensor ids = as_tensor_for(OP_CROSS_ENTROPY, labels)
    cdef int d
    if x.v.ndim == 0:
        raise errors.ShapeError("[cross_entropy] logits must have a last axis of classes, got a 0-d tensor.")
    if is_float(ids.v.dtype):
        return cross_entropy_of_probabilities(x, ids)
    if ids.v.dtype == TPF_BOOL:
        raise errors.DTypeError("[cross_entropy] labels must be integers or probabilities, got dtype bool. "
                                "Use .astype('int64').")
    if ids.v.ndim != x.v.ndim - 1 or memcmp(ids.v.shape, x.v.shape, ids.v.ndim * sizeof(int64_t)) != 0:
        raise errors.ShapeError(f"[cross_entropy] labels of shape {shape_of(ids.v)} do not fit logits of shape "
                                f"{shape_of(x.v)}: expected {shape_of(x.v)[:x.v.ndim - 1]}, one class number a row.")
    return op_cross_entropy(x, ids)


cdef Tensor cross_entropy_of_probabilities(Tensor x, Tensor p):
    cdef int64_t rows
    if not same_shape(x.v, p.v):
        raise errors.ShapeError(f"[cross_entropy] probabilities of shape {shape_of(p.v)} do not fit logits of shape "
                                f"{shape_of(x.v)}.")
    rows = checked_size(x.v.ndim - 1, x.v.shape, 1)
    # a class of probability 0 adds 0, also where its log is -inf
    cdef Tensor total = op_reduce(OP_SUM, call2(OP_SMUL, p, op_rows(OP_LOG_SOFTMAX, x)), 0, True, False)
    return call2(OP_DIVIDE, call1(OP_NEGATIVE, total), rows)


def mse_loss(prediction, target):
    """The mean of (prediction - target)**2. The shapes must be equal: broadcasting here is nearly always a mistake.

    >>> tp.mse_loss(tp.tensor([1.0, 2.0]), tp.tensor([1.0, 4.0])).item()
    2.0
    """
    cdef Tensor a = as_tensor(prediction)
    cdef Tensor b = as_tensor(target)
    if not same_shape(a.v, b.v):
        raise errors.ShapeError(f"[mse_loss] prediction has shape {shape_of(a.v)}, target {shape_of(b.v)}: "
                                "they must be equal. Use reshape.")
    return op_reduce(OP_MEAN, call1(OP_SQUARE, call2(OP_SUBTRACT, a, b)), 0, True, False)


def huber_loss(prediction, target, delta=1.0, reduction="mean"):
    """d*d/2 where |d| <= delta, else delta*(|d| - delta/2), with d = prediction - target.

    Parameters
    ----------
    prediction, target : Tensor
        Of one shape.
    delta : float
        Positive.
    reduction : "mean", "sum" or "none"

    >>> tp.huber_loss(tp.tensor([1.0, 3.0]), tp.tensor([0.0, 0.0]), reduction="none").tolist()
    [0.5, 2.5]
    """
    cdef Tensor a, b, d, near
    cdef double width = delta
    if not width > 0.0:
        raise errors.NumberRangeError(f"[huber_loss] delta is {delta}, expected more than 0.")
    a = prediction if isinstance(prediction, Tensor) else converted(prediction, "huber_loss", None)
    b = target if isinstance(target, Tensor) else converted(target, "huber_loss", None)
    if not same_shape(a.v, b.v):
        raise errors.ShapeError(f"[huber_loss] prediction has shape {shape_of(a.v)}, target has shape "
                                f"{shape_of(b.v)}: they must be equal. Use reshape.")
    d = call2(OP_SUBTRACT, as_float(a), as_float(b))
    near = call3(OP_CLIP, d, -width, width)
    return reduced_loss(call2(OP_MULTIPLY, near, call2(OP_SUBTRACT, d, call2(OP_MULTIPLY, 0.5, near))), reduction,
                        "huber_loss")


cdef Tensor reduced_loss(Tensor loss, object reduction, str op):
    if reduction == "none":
        return loss
    if reduction == "mean" or reduction == "sum":
        return op_reduce(OP_MEAN if reduction == "mean" else OP_SUM, loss, 0, True, False)
    raise errors.DTypeError(f"[{op}] reduction is {reduction!r}, expected 'mean', 'sum' or 'none'.")


def reshape(x, shape):
    """The elements of x, in C order, under another shape; one size may be -1.

    >>> tp.reshape(tp.arange(6), (2, -1)).shape
    (2, 3)
    """
    cdef int64_t wanted[64]
    cdef Tensor t = as_tensor_for(OP_RESHAPE, x)
    return op_reshape(t, read_shape(shape, wanted, b"reshape"), wanted)


def permute_dims(x, axes):
    """x with its axes in another order: axis i of the result is axis axes[i] of x.

    >>> tp.permute_dims(tp.zeros((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    cdef Tensor t = as_tensor_for(OP_PERMUTE_DIMS, x)
    cdef int order[64]
    cdef uint64_t seen = 0
    cdef int d
    axes = tuple(axes) if hasattr(axes, "__iter__") else (axes,)
    if len(axes) != t.v.ndim:
        raise errors.AxisError(f"[permute_dims] {len(axes)} axes given for a tensor of {t.v.ndim} dimensions; "
                               "name each once.")
    for d in range(t.v.ndim):
        order[d] = normal_axis(axes[d], t.v.ndim, b"permute_dims")
        if seen >> order[d] & 1:
            raise errors.AxisError(f"[permute_dims] axis {axes[d]} is named twice in {axes}.")
        seen |= <uint64_t>1 << order[d]
    return op_permute(t, order)


def broadcast_to(x, shape):
    """x stretched to a shape: aligned from the right, sizes must be equal or 1.

    >>> tp.broadcast_to(tp.tensor([1, 2]), (2, 2)).tolist()
    [[1, 2], [1, 2]]
    """
    cdef int64_t wanted[64]
    cdef Tensor t = as_tensor_for(OP_BROADCAST_TO, x)
    cdef int ndim = read_shape(shape, wanted, b"broadcast_to")
    check_sizes(ndim, wanted, b"broadcast_to")
    return another(t, op_broadcast(t, ndim, wanted))


def expand_dims(x, axis=0):
    """x with a new axis of size 1 at a position (or several, for a tuple).

    >>> tp.expand_dims(tp.tensor([1.0, 2.0]), 1).shape
    (2, 1)
    """
    cdef Tensor t = as_tensor_for(OP_RESHAPE, x)
    cdef int64_t shape[64]
    cdef int count, ndim, d
    cdef int k = 0
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    count = len(axes)
    ndim = t.v.ndim + count
    if ndim > TPF_MAX_NDIM:
        raise errors.ShapeError(f"[expand_dims] the result would have {ndim} dimensions, more than {TPF_MAX_NDIM}.")
    cdef uint64_t mask = axes_mask(tuple(axes), ndim, b"expand_dims")
    for d in range(ndim):
        if mask >> d & 1:
            shape[d] = 1
        else:
            shape[d] = t.v.shape[k]
            k += 1
    return op_reshape(t, ndim, shape)


def squeeze(x, axis=None):
    """x without axes of size 1: the named ones, or all of them.

    >>> tp.squeeze(tp.zeros((1, 3, 1)), axis=0).shape
    (3, 1)
    """
    cdef Tensor t = as_tensor_for(OP_RESHAPE, x)
    cdef int64_t shape[64]
    cdef int d
    cdef int ndim = 0
    cdef uint64_t mask = axes_mask(axis, t.v.ndim, b"squeeze")
    for d in range(t.v.ndim):
        if mask >> d & 1 and (t.v.shape[d] == 1 or axis is not None):
            if t.v.shape[d] != 1:
                raise errors.ShapeError(f"[squeeze] axis {d} has size {t.v.shape[d]}, only axes of size 1 can go. "
                                        f"Shape: {shape_of(t.v)}.")
            continue
        shape[ndim] = t.v.shape[d]
        ndim += 1
    return op_reshape(t, ndim, shape)


cdef list tensor_list(object xs, str op):
    """The tensors of a concat or stack, of one dtype: the promoted one."""
    cdef int dtype = -1
    cdef Tensor t
    cdef list parts
    if not isinstance(xs, (list, tuple)) and (isinstance(xs, Tensor) or not hasattr(xs, "__iter__")):
        raise errors.DTypeError(f"[{op}] expected a sequence of tensors, got {type(xs).__name__}.")
    xs = list(xs)
    if not xs:
        raise errors.ShapeError(f"[{op}] expected at least one tensor.")
    if isinstance(xs[0], Tensor):  # the frequent case: tensors of one dtype
        dtype = (<Tensor>xs[0]).v.dtype
        for x in xs:
            if not isinstance(x, Tensor) or type(x) is WeakFloat or (<Tensor>x).v.dtype != dtype:
                dtype = -1
                break
        else:
            return sent_together(xs, op.encode()) if op == "stack" and any_tensor_away(xs) else xs
    # Python numbers are weak here, too
    for x in xs:
        if not is_weak(x):
            t = as_tensor(x)
            dtype = t.v.dtype if t.v.dtype > dtype else dtype
    if dtype < 0:
        parts = [as_tensor(x) for x in xs]
        for t in parts:
            dtype = t.v.dtype if t.v.dtype > dtype else dtype
    else:
        if True in [isinstance(x, (float, WeakFloat)) for x in xs] and not is_float(dtype):
            dtype = default_float
        parts = [weak_tensor(x, dtype, op.encode()) if is_weak(x) else as_tensor(x) for x in xs]
    parts = [op_astype(t, dtype) for t in parts]
    return sent_together(parts, b"stack") if op == "stack" and any_tensor_away(parts) else parts


def concat(arrays, axis=0):
    """The tensors one after the other along an axis (flattened first for None); the dtype is the promoted one.

    >>> tp.concat([tp.tensor([1.0]), tp.tensor([2.0, 3.0])]).tolist()
    [1.0, 2.0, 3.0]
    """
    cdef list parts = tensor_list(arrays, "concat")
    cdef Tensor t
    cdef Tensor first
    cdef int64_t flat = -1
    cdef int a, d
    if axis is None:
        parts = [op_reshape(t, 1, &flat) for t in parts]
        axis = 0
    first = parts[0]
    if first.v.ndim == 0:
        raise errors.ShapeError("[concat] 0-d tensors have no axis to join. Use stack.")
    a = normal_axis(axis, first.v.ndim, b"concat")
    for t in parts:
        for d in range(first.v.ndim if t.v.ndim == first.v.ndim else 0):
            if d != a and t.v.shape[d] != first.v.shape[d]:
                break
        else:
            if t.v.ndim == first.v.ndim:
                continue
        raise errors.ShapeError(f"[concat] shapes {shape_of(first.v)} and {shape_of(t.v)} differ besides axis {a}.")
    return op_concat(parts, a)


def stack(arrays, axis=0):
    """The tensors, of one shape, side by side along a new axis.

    >>> tp.stack([tp.tensor([1.0, 2.0]), tp.tensor([3.0, 4.0])], axis=1).tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """
    cdef list parts = tensor_list(arrays, "stack")
    cdef Tensor first = parts[0]
    cdef Tensor t
    cdef int64_t shape[64]
    cdef int d
    if first.v.ndim == TPF_MAX_NDIM:
        raise errors.ShapeError(f"[stack] the result would have more than {TPF_MAX_NDIM} dimensions.")
    cdef int a = normal_axis(axis, first.v.ndim + 1, b"stack")
    for t in parts:
        if not same_shape(t.v, first.v):
            raise errors.ShapeError(f"[stack] shapes {shape_of(first.v)} and {shape_of(t.v)} differ; "
                                    "all must be the same.")
    for d in range(first.v.ndim + 1):
        shape[d] = first.v.shape[d] if d < a else 1 if d == a else first.v.shape[d - 1]
    return op_concat([reshape_to(t, first.v.ndim + 1, shape) for t in parts], a)


def take(x, indices, axis=None):
    """The elements of x at indices along an axis (of the flattened x for None). Negative indices count from the end.

    Parameters
    ----------
    x : Tensor
    indices : integer Tensor, array or list, of any shape
    axis : int or None

    Returns
    -------
    Tensor
        Of shape ``x.shape[:axis] + indices.shape + x.shape[axis+1:]``. The gradient adds up where an index repeats.

    Raises
    ------
    IndexError
        For an index out of range, naming axis, index and size.

    >>> tp.take(tp.tensor([10.0, 20.0, 30.0]), [2, 0]).tolist()
    [30.0, 10.0]
    """
    cdef Tensor t = as_tensor_for(OP_TAKE, x)
    cdef int64_t flat = -1
    cdef int a
    if axis is None:
        t = t if t.v.ndim == 1 else op_reshape(t, 1, &flat)
        axis = 0
    a = normal_axis(axis, t.v.ndim, b"take")
    return op_take(t, checked_indices(indices, t.v.shape[a], a, b"take"), a)


def scatter_add(x, indices, updates, axis=0):
    """A new tensor: x with updates added at indices along an axis.

    Repeated indices add up, in order: the same bits each time.

    Parameters
    ----------
    x : Tensor
    indices : integer Tensor, array or list
    updates : Tensor
        Broadcasts to ``x.shape[:axis] + indices.shape + x.shape[axis+1:]``; of x's dtype or narrower.
    axis : int

    >>> tp.scatter_add(tp.zeros(3), [0, 2, 0], tp.tensor([1.0, 2.0, 3.0])).tolist()
    [4.0, 0.0, 2.0]
    """
    cdef Tensor t = as_tensor_for(OP_SCATTER_ADD, x)
    cdef int a = normal_axis(axis, t.v.ndim, b"scatter_add")
    cdef Tensor idx = checked_indices(indices, t.v.shape[a], a, b"scatter_add")
    cdef Tensor u = weak_tensor(updates, t.v.dtype, b"scatter_add") if is_weak(updates) else as_tensor(updates)
    cdef int64_t shape[64]
    cdef int ndim = t.v.ndim - 1 + idx.v.ndim
    cdef int d
    if u.v.dtype > t.v.dtype:
        raise errors.DTypeError(f"[scatter_add] updates of dtype {dtype_name(u.v.dtype)} do not fit a tensor of dtype "
                                f"{dtype_name(t.v.dtype)}. Cast one of them with .astype.")
    if ndim > TPF_MAX_NDIM:
        raise errors.ShapeError(f"[scatter_add] updates would have {ndim} dimensions, more than {TPF_MAX_NDIM}.")
    for d in range(ndim):
        shape[d] = (t.v.shape[d] if d < a else idx.v.shape[d - a] if d < a + idx.v.ndim
                    else t.v.shape[d - idx.v.ndim + 1])
    return op_scatter_add(t, idx, op_broadcast(written_beside(op_astype(u, t.v.dtype), t.v), ndim, shape), a)


def astype(x, dtype, copy=True):
    """x in another dtype; recorded between float dtypes. Floats to integers round towards zero.

    >>> tp.astype(tp.tensor([1.7, -1.7]), "int64").tolist()
    [1, -1]
    """
    return as_tensor_for(OP_ASTYPE, x).astype(dtype, copy)


def stop_gradient(x):
    """x's value as a constant: no gradient passes.

    >>> tp.grad(lambda x: x * tp.stop_gradient(x))(3.0).item()
    3.0
    """
    return as_tensor(x).detach()


# ---- random draws


# ---- modes


cdef class _GradMode:
    """A context manager, and a decorator, that sets grad mode."""
    cdef bint wanted
    cdef dict before             # by thread: the modes to go back to

    def __enter__(self):
        cdef ThreadState *ts = thread_state()
        if self.before is None:
            self.before = {}
        self.before.setdefault(threading.get_ident(), []).append(ts.flags & T_GRAD)
        ts.flags = (ts.flags & ~T_GRAD) | (T_GRAD if self.wanted else 0)
        return self

    def __exit__(self, *exc):
        cdef ThreadState *ts = thread_state()
        cdef list modes = (self.before or {}).get(threading.get_ident())
        if not modes:
            raise errors.TapeError("[no_grad] the context was left without being entered in this thread.")
        cdef int before = modes.pop()
        ts.flags = (ts.flags & ~T_GRAD) | before
        return None

    def __call__(self, f):
        return _transforms.under(type(self), f)


cdef class no_grad(_GradMode):
    """Inside `with tp.no_grad():` (or a function decorated with `@tp.no_grad()`) nothing is recorded for gradients."""

    def __cinit__(self):
        self.wanted = False


cdef class enable_grad(_GradMode):
    """Inside `with tp.enable_grad():` ops are recorded again, also within no_grad."""

    def __cinit__(self):
        self.wanted = True


def is_grad_enabled():
    """Whether ops are recorded for gradients in this thread."""
    return (thread_state().flags & T_GRAD) != 0


def set_num_threads(n):
    """Use at most n threads for large work (the process's own pool, and OpenBLAS)."""
    cdef int64_t count = as_index(n, b"set_num_threads", "the number")
    if count < 1 or count > 1024:
        raise errors.NumberRangeError(f"[set_num_threads] expected 1 to 1024 threads, got {count}.")
    tpf_set_num_threads(<int>count)
    _blas.set_num_threads(<int>count)


def get_num_threads():
    """The most threads that large work uses."""
    return tpf_get_num_threads()


# ---- for transforms


cdef void number_after_all(ThreadState *ts) noexcept:
    """Whatever any thread has recorded is older than what ts records from now on."""
    cdef ThreadState *other = all_threads
    if ended_next > ts.next:
        ts.next = ended_next
    while other != NULL:
        if other.next > ts.next:
            ts.next = other.next
        other = other.others


def trace_begin():
    """Start watching whether what follows reads entries that were there before; returns a token for trace_end."""
    cdef ThreadState *ts = thread_state()
    number_after_all(ts)
    token = (ts.next, ts.lowest)
    ts.lowest = LARGEST
    ts.depth += 1
    return token


def trace_end(token):
    """Whether an entry from before trace_begin was read since."""
    cdef ThreadState *ts = thread_state()
    cdef int64_t start = token[0]
    cdef int64_t before = token[1]
    cdef bint foreign = ts.lowest < start
    ts.depth -= 1
    if before < ts.lowest:
        ts.lowest = before
    return foreign


def recorded_before(t, token):
    """Whether t is a tensor that was recorded, for gradients, before trace_begin."""
    if not isinstance(t, Tensor):
        return False
    cdef Entry *e = (<Tensor>t).node
    return e != NULL and e.flags & E_GRAD and e.number < <int64_t>token[0]


def fresh_source(Tensor x not None):
    """x at a place of its own on the tape, linked to x's where x is recorded: what tp.grad differentiates."""
    cdef Tensor t
    if x.node != NULL and x.node.flags & E_GRAD and thread_state().flags & T_GRAD:
        return op_identity(x)
    note_read(x.v)
    t = wrap(value_alias(x.v), NULL)
    return t.requires_grad_()


def tensor_node(Tensor t not None):
    """The Node of a tensor, or None."""
    return node_of(t)
