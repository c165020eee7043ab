#include "sparsefleet/serving/row_cache.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "sparsefleet/mix.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

RowCache::RowCache(std::size_t stride, std::size_t bytes) : stride_(stride) {
    // As many whole sets as fit. Their number need not be a power of two: `set_of` does not use a mask.
    sets_ = bytes / (sizeof(Set) + kWays * stride);
    if (!sets_) return;
    set_.reset(static_cast<Set*>(std::calloc(sets_, sizeof(Set))));
    rows_.reset(static_cast<unsigned char*>(std::calloc(sets_ * kWays, stride_)));
    if (!set_ || !rows_) throw std::bad_alloc();
}

std::size_t RowCache::set_of(std::uint64_t key) const {
    // The high half of hash × sets spreads keys evenly, without a division.
    return static_cast<std::size_t>((static_cast<unsigned __int128>(mix64(key ^ kGolden)) * sets_) >> 64);
}

std::size_t RowCache::get(const std::uint64_t* keys, std::size_t n, unsigned char* packed,
                          std::uint8_t* found, std::int64_t* missing) {
    constexpr std::size_t kGroup = 32;
    std::size_t misses = 0;
    if (!sets_) {
        for (std::size_t i = 0; i < n; ++i) found[i] = kUnknown, missing[i] = static_cast<std::int64_t>(i);
        return n;
    }
    std::size_t sets[kGroup];
    std::lock_guard<std::mutex> lock(mutex_);
    for (std::size_t start = 0; start < n; start += kGroup) {
        const std::size_t count = std::min(kGroup, n - start);
        for (std::size_t i = 0; i < count; ++i) {  // so that misses of the processor's cache overlap
            sets[i] = set_of(keys[start + i]);
            __builtin_prefetch(set_.get() + sets[i]);
        }
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint64_t key = keys[start + i];
            Set& set = set_.get()[sets[i]];
            std::size_t way = 0;
            while (way < kWays && !(set.state[way] && set.keys[way] == key)) ++way;
            if (way == kWays) {
                found[start + i] = kUnknown;
                missing[misses++] = static_cast<std::int64_t>(start + i);
                continue;
            }
            set.used[way] = 1;
            found[start + i] = set.state[way] == 2;
            if (set.state[way] == 2) std::memcpy(packed + (start + i) * stride_, row(sets[i], way), stride_);
        }
    }
    return misses;
}

void RowCache::put(const std::uint64_t* keys, const std::int64_t* at, std::size_t n,
                   const unsigned char* packed, const std::uint8_t* found) {
    if (!sets_) return;
    std::lock_guard<std::mutex> lock(mutex_);
    for (std::size_t i = 0; i < n; ++i) {
        const auto from = static_cast<std::size_t>(at[i]);
        const std::uint64_t key = keys[from];
        const std::size_t number = set_of(key);
        Set& set = set_.get()[number];
        std::size_t way = 0;
        while (way < kWays && set.state[way] && set.keys[way] != key)
            ++way;  // another thread may have put the key here already
        if (way == kWays) {
            while (set.used[set.hand]) {
                set.used[set.hand] = 0;
                set.hand = static_cast<std::uint8_t>((set.hand + 1) % kWays);
            }
            way = set.hand;
            set.hand = static_cast<std::uint8_t>((set.hand + 1) % kWays);
        } else if (!set.state[way]) {
            ++size_;
        }
        set.keys[way] = key;
        set.used[way] = 0;
        set.state[way] = found[from] ? 2 : 1;
        if (found[from]) std::memcpy(row(number, way), packed + from * stride_, stride_);
    }
}

std::size_t RowCache::size() {
    std::lock_guard<std::mutex> lock(mutex_);
    return size_;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
