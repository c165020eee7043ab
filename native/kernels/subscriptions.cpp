// Index lines and rows of a big table are cache misses, so keys go in windows: ask for all index lines, then
// probe them and ask for all rows, then work on the rows as they have come.
#include "sparsefleet/subscriptions.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "sparsefleet/chunks.h"
#include "sparsefleet/mix.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {
namespace {

constexpr std::size_t kWindow = 64;  // keys whose cache misses overlap
constexpr std::uint32_t kChunkShift = 15, kChunkRows = 1u << kChunkShift;
constexpr std::size_t kFirstSlots = 64, kMaxSlots = std::size_t{1} << 31;
constexpr std::size_t kWord = sizeof(std::uint64_t);

// The salt keeps this apart from other uses of the mixer: keys that one server was given must spread evenly.
std::uint64_t place_of(std::uint64_t key) { return mix64(key ^ 0x6E0F1A65ull); }

std::uint64_t key_of(const std::byte* row) {
    std::uint64_t key;
    std::memcpy(&key, row, sizeof key);  // rows are not aligned
    return key;
}

// A word of a map that is `width` bytes long, from its byte `at` on. A map of 1, 2 or 4 bytes is a short
// word.
std::uint64_t load_word(const std::byte* map, std::size_t at, std::size_t width) {
    std::uint64_t word = 0;
    switch (width) {
        case 1:
            std::memcpy(&word, map, 1);
            break;
        case 2:
            std::memcpy(&word, map, 2);
            break;
        case 4:
            std::memcpy(&word, map, 4);
            break;
        default:
            std::memcpy(&word, map + at, kWord);
    }
    return word;
}

bool has_bit(const std::byte* map, std::size_t worker) {
    return (map[worker / 8] & std::byte(1u << worker % 8)) != std::byte{0};
}
void set_bit(std::byte* map, std::size_t worker) { map[worker / 8] |= std::byte(1u << worker % 8); }
void clear_bit(std::byte* map, std::size_t worker) { map[worker / 8] &= ~std::byte(1u << worker % 8); }

bool is_empty(const std::byte* map, std::size_t width) {
    for (std::size_t i = 0; i < width; ++i)
        if (map[i] != std::byte{0}) return false;
    return true;
}

std::size_t width_for(std::size_t worker) {
    const std::size_t bytes = worker / 8 + 1;
    if (bytes > kWord) return (bytes + kWord - 1) / kWord * kWord;
    std::size_t width = 1;
    while (width < bytes) width *= 2;
    return width;
}

// Bits of an entry that hold the row's number + 1; the others are the tag. At most 80 % of the slots are
// used, so the number of slots bounds that of rows.
std::uint32_t number_mask(std::size_t slots) { return static_cast<std::uint32_t>(slots - 1); }
std::uint32_t tag_of(std::uint64_t place, std::uint32_t mask) {
    return static_cast<std::uint32_t>(place >> 32) & ~mask;
}

}  // namespace

void Subscriptions::Unmap::operator()(std::byte* chunk) const { unmap_pages(chunk, bytes); }

Subscriptions::Chunk Subscriptions::new_chunk(std::size_t width) {
    const std::size_t bytes = kChunkRows * (kWord + 2 * width);
    return Chunk(static_cast<std::byte*>(map_pages(bytes)), Unmap{bytes});
}

std::byte* Subscriptions::row(std::uint32_t number) const {
    return chunks_[number >> kChunkShift].get() + (number & (kChunkRows - 1)) * row_bytes();
}

// The first row that `place` may belong to, by its tag, without looking at rows; kNone if there is surely
// none.
std::uint32_t Subscriptions::guess(std::uint64_t place) const {
    if (index_.empty()) return kNone;
    const std::uint32_t mask = number_mask(index_.size()), tag = tag_of(place, mask);
    for (std::uint32_t slot = static_cast<std::uint32_t>(place) & mask;; slot = (slot + 1) & mask) {
        const std::uint32_t entry = index_[slot];
        if (entry == 0) return kNone;
        if ((entry & ~mask) == tag) return (entry & mask) - 1;
    }
}

std::uint32_t Subscriptions::find(std::uint64_t place, std::uint64_t key) const {
    if (index_.empty()) return kNone;
    const std::uint32_t mask = number_mask(index_.size()), tag = tag_of(place, mask);
    for (std::uint32_t slot = static_cast<std::uint32_t>(place) & mask;; slot = (slot + 1) & mask) {
        const std::uint32_t entry = index_[slot];
        if (entry == 0) return kNone;
        if ((entry & ~mask) == tag && key_of(row((entry & mask) - 1)) == key) return (entry & mask) - 1;
    }
}

