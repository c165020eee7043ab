#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <tuple>

#include "../bindings.h"
#include "sparsefleet/rows.h"
#include "sparsefleet/serving/mapped_network.h"
#include "sparsefleet/serving/redis_network.h"
#include "sparsefleet/serving/request.h"
#include "sparsefleet/serving/served_tower.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

using Layout = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                          std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;
using EmbeddingOf = std::tuple<std::vector<std::int32_t>, bool, std::size_t>;
using PooledOf = std::tuple<std::vector<std::int32_t>, std::vector<EmbeddingOf>>;
using MappedOf = std::tuple<In<std::uint8_t, 1>, Layout>;
// The cache; seed, bits, dim, stride, type; the hash, and what names begin with; hot keys, and their hash.
using RedisOf = std::tuple<nb::object, std::uint64_t, std::uint32_t, std::uint32_t, std::uint32_t,
                           std::uint32_t, nb::bytes, nb::bytes, In<std::uint64_t, 1>, nb::bytes>;

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

// A network of tables whose rows have `dims` values.
ServedNetwork checked_network(const ServedTower& tower, const std::vector<PooledOf>& pooled,
                              const std::vector<std::size_t>& dims, std::size_t slots, std::size_t dense,
                              std::size_t dense_column) {
    expect(pooled.size() == dims.size(), "as many tables as places for their rows");
    std::vector<ServedNetwork::Table> tables;
    std::size_t filled = dense;
    expect(slots < (std::size_t{1} << 31), "fewer than 2^31 slots");
    expect(within(dense_column, dense, tower.width()), "dense features stand outside the tower's input");
    for (std::size_t t = 0; t < pooled.size(); ++t) {
        const auto& [chosen, embeddings] = pooled[t];
        ServedNetwork::Table table{dims[t], chosen, {}};
        expect_places(chosen, slots);
        expect_distinct(chosen);
        for (const auto& [places, mean, column] : embeddings) {
            expect_places(places, chosen.empty() ? slots : chosen.size());
            const std::size_t columns = places.size() * dims[t];
            expect(within(column, columns, tower.width()), "an embedding stands outside the tower's input");
            filled += columns;
            table.embeddings.push_back({places, mean, column});
        }
        tables.push_back(std::move(table));
    }
    expect(filled == tower.width(), "every column of the tower's input is filled once");
    return {tower, std::move(tables), slots, dense, dense_column};
}

std::vector<std::size_t> dims_of(const std::vector<MappedOf>& tables) {
    std::vector<std::size_t> dims;
    for (const auto& [data, layout] : tables) dims.push_back(std::get<6>(layout));
    return dims;
}

std::vector<std::size_t> dims_of(const std::vector<RedisOf>& tables) {
    std::vector<std::size_t> dims;
    for (const auto& table : tables) dims.push_back(std::get<3>(table));
    return dims;
}

// Hold what the kernels only point to.
struct BoundMapped {
    nb::object tower;
    std::vector<MappedOf> held;
    ServedNetwork network;
    std::vector<MappedRows> files;

    BoundMapped(nb::object tower, std::vector<PooledOf> pooled, std::size_t slots, std::size_t dense,
                std::size_t dense_column, std::vector<MappedOf> given)
        : tower(tower),
          held(std::move(given)),
          network(checked_network(nb::cast<const ServedTower&>(tower), pooled, dims_of(held), slots, dense,
                                  dense_column)) {
        for (const auto& [data, layout] : held) {
            const auto& [directory, keys, values, rows, seed, bits, dim, stride, type] = layout;
            files.push_back(
                {data.data(), data.shape(0), directory, keys, values, rows, seed, bits, dim, stride, type});
            expect(files.back().fits(), "the rows file's parts do not lie within it");
        }
    }
};

struct BoundRedis {
    nb::object tower;
    std::vector<RedisOf> held;
    ServedNetwork network;
    std::vector<RedisTable> tables;

