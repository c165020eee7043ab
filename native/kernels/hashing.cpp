#include "sparsefleet/text.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

void hash_many(const std::uint64_t* __restrict first, const std::uint64_t* __restrict rest, std::size_t count,
               std::size_t head, std::uint64_t seed, std::uint64_t* __restrict out) {
    using namespace xxh;
    for (std::size_t i = 0; i < count; ++i) out[i] = word8(seed + P5 + 8 + head, first[i]);
    std::size_t done = 0;
    if (head >= 4) {
        for (std::size_t i = 0; i < count; ++i) out[i] = word4(out[i], rest[i]);
        done = 4;
    }
    for (; done < head; ++done)
        for (std::size_t i = 0; i < count; ++i) out[i] = byte1(out[i], rest[i] >> (8 * done));
    for (std::size_t i = 0; i < count; ++i) out[i] = avalanche(out[i]);
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
