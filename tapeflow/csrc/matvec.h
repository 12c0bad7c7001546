/* A matrix times a vector, for float32 and float64, in the dtype. BLAS's gemv would take BLAS's threads, which
   collapse where another library's wait on the same cores; here the work is one pass over the matrix on our own.
   Bits are a function of the sizes and of which of the two kernels runs.

   along:  a row's elements lie together. Two vectors of 64 bytes of partial sums a row, joined by halves.
   across: the results lie together. y += x[k] * a[k, :] with k ascending; few results and many k are cut into
           blocks of k, whose sums are added in ascending order.
   This file includes itself once per dtype with TPF_MV_T set. */
#ifndef TPF_MV_T

#define TPF_MV_PARALLEL 65536 /* products from which threads that are awake pay */
#define TPF_MV_WAKES 524288   /* and from which it pays to wake them */
#define TPF_MV_GRAIN 16384    /* products that a thread takes at a time */
#define TPF_MV_WIDE 512        /* results from which threads share them out, not the sums */
#define TPF_MV_PARTS 4096      /* most partial sums: they are on the stack */
#define TPF_MV_BLOCKS 64

#if defined(__AVX512F__) /* rows at a time: as many accumulators as there are registers, half for the rest */
#define TPF_MV_ROWS 4
#elif defined(__AVX__)
#define TPF_MV_ROWS 2
#else
#define TPF_MV_ROWS 1
#endif

typedef struct {
    void *y;
    const void *a, *x;
    int64_t n, k, step, x_step, depth; /* depth: of a block of k */
} tpf_mv_job;

#define TPF_MV_T float
#define TPF_MV(name) name##_f32
#include "matvec.h"
#undef TPF_MV_T
#undef TPF_MV
#define TPF_MV_T double
#define TPF_MV(name) name##_f64
#include "matvec.h"
#undef TPF_MV_T
#undef TPF_MV

#else /* ---- the body, once per dtype ---- */

#if defined(__GNUC__)
typedef TPF_MV_T TPF_MV(tpf_mv_vector) __attribute__((vector_size(64)));
#else
typedef TPF_MV_T TPF_MV(tpf_mv_vector);
#endif

/* R rows, each two vectors of partial sums. */
#define TPF_MV_KERNEL(name, R)                                                                        \
    TPF_INLINE void TPF_MV(name)(TPF_MV_T *y, const TPF_MV_T *a, int64_t step, const TPF_MV_T *x,     \
                                 int64_t k) {                                                         \
        enum { W = sizeof(TPF_MV(tpf_mv_vector)) / sizeof(TPF_MV_T) };                                \
        TPF_MV(tpf_mv_vector) low[R], high[R], at, to;                                                \
        int64_t i = 0;                                                                                \
        for (int r = 0; r < R; r++) low[r] = high[r] = (TPF_MV(tpf_mv_vector)){0};                    \
        for (; i + 2 * W <= k; i += 2 * W) {                                                          \
            memcpy(&to, x + i, sizeof to);                                                            \
            for (int r = 0; r < R; r++) {                                                             \
                memcpy(&at, a + r * step + i, sizeof at);                                             \
                low[r] += at * to;                                                                    \
            }                                                                                         \
            memcpy(&to, x + i + W, sizeof to);                                                        \
            for (int r = 0; r < R; r++) {                                                             \
                memcpy(&at, a + r * step + i + W, sizeof at);                                         \
                high[r] += at * to;                                                                   \
            }                                                                                         \
        }                                                                                             \
        for (int r = 0; r < R; r++) {                                                                 \
            TPF_MV_T lane[2 * W];                                                                     \
            memcpy(lane, &low[r], sizeof low[r]);                                                     \
            memcpy(lane + W, &high[r], sizeof high[r]);                                               \
            for (int64_t j = 0; j < k - i; j++) lane[j] += a[r * step + i + j] * x[i + j];            \
            for (int half = W; half > 0; half /= 2)                                                   \
                for (int j = 0; j < half; j++) lane[j] += lane[j + half];                             \
            y[r] = lane[0];                                                                           \
        }                                                                                             \
    }
TPF_MV_KERNEL(tpf_mv_row, 1)
#if TPF_MV_ROWS > 1
TPF_MV_KERNEL(tpf_mv_rows, TPF_MV_ROWS)
#endif
#undef TPF_MV_KERNEL

static void TPF_MV(tpf_mv_along)(void *ctx, int64_t begin, int64_t end) {
    const tpf_mv_job *job = ctx;
    const int64_t step = job->step, k = job->k;
    TPF_MV_T *y = (TPF_MV_T *)job->y + begin;
    const TPF_MV_T *a = (const TPF_MV_T *)job->a + begin * step;
    int64_t rows = end - begin;
#if TPF_MV_ROWS > 1
    for (; rows >= TPF_MV_ROWS; rows -= TPF_MV_ROWS, y += TPF_MV_ROWS, a += TPF_MV_ROWS * step)
        TPF_MV(tpf_mv_rows)(y, a, step, job->x, k);
#endif
    for (; rows > 0; rows--, y++, a += step) TPF_MV(tpf_mv_row)(y, a, step, job->x, k);
}

