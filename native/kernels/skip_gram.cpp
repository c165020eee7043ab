// Rows are copied to a stretch of memory of their own, padded to whole vectors: the inner loops have no ends
// to treat, and the rows of a batch lie close together. A word's outputs (itself and its negatives) are taken
// in tiles of at most kTile, whose sums stay in registers.
#include "sparsefleet/skip_gram.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

#if defined(__AVX512F__)
constexpr std::size_t kLanes = 16;
#elif defined(__AVX2__)
constexpr std::size_t kLanes = 8;
#else
constexpr std::size_t kLanes = 4;
#endif
constexpr std::size_t kTile = 6;  // with two inputs: 12 sums, two inputs and an output fit 16 registers
constexpr std::size_t kAlign = kLanes * sizeof(float);
constexpr std::size_t kMaxInputs = 2 * kMaxRadius;
constexpr std::size_t kMaxTiles = (kMaxNegatives + 1 + kTile - 1) / kTile;
// Of a tile, in whole vectors, with room for what is written behind the last.
constexpr std::size_t kPairs = ((kMaxInputs + 1) * kTile / kLanes + 3) * kLanes;

typedef float Vector __attribute__((vector_size(kAlign)));
typedef std::int32_t Whole __attribute__((vector_size(kAlign)));
typedef float LooseVector __attribute__((vector_size(kAlign), aligned(4)));

inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void store(float* to, Vector v) { *reinterpret_cast<Vector*>(to) = v; }

// Scratch memory of a thread, kept from call to call.
class Padded {
  public:
    ~Padded() { release(); }
    float* at_least(std::size_t floats) {
        if (floats > size_) {
            release();
            data_ = static_cast<float*>(::operator new(floats * sizeof(float), std::align_val_t{64}));
            size_ = floats;
        }
        return data_;
    }

  private:
    void release() {
        if (data_ != nullptr) ::operator delete(data_, std::align_val_t{64});
        data_ = nullptr;
        size_ = 0;
    }
    float* data_ = nullptr;
    std::size_t size_ = 0;
};

// Lane r of the sum of the halves of a's and b's groups of W lanes: all groups stay in their order, half as
// wide.
template <std::size_t W, std::size_t... R>
inline Vector halved(Vector a, Vector b, std::index_sequence<R...>) {
    constexpr std::size_t kGroups = kLanes / W, kHalf = W / 2;
    const Vector low = __builtin_shufflevector(
        a, b,
        static_cast<int>((R / kHalf < kGroups ? 0 : kLanes) + (R / kHalf % kGroups) * W + R % kHalf)...);
    const Vector high =
        __builtin_shufflevector(a, b,
                                static_cast<int>((R / kHalf < kGroups ? 0 : kLanes) +
                                                 (R / kHalf % kGroups) * W + R % kHalf + kHalf)...);
    return low + high;
}

// Lane i of the result is the sum of all lanes of v[i].
template <std::size_t W = kLanes>
inline Vector sums_of(const Vector* v) {
    if constexpr (W == 1) {
        return v[0];
    } else {
        Vector next[W / 2];
#pragma GCC unroll 16
        for (std::size_t i = 0; i < W / 2; ++i)
            next[i] = halved<W>(v[2 * i], v[2 * i + 1], std::make_index_sequence<kLanes>{});
        return sums_of<W / 2>(next);
    }
}

// scores[i * N + o] = inputs[i] · outputs[o]; up to kLanes floats behind the last are written too.
template <std::size_t N>
void score(const float* const* inputs, std::size_t count, const float* const* outputs, std::size_t stride,
           float* scores) {
    constexpr std::size_t kSums = (2 * N + kLanes - 1) / kLanes * kLanes;
    for (std::size_t i = 0; i < count; i += 2) {
        const float* first = inputs[i];
        const float* second = inputs[i + 1 < count ? i + 1 : i];
        Vector sums[kSums] = {};
        for (std::size_t d = 0; d < stride; d += kLanes) {
            const Vector x = load(first + d), y = load(second + d);
#pragma GCC unroll 8
            for (std::size_t o = 0; o < N; ++o) {
                const Vector z = load(outputs[o] + d);
                sums[o] += x * z;
                sums[N + o] += y * z;
            }
        }
#pragma GCC unroll 4
        for (std::size_t s = 0; s < kSums; s += kLanes)
            *reinterpret_cast<LooseVector*>(scores + i * N + s) = sums_of(sums + s);
    }
}

