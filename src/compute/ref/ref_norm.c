#include "compute/ref/ref.h"

// 64 strided partial sums, then a fixed tree: the shape that 4 zmm, 8 ymm or a warp sums without shuffles.
static float sum_of_squares(const float *x, uint32_t n) {
    float p[64] = {0};
    for (uint32_t i = 0; i < n; i++) p[i & 63] = fmaf(x[i], x[i], p[i & 63]);
    for (uint32_t h = 32; h; h >>= 1)
        for (uint32_t i = 0; i < h; i++) p[i] = p[i] + p[i + h];
    return p[0];
}

void ref_rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *y) {
    float r = 1.0f / sqrtf(sum_of_squares(x, n) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = (x[i] * r) * w[i];
}

void ref_hadamard(float *x, uint32_t n) {
    for (uint32_t h = 1; h < n; h *= 2)
        for (uint32_t i = 0; i < n; i += 2 * h)
            for (uint32_t j = i; j < i + h; j++) {
                float a = x[j], b = x[j + h];
                x[j] = a + b;
                x[j + h] = a - b;
            }
}
