// A JSON object a line: the fields of the plan by their names, all others passed over.
#include <algorithm>
#include <cstring>

#include "sparsefleet/json_text.h"
#include "sparsefleet/records.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

constexpr std::size_t kPadding = 64;
constexpr int kDeepest = 64;
constexpr int kOther = -1;

int hexadecimal(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool unit_of(const char* p, const char* end, std::uint32_t* unit) {
    if (end - p < 4) return false;
    *unit = 0;
    for (int i = 0; i < 4; ++i) {
        const int value = hexadecimal(p[i]);
        if (value < 0) return false;
        *unit = *unit << 4 | static_cast<std::uint32_t>(value);
    }
    return true;
}

std::size_t encode(std::uint32_t code, char* to) {
    if (code < 0x80) {
        to[0] = static_cast<char>(code);
        return 1;
    }
    if (code < 0x800) {
        to[0] = static_cast<char>(0xC0 | code >> 6);
        to[1] = static_cast<char>(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        to[0] = static_cast<char>(0xE0 | code >> 12);
        to[1] = static_cast<char>(0x80 | (code >> 6 & 0x3F));
        to[2] = static_cast<char>(0x80 | (code & 0x3F));
        return 3;
    }
    to[0] = static_cast<char>(0xF0 | code >> 18);
    to[1] = static_cast<char>(0x80 | (code >> 12 & 0x3F));
    to[2] = static_cast<char>(0x80 | (code >> 6 & 0x3F));
    to[3] = static_cast<char>(0x80 | (code & 0x3F));
    return 4;
}

}  // namespace

JsonLinesParser::JsonLinesParser(RecordPlan plan, std::vector<std::string> names, std::size_t max_line)
    : LineParser(max_line),
      assembler_(std::move(plan)),
      names_(std::move(names)),
      fields_(names_.size()),
      first_(names_.size()),
      seen_(names_.size()) {
    for (std::size_t i = 0; i < names_.size(); ++i) places_.emplace(names_[i], static_cast<int>(i));
}

bool JsonLinesParser::space() {
    while (p_ < end_ && (*p_ == ' ' || *p_ == '\t' || *p_ == '\r')) ++p_;
    return p_ < end_;
}

bool JsonLinesParser::take(char c) {
    if (!space() || *p_ != c) return false;
    ++p_;
    return true;
}

// Behind the opening quote. Text with escapes is written to text_, which has room for the whole line.
bool JsonLinesParser::text(const char** begin, std::size_t* size) {
    const char* const from = p_;
    while (end_ - p_ >= 8) {
        const std::uint64_t word = xxh::load64(p_);
        // Letters beyond ASCII are fine here: the whole line was looked at before.
        const std::uint64_t special = special_bytes(word) & ~(word & 0x8080808080808080ull);
        if (special) {
            p_ += __builtin_ctzll(special) / 8;
            break;
        }
        p_ += 8;
    }
    while (p_ < end_ && *p_ != '"' && *p_ != '\\' && static_cast<unsigned char>(*p_) >= 0x20) ++p_;
    if (p_ >= end_) return false;
    if (*p_ == '"') {
        *begin = from;
        *size = static_cast<std::size_t>(p_++ - from);
        return true;
    }
    // Escapes: copy.
    char* const start = text_.data() + used_;
    char* to = start;
    std::memcpy(to, from, static_cast<std::size_t>(p_ - from));
    to += p_ - from;
    while (p_ < end_ && *p_ != '"') {
        if (static_cast<unsigned char>(*p_) < 0x20) return false;
        if (*p_ != '\\') {
            *to++ = *p_++;
            continue;
        }
        if (++p_ >= end_) return false;
        const char c = *p_++;
        static constexpr char kNames[] = "\"\\/bfnrt", kMeant[] = "\"\\/\b\f\n\r\t";
        if (c == 'u') {
            std::uint32_t code, low;
            if (!unit_of(p_, end_, &code)) return false;
            p_ += 4;
            if (code >= 0xD800 && code < 0xDC00) {
                if (end_ - p_ < 6 || p_[0] != '\\' || p_[1] != 'u' || !unit_of(p_ + 2, end_, &low) ||
                    low < 0xDC00 || low > 0xDFFF) {
                    problem_ = kUtf8;
                    return false;
                }
                p_ += 6;
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
            } else if (code >= 0xDC00 && code < 0xE000) {
                problem_ = kUtf8;
                return false;
            }
            to += encode(code, to);
        } else if (const char* name = c ? std::strchr(kNames, c) : nullptr) {
            *to++ = kMeant[name - kNames];
        } else {
            return false;
        }
    }
    if (p_ >= end_) return false;
    ++p_;
    *begin = start;
    *size = static_cast<std::size_t>(to - start);
    used_ += *size + 16;
    return true;
}

bool JsonLinesParser::number(Value* value) {
    const char* const from = p_;
    const auto digits = [&] {
        const char* const first = p_;
        while (p_ < end_ && *p_ >= '0' && *p_ <= '9') ++p_;
        return p_ - first;
    };
    if (*p_ == '-') ++p_;
    const char* const first = p_;
    const auto count = digits();
    if (!count || (count > 1 && *first == '0')) return false;
    value->kind = kWhole;
    if (p_ < end_ && *p_ == '.') {
        ++p_;
        value->kind = kFraction;
        if (!digits()) return false;
    }
    if (p_ < end_ && (*p_ == 'e' || *p_ == 'E')) {
        ++p_;
        value->kind = kFraction;
        if (p_ < end_ && (*p_ == '+' || *p_ == '-')) ++p_;
        if (!digits()) return false;
    }
    value->data = from;
    value->size = static_cast<std::size_t>(p_ - from);
    if (value->kind == kWhole && value->size == 2 && from[0] == '-' && from[1] == '0') {
        value->data = from + 1;  // -0 is the whole number 0
        value->size = 1;
    }
    return true;
}

// Text, a number, true, false or null.
bool JsonLinesParser::scalar(Value* value, bool* null) {
    const auto word = [&](const char* letters, std::size_t size) {
        if (static_cast<std::size_t>(end_ - p_) < size || std::memcmp(p_, letters, size) != 0) return false;
        value->data = p_;
        value->size = size;
        p_ += size;
        return true;
    };
    *null = false;
    if (!space()) return false;
    switch (*p_) {
        case '"':
            ++p_;
            value->kind = kText;
            return text(&value->data, &value->size);
        case 'n':
            *null = true;
            return word("null", 4);
        case 't':
            value->kind = kTruth;
            return word("true", 4);
        case 'f':
            value->kind = kTruth;
            return word("false", 5);
        default:
            return number(value);
    }
}

bool JsonLinesParser::pass_over(int depth) {
    if (depth > kDeepest || !space()) return false;
    if (*p_ != '[' && *p_ != '{') {
        Value value;
        bool null;
        const std::size_t used = used_;
        const bool fine = scalar(&value, &null);
        used_ = used;  // nobody needs what it says
        return fine;
    }
    const bool list = *p_++ == '[';
    const char close = list ? ']' : '}';
    if (!space()) return false;
    if (*p_ == close) return ++p_, true;
    do {
        if (!list) {
            const char* name;
            std::size_t size;
            const std::size_t used = used_;
            if (!take('"') || !text(&name, &size) || !take(':')) return false;
            used_ = used;
        }
        if (!pass_over(depth + 1)) return false;
    } while (take(','));
    return take(close);
}

bool JsonLinesParser::field_value(std::size_t field) {
    Field& to = fields_[field];
    first_[field] = values_.size();
    if (!space()) return false;
    Value value;
    bool null;
    if (*p_ == '{') {
        problem_ = kValueKind;
        problem_field_ = field + 1;
        return false;
    }
    if (*p_ != '[') {
        if (!scalar(&value, &null)) return false;
        if (null) return true;
        values_.push_back(value);
        to.count = 1;
        return true;
    }
    to.list = true;
    ++p_;
    if (!space()) return false;
    if (*p_ == ']') return ++p_, true;
    do {
        if (!space()) return false;
        if (*p_ == '[' || *p_ == '{') {
            problem_ = kValueKind;
            problem_field_ = field + 1;
            return false;
        }
        if (!scalar(&value, &null)) return false;
        if (null) continue;
        values_.push_back(value);
        ++to.count;
    } while (take(','));
    return take(']');
}

int JsonLinesParser::field_of(const char* name, std::size_t size, std::size_t position) {
    if (position < order_.size() && order_[position] != kOther) {
        const std::string& likely = names_[static_cast<std::size_t>(order_[position])];
        if (likely.size() == size && !std::memcmp(likely.data(), name, size)) return order_[position];
    }
    const auto found = places_.find(std::string(name, size));
    const int field = found == places_.end() ? kOther : found->second;
    if (position < order_.size())
        order_[position] = field;
    else if (position == order_.size() && position < 100000)
        order_.push_back(field);
    return field;
}

bool JsonLinesParser::object() {
    if (!take('{') || !space()) return false;
    if (*p_ == '}') {
        ++p_;
    } else {
        std::size_t position = 0;
        do {
            const char* name;
            std::size_t size;
            if (!take('"') || !text(&name, &size) || !take(':')) return false;
            const int field = field_of(name, size, position++);
            if (field == kOther) {
                if (!pass_over(0)) return false;
                continue;
            }
            const auto at = static_cast<std::size_t>(field);
            if (seen_[at]) {
                problem_ = kKeyTwice;
                problem_field_ = at + 1;
                return false;
            }
            seen_[at] = 1;
            if (!field_value(at)) return false;
        } while (take(','));
        if (!take('}')) return false;
    }
    return !space();
}

LineParser::Refusal JsonLinesParser::read_line(const char* line, const LineScan& scan, const Columns& out,
                                               std::size_t sample, bool* full) {
    if (__builtin_expect(scan.suspect, 0)) {
        Refusal refusal = bad_bytes(line, scan.length, ',');
        refusal.column = 0;
        if (refusal.reason != kFine) return refusal;
    }
    p_ = line;
    end_ = line + scan.length;
    used_ = 0;
    const std::size_t room = 2 * scan.length + 16 * (scan.length / 4 + 1) + kPadding;  // 16 behind each text
    if (text_.size() < room) text_.resize(room);
    values_.clear();
    std::fill(seen_.begin(), seen_.end(), 0);
    std::fill(first_.begin(), first_.end(), 0);
    for (Field& field : fields_) field = {};
    problem_ = kJson;
    problem_field_ = 0;
    if (!object()) {
        const auto at = static_cast<std::size_t>(p_ - line);
        const std::size_t begin = at < 20 ? 0 : at - 20;
        return {problem_, static_cast<std::int64_t>(problem_field_), begin, scan.length,
                static_cast<std::int64_t>(at) + 1};
    }
    for (std::size_t f = 0; f < fields_.size(); ++f) fields_[f].values = values_.data() + first_[f];
    Refusal refusal = assembler_.assemble(fields_.data(), out, sample, full);
    if (refusal.reason == kFine) return refusal;
    const Value* value = assembler_.bad_value;
    if (value && value->data >= line && value->data + value->size <= end_) {
        refusal.begin = static_cast<std::size_t>(value->data - line);
        refusal.end = refusal.begin + value->size;
    } else if (value) {
        refusal.end = scan.length;
    }
    return refusal;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