// moves[i] += what the tile asks of input i, changes[o] = what the inputs ask of output o; lanes d to
// d + kLanes.
template <std::size_t N>
inline void ask(const float* const* inputs, std::size_t count, const float* const* outputs, const float* g,
                std::size_t d, Vector* moves, Vector* changes) {
    Vector out[N], sums[N] = {};
#pragma GCC unroll 8
    for (std::size_t o = 0; o < N; ++o) out[o] = load(outputs[o] + d);
    for (std::size_t i = 0; i < count; ++i, g += N) {
        const Vector x = load(inputs[i] + d);
        Vector move = moves[i];
#pragma GCC unroll 8
        for (std::size_t o = 0; o < N; ++o) {
            move += g[o] * out[o];
            sums[o] += g[o] * x;
        }
        moves[i] = move;
    }
#pragma GCC unroll 8
    for (std::size_t o = 0; o < N; ++o) changes[o] = sums[o];
}

template <typename Call>
inline void with_width(std::size_t n, Call&& call) {
    switch (n) {
        case 1:
            return call(std::integral_constant<std::size_t, 1>{});
        case 2:
            return call(std::integral_constant<std::size_t, 2>{});
        case 3:
            return call(std::integral_constant<std::size_t, 3>{});
        case 4:
            return call(std::integral_constant<std::size_t, 4>{});
        case 5:
            return call(std::integral_constant<std::size_t, 5>{});
        default:
            return call(std::integral_constant<std::size_t, kTile>{});
    }
}

struct Logistic {
    Vector sigmoid, softplus;
};

// 1 / (1 + exp(-y)) and log(1 + exp(y)), to some 1e-7 and 1e-6.
inline Logistic logistic(Vector y) {
    const Vector zero = {};
    const Vector far = y < zero ? y : -y;  // -|y|; NaN stays NaN
    const Vector power = far > zero - 86.0f ? far * 1.44269504f : zero - 124.0f;
    const Whole n = __builtin_convertvector(power, Whole);  // towards zero
    const Vector u = (power - __builtin_convertvector(n, Vector)) * 0.693147181f + 0.346573590f;
    Vector e = zero + 1.0f / 720;
    e = e * u + 1.0f / 120;
    e = e * u + 1.0f / 24;
    e = e * u + 1.0f / 6;
    e = e * u + 0.5f;
    e = e * u + 1.0f;
    e = (e * u + 1.0f) * 0.707106781f;
    e *= reinterpret_cast<Vector>((n + 127) << 23);  // exp(-|y|)
    const Vector part = e / (e + 1.0f), s = e / (e + 2.0f), q = s * s;
    const Vector rest = 2.0f * s * (1.0f + q * (1.0f / 3 + q * (0.2f + q * (1.0f / 7 + q * (1.0f / 9)))));
    return {y < zero ? part : 1.0f - part, (y < zero ? zero : y) + rest};
}

struct Pass {
    const Stretch& text;
    float* words;
    float* contexts;
    std::size_t stride;

    // The sum of the losses of word b's pairs divided by their inputs; `probability` as the header says.
    double word(std::size_t b, float* probability) const;
};

