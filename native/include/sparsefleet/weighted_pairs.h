// The products of all pairs of slots' vectors, each with a learned weight, as in field-weighted factorization
// machines: of one sample with vectors x the sum of r_ij <x_i, x_j> over all i < j.
//
// Legend: C slots, D values of a vector. Weights stand row by row of the upper triangle: r_01, r_02, ...
#pragma once

#include <cstddef>
#include <vector>

namespace sparsefleet::SPARSEFLEET_LEVEL {

class WeightedPairs {
  public:
    WeightedPairs(std::size_t slots, std::size_t dim);

    static std::size_t count(std::size_t slots) { return slots * (slots - (slots > 0 ? 1 : 0)) / 2; }

    // x: vectors [C, D] of each sample, `stride` values apart. made [samples, C, D]: for each vector the
    // weighted sum of the others, which is the product's gradient. Adds to out [samples].
    void forward(const float* x, std::size_t stride, std::size_t samples, const float* weights, float* made,
                 float* out);

    // Writes the gradient of the weights, where grads [samples] are those of out.
    void backward(const float* x, std::size_t stride, std::size_t samples, const float* grads,
                  float* grad_weights);

  private:
    void lay_out(const float* weights);

    std::size_t slots_, dim_, blocks_;
    std::vector<float> laid_out_;  // the symmetric matrix of weights, as forward reads it
    std::vector<float> vectors_;   // of some samples, some values of each, padded to whole vectors
    std::vector<float> sums_;      // a vector for each pair
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
