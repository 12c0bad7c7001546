/* The scalar functions behind every loop: exp expm1 log log1p tanh sigmoid sin cos sqrt pow.

   Each tpf_<name>_<dtype> is at most 2 ULP off over the whole domain (subnormals included) and gives
   the special values of C99 Annex F. What keeps the loops around them vectorised:
   - no branch, no call, only selects, so gcc turns the whole function into vector code;
   - integers and floats meet as bits of equal width; a float becomes an integer by adding
     1.5 * 2^(mantissa bits) and reading the low bits, which every instruction set can do;
   - integer arithmetic is unsigned: a NaN runs through it as garbage, without undefined behaviour,
     and a later select puts the right value in.
   Without fma (x86-64-v2) products that must be exact use short constants or Dekker's splitting.
   -ffp-contract=off is assumed: the compiler must not join a product with a sum by itself.

   The polynomials are minimax fits (Remez exchange in 60-digit arithmetic, then rounded to the
   dtype); "fit" gives the largest error of the rounded polynomial, relative to the function.

   sin and cos are correct for every x. The _near_ forms give the same bits up to TPF_TRIG_NEAR and are three times as
   fast: a loop may use them for a block that tpf_trig_not_near_ finds nothing in. exp, log and pow have such forms,
   too, for blocks without subnormals, overflow and special values, and pow forms for the exponents 2, 1/2 and -1.

   Measured: the largest error in ULP without and with fma (float32: 187 million bit patterns spread over all of them,
   40 million for exp, log, tanh and pow; float64: 4 million points), and ns an element in L1 on one AVX-512, AVX2 and
   SSE4 core, of the _near_ form of exp, log and pow.

                 float32 error  ns                float64 error  ns
     exp         1.02  1.02     0.20  0.28  0.83  1.00  0.99     0.56  0.84  2.8
     expm1       1.63  1.57     0.34  0.68  1.4   1.53  1.65     0.80  1.6  4.2
     log         0.95  0.93     0.24  0.35  1.1   0.92  0.84     0.75  0.92  2.5
     log1p       1.51  1.49     0.47  0.95  2.1   1.21  1.21     1.1   2.4  4.8
     tanh        1.83  1.94     0.40  0.68  1.5   1.40  1.40      1.3   1.9  6.0
     sigmoid     1.76  1.65     0.48  1.0   2.0   1.74  1.60     1.2   2.4  5.7
     sin, cos    0.64  0.64     1.4   2.6   4.8   0.81  0.79     4.5   7.6   17
      near       0.59  0.59     0.48  0.68  2.0   0.77  0.77     1.2   2.1  5.2
     pow         0.51  1.03     0.98   1.7  5.8   1.32  1.09      2.6   4.7   19 */
#ifndef TPF_MATH_H
#define TPF_MATH_H

#include <stdint.h>
#include <string.h>

#include "tpf.h"

#if defined(__FMA__) || defined(__aarch64__)
#define TPF_HAS_FMA 1
#define TPF_FMA(a, b, c) __builtin_fma(a, b, c)
#define TPF_FMAF(a, b, c) __builtin_fmaf(a, b, c)
#else
#define TPF_HAS_FMA 0
#define TPF_FMA(a, b, c) ((a) * (b) + (c))
#define TPF_FMAF(a, b, c) ((a) * (b) + (c))
#endif

/* Builtins where there are any: loops over them vectorise. */
#if defined(__GNUC__)
#define TPF_INF __builtin_inf()
#define TPF_NAN __builtin_nan("")
#define TPF_RINT(x) __builtin_rint(x)
#define TPF_RINTF(x) __builtin_rintf(x)
#define TPF_SQRT(x) __builtin_sqrt(x)
#define TPF_SQRTF(x) __builtin_sqrtf(x)
#define TPF_ABS(x) __builtin_fabs(x)
#define TPF_ABSF(x) __builtin_fabsf(x)
#else
#include <math.h>
#define TPF_INF ((double)INFINITY)
#define TPF_NAN ((double)NAN)
#define TPF_RINT(x) rint(x)
#define TPF_RINTF(x) rintf(x)
#define TPF_SQRT(x) sqrt(x)
#define TPF_SQRTF(x) sqrtf(x)
#define TPF_ABS(x) fabs(x)
#define TPF_ABSF(x) fabsf(x)
#endif

/* Adding one of these rounds to an integer, which then stands in the low bits. */
#define TPF_SHIFT_F32 12582912.0f        /* 1.5 * 2^23, for |x| < 2^22 */
#define TPF_SHIFT_F64 6755399441055744.0 /* 1.5 * 2^52, for |x| < 2^51 */
#define TPF_SIGN_F32 UINT32_C(0x80000000)
#define TPF_SIGN_F64 UINT64_C(0x8000000000000000)

/* ln 2 in two parts; a product of the first with an exponent is exact. */
#define TPF_LN2_HI_F32 0x1.62e4p-1f
#define TPF_LN2_LO_F32 0x1.7f7d1cp-20f
#define TPF_LN2_HI_F64 0x1.62e42fefa38p-1
#define TPF_LN2_LO_F64 0x1.ef35793c7673p-45

/* The bits of sqrt(1/2): mantissas are brought to [sqrt(1/2), sqrt(2)). */
#define TPF_SQRT_HALF_F32 UINT32_C(0x3f3504f3)
#define TPF_SQRT_HALF_F64 UINT64_C(0x3fe6a09e667f3bcd)

