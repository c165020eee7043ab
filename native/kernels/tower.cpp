#include "sparsefleet/tower.h"

#include <algorithm>
#include <utility>

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

constexpr std::size_t kMostColumns = 128;  // of a block of a product

void column_sums(const float* matrix, std::size_t rows, std::size_t width, float* sums) {
    std::fill(sums, sums + width, 0.0f);
    for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < width; ++j) sums[j] += matrix[i * width + j];
}

// Makes a hidden layer's output: adds the bias, applies relu, rounds for the next layer.
class IntoHidden final : public HalfSink {
  public:
    IntoHidden(const float* bias, HalfRows& out) : bias_(bias), out_(out) {}

    void take(const HalfBlock& block) override {
        float row[kMostColumns];
        for (std::size_t r = 0; r < block.rows; ++r) {
            const float* sums = block.sums + r * block.stride;
            for (std::size_t c = 0; c < block.columns; ++c) {
                const float value = sums[c] + bias_[block.j + c];
                row[c] = value < 0.0f ? 0.0f : value;  // NaN stays NaN
            }
            round_to_half(row, block.columns, out_.row(block.i + r) + block.j);
        }
    }

  private:
    const float* bias_;
    HalfRows& out_;
};

// Writes a matrix [rows, width] of floats, the product's first columns, and adds the bias if there is one.
class IntoFloats final : public HalfSink {
  public:
    IntoFloats(float* out, std::size_t width, const float* bias = nullptr)
        : out_(out), width_(width), bias_(bias) {}

    void take(const HalfBlock& block) override {
        const std::size_t columns = std::min(block.columns, width_ - std::min(width_, block.j));
        for (std::size_t r = 0; r < block.rows; ++r) {
            const float* sums = block.sums + r * block.stride;
            float* to = out_ + (block.i + r) * width_ + block.j;
            if (bias_)
                for (std::size_t c = 0; c < columns; ++c) to[c] = sums[c] + bias_[block.j + c];
            else
                std::copy(sums, sums + columns, to);
        }
    }

  private:
    float* out_;
    std::size_t width_;
    const float* bias_;
};

// Makes the gradient of a layer's output: applies relu's derivative, sums over the samples for the bias,
// rounds.
class IntoGradient final : public HalfSink {
  public:
    IntoGradient(const HalfRows& output, float* bias_gradient, HalfRows& out)
        : output_(output), bias_gradient_(bias_gradient), out_(out) {}

    void take(const HalfBlock& block) override {
        float row[kMostColumns];
        float* bias = bias_gradient_ + block.j;
        for (std::size_t r = 0; r < block.rows; ++r) {
            const float* sums = block.sums + r * block.stride;
            const std::uint16_t* output = output_.row(block.i + r) + block.j;
            for (std::size_t c = 0; c < block.columns; ++c) {
                // After a relu nothing is below zero, but a zero may have a sign.
                row[c] = (output[c] & 0x7fff) != 0 ? sums[c] : 0.0f;
                bias[c] += row[c];
            }
            round_to_half(row, block.columns, out_.row(block.i + r) + block.j);
        }
    }

  private:
    const HalfRows& output_;
    float* bias_gradient_;
    HalfRows& out_;
};

}  // namespace

TowerSpace::TowerSpace(std::size_t rows, std::vector<std::size_t> widths)
    : rows_(rows), widths_(std::move(widths)) {}

void TowerSpace::forward(const float* x, const std::vector<const float*>& weights,
                         const std::vector<const float*>& biases, float* out, bool half) {
    went_ = half ? kHalf : kFloat;
    if (half) return forward_half(x, weights, biases, out);
    const std::size_t layers = widths_.size() - 1;
    if (hidden_.empty())
        for (std::size_t i = 1; i < layers; ++i) hidden_.emplace_back(rows_ * widths_[i]);
    for (std::size_t i = 0; i < layers; ++i) {
        const std::size_t from = widths_[i], to = widths_[i + 1];
        const bool last = i + 1 == layers;
        const Epilogue epilogue{biases[i], last ? After::kNothing : After::kRelu};
        float* here = last ? out : hidden_[i].data();
        gemm({x, from, 1}, {weights[i], 1, from}, here, rows_, to, from, epilogue, scratch_);
        x = here;
    }
}