/* y (n) = the sum over count k of x[k] a[k, :]. */
static void TPF_MV(tpf_mv_add)(TPF_MV_T *y, const TPF_MV_T *a, const TPF_MV_T *x, int64_t n, int64_t count,
                               int64_t step, int64_t x_step) {
    memset(y, 0, (size_t)n * sizeof *y);
    for (; count >= 8; count -= 8, a += 8 * step, x += 8 * x_step) {
        const TPF_MV_T x0 = x[0], x1 = x[x_step], x2 = x[2 * x_step], x3 = x[3 * x_step], x4 = x[4 * x_step],
                       x5 = x[5 * x_step], x6 = x[6 * x_step], x7 = x[7 * x_step];
        TPF_IVDEP for (int64_t j = 0; j < n; j++)
            y[j] = y[j] + a[j] * x0 + a[step + j] * x1 + a[2 * step + j] * x2 + a[3 * step + j] * x3 +
                   a[4 * step + j] * x4 + a[5 * step + j] * x5 + a[6 * step + j] * x6 + a[7 * step + j] * x7;
    }
    for (; count > 0; count--, a += step, x += x_step) {
        const TPF_MV_T x0 = x[0];
        TPF_IVDEP for (int64_t j = 0; j < n; j++) y[j] = y[j] + a[j] * x0;
    }
}

static void TPF_MV(tpf_mv_across)(void *ctx, int64_t begin, int64_t end) {
    const tpf_mv_job *job = ctx;
    TPF_MV(tpf_mv_add)((TPF_MV_T *)job->y + begin, (const TPF_MV_T *)job->a + begin, job->x, end - begin, job->k,
                       job->step, job->x_step);
}

static void TPF_MV(tpf_mv_blocks)(void *ctx, int64_t begin, int64_t end) {
    const tpf_mv_job *job = ctx;
    for (int64_t b = begin; b < end; b++) {
        const int64_t at = b * job->depth, count = job->k - at < job->depth ? job->k - at : job->depth;
        TPF_MV(tpf_mv_add)((TPF_MV_T *)job->y + b * job->n, (const TPF_MV_T *)job->a + at * job->step,
                           (const TPF_MV_T *)job->x + at * job->x_step, job->n, count, job->step, job->x_step);
    }
}

static void TPF_MV(tpf_matvec)(void *y, const void *a, const void *x, int64_t n, int64_t k, int64_t step,
                               int64_t x_step, int across) {
    tpf_mv_job job = {.y = y, .a = a, .x = x, .n = n, .k = k, .step = step, .x_step = x_step};
    const double work = (double)n * (double)k;
    const int large = work > TPF_MV_PARALLEL;
    if (!across) {
        int64_t grain = TPF_MV_GRAIN / k / TPF_MV_ROWS * TPF_MV_ROWS;
        if (!large) TPF_MV(tpf_mv_along)(&job, 0, n);
        else TPF_SHARE(work, TPF_MV_WAKES)(TPF_MV(tpf_mv_along), &job, n, grain < TPF_MV_ROWS ? TPF_MV_ROWS : grain);
    } else if (!large) {
        TPF_MV(tpf_mv_across)(&job, 0, n);
    } else if (n >= TPF_MV_WIDE) {
        const int64_t grain = ((n - 1) / 8 / 64 + 1) * 64; /* whole lines of the cache, for any dtype */
        TPF_SHARE(work, TPF_MV_WAKES)(TPF_MV(tpf_mv_across), &job, n, grain < TPF_MV_WIDE / 2 ? TPF_MV_WIDE / 2 : grain);
    } else {
        TPF_MV_T parts[TPF_MV_PARTS];
        int64_t blocks = TPF_MV_PARTS / n < TPF_MV_BLOCKS ? TPF_MV_PARTS / n : TPF_MV_BLOCKS;
        job.y = parts;
        job.depth = ((k - 1) / blocks / 8 + 1) * 8;
        blocks = (k - 1) / job.depth + 1;
        TPF_SHARE(work, TPF_MV_WAKES)(TPF_MV(tpf_mv_blocks), &job, blocks, TPF_MV_GRAIN / (job.depth * n) + 1);
        for (int64_t b = 1; b < blocks; b++)
            for (int64_t j = 0; j < n; j++) parts[j] += parts[b * n + j];
        memcpy(y, parts, (size_t)n * sizeof *parts);
    }
}

#endif
