// What makes OpenCL C of the scalar functions of tapeflow/csrc, and what replaces some of them.
#pragma OPENCL FP_CONTRACT OFF

typedef uchar uint8_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;
#define UINT32_C(x) x##u
#define UINT64_C(x) x##ul

// Infinities and NaN of the narrower type, which serve for both.
#define TPF_INF INFINITY
#define TPF_NAN NAN
#define TPF_HAS_FMA 1
#define TPF_FMA(a, b, c) fma(a, b, c)
#define TPF_FMAF(a, b, c) fma(a, b, c)
#define TPF_RINT(x) rint(x)
#define TPF_RINTF(x) rint(x)
#define TPF_SQRT(x) sqrt(x)
#define TPF_SQRTF(x) sqrt(x)
#define TPF_ABS(x) fabs(x)
#define TPF_ABSF(x) fabs(x)
#define TPF_FLOORF(x) floor(x)
#define TPF_CEILF(x) ceil(x)
#define TPF_TRUNCF(x) trunc(x)
#define fmodf(a, b) fmod(a, b)
#define memcpy(y, x, bytes) for (int i_ = 0; i_ < (int)(bytes) / (int)sizeof(*(y)); i_++) (y)[i_] = (x)[i_]

uint32_t tpf_bits_f32(float x) { return as_uint(x); }
uint64_t tpf_bits_f64(double x) { return as_ulong(x); }
float tpf_from_bits_f32(uint32_t u) { return as_float(u); }
double tpf_from_bits_f64(uint64_t u) { return as_double(u); }

// Mesa takes 0 - a for -a, whatever the sign of a zero is, and a*0 for 0, whatever a is.
float tpf_abs_f32(float a) { return fabs(a); }
double tpf_abs_f64(double a) { return fabs(a); }
uint8_t tpf_isinf_f32(float a) { return fabs(a) == INFINITY; }
uint8_t tpf_isinf_f64(double a) { return fabs(a) == INFINITY; }
uint8_t tpf_isfinite_f32(float a) { return fabs(a) < INFINITY; }
uint8_t tpf_isfinite_f64(double a) { return fabs(a) < INFINITY; }

// cast.h and random.h make loops with these.
#define TPF_CAST_COPY(name, size)
#define TPF_CAST(from, to, X, Y, convert) Y tpf_cast_##from##_##to(X x) { return (Y)convert(x); }
#define TPF_TABLE __constant
#define TPF_WORDS_32(name, type, expr) \
    type tpf_word_##name(uint32_t word) { const uint32_t v[1] = {word}; const int i = 0; return expr; }
#define TPF_WORDS_64(name, type, expr) \
    type tpf_word_##name(uint64_t word) { const uint64_t w[1] = {word}; const int i = 0; return expr; }

// ---- of float32, where the functions of csrc work in float64 ----

// A float that the sum of two is: hi is the sum rounded.
typedef struct { float hi, lo; } tpf_pair;

float tpf_product_error_f32(float a, float b, float p) { return fma(a, b, -p); }
float tpf_sum_error_f32(float a, float b, float s) {
    float t = s - a;
    return (a - (s - t)) + (b - t);
}
// Of |a| >= |b|, or nearly; an infinity has nothing below it.
tpf_pair tpf_pair_of(float a, float b) {
    float s = a + b;
    tpf_pair z = {s, fabs(s) < INFINITY ? b - (s - a) : 0.0f};
    return z;
}
tpf_pair tpf_pair_plus(tpf_pair a, float b) {
    float s = a.hi + b;
    return tpf_pair_of(s, tpf_sum_error_f32(a.hi, b, s) + a.lo);
}
tpf_pair tpf_pair_sum(tpf_pair a, tpf_pair b) {
    float s = a.hi + b.hi;
    return tpf_pair_of(s, tpf_sum_error_f32(a.hi, b.hi, s) + (a.lo + b.lo));
}
tpf_pair tpf_pair_product(tpf_pair a, tpf_pair b) {
    float p = a.hi * b.hi;
    return tpf_pair_of(p, fabs(p) < INFINITY ? fma(a.hi, b.lo, fma(a.lo, b.hi, fma(a.hi, b.hi, -p))) : 0.0f);
}
tpf_pair tpf_pair_quotient(tpf_pair a, tpf_pair b) {
    float q = a.hi / b.hi;
    return tpf_pair_of(q, fabs(q) < INFINITY ? (fma(-q, b.hi, a.hi) + fma(-q, b.lo, a.lo)) / b.hi : 0.0f);
}

