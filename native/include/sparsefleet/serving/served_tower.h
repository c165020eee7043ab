// The dense layers of a served version: relu between them, one probability of a click at the end.
//
// Unlike a tower in training its weights never change, so they are laid out for the products once. And the
// samples of a ranker's request share most of their columns (the context): the shared columns' part of the
// first layer is computed once a call instead of once a sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sparsefleet/aligned.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

// Threads may share one.
class ServedTower {
  public:
    // `widths`: from input to output, at least one hidden layer between; the output is a click's logit (1) or
    // a softmax pair (2), whose `column` is the click's. weights[i] [widths[i + 1], widths[i]].
    ServedTower(std::vector<std::size_t> widths, const std::vector<const float*>& weights,
                const std::vector<const float*>& biases, std::size_t column);

    std::size_t width() const { return widths_.front(); }

    // x [rows, widths[0]] -> out [rows]. The last bits of a sample's probability depend on which columns it
    // shares with all others of the call.
    void probabilities(const float* x, std::size_t rows, float* out) const;

  private:
    // A first layer over some of the columns of x: the others are in its bias.
    struct First {
        const float* x;
        std::size_t stride, depth;
        const float* weights;
        const float* bias;
    };
    First without_shared(const float* x, std::size_t rows) const;

    std::vector<std::size_t> widths_;
    std::size_t column_;
    // Hidden layers: [inputs, outputs], both widths filled up with zeros to whole vectors (but for x's). The
    // last one stays [outputs, inputs].
    std::vector<AlignedFloats> weights_, biases_;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
