#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>

#include "../bindings.h"
#include "sparsefleet/rows.h"
#include "sparsefleet/serving/mapped_network.h"
#include "sparsefleet/serving/request.h"
#include "sparsefleet/serving/served_tower.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

using Layout = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                          std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;
using EmbeddingOf = std::tuple<std::vector<std::int32_t>, bool, std::size_t>;
using TableOf = std::tuple<In<std::uint8_t, 1>, Layout, std::vector<std::int32_t>, std::vector<EmbeddingOf>>;

void expect_places(const std::vector<std::int32_t>& places, std::size_t of) {
    expect(all_below(places.data(), places.size(), of), "a place is of no slot");
}

void expect_distinct(std::vector<std::int32_t> places) {
    std::sort(places.begin(), places.end());
    expect(std::adjacent_find(places.begin(), places.end()) == places.end(), "a slot is chosen twice");
}

// Not `column + columns <= width`: that sum may overflow.
bool within(std::size_t column, std::size_t columns, std::size_t width) {
    return columns <= width && column <= width - columns;
}

// Holds what the kernel only points to.
struct BoundNetwork {
    nb::object tower;
    std::vector<TableOf> tables;
    MappedNetwork network;

    BoundNetwork(nb::object tower, std::vector<TableOf> given, std::size_t slots, std::size_t dense,
                 std::size_t dense_column)
        : tower(tower),
          tables(std::move(given)),
          network(nb::cast<const ServedTower&>(tower), checked(slots), slots, dense, dense_column) {
        const std::size_t width = nb::cast<const ServedTower&>(tower).width();
        std::size_t filled = dense;
        expect(slots < (std::size_t{1} << 31), "fewer than 2^31 slots");
        expect(within(dense_column, dense, width), "dense features stand outside the tower's input");
        for (const auto& [data, layout, chosen, embeddings] : tables)
            for (const auto& [places, mean, column] : embeddings) {
                const std::size_t columns = places.size() * std::get<6>(layout);
                expect(within(column, columns, width), "an embedding stands outside the tower's input");
                filled += columns;
            }
        expect(filled == width, "every column of the tower's input is filled once");
    }

    std::vector<MappedNetwork::Table> checked(std::size_t slots) const {
        std::vector<MappedNetwork::Table> found;
        for (const auto& [data, layout, chosen, embeddings] : tables) {
            const auto& [directory, keys, values, rows, seed, bits, dim, stride, type] = layout;
            MappedNetwork::Table table{
                {data.data(), data.shape(0), directory, keys, values, rows, seed, bits, dim, stride, type},
                chosen,
                {}};
            expect(table.file.fits(), "the rows file's parts do not lie within it");
            expect_places(chosen, slots);
            expect_distinct(chosen);
            for (const auto& [places, mean, column] : embeddings) {
                expect_places(places, chosen.empty() ? slots : chosen.size());
                table.embeddings.push_back({places, mean, column});
            }
            found.push_back(std::move(table));
        }
        return found;
    }
};

}  // namespace

void bind_served_tower(nb::module_& m) {
    // A converted copy would swallow what is written to it.
    const auto written = nb::arg().noconvert();
    nb::class_<ServedTower>(m, "ServedTower")
        .def("__init__",
             [](ServedTower* self, const std::vector<In<float, 2>>& weights,
                const std::vector<In<float, 1>>& biases, std::size_t column) {
                 expect(weights.size() >= 2 && biases.size() == weights.size(),
                        "a served tower has a hidden layer, and a bias per layer");
                 std::vector<std::size_t> widths{weights[0].shape(1)};
                 std::vector<const float*> matrices, vectors;
                 for (std::size_t i = 0; i < weights.size(); ++i) {
                     expect(weights[i].shape(1) == widths.back() && weights[i].shape(0) > 0 &&
                                weights[i].shape(1) > 0 && biases[i].shape(0) == weights[i].shape(0),
                            "layers have the wrong shapes");
                     widths.push_back(weights[i].shape(0));
                     matrices.push_back(weights[i].data());
                     vectors.push_back(biases[i].data());
                 }
                 expect(widths.back() <= 2 && column < widths.back(), "a logit, or a pair of them");
                 new (self) ServedTower(std::move(widths), matrices, vectors, column);
             })
        .def(
            "probabilities",
            [](const ServedTower& self, In<float, 2> x, Out<float, 1> out) {
                expect(x.shape(1) == self.width() && out.shape(0) == x.shape(0),
                       "x or out has the wrong shape");
                const Computing scope;
                self.probabilities(x.data(), x.shape(0), out.data());
            },
            nb::arg(), written);
    // Distinct keys, and those of them without a row; (-1, 0) where a rows file is damaged.
    nb::class_<BoundNetwork>(m, "MappedNetwork")
        .def(nb::init<nb::object, std::vector<TableOf>, std::size_t, std::size_t, std::size_t>())
        .def(
            "score",
            [](const BoundNetwork& self, In<std::uint64_t, 1> keys, In<std::int64_t, 1> offsets,
               In<float, 2> dense, Out<float, 1> out) {
                const MappedNetwork& network = self.network;
                const std::size_t samples = out.shape(0);
                expect(offsets.shape(0) == samples * network.slots() + 1 && dense.shape(0) == samples &&
                           dense.shape(1) == network.dense(),
                       "one bag per sample and slot, and its dense features");
                expect(offsets(samples * network.slots()) == static_cast<std::int64_t>(keys.shape(0)) &&
                           never_decrease(offsets.data(), offsets.shape(0)),
                       "bags end with the keys");
                expect(keys.shape(0) < (std::size_t{1} << 31), "fewer than 2^31 keys");
                MappedNetwork::Counts counts;
                {
                    nb::gil_scoped_release release;
                    counts = network.score(keys.data(), offsets.data(), dense.data(), samples, out.data());
                }
                return counts.damaged ? nb::make_tuple(-1, 0) : nb::make_tuple(counts.keys, counts.missed);
            },
            nb::arg(), nb::arg(), nb::arg(), written)
        // The same of a request's body, whose samples are counted first: -1 where it is not a plain one.
        .def(
            "score_body",
            [](const BoundNetwork& self, RequestParser& parser, const nb::bytes& body, Out<float, 1> out) {
                const MappedNetwork& network = self.network;
                const char* data = body.c_str();
                const std::size_t size = body.size();
                bool plain, fits = true;
                MappedNetwork::Counts counts;
                {
                    const ReleasedGil release;
                    {
                        const KeepDenormals mode;
                        plain = parser.parse(data, size);
                    }
                    const std::size_t samples = parser.rows();
                    plain = plain && samples > 0 && samples <= out.shape(0) &&
                            parser.keys.size() < (std::size_t{1} << 31);
                    fits = parser.offsets.size() == samples * network.slots() + 1 &&
                           parser.dense.size() == samples * network.dense();
                    if (plain && fits)
                        counts = network.score(parser.keys.data(), parser.offsets.data(), parser.dense.data(),
                                               samples, out.data());
                }
                if (!plain) return nb::make_tuple(-1, 0, 0);
                expect(fits, "the parser is of another schema than the network");
                if (counts.damaged) return nb::make_tuple(parser.rows(), -1, 0);
                return nb::make_tuple(parser.rows(), counts.keys, counts.missed);
            },
            nb::arg(), nb::arg(), written);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
