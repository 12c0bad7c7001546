/* Running reductions of (outer, n, inner) along n: sum, log of a sum of exponentials, product, maximum, and the
   first-order recurrence that is the adjoint of the last but two.

   The bits depend on the position along n and the values alone: not on outer, inner, direction of memory, vectors,
   threads or level. float32 is computed in float64 and rounded at each element.
   - Sums go by blocks of TPF_SCAN_BLOCK elements: a running sum inside of each, added to that of the blocks before
     it. So rounding grows with n / TPF_SCAN_BLOCK, and the blocks of one line can be worked on side by side.
   - Products, maxima and recurrences run from element to element: a product of parts could be 0 times infinity
     where the running one is 0. Several lines are worked on side by side. */

#define TPF_SCAN_BLOCK 64
#define TPF_SCAN_LINES 8               /* blocks or lines at once, so that no operation waits for the one before */
#define TPF_SCAN_WIDTH 256             /* most columns at once: what is carried stays in L1 */
#define TPF_SCAN_COLUMNS 16            /* from so many on, columns fill the vectors; fewer are lines */
#define TPF_SCAN_PARALLEL (256 << 10) /* elements from which threads that are awake pay, divided by what one costs */
#define TPF_SCAN_WAKES (1 << 20)      /* and from which it pays to wake them */

typedef struct {
    const tpf_scan_call *call;
    int64_t width, blocks; /* of a unit: a block of columns, or TPF_SCAN_LINES lines (then width is 0) */
} tpf_scan_job;

/* A unit's first element, and how many columns it has. */
TPF_INLINE int64_t tpf_scan_place(const tpf_scan_job *job, int64_t unit, int64_t *width) {
    const tpf_scan_call *c = job->call;
    int64_t o = unit / job->blocks, column = (unit - o * job->blocks) * job->width;
    *width = c->inner - column < job->width ? c->inner - column : job->width;
    return o * c->n * c->inner + column + (c->reverse ? (c->n - 1) * c->inner : 0);
}

/* The first elements of the lines of a unit; how many they are. */
TPF_INLINE int tpf_scan_bases(const tpf_scan_job *job, int64_t unit, int64_t *base) {
    const tpf_scan_call *c = job->call;
    int64_t line = unit * TPF_SCAN_LINES, end = c->outer * c->inner;
    int count = 0;
    for (; count < TPF_SCAN_LINES && line < end; count++, line++)
        base[count] = line / c->inner * c->n * c->inner + line % c->inner + (c->reverse ? (c->n - 1) * c->inner : 0);
    return count;
}

static void tpf_scan_run(const tpf_scan_call *call, tpf_range units, int64_t cost) {
    tpf_scan_job job = {.call = call, .blocks = 1};
    int64_t count, size = call->outer * call->n * call->inner;
    if (call->inner < TPF_SCAN_COLUMNS) {
        count = (call->outer * call->inner - 1) / TPF_SCAN_LINES + 1;
    } else {
        job.width = call->inner < TPF_SCAN_WIDTH ? call->inner : TPF_SCAN_WIDTH;
        job.blocks = (call->inner - 1) / job.width + 1;
        count = call->outer * job.blocks;
    }
    if (size * cost < TPF_SCAN_PARALLEL || count == 1)
        units(&job, 0, count);
    else
        TPF_SHARE(size * cost, TPF_SCAN_WAKES)(units, &job, count, count * (TPF_SCAN_PARALLEL / 4) / (size * cost) + 1);
}

/* ---- in blocks: JOIN(a, b) of what was carried and what follows; JOIN(FIRST, a) is a ---- */

