// Order and binary search, on keys: unsigned integers in the order that is asked for, NaN last, zeros equal.
//
// -DITEM: the bits of an element. -DKEY=uint|ulong. -DPLACE=int|long: an index within a row. -DGROUP=n: the most
// work-items of a group. -DMOST=n: the longest row in local memory. -DBINS=16|256, -DBLOCK=n: of a radix pass.
// Every sort is stable.
#pragma OPENCL FP_CONTRACT OFF

#define KEY_BITS (8 * (int)sizeof(KEY))

#ifdef ITEM

// kind: 0 unsigned, 1 signed, 2 float; bits: of an element.
__kernel void keys(__global KEY *key, __global const ITEM *x, const long start, const long n, const int kind,
                   const int bits, const int descending)
{
    const long i = (long)get_global_id(0);
    if (i < n) {
        const KEY sign = (KEY)1 << (bits - 1), all = sign | (sign - 1);
        KEY k = (KEY)x[start + i];
        int last = 0;
        if (kind == 1) k ^= sign;
        if (kind == 2) {
            const KEY infinity = (KEY)(bits == 32 ? 0x7f800000UL : 0x7ff0000000000000UL);
            last = (k & ~sign) > infinity;
            k = k == sign ? 0 : k; // -0.0
            k = k & sign ? ~k : k | sign;
        }
        key[i] = last ? all : (descending ? ~k : k) & all;
    }
}

#endif
#ifdef PLACE

// ---- short rows, a work-item each: runs put in order by insertion, then merged. ----

#define RUN 8
__kernel void order_lines(__global long *y, const long y_start, __global const KEY *key, __global PLACE *one,
                          __global PLACE *two, const long rows, const long n, const long first)
{
    const long row = (long)get_global_id(0);
    if (row >= rows) return;
    __global const KEY *k = key + row * n;
    __global PLACE *from = one + row * n, *to = two + row * n;
    for (long begin = 0; begin < n; begin += RUN) {
        const long end = min(begin + RUN, n);
        for (long i = begin; i < end; i++) {
            const KEY here = k[i];
            long j = i;
            for (; j > begin && k[from[j - 1]] > here; j--) from[j] = from[j - 1];
            from[j] = (PLACE)i;
        }
    }
    for (long width = RUN; width < n; width *= 2) {
        for (long begin = 0; begin < n; begin += 2 * width) {
            const long middle = min(begin + width, n), end = min(begin + 2 * width, n);
            long a = begin, b = middle;
            for (long i = begin; i < end; i++) {
                const int left = a < middle && (b >= end || k[from[a]] <= k[from[b]]);
                to[i] = left ? from[a] : from[b];
                a += left;
                b += !left;
            }
        }
        __global PLACE *other = from;
        from = to;
        to = other;
    }
    for (long i = 0; i < first; i++) y[y_start + row * first + i] = from[i];
}

// ---- rows of up to MOST elements, a group each, in local memory: bitonic, by key and then index, which makes it
// stable. n is filled up to width, a power of two. ----

