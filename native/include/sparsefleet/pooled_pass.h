// Forward and backward of one network over one batch: rows of a table pooled by slot, beside dense features,
// through a tower or a shallow part or both, to the loss of clicks; and all the way back to the gradients of
// the rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sparsefleet/tower.h"
#include "sparsefleet/weighted_pairs.h"

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

// What is added to the tower's logit, or is the logit where there is no tower: a bias, the weights of values
// and numbers, and with `pairs` the product of each two slots' vectors, which counts by its `pair_weights`
// where there are any (weighted_pairs.h). A row of the table begins with its value's weight; the vector is
// what follows. Arrays as in TowerArrays.
struct Shallow {
    bool pairs;
    const float *bias, *numbers;  // [1], [dense features]
    float *grad_bias, *grad_numbers;
    const float* pair_weights;  // [pairs of chosen slots] or null
    float* grad_pair_weights;
};

// The bags of a batch: `inverse` says which of the rows each value is, `offsets` where bags begin (rows.h).
struct Bags {
    const std::int32_t* inverse;
    const std::int64_t* offsets;
};

// A pass over batches of so many samples. One thread at a time.
class PooledPass {
  public:
    // `widths`: of the tower, from input to output, which is 1 or 2 wide, beside a shallow part 1; empty: no
    // tower, but a shallow part. `half`: as in tower.h.
    PooledPass(std::size_t samples, std::size_t dense_features, std::vector<std::size_t> widths,
               TowerArrays arrays, Pooling pooling, std::optional<Shallow> shallow, bool half);

    std::size_t samples() const { return samples_; }
    const Pooling& pooling() const { return pooling_; }
    std::size_t dense_features() const { return dense_features_; }

    // rows [U, dim]; dense [samples, dense_features]; labels and probabilities [samples]. Returns the loss,
    // summed over the samples.
    double forward(const Bags& bags, const float* rows, const float* dense, const float* labels,
                   float* probabilities);

    // After `forward` of the same bags: writes the gradients of all parameters, and grad_rows [unique, dim].
    void backward(const Bags& bags, float* grad_rows, std::size_t unique);

  private:
    void shallow_forward(const Bags& bags, const float* rows);
    void shallow_backward(const Bags& bags, float* grad_rows);

    std::size_t samples_, dense_features_;
    std::optional<TowerSpace> tower_;
    TowerArrays arrays_;
    Pooling pooling_;
    std::optional<Shallow> shallow_;
    bool half_;
    std::size_t vector_;  // values of a slot that the tower sees: a row's, without the weight
    std::size_t pooled_;  // columns of x that are pooled rows; dense features follow, whose gradients nobody
                          // asks for
    std::size_t width_;   // columns of x
    std::vector<float> x_, grad_x_, logits_, grad_logits_;
    std::vector<float> shallow_logits_, sums_;  // [samples]; [samples, vector]: of all slots' vectors
    std::vector<float> squares_;                // [vector]: of one sample, summed over its slots
    std::optional<WeightedPairs> weighted_;
    std::vector<float> of_pairs_;  // [samples, pooled]: by weighted_, a logit's gradient by each vector
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
