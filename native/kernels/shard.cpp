#include "sparsefleet/shard.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <stdexcept>

namespace sparsefleet::SPARSEFLEET_LEVEL {
namespace {

// Chunks of 128 to 256 KB: small against a table whose memory matters, and few enough that their addresses
// stay in cache.
constexpr std::size_t kChunkBytes = 256 << 10;
constexpr std::uint32_t kFirstRows = 8;
constexpr std::size_t kFirstSlots = 16;
constexpr std::size_t kMappedIndexBytes = 512 << 10;  // from here on the index asks for huge pages

bool mapped(std::size_t slots) { return slots * sizeof(std::uint32_t) >= kMappedIndexBytes; }

}  // namespace

RowLayout::RowLayout(std::size_t dim, std::size_t state_width) : dim(dim), state_width(state_width) {
    if (dim < 1 || dim > (1u << 20) || state_width > 4 * dim + 4)
        throw std::invalid_argument("a row needs 1 to 1048576 values and at most 4 floats of state for each");
    row_bytes = kValues + sizeof(float) * (dim + state_width);
    chunk_shift = 0;
    while (row_bytes << (chunk_shift + 1) <= kChunkBytes) ++chunk_shift;
    chunk_bytes = row_bytes << chunk_shift;
}

Shard::~Shard() { clear(); }

std::uint32_t Shard::find(std::uint64_t place, std::uint64_t key) const {
    const std::uint32_t* index = index_.load(std::memory_order_relaxed);
    if (index == nullptr) return kNone;
    const std::uint64_t mask = mask_.load(std::memory_order_relaxed);
    const std::uint32_t tag = tag_of(place);
    for (std::uint64_t slot = place & mask;; slot = (slot + 1) & mask) {
        const std::uint32_t entry = index[slot];
        if (entry == 0) return kNone;
        if ((entry & kTagMask) != tag) continue;
        const std::uint32_t number = (entry & kRowMask) - 1;
        if (row_key(row(number)) == key) return number;
    }
}

std::uint32_t Shard::append(std::uint64_t place, std::uint64_t key) {
    const std::uint32_t number = rows();
    if (number >= kRowMask)
        throw std::length_error("a table holds at most 2147483584 rows; use more servers");
    if (number == capacity_) grow_rows();
    const std::uint64_t slots =
        index_.load(std::memory_order_relaxed) == nullptr ? 0 : mask_.load(std::memory_order_relaxed) + 1;
    if ((number + std::uint64_t{1}) * 5 > slots * 4) grow_index();  // at most 80 % full

    std::byte* at = row(number);
    std::memcpy(at, &key, sizeof key);
    *row_seen(at) = *row_touched(at) = 0;
    std::uint32_t* index = index_.load(std::memory_order_relaxed);
    const std::uint64_t mask = mask_.load(std::memory_order_relaxed);
    std::uint64_t slot = place & mask;
    while (index[slot] != 0) slot = (slot + 1) & mask;
    index[slot] = tag_of(place) | (number + 1);
    rows_.store(number + 1, std::memory_order_relaxed);
    return number;
}

// Rows are walked in order, so this reads memory in a stream; the mix of a key is cheaper than keeping it.
void Shard::grow_index() {
    std::uint32_t* old = index_.load(std::memory_order_relaxed);
    const std::size_t old_slots = old == nullptr ? 0 : mask_.load(std::memory_order_relaxed) + 1;
    const std::size_t slots = old_slots == 0 ? kFirstSlots : 2 * old_slots;
    std::uint32_t* index = new_index(slots);
    const std::uint64_t mask = slots - 1;
    constexpr std::uint32_t kAhead = 16;
    std::uint64_t places[kAhead];
    for (std::uint32_t first = 0; first < rows(); first += kAhead) {
        const std::uint32_t count = std::min(kAhead, rows() - first);
        for (std::uint32_t i = 0; i < count; ++i) {
            places[i] = place_of(row_key(row(first + i)));
            __builtin_prefetch(index + (places[i] & mask), 1);
        }
        for (std::uint32_t i = 0; i < count; ++i) {
            std::uint64_t slot = places[i] & mask;
            while (index[slot] != 0) slot = (slot + 1) & mask;
            index[slot] = tag_of(places[i]) | (first + i + 1);
        }
    }
    index_.store(index, std::memory_order_relaxed);
    mask_.store(mask, std::memory_order_relaxed);
    free_index(old, old_slots);
}

void Shard::grow_rows() {
    const std::uint32_t chunk_rows = 1u << layout_->chunk_shift;
    if (capacity_ >= chunk_rows) {
        if (chunks_.size() == chunks_.capacity()) chunks_.reserve(chunks_.size() + chunks_.size() / 2 + 4);
        chunks_.push_back(arena_->take());
        capacity_ += chunk_rows;
        return;
    }
    const std::uint32_t wanted = std::min(chunk_rows, std::max(kFirstRows, capacity_ + capacity_ / 2));
    if (chunks_.empty()) chunks_.push_back(nullptr);
    void* grown = std::realloc(chunks_[0], wanted * layout_->row_bytes);
    if (grown == nullptr) throw std::bad_alloc();
    chunks_[0] = static_cast<std::byte*>(grown);
    capacity_ = wanted;
}

std::size_t Shard::memory_bytes() const {
    const std::size_t slots =
        index_.load(std::memory_order_relaxed) == nullptr ? 0 : mask_.load(std::memory_order_relaxed) + 1;
    const std::size_t first = std::min<std::size_t>(capacity_, std::size_t{1} << layout_->chunk_shift);
    return slots * sizeof(std::uint32_t) + first * layout_->row_bytes +
           chunks_.capacity() * sizeof(std::byte*);
}

void Shard::clear() {
    std::uint32_t* index = index_.load(std::memory_order_relaxed);
    if (index != nullptr) free_index(index, mask_.load(std::memory_order_relaxed) + 1);
    index_.store(nullptr, std::memory_order_relaxed);
    mask_.store(0, std::memory_order_relaxed);
    rows_.store(0, std::memory_order_relaxed);
    if (!chunks_.empty()) std::free(chunks_[0]);
    chunks_.clear();
    chunks_.shrink_to_fit();
    capacity_ = 0;
}

std::uint32_t* Shard::new_index(std::size_t slots) {
    if (mapped(slots)) return static_cast<std::uint32_t*>(map_pages(slots * sizeof(std::uint32_t)));
    void* index = std::calloc(slots, sizeof(std::uint32_t));
    if (index == nullptr) throw std::bad_alloc();
    return static_cast<std::uint32_t*>(index);
}

void Shard::free_index(std::uint32_t* index, std::size_t slots) {
    if (index == nullptr) return;
    if (mapped(slots))
        unmap_pages(index, slots * sizeof(std::uint32_t));
    else
        std::free(index);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
