// How a call goes through the shards. Every row of a big table is a cache miss (index line, then row), so
// keys go in windows: ask for all index lines, then probe them and ask for all rows, then work on the rows as
// they have come.
#include "sparsefleet/table.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <vector>

#include "sparsefleet/float_mode.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {
namespace {

constexpr std::size_t kWindow = 64;           // keys whose cache misses overlap
constexpr std::size_t kSortedKeys = 1 << 16;  // keys sorted at a time: bounds the scratch memory of a thread
constexpr std::size_t kLine = 64;
constexpr std::size_t kPrefetchedBytes =
    1024;  // of a row; the processor's own prefetcher sees to the rest of a long one

// A key on its way through a call.
struct Item {
    std::uint64_t place, key;
    std::uint32_t position;  // in the caller's arrays
};

struct Group {
    const Item* begin;
    const Item* end;
};

// Items sorted by shard. Kept per thread, so that a call allocates nothing once it is warm.
struct Sorted {
    std::vector<Item> items;
    std::uint32_t starts[RowTable::kShards + 1];

    void sort(const std::uint64_t* keys, std::size_t first, std::size_t count) {
        if (items.size() < count) items.resize(std::min(kSortedKeys, std::max(count, 2 * items.size())));
        std::uint32_t sizes[RowTable::kShards] = {};
        for (std::size_t i = 0; i < count; ++i) ++sizes[shard_of(place_of(keys[first + i]))];
        std::uint32_t ends[RowTable::kShards], total = 0;
        for (std::size_t s = 0; s < RowTable::kShards; ++s) {
            starts[s] = ends[s] = total;
            total += sizes[s];
        }
        starts[RowTable::kShards] = total;
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint64_t key = keys[first + i], place = place_of(key);
            items[ends[shard_of(place)]++] = Item{place, key, static_cast<std::uint32_t>(i)};
        }
    }

    Group group(std::size_t shard) const {
        return Group{items.data() + starts[shard], items.data() + starts[shard + 1]};
    }
};

Sorted& scratch() {
    thread_local Sorted sorted;
    return sorted;
}

template <int kForWrite>
inline void prefetch_row(const std::byte* row, std::size_t bytes) {
    // The last byte is asked for by itself: rows are not aligned to lines.
    for (std::size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row + at, kForWrite);
    __builtin_prefetch(row + bytes - 1, kForWrite);
}

inline void copy_floats(float* to, const float* from, std::size_t n) {
    if (n < 4) {
        for (std::size_t i = 0; i < n; ++i) to[i] = from[i];
        return;
    }
    for (std::size_t i = 0; i + 4 <= n; i += 4) std::memcpy(to + i, from + i, 16);
    std::memcpy(to + n - 4, from + n - 4, 16);  // overlaps what is copied already
}

inline void prefetch_window(const Shard& shard, const Item* begin, const Item* end) {
    end = std::min(end, begin + kWindow);
    for (const Item* item = begin; item < end; ++item) shard.prefetch(item->place);
}

// Calls work(items, count, rows) for each window of a group. rows[i] is the number of a row that holds the
// key of items[i], or Shard::kNone. The shard is locked.
template <int kForWrite, typename Work>
void by_window(const Shard& shard, const Group& group, std::size_t row_bytes, Work&& work) {
    std::uint32_t rows[kWindow];
    const std::size_t wanted = std::min(row_bytes, kPrefetchedBytes);
    const bool keeping = kForWrite && shard.aside.open();
    for (const Item* window = group.begin; window < group.end; window += kWindow) {
        const std::size_t count =
            std::min<std::size_t>(kWindow, static_cast<std::size_t>(group.end - window));
        if (window + kWindow < group.end) prefetch_window(shard, window + kWindow, group.end);
        for (std::size_t i = 0; i < count; ++i) {
            rows[i] = shard.guess(window[i].place);
            if (rows[i] == Shard::kNone) continue;
            prefetch_row<kForWrite>(shard.row(rows[i]), wanted);
            if (keeping) shard.aside.prefetch(rows[i]);
        }
        for (std::size_t i = 0; i < count; ++i) {
            // A tag that matched by chance, once in some hundred keys: look properly.
            if (rows[i] != Shard::kNone && row_key(shard.row(rows[i])) != window[i].key)
                rows[i] = shard.find(window[i].place, window[i].key);
        }
        work(window, count, rows);
    }
}

}  // namespace

