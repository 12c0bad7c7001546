/* Places: positions that are computed from index arrays, and what is read from, or written to, such positions.

   A position is the sum of a step along each axis and of each index (wrapped, checked against its extent) times its
   stride. Positions are made a block at a time, so that reading and writing need no array of them. */
#include "item.h"
#include "tpf.h"

#include <string.h>

#define BLOCK 1024               /* positions that stay in L1 */
#define PARALLEL 131072          /* positions from which threads pay */

/* Axes of size 1 go; neighbours that one step describes in every index become one. */
void tpf_places_simplify(tpf_places *p) {
    int n = 0;
    for (int d = 0; d < p->ndim; d++) {
        int64_t size = p->shape[d];
        if (size == 1) continue;
        int merge = n > 0 && p->coef[n - 1] == size * p->coef[d];
        for (int i = 0; i < p->nidx && merge; i++)
            merge = p->index[i].strides[n - 1] == size * p->index[i].strides[d];
        if (merge) n--, size *= p->shape[n];
        p->shape[n] = size;
        p->coef[n] = p->coef[d];
        for (int i = 0; i < p->nidx; i++) p->index[i].strides[n] = p->index[i].strides[d];
        n++;
    }
    if (n == 0) {
        p->shape[0] = 1, p->coef[0] = 0;
        for (int i = 0; i < p->nidx; i++) p->index[i].strides[0] = 0;
        n = 1;
    }
    p->ndim = n;
}

#define ADD_RUN(type)                                       \
    for (int64_t j = 0; j < n; j++) {                       \
        type item;                                          \
        memcpy(&item, data + j * step, sizeof item);        \
        int64_t v = (int64_t)item;                          \
        v += (v >> 63) & extent; /* without a branch */     \
        bad |= (uint64_t)v >= (uint64_t)extent;             \
        out[j] += v * times;                                \
    }

#define ADD_RUNS(type)                                      \
    if (step == (int64_t)sizeof(type)) {                    \
        step = sizeof(type);                                \
        ADD_RUN(type)                                       \
    } else {                                                \
        ADD_RUN(type)                                       \
    }

/* n positions more in the direction of one axis. Returns whether an index was out of range. */
static int add_run(int64_t *out, const char *data, int64_t step, int dtype, int64_t extent, int64_t times, int64_t n) {
    int bad = 0;
    if (dtype == TPF_INT64 && step == 8 && times == 1) {
        for (int64_t j = 0; j < n; j++) {
            int64_t v;
            memcpy(&v, data + j * 8, 8);
            v += (v >> 63) & extent;
            bad |= (uint64_t)v >= (uint64_t)extent;
            out[j] += v;
        }
        return bad;
    }
    switch (dtype) {
    case TPF_BOOL:
    case TPF_UINT8: ADD_RUN(uint8_t); break;
    case TPF_INT32: ADD_RUNS(int32_t); break;
    default: ADD_RUNS(int64_t); break;
    }
    return bad;
}

int tpf_place(const tpf_places *p, int64_t *out, int64_t begin, int64_t end) {
    int64_t at[TPF_MAX_NDIM];
    int last = p->ndim - 1, bad = 0;
    int64_t rest = begin;
    for (int d = last; d >= 0; d--) {
        at[d] = rest % p->shape[d];
        rest /= p->shape[d];
    }
    while (begin < end) {
        int64_t n = p->shape[last] - at[last], base = 0;
        if (n > end - begin) n = end - begin;
        for (int d = 0; d <= last; d++) base += at[d] * p->coef[d];
        int64_t coef = p->coef[last];
        if (coef == 0)
            for (int64_t j = 0; j < n; j++) out[j] = base;
        else
            for (int64_t j = 0; j < n; j++) out[j] = base + j * coef;
        for (int i = 0; i < p->nidx; i++) {
            const tpf_index *x = &p->index[i];
            const char *data = x->data;
            for (int d = 0; d <= last; d++) data += at[d] * x->strides[d];
            bad |= add_run(out, data, x->strides[last], x->dtype, x->extent, x->times, n);
        }
        out += n;
        begin += n;
        at[last] += n;
        for (int d = last; d > 0 && at[d] == p->shape[d]; d--) {
            at[d] = 0;
            at[d - 1]++;
        }
    }
    return bad;
}

