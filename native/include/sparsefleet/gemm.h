// Matrix products of float32 for a tower of dense layers, on one core: as close to its peak as the shapes
// allow.
//
// A library's sgemm comes to 75 to 85 % of the peak on the shapes of a click model (a few hundred columns, a
// batch of a hundred to a thousand rows) and leaves bias, relu and its derivative to passes of their own.
// Here they are done while a tile of the result is in registers.
#pragma once

#include <cstddef>

#include "sparsefleet/aligned.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

// An element (i, k) stands at data[i * row + k * col]; one of the two steps is 1.
struct Operand {
    const float* data;
    std::size_t row, col;
};

enum class After { kNothing, kRelu, kMask };

// What is done with a sum before it is written to memory.
struct Epilogue {
    const float* bias = nullptr;  // [N], added to every row
    After after = After::kNothing;
    const float* mask = nullptr;  // [M, N]: kMask keeps the sums where this is above zero
};

// Room for operands in another layout; kept from call to call.
struct GemmScratch {
    AlignedFloats panel, tiles;
};

// out [M, N] = a [M, K] . b [K, N]; rows of out (and of the mask) are contiguous. The bits of a row of the
// result do not depend on the other rows. `row_sums` [K], where given (a.col is 1 then), becomes the sum of
// the rows of a, one after the other: here they are in the cache, and a pass of its own would fetch them
// again.
void gemm(const Operand& a, const Operand& b, float* out, std::size_t m, std::size_t n, std::size_t k,
          const Epilogue& epilogue, GemmScratch& scratch, float* row_sums = nullptr);

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