TPF_INLINE uint32_t tpf_bits_f32(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

TPF_INLINE uint64_t tpf_bits_f64(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

TPF_INLINE float tpf_from_bits_f32(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

TPF_INLINE double tpf_from_bits_f64(uint64_t u) {
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* |x| with the sign of s. */
TPF_INLINE float tpf_with_sign_f32(float x, float s) {
    return tpf_from_bits_f32((tpf_bits_f32(x) & ~TPF_SIGN_F32) | (tpf_bits_f32(s) & TPF_SIGN_F32));
}

TPF_INLINE double tpf_with_sign_f64(double x, double s) {
    return tpf_from_bits_f64((tpf_bits_f64(x) & ~TPF_SIGN_F64) | (tpf_bits_f64(s) & TPF_SIGN_F64));
}

/* lo <= x <= hi; NaN stays NaN. */
TPF_INLINE float tpf_clamp_f32(float x, float lo, float hi) {
    x = x < lo ? lo : x;
    return x > hi ? hi : x;
}

TPF_INLINE double tpf_clamp_f64(double x, double lo, double hi) {
    x = x < lo ? lo : x;
    return x > hi ? hi : x;
}

/* a * b - p for p = the rounded a * b: exact unless it underflows. */
TPF_INLINE double tpf_product_error(double a, double b, double p) {
#if TPF_HAS_FMA
    return TPF_FMA(a, b, -p);
#else
    double t = 134217729.0 * a, s = 134217729.0 * b; /* 2^27 + 1: halves of 26 bits */
    double ah = t - (t - a), bh = s - (s - b);
    double al = a - ah, bl = b - bh;
    return ((ah * bh - p) + ah * bl + al * bh) + al * bl;
#endif
}

/* a + b - s for s = the rounded a + b: exact. */
TPF_INLINE double tpf_sum_error(double a, double b, double s) {
    double t = s - a;
    return (a - (s - t)) + (b - t);
}

/* ---- exp, expm1, tanh, sigmoid ---- */

/* x = n ln 2 + (r + low), |r| <= ln(2)/2; the bits of shifted hold n. */
typedef struct { float shifted, r, low; } tpf_reduced_f32;
typedef struct { double shifted, r, low; } tpf_reduced_f64;

TPF_INLINE tpf_reduced_f32 tpf_reduce_exp_f32(float x) {
    float shifted = TPF_FMAF(x, 0x1.715476p+0f, TPF_SHIFT_F32), n = shifted - TPF_SHIFT_F32;
    float r0 = TPF_FMAF(n, -TPF_LN2_HI_F32, x); /* exact */
    float r = TPF_FMAF(n, -TPF_LN2_LO_F32, r0);
    tpf_reduced_f32 z = {shifted, r, TPF_FMAF(n, -TPF_LN2_LO_F32, r0 - r)};
    return z;
}

TPF_INLINE tpf_reduced_f64 tpf_reduce_exp_f64(double x) {
    double shifted = TPF_FMA(x, 0x1.71547652b82fep+0, TPF_SHIFT_F64), n = shifted - TPF_SHIFT_F64;
    double r0 = TPF_FMA(n, -TPF_LN2_HI_F64, x); /* exact */
    double r = TPF_FMA(n, -TPF_LN2_LO_F64, r0);
    tpf_reduced_f64 z = {shifted, r, TPF_FMA(n, -TPF_LN2_LO_F64, r0 - r)};
    return z;
}

/* exp(r + low) - 1 for |r| <= ln(2)/2: r + r^2 q(r); fit 2^-25.8. low is worth its price where the
   result is not far from 0; pass 0 elsewhere. */
TPF_INLINE float tpf_expm1_poly_f32(float r, float low) {
    float q = 1.3882519e-3f;
    q = TPF_FMAF(q, r, 8.36654752e-3f);
    q = TPF_FMAF(q, r, 4.16672006e-2f);
    q = TPF_FMAF(q, r, 1.66665435e-1f);
    q = TPF_FMAF(q, r, 4.9999997e-1f);
    return r + TPF_FMAF(r * r, q, low);
}

/* r + r^2 (1/2 + r q(r)); fit 2^-55.2. */
TPF_INLINE double tpf_expm1_poly_f64(double r, double low) {
    double q = 2.5045890977411448e-08;
    q = TPF_FMA(q, r, 2.762227314210512e-07);
    q = TPF_FMA(q, r, 2.755742526195674e-06);
    q = TPF_FMA(q, r, 2.4801516247601436e-05);
    q = TPF_FMA(q, r, 1.9841269709005882e-04);
    q = TPF_FMA(q, r, 1.3888888920575776e-03);
    q = TPF_FMA(q, r, 8.33333333338857e-03);
    q = TPF_FMA(q, r, 4.166666666661985e-02);
    q = TPF_FMA(q, r, 1.6666666666666602e-01);
    q = TPF_FMA(q, r, 0.5);
    return r + TPF_FMA(r * r, q, low);
}

/* p * 2^n, n as the low bits of shifted, in two steps so that subnormals and overflow come out right. */
TPF_INLINE float tpf_scale_f32(float p, float shifted) {
    uint32_t n = tpf_bits_f32(shifted) - tpf_bits_f32(TPF_SHIFT_F32) + 512u;
    uint32_t half = n >> 1;
    float s1 = tpf_from_bits_f32((half - 129u) << 23); /* 127 - 512 / 2 */
    float s2 = tpf_from_bits_f32((n - half - 129u) << 23);
    return p * s1 * s2;
}

TPF_INLINE double tpf_scale_f64(double p, double shifted) {
    uint64_t n = tpf_bits_f64(shifted) - tpf_bits_f64(TPF_SHIFT_F64) + 4096u;
    uint64_t half = n >> 1;
    double s1 = tpf_from_bits_f64((half - 1025u) << 52); /* 1023 - 4096 / 2 */
    double s2 = tpf_from_bits_f64((n - half - 1025u) << 52);
    return p * s1 * s2;
}

/* 2^n for n as the low bits of shifted; the result must be a normal number. */
TPF_INLINE float tpf_power_of_two_f32(float shifted) {
    uint32_t n = tpf_bits_f32(shifted) - tpf_bits_f32(TPF_SHIFT_F32);
    return tpf_from_bits_f32((n + 127u) << 23);
}

TPF_INLINE double tpf_power_of_two_f64(double shifted) {
    uint64_t n = tpf_bits_f64(shifted) - tpf_bits_f64(TPF_SHIFT_F64);
    return tpf_from_bits_f64((n + 1023u) << 52);
}

/* Where the result is 0 anyway it is not computed: it would be rounded from a subnormal product, which costs a hundred
   times as much (masks of attention are -inf). */
TPF_INLINE float tpf_exp_f32(float x) {
    int is_zero = x < -104.0f;
    tpf_reduced_f32 z = tpf_reduce_exp_f32(is_zero ? 0.0f : x > 89.0f ? 89.0f : x);
    float y = tpf_scale_f32(1.0f + tpf_expm1_poly_f32(z.r, 0.0f), z.shifted);
    return is_zero ? 0.0f : y;
}

TPF_INLINE double tpf_exp_f64(double x) {
    int is_zero = x < -746.0;
    tpf_reduced_f64 z = tpf_reduce_exp_f64(is_zero ? 0.0 : x > 710.0 ? 710.0 : x);
    double y = tpf_scale_f64(1.0 + tpf_expm1_poly_f64(z.r, 0.0), z.shifted);
    return is_zero ? 0.0 : y;
}

/* |x| so small that the result is a normal number: no clamps, one multiplication by 2^n. */
TPF_INLINE uint32_t tpf_range_not_near_f32(float x) {
    return tpf_bits_f32(87.0f) - (tpf_bits_f32(x) & ~TPF_SIGN_F32);
}
TPF_INLINE uint64_t tpf_range_not_near_f64(double x) {
    return tpf_bits_f64(708.0) - (tpf_bits_f64(x) & ~TPF_SIGN_F64);
}

TPF_INLINE float tpf_exp_near_f32(float x) {
    tpf_reduced_f32 z = tpf_reduce_exp_f32(x);
    return (1.0f + tpf_expm1_poly_f32(z.r, 0.0f)) * tpf_power_of_two_f32(z.shifted);
}

TPF_INLINE double tpf_exp_near_f64(double x) {
    tpf_reduced_f64 z = tpf_reduce_exp_f64(x);
    return (1.0 + tpf_expm1_poly_f64(z.r, 0.0)) * tpf_power_of_two_f64(z.shifted);
}

/* 2^n (p + 1) - 1 = 2^n p + (2^n - 1); half of it first, since 2^n may overflow. */
TPF_INLINE float tpf_expm1_f32(float x) {
    tpf_reduced_f32 z = tpf_reduce_exp_f32(tpf_clamp_f32(x, -20.0f, 89.0f));
    float s = tpf_power_of_two_f32(z.shifted - 1.0f);
    float y = TPF_FMAF(s, tpf_expm1_poly_f32(z.r, z.low), s - 0.5f) * 2.0f;
    return TPF_ABSF(x) < 0x1p-25f ? x : y;
}

TPF_INLINE double tpf_expm1_f64(double x) {
    tpf_reduced_f64 z = tpf_reduce_exp_f64(tpf_clamp_f64(x, -40.0, 710.0));
    double s = tpf_power_of_two_f64(z.shifted - 1.0);
    double y = TPF_FMA(s, tpf_expm1_poly_f64(z.r, z.low), s - 0.5) * 2.0;
    return TPF_ABS(x) < 0x1p-54 ? x : y;
}

/* 2^r for |r| <= 1/2: 1 + r g(r); fit 2^-27.5. */
TPF_INLINE float tpf_exp2_poly_f32(float r) {
    float g = 1.5825227e-04f;
    g = TPF_FMAF(g, r, 1.3417747e-03f);
    g = TPF_FMAF(g, r, 9.61706e-03f);
    g = TPF_FMAF(g, r, 5.5502728e-02f);
    g = TPF_FMAF(g, r, 2.4022655e-01f);
    g = TPF_FMAF(g, r, 6.9314724e-01f);
    return TPF_FMAF(g, r, 1.0f);
}

/* Near 0, a + a^3 p(a^2), fit 2^-28 and 2^-55.4; where the result is above 1/2, 1 - 2 / (exp(2a) + 1). */
TPF_INLINE float tpf_tanh_f32(float x) {
    float a = TPF_ABSF(x), w = a * a, p = -6.27348246e-3f, t, shifted, e;
    p = TPF_FMAF(p, w, 2.10711751e-2f);
    p = TPF_FMAF(p, w, -5.38521968e-2f);
    p = TPF_FMAF(p, w, 1.33325845e-1f);
    p = TPF_FMAF(p, w, -3.33333164e-1f);
    p = TPF_FMAF(a * w, p, a);
    t = (a > 10.0f ? 10.0f : a) * 0x1.715476p+1f;
    shifted = t + TPF_SHIFT_F32;
    e = TPF_FMAF(tpf_power_of_two_f32(shifted), tpf_exp2_poly_f32(t - (shifted - TPF_SHIFT_F32)), 1.0f);
    return tpf_with_sign_f32(a > 0.55f ? 1.0f - 2.0f / e : p, x);
}

TPF_INLINE double tpf_tanh_f64(double x) {
    double a = TPF_ABS(x), w = a * a, p = 5.1010056352414686e-05, e;
    tpf_reduced_f64 z = tpf_reduce_exp_f64(2.0 * (a > 20.0 ? 20.0 : a));
    p = TPF_FMA(p, w, -2.102860651370947e-04);
    p = TPF_FMA(p, w, 5.791271274959714e-04);
    p = TPF_FMA(p, w, -1.4532134585460241e-03);
    p = TPF_FMA(p, w, 3.5917190366848446e-03);
    p = TPF_FMA(p, w, -8.8631944227931e-03);
    p = TPF_FMA(p, w, 2.1869485968782233e-02);
    p = TPF_FMA(p, w, -5.396825387582793e-02);
    p = TPF_FMA(p, w, 1.3333333333168196e-01);
    p = TPF_FMA(p, w, -3.333333333333231e-01);
    p = TPF_FMA(a * w, p, a);
    e = tpf_power_of_two_f64(z.shifted) * (1.0 + tpf_expm1_poly_f64(z.r, 0.0));
    return tpf_with_sign_f64(a > 0.55 ? 1.0 - 2.0 / (e + 1.0) : p, x);
}

/* With e = exp(-|x|) and q = e / (1 + e): 1 - q for x >= 0; below, q, or e - e q where e is small,
   for the rounding of 1 + e then counts for less. */
TPF_INLINE float tpf_sigmoid_f32(float x) {
    float a = -TPF_ABSF(x);
    tpf_reduced_f32 z = tpf_reduce_exp_f32(a < -104.0f ? 0.0f : a);
    float e = tpf_scale_f32(1.0f + tpf_expm1_poly_f32(z.r, z.low), z.shifted);
    e = a < -104.0f ? 0.0f : e;
    float q = e / (1.0f + e), m = x < 0.0f ? e : 1.0f;
    return (x < 0.0f) & (e > 0.5f) ? q : TPF_FMAF(-m, q, m);
}

TPF_INLINE double tpf_sigmoid_f64(double x) {
    double a = -TPF_ABS(x);
    tpf_reduced_f64 z = tpf_reduce_exp_f64(a < -746.0 ? 0.0 : a);
    double e = tpf_scale_f64(1.0 + tpf_expm1_poly_f64(z.r, z.low), z.shifted);
    e = a < -746.0 ? 0.0 : e;
    double q = e / (1.0 + e), m = x < 0.0 ? e : 1.0;
    return (x < 0.0) & (e > 0.5) ? q : TPF_FMA(-m, q, m);
}

/* ---- log, log1p ---- */

/* x = m 2^(biased - 127), m in [sqrt(1/2), sqrt(2)), for a positive normal x. */
typedef struct { float m; uint32_t biased; } tpf_parts_f32;
typedef struct { double m; uint64_t biased; } tpf_parts_f64;

TPF_INLINE tpf_parts_f32 tpf_split_f32(float x) {
    uint32_t t = tpf_bits_f32(x) - TPF_SQRT_HALF_F32 + UINT32_C(0x3f800000);
    tpf_parts_f32 z;
    z.m = tpf_from_bits_f32((t & UINT32_C(0x7fffff)) + TPF_SQRT_HALF_F32);
    z.biased = t >> 23;
    return z;
}

TPF_INLINE tpf_parts_f64 tpf_split_f64(double x) {
    uint64_t t = tpf_bits_f64(x) - TPF_SQRT_HALF_F64 + UINT64_C(0x3ff0000000000000);
    tpf_parts_f64 z;
    z.m = tpf_from_bits_f64((t & UINT64_C(0xfffffffffffff)) + TPF_SQRT_HALF_F64);
    z.biased = t >> 52;
    return z;
}

/* A small unsigned integer minus bias; 64-bit integers have no vector conversion before AVX-512. */
TPF_INLINE double tpf_exponent_f64(uint64_t biased, double bias) {
    return tpf_from_bits_f64(biased | UINT64_C(0x4330000000000000)) - (4503599627370496.0 + bias);
}

/* log(1 + f) + n ln 2 for 1 + f in [sqrt(1/2), sqrt(2)): f - f^2 / 2 + f^3 p(f); fit 2^-27. */
TPF_INLINE float tpf_log_core_f32(float f, float n) {
    float p = -7.63449818e-2f, y;
    p = TPF_FMAF(p, f, 1.27616167e-1f);
    p = TPF_FMAF(p, f, -1.31602004e-1f);
    p = TPF_FMAF(p, f, 1.42017543e-1f);
    p = TPF_FMAF(p, f, -1.66233554e-1f);
    p = TPF_FMAF(p, f, 2.00012267e-1f);
    p = TPF_FMAF(p, f, -2.50008225e-1f);
    p = TPF_FMAF(p, f, 3.33333313e-1f);
    p = TPF_FMAF(p, f, -0.5f);
    y = TPF_FMAF(n, TPF_LN2_LO_F32, f * f * p);
    return TPF_FMAF(n, TPF_LN2_HI_F32, f + y);
}

/* With s = f / (2 + f): log(1 + f) = 2 atanh(s) = f - s (f - r), r = 2 (atanh(s) - s) / s = z p(z) with z = s^2;
   this is p; fit 2^-59. */
TPF_INLINE double tpf_atanh_tail_f64(double z) {
    double p = 0.14796107587658547;
    p = TPF_FMA(p, z, 0.15314035599459025);
    p = TPF_FMA(p, z, 0.1818356487676316);
    p = TPF_FMA(p, z, 0.22222198563276233);
    p = TPF_FMA(p, z, 0.2857142874247698);
    p = TPF_FMA(p, z, 0.39999999999414315);
    return TPF_FMA(p, z, 0.6666666666666734);
}

TPF_INLINE double tpf_log_core_f64(double f, double n) {
    double s = f / (2.0 + f), z = s * s;
    double r = f - TPF_FMA(s, f - tpf_atanh_tail_f64(z) * z, -(n * TPF_LN2_LO_F64));
    return TPF_FMA(n, TPF_LN2_HI_F64, r);
}

/* y, computed for a positive finite x, and what log gives elsewhere. */
TPF_INLINE float tpf_log_specials_f32(float x, float y) {
    y = x > 0.0f ? y : (x == 0.0f ? -(float)TPF_INF : (float)TPF_NAN);
    return x < (float)TPF_INF ? y : x;
}

TPF_INLINE double tpf_log_specials_f64(double x, double y) {
    y = x > 0.0 ? y : (x == 0.0 ? -TPF_INF : TPF_NAN);
    return x < TPF_INF ? y : x;
}

/* The highest bit is clear where x is positive and normal: the _near_ forms of logarithms are for those. */
TPF_INLINE uint32_t tpf_normal_not_near_f32(float x) {
    return (tpf_bits_f32(x) - UINT32_C(0x800000)) | (UINT32_C(0x7f7fffff) - tpf_bits_f32(x));
}

TPF_INLINE uint64_t tpf_normal_not_near_f64(double x) {
    return (tpf_bits_f64(x) - UINT64_C(0x10000000000000)) | (UINT64_C(0x7fefffffffffffff) - tpf_bits_f64(x));
}

/* x = m 2^n, m in [sqrt(1/2), sqrt(2)). any: x may be subnormal. */
typedef struct { float m, n; } tpf_mantissa_f32;
typedef struct { double m, n; } tpf_mantissa_f64;

TPF_INLINE tpf_mantissa_f32 tpf_mantissa_of_f32(float x, int any) {
    int small = any & (x < 0x1p-126f);
    tpf_parts_f32 z = tpf_split_f32(small ? x * 0x1p23f : x);
    tpf_mantissa_f32 y = {z.m, (float)(int32_t)(z.biased - (small ? 150u : 127u))};
    return y;
}

TPF_INLINE tpf_mantissa_f64 tpf_mantissa_of_f64(double x, int any) {
    int small = any & (x < 0x1p-1022);
    tpf_parts_f64 z = tpf_split_f64(small ? x * 0x1p52 : x);
    tpf_mantissa_f64 y = {z.m, tpf_exponent_f64(z.biased, small ? 1075.0 : 1023.0)};
    return y;
}

TPF_INLINE float tpf_log_of_f32(tpf_mantissa_f32 z) { return tpf_log_core_f32(z.m - 1.0f, z.n); }
TPF_INLINE double tpf_log_of_f64(tpf_mantissa_f64 z) { return tpf_log_core_f64(z.m - 1.0, z.n); }

/* A logarithm and its _near_ form. */
#define TPF_LOGARITHM(name) \
    TPF_INLINE float tpf_##name##_near_f32(float x) { return tpf_##name##_of_f32(tpf_mantissa_of_f32(x, 0)); } \
    TPF_INLINE double tpf_##name##_near_f64(double x) { return tpf_##name##_of_f64(tpf_mantissa_of_f64(x, 0)); } \
    TPF_INLINE float tpf_##name##_f32(float x) { \
        return tpf_log_specials_f32(x, tpf_##name##_of_f32(tpf_mantissa_of_f32(x, 1))); \
    } \
    TPF_INLINE double tpf_##name##_f64(double x) { \
        return tpf_log_specials_f64(x, tpf_##name##_of_f64(tpf_mantissa_of_f64(x, 1))); \
    }
TPF_LOGARITHM(log)

/* What 1 + x lost in rounding is added back to the mantissa, scaled by its exponent. */
TPF_INLINE float tpf_log1p_f32(float x) {
    float u = 1.0f + x, lost = x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x), y;
    tpf_parts_f32 z = tpf_split_f32(u);
    uint32_t e = z.biased > 253u ? 253u : z.biased; /* up there what is lost does not matter */
    float scale = tpf_from_bits_f32((254u - e) << 23);
    y = tpf_log_core_f32(TPF_FMAF(lost, scale, z.m - 1.0f), (float)(int32_t)(z.biased - 127u));
    y = x > -1.0f ? y : (x == -1.0f ? -(float)TPF_INF : (float)TPF_NAN);
    y = x == 0.0f ? x : y;
    return x < (float)TPF_INF ? y : x;
}

TPF_INLINE double tpf_log1p_f64(double x) {
    double u = 1.0 + x, lost = x < 1.0 ? x - (u - 1.0) : 1.0 - (u - x), y;
    tpf_parts_f64 z = tpf_split_f64(u);
    uint64_t e = z.biased > 2045u ? 2045u : z.biased;
    double scale = tpf_from_bits_f64((2046u - e) << 52);
    y = tpf_log_core_f64(TPF_FMA(lost, scale, z.m - 1.0), tpf_exponent_f64(z.biased, 1023.0));
    y = x > -1.0 ? y : (x == -1.0 ? -TPF_INF : TPF_NAN);
    y = x == 0.0 ? x : y;
    return x < TPF_INF ? y : x;
}

/* ---- sin, cos ---- */

#define TPF_TRIG_NEAR 1048576.0 /* 2^20: n times a 33-bit part of pi or pi/2 is exact up to here */

TPF_INLINE int tpf_trig_is_near_f32(float x) { return TPF_ABSF(x) <= (float)TPF_TRIG_NEAR; }
TPF_INLINE int tpf_trig_is_near_f64(double x) { return TPF_ABS(x) <= TPF_TRIG_NEAR; }

/* The highest bit is clear where x is near (so no NaN either). The magnitudes are compared as integers, by the sign
   of a difference, which costs least on every instruction set. */
TPF_INLINE uint32_t tpf_trig_not_near_f32(float x) {
    return tpf_bits_f32((float)TPF_TRIG_NEAR) - (tpf_bits_f32(x) & ~TPF_SIGN_F32);
}

TPF_INLINE uint64_t tpf_trig_not_near_f64(double x) {
    return tpf_bits_f64(TPF_TRIG_NEAR) - (tpf_bits_f64(x) & ~TPF_SIGN_F64);
}

/* float32: in float64, x = (n + offset) pi + r with |r| <= pi/2; the lowest bit of odd is n's. */
typedef struct { double r; uint64_t odd; } tpf_half_turn;

/* offset is 0 for sin, 1/2 for cos. */
TPF_INLINE tpf_half_turn tpf_half_turn_near(double x, double offset) {
    double shifted = TPF_FMA(x, 0x1.45f306dc9c883p-2, -offset) + TPF_SHIFT_F64;
    double n = (shifted - TPF_SHIFT_F64) + offset;
    tpf_half_turn z;
    z.r = TPF_FMA(n, -0x1.921fb544p+1, x);
    z.r = TPF_FMA(n, -0x1.0b4611a626331p-33, z.r);
    z.odd = tpf_bits_f64(shifted);
    return z;
}

/* |x| > 2^20: the bits of 1/pi that matter for x's range of exponents, in three parts; those above
   give even multiples of pi. The products with the first two parts are exact. */
TPF_INLINE tpf_half_turn tpf_half_turn_far(double x, double offset) {
    double ax = TPF_ABS(x), a, b, c, n1, n2, n3, f1, f2, f3;
    int above1 = ax >= 0x1p47, above2 = ax >= 0x1p74, above3 = ax >= 0x1p101;
    tpf_half_turn z;
    a = above1 ? 0x1.b727221p-24 : 0x1.45f306p-2;
    a = above2 ? 0x1.529fc28p-53 : a;
    a = above3 ? 0x1.d5f47d4p-79 : a;
    b = above1 ? -0x1.5ac07b2p-54 : 0x1.b939106p-27;
    b = above2 ? -0x1.505c158p-82 : b;
    b = above3 ? 0x1.a6ee06ep-108 : b;
    c = above1 ? 0x1.5f47d4d377037p-83 : -0x1.6b01ec5417056p-56;
    c = above2 ? -0x1.6447e493ad4cep-110 : c;
    c = above3 ? -0x1.3ad4cd8778df8p-138 : c;
    n1 = x * a + TPF_SHIFT_F64;
    n2 = x * b + TPF_SHIFT_F64;
    f1 = x * a - (n1 - TPF_SHIFT_F64);
    f2 = x * b - (n2 - TPF_SHIFT_F64);
    f3 = x * c;
    n3 = (f1 + f2 - offset) + TPF_SHIFT_F64;
    f1 -= (n3 - TPF_SHIFT_F64) + offset;
    z.r = ((f1 + f2) + f3) * 0x1.921fb54442d18p+1;
    z.odd = tpf_bits_f64(n1) + tpf_bits_f64(n2) + tpf_bits_f64(n3);
    return z;
}

/* sin(r) for |r| <= pi/2, negated where odd: r h(r^2); fit 2^-27.5. */
TPF_INLINE float tpf_half_turn_sin(tpf_half_turn t) {
    double z = t.r * t.r;
    double h = 2.6018418312079606e-06;
    h = TPF_FMA(h, z, -0.00019807391466265573);
    h = TPF_FMA(h, z, 0.008333024763774649);
    h = TPF_FMA(h, z, -0.16666656667678156);
    h = TPF_FMA(h, z, 0.9999999946750321);
    return (float)tpf_from_bits_f64(tpf_bits_f64(t.r * h) ^ (t.odd << 63));
}

TPF_INLINE float tpf_sin_near_f32(float x) { return tpf_half_turn_sin(tpf_half_turn_near(x, 0.0)); }
TPF_INLINE float tpf_cos_near_f32(float x) { return -tpf_half_turn_sin(tpf_half_turn_near(x, 0.5)); }

TPF_INLINE tpf_half_turn tpf_half_turn_any(float x, double offset) {
    tpf_half_turn u = tpf_half_turn_near(x, offset), v = tpf_half_turn_far(x, offset), z;
    int is_near = tpf_trig_is_near_f32(x);
    z.r = is_near ? u.r : v.r;
    z.odd = is_near ? u.odd : v.odd;
    return z;
}

TPF_INLINE float tpf_sin_f32(float x) { return tpf_half_turn_sin(tpf_half_turn_any(x, 0.0)); }
TPF_INLINE float tpf_cos_f32(float x) { return -tpf_half_turn_sin(tpf_half_turn_any(x, 0.5)); }

/* float64: x = n pi/2 + (r + low), |r| <= pi/4; the lowest two bits of quadrant are n's. */
typedef struct { double r, low; uint64_t quadrant; } tpf_quarter_turn;

TPF_INLINE tpf_quarter_turn tpf_quarter_turn_near(double x) {
    double shifted = TPF_FMA(x, 0x1.45f306dc9c883p-1, TPF_SHIFT_F64), n = shifted - TPF_SHIFT_F64;
    double r0 = x - n * 0x1.921fb544p+0; /* exact; so are the next two products */
    double w1 = n * -0x1.0b4611a6p-34, r1 = r0 + w1, d1 = w1 - (r1 - r0);
    double w2 = n * -0x1.3198a2ep-69, r2 = r1 + w2, d2 = w2 - (r2 - r1);
    double low = TPF_FMA(n, -0x1.b839a252049c1p-104, d1 + d2);
    tpf_quarter_turn z;
    z.r = r2 + low;
    z.low = low - (z.r - r2);
    z.quadrant = tpf_bits_f64(shifted);
    return z;
}

/* The bits of 2/pi, times 2^128, that matter for 2^(20 + 32 i) <= |x| < 2^(52 + 32 i), as sums of four
   numbers; those above give whole turns. */
static const double tpf_two_over_pi[4 * 32] = {
    0x1.45f306dc9c883p+127, -0x1.6b01ec5417056p+73, -0x1.6447e493ad4cep+19, 0x1.e21c820ff28b2p-35,
    0x1.45f306dc9c883p+127, -0x1.6b01ec5417056p+73, -0x1.6447e493ad4cep+19, 0x1.e21c820ff28b2p-35,
    0x1.27220a94fe13bp+97, -0x1.05c1596447e49p+43, -0x1.d6a66c3bc6fbep-12, -0x1.ae9c5421443aap-72,
    0x1.fc2757d1f534ep+64, -0x1.1f924eb53361ep+9, 0x1.c820ff28b1d5fp-47, -0x1.443a9e48db91cp-104,
    0x1.f534ddc0db629p+32, 0x1.664f10e4107f9p-22, 0x1.163abdebbc562p-76, -0x1.236e4716f6c8bp-130,
    0x1.b6c52b3278872p-1, 0x1.07f9458eaf7afp-58, -0x1.d4f246dc8e2dfp-115, 0x1.374b801924bbbp-170,
    0x1.3c439041fe516p-32, 0x1.d5ef5de2b0db9p-87, 0x1.1b8e909374b80p-142, 0x1.924bba8274648p-198,
    0x1.fe5163abdebbcp-64, 0x1.586dc91b8e909p-118, 0x1.ba5c00c925dd4p-173, 0x1.3a32439fc3bd6p-229,
    0x1.ef5de2b0db923p-95, 0x1.c74849ba5c00dp-149, -0x1.b688afb1736f2p-203, 0x1.fc3bd63962535p-257,
    0x1.b7246e3a424ddp-128, 0x1.700324977504fp-183, -0x1.cdbc603c429c7p-237, 0x1.894d39f74411bp-291,
    0x1.2126e97003249p-159, 0x1.dd413a32439fcp-213, 0x1.deb1cb129a73fp-268, -0x1.77dca0ad144bbp-324,
    0x1.924bba8274648p-198, 0x1.cfe1deb1cb12ap-252, -0x1.63045df7282b4p-306, -0x1.44bb7b16638fep-360,
    0x1.04e8c90e7f0efp-223, 0x1.63962534e7dd1p-277, 0x1.1afa975da2427p-335, 0x1.338e04d68befdp-389,
    0x1.fc3bd63962535p-257, -0x1.822efb9415a29p-313, 0x1.a24274ce38136p-367, -0x1.741037d8cdc54p-421,
    0x1.62534e7dd1047p-289, -0x1.0568a25dbd8b3p-343, -0x1.c7eca5d040df6p-399, -0x1.9b8a719f2b318p-454,
    0x1.74411afa975dap-319, 0x1.213a671c09ad1p-374, 0x1.f7e413991d63ap-428, -0x1.f2b3182d8dee8p-482,
    0x1.2ebb4484e99c7p-352, 0x1.35a2fbf209cc9p-411, -0x1.4e33e566305b2p-467, 0x1.08bf177bf2507p-521,
    0x1.d338e04d68bf0p-385, -0x1.bec66e29c67cbp-440, 0x1.9cfa4e422fc5ep-495, -0x1.036be27003b40p-551,
    0x1.5a2fbf209cc8fp-415, -0x1.38cf9598c16c7p-469, 0x1.17e2ef7e4a0ecp-526, 0x1.ff897ffde0598p-580,
    0x1.3991d63983534p-448, -0x1.82d8dee81d108p-502, -0x1.b5f13801da001p-558, 0x1.e05980fef2f12p-612,
    0x1.835339f49c846p-480, -0x1.d1081b5f13802p-538, 0x1.2fffbc0b301fep-593, -0x1.a1dce94beb25cp-649,
    0x1.3908bf177bf25p-513, 0x1.d8ffc4bffef03p-571, -0x1.9fc04343b9d29p-626, -0x1.f592e092c9813p-680,
    0x1.defc941d8ffc5p-543, -0x1.00043f4cfe022p-597, 0x1.788c5ad053690p-651, -0x1.25930261b069fp-705,
    0x1.8ffc4bffef02dp-575, -0x1.fc04343b9d298p-630, 0x1.4da3eda6cfd9ep-685, 0x1.3e584dba7a320p-739,
    0x1.ef02cc07f7979p-607, -0x1.ce94beb25c126p-661, 0x1.b3f6793e584dcp-715, -0x1.61738132c3403p-769,
    0x1.f79788c5ad053p-639, 0x1.a3eda6cfd9e50p-693, -0x1.a7b24585ce04dp-747, 0x1.3cbfd45aea4f7p-801,
    0x1.ad05368fb69b4p-671, -0x1.30d834f648b0cp-728, 0x1.8fd9a797fa8b6p-782, -0x1.5b08a7028341dp-837,
    0x1.b69b3f6793e58p-703, 0x1.36e9e8c7ecd3dp-757, -0x1.00ae9456c229cp-811, -0x1.41a0e84c2f8c6p-868,
    0x1.93e584dba7a32p-735, -0x1.32c3402ba515bp-793, -0x1.14e050683a131p-850, 0x1.0739f78a5292fp-904,
    0x1.a7a31fb34f2ffp-767, 0x1.45aea4f758fd8p-821, -0x1.a0e84c2f8c608p-876, -0x1.d6b5b45650128p-930,
    0x1.4f2ff516ba93ep-799, -0x1.4e050683a130cp-854, 0x1.ce7de294a4baap-910, -0x1.404a04ee072a3p-964,
    0x1.7527bac7ebe5fp-832, 0x1.7b3d0739f78a5p-888, 0x1.497535fdafd89p-943, -0x1.ca8bdea7f33eep-1002,
};

/* p minus the nearest multiple of 4. */
TPF_INLINE double tpf_remainder4(double p) { return p - 4.0 * TPF_RINT(0.25 * p); }

/* |x| > 2^20. Every sum keeps its rounding error, since whole turns cancel up to 115 bits. */
TPF_INLINE tpf_quarter_turn tpf_quarter_turn_far(double x) {
    int64_t e = (int64_t)((tpf_bits_f64(x) >> 52) & 0x7ffu) - (1023 + 20);
    int64_t i = ((e < 0 ? 0 : e) >> 5) * 4;
    double t1 = tpf_two_over_pi[i], t2 = tpf_two_over_pi[i + 1], t3 = tpf_two_over_pi[i + 2];
    double xs = x * 0x1p-128, p1 = xs * t1, p2 = xs * t2, p3 = xs * t3, p4 = xs * tpf_two_over_pi[i + 3];
    double e1 = tpf_product_error(xs, t1, p1), e2 = tpf_product_error(xs, t2, p2);
    double e3 = tpf_product_error(xs, t3, p3);
    double u = tpf_remainder4(p1), v = tpf_remainder4(e1), w = tpf_remainder4(p2);
    double h = u + v, dh = tpf_sum_error(u, v, h);
    double g = h + w, dg = tpf_sum_error(h, w, g);
    double shifted = g + TPF_SHIFT_F64, f0 = g - (shifted - TPF_SHIFT_F64), d = dh + dg;
    double f1 = f0 + d, d1 = tpf_sum_error(f0, d, f1);
    double f2 = f1 + e2, d2 = tpf_sum_error(f1, e2, f2);
    double f3 = f2 + p3, d3 = tpf_sum_error(f2, p3, f3);
    double low = (d1 + d2 + d3) + (e3 + p4), f = f3 + low, fl = low - (f - f3);
    double r = f * 0x1.921fb54442d18p+0, dr = tpf_product_error(f, 0x1.921fb54442d18p+0, r);
    tpf_quarter_turn z;
    z.r = r;
    z.low = TPF_FMA(f, 0x1.1a62633145c07p-54, TPF_FMA(fl, 0x1.921fb54442d18p+0, dr));
    z.quadrant = tpf_bits_f64(shifted);
    return z;
}

TPF_INLINE tpf_quarter_turn tpf_quarter_turn_any(double x) {
    tpf_quarter_turn u = tpf_quarter_turn_near(x), v = tpf_quarter_turn_far(x), z;
    int is_near = tpf_trig_is_near_f64(x);
    z.r = is_near ? u.r : v.r;
    z.low = is_near ? u.low : v.low;
    z.quadrant = is_near ? u.quadrant : v.quadrant;
    return z;
}

/* sin of the turned angle: r + r^3 s(r^2), fit 2^-56.8, or 1 - r^2 / 2 + r^4 c(r^2), fit 2^-59. */
TPF_INLINE double tpf_quarter_turn_sin(tpf_quarter_turn t) {
    double z = t.r * t.r, s = 1.589590472964879e-10, c = -1.135831051321265e-11, hi, y;
    s = TPF_FMA(s, z, -2.5050742307625993e-08);
    s = TPF_FMA(s, z, 2.7557313587616755e-06);
    s = TPF_FMA(s, z, -1.9841269829495484e-04);
    s = TPF_FMA(s, z, 8.333333333322005e-03);
    s = TPF_FMA(s, z, -1.666666666666663e-01);
    c = TPF_FMA(c, z, 2.087569657312076e-09);
    c = TPF_FMA(c, z, -2.7557314148628144e-07);
    c = TPF_FMA(c, z, 2.4801587288748207e-05);
    c = TPF_FMA(c, z, -1.3888888888872895e-03);
    c = TPF_FMA(c, z, 4.1666666666666595e-02);
    s = t.r + TPF_FMA(t.r * z, s, TPF_FMA(t.low, -0.5 * z, t.low));
    hi = 1.0 - 0.5 * z;
    c = hi + (((1.0 - hi) - 0.5 * z) + TPF_FMA(z * z, c, -t.r * t.low));
    y = (t.quadrant & 1u) != 0 ? c : s;
    return tpf_from_bits_f64(tpf_bits_f64(y) ^ ((t.quadrant << 62) & TPF_SIGN_F64));
}

TPF_INLINE double tpf_quarter_turn_cos(tpf_quarter_turn t) {
    t.quadrant += 1u;
    return tpf_quarter_turn_sin(t);
}

/* r + 0 turns a negative zero into a positive one. */
TPF_INLINE double tpf_keep_zero(double y, double x) { return x == 0.0 ? x : y; }

TPF_INLINE double tpf_sin_near_f64(double x) {
    return tpf_keep_zero(tpf_quarter_turn_sin(tpf_quarter_turn_near(x)), x);
}
TPF_INLINE double tpf_cos_near_f64(double x) { return tpf_quarter_turn_cos(tpf_quarter_turn_near(x)); }
TPF_INLINE double tpf_sin_f64(double x) {
    return tpf_keep_zero(tpf_quarter_turn_sin(tpf_quarter_turn_any(x)), x);
}
TPF_INLINE double tpf_cos_f64(double x) { return tpf_quarter_turn_cos(tpf_quarter_turn_any(x)); }

/* ---- sqrt, pow ---- */

TPF_INLINE float tpf_sqrt_f32(float x) { return TPF_SQRTF(x); }
TPF_INLINE double tpf_sqrt_f64(double x) { return TPF_SQRT(x); }

/* 2^r for |r| <= 1/2: 1 + r g(r). For float32, fit 2^-34; for float64, fit 2^-55. */
TPF_INLINE double tpf_exp2_poly_short(double r) {
    double g = 1.51961566837303e-05;
    g = TPF_FMA(g, r, 1.5466756317208656e-04);
    g = TPF_FMA(g, r, 1.3333935054955697e-03);
    g = TPF_FMA(g, r, 9.618038132062575e-03);
    g = TPF_FMA(g, r, 5.5504103659922144e-02);
    g = TPF_FMA(g, r, 2.402265106656106e-01);
    g = TPF_FMA(g, r, 6.931471807045319e-01);
    return TPF_FMA(g, r, 1.0);
}

TPF_INLINE double tpf_exp2_poly_long(double r) {
    double g = 4.434771174811024e-10;
    g = TPF_FMA(g, r, 7.073783250851313e-09);
    g = TPF_FMA(g, r, 1.0178199572627585e-07);
    g = TPF_FMA(g, r, 1.3215435282292017e-06);
    g = TPF_FMA(g, r, 1.5252733493125706e-05);
    g = TPF_FMA(g, r, 1.5403530457112132e-04);
    g = TPF_FMA(g, r, 1.3333558146774623e-03);
    g = TPF_FMA(g, r, 9.61812910759412e-03);
    g = TPF_FMA(g, r, 5.5504108664820084e-02);
    g = TPF_FMA(g, r, 2.402265069591013e-01);
    g = TPF_FMA(g, r, 6.931471805599453e-01);
    return TPF_FMA(g, r, 1.0);
}

/* log2 of a mantissa: c1 s + c3 s^3 + ... with s = (m - 1) / (m + 1), c_k = 2 / (k ln 2). */
#define TPF_LOG2_C1 0x1.71547652b82fep+1
#define TPF_LOG2_C1_LOW 0x1.777d0ffda0d24p-55
#define TPF_LOG2_C3 0x1.ec709dc3a03fdp-1
#define TPF_LOG2_C3_LOW 0x1.d27f05548af0cp-55

/* a * b + c, rounded once or nearly so where the sum cancels. */
TPF_INLINE double tpf_cancelling_sum(double a, double b, double c) {
#if TPF_HAS_FMA
    return TPF_FMA(a, b, c);
#else
    double p = a * b;
    return (p + c) + tpf_product_error(a, b, p);
#endif
}

/* 2^(b log2 x) for x = m 2^n, m in [sqrt(1/2), sqrt(2)): log2 m = c1 s + c3 s^3 + ..., in pairs of numbers. any_b: b
   may be so large that t is rounded to whole numbers and more; only its sign matters then. Fit 2^-36. */
#if TPF_HAS_FMA
TPF_INLINE float tpf_pow_core_f32(float m, float n, float b, int any_b) {
    float num = m - 1.0f, den = m + 1.0f, denl = m - (den - 1.0f), inverse = 1.0f / den, s = num * inverse;
    float sl = TPF_FMAF(-s, denl, TPF_FMAF(-s, den, num)) * inverse;
    float w = s * s, wl = TPF_FMAF(s + s, sl, TPF_FMAF(s, s, -w)), q = 3.36488336e-01f, v, vl, c, cl, r, rl;
    float y, yl, t, tl, shifted;
    q = TPF_FMAF(q, w, 4.11927313e-01f);
    q = TPF_FMAF(q, w, 5.77078819e-01f);
    q = TPF_FMAF(q, w, 9.61796701e-01f);
    v = q * w;
    vl = TPF_FMAF(q, wl, TPF_FMAF(q, w, -v));
    c = 0x1.715476p+1f + v;
    cl = (v - (c - 0x1.715476p+1f)) + (vl + 0x1.4ae0cp-25f);
    r = c * s;
    rl = TPF_FMAF(cl, s, TPF_FMAF(c, sl, TPF_FMAF(c, s, -r)));
    y = n + r;
    yl = (r - (y - n)) + rl;
    t = y * b;
    tl = TPF_FMAF(yl, b, TPF_FMAF(y, b, -t));
    tl = any_b && !(TPF_ABSF(t) < 200.0f) ? 0.0f : tl;
    t = tpf_clamp_f32(t, -200.0f, 200.0f);
    shifted = t + TPF_SHIFT_F32;
    return tpf_scale_f32(tpf_exp2_poly_f32((t - (shifted - TPF_SHIFT_F32)) + tl), shifted);
}
#else /* without fma float64 is the shorter way */
TPF_INLINE float tpf_pow_core_f32(float m, float n, float b, int any_b) {
    double s = ((double)m - 1.0) / ((double)m + 1.0), w = s * s, p = 0.28254036061053, t, shifted;
    (void)any_b;
    p = p * w + 0.31993471565165105;
    p = p * w + 0.412208403454741;
    p = p * w + 0.5770779531758453;
    p = p * w + 0.9617966940578083;
    p = p * w + TPF_LOG2_C1;
    t = tpf_clamp_f64((p * s + (double)n) * (double)b, -200.0, 200.0);
    shifted = t + TPF_SHIFT_F64;
    return (float)(tpf_exp2_poly_short(t - (shifted - TPF_SHIFT_F64)) * tpf_power_of_two_f64(shifted));
}
#endif

/* t = b log2 x to 2^-65 of itself. */
TPF_INLINE double tpf_pow_core_f64(double m, double n, double b, int any_b) {
    double num = m - 1.0, den = m + 1.0, denl = m - (den - 1.0), inverse = 1.0 / den, s = num * inverse;
    double sl = TPF_FMA(-s, denl, tpf_cancelling_sum(-s, den, num)) * inverse;
    double w = s * s, wl = TPF_FMA(s + s, sl, tpf_product_error(s, s, w));
    double p = 0.1903833468888919, q, ql, v, vl, c, cl, r, rl, y, yl, t, tl, shifted;
    p = TPF_FMA(p, w, 0.19125538889604934);
    p = TPF_FMA(p, w, 0.22198398780849726);
    p = TPF_FMA(p, w, 0.2623077013448107);
    p = TPF_FMA(p, w, 0.3205989022710245);
    p = TPF_FMA(p, w, 0.4121985830919543);
    p = TPF_FMA(p, w, 0.577078016355618);
    q = TPF_FMA(p, w, TPF_LOG2_C3);
    ql = TPF_FMA(p, w, TPF_LOG2_C3 - q) + TPF_LOG2_C3_LOW;
    v = q * w;
    vl = TPF_FMA(ql, w, TPF_FMA(q, wl, tpf_product_error(q, w, v)));
    c = TPF_LOG2_C1 + v;
    cl = (v - (c - TPF_LOG2_C1)) + (vl + TPF_LOG2_C1_LOW);
    r = c * s;
    rl = TPF_FMA(cl, s, TPF_FMA(c, sl, tpf_product_error(c, s, r)));
    y = n + r;
    yl = (r - (y - n)) + rl;
    t = y * b;
    tl = TPF_FMA(yl, b, tpf_product_error(y, b, t));
    tl = any_b && !(TPF_ABS(t) < 1100.0) ? 0.0 : tl;
    t = tpf_clamp_f64(t, -1100.0, 1100.0);
    shifted = t + TPF_SHIFT_F64;
    return tpf_scale_f64(tpf_exp2_poly_long((t - (shifted - TPF_SHIFT_F64)) + tl), shifted);
}

/* pow(a, 1/2): unlike sqrt, 0 for -0 and inf for -inf. pow(a, 2) and pow(a, -1) are a a and 1/a. */
TPF_INLINE float tpf_pow_sqrt_f32(float a, float b) {
    (void)b;
    return a == -(float)TPF_INF ? (float)TPF_INF : TPF_SQRTF(a + 0.0f);
}
TPF_INLINE double tpf_pow_sqrt_f64(double a, double b) {
    (void)b;
    return a == -TPF_INF ? TPF_INF : TPF_SQRT(a + 0.0);
}
TPF_INLINE float tpf_pow_square_f32(float a, float b) { return (void)b, a * a; }
TPF_INLINE double tpf_pow_square_f64(double a, double b) { return (void)b, a * a; }
TPF_INLINE float tpf_pow_inverse_f32(float a, float b) { return (void)b, 1.0f / a; }
TPF_INLINE double tpf_pow_inverse_f64(double a, double b) { return (void)b, 1.0 / a; }

/* The special cases of pow around the plain result y = 2^(b log2 |a|). pow(a, 1) is a, as where 1 is a Python int. */
TPF_INLINE float tpf_pow_specials_f32(float a, float b, float y) {
    float aa = TPF_ABSF(a), half = 0.5f * b;
    int whole = TPF_RINTF(b) == b, odd = whole & (TPF_RINTF(half) != half);
    uint32_t sign = odd ? tpf_bits_f32(a) & TPF_SIGN_F32 : 0;
    y = aa == 0.0f ? (b < 0.0f ? (float)TPF_INF : 0.0f) : y;
    y = aa == (float)TPF_INF ? (b < 0.0f ? 0.0f : (float)TPF_INF) : y;
    y = (a < 0.0f) & (a > -(float)TPF_INF) & !whole ? (float)TPF_NAN : y;
    y = (a != a) | (b != b) ? a + b : y;
    y = tpf_from_bits_f32(tpf_bits_f32(y) ^ sign);
    y = b == 1.0f ? a : y;
    y = b == 2.0f ? tpf_pow_square_f32(a, b) : y;
    y = b == 0.5f ? tpf_pow_sqrt_f32(a, b) : y;
    y = b == -1.0f ? tpf_pow_inverse_f32(a, b) : y;
    return (a == 1.0f) | (b == 0.0f) ? 1.0f : y;
}

TPF_INLINE double tpf_pow_specials_f64(double a, double b, double y) {
    double aa = TPF_ABS(a), half = 0.5 * b;
    int whole = TPF_RINT(b) == b, odd = whole & (TPF_RINT(half) != half);
    uint64_t sign = odd ? tpf_bits_f64(a) & TPF_SIGN_F64 : 0;
    y = aa == 0.0 ? (b < 0.0 ? TPF_INF : 0.0) : y;
    y = aa == TPF_INF ? (b < 0.0 ? 0.0 : TPF_INF) : y;
    y = (a < 0.0) & (a > -TPF_INF) & !whole ? TPF_NAN : y;
    y = (a != a) | (b != b) ? a + b : y;
    y = tpf_from_bits_f64(tpf_bits_f64(y) ^ sign);
    y = b == 1.0 ? a : y;
    y = b == 2.0 ? tpf_pow_square_f64(a, b) : y;
    y = b == 0.5 ? tpf_pow_sqrt_f64(a, b) : y;
    y = b == -1.0 ? tpf_pow_inverse_f64(a, b) : y;
    return (a == 1.0) | (b == 0.0) ? 1.0 : y;
}

TPF_INLINE float tpf_pow_f32(float a, float b) {
    tpf_mantissa_f32 z = tpf_mantissa_of_f32(TPF_ABSF(a), 1);
    return tpf_pow_specials_f32(a, b, tpf_pow_core_f32(z.m, z.n, tpf_clamp_f32(b, -1e30f, 1e30f), 1));
}

TPF_INLINE double tpf_pow_f64(double a, double b) {
    tpf_mantissa_f64 z = tpf_mantissa_of_f64(TPF_ABS(a), 1);
    return tpf_pow_specials_f64(a, b, tpf_pow_core_f64(z.m, z.n, tpf_clamp_f64(b, -0x1p70, 0x1p70), 1));
}

/* a positive and normal, b no exponent with a form of its own and so small that t needs no care. */
TPF_INLINE uint32_t tpf_power_not_near_f32(float a, float b) {
    uint32_t own = (b == 1.0f) | (b == 2.0f) | (b == 0.5f) | (b == -1.0f) ? TPF_SIGN_F32 : 0;
    return tpf_normal_not_near_f32(a) | (tpf_bits_f32(0x1p14f) - (tpf_bits_f32(b) & ~TPF_SIGN_F32)) | own;
}

TPF_INLINE uint64_t tpf_power_not_near_f64(double a, double b) {
    uint64_t own = (b == 1.0) | (b == 2.0) | (b == 0.5) | (b == -1.0) ? TPF_SIGN_F64 : 0;
    return tpf_normal_not_near_f64(a) | (tpf_bits_f64(0x1p40) - (tpf_bits_f64(b) & ~TPF_SIGN_F64)) | own;
}

TPF_INLINE float tpf_pow_near_f32(float a, float b) {
    tpf_mantissa_f32 z = tpf_mantissa_of_f32(a, 0);
    return tpf_pow_core_f32(z.m, z.n, b, 0);
}

TPF_INLINE double tpf_pow_near_f64(double a, double b) {
    tpf_mantissa_f64 z = tpf_mantissa_of_f64(a, 0);
    return tpf_pow_core_f64(z.m, z.n, b, 0);
}

#define TPF_POW_FORM(form, exponent) \
    TPF_INLINE uint32_t tpf_power_not_##form##_f32(float a, float b) { \
        return (void)a, b == (float)exponent ? 0 : TPF_SIGN_F32; \
    } \
    TPF_INLINE uint64_t tpf_power_not_##form##_f64(double a, double b) { \
        return (void)a, b == exponent ? 0 : TPF_SIGN_F64; \
    }
TPF_POW_FORM(square, 2.0)
TPF_POW_FORM(sqrt, 0.5)
TPF_POW_FORM(inverse, -1.0)

#endif
