// Subscriptions: which workers know which keys of a table, and what each of them has to be told.
//
// A key's row is [key u64 | subscribed B bytes | changed B bytes], one bit a worker in each map; B is 1, 2,
// 4, 8 or a multiple of 8, and grows with the highest worker that subscribes. `changed` says that the row
// stands in that worker's list of rows to hear of, so that it stands there once, however often it is changed.
//
// Rows stand in chunks and are found through an open-addressing index of 32-bit entries: the row's number,
// and as many bits of the key's mix as are left, so that almost every probe that hits is the right one.
//
// Any number of threads may call anything at any time: one lock guards all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace sparsefleet::SPARSEFLEET_LEVEL {

class Subscriptions {
  public:
    static constexpr std::size_t kMaxWorkers = 1 << 16;

    Subscriptions() = default;
    Subscriptions(const Subscriptions&) = delete;
    Subscriptions& operator=(const Subscriptions&) = delete;

    // The worker wants to hear of these keys.
    void subscribe(const std::uint64_t* keys, std::size_t count, std::size_t worker);

    // The worker has changed these keys: all others that subscribe will hear of them. Those that are new to
    // the worker it subscribes to, and hears of itself: others may have changed them before.
    void note(const std::uint64_t* keys, std::size_t count, std::size_t worker);

    // Somebody who subscribes to nothing has changed these keys: all that subscribe will hear of them.
    void tell(const std::uint64_t* keys, std::size_t count);

    // How many keys the worker has to hear of.
    std::size_t changed(std::size_t worker) const;

    // Moves up to `capacity` of these keys to `out`, each once, and returns their number.
    std::size_t take(std::size_t worker, std::uint64_t* out, std::size_t capacity);

    // The worker hears of nothing more. Keys that nobody else knows are gone, with their memory.
    void forget(std::size_t worker);

    // How many keys the worker subscribes to, and how many anybody does.
    std::size_t keys(std::size_t worker) const;
    std::size_t keys() const;
    std::size_t memory_bytes() const;  // everything: rows, index, lists, slack

  private:
    static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

    // Pages of its own: what is given up goes back to the system, whatever else has been allocated meanwhile.
    struct Unmap {
        std::size_t bytes;
        void operator()(std::byte* chunk) const;
    };
    using Chunk = std::unique_ptr<std::byte, Unmap>;

    struct Worker {
        std::vector<std::uint32_t> changed;  // row numbers
        std::size_t keys = 0;
    };

    static Chunk new_chunk(std::size_t width);
    template <bool kAppend, typename Work>
    void by_row(const std::uint64_t* keys, std::size_t count, Work&& work);
    void tell_others(std::byte* row, std::uint32_t number, std::size_t worker);
    void make_room_for(std::size_t worker);
    std::size_t row_bytes() const { return sizeof(std::uint64_t) + 2 * width_; }
    std::byte* row(std::uint32_t number) const;
    std::uint32_t guess(std::uint64_t place) const;
    std::uint32_t find(std::uint64_t place, std::uint64_t key) const;
    std::uint32_t append(std::uint64_t place, std::uint64_t key);
    void index_rows(std::size_t slots);
    void close_holes();

    mutable std::mutex mutex_;
    std::size_t width_ = 1;  // B
    std::vector<Chunk> chunks_;
    std::uint32_t rows_ = 0;
    std::vector<std::uint32_t> index_;  // 0: an empty slot; else tag bits over the row's number + 1
    std::vector<Worker> workers_;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
