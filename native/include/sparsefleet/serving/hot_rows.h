// The rows of a table that requests ask for most, side by side: in Redis they are a few long values, which
// are read together where a request asks for many of them. src/sparsefleet/serving/redis/FORMAT.md specifies
// the layout. Here are their keys alone, and where the row of each lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sparsefleet/serving/redis_rows.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

constexpr std::uint32_t kNotHot = 0xffffffff;

class HotKeys {
  public:
    // The row of keys[i] is the i-th; of equal keys the first counts. `n` is below 2^31.
    HotKeys(const std::uint64_t* keys, std::size_t n);

    std::size_t size() const { return rows_; }

    // The place of a key's row, or kNotHot.
    std::uint32_t find(std::uint64_t key) const;

  private:
    std::size_t rows_, mask_;
    std::vector<std::uint64_t> keys_;    // open addressing: a key stands at its place or after it
    std::vector<std::uint32_t> places_;  // kNotHot: nothing stands here
};

// Rows in one value of Redis; the last one may have fewer.
std::size_t hot_value_rows(std::size_t stride);

// Reads the reply to an HMGET of all values of `rows` hot rows and copies row i to packed[to[i]], unless
// to[i] is kNotHot. Values before `answered` were read by earlier calls. Any status but kMore and kDone: this
// is not such a reply.
BucketsRead read_hot_rows(const unsigned char* data, std::size_t size, const std::uint32_t* to,
                          std::size_t rows, std::size_t stride, std::size_t answered, unsigned char* packed);

// The same, and receives what has not come yet, as receive_buckets does.
BucketsReceived receive_hot_rows(int socket, double seconds, Received& received, const std::uint32_t* to,
                                 std::size_t rows, std::size_t stride, unsigned char* packed);

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
