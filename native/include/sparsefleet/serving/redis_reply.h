// The lines of Redis's replies.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sparsefleet::SPARSEFLEET_LEVEL {

constexpr std::size_t kReplyHead = 32;  // the longest line of a kind and a number

// Reads the number of a line `<kind><digits>\r\n`; -2 if it is not a number. False: the line has not ended
// yet.
inline bool read_length(const unsigned char*& from, const unsigned char* end, std::int64_t& out) {
    const auto* line_end = static_cast<const unsigned char*>(
        std::memchr(from, '\n', std::min<std::size_t>(static_cast<std::size_t>(end - from), kReplyHead)));
    if (!line_end) {
        out = -2;
        return static_cast<std::size_t>(end - from) >= kReplyHead;
    }
    const unsigned char* p = from + 1;
    const unsigned char* last = line_end - 1;
    out = 0;
    const bool negative = p < last && *p == '-';
    if (negative) ++p;
    bool good = p < last && *last == '\r' && last - p <= 12;
    for (; good && p < last; ++p) {
        good = *p >= '0' && *p <= '9';
        out = 10 * out + (*p - '0');
    }
    if (!good || (negative && out != 1))
        out = -2;
    else if (negative)
        out = -1;
    from = line_end + 1;
    return true;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
