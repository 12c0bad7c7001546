/* One reduction of (rows, n) over n, after lanes.cl; once for each kind, with NAME and one of the macros below set.

   SUM NANSUM NORM DOT    sums of floats: of x, of x without NaN, of x^2, of products rounded to T
   VAR                    of x - m and of its square, for a given m
   ISUM COUNT             of integers; of how many are not 0 (also for any and all)
   EXTREMUM POSITION      max and argmax by integer keys in the order of the values, a NaN having the highest; with
                          keys in the reverse order (down is -1, not 0) min and argmin

   T: of the values; BITS: the integer of its size; KEY: int, or long where T has 64 bits; FLOAT: is T one.
   CHUNK: elements of a chunk; FAN: chunks that one work-item joins. Powers of two, by option for tests with small ones.

   The tree is that of csrc/reduce.h: chunks of CHUNK (4096) elements, joined by halves at the largest power of two of chunks;
   in a chunk element i goes to lane i % 16, in ascending order, and lanes are joined by halves. It depends on n alone:
   not on strides, W, work-groups or devices. What is not a sum of floats is exact in any order.

   Without float64 a sum is taken two or three times: of x, of x * 2^-64 for when that overflows, and squares of
   x * 2^64, too, for when they all but vanish. */

#define BLOCK 64 /* rows that a CPU takes side by side */
#define FN(name) CAT(NAME, CAT(_, name))

#if defined(SUM) || defined(NANSUM) || defined(NORM) || defined(DOT) || defined(VAR)
#define SUMS
#define M T
#define Y BITS
#define DEEP LANES
#ifdef FP64
#define SCALES 1
#elif defined(NORM) || defined(VAR)
#define SCALES 3
#else
#define SCALES 2
#endif
typedef struct {
#ifdef VAR
    wide d;
#endif
    wide s[SCALES];
} FN(lanes);
typedef struct {
#ifdef VAR
    wide1 d;
#endif
    wide1 s[SCALES];
} FN(part);

#elif defined(POSITION)
#define ARGS
#define M BITS
#define Y long
#define DEEP 1
typedef struct {
    VEC(KEY) key, at;
} FN(lanes);
typedef struct {
    long key, at;
} FN(part);

#elif defined(EXTREMUM)
#define KEYS
#define M BITS
#define Y BITS
#define DEEP 1
typedef VEC(KEY) FN(lanes);
typedef KEY FN(part);

#else
#define M BITS
#define Y long
#define DEEP 1
typedef VEC(long) FN(lanes);
typedef long FN(part);
#endif

#define L FN(lanes)
#define PART FN(part)

/* ---- lanes: nothing yet, one more value in each, and one by one */

L FN(first)(void) {
    L a;
#ifdef SUMS
#ifdef VAR
    a.d = wide_nothing();
#endif
    for (int k = 0; k < SCALES; k++) a.s[k] = wide_nothing();
#elif defined(ARGS)
    a.key = (VEC(KEY))LOWEST;
    a.at = (VEC(KEY))0;
#elif defined(KEYS)
    a = (VEC(KEY))LOWEST;
#else
    a = (VEC(long))0;
#endif
    return a;
}

#if defined(ARGS) || defined(KEYS)
VEC(KEY) FN(key)(VEC(BITS) x, KEY down) {
#ifdef FLOAT
    VEC(KEY) flip;
#ifdef ARGS
    x = (x == (VEC(KEY))LOWEST) ? (VEC(KEY))0 : x; /* -0 is 0 */
#endif
    flip = (x < (VEC(KEY))0) ? (VEC(KEY))(HIGHEST ^ down) : (VEC(KEY))down;
    return ((x & (VEC(KEY))HIGHEST) > (VEC(KEY))INFINITE) ? (VEC(KEY))HIGHEST : x ^ flip;
#else
    return CONVERT(KEY, x) ^ (VEC(KEY))down;
#endif
}
#endif