    BoundRedis(nb::object tower, std::vector<PooledOf> pooled, std::size_t slots, std::size_t dense,
               std::size_t dense_column, std::vector<RedisOf> given)
        : tower(tower),
          held(std::move(given)),
          network(checked_network(nb::cast<const ServedTower&>(tower), pooled, dims_of(held), slots, dense,
                                  dense_column)) {
        for (const auto& [cache, seed, bits, dim, stride, type, hash, prefix, keys, hot_hash] : held) {
            RowCache& rows = nb::cast<RowCache&>(cache);
            const std::uint64_t needed = row_bytes(type, dim);
            expect(bits <= 32 && rows.stride() == stride && needed && needed <= stride,
                   "packed rows hold as many values as are wanted, and the cache holds such rows");
            expect(keys.shape(0) < (std::size_t{1} << 24), "fewer than 2^24 hot rows");
            tables.push_back(
                {&rows, seed, bits, dim, stride, type, std::string(hash.c_str(), hash.size()),
                 std::string(prefix.c_str(), prefix.size()),
                 keys.shape(0) ? std::make_shared<const HotKeys>(keys.data(), keys.shape(0)) : nullptr,
                 std::string(hot_hash.c_str(), hot_hash.size())});
        }
    }
};

// A request's bytes, with a parser for them and room for the probabilities of at most so many samples.
struct Body {
    RequestParser* parser;
    const char* data;
    std::size_t size, most;
    float* out;
    std::int64_t samples = -1;  // as found; -1: it is not a plain request, and is left out
};
struct BodiesScored {
    bool fits = true;  // the parsers are of this network's schema; else nothing was scored
    ServedNetwork::Counts counts;
};

// Parses requests and scores those that are plain. Called without the GIL.
BodiesScored score_bodies(const ServedNetwork& network, std::vector<Body>& bodies, RowLookup& lookup) {
    BodiesScored done;
    std::vector<ServedNetwork::Request> plain;
    std::size_t values = 0;
    for (Body& body : bodies) {
        RequestParser& parser = *body.parser;
        {
            const KeepDenormals mode;
            if (!parser.parse(body.data, body.size)) continue;
        }
        const std::size_t samples = parser.rows();
        values += parser.keys.size();
        if (!samples || samples > body.most || values >= std::size_t{1} << 31) continue;
        done.fits = done.fits && parser.offsets.size() == samples * network.slots() + 1 &&
                    parser.dense.size() == samples * network.dense();
        body.samples = static_cast<std::int64_t>(samples);
        plain.push_back({parser.keys.data(), parser.offsets.data(), parser.dense.data(), samples, body.out});
    }
    if (done.fits && !plain.empty()) done.counts = network.score(plain, lookup);
    return done;
}

// Each body with its parser, and its room one after the other in `out`.
std::vector<Body> given_bodies(const std::vector<RequestParser*>& parsers,
                               const std::vector<nb::bytes>& texts, const std::vector<std::size_t>& most,
                               const Out<float, 1>& out) {
    expect(parsers.size() == texts.size() && most.size() == texts.size(),
           "a parser per body, and its most samples");
    std::vector<RequestParser*> distinct = parsers;
    std::sort(distinct.begin(), distinct.end());
    expect(std::adjacent_find(distinct.begin(), distinct.end()) == distinct.end(),
           "a parser reads one body at a time");
    expect(distinct.empty() || distinct.front(), "a parser per body");
    std::vector<Body> bodies;
    std::size_t at = 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
        expect(most[i] <= out.shape(0) - at, "room for the probabilities of all samples");
        bodies.push_back({parsers[i], texts[i].c_str(), texts[i].size(), most[i], out.data() + at});
        at += most[i];
    }
    return bodies;
}

std::vector<std::int64_t> samples_of(const std::vector<Body>& bodies) {
    std::vector<std::int64_t> samples;
    for (const Body& body : bodies) samples.push_back(body.samples);
    return samples;
}

}  // namespace

