/* softmax, log_softmax, logsumexp and cross_entropy over the last axis, for float32 and float64.
   This file includes itself once per dtype with TPF_SM_T set.

   A row's sum is taken in TPF_SM_LANES double lanes (element j goes to lane j % TPF_SM_LANES, in
   ascending order) joined by one fixed tree, and the loss by a tree that depends on (rows, n) alone: the
   bits do not depend on vectors, blocks or threads. The lanes are also what lets the maximum and the sum
   vectorise without -ffast-math. Rows are taken in groups of about TPF_SM_BUFFER elements, so that
   exp runs over one long loop when rows are short, and over data in L1 when they are long.

   Special values: softmax follows exp(x - max) * (1 / sum) to the letter (a row of -inf or with +inf
   gives NaN). The others use the maximum only where it is finite, so logsumexp of an empty or all -inf row
   is -inf, with +inf it is +inf, and NaN wins everywhere: it is skipped by the maximum and comes back
   through the sum. */
#ifndef TPF_SM_T

#include <string.h>

#define TPF_SM_LANES 16
#define TPF_SM_BUFFER 2048
#define TPF_SM_GROUP 64        /* most rows in a group */
#define TPF_SM_PARALLEL 16384  /* elements from which threads that are awake pay */
#define TPF_SM_WAKES 131072    /* and from which it pays to wake them */
#define TPF_SM_GRAIN 8192      /* elements a thread takes at a time */
#define TPF_SM_MAX_BLOCKS 256

/* Joins the lanes pairwise; destroys them. */
TPF_INLINE double tpf_sm_join(double *lane) {
    for (int width = TPF_SM_LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++) lane[l] += lane[l + width];
    return lane[0];
}

/* The sum of v[0..n) by halves; n <= TPF_SM_MAX_BLOCKS; destroys v. */
static double tpf_sm_pairwise(double *v, int64_t n) {
    while (n > 1) {
        int64_t half = (n + 1) / 2;
        for (int64_t i = 0; i + half < n; i++) v[i] += v[i + half];
        n = half;
    }
    return n ? v[0] : 0.0;
}

/* Calls fn over the rows, on several threads where that pays. */
static void tpf_sm_over_rows(tpf_range fn, void *job, int64_t rows, int64_t n) {
    int64_t grain = rows;
    if (n > 0 && rows > TPF_SM_PARALLEL / n) {
        grain = TPF_SM_GRAIN / n;
        if (grain < 1) grain = 1;
    }
    TPF_SHARE(rows * n, TPF_SM_WAKES)(fn, job, rows, grain);
}

/* Rows that go into one group. */
TPF_INLINE int64_t tpf_sm_group(int64_t n) {
    int64_t group = n > 0 ? TPF_SM_BUFFER / n : TPF_SM_GROUP;
    return group < 1 ? 1 : group > TPF_SM_GROUP ? TPF_SM_GROUP : group;
}

enum { TPF_SM_SOFTMAX, TPF_SM_LOG_SOFTMAX, TPF_SM_LOGSUMEXP };

typedef struct {
    void *y;
    const void *x, *g, *stats;
    const int64_t *labels;
    double *partial;
    int64_t rows, n, block;
    int kind;
} tpf_sm_job;

#define TPF_SM_T float
#define TPF_SM(name) name##_f32
#define TPF_SM_SUM tpf_r_sum_f32_row
#include "softmax.h"
#undef TPF_SM_T
#undef TPF_SM
#undef TPF_SM_SUM
#define TPF_SM_T double
#define TPF_SM(name) name##_f64
#define TPF_SM_SUM tpf_r_sum_f64_row
#include "softmax.h"
#undef TPF_SM_T
#undef TPF_SM
#undef TPF_SM_SUM

#else /* ---- the body, once per dtype ---- */

