// Compiled with -ffp-contract=off (CMakeLists.txt): see rules.h on equal bits.
#include "sparsefleet/idle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace sparsefleet::SPARSEFLEET_LEVEL {
namespace {

constexpr std::uint64_t kLookEvery = 16;  // steps between two looks whether a row comes to rest
constexpr float kStill = 0x1p-30f;        // of a learning rate a step
constexpr float kNothing = 0x1p-40f;      // a value that weight decay may take away

float constant(double x) {
    const float value = static_cast<float>(x);
    return std::fabs(value) < std::numeric_limits<float>::min() ? 0.0f : value;
}

bool any_set(const float* values, std::size_t n) {
    bool found = false;
    for (std::size_t i = 0; i < n; ++i) found |= values[i] != 0.0f;
    return found;
}

bool any_product(const float* values, float factor, std::size_t n) {
    bool found = false;
    for (std::size_t i = 0; i < n; ++i) found |= factor * values[i] != 0.0f;
    return found;
}

struct AdamIdle {
    float fresh1, beta2, fresh2, eps, decay;

    void step(float* __restrict w, float* __restrict m, float* __restrict v, std::size_t n, float rate,
              float inverse_root) const {
        for (std::size_t i = 0; i < n; ++i) {
            const float grad = decay * w[i];
            const float mean = m[i] + fresh1 * (grad - m[i]);
            const float square = beta2 * v[i] + fresh2 * (grad * grad);
            m[i] = mean;
            v[i] = square;
            w[i] -= rate * mean / (std::sqrt(square) * inverse_root + eps);
        }
    }

    // Takes away what does not matter any more; whether anything is left that moves.
    bool settle(float* w, float* m, const float* v, std::size_t n, float inverse_root) const {
        bool moving = false;
        for (std::size_t i = 0; i < n; ++i) {
            const bool still = std::fabs(m[i]) <= kStill * (std::sqrt(v[i]) * inverse_root + eps) &&
                               (decay == 0.0f || std::fabs(w[i]) <= kNothing);
            m[i] = still ? 0.0f : m[i];
            w[i] = still && decay != 0.0f ? 0.0f : w[i];
            moving |= m[i] != 0.0f || decay * w[i] != 0.0f;
        }
        return moving;
    }
};

}  // namespace

IdleSteps::IdleSteps(int kind, const double (&hyper)[kHyperCount]) : kind_(static_cast<RuleKind>(kind)) {
    if (kind < 0 || kind > static_cast<int>(RuleKind::kAdam))
        throw std::invalid_argument("rule kind " + std::to_string(kind) +
                                    " has no steps without a gradient that could be caught up");
    for (std::size_t i = 0; i < kHyperCount; ++i) hyper_[i] = hyper[i];
    static constexpr std::size_t kDecayAt[] = {0, 1, 1, 3};
    decay_ = constant(hyper[kDecayAt[kind]]);
    chunks_ = std::make_unique<std::unique_ptr<Run[]>[]>(kChunks);
}

void IdleSteps::append(const Run& next) {
    const std::size_t count = runs_.load(std::memory_order_relaxed);
    if (count > 0 && run(count - 1).rate == next.rate && run(count - 1).inverse_root == next.inverse_root)
        return;
    if (count == kChunkRuns * kChunks)
        throw std::length_error("the learning rate changed at more steps than can be remembered");
    auto& chunk = chunks_[count / kChunkRuns];
    if (chunk == nullptr) chunk = std::make_unique<Run[]>(kChunkRuns);
    chunk[count % kChunkRuns] = next;
    runs_.store(count + 1, std::memory_order_release);
}

void IdleSteps::note(std::uint64_t first, std::uint64_t last, double lr) {
    if (first != noted_.load(std::memory_order_relaxed) + 1 || last < first)
        throw std::invalid_argument("steps are noted in order, without gaps");
    if (last > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()))
        throw std::length_error("an exact table counts at most 2147483647 steps");
    if (kind_ != RuleKind::kAdam) {
        append({first, constant(lr), 0.0f});
    } else {
        for (std::uint64_t step = first; step <= last; ++step) {
            const double correction1 = 1.0 - std::pow(hyper_[0], static_cast<double>(step));
            const double correction2 = 1.0 - std::pow(hyper_[1], static_cast<double>(step));
            append({step, constant(lr / correction1), constant(1.0 / std::sqrt(correction2))});
            if (correction1 == 1.0 && correction2 == 1.0) break;  // the same from here on
        }
    }
    noted_.store(last, std::memory_order_release);
}

void IdleSteps::forget() {
    runs_.store(0, std::memory_order_relaxed);
    noted_.store(0, std::memory_order_release);
}

std::size_t IdleSteps::memory_bytes() const {
    const std::size_t chunks = (runs_.load(std::memory_order_relaxed) + kChunkRuns - 1) / kChunkRuns;
    return sizeof(IdleSteps) + kChunks * sizeof(chunks_[0]) + chunks * kChunkRuns * sizeof(Run);
}

