// A cut of a RowTable: all rows as of one moment, read while others change them (aside.h).
#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>

#include "sparsefleet/table.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {
namespace {

constexpr std::size_t kSliceBytes = 256 << 10;  // of rows read while a shard is locked

// Compared by difference, as the clock goes round (core/table_rows.py).
bool touched_after(const std::byte* row, std::uint32_t clock) {
    std::uint32_t touched;
    std::memcpy(&touched, row + RowLayout::kTouched, sizeof touched);
    return touched != clock && touched - clock < std::uint32_t{1} << 31;
}

}  // namespace

std::size_t RowTable::begin_cut() {
    const std::lock_guard<std::mutex> cutting(cut_mutex_);
    if (cut_open_) throw std::invalid_argument("a cut of this table is open already");
    std::size_t rows = 0;
    for (std::size_t s = 0; s < kShards; ++s) {
        const std::unique_lock<std::shared_mutex> lock(shards_[s].mutex);
        shards_[s].aside.begin(shards_[s].rows());
        rows += shards_[s].rows();
    }
    cut_shard_ = 0;
    cut_open_ = true;
    return rows;
}

std::size_t RowTable::scan_cut(std::size_t capacity, const RowArrays& out, std::uint32_t clock,
                               std::optional<std::uint32_t> since) {
    const std::lock_guard<std::mutex> cutting(cut_mutex_);
    if (!cut_open_) throw std::invalid_argument("there is no open cut of this table");
    if (idle_ != nullptr) expect_noted_steps(clock);
    const std::size_t slice =
        std::clamp<std::size_t>(kSliceBytes / layout_.row_bytes, 1, std::size_t{Aside::kBlockRows});
    const std::byte* rows[Aside::kBlockRows];
    std::size_t copied = 0;
    for (; cut_shard_ < kShards; ++cut_shard_) {
        Shard& shard = shards_[cut_shard_];
        while (copied < capacity) {
            // One slice per lock: whoever wants to push here waits for no more than that.
            const std::shared_lock<std::shared_mutex> lock(shard.mutex);
            if (!shard.aside.open()) break;
            const std::size_t most = std::min(slice, capacity - copied);
            const std::uint32_t count =
                shard.aside.look(shard, static_cast<std::uint32_t>(most), layout_.row_bytes, rows);
            for (std::uint32_t i = 0; i < count; ++i)
                if (!since || touched_after(rows[i], *since)) copy_out(rows[i], out, copied++, clock);
            shard.aside.pass(count);
        }
        const std::unique_lock<std::shared_mutex> lock(shard.mutex);
        if (shard.aside.open()) return copied;
        shard.aside.end(aside_arena_);
    }
    return copied;
}

void RowTable::end_cut() {
    const std::lock_guard<std::mutex> cutting(cut_mutex_);
    for (std::size_t s = 0; s < kShards && cut_open_; ++s) {
        const std::unique_lock<std::shared_mutex> lock(shards_[s].mutex);
        shards_[s].aside.end(aside_arena_);
    }
    aside_arena_.release_all();
    cut_open_ = false;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
