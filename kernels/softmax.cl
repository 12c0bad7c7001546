/* softmax, log_softmax, logsumexp, cross_entropy, its rule, and layer_norm: rows of n elements, after lanes.cl; with the
   name of one of them, in capitals, defined. What is computed and in which order is that of csrc/softmax.h and
   csrc/norm.h; lanes are joined by halves, so the bits depend on n and on the number of lanes.

   A work-item has W of the LANES of a row, and goes through it W elements at a time, LANES apart. Rows are
   (outer, inner): x[o * so + c * sc + j * sn]; y is contiguous. */

#if ITEMS > 1
#define SHARED __local
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)
#else
#define SHARED
#define SYNC
#endif
typedef VEC(T) V;

/* Elements of a row from p on, `left` of them there; the last one stands for those beyond. */
V load(__global const T *p, long step, long left) {
    T v[W];
    if (left >= W && step == 1) return LOAD_W(p);
    if (left >= W) {
        for (int j = 0; j < W; j++) v[j] = p[j * step];
        return LOAD_W(v);
    }
    for (int j = 0; j < W; j++) {
        v[j] = *p;
        if (j + 1 < left) p += step;
    }
    return LOAD_W(v);
}

void store(V v, __global T *p, long left) {
    if (left >= W) {
        STORE_W(v, p);
        return;
    }
    T one[W];
    STORE_W(v, one);
    for (int j = 0; j < W; j++)
        if (j < left) p[j] = one[j];
}

/* v with 0 for what is beyond the row. */
V within(V v, long left) {
    if (left >= W) return v;
    T one[W];
    STORE_W(v, one);
    for (int j = 0; j < W; j++)
        if (j >= left) one[j] = 0;
    return LOAD_W(one);
}

/* What the lanes of a row come to, for all of its work-items. */
wide1 total(SHARED wide1 *lanes, wide sum, int item) {
    wide1 one[W];
    wide_split(one, sum);
    SYNC;
    for (int j = 0; j < W; j++) lanes[item * W + j] = one[j];
    for (int span = LANES / 2; span > 0; span /= 2) {
        SYNC;
        for (int j = item; j < span; j += ITEMS) lanes[j] = WIDE_JOIN(lanes[j], lanes[j + span]);
    }
    SYNC;
    return lanes[0];
}

T largest(SHARED T *lanes, V most, int item) {
    T one[W];
    STORE_W(most, one);
    SYNC;
    for (int j = 0; j < W; j++) lanes[item * W + j] = one[j];
    for (int span = LANES / 2; span > 0; span /= 2) {
        SYNC;
        for (int j = item; j < span; j += ITEMS) lanes[j] = lanes[j + span] > lanes[j] ? lanes[j + span] : lanes[j];
    }
    SYNC;
    return lanes[0];
}

#define EACH(j) for (long j = item * W; j < n; j += LANES)

/* The largest element that is not NaN; -inf for none. */
T row_largest(SHARED T *lanes, __global const T *x, long sn, long n, int item) {
    V most = (V)(-INFINITY);
    EACH(j) {
        const V v = load(x + j * sn, sn, n - j);
        most = (v > most) ? v : most;
    }
    return largest(lanes, most, item);
}

/* The sum of exp(x - most). */
wide1 row_exp_sum(SHARED wide1 *lanes, __global const T *x, long sn, T most, long n, int item) {
    wide sum = wide_nothing();
    EACH(j) sum = WIDE_ADD(sum, within(exp(load(x + j * sn, sn, n - j) - most), n - j));
    return total(lanes, sum, item);
}

/* The maximum where it is finite, else 0. */
#define FINITE(m) ((m) - (m) == 0 ? (m) : (T)0)

#define ROWS_PARAMETERS \
    __global const T *x, long xo, long so, long sc, long sn, __global T *y, long yo, long rows, long inner, long n, long per
#if ITEMS > 1
#define ROWS_MEMORY                                                                         \
    __local wide1 all_sums[UNITS * LANES];                                                  \
    __local T all_most[UNITS * LANES];                                                      \
    const int place = (int)get_local_id(0) / ITEMS;                                         \
    const int item = REMAINDER((int)get_local_id(0), ITEMS, place);                         \
    __local wide1 *sums = all_sums + place * LANES;                                         \
    __local T *lanes = all_most + place * LANES;
#else
#define ROWS_MEMORY                      \
    wide1 sums[LANES];                   \
    T lanes[LANES];                      \
    const int item = 0, place = 0;
