// Searches rows files of bundles in place. src/sparsefleet/export/FORMAT.md specifies the bytes.
//
// Legend: U keys asked for, D values a row.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsefleet::SPARSEFLEET_LEVEL {

enum RowType : std::uint32_t { kFloat32 = 1, kFloat16 = 2, kInt8 = 3 };

// Bytes of a row's values; 0 for an unknown type.
std::uint64_t row_bytes(std::uint32_t type, std::uint64_t dim);

// Decodes packed rows [n][stride] to float32 [n][dim]; zeros where found is 0.
void decode_rows(const unsigned char* packed, const std::uint8_t* found, std::size_t n, std::uint32_t type,
                 std::uint32_t dim, std::size_t stride, float* out);

// A mapped rows file. Call `fits` before anything else: if it is true, no lookup reads outside the mapping.
struct MappedRows {
    const unsigned char* data;
    std::size_t size;
    std::uint64_t directory, keys, values;  // offsets of the parts
    std::uint64_t rows, seed;
    std::uint32_t bits, dim, stride, type;

    bool fits() const;
};

// Computes each key's place; keys stand in the file in the order of their places.
void places(const std::uint64_t* keys, std::size_t n, std::uint64_t seed, std::uint64_t* out);

constexpr std::size_t kDamaged = ~std::size_t{0};

// Writes the row of each key, as float32, or zeros where the file does not hold it. Returns how many it
// found, or kDamaged if the directory makes no sense.
std::size_t lookup_rows(const MappedRows& file, const std::uint64_t* keys, std::size_t n, float* out,
                        std::uint8_t* found);

// Reads the whole directory and all keys: whether every bucket is in order and every key in its place.
bool check_order(const MappedRows& file);

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