// x = n pi/2 + (r + low), |r| <= pi/4; the lowest two bits of quadrant are n's.
typedef struct { float r, low; uint32_t quadrant; } tpf_turn;

// The bits of 2/pi, after 32 zeros.
__constant uint32_t tpf_two_over_pi_bits[8] = {
    0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu,
};

// For |x| up to 2^17. The first product is exact, of the second all is kept.
tpf_turn tpf_turn_near(float x) {
    float shifted = fma(x, 0x1.45f306p-1f, TPF_SHIFT_F32), n = shifted - TPF_SHIFT_F32;
    float r0 = fma(n, -0x1.921fb6p+0f, x), w = n * 0x1.777a5cp-25f, r1 = r0 + w;
    float low = fma(n, 0x1.ee59dap-50f, tpf_sum_error_f32(r0, w, r1) + fma(n, 0x1.777a5cp-25f, -w));
    tpf_turn z;
    z.r = r1 + low;
    z.low = low - (z.r - r1);
    z.quadrant = as_uint(shifted);
    return z;
}

// Beyond: x is m 2^e with m of 24 bits; of m times 2/pi the 96 bits below 4 that count are found by integers
// (M. H. Payne and R. N. Hanek, Radian reduction for trigonometric functions, SIGNUM Newsletter 18, 1983).
tpf_turn tpf_turn_far(float x) {
    uint32_t u = as_uint(x) & 0x7fffffffu, start = (u >> 23) - 120u, k = start >> 5, s = start & 31u;
    uint64_t m = (u & 0x7fffffu) | 0x800000u, top, g;
    uint32_t b0 = tpf_two_over_pi_bits[k & 7u], b1 = tpf_two_over_pi_bits[(k + 1u) & 7u];
    uint32_t b2 = tpf_two_over_pi_bits[(k + 2u) & 7u], b3 = tpf_two_over_pi_bits[(k + 3u) & 7u];
    uint64_t w0 = ((((uint64_t)b0 << 32) | b1) << s) >> 32, w1 = ((((uint64_t)b1 << 32) | b2) << s) >> 32;
    uint64_t w2 = ((((uint64_t)b2 << 32) | b3) << s) >> 32;
    int below;
    float sign;
    tpf_pair r, quarter = {0x1.921fb6p+0f, -0x1.777a5cp-25f};
    tpf_turn z;
    top = ((m * w0) << 32) + m * w1 + ((m * w2) >> 32);
    below = (top & 0x2000000000000000ul) != 0; // the nearest multiple is the one above
    g = top << 2;
    g = below ? 0ul - g : g;
    r = tpf_pair_of((float)(uint32_t)(g >> 40) * 0x1p-24f, (float)(g & 0xfffffffffful) * 0x1p-64f);
    r = tpf_pair_product(r, quarter);
    sign = below != (x < 0.0f) ? -1.0f : 1.0f;
    z.quadrant = (uint32_t)(top >> 62) + (below ? 1u : 0u);
    z.quadrant = x < 0.0f ? 0u - z.quadrant : z.quadrant;
    z.r = fabs(x) < INFINITY ? sign * r.hi : (float)TPF_NAN;
    z.low = sign * r.lo;
    return z;
}

tpf_turn tpf_turn_any(float x) {
    tpf_turn z = tpf_turn_near(x);
    if (!(fabs(x) <= 0x1p17f)) z = tpf_turn_far(x);
    return z;
}

// r + r^3 s(r^2), fit 2^-27.0, or 1 - r^2 / 2 + r^4 c(r^2), fit 2^-32.7.
float tpf_turn_sin(tpf_turn t) {
    float z = t.r * t.r, s = -0.00019515218f, c = 2.4433082e-05f, w = 0.5f * z, hi = 1.0f - w, y;
    s = fma(s, z, 0.00833216f);
    s = fma(s, z, -0.16666655f);
    c = fma(c, z, -0.0013887315f);
    c = fma(c, z, 0.041666646f);
    s = t.r + fma(t.r * z, s, fma(t.low, -w, t.low));
    c = hi + (((1.0f - hi) - w) + fma(z * z, c, -t.r * t.low));
    y = (t.quadrant & 1u) != 0u ? c : s;
    return as_float(as_uint(y) ^ ((t.quadrant << 30) & 0x80000000u));
}

