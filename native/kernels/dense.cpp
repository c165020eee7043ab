#include "sparsefleet/dense.h"

#include <algorithm>

namespace sparsefleet::SPARSEFLEET_LEVEL {

// work(begin, count) for every stretch, each under its lock.
template <typename Work>
void BlockLocks::by_stretch(std::size_t n, Work&& work) {
    // Whole cache lines, so that neighbours do not write to the same one.
    const std::size_t stretch = ((n + kStretches - 1) / kStretches + 15) / 16 * 16;
    std::size_t start;
    {
        const std::lock_guard<std::mutex> guard(start_mutex_);
        start = next_start_;
        next_start_ = (next_start_ + kStretches / 2 - 1) % kStretches;
    }
    bool done[kStretches] = {};
    for (const bool wait : {false, true}) {
        for (std::size_t i = 0; i < kStretches; ++i) {
            const std::size_t s = (start + i) % kStretches, begin = std::min(n, s * stretch);
            const std::size_t count = std::min(stretch, n - begin);
            if (done[s] || count == 0) continue;
            std::unique_lock<std::mutex> lock(mutexes_[s], std::defer_lock);
            if (wait)
                lock.lock();
            else if (!lock.try_lock())
                continue;
            work(begin, count);
            done[s] = true;
        }
    }
}

void BlockLocks::update(const RuleStep& rule, float* values, float* state, const float* grads,
                        std::size_t n) {
    if (!rule.elementwise()) {  // one sum over the whole block: nothing to cut
        const std::lock_guard<std::mutex> guard(mutexes_[0]);
        rule.update_block(values, state, grads, n, n);
        return;
    }
    by_stretch(n, [&](std::size_t begin, std::size_t count) {
        rule.update_block(values + begin, state + begin, grads + begin, count, n);
    });
}

void BlockLocks::shift(const RuleStep& rule, float* values, float* state, const float* deltas,
                       std::size_t n) {
    if (!rule.elementwise()) {  // updates of such a rule hold the first lock for the whole block
        const std::lock_guard<std::mutex> guard(mutexes_[0]);
        rule.shift_block(values, state, deltas, n, n);
        return;
    }
    by_stretch(n, [&](std::size_t begin, std::size_t count) {
        rule.shift_block(values + begin, state + begin, deltas + begin, count, n);
    });
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
