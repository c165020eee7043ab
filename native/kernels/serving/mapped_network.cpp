#include "sparsefleet/serving/mapped_network.h"

#include <algorithm>
#include <utility>

#include "sparsefleet/float_mode.h"
#include "sparsefleet/rows.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

// Kept from call to call, as the tower's own.
struct TableSpace {
    std::vector<std::uint64_t> chosen, unique;
    std::vector<std::int64_t> offsets;
    std::vector<std::int32_t> inverse;
    std::vector<std::uint8_t> found;
    AlignedFloats rows;
    const std::int64_t* bags = nullptr;
    std::size_t slots = 0;
};
struct Space {
    std::vector<TableSpace> tables;
    std::vector<Wanted> wanted;
    AlignedFloats x;
};

// A request of very many values must not keep its memory for ever.
constexpr std::size_t kKeptFloats = std::size_t{1} << 20;

template <typename Room>
auto* at_least(Room& room, std::size_t count) {
    if (room.size() < count) room.resize(count);
    return room.data();
}

}  // namespace

std::size_t MappedLookup::find(const std::vector<Wanted>& wanted) {
    const KeepDenormals mode;  // stored rows are read as they are
    std::size_t hits = 0;
    for (std::size_t t = 0; t < wanted.size(); ++t) {
        const std::size_t found =
            lookup_rows(files_[t], wanted[t].keys, wanted[t].n, wanted[t].rows, wanted[t].found);
        if (found == kDamaged) return kDamaged;
        hits += found;
    }
    return hits;
}

ServedNetwork::ServedNetwork(const ServedTower& tower, std::vector<Table> tables, std::size_t slots,
                             std::size_t dense, std::size_t dense_column)
    : tower_(tower), tables_(std::move(tables)), slots_(slots), dense_(dense), dense_column_(dense_column) {}

ServedNetwork::Counts ServedNetwork::score(const std::uint64_t* keys, const std::int64_t* offsets,
                                           const float* dense, std::size_t samples, RowLookup& lookup,
                                           float* out) const {
    thread_local Space mine;
    const std::size_t width = tower_.width();
    float* x = at_least(mine.x, samples * width);
    for (std::size_t b = 0; b < samples; ++b)
        std::copy_n(dense + b * dense_, dense_, x + b * width + dense_column_);
    if (mine.tables.size() < tables_.size()) mine.tables.resize(tables_.size());
    mine.wanted.clear();
    Counts counts;
    for (std::size_t t = 0; t < tables_.size(); ++t) {
        const Table& table = tables_[t];
        TableSpace& space = mine.tables[t];
        const std::uint64_t* bag_keys = keys;
        space.bags = offsets;
        space.slots = table.slots.empty() ? slots_ : table.slots.size();
        auto many = static_cast<std::size_t>(offsets[samples * slots_]);
        if (!table.slots.empty()) {
            std::uint64_t* chosen = at_least(space.chosen, many);  // no slot is chosen twice
            std::int64_t* ends = at_least(space.offsets, samples * space.slots + 1);
            many =
                select_slots(keys, offsets, samples, slots_, table.slots.data(), space.slots, chosen, ends);
            bag_keys = chosen;
            space.bags = ends;
        }
        std::uint64_t* unique = at_least(space.unique, many);
        const std::size_t distinct =
            unique_keys(bag_keys, many, unique, at_least(space.inverse, many), nullptr);
        mine.wanted.push_back(
            {unique, distinct, at_least(space.rows, distinct * table.dim), at_least(space.found, distinct)});
        counts.keys += distinct;
    }
    const std::size_t hits = lookup.find(mine.wanted);
    counts.damaged = hits == kDamaged;
    if (!counts.damaged) {
        counts.missed = counts.keys - hits;
        const FlushDenormals mode;
        for (std::size_t t = 0; t < tables_.size(); ++t) {
            const TableSpace& space = mine.tables[t];
            for (const Embedding& embedding : tables_[t].embeddings)
                pool_forward(space.rows.data(), tables_[t].dim, space.inverse.data(), space.bags, samples,
                             space.slots, embedding.places.data(), embedding.places.size(), embedding.mean,
                             x + embedding.column, width);
        }
        tower_.probabilities(x, samples, out);
    }
    std::size_t kept = mine.x.size();
    for (const TableSpace& space : mine.tables)
        kept = std::max({kept, space.rows.size(), space.unique.size()});
    if (kept > kKeptFloats) mine = Space{};
    return counts;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
