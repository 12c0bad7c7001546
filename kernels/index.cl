// Moves by item size: strided copies, fills, elements at positions and their counterparts, masks.
//
// A program has the kernels of one of these: -DCOPIES=4|16 (of up to so many axes; more than 4 are rare and slow to
// compile), -DGATHER, -DMASKS, all three with -DITEM=uchar|uint|ulong, what is moved, as bits; -DNUMBER=.., what
// scatter_add adds in (integers unsigned, so that they wrap); -DINDEX=.., the type of index tensors; -DPOSITIONS.
// -DGROUP=n: the most work-items of a group, for kernels with local memory.
// Offsets, extents and strides are in elements. Axes are numbered from the innermost one; a kernel's axes are what is
// left when neighbours that one stride describes in every operand are one (moves.py).
#pragma OPENCL FP_CONTRACT OFF
#ifdef FP64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

// a / b, both below 2^32 where narrow: of 64 bits it costs a GPU five times as much.
long quotient(long a, long b, int narrow)
{
    return narrow ? (long)((uint)a / (uint)b) : a / b;
}

// Dimension 0 is a lane, the other two are a row: without a loop, so that compilers for CPUs make vectors of lanes.
#define ROW ((long)get_global_id(2) * (long)get_global_size(1) + (long)get_global_id(1))

// ---- copies: a lane for one axis, all others are the rows. ----

