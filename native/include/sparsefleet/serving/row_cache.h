// A bounded cache of rows by key, for rows that are fetched over a network and never change.
//
// The cache has sets of eight rows. A key can be in one set only; when that set is full, its clock hand
// chooses which row to replace. The cache also remembers that a key has no row, in the same way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>

namespace sparsefleet::SPARSEFLEET_LEVEL {

class RowCache {
  public:
    static constexpr std::size_t kWays = 8;
    static constexpr std::uint8_t kUnknown = 2;

    RowCache(std::size_t stride, std::size_t bytes);

    // Fills packed [n][stride] and found [n]: 1 a row, 0 known to have no row, kUnknown not in the cache.
    // Writes the places of the unknown keys to missing [n] and returns their number.
    std::size_t get(const std::uint64_t* keys, std::size_t n, unsigned char* packed, std::uint8_t* found,
                    std::int64_t* missing);

    // Keeps the rows of keys[at[i]], for each of the n places.
    void put(const std::uint64_t* keys, const std::int64_t* at, std::size_t n, const unsigned char* packed,
             const std::uint8_t* found);

    std::size_t stride() const { return stride_; }
    std::size_t capacity() const { return sets_ * kWays; }
    std::size_t size();

  private:
    struct Set {
        std::uint64_t keys[kWays];
        std::uint8_t state[kWays];  // 0 empty, 1 no row, 2 a row
        std::uint8_t used[kWays];   // 1: used since the clock hand passed
        std::uint8_t hand;
    };
    struct Free {
        void operator()(void* p) const { std::free(p); }
    };

    std::size_t set_of(std::uint64_t key) const;
    unsigned char* row(std::size_t set, std::size_t way) {
        return rows_.get() + (set * kWays + way) * stride_;
    }

    std::size_t stride_, sets_, size_ = 0;
    std::unique_ptr<Set, Free> set_;  // calloc gives zeroed pages: those never used cost nothing
    std::unique_ptr<unsigned char, Free> rows_;
    std::mutex mutex_;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
