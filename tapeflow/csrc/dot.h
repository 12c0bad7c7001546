/* Sums of products: y (outer, inner) = the sum over n of a (outer, n, inner) times b, for float32 and float64.
   The bits are those of multiply followed by sum (reduce.h), whose tree this is: a product is rounded to the
   dtype, chunks of TPF_R_CHUNK elements are joined by halves, in a chunk element i goes to double lane
   i % TPF_R_LANES. So they depend on n and the values alone. Nothing as large as the operands is written.

   Slices of a (and of b) are a_step elements apart, 0 for one that all share.
   This file includes itself once per dtype with TPF_DOT_T set. */
#ifndef TPF_DOT_T

#define TPF_DOT_WIDTH 64        /* most columns taken at once: their lanes stay in L1 */
#define TPF_DOT_PARALLEL 65536 /* products from which threads that are awake pay */
#define TPF_DOT_WAKES 262144   /* and from which it pays to wake them */
#define TPF_DOT_GRAIN 16384    /* products that a thread takes at a time */

typedef struct {
    void *y;
    const void *a, *b;
    double *parts;
    int64_t n, inner, a_step, b_step, blocks, piece;
} tpf_dot_job;

/* Joins the lanes of `width` columns each by halves, into the first. */
TPF_INLINE void tpf_dot_join(double *lane, int64_t width) {
    for (int half = TPF_R_LANES / 2; half > 0; half /= 2)
        TPF_IVDEP for (int64_t k = 0; k < half * width; k++) lane[k] += lane[half * width + k];
}

#define TPF_DOT_T float
#define TPF_DOT_BITS uint32_t
#define TPF_DOT(name) name##_f32
#include "dot.h"
#undef TPF_DOT_T
#undef TPF_DOT_BITS
#undef TPF_DOT
#define TPF_DOT_T double
#define TPF_DOT_BITS uint64_t
#define TPF_DOT(name) name##_f64
#include "dot.h"
#undef TPF_DOT_T
#undef TPF_DOT_BITS
#undef TPF_DOT

#else /* ---- the body, once per dtype ---- */

/* The first n of 16 values, n > 0, then zeros; all 16 are read where they may be, and masked. */
TPF_INLINE void TPF_DOT(tpf_dot_load)(TPF_DOT_T *to, const TPF_DOT_T *x, int64_t n, int64_t readable) {
    TPF_DOT_BITS bits[TPF_R_LANES];
    if (readable < TPF_R_LANES) {
        for (int j = 0; j < TPF_R_LANES; j++) to[j] = 0;
        for (int64_t j = 0; j < n; j++) to[j] = x[j];
        return;
    }
    const TPF_DOT_BITS *mask = TPF_DOT(tpf_r_mask) + TPF_R_LANES - n;
    memcpy(bits, x, sizeof bits);
    for (int j = 0; j < TPF_R_LANES; j++) bits[j] &= mask[j];
    memcpy(to, bits, sizeof bits);
}

/* `readable` values may be touched from a, and from b, on. */
static double TPF_DOT(tpf_dot_row)(const TPF_DOT_T *a, const TPF_DOT_T *b, int64_t n, int64_t readable) {
    if (n > TPF_R_CHUNK) {
        const int64_t half = tpf_r_split(n);
        const double left = TPF_DOT(tpf_dot_row)(a, b, half, readable);
        return left + TPF_DOT(tpf_dot_row)(a + half, b + half, n - half, readable - half);
    }
    double lane[TPF_R_LANES] = {0}, by8[8], by4[4];
    int64_t i = 0;
    for (; i + TPF_R_LANES <= n; i += TPF_R_LANES)
        for (int j = 0; j < TPF_R_LANES; j++) lane[j] += (double)(TPF_DOT_T)(a[i + j] * b[i + j]);
    if (i < n) {
        TPF_DOT_T left[TPF_R_LANES], right[TPF_R_LANES];
        TPF_DOT(tpf_dot_load)(left, a + i, n - i, readable - i);
        TPF_DOT(tpf_dot_load)(right, b + i, n - i, readable - i);
        for (int j = 0; j < TPF_R_LANES; j++) lane[j] += (double)(TPF_DOT_T)(left[j] * right[j]);
    }
    for (int j = 0; j < 8; j++) by8[j] = lane[j] + lane[j + 8];
    for (int j = 0; j < 4; j++) by4[j] = by8[j] + by8[j + 4];
    return (by4[0] + by4[2]) + (by4[1] + by4[3]);
}

