// Products of fp32 rows with weights that are stored narrow and widened in registers: y = x W^T (+ bias) (+ y).
//
// A weight matrix (outputs, inputs) is packed into panels of PANEL outputs, inputs outermost, so that memory is read in order.
// Every output adds its products in the order of the inputs whatever the number of rows, so a row's result does not depend on
// its company, bit by bit.
#include <omp.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "simd.h"

namespace {

constexpr int VECTORS = 2;
constexpr int PANEL = VECTORS * LANES;
// Inputs that a step takes: they are a multiple of it.
constexpr int STEP = 4;
// Rows of a tile: as many as have accumulators in registers, beside the weights and one input.
constexpr int MAX_ROWS = LANES == 16 ? 12 : 6;
// Rows whose inputs stay in the second-level cache while all panels pass by.
constexpr int BLOCK_ROWS = 96;

// What each format makes of input `s` of a step (`widen`), or of its inputs in pairs (`pairs`).
struct Fp32 {
    static constexpr int BYTES = STEP * PANEL * 4;
    static void widen(const uint8_t* stored, const float*, int s, Floats* w) {
        for (int v = 0; v < VECTORS; v++) w[v] = load<Floats>(stored + (s * PANEL + v * LANES) * 4);
    }
};

// Two inputs of an output lie in one word, the first in its low half.
struct Bf16 {
    static constexpr int BYTES = STEP * PANEL * 2;
    static void widen(const uint8_t* stored, const float*, int s, Floats* w) {
        for (int v = 0; v < VECTORS; v++) {
            const Words pair = load<Words>(stored + (s / 2 * PANEL + v * LANES) * 4);
            w[v] = s % 2 ? (Floats)(pair & 0xffff0000u) : (Floats)(pair << 16);
        }
    }
#if defined(__AVX512BF16__)
    static void pairs(const uint8_t* stored, __m512bh (*w)[VECTORS]) {
        for (int s = 0; s < STEP / 2; s++)
            for (int v = 0; v < VECTORS; v++) w[s][v] = load<__m512bh>(stored + (s * PANEL + v * LANES) * 4);
    }
#endif
};

struct Fp16 {
    static constexpr int BYTES = STEP * PANEL * 2;
    static void widen(const uint8_t* stored, const float*, int s, Floats* w) {
        for (int v = 0; v < VECTORS; v++) w[v] = widen_fp16(load<Halves>(stored + (s * PANEL + v * LANES) * 2));
    }
};

// One scale for each output, which `finish` multiplies with.
struct Int8 {
    static constexpr int BYTES = STEP * PANEL;
#if defined(__AVX512BF16__)
    // Two inputs of an output lie side by side.
    static void pairs(const uint8_t* stored, __m512bh (*w)[VECTORS]) {
        for (int s = 0; s < STEP / 2; s++)
            for (int v = 0; v < VECTORS; v++) {
                const uint8_t* first = stored + (s * PANEL + v * LANES) * 2;
                const Floats low = to_floats(widen_bytes(first)), high = to_floats(widen_bytes(first + LANES));
                w[s][v] = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);  // exact: 8 bits fit
            }
    }
#else
    static void widen(const uint8_t* stored, const float*, int s, Floats* w) {
        for (int v = 0; v < VECTORS; v++) w[v] = to_floats(widen_bytes(stored + s * PANEL + v * LANES));
    }
#endif
};

// Levels 0..15: two inputs of an output lie in one byte, the first in its low half. Scale and offset for each output and group.
struct Int4 {
    static constexpr int BYTES = STEP * PANEL / 2;
    static void widen(const uint8_t* stored, const float* scales, int s, Floats* w) {
        for (int v = 0; v < VECTORS; v++) {
            const Ints pair = widen_bytes(stored + s / 2 * PANEL + v * LANES);
            const Floats scale = load<Floats>(scales + v * LANES), offset = load<Floats>(scales + PANEL + v * LANES);
            w[v] = to_floats((s % 2 ? pair >> 4 : pair) & 15) * scale + offset;
        }
    }
};