#endif
/* At the end some work-items do the last row again, for the barriers, and write the same. */
#define EACH_ROW                                                                                              \
    for (long k = 0; k < per; k++) {                                                                          \
        const long own = ((long)get_group_id(0) * per + k) * UNITS + place, row = own < rows ? own : rows - 1; \
        const bool mine = own < rows;                                                                         \
        const long outer = row / inner;                                                                       \
        __global const T *p = x + xo + outer * so + REMAINDER(row, inner, outer) * sc;
#define END_ROW }
#define KERNEL __kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))

#ifdef SOFTMAX
KERNEL void softmax(ROWS_PARAMETERS) {
    ROWS_MEMORY
    EACH_ROW
        const T most = row_largest(lanes, p, sn, n, item);
        __global T *to = y + yo + row * n;
        wide sum = wide_nothing();
        EACH(j) {
            const V e = exp(load(p + j * sn, sn, n - j) - most);
            if (mine) store(e, to + j, n - j);
            sum = WIDE_ADD(sum, within(e, n - j));
        }
        const T scale = (T)(1 / WIDE_VALUE(total(sums, sum, item)));
        if (mine) EACH(j) store(load(to + j, 1, n - j) * scale, to + j, n - j);
    END_ROW
}
#endif

#ifdef LOG_SOFTMAX
KERNEL void log_softmax(ROWS_PARAMETERS) {
    ROWS_MEMORY
    EACH_ROW
        const T found = row_largest(lanes, p, sn, n, item), most = FINITE(found);
        const T log_sum = (T)log(WIDE_VALUE(row_exp_sum(sums, p, sn, most, n, item)));
        if (mine) EACH(j) store((load(p + j * sn, sn, n - j) - most) - log_sum, y + yo + row * n + j, n - j);
    END_ROW
}
#endif

#ifdef LOGSUMEXP
KERNEL void logsumexp(ROWS_PARAMETERS) {
    ROWS_MEMORY
    EACH_ROW
        const T found = row_largest(lanes, p, sn, n, item), most = FINITE(found);
        const REAL log_sum = log(WIDE_VALUE(row_exp_sum(sums, p, sn, most, n, item)));
        if (mine && item == 0) y[yo + row] = (T)((REAL)most + log_sum);
    END_ROW
}
#endif

#ifdef CROSS_ENTROPY
/* What reduce.cl's sum joins. */
typedef struct {
    wide1 s[SCALES];
} part;

/* losses[row] = log of the sum + (most - x[label]): what lse - x[label] loses below eps * |x| is kept. */
KERNEL void cross_entropy(ROWS_PARAMETERS, __global const long *labels, long lo, __global part *losses, __global int *bad) {
    ROWS_MEMORY
    EACH_ROW
        const T found = row_largest(lanes, p, sn, n, item), most = FINITE(found);
        const REAL log_sum = log(WIDE_VALUE(row_exp_sum(sums, p, sn, most, n, item)));
        const long label = labels[lo + row];
        if (mine && item == 0) {
            const bool there = label >= 0 && label < n; /* else the host raises, and the loss is nobody's */
            const T own = there ? p[label * sn] : (T)0;
            if (!there) atomic_or(bad, 1);
            losses[row].s[0] = WIDE_JOIN(WIDE_OF(log_sum), WIDE_JOIN(WIDE_OF(most), WIDE_OF(-own)));
#if SCALES > 1
            losses[row].s[1] = WIDE_OF(WIDE_VALUE(losses[row].s[0]) * 0x1p-64f);
#endif
        }
    END_ROW
}
#endif

#ifdef CROSS_ENTROPY_VJP
KERNEL void cross_entropy_vjp(
    ROWS_PARAMETERS, __global const long *labels, long lo, __global const T *g, long go, __global int *bad) {
    ROWS_MEMORY
    const T share = g[go] / (T)rows;
    EACH_ROW
        const T found = row_largest(lanes, p, sn, n, item), most = FINITE(found);
        const REAL sum = WIDE_VALUE(row_exp_sum(sums, p, sn, most, n, item));
        const T inverse = sum > 0 && sum - sum == 0 ? (T)(1 / sum) : (T)NAN;
        const long label = labels[lo + row];
        if (mine && item == 0 && (label < 0 || label >= n)) atomic_or(bad, 1);
        if (mine) EACH(j) {
            V e = exp(load(p + j * sn, sn, n - j) - most) * inverse;
            if (label >= j && label < j + W) { /* p - 0 is p: only the label's element is subtracted from */
                T one[W];
                STORE_W(e, one);
                one[label - j] -= 1;
                e = LOAD_W(one);
            }
            store(share == 0 ? (V)0 : e * share, y + yo + row * n + j, n - j);
        }
    END_ROW
}
#endif

#ifdef LAYER_NORM
KERNEL void layer_norm(
    ROWS_PARAMETERS, __global const T *weight, long wo, __global const T *bias, long bo, int given, REAL eps, int centred) {
    ROWS_MEMORY
    EACH_ROW
        T mean = 0;
        wide sum = wide_nothing();
        if (centred) {
            EACH(j) sum = WIDE_ADD(sum, within(load(p + j * sn, sn, n - j), n - j));
            mean = (T)(WIDE_VALUE(total(sums, sum, item)) / n);
        }
        sum = wide_nothing();
        EACH(j) {
            const V c = within(load(p + j * sn, sn, n - j) - mean, n - j);
            sum = WIDE_ADD(sum, c * c);
        }
        const T square = (T)(WIDE_VALUE(total(sums, sum, item)) / n), scale = 1 / sqrt(square + (T)eps);
        if (mine) EACH(j) {
            V v = (load(p + j * sn, sn, n - j) - mean) * scale;
            if (given > 0) v = v * load(weight + wo + j, 1, n - j);
            if (given > 1) v = v + load(bias + bo + j, 1, n - j);
            store(v, y + yo + row * n + j, n - j);
        }
    END_ROW
}
#endif