// Mesa hands a function the caller's own struct: one that a parameter is must not be written.
float tpf_turn_cos(tpf_turn t) {
    tpf_turn next = {t.r, t.low, t.quadrant + 1u};
    return tpf_turn_sin(next);
}
double tpf_quarter_turn_cos(tpf_quarter_turn t) {
    tpf_quarter_turn next = {t.r, t.low, t.quadrant + 1u};
    return tpf_quarter_turn_sin(next);
}

float tpf_sin_f32(float x) { return x == 0.0f ? x : tpf_turn_sin(tpf_turn_any(x)); }
float tpf_cos_f32(float x) { return tpf_turn_cos(tpf_turn_any(x)); }
float tpf_tan_f32(float x) {
    tpf_turn t = tpf_turn_any(x);
    return x == 0.0f ? x : tpf_turn_sin(t) / tpf_turn_cos(t);
}

// pi x, reduced without rounding in x.
tpf_turn tpf_turns_of_pi_f32(float x) {
    float t = x - 2.0f * rint(0.5f * x), shifted = 2.0f * t + TPF_SHIFT_F32, d = t - 0.5f * (shifted - TPF_SHIFT_F32);
    tpf_turn z;
    z.r = TPF_PI_F32 * d;
    z.low = fma(d, TPF_PI_LOW_F32, fma(TPF_PI_F32, d, -z.r));
    z.quadrant = as_uint(shifted);
    return z;
}

// sin(pi x) / (pi x), the denominator a pair; no negative zeros.
float tpf_sinc_f32(float x) {
    float s = tpf_turn_sin(tpf_turns_of_pi_f32(x)), p = TPF_PI_F32 * x, y;
    tpf_pair sine = {s, 0.0f}, angle = {p, fma(x, TPF_PI_LOW_F32, fma(TPF_PI_F32, x, -p))};
    y = fabs(p) < INFINITY ? tpf_pair_quotient(sine, angle).hi : s / p;
    return fabs(x) < 0x1p-14f ? 1.0f : (y == 0.0f ? 0.0f : y);
}

// As in csrc, with sums and products that keep what their rounding loses.
float tpf_spherical_ratio_f32(float order, float x) {
    int n = order >= 0.0f && order <= (float)TPF_SPHERICAL_MAX && order == floor(order) ? (int)order : -1;
    float p = TPF_PI_F32 * fabs(x), a = fabs(x);
    tpf_pair z = {p, fma(a, TPF_PI_LOW_F32, fma(TPF_PI_F32, a, -p))}, square, before = {0.0f, 0.0f}, sum = {1.0f, 0.0f};
    if (n < 0 || x != x) return (float)TPF_NAN;
    before.hi = tpf_sinc_f32(x);
    if (n == 0) return before.hi;
    square = tpf_pair_product(z, z);
    if (z.hi < (float)n + 1.5f) {
        tpf_pair term = sum, w = {-0.5f * square.hi, -0.5f * square.lo};
        for (int k = 1; k < 200 && fabs(term.hi) > 0x1p-50f * fabs(sum.hi); k++) {
            tpf_pair divisor = {(float)(k * (2 * n + 2 * k + 1)), 0.0f};
            term = tpf_pair_quotient(tpf_pair_product(term, w), divisor);
            sum = tpf_pair_sum(sum, term);
        }
        for (int k = 1; k <= n; k++) {
            tpf_pair divisor = {(float)(2 * k + 1), 0.0f};
            sum = tpf_pair_quotient(sum, divisor);
        }
        return sum.hi;
    }
    sum = tpf_pair_plus(before, -tpf_turn_cos(tpf_turns_of_pi_f32(x)));
    if (!(square.hi < INFINITY)) return n == 1 ? sum.hi / z.hi / z.hi : 0.0f * a;
    sum = tpf_pair_quotient(sum, square);
    for (int k = 1; k < n; k++) {
        tpf_pair after = sum, factor = {(float)(2 * k + 1), 0.0f};
        before.hi = -before.hi;
        before.lo = -before.lo;
        sum = tpf_pair_quotient(tpf_pair_sum(tpf_pair_product(factor, sum), before), square);
        before = after;
    }
    return sum.hi;
}

