/* tpf_matmul for what BLAS does not do or does not do well: integers (they wrap), bool (or of and), and
   floats so small that a call would cost more than the work.

   Each element of y is 0 + a[i,0]*b[0,j] + a[i,1]*b[1,j] + ... with k ascending, multiply then add, in
   the dtype; so the bits depend neither on strides nor on blocking, vectors or threads. A micro kernel
   holds R rows by one vector of y; b is walked in panels of one vector by TPF_MM_K, copied when it is
   not contiguous along n or when the panel is ragged; fewer than four columns go one by one. Where the
   compiler has no vector types a vector is one scalar. Includes itself once per dtype. */
#ifndef TPF_MM_T

#include <string.h>

#define TPF_MM_K 128            /* depth of a panel: at most 8 KiB, in L1 */
#define TPF_MM_PARALLEL 262144 /* multiplications from which threads that are awake pay */
#define TPF_MM_WAKES 1048576   /* and from which it pays to wake them */

#if defined(__GNUC__) && defined(__AVX__) /* 64 would make 8 columns of float32 ragged: 7 times slower */
#define TPF_MM_BYTES 32
#elif defined(__GNUC__)
#define TPF_MM_BYTES 16
#endif

typedef struct {
    void *y;
    const void *a, *b;
    int64_t n, k, a_row, a_col, b_row, b_col;
} tpf_mm_job;

#define TPF_MM_FMA(c, a, b) ((c) + (a) * (b)) /* two roundings: -ffp-contract=off */
#define TPF_MM_T float
#define TPF_MM(name) name##_f32
#include "matmul.h"
#undef TPF_MM_T
#undef TPF_MM
#define TPF_MM_T double
#define TPF_MM(name) name##_f64
#include "matmul.h"
#undef TPF_MM_T
#undef TPF_MM
#define TPF_MM_T uint8_t
#define TPF_MM(name) name##_u8
#include "matmul.h"
#undef TPF_MM_T
#undef TPF_MM
#define TPF_MM_T uint32_t
#define TPF_MM(name) name##_i32
#include "matmul.h"
#undef TPF_MM_T
#undef TPF_MM
#define TPF_MM_T uint64_t
#define TPF_MM(name) name##_i64
#include "matmul.h"
#undef TPF_MM_T
#undef TPF_MM
#undef TPF_MM_FMA
#define TPF_MM_FMA(c, a, b) ((c) | ((a) & (b))) /* bool: bytes of 0 and 1 */
#define TPF_MM_T uint8_t
#define TPF_MM(name) name##_b8
#include "matmul.h"
#undef TPF_MM_T
#undef TPF_MM
#undef TPF_MM_FMA

#else /* ---- the body, once per dtype ---- */

#ifdef TPF_MM_BYTES
typedef TPF_MM_T TPF_MM(tpf_mm_vector) __attribute__((vector_size(TPF_MM_BYTES)));
#else
typedef TPF_MM_T TPF_MM(tpf_mm_vector);
#endif

/* R rows of y, each one V wide: y += a (R, depth) @ b (depth, one V); first: y = 0 + instead. */
#define TPF_MM_KERNEL(name, V, R)                                                                    \
    TPF_INLINE void TPF_MM(name)(TPF_MM_T *y, int64_t y_row, const TPF_MM_T *a, int64_t a_row,      \
                                 int64_t a_col, const TPF_MM_T *b, int64_t b_row, int64_t depth,    \
                                 int first) {                                                       \
        V acc[R], at;                                                                               \
        for (int r = 0; r < R; r++) {                                                               \
            at = (V){0};                                                                            \
            if (!first) memcpy(&at, y + r * y_row, sizeof at);                                      \
            acc[r] = at;                                                                            \
        }                                                                                           \
        for (int64_t k = 0; k < depth; k++) {                                                       \
            memcpy(&at, b + k * b_row, sizeof at);                                                  \
            for (int r = 0; r < R; r++)                                                             \
                acc[r] = (V)TPF_MM_FMA(acc[r], a[r * a_row + k * a_col], at);                       \
        }                                                                                           \
        for (int r = 0; r < R; r++) {                                                               \
            at = acc[r];                                                                            \
            memcpy(y + r * y_row, &at, sizeof at);                                                  \
        }                                                                                           \
    }
TPF_MM_KERNEL(tpf_mm_scalar1, TPF_MM_T, 1)
TPF_MM_KERNEL(tpf_mm_scalar4, TPF_MM_T, 4)
TPF_MM_KERNEL(tpf_mm_vector1, TPF_MM(tpf_mm_vector), 1)
TPF_MM_KERNEL(tpf_mm_vector2, TPF_MM(tpf_mm_vector), 2)
TPF_MM_KERNEL(tpf_mm_vector4, TPF_MM(tpf_mm_vector), 4)
TPF_MM_KERNEL(tpf_mm_vector8, TPF_MM(tpf_mm_vector), 8)
#undef TPF_MM_KERNEL

/* count < W elements, in moves of constant size. */
TPF_INLINE void TPF_MM(tpf_mm_move)(TPF_MM_T *to, const TPF_MM_T *from, int64_t count, int W) {
    for (int w = W / 2; w > 0; w /= 2)
        if (count & w) {
            memcpy(to, from, (size_t)w * sizeof *to);
            to += w;
            from += w;
        }
}

