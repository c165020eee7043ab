// IdleSteps: what the steps of a rule do to a row that they bring no gradient for (--exact).
//
// In a dense optimizer every step moves every row: weight decay pulls it towards 0, Adam's momentum carries
// it on. A sparse table leaves such rows alone and catches them up when they are wanted, as if each step had
// been made when it was due. Coupled weight decay under Adam has no closed form, so steps are replayed one by
// one, each with the learning rate that it had. The outcome of a replay does not depend on where it was
// interrupted: catching up to a step and then to a later one gives the same bits as going there at once.
//
// Rest. After some hundred steps (Adam) a row hardly moves any more, and the replay may end. At every 16th
// step an element whose mean m could not move it further than a billionth of a learning rate loses m; with
// weight decay only if its value is below 2^-40 too, which then becomes 0. A row *rests* when all its m, and
// all that weight decay would add, are 0: it does not move until its next gradient, and only its squares v
// fade. A row that rests keeps its old `touched`, the step that it came to rest, and its v of that step;
// `wake` fades v in one multiplication when the next gradient comes.
//
// The other rules have no momentum: their rows move by weight decay alone. Where a step changes nothing, no
// step of the same learning rate does.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "sparsefleet/rules.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

class IdleSteps {
  public:
    // Throws std::invalid_argument for a kind that notes, does not exist, or does not move by steps alone
    // (FTRL).
    IdleSteps(int kind, const double (&hyper)[kHyperCount]);

    // Steps first..last of the table have this learning rate. They come in order without gaps, from 1 on, one
    // caller at a time; others may catch rows up meanwhile, to steps that were noted before.
    void note(std::uint64_t first, std::uint64_t last, double lr);
    void forget();  // all steps; nobody may catch rows up meanwhile
    std::uint64_t noted() const { return noted_.load(std::memory_order_acquire); }
    std::size_t memory_bytes() const;

    // Moves a row (values, state right behind) from step `from` to step `to`; nothing if it is there or
    // beyond. Returns the step that the row is of then: `to`, or the one at which it came to rest. Denormals
    // are zero: the caller sees to it (float_mode.h).
    std::uint32_t catch_up(float* row, std::size_t dim, std::uint32_t from, std::uint32_t to) const;

    // For a row that is about to get a gradient: as catch_up, and a row that rests gets its squares of step
    // `to`.
    void wake(float* row, std::size_t dim, std::uint32_t from, std::uint32_t to) const;

    std::size_t state_width(std::size_t dim) const;

  private:
    // Steps from `first` to the next run's have the same constants.
    struct Run {
        std::uint64_t first;
        float rate, inverse_root;  // Adam: lr / (1 - b1^t), 1 / sqrt(1 - b2^t); others: lr, unused
    };
    static constexpr std::size_t kChunkRuns = 1 << 12, kChunks = 1 << 16;

    std::size_t find_run(std::uint64_t step, std::size_t count) const;  // of the first `count` runs
    const Run& run(std::size_t index) const { return chunks_[index / kChunkRuns][index % kChunkRuns]; }
    void append(const Run& run);

    template <typename Width>
    std::uint32_t replay_adam(float* row, Width width, std::uint32_t from, std::uint32_t to) const;
    std::uint32_t replay_decay(float* row, std::size_t dim, std::uint32_t from, std::uint32_t to) const;

    const RuleKind kind_;
    double hyper_[kHyperCount];
    float decay_ = 0.0f;
    // Appended to while others read: runs never move, and count only once they are written.
    std::unique_ptr<std::unique_ptr<Run[]>[]> chunks_;
    std::atomic<std::size_t> runs_{0};
    std::atomic<std::uint64_t> noted_{0};
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
