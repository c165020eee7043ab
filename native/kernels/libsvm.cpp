// libsvm and libffm: numbers of features, each with a value.
//
// A feature is there or not: its value is 1, or 0 for one that is not there. Any other value is a number,
// which a slot cannot hold: either the schema takes it as one (a column of its own), or the line is refused.
#include <charconv>
#include <cstring>

#include "sparsefleet/records.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

inline bool blank(char c) { return c == ' ' || c == '\t'; }
inline bool digit(char c) { return c >= '0' && c <= '9'; }

// With room behind it to read.
constexpr char kZero[64] = "0";

ValueKind kind_of(const char* p, const char* end) {
    if (p < end && *p == '-') ++p;
    if (p == end) return kFraction;
    for (; p < end; ++p)
        if (!digit(*p)) return kFraction;
    return kWhole;
}

// A whole number, all of [p, end).
int whole(const char* p, const char* end, std::uint64_t* number) {
    const bool negative = p < end && *p == '-';
    const auto done = std::from_chars(p + negative, end, *number);
    if (done.ec == std::errc::invalid_argument || done.ptr != end) return kKey;
    if (negative) return kNegativeKey;
    return done.ec == std::errc() ? kFine : kKeyOverflow;
}

// Its text without leading zeros: 07 and 7 are one value.
Value feature(const char* p, const char* end) {
    while (end - p > 1 && *p == '0') ++p;
    return {p, static_cast<std::size_t>(end - p), kWhole};
}

}  // namespace

SvmParser::SvmParser(RecordPlan plan, Places places, std::size_t max_line)
    : LineParser(max_line),
      assembler_(std::move(plan)),
      places_(std::move(places)),
      fields_(assembler_.plan().fields),
      values_(assembler_.plan().fields) {}

void SvmParser::put(std::int64_t field, const Value& value, bool list) {
    const auto at = static_cast<std::size_t>(field);
    if (values_[at].empty()) touched_.push_back(at);
    values_[at].push_back(value);
    fields_[at].list = list;
}

// One word behind the label.
Refusal SvmParser::entry(const char* line, const char* p, const char* end) {
    const auto refuse = [&](int reason, std::int64_t field = -1) -> Refusal {
        return {reason, field + 1, static_cast<std::size_t>(p - line), static_cast<std::size_t>(end - line),
                0};
    };
    const auto colon = [&](const char* from) {
        const void* found = std::memchr(from, ':', static_cast<std::size_t>(end - from));
        return found ? static_cast<const char*>(found) : end;
    };
    const char* const first = colon(p);
    if (first == end) return refuse(kPair);
    if (!places_.triples && first - p == 3 && !std::memcmp(p, "qid", 3)) {
        std::uint64_t number;
        const int problem = whole(first + 1, end, &number);
        if (problem != kFine) return refuse(problem);
        if (places_.group >= 0) put(places_.group, feature(first + 1, end), false);
        return {};
    }
    const char* const second = places_.triples ? colon(first + 1) : first;
    if (second == end) return refuse(kPair);
    std::uint64_t number, inner = 0;
    int problem = whole(p, first, &number);
    if (problem == kFine && places_.triples) problem = whole(first + 1, second, &inner);
    if (problem != kFine) return refuse(problem);
    const char* const text = second + 1;
    const auto size = static_cast<std::size_t>(end - text);
    double value;
    const bool usual = size == 1 && (*text == '1' || *text == '0');
    if (usual)
        value = *text - '0';
    else if (!parse_decimal(text, end, &value))
        return refuse(kNumber);
    bool taken = false;
    const auto found = places_.numbers.empty() ? places_.numbers.end() : places_.numbers.find(number);
    if (found != places_.numbers.end()) {
        const auto field = static_cast<std::int64_t>(found->second);
        if (!values_[found->second].empty()) return refuse(kKeyTwice, field);
        put(field, {text, size, kind_of(text, end)}, false);
        taken = true;
    }
    std::int64_t to = -1;
    Value name{};
    if (places_.triples) {
        const auto slot = places_.slots.find(number);
        if (slot != places_.slots.end()) to = static_cast<std::int64_t>(slot->second);
        name = feature(first + 1, second);
    } else if (!taken) {
        to = places_.features;
        name = feature(p, first);
    }
    if (to < 0 || value == 0) return {};
    if (value != 1 && !taken) return refuse(kNotOne, to);
    put(to, name, true);
    return {};
}

LineParser::Refusal SvmParser::read_line(const char* line, const LineScan& scan, const Columns& out,
                                         std::size_t sample, bool* full) {
    if (__builtin_expect(scan.suspect, 0)) {
        const Refusal refusal = bad_bytes(line, scan.length, ' ');
        if (refusal.reason != kFine) return refusal;
    }
    const char *p = line, *end = line + scan.length;
    if (const void* mark = std::memchr(line, '#', scan.length)) end = static_cast<const char*>(mark);
    for (const std::size_t at : touched_) values_[at].clear();
    touched_.clear();
    for (Field& field : fields_) field = {};
    for (bool first = true;; first = false) {
        while (p < end && blank(*p)) ++p;
        if (p == end) {
            if (first) return {kEmptyLine, 1, 0, 0, 0};
            break;
        }
        const char* stop = p;
        bool pair = false;
        for (; stop < end && !blank(*stop); ++stop) pair |= *stop == ':';
        if (first && !pair) {
            if (places_.label >= 0) {
                Value label{p + (*p == '+'), static_cast<std::size_t>(stop - p - (*p == '+')), kText};
                double number;
                if (*p == '-' && parse_decimal(p, stop, &number) && number == -1) label = {kZero, 1, kText};
                put(places_.label, label, false);
            }
        } else {
            const Refusal refusal = entry(line, p, stop);
            if (refusal.reason != kFine) return refusal;
        }
        p = stop;
    }
    for (const std::size_t at : touched_) {
        fields_[at].values = values_[at].data();
        fields_[at].count = values_[at].size();
    }
    Refusal refusal = assembler_.assemble(fields_.data(), out, sample, full);
    if (refusal.reason == kFine) return refusal;
    const Value* value = assembler_.bad_value;
    if (value && value->data >= line && value->data + value->size <= line + scan.length) {
        refusal.begin = static_cast<std::size_t>(value->data - line);
        refusal.end = refusal.begin + value->size;
    } else {
        refusal.end = scan.length;
    }
    return refusal;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
