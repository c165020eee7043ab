// Products of bfloat16 factors with float32 sums, for a tower of dense layers, on one core.
//
// Processors multiply *pairs*: two neighbours of the inner dimension at a time, the first in the low half of
// 32 bits. So both operands are laid out anew. A value that a step uses twice (weights, activations,
// gradients) is rounded once:
//
//   HalfRows    a matrix as it stands, row by row: a left operand whose inner dimension runs along its rows
//   HalfPanels  a right operand: panels of 16 columns, [pairs, 16] each, one after the other
//
// The inner dimension is padded with zeros to whole tiles of 32 values, the outer ones to 16; products of
// the padding are thrown away.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace sparsefleet::SPARSEFLEET_LEVEL {

constexpr std::size_t kPanelColumns = 16;
constexpr std::size_t kTileDepth = 32;  // values of the inner dimension in a tile

inline std::size_t padded(std::size_t count, std::size_t to) { return (count + to - 1) / to * to; }

// Zeroed memory, a cache line aligned. Grows, never shrinks.
class HalfRoom {
  public:
    std::uint16_t* ask(std::size_t count);

  private:
    struct Free {
        void operator()(void* p) const { std::free(p); }
    };
    std::unique_ptr<std::uint16_t, Free> data_;
    std::size_t count_ = 0;
};

class HalfRows {
  public:
    // Room for [rows, columns]; zeros until it is written to, and beyond `columns` for good.
    void resize(std::size_t rows, std::size_t columns);

    // Rounds [rows, columns] float32 values to the nearest bfloat16, ties to even.
    void round(const float* from, std::size_t rows, std::size_t columns);

    // Becomes the transposed matrix: [columns, rows] of `from`.
    void turn(const HalfRows& from);

    std::size_t rows() const { return rows_; }
    std::size_t columns() const { return columns_; }
    std::size_t stride() const { return stride_; }  // values from one row to the next: whole tiles
    std::uint16_t* row(std::size_t i) { return data_ + i * stride_; }
    const std::uint16_t* row(std::size_t i) const { return data_ + i * stride_; }

  private:
    HalfRoom room_;
    std::uint16_t* data_ = nullptr;
    std::size_t rows_ = 0, columns_ = 0, stride_ = 0;
};

class HalfPanels {
  public:
    // The matrix [inner, columns] = `from`: the inner dimension runs down its rows.
    void take(const HalfRows& from);

    // The matrix [inner, columns] = `from` turned: the inner dimension runs along its rows.
    void take_turned(const HalfRows& from);

    std::size_t columns() const { return columns_; }
    std::size_t pairs() const { return pairs_; }  // of the inner dimension, padded
    const std::uint32_t* panel(std::size_t index) const { return data_ + index * pairs_ * kPanelColumns; }

  private:
    std::uint32_t* resize(std::size_t inner, std::size_t columns);

    HalfRoom room_;
    std::uint32_t* data_ = nullptr;
    std::size_t columns_ = 0, pairs_ = 0;
};

// A block of a product: sums[r * stride + c] belongs to row i + r and column j + c.
struct HalfBlock {
    const float* sums;
    std::size_t stride;
    std::size_t i, j, rows, columns;
};

// Receives the blocks of a product, in the order of their columns.
class HalfSink {
  public:
    virtual void take(const HalfBlock& block) = 0;

  protected:
    ~HalfSink() = default;
};

// left [M, K] . right [K, N], block by block. The bits of a row of the result do not depend on the other
// rows.
void half_product(const HalfRows& left, const HalfPanels& right, HalfSink& sink);

// Rounds to the nearest bfloat16, ties to even; NaN stays NaN.
void round_to_half(const float* from, std::size_t count, std::uint16_t* to);

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