// factor erfc(x + low): 1 - x - x p(x^2) below 0.9 (tpf_erf_f32 has the same p); from there on exp(-a^2) h q(t) with
// h = 1 / (a + 3), t = 1 - 6 h, where what the roundings of a + 3, of h and of a^2 lost goes into the exponential.
float tpf_erfc_times_f32(float x, float low, float factor) {
    float a = tpf_clamp_f32(fabs(x), 0.0f, 10.3f), w = a * a, d = a + 3.0f, h = 1.0f / d;
    float lost = fma(-h, d, 1.0f) - h * (a - (d - 3.0f)), t = fma(-6.0f * h, lost, 1.0f - 6.0f * h);
    float q = 7.776248076578992e-06f, p = -6.0207467e-04f, y, q_low;
    tpf_reduced_f32 z = tpf_reduce_exp_f32(-w);
    q = fma(q, t, -0.00031219210043356845f);
    q = fma(q, t, -0.00048421285843257733f);
    q = fma(q, t, 0.00307046241436402f);
    q = fma(q, t, -0.0012278866395736786f);
    q = fma(q, t, -0.026837189602248516f);
    q = fma(q, t, 0.11952945837864772f);
    q = fma(q, t, -0.31046628898426515f);
    q = fma(q, t, 0.5902282756051691f);
    q = fma(q, t, -0.8833944780244057f);
    y = fma(q, t, 1.0740069079011392f);
    q_low = fma(q, t, 1.0740069079011392f - y);
    q = y;
    y = tpf_expm1_poly_f32(z.r, z.low);
    t = fma(lost - fma(a, a, -w) - 2.0f * a * low, 1.0f + y, y);
    y = q * h;
    y = (y + fma(y, t, fma(q_low, h, fma(q, h, -y)))) * factor;
    q = tpf_scale_f32(y, z.shifted);
    q = x < 0.0f ? 2.0f * factor - q : q;
    p = fma(p, w, 4.9989526e-03f);
    p = fma(p, w, -2.6770491e-02f);
    p = fma(p, w, 1.1281922e-01f);
    p = fma(p, w, -3.7612504e-01f);
    p = fma(p, w, 1.2837915e-01f);
    return a < 0.9f ? fma(-x, p, 1.0f - x) * factor : q;
}

float tpf_erfc_f32(float x) { return x != x ? x : tpf_erfc_times_f32(x, 0.0f, 1.0f); }

float tpf_gelu_f32(float x) {
    float t = tpf_clamp_f32(x, -16.0f, 16.0f), z = t * -0x1.6a09e6p-1f;
    float low = fma(t, -0x1.9fcef4p-27f, fma(t, -0x1.6a09e6p-1f, -z));
    float y = tpf_erfc_times_f32(z, fabs(t) < 0x1p-60f ? 0.0f : low, 0.5f * t);
    return x > 16.0f || x != x ? x : y;
}

float tpf_gelu_tanh_f32(float x) {
    const float k0 = 0x1.988454p+0f, k1 = 0x1.2444f2p-4f;
    float t = tpf_clamp_f32(x, -16.0f, 16.0f), w = t * t, s = k1 * w, m = k0 + s, v = t * m, low, p, e;
    int negative = v < 0.0f;
    tpf_reduced_f32 z = tpf_reduce_exp_f32(tpf_clamp_f32(negative ? v : -v, -120.0f, 0.0f));
    low = fma(k1, w, -s) + fma(k1, fma(t, t, -w), 0x1.49b16ap-29f * w);
    low += tpf_sum_error_f32(k0, s, m) - 0x1.857936p-25f;
    low = fma(t, low, fma(t, m, -v));
    p = tpf_expm1_poly_f32(z.r, z.low);
    p = fma(negative ? low : -low, 1.0f + p, p);
    e = tpf_scale_f32(1.0f + p, z.shifted);
    v = (negative ? tpf_scale_f32(fma(t, p, t), z.shifted) : t) / (1.0f + e);
    v = fabs(x) < 0x1p-30f ? 0.5f * x : v;
    return x > 16.0f || x != x ? x : v;
}

float tpf_silu_f32(float x) {
    float t = tpf_clamp_f32(x, -120.0f, 120.0f), p, e, y;
    tpf_reduced_f32 z = tpf_reduce_exp_f32(-fabs(t));
    p = tpf_expm1_poly_f32(z.r, z.low);
    e = tpf_scale_f32(1.0f + p, z.shifted);
    y = t < 0.0f ? tpf_scale_f32(fma(t, p, t), z.shifted) : t;
    return x > 120.0f ? x : y / (1.0f + e);
}

// max + log1p(exp(-|a - b|)); what rounding a - b lost counts where max is near 0.
float tpf_logaddexp_f32(float a, float b) {
    float m = a > b ? a : b, least = a > b ? b : a, d = a == b ? 0.0f : least - m;
    float lost = d > -104.0f ? tpf_sum_error_f32(least, -m, d) : 0.0f;
    tpf_reduced_f32 z = tpf_reduce_exp_f32(d < -104.0f ? -104.0f : d);
    float e = tpf_scale_f32(1.0f + tpf_expm1_poly_f32(z.r, z.low), z.shifted);
    float y = m + tpf_log1p_plus_f32(fma(e, a == b ? 0.0f : lost, e), 0.0f);
    return (a != a) | (b != b) ? a + b : y;
}

