#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <optional>

#include "bindings.h"
#include "sparsefleet/pooled_pass.h"
#include "sparsefleet/rows.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

// A pass, and the arrays that it looks into: those of the model for good, a batch's bags from `forward` to
// `backward`.
class BoundPass {
  public:
    using Weights = std::vector<In<float, 2>>;
    using Biases = std::vector<In<float, 1>>;
    using WeightGradients = std::vector<Out<float, 2>>;
    using BiasGradients = std::vector<Out<float, 1>>;
    using OfShallow = std::optional<In<float, 1>>;
    using ShallowGradients = std::optional<Out<float, 1>>;

    // Without a shallow part, its arrays are none, those of the pairs' weights also where they have none;
    // without a tower, its lists are empty.
    BoundPass(std::size_t samples, Weights weights, Biases biases, WeightGradients grad_weights,
              BiasGradients grad_biases, std::size_t slots, std::vector<std::int32_t> chosen, std::size_t dim,
              bool mean, bool half, bool pairs, OfShallow bias, OfShallow numbers, ShallowGradients grad_bias,
              ShallowGradients grad_numbers, OfShallow pair_weights, ShallowGradients grad_pair_weights)
        : weights_(std::move(weights)),
          biases_(std::move(biases)),
          grad_weights_(std::move(grad_weights)),
          grad_biases_(std::move(grad_biases)),
          bias_(std::move(bias)),
          numbers_(std::move(numbers)),
          grad_bias_(std::move(grad_bias)),
          grad_numbers_(std::move(grad_numbers)),
          pair_weights_(std::move(pair_weights)),
          grad_pair_weights_(std::move(grad_pair_weights)),
          dense_(dense_features(samples, chosen, slots, dim)),
          pass_(samples, dense_, widths(), arrays(), Pooling{slots, dim, chosen, mean}, shallow(pairs),
                half) {}

    double forward(In<float, 2> rows, In<std::int32_t, 1> inverse, In<std::int64_t, 1> offsets,
                   In<float, 2> dense, In<float, 1> labels, Out<float, 1> probabilities) {
        const std::size_t samples = pass_.samples();
        expect(rows.shape(1) == pass_.pooling().dim, "rows of another width than the table's");
        expect(dense.shape(0) == samples && dense.shape(1) == pass_.dense_features(),
               "dense features of another shape");
        expect(labels.shape(0) == samples && probabilities.shape(0) == samples,
               "one label and one probability per sample");
        inverse_ = std::move(inverse), offsets_ = std::move(offsets);
        rows_ = rows.shape(0);
        const ReleaseUnlessShort release(work());
        const FlushDenormals mode;
        return pass_.forward(checked_bags(), rows.data(), dense.data(), labels.data(), probabilities.data());
    }

    void backward(Out<float, 2> grad_rows) {
        expect(inverse_.is_valid(), "backward follows a forward pass");
        expect(grad_rows.shape(0) == rows_ && grad_rows.shape(1) == pass_.pooling().dim,
               "gradients of another shape than the rows");
        {
            const ReleaseUnlessShort release(work());
            const FlushDenormals mode;
            pass_.backward(checked_bags(), grad_rows.data(), rows_);
        }
        inverse_ = {}, offsets_ = {};
    }

  private:
    // Values that are pooled, as a measure of the time that a pass takes; a tower is never short.
    std::size_t work() const {
        return weights_.empty() ? inverse_.shape(0) : std::numeric_limits<std::size_t>::max();
    }

    // A broken batch must end in an error, not in another's memory.
    Bags checked_bags() const {
        const std::size_t slots = pass_.pooling().slots, size = offsets_.shape(0);
        expect(size == pass_.samples() * slots + 1, "offsets do not fit the samples and slots");
        expect(offsets_(0) == 0 && offsets_(size - 1) == static_cast<std::int64_t>(inverse_.shape(0)),
               "offsets must run from 0 to the number of keys");
        expect(never_decrease(offsets_.data(), size), "offsets must never decrease");
        expect(rows_ <= (std::size_t{1} << 31) && all_below(inverse_.data(), inverse_.shape(0), rows_),
               "a value's place is not among the rows");
        return {inverse_.data(), offsets_.data()};
    }

