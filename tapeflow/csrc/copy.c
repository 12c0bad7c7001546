/* Moving elements without looking at them: pack, copy, fill, take.

   Strides are in bytes and may be 0 or negative; addresses need no alignment (every access is a
   memcpy of a constant size, which compiles to one move). All shapes are first simplified (`dims`):
   axes of size 1 go, neighbours that one stride describes become one axis. What is left is cut into
   two-dimensional tiles, and `copy_tile` alone chooses the loop. */
#include "item.h"
#include "tpf.h"

#include <string.h>

#define PARALLEL_BYTES (1 << 18) /* from which threads that are awake pay */
#define WAKES_BYTES (1 << 21)    /* and from which it pays to wake them */
#define GRAIN_BYTES (64 << 10)
#define MOST_EACH 64 /* copies of one element that are written in place, not by a call */
#define CACHE_TILE 32 /* side of a tile whose source lines stay in L1 while it is transposed */

typedef struct {
    int ndim;
    int64_t shape[TPF_MAX_NDIM + 2], dst[TPF_MAX_NDIM + 2], src[TPF_MAX_NDIM + 2];
} dims;

TPF_INLINE void move_run(char *dst, int64_t dst_stride, const char *src, int64_t src_stride, size_t size, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        memcpy(dst + i * dst_stride, src + i * src_stride, size);
}

/* What is repeated at dst, `have` bytes of `total`, doubled until it fills them. */
static void repeat(char *dst, int64_t have, int64_t total) {
    while (have < total) {
        int64_t more = have < total - have ? have : total - have;
        memcpy(dst + have, dst, (size_t)more);
        have += more;
    }
}

static void fill_run(char *dst, const char *value, int itemsize, int64_t n) {
    if (n <= 0) return;
    if (itemsize == 1) {
        memset(dst, *(const unsigned char *)value, (size_t)n);
    } else if (itemsize == 4) {
        uint32_t v;
        memcpy(&v, value, 4);
        for (int64_t i = 0; i < n; i++) memcpy(dst + 4 * i, &v, 4);
    } else if (itemsize == 8) {
        uint64_t v;
        memcpy(&v, value, 8);
        for (int64_t i = 0; i < n; i++) memcpy(dst + 8 * i, &v, 8);
    } else {
        memcpy(dst, value, (size_t)itemsize);
        repeat(dst, itemsize, n * itemsize);
    }
}

/* Each of n elements `times` times: in steps of 4, of which the last reaches into what the next element overwrites. */
TPF_INLINE void move_each(char *dst, const char *src, int64_t src_stride, size_t size, int64_t n, int64_t times) {
    int64_t steps = (times + 3) / 4 * 4, sure = n - (steps - 1) / times;
    for (int64_t r = 0; r < n; r++) {
        const char *from = src + r * src_stride;
        char value[8], four[32]; /* a value of a constant size, then stores of four of it */
        memcpy(value, from, size);
        for (int k = 0; k < 4; k++) memcpy(four + k * (int64_t)size, value, size);
        char *to = dst + r * times * (int64_t)size;
        if (r < sure)
            for (int64_t i = 0; i < steps; i += 4) memcpy(to + i * (int64_t)size, four, 4 * size);
        else
            for (int64_t i = 0; i < times; i++) memcpy(to + i * (int64_t)size, value, size);
    }
}

/* n elements in one direction. */
static void copy_run(char *dst, int64_t ds, const char *src, int64_t ss, int itemsize, int64_t n) {
    if (ds == itemsize && ss == itemsize) {
        memcpy(dst, src, (size_t)(n * itemsize));
    } else if (ds == itemsize && ss == 0) {
        fill_run(dst, src, itemsize, n);
    } else if (ds == itemsize) {
        FOR_ITEM(itemsize, move_run(dst, SIZE, src, ss, SIZE, n));
    } else {
        FOR_ITEM(itemsize, move_run(dst, ds, src, ss, SIZE, n));
    }
}

TPF_INLINE void move_tile(char *dst, const int64_t *ds, const char *src, const int64_t *ss, size_t size, int64_t rows,
                          int64_t cols) {
    for (int64_t r = 0; r < rows; r++) move_run(dst + r * ds[0], ds[1], src + r * ss[0], ss[1], size, cols);
}

