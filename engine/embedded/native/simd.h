// A vector of floats as wide as the machine's, and how stored numbers become one. The compiler maps the types to AVX-512, AVX2
// or NEON; where an instruction has no portable spelling (half precision, bfloat16 products) an intrinsic stands beside its
// plain form.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));

template <class V> static inline V load(const void* from) {
    V value;
    std::memcpy(&value, from, sizeof(V));
    return value;
}
template <class V> static inline void store(void* to, V value) { std::memcpy(to, &value, sizeof(V)); }

// (x - 0 is x, so nothing is left to compute; 0 + x is not x where x is -0.)
static inline Floats splat(float value) { return value - Floats{}; }

static inline Floats widen_bf16(const uint16_t* stored) {
#if defined(__AVX512F__)
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)stored)), 16);
#elif defined(__AVX2__)
    return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)stored)), 16);
#else
    return (Floats)(__builtin_convertvector(load<Halves>(stored), Words) << 16);
#endif
}

static inline float half_to_float(uint16_t stored) {
    const uint32_t sign = uint32_t(stored & 0x8000) << 16, rest = stored & 0x7fff;
    uint32_t bits = sign | ((rest + (112 << 10)) << 13);  // the exponent's bias is 127 instead of 15
    if (rest >= 0x7c00) bits = sign | 0x7f800000 | (rest << 13);
    float value;
    if (rest < 0x0400) {  // subnormal: a multiple of 2^-24
        value = float(rest) * 5.9604644775390625e-8f;
        return sign ? -value : value;
    }
    std::memcpy(&value, &bits, 4);
    return value;
}

static inline Floats widen_fp16(Halves stored) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_cvtph_ps(0xffff, (__m256i)stored);
#elif defined(__F16C__)
    return (Floats)_mm256_cvtph_ps((__m128i)stored);
#else
    Floats wide;
    for (int i = 0; i < LANES; i++) wide[i] = half_to_float(stored[i]);
    return wide;
#endif
}

// LANES bytes as integers. (The portable conversion is right and an order of magnitude slower: GCC 12 takes it apart.)
static inline Ints widen_bytes(const uint8_t* stored) {
#if defined(__AVX512F__)
    return (Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)stored));
#elif defined(__AVX2__)
    return (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)stored));
#else
    return __builtin_convertvector(load<Bytes>(stored), Ints);
#endif
}

static inline Floats to_floats(Ints values) { return __builtin_convertvector(values, Floats); }

// Round to nearest, ties to even. A NaN stays one.
static inline uint16_t to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (value != value) return 0x7fc0;
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline Floats max(Floats a, Floats b) { return a > b ? a : b; }

// The lanes in another order, which must be known to the compiler: else it would be looked up in memory.
template <int WIDTH, int... I> static inline Floats swapped(Floats v, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(v, v, (I ^ WIDTH)...);
}
using Order = std::make_integer_sequence<int, LANES>;

template <int WIDTH = LANES / 2> static inline float sum(Floats v) {
    if constexpr (WIDTH == 0)
        return v[0];
    else
        return sum<WIDTH / 2>(v + swapped<WIDTH>(v, Order()));
}

template <int WIDTH = LANES / 2> static inline float max(Floats v) {
    if constexpr (WIDTH == 0)
        return v[0];
    else
        return max<WIDTH / 2>(max(v, swapped<WIDTH>(v, Order())));
}

// Lane i of both: where bit WIDTH of i is 0 what the first vector has to be added there, else what the second has.
template <int WIDTH, int... I> static inline Floats merged(Floats a, Floats b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, ((I & ~WIDTH) + (I & WIDTH ? LANES : 0))...) +
           __builtin_shufflevector(a, b, ((I | WIDTH) + (I & WIDTH ? LANES : 0))...);
}

// The sums of LANES vectors, one in each lane: log2(LANES) rounds, each of which halves their number.
template <int WIDTH = LANES / 2> static inline Floats sums(Floats* rows) {
    if constexpr (WIDTH > 0) {
        for (int i = 0; i < WIDTH; i++) rows[i] = merged<WIDTH>(rows[i], rows[i + WIDTH], Order());
        return sums<WIDTH / 2>(rows);
    }
    return rows[0];
}

// e^x: 2^n e^r with |r| <= ln 2 / 2, the Taylor series of e^r to the 7th power. Relative error below 2e-7; 0 below -87.3.
static inline Floats exp(Floats x) {
    const Floats limited = max(x < 88.0f ? x : splat(88.0f), splat(-87.3f));
    const Floats shifted = limited * 1.4426950408889634f + 12582912.0f;  // 1.5 x 2^23: adding it rounds
    const Floats n = shifted - 12582912.0f;
    const Floats r = limited - n * 0.693145751953125f - n * 1.428606765330187e-6f;
    Floats series = splat(1.0f / 5040);
    const float factors[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    for (float factor : factors) series = series * r + factor;
    const Ints power = (__builtin_convertvector(n, Ints) + 127) << 23;
    const Floats result = series * (Floats)power;
    return x < -87.3f ? Floats{} : (x != x ? x : result);
}