/* Rows begin .. end of the columns that start at y, one vector wide; b is contiguous along it. */
static void TPF_MM(tpf_mm_panel)(const tpf_mm_job *job, TPF_MM_T *y, const TPF_MM_T *a, const TPF_MM_T *b,
                                 int64_t b_row, int64_t rows, int64_t depth, int first) {
    const int64_t n = job->n, a_row = job->a_row, a_col = job->a_col;
    for (; rows >= 8; rows -= 8, y += 8 * n, a += 8 * a_row) /* an addition waits for the last one of its row */
        TPF_MM(tpf_mm_vector8)(y, n, a, a_row, a_col, b, b_row, depth, first);
    if (rows >= 4) {
        TPF_MM(tpf_mm_vector4)(y, n, a, a_row, a_col, b, b_row, depth, first);
        rows -= 4, y += 4 * n, a += 4 * a_row;
    }
    if (rows >= 2) {
        TPF_MM(tpf_mm_vector2)(y, n, a, a_row, a_col, b, b_row, depth, first);
        rows -= 2, y += 2 * n, a += 2 * a_row;
    }
    if (rows > 0) TPF_MM(tpf_mm_vector1)(y, n, a, a_row, a_col, b, b_row, depth, first);
}

/* The same for count columns, fewer than a vector has: through a tile. b is packed and padded. */
static void TPF_MM(tpf_mm_ragged)(const tpf_mm_job *job, TPF_MM_T *y, const TPF_MM_T *a, const TPF_MM_T *b,
                                  int64_t count, int64_t rows, int64_t depth, int first) {
    enum { W = sizeof(TPF_MM(tpf_mm_vector)) / sizeof(TPF_MM_T) };
    const int64_t n = job->n, a_row = job->a_row, a_col = job->a_col;
    TPF_MM_T tile[4 * W] = {0};
    while (rows > 0) {
        const int64_t take = rows >= 4 ? 4 : 1;
        for (int64_t r = 0; !first && r < take; r++)
            TPF_MM(tpf_mm_move)(tile + r * W, y + r * n, count, W);
        if (take == 4) TPF_MM(tpf_mm_vector4)(tile, W, a, a_row, a_col, b, W, depth, first);
        else TPF_MM(tpf_mm_vector1)(tile, W, a, a_row, a_col, b, W, depth, first);
        for (int64_t r = 0; r < take; r++) TPF_MM(tpf_mm_move)(y + r * n, tile + r * W, count, W);
        rows -= take;
        y += take * n;
        a += take * a_row;
    }
}

/* One column. */
static void TPF_MM(tpf_mm_column)(const tpf_mm_job *job, TPF_MM_T *y, const TPF_MM_T *a, const TPF_MM_T *b,
                                  int64_t rows, int64_t depth, int first) {
    const int64_t n = job->n, a_row = job->a_row, a_col = job->a_col, b_row = job->b_row;
    for (; rows >= 4; rows -= 4, y += 4 * n, a += 4 * a_row)
        TPF_MM(tpf_mm_scalar4)(y, n, a, a_row, a_col, b, b_row, depth, first);
    for (; rows > 0; rows--, y += n, a += a_row)
        TPF_MM(tpf_mm_scalar1)(y, n, a, a_row, a_col, b, b_row, depth, first);
}

static void TPF_MM(tpf_mm_rows)(void *ctx, int64_t begin, int64_t end) {
    enum { W = sizeof(TPF_MM(tpf_mm_vector)) / sizeof(TPF_MM_T) };
    const tpf_mm_job *job = ctx;
    const int64_t n = job->n, b_row = job->b_row, b_col = job->b_col, rows = end - begin;
    TPF_MM_T packed[TPF_MM_K * W];
    for (int64_t k = 0; k < job->k || k == 0; k += TPF_MM_K) {
        const int64_t depth = job->k - k < TPF_MM_K ? job->k - k : TPF_MM_K;
        const TPF_MM_T *a = (const TPF_MM_T *)job->a + begin * job->a_row + k * job->a_col;
        for (int64_t j = 0; j < n; j += W) {
            /* A last panel that would be ragged overlaps its neighbour: the same bits, once more. */
            if (n - j < W && n >= W && job->k <= TPF_MM_K) j = n - W;
            const int64_t count = n - j < W ? n - j : W;
            const TPF_MM_T *b = (const TPF_MM_T *)job->b + k * b_row + j * b_col;
            TPF_MM_T *y = (TPF_MM_T *)job->y + begin * n + j;
            if (count < 4 && (count < W || W == 1)) {
                for (int64_t c = 0; c < count; c++)
                    TPF_MM(tpf_mm_column)(job, y + c, a, b + c * b_col, rows, depth, k == 0);
                continue;
            }
            if (count == W && b_col == 1) {
                TPF_MM(tpf_mm_panel)(job, y, a, b, b_row, rows, depth, k == 0);
                continue;
            }
            for (int64_t d = 0; d < depth; d++) {
                if (count < W) memset(packed + d * W, 0, W * sizeof *packed);
                for (int64_t c = 0; c < count; c++) packed[d * W + c] = b[d * b_row + c * b_col];
            }
            if (count == W) TPF_MM(tpf_mm_panel)(job, y, a, packed, W, rows, depth, k == 0);
            else TPF_MM(tpf_mm_ragged)(job, y, a, packed, count, rows, depth, k == 0);
        }
    }
}

static void TPF_MM(tpf_matmul)(void *y, const void *a, const void *b, int64_t m, int64_t n, int64_t k,
                               int64_t a_row, int64_t a_col, int64_t b_row, int64_t b_col) {
    tpf_mm_job job = {y, a, b, n, k, a_row, a_col, b_row, b_col};
    int64_t grain = m;
    const double work = (double)m * (double)n * (double)k;
    if (m >= 8 && work > TPF_MM_PARALLEL) grain = (m / 8 + 3) / 4 * 4;
    if (grain >= m) TPF_MM(tpf_mm_rows)(&job, 0, m);
    else TPF_SHARE(work, TPF_MM_WAKES)(TPF_MM(tpf_mm_rows), &job, m, grain);
}

#endif
