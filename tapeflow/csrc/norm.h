/* layer_norm and rms_norm over the last axis, and their rule, for float32 and float64.
   Row by row the operations of the composed form in its order, each rounded to the dtype, with the sums of
   reduce.h (a sum of squares is dot.h's): the bits are those of single ops. stats: (rows, 2), each row's mean (0
   for rms_norm) and 1 / sqrt(variance + eps). This file includes itself once per dtype with TPF_LAYER_T set. */
#ifndef TPF_LAYER_T

#define TPF_LAYER_PARALLEL 32768 /* elements from which threads that are awake pay */
#define TPF_LAYER_WAKES 262144   /* and from which it pays to wake them */
#define TPF_LAYER_GRAIN 8192     /* elements that a thread takes at a time */

typedef struct {
    void *y, *stats, *product;
    const void *x, *weight, *bias, *g;
    int64_t n;
    double eps;
    int centred;
} tpf_layer_norm_job;

static void tpf_layer_norm_over_rows(tpf_range fn, tpf_layer_norm_job *job, int64_t rows) {
    const int64_t n = job->n;
    if (n == 0 || rows <= TPF_LAYER_PARALLEL / n) fn(job, 0, rows);
    else TPF_SHARE(rows * n, TPF_LAYER_WAKES)(fn, job, rows, TPF_LAYER_GRAIN / n + 1);
}

#define TPF_LAYER_T float
#define TPF_LAYER(name) name##_f32
#define TPF_LAYER_SUM tpf_r_sum_f32_row
#include "norm.h"
#undef TPF_LAYER_T
#undef TPF_LAYER
#undef TPF_LAYER_SUM
#define TPF_LAYER_T double
#define TPF_LAYER(name) name##_f64
#define TPF_LAYER_SUM tpf_r_sum_f64_row
#include "norm.h"
#undef TPF_LAYER_T
#undef TPF_LAYER
#undef TPF_LAYER_SUM

#else /* ---- the body, once per dtype ---- */

TPF_INLINE TPF_LAYER_T TPF_LAYER(tpf_layer_norm_mean)(const TPF_LAYER_T *x, int64_t n) {
    return (TPF_LAYER_T)tpf_r_finish(TPF_LAYER_SUM(x, n, n), n, 1);
}

static void TPF_LAYER(tpf_layer_norm_rows)(void *ctx, int64_t begin, int64_t end) {
    const tpf_layer_norm_job *job = ctx;
    const int64_t n = job->n;
    const TPF_LAYER_T *w = job->weight, *b = job->bias;
    for (int64_t row = begin; row < end; row++) {
        const TPF_LAYER_T *x = (const TPF_LAYER_T *)job->x + row * n;
        TPF_LAYER_T *y = (TPF_LAYER_T *)job->y + row * n, *stats = (TPF_LAYER_T *)job->stats + 2 * row;
        const TPF_LAYER_T mean = job->centred ? TPF_LAYER(tpf_layer_norm_mean)(x, n) : 0;
        TPF_IVDEP for (int64_t j = 0; j < n; j++) y[j] = x[j] - mean;
        const TPF_LAYER_T var = (TPF_LAYER_T)tpf_r_finish(TPF_LAYER(tpf_dot_row)(y, y, n, n), n, 1);
        const TPF_LAYER_T scale = TPF_LAYER(tpf_rsqrt)(var + (TPF_LAYER_T)job->eps);
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

static void TPF_LAYER(tpf_layer_norm)(void *y, void *stats, const void *x, const void *weight, const void *bias, int64_t rows,
                               int64_t n, double eps, int centred) {
    tpf_layer_norm_job job = {.y = y, .stats = stats, .x = x, .weight = weight, .bias = bias, .n = n, .eps = eps,
                        .centred = centred};
    tpf_layer_norm_over_rows(TPF_LAYER(tpf_layer_norm_rows), &job, rows);
}

/* With h = g * weight and z = (x - mean) * scale: y = (h - mean(h) - mean(h * z) * z) * scale; product = g * z. */
static void TPF_LAYER(tpf_layer_norm_vjp_rows)(void *ctx, int64_t begin, int64_t end) {
    const tpf_layer_norm_job *job = ctx;
    const int64_t n = job->n;
    const TPF_LAYER_T *w = job->weight;
    for (int64_t row = begin; row < end; row++) {
        const TPF_LAYER_T *x = (const TPF_LAYER_T *)job->x + row * n, *g = (const TPF_LAYER_T *)job->g + row * n;
        const TPF_LAYER_T *stats = (const TPF_LAYER_T *)job->stats + 2 * row, mean = stats[0], scale = stats[1];
        TPF_LAYER_T *y = (TPF_LAYER_T *)job->y + row * n, *p = (TPF_LAYER_T *)job->product + row * n;
        TPF_IVDEP for (int64_t j = 0; j < n; j++) {
            y[j] = w ? TPF_LAYER(tpf_smul)(g[j], w[j]) : g[j];
            p[j] = TPF_LAYER(tpf_smul)(y[j], (x[j] - mean) * scale);
        }
        const TPF_LAYER_T first = job->centred ? TPF_LAYER(tpf_layer_norm_mean)(y, n) : 0;
        const TPF_LAYER_T second = TPF_LAYER(tpf_layer_norm_mean)(p, n);
        TPF_IVDEP for (int64_t j = 0; j < n; j++) {
            const TPF_LAYER_T z = (x[j] - mean) * scale;
            y[j] = TPF_LAYER(tpf_smul)(y[j] - first - TPF_LAYER(tpf_smul)(second, z), scale);
            p[j] = TPF_LAYER(tpf_smul)(g[j], z);
        }
    }
}

static void TPF_LAYER(tpf_layer_norm_vjp)(void *gx, void *product, const void *g, const void *x, const void *stats,
                                   const void *weight, int64_t rows, int64_t n, int centred) {
    tpf_layer_norm_job job = {.y = gx, .product = product, .g = g, .x = x, .stats = (void *)stats, .weight = weight, .n = n,
                        .centred = centred};
    tpf_layer_norm_over_rows(TPF_LAYER(tpf_layer_norm_vjp_rows), &job, rows);
}

#endif
