/* Functions made of those of tpf_math.h and tpf_math_more.h: gelu, gelu_tanh, silu, sinc, polygamma.

   float32 works in float64. In float64 the arguments of erfc and exp carry what their roundings lost, for the tails
   magnify it: at x = -38 one ULP of x / sqrt(2) is 1400 ULP of gelu. polygamma is scalar, with loops.

   Measured as in tpf_math_more.h, but at fewer points (400,000; gelu 30,000 and polygamma 450, by mpmath); after them
   ops that the table composes. The figures of silu, gelu and sinc in float64 are those of 3,000,000 points against
   113 bits.

                   float32 error    ns               float64 error    ns
     gelu            0.52  0.52    1.6  2.7  5.8      3.88  3.59    4.0  8.3   26
     gelu_tanh       0.50  0.50    1.2  1.8  3.8      3.11  3.11    2.3  5.5   12
     silu            0.50  0.50   0.90  1.9  3.6      2.54  2.43    1.2  2.3  5.4
     sinc            1.58  1.58   0.87  1.2  2.7      2.78  2.78    1.4  2.3  6.1
     polygamma       0.50  0.50     43   47   47      4.34  4.34     42   47   47
     softplus        1.69  1.71    1.4  2.3  5.2      1.66  1.68    2.8  5.9   14
     elu             1.77  1.85   0.40 0.88  1.7      1.67  1.81   0.91  2.1  4.8
     rsqrt           1.47  1.47   0.57 0.49 0.53      1.48  1.48    1.8  1.7  1.7
     xlogy           1.73  1.74   0.37 0.62  1.5      1.72  1.73   0.91  1.4  3.3
     xlog1py         2.24  2.08   0.56  1.2  2.5      1.71  1.79    1.2  2.9  5.7 */
#ifndef TPF_COMPOSITE_H
#define TPF_COMPOSITE_H

#include "tpf_math_more.h"

/* x erfc(-x / sqrt(2)) / 2; beyond -40 and 40 it is -0 and x. */
TPF_INLINE float tpf_gelu_f32(float x) {
    double t = x < -16.0f ? -16.0 : (double)x;
    return (float)(0.5 * t * tpf_erfc_short(t * -0x1.6a09e667f3bcdp-1));
}

TPF_INLINE double tpf_gelu_f64(double x) {
    double t = tpf_clamp_f64(x, -40.0, 40.0), z = t * -0x1.6a09e667f3bcdp-1;
    double low = tpf_product_error(t, -0x1.6a09e667f3bcdp-1, z) + t * 0x1.bdd3413b26456p-55;
    double y = tpf_erfc_times(z, TPF_ABS(t) < 0x1p-60 ? 0.0 : low, 0.5 * t);
    return x > 40.0 ? x : y;
}

/* x / (1 + exp(-v)), v = x (2 sqrt(2 / pi)) (1 + 0.044715 x^2). */
TPF_INLINE float tpf_gelu_tanh_f32(float x) {
    double t = tpf_clamp_f64(x, -16.0, 16.0), v = t * TPF_FMA(0x1.2444f2a4d8b4bp-4, t * t, 0x1.9884533d43651p+0);
    return x > 16.0f ? x : (float)(t / (1.0 + tpf_exp_short(-v)));
}

TPF_INLINE double tpf_gelu_tanh_f64(double x) {
    const double k0 = 0x1.9884533d43651p+0, k1 = 0x1.2444f2a4d8b4bp-4;
    double t = tpf_clamp_f64(x, -22.0, 22.0), w = t * t, s = k1 * w, m = k0 + s, v = t * m, low, p, e;
    int negative = v < 0.0;
    low = tpf_product_error(k1, w, s) + (k1 * tpf_product_error(t, t, w) - 0x1.6c843a29d1c70p-61 * w);
    low += tpf_sum_error(k0, s, m) - 0x1.cbc0d30ebfd15p-54;
    low = TPF_FMA(t, low, tpf_product_error(t, m, v));
    {
        tpf_reduced_f64 z = tpf_reduce_exp_f64(negative ? v : -v);
        p = tpf_expm1_poly_f64(z.r, z.low);
        p = 1.0 + TPF_FMA(negative ? low : -low, 1.0 + p, p);
        e = tpf_scale_f64(p, z.shifted);
        v = (negative ? tpf_scale_f64(t * p, z.shifted) : t) / (1.0 + e);
    }
    v = TPF_ABS(x) < 0x1p-60 ? 0.5 * x : v;
    return x > 22.0 ? x : v;
}

