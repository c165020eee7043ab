// JSON of a bundle and of requests, read into a tree: enough for this example. A service that has a JSON
// library already takes that one instead.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace json {

struct Value {
    enum Kind { kNull, kBool, kNumber, kText, kList, kObject } kind = kNull;
    std::string text;  // of text; of a number, as it was written
    bool truth = false;
    std::vector<Value> items;
    std::vector<std::pair<std::string, Value>> fields;

    const Value* find(const std::string& name) const {
        for (const auto& [key, value] : fields)
            if (key == name) return &value;
        return nullptr;
    }
    const Value& at(const std::string& name) const {
        const Value* found = find(name);
        if (!found) throw std::runtime_error("field '" + name + "' is missing");
        return *found;
    }
    bool null() const { return kind == kNull; }
    bool whole() const { return kind == kNumber && text.find_first_of(".eE") == std::string::npos; }
    double number() const {
        if (kind != kNumber) throw std::runtime_error("wanted is a number");
        return std::strtod(text.c_str(), nullptr);
    }
    std::uint64_t integer() const {
        if (!whole() || text[0] == '-') throw std::runtime_error("wanted is a whole number, 0 or above");
        if (text.size() > 20 || (text.size() == 20 && text > "18446744073709551615"))
            throw std::runtime_error("a number is too large for 64 bits");
        return std::strtoull(text.c_str(), nullptr, 10);
    }
};

class Parser {
  public:
    explicit Parser(const std::string& text) : at_(text.c_str()), end_(at_ + text.size()) {}

    Value document() {
        Value value = next(0);
        space();
        if (at_ != end_) fail();
        return value;
    }

  private:
    [[noreturn]] static void fail() { throw std::runtime_error("not a JSON document"); }
    void space() {
        while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
    }
    bool take(char wanted) {
        space();
        if (at_ == end_ || *at_ != wanted) return false;
        ++at_;
        return true;
    }
    bool word(const char* wanted) {
        const std::string text(wanted);
        if (static_cast<std::size_t>(end_ - at_) < text.size() ||
            text.compare(0, text.size(), at_, text.size()))
            return false;
        at_ += text.size();
        return true;
    }

    Value next(int depth) {
        if (depth > 100) fail();
        space();
        if (at_ == end_) fail();
        Value value;
        if (take('{')) {
            value.kind = Value::kObject;
            if (take('}')) return value;
            do {
                space();
                std::string name = string();
                if (!take(':')) fail();
                value.fields.emplace_back(std::move(name), next(depth + 1));
            } while (take(','));
            if (!take('}')) fail();
        } else if (take('[')) {
            value.kind = Value::kList;
            if (take(']')) return value;
            do value.items.push_back(next(depth + 1));
            while (take(','));
            if (!take(']')) fail();
        } else if (*at_ == '"') {
            value.kind = Value::kText;
            value.text = string();
        } else if (word("null")) {
            value.kind = Value::kNull;
        } else if (word("true") || word("false")) {
            value.kind = Value::kBool;
            value.truth = at_[-2] == 'u';
        } else {
            value.kind = Value::kNumber;
            const char* start = at_;
            while (at_ != end_ && std::string("+-.eE0123456789").find(*at_) != std::string::npos) ++at_;
            value.text.assign(start, at_);
            char* stop = nullptr;
            if (value.text.empty()) fail();
            (void)std::strtod(value.text.c_str(), &stop);
            if (*stop) fail();
        }
        return value;
    }

    unsigned hex4() {
        unsigned code = 0;
        for (int i = 0; i < 4; ++i) {
            const std::size_t digit =
                at_ == end_ ? std::string::npos
                            : std::string("0123456789abcdef").find(static_cast<char>(*at_ | 32));
            if (digit == std::string::npos) fail();
            code = code * 16 + static_cast<unsigned>(digit);
            ++at_;
        }
        return code;
    }

    // UTF-8, as hashing wants it.
    static void append(std::string& out, unsigned code) {
        if (code < 0x80) {
            out += static_cast<char>(code);
        } else if (code < 0x800) {
            out += {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
        } else if (code < 0x10000) {
            out += {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
                    static_cast<char>(0x80 | (code & 63))};
        } else {
            out += {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 63)),
                    static_cast<char>(0x80 | (code >> 6 & 63)), static_cast<char>(0x80 | (code & 63))};
        }
    }

    std::string string() {
        if (!take('"')) fail();
        std::string out;
        for (;;) {
            if (at_ == end_ || static_cast<unsigned char>(*at_) < 0x20) fail();
            const char c = *at_++;
            if (c == '"') return out;
            if (c != '\\') {
                out += c;
                continue;
            }
            if (at_ == end_) fail();
            const char escaped = *at_++;
            const std::string from = "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t";
            if (const std::size_t place = from.find(escaped); place != std::string::npos) {
                out += to[place];
            } else if (escaped == 'u') {
                unsigned code = hex4();
                if (code >= 0xD800 && code < 0xDC00) {
                    if (!word("\\u")) fail();
                    const unsigned low = hex4();
                    if (low < 0xDC00 || low > 0xDFFF) fail();
                    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                } else if (code >= 0xDC00 && code < 0xE000) {
                    fail();
                }
                append(out, code);
            } else {
                fail();
            }
        }
    }

    const char *at_, *end_;
};

}  // namespace json
