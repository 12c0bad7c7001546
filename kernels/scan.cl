// Running reductions of (lines, n) along n, the elements of a line `step` apart: sums, maxima, logs of sums of
// exponentials; products; the recurrence y[k] = x[k] + y[k-1] a[k].
//
// -DT: of the elements. One of -DSUM, -DMAXIMUM, -DLOGSUMEXP (these by blocks), -DPRODUCT, -DRECURRENCE (from element
// to element). -DCOLUMNS=n: lines that are next to each other and go together in one work-item, which compilers for
// CPUs make vectors of. The state: -DWIDE=double|ulong, or -DPAIRS for float32 without fp64.
//
// float32 with -DWIDE=double: computed in float64 and rounded at each element; the tree is that of the cpu, so sums,
// products and recurrences have its bits. With -DPAIRS the state is an unevaluated sum of two float32 (a product has
// its exponent apart): 2^-45 of the sum of magnitudes instead of 2^-53, then rounded; sums and recurrences whose
// partial ones leave the range of float32 are inf or NaN. float64 is computed in float64.
// Blocks: a running sum inside of each 64 elements, added to that of the blocks before.
#pragma OPENCL FP_CONTRACT OFF
#ifdef FP64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#define BLOCK 64

#ifdef PAIRS
float2 normal(float s, float e) // s + e, |e| <= |s|
{
    if (!(fabs(s) <= FLT_MAX)) return (float2)(s, 0.0f);
    const float hi = e == 0.0f ? s : s + e; // -0.0 stays
    return (float2)(hi, e - (hi - s));
}

// Knuth's two-sum.
float2 add_float(float2 a, float b)
{
    const float s = a.x + b, v = s - a.x;
    return normal(s, ((a.x - (s - v)) + (b - v)) + a.y);
}

float2 add_pairs(float2 a, float2 b)
{
    const float s = a.x + b.x, v = s - a.x;
    return normal(s, ((a.x - (s - v)) + (b.x - v)) + (a.y + b.y));
}
#endif

// What follows needs: STATE, FIRST (nothing yet), LOAD(i) (of the element at i), JOIN(a, b), VALUE(state).
#if defined(SUM)

#ifdef PAIRS
#define STATE float2
#define FIRST ((float2)(-0.0f, 0.0f))
#define LOAD(i) ((float2)(x[i], 0.0f))
#define JOIN add_pairs
#define VALUE(s) ((s).x)
#else
#define STATE WIDE
#define FIRST (-(WIDE)0) // -0.0
#define LOAD(i) ((WIDE)x[i])
#define JOIN(a, b) ((a) + (b))
#define VALUE(s) ((T)(s))
#endif

#elif defined(LOGSUMEXP)

#ifdef PAIRS
// at + log(hi + lo): at is a multiple of 16 next to the largest so far, so that it seldom changes.
typedef struct {
    float at, hi, lo;
} STATE;
#define FIRST ((STATE){-INFINITY, 0.0f, 0.0f})

STATE load(float x)
{
    STATE s = {x, 1.0f, 0.0f};
    if (fabs(x) <= FLT_MAX) {
        s.at = rint(x / 16.0f) * 16.0f;
        s.hi = exp(x - s.at);
    }
    return s;
}

// (Mesa 22 changes the caller's struct where a function changes its copy.)
STATE join_less(const STATE more, const STATE less)
{
    if (!(fabs(more.at) <= FLT_MAX && less.at >= -FLT_MAX)) return more;
    const float factor = more.at == less.at ? 1.0f : exp(less.at - more.at);
    const float2 sum = add_pairs((float2)(more.hi, more.lo), (float2)(less.hi * factor, less.lo * factor));
    const STATE both = {more.at, sum.x, sum.y};
    return both;
}

STATE join(STATE a, STATE b)
{
    if (a.at != a.at || a.at > b.at) return join_less(a, b);
    return join_less(b, a); // b is NaN or no less
}
#define LOAD(i) load(x[i])
#define JOIN join
#define VALUE(s) (fabs((s).at) <= FLT_MAX ? (s).at + log((s).hi) : (s).at)
#else
#define STATE WIDE
#define FIRST (-INFINITY)
#define LOAD(i) ((WIDE)x[i])
#define VALUE(s) ((T)(s))

