// Kernels on the rows of one batch: unique keys, slot selection, pooling, and the histograms behind AUC.
//
// Legend: N feature values, U unique keys, D values a row, B samples of the batch, S slots; bag b*S+s holds
// the values of slot s in sample b: positions offsets[bag] .. offsets[bag+1].
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsefleet::SPARSEFLEET_LEVEL {

// Writes the distinct keys in order of first appearance and, for each key, where it stands among them; where
// counts is not null, also how often each distinct key occurs. Returns U.
std::size_t unique_keys(const std::uint64_t* keys, std::size_t n, std::uint64_t* unique,
                        std::int32_t* inverse, std::uint32_t* counts);

// Whether `count` numbers, the last of which is not negative, start at 0 or above and never decrease.
bool never_decrease(const std::int64_t* numbers, std::size_t count);

// Whether all `count` numbers lie in 0 .. limit-1; limit is at most 2^31.
bool all_below(const std::int32_t* numbers, std::size_t count, std::size_t limit);

// Copies the bags of the chosen slots, in their order. out_offsets has rows*chosen_count+1 entries. Returns
// the number of keys written (at most offsets[rows*slots]).
std::size_t select_slots(const std::uint64_t* keys, const std::int64_t* offsets, std::size_t rows,
                         std::size_t slots, const std::int32_t* chosen, std::size_t chosen_count,
                         std::uint64_t* out_keys, std::int64_t* out_offsets);

// Per sample and chosen slot: out[b*out_stride + c*dim ...] = the sum or mean of the bag's embedding vectors;
// zeros if the bag is empty.
void pool_forward(const float* rows, std::size_t dim, const std::int32_t* inverse,
                  const std::int64_t* offsets, std::size_t batch, std::size_t slots,
                  const std::int32_t* chosen, std::size_t chosen_count, bool mean, float* out,
                  std::size_t out_stride);

// Adds each bag's gradient to the rows it was pooled from.
void pool_backward(const float* grad_out, std::size_t grad_stride, std::size_t dim,
                   const std::int32_t* inverse, const std::int64_t* offsets, std::size_t batch,
                   std::size_t slots, const std::int32_t* chosen, std::size_t chosen_count, bool mean,
                   float* grad_rows);

// Cross-entropy of clicks from logits [n, width]: width 2 is a softmax pair (no click, click), 1 the click's
// logit. Writes each probability of a click and, where grad is not null, the gradient of the summed loss.
// Returns that loss.
double click_loss(const float* logits, std::size_t n, std::size_t width, const float* labels,
                  float* probabilities, float* grad);

// Sums of fractions are counted in whole numbers of 2^-32. So a sum is the same in whatever order, and over
// whatever processes, samples are summed.
constexpr double kParts = 4294967296.0;

struct ClickSums {
    std::int64_t log_loss = 0;   // in parts
    std::int64_t predicted = 0;  // in parts
    std::int64_t clicks = 0;
    std::int64_t correct = 0;
    std::int64_t bad = 0;  // probabilities that are not numbers in [0, 1], or labels that are not 0 or 1
};

// Counts each probability into bucket int(p * (buckets-1)) of its label's histogram and returns the sums
// beside it.
ClickSums count_clicks(const float* probabilities, const float* labels, std::size_t n, std::int64_t* positive,
                       std::int64_t* negative, std::size_t buckets);

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
