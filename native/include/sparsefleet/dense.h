// A dense block of parameters, updated by several threads at once without losing an update.
#pragma once

#include <cstddef>
#include <mutex>

#include "sparsefleet/rules.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

// One lock per stretch of a block. Threads begin at different stretches and so seldom wait for each other;
// readers do not lock at all (Hogwild), and may see one stretch before and another after an update.
class BlockLocks {
  public:
    static constexpr std::size_t kStretches = 16;

    // Applies `rule` to values[n] with state laid out in segments of n floats.
    void update(const RuleStep& rule, float* values, float* state, const float* grads, std::size_t n);

    // Adds deltas[n] that are not of this rule's making; the state follows (RuleStep::shift_block).
    void shift(const RuleStep& rule, float* values, float* state, const float* deltas, std::size_t n);

  private:
    template <typename Work>
    void by_stretch(std::size_t n, Work&& work);

    std::mutex mutexes_[kStretches];
    std::mutex start_mutex_;
    std::size_t next_start_ = 0;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