/* group: how many values a lane has seen */
L FN(add)(L a, VEC(M) x, int group
#ifdef DOT
          , VEC(M) b
#elif defined(VAR)
          , wide m
#elif defined(ARGS) || defined(KEYS)
          , KEY down
#endif
) {
#ifdef DOT
    x = x * b;
#elif defined(NANSUM)
    x = (x == x) ? x : (VEC(M))0;
#endif
#if defined(SUM) || defined(NANSUM) || defined(DOT)
    a.s[0] = WIDE_ADD(a.s[0], x);
#if SCALES > 1
    a.s[1] = WIDE_ADD(a.s[1], x * 0x1p-64f);
#endif
#elif defined(SUMS) && defined(FP64)
    wide c = CONVERT(double, x);
#ifdef VAR
    c -= m;
    a.d += c;
#endif
    a.s[0] += c * c;
#elif defined(SUMS)
#ifdef VAR
    x = (x - m.hi) - m.lo;
    a.d = WIDE_ADD(a.d, x);
#endif
    VEC(float) small = x * 0x1p-64f, large = x * 0x1p64f;
    a.s[0] = WIDE_ADD(a.s[0], x * x);
    a.s[1] = WIDE_ADD(a.s[1], small * small);
    a.s[2] = WIDE_ADD(a.s[2], large * large);
#elif defined(ARGS)
    VEC(KEY) key = FN(key)(x, down);
    a.at = (key > a.key) ? (VEC(KEY))group : a.at;
    a.key = (key > a.key) ? key : a.key;
#elif defined(KEYS)
    VEC(KEY) key = FN(key)(x, down);
    a = (key > a) ? key : a;
#elif defined(ISUM)
    a += CONVERT(long, x);
#else
#ifdef FLOAT
    x &= (VEC(BITS))HIGHEST;
#endif
    x = (x != (VEC(BITS))0) ? (VEC(BITS))1 : (VEC(BITS))0;
    a += CONVERT(long, x);
#endif
    return a;
}

/* lane: the first of them; stride: how far values of one lane are apart */
void FN(split)(PART *to, L a, int lane, int stride) {
#ifdef SUMS
    wide1 one[W];
#ifdef VAR
    wide_split(one, a.d);
    for (int j = 0; j < W; j++) to[j].d = one[j];
#endif
    for (int k = 0; k < SCALES; k++) {
        wide_split(one, a.s[k]);
        for (int j = 0; j < W; j++) to[j].s[k] = one[j];
    }
#elif defined(ARGS)
    KEY key[W], at[W];
    STORE_W(a.key, key);
    STORE_W(a.at, at);
    for (int j = 0; j < W; j++) to[j].key = key[j], to[j].at = (long)at[j] * stride + (stride > 1 ? lane + j : 0);
#else
    STORE_W(a, to);
#endif
}

PART FN(join)(PART a, PART b) {
#ifdef SUMS
#ifdef VAR
    a.d = WIDE_JOIN(a.d, b.d);
#endif
    for (int k = 0; k < SCALES; k++) a.s[k] = WIDE_JOIN(a.s[k], b.s[k]);
    return a;
#elif defined(ARGS)
    return b.key > a.key || (b.key == a.key && b.at < a.at) ? b : a;
#elif defined(KEYS)
    return b > a ? b : a;
#else
    return a + b;
#endif
}

/* ---- the root of a row */

/* A NaN that comes out is always the same one; compilers would take a select of floats for x. */
#define BITS_OF(x) ((x) == (x) ? CAT(as_, BITS)(x) : QUIET_NAN)

