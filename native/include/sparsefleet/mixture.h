// MMoE's gates: for each gate the experts' outputs, behind relu, weighed by softmax of the gate's logits.
//
// Legend: B samples, E experts, W values that an expert makes.
#pragma once

#include <cstddef>
#include <vector>

namespace sparsefleet::SPARSEFLEET_LEVEL {

struct Mixture {
    std::size_t samples, width;
    std::vector<const float*> made;  // of each expert: [B, W], before relu
};

// logits: of each gate [B, E]. Writes for each gate the weights [B, E] and the mixture [B, W].
void mix_forward(const Mixture& mixture, const std::vector<const float*>& logits,
                 const std::vector<float*>& shares, const std::vector<float*>& mixed);

// shares: as mix_forward wrote them. Writes the gradients of what the experts made and of the logits.
void mix_backward(const Mixture& mixture, const std::vector<const float*>& shares,
                  const std::vector<const float*>& grad_mixed, const std::vector<float*>& grad_made,
                  const std::vector<float*>& grad_logits);

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
