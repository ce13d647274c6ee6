// What a decoder does with every row beside the products: norms, gates, rotation, and putting keys and values into the cache.
#include <algorithm>

#include "cache.h"
#include "simd.h"

namespace {

constexpr int64_t FEW = 4;  // rows that one thread has done before another is awake

Floats sigmoid(Floats x) { return 1.0f / (1.0f + exp(-x)); }

// x / (1 + e^-x), or x times the normal distribution's integral by its tanh approximation, as 1 / (1 + e^-2z) for z the tanh's
// argument.
Floats activate(Floats x, bool is_gelu) {
    if (!is_gelu) return x * sigmoid(x);
    return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
}

void norm_row(const float* x, const float* weight, float eps, int64_t size, float* y) {
    Floats squares[4] = {};
    int64_t i = 0;
    for (; i + 4 * LANES <= size; i += 4 * LANES)
        for (int v = 0; v < 4; v++) {
            const Floats part = load<Floats>(x + i + v * LANES);
            squares[v] += part * part;
        }
    float total = sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
    for (; i < size; i++) total += x[i] * x[i];
    const float factor = 1.0f / std::sqrt(total / float(size) + eps);
    for (i = 0; i < size; i++) y[i] = x[i] * factor * weight[i];
}

// Rotate a head in place: y = x cos + roll(x, size / 2) sin.
void rotate(float* x, const float* cos, const float* sin, int64_t size) {
    const int64_t half = size / 2;
    for (int64_t i = 0; i < half; i++) {
        const float first = x[i], second = x[i + half];
        x[i] = first * cos[i] + second * sin[i];
        x[i + half] = second * cos[i + half] + first * sin[i + half];
    }
}

}  // namespace

extern "C" {

// y = x / sqrt(mean(x^2) + eps) weight, for `num_rows` rows that lie x_stride and y_stride floats apart.
void wf_norm(const float* x, const float* weight, float eps, float* y, int64_t num_rows, int64_t size, int64_t x_stride,
             int64_t y_stride, int num_threads) {
#pragma omp parallel for num_threads(num_threads) if (num_rows > FEW)
    for (int64_t row = 0; row < num_rows; row++) norm_row(x + row * x_stride, weight, eps, size, y + row * y_stride);
}

// y (rows, size) = activation(gate) up, of both side by side (rows, 2 size).
void wf_gate(const float* x, float* y, int64_t num_rows, int64_t size, int is_gelu, int num_threads) {
#pragma omp parallel for num_threads(num_threads) if (num_rows > FEW)
    for (int64_t row = 0; row < num_rows; row++) {
        const float *gate = x + row * 2 * size, *up = gate + size;
        float* out = y + row * size;
        int64_t i = 0;
        for (; i + LANES <= size; i += LANES)
            store(out + i, activate(load<Floats>(gate + i), is_gelu != 0) * load<Floats>(up + i));
        for (; i < size; i++) out[i] = activate(splat(gate[i]), is_gelu != 0)[0] * up[i];
    }
}

// Rotate queries and keys of qkv (rows, num_heads + 2 num_kv_heads, head_dim) in place, by the rows of cos and sin (positions,
// head_dim), and put keys and values into the cache at slots (rows,).
void wf_place(float* qkv, const float* cos, const float* sin, const int64_t* positions, const int64_t* slots,
              const Cache* cache, int64_t num_rows, int64_t num_heads, int num_threads) {
    const int64_t size = cache->head_dim, kv = cache->num_kv_heads, stride = (num_heads + 2 * kv) * size;
#pragma omp parallel for num_threads(num_threads) if (num_rows > FEW)
    for (int64_t row = 0; row < num_rows; row++) {
        float* heads = qkv + row * stride;
        const float *row_cos = cos + positions[row] * size, *row_sin = sin + positions[row] * size;
        for (int64_t head = 0; head < num_heads + kv; head++) rotate(heads + head * size, row_cos, row_sin, size);
        for (int64_t head = 0; head < 2 * kv; head++)
            cache->put(slots[row] * 2 * kv + head, heads + (num_heads + head) * size);
    }
}
}