RowTable::RowTable(std::size_t dim, std::size_t state_width, const Initializer& init, float initial_state,
                   bool notes, std::unique_ptr<IdleSteps> idle)
    : layout_(dim, state_width),
      init_(init),
      initial_state_(initial_state),
      notes_(notes),
      idle_(std::move(idle)),
      arena_(layout_.chunk_bytes),
      aside_arena_(Aside::chunk_bytes(layout_.row_bytes)),
      shards_(new Shard[kShards]) {
    if (notes && state_width < dim)
        throw std::invalid_argument("a table that notes needs a float of state for each value");
    if (idle_ != nullptr && (notes || idle_->state_width(dim) != state_width))
        throw std::invalid_argument("an exact table has the state of its rule, and does not note");
    for (std::size_t s = 0; s < kShards; ++s) shards_[s].attach(&layout_, &arena_);
}

RowTable::~RowTable() = default;

// Calls visit(shard, group, first, wait) for each shard that has keys; `first` is what to add to an item's
// position. visit returns false if the shard is busy, which only wait = false allows.
template <typename Visit>
void RowTable::by_shard(const std::uint64_t* keys, std::size_t count, Visit&& visit) const {
    Sorted& sorted = scratch();
    for (std::size_t first = 0; first < count; first += kSortedKeys) {
        sorted.sort(keys, first, std::min(kSortedKeys, count - first));
        // Threads begin at different shards, so that they do not queue up behind each other.
        const std::uint32_t start = next_start_.fetch_add(kShards / 2 - 5, std::memory_order_relaxed);
        std::uint32_t order[kShards];
        std::size_t waiting = 0;
        for (std::uint32_t i = 0; i < kShards; ++i) {
            const std::uint32_t s = (start + i) % kShards;
            if (sorted.starts[s] != sorted.starts[s + 1]) order[waiting++] = s;
        }
        for (bool wait = false; waiting > 0; wait = true) {
            const std::size_t present = waiting;
            waiting = 0;
            for (std::size_t i = 0; i < present; ++i) {
                const Group group = sorted.group(order[i]);
                if (i == 0) prefetch_window(shards_[order[0]], group.begin, group.end);
                if (i + 1 < present) {
                    const Group next = sorted.group(order[i + 1]);
                    prefetch_window(shards_[order[i + 1]], next.begin, next.end);
                }
                if (!visit(shards_[order[i]], group, first, wait)) order[waiting++] = order[i];
            }
        }
    }
}

namespace {

template <typename Lock>
bool lock_if(Lock& lock, bool wait) {
    if (wait) {
        lock.lock();
        return true;
    }
    return lock.try_lock();
}

}  // namespace

std::size_t RowTable::pull(const std::uint64_t* keys, std::size_t count, float* out, bool create,
                           std::uint32_t clock) {
    if (idle_ != nullptr) return pull_exact(keys, count, out, create, clock);
    thread_local std::vector<Item> missing;
    const std::size_t dim = layout_.dim, read_bytes = RowLayout::kValues + sizeof(float) * dim;
    std::size_t misses = 0;
    by_shard(keys, count, [&](Shard& shard, const Group& group, std::size_t first, bool wait) {
        missing.clear();
        {
            std::shared_lock<std::shared_mutex> lock(shard.mutex, std::defer_lock);
            if (!lock_if(lock, wait)) return false;
            by_window<0>(shard, group, read_bytes,
                         [&](const Item* items, std::size_t n, const std::uint32_t* rows) {
                             for (std::size_t i = 0; i < n; ++i) {
                                 float* to = out + (first + items[i].position) * dim;
                                 if (rows[i] != Shard::kNone)
                                     copy_floats(to, row_values(shard.row(rows[i])), dim);
                                 else if (create)
                                     missing.push_back(items[i]);
                                 else
                                     std::fill(to, to + dim, 0.0f), ++misses;
                             }
                         });
        }
        if (missing.empty()) return true;
        misses += missing.size();
        const std::unique_lock<std::shared_mutex> lock(shard.mutex);
        for (const Item& item : missing) {
            const float* values = row_values(shard.row(find_or_create(shard, item.place, item.key, clock)));
            copy_floats(out + (first + item.position) * dim, values, dim);
        }
        return true;
    });
    return misses;
}

