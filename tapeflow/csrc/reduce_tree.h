/* One reduction of one dtype: leaves (up to TPF_R_CHUNK values of a row, or of a block of columns), the
   tree above them, and the division of the work among threads. Included by reduce.h only, which says what
   the parameters are. Offsets let argmax keep positions; the other reductions ignore them. */

#define TPF_R_NAME__(op, dt, name) tpf_r_##op##_##dt##_##name
#define TPF_R_NAME_(op, dt, name) TPF_R_NAME__(op, dt, name)
#define TPF_R(name) TPF_R_NAME_(TPF_R_OP, TPF_R_DT, name)

#define TPF_R_SUMS (TPF_R_KIND == TPF_R_KIND_SUM || TPF_R_KIND == TPF_R_KIND_NANSUM || TPF_R_KIND == TPF_R_KIND_NORM)
#define TPF_R_ARG (TPF_R_KIND == TPF_R_KIND_ARGMAX || TPF_R_KIND == TPF_R_KIND_ARGMIN)

#if TPF_R_SUMS
#define TPF_R_T TPF_R_TYPE
#define TPF_R_Y TPF_R_RESULT
#define TPF_R_A TPF_R_ACC
#define TPF_R_FIRST 0
#if TPF_R_KIND == TPF_R_KIND_SUM
#define TPF_R_LOAD(x) ((TPF_R_A)(x))
#elif TPF_R_KIND == TPF_R_KIND_NANSUM
#define TPF_R_LOAD(x) ((TPF_R_A)((x) == (x) ? (x) : 0))
#else
#define TPF_R_LOAD(x) ((TPF_R_A)(x) * (TPF_R_A)(x))
#endif
#define TPF_R_COMBINE(a, b) ((a) + (b))
#elif TPF_R_KIND == TPF_R_KIND_COUNT
#define TPF_R_T TPF_R_TYPE
#define TPF_R_Y int64_t
#define TPF_R_A TPF_R_INDEX /* one chunk fits */
#define TPF_R_FIRST 0
#define TPF_R_LOAD(x) ((TPF_R_A)((x) != 0))
#define TPF_R_COMBINE(a, b) ((a) + (b))
#else
#define TPF_R_T TPF_R_BITS
#define TPF_R_FIRST TPF_R_LOWEST
#define TPF_R_COMBINE(a, b) ((b) > (a) ? (b) : (a))
#if TPF_R_ARG
#define TPF_R_Y int64_t
#define TPF_R_A TPF_R_INDEX
#if TPF_R_KIND == TPF_R_KIND_ARGMAX
#define TPF_R_LOAD(x) ((TPF_R_A)TPF_R_TIE(x))
#define TPF_R_BEATS(a, b) ((a) > (b))
#else
#define TPF_R_LOAD(x) ((TPF_R_A)(TPF_R_KEY)TPF_R_DOWN_TIE(x))
#define TPF_R_BEATS(a, b) ((a) < (b))
#endif
#else
#define TPF_R_Y TPF_R_BITS
#define TPF_R_A TPF_R_KEY
#if TPF_R_KIND == TPF_R_KIND_MAX
#define TPF_R_LOAD(x) ((TPF_R_A)TPF_R_UP(x))
#else
#define TPF_R_LOAD(x) ((TPF_R_A)TPF_R_DOWN(x))
#endif
#endif
#endif

/* What a subtree comes to, how two neighbours join, and how the root is stored. */
#if TPF_R_ARG
typedef struct {
    TPF_R_A key;
    int64_t at;
} TPF_R(part);
#define TPF_R_S TPF_R(part)
TPF_INLINE TPF_R_S TPF_R(join)(TPF_R_S left, TPF_R_S right, int64_t offset) {
    right.at += offset;
    return right.key > left.key ? right : left;
}
#define TPF_R_STORE(s, n, mean) ((void)(mean), (s).at)
#else
#if TPF_R_SUMS
#define TPF_R_S TPF_R_SUM
#elif TPF_R_KIND == TPF_R_KIND_COUNT
#define TPF_R_S int64_t
#else
#define TPF_R_S TPF_R_KEY
#endif
TPF_INLINE TPF_R_S TPF_R(join)(TPF_R_S left, TPF_R_S right, int64_t offset) {
    (void)offset;
    return TPF_R_COMBINE(left, right);
}
#if TPF_R_KIND == TPF_R_KIND_MAX
#define TPF_R_STORE(s, n, mean) ((void)(mean), (TPF_R_Y)TPF_R_UNUP(s))
#elif TPF_R_KIND == TPF_R_KIND_MIN
#define TPF_R_STORE(s, n, mean) ((void)(mean), (TPF_R_Y)TPF_R_UNDOWN(s))
#elif TPF_R_SUMS && defined(TPF_R_MASK)
#define TPF_R_STORE(s, n, mean) ((TPF_R_Y)tpf_r_finish(s, n, mean))
#else
#define TPF_R_STORE(s, n, mean) ((void)(mean), (TPF_R_Y)(s))
#endif
#endif

