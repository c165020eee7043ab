// From the keys of parsed samples to probabilities, for a version whose network is a plain tower: distinct
// keys, lookup, pooling and the tower in one call, which Python leaves alone. Rows come from a RowLookup:
// mapped files (here), or Redis (redis_network.h).
//
// Legend: B samples, S slots; bags as in rows.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sparsefleet/serving/bundle_rows.h"
#include "sparsefleet/serving/served_tower.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

// Distinct keys of a table that requests ask for, and room for their rows [n][dim] and for marks [n]: 1 where
// there is a row. The first ends[i] keys are those of the first i + 1 requests.
struct Wanted {
    const std::uint64_t* keys;
    std::size_t n;
    const std::size_t* ends;
    float* rows;
    std::uint8_t* found;
};

class RowLookup {
  public:
    virtual ~RowLookup() = default;

    // Called once, before `find`: what all requests want, of each table.
    virtual void ask(const std::vector<Wanted>& /*wanted*/, std::size_t /*requests*/) {}

    // Called for each request in turn: writes the rows that it wants and none before it wanted, of all
    // tables, zeros where there is none. Returns how many it found; kDamaged: it could not give rows.
    virtual std::size_t find(const std::vector<Wanted>& wanted, std::size_t request) = 0;

  protected:
    static std::size_t begin(const Wanted& of, std::size_t request) {
        return request ? of.ends[request - 1] : 0;
    }
};

class MappedLookup final : public RowLookup {
  public:
    explicit MappedLookup(const std::vector<MappedRows>& files) : files_(files) {}
    std::size_t find(const std::vector<Wanted>& wanted, std::size_t request) override;

  private:
    const std::vector<MappedRows>& files_;
};

// Threads may share one.
class ServedNetwork {
  public:
    // Pooled slots of a table, as columns of the tower's input.
    struct Embedding {
        std::vector<std::int32_t> places;  // among the table's slots
        bool mean;
        std::size_t column;
    };
    struct Table {
        std::size_t dim;
        std::vector<std::int32_t> slots;  // among all slots; empty: all of them, in their order
        std::vector<Embedding> embeddings;
    };

    // Tables and embeddings fill every column of the tower but the `dense` ones from `dense_column` on. The
    // tower must outlive this.
    ServedNetwork(const ServedTower& tower, std::vector<Table> tables, std::size_t slots, std::size_t dense,
                  std::size_t dense_column);

    std::size_t slots() const { return slots_; }
    std::size_t dense() const { return dense_; }

    struct Counts {
        std::size_t keys = 0, missed = 0;  // distinct ones, and those without a row
        bool damaged = false;              // the lookup gave no rows; there are no probabilities
    };

    // Samples that came together. keys and offsets [B * S + 1]: the bags of all slots; dense [B, dense];
    // their probabilities go to out [B].
    struct Request {
        const std::uint64_t* keys;
        const std::int64_t* offsets;
        const float* dense;
        std::size_t samples;
        float* out;
    };

    // Scores each request as if it were alone, to the last bit, but asks for the keys of all of them at once,
    // and only once for what several want; while one is scored, rows of the next may be on their way.
    // `lookup` has the tables of this network, in their order.
    Counts score(const std::vector<Request>& requests, RowLookup& lookup) const;

  private:
    const ServedTower& tower_;
    std::vector<Table> tables_;
    std::size_t slots_, dense_, dense_column_;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
