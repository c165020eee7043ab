#include "sparsefleet/serving/redis_rows.h"

#include <algorithm>
#include <cstring>

#include "sparsefleet/mix.h"
#include "sparsefleet/serving/redis_reply.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

constexpr std::size_t kNumberBytes = 4, kHead = kReplyHead;

std::uint64_t load_key(const unsigned char* p) {
    std::uint64_t key;
    std::memcpy(&key, p, sizeof key);
    return key;
}

std::uint32_t bucket_of(std::uint64_t place, std::uint32_t bits) {
    return bits ? static_cast<std::uint32_t>(place >> (64 - bits)) : 0;
}

unsigned char* put_length(unsigned char* to, unsigned char kind, std::uint64_t length) {
    unsigned char digits[20];
    std::size_t n = 0;
    do digits[n++] = static_cast<unsigned char>('0' + length % 10);
    while (length /= 10);
    *to++ = kind;
    while (n) *to++ = digits[--n];
    *to++ = '\r';
    *to++ = '\n';
    return to;
}

unsigned char* put_bytes(unsigned char* to, const unsigned char* from, std::size_t size) {
    if (size) std::memcpy(to, from, size);
    return to + size;
}

unsigned char* put_line_end(unsigned char* to) {
    *to++ = '\r';
    *to++ = '\n';
    return to;
}

unsigned char* put_string(unsigned char* to, Bytes text) {
    return put_line_end(put_bytes(put_length(to, '$', text.size), text.data, text.size));
}

unsigned char* put_name(unsigned char* to, Bytes prefix, std::uint32_t bucket) {
    to = put_bytes(put_length(to, '$', prefix.size + kNumberBytes), prefix.data, prefix.size);
    for (std::size_t i = 0; i < kNumberBytes; ++i) *to++ = static_cast<unsigned char>(bucket >> (8 * i));
    return put_line_end(to);
}

}  // namespace

void bucket_numbers(const std::uint64_t* keys, std::size_t n, std::uint64_t seed, std::uint32_t bits,
                    std::uint32_t* out) {
    for (std::size_t i = 0; i < n; ++i) out[i] = bucket_of(mix64(keys[i] ^ seed), bits);
}

BucketsWritten encode_buckets(const MappedRows& file, std::uint32_t bits, BucketPlace place,
                              std::uint64_t bucket, std::uint64_t row, std::size_t per_command,
                              std::size_t command_bytes, unsigned char* out, std::size_t capacity) {
    static const unsigned char kStrings[] = "MSET", kFields[] = "HSET";
    constexpr std::size_t kGroup = 256;
    const unsigned char* keys = file.data + file.keys;
    const unsigned char* rows = file.data + file.values;
    const std::uint64_t buckets = std::uint64_t{1} << bits, width = 8 + std::uint64_t{file.stride};
    const std::size_t name = kHead + place.prefix.size + kNumberBytes;
    BucketsWritten done;
    done.bucket = bucket;
    done.row = row;
    per_command = std::min(per_command, kGroup);
    while (done.bucket < buckets) {
        // Keys are in the order of their places, so the rows of a bucket stand together: find where each
        // bucket ends.
        std::uint64_t ends[kGroup];
        std::size_t count = 0, size = 3 * kHead + place.hash.size;
        for (std::uint64_t end = done.row; count < per_command && done.bucket + count < buckets; ++count) {
            const std::uint64_t from = end, number = done.bucket + count;
            while (end < file.rows && bucket_of(mix64(load_key(keys + 8 * end) ^ file.seed), bits) == number)
                ++end;
            const std::size_t more = name + kHead + static_cast<std::size_t>((end - from) * width);
            if (count && size + more > command_bytes) break;
            size += more;
            ends[count] = end;
        }
        if (size > capacity - done.bytes) break;
        unsigned char* to = put_length(out + done.bytes, '*', (place.hash.size ? 2 : 1) + 2 * count);
        to = put_string(to, {place.hash.size ? kFields : kStrings, 4});
        if (place.hash.size) to = put_string(to, place.hash);
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint64_t n = ends[i] - done.row;
            to = put_name(to, place.prefix, static_cast<std::uint32_t>(done.bucket + i));
            to = put_length(to, '$', n * width);
            to = put_bytes(to, keys + 8 * done.row, static_cast<std::size_t>(8 * n));
            to = put_line_end(
                put_bytes(to, rows + file.stride * done.row, static_cast<std::size_t>(n) * file.stride));
            done.row = ends[i];
        }
        done.bucket += count;
        done.bytes = static_cast<std::size_t>(to - out);
        ++done.commands;
    }
    return done;
}

