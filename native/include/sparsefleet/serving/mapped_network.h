// From the keys of parsed samples to probabilities, for a version whose network is a plain tower and whose
// rows lie in mapped files: distinct keys, lookup, pooling and the tower in one call, which Python leaves
// alone.
//
// Legend: B samples, S slots; bags as in rows.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sparsefleet/serving/bundle_rows.h"
#include "sparsefleet/serving/served_tower.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

// Threads may share one.
class MappedNetwork {
  public:
    // Pooled slots of a table, as columns of the tower's input.
    struct Embedding {
        std::vector<std::int32_t> places;  // among the table's slots
        bool mean;
        std::size_t column;
    };
    struct Table {
        MappedRows file;
        std::vector<std::int32_t> slots;  // among all slots; empty: all of them, in their order
        std::vector<Embedding> embeddings;
    };

    // Tables and embeddings fill every column of the tower but the `dense` ones from `dense_column` on. The
    // tower and the mappings must outlive this.
    MappedNetwork(const ServedTower& tower, std::vector<Table> tables, std::size_t slots, std::size_t dense,
                  std::size_t dense_column);

    std::size_t slots() const { return slots_; }
    std::size_t dense() const { return dense_; }

    struct Counts {
        std::size_t keys = 0, missed = 0;  // distinct ones, and those without a row
        bool damaged = false;              // a directory makes no sense; there are no probabilities
    };

    // keys and offsets [B * S + 1]: the bags of all slots; dense [B, dense]. Writes out [B].
    Counts score(const std::uint64_t* keys, const std::int64_t* offsets, const float* dense,
                 std::size_t samples, float* out) const;

  private:
    const ServedTower& tower_;
    std::vector<Table> tables_;
    std::size_t slots_, dense_, dense_column_;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