// The fits of csrc for float32.
float tpf_lgamma_positive_f32(float x) {
    float inverse = 1.0f / x, w = inverse * inverse, product = 1.0f, t = x - (floor(x - 1.5f) + 2.0f), log_arg;
    float r = 0.00012236151908524812f, s = fma(-0.0027598838886931983f, w, 0.08333323982268448f) * inverse;
    for (int k = 1; k <= 6; k++) product *= x - (float)k >= 1.5f ? x - (float)k : 1.0f;
    product = x < 1.5f ? (x < 0.5f ? fabs(x * (x + 1.0f)) : x) : product;
    log_arg = tpf_log_f32(x >= 8.0f ? x : product);
    r = fma(r, t, -0.0002536188329737418f);
    r = fma(r, t, 0.0005015182579674657f);
    r = fma(r, t, -0.0011859591340855618f);
    r = fma(r, t, 0.0028917323513587903f);
    r = fma(r, t, -0.007386158681514125f);
    r = fma(r, t, 0.02058073442747642f);
    r = fma(r, t, -0.06735228224429772f);
    r = fma(r, t, 0.32246703468761595f);
    r = fma(r, t, 0.42278433500646073f);
    if (x >= 8.0f) return fma(x - 0.5f, log_arg - 1.0f, 0.4189385332046727f + s);
    return fma(t, r, x < 1.5f ? -log_arg : log_arg);
}

float tpf_sin_of_pi_f32(float a) { return tpf_turn_sin(tpf_turns_of_pi_f32(a)); }

float tpf_lgamma_f32(float x) {
    float y = tpf_lgamma_positive_f32(x <= -0.5f ? -x : x);
    if (x <= -0.5f) y = (1.1447298858494002f - tpf_log_f32(-x * fabs(tpf_sin_of_pi_f32(x)))) - y;
    return ((x <= 0.0f) & (rint(x) == x)) | (fabs(x) == INFINITY) ? (float)TPF_INF : y;
}

float tpf_digamma_positive_f32(float x) {
    float u = x - floor(x), t = u - 0.5f, num = 0.0f, den = 1.0f, r = 0.01112003894150632f, q, w;
    for (int k = 1; k <= 6; k++) {
        float f = x - (float)k;
        num = f >= 1.0f ? fma(num, f, den) : num;
        den = f >= 1.0f ? den * f : den;
    }
    q = (x < 1.0f ? -1.0f : (x < 8.0f ? num : 1.0f)) / ((x < 1.0f) | (x >= 8.0f) ? x : den);
    w = q * q;
    r = fma(r, t, -0.016384310806655564f);
    r = fma(r, t, 0.016979435163955833f);
    r = fma(r, t, -0.025780886455817036f);
    r = fma(r, t, 0.0408795818060525f);
    r = fma(r, t, -0.0620571000844228f);
    r = fma(r, t, 0.09498205750018161f);
    r = fma(r, t, -0.1483987841093927f);
    r = fma(r, t, 0.24054261667248514f);
    r = fma(r, t, -0.42362749892105694f);
    r = fma(r, t, 0.9510558756227514f);
    if (x >= 8.0f) return tpf_log_f32(x) - fma(w, fma(-0.008245835427506815f, w, 0.08333288943952726f), 0.5f * q);
    return fma((u - 0x1.d8b618p-2f) - 0x1.ab5f2p-27f, r, q);
}

float tpf_digamma_f32(float x) {
    tpf_turn t = tpf_turns_of_pi_f32(x);
    float y = tpf_digamma_positive_f32(x < 0.0f ? 1.0f - x : x);
    if (x < 0.0f) y -= TPF_PI_F32 * (tpf_turn_cos(t) / tpf_turn_sin(t));
    return (x < 0.0f) & (rint(x) == x) ? (float)TPF_NAN : y;
}