/* x / (1 + e), e = exp(-x), for x >= 0, and x e / (1 + e), e = exp(x), below: three roundings besides that of e,
   which there is one with x's. */
TPF_INLINE float tpf_silu_f32(float x) {
    double t = tpf_clamp_f64(x, -120.0, 120.0), e = tpf_exp_short(-TPF_ABS(t));
    return x > 120.0f ? x : (float)((t < 0.0 ? t * e : t) / (1.0 + e));
}

TPF_INLINE double tpf_silu_f64(double x) {
    double t = tpf_clamp_f64(x, -760.0, 760.0), p, e, y;
    tpf_reduced_f64 z = tpf_reduce_exp_f64(-TPF_ABS(t));
    p = tpf_expm1_poly_f64(z.r, z.low);
    e = tpf_scale_f64(1.0 + p, z.shifted);
    y = t < 0.0 ? tpf_scale_f64(TPF_FMA(t, p, t), z.shifted) : t;
    return x > 760.0 ? x : y / (1.0 + e);
}

/* ---- sinc: j0(pi x), and what its derivatives are made of ---- */

/* pi x = n pi/2 + (r + low) without rounding in x; a whole x is a whole number of half turns. */
TPF_INLINE tpf_quarter_turn tpf_turns_of_pi(double x) {
    double t = x - 2.0 * TPF_RINT(0.5 * x), shifted = 2.0 * t + TPF_SHIFT_F64, d = t - 0.5 * (shifted - TPF_SHIFT_F64);
    tpf_quarter_turn z;
    z.r = TPF_PI_F64 * d;
    z.low = TPF_FMA(d, 0x1.1a62633145c07p-53, tpf_product_error(TPF_PI_F64, d, z.r));
    z.quadrant = tpf_bits_f64(shifted);
    return z;
}

/* sin(pi x) / (pi x). */
TPF_INLINE double tpf_sinc_f64(double x) {
    double y = tpf_quarter_turn_sin(tpf_turns_of_pi(x)) / (TPF_PI_F64 * x) + 0.0; /* no negative zeros */
    return TPF_ABS(x) < 0x1p-28 ? 1.0 : y;
}

TPF_INLINE float tpf_sinc_f32(float x) {
    double t = x, n = TPF_RINT(t);
    tpf_half_turn z;
    z.r = TPF_PI_F64 * (t - n);
    z.odd = tpf_bits_f64(TPF_ABS(n) < 0x1p51 ? n + TPF_SHIFT_F64 : 0.0);
    float y = (float)((double)tpf_half_turn_sin(z) / (TPF_PI_F64 * t)) + 0.0f;
    return TPF_ABSF(x) < 0x1p-14f ? 1.0f : y;
}

#define TPF_SPHERICAL_MAX 40

/* j_n(z) / z^n, z = pi x, for n = 0, 1 ... 40; NaN for other orders. Near 0 by its series (DLMF 10.53.1), beyond about n
   by the recurrence of the spherical Bessel functions (DLMF 10.51.1) upwards, which is stable there. */
TPF_INLINE double tpf_spherical_ratio_f64(double order, double x) {
    double z = TPF_PI_F64 * TPF_ABS(x), w = -0.5 * z * z, term = 1.0, sum, before, y;
    int n = order >= 0.0 && order <= TPF_SPHERICAL_MAX && order == TPF_FLOOR(order) ? (int)order : -1;
    if (n < 0 || x != x) return TPF_NAN;
    before = tpf_sinc_f64(x);
    if (n == 0) return before;
    if (z < n + 1.5) {
        for (int k = 1; k <= n; k++) term /= 2 * k + 1;
        sum = term;
        for (int k = 1; TPF_ABS(term) > 0x1p-56 * TPF_ABS(sum); k++) {
            term *= w / (k * (double)(2 * n + 2 * k + 1));
            sum += term;
        }
        return sum;
    }
    y = (before - tpf_quarter_turn_cos(tpf_turns_of_pi(x))) / z / z;
    for (int k = 1; k < n; k++) {
        double after = ((2 * k + 1) * y - before) / z / z;
        before = y;
        y = after;
    }
    return y;
}

