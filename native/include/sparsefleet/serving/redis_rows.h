// Rows of bundles in Redis: writes commands and reads replies. src/sparsefleet/serving/redis/FORMAT.md
// specifies the layout.
//
// A bucket is one value: the keys of its rows, uint64 each, then the rows, `stride` bytes each. It is a field
// of its table's hash, named by the bucket's number, 4 bytes; or a string, named by a prefix and the number.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparsefleet/serving/bundle_rows.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

struct Bytes {
    const unsigned char* data;
    std::size_t size;
};

// Where a table's buckets are: fields of the hash `hash`, or, where that is empty, strings whose names begin
// with `prefix`.
struct BucketPlace {
    Bytes hash, prefix;
};

// The bucket of each key: the top bits of its place.
void bucket_numbers(const std::uint64_t* keys, std::size_t n, std::uint64_t seed, std::uint32_t bits,
                    std::uint32_t* out);

// What was written, and where to go on.
struct BucketsWritten {
    std::size_t bytes = 0, commands = 0;
    std::uint64_t bucket = 0, row = 0;  // the next ones
};

// Writes HSET or MSET commands of the buckets from `bucket` on, whose first row is `row`: as many whole
// commands as fit into `out`, each of at most `per_command` buckets and about `command_bytes`.
BucketsWritten encode_buckets(const MappedRows& file, std::uint32_t bits, BucketPlace place,
                              std::uint64_t bucket, std::uint64_t row, std::size_t per_command,
                              std::size_t command_bytes, unsigned char* out, std::size_t capacity);

// Writes commands `verb name name …`, or `verb hash name name …`, of `per_command` names each. Returns the
// bytes written, which are at most `names_bytes(...)`.
std::size_t encode_names(Bytes verb, BucketPlace place, const std::uint32_t* buckets, std::size_t n,
                         std::size_t per_command, unsigned char* out);
std::size_t names_bytes(std::size_t verb, BucketPlace place, std::size_t n, std::size_t per_command);

enum ReplyStatus : int {
    kMore = 0,      // the reply goes on in bytes that have not come yet
    kDone = 1,      // every key has been answered
    kRefused = 2,   // an error line starts at `consumed`
    kAbsent = 3,    // a bucket does not exist
    kMisshapen = 4  // a value that is not a bucket, or a reply that is not RESP
};

struct BucketsRead {
    std::size_t consumed = 0, answered = 0;
    int status = kMore;
};

// Reads replies to HMGET or MGET. For each key, copies its row's bytes to packed[at[i]] and writes to
// found[at[i]] whether there is a row. The first `answered` keys were read by earlier calls.
BucketsRead read_buckets(const unsigned char* data, std::size_t size, const std::uint64_t* keys,
                         const std::int64_t* at, std::size_t n, std::size_t per_command, std::size_t stride,
                         std::size_t answered, unsigned char* packed, std::uint8_t* found);

// A buffer of received bytes; those from `begin` to `end` have not been read yet.
struct Received {
    unsigned char* data;
    std::size_t size, begin, end;
};

// The same, and receives what has not come yet from a socket (none if negative). Ends with kMore where there
// is no socket, or where a value does not fit into the buffer; `error` is an errno if the socket fails,
// ETIMEDOUT after `seconds`, ECONNRESET if the other side has closed it.
struct BucketsReceived {
    std::size_t answered = 0;
    int status = kMore, error = 0;
};
BucketsReceived receive_buckets(int socket, double seconds, Received& received, const std::uint64_t* keys,
                                const std::int64_t* at, std::size_t n, std::size_t per_command,
                                std::size_t stride, std::size_t answered, unsigned char* packed,
                                std::uint8_t* found);

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
