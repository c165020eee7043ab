#include "sparsefleet/dense.h"

#include <algorithm>

namespace sparsefleet::SPARSEFLEET_LEVEL {

void BlockLocks::update(const RuleStep& rule, float* values, float* state, const float* grads,
                        std::size_t n) {
    if (!rule.elementwise()) {  // one sum over the whole block: nothing to cut
        const std::lock_guard<std::mutex> guard(mutexes_[0]);
        rule.update_block(values, state, grads, n, n);
        return;
    }
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
            rule.update_block(values + begin, state + begin, grads + begin, count, n);
            done[s] = true;
        }
    }
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
