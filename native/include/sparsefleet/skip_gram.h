// Skip-gram with negative sampling: one pass over a stretch of text, on copies of the rows that it needs.
//
// Legend: B words of the text, in their order; K negatives of each; U rows of the table of words, C rows of
// the table of contexts, D values a row.
//
// Word b is predicted from the words around it: those at most radius[b] away, of the same group (a line, say)
// and within the stretch. Each has a row among `words`; word b and its K negatives have rows among
// `contexts`. All pairs of one word are one small matrix product, so the negatives are shared by the words
// around it; its gradients are applied to the copies before the next word's turn, as in the sequential
// algorithm.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsefleet::SPARSEFLEET_LEVEL {

struct Stretch {
    std::size_t words;           // B
    std::size_t negatives;       // K
    const std::int32_t* inputs;  // [B] each word's row among `words`
    const std::int32_t*
        outputs;          // [B, 1 + K] rows among `contexts`: of the word itself, then of its negatives
    const float* radius;  // [B]
    const std::uint64_t* groups;  // [B]
    const float* rates;           // [B] learning rates
};

constexpr std::size_t kMaxRadius = 64, kMaxNegatives = 63;

// grad_words [U, D] and grad_contexts [C, D] are filled with old - new: what SGD with rate 1 subtracts.
// probabilities [B]: the mean, over the words around it, of the probability that word b was given; 0.5
// without any. Returns the sum over words of the mean loss of their pairs, before each update.
double skip_gram(const Stretch& text, const float* words, std::size_t U, const float* contexts, std::size_t C,
                 std::size_t D, float* grad_words, float* grad_contexts, float* probabilities);

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