#ifdef VAR
BITS FN(value)(PART a, long n, REAL divisor, int how) {
    REAL q = WIDE_VALUE(a.s[0]), d = WIDE_VALUE(a.d), scale = 1, total;
#if SCALES > 1
    if (q - q != 0.0f) q = WIDE_VALUE(a.s[1]), scale = 0x1p-64f;
    else if (q < 0x1p-60f) q = WIDE_VALUE(a.s[2]), scale = 0x1p64f;
#endif
    d *= scale;
    total = q - d * d / (REAL)n;
    if (total <= 4 * EPSILON * q) total = 0; /* below the rounding of q: equal values have variance 0 */
    total = divisor > 0 ? total / divisor : (REAL)NAN;
    total = how == ROOT ? sqrt(total) / scale : total / scale / scale;
    return BITS_OF((T)total);
}
#elif defined(SUMS)
BITS FN(value)(PART a, long n, REAL divisor, int how) {
    REAL sum = WIDE_VALUE(a.s[0]), scale = 1;
#if SCALES > 1
    if (sum - sum != 0.0f) sum = WIDE_VALUE(a.s[1]), scale = 0x1p64f;
#if SCALES > 2
    else if (sum < 0x1p-60f) sum = WIDE_VALUE(a.s[2]), scale = 0x1p-64f;
#endif
#endif
    if (how == MEAN) sum /= (REAL)n;
    if (how == ROOT) sum = sqrt(sum);
    sum *= scale;
    return BITS_OF((T)sum);
}
#elif defined(ARGS)
#define VALUE(a) ((a).at)
#elif defined(KEYS)
BITS FN(value)(KEY key, KEY down) {
#ifdef FLOAT
    if (key == HIGHEST) return QUIET_NAN;
    key ^= down;
    return key < 0 ? key ^ HIGHEST : key;
#else
    return (BITS)(key ^ down);
#endif
}
#define VALUE(a) FN(value)(a, (KEY)how)
#else
#define VALUE(a) (a)
#endif

/* The root of a row becomes y's element; how: PLAIN, MEAN or ROOT, RAW: m for VAR, not rounded to T; for counts PLAIN,
   ANY or ALL; for keys down. */
void FN(finish)(__global Y *y, long at, PART a, long n, REAL divisor, int how) {
#if defined(SUMS)
#ifndef VAR
    if (how == RAW) {
        __global wide1 *m = (__global wide1 *)y;
#ifdef FP64
        m[at] = a.s[0] / (double)n;
#else
        m[at].hi = as_float(FN(value)(a, n, divisor, MEAN));
        m[at].lo = 0.0f;
#endif
        return;
    }
#endif
    y[at] = FN(value)(a, n, divisor, how);
#else
#if !defined(ARGS) && !defined(KEYS)
    if (how == ANY || how == ALL) {
        ((__global uchar *)y)[at] = how == ANY ? a != 0 : a == n;
        return;
    }
#endif
    y[at] = VALUE(a);
#endif
}

/* ---- chunks. A unit is (chunk, row), rows in (outer, inner): x[o * so + c * sc + i * sn]. With one chunk the result is
   written, else the parts as (chunks, rows). columns: neighbours in a work-group take neighbouring rows. */

#ifdef DOT
#define MORE_PARAMETERS __global const T *b, long bo, long bso, long bsc, long bsn,
#elif defined(VAR)
#define MORE_PARAMETERS __global const wide1 *m,
#else
#define MORE_PARAMETERS
#endif

/* W values, a stride apart. */
VEC(M) FN(gather)(__global const M *x, long stride) {
    M v[W];
    for (int j = 0; j < W; j++) v[j] = x[j * stride];
    return LOAD_W(v);
}

/* The first `count` of them, then the last one of those again. */
VEC(M) FN(gather_some)(__global const M *x, long stride, long count) {
    M v[W];
    for (int j = 0; j < W; j++) {
        v[j] = *x;
        if (j + 1 < count) x += stride;
    }
    return LOAD_W(v);
}

