// A bounded cache of rows by key, for rows that are fetched over a network and never change.
//
// Sets of eight: a key may stand in one set only, and the clock's hand of that set says who goes. That a key
// has no row is worth knowing too, and is kept in the same way.
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

    // packed [n][stride] and found [n] (1, 0: known to have no row, kUnknown); missing [n] gets the places of
    // what is not here. Returns how many those are.
    std::size_t get(const std::uint64_t* keys, std::size_t n, unsigned char* packed, std::uint8_t* found,
                    std::int64_t* missing);

    // Keep keys[at[i]] for each of the n places.
    void put(const std::uint64_t* keys, const std::int64_t* at, std::size_t n, const unsigned char* packed,
             const std::uint8_t* found);

    std::size_t stride() const { return stride_; }
    std::size_t capacity() const { return sets_ * kWays; }
    std::size_t size();

  private:
    struct Set {
        std::uint64_t keys[kWays];
        std::uint8_t state[kWays];  // 0 empty, 1 no row, 2 a row
        std::uint8_t used[kWays];   // since the hand passed
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
    std::unique_ptr<Set, Free> set_;  // zeroed by calloc: pages that are not used cost nothing
    std::unique_ptr<unsigned char, Free> rows_;
    std::mutex mutex_;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
