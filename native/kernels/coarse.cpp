#include "sparsefleet/coarse.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

constexpr std::uint32_t kSign = 0x80000000U, kInfinity = 0x7f800000U;
// Beyond these, a scale or what is left would leave the range of floats.
constexpr float kLeast = 1e-30F, kMost = 1e37F;

std::uint32_t bits_of(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

float of_bits(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// One stretch, `rest` already added: x is read and becomes what is left.
float stretch_to_int8(float* x, std::size_t n, std::int8_t* out) {
    std::uint32_t most = 0;  // as bits: there a NaN is above all numbers
    for (std::size_t i = 0; i < n; ++i) most = std::max(most, bits_of(x[i]) & ~kSign);
    const float largest = of_bits(most);
    if (!(largest <= kMost)) {
        std::fill_n(out, n, std::int8_t{0});
        std::fill_n(x, n, 0.0F);
        return std::numeric_limits<float>::quiet_NaN();
    }
    if (largest < kLeast) {
        std::fill_n(out, n, std::int8_t{0});
        return 0.0F;
    }
    const float scale = largest / 127.0F, inverse = 127.0F / largest;
    for (std::size_t i = 0; i < n; ++i) {
        const float whole = std::nearbyint(x[i] * inverse);
        out[i] = static_cast<std::int8_t>(static_cast<std::int32_t>(whole));
        x[i] -= whole * scale;
    }
    return scale;
}

}  // namespace

void to_bfloat16(const float* values, std::size_t n, std::uint16_t* out) {
    for (std::size_t i = 0; i < n; ++i) {
        const std::uint32_t bits = bits_of(values[i]);
        const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
        const bool nan = (bits & ~kSign) > kInfinity;
        out[i] = static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40U : rounded);
    }
}

void from_bfloat16(const std::uint16_t* coarse, std::size_t n, float* out) {
    for (std::size_t i = 0; i < n; ++i) out[i] = of_bits(static_cast<std::uint32_t>(coarse[i]) << 16);
}

void to_int8(const float* values, float* rest, std::size_t n, float* scales, std::int8_t* out) {
    for (std::size_t begin = 0; begin < n; begin += kStretch) {
        const std::size_t size = std::min(kStretch, n - begin);
        for (std::size_t i = begin; i < begin + size; ++i) rest[i] += values[i];
        *scales++ = stretch_to_int8(rest + begin, size, out + begin);
    }
}

void tell_int8(const float* values, float* known, std::size_t n, float* scales, std::int8_t* out) {
    float change[kStretch];
    for (std::size_t begin = 0; begin < n; begin += kStretch) {
        const std::size_t size = std::min(kStretch, n - begin);
        for (std::size_t i = 0; i < size; ++i) change[i] = values[begin + i] - known[begin + i];
        *scales = stretch_to_int8(change, size, out + begin);
        add_int8(scales++, out + begin, size, known + begin);
    }
}

void add_int8(const float* scales, const std::int8_t* coarse, std::size_t n, float* out) {
    for (std::size_t begin = 0; begin < n; begin += kStretch) {
        const float scale = *scales++;
        const std::size_t end = std::min(begin + kStretch, n);
        for (std::size_t i = begin; i < end; ++i) out[i] += static_cast<float>(coarse[i]) * scale;
    }
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