std::size_t IdleSteps::state_width(std::size_t dim) const {
    switch (kind_) {
        case RuleKind::kAdagrad:
            return dim;
        case RuleKind::kRowwiseAdagrad:
            return 1;
        case RuleKind::kAdam:
            return 2 * dim;
        default:
            return 0;
    }
}

std::size_t IdleSteps::find_run(std::uint64_t step, std::size_t count) const {
    // Gaps are short against the life of a table: look backwards in growing strides, then bisect.
    std::size_t low = count - 1, stride = 1;
    while (low > 0 && run(low).first > step) {
        low = low > stride ? low - stride : 0;
        stride *= 2;
    }
    std::size_t high = std::min(count, low + stride);
    while (high - low > 1) {
        const std::size_t middle = low + (high - low) / 2;
        (run(middle).first > step ? high : low) = middle;
    }
    return low;
}

// The loop of a known width keeps the row in registers.
template <typename Width>
std::uint32_t IdleSteps::replay_adam(float* row, Width width, std::uint32_t from, std::uint32_t to) const {
    constexpr bool kKnown = !std::is_same_v<Width, std::size_t>;
    const AdamIdle rule{constant(1.0 - hyper_[0]), constant(hyper_[1]), constant(1.0 - hyper_[1]),
                        constant(hyper_[2]), decay_};
    if (!any_set(row + width, width) && !any_product(row, decay_, width)) return from;
    float own[kKnown ? 3 * static_cast<std::size_t>(Width{}) : 1];
    float* at = row;
    if constexpr (kKnown) {
        std::memcpy(own, row, sizeof own);
        at = own;
    }
    const std::size_t count = runs_.load(std::memory_order_acquire);
    std::size_t index = find_run(std::uint64_t{from} + 1, count);
    std::uint64_t step = std::uint64_t{from} + 1;
    for (bool moving = true; moving && step <= to; ++index) {
        const Run& present = run(index);
        const std::uint64_t last =
            index + 1 < count ? std::min<std::uint64_t>(to, run(index + 1).first - 1) : to;
        while (moving && step <= last) {
            // Up to the next look, which comes after a step whose number says so.
            const std::uint64_t look = (step + kLookEvery - 1) / kLookEvery * kLookEvery;
            const std::uint64_t stop = std::min(last, look);
            for (; step <= stop; ++step)
                rule.step(at, at + width, at + 2 * width, width, present.rate, present.inverse_root);
            if (stop == look)
                moving = rule.settle(at, at + width, at + 2 * width, width, present.inverse_root);
        }
    }
    if constexpr (kKnown) std::memcpy(row, own, sizeof own);
    return static_cast<std::uint32_t>(step - 1);
}

std::uint32_t IdleSteps::replay_decay(float* row, std::size_t dim, std::uint32_t from,
                                      std::uint32_t to) const {
    if (decay_ == 0.0f) return to;
    const std::size_t floats = dim + state_width(dim);
    const std::vector<float> none(dim, 0.0f);
    std::vector<float> before(floats);
    const float* gradient = none.data();
    const std::size_t count = runs_.load(std::memory_order_acquire);
    std::size_t index = find_run(std::uint64_t{from} + 1, count);
    for (std::uint64_t step = std::uint64_t{from} + 1; step <= to; ++index) {
        const std::uint64_t last =
            index + 1 < count ? std::min<std::uint64_t>(to, run(index + 1).first - 1) : to;
        const RuleStep rule(static_cast<int>(kind_), run(index).rate, hyper_, 1);
        for (; step <= last; ++step) {
            std::memcpy(before.data(), row, floats * sizeof(float));
            rule.update_rows(&row, &gradient, 1, dim);
            if (std::memcmp(before.data(), row, floats * sizeof(float)) == 0) break;
        }
        step = last + 1;
    }
    return to;
}

std::uint32_t IdleSteps::catch_up(float* row, std::size_t dim, std::uint32_t from, std::uint32_t to) const {
    if (static_cast<std::int32_t>(to - from) <= 0) return from;
    if (kind_ != RuleKind::kAdam) return replay_decay(row, dim, from, to);
    switch (dim) {
        case 4:
            return replay_adam(row, std::integral_constant<std::size_t, 4>{}, from, to);
        case 8:
            return replay_adam(row, std::integral_constant<std::size_t, 8>{}, from, to);
        case 10:
            return replay_adam(row, std::integral_constant<std::size_t, 10>{}, from, to);
        case 16:
            return replay_adam(row, std::integral_constant<std::size_t, 16>{}, from, to);
        case 32:
            return replay_adam(row, std::integral_constant<std::size_t, 32>{}, from, to);
        default:
            return replay_adam(row, dim, from, to);
    }
}

void IdleSteps::wake(float* row, std::size_t dim, std::uint32_t from, std::uint32_t to) const {
    const std::uint32_t reached = catch_up(row, dim, from, to);
    if (kind_ != RuleKind::kAdam || static_cast<std::int32_t>(to - reached) <= 0) return;
    float* v = row + 2 * dim;
    if (!any_set(v, dim)) return;
    const double faded = std::pow(hyper_[1], static_cast<double>(to - reached));
    for (std::size_t i = 0; i < dim; ++i) v[i] = static_cast<float>(faded * static_cast<double>(v[i]));
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
