#include "sparsefleet/serving/request.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "sparsefleet/json_text.h"
#include "sparsefleet/text.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

// Counts in bytes, so that one instruction compares and adds 16 or more of them; a byte can count to 255. It
// stands here because bindings are compiled for size, and a request waits for it on the event loop.
std::size_t count_byte(const unsigned char* data, std::size_t size, unsigned char byte) {
    constexpr std::size_t kLanes = 64;
    std::size_t total = 0, at = 0;
    while (size - at >= kLanes) {
        unsigned char sums[kLanes] = {};
        for (int round = 0; round < 255 && size - at >= kLanes; ++round, at += kLanes)
            for (std::size_t i = 0; i < kLanes; ++i)
                sums[i] = static_cast<unsigned char>(sums[i] + (data[at + i] == byte));
        for (const unsigned char sum : sums) total += sum;
    }
    for (; at < size; ++at) total += data[at] == byte;
    return total;
}

RequestParser::RequestParser(std::vector<std::string> names, std::string label, std::vector<double> minimum,
                             std::vector<double> diff, const std::vector<std::string>& prefixes,
                             std::vector<bool> takes_keys, std::uint64_t seed, std::uint64_t dim,
                             Limits limits)
    : names_(std::move(names)),
      label_(std::move(label)),
      minimum_(std::move(minimum)),
      diff_(std::move(diff)),
      takes_keys_(std::move(takes_keys)),
      fold_(dim),
      limits_(limits),
      seen_(names_.size()),
      in_context_(names_.size()),
      row_dense_(minimum_.size()),
      start_(prefixes.size()),
      count_(prefixes.size()) {
    for (std::size_t i = 0; i < names_.size(); ++i) places_.emplace(names_[i], static_cast<int>(i));
    hashes_.reserve(prefixes.size());
    for (const std::string& prefix : prefixes) hashes_.emplace_back(prefix, seed);
}