double Pass::word(std::size_t b, float* probability) const {
    const float* inputs[kMaxInputs + 1];
    float* moved[kMaxInputs];
    std::size_t count = 0;
    const std::size_t radius =
        static_cast<std::size_t>(std::min(std::max(text.radius[b], 0.0f), static_cast<float>(kMaxRadius)));
    std::size_t first = b, last = b;
    while (first > 0 && b - first < radius && text.groups[first - 1] == text.groups[b]) --first;
    while (last + 1 < text.words && last - b < radius && text.groups[last + 1] == text.groups[b]) ++last;
    for (std::size_t j = first; j <= last; ++j)
        if (j != b) {
            moved[count] = words + static_cast<std::size_t>(text.inputs[j]) * stride;
            inputs[count] = moved[count];
            ++count;
        }
    *probability = 0.5f;
    if (count == 0) return 0.0;

    const std::size_t all = text.negatives + 1;
    const std::int32_t* rows = text.outputs + b * all;
    float* outputs[kMaxNegatives + 1];
    for (std::size_t o = 0; o < all; ++o) outputs[o] = contexts + static_cast<std::size_t>(rows[o]) * stride;

    // Scores, then gradients times the rate, tile by tile: g[tile][i * N + o].
    alignas(64) float g[kMaxTiles][kPairs];
    const float rate = text.rates[b];
    double loss = 0.0, given = 0.0;
    for (std::size_t tile = 0, from = 0; from < all; ++tile, from += kTile) {
        const std::size_t width = std::min(kTile, all - from), pairs = count * width;
        float* here = g[tile];
        with_width(width,
                   [&](auto n) { score<decltype(n)::value>(inputs, count, outputs + from, stride, here); });
        alignas(64) float losses[kPairs], sign[kPairs];
        std::fill(sign, sign + pairs + kLanes, 1.0f);
        if (from == 0)
            for (std::size_t i = 0; i < pairs; i += width)
                sign[i] = -1.0f;  // the word itself, not a negative
        for (std::size_t p = 0; p < pairs; p += kLanes) {
            const Vector s = load(sign + p);
            const Logistic found = logistic(load(here + p) * s);
            store(here + p, found.sigmoid * -s);
            store(losses + p, found.softplus);
        }
        for (std::size_t o = 0; o < width; ++o) {
            const bool itself = from + o > 0 && rows[from + o] == rows[0];  // drawn as its own negative
            if (!itself) continue;
            for (std::size_t i = o; i < pairs; i += width) here[i] = losses[i] = 0.0f;
        }
        for (std::size_t p = 0; p < pairs; ++p) loss += losses[p];
        if (from == 0)
            for (std::size_t i = 0; i < pairs; i += width) given += 1.0f - here[i];
        for (std::size_t p = 0; p < pairs; p += kLanes) store(here + p, load(here + p) * rate);
    }

    // All of the new values from the old ones: nothing is stored before everything of these lanes is summed.
    for (std::size_t d = 0; d < stride; d += kLanes) {
        Vector moves[kMaxInputs], changes[kMaxNegatives + 1 + kTile];
        for (std::size_t i = 0; i < count; ++i) moves[i] = Vector{};
        for (std::size_t tile = 0, from = 0; from < all; ++tile, from += kTile)
            with_width(std::min(kTile, all - from), [&](auto n) {
                ask<decltype(n)::value>(inputs, count, outputs + from, g[tile], d, moves, changes + from);
            });
        // A row may be there twice, so it is read again.
        for (std::size_t i = 0; i < count; ++i) store(moved[i] + d, load(moved[i] + d) + moves[i]);
        for (std::size_t o = 0; o < all; ++o) store(outputs[o] + d, load(outputs[o] + d) + changes[o]);
    }
    *probability = static_cast<float>(given / static_cast<double>(count));
    return loss / static_cast<double>(count);
}

void copy_padded(const float* from, std::size_t rows, std::size_t D, float* to, std::size_t stride) {
    for (std::size_t r = 0; r < rows; ++r) {
        std::memcpy(to + r * stride, from + r * D, D * sizeof(float));
        std::fill(to + r * stride + D, to + (r + 1) * stride, 0.0f);
    }
}

void differences(const float* before, const float* now, std::size_t rows, std::size_t D, std::size_t stride,
                 float* out) {
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t d = 0; d < D; ++d) out[r * D + d] = before[r * D + d] - now[r * stride + d];
}

}  // namespace

double skip_gram(const Stretch& text, const float* words, std::size_t U, const float* contexts, std::size_t C,
                 std::size_t D, float* grad_words, float* grad_contexts, float* probabilities) {
    thread_local Padded scratch;
    const std::size_t stride = (D + kLanes - 1) / kLanes * kLanes;
    float* copies = scratch.at_least((U + C) * stride);
    const Pass pass{text, copies, copies + U * stride, stride};
    copy_padded(words, U, D, pass.words, stride);
    copy_padded(contexts, C, D, pass.contexts, stride);
    double loss = 0.0;
    for (std::size_t b = 0; b < text.words; ++b) loss += pass.word(b, probabilities + b);
    differences(words, pass.words, U, D, stride, grad_words);
    differences(contexts, pass.contexts, C, D, stride, grad_contexts);
    return loss;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
