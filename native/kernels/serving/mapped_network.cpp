#include "sparsefleet/serving/mapped_network.h"

#include <algorithm>
#include <utility>

#include "sparsefleet/float_mode.h"
#include "sparsefleet/rows.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

// Kept from call to call, as the tower's own.
struct TableSpace {
    std::vector<std::uint64_t> keys, unique;  // of all requests, one after the other
    std::vector<std::int64_t> offsets;        // the same, where the table is not for all slots
    std::vector<std::int32_t> inverse;
    std::vector<std::uint8_t> found;
    AlignedFloats rows;
    std::vector<std::size_t> ends;  // as in Wanted
    std::size_t slots = 0;
};
struct Space {
    std::vector<TableSpace> tables;
    std::vector<Wanted> wanted;
    // Of each table and request: where its keys begin among those of all, and where its offsets do.
    std::vector<std::pair<std::size_t, std::size_t>> begins;
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

std::size_t MappedLookup::find(const std::vector<Wanted>& wanted, std::size_t request) {
    const KeepDenormals mode;  // stored rows are read as they are
    std::size_t hits = 0;
    for (std::size_t t = 0; t < wanted.size(); ++t) {
        const Wanted& of = wanted[t];
        const std::size_t first = begin(of, request), n = of.ends[request] - first;
        const std::size_t found =
            lookup_rows(files_[t], of.keys + first, n, of.rows + first * files_[t].dim, of.found + first);
        if (found == kDamaged) return kDamaged;
        hits += found;
    }
    return hits;
}

ServedNetwork::ServedNetwork(const ServedTower& tower, std::vector<Table> tables, std::size_t slots,
                             std::size_t dense, std::size_t dense_column)
    : tower_(tower), tables_(std::move(tables)), slots_(slots), dense_(dense), dense_column_(dense_column) {}

ServedNetwork::Counts ServedNetwork::score(const std::vector<Request>& requests, RowLookup& lookup) const {
    thread_local Space mine;
    if (mine.tables.size() < tables_.size()) mine.tables.resize(tables_.size());
    mine.wanted.clear();
    mine.begins.assign(tables_.size() * requests.size(), {});
    const auto begins = [&](std::size_t t) { return mine.begins.data() + t * requests.size(); };
    std::size_t most = 0, values = 0, samples = 0;
    for (const Request& request : requests) {
        most = std::max(most, request.samples);
        samples += request.samples;
        values += static_cast<std::size_t>(request.offsets[request.samples * slots_]);
    }
    Counts counts;
    for (std::size_t t = 0; t < tables_.size(); ++t) {
        const Table& table = tables_[t];
        TableSpace& space = mine.tables[t];
        const bool all = table.slots.empty();
        space.slots = all ? slots_ : table.slots.size();
        const std::uint64_t* keys = requests.front().keys;
        std::size_t many = 0, ends = 0;
        if (!all || requests.size() > 1) {
            keys = at_least(space.keys, values);  // no slot is chosen twice
            if (!all) at_least(space.offsets, samples * space.slots + requests.size());
        }
        for (std::size_t i = 0; i < requests.size(); ++i) {
            const Request& of = requests[i];
            begins(t)[i] = {many, ends};
            auto count = static_cast<std::size_t>(of.offsets[of.samples * slots_]);
            if (!all) {
                count = select_slots(of.keys, of.offsets, of.samples, slots_, table.slots.data(), space.slots,
                                     space.keys.data() + many, space.offsets.data() + ends);
                ends += of.samples * space.slots + 1;
            } else if (requests.size() > 1) {
                std::copy_n(of.keys, count, space.keys.data() + many);
            }
            many += count;
        }
        std::uint64_t* unique = at_least(space.unique, many);
        const std::size_t distinct = unique_keys(keys, many, unique, at_least(space.inverse, many), nullptr);
        // Keys stand in the order of their first appearance: behind those of one request are those that only
        // later ones have.
        space.ends.assign(requests.size(), distinct);
        std::int32_t last = -1;
        for (std::size_t i = 0; i + 1 < requests.size(); ++i) {
            for (std::size_t at = begins(t)[i].first; at < begins(t)[i + 1].first; ++at)
                last = std::max(last, space.inverse[at]);
            space.ends[i] = static_cast<std::size_t>(last + 1);
        }
        mine.wanted.push_back({unique, distinct, space.ends.data(),
                               at_least(space.rows, distinct * table.dim), at_least(space.found, distinct)});
        counts.keys += distinct;
    }
    counts.missed = counts.keys;
    const std::size_t width = tower_.width();
    float* x = at_least(mine.x, most * width);
    lookup.ask(mine.wanted, requests.size());
    for (std::size_t i = 0; i < requests.size() && !counts.damaged; ++i) {
        const std::size_t hits = lookup.find(mine.wanted, i);
        counts.damaged = hits == kDamaged;
        if (!counts.damaged) {
            counts.missed -= hits;
            const FlushDenormals mode;
            const Request& of = requests[i];
            for (std::size_t b = 0; b < of.samples; ++b)
                std::copy_n(of.dense + b * dense_, dense_, x + b * width + dense_column_);
            for (std::size_t t = 0; t < tables_.size(); ++t) {
                const TableSpace& space = mine.tables[t];
                const auto [first, end] = begins(t)[i];
                const std::int64_t* bags = tables_[t].slots.empty() ? of.offsets : space.offsets.data() + end;
                for (const Embedding& embedding : tables_[t].embeddings)
                    pool_forward(space.rows.data(), tables_[t].dim, space.inverse.data() + first, bags,
                                 of.samples, space.slots, embedding.places.data(), embedding.places.size(),
                                 embedding.mean, x + embedding.column, width);
            }
            tower_.probabilities(x, of.samples, of.out);
        }
    }
    std::size_t kept = mine.x.size();
    for (const TableSpace& space : mine.tables)
        kept = std::max({kept, space.rows.size(), space.unique.size()});
    if (kept > kKeptFloats) mine = Space{};
    return counts;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
