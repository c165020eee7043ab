// Finding lines in a block, and the loop over them that every text format shares.
#include <cstring>

#include "sparsefleet/byte_masks.h"
#include "sparsefleet/text.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

LineScan scan_line(const char* p, const char* end, std::size_t max_line, std::uint32_t* tabs,
                   std::size_t capacity, char delimiter, char quote) {
    LineScan scan;
    const auto available = static_cast<std::size_t>(end - p);
    std::uint64_t suspect = 0, quotes = 0;
    for (std::size_t at = 0;; at += 64) {
        if (at > max_line) {
            const void* feed = at < available ? std::memchr(p + at, '\n', available - at) : nullptr;
            scan.overlong = true;
            scan.ended = feed != nullptr;
            scan.length = feed ? static_cast<std::size_t>(static_cast<const char*>(feed) - p) : available;
            break;
        }
        std::size_t here = 64;
        char tail[64];
        const char* from = p + at;
        if (available - at < 64) {
            here = available - at;
            std::memset(tail, '\n', sizeof tail);
            std::memcpy(tail, from, here);
            from = tail;
        }
        const Bytes64 bytes(from);
        const std::uint64_t feed = bytes.equal('\n') & (here < 64 ? (1ULL << here) - 1 : ~0ULL);
        std::uint64_t found = bytes.equal(delimiter), odd = bytes.suspect();
        std::uint64_t quoting = quote ? bytes.equal(quote) : 0;
        if (feed || here < 64) {
            const std::size_t length = feed ? static_cast<std::size_t>(__builtin_ctzll(feed)) : here;
            const std::uint64_t below = (1ULL << length) - 1;
            found &= below;
            odd &= below;
            quoting &= below;
            scan.length = at + length;
            scan.ended = feed != 0;
        }
        const auto count = static_cast<std::size_t>(__builtin_popcountll(found));
        if (scan.tabs <= capacity) spread(found, static_cast<std::uint32_t>(at), tabs + scan.tabs, count);
        scan.tabs += count;
        suspect |= odd;
        quotes |= quoting;
        if (scan.ended || here < 64) {
            scan.overlong = scan.length > max_line;
            break;
        }
    }
    scan.suspect = suspect != 0;
    scan.quoted = quotes != 0;
    return scan;
}

std::size_t utf8_error(const char* p, std::size_t size) {
    const auto* s = reinterpret_cast<const unsigned char*>(p);
    const auto continues = [&](std::size_t at) { return at < size && (s[at] & 0xC0) == 0x80; };
    std::size_t i = 0;
    while (i < size) {
        if (i + 8 <= size && (xxh::load64(p + i) & 0x8080808080808080ULL) == 0) {
            i += 8;
            continue;
        }
        const unsigned char c = s[i];
        if (c < 0x80) {
            i += 1;
        } else if (c >= 0xC2 && c <= 0xDF) {
            if (!continues(i + 1)) return i;
            i += 2;
        } else if (c >= 0xE0 && c <= 0xEF) {
            if (!continues(i + 1) || !continues(i + 2)) return i;
            if ((c == 0xE0 && s[i + 1] < 0xA0) || (c == 0xED && s[i + 1] > 0x9F))
                return i;  // over-long, surrogate
            i += 3;
        } else if (c >= 0xF0 && c <= 0xF4) {
            if (!continues(i + 1) || !continues(i + 2) || !continues(i + 3)) return i;
            if ((c == 0xF0 && s[i + 1] < 0x90) || (c == 0xF4 && s[i + 1] > 0x8F))
                return i;  // over-long, too high
            i += 4;
        } else {
            return i;
        }
    }
    return size;
}

std::pair<std::int64_t, std::size_t> skip_lines(const char* data, std::size_t size, std::size_t begin,
                                                std::int64_t lines) {
    std::int64_t seen = 0;
    while (seen < lines && begin < size) {
        const void* feed = std::memchr(data + begin, '\n', size - begin);
        if (!feed) break;
        begin = static_cast<std::size_t>(static_cast<const char*>(feed) - data) + 1;
        ++seen;
    }
    return {seen, begin};
}

LineParser::Refusal LineParser::bad_bytes(const char* line, std::size_t length, char separator) {
    Refusal refusal;
    std::size_t at = 0;
    if (const void* nul = std::memchr(line, 0, length)) {
        refusal.reason = kNul;
        at = static_cast<std::size_t>(static_cast<const char*>(nul) - line);
    } else {
        at = utf8_error(line, length);
        if (at == length) return refusal;
        refusal.reason = kUtf8;
    }
    // The field that holds the byte. Runs of spaces separate like one, anything else each for itself.
    refusal.column = 1;
    bool inside = false;
    if (separator == ' ') refusal.column = 0;
    for (std::size_t i = 0; i < at; ++i) {
        if (separator != ' ') {
            refusal.column += line[i] == separator;
        } else {
            refusal.column += line[i] != ' ' && !inside;
            inside = line[i] != ' ';
        }
    }
    if (separator == ' ' && !inside) refusal.column += 1;
    std::size_t begin = at, end = at;
    while (begin > 0 && line[begin - 1] != separator) --begin;
    while (end < length && line[end] != separator) ++end;
    refusal.begin = begin;
    refusal.end = end;
    return refusal;
}

LineScan LineParser::scan(const char* p, const char* end, bool) {
    return scan_line(p, end, max_line_, tabs_.data(), tab_capacity());
}

Parsed LineParser::parse(const Block& block, const Columns& out) {
    if (tabs_.empty()) tabs_.resize(tab_capacity() + 72);
    Parsed done;
    done.filled = out.filled;
    const char* const data = block.data;
    const char* const end = data + block.size;
    std::size_t at = block.begin;
    if (block.open) {
        const auto [seen, next] = skip_lines(data, block.size, at, 1);
        at = seen ? next : block.size;
        done.open = !seen && !block.final;
    }
    while (at < block.size && at < block.stop && done.filled < out.capacity) {
        const char* const line = data + at;
        LineScan scan = this->scan(line, end, block.final);
        if (!scan.ended && !scan.overlong && !block.final) break;  // the rest of the line is yet to come
        const std::size_t next = at + scan.length + scan.ended;
        Refusal refusal;
        if (scan.reason != kFine) {
            refusal.reason = scan.reason;
            refusal.column = 1;
            refusal.end = scan.length;
        } else if (scan.overlong) {
            refusal.reason = kLongLine;
            refusal.column = 1;
            refusal.end = max_line_;
        } else {
            if (scan.length && line[scan.length - 1] == '\r') --scan.length;
            if (scan.length == 0) {
                refusal.reason = kEmptyLine;
                refusal.column = 1;
            } else {
                const char* text = line;
                if (end - line < static_cast<std::ptrdiff_t>(scan.length + 64)) {
                    std::memcpy(padded_.data(), line, scan.length);
                    text = padded_.data();
                }
                refusal = read_line(text, scan, out, done.filled, &done.full);
                if (done.full) break;
            }
        }
        if (refusal.reason == kFine) {
            out.lines[done.filled] = out.line_base + done.lines + 1;
            out.ends[done.filled] = out.byte_base + static_cast<std::int64_t>(next);
            ++done.filled;
        } else if (block.skip) {
            ++out.counts[refusal.reason];
            done.open = scan.overlong && !scan.ended && !block.final;
        } else {
            done.reason = refusal.reason;
            done.column = refusal.column;
            done.line_begin = at;
            done.begin = at + refusal.begin;
            done.end = at + refusal.end;
            done.found = refusal.found;
            break;
        }
        ++done.lines;
        at = next;
    }
    done.consumed = at;
    return done;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