    // Columns of the tower's input that pooled rows leave; all else that a pass goes by is checked here too,
    // for it comes first.
    std::size_t dense_features(std::size_t samples, const std::vector<std::int32_t>& chosen,
                               std::size_t slots, std::size_t dim) const {
        for (const std::int32_t slot : chosen)
            expect(slot >= 0 && static_cast<std::size_t>(slot) < slots, "chosen slot out of range");
        expect(slots > 0 && dim > 0, "at least one slot and one value a row");
        expect_product_fits({samples, chosen.size(), dim});
        const bool with_shallow = bias_.has_value();
        expect(numbers_.has_value() == with_shallow && grad_bias_.has_value() == with_shallow &&
                   grad_numbers_.has_value() == with_shallow,
               "a shallow part has all of its arrays");
        expect(with_shallow || !weights_.empty(), "at least one layer, or a shallow part");
        if (with_shallow)
            expect(bias_->shape(0) == 1 && grad_bias_->shape(0) == 1 &&
                       grad_numbers_->shape(0) == numbers_->shape(0),
                   "one bias, and a gradient for each number of the shallow part");
        expect(pair_weights_.has_value() == grad_pair_weights_.has_value() &&
                   (with_shallow || !pair_weights_.has_value()),
               "weights of pairs are a shallow part's, and have a gradient");
        if (pair_weights_) {
            const std::size_t pairs = WeightedPairs::count(chosen.size());
            expect(pair_weights_->shape(0) == pairs && grad_pair_weights_->shape(0) == pairs,
                   "one weight and one gradient for each pair of slots");
        }
        if (weights_.empty()) return numbers_->shape(0);
        const std::size_t pooled = chosen.size() * (dim - (with_shallow ? 1 : 0));
        const std::size_t width = weights_.front().shape(1), out = weights_.back().shape(0);
        expect(pooled <= width, "the tower's input is too narrow");
        expect(out == 1 || (out == 2 && !with_shallow),
               "the tower ends in one or two logits, beside a shallow part in one");
        expect(!with_shallow || numbers_->shape(0) == width - pooled,
               "the tower and the shallow part have the same numbers");
        return width - pooled;
    }

    std::optional<Shallow> shallow(bool pairs) const {
        if (!bias_) return std::nullopt;
        return Shallow{pairs,
                       bias_->data(),
                       numbers_->data(),
                       grad_bias_->data(),
                       grad_numbers_->data(),
                       pair_weights_ ? pair_weights_->data() : nullptr,
                       grad_pair_weights_ ? grad_pair_weights_->data() : nullptr};
    }

    std::vector<std::size_t> widths() const {
        if (weights_.empty()) return {};
        std::vector<std::size_t> widths{weights_.front().shape(1)};
        for (const auto& weight : weights_) {
            expect(weight.shape(1) == widths.back() && weight.shape(0) > 0, "weights have the wrong shape");
            widths.push_back(weight.shape(0));
        }
        return widths;
    }

    TowerArrays arrays() const {
        const std::size_t layers = weights_.size();
        expect(biases_.size() == layers && grad_weights_.size() == layers && grad_biases_.size() == layers,
               "one bias and two gradients per layer");
        TowerArrays arrays;
        for (std::size_t i = 0; i < layers; ++i) {
            const std::size_t to = weights_[i].shape(0), from = weights_[i].shape(1);
            expect(biases_[i].shape(0) == to && grad_biases_[i].shape(0) == to &&
                       grad_weights_[i].shape(0) == to && grad_weights_[i].shape(1) == from,
                   "a bias or a gradient has the wrong shape");
            arrays.weights.push_back(weights_[i].data());
            arrays.biases.push_back(biases_[i].data());
            arrays.grad_weights.push_back(grad_weights_[i].data());
            arrays.grad_biases.push_back(grad_biases_[i].data());
        }
        return arrays;
    }

    Weights weights_;
    Biases biases_;
    WeightGradients grad_weights_;
    BiasGradients grad_biases_;
    OfShallow bias_, numbers_;
    ShallowGradients grad_bias_, grad_numbers_;
    OfShallow pair_weights_;
    ShallowGradients grad_pair_weights_;
    // Before `pass_`: arguments of a call are evaluated in any order, and this checks what the others read.
    std::size_t dense_;
    PooledPass pass_;
    In<std::int32_t, 1> inverse_;
    In<std::int64_t, 1> offsets_;
    std::size_t rows_ = 0;
};

}  // namespace

// noconvert: a pass keeps its inputs, and a copy would not see updates.
void bind_pooled_pass(nb::module_& m) {
    const auto input = nb::arg().noconvert();
    const auto maybe_input = nb::arg().none().noconvert();
    const auto other = nb::arg();
    const auto maybe = nb::arg().none();
    nb::class_<BoundPass>(m, "PooledPass")
        .def(nb::init<std::size_t, BoundPass::Weights, BoundPass::Biases, BoundPass::WeightGradients,
                      BoundPass::BiasGradients, std::size_t, std::vector<std::int32_t>, std::size_t, bool,
                      bool, bool, BoundPass::OfShallow, BoundPass::OfShallow, BoundPass::ShallowGradients,
                      BoundPass::ShallowGradients, BoundPass::OfShallow, BoundPass::ShallowGradients>(),
             other, input, input, other, other, other, other, other, other, other, other, maybe_input,
             maybe_input, maybe, maybe, maybe_input, maybe)
        .def("forward", &BoundPass::forward, input, input, input, input, input, other)
        .def("backward", &BoundPass::backward);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