TPF_INLINE float tpf_spherical_ratio_f32(float order, float x) { return (float)tpf_spherical_ratio_f64(order, x); }

/* ---- polygamma ---- */

#define TPF_POLYGAMMA_MAX 40

/* x^-s for a whole s; repeated multiplication is the more accurate for small ones. */
TPF_INLINE double tpf_inverse_power(double x, int s) {
    double r = 1.0 / x, p = 1.0;
    if (s > 4) return tpf_pow_f64(x, -(double)s);
    for (; s > 0; s--) p *= r;
    return p;
}

/* zeta(s, x) = 1 / x^s + 1 / (x + 1)^s + ... by the formula of Euler and Maclaurin (DLMF 25.11.28); x > 0, s > 1. */
TPF_INLINE double tpf_hurwitz_zeta(int s, double x) {
    static const double terms[10] = {/* B(2 j) / (2 j)! */
        0.08333333333333333, -0.001388888888888889, 3.306878306878307e-05, -8.267195767195768e-07, 2.08767569878681e-08,
        -5.284190138687493e-10, 1.3382536530684679e-11, -3.3896802963225827e-13, 8.586062056277845e-15,
        -2.174868698558062e-16};
    double sum = 0.0, factor, power, tail;
    for (; x < 12.0 + s; x += 1.0) sum += tpf_inverse_power(x, s);
    power = tpf_inverse_power(x, s - 1);
    if (!(power > 0.0)) return sum;
    tail = 0.5;
    factor = s / x;
    for (int j = 0; j < 10; j++) {
        tail += terms[j] * factor;
        factor *= ((s + 2 * j + 1) / x) * ((s + 2 * j + 2) / x);
    }
    return TPF_FMA(power, 1.0 / (s - 1) + tail / x, sum);
}

/* cot(pi x); x is not whole. */
TPF_INLINE double tpf_cot_pi(double x) {
    double d = x - TPF_RINT(x), b = TPF_ABS(d);
    int outer = b > 0.25;
    tpf_quarter_turn t = {TPF_PI_F64 * (outer ? b - 0.5 : b), 0.0, 0};
    t.quadrant = (uint64_t)outer;
    return tpf_with_sign_f64(tpf_quarter_turn_cos(t) / tpf_quarter_turn_sin(t), d);
}

/* The n-th derivative of pi cot(pi x): a polynomial in c = cot(pi x), for c' = -pi (1 + c^2). */
TPF_INLINE double tpf_cot_derivative(int n, double x) {
    double p[TPF_POLYGAMMA_MAX + 2] = {0.0, 1.0}, c = tpf_cot_pi(x), y;
    for (int k = 0; k < n; k++) {
        double q[TPF_POLYGAMMA_MAX + 2] = {0.0};
        for (int i = 1; i <= k + 1; i++) {
            q[i - 1] -= i * p[i] * TPF_PI_F64;
            q[i + 1] -= i * p[i] * TPF_PI_F64;
        }
        memcpy(p, q, sizeof p);
    }
    y = p[n + 1];
    for (int i = n; i >= 0; i--) y = y * c + p[i];
    return TPF_PI_F64 * y;
}

/* Orders 1, 2 ... 40; below 0 by reflection: digamma(1 - x) - digamma(x) = pi cot(pi x), derived n times. */
TPF_INLINE double tpf_polygamma_f64(double order, double x) {
    int n = order >= 1.0 && order <= TPF_POLYGAMMA_MAX && order == TPF_FLOOR(order) ? (int)order : 0;
    double y, sign = n % 2 == 1 ? 1.0 : -1.0;
    if (order == 0.0) return tpf_digamma_f64(x);
    if (n == 0 || x != x || x == -TPF_INF) return TPF_NAN;
    if (x <= 0.0 && x == TPF_FLOOR(x))
        return n % 2 == 1 ? TPF_INF : (x == 0.0 ? tpf_with_sign_f64(TPF_INF, -x) : TPF_NAN);
    y = tpf_hurwitz_zeta(n + 1, x < 0.0 ? 1.0 - x : x);
    for (int k = 2; k <= n; k++) y *= k;
    return x < 0.0 ? -y - tpf_cot_derivative(n, x) : sign * y;
}

TPF_INLINE float tpf_polygamma_f32(float order, float x) { return (float)tpf_polygamma_f64(order, x); }

#endif
