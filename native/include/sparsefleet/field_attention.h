// AutoInt's interacting layer: each field of a sample attends to all of its fields, by several heads. A
// linear map makes of a field a query, a key, a value and a way past the heads; out is relu(past + the
// values, weighed by softmax of the query's products with all keys).
//
// Legend: B samples, F fields, D values of a field, H heads, A values of a head.
#pragma once

#include <cstddef>

#include "sparsefleet/aligned.h"
#include "sparsefleet/gemm.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

// Buffers of some samples; one thread at a time. Nothing is kept from forward to backward.
class FieldAttention {
  public:
    // scale: of the queries' products with keys.
    FieldAttention(std::size_t fields, std::size_t dim, std::size_t heads, std::size_t head_dim, float scale);

    // fields [B, F, D]; weight [4 * H * A, D]: queries, keys, values, past; out [B, F, H * A].
    void forward(const float* fields, std::size_t samples, const float* weight, float* out);

    // out: what forward made of the same fields and weight. Writes the gradients of both.
    void backward(const float* fields, std::size_t samples, const float* weight, const float* out,
                  const float* grad_out, float* grad_weight, float* grad_fields);

    std::size_t fields() const { return fields_; }
    std::size_t dim() const { return dim_; }
    std::size_t made() const { return made_; }  // H * A

  private:
    void project(const float* fields, std::size_t samples);
    void shares(const float* sample, std::size_t head);
    void sample_back(const float* sample, const float* out, const float* grad_out, float* grad);

    std::size_t fields_, dim_, heads_, head_dim_, made_, padded_;
    float scale_;
    AlignedFloats weight_;         // turned: [D, 4 * H * A]
    AlignedFloats parts_, grads_;  // of some samples: [F, 4 * H * A], and their gradients
    AlignedFloats turned_;         // of one head: [A, F], rows padded to whole vectors
    AlignedFloats shares_, back_;  // of one head: [F keys, F queries], padded alike: weights, and gradients
    AlignedFloats grad_weight_;
    GemmScratch scratch_;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