/* The largest element that is not NaN; -inf for an empty row. */
TPF_INLINE TPF_SM_T TPF_SM(tpf_sm_max)(const TPF_SM_T *x, int64_t n) {
    TPF_SM_T most = -(TPF_SM_T)INFINITY;
    int64_t i = 0;
    if (n >= 64) {
        TPF_SM_T lane[64];
        for (int l = 0; l < 64; l++) lane[l] = x[l];
        for (int l = 0; l < 64; l++) lane[l] = lane[l] == lane[l] ? lane[l] : most;
        for (i = 64; i + 64 <= n; i += 64)
            for (int l = 0; l < 64; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
        for (int width = 32; width > 0; width /= 2)
            for (int l = 0; l < width; l++)
                lane[l] = lane[l + width] > lane[l] ? lane[l + width] : lane[l];
        most = lane[0];
    }
    for (; i < n; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* Adds e[0..n) into the lanes; the first element goes to lane 0. */
TPF_INLINE void TPF_SM(tpf_sm_add)(double *lane, const TPF_SM_T *e, int64_t n) {
    int64_t i = 0;
    for (; i + TPF_SM_LANES <= n; i += TPF_SM_LANES)
        for (int l = 0; l < TPF_SM_LANES; l++) lane[l] += (double)e[i + l];
    for (int l = 0; i + l < n; l++) lane[l] += (double)e[i + l];
}

/* e = exp(x - shift[r]) over the rows of a group, kept when e is not NULL; sum[r] over each row. */
static void TPF_SM(tpf_sm_exp_sum)(TPF_SM_T *e, double *sum, const TPF_SM_T *x, const TPF_SM_T *shift,
                                   int64_t rows, int64_t n) {
    TPF_SM_T buffer[TPF_SM_BUFFER];
    if (n <= TPF_SM_BUFFER) {
        TPF_SM_T *at = e ? e : buffer;
        for (int64_t r = 0; r < rows; r++) {
            TPF_SM_T m = shift[r];
            TPF_IVDEP for (int64_t j = 0; j < n; j++) at[r * n + j] = x[r * n + j] - m;
        }
        TPF_IVDEP for (int64_t i = 0; i < rows * n; i++) at[i] = TPF_SM(tpf_exp)(at[i]);
        for (int64_t r = 0; r < rows; r++) {
            double lane[TPF_SM_LANES] = {0};
            TPF_SM(tpf_sm_add)(lane, at + r * n, n);
            sum[r] = tpf_sm_join(lane);
        }
        return;
    }
    for (int64_t r = 0; r < rows; r++) { /* rows is 1 */
        double lane[TPF_SM_LANES] = {0};
        TPF_SM_T m = shift[r];
        for (int64_t j = 0; j < n; j += TPF_SM_BUFFER) {
            int64_t count = n - j < TPF_SM_BUFFER ? n - j : TPF_SM_BUFFER;
            const TPF_SM_T *from = x + r * n + j;
            TPF_SM_T *at = e ? e + r * n + j : buffer;
            TPF_IVDEP for (int64_t i = 0; i < count; i++) at[i] = TPF_SM(tpf_exp)(from[i] - m);
            TPF_SM(tpf_sm_add)(lane, at, count);
        }
        sum[r] = tpf_sm_join(lane);
    }
}

/* Maximum, exp and sum of rows of at most TPF_SM_LANES elements, transposed so that vectors run over the
   rows: three times as fast for 10 classes, and the same bits (a lane holds one element, or a zero
   that the tree leaves out). most: 0 where not finite, when finite is asked for. y may be NULL. */
static void TPF_SM(tpf_sm_short)(TPF_SM_T *y, TPF_SM_T *most, double *sum, const TPF_SM_T *x,
                                 int64_t rows, int64_t n, int finite) {
    TPF_SM_T t[TPF_SM_LANES][TPF_SM_GROUP], m[TPF_SM_GROUP];
    double lane[TPF_SM_LANES][TPF_SM_GROUP];
    const int64_t width = (rows + 15) / 16 * 16;
    for (int64_t j = 0; j < n; j++)
        for (int64_t r = rows; r < width; r++) t[j][r] = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < n; j++) t[j][r] = x[r * n + j];
    for (int64_t r = 0; r < width; r++) m[r] = -(TPF_SM_T)INFINITY;
    for (int64_t j = 0; j < n; j++)
        for (int64_t r = 0; r < width; r++) m[r] = t[j][r] > m[r] ? t[j][r] : m[r];
    for (int64_t r = 0; finite && r < width; r++) m[r] = m[r] - m[r] == 0 ? m[r] : 0;
    for (int64_t j = 0; j < n; j++)
        for (int64_t r = 0; r < width; r++) {
            t[j][r] = TPF_SM(tpf_exp)(t[j][r] - m[r]);
            lane[j][r] = (double)t[j][r];
        }
    for (int64_t half = TPF_SM_LANES / 2; half > 0; half /= 2)
        for (int64_t j = 0; j < half && j + half < n; j++)
            for (int64_t r = 0; r < width; r++) lane[j][r] += lane[j + half][r];
    memcpy(most, m, (size_t)rows * sizeof *most);
    memcpy(sum, lane[0], (size_t)rows * sizeof *sum);
    if (y)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < n; j++) y[r * n + j] = t[j][r];
}

/* Whether a group of rows goes through tpf_sm_short. */
TPF_INLINE int TPF_SM(tpf_sm_is_short)(int64_t rows, int64_t n) {
    return n > 0 && n <= TPF_SM_LANES && rows >= 8;
}

/* The softmax of one group of rows. */
static void TPF_SM(tpf_sm_softmax)(TPF_SM_T *y, const TPF_SM_T *x, int64_t rows, int64_t n) {
    TPF_SM_T most[TPF_SM_GROUP];
    double sum[TPF_SM_GROUP];
    if (TPF_SM(tpf_sm_is_short)(rows, n)) {
        TPF_SM(tpf_sm_short)(y, most, sum, x, rows, n, 0);
    } else {
        for (int64_t r = 0; r < rows; r++) most[r] = TPF_SM(tpf_sm_max)(x + r * n, n);
        TPF_SM(tpf_sm_exp_sum)(y, sum, x, most, rows, n);
    }
    for (int64_t r = 0; r < rows; r++) {
        TPF_SM_T s = (TPF_SM_T)(1.0 / sum[r]); /* 1 <= sum, or NaN; dividing costs three times as much */
        TPF_IVDEP for (int64_t j = 0; j < n; j++) y[r * n + j] *= s;
    }
}

/* most[r] = the maximum where it is finite, else 0; log_sum[r] = log of the sum of exp(x - most); unless NULL,
   inverse[r] = 1 / that sum as softmax has it, NaN for a row that softmax makes NaN. */
static void TPF_SM(tpf_sm_log_sum)(TPF_SM_T *most, TPF_SM_T *inverse, double *log_sum, const TPF_SM_T *x,
                                   int64_t rows, int64_t n) {
    if (TPF_SM(tpf_sm_is_short)(rows, n)) {
        TPF_SM(tpf_sm_short)(NULL, most, log_sum, x, rows, n, 1);
    } else {
        for (int64_t r = 0; r < rows; r++) {
            TPF_SM_T m = TPF_SM(tpf_sm_max)(x + r * n, n);
            most[r] = m - m == 0 ? m : 0;
        }
        TPF_SM(tpf_sm_exp_sum)(NULL, log_sum, x, most, rows, n);
    }
    for (int64_t r = 0; inverse && r < rows; r++)
        inverse[r] = log_sum[r] > 0 && log_sum[r] - log_sum[r] == 0 ? (TPF_SM_T)(1.0 / log_sum[r]) : (TPF_SM_T)NAN;
    TPF_IVDEP for (int64_t r = 0; r < rows; r++) log_sum[r] = tpf_log_f64(log_sum[r]);
}

static void TPF_SM(tpf_sm_rows)(void *ctx, int64_t begin, int64_t end) {
    const tpf_sm_job *job = ctx;
    const int64_t n = job->n, group = tpf_sm_group(n);
    TPF_SM_T most[TPF_SM_GROUP];
    double sum[TPF_SM_GROUP];
    for (int64_t row = begin; row < end; row += group) {
        const int64_t count = end - row < group ? end - row : group;
        const TPF_SM_T *x = (const TPF_SM_T *)job->x + row * n;
        if (job->kind == TPF_SM_SOFTMAX) {
            TPF_SM(tpf_sm_softmax)((TPF_SM_T *)job->y + row * n, x, count, n);
            continue;
        }
        TPF_SM(tpf_sm_log_sum)(most, NULL, sum, x, count, n);
        if (job->kind == TPF_SM_LOGSUMEXP) {
            TPF_SM_T *y = (TPF_SM_T *)job->y + row;
            for (int64_t r = 0; r < count; r++) y[r] = (TPF_SM_T)((double)most[r] + sum[r]);
            continue;
        }
        TPF_SM_T *y = (TPF_SM_T *)job->y + row * n;
        for (int64_t r = 0; r < count; r++) {
            TPF_SM_T m = most[r], s = (TPF_SM_T)sum[r];
            TPF_IVDEP for (int64_t j = 0; j < n; j++) y[r * n + j] = (x[r * n + j] - m) - s;
        }
    }
}

static void TPF_SM(tpf_softmax)(void *y, const void *x, int64_t rows, int64_t n) {
    tpf_sm_job job = {.y = y, .x = x, .rows = rows, .n = n, .kind = TPF_SM_SOFTMAX};
    tpf_sm_over_rows(TPF_SM(tpf_sm_rows), &job, rows, n);
}

static void TPF_SM(tpf_log_softmax)(void *y, const void *x, int64_t rows, int64_t n) {
    tpf_sm_job job = {.y = y, .x = x, .rows = rows, .n = n, .kind = TPF_SM_LOG_SOFTMAX};
    tpf_sm_over_rows(TPF_SM(tpf_sm_rows), &job, rows, n);
}

static void TPF_SM(tpf_logsumexp)(void *y, const void *x, int64_t rows, int64_t n) {
    tpf_sm_job job = {.y = y, .x = x, .rows = rows, .n = n, .kind = TPF_SM_LOGSUMEXP};
    tpf_sm_over_rows(TPF_SM(tpf_sm_rows), &job, rows, n);
}

/* The rules of softmax, (g - sum(g * y)) * y, and of log_softmax, g - sum(g) * exp(y): the operations and the sums
   (reduce.h) of the composed form, so its bits. */
static void TPF_SM(tpf_sm_rule_rows)(void *ctx, int64_t begin, int64_t end) {
    const tpf_sm_job *job = ctx;
    const int64_t n = job->n;
    for (int64_t row = begin; row < end; row++) {
        const TPF_SM_T *g = (const TPF_SM_T *)job->g + row * n, *y = (const TPF_SM_T *)job->x + row * n;
        TPF_SM_T *gx = (TPF_SM_T *)job->y + row * n;
        if (job->kind == TPF_SM_SOFTMAX) {
            TPF_IVDEP for (int64_t j = 0; j < n; j++) gx[j] = TPF_SM(tpf_smul)(g[j], y[j]);
            const TPF_SM_T s = (TPF_SM_T)tpf_r_finish(TPF_SM_SUM(gx, n, (end - row) * n), 1, 0);
            TPF_IVDEP for (int64_t j = 0; j < n; j++) gx[j] = TPF_SM(tpf_smul)(g[j] - s, y[j]);
        } else {
            const TPF_SM_T s = (TPF_SM_T)tpf_r_finish(TPF_SM_SUM(g, n, (end - row) * n), 1, 0);
            TPF_IVDEP for (int64_t j = 0; j < n; j++) gx[j] = g[j] - TPF_SM(tpf_smul)(s, TPF_SM(tpf_exp)(y[j]));
        }
    }
}

static void TPF_SM(tpf_softmax_vjp)(void *gx, const void *g, const void *y, int64_t rows, int64_t n) {
    tpf_sm_job job = {.y = gx, .x = y, .g = g, .rows = rows, .n = n, .kind = TPF_SM_SOFTMAX};
    tpf_sm_over_rows(TPF_SM(tpf_sm_rule_rows), &job, rows, n);
}

static void TPF_SM(tpf_log_softmax_vjp)(void *gx, const void *g, const void *y, int64_t rows, int64_t n) {
    tpf_sm_job job = {.y = gx, .x = y, .g = g, .rows = rows, .n = n, .kind = TPF_SM_LOG_SOFTMAX};
    tpf_sm_over_rows(TPF_SM(tpf_sm_rule_rows), &job, rows, n);
}

/* partial[b] = the sum of log_sum + (most - x[label]) over block b: more exact than lse - x[label],
   which loses what is below eps * |x|. */
static void TPF_SM(tpf_sm_loss_blocks)(void *ctx, int64_t begin, int64_t end) {
    const tpf_sm_job *job = ctx;
    const int64_t n = job->n, group = tpf_sm_group(n);
    TPF_SM_T most[TPF_SM_GROUP], inverse[TPF_SM_GROUP];
    double term[TPF_SM_GROUP];
    for (int64_t b = begin; b < end; b++) {
        int64_t last = (b + 1) * job->block < job->rows ? (b + 1) * job->block : job->rows;
        double total = 0.0;
        for (int64_t row = b * job->block; row < last; row += group) {
            const int64_t count = last - row < group ? last - row : group;
            const TPF_SM_T *x = (const TPF_SM_T *)job->x + row * n;
            TPF_SM_T *stats = (TPF_SM_T *)job->y + 2 * row;
            TPF_SM(tpf_sm_log_sum)(most, inverse, term, x, count, n);
            for (int64_t r = 0; r < count; r++) {
                stats[2 * r] = most[r];
                stats[2 * r + 1] = inverse[r];
                term[r] += (double)most[r] - (double)x[r * n + job->labels[row + r]];
            }
            total += tpf_sm_pairwise(term, count);
        }
        job->partial[b] = total;
    }
}

static int64_t TPF_SM(tpf_cross_entropy)(void *loss, void *stats, const void *x, const int64_t *labels,
                                         int64_t rows, int64_t n) {
    uint64_t bad = 0;
    for (int64_t i = 0; i < rows; i++) bad |= (uint64_t)labels[i] >= (uint64_t)n;
    for (int64_t i = 0; bad && i < rows; i++)
        if ((uint64_t)labels[i] >= (uint64_t)n) return i;
    double partial[TPF_SM_MAX_BLOCKS];
    /* The block is a function of (rows, n) alone, and so is the tree of the sum. */
    int64_t block = n >= 1024 ? 1 : n >= 64 ? 16 : 256;
    while (rows > block * TPF_SM_MAX_BLOCKS) block *= 2;
    int64_t blocks = (rows + block - 1) / block;
    tpf_sm_job job = {.y = stats, .x = x, .labels = labels, .partial = partial, .rows = rows,
                      .n = n, .block = block};
    tpf_sm_over_rows(TPF_SM(tpf_sm_loss_blocks), &job, blocks, n * block);
    *(TPF_SM_T *)loss = (TPF_SM_T)(tpf_sm_pairwise(partial, blocks) / (double)rows);
    return -1;
}

/* The order of operations is that of the composed form, elementwise, and bit-equal to it: p - 0 is p, so
   only the label's element is subtracted from. Short rows go through exp together. */
static void TPF_SM(tpf_sm_vjp_rows)(void *ctx, int64_t begin, int64_t end) {
    const tpf_sm_job *job = ctx;
    const int64_t n = job->n, group = n >= 64 ? 1 : tpf_sm_group(n);
    const TPF_SM_T s = *(const TPF_SM_T *)job->g / (TPF_SM_T)job->rows;
    for (int64_t row = begin; row < end; row += group) {
        const int64_t count = end - row < group ? end - row : group;
        const TPF_SM_T *x = (const TPF_SM_T *)job->x + row * n;
        const TPF_SM_T *stats = (const TPF_SM_T *)job->stats + 2 * row;
        const int64_t *labels = job->labels + row;
        TPF_SM_T *y = (TPF_SM_T *)job->y + row * n;
        if (group == 1) {
            const TPF_SM_T m = stats[0], q = stats[1], hit = TPF_SM(tpf_exp)(x[labels[0]] - m) * q - 1;
            TPF_IVDEP for (int64_t j = 0; j < n; j++)
                y[j] = TPF_SM(tpf_smul)(s, TPF_SM(tpf_exp)(x[j] - m) * q);
            y[labels[0]] = TPF_SM(tpf_smul)(s, hit);
            continue;
        }
        for (int64_t r = 0; r < count; r++) {
            TPF_SM_T m = stats[2 * r];
            TPF_IVDEP for (int64_t j = 0; j < n; j++) y[r * n + j] = x[r * n + j] - m;
        }
        TPF_IVDEP for (int64_t i = 0; i < count * n; i++) y[i] = TPF_SM(tpf_exp)(y[i]);
        for (int64_t r = 0; r < count; r++) {
            TPF_SM_T q = stats[2 * r + 1];
            TPF_IVDEP for (int64_t j = 0; j < n; j++) y[r * n + j] *= q;
            y[r * n + labels[r]] -= 1;
        }
        TPF_IVDEP for (int64_t i = 0; i < count * n; i++) y[i] = TPF_SM(tpf_smul)(s, y[i]);
    }
}

static void TPF_SM(tpf_cross_entropy_vjp)(void *gx, const void *g, const void *x, const void *stats,
                                          const int64_t *labels, int64_t rows, int64_t n) {
    tpf_sm_job job = {.y = gx, .x = x, .g = g, .stats = stats, .labels = labels, .rows = rows, .n = n};
    tpf_sm_over_rows(TPF_SM(tpf_sm_vjp_rows), &job, rows, n);
}

#endif