/* ---- leaves: n, rows <= TPF_R_CHUNK; `readable` counts the values that may be touched from x on ---- */

#if TPF_R_SUMS && defined(TPF_R_MASK)

/* 16 lanes from the first n of 16 values, n > 0; the others are read if they can be, and masked. */
TPF_INLINE void TPF_R(load)(TPF_R_A *lane, const TPF_R_T *x, int64_t n, int64_t readable) {
    TPF_R_MASK_TYPE bits[TPF_R_LANES];
    TPF_R_T value[TPF_R_LANES];
    const TPF_R_BITS *from = (const TPF_R_BITS *)x;
    const TPF_R_MASK_TYPE *mask = TPF_R_MASK + TPF_R_LANES - n;
    if (readable < TPF_R_LANES) {
        for (int j = 0; j < TPF_R_LANES; j++) value[j] = 0;
        for (int j = 0; j < n; j++) value[j] = x[j];
        from = (const TPF_R_BITS *)value;
    }
    for (int j = 0; j < TPF_R_LANES; j++) bits[j] = (TPF_R_MASK_TYPE)from[j] & mask[j];
    memcpy(value, bits, sizeof value);
    for (int j = 0; j < TPF_R_LANES; j++) lane[j] = TPF_R_LOAD(value[j]);
}

static TPF_R_S TPF_R(row_leaf)(const TPF_R_T *x, int64_t n, int64_t readable) {
    TPF_R_A lane[TPF_R_LANES], more[TPF_R_LANES], by8[8], by4[4];
    if (n == 0) return 0;
    TPF_R(load)(lane, x, n < TPF_R_LANES ? n : TPF_R_LANES, readable);
    for (int j = 0; j < TPF_R_LANES; j++) lane[j] += 0;
    int64_t i = TPF_R_LANES;
    for (; i + TPF_R_LANES <= n; i += TPF_R_LANES)
        for (int j = 0; j < TPF_R_LANES; j++) lane[j] += TPF_R_LOAD(x[i + j]);
    if (i < n) {
        TPF_R(load)(more, x + i, n - i, readable - i);
        for (int j = 0; j < TPF_R_LANES; j++) lane[j] += more[j];
    }
    for (int j = 0; j < 8; j++) by8[j] = lane[j] + lane[j + 8];
    for (int j = 0; j < 4; j++) by4[j] = by8[j] + by8[j + 4];
    return (by4[0] + by4[2]) + (by4[1] + by4[3]);
}

#elif TPF_R_ARG

/* The largest key of TPF_R_SEARCH values. */
#ifdef TPF_R_MASK
TPF_INLINE TPF_R_A TPF_R(best_of)(const TPF_R_T *bits) {
    const TPF_R_TYPE *x = (const TPF_R_TYPE *)bits; /* compared as floats: one operation, not six */
    TPF_R_TYPE most[TPF_R_SEARCH / 4];
    TPF_R_A nans[TPF_R_SEARCH / 4], key = TPF_R_FIRST, nan = 0;
    for (int j = 0; j < TPF_R_SEARCH / 4; j++) most[j] = x[j], nans[j] = x[j] != x[j];
    for (int k = 1; k < 4; k++)
        for (int j = 0; j < TPF_R_SEARCH / 4; j++) {
            TPF_R_TYPE v = x[k * (TPF_R_SEARCH / 4) + j];
            most[j] = TPF_R_BEATS(v, most[j]) ? v : most[j];
            nans[j] |= v != v;
        }
    for (int j = 0; j < TPF_R_SEARCH / 4; j++) nan |= nans[j];
    const TPF_R_T *ends = (const TPF_R_T *)most;
    for (int j = 0; j < TPF_R_SEARCH / 4; j++) {
        TPF_R_A v = TPF_R_LOAD(ends[j]);
        key = TPF_R_COMBINE(key, v);
    }
    return nan ? (TPF_R_A)TPF_R_NAN : key;
}
#else
TPF_INLINE TPF_R_A TPF_R(best_of)(const TPF_R_T *x) {
    TPF_R_A key = TPF_R_FIRST;
    for (int k = 0; k < TPF_R_SEARCH; k++) {
        TPF_R_A v = TPF_R_LOAD(x[k]);
        key = TPF_R_COMBINE(key, v);
    }
    return key;
}
#endif