// Whether the machine multiplies pairs of bfloat16 and adds them in fp32: the inputs are rounded to it first.
#if defined(__AVX512BF16__)
template <class Format>
constexpr bool makes_pairs = std::is_same<Format, Bf16>::value || std::is_same<Format, Int8>::value;
#else
template <class Format> constexpr bool makes_pairs = false;
#endif
template <class Format> constexpr bool has_groups = std::is_same<Format, Int4>::value;

struct Product {
    const float* x;
    // The inputs rounded to bfloat16, (rows, inputs), where products are made of pairs.
    uint16_t* rounded;
    const uint8_t* weights;
    // Int8: (outputs). Int4: (panels, groups, 2, PANEL), scales and then offsets. Else none.
    const float* scales;
    const float* bias;
    float* y;
    int64_t num_rows, num_inputs, num_outputs, group, x_stride, y_stride;
    bool is_added;
};

// Finish one row of a panel: scale, bias, what was there before.
template <class Format> void finish(const Product& p, const Floats* sums, int64_t row, int64_t panel) {
    const int64_t first = panel * PANEL, count = std::min<int64_t>(PANEL, p.num_outputs - first);
    float values[PANEL];
    for (int v = 0; v < VECTORS; v++) store(values + v * LANES, sums[v]);
    float* y = p.y + row * p.y_stride + first;
    for (int64_t i = 0; i < count; i++) {
        float value = values[i];
        if (p.scales && !has_groups<Format>) value *= p.scales[first + i];
        if (p.bias) value += p.bias[first + i];
        y[i] = p.is_added ? y[i] + value : value;
    }
}

// Add one step's products to the sums of ROWS rows by PANELS panels.
template <class Format, int ROWS, int PANELS>
inline void add_step(const Product& p, int64_t row, int64_t panel, int64_t step, Floats (&sums)[ROWS][PANELS][VECTORS]) {
    const int64_t bytes = p.num_inputs / STEP * Format::BYTES;
    const uint8_t* stored = p.weights + panel * bytes + step * Format::BYTES;
#if defined(__AVX512BF16__)
    if constexpr (makes_pairs<Format>) {
        __m512bh w[PANELS][STEP / 2][VECTORS];
        for (int n = 0; n < PANELS; n++) Format::pairs(stored + n * bytes, w[n]);
        for (int s = 0; s < STEP / 2; s++)
            for (int r = 0; r < ROWS; r++) {
                uint32_t pair;
                std::memcpy(&pair, p.rounded + (row + r) * p.num_inputs + step * STEP + 2 * s, 4);
                const __m512bh input = (__m512bh)_mm512_set1_epi32(int(pair));
                for (int n = 0; n < PANELS; n++)
                    for (int v = 0; v < VECTORS; v++)
                        sums[r][n][v] = (Floats)_mm512_dpbf16_ps((__m512)sums[r][n][v], input, w[n][s][v]);
            }
        return;
    } else
#endif
    {
        const int64_t groups = has_groups<Format> ? p.num_inputs / p.group : 0;
        const float* scales = has_groups<Format> ? p.scales + (panel * groups + step * STEP / p.group) * 2 * PANEL : nullptr;
        for (int s = 0; s < STEP; s++) {
            Floats w[PANELS][VECTORS];
            for (int n = 0; n < PANELS; n++) Format::widen(stored + n * bytes, scales + n * groups * 2 * PANEL, s, w[n]);
            for (int r = 0; r < ROWS; r++) {
                const Floats input = splat(p.x[(row + r) * p.x_stride + step * STEP + s]);
                for (int n = 0; n < PANELS; n++)
                    for (int v = 0; v < VECTORS; v++) sums[r][n][v] += input * w[n][v];
            }
        }
    }
}

