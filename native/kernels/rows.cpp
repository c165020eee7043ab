#include "sparsefleet/rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "sparsefleet/widths.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

template <bool kCount>
std::size_t find_unique(const std::uint64_t* keys, std::size_t n, std::uint64_t* unique,
                        std::int32_t* inverse, std::uint32_t* counts) {
    std::size_t bits = 6;
    while ((std::size_t{1} << bits) < 2 * n) ++bits;
    thread_local std::vector<std::int32_t> slots;  // reused: a batch is followed by one of the same size
    slots.assign(std::size_t{1} << bits, -1);
    const std::size_t mask = slots.size() - 1;
    std::int32_t count = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const std::uint64_t key = keys[i];
        std::size_t at = ((key ^ (key >> 32)) * 0x9E3779B97F4A7C15ull) >> (64 - bits);
        for (;; at = (at + 1) & mask) {
            const std::int32_t found = slots[at];
            if (found < 0) {
                slots[at] = count;
                unique[count] = key;
                if constexpr (kCount) counts[count] = 1;
                inverse[i] = count++;
                break;
            }
            if (unique[found] == key) {
                if constexpr (kCount) ++counts[found];
                inverse[i] = found;
                break;
            }
        }
    }
    return static_cast<std::size_t>(count);
}

}  // namespace

std::size_t unique_keys(const std::uint64_t* keys, std::size_t n, std::uint64_t* unique,
                        std::int32_t* inverse, std::uint32_t* counts) {
    return counts == nullptr ? find_unique<false>(keys, n, unique, inverse, nullptr)
                             : find_unique<true>(keys, n, unique, inverse, counts);
}

// Both collect sign bits instead of comparing: a few vector instructions at every level, some microseconds
// for the 26,000 values of a batch. Differences of numbers that are not negative cannot overflow.
bool never_decrease(const std::int64_t* numbers, std::size_t count) {
    std::uint64_t signs = 0;
    for (std::size_t i = 0; i + 1 < count; ++i) {
        const auto here = static_cast<std::uint64_t>(numbers[i]);
        signs |= (static_cast<std::uint64_t>(numbers[i + 1]) - here) | here;
    }
    return signs >> 63 == 0;
}

bool all_below(const std::int32_t* numbers, std::size_t count, std::size_t limit) {
    const auto most = static_cast<std::uint32_t>(limit) - 1;  // limit 0: negative, so that none passes
    std::uint32_t signs = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const auto here = static_cast<std::uint32_t>(numbers[i]);
        signs |= here | (most - here);
    }
    return signs >> 31 == 0;
}

std::size_t select_slots(const std::uint64_t* keys, const std::int64_t* offsets, std::size_t rows,
                         std::size_t slots, const std::int32_t* chosen, std::size_t chosen_count,
                         std::uint64_t* out_keys, std::int64_t* out_offsets) {
    std::int64_t written = 0;
    *out_offsets++ = 0;
    for (std::size_t row = 0; row < rows; ++row) {
        const std::int64_t* bags = offsets + row * slots;
        for (std::size_t c = 0; c < chosen_count; ++c) {
            for (std::int64_t i = bags[chosen[c]]; i < bags[chosen[c] + 1]; ++i)
                out_keys[written++] = keys[i];
            *out_offsets++ = written;
        }
    }
    return static_cast<std::size_t>(written);
}

void pool_forward(const float* rows, std::size_t dim, const std::int32_t* inverse,
                  const std::int64_t* offsets, std::size_t batch, std::size_t slots,
                  const std::int32_t* chosen, std::size_t chosen_count, bool mean, float* out,
                  std::size_t out_stride) {
    with_width(dim, [&](auto width) {
        const std::size_t d = width;
        for (std::size_t b = 0; b < batch; ++b) {
            const std::int64_t* bags = offsets + b * slots;
            float* to = out + b * out_stride;
            for (std::size_t c = 0; c < chosen_count; ++c, to += d) {
                const std::int64_t begin = bags[chosen[c]], end = bags[chosen[c] + 1];
                if (begin == end) {
                    std::fill(to, to + d, 0.0f);
                    continue;
                }
                std::memcpy(to, rows + inverse[begin] * d, d * sizeof(float));
                for (std::int64_t i = begin + 1; i < end; ++i) {
                    const float* row = rows + inverse[i] * d;
                    for (std::size_t j = 0; j < d; ++j) to[j] += row[j];
                }
                if (mean && end - begin > 1) {
                    const float scale = 1.0f / static_cast<float>(end - begin);
                    for (std::size_t j = 0; j < d; ++j) to[j] *= scale;
                }
            }
        }
    });
}

void pool_backward(const float* grad_out, std::size_t grad_stride, std::size_t dim,
                   const std::int32_t* inverse, const std::int64_t* offsets, std::size_t batch,
                   std::size_t slots, const std::int32_t* chosen, std::size_t chosen_count, bool mean,
                   float* grad_rows) {
    with_width(dim, [&](auto width) {
        const std::size_t d = width;
        for (std::size_t b = 0; b < batch; ++b) {
            const std::int64_t* bags = offsets + b * slots;
            const float* from = grad_out + b * grad_stride;
            for (std::size_t c = 0; c < chosen_count; ++c, from += d) {
                const std::int64_t begin = bags[chosen[c]], end = bags[chosen[c] + 1];
                const float scale = mean && end - begin > 1 ? 1.0f / static_cast<float>(end - begin) : 1.0f;
                for (std::int64_t i = begin; i < end; ++i) {
                    float* row = grad_rows + inverse[i] * d;
                    for (std::size_t j = 0; j < d; ++j) row[j] += scale * from[j];
                }
            }
        }
    });
}

double click_loss(const float* logits, std::size_t n, std::size_t width, const float* labels,
                  float* probabilities, float* grad) {
    double loss = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const float z = width == 2 ? logits[2 * i + 1] - logits[2 * i] : logits[i];
        const float small = std::exp(-std::fabs(z));  // never overflows
        const float p = (z >= 0 ? 1.0f : small) / (1.0f + small);
        probabilities[i] = p;
        // log(1 + e^z) - y z
        loss +=
            std::log1p(static_cast<double>(small)) + (z > 0 ? z : 0.0) - static_cast<double>(labels[i]) * z;
        if (grad == nullptr) continue;
        const float delta = p - labels[i];
        if (width == 2) {
            grad[2 * i] = -delta;
            grad[2 * i + 1] = delta;
        } else {
            grad[i] = delta;
        }
    }
    return loss;
}

ClickSums count_clicks(const float* probabilities, const float* labels, std::size_t n, std::int64_t* positive,
                       std::int64_t* negative, std::size_t buckets) {
    constexpr double kEdge = 1e-7;  // what float32 can still tell from 0 and 1
    ClickSums sums;
    const double top = static_cast<double>(buckets - 1);
    for (std::size_t i = 0; i < n; ++i) {
        const float p = probabilities[i], label = labels[i];
        if (!(p >= 0.0f && p <= 1.0f) || !(label == 0.0f || label == 1.0f)) {
            ++sums.bad;
            continue;
        }
        const bool click = label != 0.0f;
        const auto bucket = static_cast<std::size_t>(static_cast<double>(p) * top);
        ++(click ? positive : negative)[bucket];
        const double q = std::min(std::max(static_cast<double>(p), kEdge), 1.0 - kEdge);
        sums.log_loss += std::llrint(-std::log(click ? q : 1.0 - q) * kParts);
        sums.predicted += std::llrint(static_cast<double>(p) * kParts);
        sums.clicks += click;
        sums.correct += (p > 0.5f) == click;
    }
    return sums;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