#ifdef MOST
__kernel void order_groups(__global long *y, const long y_start, __global const KEY *key, const long rows, const int n,
                           const int width, const int first)
{
    __local KEY k[MOST];
    __local int at[MOST];
    const int l = (int)get_local_id(0), step = (int)get_local_size(0);
    for (long row = (long)get_group_id(0); row < rows; row += (long)get_num_groups(0)) {
        for (int i = l; i < width; i += step) {
            k[i] = i < n ? key[row * n + i] : ~(KEY)0;
            at[i] = i;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int size = 2; size <= width; size *= 2)
            for (int apart = size / 2; apart > 0; apart /= 2) {
                for (int pair = l; pair < width / 2; pair += step) {
                    const int i = 2 * pair - (pair & (apart - 1)), j = i + apart;
                    const KEY a = k[i], b = k[j];
                    const int p = at[i], q = at[j], above = a > b || (a == b && p > q);
                    if (above == ((i & size) == 0)) {
                        k[i] = b;
                        k[j] = a;
                        at[i] = q;
                        at[j] = p;
                    }
                }
                barrier(CLK_LOCAL_MEM_FENCE);
            }
        for (int i = l; i < first; i += step) y[y_start + row * first + i] = at[i];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
#endif

// ---- long rows: radix passes from the lowest digit. A row is `blocks` blocks; a work-item has a run of each block,
// and what it counts has places of its own, so that the order within a digit is that of the elements. ----

#ifdef BLOCK

void count_digits(__local uint *tile, __global const KEY *key, const long begin, const long end, const int shift)
{
    const int l = (int)get_local_id(0), width = (int)get_local_size(0);
    for (int d = 0; d < BINS; d++) tile[d * width + l] = 0;
    for (long i = begin; i < end; i++) tile[(int)((key[i] >> shift) & (BINS - 1)) * width + l]++;
    barrier(CLK_LOCAL_MEM_FENCE);
}

#define RUN_OF_ITEM                                                                                          \
    const long row = unit / blocks, block = unit - row * blocks, stop = row * n + min((block + 1) * BLOCK, n); \
    const long begin = min(row * n + block * BLOCK + l * each, stop), end = min(begin + each, stop);

// counts[row, digit, block]
__kernel void radix_count(__global long *counts, __global const KEY *key, const long rows, const long n,
                          const long blocks, const int shift)
{
    __local uint tile[BINS * GROUP];
    const int l = (int)get_local_id(0), width = (int)get_local_size(0), each = (BLOCK + width - 1) / width;
    for (long unit = (long)get_group_id(0); unit < rows * blocks; unit += (long)get_num_groups(0)) {
        RUN_OF_ITEM
        count_digits(tile, key, begin, end, shift);
        for (int d = l; d < BINS; d += width) {
            uint sum = 0;
            for (int j = 0; j < width; j++) sum += tile[d * width + j];
            counts[(row * BINS + d) * blocks + block] = sum;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

// counts: where in all rows the first of each goes. At first places are those in the row.
#define RADIX_MOVE(name, PLACE_OF)                                                                           \
    __kernel void name(__global KEY *key_to, __global PLACE *to, __global const KEY *key,                    \
                       __global const PLACE *from, __global const long *counts, const long rows,             \
                       const long n, const long blocks, const int shift)                                     \
    {                                                                                                        \
        __local uint tile[BINS * GROUP];                                                                     \
        __local long base[BINS];                                                                             \
        const int l = (int)get_local_id(0), width = (int)get_local_size(0);                                  \
        const int each = (BLOCK + width - 1) / width;                                                        \
        for (long unit = (long)get_group_id(0); unit < rows * blocks; unit += (long)get_num_groups(0)) {     \
            RUN_OF_ITEM                                                                                      \
            count_digits(tile, key, begin, end, shift);                                                      \
            for (int d = l; d < BINS; d += width) {                                                          \
                uint sum = 0;                                                                                \
                for (int j = 0; j < width; j++) {                                                            \
                    const uint count = tile[d * width + j];                                                  \
                    tile[d * width + j] = sum;                                                               \
                    sum += count;                                                                            \
                }                                                                                            \
                base[d] = counts[(row * BINS + d) * blocks + block];                                         \
            }                                                                                                \
            barrier(CLK_LOCAL_MEM_FENCE);                                                                    \
            for (long i = begin; i < end; i++) {                                                             \
                const KEY k = key[i];                                                                        \
                const int d = (int)((k >> shift) & (BINS - 1));                                              \
                const long at = base[d] + tile[d * width + l]++;                                             \
                key_to[at] = k;                                                                              \
                to[at] = PLACE_OF;                                                                           \
            }                                                                                                \
            barrier(CLK_LOCAL_MEM_FENCE);                                                                    \
        }                                                                                                    \
    }
RADIX_MOVE(radix_first, (PLACE)(i - row * n))
RADIX_MOVE(radix_move, from[i])

__kernel void first_places(__global long *y, const long y_start, __global const PLACE *from, const long rows,
                           const long n, const long first)
{
    const long j = (long)get_global_id(0);
    const long row = (long)get_global_id(2) * (long)get_global_size(1) + (long)get_global_id(1);
    if (j < first && row < rows) y[y_start + row * first + j] = from[row * n + j];
}

#endif
#endif

// ---- binary search. Elements are compared as integers in the order of float64, or of int64 where no operand is float:
// the same on devices without fp64, and where subnormals are flushed. ----

#ifdef SEARCH

// The order of floats by their bits as those of float64, sign and magnitude.
long signed_key(ulong magnitude, int negative)
{
    return magnitude > 0x7ff0000000000000UL ? LONG_MAX : negative ? -(long)magnitude : (long)magnitude;
}

long key_of_float(uint bits)
{
    uint m = bits & 0x7fffffffu;
    int exponent = (int)(m >> 23);
    if (m == 0) return 0;
    if (exponent == 0) { // subnormal: of float64 it is none
        const int shift = (int)clz(m) - 8;
        m <<= shift;
        exponent = 1 - shift;
    }
    if (exponent == 255) return signed_key(0x7ff0000000000000UL | (m & 0x7fffffu), bits >> 31 != 0);
    return signed_key(((ulong)(exponent + 896) << 52) | ((ulong)(m & 0x7fffffu) << 29), bits >> 31 != 0);
}

// Of an integer, rounded to the nearest float64, to even.
long key_of_integer(long v)
{
    const long sign = v >> 63;
    ulong m = (ulong)(v ^ sign) + ((ulong)v >> 63); // |v|, which as such Oclgrind lacks
    if (m == 0) return 0;
    const int top = 63 - (int)clz(m);
    if (top <= 52) {
        m <<= 52 - top;
    } else {
        const int shift = top - 52;
        const ulong rest = m & ((1UL << shift) - 1), half_way = 1UL << (shift - 1);
        m >>= shift;
        m += rest > half_way || (rest == half_way && (m & 1));
    }
    return signed_key(((ulong)(top + 1022) << 52) + m, sign != 0);
}

// kind: 0 uint8 or bool, 1 int32, 2 int64, 3 float32, 4 float64.
long key_at(__global const uchar *x, const long at, const int kind, const int real)
{
    if (kind == 3) return key_of_float(((__global const uint *)x)[at]);
    if (kind == 4) {
        const ulong bits = ((__global const ulong *)x)[at];
        return signed_key(bits & 0x7fffffffffffffffUL, bits >> 63 != 0);
    }
    const long v = kind == 0   ? (long)x[at]
                   : kind == 1 ? (long)((__global const int *)x)[at]
                               : ((__global const long *)x)[at];
    return real ? key_of_integer(v) : v;
}

__kernel void search(__global long *y, const long y_start, __global const uchar *table, const long table_start,
                     const long step, const long n, const int table_kind, __global const uchar *x, const long x_start,
                     const long m, const int x_kind, const int real, const int right)
{
    const long i = (long)get_global_id(0);
    if (i < m) {
        const long v = key_at(x, x_start + i, x_kind, real);
        long low = 0, high = n;
        while (low < high) {
            const long middle = low + (high - low) / 2;
            const long e = key_at(table, table_start + middle * step, table_kind, real);
            if (right ? v >= e : e < v)
                low = middle + 1;
            else
                high = middle;
        }
        y[y_start + i] = low;
    }
}

#endif
