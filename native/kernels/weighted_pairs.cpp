// With R symmetric and 0 on its diagonal, all pairs' sum is half of sum x (R x), and R x is its gradient, so
// forward makes both. A machine's vector holds some values of one slot's: a vector of 10 is padded to 16,
// once for a sample, which costs less than turning it for a matrix product would.
#include "sparsefleet/weighted_pairs.h"

#include <algorithm>
#include <cstring>

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

#if defined(__AVX512F__)
constexpr std::size_t kLanes = 16;
#elif defined(__AVX2__)
constexpr std::size_t kLanes = 8;
#else
constexpr std::size_t kLanes = 4;
#endif
// Rows of R x at a time, whose sums stay in registers: enough to hide how long an addition takes, and 26
// slots leave little of three blocks unused.
constexpr std::size_t kRows = 9;
// Samples at a time when weights' gradients are summed: their sums are read and written once for all of them.
constexpr std::size_t kSamples = 4;

typedef float Vector __attribute__((vector_size(kLanes * 4)));
typedef float LooseVector __attribute__((vector_size(kLanes * 4), aligned(4)));

inline Vector load(const float* from) { return *reinterpret_cast<const LooseVector*>(from); }
inline void store(float* to, Vector v) { *reinterpret_cast<LooseVector*>(to) = v; }

inline float total(Vector v) {
    float values[kLanes], sum = 0.0f;
    store(values, v);
    for (std::size_t k = 0; k < kLanes; ++k) sum += values[k];
    return sum;
}

// `count` values from `from` of each slot's vector, padded with zeros.
void gather(const float* from, std::size_t slots, std::size_t dim, std::size_t count, float* to) {
    for (std::size_t i = 0; i < slots; ++i, from += dim, to += kLanes) {
        if (count == kLanes) {
            store(to, load(from));
        } else {
            store(to, Vector{});
            for (std::size_t k = 0; k < count; ++k) to[k] = from[k];
        }
    }
}

}  // namespace

WeightedPairs::WeightedPairs(std::size_t slots, std::size_t dim)
    : slots_(slots),
      dim_(dim),
      blocks_((slots + kRows - 1) / kRows),
      laid_out_(blocks_ * kRows * slots),
      vectors_(kSamples * slots * kLanes),
      sums_(count(slots) * kLanes) {}

// Block by block of kRows rows; in a block column by column: forward reads it from the first to the last.
void WeightedPairs::lay_out(const float* weights) {
    const auto place = [&](std::size_t i, std::size_t j) {
        return (i / kRows * slots_ + j) * kRows + i % kRows;
    };
    for (std::size_t i = 0; i < slots_; ++i)
        for (std::size_t j = i + 1; j < slots_; ++j)
            laid_out_[place(i, j)] = laid_out_[place(j, i)] = *weights++;
}

void WeightedPairs::forward(const float* x, std::size_t stride, std::size_t samples, const float* weights,
                            float* made, float* out) {
    lay_out(weights);
    for (std::size_t b = 0; b < samples; ++b, x += stride, made += slots_ * dim_) {
        Vector products = {};
        for (std::size_t first = 0; first < dim_; first += kLanes) {
            const std::size_t count = std::min(kLanes, dim_ - first);
            gather(x + first, slots_, dim_, count, vectors_.data());
            const float* weight = laid_out_.data();
            for (std::size_t block = 0; block < blocks_; ++block) {
                Vector sums[kRows] = {};
                for (std::size_t j = 0; j < slots_; ++j, weight += kRows) {
                    const Vector other = load(vectors_.data() + j * kLanes);
#pragma GCC unroll 9
                    for (std::size_t r = 0; r < kRows; ++r) sums[r] += weight[r] * other;
                }
                const std::size_t row = block * kRows, rows = std::min(kRows, slots_ - row);
                float values[kRows * kLanes];
#pragma GCC unroll 9
                for (std::size_t r = 0; r < kRows; ++r) store(values + r * kLanes, sums[r]);
                for (std::size_t r = 0; r < rows; ++r) {
                    products += load(vectors_.data() + (row + r) * kLanes) * load(values + r * kLanes);
                    std::memcpy(made + (row + r) * dim_ + first, values + r * kLanes, count * sizeof(float));
                }
            }
        }
        out[b] += 0.5f * total(products);
    }
}

void WeightedPairs::backward(const float* x, std::size_t stride, std::size_t samples, const float* grads,
                             float* grad_weights) {
    std::fill(sums_.begin(), sums_.end(), 0.0f);
    const std::size_t sample = slots_ * kLanes;
    for (std::size_t b = 0; b < samples; b += kSamples) {
        const std::size_t present = std::min(kSamples, samples - b);
        float grad[kSamples] = {};
        std::copy_n(grads + b, present, grad);
        if (present < kSamples) std::fill(vectors_.begin(), vectors_.end(), 0.0f);
        for (std::size_t first = 0; first < dim_; first += kLanes) {
            for (std::size_t s = 0; s < present; ++s)
                gather(x + (b + s) * stride + first, slots_, dim_, std::min(kLanes, dim_ - first),
                       vectors_.data() + s * sample);
            float* sum = sums_.data();
            for (std::size_t i = 0; i + 1 < slots_; ++i) {
                Vector scaled[kSamples];
#pragma GCC unroll 4
                for (std::size_t s = 0; s < kSamples; ++s)
                    scaled[s] = grad[s] * load(vectors_.data() + s * sample + i * kLanes);
                const float* other = vectors_.data() + (i + 1) * kLanes;
                for (std::size_t j = i + 1; j < slots_; ++j, other += kLanes, sum += kLanes) {
                    Vector products = load(sum);
#pragma GCC unroll 4
                    for (std::size_t s = 0; s < kSamples; ++s)
                        products += scaled[s] * load(other + s * sample);
                    store(sum, products);
                }
            }
        }
    }
    const std::size_t pairs = count(slots_);
    for (std::size_t p = 0; p < pairs; ++p) grad_weights[p] = total(load(sums_.data() + p * kLanes));
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