#ifdef DOT
#define ADD(a, of, at, group) FN(add)(a, of(x, at, sn), group, of(b, at, bsn))
#define RUN (sn == 1 && bsn == 1)
#elif defined(VAR)
#define ADD(a, of, at, group) FN(add)(a, of(x, at, sn), group, m)
#define RUN (sn == 1)
#elif defined(ARGS) || defined(KEYS)
#define ADD(a, of, at, group) FN(add)(a, of(x, at, sn), group, down)
#define RUN (sn == 1)
#else
#define ADD(a, of, at, group) FN(add)(a, of(x, at, sn), group)
#define RUN (sn == 1)
#endif
#define NEXT(x, at, step) LOAD_W(x + (at))
#define EACH(x, at, step) FN(gather)(x + (at) * step, step)
#define SOME(x, at, step) FN(gather_some)(x + (at) * step, step, count - (at))

/* The lanes from `lane` on of one chunk. */
void FN(chunk)(PART *to, __global const M *x, long sn,
#ifdef DOT
               __global const M *b, long bsn,
#elif defined(VAR)
               wide m,
#elif defined(ARGS) || defined(KEYS)
               KEY down,
#endif
               long count, int lane) {
    L a = FN(first)();
    long i = lane;
    int group = 0;
    if (RUN)
        for (; i + W <= count; i += LANES, group++) a = ADD(a, NEXT, i, group);
    else
        for (; i + W <= count; i += LANES, group++) a = ADD(a, EACH, i, group);
    FN(split)(to, a, lane, LANES);
    if (i < count) {
        PART more[W];
        a = ADD(a, SOME, i, group);
        FN(split)(more, a, lane, LANES);
        for (int j = 0; j < W; j++)
            if (i + j < count) to[j] = more[j];
    }
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void FN(rows)(
    __global const M *x, long xo, long so, long sc, long sn, MORE_PARAMETERS __global PART *parts, __global Y *y, long yo,
    long rows, long inner, long n, long chunks, long per, int columns, int how, REAL divisor) {
    const long units = rows * chunks;
    const int id = get_local_id(0);
#if ITEMS > 1
    __local PART shared[UNITS * LANES];
    const int by_units = id / UNITS, by_items = id / ITEMS;
    const int item = columns ? by_units : REMAINDER(id, ITEMS, by_items);
    const int place = columns ? REMAINDER(id, UNITS, by_units) : by_items;
    __local PART *lanes = shared + place * LANES;
#else
    const int item = 0, place = 0;
    PART lanes[LANES];
#endif
    for (long k = 0; k < per; k++) {
        const long own = ((long)get_group_id(0) * per + k) * UNITS + place;
        const long unit = own < units ? own : units - 1; /* at the end some do the last one again, for the barriers */
        const long chunk = unit / rows, row = unit - chunk * rows, o = row / inner, c = row - o * inner;
        const long start = chunk * CHUNK, count = n - start < CHUNK ? n - start : CHUNK;
        PART one[W];
#ifdef VAR
        wide mean;
#ifdef FP64
        mean = (wide)m[row];
#else
        mean.hi = (VEC(float))m[row].hi;
        mean.lo = (VEC(float))m[row].lo;
#endif
        FN(chunk)(one, x + xo + o * so + c * sc + start * sn, sn, mean, count, item * W);
#elif defined(DOT)
        FN(chunk)(one, x + xo + o * so + c * sc + start * sn, sn, b + bo + o * bso + c * bsc + start * bsn, bsn, count,
                  item * W);
#elif defined(ARGS) || defined(KEYS)
        FN(chunk)(one, x + xo + o * so + c * sc + start * sn, sn, (KEY)how, count, item * W);
#else
        FN(chunk)(one, x + xo + o * so + c * sc + start * sn, sn, count, item * W);
#endif
        for (int j = 0; j < W; j++) lanes[item * W + j] = one[j];
        for (int span = LANES / 2; span > 0; span /= 2) {
#if ITEMS > 1
            barrier(CLK_LOCAL_MEM_FENCE);
#endif
            for (int j = item; j < span; j += ITEMS) lanes[j] = FN(join)(lanes[j], lanes[j + span]);
        }
        if (item == 0 && own < units) {
            PART root = lanes[0];
#ifdef ARGS
            root.at += start;
#endif
            if (chunks == 1) FN(finish)(y, yo + row, root, n, divisor, how);
            else parts[unit] = root;
        }
#if ITEMS > 1
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
    }
}

#if W == LANES
/* The same where neighbouring rows are neighbours in memory and elements of a row are not, or where rows are short: a
   vector holds W rows, and the lanes are vectors. BLOCK rows at a time, so that a page is read once. */
#define VECTORS (BLOCK / W)
#ifdef DOT
#define ADD_COLUMNS(a, of, i, v, group) FN(add)(a, of(p, i, sn, sc, v), group, of(q, i, bsn, bsc, v))
#define BESIDE ((sc == 1 || sc == 0) && (bsc == 1 || bsc == 0)) /* 0: a vector times a matrix */
#elif defined(VAR)
#define ADD_COLUMNS(a, of, i, v, group) FN(add)(a, of(p, i, sn, sc, v), group, mean[v])
#define BESIDE (sc == 1)
#elif defined(ARGS) || defined(KEYS)
#define ADD_COLUMNS(a, of, i, v, group) FN(add)(a, of(p, i, sn, sc, v), group, (KEY)how)
#define BESIDE (sc == 1)
#else
#define ADD_COLUMNS(a, of, i, v, group) FN(add)(a, of(p, i, sn, sc, v), group)
#define BESIDE (sc == 1)
#endif
#ifdef DOT
#define BESIDE_OF(x, i, down, step, v) (step ? LOAD_W(x + (i) * down + (v) * W) : (VEC(M))(x[(i) * down]))
#else
#define BESIDE_OF(x, i, down, step, v) LOAD_W(x + (i) * down + (v) * W)
#endif
#define APART_OF(x, i, down, step, v) FN(gather)(x + (i) * down + (v) * W * step, step)
#define SOME_OF(x, i, down, step, v) FN(gather_some)(x + (i) * down + (v) * W * step, step, width - (v) * W)
#define GO_DOWN(of, vectors)                                                                              \
    do {                                                                                                  \
        for (; i + DEEP <= count; i += DEEP)                                                              \
            for (int l = 0; l < DEEP; l++)                                                                \
                for (int v = 0; v < (vectors); v++)                                                       \
                    lane[l][v] = ADD_COLUMNS(lane[l][v], of, i + l, v, (int)i);                           \
        for (int l = 0; i + l < count; l++)                                                               \
            for (int v = 0; v < (vectors); v++) lane[l][v] = ADD_COLUMNS(lane[l][v], of, i + l, v, (int)i); \
    } while (0)

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void FN(columns)(
    __global const M *x, long xo, long so, long sc, long sn, MORE_PARAMETERS __global PART *parts, __global Y *y, long yo,
    long rows, long inner, long n, long chunks, long per, int columns, int how, REAL divisor) {
    const long blocks = (inner + BLOCK - 1) / BLOCK, slice = rows / inner * blocks, units = slice * chunks;
    const long first = (long)get_group_id(0) * per, last = first + per < units ? first + per : units;
    for (long unit = first; unit < last; unit++) {
        const long chunk = unit / slice, place = unit - chunk * slice, o = place / blocks, c = (place - o * blocks) * BLOCK;
        const long row = o * inner + c, start = chunk * CHUNK, count = n - start < CHUNK ? n - start : CHUNK;
        const int width = inner - c < BLOCK ? (int)(inner - c) : BLOCK, vectors = (width + W - 1) / W;
        __global const M *p = x + xo + o * so + c * sc + start * sn;
        L lane[DEEP][VECTORS];
        long i = 0;
#ifdef DOT
        __global const M *q = b + bo + o * bso + c * bsc + start * bsn;
#elif defined(VAR)
        wide mean[VECTORS];
        for (int v = 0; v < vectors; v++) {
#ifdef FP64
            double means[W];
            for (int j = 0; j < W; j++) means[j] = m[row + (v * W + j < width ? v * W + j : 0)];
            mean[v] = LOAD_W(means);
#else
            float hi[W], lo[W];
            for (int j = 0; j < W; j++) {
                hi[j] = m[row + (v * W + j < width ? v * W + j : 0)].hi;
                lo[j] = m[row + (v * W + j < width ? v * W + j : 0)].lo;
            }
            mean[v].hi = LOAD_W(hi);
            mean[v].lo = LOAD_W(lo);
#endif
        }
#endif
        for (int l = 0; l < DEEP; l++)
            for (int v = 0; v < VECTORS; v++) lane[l][v] = FN(first)();
        if (width == BLOCK && BESIDE) GO_DOWN(BESIDE_OF, VECTORS);
        else if (width == BLOCK) GO_DOWN(APART_OF, VECTORS);
        else GO_DOWN(SOME_OF, vectors);
        for (int v = 0; v < vectors; v++) {
            PART one[W];
#ifdef SUMS
            for (int span = DEEP / 2; span > 0; span /= 2)
                for (int l = 0; l < span; l++) {
#ifdef VAR
                    lane[l][v].d = WIDE_JOIN_W(lane[l][v].d, lane[l + span][v].d);
#endif
                    for (int k = 0; k < SCALES; k++)
                        lane[l][v].s[k] = WIDE_JOIN_W(lane[l][v].s[k], lane[l + span][v].s[k]);
                }
#endif
            FN(split)(one, lane[0][v], 0, 1);
            for (int j = 0; j < W && v * W + j < width; j++) {
                const long at = row + v * W + j;
#ifdef ARGS
                one[j].at += start;
#endif
                if (chunks == 1) FN(finish)(y, yo + at, one[j], n, divisor, how);
                else parts[chunk * rows + at] = one[j];
            }
        }
    }
}
#undef VECTORS
#undef ADD_COLUMNS
#undef BESIDE
#undef BESIDE_OF
#undef APART_OF
#undef SOME_OF
#undef GO_DOWN
#endif

/* FAN parts of a row, neighbours in its tree, become one; where that is the last one, y's element. */
__kernel void FN(parts)(__global const PART *from, __global PART *to, __global Y *y, long yo, long rows, long n, long count,
                        int how, REAL divisor) {
    const long unit = get_global_id(0), block = unit / rows, row = unit - block * rows;
    const long start = block * FAN, many = count - start < FAN ? count - start : FAN;
    if (start >= count) return;
    PART stack[8], a; /* stack[k]: 2^k parts joined, where bit k of the number of parts so far is set */
    for (int p = 0; p < many; p++) {
        a = from[(start + p) * rows + row];
        int level = 0;
        for (; p >> level & 1; level++) a = FN(join)(stack[level], a);
        stack[level] = a;
    }
    int level = 0;
    while (!(many >> level & 1)) level++;
    a = stack[level];
    for (level++; many >> level; level++)
        if (many >> level & 1) a = FN(join)(stack[level], a);
    if (count <= FAN) FN(finish)(y, yo + row, a, n, divisor, how);
    else to[unit] = a;
}

#undef NAME
#undef SUM
#undef NANSUM
#undef NORM
#undef DOT
#undef VAR
#undef ISUM
#undef COUNT
#undef EXTREMUM
#undef POSITION
#undef SUMS
#undef ARGS
#undef KEYS
#undef BLOCK
#undef FN
#undef M
#undef Y
#undef DEEP
#undef SCALES
#undef L
#undef PART
#undef VALUE
#undef BITS_OF
#undef MORE_PARAMETERS
#undef ADD
#undef NEXT
#undef EACH
#undef SOME
#undef RUN