/* The blocks are transposed, so that a vector holds one element of each; what is missing in the last ones is FIRST. */
#define TPF_SCAN_BLOCKED(name, T, A, FIRST, JOIN, COST)                                                         \
    TPF_INLINE A name##_blocks(T *y, const T *x, A before, int64_t count, int64_t step) {                       \
        A all[TPF_SCAN_BLOCK * TPF_SCAN_LINES], last[TPF_SCAN_LINES], start[TPF_SCAN_LINES];                    \
        int64_t full = count / TPF_SCAN_BLOCK;                                                                  \
        for (int i = 0; i < TPF_SCAN_BLOCK * TPF_SCAN_LINES; i++) all[i] = FIRST;                               \
        for (int j = 0; j < TPF_SCAN_LINES; j++) {                                                              \
            int64_t rows = j < full ? TPF_SCAN_BLOCK : j == full ? count % TPF_SCAN_BLOCK : 0;                  \
            for (int64_t i = 0; i < rows; i++)                                                                  \
                all[i * TPF_SCAN_LINES + j] = (A)x[(j * TPF_SCAN_BLOCK + i) * step];                            \
            last[j] = FIRST;                                                                                    \
        }                                                                                                       \
        for (int i = 0; i < TPF_SCAN_BLOCK; i++)                                                                \
            TPF_IVDEP for (int j = 0; j < TPF_SCAN_LINES; j++) {                                                \
                A a = JOIN(last[j], all[i * TPF_SCAN_LINES + j]);                                               \
                last[j] = a;                                                                                    \
                all[i * TPF_SCAN_LINES + j] = a;                                                                \
            }                                                                                                   \
        for (int j = 0; j < TPF_SCAN_LINES; j++) {                                                              \
            start[j] = before;                                                                                  \
            before = JOIN(before, last[j]);                                                                     \
        }                                                                                                       \
        for (int i = 0; i < TPF_SCAN_BLOCK; i++)                                                                \
            TPF_IVDEP for (int j = 0; j < TPF_SCAN_LINES; j++)                                                  \
                all[i * TPF_SCAN_LINES + j] = JOIN(start[j], all[i * TPF_SCAN_LINES + j]);                      \
        for (int j = 0; j < TPF_SCAN_LINES; j++) {                                                              \
            int64_t rows = j < full ? TPF_SCAN_BLOCK : j == full ? count % TPF_SCAN_BLOCK : 0;                  \
            for (int64_t i = 0; i < rows; i++)                                                                  \
                y[(j * TPF_SCAN_BLOCK + i) * step] = (T)all[i * TPF_SCAN_LINES + j];                            \
        }                                                                                                       \
        return before;                                                                                          \
    }                                                                                                           \
    TPF_INLINE void name##_line(T *y, const T *x, int64_t n, int64_t step) {                                    \
        A before = FIRST;                                                                                       \
        if (n <= TPF_SCAN_BLOCK) {                                                                              \
            for (int64_t i = 0; i < n; i++) {                                                                   \
                before = JOIN(before, (A)x[i * step]);                                                          \
                y[i * step] = (T)before;                                                                        \
            }                                                                                                   \
            return;                                                                                             \
        }                                                                                                       \
        for (int64_t i = 0; i < n; i += TPF_SCAN_BLOCK * TPF_SCAN_LINES) {                                      \
            int64_t left = n - i < TPF_SCAN_BLOCK * TPF_SCAN_LINES ? n - i : TPF_SCAN_BLOCK * TPF_SCAN_LINES;   \
            before = name##_blocks(y + i * step, x + i * step, before, left, step);                             \
        }                                                                                                       \
    }                                                                                                           \
    static void name##_columns(T *y, const T *x, int64_t n, int64_t width, int64_t step) {                      \
        A before[TPF_SCAN_WIDTH], last[TPF_SCAN_WIDTH];                                                         \
        for (int64_t c = 0; c < width; c++) before[c] = FIRST;                                                  \
        for (int64_t i = 0; i < n; i += TPF_SCAN_BLOCK) {                                                       \
            int64_t end = n - i < TPF_SCAN_BLOCK ? n : i + TPF_SCAN_BLOCK;                                      \
            for (int64_t c = 0; c < width; c++) last[c] = FIRST;                                                \
            for (int64_t k = i; k < end; k++) {                                                                 \
                const T *row = x + k * step;                                                                    \
                T *out = y + k * step;                                                                          \
                TPF_IVDEP for (int64_t c = 0; c < width; c++) {                                                 \
                    A all = JOIN(last[c], (A)row[c]);                                                           \
                    last[c] = all;                                                                              \
                    out[c] = (T)JOIN(before[c], all);                                                           \
                }                                                                                               \
            }                                                                                                   \
            for (int64_t c = 0; c < width; c++) before[c] = JOIN(before[c], last[c]);                           \
        }                                                                                                       \
    }                                                                                                           \
    static void name##_units(void *ctx, int64_t begin, int64_t end) {                                           \
        const tpf_scan_job *job = ctx;                                                                          \
        T *y = job->call->y;                                                                                    \
        const T *x = job->call->x;                                                                              \
        int64_t n = job->call->n, width, base[TPF_SCAN_LINES];                                                  \
        int64_t step = job->call->reverse ? -job->call->inner : job->call->inner;                               \
        for (int64_t unit = begin; unit < end; unit++) {                                                        \
            if (job->width) {                                                                                   \
                int64_t at = tpf_scan_place(job, unit, &width);                                                 \
                name##_columns(y + at, x + at, n, width, step);                                                 \
                continue;                                                                                       \
            }                                                                                                   \
            int lines = tpf_scan_bases(job, unit, base);                                                        \
            for (int j = 0; j < lines; j++) {                                                                   \
                if (step == 1)                                                                                  \
                    name##_line(y + base[j], x + base[j], n, 1);                                                \
                else if (step == -1)                                                                            \
                    name##_line(y + base[j], x + base[j], n, -1);                                               \
                else                                                                                            \
                    name##_line(y + base[j], x + base[j], n, step);                                             \
            }                                                                                                   \
        }                                                                                                       \
    }                                                                                                           \
    static void name(const tpf_scan_call *call) { tpf_scan_run(call, name##_units, COST); }

#define TPF_SCAN_ADD(a, b) ((a) + (b))
TPF_SCAN_BLOCKED(tpf_running_sum_i64, int64_t, uint64_t, 0, TPF_SCAN_ADD, 1)
TPF_SCAN_BLOCKED(tpf_running_sum_f32, float, double, -0.0, TPF_SCAN_ADD, 1)
TPF_SCAN_BLOCKED(tpf_running_sum_f64, double, double, -0.0, TPF_SCAN_ADD, 1)

/* tpf_logaddexp_f32, not rounded: to 2^-33. */
TPF_INLINE double tpf_scan_logaddexp_f32(double a, double b) {
    double m = a > b ? a : b, d = a == b ? 0.0 : -TPF_ABS(a - b), e = tpf_exp_short(d < -200.0 ? -200.0 : d);
    int above = e > 0.4142135623730951;
    double y = tpf_log_short(above ? TPF_FMA(0.5, e, -0.5) : e) + (above ? 0x1.62e42fefa39efp-1 : 0.0);
    return (a != a) | (b != b) ? a + b : m + y;
}
TPF_SCAN_BLOCKED(tpf_running_logsumexp_f32, float, double, -INFINITY, tpf_scan_logaddexp_f32, 16)
TPF_SCAN_BLOCKED(tpf_running_logsumexp_f64, double, double, -INFINITY, tpf_logaddexp_f64, 16)

/* ---- from element to element: NEXT(state, x, a), the first element as it is ---- */

#define TPF_SCAN_SEQUENTIAL(name, T, A, NEXT)                                                                   \
    TPF_INLINE void name##_lines(T *y, const T *x, const T *a, const int64_t *base, int64_t n, int64_t step,    \
                                 int lines) {                                                                   \
        A all[TPF_SCAN_LINES];                                                                                  \
        for (int j = 0; j < lines; j++) {                                                                       \
            all[j] = (A)x[base[j]];                                                                             \
            y[base[j]] = (T)all[j];                                                                             \
        }                                                                                                       \
        for (int64_t k = 1; k < n; k++)                                                                         \
            for (int j = 0; j < lines; j++) {                                                                   \
                int64_t at = base[j] + k * step;                                                                \
                all[j] = NEXT(all[j], (A)x[at], (A)a[at]);                                                      \
                y[at] = (T)all[j];                                                                              \
            }                                                                                                   \
    }                                                                                                           \
    static void name##_columns(T *y, const T *x, const T *a, int64_t n, int64_t width, int64_t step) {          \
        A all[TPF_SCAN_WIDTH];                                                                                  \
        for (int64_t c = 0; c < width; c++) {                                                                   \
            all[c] = (A)x[c];                                                                                   \
            y[c] = (T)all[c];                                                                                   \
        }                                                                                                       \
        for (int64_t k = 1; k < n; k++) {                                                                       \
            const T *row = x + k * step;                                                                        \
            T *out = y + k * step;                                                                              \
            TPF_IVDEP for (int64_t c = 0; c < width; c++) {                                                     \
                all[c] = NEXT(all[c], (A)row[c], (A)a[k * step + c]);                                           \
                out[c] = (T)all[c];                                                                             \
            }                                                                                                   \
        }                                                                                                       \
    }                                                                                                           \
    static void name##_units(void *ctx, int64_t begin, int64_t end) {                                           \
        const tpf_scan_job *job = ctx;                                                                          \
        const tpf_scan_call *call = job->call;                                                                  \
        T *y = call->y;                                                                                         \
        const T *x = call->x;                                                                                   \
        /* backwards an element is multiplied by what stands behind it */                                       \
        const T *a = call->a ? (const T *)call->a + (call->reverse ? call->inner : 0) : x;                      \
        int64_t n = call->n, width, base[TPF_SCAN_LINES];                                                       \
        int64_t step = call->reverse ? -call->inner : call->inner;                                              \
        for (int64_t unit = begin; unit < end; unit++) {                                                        \
            if (job->width) {                                                                                   \
                int64_t at = tpf_scan_place(job, unit, &width);                                                 \
                name##_columns(y + at, x + at, a + at, n, width, step);                                         \
                continue;                                                                                       \
            }                                                                                                   \
            int lines = tpf_scan_bases(job, unit, base);                                                        \
            if (lines == TPF_SCAN_LINES)                                                                        \
                name##_lines(y, x, a, base, n, step, TPF_SCAN_LINES);                                           \
            else                                                                                                \
                for (int j = 0; j < lines; j++) name##_lines(y, x, a, base + j, n, step, 1);                    \
        }                                                                                                       \
    }                                                                                                           \
    static void name(const tpf_scan_call *call) { tpf_scan_run(call, name##_units, 2); }

/* x + all a, the product being 0 where all is: all is a cotangent. */
#define TPF_SCAN_MULTIPLY(all, x, a) ((all) * (x))
#define TPF_SCAN_RECUR(all, x, a) ((x) + tpf_smul_f64(all, a))
TPF_SCAN_SEQUENTIAL(tpf_running_product_i64, int64_t, uint64_t, TPF_SCAN_MULTIPLY)
TPF_SCAN_SEQUENTIAL(tpf_running_product_f32, float, double, TPF_SCAN_MULTIPLY)
TPF_SCAN_SEQUENTIAL(tpf_running_product_f64, double, double, TPF_SCAN_MULTIPLY)
TPF_SCAN_SEQUENTIAL(tpf_recurrence_f32, float, double, TPF_SCAN_RECUR)
TPF_SCAN_SEQUENTIAL(tpf_recurrence_f64, double, double, TPF_SCAN_RECUR)

/* ---- maxima, by the keys of reduce.h: a larger one wins, so the first of equals and of NaNs stays. `where` gets the
   position in C order of each element's maximum ---- */

#define TPF_SCAN_MAXIMUM(dt, BITS, KEY, TIE)                                                                    \
    TPF_INLINE void tpf_running_max_##dt##_run(BITS *y, int64_t *where, const BITS *x, const int64_t *base,     \
                                               int64_t n, int64_t step, int64_t lines, int places) {            \
        KEY key[TPF_SCAN_WIDTH];                                                                                \
        BITS value[TPF_SCAN_WIDTH];                                                                             \
        int64_t found[TPF_SCAN_WIDTH];                                                                          \
        for (int64_t j = 0; j < lines; j++) {                                                                   \
            int64_t at = lines > TPF_SCAN_LINES ? base[0] + j : base[j];                                        \
            key[j] = TIE(x[at]), value[j] = x[at], found[j] = at;                                               \
            y[at] = value[j];                                                                                   \
            if (places) where[at] = at;                                                                         \
        }                                                                                                       \
        for (int64_t k = 1; k < n; k++)                                                                         \
            TPF_IVDEP for (int64_t j = 0; j < lines; j++) {                                                     \
                int64_t at = (lines > TPF_SCAN_LINES ? base[0] + j : base[j]) + k * step;                       \
                BITS v = x[at];                                                                                 \
                KEY here = TIE(v), had = key[j];                                                                \
                BITS most = here > had ? v : value[j];                                                          \
                key[j] = here > had ? here : had;                                                               \
                value[j] = most;                                                                                \
                y[at] = most;                                                                                   \
                if (places) {                                                                                   \
                    int64_t place = here > had ? at : found[j];                                                 \
                    found[j] = place;                                                                           \
                    where[at] = place;                                                                          \
                }                                                                                               \
            }                                                                                                   \
    }                                                                                                           \
    static void tpf_running_max_##dt##_units(void *ctx, int64_t begin, int64_t end) {                           \
        const tpf_scan_job *job = ctx;                                                                          \
        const tpf_scan_call *call = job->call;                                                                  \
        BITS *y = call->y;                                                                                      \
        const BITS *x = call->x;                                                                                \
        int64_t n = call->n, step = call->inner, base[TPF_SCAN_LINES], lines;                                   \
        for (int64_t unit = begin; unit < end; unit++) {                                                        \
            if (job->width)                                                                                     \
                base[0] = tpf_scan_place(job, unit, &lines);                                                    \
            else                                                                                                \
                lines = tpf_scan_bases(job, unit, base);                                                        \
            if (job->width && lines <= TPF_SCAN_LINES)                                                          \
                for (int64_t j = 1; j < lines; j++) base[j] = base[0] + j;                                      \
            if (call->where)                                                                                    \
                tpf_running_max_##dt##_run(y, call->where, x, base, n, step, lines, 1);                         \
            else if (lines == 1)                                                                                \
                tpf_running_max_##dt##_run(y, NULL, x, base, n, step, 1, 0);                                    \
            else if (lines == TPF_SCAN_LINES)                                                                   \
                tpf_running_max_##dt##_run(y, NULL, x, base, n, step, TPF_SCAN_LINES, 0);                       \
            else                                                                                                \
                tpf_running_max_##dt##_run(y, NULL, x, base, n, step, lines, 0);                                \
        }                                                                                                       \
    }                                                                                                           \
    static void tpf_running_max_##dt(const tpf_scan_call *call) {                                               \
        tpf_scan_run(call, tpf_running_max_##dt##_units, 2);                                                    \
    }

