// XXH64, and the feature key of a raw value: XXH64(prefix + value, seed), folded modulo the table's size.
//
// The keys are written into checkpoints, so this is a format: it must give the same number on every machine,
// for ever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "XXH64 here reads words as little-endian machines store them");

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace xxh {

constexpr std::uint64_t P1 = 0x9E3779B185EBCA87ULL;
constexpr std::uint64_t P2 = 0xC2B2AE3D27D4EB4FULL;
constexpr std::uint64_t P3 = 0x165667B19E3779F9ULL;
constexpr std::uint64_t P4 = 0x85EBCA77C2B2AE63ULL;
constexpr std::uint64_t P5 = 0x27D4EB2F165667C5ULL;

inline std::uint64_t rotl(std::uint64_t x, int r) { return (x << r) | (x >> (64 - r)); }

inline std::uint64_t load64(const char* p) {
    std::uint64_t w;
    std::memcpy(&w, p, 8);
    return w;
}

inline std::uint64_t lane(std::uint64_t acc, std::uint64_t w) { return rotl(acc + w * P2, 31) * P1; }
inline std::uint64_t merge(std::uint64_t h, std::uint64_t acc) { return (h ^ lane(0, acc)) * P1 + P4; }
inline std::uint64_t word8(std::uint64_t h, std::uint64_t w) { return rotl(h ^ lane(0, w), 27) * P1 + P4; }
inline std::uint64_t word4(std::uint64_t h, std::uint64_t w) {
    return rotl(h ^ ((w & 0xFFFFFFFFULL) * P1), 23) * P2 + P3;
}
inline std::uint64_t byte1(std::uint64_t h, std::uint64_t w) { return rotl(h ^ ((w & 0xFF) * P5), 11) * P1; }

inline std::uint64_t avalanche(std::uint64_t h) {
    h = (h ^ (h >> 33)) * P2;
    h = (h ^ (h >> 29)) * P3;
    return h ^ (h >> 32);
}

}  // namespace xxh

inline std::uint64_t xxh64(const char* p, std::size_t size, std::uint64_t seed) {
    using namespace xxh;
    const char* const end = p + size;
    std::uint64_t h;
    if (size >= 32) {
        std::uint64_t a = seed + P1 + P2, b = seed + P2, c = seed, d = seed - P1;
        for (; end - p >= 32; p += 32) {
            a = lane(a, load64(p));
            b = lane(b, load64(p + 8));
            c = lane(c, load64(p + 16));
            d = lane(d, load64(p + 24));
        }
        h = rotl(a, 1) + rotl(b, 7) + rotl(c, 12) + rotl(d, 18);
        h = merge(merge(merge(merge(h, a), b), c), d);
    } else {
        h = seed + P5;
    }
    h += size;
    for (; end - p >= 8; p += 8) h = word8(h, load64(p));
    if (end - p >= 4) {
        std::uint32_t w;
        std::memcpy(&w, p, 4);
        h = word4(h, w);
        p += 4;
    }
    for (; p < end; ++p) h = byte1(h, static_cast<unsigned char>(*p));
    return avalanche(h);
}

// x % dim without a division: multiply by the rounded-down reciprocal, then correct by at most one. dim 0
// keeps x.
class Fold {
  public:
    explicit Fold(std::uint64_t dim) : dim_(dim), reciprocal_(dim ? ~std::uint64_t{0} / dim : 0) {}

    std::uint64_t operator()(std::uint64_t x) const {
        __extension__ using Wide = unsigned __int128;
        const auto quotient = static_cast<std::uint64_t>((static_cast<Wide>(x) * reciprocal_) >> 64);
        const std::uint64_t rest = x - quotient * dim_;
        // With dim 0 both factors are 0, so rest is x and stays x.
        return rest >= dim_ ? rest - dim_ : rest;
    }

  private:
    std::uint64_t dim_, reciprocal_;
};

// Hashes values behind one fixed prefix without copying short ones together.
class PrefixHash {
  public:
    // How far `padded` may read behind the value.
    static constexpr std::size_t kOverread = 8;

    PrefixHash(std::string prefix, std::uint64_t seed) : prefix_(std::move(prefix)), seed_(seed) {
        if (prefix_.size() > kLongest) return;
        whole_ = prefix_.size() / 8;
        std::memcpy(words_, prefix_.data(), 8 * whole_);
        std::memcpy(&packed_, prefix_.data() + 8 * whole_, prefix_.size() % 8);
    }

    // The value must have kOverread readable bytes behind it.
    std::uint64_t padded(const char* value, std::size_t size) const {
        using namespace xxh;
        std::size_t rest = prefix_.size() + size;
        if (prefix_.size() > kLongest || rest >= 32) return any(value, size);
        std::uint64_t h = seed_ + P5 + rest;
        for (std::size_t i = 0; i < whole_; ++i) h = word8(h, words_[i]);
        rest -= 8 * whole_;
        const std::size_t head = prefix_.size() % 8;
        // Only the first word mixes prefix and value; the later ones are plain reads of the value.
        std::uint64_t w = packed_ | (load64(value) << (8 * head));
        for (value += 8 - head; rest >= 8; rest -= 8, value += 8) {
            h = word8(h, w);
            w = load64(value);
        }
        if (rest >= 4) {
            h = word4(h, w);
            w >>= 32;
            rest -= 4;
        }
        for (; rest; --rest, w >>= 8) h = byte1(h, w);
        return avalanche(h);
    }

    std::uint64_t any(const char* value, std::size_t size) const {
        char small[512];
        if (prefix_.size() + size <= sizeof small) {
            std::memcpy(small, prefix_.data(), prefix_.size());
            if (size) std::memcpy(small + prefix_.size(), value, size);
            return xxh64(small, prefix_.size() + size, seed_);
        }
        std::string joined(prefix_);
        joined.append(value, size);
        return xxh64(joined.data(), joined.size(), seed_);
    }

  private:
    static constexpr std::size_t kLongest = 23;  // bytes of a prefix that is kept as words
    std::string prefix_;
    std::uint64_t seed_, packed_ = 0, words_[2] = {};
    std::size_t whole_ = 0;  // words of the prefix that hold nothing of the value
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