template <typename Work>
void RowTable::by_locked_window(const std::uint64_t* keys, std::size_t count, Work&& work) {
    by_shard(keys, count, [&](Shard& shard, const Group& group, std::size_t first, bool wait) {
        std::unique_lock<std::shared_mutex> lock(shard.mutex, std::defer_lock);
        if (!lock_if(lock, wait)) return false;
        by_window<1>(shard, group, layout_.row_bytes,
                     [&](const Item* items, std::size_t n, std::uint32_t* rows) {
                         if (shard.aside.open())
                             shard.aside.keep(shard, rows, n, layout_.row_bytes, aside_arena_);
                         work(shard, first, items, n, rows);
                     });
        return true;
    });
}

// Reading moves rows: what was caught up need not be again.
std::size_t RowTable::pull_exact(const std::uint64_t* keys, std::size_t count, float* out, bool create,
                                 std::uint32_t clock) {
    expect_noted_steps(clock);
    const std::size_t dim = layout_.dim;
    std::size_t misses = 0;
    by_locked_window(
        keys, count,
        [&](Shard& shard, std::size_t first, const Item* items, std::size_t n, std::uint32_t* rows) {
            for (std::size_t i = 0; i < n; ++i) {
                if (rows[i] != Shard::kNone) continue;
                ++misses;
                if (create) rows[i] = find_or_create(shard, items[i].place, items[i].key, 0);
            }
            const FlushDenormals mode;  // not before rows were created: first values keep denormals
            for (std::size_t i = 0; i < n; ++i) {
                float* to = out + (first + items[i].position) * dim;
                if (rows[i] == Shard::kNone) {
                    std::fill(to, to + dim, 0.0f);
                    continue;
                }
                std::byte* row = shard.row(rows[i]);
                std::uint32_t& touched = *row_touched(row);
                touched = idle_->catch_up(row_values(row), dim, touched, clock);
                copy_floats(to, row_values(row), dim);
            }
        });
    return misses;
}

void RowTable::push(const std::uint64_t* keys, std::size_t count, const float* grads,
                    const std::uint32_t* occurrences, const RuleStep& rule, std::uint32_t clock) {
    expect_rule(rule);
    const std::size_t dim = layout_.dim;
    const std::uint32_t created = idle_ == nullptr ? clock : 0;
    if (idle_ != nullptr) expect_noted_steps(clock);
    by_locked_window(
        keys, count,
        [&](Shard& shard, std::size_t first, const Item* items, std::size_t n, std::uint32_t* rows) {
            // All rows come first: one that is created may move the others.
            for (std::size_t i = 0; i < n; ++i)
                if (rows[i] == Shard::kNone)
                    rows[i] = find_or_create(shard, items[i].place, items[i].key, created);
            float* values[kWindow];
            const float* gradients[kWindow];
            for (std::size_t i = 0; i < n; ++i) {
                std::byte* row = shard.row(rows[i]);
                const std::size_t from = first + items[i].position;
                std::uint32_t& seen = *row_seen(row);
                const std::uint32_t more = seen + (occurrences == nullptr ? 1 : occurrences[from]);
                seen = more < seen ? 0xFFFFFFFFu : more;
                values[i] = row_values(row);
                if (idle_ == nullptr) {
                    *row_touched(row) = clock;
                } else {  // another thread may have been here with a later step
                    std::uint32_t& touched = *row_touched(row);
                    idle_->wake(values[i], dim, touched, clock - 1);
                    if (static_cast<std::int32_t>(clock - touched) > 0) touched = clock;
                }
                gradients[i] = grads + from * dim;
            }
            rule.update_rows(values, gradients, n, dim);
        });
}

std::uint32_t RowTable::find_or_create(Shard& shard, std::uint64_t place, std::uint64_t key,
                                       std::uint32_t clock) {
    std::uint32_t number = shard.find(place, key);
    if (number != Shard::kNone) return number;
    number = shard.append(place, key);
    *row_touched(shard.row(number)) = clock;
    float* values = row_values(shard.row(number));
    init_row(init_, key, values, layout_.dim);
    float *state = values + layout_.dim, *end = state + layout_.state_width;
    std::fill(state, notes_ ? end - layout_.dim : end, initial_state_);
    if (notes_) std::copy_n(values, layout_.dim, end - layout_.dim);
    return number;
}