std::size_t names_bytes(std::size_t verb, BucketPlace place, std::size_t n, std::size_t per_command) {
    return (n / per_command + 1) * (3 * kHead + verb + place.hash.size) +
           n * (kHead + place.prefix.size + kNumberBytes);
}

std::size_t encode_names(Bytes verb, BucketPlace place, const std::uint32_t* buckets, std::size_t n,
                         std::size_t per_command, unsigned char* out) {
    // All names are equally long: write the first, then copy it and change the number.
    const Bytes prefix = place.prefix;
    unsigned char head[kHead];
    const auto head_size = static_cast<std::size_t>(put_length(head, '$', prefix.size + kNumberBytes) - head);
    unsigned char* to = out;
    for (std::size_t start = 0; start < n; start += per_command) {
        const std::size_t count = std::min(per_command, n - start);
        to = put_string(put_length(to, '*', (place.hash.size ? 2 : 1) + count), verb);
        if (place.hash.size) to = put_string(to, place.hash);
        for (std::size_t i = start; i < start + count; ++i) {
            to = put_bytes(put_bytes(to, head, head_size), prefix.data, prefix.size);
            for (std::size_t k = 0; k < kNumberBytes; ++k)
                *to++ = static_cast<unsigned char>(buckets[i] >> (8 * k));
            to = put_line_end(to);
        }
    }
    return static_cast<std::size_t>(to - out);
}

BucketsRead read_buckets(const unsigned char* data, std::size_t size, const std::uint64_t* keys,
                         const std::int64_t* at, std::size_t n, std::size_t per_command, std::size_t stride,
                         std::size_t answered, unsigned char* packed, std::uint8_t* found) {
    const unsigned char* p = data;
    const unsigned char* end = data + size;
    const std::size_t width = 8 + stride;
    BucketsRead done;
    done.answered = answered;
    while (done.answered < n) {
        const unsigned char* next = p;
        std::int64_t length = 0;
        if (next == end) break;
        const bool array = *next == '*';
        if (*next == '-') {
            done.status = kRefused;
            break;
        }
        if (!array && *next != '$') {
            done.status = kMisshapen;
            break;
        }
        if (!read_length(next, end, length)) break;
        if (array) {
            const std::size_t wanted = std::min(per_command, n - done.answered);
            if (done.answered % per_command || length != static_cast<std::int64_t>(wanted)) {
                done.status = kMisshapen;
                break;
            }
            p = next;
            // Consume the array's head only together with its first element. If a call ended between the two,
            // the next call could not tell whether the head had been read.
            if (next == end) {
                p = data + done.consumed;
                break;
            }
            if (*next != '$') {
                p = data + done.consumed;
                done.status = kMisshapen;
                break;
            }
            if (!read_length(next, end, length)) {
                p = data + done.consumed;
                break;
            }
        } else if (done.answered % per_command == 0) {
            done.status = kMisshapen;
            break;
        }
        if (length == -1) {
            done.status = kAbsent;
            break;
        }
        if (length < 0 || static_cast<std::size_t>(length) % width) {
            done.status = kMisshapen;
            break;
        }
        const auto bytes = static_cast<std::size_t>(length);
        if (static_cast<std::size_t>(end - next) < bytes + 2) {
            p = data + done.consumed;
            break;
        }
        const std::size_t rows = bytes / width;
        const auto to = static_cast<std::size_t>(at[done.answered]);
        found[to] = 0;
        for (std::size_t i = 0; i < rows; ++i) {
            if (load_key(next + 8 * i) != keys[to]) continue;
            std::memcpy(packed + to * stride, next + 8 * rows + i * stride, stride);
            found[to] = 1;
            break;
        }
        p = next + bytes + 2;
        done.consumed = static_cast<std::size_t>(p - data);
        ++done.answered;
    }
    if (done.status == kMore && done.answered == n) done.status = kDone;
    return done;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
