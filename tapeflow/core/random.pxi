# Draws: the state of a generator, and the kernels that a draw and its replay run.

cdef enum:
    DRAW_UNIFORM = 0
    DRAW_NORMAL = 1
    DRAW_BITS32 = 2              # words as int64
    DRAW_BITS64 = 3
    DRAW_INTEGERS = 4            # of a range: count (0: 2**64) and lowest are params
    DRAW_PERMUTATION = 5         # along the last axis

cdef tuple _draws = ("uniform", "normal", "bits32", "bits64", "integers", "permutation")


def draw_kind(int number):
    """The kind of draw that a note names by number."""
    return _draws[number]


# A 32-bit word makes some of n values more likely than others by n / 2**32; beyond this n it takes 64 bits.
cdef uint64_t SMALL_RANGE = 1 << 16


@cython.auto_pickle(False)
cdef class GeneratorState:
    """A seed and the number of the next draw; each method is one step for other threads."""
    cdef uint64_t seed, draw

    def _read(self):
        return self.seed, self.draw

    def _write(self, uint64_t seed, uint64_t draw):
        """Returns what it was."""
        before = self.seed, self.draw
        self.seed, self.draw = seed, draw
        return before


def random_fill(GeneratorState generator not None, str kind, shape, dtype, uint64_t count=0, int64_t lowest=0,
                device=None):
    """The next draw of a generator, or one that it has made, in a run that makes its draws again; its number is given
    back where memory or the shape's size refuse it."""
    cdef int64_t sizes[64]
    cdef int what = _draws.index(kind)
    cdef int ndim = read_shape(shape, sizes, b"random")
    cdef int code = dtype_code(dtype, "random")
    cdef uint64_t seed, draw
    cdef ThreadState *ts = thread_state()
    cdef double start = step_begins(ts)
    cdef Value *v = NULL
    cdef Tensor t
    known = draws.taken(generator, None)
    if known is not None:
        seed, draw = known
    else:
        seed, draw = generator.seed, generator.draw
        generator.draw += 1
    try:
        check_sizes(ndim, sizes, b"random")
        if device is None:
            v = value_new(ndim, sizes, code)
            fill_random(what, v, seed, draw, count, lowest)
        else:
            v = remote_new(device, ndim, sizes, code, b"random")
            numbers = [what, seed, draw]
            if what == DRAW_INTEGERS:
                numbers += [count, lowest]
            device.execute(OP_RANDOM, tuple(numbers), [], array_at(v))
        step_ends(ts, start, OP_RANDOM, 0, NULL, v)
        t = drawn(v, what, generator, seed, draw, count, lowest, known is not None)
    except:
        value_release(v)
        if known is None and generator.seed == seed and generator.draw == draw + 1:
            generator.draw = draw
        raise
    if known is None:
        draws.taken(generator, (seed, draw))
    return t


cdef Tensor drawn(Value *v, int kind, GeneratorState generator, uint64_t seed, uint64_t draw, uint64_t count,
                  int64_t lowest, bint again):
    """The tensor of a draw (v is taken over), which a recording notes with the stretch of the generator's draws and
    the place in it."""
    cdef ThreadState *ts = thread_state()
    cdef Program program = <Program>ts.program if ts.program != NULL else None
    cdef Entry *e = NULL
    cdef int n
    at = None if program is None else program.drawn(generator, seed, draw, 1, again)  # also while recording is stopped
    if program is not None and at is None:
        return wrap(as_constant(v), NULL)
    if ts.flags & T_TAPE and program is not None:
        try:
            e = record(ts, OP_RANDOM, 0, NULL, NULL, v, 0)
            n = 5 if kind == DRAW_INTEGERS else 3
            e.params = params_new(n)
            e.params[1], e.params[2], e.params[3] = kind, at[0], at[1]
            if n == 5:
                e.params[4], e.params[5] = <int64_t>count, lowest
        except:
            entry_release(e)
            raise
    return wrap(v, e)


def generator_seeded(generator, before, seed, draw):
    """A recording, if there is one, has to know that a generator does not go on as before."""
    cdef ThreadState *ts = thread_state()
    if ts.program != NULL:
        (<Program>ts.program).seeded(generator, before, seed, draw)


cdef int fill_random(int kind, Value *y, uint64_t seed, uint64_t draw, uint64_t count, int64_t lowest) except -1:
    """A draw into y, which is packed."""
    cdef Value *words
    cdef int64_t i
    if y.size == 0:
        return 0
    if kind == DRAW_UNIFORM:
        kernels.uniform[y.dtype - TPF_FLOAT32](y.data, y.size, seed, draw)
    elif kind == DRAW_NORMAL:
        kernels.normal[y.dtype - TPF_FLOAT32](y.data, y.size, seed, draw)
    elif kind == DRAW_BITS64:
        kernels.bits64(y.data, y.size, seed, draw)
    elif kind == DRAW_PERMUTATION:
        kernels.bits64(y.data, y.size, seed, draw)
        permute(y)
    else:
        words = value_new(y.ndim, y.shape, TPF_INT32 if kind == DRAW_BITS32 or 0 < count <= SMALL_RANGE else TPF_INT64)
        if words.dtype == TPF_INT32:
            kernels.bits32(words.data, words.size, seed, draw)
        else:
            kernels.bits64(words.data, words.size, seed, draw)
        if kind == DRAW_BITS32:
            for i in range(y.size):
                (<int64_t *>y.data)[i] = (<uint32_t *>words.data)[i]
        else:
            scale_words(y, words, count, lowest)
        value_release(words)
    return 0


cdef inline uint64_t high_product(uint64_t a, uint64_t b) noexcept:
    """floor(a * b / 2**64), from four products of halves."""
    cdef uint64_t mask = 0xFFFFFFFF
    cdef uint64_t middle = (a >> 32) * (b & mask) + (((a & mask) * (b & mask)) >> 32)
    cdef uint64_t crossed = (a & mask) * (b >> 32) + (middle & mask)
    return (a >> 32) * (b >> 32) + (middle >> 32) + (crossed >> 32)


cdef void scale_words(Value *y, Value *words, uint64_t count, int64_t lowest) noexcept:
    """lowest + floor(word * count / 2**32 or 2**64), wrapping as integers do; a count of 0 is 2**64."""
    cdef int64_t i
    cdef uint64_t x
    for i in range(y.size):
        if words.dtype == TPF_INT32:
            x = ((<uint32_t *>words.data)[i] * count) >> 32
        else:
            x = (<uint64_t *>words.data)[i]
            if count:
                x = high_product(x, count)
        x += <uint64_t>lowest
        if y.dtype == TPF_INT64:
            (<uint64_t *>y.data)[i] = x
        elif y.dtype == TPF_INT32:
            (<uint32_t *>y.data)[i] = <uint32_t>x
        else:
            (<uint8_t *>y.data)[i] = <uint8_t>x


cdef int permute(Value *y) except -1:
    """Words to the order of each row by keys whose low bits are the position: distinct, so any sort gives the same."""
    cdef int64_t n = y.shape[y.ndim - 1]
    cdef uint64_t mask = 0
    cdef uint64_t *key = <uint64_t *>y.data
    cdef int64_t i
    while mask < <uint64_t>(n - 1):
        mask = 2 * mask + 1
    for i in range(y.size):  # the highest bit turned: unsigned keys in the order of signed ones
        key[i] = ((key[i] & ~mask) ^ (<uint64_t>1 << 63)) | <uint64_t>(i % n)
    writable_rows(y, n).sort(axis=-1)
    for i in range(y.size):
        key[i] &= mask
    return 0