TPF_SCAN_MAXIMUM(u8, uint8_t, uint8_t, TPF_R_SAME)
TPF_SCAN_MAXIMUM(i32, int32_t, int32_t, TPF_R_SAME)
TPF_SCAN_MAXIMUM(i64, int64_t, int64_t, TPF_R_SAME)
TPF_SCAN_MAXIMUM(f32, tpf_f32_bits, int32_t, tpf_r_tie_f32)
TPF_SCAN_MAXIMUM(f64, tpf_f64_bits, int64_t, tpf_r_tie_f64)

#define TPF_SCAN_NUMBERS(name) {[TPF_INT64] = name##_i64, [TPF_FLOAT32] = name##_f32, [TPF_FLOAT64] = name##_f64}
#define TPF_SCAN_TABLE { \
    [TPF_RUNNING_SUM] = TPF_SCAN_NUMBERS(tpf_running_sum), \
    [TPF_RUNNING_PRODUCT] = TPF_SCAN_NUMBERS(tpf_running_product), \
    [TPF_RUNNING_MAX] = TPF_R_ROW(tpf_running_max), \
    [TPF_RUNNING_LOGSUMEXP] = {[TPF_FLOAT32] = tpf_running_logsumexp_f32, [TPF_FLOAT64] = tpf_running_logsumexp_f64}, \
    [TPF_RECURRENCE] = {[TPF_FLOAT32] = tpf_recurrence_f32, [TPF_FLOAT64] = tpf_recurrence_f64}, \
}