typedef struct {
    const tpf_places *places;
    char *y;
    const char *x;
    int64_t inner;
    volatile int bad;
} gather_job;

TPF_INLINE void gather_run(char *y, const char *x, const int64_t *at, size_t size, int64_t n) {
    for (int64_t k = 0; k < n; k++) memcpy(y + k * (int64_t)size, x + at[k] * (int64_t)size, size);
}

static void gather_range(void *ctx, int64_t begin, int64_t end) {
    gather_job *job = ctx;
    int64_t at[BLOCK];
    for (; begin < end; begin += BLOCK) {
        int64_t n = end - begin < BLOCK ? end - begin : BLOCK;
        if (tpf_place(job->places, at, begin, begin + n)) {
            job->bad = 1;
            return;
        }
        char *y = job->y + begin * job->inner;
        FOR_ITEM(job->inner, gather_run(y, job->x, at, SIZE, n));
    }
}

int tpf_gather(void *y, const void *x, const tpf_places *p, int64_t size, int64_t inner_bytes) {
    gather_job job = {p, y, x, inner_bytes, 0};
    if (size * (1 + inner_bytes / 16) < PARALLEL)
        gather_range(&job, 0, size);
    else
        tpf_parallel(gather_range, &job, size, (size / 8 + BLOCK - 1) / BLOCK * BLOCK);
    return job.bad;
}

static void place_range(void *ctx, int64_t begin, int64_t end) {
    gather_job *job = ctx;
    if (tpf_place(job->places, (int64_t *)job->y + begin, begin, end)) job->bad = 1;
}

int tpf_place_all(const tpf_places *p, int64_t *out, int64_t size) {
    gather_job job = {p, (char *)out, NULL, 8, 0};
    if (size < PARALLEL)
        place_range(&job, 0, size);
    else
        tpf_parallel(place_range, &job, size, (size + 7) / 8);
    return job.bad;
}

TPF_INLINE void put_run(char *y, const int64_t *at, const char *v, int64_t step, size_t size, int64_t n) {
    for (int64_t k = 0; k < n; k++) memcpy(y + at[k] * (int64_t)size, v + k * step, size);
}

/* In one thread: of positions that repeat, the last one wins. */
void tpf_put(void *y, const int64_t *at, const void *v, int64_t outer, int64_t n, int64_t m, int64_t inner_bytes,
             int64_t step) {
    for (int64_t o = 0; o < outer; o++) {
        char *to = (char *)y + o * n * inner_bytes;
        const char *from = (const char *)v + o * m * step;
        FOR_ITEM(inner_bytes, put_run(to, at, from, step, SIZE, m));
    }
}

/* ---- one vector, indices as they came: looked at first, so that nothing is written where one is out of range */

static int all_within(const int64_t *idx, int64_t m, int64_t n) {
    int bad = 0;
    for (int64_t k = 0; k < m; k++) bad |= (uint64_t)(idx[k] + ((idx[k] >> 63) & n)) >= (uint64_t)n;
    return !bad;
}

TPF_INLINE void take_at_run(char *y, const char *x, int64_t n, const int64_t *idx, size_t size, int64_t m) {
    for (int64_t k = 0; k < m; k++)
        memcpy(y + k * (int64_t)size, x + (idx[k] + ((idx[k] >> 63) & n)) * (int64_t)size, size);
}

int tpf_take_at(void *y, const void *x, int64_t n, const int64_t *idx, int64_t m, int itemsize) {
    if (!all_within(idx, m, n)) return 0;
    FOR_ITEM(itemsize, take_at_run(y, x, n, idx, SIZE, m));
    return 1;
}

TPF_INLINE void fill_at_run(char *y, int64_t n, const int64_t *idx, const char *value, size_t size, int64_t m) {
    for (int64_t k = 0; k < m; k++)
        memcpy(y + (idx[k] + ((idx[k] >> 63) & n)) * (int64_t)size, value, size);
}

int tpf_fill_at(void *y, int64_t n, const int64_t *idx, int64_t m, const void *value, int itemsize) {
    if (!all_within(idx, m, n)) return 0;
    FOR_ITEM(itemsize, fill_at_run(y, n, idx, value, SIZE, m));
    return 1;
}

