/* Variances and standard deviations of (outer, n, inner) over n, in two passes.

   The mean m by the tree of sum; then by chunks, one after the other, and lanes, as in reduce.h, the sums d of x - m
   and q of its square, in float64. The result is (q - d^2/n) / divisor: d makes up for the rounding of m (Chan, Golub
   and LeVeque, 1983, equation 1.7). What is below the rounding of q is 0, so that equal values have variance 0. */

#define TPF_V_WIDTH 64 /* columns at once: two sums for each lane and column stay in L1 */

typedef struct {
    void *y;
    const void *x;
    int64_t outer, n, inner, blocks;
    double divisor;
    int root;
} tpf_v_job;

TPF_INLINE double tpf_v_finish(double q, double d, const tpf_v_job *job) {
    double total = q - d * d / (double)job->n;
    if (total <= 4.0 * DBL_EPSILON * q) total = 0.0;
    total = job->divisor > 0.0 ? total / job->divisor : (double)NAN;
    if (job->root) total = sqrt(total);
    return total == total ? total : (double)NAN;
}

/* The sum of the lanes of each column, by halves. */
TPF_INLINE void tpf_v_columns(double *lane, int64_t width) {
    for (int64_t half = TPF_R_LANES / 2; half > 0; half /= 2)
        TPF_IVDEP for (int64_t k = 0; k < half * width; k++) lane[k] += lane[half * width + k];
}

#define TPF_V(T, dt)                                                                                            \
    TPF_INLINE void tpf_v_add_##dt(double *by, double *squares, const T *x, const double *m, int64_t n) {       \
        TPF_IVDEP for (int64_t k = 0; k < n; k++) {                                                             \
            double c = (double)x[k] - m[k];                                                                     \
            by[k] += c;                                                                                         \
            squares[k] += c * c;                                                                                \
        }                                                                                                       \
    }                                                                                                           \
    static void tpf_v_cols_##dt(T *y, const T *x, int64_t width, int64_t readable, const tpf_v_job *job) {      \
        double m[TPF_V_WIDTH * TPF_R_LANES], by[TPF_V_WIDTH * TPF_R_LANES], squares[TPF_V_WIDTH * TPF_R_LANES]; \
        double d[TPF_V_WIDTH] = {0}, q[TPF_V_WIDTH] = {0};                                                      \
        int64_t inner = job->inner;                                                                             \
        if (inner == 1)                                                                                         \
            m[0] = tpf_r_sum_##dt##_row(x, job->n, readable);                                                   \
        else                                                                                                    \
            tpf_r_sum_##dt##_cols(m, x, job->n, width, inner);                                                  \
        for (int64_t c = 0; c < width; c++) m[c] /= (double)job->n;                                             \
        if (width == inner) /* the rows of a group are one run */                                               \
            for (int64_t k = width; k < TPF_R_LANES * width; k++) m[k] = m[k - width];                          \
        for (int64_t start = 0; start < job->n; start += TPF_R_CHUNK) {                                         \
            int64_t end = job->n - start < TPF_R_CHUNK ? job->n : start + TPF_R_CHUNK;                          \
            for (int64_t k = 0; k < TPF_R_LANES * width; k++) by[k] = squares[k] = 0.0;                         \
            for (int64_t i = start; i < end; i += TPF_R_LANES) {                                                \
                int64_t take = end - i < TPF_R_LANES ? end - i : TPF_R_LANES;                                   \
                if (width == inner)                                                                             \
                    tpf_v_add_##dt(by, squares, x + i * inner, m, take * width);                                \
                else                                                                                            \
                    for (int64_t j = 0; j < take; j++) {                                                        \
                        if (i + j + TPF_R_AHEAD < job->n)                                                       \
                            tpf_r_prefetch(x + (i + j + TPF_R_AHEAD) * inner, width * (int64_t)sizeof *x);      \
                        tpf_v_add_##dt(by + j * width, squares + j * width, x + (i + j) * inner, m, width);     \
                    }                                                                                           \
            }                                                                                                   \
            tpf_v_columns(by, width);                                                                           \
            tpf_v_columns(squares, width);                                                                      \
            for (int64_t c = 0; c < width; c++) d[c] += by[c], q[c] += squares[c];                              \
        }                                                                                                       \
        for (int64_t c = 0; c < width; c++) y[c] = (T)tpf_v_finish(q[c], d[c], job);                            \
    }                                                                                                           \
    static void tpf_v_units_##dt(void *ctx, int64_t begin, int64_t end) {                                       \
        const tpf_v_job *job = ctx;                                                                             \
        for (int64_t unit = begin; unit < end; unit++) {                                                        \
            int64_t o = unit / job->blocks, column = (unit - o * job->blocks) * TPF_V_WIDTH;                    \
            int64_t width = job->inner - column < TPF_V_WIDTH ? job->inner - column : TPF_V_WIDTH;              \
            const T *x = (const T *)job->x + o * job->n * job->inner + column;                                  \
            T *y = (T *)job->y + o * job->inner + column;                                                       \
            tpf_v_cols_##dt(y, x, width, (job->outer - o) * job->n, job);                                       \
        }                                                                                                       \
    }                                                                                                           \
    static void tpf_variance_##dt(void *y, const void *x, int64_t outer, int64_t n, int64_t inner,              \
                                  double divisor, int root) {                                                   \
        tpf_v_job job = {y, x, outer, n, inner, (inner - 1) / TPF_V_WIDTH + 1, divisor, root};                  \
        int64_t units = outer * job.blocks, bytes = outer * n * inner * (int64_t)sizeof(T);                     \
        if (bytes <= TPF_R_PARALLEL)                                                                            \
            tpf_v_units_##dt(&job, 0, units);                                                                   \
        else                                                                                                    \
            TPF_SHARE(bytes, TPF_R_WAKES)(tpf_v_units_##dt, &job, units, units * TPF_R_GRAIN / bytes + 1);      \
    }
TPF_V(float, f32)
TPF_V(double, f64)
