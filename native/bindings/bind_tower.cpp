#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bindings.h"
#include "sparsefleet/tower.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

using Matrices = std::vector<In<float, 2>>;
using Vectors = std::vector<In<float, 1>>;

std::vector<const float*> weights_of(const TowerSpace& space, const Matrices& weights) {
    const auto& widths = space.widths();
    expect(weights.size() + 1 == widths.size(), "one weight matrix per layer");
    std::vector<const float*> data;
    for (std::size_t i = 0; i < weights.size(); ++i) {
        expect(weights[i].shape(0) == widths[i + 1] && weights[i].shape(1) == widths[i],
               "weights have the wrong shape");
        data.push_back(weights[i].data());
    }
    return data;
}

}  // namespace

// noconvert: a copy of an input would hide a slow step.
void bind_tower(nb::module_& m) {
    nb::class_<TowerSpace>(m, "TowerSpace")
        .def("__init__",
             [](TowerSpace* self, std::size_t rows, std::vector<std::size_t> widths) {
                 expect(widths.size() >= 2, "a tower has at least an input and an output width");
                 for (const std::size_t width : widths) expect(width > 0, "widths are above 0");
                 new (self) TowerSpace(rows, std::move(widths));
             })
        .def(
            "forward",
            [](TowerSpace& self, In<float, 2> x, const Matrices& weights, const Vectors& biases,
               Out<float, 2> out, bool half) {
                const auto& widths = self.widths();
                expect(x.shape(0) == self.rows() && x.shape(1) == widths.front(), "x has the wrong shape");
                expect(out.shape(0) == self.rows() && out.shape(1) == widths.back(),
                       "out has the wrong shape");
                const auto matrices = weights_of(self, weights);
                expect(biases.size() == weights.size(), "one bias per layer");
                std::vector<const float*> vectors;
                for (std::size_t i = 0; i < biases.size(); ++i) {
                    expect(biases[i].shape(0) == widths[i + 1], "bias has the wrong length");
                    vectors.push_back(biases[i].data());
                }
                const Computing scope;
                self.forward(x.data(), matrices, vectors, out.data(), half);
            },
            nb::arg("x").noconvert(), nb::arg("weights").noconvert(), nb::arg("biases").noconvert(),
            nb::arg("out"), nb::arg("half"))
        .def(
            "backward",
            [](TowerSpace& self, In<float, 2> x, const Matrices& weights, In<float, 2> grad_out,
               const std::vector<Out<float, 2>>& grad_weights, const std::vector<Out<float, 1>>& grad_biases,
               std::optional<Out<float, 2>> grad_x, bool half) {
                const auto& widths = self.widths();
                expect(x.shape(0) == self.rows() && x.shape(1) == widths.front(), "x has the wrong shape");
                expect(grad_out.shape(0) == self.rows() && grad_out.shape(1) == widths.back(),
                       "the output's gradient has the wrong shape");
                expect(!grad_x || (grad_x->shape(0) == self.rows() && grad_x->shape(1) == widths.front()),
                       "the input's gradient has the wrong shape");
                expect(self.went_forward(half), "backward follows a forward pass of the same precision");
                const auto matrices = weights_of(self, weights);
                expect(grad_weights.size() == weights.size() && grad_biases.size() == weights.size(),
                       "one gradient per weight matrix and bias");
                std::vector<float*> out_weights, out_biases;
                for (std::size_t i = 0; i < weights.size(); ++i) {
                    expect(grad_weights[i].shape(0) == widths[i + 1] &&
                               grad_weights[i].shape(1) == widths[i] &&
                               grad_biases[i].shape(0) == widths[i + 1],
                           "a gradient has the wrong shape");
                    out_weights.push_back(grad_weights[i].data());
                    out_biases.push_back(grad_biases[i].data());
                }
                const Computing scope;
                self.backward(x.data(), matrices, grad_out.data(), out_weights, out_biases,
                              grad_x ? grad_x->data() : nullptr, widths.front(), half);
            },
            nb::arg("x").noconvert(), nb::arg("weights").noconvert(), nb::arg("grad_out").noconvert(),
            nb::arg("grad_weights"), nb::arg("grad_biases"), nb::arg("grad_x").none(), nb::arg("half"));
    bind_pooled_pass(m);
    bind_layers(m);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