// The row of a key that is not there yet: nobody subscribes to it.
std::uint32_t Subscriptions::append(std::uint64_t place, std::uint64_t key) {
    if ((rows_ + std::uint64_t{1}) * 5 > index_.size() * std::uint64_t{4}) {
        const std::size_t slots = index_.empty() ? kFirstSlots : 2 * index_.size();
        if (slots > kMaxSlots) throw std::length_error("too many keys are subscribed to; use more servers");
        index_rows(slots);
    }
    if (rows_ >> kChunkShift == chunks_.size()) chunks_.push_back(new_chunk(width_));
    std::byte* at = row(rows_);
    std::memcpy(at, &key, sizeof key);
    std::memset(at + sizeof key, 0, 2 * width_);
    const std::uint32_t mask = number_mask(index_.size());
    std::uint32_t slot = static_cast<std::uint32_t>(place) & mask;
    while (index_[slot] != 0) slot = (slot + 1) & mask;
    index_[slot] = tag_of(place, mask) | (rows_ + 1);
    return rows_++;
}

void Subscriptions::index_rows(std::size_t slots) {
    std::vector<std::uint32_t> index(slots, 0);
    const std::uint32_t mask = number_mask(slots);
    constexpr std::uint32_t kAhead = 16;
    std::uint64_t places[kAhead];
    for (std::uint32_t first = 0; first < rows_; first += kAhead) {
        const std::uint32_t count = std::min(kAhead, rows_ - first);
        for (std::uint32_t i = 0; i < count; ++i) {
            places[i] = place_of(key_of(row(first + i)));
            __builtin_prefetch(&index[static_cast<std::uint32_t>(places[i]) & mask], 1);
        }
        for (std::uint32_t i = 0; i < count; ++i) {
            std::uint32_t slot = static_cast<std::uint32_t>(places[i]) & mask;
            while (index[slot] != 0) slot = (slot + 1) & mask;
            index[slot] = tag_of(places[i], mask) | (first + i + 1);
        }
    }
    index_ = std::move(index);
}

void Subscriptions::make_room_for(std::size_t worker) {
    if (worker >= kMaxWorkers) throw std::invalid_argument("a worker's number must be below 65536");
    if (worker >= workers_.size()) workers_.resize(worker + 1);
    const std::size_t old = width_, width = std::max(old, width_for(worker));
    if (width == old) return;
    const std::size_t old_bytes = row_bytes(), bytes = kWord + 2 * width;
    std::vector<Chunk> chunks;
    // All of them before any is given up: if there is no room, nothing changes.
    chunks.reserve(chunks_.size());
    for (std::size_t c = 0; c < chunks_.size(); ++c) chunks.push_back(new_chunk(width));
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
        const std::size_t count = std::min<std::size_t>(kChunkRows, rows_ - c * kChunkRows);
        for (std::size_t i = 0; i < count; ++i) {
            const std::byte* from = chunks_[c].get() + i * old_bytes;
            std::byte* to = chunks[c].get() + i * bytes;
            std::memset(to, 0, bytes);
            std::memcpy(to, from, kWord + old);
            std::memcpy(to + kWord + width, from + kWord + old, old);
        }
        chunks_[c].reset();  // so that not all rows are there twice: a chunk's pages come as they are written
    }
    chunks_ = std::move(chunks);
    width_ = width;
}

// Calls work(row, number) for the row of each key; where there is none, it is made, or else left out.
template <bool kAppend, typename Work>
void Subscriptions::by_row(const std::uint64_t* keys, std::size_t count, Work&& work) {
    std::uint64_t places[2][kWindow];
    std::uint32_t numbers[kWindow];
    const auto look_ahead = [&](std::size_t first, std::uint64_t* to) {
        for (std::size_t i = 0; i < std::min(kWindow, count - first); ++i) {
            to[i] = place_of(keys[first + i]);
            if (!index_.empty()) __builtin_prefetch(&index_[to[i] & (index_.size() - 1)], 1);
        }
    };
    if (count > 0) look_ahead(0, places[0]);
    for (std::size_t first = 0; first < count; first += kWindow) {
        const std::uint64_t* at = places[first / kWindow % 2];
        const std::size_t n = std::min(kWindow, count - first);
        if (first + kWindow < count) look_ahead(first + kWindow, places[(first / kWindow + 1) % 2]);
        for (std::size_t i = 0; i < n; ++i) {
            numbers[i] = guess(at[i]);
            if (numbers[i] == kNone) continue;
            const std::byte* near = row(numbers[i]);
            __builtin_prefetch(near, 1);
            __builtin_prefetch(near + row_bytes() - 1, 1);
        }
        for (std::size_t i = 0; i < n; ++i) {
            const std::uint64_t key = keys[first + i];
            if (numbers[i] == kNone || key_of(row(numbers[i])) != key) {
                numbers[i] = find(at[i], key);
                if (numbers[i] == kNone && !kAppend) continue;
                if (numbers[i] == kNone) numbers[i] = append(at[i], key);
            }
            work(row(numbers[i]), numbers[i]);
        }
    }
}

void Subscriptions::subscribe(const std::uint64_t* keys, std::size_t count, std::size_t worker) {
    const std::lock_guard<std::mutex> guard(mutex_);
    make_room_for(worker);
    by_row<true>(keys, count, [&](std::byte* row, std::uint32_t) {
        std::byte* subscribed = row + kWord;
        workers_[worker].keys += !has_bit(subscribed, worker);
        set_bit(subscribed, worker);
    });
}