static TPF_R_S TPF_R(row_leaf)(const TPF_R_T *x, int64_t n, int64_t readable) {
    TPF_R_S best = {TPF_R_FIRST, 0};
    (void)readable;
    for (int64_t i = 0; i < n; i += TPF_R_SEARCH) {
        TPF_R_A key = TPF_R_FIRST;
        if (n >= TPF_R_SEARCH) {
            if (n - i < TPF_R_SEARCH) i = n - TPF_R_SEARCH; /* what was looked at before is not better */
            key = TPF_R(best_of)(x + i);
        } else {
            for (int64_t k = i; k < n; k++) {
                TPF_R_A v = TPF_R_LOAD(x[k]);
                key = TPF_R_COMBINE(key, v);
            }
        }
        if (key > best.key) best.key = key, best.at = i;
    }
    for (int hit = 0; best.at + 32 <= n; best.at += 32) {
        for (int k = 0; k < 32; k++) hit |= TPF_R_LOAD(x[best.at + k]) == best.key;
        if (hit) break;
    }
    while (TPF_R_LOAD(x[best.at]) != best.key) best.at++;
    return best;
}

#else

static TPF_R_S TPF_R(row_leaf)(const TPF_R_T *x, int64_t n, int64_t readable) {
    TPF_R_A all = TPF_R_FIRST;
    (void)readable;
    for (int64_t i = 0; i < n; i++) {
        TPF_R_A v = TPF_R_LOAD(x[i]);
        all = TPF_R_COMBINE(all, v);
    }
    return all;
}

#endif

/* Columns: lane[j * width + c] takes rows i with i % lanes == j. When the block is as wide as the array, the
   rows of a group are one run. Exact reductions take one lane where the columns alone fill the vectors. */
#if TPF_R_SUMS && defined(TPF_R_MASK)
#define TPF_R_GROUP(width) TPF_R_LANES
#define TPF_R_WIDTH TPF_R_SUM_WIDTH
#define TPF_R_CELLS (TPF_R_WIDTH * TPF_R_LANES)
#else
#define TPF_R_GROUP(width) ((width) < 32 ? TPF_R_LANES : 1)
#define TPF_R_WIDTH TPF_R_EXACT_WIDTH
#define TPF_R_CELLS TPF_R_WIDTH /* no less than 32 lanes of all columns */
#endif

#if TPF_R_ARG

TPF_INLINE void TPF_R(add)(TPF_R_A *key, TPF_R_A *at, const TPF_R_T *x, int64_t n, TPF_R_A group) {
    TPF_IVDEP for (int64_t k = 0; k < n; k++) {
        TPF_R_A v = TPF_R_LOAD(x[k]);
        at[k] = v > key[k] ? group : at[k];
        key[k] = TPF_R_COMBINE(key[k], v);
    }
}

static void TPF_R(cols_leaf)(TPF_R_S *out, const TPF_R_T *x, int64_t rows, int64_t width, int64_t inner) {
    TPF_R_A key[TPF_R_CELLS], at[TPF_R_CELLS];
    int64_t group = TPF_R_GROUP(width), lanes = rows < group ? rows : group;
    for (int64_t k = 0; k < lanes * width; k++) key[k] = TPF_R_FIRST, at[k] = 0;
    for (int64_t i = 0; i < rows; i += group) {
        int64_t take = rows - i < group ? rows - i : group;
        if (width == inner) {
            TPF_R(add)(key, at, x + i * inner, take * width, (TPF_R_A)(i / group));
            continue;
        }
        for (int64_t j = 0; j < take; j++) {
            const TPF_R_T *row = x + (i + j) * inner;
            if (i + j + TPF_R_AHEAD < rows) tpf_r_prefetch(row + TPF_R_AHEAD * inner, width * (int64_t)sizeof *row);
            TPF_R(add)(key + j * width, at + j * width, row, width, (TPF_R_A)(i / group));
        }
    }
    for (int64_t c = 0; c < width; c++) out[c].key = key[c], out[c].at = at[c] * group;
    for (int64_t j = 1; j < lanes; j++)
        for (int64_t c = 0; c < width; c++) {
            TPF_R_A v = key[j * width + c];
            int64_t row = at[j * width + c] * group + j;
            if (v > out[c].key || (v == out[c].key && row < out[c].at)) out[c].key = v, out[c].at = row;
        }
}