/* Rows of the source are columns of the destination: square pieces, so that both stay in cache. */
static void transpose_tile(char *dst, const int64_t *ds, const char *src, const int64_t *ss, int itemsize, int64_t rows,
                           int64_t cols) {
    for (int64_t r = 0; r < rows; r += CACHE_TILE)
        for (int64_t c = 0; c < cols; c += CACHE_TILE) {
            int64_t h = rows - r < CACHE_TILE ? rows - r : CACHE_TILE;
            int64_t w = cols - c < CACHE_TILE ? cols - c : CACHE_TILE;
            char *d = dst + r * ds[0] + c * ds[1];
            const char *s = src + r * ss[0] + c * ss[1];
            FOR_ITEM(itemsize, move_tile(d, ds, s, ss, SIZE, h, w));
        }
}

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

/* rows x cols elements, the destination's smaller stride along the columns. */
static void copy_tile(char *dst, const int64_t *ds, const char *src, const int64_t *ss, int itemsize, int64_t rows,
                      int64_t cols) {
    int dense = ds[1] == itemsize && ds[0] == cols * itemsize;
    if (rows == 1) {
        copy_run(dst, ds[1], src, ss[1], itemsize, cols);
    } else if (dense && ss[0] == 0) {
        copy_run(dst, ds[1], src, ss[1], itemsize, cols);
        repeat(dst, cols * itemsize, rows * cols * itemsize);
    } else if (dense && ss[1] == 0 && itemsize <= 8 && cols > 2 && cols <= MOST_EACH) {
        FOR_ITEM(itemsize, move_each(dst, src, ss[0], SIZE, rows, cols));
    } else if (cols < 8 && rows > cols) {
        for (int64_t c = 0; c < cols; c++)
            copy_run(dst + c * ds[1], ds[0], src + c * ss[1], ss[0], itemsize, rows);
    } else if (magnitude(ss[0]) < magnitude(ss[1]) && ss[0] != 0 && rows >= 4) {
        transpose_tile(dst, ds, src, ss, itemsize, rows, cols);
    } else {
        for (int64_t r = 0; r < rows; r++)
            copy_run(dst + r * ds[0], ds[1], src + r * ss[0], ss[1], itemsize, cols);
    }
}

/* Appends an axis, or merges it with the one before. */
static void push_axis(dims *d, int64_t size, int64_t dst, int64_t src) {
    if (size == 1) return;
    int last = d->ndim - 1;
    if (last >= 0 && d->dst[last] == size * dst && d->src[last] == size * src) {
        d->shape[last] *= size;
        d->dst[last] = dst;
        d->src[last] = src;
        return;
    }
    d->shape[d->ndim] = size;
    d->dst[d->ndim] = dst;
    d->src[d->ndim++] = src;
}

/* At least two axes, by leading ones of size 1. */
static void pad_axes(dims *d) {
    while (d->ndim < 2) {
        for (int i = d->ndim; i > 0; i--) {
            d->shape[i] = d->shape[i - 1];
            d->dst[i] = d->dst[i - 1];
            d->src[i] = d->src[i - 1];
        }
        d->shape[0] = 1;
        d->dst[0] = d->src[0] = 0;
        d->ndim++;
    }
}

void tpf_pack(void *dst, const char *src, int itemsize, int ndim, const int64_t *shape, const int64_t *strides,
              int64_t start, int64_t count) {
    dims d;
    int64_t index[TPF_MAX_NDIM + 2];
    char *out = dst;
    if (count <= 0) return;
    d.ndim = 0;
    /* a destination stride that every merge agrees with: 0 == size * 0 */
    for (int i = 0; i < ndim; i++) push_axis(&d, shape[i], 0, strides[i]);
    pad_axes(&d);
    int row = d.ndim - 2, col = d.ndim - 1;
    for (int i = col; i >= 0; i--) {
        int64_t rest = start / d.shape[i];
        index[i] = start - rest * d.shape[i];
        src += index[i] * d.src[i];
        start = rest;
    }
    int64_t ds[2] = {d.shape[col] * itemsize, itemsize};
    while (count > 0) {
        int64_t cols = d.shape[col] - index[col], rows = 1;
        if (index[col] == 0 && count >= cols) {
            rows = d.shape[row] - index[row];
            if (rows > count / cols) rows = count / cols;
        } else if (cols > count) {
            cols = count;
        }
        copy_tile(out, ds, src, d.src + row, itemsize, rows, cols);
        out += rows * cols * itemsize;
        count -= rows * cols;
        if (count == 0) return;
        src -= index[col] * d.src[col];
        src += rows * d.src[row];
        index[col] = 0;
        index[row] += rows;
        for (int i = row; i > 0 && index[i] == d.shape[i]; i--) {
            src += d.src[i - 1] - index[i] * d.src[i];
            index[i] = 0;
            index[i - 1]++;
        }
    }
}

