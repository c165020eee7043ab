#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings.h"
#include "sparsefleet/field_attention.h"
#include "sparsefleet/history_attention.h"
#include "sparsefleet/interactions.h"
#include "sparsefleet/mixture.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

Histories histories_of(const HistoryAttention& attention, const In<float, 3>& vectors,
                       const In<std::uint8_t, 2>& mask, const In<float, 2>& target) {
    const std::size_t samples = vectors.shape(0), places = vectors.shape(1);
    expect(vectors.shape(2) == attention.dim(), "vectors have the wrong shape");
    expect(mask.shape(0) == samples && mask.shape(1) == places, "the mask has the wrong shape");
    expect(target.shape(0) == samples && target.shape(1) == attention.dim(),
           "the target has the wrong shape");
    return {vectors.data(), mask.data(), target.data(), samples, places};
}

// The addresses of matrices that are all of this shape.
template <typename Matrices>
auto matrices_of(const Matrices& matrices, std::size_t rows, std::size_t columns) {
    std::vector<decltype(matrices[0].data())> found;
    for (const auto& each : matrices) {
        expect(each.shape(0) == rows && each.shape(1) == columns, "a matrix has the wrong shape");
        found.push_back(each.data());
    }
    return found;
}

Mixture mixture_of(const std::vector<In<float, 2>>& made) {
    expect(!made.empty(), "a mixture is of one expert or more");
    const std::size_t samples = made[0].shape(0), width = made[0].shape(1);
    return {samples, width, matrices_of(made, samples, width)};
}

// The addresses of a tower's weights and biases, or of their gradients.
template <typename Matrices, typename Rows>
auto layers_of(const std::vector<std::size_t>& widths, const Matrices& weights, const Rows& biases) {
    const std::size_t layers = widths.size() - 1;
    expect(weights.size() == layers && biases.size() == layers, "weights and a bias per layer");
    std::pair<std::vector<decltype(weights[0].data())>, std::vector<decltype(biases[0].data())>> found;
    for (std::size_t i = 0; i < layers; ++i) {
        expect(weights[i].shape(0) == widths[i + 1] && weights[i].shape(1) == widths[i] &&
                   biases[i].shape(0) == widths[i + 1],
               "weights or a gradient have the wrong shape");
        found.first.push_back(weights[i].data());
        found.second.push_back(biases[i].data());
    }
    return found;
}

}  // namespace