void TowerSpace::backward(const float* x, const std::vector<const float*>& weights, const float* grad_out,
                          const std::vector<float*>& grad_weights, const std::vector<float*>& grad_biases,
                          float* grad_x, std::size_t grad_columns, bool half) {
    if (half) return backward_half(grad_out, grad_weights, grad_biases, grad_x, grad_columns);
    if (grads_[0].empty() && widths_.size() > 2) {
        const std::size_t widest = *std::max_element(widths_.begin() + 1, widths_.end() - 1);
        for (auto& grads : grads_) grads.resize(rows_ * widest);
    }
    const float* grad = grad_out;
    for (std::size_t i = widths_.size() - 1; i-- > 0;) {
        const std::size_t from = widths_[i], to = widths_[i + 1];
        const float* input = i ? hidden_[i - 1].data() : x;
        gemm({grad, 1, to}, {input, from, 1}, grad_weights[i], to, from, rows_, {}, scratch_);
        float* below = i ? grads_[i % 2].data() : grad_x;
        if (i == 0 && !grad_x) return column_sums(grad, rows_, to, grad_biases[0]);
        const Epilogue epilogue{nullptr, i ? After::kMask : After::kNothing, i ? input : nullptr};
        const std::size_t columns = i ? from : grad_columns;
        gemm({grad, to, 1}, {weights[i], from, 1}, below, rows_, columns, to, epilogue, scratch_,
             grad_biases[i]);
        grad = below;
    }
}

void TowerSpace::forward_half(const float* x, const std::vector<const float*>& weights,
                              const std::vector<const float*>& biases, float* out) {
    const std::size_t layers = widths_.size() - 1;
    half_.resize(layers);
    half_[0].input.round(x, rows_, widths_[0]);
    for (std::size_t i = 0; i < layers; ++i) {
        const std::size_t from = widths_[i], to = widths_[i + 1];
        half_[i].weights.round(weights[i], to, from);
        panels_.take_turned(half_[i].weights);
        if (i + 1 == layers) {
            IntoFloats sink(out, to, biases[i]);
            half_product(half_[i].input, panels_, sink);
        } else {
            half_[i + 1].input.resize(rows_, to);
            IntoHidden sink(biases[i], half_[i + 1].input);
            half_product(half_[i].input, panels_, sink);
        }
    }
}

void TowerSpace::backward_half(const float* grad_out, const std::vector<float*>& grad_weights,
                               const std::vector<float*>& grad_biases, float* grad_x,
                               std::size_t grad_columns) {
    const std::size_t layers = widths_.size() - 1;
    half_[layers - 1].gradient.round(grad_out, rows_, widths_[layers]);
    column_sums(grad_out, rows_, widths_[layers], grad_biases[layers - 1]);
    for (std::size_t i = layers; i-- > 0;) {
        HalfLayer& layer = half_[i];
        layer.turned_gradient.turn(layer.gradient);
        panels_.take(layer.input);
        IntoFloats weights_sink(grad_weights[i], widths_[i]);
        half_product(layer.turned_gradient, panels_, weights_sink);
        if (i == 0 && !grad_x) return;
        panels_.take(layer.weights);
        if (i == 0) {
            IntoFloats sink(grad_x, grad_columns);
            half_product(layer.gradient, panels_, sink);
        } else {
            half_[i - 1].gradient.resize(rows_, widths_[i]);
            std::fill(grad_biases[i - 1], grad_biases[i - 1] + widths_[i], 0.0f);
            IntoGradient sink(layer.input, grad_biases[i - 1], half_[i - 1].gradient);
            half_product(layer.gradient, panels_, sink);
        }
    }
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
