// One shard of a RowTable: its rows, and the index that finds them. Knows nothing of values, rules or other
// shards.
//
// The caller holds `mutex`: shared for const functions, exclusive for the others. Only `prefetch` needs no
// lock.
//
// Rows are numbered without gaps in the order they came, and none is ever removed. Eviction, when it comes,
// can move the last row into the hole and shift the index entries behind it; scans and cuts must not run
// beside it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <shared_mutex>
#include <vector>

#include "sparsefleet/aside.h"
#include "sparsefleet/chunks.h"
#include "sparsefleet/mix.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

// A key's place: the top 6 bits choose the shard, the next 7 are the index entry's tag, the low ones the
// slot. The salt keeps this apart from other uses of the mixer: keys that one server or one seed was given
// must still spread evenly.
inline std::uint64_t place_of(std::uint64_t key) { return mix64(key ^ 0x5AB1E0F5EA7ull); }
inline std::uint32_t shard_of(std::uint64_t place) { return static_cast<std::uint32_t>(place >> 58); }

// Where things stand in a row, and how rows stand in chunks.
struct RowLayout {
    RowLayout(std::size_t dim, std::size_t state_width);

    static constexpr std::size_t kSeen = 8, kTouched = 12, kValues = 16;  // byte offsets; the key is at 0

    std::size_t dim, state_width;
    std::size_t row_bytes;
    std::uint32_t chunk_shift;  // 2^chunk_shift rows in a chunk
    std::size_t chunk_bytes;
};

class alignas(64) Shard {
  public:
    static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

    Shard() = default;
    ~Shard();
    Shard(const Shard&) = delete;
    Shard& operator=(const Shard&) = delete;

    void attach(const RowLayout* layout, ChunkArena* arena) { layout_ = layout, arena_ = arena; }

    mutable std::shared_mutex mutex;
    Aside aside;  // rows as they were at an open cut

    // Brings the index line of `place` near. A stale pointer is harmless here: prefetching never faults.
    void prefetch(std::uint64_t place) const {
        const auto mask = mask_.load(std::memory_order_relaxed);
        __builtin_prefetch(index_.load(std::memory_order_relaxed) + (place & mask));
    }

    // The first row that `place` may belong to, by its tag, without looking at rows; kNone if there is surely
    // no row.
    std::uint32_t guess(std::uint64_t place) const {
        const std::uint32_t* index = index_.load(std::memory_order_relaxed);
        if (index == nullptr) return kNone;
        const std::uint64_t mask = mask_.load(std::memory_order_relaxed);
        const std::uint32_t tag = tag_of(place);
        for (std::uint64_t slot = place & mask;; slot = (slot + 1) & mask) {
            const std::uint32_t entry = index[slot];
            if (entry == 0) return kNone;
            if ((entry & kTagMask) == tag) return (entry & kRowMask) - 1;
        }
    }

    // The row of `key`, or kNone.
    std::uint32_t find(std::uint64_t place, std::uint64_t key) const;

    // The row of a key that is not there yet. Its key is set, seen and touched are 0; values and state are up
    // to the caller. Rows may move in memory, but keep their numbers.
    std::uint32_t append(std::uint64_t place, std::uint64_t key);

    std::byte* row(std::uint32_t number) const {
        return chunks_[number >> layout_->chunk_shift] +
               (number & ((1u << layout_->chunk_shift) - 1)) * layout_->row_bytes;
    }

    std::uint32_t rows() const { return rows_.load(std::memory_order_relaxed); }
    std::size_t memory_bytes() const;
    void clear();  // the arena's chunks are not given back: the table releases them all at once

  private:
    // An index entry: 7 tag bits, 25 bits of row number + 1; 0 is an empty slot.
    static constexpr std::uint32_t kRowBits = 25, kRowMask = (1u << kRowBits) - 1, kTagMask = ~kRowMask;

    static std::uint32_t tag_of(std::uint64_t place) {
        return static_cast<std::uint32_t>(place >> 51) << kRowBits;  // keeps bits 51 to 57
    }

    void grow_index();
    void grow_rows();
    static std::uint32_t* new_index(std::size_t slots);
    static void free_index(std::uint32_t* index, std::size_t slots);

    const RowLayout* layout_ = nullptr;
    ChunkArena* arena_ = nullptr;
    std::atomic<std::uint32_t*> index_{nullptr};
    std::atomic<std::uint64_t> mask_{0};  // slots - 1
    std::atomic<std::uint32_t> rows_{0};
    std::uint32_t capacity_ = 0;  // rows that fit in the chunks at hand
    std::vector<std::byte*>
        chunks_;  // the first is on the heap and grows from a few rows; the others are the arena's
};

inline std::uint64_t row_key(const std::byte* row) {
    std::uint64_t key;
    std::memcpy(&key, row, sizeof key);  // rows are aligned to 4 bytes only
    return key;
}
inline std::uint32_t* row_seen(std::byte* row) {
    return reinterpret_cast<std::uint32_t*>(row + RowLayout::kSeen);
}
inline std::uint32_t* row_touched(std::byte* row) {
    return reinterpret_cast<std::uint32_t*>(row + RowLayout::kTouched);
}
inline float* row_values(std::byte* row) { return reinterpret_cast<float*>(row + RowLayout::kValues); }

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