// noconvert: a copy of an input would hide a slow step.
void bind_layers(nb::module_& m) {
    nb::class_<Interactions>(m, "Interactions")
        .def("__init__",
             [](Interactions* self, std::size_t samples, std::size_t slots, std::size_t dim,
                std::vector<std::size_t> maps) {
                 expect(slots > 0 && dim > 0 && !maps.empty(), "slots, values and layers are above 0");
                 std::size_t taken = slots;
                 for (const std::size_t made : maps) {
                     expect(made > 0, "maps are above 0");
                     expect_product_fits({dim, taken, std::max(made, slots)});
                     expect_product_fits({slots, taken, made});
                     expect_product_fits({samples, dim, made});
                     taken = made;
                 }
                 new (self) Interactions(samples, slots, dim, std::move(maps));
             })
        .def(
            "forward",
            [](Interactions& self, In<float, 3> vectors, const std::vector<In<float, 2>>& weights,
               const std::vector<In<float, 1>>& biases, Out<float, 2> out) {
                expect(vectors.shape(0) == self.samples() && vectors.shape(1) == self.slots() &&
                           vectors.shape(2) == self.dim(),
                       "vectors have the wrong shape");
                expect(out.shape(0) == self.samples() && out.shape(1) == self.width(),
                       "out has the wrong shape");
                const std::size_t layers = self.maps().size();
                expect(weights.size() == layers && biases.size() == layers, "weights and a bias per layer");
                std::vector<const float*> from_weights, from_biases;
                for (std::size_t l = 0; l < layers; ++l) {
                    expect(weights[l].shape(0) == self.maps()[l] &&
                               weights[l].shape(1) == self.taken(l) * self.slots() &&
                               biases[l].shape(0) == self.maps()[l],
                           "weights have the wrong shape");
                    from_weights.push_back(weights[l].data());
                    from_biases.push_back(biases[l].data());
                }
                const Computing scope;
                self.forward(vectors.data(), from_weights, from_biases, out.data());
            },
            nb::arg("vectors").noconvert(), nb::arg("weights").noconvert(), nb::arg("biases").noconvert(),
            nb::arg("out"))
        .def(
            "backward",
            [](Interactions& self, In<float, 3> vectors, const std::vector<In<float, 2>>& weights,
               In<float, 2> grad_out, const std::vector<Out<float, 2>>& grad_weights,
               const std::vector<Out<float, 1>>& grad_biases, Out<float, 3> grad_vectors) {
                for (std::size_t axis = 0; axis < 3; ++axis) {
                    const std::size_t wanted[] = {self.samples(), self.slots(), self.dim()};
                    expect(vectors.shape(axis) == wanted[axis] && grad_vectors.shape(axis) == wanted[axis],
                           "vectors or their gradient have the wrong shape");
                }
                expect(grad_out.shape(0) == self.samples() && grad_out.shape(1) == self.width(),
                       "the output's gradient has the wrong shape");
                expect(self.went_forward(), "backward follows a forward pass");
                const std::size_t layers = self.maps().size();
                expect(
                    weights.size() == layers && grad_weights.size() == layers && grad_biases.size() == layers,
                    "weights and a bias per layer");
                std::vector<const float*> from_weights;
                std::vector<float*> to_weights, to_biases;
                for (std::size_t l = 0; l < layers; ++l) {
                    const std::size_t made = self.maps()[l], products = self.taken(l) * self.slots();
                    expect(weights[l].shape(0) == made && weights[l].shape(1) == products &&
                               grad_weights[l].shape(0) == made && grad_weights[l].shape(1) == products &&
                               grad_biases[l].shape(0) == made,
                           "weights or a gradient have the wrong shape");
                    from_weights.push_back(weights[l].data());
                    to_weights.push_back(grad_weights[l].data());
                    to_biases.push_back(grad_biases[l].data());
                }
                const Computing scope;
                self.backward(vectors.data(), from_weights, grad_out.data(), to_weights, to_biases,
                              grad_vectors.data());
            },
            nb::arg("vectors").noconvert(), nb::arg("weights").noconvert(), nb::arg("grad_out").noconvert(),
            nb::arg("grad_weights"), nb::arg("grad_biases"), nb::arg("grad_vectors"));

    nb::class_<FieldAttention>(m, "FieldAttention")
        .def("__init__",
             [](FieldAttention* self, std::size_t fields, std::size_t dim, std::size_t heads,
                std::size_t head_dim, float scale) {
                 expect(fields > 0 && dim > 0 && heads > 0 && head_dim > 0, "sizes are above 0");
                 expect_product_fits({std::max(fields, dim), heads, head_dim});
                 expect_product_fits({fields, fields});
                 new (self) FieldAttention(fields, dim, heads, head_dim, scale);
             })
        .def(
            "forward",
            [](FieldAttention& self, In<float, 3> fields, In<float, 2> weight, Out<float, 3> out) {
                expect(fields.shape(1) == self.fields() && fields.shape(2) == self.dim(),
                       "fields have the wrong shape");
                expect(weight.shape(0) == 4 * self.made() && weight.shape(1) == self.dim(),
                       "the weight has the wrong shape");
                expect(out.shape(0) == fields.shape(0) && out.shape(1) == self.fields() &&
                           out.shape(2) == self.made(),
                       "out has the wrong shape");
                const Computing scope;
                self.forward(fields.data(), fields.shape(0), weight.data(), out.data());
            },
            nb::arg("fields").noconvert(), nb::arg("weight").noconvert(), nb::arg("out"))
        .def(
            "backward",
            [](FieldAttention& self, In<float, 3> fields, In<float, 2> weight, In<float, 3> out,
               In<float, 3> grad_out, Out<float, 2> grad_weight, Out<float, 3> grad_fields) {
                const std::size_t samples = fields.shape(0);
                for (std::size_t axis = 0; axis < 3; ++axis) {
                    const std::size_t in[] = {samples, self.fields(), self.dim()};
                    const std::size_t made[] = {samples, self.fields(), self.made()};
                    expect(fields.shape(axis) == in[axis] && grad_fields.shape(axis) == in[axis],
                           "fields or their gradient have the wrong shape");
                    expect(out.shape(axis) == made[axis] && grad_out.shape(axis) == made[axis],
                           "out or its gradient has the wrong shape");
                }
                expect(weight.shape(0) == 4 * self.made() && weight.shape(1) == self.dim() &&
                           grad_weight.shape(0) == weight.shape(0) && grad_weight.shape(1) == self.dim(),
                       "the weight or its gradient has the wrong shape");
                const Computing scope;
                self.backward(fields.data(), samples, weight.data(), out.data(), grad_out.data(),
                              grad_weight.data(), grad_fields.data());
            },
            nb::arg("fields").noconvert(), nb::arg("weight").noconvert(), nb::arg("out").noconvert(),
            nb::arg("grad_out").noconvert(), nb::arg("grad_weight"), nb::arg("grad_fields"));

    nb::class_<HistoryAttention>(m, "HistoryAttention")
        .def("__init__",
             [](HistoryAttention* self, std::size_t dim, const std::vector<std::size_t>& hidden) {
                 expect(dim > 0, "sizes are above 0");
                 expect_product_fits({dim, 4});
                 std::size_t before = 4 * dim;
                 for (const std::size_t width : hidden) {
                     expect(width > 0, "sizes are above 0");
                     expect_product_fits({before, width});
                     before = width;
                 }
                 new (self) HistoryAttention(dim, hidden);
             })
        .def(
            "forward",
            [](HistoryAttention& self, In<float, 3> vectors, In<std::uint8_t, 2> mask, In<float, 2> target,
               const std::vector<In<float, 2>>& weights, const std::vector<In<float, 1>>& biases,
               Out<float, 2> out) {
                const Histories histories = histories_of(self, vectors, mask, target);
                const auto layers = layers_of(self.widths(), weights, biases);
                expect(out.shape(0) == histories.samples && out.shape(1) == self.dim(),
                       "out has the wrong shape");
                const Computing scope;
                self.forward(histories, layers.first, layers.second, out.data());
            },
            nb::arg("vectors").noconvert(), nb::arg("mask").noconvert(), nb::arg("target").noconvert(),
            nb::arg("weights").noconvert(), nb::arg("biases").noconvert(), nb::arg("out"))
        .def(
            "backward",
            [](HistoryAttention& self, In<float, 3> vectors, In<std::uint8_t, 2> mask, In<float, 2> target,
               const std::vector<In<float, 2>>& weights, const std::vector<In<float, 1>>& biases,
               In<float, 2> grad_out, const std::vector<Out<float, 2>>& grad_weights,
               const std::vector<Out<float, 1>>& grad_biases, Out<float, 3> grad_vectors,
               Out<float, 2> grad_target) {
                const Histories histories = histories_of(self, vectors, mask, target);
                const auto layers = layers_of(self.widths(), weights, biases);
                const auto grads = layers_of(self.widths(), grad_weights, grad_biases);
                for (std::size_t axis = 0; axis < 3; ++axis)
                    expect(grad_vectors.shape(axis) == vectors.shape(axis),
                           "the vectors' gradient has the wrong shape");
                for (std::size_t axis = 0; axis < 2; ++axis)
                    expect(grad_out.shape(axis) == target.shape(axis) &&
                               grad_target.shape(axis) == target.shape(axis),
                           "the gradient of out or of the target has the wrong shape");
                const Computing scope;
                self.backward(histories, layers.first, layers.second, grad_out.data(), grads.first,
                              grads.second, grad_vectors.data(), grad_target.data());
            },
            nb::arg("vectors").noconvert(), nb::arg("mask").noconvert(), nb::arg("target").noconvert(),
            nb::arg("weights").noconvert(), nb::arg("biases").noconvert(), nb::arg("grad_out").noconvert(),
            nb::arg("grad_weights"), nb::arg("grad_biases"), nb::arg("grad_vectors"), nb::arg("grad_target"));

    m.def(
        "mix_forward",
        [](const std::vector<In<float, 2>>& made, const std::vector<In<float, 2>>& logits,
           const std::vector<Out<float, 2>>& shares, const std::vector<Out<float, 2>>& mixed) {
            const Mixture mixture = mixture_of(made);
            const std::size_t samples = mixture.samples, experts = made.size();
            expect(shares.size() == logits.size() && mixed.size() == logits.size(),
                   "there is one of each for each gate");
            const auto from_logits = matrices_of(logits, samples, experts);
            const auto to_shares = matrices_of(shares, samples, experts);
            const auto to_mixed = matrices_of(mixed, samples, mixture.width);
            const Computing scope;
            mix_forward(mixture, from_logits, to_shares, to_mixed);
        },
        nb::arg("made").noconvert(), nb::arg("logits").noconvert(), nb::arg("shares"), nb::arg("mixed"));
    m.def(
        "mix_backward",
        [](const std::vector<In<float, 2>>& made, const std::vector<In<float, 2>>& shares,
           const std::vector<In<float, 2>>& grad_mixed, const std::vector<Out<float, 2>>& grad_made,
           const std::vector<Out<float, 2>>& grad_logits) {
            const Mixture mixture = mixture_of(made);
            const std::size_t samples = mixture.samples, experts = made.size();
            expect(grad_mixed.size() == shares.size() && grad_logits.size() == shares.size() &&
                       grad_made.size() == experts,
                   "there is one of each for each gate, and a gradient for each expert");
            const auto from_shares = matrices_of(shares, samples, experts);
            const auto from_mixed = matrices_of(grad_mixed, samples, mixture.width);
            const auto to_made = matrices_of(grad_made, samples, mixture.width);
            const auto to_logits = matrices_of(grad_logits, samples, experts);
            const Computing scope;
            mix_backward(mixture, from_shares, from_mixed, to_made, to_logits);
        },
        nb::arg("made").noconvert(), nb::arg("shares").noconvert(), nb::arg("grad_mixed").noconvert(),
        nb::arg("grad_made"), nb::arg("grad_logits"));
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
