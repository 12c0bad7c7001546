/* Work-items that hold W lanes of a row each, as a vector, and sums that are wider than float32.

   W is 1, 2, 4, 8 or 16. On a CPU one work-item has all 16 lanes of a chunk: a register or two. On a GPU
   16 neighbours have one lane each, so that they read neighbouring addresses. Both are the same text.

   Where there is float64 (FP64) sums of float32 are taken in it. Elsewhere a sum is a pair of floats, the second one
   what rounding has taken from the first (Ogita, Rump and Oishi, 2005: as if in twice the precision, then rounded:
   |error| <= eps |sum| + n^2 eps^2 sum |x|, eps = 2^-24). */
#pragma OPENCL FP_CONTRACT OFF
#ifdef FP64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#ifndef LANES
#define LANES 16
#endif
#define ITEMS (LANES / W) /* work-items of a row or chunk */
#define GROUP (ITEMS * UNITS)

/* Remainders are written out: / and % side by side become an instruction that Oclgrind lacks. */
#define REMAINDER(a, b, quotient) ((a) - (quotient) * (b))

#if W == 1
#define VEC(t) t
#define LOAD_W(p) (*(p))
#define STORE_W(v, p) (*(p) = (v))
#define CONVERT(t, v) CAT(convert_, t)(v)
#define AS(t, v) CAT(as_, t)(v)
#else
#define VEC(t) CAT(t, W)
#define LOAD_W(p) CAT(vload, W)(0, p)
#define STORE_W(v, p) CAT(vstore, W)(v, 0, p)
#define CONVERT(t, v) CAT(convert_, VEC(t))(v)
#define AS(t, v) CAT(as_, VEC(t))(v)
#endif

#ifdef FP64
typedef double wide1;
typedef VEC(double) wide;
#define WIDE_OF(x) ((wide1)(x))
#define WIDE_ADD(s, v) ((s) + CONVERT(double, v))
#define WIDE_JOIN(a, b) ((a) + (b))
#define WIDE_JOIN_W(a, b) ((a) + (b))
#define WIDE_VALUE(s) (s)
#else
typedef struct {
    float hi, lo;
} wide1;
typedef struct {
    VEC(float) hi, lo;
} wide;

wide1 wide_of(float x) {
    wide1 s = {x, 0.0f};
    return s;
}
#define WIDE_OF(x) wide_of(x)

/* The sum and what rounding takes from it (Knuth, TAOCP 2, 4.2.2). */
wide1 wide_join(wide1 a, wide1 b) {
    wide1 s;
    s.hi = a.hi + b.hi;
    float back = s.hi - a.hi;
    s.lo = a.lo + b.lo + ((a.hi - (s.hi - back)) + (b.hi - back));
    return s;
}
#define WIDE_JOIN(a, b) wide_join(a, b)

wide wide_join_w(wide a, wide b) {
    wide s;
    s.hi = a.hi + b.hi;
    VEC(float) back = s.hi - a.hi;
    s.lo = a.lo + b.lo + ((a.hi - (s.hi - back)) + (b.hi - back));
    return s;
}
#define WIDE_JOIN_W(a, b) wide_join_w(a, b)

wide wide_add(wide a, VEC(float) v) {
    wide s;
    s.hi = a.hi + v;
    VEC(float) back = s.hi - a.hi;
    s.lo = a.lo + ((a.hi - (s.hi - back)) + (v - back));
    return s;
}
#define WIDE_ADD(s, v) wide_add(s, v)

/* An infinite sum has NaN beside it. */
float wide_value(wide1 s) { return s.hi - s.hi == 0.0f ? s.hi + s.lo : s.hi; }
#define WIDE_VALUE(s) wide_value(s)
#endif

wide wide_nothing(void) {
    wide s;
#ifdef FP64
    s = (wide)0.0;
#else
    s.hi = s.lo = (VEC(float))0.0f;
#endif
    return s;
}

/* The W lanes of a sum, one by one. */
void wide_split(wide1 *to, wide s) {
#ifdef FP64
    STORE_W(s, to);
#else
    float hi[W], lo[W];
    STORE_W(s.hi, hi);
    STORE_W(s.lo, lo);
    for (int j = 0; j < W; j++) to[j].hi = hi[j], to[j].lo = lo[j];
#endif
}
