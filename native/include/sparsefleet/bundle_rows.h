// Rows files of bundles, searched in place. The bytes are specified in src/sparsefleet/export/FORMAT.md.
//
// Legend: U keys asked for, D values a row.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsefleet::SPARSEFLEET_LEVEL {

enum RowType : std::uint32_t { kFloat32 = 1, kFloat16 = 2, kInt8 = 3 };

// Bytes that a row's values take, 0 for a type that there is not.
std::uint64_t row_bytes(std::uint32_t type, std::uint64_t dim);

// Packed rows [n][stride] as float32 [n][dim], zeros where found is 0.
void decode_rows(const unsigned char* packed, const std::uint8_t* found, std::size_t n, std::uint32_t type,
                 std::uint32_t dim, std::size_t stride, float* out);

// A mapped rows file. Whoever fills this in calls `fits` before anything else: then no lookup leaves the
// mapping.
struct MappedRows {
    const unsigned char* data;
    std::size_t size;
    std::uint64_t directory, keys, values;  // offsets of the parts
    std::uint64_t rows, seed;
    std::uint32_t bits, dim, stride, type;

    bool fits() const;
};

// The order of keys in the file.
void places(const std::uint64_t* keys, std::size_t n, std::uint64_t seed, std::uint64_t* out);

constexpr std::size_t kDamaged = ~std::size_t{0};

// Writes the row of each key, as float32, or zeros where the file does not hold it. Returns how many it
// found, or kDamaged where the directory makes no sense.
std::size_t lookup_rows(const MappedRows& file, const std::uint64_t* keys, std::size_t n, float* out,
                        std::uint8_t* found);

// Walks directory and keys from end to end: every bucket in order, every key in its place.
bool check_order(const MappedRows& file);

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
