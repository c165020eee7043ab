#include <nanobind/stl/vector.h>

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

    BoundPass(std::size_t samples, Weights weights, Biases biases, WeightGradients grad_weights,
              BiasGradients grad_biases, std::size_t slots, std::vector<std::int32_t> chosen, std::size_t dim,
              bool mean, bool half)
        : weights_(std::move(weights)),
          biases_(std::move(biases)),
          grad_weights_(std::move(grad_weights)),
          grad_biases_(std::move(grad_biases)),
          pass_(samples, widths(), arrays(), Pooling{slots, dim, std::move(chosen), mean}, half) {
        const Pooling& pooling = pass_.pooling();
        for (const std::int32_t slot : pooling.chosen)
            expect(slot >= 0 && static_cast<std::size_t>(slot) < slots, "chosen slot out of range");
        expect(slots > 0 && dim > 0, "at least one slot and one value a row");
        expect(pooling.chosen.size() * dim <= weights_.front().shape(1), "the tower's input is too narrow");
        const std::size_t out = weights_.back().shape(0);
        expect(out == 1 || out == 2, "the tower ends in one or two logits");
    }

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
        const Computing scope;
        return pass_.forward(checked_bags(), rows.data(), dense.data(), labels.data(), probabilities.data());
    }

    void backward(Out<float, 2> grad_rows) {
        expect(inverse_.is_valid(), "backward follows a forward pass");
        expect(grad_rows.shape(0) == rows_ && grad_rows.shape(1) == pass_.pooling().dim,
               "gradients of another shape than the rows");
        {
            const Computing scope;
            pass_.backward(checked_bags(), grad_rows.data(), rows_);
        }
        inverse_ = {}, offsets_ = {};
    }

  private:
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

    std::vector<std::size_t> widths() const {
        expect(!weights_.empty(), "at least one layer");
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
    PooledPass pass_;
    In<std::int32_t, 1> inverse_;
    In<std::int64_t, 1> offsets_;
    std::size_t rows_ = 0;
};

}  // namespace

// noconvert: a converted copy of an array would swallow what is written to it, and would not see updates.
void bind_pooled_pass(nb::module_& m) {
    const auto array = nb::arg().noconvert();
    nb::class_<BoundPass>(m, "PooledPass")
        .def(nb::init<std::size_t, BoundPass::Weights, BoundPass::Biases, BoundPass::WeightGradients,
                      BoundPass::BiasGradients, std::size_t, std::vector<std::int32_t>, std::size_t, bool,
                      bool>(),
             nb::arg(), array, array, array, array, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg())
        .def("forward", &BoundPass::forward, array, array, array, array, array, array)
        .def("backward", &BoundPass::backward, array);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
