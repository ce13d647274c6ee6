// The paged cache of one layer: (blocks, block_size, 2, num_kv_heads, head_dim), a token's key and value side by side. A
// "place" is the number of one of those heads.
#pragma once

#include <algorithm>

#include "simd.h"

enum Stored { FP32 = 0, BF16 = 1, FP16 = 2, INT8 = 3 };

struct Cache {
    void* data;
    // Of int8: (blocks, block_size, 2, num_kv_heads). Else null.
    float* scales;
    int64_t stored, block_size, num_kv_heads, head_dim;

    void put(int64_t place, const float* head) const {
        const int64_t first = place * head_dim;
        if (stored == FP32) std::memcpy((float*)data + first, head, head_dim * 4);
        if (stored == BF16)
            for (int64_t i = 0; i < head_dim; i++) ((uint16_t*)data)[first + i] = to_bf16(head[i]);
        if (stored == INT8) put_int8(place, head);
    }

    // The largest value becomes 127; a NaN makes the scale one, so that all of the head is read as such.
    void put_int8(int64_t place, const float* head) const {
        float largest = 0.0f;
        for (int64_t i = 0; i < head_dim; i++) {
            const float size = std::fabs(head[i]);
            if (size > largest || size != size) largest = size;  // nothing is larger than a NaN
        }
        const float scale = largest / 127.0f, divisor = scale == 0.0f ? 1.0f : scale;
        scales[place] = scale;
        int8_t* kept = (int8_t*)data + place * head_dim;
        for (int64_t i = 0; i < head_dim; i++) {
            const float level = std::nearbyint(head[i] / divisor);
            kept[i] = int8_t(std::min(127.0f, std::max(-127.0f, level)));
        }
    }

    // Ask the memory for a head.
    void prefetch(int64_t place) const {
        const int64_t bytes = head_dim * (stored == FP32 ? 4 : stored == INT8 ? 1 : 2);
        const char* head = (const char*)data + place * bytes;
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(head + i);
    }

    // Widen a head into floats; head_dim is a multiple of LANES.
    void take(int64_t place, float* head) const {
        if (stored == FP32) std::memcpy(head, (const float*)data + place * head_dim, head_dim * 4);
        if (stored == BF16) {
            const uint16_t* kept = (const uint16_t*)data + place * head_dim;
            for (int64_t i = 0; i < head_dim; i += LANES) store(head + i, widen_bf16(kept + i));
        }
        if (stored == INT8) {
            const uint8_t* kept = (const uint8_t*)data + place * head_dim;
            const float scale = scales[place];
            for (int64_t i = 0; i < head_dim; i += LANES) store(head + i, to_floats(widen_bytes(kept + i)) * scale);
        }
    }
};
