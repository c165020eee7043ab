#include "sparsefleet/text.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

// One loop a length: the compiler does several texts in one instruction, and keeps them in registers.
template <std::size_t kHead>
void hash_alike(const std::uint64_t* __restrict first, const std::uint64_t* __restrict rest,
                std::size_t count, std::uint64_t seed, std::uint64_t* __restrict out) {
    using namespace xxh;
    for (std::size_t i = 0; i < count; ++i) {
        std::uint64_t h = word8(seed + P5 + 8 + kHead, first[i]), word = rest[i];
        if constexpr (kHead >= 4) {
            h = word4(h, word);
            word >>= 32;
        }
        if constexpr (kHead % 4 >= 1) h = byte1(h, word);
        if constexpr (kHead % 4 >= 2) h = byte1(h, word >> 8);
        if constexpr (kHead % 4 >= 3) h = byte1(h, word >> 16);
        out[i] = avalanche(h);
    }
}

}  // namespace

void hash_many(const std::uint64_t* first, const std::uint64_t* rest, std::size_t count, std::size_t head,
               std::uint64_t seed, std::uint64_t* out) {
    switch (head) {
        case 0:
            return hash_alike<0>(first, rest, count, seed, out);
        case 1:
            return hash_alike<1>(first, rest, count, seed, out);
        case 2:
            return hash_alike<2>(first, rest, count, seed, out);
        case 3:
            return hash_alike<3>(first, rest, count, seed, out);
        case 4:
            return hash_alike<4>(first, rest, count, seed, out);
        case 5:
            return hash_alike<5>(first, rest, count, seed, out);
        case 6:
            return hash_alike<6>(first, rest, count, seed, out);
        default:
            return hash_alike<7>(first, rest, count, seed, out);
    }
}

void hash_strings(const char* data, const std::int64_t* offsets, std::size_t count, std::size_t data_size,
                  const PrefixHash& hash, const Fold& fold, std::uint64_t* out) {
    for (std::size_t i = 0; i < count; ++i) {
        const auto begin = static_cast<std::size_t>(offsets[i]),
                   end = static_cast<std::size_t>(offsets[i + 1]);
        const bool room = end + PrefixHash::kOverread <= data_size;
        out[i] = fold(room ? hash.padded(data + begin, end - begin) : hash.any(data + begin, end - begin));
    }
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
