// Text in JSON, eight bytes at a time.
#pragma once

#include <cstdint>

namespace sparsefleet::SPARSEFLEET_LEVEL {

// Sets the high bit of each byte that is a quote, a backslash, below 0x20 or above 0x7F. Only the lowest bit
// that is set can be trusted.
inline std::uint64_t special_bytes(std::uint64_t word) {
    constexpr std::uint64_t kOnes = 0x0101010101010101ull, kHigh = 0x8080808080808080ull;
    const std::uint64_t quote = word ^ (kOnes * '"'), backslash = word ^ (kOnes * '\\');
    return (((quote - kOnes) & ~quote) | ((backslash - kOnes) & ~backslash) |
            ((word - kOnes * 0x20) & ~word) | word) &
           kHigh;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