void Subscriptions::note(const std::uint64_t* keys, std::size_t count, std::size_t worker) {
    const std::lock_guard<std::mutex> guard(mutex_);
    make_room_for(worker);
    by_row<true>(keys, count, [&](std::byte* row, std::uint32_t number) {
        std::byte *subscribed = row + kWord, *changed = subscribed + width_;
        if (!has_bit(subscribed, worker)) {  // so it stands in no list of the worker's either
            ++workers_[worker].keys;
            set_bit(subscribed, worker);
            workers_[worker].changed.push_back(number);
            set_bit(changed, worker);
        }
        tell_others(row, number, worker);
    });
}

void Subscriptions::tell(const std::uint64_t* keys, std::size_t count) {
    const std::lock_guard<std::mutex> guard(mutex_);
    by_row<false>(keys, count,
                  [&](std::byte* row, std::uint32_t number) { tell_others(row, number, kMaxWorkers); });
}

// Puts the row on the lists of all that subscribe to it, but for the worker's, unless it stands there
// already.
inline void Subscriptions::tell_others(std::byte* row, std::uint32_t number, std::size_t worker) {
    std::byte *subscribed = row + kWord, *changed = subscribed + width_;
    for (std::size_t at = 0; at < width_; at += kWord) {
        std::uint64_t news = load_word(subscribed, at, width_) & ~load_word(changed, at, width_);
        if (worker / 64 == at / kWord) news &= ~(std::uint64_t{1} << worker % 64);
        for (; news != 0; news &= news - 1) {
            const std::size_t other = 8 * at + static_cast<std::size_t>(__builtin_ctzll(news));
            workers_[other].changed.push_back(number);
            set_bit(changed, other);
        }
    }
}

std::size_t Subscriptions::changed(std::size_t worker) const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return worker < workers_.size() ? workers_[worker].changed.size() : 0;
}

std::size_t Subscriptions::take(std::size_t worker, std::uint64_t* out, std::size_t capacity) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (worker >= workers_.size()) return 0;
    std::vector<std::uint32_t>& list = workers_[worker].changed;
    const std::size_t count = std::min(capacity, list.size());
    constexpr std::size_t kAhead = 16;
    for (std::size_t i = 0; i < count; ++i) {
        if (i + kAhead < count) __builtin_prefetch(row(list[i + kAhead]), 1);
        std::byte* at = row(list[i]);
        out[i] = key_of(at);
        clear_bit(at + kWord + width_, worker);
    }
    if (count == list.size())
        std::vector<std::uint32_t>().swap(list);  // it may have been long once
    else
        list.erase(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
}

void Subscriptions::forget(std::size_t worker) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (worker >= workers_.size()) return;
    bool holes = false;
    for (std::uint32_t number = 0; number < rows_ && workers_[worker].keys > 0; ++number) {
        std::byte* subscribed = row(number) + kWord;
        if (!has_bit(subscribed, worker)) continue;
        clear_bit(subscribed, worker);
        clear_bit(subscribed + width_, worker);
        holes = holes || is_empty(subscribed, width_);
    }
    workers_[worker] = Worker();
    if (holes) close_holes();
}

// Drops rows that nobody subscribes to. Rows get other numbers, so index and lists are made anew.
void Subscriptions::close_holes() {
    std::uint32_t kept = 0;
    for (std::uint32_t number = 0; number < rows_; ++number) {
        const std::byte* from = row(number);
        if (is_empty(from + kWord, width_)) continue;
        if (kept != number) std::memcpy(row(kept), from, row_bytes());
        ++kept;
    }
    rows_ = kept;
    chunks_.resize((std::size_t{kept} + kChunkRows - 1) >> kChunkShift);
    chunks_.shrink_to_fit();
    std::size_t slots = kFirstSlots;
    while (kept * std::uint64_t{5} > slots * std::uint64_t{4}) slots *= 2;
    index_rows(slots);
    for (Worker& worker : workers_) worker.changed.clear();
    for (std::uint32_t number = 0; number < rows_; ++number) {
        const std::byte* changed = row(number) + kWord + width_;
        for (std::size_t at = 0; at < width_; at += kWord)
            for (std::uint64_t bits = load_word(changed, at, width_); bits != 0; bits &= bits - 1)
                workers_[8 * at + static_cast<std::size_t>(__builtin_ctzll(bits))].changed.push_back(number);
    }
}

std::size_t Subscriptions::keys(std::size_t worker) const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return worker < workers_.size() ? workers_[worker].keys : 0;
}

std::size_t Subscriptions::keys() const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return rows_;
}

std::size_t Subscriptions::memory_bytes() const {
    const std::lock_guard<std::mutex> guard(mutex_);
    std::size_t lists = workers_.capacity() * sizeof(Worker);
    for (const Worker& worker : workers_) lists += worker.changed.capacity() * sizeof(std::uint32_t);
    return chunks_.size() * kChunkRows * row_bytes() + chunks_.capacity() * sizeof(chunks_[0]) +
           index_.capacity() * sizeof(std::uint32_t) + lists;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
