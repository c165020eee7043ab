#include "sparsefleet/serving/mapped_network.h"

#include <algorithm>
#include <utility>

#include "sparsefleet/float_mode.h"
#include "sparsefleet/rows.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

// Kept from call to call, as the tower's own.
struct Space {
    std::vector<std::uint64_t> chosen, unique;
    std::vector<std::int64_t> offsets;
    std::vector<std::int32_t> inverse;
    std::vector<std::uint8_t> found;
    AlignedFloats rows, x;
};

// A request of very many values must not keep its memory for ever.
constexpr std::size_t kKeptFloats = std::size_t{1} << 20;

template <typename Room>
auto* at_least(Room& room, std::size_t count) {
    if (room.size() < count) room.resize(count);
    return room.data();
}

}  // namespace

MappedNetwork::MappedNetwork(const ServedTower& tower, std::vector<Table> tables, std::size_t slots,
                             std::size_t dense, std::size_t dense_column)
    : tower_(tower), tables_(std::move(tables)), slots_(slots), dense_(dense), dense_column_(dense_column) {}

MappedNetwork::Counts MappedNetwork::score(const std::uint64_t* keys, const std::int64_t* offsets,
                                           const float* dense, std::size_t samples, float* out) const {
    thread_local Space mine;
    const std::size_t width = tower_.width();
    float* x = at_least(mine.x, samples * width);
    for (std::size_t b = 0; b < samples; ++b)
        std::copy_n(dense + b * dense_, dense_, x + b * width + dense_column_);
    Counts counts;
    for (const Table& table : tables_) {
        const std::uint64_t* bag_keys = keys;
        const std::int64_t* bags = offsets;
        const std::size_t bag_slots = table.slots.empty() ? slots_ : table.slots.size();
        auto many = static_cast<std::size_t>(offsets[samples * slots_]);
        if (!table.slots.empty()) {
            std::uint64_t* chosen = at_least(mine.chosen, many);  // no slot is chosen twice
            std::int64_t* ends = at_least(mine.offsets, samples * bag_slots + 1);
            many = select_slots(keys, offsets, samples, slots_, table.slots.data(), bag_slots, chosen, ends);
            bag_keys = chosen;
            bags = ends;
        }
        std::uint64_t* unique = at_least(mine.unique, many);
        std::int32_t* inverse = at_least(mine.inverse, many);
        const std::size_t distinct = unique_keys(bag_keys, many, unique, inverse, nullptr);
        float* rows = at_least(mine.rows, distinct * table.file.dim);
        std::uint8_t* found = at_least(mine.found, distinct);
        std::size_t hits;
        {
            const KeepDenormals mode;  // stored rows are read as they are
            hits = lookup_rows(table.file, unique, distinct, rows, found);
        }
        if (hits == kDamaged) {
            counts.damaged = true;
            return counts;
        }
        counts.keys += distinct;
        counts.missed += distinct - hits;
        const FlushDenormals mode;
        for (const Embedding& embedding : table.embeddings)
            pool_forward(rows, table.file.dim, inverse, bags, samples, bag_slots, embedding.places.data(),
                         embedding.places.size(), embedding.mean, x + embedding.column, width);
    }
    {
        const FlushDenormals mode;
        tower_.probabilities(x, samples, out);
    }
    if (mine.rows.size() > kKeptFloats || mine.unique.size() > kKeptFloats || mine.x.size() > kKeptFloats)
        mine = Space{};
    return counts;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