/* Columns: lane[j * width + c] takes rows i with i % lanes == j. */
static void TPF_DOT(tpf_dot_columns)(double *out, const TPF_DOT_T *a, const TPF_DOT_T *b, int64_t n,
                                     int64_t width, int64_t inner) {
    double lane[TPF_DOT_WIDTH * TPF_R_LANES];
    if (n > TPF_R_CHUNK) {
        const int64_t half = tpf_r_split(n);
        double right[TPF_DOT_WIDTH];
        TPF_DOT(tpf_dot_columns)(out, a, b, half, width, inner);
        TPF_DOT(tpf_dot_columns)(right, a + half * inner, b + half * inner, n - half, width, inner);
        for (int64_t c = 0; c < width; c++) out[c] += right[c];
        return;
    }
    for (int64_t k = 0; k < TPF_R_LANES * width; k++) lane[k] = 0;
    for (int64_t i = 0; i < n; i++) {
        const TPF_DOT_T *left = a + i * inner, *right = b + i * inner;
        double *to = lane + i % TPF_R_LANES * width;
        if (i + TPF_R_AHEAD < n) {
            tpf_r_prefetch(left + TPF_R_AHEAD * inner, width * (int64_t)sizeof *a);
            tpf_r_prefetch(right + TPF_R_AHEAD * inner, width * (int64_t)sizeof *b);
        }
        TPF_IVDEP for (int64_t c = 0; c < width; c++) to[c] += (double)(TPF_DOT_T)(left[c] * right[c]);
    }
    tpf_dot_join(lane, width);
    memcpy(out, lane, (size_t)width * sizeof *out);
}

/* A unit is a row, or a block of columns of one slice. */
static void TPF_DOT(tpf_dot_units)(void *ctx, int64_t begin, int64_t end) {
    const tpf_dot_job *job = ctx;
    const TPF_DOT_T *a = job->a, *b = job->b;
    TPF_DOT_T *y = job->y;
    if (job->inner == 1) {
        const int64_t n = job->n, step = job->a_step < job->b_step ? job->a_step : job->b_step;
        for (int64_t o = begin; o < end; o++) {
            const int64_t readable = step >= n ? (end - 1 - o) * step + n : n;
            y[o] = (TPF_DOT_T)tpf_r_finish(
                TPF_DOT(tpf_dot_row)(a + o * job->a_step, b + o * job->b_step, n, readable), 1, 0);
        }
        return;
    }
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t o = unit / job->blocks, column = unit % job->blocks * TPF_DOT_WIDTH;
        const int64_t left = job->inner - column, width = left < TPF_DOT_WIDTH ? left : TPF_DOT_WIDTH;
        double out[TPF_DOT_WIDTH];
        TPF_DOT(tpf_dot_columns)(out, a + o * job->a_step + column, b + o * job->b_step + column, job->n, width,
                                 job->inner);
        for (int64_t c = 0; c < width; c++)
            y[o * job->inner + column + c] = (TPF_DOT_T)tpf_r_finish(out[c], 1, 0);
    }
}

static void TPF_DOT(tpf_dot_pieces)(void *ctx, int64_t begin, int64_t end) {
    const tpf_dot_job *job = ctx;
    for (int64_t p = begin; p < end; p++) {
        const int64_t at = p * job->piece, n = job->n - at < job->piece ? job->n - at : job->piece;
        job->parts[p] = TPF_DOT(tpf_dot_row)((const TPF_DOT_T *)job->a + at, (const TPF_DOT_T *)job->b + at, n, n);
    }
}

static void TPF_DOT(tpf_dot)(void *y, const void *a, const void *b, int64_t outer, int64_t n, int64_t inner,
                             int64_t a_step, int64_t b_step) {
    tpf_dot_job job = {.y = y, .a = a, .b = b, .n = n, .inner = inner, .a_step = a_step, .b_step = b_step};
    if (outer <= 0 || inner <= 0) return;
    job.blocks = inner == 1 ? 1 : (inner - 1) / TPF_DOT_WIDTH + 1;
    const int64_t units = outer * job.blocks;
    const int64_t work = n * (inner < TPF_DOT_WIDTH ? inner : TPF_DOT_WIDTH); /* of a unit */
    if (units == 1 && inner == 1 && n > TPF_DOT_PARALLEL) {
        /* A piece is a power of two of chunks, so it is a subtree, and halving the pieces is the tree above it. */
        double parts[TPF_R_PIECES];
        job.parts = parts;
        job.piece = TPF_R_CHUNK;
        while (job.piece * TPF_R_PIECES < n) job.piece *= 2;
        const int64_t pieces = (n - 1) / job.piece + 1;
        TPF_SHARE(n, TPF_DOT_WAKES)(TPF_DOT(tpf_dot_pieces), &job, pieces, TPF_DOT_GRAIN / job.piece + 1);
        for (int64_t step = 1; step < pieces; step *= 2)
            for (int64_t p = 0; p + step < pieces; p += 2 * step) parts[p] += parts[p + step];
        *(TPF_DOT_T *)y = (TPF_DOT_T)tpf_r_finish(parts[0], 1, 0);
        return;
    }
    if (work == 0 || units <= TPF_DOT_PARALLEL / work) TPF_DOT(tpf_dot_units)(&job, 0, units);
    else TPF_SHARE(units * work, TPF_DOT_WAKES)(TPF_DOT(tpf_dot_units), &job, units, TPF_DOT_GRAIN / work + 1);
}

#endif
