// Forward and backward of one network over one batch: rows of a table pooled by slot, beside dense features,
// through a tower, to the loss of clicks; and all the way back to the gradients of the rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sparsefleet/tower.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

// The parameters of a tower and where their gradients go, a matrix and a bias a layer. They stay where they
// are as long as a pass is in use.
struct TowerArrays {
    std::vector<const float*> weights, biases;
    std::vector<float*> grad_weights, grad_biases;
};

// How a batch's values become the first columns of the tower's input.
struct Pooling {
    std::size_t slots, dim;  // slots of the batch's bags; values in a row of the table
    std::vector<std::int32_t> chosen;
    bool mean;
};

// The bags of a batch: `inverse` says which of the rows each value is, `offsets` where bags begin (rows.h).
struct Bags {
    const std::int32_t* inverse;
    const std::int64_t* offsets;
};

// A pass over batches of so many samples. One thread at a time.
class PooledPass {
  public:
    // `widths`: of the tower, from input to output, which is 1 or 2 wide. `half`: as in tower.h.
    PooledPass(std::size_t samples, std::vector<std::size_t> widths, TowerArrays arrays, Pooling pooling,
               bool half);

    std::size_t samples() const { return tower_.rows(); }
    const Pooling& pooling() const { return pooling_; }
    std::size_t dense_features() const { return tower_.widths().front() - pooled_; }

    // rows [U, dim]; dense [samples, dense_features]; labels and probabilities [samples]. Returns the loss,
    // summed over the samples.
    double forward(const Bags& bags, const float* rows, const float* dense, const float* labels,
                   float* probabilities);

    // After `forward` of the same bags: writes the gradients of all parameters, and grad_rows [unique, dim].
    void backward(const Bags& bags, float* grad_rows, std::size_t unique);

  private:
    TowerSpace tower_;
    TowerArrays arrays_;
    Pooling pooling_;
    bool half_;
    std::size_t pooled_;  // columns of the tower's input that are pooled rows; dense features follow, whose
                          // gradients nobody asks for
    std::vector<float> x_, grad_x_, logits_, grad_logits_;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
