#include "sparsefleet/pooled_pass.h"

#include <algorithm>
#include <utility>

#include "sparsefleet/rows.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

PooledPass::PooledPass(std::size_t samples, std::vector<std::size_t> widths, TowerArrays arrays,
                       Pooling pooling, bool half)
    : tower_(samples, std::move(widths)),
      arrays_(std::move(arrays)),
      pooling_(std::move(pooling)),
      half_(half),
      pooled_(pooling_.chosen.size() * pooling_.dim),
      x_(samples * tower_.widths().front()),
      grad_x_(samples * pooled_),
      logits_(samples * tower_.widths().back()),
      grad_logits_(logits_.size()) {}

double PooledPass::forward(const Bags& bags, const float* rows, const float* dense, const float* labels,
                           float* probabilities) {
    const std::size_t width = tower_.widths().front(), features = dense_features();
    pool_forward(rows, pooling_.dim, bags.inverse, bags.offsets, samples(), pooling_.slots,
                 pooling_.chosen.data(), pooling_.chosen.size(), pooling_.mean, x_.data(), width);
    for (std::size_t i = 0; i < samples(); ++i)
        std::copy_n(dense + i * features, features, x_.data() + i * width + pooled_);
    tower_.forward(x_.data(), arrays_.weights, arrays_.biases, logits_.data(), half_);
    return click_loss(logits_.data(), samples(), tower_.widths().back(), labels, probabilities,
                      grad_logits_.data());
}

void PooledPass::backward(const Bags& bags, float* grad_rows, std::size_t unique) {
    tower_.backward(x_.data(), arrays_.weights, grad_logits_.data(), arrays_.grad_weights,
                    arrays_.grad_biases, grad_x_.data(), pooled_, half_);
    std::fill_n(grad_rows, unique * pooling_.dim, 0.0f);
    pool_backward(grad_x_.data(), pooled_, pooling_.dim, bags.inverse, bags.offsets, samples(),
                  pooling_.slots, pooling_.chosen.data(), pooling_.chosen.size(), pooling_.mean, grad_rows);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
