/* layer_norm and rms_norm over the last axis, and their rule, for float32 and float64.
   Row by row the operations of the composed form in its order, each rounded to the dtype, with the sums of
   reduce.h (a sum of squares is dot.h's): the bits are those of single ops. stats: (rows, 2), each row's mean (0
   for rms_norm) and 1 / sqrt(variance + eps). This file includes itself once per dtype with TPF_NORM_T set. */
#ifndef TPF_NORM_T

#define TPF_NORM_PARALLEL 65536 /* elements from which threads pay */
#define TPF_NORM_GRAIN 16384    /* elements that a thread takes at a time */

typedef struct {
    void *y, *stats, *product;
    const void *x, *weight, *bias, *g;
    int64_t n;
    double eps;
    int centred;
} tpf_norm_job;

static void tpf_norm_over_rows(tpf_range fn, tpf_norm_job *job, int64_t rows) {
    const int64_t n = job->n;
    if (n == 0 || rows <= TPF_NORM_PARALLEL / n) fn(job, 0, rows);
    else tpf_parallel(fn, job, rows, TPF_NORM_GRAIN / n + 1);
}

#define TPF_NORM_T float
#define TPF_NORM(name) name##_f32
#define TPF_NORM_SUM tpf_r_sum_f32_row
#include "norm.h"
#undef TPF_NORM_T
#undef TPF_NORM
#undef TPF_NORM_SUM
#define TPF_NORM_T double
#define TPF_NORM(name) name##_f64
#define TPF_NORM_SUM tpf_r_sum_f64_row
#include "norm.h"
#undef TPF_NORM_T
#undef TPF_NORM
#undef TPF_NORM_SUM

#else /* ---- the body, once per dtype ---- */

TPF_INLINE TPF_NORM_T TPF_NORM(tpf_norm_mean)(const TPF_NORM_T *x, int64_t n) {
    return (TPF_NORM_T)tpf_r_finish(TPF_NORM_SUM(x, n, n), n, 1);
}

static void TPF_NORM(tpf_norm_rows)(void *ctx, int64_t begin, int64_t end) {
    const tpf_norm_job *job = ctx;
    const int64_t n = job->n;
    const TPF_NORM_T *w = job->weight, *b = job->bias;
    for (int64_t row = begin; row < end; row++) {
        const TPF_NORM_T *x = (const TPF_NORM_T *)job->x + row * n;
        TPF_NORM_T *y = (TPF_NORM_T *)job->y + row * n, *stats = (TPF_NORM_T *)job->stats + 2 * row;
        const TPF_NORM_T mean = job->centred ? TPF_NORM(tpf_norm_mean)(x, n) : 0;
        TPF_IVDEP for (int64_t j = 0; j < n; j++) y[j] = x[j] - mean;
        const TPF_NORM_T var = (TPF_NORM_T)tpf_r_finish(TPF_NORM(tpf_dot_row)(y, y, n, n), n, 1);
        const TPF_NORM_T scale = TPF_NORM(tpf_rsqrt)(var + (TPF_NORM_T)job->eps);
        stats[0] = mean;
        stats[1] = scale;
        if (!w) {
            TPF_IVDEP for (int64_t j = 0; j < n; j++) y[j] = y[j] * scale;
        } else if (!b) {
            TPF_IVDEP for (int64_t j = 0; j < n; j++) y[j] = y[j] * scale * w[j];
        } else {
            TPF_IVDEP for (int64_t j = 0; j < n; j++) y[j] = y[j] * scale * w[j] + b[j];
        }
    }
}

static void TPF_NORM(tpf_norm)(void *y, void *stats, const void *x, const void *weight, const void *bias, int64_t rows,
                               int64_t n, double eps, int centred) {
    tpf_norm_job job = {.y = y, .stats = stats, .x = x, .weight = weight, .bias = bias, .n = n, .eps = eps,
                        .centred = centred};
    tpf_norm_over_rows(TPF_NORM(tpf_norm_rows), &job, rows);
}

/* With h = g * weight and z = (x - mean) * scale: y = (h - mean(h) - mean(h * z) * z) * scale; product = g * z. */
static void TPF_NORM(tpf_norm_vjp_rows)(void *ctx, int64_t begin, int64_t end) {
    const tpf_norm_job *job = ctx;
    const int64_t n = job->n;
    const TPF_NORM_T *w = job->weight;
    for (int64_t row = begin; row < end; row++) {
        const TPF_NORM_T *x = (const TPF_NORM_T *)job->x + row * n, *g = (const TPF_NORM_T *)job->g + row * n;
        const TPF_NORM_T *stats = (const TPF_NORM_T *)job->stats + 2 * row, mean = stats[0], scale = stats[1];
        TPF_NORM_T *y = (TPF_NORM_T *)job->y + row * n, *p = (TPF_NORM_T *)job->product + row * n;
        TPF_IVDEP for (int64_t j = 0; j < n; j++) {
            y[j] = w ? TPF_NORM(tpf_smul)(g[j], w[j]) : g[j];
            p[j] = TPF_NORM(tpf_smul)(y[j], (x[j] - mean) * scale);
        }
        const TPF_NORM_T first = job->centred ? TPF_NORM(tpf_norm_mean)(y, n) : 0;
        const TPF_NORM_T second = TPF_NORM(tpf_norm_mean)(p, n);
        TPF_IVDEP for (int64_t j = 0; j < n; j++) {
            const TPF_NORM_T z = (x[j] - mean) * scale;
            y[j] = TPF_NORM(tpf_smul)(y[j] - first - TPF_NORM(tpf_smul)(second, z), scale);
            p[j] = TPF_NORM(tpf_smul)(g[j], z);
        }
    }
}

static void TPF_NORM(tpf_norm_vjp)(void *gx, void *product, const void *g, const void *x, const void *stats,
                                   const void *weight, int64_t rows, int64_t n, int centred) {
    tpf_norm_job job = {.y = gx, .product = product, .g = g, .x = x, .stats = (void *)stats, .weight = weight, .n = n,
                        .centred = centred};
    tpf_norm_over_rows(TPF_NORM(tpf_norm_vjp_rows), &job, rows);
}

#endif