void bind_served_tower(nb::module_& m) {
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
        .def("probabilities", [](const ServedTower& self, In<float, 2> x, Out<float, 1> out) {
            expect(x.shape(1) == self.width() && out.shape(0) == x.shape(0), "x or out has the wrong shape");
            const Computing scope;
            self.probabilities(x.data(), x.shape(0), out.data());
        });
    // Distinct keys, and those of them without a row; (-1, 0) where a rows file is damaged.
    nb::class_<BoundMapped>(m, "MappedNetwork")
        .def(nb::init<nb::object, std::vector<PooledOf>, std::size_t, std::size_t, std::size_t,
                      std::vector<MappedOf>>())
        .def("score",
             [](const BoundMapped& self, In<std::uint64_t, 1> keys, In<std::int64_t, 1> offsets,
                In<float, 2> dense, Out<float, 1> out) {
                 const ServedNetwork& network = self.network;
                 const std::size_t samples = out.shape(0);
                 expect(offsets.shape(0) == samples * network.slots() + 1 && dense.shape(0) == samples &&
                            dense.shape(1) == network.dense(),
                        "one bag per sample and slot, and its dense features");
                 expect(offsets(samples * network.slots()) == static_cast<std::int64_t>(keys.shape(0)) &&
                            never_decrease(offsets.data(), offsets.shape(0)),
                        "bags end with the keys");
                 expect(keys.shape(0) < (std::size_t{1} << 31), "fewer than 2^31 keys");
                 ServedNetwork::Counts counts;
                 {
                     nb::gil_scoped_release release;
                     MappedLookup lookup(self.files);
                     counts = network.score(
                         {{keys.data(), offsets.data(), dense.data(), samples, out.data()}}, lookup);
                 }
                 return counts.damaged ? nb::make_tuple(-1, 0) : nb::make_tuple(counts.keys, counts.missed);
             })
        // The same of requests' bodies, scored together: samples of each (-1: not a plain request, which is
        // left out), distinct keys and those without a row.
        .def("score_bodies", [](const BoundMapped& self, const std::vector<RequestParser*>& parsers,
                                const std::vector<nb::bytes>& texts, const std::vector<std::size_t>& most,
                                Out<float, 1> out) {
            std::vector<Body> bodies = given_bodies(parsers, texts, most, out);
            BodiesScored done;
            {
                const ReleasedGil release;
                MappedLookup lookup(self.files);
                done = score_bodies(self.network, bodies, lookup);
            }
            expect(done.fits, "the parser is of another schema than the network");
            const auto samples = samples_of(bodies);
            return done.counts.damaged ? nb::make_tuple(samples, -1, 0)
                                       : nb::make_tuple(samples, done.counts.keys, done.counts.missed);
        });
    // Samples of each body, distinct keys, those without a row, those that were fetched; and of the exchange:
    // whether it was the hot rows that failed, a ReplyStatus, an errno, and the begin and end of what is left
    // in the buffer.
    nb::class_<BoundRedis>(m, "RedisNetwork")
        .def(nb::init<nb::object, std::vector<PooledOf>, std::size_t, std::size_t, std::size_t,
                      std::vector<RedisOf>>())
        .def("score_bodies",
             [](const BoundRedis& self, const std::vector<RequestParser*>& parsers,
                const std::vector<nb::bytes>& texts, const std::vector<std::size_t>& most,
                std::size_t per_command, int socket, double seconds, Out<std::uint8_t, 1> data,
                std::size_t begin, std::size_t end, Out<float, 1> out) {
                 expect(begin <= end && end <= data.shape(0) && per_command > 0 && socket >= 0,
                        "score_bodies reads within the buffer, from a socket");
                 std::vector<Body> bodies = given_bodies(parsers, texts, most, out);
                 Received received{data.data(), data.shape(0), begin, end};
                 RedisLookup lookup(self.tables, socket, seconds, received, per_command);
                 BodiesScored done;
                 {
                     const ReleasedGil release;
                     done = score_bodies(self.network, bodies, lookup);
                 }
                 expect(done.fits, "the parser is of another schema than the network");
                 return nb::make_tuple(samples_of(bodies), done.counts.keys, done.counts.missed,
                                       lookup.fetched, lookup.hot_failed, lookup.status, lookup.error,
                                       received.begin, received.end);
             });
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
