# Functions that move elements: axes, order along axes, pieces, copies, diagonals. None has an op of its own: windows,
# permutations, reshapes, concat, take and put move everything, so gradients of any order follow from these. Where
# nothing is recorded, several of them move each element once, from where it was.


cdef inline Tensor given(object x, str op):
    """x itself, or anything that data can come in as a new constant."""
    return strong(<Tensor>x) if isinstance(x, Tensor) else _creation.convert(x, op)


cdef inline int axis_of(object axis, int ndim, const char *op) except -1:
    """axis as 0 .. ndim-1."""
    cdef int over = 0
    cdef long long a
    if PyLong_CheckExact(axis):
        a = PyLong_AsLongLongAndOverflow(axis, &over)
        if not over and -ndim <= a < ndim:
            return <int>(a + ndim if a < 0 else a)
    return normal_axis(axis, ndim, op)


cdef list ints_of(object x, const char *op, str what):
    """An int or a sequence of ints as a list."""
    if isinstance(x, (_ndarray, Tensor)) and x.ndim:  # of a tensor each element is a look of its own
        x = list(x) if isinstance(x, Tensor) else x.tolist()
    if isinstance(x, (tuple, list, range)):
        return [as_index(i, op, what) for i in x]
    return [as_index(x, op, what)]


cdef int axes_of(object axis, int ndim, int *out, const char *op) except -1:
    """An axis or several, each once; returns how many."""
    cdef int n = 0
    cdef int i
    if PyLong_CheckExact(axis):
        out[0] = axis_of(axis, ndim, op)
        return 1
    for a in ints_of(axis, op, "axis"):
        i = axis_of(a, ndim, op)
        for j in range(n):
            if out[j] == i:
                raise errors.ShapeError(f"[{op.decode()}] axis {axis} names an axis twice. Name each one once.")
        out[n] = i
        n += 1
    return n


cdef bint recorded_now(Tensor x) except -1:
    return wants_record(thread_state(), x.node, x.v.dtype)


# ---- axes


def matrix_transpose(x):
    """x with its last two axes exchanged.

    Parameters
    ----------
    x : Tensor
        Of at least two axes; otherwise a ShapeError.

    >>> tp.matrix_transpose(tp.tensor([[1, 2], [3, 4]])).tolist()
    [[1, 3], [2, 4]]
    """
    cdef Tensor t = given(x, "matrix_transpose")
    if t.v.ndim < 2:
        raise errors.ShapeError(f"[matrix_transpose] expected at least two axes, got shape {shape_of(t.v)}. "
                                "Use expand_dims first.")
    return swap_last(t)


