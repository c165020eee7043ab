#include "sparsefleet/serving/hot_rows.h"

#include <algorithm>
#include <cstring>

#include "sparsefleet/mix.h"
#include "sparsefleet/serving/redis_reply.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

// Long enough that there are few of them, short enough that each is still in the processor's cache when its
// rows are copied out.
constexpr std::size_t kValueBytes = std::size_t{32} << 10;

std::size_t slots_for(std::size_t n) {
    std::size_t slots = 16;
    while (slots < 4 * n) slots *= 2;
    return slots;
}

}  // namespace

HotKeys::HotKeys(const std::uint64_t* keys, std::size_t n)
    : rows_(n), mask_(slots_for(n) - 1), keys_(mask_ + 1), places_(mask_ + 1, kNotHot) {
    for (std::size_t i = 0; i < n; ++i) {
        std::size_t at = mix64(keys[i]) & mask_;
        while (places_[at] != kNotHot && keys_[at] != keys[i]) at = (at + 1) & mask_;
        if (places_[at] != kNotHot) continue;
        keys_[at] = keys[i];
        places_[at] = static_cast<std::uint32_t>(i);
    }
}

std::uint32_t HotKeys::find(std::uint64_t key) const {
    std::size_t at = mix64(key) & mask_;
    while (places_[at] != kNotHot && keys_[at] != key) at = (at + 1) & mask_;
    return places_[at];
}

std::size_t hot_value_rows(std::size_t stride) { return std::max<std::size_t>(1, kValueBytes / stride); }

BucketsRead read_hot_rows(const unsigned char* data, std::size_t size, const std::uint32_t* to,
                          std::size_t rows, std::size_t stride, std::size_t answered, unsigned char* packed) {
    const std::size_t each = hot_value_rows(stride), values = (rows + each - 1) / each;
    const unsigned char *p = data, *end = data + size;
    BucketsRead done;
    done.answered = answered;
    while (done.answered < values) {
        const unsigned char* next = p;
        // The head of the list is consumed only together with its first value, as in read_buckets.
        std::int64_t length = 0;
        if (done.answered == 0) {
            if (next == end) return done;
            if (*next != '*') {
                done.status = *next == '-' ? kRefused : kMisshapen;
                return done;
            }
            if (!read_length(next, end, length)) return done;
            if (length != static_cast<std::int64_t>(values)) {
                done.status = kMisshapen;
                return done;
            }
        }
        if (next == end) return done;
        if (*next != '$') {
            done.status = kMisshapen;
            return done;
        }
        if (!read_length(next, end, length)) return done;
        const std::size_t first = done.answered * each, count = std::min(each, rows - first);
        if (length != static_cast<std::int64_t>(count * stride)) {
            done.status = length == -1 ? kAbsent : kMisshapen;
            return done;
        }
        if (static_cast<std::size_t>(end - next) < count * stride + 2) return done;
        for (std::size_t i = 0; i < count; ++i)
            if (to[first + i] != kNotHot)
                std::memcpy(packed + to[first + i] * stride, next + i * stride, stride);
        p = next + count * stride + 2;
        done.consumed = static_cast<std::size_t>(p - data);
        ++done.answered;
    }
    done.status = kDone;
    return done;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
