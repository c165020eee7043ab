#include "sparsefleet/mixture.h"

#include <algorithm>
#include <cmath>

#include "sparsefleet/vectors.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

using namespace vectors;

namespace {

inline Vector relu(Vector x) { return x < Vector{} ? Vector{} : x; }  // NaN stays NaN

void softmax(const float* logits, std::size_t count, float* shares) {
    const float most = *std::max_element(logits, logits + count);
    float sum = 0.0f;
    for (std::size_t e = 0; e < count; ++e) sum += shares[e] = std::exp(logits[e] - most);
    for (std::size_t e = 0; e < count; ++e) shares[e] /= sum;
}

}  // namespace

void mix_forward(const Mixture& mixture, const std::vector<const float*>& logits,
                 const std::vector<float*>& shares, const std::vector<float*>& mixed) {
    const std::size_t width = mixture.width, experts = mixture.made.size();
    for (std::size_t b = 0; b < mixture.samples; ++b) {
        for (std::size_t g = 0; g < logits.size(); ++g) {
            float* const share = shares[g] + b * experts;
            softmax(logits[g] + b * experts, experts, share);
            for (std::size_t w = 0; w < width; w += kLanes) {
                Vector sum = {};
                for (std::size_t e = 0; e < experts; ++e)
                    sum += share[e] * relu(load_up_to(mixture.made[e] + b * width + w, width - w));
                store_up_to(mixed[g] + b * width + w, sum, width - w);
            }
        }
    }
}

void mix_backward(const Mixture& mixture, const std::vector<const float*>& shares,
                  const std::vector<const float*>& grad_mixed, const std::vector<float*>& grad_made,
                  const std::vector<float*>& grad_logits) {
    const std::size_t width = mixture.width, experts = mixture.made.size(), gates = shares.size();
    for (std::size_t b = 0; b < mixture.samples; ++b) {
        for (std::size_t g = 0; g < gates; ++g) {
            const float* const share = shares[g] + b * experts;
            float* const of_share = grad_logits[g] + b * experts;
            float mean = 0.0f;
            for (std::size_t e = 0; e < experts; ++e) {
                Vector sum = {};
                for (std::size_t w = 0; w < width; w += kLanes) {
                    const std::size_t at = b * width + w;
                    sum += load_up_to(grad_mixed[g] + at, width - w) *
                           relu(load_up_to(mixture.made[e] + at, width - w));
                }
                of_share[e] = total(sum);
                mean += share[e] * of_share[e];
            }
            for (std::size_t e = 0; e < experts; ++e) of_share[e] = share[e] * (of_share[e] - mean);
        }
        for (std::size_t e = 0; e < experts; ++e) {
            for (std::size_t w = 0; w < width; w += kLanes) {
                const std::size_t at = b * width + w;
                Vector sum = {};
                for (std::size_t g = 0; g < gates; ++g)
                    sum += shares[g][b * experts + e] * load_up_to(grad_mixed[g] + at, width - w);
                const Vector made = load_up_to(mixture.made[e] + at, width - w);
                store_up_to(grad_made[e] + at, made > Vector{} ? sum : Vector{}, width - w);
            }
        }
    }
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