// n! zeta(n + 1, x) for x > 0, by the formula of Euler and Maclaurin as in csrc; every term relative to x^-n, so that
// nothing overflows that the result does not.
tpf_pair tpf_zeta_factorial(int n, tpf_pair x) {
    const float terms[6] = {0.08333333333333333f, -0.001388888888888889f, 3.306878306878307e-05f,
        -8.267195767195768e-07f, 2.08767569878681e-08f, -5.284190138687493e-10f};
    const float s = (float)(n + 1);
    tpf_pair whole, at = x, sum = {0.0f, 0.0f}, product = {1.0f, 0.0f}, power;
    float tail = 0.5f, factor;
    for (int last = 0; !last;) {
        tpf_pair base = tpf_pair_quotient(x, at);
        last = !(at.hi < s + 8.0f);
        power.hi = 1.0f;
        power.lo = 0.0f;
        for (int bits = n + 1; bits > 0; bits >>= 1) {
            if ((bits & 1) != 0) power = tpf_pair_product(power, base);
            base = tpf_pair_product(base, base);
        }
        if (last) break;
        sum = tpf_pair_sum(sum, power);
        at = tpf_pair_plus(at, 1.0f);
    }
    factor = s / at.hi;
    for (int j = 0; j < 6; j++) {
        tail = fma(terms[j], factor, tail);
        factor *= ((s + (float)(2 * j + 1)) / at.hi) * ((s + (float)(2 * j + 2)) / at.hi);
    }
    whole.hi = at.hi / (s - 1.0f);
    whole.lo = 0.0f;
    sum = tpf_pair_sum(sum, tpf_pair_product(power, tpf_pair_plus(whole, tail)));
    for (int k = 1; k <= n; k++) {
        tpf_pair each = {(float)k, 0.0f};
        product = tpf_pair_product(product, tpf_pair_quotient(each, x));
    }
    product = tpf_pair_product(product, tpf_pair_quotient(sum, x));
    if (!(x.hi < INFINITY)) product.hi = product.lo = 0.0f;
    return product;
}

// Below 0: the sum of 1 / (x + k)^(n + 1) over all whole k, which is two zeta functions of the distances from x to its
// neighbours, without the terms of k < 0.
float tpf_polygamma_f32(float order, float x) {
    int n = order >= 1.0f && order <= (float)TPF_POLYGAMMA_MAX && order == floor(order) ? (int)order : 0;
    int odd = n & 1;
    float y;
    tpf_pair whole = {x, 0.0f};
    if (order == 0.0f) return tpf_digamma_f32(x);
    if (n == 0 || x != x || x == -INFINITY) return (float)TPF_NAN;
    if (x <= 0.0f && x == floor(x))
        return odd ? (float)TPF_INF : (x == 0.0f ? tpf_with_sign_f32((float)TPF_INF, -x) : (float)TPF_NAN);
    if (x > 0.0f) {
        y = tpf_zeta_factorial(n, whole).hi;
    } else {
        float up = ceil(x) - x, down = x - floor(x);
        tpf_pair to_above = {up, tpf_sum_error_f32(ceil(x), -x, up)};
        tpf_pair to_below = {down, tpf_sum_error_f32(x, -floor(x), down)};
        tpf_pair other = {1.0f - x, tpf_sum_error_f32(1.0f, -x, 1.0f - x)};
        tpf_pair beyond = tpf_zeta_factorial(n, other), above = tpf_zeta_factorial(n, to_above);
        tpf_pair below = tpf_zeta_factorial(n, to_below), *minus = odd ? &beyond : &above;
        minus->hi = -minus->hi;
        minus->lo = -minus->lo;
        y = tpf_pair_sum(tpf_pair_sum(below, above), beyond).hi;
        if (below.hi == INFINITY || fabs(above.hi) == INFINITY) // the nearer one decides
            y = odd || down < up ? INFINITY : (down > up ? -INFINITY : beyond.hi);
    }
    return odd ? y : -y;
}

// All by fmod, which is exact.
int tpf_divide_is_near_f32(float a, float b) { return 0; }
float tpf_remainder_near_f32(float a, float b) { return 0.0f; }
float tpf_floor_divide_near_f32(float a, float b) { return 0.0f; }
uint8_t tpf_floor_divide_u8(uint8_t a, uint8_t b) {
    return b == 0 ? (uint8_t)0 : (uint8_t)((uint)a / (uint)(b == 0 ? 1 : b));
}
int32_t tpf_floor_divide_i32(int32_t a, int32_t b) {
    int plain = (b != 0) & (b != -1);
    int32_t d = plain ? b : 1, q = a / d, negated = (int32_t)(0u - (uint32_t)a);
    q -= (a % d != 0) & ((a < 0) != (d < 0));
    return plain ? q : (b == 0 ? 0 : negated);
}