/* ---- tpf_copy: units are tiles of the last two axes, numbered in C order after the other axes ---- */

typedef struct {
    char *dst;
    const char *src;
    int itemsize, nouter;
    int64_t tile_rows, tile_cols;
    int64_t count[TPF_MAX_NDIM + 2]; /* units along each axis */
    dims d;
} copy_job;

static void copy_units(void *ctx, int64_t begin, int64_t end) {
    const copy_job *job = ctx;
    const dims *d = &job->d;
    int row = d->ndim - 2, col = d->ndim - 1;
    int64_t index[TPF_MAX_NDIM + 2], rest = begin;
    for (int i = col; i >= 0; i--) {
        index[i] = rest % job->count[i];
        rest /= job->count[i];
    }
    for (int64_t unit = begin; unit < end; unit++) {
        char *dst = job->dst;
        const char *src = job->src;
        for (int i = 0; i < row; i++) {
            dst += index[i] * d->dst[i];
            src += index[i] * d->src[i];
        }
        int64_t r = index[row] * job->tile_rows, c = index[col] * job->tile_cols;
        int64_t rows = d->shape[row] - r < job->tile_rows ? d->shape[row] - r : job->tile_rows;
        int64_t cols = d->shape[col] - c < job->tile_cols ? d->shape[col] - c : job->tile_cols;
        dst += r * d->dst[row] + c * d->dst[col];
        src += r * d->src[row] + c * d->src[col];
        copy_tile(dst, d->dst + row, src, d->src + row, job->itemsize, rows, cols);
        for (int i = col; i >= 0 && ++index[i] == job->count[i]; i--) index[i] = 0;
    }
}

static void swap_axes(dims *d, int i, int j) {
    int64_t shape = d->shape[i], dst = d->dst[i], src = d->src[i];
    d->shape[i] = d->shape[j], d->dst[i] = d->dst[j], d->src[i] = d->src[j];
    d->shape[j] = shape, d->dst[j] = dst, d->src[j] = src;
}

/* Order is free in a copy: axes by falling stride of the destination, each stride positive there. */
static void simplify(copy_job *job, int ndim, const int64_t *shape, const int64_t *dst, const int64_t *src) {
    dims a;
    a.ndim = 0;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] == 1) continue;
        int j = a.ndim++;
        a.shape[j] = shape[i], a.dst[j] = dst[i], a.src[j] = src[i];
        if (a.dst[j] < 0) {
            job->dst += (shape[i] - 1) * dst[i];
            job->src += (shape[i] - 1) * src[i];
            a.dst[j] = -dst[i], a.src[j] = -src[i];
        }
        for (; j > 0 && a.dst[j - 1] < a.dst[j]; j--) swap_axes(&a, j - 1, j);
    }
    job->d.ndim = 0;
    for (int i = 0; i < a.ndim; i++) push_axis(&job->d, a.shape[i], a.dst[i], a.src[i]);
    pad_axes(&job->d);
}

/* The rows of a tile run along the axis in which the source is densest, if that is not the columns already. */
static void choose_rows(dims *d) {
    int row = d->ndim - 2, col = d->ndim - 1, best = row;
    for (int i = 0; i < row; i++)
        if (d->src[i] != 0 && magnitude(d->src[i]) < magnitude(d->src[best])) best = i;
    if (best != row && magnitude(d->src[best]) < magnitude(d->src[col])) swap_axes(d, best, row);
}

