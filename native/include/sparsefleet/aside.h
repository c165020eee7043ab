// Aside: the rows of one shard as they were at a cut, while others go on changing them.
//
// Beginning a cut only notes how many rows there are. Whoever changes one of them that the cut's reader has
// not passed yet copies its old bytes aside first, once; the reader takes each row from aside or from its
// place. So memory grows with what changed meanwhile, not with the table.
//
// The caller holds the shard's mutex: exclusive for `begin`, `keep` and `end`; shared for the others, of
// which one thread at a time may call `pass`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sparsefleet/chunks.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

class Shard;

class Aside {
  public:
    // Rows are read in blocks of this many: what is aside is chained per block.
    static constexpr std::uint32_t kBlockRows = 1024;

    // A chunk of kept rows, for the arena that `keep` takes them from.
    static std::size_t chunk_bytes(std::size_t row_bytes) {
        return (kHead + row_bytes) << chunk_shift(row_bytes);
    }

    // Whether a change of some row must be told to `keep` first.
    bool open() const { return next_ != end_; }

    void begin(std::uint32_t rows) { next_ = 0, end_ = rows; }

    // Brings near what `keep` will look at of this row, as the row itself is: a big shard's bits are not in
    // cache.
    void prefetch(std::uint32_t number) const { __builtin_prefetch(kept_.data() + number / 64, 1); }

    // Copies those of the rows numbers[n] that belong to the cut, that its reader has not passed and that are
    // not aside yet. Numbers of no row are left out.
    void keep(const Shard& shard, const std::uint32_t* numbers, std::size_t n, std::size_t row_bytes,
              ChunkArena& arena);

    std::uint32_t next() const { return next_; }  // the first row that the reader has not passed
    // rows[i] = row next() + i as it was at the cut, up to the end of its block and at most `most`; returns
    // how many.
    std::uint32_t look(const Shard& shard, std::uint32_t most, std::size_t row_bytes,
                       const std::byte** rows) const;
    // The reader has passed so many more rows.
    void pass(std::uint32_t count) { next_ += count; }

    // Forgets the cut and gives the chunks back.
    void end(ChunkArena& arena);

    std::size_t memory_bytes() const;  // but for the arena's

  private:
    static constexpr std::size_t kHead = 8;  // bytes before a kept row: next entry of its block, row number
    static constexpr std::size_t kChunkBytes = 64 << 10;
    static constexpr std::uint32_t kNoEntry = 0xFFFFFFFFu;

    static std::uint32_t chunk_shift(std::size_t row_bytes) {
        std::uint32_t shift = 0;
        while ((kHead + row_bytes) << (shift + 1) <= kChunkBytes) ++shift;
        return shift;
    }

    std::byte* entry(std::uint32_t index, std::size_t row_bytes, std::uint32_t shift) const {
        return chunks_[index >> shift] + (index & ((1u << shift) - 1)) * (kHead + row_bytes);
    }

    std::uint32_t next_ = 0, end_ = 0;  // rows from next_ to end_ are the cut's and not read yet
    std::uint32_t entries_ = 0;
    std::vector<std::uint64_t> kept_;   // a bit per row of the cut; empty until the first is kept
    std::vector<std::uint32_t> heads_;  // per block of rows its last entry
    std::vector<std::byte*> chunks_;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
