// Attention over the paged cache, read once and in place: softmax(q k^T scale) v with a running maximum and sum (Milakov and
// Gimelshein, 2018), for decodes and prompt chunks alike.
//
// A row takes the tokens before it in groups of LANES that begin at multiples of LANES of the sequence. So its result depends
// neither on the rows beside it nor on how its prompt was cut, bit by bit.
#include <omp.h>

#include <limits>
#include <vector>

#include "cache.h"
#include "simd.h"

namespace {

// Rows of one sequence that share what is read from the cache.
constexpr int64_t SHARED_ROWS = 16;
constexpr float NOTHING = -std::numeric_limits<float>::infinity();

struct Attention {
    // (rows, ...) with q_stride floats from row to row; heads side by side.
    const float* queries;
    // (rows, num_heads, head_dim).
    float* out;
    const Cache* cache;
    const int64_t* positions;
    // Each row's line of `tables`.
    const int64_t* sequences;
    // Blocks of each sequence, (sequences, width).
    const int64_t* tables;
    int64_t width, num_rows, num_heads, q_stride;
    float scale;
    // 0 for none.
    float softcap;
    // 0 for none.
    int64_t window;
};

// Rows [first, last) of one sequence.
struct Span {
    int64_t first, last;
};

// What a row of a head has seen so far.
struct Running {
    float highest = NOTHING, total = 0.0f;
};

Ints places() {
    Ints place;
    for (int i = 0; i < LANES; i++) place[i] = i;
    return place;
}

Floats tanh(Floats x) { return 1.0f - 2.0f / (1.0f + exp(2.0f * x)); }

// One span's rows and some of its key heads, whose keys and values lie side by side in the cache.
class Task {
  public:
    Task(const Attention& a, Span span, int64_t first_head, int64_t last_head, float* scratch)
        : a(a), span(span), first_head(first_head), last_head(last_head), size(a.cache->head_dim),
          heads(a.num_heads / a.cache->num_kv_heads) {
        keys = scratch;
        values = keys + LANES * size;
        running.resize((span.last - span.first) * (last_head - first_head) * heads);
        for (int64_t row = span.first; row < span.last; row++)
            std::memset(output(row, first_head * heads), 0, (last_head - first_head) * heads * size * 4);
    }

    void run() {
        const int64_t highest = a.positions[span.last - 1];  // rows of a sequence come in order
        int64_t group = lowest(span.first) / LANES * LANES, slots[LANES], next[LANES], num_next = 0;
        int64_t count = find(group, slots);
        for (; group <= highest; group += LANES) {
            num_next = group + LANES <= highest ? find(group + LANES, next) : 0;
            for (int64_t kv_head = first_head; kv_head < last_head; kv_head++) {
                read(kv_head, count, slots, num_next, next);
                for (int64_t row = span.first; row < span.last; row++)
                    if (group <= a.positions[row] && group + LANES > lowest(row))
                        for (int64_t head = kv_head * heads; head < (kv_head + 1) * heads; head++)
                            see(row, head, group);
            }
            std::copy(next, next + num_next, slots);
            count = num_next;
        }
        for (int64_t row = span.first; row < span.last; row++)
            for (int64_t head = first_head * heads; head < last_head * heads; head++) {
                const float total = state(row, head).total;
                float* out = output(row, head);
                for (int64_t i = 0; i < size; i++) out[i] /= total;
            }
    }

  private:
    const Attention& a;
    const Span span;
    const int64_t first_head, last_head, size, heads;
    float *keys, *values;
    std::vector<Running> running;

    int64_t lowest(int64_t row) const { return a.window ? std::max<int64_t>(0, a.positions[row] - a.window + 1) : 0; }
    float* output(int64_t row, int64_t head) { return a.out + (row * a.num_heads + head) * size; }
    Running& state(int64_t row, int64_t head) {
        return running[((row - span.first) * (last_head - first_head) - first_head) * heads + head];
    }

    // Tell where a group's tokens lie; return how many there are.
    int64_t find(int64_t group, int64_t* slots) const {
        const int64_t block_size = a.cache->block_size;
        const int64_t* table = a.tables + a.sequences[span.first] * a.width;
        const int64_t count = std::min<int64_t>(LANES, a.positions[span.last - 1] + 1 - group);
        for (int64_t t = 0; t < count; t++) {
            const int64_t token = group + t;
            slots[t] = table[token / block_size] * block_size + token % block_size;
        }
        return count;
    }