// ROWS rows by PANELS panels: enough sums at once that none waits for the one before.
template <class Format, int ROWS, int PANELS> void tile(const Product& p, int64_t row, int64_t panel) {
    Floats sums[ROWS][PANELS][VECTORS] = {};
    const int64_t steps = p.num_inputs / STEP;
    for (int64_t step = 0; step < steps; step++) add_step<Format, ROWS, PANELS>(p, row, panel, step, sums);
    for (int r = 0; r < ROWS; r++)
        for (int n = 0; n < PANELS; n++) finish<Format>(p, sums[r][n], row + r, panel + n);
}

template <class Format, int ROWS> void tiles(const Product& p, int64_t rows, int64_t row, int64_t panel, int64_t end) {
    if constexpr (ROWS > 0) {
        if (rows != ROWS) return tiles<Format, ROWS - 1>(p, rows, row, panel, end);
        constexpr int PANELS = ROWS == 1 ? 4 : ROWS == 2 ? 2 : 1;
        for (; panel + PANELS <= end; panel += PANELS) tile<Format, ROWS, PANELS>(p, row, panel);
        for (; panel < end; panel++) tile<Format, ROWS, 1>(p, row, panel);
    }
}

template <class Format> void multiply(const Product& p, int64_t begin, int64_t end) {
    for (int64_t block = 0; block < p.num_rows; block += BLOCK_ROWS) {
        const int64_t last = std::min<int64_t>(block + BLOCK_ROWS, p.num_rows);
        if (last - block <= MAX_ROWS) {
            tiles<Format, MAX_ROWS>(p, last - block, block, begin, end);
            continue;
        }
        for (int64_t panel = begin; panel < end; panel++)
            for (int64_t row = block; row < last; row += MAX_ROWS)
                tiles<Format, MAX_ROWS>(p, std::min<int64_t>(MAX_ROWS, last - row), row, panel, panel + 1);
    }
}

void round_row(const Product& p, int64_t row) {
    for (int64_t i = 0; i < p.num_inputs; i++)
        p.rounded[row * p.num_inputs + i] = to_bf16(p.x[row * p.x_stride + i]);
}

template <class Format> void run(Product p, int num_threads) {
    static thread_local std::vector<uint16_t> rounded;
    if (makes_pairs<Format>) {
        if (rounded.size() < size_t(p.num_rows * p.num_inputs)) rounded.resize(p.num_rows * p.num_inputs);
        p.rounded = rounded.data();
    }
    const int64_t panels = (p.num_outputs + PANEL - 1) / PANEL;
#pragma omp parallel num_threads(num_threads)
    {
        const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        if (makes_pairs<Format>) {
#pragma omp for
            for (int64_t row = 0; row < p.num_rows; row++) round_row(p, row);
        }
        multiply<Format>(p, panels * thread / threads, panels * (thread + 1) / threads);
    }
}

}  // namespace

extern "C" {

int wf_panel() { return PANEL; }

int wf_makes_pairs() { return makes_pairs<Int8>; }

// Formats by number as in layouts.py; x (rows, inputs) and y (rows, outputs) with their strides in floats.
void wf_linear(int format, const float* x, const uint8_t* weights, const float* scales, const float* bias, float* y,
               int64_t num_rows, int64_t num_inputs, int64_t num_outputs, int64_t group, int64_t x_stride,
               int64_t y_stride, int is_added, int num_threads) {
    const Product p{x,          nullptr,     weights, scales,   bias,     y,
                    num_rows,   num_inputs,  num_outputs, group, x_stride, y_stride, is_added != 0};
    switch (format) {
        case 0: return run<Fp32>(p, num_threads);
        case 1: return run<Bf16>(p, num_threads);
        case 2: return run<Fp16>(p, num_threads);
        case 3: return run<Int8>(p, num_threads);
        case 4: return run<Int4>(p, num_threads);
    }
}
}