void RowTable::insert(const std::uint64_t* keys, std::size_t count, const float* values, const float* state,
                      const std::uint32_t* seen, const std::uint32_t* touched) {
    const std::size_t dim = layout_.dim, width = layout_.state_width;
    by_locked_window(
        keys, count,
        [&](Shard& shard, std::size_t first, const Item* items, std::size_t n, std::uint32_t* rows) {
            for (std::size_t i = 0; i < n; ++i) {
                const Item& item = items[i];
                if (rows[i] == Shard::kNone)
                    rows[i] = shard.find(item.place, item.key);  // twice in the window?
                if (rows[i] == Shard::kNone) rows[i] = shard.append(item.place, item.key);
                const std::size_t from = first + item.position;
                std::byte* row = shard.row(rows[i]);
                *row_seen(row) = seen[from];
                *row_touched(row) = touched[from];
                std::memcpy(row_values(row), values + from * dim, dim * sizeof(float));
                std::memcpy(row_values(row) + dim, state + from * width, width * sizeof(float));
            }
        });
}

void RowTable::expect_noted() const {
    if (!notes_) throw std::invalid_argument("this table does not note what was changed");
}

void RowTable::note_steps(std::uint64_t first, std::uint64_t last, double lr) {
    if (idle_ == nullptr) throw std::invalid_argument("this table is not exact: it has no use for steps");
    idle_->note(first, last, lr);
}

void RowTable::forget_steps() {
    if (idle_ == nullptr) throw std::invalid_argument("this table is not exact: it has no use for steps");
    idle_->forget();
}

void RowTable::expect_noted_steps(std::uint64_t step) const {
    if (step > idle_->noted()) throw std::invalid_argument("an exact table does not know this step yet");
}

void RowTable::expect_rule(const RuleStep& rule) const {
    if (rule.state_width(layout_.dim) != layout_.state_width)
        throw std::invalid_argument("this rule needs another state width than the table has");
    if (rule.notes() != notes_)
        throw std::invalid_argument(notes_ ? "this table notes what was changed; the rule does not"
                                           : "this table does not note what was changed; the rule does");
}

void RowTable::take(const std::uint64_t* keys, std::size_t count, float shares, float* out,
                    std::uint32_t* occurrences) {
    expect_noted();
    const std::size_t dim = layout_.dim;
    by_locked_window(
        keys, count,
        [&](Shard& shard, std::size_t first, const Item* items, std::size_t n, const std::uint32_t* rows) {
            for (std::size_t i = 0; i < n; ++i) {
                float* to = out + (first + items[i].position) * dim;
                std::uint32_t& counted = occurrences[first + items[i].position];
                if (rows[i] == Shard::kNone) {
                    std::fill(to, to + dim, 0.0f);
                    counted = 0;
                    continue;
                }
                std::byte* row = shard.row(rows[i]);
                counted = *row_seen(row);
                *row_seen(row) = 0;
                const float* values = row_values(row);
                float* told = row_values(row) + layout_.state_width;  // the last of the row
                for (std::size_t d = 0; d < dim; ++d) {
                    to[d] = (values[d] - told[d]) / shares;
                    told[d] += to[d];
                }
            }
        });
}

void RowTable::rebase(const std::uint64_t* keys, std::size_t count, const float* values, bool create,
                      const RuleStep& rule) {
    expect_noted();
    expect_rule(rule);
    const std::size_t dim = layout_.dim;
    by_locked_window(
        keys, count,
        [&](Shard& shard, std::size_t first, const Item* items, std::size_t n, std::uint32_t* rows) {
            if (create) {  // first of all: a row that is created may move the others
                for (std::size_t i = 0; i < n; ++i)
                    if (rows[i] == Shard::kNone)
                        rows[i] = find_or_create(shard, items[i].place, items[i].key, 0);
            }
            float* here[kWindow];
            const float* there[kWindow];
            std::size_t found = 0;
            for (std::size_t i = 0; i < n; ++i) {
                if (rows[i] == Shard::kNone) continue;
                here[found] = row_values(shard.row(rows[i]));
                there[found++] = values + (first + items[i].position) * dim;
            }
            rule.rebase_rows(here, there, found, dim);
        });
}

