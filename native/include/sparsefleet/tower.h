// A stack of fully connected layers with relu between them, forward and backward, on one core.
#pragma once

#include <cstddef>
#include <vector>

#include "sparsefleet/gemm.h"
#include "sparsefleet/half.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

// Buffers of one forward and backward pass over a batch. They are kept, because fresh memory for each pass
// would cost a page fault per page. One thread at a time.
class TowerSpace {
  public:
    // `widths`: from input to output, at least two.
    TowerSpace(std::size_t rows, std::vector<std::size_t> widths);

    std::size_t rows() const { return rows_; }
    const std::vector<std::size_t>& widths() const { return widths_; }

    // x [rows, widths[0]]; weights[i] [widths[i + 1], widths[i]]; out [rows, widths.back()]. `half`: products
    // of bfloat16, everything else float32.
    void forward(const float* x, const std::vector<const float*>& weights,
                 const std::vector<const float*>& biases, float* out, bool half);

    // Whether the last `forward` had this `half`; `backward` needs the same.
    bool went_forward(bool half) const { return half ? went_ == kHalf : went_ == kFloat; }

    // After `forward` of the same x, with the same `half`: gradients of all weights and biases, and, where
    // grad_x [rows, grad_columns] is given, of the first so many columns of x.
    void backward(const float* x, const std::vector<const float*>& weights, const float* grad_out,
                  const std::vector<float*>& grad_weights, const std::vector<float*>& grad_biases,
                  float* grad_x, std::size_t grad_columns, bool half);

  private:
    void forward_half(const float* x, const std::vector<const float*>& weights,
                      const std::vector<const float*>& biases, float* out);
    void backward_half(const float* grad_out, const std::vector<float*>& grad_weights,
                       const std::vector<float*>& grad_biases, float* grad_x, std::size_t grad_columns);

    std::size_t rows_;
    std::vector<std::size_t> widths_;
    enum { kNowhere, kFloat, kHalf } went_ = kNowhere;
    std::vector<AlignedFloats> hidden_;  // behind each relu
    AlignedFloats grads_[2];             // at two neighbouring layers
    GemmScratch scratch_;

    // With `half`, per layer: its input, its weights and the gradient of its output. Each is rounded once
    // (input and weights in `forward`, the gradient in `backward`) and used in every product that needs it.
    struct HalfLayer {
        HalfRows input, weights, gradient, turned_gradient;
    };
    std::vector<HalfLayer> half_;
    HalfPanels panels_;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
