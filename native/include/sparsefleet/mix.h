// A 64-bit mixer (the finaliser of splitmix64): every input bit reaches every output bit, and no two inputs
// collide.
#pragma once

#include <cstdint>

namespace sparsefleet::SPARSEFLEET_LEVEL {

inline constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ull;

inline std::uint64_t mix64(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
