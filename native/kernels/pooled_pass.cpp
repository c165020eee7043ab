#include "sparsefleet/pooled_pass.h"

#include <algorithm>
#include <utility>

#include "sparsefleet/rows.h"
#include "sparsefleet/widths.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

// What is done with one vector, as functions: GCC heeds `__restrict` of arguments, not that of local
// pointers, and without it rows of ten values are not worth its checks and go value by value.

template <typename Width>
void copy_and_count(const float* __restrict from, Width d, float* __restrict to, float* __restrict sum,
                    float* __restrict squares) {
    for (std::size_t j = 0; j < d; ++j) {
        const float value = from[j];
        to[j] = value;
        sum[j] += value;
        squares[j] += value * value;
    }
}

template <typename Width>
void scale_and_count(float scale, Width d, float* __restrict to, float* __restrict sum,
                     float* __restrict squares) {
    for (std::size_t j = 0; j < d; ++j) {
        const float value = scale * to[j];
        to[j] = value;
        sum[j] += value;
        squares[j] += value * value;
    }
}

template <typename Width>
void add(const float* __restrict from, Width d, float* __restrict to) {
    for (std::size_t j = 0; j < d; ++j) to[j] += from[j];
}

// to += scale * (of_pairs * (sum - x) + of_tower), where of_tower may be null.
template <typename Width>
void add_gradient(float scale, float of_pairs, const float* __restrict sum, const float* __restrict x,
                  const float* __restrict of_tower, Width d, float* __restrict to) {
    if (of_tower == nullptr)
        for (std::size_t j = 0; j < d; ++j) to[j] += scale * (of_pairs * (sum[j] - x[j]));
    else
        for (std::size_t j = 0; j < d; ++j) to[j] += scale * (of_pairs * (sum[j] - x[j]) + of_tower[j]);
}

// to += scale * (grad * of_pairs + of_tower), where of_tower may be null.
template <typename Width>
void add_weighted_gradient(float scale, float grad, const float* __restrict of_pairs,
                           const float* __restrict of_tower, Width d, float* __restrict to) {
    if (of_tower == nullptr)
        for (std::size_t j = 0; j < d; ++j) to[j] += scale * (grad * of_pairs[j]);
    else
        for (std::size_t j = 0; j < d; ++j) to[j] += scale * (grad * of_pairs[j] + of_tower[j]);
}

}  // namespace

PooledPass::PooledPass(std::size_t samples, std::size_t dense_features, std::vector<std::size_t> widths,
                       TowerArrays arrays, Pooling pooling, std::optional<Shallow> shallow, bool half)
    : samples_(samples),
      dense_features_(dense_features),
      arrays_(std::move(arrays)),
      pooling_(std::move(pooling)),
      shallow_(shallow),
      half_(half),
      vector_(pooling_.dim - (shallow ? 1 : 0)),
      pooled_(pooling_.chosen.size() * vector_),
      width_(pooled_ + dense_features),
      x_(samples * width_) {
    logits_.resize(samples * (widths.empty() ? 1 : widths.back()));
    grad_logits_.resize(logits_.size());
    if (!widths.empty()) {
        tower_.emplace(samples, std::move(widths));
        grad_x_.resize(samples * pooled_);
    }
    if (shallow_) {
        shallow_logits_.resize(samples);
        sums_.resize(samples * vector_);
        squares_.resize(vector_);
        if (shallow_->pairs && shallow_->pair_weights != nullptr) {
            weighted_.emplace(pooling_.chosen.size(), vector_);
            of_pairs_.resize(samples * pooled_);
        }
    }
}

double PooledPass::forward(const Bags& bags, const float* rows, const float* dense, const float* labels,
                           float* probabilities) {
    for (std::size_t i = 0; i < samples_; ++i)
        std::copy_n(dense + i * dense_features_, dense_features_, x_.data() + i * width_ + pooled_);
    if (shallow_)
        shallow_forward(bags, rows);
    else
        pool_forward(rows, pooling_.dim, bags.inverse, bags.offsets, samples_, pooling_.slots,
                     pooling_.chosen.data(), pooling_.chosen.size(), pooling_.mean, x_.data(), width_);
    if (tower_) tower_->forward(x_.data(), arrays_.weights, arrays_.biases, logits_.data(), half_);
    if (shallow_)
        for (std::size_t i = 0; i < samples_; ++i)
            logits_[i] = tower_ ? shallow_logits_[i] + logits_[i] : shallow_logits_[i];
    return click_loss(logits_.data(), samples_, tower_ ? tower_->widths().back() : 1, labels, probabilities,
                      grad_logits_.data());
}

