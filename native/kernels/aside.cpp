#include "sparsefleet/aside.h"

#include <algorithm>
#include <cstring>

#include "sparsefleet/shard.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

void Aside::keep(const Shard& shard, const std::uint32_t* numbers, std::size_t n, std::size_t row_bytes,
                 ChunkArena& arena) {
    if (kept_.empty()) {
        heads_.assign(end_ / kBlockRows + 1, kNoEntry);
        kept_.assign(end_ / 64 + 1, 0);
    }
    const std::uint32_t left = end_ - next_, shift = chunk_shift(row_bytes);
    for (std::size_t i = 0; i < n; ++i) {
        const std::uint32_t number = numbers[i];
        if (number - next_ >= left) continue;  // read already, younger than the cut, or no row
        std::uint64_t& word = kept_[number / 64];
        const std::uint64_t bit = std::uint64_t{1} << (number % 64);
        if (word & bit) continue;
        if (entries_ >> shift == chunks_.size()) {
            chunks_.push_back(nullptr);  // there is room for it before there is a chunk: none gets lost
            try {
                chunks_.back() = arena.take();
            } catch (...) {
                chunks_.pop_back();
                throw;
            }
        }
        std::uint32_t& head = heads_[number / kBlockRows];
        std::byte* to = entry(entries_, row_bytes, shift);
        const std::uint32_t note[2] = {head, number};
        std::memcpy(to, note, kHead);
        std::memcpy(to + kHead, shard.row(number), row_bytes);
        head = entries_++;
        word |= bit;
    }
}

std::uint32_t Aside::look(const Shard& shard, std::uint32_t most, std::size_t row_bytes,
                          const std::byte** rows) const {
    const std::uint32_t block = next_ / kBlockRows;
    const std::uint32_t count = std::min(most, std::min(end_, (block + 1) * kBlockRows) - next_);
    for (std::uint32_t i = 0; i < count; ++i) rows[i] = shard.row(next_ + i);
    if (heads_.empty()) return count;
    const std::uint32_t shift = chunk_shift(row_bytes);
    for (std::uint32_t index = heads_[block]; index != kNoEntry;) {
        const std::byte* at = entry(index, row_bytes, shift);
        std::uint32_t note[2];
        std::memcpy(note, at, kHead);
        if (note[1] - next_ < count) rows[note[1] - next_] = at + kHead;
        index = note[0];
    }
    return count;
}

void Aside::end(ChunkArena& arena) {
    for (std::byte* chunk : chunks_) arena.give_back(chunk);
    *this = Aside();
}

std::size_t Aside::memory_bytes() const {
    return kept_.capacity() * sizeof kept_[0] + heads_.capacity() * sizeof heads_[0] +
           chunks_.capacity() * sizeof chunks_[0];
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
