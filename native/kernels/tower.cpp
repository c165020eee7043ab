#include "sparsefleet/tower.h"

#include <algorithm>
#include <utility>

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

void column_sums(const float* matrix, std::size_t rows, std::size_t width, float* sums) {
    std::fill(sums, sums + width, 0.0f);
    for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < width; ++j) sums[j] += matrix[i * width + j];
}

}  // namespace

TowerSpace::TowerSpace(std::size_t rows, std::vector<std::size_t> widths)
    : rows_(rows), widths_(std::move(widths)) {
    for (std::size_t i = 1; i + 1 < widths_.size(); ++i) hidden_.emplace_back(rows_ * widths_[i]);
    const std::size_t widest =
        hidden_.empty() ? 0 : *std::max_element(widths_.begin() + 1, widths_.end() - 1);
    for (auto& grads : grads_) grads.resize(rows_ * widest);
}

void TowerSpace::forward(const float* x, const std::vector<const float*>& weights,
                         const std::vector<const float*>& biases, float* out, bool half) {
    const std::size_t layers = widths_.size() - 1;
    for (std::size_t i = 0; i < layers; ++i) {
        const std::size_t from = widths_[i], to = widths_[i + 1];
        const bool last = i + 1 == layers;
        const Epilogue epilogue{biases[i], last ? After::kNothing : After::kRelu};
        float* here = last ? out : hidden_[i].data();
        gemm({x, from, 1}, {weights[i], 1, from}, here, rows_, to, from, epilogue, half, scratch_);
        x = here;
    }
}

void TowerSpace::backward(const float* x, const std::vector<const float*>& weights, const float* grad_out,
                          const std::vector<float*>& grad_weights, const std::vector<float*>& grad_biases,
                          float* grad_x, bool half) {
    const float* grad = grad_out;
    for (std::size_t i = widths_.size() - 1; i-- > 0;) {
        const std::size_t from = widths_[i], to = widths_[i + 1];
        const float* input = i ? hidden_[i - 1].data() : x;
        gemm({grad, 1, to}, {input, from, 1}, grad_weights[i], to, from, rows_, {}, half, scratch_);
        column_sums(grad, rows_, to, grad_biases[i]);
        float* below = i ? grads_[i % 2].data() : grad_x;
        if (i == 0 && !grad_x) return;
        const Epilogue epilogue{nullptr, i ? After::kMask : After::kNothing, i ? input : nullptr};
        gemm({grad, to, 1}, {weights[i], from, 1}, below, rows_, from, to, epilogue, half, scratch_);
        grad = below;
    }
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
