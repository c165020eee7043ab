// DIN's attention. A small tower looks at each value of a sample's history beside the target (value, target,
// their difference, their product) and gives the value's weight; out is the sum of the values by weight.
//
// Legend: B samples, L places of a history, D values of a row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "sparsefleet/tower.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

// The samples of a batch.
struct Histories {
    const float* vectors;      // [B, L, D]
    const std::uint8_t* mask;  // [B, L]: above 0 where there is a value
    const float* target;       // [B, D]
    std::size_t samples, places;
};

// Buffers of some values; one thread at a time. Nothing is kept from forward to backward.
class HistoryAttention {
  public:
    // hidden: widths of the tower's relu layers.
    HistoryAttention(std::size_t dim, const std::vector<std::size_t>& hidden);

    // weights[i], biases[i]: of the tower's layers, from 4 * D to 1; out [B, D].
    void forward(const Histories& histories, const std::vector<const float*>& weights,
                 const std::vector<const float*>& biases, float* out);

    // Writes the gradients of all that went in: vectors where there is none get zeros.
    void backward(const Histories& histories, const std::vector<const float*>& weights,
                  const std::vector<const float*>& biases, const float* grad_out,
                  const std::vector<float*>& grad_weights, const std::vector<float*>& grad_biases,
                  float* grad_vectors, float* grad_target);

    std::size_t dim() const { return dim_; }
    const std::vector<std::size_t>& widths() const { return tower_.widths(); }

  private:
    bool take_block(const Histories& histories);
    void weigh(const std::vector<const float*>& weights, const std::vector<const float*>& biases);

    std::size_t dim_;
    TowerSpace tower_;
    // A block: for each of its values the sample, and its place among all B * L. `next_` is where to go on.
    std::vector<std::pair<std::size_t, std::size_t>> block_;
    std::size_t next_ = 0;
    AlignedFloats seen_, grad_seen_;    // [rows, 4 * D]
    AlignedFloats shares_, grad_made_;  // [rows]
    std::vector<AlignedFloats> grad_weights_, grad_biases_;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