#else

/* `first`: the lanes hold nothing yet. */
TPF_INLINE void TPF_R(add)(TPF_R_A *lane, const TPF_R_T *x, int64_t n, int first) {
    if (first) {
        for (int64_t k = 0; k < n; k++) {
            TPF_R_A v = TPF_R_LOAD(x[k]), nothing = TPF_R_FIRST;
            lane[k] = TPF_R_COMBINE(nothing, v);
        }
        return;
    }
    TPF_IVDEP for (int64_t k = 0; k < n; k++) {
        TPF_R_A v = TPF_R_LOAD(x[k]);
        lane[k] = TPF_R_COMBINE(lane[k], v);
    }
}

static void TPF_R(cols_leaf)(TPF_R_S *out, const TPF_R_T *x, int64_t rows, int64_t width, int64_t inner) {
    TPF_R_A lane[TPF_R_CELLS];
    int64_t group = TPF_R_GROUP(width), lanes = rows < group ? rows : group;
    if (rows == 0)
        for (int64_t c = 0; c < width; c++) lane[c] = TPF_R_FIRST;
    for (int64_t i = 0; i < rows; i += group) {
        int64_t take = rows - i < group ? rows - i : group;
        if (width == inner) {
            TPF_R(add)(lane, x + i * inner, take * width, i == 0);
            continue;
        }
        for (int64_t j = 0; j < take; j++) {
            const TPF_R_T *row = x + (i + j) * inner;
            if (i + j + TPF_R_AHEAD < rows) tpf_r_prefetch(row + TPF_R_AHEAD * inner, width * (int64_t)sizeof *row);
            TPF_R(add)(lane + j * width, row, width, i == 0);
        }
    }
    for (int64_t half = group / 2; half > 0; half /= 2) {
        int64_t n = (lanes - half < half ? lanes - half : half) * width;
        TPF_IVDEP for (int64_t k = 0; k < n; k++) {
            TPF_R_A v = lane[half * width + k];
            lane[k] = TPF_R_COMBINE(lane[k], v);
        }
    }
    for (int64_t c = 0; c < width; c++) out[c] = lane[c];
}

#endif

/* ---- the tree ---- */

static TPF_R_S TPF_R(row)(const TPF_R_T *x, int64_t n, int64_t readable) {
    if (n <= TPF_R_CHUNK) return TPF_R(row_leaf)(x, n, readable);
    int64_t half = tpf_r_split(n);
    TPF_R_S left = TPF_R(row)(x, half, readable);
    return TPF_R(join)(left, TPF_R(row)(x + half, n - half, readable - half), half);
}

static void TPF_R(cols)(TPF_R_S *out, const TPF_R_T *x, int64_t rows, int64_t width, int64_t inner) {
    TPF_R_S right[TPF_R_WIDTH];
    if (rows <= TPF_R_CHUNK) {
        TPF_R(cols_leaf)(out, x, rows, width, inner);
        return;
    }
    int64_t half = tpf_r_split(rows);
    TPF_R(cols)(out, x, half, width, inner);
    TPF_R(cols)(right, x + half * inner, rows - half, width, inner);
    for (int64_t c = 0; c < width; c++) out[c] = TPF_R(join)(out[c], right[c], half);
}

/* ---- units (a row, or a block of columns of one slice), and pieces of a unit, for threads ---- */

typedef struct {
    TPF_R_Y *y;
    const TPF_R_T *x;
    TPF_R_S *parts; /* (pieces, width of the unit) */
    int64_t outer, n, inner, width, blocks, unit, piece;
    int mean;
} TPF_R(job);

/* A unit's width; where its values are in x and its results in y. */
TPF_INLINE int64_t TPF_R(place)(const TPF_R(job) *job, int64_t unit, const TPF_R_T **x, TPF_R_Y **y) {
    int64_t o = job->blocks == 1 ? unit : unit / job->blocks;
    int64_t column = (unit - o * job->blocks) * job->width, left = job->inner - column;
    *x = job->x + o * job->n * job->inner + column;
    *y = job->y + o * job->inner + column;
    return left < job->width ? left : job->width;
}

