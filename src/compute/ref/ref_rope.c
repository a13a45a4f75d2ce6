#include "compute/ref/ref.h"

// Minimax polynomials of sine and cosine on [-pi/4, pi/4], highest power first.
static const double sin_poly[6] = {0x1.5d93a5acfd57cp-33,  -0x1.ae5e68a2b9cebp-26, 0x1.71de357b1fe7dp-19,
                                   -0x1.a01a019c161d5p-13, 0x1.111111110f8a6p-7,   -0x1.5555555555549p-3};
static const double cos_poly[6] = {-0x1.8fae9be8838d4p-37, 0x1.1ee9ebdb4b1c4p-29,  -0x1.27e4f809c52adp-22,
                                   0x1.a01a019cb1590p-16,  -0x1.6c16c16c15177p-10, 0x1.555555555554cp-5};

static double polynomial(const double c[6], double z) {
    double p = c[0];
    for (int i = 1; i < 6; i++) p = fma(p, z, c[i]);
    return p;
}

// Of an angle in quarter turns.
static void sincos_quarter(double y, float *cos, float *sin) {
    double n = rint(y), r = (y - n) * 0x1.921fb54442d18p+0, z = r * r;
    double s = fma(r * z, polynomial(sin_poly, z), r);
    double c = fma(z * z, polynomial(cos_poly, z), fma(z, -0.5, 1.0));
    switch ((int64_t)n & 3) {
    case 0:
        *cos = (float)c;
        *sin = (float)s;
        break;
    case 1:
        *cos = (float)-s;
        *sin = (float)c;
        break;
    case 2:
        *cos = (float)-c;
        *sin = (float)-s;
        break;
    default:
        *cos = (float)s;
        *sin = (float)-c;
    }
}

void ref_rope_row(uint32_t pos, const double *fq, uint32_t n_freq, float *cos, float *sin) {
    for (uint32_t i = 0; i < n_freq; i++) sincos_quarter((double)pos * fq[i], &cos[i], &sin[i]);
}

void ref_rope(float *x, uint32_t n_freq, const float *cos, const float *sin) {
    for (uint32_t i = 0; i < n_freq; i++) {
        float a = x[i], b = x[i + n_freq], t = b * sin[i], u = a * sin[i];
        x[i] = fmaf(a, cos[i], -t);
        x[i + n_freq] = fmaf(b, cos[i], u);
    }
}

// ln of m >= 1: 2^k f with f in (0.7, 1.42), and the series of the inverse hyperbolic tangent.
static double natural_log(double m) {
    int k = 0;
    for (; m > 0x1.6a09e667f3bcdp+0; k++) m = m * 0.5;
    double z = (m - 1.0) / (m + 1.0), s = z * z, p = 0.0;
    for (int i = 23; i > 0; i -= 2) p = p * s + 1.0 / i;
    return k * 0x1.62e42fefa39efp-1 + 2.0 * (z * p);
}

float ref_position_factor(uint32_t pos, uint32_t original, float beta) {
    return (float)(1.0 + (double)beta * natural_log((double)(pos / original) + 1.0));
}