bool RequestParser::space() {
    while (p_ < end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\r' || *p_ == '\t')) ++p_;
    return p_ < end_;
}

bool RequestParser::take(char c) {
    if (!space() || *p_ != c) return false;
    ++p_;
    return true;
}

bool RequestParser::text(const char** begin, std::size_t* length) {
    if (!take('"')) return false;
    const char* from = p_;
    bool plain = true;
    // Go eight bytes at a time, up to the first that is not an ordinary letter.
    while (end_ - p_ >= 8) {
        const std::uint64_t special = special_bytes(xxh::load64(p_));
        if (special) {
            p_ += __builtin_ctzll(special) / 8;
            break;
        }
        p_ += 8;
    }
    for (; p_ < end_ && *p_ != '"'; ++p_) {
        const auto byte = static_cast<unsigned char>(*p_);
        if (byte < 0x20 || byte == '\\') return false;
        plain &= byte < 0x80;
    }
    if (p_ == end_) return false;
    *begin = from;
    *length = static_cast<std::size_t>(p_++ - from);
    return plain || utf8_error(from, *length) == *length;
}

bool RequestParser::literal(const char* word, std::size_t length) {
    if (static_cast<std::size_t>(end_ - p_) < length || std::memcmp(p_, word, length) != 0) return false;
    p_ += length;
    return true;
}

bool RequestParser::parse(const char* data, std::size_t size) {
    p_ = data;
    end_ = data + size;
    rows_ = 0;
    dense.clear();
    keys.clear();
    offsets.assign(1, 0);
    std::fill(in_context_.begin(), in_context_.end(), 0);
    shared_fields_ = shared_values_ = 0;
    values_.clear();
    gaps_.clear();
    return document() && !space();
}

bool RequestParser::document() {
    const char* name;
    std::size_t length;
    if (!take('{') || !text(&name, &length) || !take(':')) return false;
    const auto is = [&](const char* word) {
        return length == std::strlen(word) && !std::memcmp(name, word, length);
    };
    if (is("rows")) return row_list() && take('}');
    if (!is("context") || !context() || !take(',') || !text(&name, &length) || !take(':')) return false;
    return is("candidates") && row_list() && take('}');
}

bool RequestParser::context() {
    ++stamp_;
    found_ = 0;
    if (!object(true)) return false;
    shared_fields_ = found_;
    shared_values_ = values_.size();
    gaps_.clear();  // candidates have other fields
    return true;
}

bool RequestParser::row_list() {
    if (!take('[') || !space()) return false;
    if (*p_ == ']') return ++p_, true;
    const bool lists = *p_ == '[' && !shared_fields_;
    do {
        if (rows_ == limits_.rows || !(lists ? row_array() : row_object())) return false;
    } while (take(','));
    return take(']');
}

bool RequestParser::row_object() {
    if (++stamp_ == 0) return false;  // after 2^32 samples old stamps would look new
    found_ = 0;
    values_.resize(shared_values_);
    return object(false) && finish_row();
}

bool RequestParser::row_array() {
    ++stamp_;
    found_ = 0;
    values_.resize(0);
    if (!take('[')) return false;
    for (std::size_t field = 0; field < names_.size(); ++field) {
        if (field && !take(',')) return false;
        if (!value(static_cast<int>(field))) return false;
    }
    return take(']') && finish_row();
}

bool RequestParser::object(bool shared) {
    if (!take('{')) return false;
    for (std::size_t position = 0;; ++position) {
        int field;
        if (same_gap(position)) {
            field = gaps_[position].field;
        } else {
            const char* const from = p_;
            if (position ? !take(',') : space() && *p_ == '}') return take('}');
            const char* name;
            std::size_t length;
            if (!text(&name, &length) || !take(':') || !space()) return false;
            field = field_of(name, length);
            if (field == kUnknown) return false;
            if (position <= names_.size()) {
                gaps_.resize(position);
                gaps_.push_back({std::string(from, p_), field});
            }
        }
        if (field == kLabel) {
            if (!pass_over()) return false;
            continue;
        }
        if (in_context_[field]) return false;
        if (shared) in_context_[field] = 1;
        if (!value(field)) return false;
    }
}

bool RequestParser::same_gap(std::size_t position) {
    if (position >= gaps_.size()) return false;
    const std::string& bytes = gaps_[position].bytes;
    if (static_cast<std::size_t>(end_ - p_) < bytes.size() ||
        std::memcmp(p_, bytes.data(), bytes.size()) != 0)
        return false;
    p_ += bytes.size();
    return true;
}

int RequestParser::field_of(const char* name, std::size_t length) {
    if (const auto found = places_.find(std::string(name, length)); found != places_.end())
        return found->second;
    return length == label_.size() && !std::memcmp(label_.data(), name, length) ? kLabel : kUnknown;
}

bool RequestParser::value(int field) {
    if (seen_[field] == stamp_ || !space()) return false;
    seen_[field] = stamp_;
    ++found_;
    return static_cast<std::size_t>(field) < minimum_.size() ? dense_value(field) : slot_value(field);
}

bool RequestParser::pass_over() {
    double ignored;
    return space() && (*p_ == 'n' ? literal("null", 4) : number(&ignored));
}

bool RequestParser::number(double* out) {
    const char* from = p_;
    if (p_ < end_ && *p_ == '-') ++p_;
    const char* digits = p_;
    std::int64_t whole = 0;
    for (; p_ < end_ && *p_ >= '0' && *p_ <= '9'; ++p_)
        if (p_ - digits < 18) whole = 10 * whole + (*p_ - '0');
    const std::ptrdiff_t count = p_ - digits;
    if (!count || (count > 1 && *digits == '0')) return false;
    if (p_ == end_ || (*p_ != '.' && *p_ != 'e' && *p_ != 'E')) {
        if (count > 15) return parse_decimal(from, p_, out);
        *out = static_cast<double>(digits == from ? whole : -whole);
        return true;
    }
    if (*p_ == '.') {
        const char* point = p_++;
        while (p_ < end_ && *p_ >= '0' && *p_ <= '9') ++p_;
        if (p_ == point + 1) return false;
    }
    if (p_ < end_ && (*p_ == 'e' || *p_ == 'E')) {
        ++p_;
        if (p_ < end_ && (*p_ == '+' || *p_ == '-')) ++p_;
        const char* exponent = p_;
        while (p_ < end_ && *p_ >= '0' && *p_ <= '9') ++p_;
        if (p_ == exponent) return false;
    }
    return parse_decimal(from, p_, out);
}

bool RequestParser::dense_value(int field) {
    float& out = row_dense_[field];
    if (*p_ == 'n') {
        out = 0.0f;
        return literal("null", 4);
    }
    double raw;
    if (!number(&raw)) return false;
    out = static_cast<float>((raw - minimum_[field]) / diff_[field]);
    return std::fabs(out) <= std::numeric_limits<float>::max();
}

bool RequestParser::slot_value(int field) {
    const std::size_t slot = static_cast<std::size_t>(field) - minimum_.size();
    start_[slot] = values_.size();
    count_[slot] = 0;
    if (*p_ == 'n') return literal("null", 4);
    std::uint64_t key;
    if (*p_ != '[') {
        if (!one_key(&key, slot)) return false;
        values_.push_back(key);
        count_[slot] = 1;
        return true;
    }
    ++p_;
    if (!space()) return false;
    if (*p_ == ']') return ++p_, true;
    do {
        if (!space() || count_[slot] == limits_.values || !one_key(&key, slot)) return false;
        values_.push_back(key);
        ++count_[slot];
    } while (take(','));
    return take(']');
}

bool RequestParser::one_key(std::uint64_t* key, std::size_t slot) {
    const PrefixHash& hash = hashes_[slot];
    const auto hashed = [&](const char* begin, std::size_t length) {
        const bool room = static_cast<std::size_t>(end_ - begin) >= length + PrefixHash::kOverread;
        return fold_(room ? hash.padded(begin, length) : hash.any(begin, length));
    };
    if (*p_ == '"') {
        const char* begin;
        std::size_t length;
        if (!text(&begin, &length) || length > limits_.text) return false;
        *key = hashed(begin, length);
        return true;
    }
    const char* const from = p_;
    if (*p_ == '-' && !takes_keys_[slot]) ++p_;
    const char* digits = p_;
    std::uint64_t whole = 0;
    for (; p_ < end_ && *p_ >= '0' && *p_ <= '9'; ++p_)
        whole = 10 * whole + static_cast<std::uint64_t>(*p_ - '0');
    const std::ptrdiff_t count = p_ - digits;
    if (count < 1 || count > 19 || (count > 1 && *digits == '0')) return false;  // 19 digits fit 64 bits
    if (p_ < end_ && (*p_ == '.' || *p_ == 'e' || *p_ == 'E')) return false;
    if (!takes_keys_[slot]) {
        if (from != digits && *digits == '0') return false;  // -0 is 0, which Python says
        *key = hashed(from, static_cast<std::size_t>(p_ - from));
        return true;
    }
    *key = fold_(whole);
    return true;
}

bool RequestParser::finish_row() {
    const std::size_t width = minimum_.size();
    if (found_ + shared_fields_ != names_.size()) {
        if (!limits_.allow_missing) return false;
        for (std::size_t field = 0; field < names_.size(); ++field) {
            if (seen_[field] == stamp_ || in_context_[field]) continue;
            if (field < width)
                row_dense_[field] = 0.0f;
            else
                count_[field - width] = 0;
        }
    }
    dense.insert(dense.end(), row_dense_.begin(), row_dense_.end());
    for (std::size_t slot = 0; slot < start_.size(); ++slot) {
        const std::uint64_t* from = values_.data() + start_[slot];
        if (count_[slot] == 1)
            keys.push_back(*from);
        else if (count_[slot])
            keys.insert(keys.end(), from, from + count_[slot]);
        offsets.push_back(static_cast<std::int64_t>(keys.size()));
    }
    ++rows_;
    return true;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
