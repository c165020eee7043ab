#include "sparsefleet/text.h"

namespace sparsefleet {

void hash_strings(const char* data, const std::int64_t* offsets, std::size_t count, std::size_t data_size,
                  const PrefixHash& hash, const Fold& fold, std::uint64_t* out) {
    for (std::size_t i = 0; i < count; ++i) {
        const auto begin = static_cast<std::size_t>(offsets[i]), end = static_cast<std::size_t>(offsets[i + 1]);
        const bool room = end + PrefixHash::kOverread <= data_size;
        out[i] = fold(room ? hash.padded(data + begin, end - begin) : hash.any(data + begin, end - begin));
    }
}

}  // namespace sparsefleet
