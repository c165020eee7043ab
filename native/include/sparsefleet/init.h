// First values of a row: a pure function of (seed, key, position), so order, thread and server do not matter.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsefleet::SPARSEFLEET_LEVEL {

// The numbers are those of `Initializer.kind` in core/initializer.py.
enum class InitKind : int { kUniform = 0, kNormal = 1, kConstant = 2 };

struct Initializer {
    InitKind kind = InitKind::kConstant;
    double a = 0.0;  // uniform: low;  normal: mean; constant: value
    double b = 0.0;  // uniform: high; normal: standard deviation
    std::uint64_t seed = 0;
};

// Throws std::invalid_argument for a kind that does not exist.
Initializer make_initializer(int kind, double a, double b, std::uint64_t seed);

// Fills out[dim] with the first values of the row of `key`.
void init_row(const Initializer& init, std::uint64_t key, float* out, std::size_t dim);

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