static void TPF_R(units)(void *ctx, int64_t begin, int64_t end) {
    const TPF_R(job) *job = ctx;
    TPF_R_S out[TPF_R_WIDTH];
    if (job->inner == 1) {
        for (int64_t o = begin; o < end; o++) {
            TPF_R_S s = TPF_R(row)(job->x + o * job->n, job->n, (job->outer - o) * job->n);
            job->y[o] = TPF_R_STORE(s, job->n, job->mean);
        }
        return;
    }
    for (int64_t unit = begin; unit < end; unit++) {
        const TPF_R_T *x;
        TPF_R_Y *y;
        int64_t width = TPF_R(place)(job, unit, &x, &y);
        TPF_R(cols)(out, x, job->n, width, job->inner);
        for (int64_t c = 0; c < width; c++) y[c] = TPF_R_STORE(out[c], job->n, job->mean);
    }
}

static void TPF_R(pieces)(void *ctx, int64_t begin, int64_t end) {
    const TPF_R(job) *job = ctx;
    const TPF_R_T *all;
    TPF_R_Y *y;
    int64_t width = TPF_R(place)(job, job->unit, &all, &y);
    for (int64_t p = begin; p < end; p++) {
        int64_t row = p * job->piece, rows = job->n - row < job->piece ? job->n - row : job->piece;
        const TPF_R_T *x = all + row * job->inner;
        if (job->inner == 1)
            job->parts[p] = TPF_R(row)(x, rows, job->n - row);
        else
            TPF_R(cols)(job->parts + p * width, x, rows, width, job->inner);
    }
}

/* A piece is a power of two of chunks, so it is a subtree, and halving the pieces is the tree above it. */
static void TPF_R(in_pieces)(TPF_R(job) *job, int64_t unit, int64_t pieces) {
    const TPF_R_T *x;
    TPF_R_Y *y;
    int64_t width = TPF_R(place)(job, unit, &x, &y);
    job->unit = unit;
    TPF_SHARE(job->outer * job->n * job->inner, TPF_R_WAKES / (int64_t)sizeof(TPF_R_T))(TPF_R(pieces), job, pieces, 1);
    for (int64_t step = 1; step < pieces; step *= 2)
        for (int64_t p = 0; p + step < pieces; p += 2 * step)
            for (int64_t c = 0; c < width; c++) {
                TPF_R_S *left = job->parts + p * width + c;
                *left = TPF_R(join)(*left, left[step * width], step * job->piece);
            }
    for (int64_t c = 0; c < width; c++) y[c] = TPF_R_STORE(job->parts[c], job->n, job->mean);
}

static void TPF_R(all)(void *y, const void *x, int64_t outer, int64_t n, int64_t inner, int mean) {
    TPF_R(job) job = {.y = y, .x = x, .outer = outer, .n = n, .inner = inner, .mean = mean};
    if (outer <= 0 || inner <= 0) return;
    job.width = inner < TPF_R_WIDTH ? inner : TPF_R_WIDTH;
    job.blocks = (inner - 1) / job.width + 1;
    int64_t units = outer * job.blocks, unit_bytes = n * job.width * (int64_t)sizeof(TPF_R_T);
    if (unit_bytes == 0 || outer * n * inner <= TPF_R_PARALLEL / (int64_t)sizeof(TPF_R_T)) {
        TPF_R(units)(&job, 0, units);
        return;
    }
    TPF_R_S parts[TPF_R_PARTS]; /* where the pieces are cut changes no bits */
    job.piece = TPF_R_CHUNK;
    while (job.piece * TPF_R_PIECES < n || ((n - 1) / job.piece + 1) * job.width > TPF_R_PARTS) job.piece *= 2;
    int64_t pieces = (n - 1) / job.piece + 1;
    int threads = tpf_get_num_threads();
    if (pieces > 1 && threads > 1 && units < 2 * threads) {
        job.parts = parts;
        for (int64_t unit = 0; unit < units; unit++) TPF_R(in_pieces)(&job, unit, pieces);
        return;
    }
    TPF_SHARE(outer * n * inner, TPF_R_WAKES / (int64_t)sizeof(TPF_R_T))(TPF_R(units), &job, units, TPF_R_GRAIN / unit_bytes + 1);
}

#undef TPF_R_KIND
#undef TPF_R_OP
#undef TPF_R_NAME__
#undef TPF_R_NAME_
#undef TPF_R
#undef TPF_R_T
#undef TPF_R_Y
#undef TPF_R_A
#undef TPF_R_S
#undef TPF_R_FIRST
#undef TPF_R_LOAD
#undef TPF_R_COMBINE
#undef TPF_R_STORE
#undef TPF_R_GROUP
#undef TPF_R_WIDTH
#undef TPF_R_CELLS
#undef TPF_R_SUMS
#undef TPF_R_ARG
#undef TPF_R_BEATS
