// Histories are of all lengths, so a batch has another number of values each time: they go through the tower
// in blocks of one size, which stay in the cache. Backward makes the tower's layers again: they are a few
// hundredths of a model's arithmetic.
#include "sparsefleet/history_attention.h"

#include <algorithm>

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

constexpr std::size_t kRows = 128;  // values at a time

std::vector<std::size_t> tower_widths(std::size_t dim, const std::vector<std::size_t>& hidden) {
    std::vector<std::size_t> widths{4 * dim};
    widths.insert(widths.end(), hidden.begin(), hidden.end());
    widths.push_back(1);
    return widths;
}

void add(const AlignedFloats& from, float* __restrict to) {
    for (std::size_t i = 0; i < from.size(); ++i) to[i] += from[i];
}

}  // namespace

HistoryAttention::HistoryAttention(std::size_t dim, const std::vector<std::size_t>& hidden)
    : dim_(dim),
      tower_(kRows, tower_widths(dim, hidden)),
      seen_(kRows * 4 * dim),
      grad_seen_(kRows * 4 * dim),
      shares_(kRows),
      grad_made_(kRows) {
    for (std::size_t i = 0; i + 1 < widths().size(); ++i) {
        grad_weights_.emplace_back(widths()[i] * widths()[i + 1]);
        grad_biases_.emplace_back(widths()[i + 1]);
    }
    block_.reserve(kRows);
}

// The next values that are there, laid out for the tower; false: there are no more.
bool HistoryAttention::take_block(const Histories& histories) {
    block_.clear();
    for (; next_ < histories.samples * histories.places && block_.size() < kRows; ++next_)
        if (histories.mask[next_]) block_.emplace_back(next_ / histories.places, next_);
    for (std::size_t r = 0; r < block_.size(); ++r) {
        const float* __restrict value = histories.vectors + block_[r].second * dim_;
        const float* __restrict target = histories.target + block_[r].first * dim_;
        float* __restrict row = seen_.data() + r * 4 * dim_;
        for (std::size_t k = 0; k < dim_; ++k) {
            row[k] = value[k];
            row[dim_ + k] = target[k];
            row[2 * dim_ + k] = value[k] - target[k];
            row[3 * dim_ + k] = value[k] * target[k];
        }
    }
    std::fill(seen_.begin() + static_cast<std::ptrdiff_t>(block_.size() * 4 * dim_), seen_.end(), 0.0f);
    return !block_.empty();
}

void HistoryAttention::weigh(const std::vector<const float*>& weights,
                             const std::vector<const float*>& biases) {
    tower_.forward(seen_.data(), weights, biases, shares_.data(), false);
}

void HistoryAttention::forward(const Histories& histories, const std::vector<const float*>& weights,
                               const std::vector<const float*>& biases, float* out) {
    std::fill_n(out, histories.samples * dim_, 0.0f);
    for (next_ = 0; take_block(histories);) {
        weigh(weights, biases);
        for (std::size_t r = 0; r < block_.size(); ++r) {
            const float* __restrict value = seen_.data() + r * 4 * dim_;
            float* __restrict sum = out + block_[r].first * dim_;
            for (std::size_t k = 0; k < dim_; ++k) sum[k] += shares_[r] * value[k];
        }
    }
}

void HistoryAttention::backward(const Histories& histories, const std::vector<const float*>& weights,
                                const std::vector<const float*>& biases, const float* grad_out,
                                const std::vector<float*>& grad_weights,
                                const std::vector<float*>& grad_biases, float* grad_vectors,
                                float* grad_target) {
    std::fill_n(grad_vectors, histories.samples * histories.places * dim_, 0.0f);
    std::fill_n(grad_target, histories.samples * dim_, 0.0f);
    for (std::size_t i = 0; i < grad_weights.size(); ++i) {
        std::fill_n(grad_weights[i], grad_weights_[i].size(), 0.0f);
        std::fill_n(grad_biases[i], grad_biases_[i].size(), 0.0f);
    }
    std::vector<float*> of_weights, of_biases;
    for (auto& each : grad_weights_) of_weights.push_back(each.data());
    for (auto& each : grad_biases_) of_biases.push_back(each.data());
    for (next_ = 0; take_block(histories);) {
        weigh(weights, biases);
        std::fill(grad_made_.begin(), grad_made_.end(), 0.0f);  // rows behind the last value have none
        for (std::size_t r = 0; r < block_.size(); ++r) {
            const float* __restrict value = seen_.data() + r * 4 * dim_;
            const float* __restrict grad = grad_out + block_[r].first * dim_;
            for (std::size_t k = 0; k < dim_; ++k) grad_made_[r] += grad[k] * value[k];
        }
        tower_.backward(seen_.data(), weights, grad_made_.data(), of_weights, of_biases, grad_seen_.data(),
                        4 * dim_, false);
        for (std::size_t i = 0; i < grad_weights.size(); ++i) {
            add(grad_weights_[i], grad_weights[i]);
            add(grad_biases_[i], grad_biases[i]);
        }
        for (std::size_t r = 0; r < block_.size(); ++r) {
            const float* __restrict row = seen_.data() + r * 4 * dim_;
            const float* __restrict back = grad_seen_.data() + r * 4 * dim_;
            const float* __restrict grad = grad_out + block_[r].first * dim_;
            float* __restrict of_value = grad_vectors + block_[r].second * dim_;
            float* __restrict of_target = grad_target + block_[r].first * dim_;
            for (std::size_t k = 0; k < dim_; ++k) {
                const float difference = back[2 * dim_ + k], product = back[3 * dim_ + k];
                of_value[k] = shares_[r] * grad[k] + back[k] + difference + product * row[dim_ + k];
                of_target[k] += back[dim_ + k] - difference + product * row[k];
            }
        }
    }
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