// max + log(1 + exp(-|a - b|)); what rounding a - b lost counts where max is near 0.
WIDE JOIN(WIDE a, WIDE b)
{
    const WIDE most = a > b ? a : b, least = a > b ? b : a, d = a == b ? (WIDE)0 : least - most;
    const WIDE v = d - least, lost = d < 0 && d > (WIDE)-746 ? (least - (d - v)) - (most + v) : (WIDE)0;
    const WIDE e = exp(d);
    return a != a || b != b ? a + b : most + log1p(e + e * lost);
}
#endif

#elif defined(MAXIMUM)

// By keys as integers, so the first of equals and of NaN stays. T: the bits of an element; -DKEY: signed for what is.
typedef struct {
    long at; // of the largest; -1 while there is none
    KEY key;
} STATE;
#define FIRST ((STATE){-1, 0})

STATE load(T bits, long at)
{
    STATE s;
    s.at = at;
    s.key = (KEY)bits;
#ifdef REAL
    const KEY most = (KEY)(~(T)0 >> 1), lowest = -most - 1;
    if (s.key == lowest)
        s.key = 0; // -0.0
    else if ((s.key & most) > REAL) // NaN
        s.key = most;
    else if (s.key < 0)
        s.key ^= most;
#endif
    return s;
}

STATE join(STATE a, STATE b)
{
    return a.at < 0 || (b.at >= 0 && b.key > a.key) ? b : a;
}
#define LOAD(i) load(x[i], i)
#define JOIN join
#define VALUE(s) x[(s).at]

#elif defined(PRODUCT)

#ifdef PAIRS
typedef struct {
    float2 m; // about 1
    int exponent;
} STATE;

STATE next(STATE s, float x)
{
    if (!(fabs(x) <= FLT_MAX) || x == 0.0f || !(fabs(s.m.x) <= FLT_MAX) || s.m.x == 0.0f) {
        s.m = (float2)(s.m.x * x, 0.0f);
        return s;
    }
    const int e = ilogb(x);
    x = ldexp(x, -e);
    const float p = s.m.x * x;
    const float2 m = normal(p, fma(s.m.x, x, -p) + s.m.y * x);
    const int f = ilogb(m.x);
    s.m = (float2)(ldexp(m.x, -f), ldexp(m.y, -f));
    s.exponent += e + f;
    if (s.exponent > 1024) s.m = (float2)(copysign(INFINITY, s.m.x), 0.0f); // as float64
    if (s.exponent < -1074) s.m = (float2)(copysign(0.0f, s.m.x), 0.0f);
    return s;
}
#define START(v) next((STATE){(float2)(1.0f, 0.0f), 0}, v)
#define NEXT(s, v, b) next(s, v)
#define VALUE(s) ldexp((s).m.x, (s).exponent)
#else
#define STATE WIDE
#define START(v) ((WIDE)(v))
#define NEXT(s, v, b) ((s) * (WIDE)(v))
#define VALUE(s) ((T)(s))
#endif

#elif defined(RECURRENCE)

// A product with a state of 0 is 0: the state is a cotangent.
#ifdef PAIRS
#define STATE float2
float2 next(float2 s, float x, float a)
{
    const float p = s.x * a;
    if (s.x == 0.0f) return (float2)(x, 0.0f);
    return add_float(normal(p, fma(s.x, a, -p) + s.y * a), x);
}
#define START(v) ((float2)(v, 0.0f))
#define NEXT next
#define VALUE(s) ((s).x)
#else
#define STATE WIDE
#define START(v) ((WIDE)(v))
#define NEXT(s, v, b) ((WIDE)(v) + ((s) == (WIDE)0 ? (WIDE)0 : (s) * (WIDE)(b)))
#define VALUE(s) ((T)(s))
#endif

#endif

// The first element of a line: (outer, n, inner), the lines being (outer, inner).
// The lines are (outer, inner). Of each of outer, `items` work-items have COLUMNS neighbours each, the first of them
// from column `first` on; where those of a work-item begin:
#define COLUMNS_START                                                                                        \
    (unit / items * n * inner + first + (unit - unit / items * items) * COLUMNS + (reverse ? (n - 1) * inner : 0))

#if defined(PRODUCT) || defined(RECURRENCE)

