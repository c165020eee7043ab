// Rows of a served network (mapped_network.h) from Redis: cached ones, and the others in one round trip, over
// a connection that the caller lends. Python is left alone from a request's bytes to its probabilities.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sparsefleet/serving/hot_rows.h"
#include "sparsefleet/serving/mapped_network.h"
#include "sparsefleet/serving/redis_rows.h"
#include "sparsefleet/serving/row_cache.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

struct RedisTable {
    RowCache* cache;
    std::uint64_t seed;
    std::uint32_t bits, dim, stride, type;
    std::string hash, prefix;            // as in BucketPlace
    std::shared_ptr<const HotKeys> hot;  // null: none
    std::string hot_hash;                // whose fields are the values of hot rows, named as buckets are
};

// The exchange with Redis of requests that are scored together. For one thread. After any other end than
// kDone the connection must be closed: replies may be on their way that nobody has read.
class RedisLookup final : public RowLookup {
  public:
    using Clock = std::chrono::steady_clock;

    // All of it takes `seconds` at most. `received` is the connection's buffer. A command has at most
    // `per_command` names.
    RedisLookup(const std::vector<RedisTable>& tables, int socket, double seconds, Received& received,
                std::size_t per_command)
        : tables_(tables),
          socket_(socket),
          seconds_(seconds),
          received_(received),
          per_command_(per_command) {}

    ~RedisLookup() override;
    RedisLookup(const RedisLookup&) = delete;
    RedisLookup& operator=(const RedisLookup&) = delete;

    // Sends the commands for the first request.
    void ask(const std::vector<Wanted>& wanted, std::size_t requests) override;
    // Receives the replies that this request needs, and sends the commands for the next one: Redis works on
    // these while this one is scored.
    std::size_t find(const std::vector<Wanted>& wanted, std::size_t request) override;

    int status = kDone, error = 0;  // as in BucketsReceived
    std::size_t fetched = 0;        // keys that were not cached
    bool hot_failed = false;        // what `status` says is of hot rows; they are in their buckets, too

  private:
    void send_for(std::size_t request);

    Clock::time_point deadline_;
    const std::vector<RedisTable>& tables_;
    int socket_;
    double seconds_;
    Received& received_;
    std::size_t per_command_;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