void tpf_copy(char *dst, const int64_t *dst_strides, const char *src, const int64_t *src_strides, int itemsize,
              int ndim, const int64_t *shape) {
    copy_job job;
    int64_t size = 1, units = 1;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] == 0) return;
        size *= shape[i];
    }
    job.dst = dst;
    job.src = src;
    job.itemsize = itemsize;
    simplify(&job, ndim, shape, dst_strides, src_strides);
    choose_rows(&job.d);
    dims *d = &job.d;
    int row = d->ndim - 2, col = d->ndim - 1;
    int64_t tile = size * itemsize > PARALLEL_BYTES ? GRAIN_BYTES / itemsize : size; /* elements of one unit */
    if (tile < 1) tile = 1;
    job.tile_cols = d->shape[col] < tile ? d->shape[col] : tile;
    if (d->shape[row] >= 4 && magnitude(d->src[row]) < magnitude(d->src[col]) && job.tile_cols > 512 &&
        tile < size) /* a transpose: tiles that are wide in both directions */
        job.tile_cols = 512;
    job.tile_rows = tile / job.tile_cols;
    if (job.tile_rows > d->shape[row]) job.tile_rows = d->shape[row];
    for (int i = 0; i < d->ndim; i++) {
        job.count[i] = d->shape[i];
        if (i == row) job.count[i] = (d->shape[i] - 1) / job.tile_rows + 1;
        if (i == col) job.count[i] = (d->shape[i] - 1) / job.tile_cols + 1;
        units *= job.count[i];
    }
    if (tile == size) {
        copy_units(&job, 0, units);
        return;
    }
    int64_t grain = tile / (job.tile_rows * job.tile_cols);
    TPF_SHARE(size * itemsize, WAKES_BYTES)(copy_units, &job, units, grain < 1 ? 1 : grain);
}

/* ---- fill, take ---- */

typedef struct {
    char *dst;
    const char *value;
    int itemsize;
} fill_job;

static void fill_range(void *ctx, int64_t begin, int64_t end) {
    const fill_job *job = ctx;
    fill_run(job->dst + begin * job->itemsize, job->value, job->itemsize, end - begin);
}

void tpf_fill(void *dst, const void *value, int itemsize, int64_t n) {
    fill_job job = {dst, value, itemsize};
    if (n <= PARALLEL_BYTES / itemsize)
        fill_run(dst, value, itemsize, n);
    else
        TPF_SHARE(n * itemsize, WAKES_BYTES)(fill_range, &job, n, GRAIN_BYTES / itemsize);
}

typedef struct {
    char *y;
    const char *x;
    const int64_t *idx;
    int64_t n, m, inner;
} take_job;

TPF_INLINE void take_run(char *y, const char *x, const int64_t *idx, size_t size, int64_t m) {
    for (int64_t k = 0; k < m; k++) memcpy(y + k * (int64_t)size, x + idx[k] * (int64_t)size, size);
}

/* Positions begin..end of (outer, m) */
static void take_range(void *ctx, int64_t begin, int64_t end) {
    const take_job *job = ctx;
    while (begin < end) {
        int64_t o = begin / job->m, k = begin - o * job->m;
        int64_t count = job->m - k < end - begin ? job->m - k : end - begin;
        char *y = job->y + begin * job->inner;
        const char *x = job->x + o * job->n * job->inner;
        const int64_t *idx = job->idx + k;
        FOR_ITEM(job->inner, take_run(y, x, idx, SIZE, count));
        begin += count;
    }
}

void tpf_take(void *y, const void *x, const int64_t *idx, int64_t outer, int64_t n, int64_t m, int64_t inner_bytes) {
    take_job job = {y, x, idx, n, m, inner_bytes};
    if (outer <= 0 || m <= 0 || inner_bytes <= 0) return;
    int64_t count = outer * m, grain = GRAIN_BYTES / inner_bytes;
    if (count <= PARALLEL_BYTES / inner_bytes)
        take_range(&job, 0, count);
    else
        TPF_SHARE(count * inner_bytes, WAKES_BYTES)(take_range, &job, count, grain < 1 ? 1 : grain);
}