// Backwards an element is multiplied by the factor that stands behind it.
__kernel void scan_lines(__global T *y, const long y_start, __global const T *x, const long x_start,
                         __global const T *a, const long a_start, const long outer, const long n, const long inner,
                         const int reverse, const long first, const long items)
{
    const long unit = (long)get_global_id(0), step = reverse ? -inner : inner;
    if (unit >= outer * items) return;
    const long start = COLUMNS_START;
    y += y_start + start;
    x += x_start + start;
    a += a_start + start + (reverse ? inner : 0);
    STATE all[COLUMNS];
    for (int c = 0; c < COLUMNS; c++) {
        all[c] = START(x[c]);
        y[c] = VALUE(all[c]);
    }
    for (long k = 1; k < n; k++) {
        const long at = k * step;
        for (int c = 0; c < COLUMNS; c++) {
            all[c] = NEXT(all[c], x[at + c], a[at + c]);
            y[at + c] = VALUE(all[c]);
        }
    }
}

#else

// x and y begin at 0: what LOAD is given is a position in C order. places: for where each maximum stands.
#ifdef PLACES
#define STORE(s) y[at] = (s).at
#define OUT long
#else
#define STORE(s) y[at] = VALUE(s)
#define OUT T
#endif

__kernel void scan_lines(__global OUT *y, const long y_start, __global const T *x, const long x_start,
                         const long outer, const long n, const long inner, const int reverse, const long first,
                         const long items)
{
    const long unit = (long)get_global_id(0), step = reverse ? -inner : inner;
    if (unit >= outer * items) return;
    y += y_start;
    x += x_start;
    const long start = COLUMNS_START;
    STATE before[COLUMNS], all[COLUMNS];
    for (int c = 0; c < COLUMNS; c++) before[c] = FIRST;
    for (long k = 0; k < n;) {
        const long end = min(k + BLOCK, n);
        for (int c = 0; c < COLUMNS; c++) all[c] = FIRST;
        for (; k < end; k++)
            for (int c = 0; c < COLUMNS; c++) {
                const long at = start + k * step + c;
                all[c] = JOIN(all[c], LOAD(at));
                const STATE whole = JOIN(before[c], all[c]);
                STORE(whole);
            }
        for (int c = 0; c < COLUMNS; c++) before[c] = JOIN(before[c], all[c]);
    }
}

#define LINE_START (line + line / inner * (n - 1) * inner + (reverse ? (n - 1) * inner : 0))

// Three steps for few long lines: the blocks' totals [block, line], what stands before each, the blocks themselves.
__kernel void scan_totals(__global STATE *totals, __global const T *x, const long x_start, const long lines,
                          const long n, const long inner, const int reverse, const long units)
{
    const long unit = (long)get_global_id(0);
    if (unit >= units) return;
    x += x_start;
    const long block = unit / lines, line = unit - block * lines, step = reverse ? -inner : inner;
    const long end = min((block + 1) * BLOCK, n);
    long at = LINE_START + block * BLOCK * step;
    STATE all = FIRST;
    for (long k = block * BLOCK; k < end; k++, at += step) all = JOIN(all, LOAD(at));
    totals[unit] = all;
}

__kernel void scan_before(__global STATE *starts, __global const STATE *totals, const long lines,
                          const long blocks)
{
    const long line = (long)get_global_id(0);
    if (line >= lines) return;
    STATE before = FIRST;
    for (long block = 0; block < blocks; block++) {
        starts[block * lines + line] = before;
        before = JOIN(before, totals[block * lines + line]);
    }
}

__kernel void scan_blocks(__global OUT *y, const long y_start, __global const STATE *starts, __global const T *x,
                          const long x_start, const long lines, const long n, const long inner, const int reverse,
                          const long units)
{
    const long unit = (long)get_global_id(0);
    if (unit >= units) return;
    y += y_start;
    x += x_start;
    const long block = unit / lines, line = unit - block * lines, step = reverse ? -inner : inner;
    const long end = min((block + 1) * BLOCK, n);
    const STATE before = starts[unit];
    long at = LINE_START + block * BLOCK * step;
    STATE all = FIRST;
    for (long k = block * BLOCK; k < end; k++, at += step) {
        all = JOIN(all, LOAD(at));
        const STATE whole = JOIN(before, all);
        STORE(whole);
    }
}

#endif