void PooledPass::backward(const Bags& bags, float* grad_rows, std::size_t unique) {
    if (tower_)
        tower_->backward(x_.data(), arrays_.weights, grad_logits_.data(), arrays_.grad_weights,
                         arrays_.grad_biases, grad_x_.data(), pooled_, half_);
    std::fill_n(grad_rows, unique * pooling_.dim, 0.0f);
    if (shallow_)
        shallow_backward(bags, grad_rows);
    else
        pool_backward(grad_x_.data(), pooled_, pooling_.dim, bags.inverse, bags.offsets, samples_,
                      pooling_.slots, pooling_.chosen.data(), pooling_.chosen.size(), pooling_.mean,
                      grad_rows);
}

// Pools the vectors into x, and adds up everything else on the way, while a row is at hand. The products of
// all pairs are half of (the sum of the vectors, squared, less the squares of each), so they need one pass.
void PooledPass::shallow_forward(const Bags& bags, const float* rows) {
    const bool pairs = shallow_->pairs && !weighted_, mean = pooling_.mean;
    with_width(vector_, [&](auto width) {
        const std::size_t d = width;
        float* squares = squares_.data();
        for (std::size_t b = 0; b < samples_; ++b) {
            const std::int64_t* begins = bags.offsets + b * pooling_.slots;
            float* sum = sums_.data() + b * d;
            float* to = x_.data() + b * width_;
            std::fill_n(sum, d, 0.0f);
            std::fill_n(squares, d, 0.0f);
            float weights = 0.0f;
            for (const std::int32_t slot : pooling_.chosen) {
                const std::int64_t begin = begins[slot], end = begins[slot + 1];
                if (end - begin == 1) {  // as most are: each value is read once, and put where it belongs
                    const float* row = rows + bags.inverse[begin] * (d + 1);
                    weights += row[0];
                    copy_and_count(row + 1, width, to, sum, squares);
                } else {
                    float weight = 0.0f;
                    std::fill_n(to, d, 0.0f);
                    for (std::int64_t i = begin; i < end; ++i) {
                        const float* row = rows + bags.inverse[i] * (d + 1);
                        weight += row[0];
                        add(row + 1, width, to);
                    }
                    const float scale = mean && begin != end ? 1.0f / static_cast<float>(end - begin) : 1.0f;
                    weights += scale * weight;
                    scale_and_count(scale, width, to, sum, squares);
                }
                to += d;
            }
            float logit = weights + *shallow_->bias, products = 0.0f;
            for (std::size_t n = 0; n < dense_features_; ++n) logit += to[n] * shallow_->numbers[n];
            for (std::size_t j = 0; j < d; ++j) products += sum[j] * sum[j] - squares[j];
            shallow_logits_[b] = pairs ? logit + 0.5f * products : logit;
        }
    });
    if (weighted_)
        weighted_->forward(x_.data(), width_, samples_, shallow_->pair_weights, of_pairs_.data(),
                           shallow_logits_.data());
}

// A weight's gradient is that of the logit; in the pairs, a vector's is the sum of all others times that,
// each by its pair's weight where there are weights.
void PooledPass::shallow_backward(const Bags& bags, float* grad_rows) {
    const bool mean = pooling_.mean;
    if (weighted_)
        weighted_->backward(x_.data(), width_, samples_, grad_logits_.data(), shallow_->grad_pair_weights);
    std::fill_n(shallow_->grad_numbers, dense_features_, 0.0f);
    float of_bias = 0.0f;
    with_width(vector_, [&](auto width) {
        const std::size_t d = width;
        for (std::size_t b = 0; b < samples_; ++b) {
            const std::int64_t* begins = bags.offsets + b * pooling_.slots;
            const float grad = grad_logits_[b], of_pairs = shallow_->pairs ? grad : 0.0f;
            const float* sum = sums_.data() + b * d;
            const float* x = x_.data() + b * width_;
            const float* of_tower = tower_ ? grad_x_.data() + b * pooled_ : nullptr;
            const float* weighted = weighted_ ? of_pairs_.data() + b * pooled_ : nullptr;
            for (const std::int32_t slot : pooling_.chosen) {
                const std::int64_t begin = begins[slot], end = begins[slot + 1];
                const float scale = mean && end - begin > 1 ? 1.0f / static_cast<float>(end - begin) : 1.0f;
                for (std::int64_t i = begin; i < end; ++i) {
                    float* row = grad_rows + bags.inverse[i] * (d + 1);
                    row[0] += scale * grad;
                    if (weighted != nullptr)
                        add_weighted_gradient(scale, grad, weighted, of_tower, width, row + 1);
                    else
                        add_gradient(scale, of_pairs, sum, x, of_tower, width, row + 1);
                }
                x += d;
                if (weighted != nullptr) weighted += d;
                if (of_tower != nullptr) of_tower += d;
            }
            of_bias += grad;
            for (std::size_t n = 0; n < dense_features_; ++n) shallow_->grad_numbers[n] += grad * x[n];
        }
    });
    *shallow_->grad_bias = of_bias;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
