// Fields of CSV: separated by one character, quoted or not.
//
// A field is quoted where its first character is the quote. It ends at the next quote that is not doubled,
// which a delimiter or the end of the line has to follow. A quote inside a field that does not begin with one
// stands for itself. So says Python's csv module, too (with strict=True).
#include <cstring>

#include "sparsefleet/records.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {
constexpr std::size_t kPadding = 64;
}

CsvParser::CsvParser(RecordPlan plan, std::vector<std::size_t> places, std::size_t columns, char delimiter,
                     char quote, bool multiline, std::size_t max_line)
    : LineParser(max_line),
      assembler_(std::move(plan)),
      places_(std::move(places)),
      columns_(columns),
      delimiter_(delimiter),
      quote_(quote),
      multiline_(multiline),
      values_(places_.size()),
      fields_(places_.size()) {
    for (std::size_t f = 0; f < places_.size(); ++f) fields_[f].values = &values_[f];
}

LineScan CsvParser::scan(const char* p, const char* end, bool final) {
    LineScan found = scan_line(p, end, max_line_, tabs_.data(), columns_, delimiter_, quote_);
    if (!multiline_ || !found.quoted || found.overlong) return found;
    // Where does the record end? Quotes decide.
    const auto available = static_cast<std::size_t>(end - p);
    const std::size_t most = available < max_line_ ? available : max_line_;
    bool at_start = true, inside = false;
    for (std::size_t i = 0; i < most; ++i) {
        const char c = p[i];
        if (inside) {
            if (c == quote_) inside = i + 1 < most && p[i + 1] == quote_ && (++i, true);
        } else if (c == quote_ && at_start) {
            inside = true;
            at_start = false;
        } else if (c == '\n') {
            found.length = i;
            found.ended = true;
            found.suspect = true;  // only its first line was looked at
            return found;
        } else {
            at_start = c == delimiter_;
        }
    }
    if (most == available && !final && most < max_line_) {
        found.ended = false;  // the rest is yet to come
        return found;
    }
    if (inside || most == max_line_) {
        // A quote that nobody closes would swallow the file: only its own line is refused. `found` ends
        // there.
        found.reason = kOpenQuote;
        return found;
    }
    found.length = most;
    found.ended = false;
    found.suspect = true;
    return found;
}

// Puts the cells of a line with quotes into cells_.
Refusal CsvParser::unquote(const char* line, std::size_t length) {
    cells_.clear();
    // Before pointers into it are taken; what fields say is no longer than the line.
    if (text_.size() < length + kPadding) text_.resize(length + kPadding);
    std::size_t used = 0, i = 0;
    while (true) {
        const std::size_t begin = i;
        if (i < length && line[i] == quote_) {
            const std::size_t from = used;
            bool closed = false;
            for (++i; i < length; ++i) {
                if (line[i] == quote_) {
                    if (i + 1 < length && line[i + 1] == quote_) {
                        ++i;
                    } else {
                        closed = true;
                        ++i;
                        break;
                    }
                }
                text_[used++] = line[i];
            }
            const auto column = static_cast<std::int64_t>(cells_.size()) + 1;
            if (!closed) return {kOpenQuote, column, begin, length, 0};
            if (i < length && line[i] != delimiter_) return {kQuote, column, begin, length, 0};
            cells_.push_back({text_.data() + from, used - from, kText});
        } else {
            const void* mark = i < length ? std::memchr(line + i, delimiter_, length - i) : nullptr;
            const std::size_t stop =
                mark ? static_cast<std::size_t>(static_cast<const char*>(mark) - line) : length;
            cells_.push_back({line + i, stop - i, kText});
            i = stop;
        }
        if (i >= length) return {};
        ++i;  // the delimiter; a line that ends with one has an empty field behind it
    }
}

Refusal CsvParser::located(Refusal refusal, const char* line, std::size_t length) const {
    refusal.column = static_cast<std::int64_t>(places_[static_cast<std::size_t>(refusal.column) - 1]) + 1;
    const Value* value = assembler_.bad_value;
    if (value && value->data >= line && value->data + value->size <= line + length) {
        refusal.begin = static_cast<std::size_t>(value->data - line);
        refusal.end = refusal.begin + value->size;
    } else if (value) {  // a quoted one: show the line
        refusal.end = length;
    }
    return refusal;
}

LineParser::Refusal CsvParser::read_line(const char* line, const LineScan& scan, const Columns& out,
                                         std::size_t sample, bool* full) {
    if (__builtin_expect(scan.suspect, 0)) {
        const Refusal refusal = bad_bytes(line, scan.length, delimiter_);
        if (refusal.reason != kFine) return refusal;
    }
    const std::size_t fields = places_.size();
    std::size_t found = scan.tabs + 1;
    if (__builtin_expect(scan.quoted, 0)) {
        const Refusal refusal = unquote(line, scan.length);
        if (refusal.reason != kFine) return refusal;
        found = cells_.size();
    }
    if (__builtin_expect(found != columns_, 0)) {
        const auto column = static_cast<std::int64_t>((found < columns_ ? found : columns_) + 1);
        return {kFieldCount, column, 0, scan.length, static_cast<std::int64_t>(found)};
    }
    if (__builtin_expect(scan.quoted, 0)) {
        for (std::size_t f = 0; f < fields; ++f) {
            values_[f] = cells_[places_[f]];
            fields_[f].count = values_[f].size != 0;
        }
    } else {
        std::uint32_t* const ends = tabs_.data();
        ends[scan.tabs] = static_cast<std::uint32_t>(scan.length);
        for (std::size_t f = 0; f < fields; ++f) {
            const std::size_t place = places_[f];
            const std::size_t begin = place ? ends[place - 1] + std::size_t{1} : 0;
            values_[f] = {line + begin, ends[place] - begin, kText};
            fields_[f].count = ends[place] != begin;
        }
    }
    const Refusal refusal = assembler_.assemble(fields_.data(), out, sample, full);
    return refusal.reason == kFine ? refusal : located(refusal, line, scan.length);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
