// The compressed interaction network of xDeepFM. With x a layer's maps and f the slots' vectors, for each of
// the D values of a vector by itself: made_m = bias_m + the sum of weight_mhs x_h f_s over h and s. The first
// layer's maps are the vectors themselves. Out: each layer's maps, summed over the D values.
//
// Legend: B samples, S slots, D values of a vector, H maps that a layer takes, M maps that it makes.
#pragma once

#include <cstddef>
#include <vector>

#include "sparsefleet/aligned.h"
#include "sparsefleet/gemm.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

// Buffers of a forward and a backward pass over B samples; one thread at a time.
class Interactions {
  public:
    Interactions(std::size_t samples, std::size_t slots, std::size_t dim, std::vector<std::size_t> maps);

    // vectors [B, S, D]; weights[l] [M, H * S], biases[l] [M]; out [B, sum of M].
    void forward(const float* vectors, const std::vector<const float*>& weights,
                 const std::vector<const float*>& biases, float* out);

    // After forward of the same vectors: writes the gradients of all that went in.
    void backward(const float* vectors, const std::vector<const float*>& weights, const float* grad_out,
                  const std::vector<float*>& grad_weights, const std::vector<float*>& grad_biases,
                  float* grad_vectors);

    std::size_t samples() const { return samples_; }
    std::size_t slots() const { return slots_; }
    std::size_t dim() const { return dim_; }
    const std::vector<std::size_t>& maps() const { return maps_; }
    std::size_t taken(std::size_t layer) const { return layer ? maps_[layer - 1] : slots_; }
    std::size_t width() const { return width_; }
    bool went_forward() const { return went_forward_; }

  private:
    void turn_block(const float* vectors, std::size_t samples);
    void multiply_out(const float* x, std::size_t taken, std::size_t rows, float* grad_x);

    std::size_t samples_, slots_, dim_, width_ = 0, block_;
    std::vector<std::size_t> maps_;
    bool went_forward_ = false;
    std::vector<AlignedFloats> made_;       // per layer: its maps [B * D, M]
    std::vector<AlignedFloats> laid_out_;   // per layer: its weights as [S, H, M]
    AlignedFloats first_, grad_first_;      // of a block: vectors, turned to [rows, S], and their gradient
    AlignedFloats sums_, products_;         // of a block: [rows, H * M] or [rows, H * S]
    AlignedFloats grad_made_, grad_taken_;  // of a block: gradients of a layer's maps [rows, M] and [rows, H]
    AlignedFloats grad_weight_, grad_bias_;
    GemmScratch scratch_;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