void RowTable::contains(const std::uint64_t* keys, std::size_t count, std::uint8_t* found) const {
    by_shard(keys, count, [&](const Shard& shard, const Group& group, std::size_t first, bool wait) {
        std::shared_lock<std::shared_mutex> lock(shard.mutex, std::defer_lock);
        if (!lock_if(lock, wait)) return false;
        by_window<0>(shard, group, RowLayout::kValues,
                     [&](const Item* items, std::size_t n, const std::uint32_t* rows) {
                         for (std::size_t i = 0; i < n; ++i)
                             found[first + items[i].position] = rows[i] != Shard::kNone;
                     });
        return true;
    });
}

void RowTable::copy_out(const std::byte* row, const RowArrays& out, std::size_t at,
                        std::uint32_t clock) const {
    const std::size_t dim = layout_.dim, width = layout_.state_width;
    const std::byte* values = row + RowLayout::kValues;
    out.keys[at] = row_key(row);
    if (idle_ != nullptr) {  // a copy is caught up, not the row: the caller may read, not write
        thread_local std::vector<float> copy;
        copy.resize(dim + width);
        std::memcpy(copy.data(), values, (dim + width) * sizeof(float));
        std::memcpy(out.touched + at, row + RowLayout::kTouched, sizeof(std::uint32_t));
        const FlushDenormals mode;
        out.touched[at] = idle_->catch_up(copy.data(), dim, out.touched[at], clock);
        std::memcpy(out.seen + at, row + RowLayout::kSeen, sizeof(std::uint32_t));
        std::memcpy(out.values + at * dim, copy.data(), dim * sizeof(float));
        std::memcpy(out.state + at * width, copy.data() + dim, width * sizeof(float));
        return;
    }
    std::memcpy(out.seen + at, row + RowLayout::kSeen, sizeof(std::uint32_t));
    std::memcpy(out.touched + at, row + RowLayout::kTouched, sizeof(std::uint32_t));
    std::memcpy(out.values + at * dim, values, dim * sizeof(float));
    std::memcpy(out.state + at * width, values + dim * sizeof(float), width * sizeof(float));
}

// The cursor: shard in the high half, number of the next row in the low one.
std::size_t RowTable::scan(std::uint64_t& cursor, std::size_t capacity, const RowArrays& out,
                           std::uint32_t clock) const {
    if (idle_ != nullptr) expect_noted_steps(clock);
    std::size_t copied = 0;
    while (copied < capacity && (cursor >> 32) < kShards) {
        const std::uint64_t s = cursor >> 32;
        const Shard& shard = shards_[s];
        const std::shared_lock<std::shared_mutex> lock(shard.mutex);
        std::uint32_t number = static_cast<std::uint32_t>(cursor);
        for (; number < shard.rows() && copied < capacity; ++number, ++copied)
            copy_out(shard.row(number), out, copied, clock);
        cursor = number < shard.rows() ? (s << 32 | number) : ((s + 1) << 32);
    }
    return copied;
}

std::size_t RowTable::rows() const {
    std::size_t total = 0;
    for (std::size_t s = 0; s < kShards; ++s) total += shards_[s].rows();
    return total;
}

std::size_t RowTable::memory_bytes() const {
    std::size_t total = sizeof(RowTable) + kShards * sizeof(Shard) + arena_.bytes() + aside_arena_.bytes();
    if (idle_ != nullptr) total += idle_->memory_bytes();
    for (std::size_t s = 0; s < kShards; ++s) {
        const std::shared_lock<std::shared_mutex> lock(shards_[s].mutex);
        total += shards_[s].memory_bytes() + shards_[s].aside.memory_bytes();
    }
    return total;
}

void RowTable::clear() {
    const std::lock_guard<std::mutex> cutting(cut_mutex_);
    if (cut_open_) throw std::invalid_argument("a table cannot be cleared while a cut of it is open");
    // All shards at once: their chunks come from one arena. Others hold one lock at a time, so this cannot
    // deadlock.
    std::vector<std::unique_lock<std::shared_mutex>> locks;
    locks.reserve(kShards);
    for (std::size_t s = 0; s < kShards; ++s) locks.emplace_back(shards_[s].mutex);
    for (std::size_t s = 0; s < kShards; ++s) shards_[s].clear();
    arena_.release_all();
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
