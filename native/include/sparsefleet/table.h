// RowTable: rows of floats by 64-bit key, for many threads at once.
//
// Legend: U keys in a call, D values a row, S floats of optimizer state a row.
//
// A row is [key u64 | seen u32 | touched u32 | values D f32 | state S f32], nothing between or behind. `seen`
// counts how often the key was met in training and stops at the largest count. `touched` is the clock of the
// last push, or of the row's creation: whoever calls gives it, in a unit of his own (a table's step, a
// server's record number), modulo 2^32, so it is compared by difference. `take` and `rebase` leave it.
// In a table that notes, the last D floats of the state are told, what others know of the values (rules.h).
//
// In an exact table (idle.h) every step moves every row, and `touched` is the step that a row's values and
// state are of, or at which it came to rest: whatever reads rows catches them up first. There every clock is
// a step of the table: a pull's the last one made, a push's the one that it makes. A new row is one that has
// been there since before the first step.
//
// 64 shards, chosen by the top bits of a mixed key, each hold rows in chunks (chunks.h) and find them through
// an open-addressing index of 32-bit entries: 7 bits of the key's mix, so that almost every probe that hits
// is the right one, and 25 bits of row number.
//
// Any number of threads may call anything at any time. A call sorts its keys by shard, so that it takes each
// shard's lock once: shared to read rows that exist, exclusive to create or update. A shard that is busy is
// put off and tried again after the others. Calls are atomic per shard, not as a whole.
//
// Keys in one call should be unique. Duplicates harm nothing but the result: a push applies the rule once for
// each.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "sparsefleet/chunks.h"
#include "sparsefleet/idle.h"
#include "sparsefleet/init.h"
#include "sparsefleet/rules.h"
#include "sparsefleet/shard.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

// Where rows are copied to, each field in an array of its own.
struct RowArrays {
    std::uint64_t* keys;
    float* values;
    float* state;
    std::uint32_t* seen;
    std::uint32_t* touched;
};

class RowTable {
  public:
    static constexpr std::size_t kShards = 64;

    // notes: the last `dim` floats of state are told, what others know of the values; it begins as they do,
    // all other state at `initial_state`. idle: makes the table exact; null: rows that a step does not name
    // stay as they are.
    RowTable(std::size_t dim, std::size_t state_width, const Initializer& init, float initial_state,
             bool notes, std::unique_ptr<IdleSteps> idle = nullptr);
    ~RowTable();
    RowTable(const RowTable&) = delete;
    RowTable& operator=(const RowTable&) = delete;

    std::size_t dim() const { return layout_.dim; }
    std::size_t state_width() const { return layout_.state_width; }

    // Exact tables only, others throw std::invalid_argument: IdleSteps::note and forget. A step is noted
    // before anybody pulls at it or after it, and before it is pushed.
    void note_steps(std::uint64_t first, std::uint64_t last, double lr);
    void forget_steps();

    // Fills out[U, D]. Missing rows are created, touched at `clock`, or with create = false read as zeros.
    // Returns how many were missing.
    std::size_t pull(const std::uint64_t* keys, std::size_t count, float* out, bool create,
                     std::uint32_t clock);

    // Applies `rule` with grads[U, D]; missing rows are created first. The rule must be of this table's state
    // width. A row's `seen` grows by occurrences[i], or by one where that is null; `touched` becomes `clock`.
    void push(const std::uint64_t* keys, std::size_t count, const float* grads,
              const std::uint32_t* occurrences, const RuleStep& rule, std::uint32_t clock);

    // Writes whole rows, new or over old ones.
    void insert(const std::uint64_t* keys, std::size_t count, const float* values, const float* state,
                const std::uint32_t* seen, const std::uint32_t* touched);

    // For a copy of rows that are kept elsewhere, with told, what is known of them there; both throw
    // std::invalid_argument where the table does not note. take: out[U, D] = (w - told) / shares, which told
    // grows by; occurrences[U] = seen, which becomes 0: here it counts what was not yet told either. Zeros
    // where there is no row.
    void take(const std::uint64_t* keys, std::size_t count, float shares, float* out,
              std::uint32_t* occurrences);
    // rebase: a row becomes what it is there plus w - told, and its state what `rule` makes of that
    // (RuleStep::rebase_rows). Missing rows are created, or with create = false left out.
    void rebase(const std::uint64_t* keys, std::size_t count, const float* values, bool create,
                const RuleStep& rule);

    // found[i] = 1 where keys[i] has a row, else 0.
    void contains(const std::uint64_t* keys, std::size_t count, std::uint8_t* found) const;

    // Copies up to `capacity` rows from `cursor` on (0: the first) and moves it; 0 copied: the end. Every row
    // that was there when the scan began comes exactly once, and as of one moment if nobody writes meanwhile.
    // clock: of an exact table, the step that rows are caught up to; here and in scan_cut.
    std::size_t scan(std::uint64_t& cursor, std::size_t capacity, const RowArrays& out,
                     std::uint32_t clock) const;

    // A cut: all rows as they are now, read bit by bit while others pull, push, insert and create. Rows that
    // change before they are read are copied aside (aside.h); rows created meanwhile are not the cut's.
    // Calls are atomic per shard only, so the caller sees to it that no call that changes rows is half-way
    // while begin_cut runs. One cut at a time; begin_cut throws std::invalid_argument if one is open. Returns
    // how many rows it has.
    std::size_t begin_cut();
    // Copies up to `capacity` of the cut's rows that were not read yet; 0 copied: the end. since: only rows
    // whose `touched` is later, by the table's own word and not by what a copy is caught up to; the others
    // count as read.
    std::size_t scan_cut(std::size_t capacity, const RowArrays& out, std::uint32_t clock,
                         std::optional<std::uint32_t> since = std::nullopt);
    void end_cut();  // lets go of what is aside; nothing if no cut is open

    std::size_t rows() const;
    std::size_t memory_bytes() const;  // everything: rows, index, slack
    void clear();                      // throws std::invalid_argument while a cut is open

  private:
    void expect_noted() const;
    void expect_rule(const RuleStep& rule) const;
    void expect_noted_steps(std::uint64_t step) const;
    void copy_out(const std::byte* row, const RowArrays& out, std::size_t at, std::uint32_t clock) const;
    std::size_t pull_exact(const std::uint64_t* keys, std::size_t count, float* out, bool create,
                           std::uint32_t clock);
    template <typename Visit>
    void by_shard(const std::uint64_t* keys, std::size_t count, Visit&& visit) const;
    // Calls work(shard, first, items, count, rows) window by window, each shard locked exclusively; a row of
    // Shard::kNone is missing.
    template <typename Work>
    void by_locked_window(const std::uint64_t* keys, std::size_t count, Work&& work);
    std::uint32_t find_or_create(Shard& shard, std::uint64_t place, std::uint64_t key,
                                 std::uint32_t clock);  // shard locked exclusively

    const RowLayout layout_;
    const Initializer init_;
    const float initial_state_;
    const bool notes_;
    const std::unique_ptr<IdleSteps> idle_;
    ChunkArena arena_;
    ChunkArena aside_arena_;
    std::unique_ptr<Shard[]> shards_;
    mutable std::atomic<std::uint32_t> next_start_{0};
    mutable std::mutex cut_mutex_;  // taken before a shard's: one call at a time works on the cut
    bool cut_open_ = false;
    std::size_t cut_shard_ = 0;  // that scan_cut is at
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