TPF_INLINE void fill_where_run(char *y, const uint8_t *mask, const char *value, size_t size, int64_t n) {
    for (int64_t k = 0; k < n; k++)
        memcpy(y + k * (int64_t)size, mask[k] ? value : y + k * (int64_t)size, size);
}

void tpf_fill_where(void *y, const uint8_t *mask, int64_t n, const void *value, int itemsize) {
    char one[8]; /* of our own, so that writes to y cannot change it */
    memcpy(one, value, (size_t)itemsize);
    FOR_ITEM(itemsize, fill_where_run(y, mask, one, SIZE, n));
}

/* Four copies are written without asking how many there are to be, as long as others follow. */
TPF_INLINE char *repeat_run(char *y, const char *x, const int64_t *counts, size_t size, int64_t n, int64_t follow) {
    for (int64_t i = 0; i < n; i++, x += size) {
        int64_t k = 0;
        if (size <= 8 && follow >= 4) {
            for (; k < 4; k++) memcpy(y + k * (int64_t)size, x, size);
        }
        for (; k < counts[i]; k++) memcpy(y + k * (int64_t)size, x, size);
        y += counts[i] * (int64_t)size;
        follow -= counts[i];
    }
    return y;
}

void tpf_repeat(void *y, const void *x, const int64_t *counts, int64_t outer, int64_t n, int64_t inner_bytes) {
    char *to = y;
    const char *from = x;
    int64_t total = 0;
    for (int64_t i = 0; i < n; i++) total += counts[i];
    for (int64_t o = 0; o < outer; o++, from += n * inner_bytes)
        FOR_ITEM(inner_bytes, to = repeat_run(to, from, counts, SIZE, n, total));
}

/* ---- masks */

int64_t tpf_count_true(const uint8_t *mask, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += 255) {
        int64_t m = n - i < 255 ? n - i : 255;
        uint8_t part = 0;
        for (int64_t j = 0; j < m; j++) part = (uint8_t)(part + (mask[i + j] != 0));
        count += part;
    }
    return count;
}

TPF_INLINE int eight_false(const uint8_t *mask) {
    uint64_t word;
    memcpy(&word, mask, 8);
    return word == 0;
}

void tpf_true_positions(int64_t *out, const uint8_t *mask, int64_t n, int64_t count) {
    int64_t found = 0, i = 0;
    while (found < count) { /* without a branch for each: out[found] is written until it is one that is true */
        if (i + 8 <= n && eight_false(mask + i)) {
            i += 8;
            continue;
        }
        for (int64_t stop = i + 8 < n ? i + 8 : n; i < stop && found < count; i++) {
            out[found] = i;
            found += mask[i] != 0;
        }
    }
}

TPF_INLINE void compress_run(char *y, const char *x, const uint8_t *mask, size_t size, int64_t n, int64_t count) {
    int64_t found = 0, i = 0;
    while (found < count) {
        if (i + 8 <= n && eight_false(mask + i)) {
            i += 8;
            continue;
        }
        for (int64_t stop = i + 8 < n ? i + 8 : n; i < stop && found < count; i++) {
            memcpy(y + found * (int64_t)size, x + i * (int64_t)size, size);
            found += mask[i] != 0;
        }
    }
}

void tpf_compress(void *y, const void *x, const uint8_t *mask, int64_t n, int64_t count, int itemsize) {
    FOR_ITEM(itemsize, compress_run(y, x, mask, SIZE, n, count));
}

/* The coordinates, in a shape of ndim >= 1 axes, of positions in ascending order: out is (ndim, count). */
void tpf_unravel(int64_t *out, const int64_t *at, int64_t count, int ndim, const int64_t *shape) {
    int64_t row[TPF_MAX_NDIM] = {0}, start = 0, columns = shape[ndim - 1];
    for (int64_t k = 0; k < count; k++) {
        if (at[k] - start >= columns) { /* another row */
            int64_t rest = at[k] / columns;
            start = rest * columns;
            for (int d = ndim - 2; d >= 0; d--) {
                row[d] = rest % shape[d];
                rest /= shape[d];
            }
        }
        for (int d = 0; d < ndim - 1; d++) out[d * count + k] = row[d];
        out[(ndim - 1) * count + k] = at[k] - start;
    }
}