    // Widen a group's keys and values of a head, and ask the memory for those that follow; keys that nobody has written
    // yet are zeros.
    void read(int64_t kv_head, int64_t count, const int64_t* slots, int64_t num_next, const int64_t* next) {
        const Cache& cache = *a.cache;
        for (int64_t t = 0; t < num_next; t++) {
            cache.prefetch(next[t] * 2 * cache.num_kv_heads + kv_head);
            cache.prefetch((next[t] * 2 + 1) * cache.num_kv_heads + kv_head);
        }
        for (int64_t t = 0; t < count; t++) {
            cache.take(slots[t] * 2 * cache.num_kv_heads + kv_head, keys + t * size);
            cache.take((slots[t] * 2 + 1) * cache.num_kv_heads + kv_head, values + t * size);
        }
        std::memset(keys + count * size, 0, (LANES - count) * size * 4);
    }

    Floats scores(const float* query) const {
        Floats products[LANES] = {};
        for (int64_t i = 0; i < size; i += LANES) {
            const Floats part = load<Floats>(query + i);
            for (int t = 0; t < LANES; t++) products[t] += part * load<Floats>(keys + t * size + i);
        }
        Floats scores = sums(products) * a.scale;
        if (a.softcap != 0.0f) scores = tanh(scores / a.softcap) * a.softcap;
        return scores;
    }

    void see(int64_t row, int64_t head, int64_t group) {
        const int64_t begin = std::max<int64_t>(0, lowest(row) - group);
        const int64_t end = std::min<int64_t>(LANES, a.positions[row] + 1 - group);
        Floats scored = scores(a.queries + row * a.q_stride + head * size);
        if (begin > 0 || end < LANES) {
            const Ints place = places();
            scored = (place >= int(begin)) & (place < int(end)) ? scored : splat(NOTHING);
        }
        Running& now = state(row, head);
        const float before = now.highest;
        now.highest = std::max(before, max(scored));
        const Floats weights = exp(scored - now.highest);
        const float kept = before == NOTHING ? 0.0f : std::exp(before - now.highest);
        now.total = now.total * kept + sum(weights);
        weigh(output(row, head), kept, weights, begin, end);
    }

    void weigh(float* out, float kept, Floats weights, int64_t begin, int64_t end) const {
        float weight[LANES];
        store(weight, weights);
        int64_t i = 0;
        for (; i + 4 * LANES <= size; i += 4 * LANES) add<4>(out + i, values + i, kept, weight, begin, end);
        for (; i < size; i += LANES) add<1>(out + i, values + i, kept, weight, begin, end);
    }

    template <int VECTORS>
    void add(float* out, const float* values, float kept, const float* weight, int64_t begin, int64_t end) const {
        Floats sums[VECTORS];
        for (int v = 0; v < VECTORS; v++) sums[v] = load<Floats>(out + v * LANES) * kept;
        for (int64_t t = begin; t < end; t++)
            for (int v = 0; v < VECTORS; v++) sums[v] += load<Floats>(values + t * size + v * LANES) * weight[t];
        for (int v = 0; v < VECTORS; v++) store(out + v * LANES, sums[v]);
    }
};

std::vector<Span> spans(const Attention& a) {
    std::vector<Span> found;
    for (int64_t row = 0; row < a.num_rows; row++) {
        const bool goes_on = !found.empty() && a.sequences[found.back().first] == a.sequences[row];
        if (goes_on && row - found.back().first < SHARED_ROWS)
            found.back().last = row + 1;
        else
            found.push_back({row, row + 1});
    }
    return found;
}

}  // namespace

extern "C" {

// Rows of a sequence must be neighbours, in the order of their positions, and their keys in the cache.
void wf_attend(const Attention* a, int num_threads) {
    const std::vector<Span> found = spans(*a);
    // Heads of a token are read together where there are rows enough to keep the threads busy.
    const int64_t kv_heads = a->cache->num_kv_heads, parts = int64_t(found.size()) >= 2 * num_threads ? 1 : kv_heads;
    const int64_t tasks = int64_t(found.size()) * parts, heads = kv_heads / parts;
#pragma omp parallel num_threads(num_threads) if (tasks > 1)
    {
        std::vector<float> scratch(2 * LANES * a->cache->head_dim);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks; task++) {
            const int64_t first = task % parts * heads;
            Task(*a, found[task / parts], first, first + heads, scratch.data()).run();
        }
    }
}
}