def moveaxis(x, source, destination):
    """x with the axes `source` at the places `destination`; the others keep their order.

    >>> tp.moveaxis(tp.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    cdef Tensor t = given(x, "moveaxis")
    cdef int taken[64]
    cdef int places[64]
    cdef int n = axes_of(source, t.v.ndim, taken, b"moveaxis")
    cdef int m = axes_of(destination, t.v.ndim, places, b"moveaxis")
    if n != m:
        raise errors.ShapeError(f"[moveaxis] {n} source axes and {m} destinations: give as many of one as of the "
                                "other.")
    return moved(t, n, taken, places)


cdef Tensor moved(Tensor x, int n, const int *taken, const int *places):
    """x with n axes at other places; the others keep their order."""
    cdef int order[64]
    cdef bint gone[64]
    cdef int d, i
    cdef int rest = 0
    for d in range(x.v.ndim):
        order[d] = -1
        gone[d] = False
    for i in range(n):
        order[places[i]] = taken[i]
        gone[taken[i]] = True
    for d in range(x.v.ndim):
        if order[d] < 0:
            while gone[rest]:
                rest += 1
            order[d] = rest
            rest += 1
    return op_permute(x, order)


def swapaxes(x, axis1, axis2):
    """x with two axes exchanged.

    >>> tp.swapaxes(tp.zeros((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    cdef Tensor t = given(x, "swapaxes")
    return swapped(t, axis_of(axis1, t.v.ndim, b"swapaxes"), axis_of(axis2, t.v.ndim, b"swapaxes"))


cdef Tensor swapped(Tensor x, int a, int b):
    cdef int order[64]
    cdef int d
    for d in range(x.v.ndim):
        order[d] = d
    order[a], order[b] = b, a
    return op_permute(x, order)


def broadcast_arrays(*arrays):
    """The tensors stretched to the shape they have in common.

    >>> [t.shape for t in tp.broadcast_arrays(tp.zeros((2, 1)), tp.zeros(3))]
    [(2, 3), (2, 3)]
    """
    cdef int64_t shape[64]
    cdef int ndim = 0
    cdef int d, s
    cdef Tensor t
    cdef list tensors = sent_together([given(a, "broadcast_arrays") for a in arrays], b"broadcast_arrays")
    for t in tensors:
        ndim = t.v.ndim if t.v.ndim > ndim else ndim
    for d in range(ndim):
        shape[d] = 1
    for t in tensors:
        for s in range(t.v.ndim):
            d = s + ndim - t.v.ndim
            if shape[d] == 1:
                shape[d] = t.v.shape[s]
            elif t.v.shape[s] != 1 and t.v.shape[s] != shape[d]:
                shapes = ", ".join([str(u.shape) for u in tensors])
                raise errors.ShapeError(f"[broadcast_arrays] shapes {shapes} do not broadcast: aligned from the right, "
                                        "sizes must be equal or 1. Use reshape or expand_dims.")
    return tuple([another(t, op_broadcast(t, ndim, shape)) for t in tensors])


def ravel(x):
    """All elements, in C order, along one axis.

    >>> tp.ravel(tp.tensor([[1, 2], [3, 4]])).tolist()
    [1, 2, 3, 4]
    """
    cdef Tensor t = given(x, "ravel")
    return another(t, op_reshape_flat(t))


def flatten(x, start_axis=0, end_axis=-1):
    """The axes start_axis to end_axis (included) as one. A 0-d tensor becomes 1-D.

    >>> tp.flatten(tp.zeros((2, 3, 4)), 1).shape
    (2, 12)
    """
    cdef Tensor t = given(x, "flatten")
    cdef int ndim = t.v.ndim if t.v.ndim else 1
    cdef int first = axis_of(start_axis, ndim, b"flatten")
    cdef int last = axis_of(end_axis, ndim, b"flatten")
    if first > last:
        raise errors.ShapeError(f"[flatten] start_axis {start_axis} comes after end_axis {end_axis}. Exchange them.")
    if t.v.ndim == 0:
        return op_reshape_flat(t)
    if extent_of(t.v, first, last + 1) == 0 and t.v.size == 0:  # the size beside it need not fit
        return op_reshape(t, t.v.ndim, t.v.shape) if first == last else merge_axes(t, first, last + 1)
    return another(t, merge_axes(t, first, last + 1))


cdef Tensor with_ones(Tensor x, int before, int behind):
    """x with axes of size 1 before and behind its own."""
    cdef int64_t shape[64]
    cdef int d
    if before + behind == 0:
        return op_identity(x)
    for d in range(before + x.v.ndim + behind):
        shape[d] = x.v.shape[d - before] if before <= d < before + x.v.ndim else 1
    return reshape_to(x, before + x.v.ndim + behind, shape)


def atleast_1d(*arrays):
    """The tensor, a 0-d one as 1-D; several come back as a tuple.

    >>> tp.atleast_1d(tp.tensor(3.0)).shape
    (1,)
    """
    cdef Tensor t
    cdef list out = [with_ones(t, t.v.ndim == 0, 0) for t in [given(a, "atleast_1d") for a in arrays]]
    return out[0] if len(out) == 1 else tuple(out)


def atleast_2d(*arrays):
    """The tensor with leading axes of size 1 up to two axes; several come back as a tuple.

    >>> tp.atleast_2d(tp.zeros(3)).shape
    (1, 3)
    """
    cdef Tensor t
    cdef list out = [with_ones(t, 2 - t.v.ndim if t.v.ndim < 2 else 0, 0)
                     for t in [given(a, "atleast_2d") for a in arrays]]
    return out[0] if len(out) == 1 else tuple(out)


def atleast_3d(*arrays):
    """The tensor as at least 3-D: (n,) becomes (1, n, 1), (m, n) becomes (m, n, 1); several come back as a tuple.

    >>> tp.atleast_3d(tp.zeros(3)).shape
    (1, 3, 1)
    """
    cdef Tensor t
    cdef list out = [with_ones(t, t.v.ndim < 2, 2 - t.v.ndim if t.v.ndim == 0 else t.v.ndim < 3)
                     for t in [given(a, "atleast_3d") for a in arrays]]
    return out[0] if len(out) == 1 else tuple(out)


# ---- order along axes


cdef Tensor reversed_along(Tensor x, int n, const int *axes):
    """x in reverse along n axes."""
    cdef int64_t params[257]
    cdef int64_t from_axis[64]
    cdef int64_t extent
    cdef int d
    params[0] = 4 * x.v.ndim
    for d in range(x.v.ndim):
        params[4 * d + 1], params[4 * d + 2] = 0, 1
        params[4 * d + 3] = params[4 * d + 4] = x.v.shape[d]
        from_axis[d] = d
    for i in range(n):
        d = axes[i]
        extent = x.v.shape[d]
        if extent > 1:
            params[4 * d + 1], params[4 * d + 2] = extent - 1, -1
    return op_window(x, params, x.v.ndim, x.v.shape, from_axis)


def flip(x, axis=None):
    """x with the elements along the axes (all, for None) in reverse.

    >>> tp.flip(tp.tensor([[1, 2], [3, 4]]), axis=1).tolist()
    [[2, 1], [4, 3]]
    """
    cdef Tensor t = given(x, "flip")
    cdef int axes[64]
    cdef int n, d
    if axis is None:
        n = t.v.ndim
        for d in range(n):
            axes[d] = d
    else:
        n = axes_of(axis, t.v.ndim, axes, b"flip")
    return reversed_along(t, n, axes)


def rot90(x, k=1, axes=(0, 1)):
    """x turned k times by 90 degrees in the plane of two axes, from the first towards the second.

    >>> tp.rot90(tp.tensor([[1, 2], [3, 4]])).tolist()
    [[2, 4], [1, 3]]
    """
    cdef Tensor t = given(x, "rot90")
    cdef int plane[64]
    cdef int turns
    if axes_of(axes, t.v.ndim, plane, b"rot90") != 2:
        raise errors.ShapeError(f"[rot90] axes must name two axes, got {axes}.")
    turns = <int>(as_index(k, b"rot90", "k") & 3)
    if turns == 0:
        return op_identity(t)
    if turns == 2:
        return reversed_along(t, 2, plane)
    if turns == 1:
        return swapped(reversed_along(t, 1, plane + 1), plane[0], plane[1])
    return reversed_along(swapped(t, plane[0], plane[1]), 1, plane + 1)


def roll(x, shift, axis=None):
    """x with the elements moved by `shift` places along the axes, those that leave coming in at the other end.

    Parameters
    ----------
    x : Tensor
    shift : int or sequence of ints
        Positive: towards higher indices.
    axis : int, sequence of ints, or None
        As many as shifts, or one of either; an axis named twice moves by the sum. None: along the flattened tensor.

    >>> tp.roll(tp.tensor([1, 2, 3, 4]), 1).tolist()
    [4, 1, 2, 3]
    """
    cdef Tensor t = given(x, "roll")
    cdef int64_t cuts[64]
    cdef int64_t whole[1]
    cdef int a, d
    cdef int count = 0
    if axis is None:
        whole[0] = t.v.size
        cuts[0] = roll_cut(0, ints_of(shift, b"roll", "shift"), whole[0])
        if not cuts[0]:
            return op_identity(t)
        return reshape_like(rolled(op_reshape_flat(t), cuts), t.v)
    shifts = ints_of(shift, b"roll", "shift")
    axes = ints_of(axis, b"roll", "axis")
    if len(shifts) != len(axes):
        if 1 not in (len(shifts), len(axes)):
            raise errors.ShapeError(f"[roll] {len(shifts)} shifts for {len(axes)} axes. Give one shift for each axis, "
                                    "or one for all.")
        shifts, axes = shifts * (len(axes) if len(shifts) == 1 else 1), axes * (len(shifts) if len(axes) == 1 else 1)
    for d in range(t.v.ndim):
        cuts[d] = 0
    for each, at in zip(shifts, axes):
        a = axis_of(at, t.v.ndim, b"roll")
        cuts[a] = roll_cut(cuts[a], [each], t.v.shape[a])
    for d in range(t.v.ndim):
        count += cuts[d] != 0
    return rolled(t, cuts) if count and t.v.size else op_identity(t)


cdef int64_t roll_cut(int64_t cut, list shifts, int64_t n) except -1:
    """Where to cut an axis of size n that was to be cut at cut, after these shifts as well."""
    if n == 0:
        return 0
    for each in shifts:
        cut = (cut - each % n) % n
        cut += n if cut < 0 else 0
    return cut


cdef Tensor rolled(Tensor x, const int64_t *cuts):
    """x with the parts before and from the cut of each axis exchanged."""
    cdef int64_t shape[64]
    cdef int axes[64]
    cdef int n = 0
    cdef int d, i
    cdef int64_t block, size
    cdef char *to
    cdef char *src
    cdef Value *y
    for d in range(x.v.ndim):
        if cuts[d]:
            axes[n] = d
            n += 1
    if recorded_now(x) or n > 16 or is_remote(x.v):
        for i in range(n):
            d = axes[i]
            x = op_concat([narrow(x, d, cuts[d], x.v.shape[d] - cuts[d]), narrow(x, d, 0, cuts[d])], d)
        return x
    y = value_like(x.v, x.v.dtype)
    for block in range(1 << n):  # each block moves once
        to, src = y.data, x.v.data
        memcpy(shape, x.v.shape, x.v.ndim * sizeof(int64_t))
        for i in range(n):
            d = axes[i]
            size = x.v.shape[d] - cuts[d]
            if block >> i & 1:
                to += size * y.strides[d]
                shape[d] = cuts[d]
            else:
                src += cuts[d] * x.v.strides[d]
                shape[d] = size
        tpf_copy(to, y.strides, src, x.v.strides, tpf_itemsize(y.dtype), y.ndim, shape)
    return wrap(y, NULL)


# ---- pieces


def unstack(x, axis=0):
    """The slices of x along an axis, without that axis: what tp.stack puts together.

    >>> [t.tolist() for t in tp.unstack(tp.tensor([[1, 2], [3, 4]]), axis=1)]
    [[1, 3], [2, 4]]
    """
    cdef Tensor t = given(x, "unstack")
    return tuple(slices_along(t, axis_of(axis, t.v.ndim, b"unstack")))


def split(x, indices_or_sections, axis=0):
    """x cut along an axis, into equal parts or at indices.

    Parameters
    ----------
    x : Tensor
    indices_or_sections : int or sequence of ints
        An int: the number of equal parts; a ShapeError when they are not (see array_split). A sequence: where to cut.
    axis : int

    >>> [t.tolist() for t in tp.split(tp.tensor([1, 2, 3, 4]), [1, 3])]
    [[1], [2, 3], [4]]
    """
    return pieces(given(x, "split"), indices_or_sections, axis, b"split", False)


def array_split(x, indices_or_sections, axis=0):
    """As split, but parts may differ by one in size: the first ones are the longer ones.

    >>> [t.tolist() for t in tp.array_split(tp.tensor([1, 2, 3, 4]), 3)]
    [[1, 2], [3], [4]]
    """
    return pieces(given(x, "array_split"), indices_or_sections, axis, b"array_split", True)


cdef list pieces(Tensor x, object where, object axis, const char *op, bint uneven):
    cdef int a = axis_of(axis, x.v.ndim, op)
    cdef Py_ssize_t n = x.v.shape[a]
    cdef Py_ssize_t start, stop
    cdef int64_t parts, each, longer, i
    cdef list out = []
    if isinstance(where, (tuple, list, range)) or isinstance(where, (_ndarray, Tensor)) and where.ndim:
        cuts = ints_of(where, op, "an index")
        for i in range(len(cuts) + 1):
            start = cuts[i - 1] if i else 0
            stop = cuts[i] if i < len(cuts) else n
            parts = PySlice_AdjustIndices(n, &start, &stop, 1)
            out.append(narrow(x, a, start, parts))
        return out
    parts = as_index(where, op, "the number of parts")
    if parts < 1:
        raise errors.ShapeError(f"[{op.decode()}] the number of parts must be at least 1, got {parts}.")
    if n % parts and not uneven:
        raise errors.ShapeError(f"[split] axis {a} of size {n} does not divide into {parts} equal parts. Use "
                                "array_split, or indices.")
    each, longer = n // parts, n % parts
    for i in range(parts):
        out.append(narrow(x, a, i * each + (i if i < longer else longer), each + (i < longer)))
    return out


# ---- copies


def tile(x, repetitions):
    """Copies of x side by side, `repetitions` of them along each axis.

    The shorter of x.shape and repetitions is filled up with ones from the left. Gradients are summed over the copies.

    >>> tp.tile(tp.tensor([1, 2]), (2, 2)).tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    cdef Tensor t = given(x, "tile")
    cdef list reps = ints_of(repetitions, b"tile", "a repetition")
    cdef int64_t one[128]
    cdef int64_t many[128]
    cdef int64_t result[64]
    cdef int64_t r, n
    cdef int ndim = len(reps) if len(reps) > t.v.ndim else t.v.ndim
    cdef int axes = 0
    cdef int d
    if ndim > TPF_MAX_NDIM:
        raise errors.ShapeError(f"[tile] the result would have {ndim} dimensions, more than {TPF_MAX_NDIM}.")
    for d in range(ndim):
        r = reps[d - ndim + len(reps)] if d >= ndim - len(reps) else 1
        n = t.v.shape[d - ndim + t.v.ndim] if d >= ndim - t.v.ndim else 1
        if r < 0:
            raise errors.ShapeError(f"[tile] repetitions must not be negative, got {repetitions}.")
        if r != 1 and n != 1:
            one[axes], many[axes] = 1, r
            axes += 1
        one[axes] = n
        many[axes] = r if n == 1 else n
        axes += 1
        if r and n > LARGEST // r:
            raise errors.ShapeError(f"[tile] axis {d} of the result would not fit 64 bits.")
        result[d] = r * n
    if axes > TPF_MAX_NDIM:
        raise errors.ShapeError(f"[tile] too many axes are repeated: {repetitions} for shape {shape_of(t.v)}.")
    return op_reshape(op_broadcast(op_reshape(t, axes, one), axes, many), ndim, result)


def repeat(x, repeats, axis=None):
    """Each element of x repeated along an axis (of the flattened x for None).

    Parameters
    ----------
    x : Tensor
    repeats : int, or integer Tensor, array or list
        How often: one number, or one for each element along the axis.
    axis : int or None

    >>> tp.repeat(tp.tensor([1, 2]), [1, 3]).tolist()
    [1, 2, 2, 2]
    """
    cdef Tensor of = given(x, "repeat")
    cdef Tensor t = of
    cdef Tensor counts
    cdef int a
    cdef int64_t n
    if axis is None:
        t = op_reshape_flat(t)
        a = 0
    else:
        a = axis_of(axis, t.v.ndim, b"repeat")
    n = t.v.shape[a]
    if PyLong_CheckExact(repeats):
        return another(of, repeated(t, as_index(repeats, b"repeat", "a repetition"), a))
    counts = op_astype(index_tensor(repeats, a, LARGEST, b"repeat"), TPF_INT64)
    if counts.v.ndim > 1 or counts.v.size not in (1, n):
        raise errors.ShapeError(f"[repeat] repeats of shape {shape_of(counts.v)} for an axis of size {n}. Give one "
                                "number, or one per element.")
    if counts.v.size == 1:
        return another(of, repeated(t, counts.item(), a))
    if thread_state().flags & T_TAPE:
        return repeated_by_tensor(t, sent_beside(counts, t.v), a)
    t = sent_beside(t, counts.v)
    if device_of(counts.v) is not device_of(t.v) and not counts.v.loose:
        raise_mixed(b"repeat", device_of(t.v), device_of(counts.v))
    counts = packed(op_move(counts, None))
    return repeated_each(t, <const int64_t *>counts.v.data, a)


cdef Tensor repeated(Tensor x, int64_t count, int axis):
    """Each element count times along an axis."""
    cdef int64_t shape[65]
    cdef int d
    if count < 0:
        raise errors.ShapeError(f"[repeat] repeats must not be negative, got {count}.")
    if count == 1:
        return x
    if x.v.ndim == TPF_MAX_NDIM:
        raise errors.ShapeError(f"[repeat] a tensor of {TPF_MAX_NDIM} dimensions is repeated as a flat one only.")
    for d in range(x.v.ndim + 1):
        shape[d] = x.v.shape[d] if d <= axis else 1 if d == axis + 1 else x.v.shape[d - 1]
    cdef Tensor y = reshape_to(x, x.v.ndim + 1, shape)
    shape[axis + 1] = count
    y = op_broadcast(y, x.v.ndim + 1, shape)
    return merge_axes(y, axis, axis + 2)


cdef Tensor repeated_by_tensor(Tensor x, Tensor counts, int axis):
    """Element i along an axis counts[i] times, in ops: how many that are together is a look."""
    if (<Tensor>call2(OP_LESS, op_reduce(OP_MIN, counts, 0, True, False), 0)).item():
        raise errors.ShapeError("[repeat] repeats must not be negative.")
    cdef Tensor ends = op_scan(OP_CUMULATIVE_SUM, counts, None, 0, False)
    cdef int64_t total = narrow(ends, 0, ends.v.size - 1, 1).item()
    return op_take(x, op_searchsorted(ends, arange_int(total), True), axis)


cdef Tensor repeated_each(Tensor x, const int64_t *counts, int axis):
    """Element i along an axis counts[i] times."""
    cdef int64_t total = 0
    cdef int64_t i, j
    cdef Value *at
    cdef int64_t *p
    for i in range(x.v.shape[axis]):
        if counts[i] < 0:
            raise errors.ShapeError(f"[repeat] repeats must not be negative, got {counts[i]}.")
        if counts[i] > LARGEST - total:
            raise errors.ShapeError(f"[repeat] axis {axis} of the result would not fit 64 bits.")
        total += counts[i]
    if not recorded_now(x) and not is_remote(x.v):
        return repeated_now(x, counts, axis, total)
    at = value_new(1, &total, TPF_INT64)
    p = <int64_t *>at.data
    for i in range(x.v.shape[axis]):
        for j in range(counts[i]):
            p[j] = i
        p += counts[i]
    return op_take(x, wrap(as_constant(at), NULL), axis)


cdef Tensor repeated_now(Tensor x, const int64_t *counts, int axis, int64_t total):
    cdef int64_t shape[64]
    cdef int64_t outer, inner
    cdef Value *src = value_contiguous(x.v)
    cdef Value *y
    memcpy(shape, src.shape, src.ndim * sizeof(int64_t))
    shape[axis] = total
    around_axis(src, axis, &outer, &inner)
    try:
        y = value_new(src.ndim, shape, src.dtype)
        if y.size:
            tpf_repeat(y.data, src.data, counts, outer, src.shape[axis], inner * tpf_itemsize(y.dtype))
    finally:
        value_release(src)
    return wrap(y, NULL)


# ---- diagonals and triangles


def diagonal(x, offset=0, axis1=0, axis2=1):
    """The diagonal of x in the plane of two axes, as the last axis of the result.

    Parameters
    ----------
    x : Tensor
        Of at least two axes.
    offset : int
        Which diagonal: positive ones lie above the main one (at higher indices of axis2).
    axis1, axis2 : int
        The axes of rows and of columns; for stacks of matrices they are -2 and -1.

    >>> tp.diagonal(tp.tensor([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
    cdef Tensor t = given(x, "diagonal")
    cdef int64_t params[257]
    cdef int64_t from_axis[64]
    cdef int64_t shape[64]
    cdef int64_t rows, columns, count, k, start
    cdef int row, column, d
    cdef Value *v
    if t.v.ndim < 2:
        raise errors.ShapeError(f"[diagonal] expected at least two axes, got shape {shape_of(t.v)}. "
                                "tp.diag makes a matrix.")
    row, column = axis_of(axis1, t.v.ndim, b"diagonal"), axis_of(axis2, t.v.ndim, b"diagonal")
    k = as_index(offset, b"diagonal", "offset")
    if row == column:
        raise errors.ShapeError(f"[diagonal] axis1 and axis2 are the same axis, {row}. Name two.")
    rows, columns = t.v.shape[row], t.v.shape[column]
    k = columns if k > columns else -rows if k < -rows else k
    count = min_of(rows, columns - k) if k >= 0 else min_of(rows + k, columns)
    if not recorded_now(t):
        v = value_view(t.v, t.v.ndim - 1)
        if count:
            v.data += k * t.v.strides[column] if k >= 0 else -k * t.v.strides[row]
        start = 0
        for d in range(t.v.ndim):
            if d != row and d != column:
                v.shape[start], v.strides[start] = t.v.shape[d], t.v.strides[d]
                start += 1
        v.shape[start], v.strides[start] = count, t.v.strides[row] + t.v.strides[column]
        view_done(v)
        return wrap(v, NULL)
    if column != t.v.ndim - 1 or row != t.v.ndim - 2:
        t = moved(t, 2, [row, column], [t.v.ndim - 2, t.v.ndim - 1])
    t = merge_axes(t, t.v.ndim - 2, t.v.ndim)
    start = k if k >= 0 else -k * columns
    params[0] = 4 * t.v.ndim
    for d in range(t.v.ndim):
        params[4 * d + 1], params[4 * d + 2] = 0, 1
        params[4 * d + 3] = params[4 * d + 4] = shape[d] = t.v.shape[d]
        from_axis[d] = d
    d = t.v.ndim - 1
    params[4 * d + 1], params[4 * d + 2] = start if count else 0, columns + 1 if count > 1 else 1
    params[4 * d + 3] = shape[d] = count
    return op_window(t, params, t.v.ndim, shape, from_axis)


cdef inline int64_t min_of(int64_t a, int64_t b) noexcept:
    return a if a < b else b


def diag(x, k=0):
    """The k-th diagonal of a matrix, or the matrix of zeros that has a vector as its k-th diagonal.

    >>> tp.diag(tp.tensor([1, 2])).tolist()
    [[1, 0], [0, 2]]
    """
    cdef Tensor t = given(x, "diag")
    cdef int64_t params[5]
    cdef int64_t shape[2]
    cdef int64_t offset, n
    cdef Tensor lines
    if t.v.ndim == 2:
        return diagonal(t, k)
    if t.v.ndim != 1:
        raise errors.ShapeError(f"[diag] expected a vector or a matrix, got shape {shape_of(t.v)}. See tp.diagonal.")
    offset = as_index(k, b"diag", "k")
    if not -(1 << 30) < offset < 1 << 30 or t.v.size > 1 << 30:
        n = LARGEST - t.v.size
        n = n if not -n < offset < n else offset if offset >= 0 else -offset
        shape[0] = shape[1] = t.v.size + n
        raise_memory(2, shape, t.v.dtype)
    n = t.v.size + (offset if offset >= 0 else -offset)
    shape[0] = shape[1] = n
    n = n * n
    lines = wrap(zeros_value(1, &n, t.v.dtype), NULL)
    params[0], params[1] = 4, 0 if t.v.size == 0 else offset if offset >= 0 else -offset * shape[0]
    params[2], params[3], params[4] = shape[0] + 1 if t.v.size > 1 else 1, t.v.size, n
    lines = op_assign(lines, params, t, True)
    return reshape_to(lines, 2, shape)


cdef Tensor triangle(Tensor x, object k, const char *op, bint lower):
    """The elements of the last two axes on one side of a diagonal, 0 on the other; the diagonal is in either."""
    cdef int64_t shape[2]
    cdef int64_t i, cut
    cdef int64_t offset = as_index(k, op, "k")
    cdef Value *mask
    if x.v.ndim < 2:
        raise errors.ShapeError(f"[{op.decode()}] expected at least two axes, got shape {shape_of(x.v)}.")
    shape[0], shape[1] = x.v.shape[x.v.ndim - 2], x.v.shape[x.v.ndim - 1]
    offset = -shape[0] - 1 if offset < -shape[0] - 1 else shape[1] + 1 if offset > shape[1] + 1 else offset
    mask = as_constant(value_new(2, shape, TPF_BOOL))
    for i in range(shape[0]):
        cut = i + offset + (1 if lower else 0)
        cut = 0 if cut < 0 else shape[1] if cut > shape[1] else cut
        memset(mask.data + i * shape[1], lower, cut)
        memset(mask.data + i * shape[1] + cut, not lower, shape[1] - cut)
    return call3(OP_WHERE, wrap(mask, NULL), x, False)  # which raises no dtype


def tril(x, k=0):
    """The lower triangle of the last two axes: elements above the k-th diagonal are 0.

    >>> tp.tril(tp.ones((2, 2))).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    return triangle(given(x, "tril"), k, b"tril", True)


def triu(x, k=0):
    """The upper triangle of the last two axes: elements below the k-th diagonal are 0.

    >>> tp.triu(tp.tensor([[1, 2], [3, 4]])).tolist()
    [[1, 2], [0, 4]]
    """
    return triangle(given(x, "triu"), k, b"triu", False)


def index_add(x, axis, indices, updates, *, alpha=1):
    """A new tensor: x with alpha * updates added at indices along an axis; repeated indices add up, in order.

    The order of arguments is PyTorch's. See also scatter_add.

    Parameters
    ----------
    x : Tensor
    axis : int
    indices : integer Tensor, array or list
        1-D.
    updates : Tensor
        Broadcasts to x's shape with the length of indices along the axis; of x's dtype or narrower.

    >>> tp.index_add(tp.zeros(3), 0, [0, 2, 0], tp.tensor([1.0, 2.0, 3.0])).tolist()
    [4.0, 0.0, 2.0]
    """
    cdef Tensor t = given(x, "index_add")
    cdef int a = axis_of(axis, t.v.ndim, b"index_add")
    cdef Tensor idx = checked_indices(indices, t.v.shape[a], a, b"index_add")
    cdef Tensor u
    cdef Value *like
    if idx.v.ndim != 1:
        raise errors.ShapeError(f"[index_add] indices must be 1-D, got shape {shape_of(idx.v)}. Use tp.ravel.")
    u = written_beside(fitting(updates, t.v.dtype, "index_add"), t.v)
    like = value_meta(t.v)
    try:
        like.shape[a] = idx.v.size
        u = op_broadcast_for_write(u, like, "index_add")
    finally:
        value_release(like)
    if not (PyLong_CheckExact(alpha) and alpha == 1):
        u = call2(OP_MULTIPLY, u, fitting(alpha, t.v.dtype, "index_add"))
    return op_scatter_add(t, idx, u, a)