#define AXIS(d) , const long n##d, const long y##d, const long x##d
#define STEP(d)                                                                                              \
    {                                                                                                        \
        const long over = quotient(rest, n##d, narrow), at = rest - over * n##d;                             \
        to += at * y##d;                                                                                     \
        from += at * x##d;                                                                                   \
        rest = over;                                                                                         \
    }

#define AXES_1
#define STEPS_1
#define AXES_2 AXIS(1)
#define STEPS_2 STEP(1)
#define AXES_4 AXES_2 AXIS(2) AXIS(3)
#define STEPS_4 STEPS_2 STEP(2) STEP(3)
#define AXES_8 AXES_4 AXIS(4) AXIS(5) AXIS(6) AXIS(7)
#define STEPS_8 STEPS_4 STEP(4) STEP(5) STEP(6) STEP(7)
#define AXES_16 AXES_8 AXIS(8) AXIS(9) AXIS(10) AXIS(11) AXIS(12) AXIS(13) AXIS(14) AXIS(15)
#define STEPS_16 STEPS_8 STEP(8) STEP(9) STEP(10) STEP(11) STEP(12) STEP(13) STEP(14) STEP(15)

#define COPY(name, rank, Y0, X0)                                                                             \
    __kernel void name(__global ITEM *y, const long y_start, __global const ITEM *x, const long x_start,     \
                       const long rows, const int narrow, const long n0, const long y0,                      \
                       const long x0 AXES_##rank)                                                            \
    {                                                                                                        \
        const long i = (long)get_global_id(0), row = ROW;                                                    \
        long rest = row, to = y_start, from = x_start;                                                       \
        if (i >= n0 || row >= rows) return;                                                                  \
        STEPS_##rank                                                                                         \
        y[to + i * Y0] = x[from + i * X0];                                                                   \
    }
#define COPY_BOTH(rank)                                                                                         \
    COPY(copy_##rank, rank, y0, x0)                                                                          \
    COPY(copy_runs_##rank, rank, 1, 1)

#if COPIES == 16

COPY_BOTH(8)
COPY_BOTH(16)

#elif COPIES == 4

COPY_BOTH(1)
COPY_BOTH(2)
COPY_BOTH(4)

// The transposed of many matrices: y is contiguous along axis 0, x along axis 1. A tile goes through local memory, so
// that both are read and written along their runs.
#define TILE 16
__kernel void transpose(__global ITEM *y, const long y_start, __global const ITEM *x, const long x_start,
                        const long units, const long across, const long down, const long n0, const long y0,
                        const long x0, const long n1, const long y1, const long x1, const long y2, const long x2)
{
    __local ITEM tile[TILE][TILE + 1];
    const int l = (int)get_local_id(0), width = (int)get_local_size(0);
    for (long unit = (long)get_group_id(0); unit < units; unit += (long)get_num_groups(0)) {
        const long matrix = unit / (across * down), part = unit - matrix * across * down;
        const long below = part / across, first0 = (part - below * across) * TILE, first1 = below * TILE;
        for (int t = l; t < TILE * TILE; t += width) {
            const long i = first0 + (t >> 4), j = first1 + (t & 15);
            if (i < n0 && j < n1) tile[t >> 4][t & 15] = x[x_start + matrix * x2 + i * x0 + j * x1];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int t = l; t < TILE * TILE; t += width) {
            const long i = first0 + (t & 15), j = first1 + (t >> 4);
            if (i < n0 && j < n1) y[y_start + matrix * y2 + i * y0 + j * y1] = tile[t & 15][t >> 4];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

// The same by a work-item for each tile: on a CPU the caches do what local memory does elsewhere.
__kernel void transpose_tiles(__global ITEM *y, const long y_start, __global const ITEM *x, const long x_start,
                              const long units, const long across, const long down, const long n0, const long y0,
                              const long x0, const long n1, const long y1, const long x1, const long y2, const long x2)
{
    const long unit = (long)get_global_id(0);
    if (unit >= units) return;
    const long matrix = unit / (across * down), part = unit - matrix * across * down, below = part / across;
    const long first0 = (part - below * across) * TILE, first1 = below * TILE;
    __global ITEM *to = y + y_start + matrix * y2 + first0 * y0 + first1 * y1;
    __global const ITEM *from = x + x_start + matrix * x2 + first0 * x0 + first1 * x1;
    const int wide = (int)min((long)TILE, n0 - first0), high = (int)min((long)TILE, n1 - first1);
    for (int j = 0; j < high; j++)
        for (int i = 0; i < wide; i++) to[i * y0 + j * y1] = from[i * x0 + j * x1];
}

__kernel void fill(__global ITEM *y, const long start, const long n, const ulong bits)
{
    const long i = (long)get_global_id(0);
    if (i < n) y[start + i] = (ITEM)bits;
}

#endif

#ifdef GATHER

// ---- elements at positions: y[o, k, i] = x[o, idx[k], i]; lanes along i, or along k where inner is short. ----

__kernel void take_inner(__global ITEM *y, const long y_start, __global const ITEM *x, const long x_start,
                         __global const long *idx, const long idx_start, const long rows, const long m,
                         const long inner, const long x_outer, const long x_axis, const long x_inner)
{
    const long i = (long)get_global_id(0), row = ROW;
    if (i >= inner || row >= rows) return;
    const long o = row / m, at = idx[idx_start + row - o * m];
    y[y_start + row * inner + i] = x[x_start + o * x_outer + at * x_axis + i * x_inner];
}

__kernel void take_lanes(__global ITEM *y, const long y_start, __global const ITEM *x, const long x_start,
                         __global const long *idx, const long idx_start, const long rows, const long m,
                         const long inner, const long x_outer, const long x_axis, const long x_inner)
{
    const long k = (long)get_global_id(0), row = ROW;
    if (k >= m || row >= rows) return;
    const long o = row / inner, i = row - o * inner, at = idx[idx_start + k];
    y[y_start + (o * m + k) * inner + i] = x[x_start + o * x_outer + at * x_axis + i * x_inner];
}

// y[o, idx[k], i] = v[o, k, i]. last: of each index the last k that has it (of those from `first` on), which is the one
// to write; not read unless indices may repeat. v and y are packed.
__kernel void put_inner(__global ITEM *y, const long y_start, __global const ITEM *v, const long v_start,
                        __global const long *idx, const long idx_start, __global const int *last, const int repeats,
                        const long first, const long count, const long rows, const long m, const long n,
                        const long inner)
{
    const long i = (long)get_global_id(0), row = ROW;
    if (i >= inner || row >= rows) return;
    const long o = row / count, k = row - o * count, at = idx[idx_start + first + k];
    if (!repeats || last[at] == (int)k)
        y[y_start + (o * n + at) * inner + i] = v[v_start + (o * m + first + k) * inner + i];
}

__kernel void put_lanes(__global ITEM *y, const long y_start, __global const ITEM *v, const long v_start,
                        __global const long *idx, const long idx_start, __global const int *last, const int repeats,
                        const long first, const long count, const long rows, const long m, const long n,
                        const long inner)
{
    const long k = (long)get_global_id(0), row = ROW;
    if (k >= count || row >= rows) return;
    const long o = row / inner, i = row - o * inner, at = idx[idx_start + first + k];
    if (!repeats || last[at] == (int)k)
        y[y_start + (o * n + at) * inner + i] = v[v_start + (o * m + first + k) * inner + i];
}

__kernel void last_of(__global int *last, __global const long *idx, const long idx_start, const long first,
                      const long count)
{
    const long k = (long)get_global_id(0);
    if (k < count) atomic_max(&last[idx[idx_start + first + k]], (int)k);
}

// The same by columns, `width` at a time from k to k: in order without knowing which repeat. For devices with few
// processors.
__kernel void put_columns(__global ITEM *y, const long y_start, __global const ITEM *v, const long v_start,
                          __global const long *idx, const long idx_start, const long outer, const long m, const long n,
                          const long inner, const long width)
{
    const long begin = (long)get_global_id(0) * width, end = min(begin + width, inner), o = ROW;
    if (begin >= inner || o >= outer) return;
    for (long k = 0; k < m; k++) {
        __global ITEM *to = y + y_start + (o * n + idx[idx_start + k]) * inner;
        __global const ITEM *from = v + v_start + (o * m + k) * inner;
        for (long i = begin; i < end; i++) to[i] = from[i];
    }
}

// y[i, c] = one where c is class i, else 0.
__kernel void one_hot(__global ITEM *y, const long y_start, __global const long *x, const long x_start, const long rows,
                      const long classes, const ulong one, __global int *bad)
{
    const long c = (long)get_global_id(0), row = ROW;
    if (row >= rows) return;
    const long id = x[x_start + row];
    if (c < classes) y[y_start + row * classes + c] = id == c ? (ITEM)one : (ITEM)0;
    if (c == 0 && (ulong)id >= (ulong)classes) *bad = 1;
}

#endif

// ---- positions of what is not 0: counted by blocks; mask has the bits that count (of a float all but the sign). ----

#ifdef MASKS

__kernel void count_nonzero(__global long *counts, __global const ITEM *x, const long x_start, const long n,
                            const long blocks, const long block, const ulong mask)
{
    __local int part[GROUP];
    const int l = (int)get_local_id(0), width = (int)get_local_size(0);
    for (long b = (long)get_group_id(0); b < blocks; b += (long)get_num_groups(0)) {
        const long end = min((b + 1) * block, n);
        int count = 0;
        for (long i = b * block + l; i < end; i += width) count += (x[x_start + i] & (ITEM)mask) != 0;
        part[l] = count;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (l == 0) {
            for (int j = 1; j < width; j++) count += part[j];
            counts[b] = count;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

__kernel void place_nonzero(__global long *y, const long y_start, __global const long *before, __global const ITEM *x,
                            const long x_start, const long n, const long blocks, const long block, const ulong mask)
{
    __local int part[GROUP];
    const int l = (int)get_local_id(0), width = (int)get_local_size(0);
    for (long b = (long)get_group_id(0); b < blocks; b += (long)get_num_groups(0)) {
        const long end = min((b + 1) * block, n);
        long found = before[b];
        for (long first = b * block; first < end; first += width) { // the same number of turns in all work-items
            const long i = first + l;
            const int here = i < end && (x[x_start + i] & (ITEM)mask) != 0;
            part[l] = here;
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int d = 1; d < width; d <<= 1) {
                const int left = l >= d ? part[l - d] : 0;
                barrier(CLK_LOCAL_MEM_FENCE);
                part[l] += left;
                barrier(CLK_LOCAL_MEM_FENCE);
            }
            if (here) y[y_start + found + part[l] - 1] = i;
            found += part[width - 1];
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    }
}

// The same by a work-item for each block. For devices with few processors.
__kernel void count_blocks(__global long *counts, __global const ITEM *x, const long x_start, const long n,
                           const long blocks, const long block, const ulong mask)
{
    const long b = (long)get_global_id(0);
    if (b >= blocks) return;
    const long end = min((b + 1) * block, n);
    int count = 0;
    for (long i = b * block; i < end; i++) count += (x[x_start + i] & (ITEM)mask) != 0;
    counts[b] = count;
}

__kernel void place_blocks(__global long *y, const long y_start, __global const long *before, __global const ITEM *x,
                           const long x_start, const long n, const long blocks, const long block, const ulong mask)
{
    const long b = (long)get_global_id(0);
    if (b >= blocks) return;
    const long end = min((b + 1) * block, n);
    long found = y_start + before[b];
    for (long i = b * block; i < end; i++)
        if (x[x_start + i] & (ITEM)mask) y[found++] = i;
}

#endif

// ---- sums at positions: y[o, idx[k], i] += u[o, k, i] for k ascending, in NUMBER. ----

#ifdef NUMBER

// By columns, as put_columns.
__kernel void add_columns(__global NUMBER *y, const long y_start, __global const NUMBER *u, const long u_start,
                          __global const long *idx, const long idx_start, const long outer, const long m, const long n,
                          const long inner, const long width)
{
    const long begin = (long)get_global_id(0) * width, end = min(begin + width, inner), o = ROW;
    if (begin >= inner || o >= outer) return;
    for (long k = 0; k < m; k++) {
        __global NUMBER *to = y + y_start + (o * n + idx[idx_start + k]) * inner;
        __global const NUMBER *from = u + u_start + (o * m + k) * inner;
        for (long i = begin; i < end; i++) to[i] += from[i];
    }
}

// order: the k in stable order of their index. Of those with equal ones the first adds all, one after the other.
#define ADD_SEGMENTS(name, LANE, COUNT, SPLIT)                                                               \
    __kernel void name(__global NUMBER *y, const long y_start, __global const NUMBER *u, const long u_start, \
                       __global const long *idx, const long idx_start, __global const long *order,           \
                       const long rows, const long m, const long n, const long inner)                        \
    {                                                                                                        \
        const long LANE = (long)get_global_id(0), row = ROW;                                                 \
        if (LANE >= COUNT || row >= rows) return;                                                            \
        SPLIT                                                                                                \
        long k = order[s];                                                                                   \
        const long at = idx[idx_start + k];                                                                  \
        if (s > 0 && idx[idx_start + order[s - 1]] == at) return;                                            \
        NUMBER sum = y[y_start + (o * n + at) * inner + i];                                                  \
        for (long t = s;;) {                                                                                 \
            sum += u[u_start + (o * m + k) * inner + i];                                                     \
            if (++t == m) break;                                                                             \
            k = order[t];                                                                                    \
            if (idx[idx_start + k] != at) break;                                                             \
        }                                                                                                    \
        y[y_start + (o * n + at) * inner + i] = sum;                                                         \
    }
ADD_SEGMENTS(add_inner, i, inner, const long o = row / m; const long s = row - o * m;)
ADD_SEGMENTS(add_lanes, s, m, const long o = row / inner; const long i = row - o * inner;)

#endif

// ---- positions from index tensors. ----

#ifdef INDEX

#define PLACE_AXIS(d) , const long n##d, const long y##d, const long x##d, const long step##d
#define PLACE_STEP(d)                                                                                        \
    {                                                                                                        \
        const long over = quotient(rest, n##d, narrow), at = rest - over * n##d;                             \
        to += at * y##d;                                                                                     \
        from += at * x##d;                                                                                   \
        place += at * step##d;                                                                               \
        rest = over;                                                                                         \
    }
#define PLACE_AXES_1
#define PLACE_STEPS_1
#define PLACE_AXES_2 PLACE_AXIS(1)
#define PLACE_STEPS_2 PLACE_STEP(1)
#define PLACE_AXES_4 PLACE_AXES_2 PLACE_AXIS(2) PLACE_AXIS(3)
#define PLACE_STEPS_4 PLACE_STEPS_2 PLACE_STEP(2) PLACE_STEP(3)
#define PLACE_AXES_8 PLACE_AXES_4 PLACE_AXIS(4) PLACE_AXIS(5) PLACE_AXIS(6) PLACE_AXIS(7)
#define PLACE_STEPS_8 PLACE_STEPS_4 PLACE_STEP(4) PLACE_STEP(5) PLACE_STEP(6) PLACE_STEP(7)

// (Mesa 22 takes index < 0 ? extent : 0 for 0 where index is a converted int.)
// What is out of range becomes 0: a plan looks at *bad when all is done, and what reads the positions trusts them.
// first: the positions begin with base and the steps along the axes, else the index adds to what is there.
#define PLACES(rank)                                                                                         \
    __kernel void places_##rank(__global long *y, const long y_start, __global const INDEX *x,               \
                                const long x_start, const long extent, const long times, const int first,    \
                                const long base, __global int *bad, const long rows, const int narrow,       \
                                const long n0, const long y0, const long x0,                                 \
                                const long step0 PLACE_AXES_##rank)                                          \
    {                                                                                                        \
        const long i = (long)get_global_id(0), row = ROW;                                                    \
        long rest = row, to = y_start, from = x_start, place = base;                                         \
        if (i >= n0 || row >= rows) return;                                                                  \
        PLACE_STEPS_##rank                                                                                   \
        long index = (long)x[from + i * x0];                                                                 \
        index += extent & (index >> 63);                                                                     \
        if (index < 0 || index >= extent) {                                                                  \
            *bad = 1;                                                                                        \
            index = 0;                                                                                       \
        }                                                                                                    \
        place = first ? place + i * step0 : y[to + i * y0];                                                  \
        y[to + i * y0] = place + index * times;                                                              \
    }
PLACES(1)
PLACES(2)
PLACES(4)
PLACES(8)

#endif

// ---- of no item size. ----

#ifdef POSITIONS

// y[row] = row * classes + label.
__kernel void class_positions(__global long *y, const long y_start, __global const long *x, const long x_start,
                              const long n, const long classes, __global int *bad)
{
    const long i = (long)get_global_id(0);
    if (i < n) {
        const long id = x[x_start + i];
        const int is_bad = (ulong)id >= (ulong)classes;
        if (is_bad) *bad = 1;
        y[y_start + i] = i * classes + (is_bad ? 0 : id);
    }
}

// One coordinate of positions in C order.
__kernel void coordinate(__global long *y, const long y_start, __global const long *at, const long n, const long step,
                         const long extent)
{
    const long k = (long)get_global_id(0);
    if (k < n) y[y_start + k] = at[k] / step % extent;
}

// counts[i] = the sum of those before it, counts[n] of all: each work-item of one group has a part of its own. (A group
// may be smaller than was asked for, and there are more of them then.)
__kernel void offsets(__global long *counts, const long n)
{
    __local long part[GROUP];
    if (get_group_id(0) != 0) return;
    const int l = (int)get_local_id(0), width = (int)get_local_size(0);
    const long each = (n + width - 1) / width, first = min(n, l * each), end = min(n, first + each);
    long sum = 0;
    for (long i = first; i < end; i++) sum += counts[i];
    part[l] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    sum = 0;
    for (int j = 0; j < l; j++) sum += part[j];
    for (long i = first; i < end; i++) {
        const long count = counts[i];
        counts[i] = sum;
        sum += count;
    }
    if (l == width - 1) counts[n] = sum;
}

#endif
