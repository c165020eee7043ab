#include "sparsefleet/serving/bundle_rows.h"

#include <algorithm>
#include <cstring>

#include "sparsefleet/mix.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

// The format aligns all parts, but a hostile file need not keep to it. So words are read with memcpy, which
// never traps and costs nothing.
template <typename T>
T load(const unsigned char* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

bool part_fits(std::uint64_t offset, std::uint64_t count, std::uint64_t width, std::uint64_t size) {
    return offset <= size && count <= (size - offset) / width;
}

float from_half(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
    const std::uint32_t magnitude = half & 0x7FFFu;
    std::uint32_t bits;
    if (magnitude >= 0x7C00u) {
        bits = sign | 0x7F800000u | (magnitude & 0x3FFu) << 13;
    } else if (magnitude >= 0x400u) {
        bits = sign | ((magnitude << 13) + 0x38000000u);
    } else {  // subnormal: magnitude * 2^-24, exactly
        const float value = static_cast<float>(magnitude) * 5.9604644775390625e-08f;
        std::memcpy(&bits, &value, sizeof bits);
        bits |= sign;
    }
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

std::size_t bucket_of(std::uint64_t place, std::uint32_t bits) { return bits ? place >> (64 - bits) : 0; }

void read_row(const unsigned char* from, std::uint32_t type, std::uint32_t dim, float* out) {
    switch (type) {
        case kFloat32:
            std::memcpy(out, from, 4 * std::size_t{dim});
            return;
        case kFloat16:
            for (std::uint32_t i = 0; i < dim; ++i) out[i] = from_half(load<std::uint16_t>(from + 2 * i));
            return;
        default: {
            const float scale = load<float>(from);
            for (std::uint32_t i = 0; i < dim; ++i)
                out[i] = scale * static_cast<float>(static_cast<signed char>(from[4 + i]));
        }
    }
}

}  // namespace

std::uint64_t row_bytes(std::uint32_t type, std::uint64_t dim) {
    switch (type) {
        case kFloat32:
            return 4 * dim;
        case kFloat16:
            return 2 * dim;
        case kInt8:
            return 4 + dim;
        default:
            return 0;
    }
}

void decode_rows(const unsigned char* packed, const std::uint8_t* found, std::size_t n, std::uint32_t type,
                 std::uint32_t dim, std::size_t stride, float* out) {
    for (std::size_t i = 0; i < n; ++i, out += dim) {
        if (found[i])
            read_row(packed + i * stride, type, dim, out);
        else
            std::fill(out, out + dim, 0.0f);
    }
}

bool MappedRows::fits() const {
    const std::uint64_t needed = row_bytes(type, dim);
    return needed && dim <= 65536 && stride >= needed && stride <= needed + 3 && bits <= 40 &&
           part_fits(directory, (std::uint64_t{1} << bits) + 1, 8, size) && part_fits(keys, rows, 8, size) &&
           part_fits(values, rows, stride, size);
}

void places(const std::uint64_t* keys, std::size_t n, std::uint64_t seed, std::uint64_t* out) {
    for (std::size_t i = 0; i < n; ++i) out[i] = mix64(keys[i] ^ seed);
}

std::size_t lookup_rows(const MappedRows& file, const std::uint64_t* keys, std::size_t n, float* out,
                        std::uint8_t* found) {
    // A lookup in a large table is three reads, each of which depends on the one before and misses the cache.
    // A group of keys goes through these reads together, so that their misses overlap.
    constexpr std::size_t kGroup = 32, kScan = 32;
    constexpr std::uint64_t kNone = ~std::uint64_t{0};
    const unsigned char* directory = file.data + file.directory;
    const unsigned char* held = file.data + file.keys;
    std::uint64_t place[kGroup], first[kGroup], last[kGroup], row[kGroup];
    std::size_t hits = 0;
    for (std::size_t start = 0; start < n; start += kGroup) {
        const std::size_t count = std::min(kGroup, n - start);
        for (std::size_t i = 0; i < count; ++i) {
            place[i] = mix64(keys[start + i] ^ file.seed);
            __builtin_prefetch(directory + 8 * bucket_of(place[i], file.bits));
        }
        for (std::size_t i = 0; i < count; ++i) {
            const unsigned char* entry = directory + 8 * bucket_of(place[i], file.bits);
            first[i] = load<std::uint64_t>(entry);
            last[i] = load<std::uint64_t>(entry + 8);
            if (first[i] > last[i] || last[i] > file.rows) return kDamaged;
            __builtin_prefetch(held + 8 * first[i]);
        }
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint64_t key = keys[start + i];
            std::uint64_t low = first[i], high = last[i];
            while (high - low > kScan) {  // only a damaged file has so long a bucket: do not scan all of it
                const std::uint64_t middle = low + (high - low) / 2;
                if (mix64(load<std::uint64_t>(held + 8 * middle) ^ file.seed) <= place[i])
                    low = middle;
                else
                    high = middle;
            }
            row[i] = kNone;
            for (; low < high; ++low) {
                if (load<std::uint64_t>(held + 8 * low) == key) {
                    row[i] = low;
                    __builtin_prefetch(file.data + file.values + low * file.stride);
                    break;
                }
            }
        }
        for (std::size_t i = 0; i < count; ++i) {
            float* to = out + (start + i) * file.dim;
            found[start + i] = row[i] != kNone;
            if (row[i] == kNone) {
                std::fill(to, to + file.dim, 0.0f);
            } else {
                read_row(file.data + file.values + row[i] * file.stride, file.type, file.dim, to);
                ++hits;
            }
        }
    }
    return hits;
}

bool check_order(const MappedRows& file) {
    const unsigned char* directory = file.data + file.directory;
    const unsigned char* held = file.data + file.keys;
    const std::uint64_t buckets = std::uint64_t{1} << file.bits;
    if (load<std::uint64_t>(directory) != 0 || load<std::uint64_t>(directory + 8 * buckets) != file.rows)
        return false;
    std::uint64_t row = 0, before = 0;
    for (std::uint64_t bucket = 0; bucket < buckets; ++bucket) {
        const std::uint64_t end = load<std::uint64_t>(directory + 8 * (bucket + 1));
        if (end < row || end > file.rows) return false;
        for (; row < end; ++row) {
            const std::uint64_t place = mix64(load<std::uint64_t>(held + 8 * row) ^ file.seed);
            if (bucket_of(place, file.bits) != bucket || (row && place <= before)) return false;
            before = place;
        }
    }
    return row == file.rows;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
