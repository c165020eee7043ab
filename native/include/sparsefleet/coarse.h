// Dense numbers in fewer bits, for their way over a network: bfloat16, and int8 with one scale per stretch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsefleet::SPARSEFLEET_LEVEL {

constexpr std::size_t kStretch = 256;  // numbers that share a scale

// Rounded to the nearest, ties to even; a NaN stays one.
void to_bfloat16(const float* values, std::size_t n, std::uint16_t* out);
void from_bfloat16(const std::uint16_t* coarse, std::size_t n, float* out);

// `rest[n]` is what former calls left behind: it is added to the values first, and holds afterwards what this
// call could not say. So nothing is lost, only late. A stretch with a number that is not finite, or
// above 1e37, gets the scale NaN, which its reader sees.
void to_int8(const float* values, float* rest, std::size_t n, float* scales, std::int8_t* out);

// Says values - known. `known[n]` is what the reader has made of former messages, and becomes what it makes
// of this one: what could not be said is in the next difference. Each value is read once, so that it may
// change meanwhile.
void tell_int8(const float* values, float* known, std::size_t n, float* scales, std::int8_t* out);

// Adds the numbers to out[n].
void add_int8(const float* scales, const std::int8_t* coarse, std::size_t n, float* out);

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
