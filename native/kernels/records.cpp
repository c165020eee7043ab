// Labels, numbers and keys of a record.
#include "sparsefleet/records.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

constexpr std::size_t kPadding = 64;
constexpr float kLargest = std::numeric_limits<float>::max();

constexpr double kPowers[] = {1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                              1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};

inline bool digit(char c) { return c >= '0' && c <= '9'; }

// The number that eight digits make, the first in the lowest byte; each byte is the digit's value.
inline std::uint64_t of_digits(std::uint64_t digits) {
    digits = digits * 10 + (digits >> 8);  // pairs, in every other byte
    const std::uint64_t high = (digits & 0x000000FF000000FFull) * 0x000F424000000064ull;
    const std::uint64_t low = (digits >> 16 & 0x000000FF000000FFull) * 0x0000271000000001ull;
    return (high + low) >> 32;
}

// A number of up to eight characters, digits with at most one point between them, without a loop: how long
// numbers are cannot be foreseen, and each wrong guess would cost as much as all of this. False: it is
// something else. Reads eight bytes.
inline bool parse_short(const char* p, std::size_t size, bool negative, double* value) {
    constexpr std::uint64_t kZeros = 0x3030303030303030ull, kHigh = 0x8080808080808080ull;
    // Its characters to the end, behind as many zeros as are missing of eight.
    const std::size_t missing = 8 * (8 - size);
    const std::uint64_t digits = (xxh::load64(p) ^ kZeros) << missing;
    const std::uint64_t others = ((digits + 0x7676767676767676ull) | digits) & kHigh;
    if (others == 0) {
        const auto whole = static_cast<std::int64_t>(of_digits(digits));
        *value = static_cast<double>(negative ? -whole : whole);
        return true;
    }
    const auto point = static_cast<std::size_t>(__builtin_ctzll(others)) & ~std::size_t{7};  // in bits
    if ((others & (others - 1)) != 0 || (digits >> point & 0xFF) != ('.' ^ '0') || point == missing ||
        point == 56)
        return false;
    const std::uint64_t before = digits & ((std::uint64_t{1} << point) - 1);
    const std::uint64_t behind = digits >> point >> 8 << point << 8;
    // As below: exact, and rounded once.
    const double number = static_cast<double>(of_digits(behind | before << 8)) / kPowers[(56 - point) / 8];
    *value = negative ? -number : number;
    return true;
}

inline bool parse_number(const char* p, std::size_t size, double* value) {
    // Most numbers are short and whole.
    const bool negative = size && *p == '-';
    const std::size_t digits = size - negative;
    if (digits && digits <= 8 && parse_short(p + negative, digits, negative, value)) return true;
    if (digits && digits <= 15) {
        std::int64_t whole = 0;
        std::size_t i = negative;
        for (; i < size && digit(p[i]); ++i) whole = 10 * whole + (p[i] - '0');
        if (i == size) {
            *value = static_cast<double>(negative ? -whole : whole);
            return true;
        }
        // 12.34: up to 15 digits and a power of ten are exact in a double, and so is their rounded quotient.
        const std::size_t point = i;
        if (p[i] == '.' && i > negative) {
            for (++i; i < size && digit(p[i]); ++i) whole = 10 * whole + (p[i] - '0');
            if (i == size && i > point + 1) {
                const double number = static_cast<double>(whole) / kPowers[size - point - 1];
                *value = negative ? -number : number;
                return true;
            }
        }
    }
    return parse_decimal(p, p + size, value);
}

// Criteo's: floor(ln(x)^2) above 2, else the whole part of x.
inline double ln2(double x) {
    if (!(x > 2)) return std::trunc(x);
    const double logarithm = std::log(x);
    return std::floor(logarithm * logarithm);
}

// Of the small whole numbers that counts are, made once: a logarithm takes longer than all else that is done
// with a number.
struct Logarithms {
    static constexpr std::size_t kCount = 1024;
    double of[kCount];
    Logarithms() {
        for (std::size_t i = 0; i < kCount; ++i) of[i] = std::log1p(static_cast<double>(i));
    }
};

inline double log1p_of(double x) {
    static const Logarithms known;
    if (x < Logarithms::kCount) {
        const auto whole = static_cast<std::size_t>(x);
        if (static_cast<double>(whole) == x) return known.of[whole];
    }
    // What 1 + x loses to rounding is in the last bits of a double, and float32 is what is kept. log takes
    // half as long as log1p.
    return x >= 1 ? std::log(1 + x) : std::log1p(x);
}

// How many borders are not above x. A few are all looked at: which way a search turns cannot be foreseen.
inline std::size_t bucket_of(const std::vector<double>& borders, double x) {
    constexpr std::size_t kFew = 8;
    if (borders.size() > kFew)
        return static_cast<std::size_t>(std::upper_bound(borders.begin(), borders.end(), x) -
                                        borders.begin());
    std::size_t below = 0;
    for (const double border : borders) below += border <= x;
    return below;
}

inline double apply(int function, double x) {
    if (function == kLog1p) return std::copysign(log1p_of(std::fabs(x)), x);
    return function == kLn2 ? ln2(x) : x;
}

inline double before_scaling(const DensePlan& plan, double x) {
    x = x < plan.low ? plan.low : x > plan.high ? plan.high : x;
    return plan.function == kIdentity ? x : apply(plan.function, x);
}

// Eight bytes at once: A to Z become a to z.
inline std::uint64_t lower8(std::uint64_t word) {
    constexpr std::uint64_t kOnes = 0x0101010101010101ull, kHigh = 0x8080808080808080ull;
    const std::uint64_t low = word & ~kHigh;
    const std::uint64_t from_a = low + kOnes * (0x80 - 'A'), past_z = low + kOnes * (0x7F - 'Z');
    const std::uint64_t upper = (from_a & ~past_z) & ~word & kHigh;
    return word | upper >> 2;
}

// Days since 1970-01-01 of a date of the Gregorian calendar.
std::int64_t days_of(std::int64_t year, unsigned month, unsigned day) {
    year -= month <= 2;
    const std::int64_t era = (year >= 0 ? year : year - 399) / 400;
    const auto of_era = static_cast<unsigned>(year - era * 400);
    const unsigned of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
    const unsigned day_of_era = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    return era * 146097 + static_cast<std::int64_t>(day_of_era) - 719468;
}

bool date(std::int64_t year, unsigned month, unsigned day, std::int64_t* days) {
    static constexpr unsigned kDays[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (month < 1 || month > 12 || day < 1 || day > kDays[month - 1]) return false;
    const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    if (month == 2 && day == 29 && !leap) return false;
    *days = days_of(year, month, day);
    return true;
}

// Digits out of [p, end), exactly `count`.
bool digits_of(const char*& p, const char* end, int count, unsigned* out) {
    *out = 0;
    for (; count; --count, ++p) {
        if (p >= end || !digit(*p)) return false;
        *out = 10 * *out + static_cast<unsigned>(*p - '0');
    }
    return true;
}

// 2024-05-01, 2024-05-01 12:30, 2024-05-01T12:30:05.25Z, 2024-05-01T12:30:05+02:00
bool parse_iso(const char* p, const char* end, std::int64_t* seconds) {
    unsigned year, month, day, hour = 0, minute = 0, second = 0;
    std::int64_t days = 0, shift = 0;
    const auto take = [&](char c) { return p < end && *p == c && (++p, true); };
    if (!digits_of(p, end, 4, &year) || !take('-') || !digits_of(p, end, 2, &month) || !take('-') ||
        !digits_of(p, end, 2, &day) || !date(year, month, day, &days))
        return false;
    if (p < end) {
        if (!(take('T') || take(' ')) || !digits_of(p, end, 2, &hour) || !take(':') ||
            !digits_of(p, end, 2, &minute))
            return false;
        if (take(':')) {
            if (!digits_of(p, end, 2, &second)) return false;
            if (take('.')) {
                if (p == end || !digit(*p)) return false;
                while (p < end && digit(*p)) ++p;
            }
        }
        if (hour > 23 || minute > 59 || second > 59) return false;
        if (p < end && (*p == '+' || *p == '-')) {
            const std::int64_t sign = *p++ == '+' ? 1 : -1;
            unsigned hours, minutes = 0;
            if (!digits_of(p, end, 2, &hours)) return false;
            if (p < end && ((take(':'), !digits_of(p, end, 2, &minutes)))) return false;
            if (hours > 14 || minutes > 59) return false;
            shift = sign * static_cast<std::int64_t>(hours * 3600 + minutes * 60);
        } else if (p < end) {
            take('Z');
        }
        if (p != end) return false;
    }
    *seconds = days * 86400 + hour * 3600 + minute * 60 + second - shift;
    return true;
}

// Hashes are made in whole vectors, where the level has 64-bit products in them: so no loop is needed for the
// last few. What is made of the places behind them is not looked at.
inline std::size_t whole_lanes(std::size_t count) {
#if defined(__AVX512DQ__)
    return (count + 7) / 8 * 8;
#else
    return count;
#endif
}

std::int64_t floor_mod(std::int64_t x, std::int64_t by) { return ((x % by) + by) % by; }

}  // namespace

// Seconds since 1970. What lies beyond is in another unit (milliseconds, most likely), and its hour would be
// chance.
constexpr double kYear10000 = 253402300800.0;

bool parse_time(const char* p, std::size_t size, int format, std::int64_t* seconds) {
    if (format == kYymmddhh) {
        unsigned year, month, day, hour;
        std::int64_t days;
        const char *at = p, *const end = p + size;
        if (size != 8 || !digits_of(at, end, 2, &year) || !digits_of(at, end, 2, &month) ||
            !digits_of(at, end, 2, &day) || !digits_of(at, end, 2, &hour))
            return false;
        if (hour > 23 || !date(2000 + year, month, day, &days)) return false;
        *seconds = days * 86400 + hour * 3600;
        return true;
    }
    double number;
    if (!parse_number(p, size, &number)) return format == kAuto && parse_iso(p, p + size, seconds);
    if (format == kMilliseconds) number /= 1000;
    number = std::floor(number);
    if (!(std::fabs(number) < kYear10000)) return false;
    *seconds = static_cast<std::int64_t>(number);
    return true;
}

void HashSet::fill(const std::vector<std::uint64_t>& hashes) {
    std::size_t size = 4;
    while (size < 2 * hashes.size()) size *= 2;
    table_.assign(size, 0);
    mask_ = size - 1;
    for (const std::uint64_t hash : hashes) {
        if (hash == 0) {
            zero_ = true;
            continue;
        }
        std::uint64_t at = hash & mask_;
        while (table_[at] != 0 && table_[at] != hash) at = (at + 1) & mask_;
        table_[at] = hash;
    }
}

Assembler::Assembler(RecordPlan plan) : plan_(std::move(plan)), fold_(plan_.dim) {
    const std::size_t slots = plan_.slots.size();
    known_.resize(slots);
    kept_.resize(slots);
    missing_.resize(slots);
    rare_.resize(slots);
    start_.resize(slots);
    count_.resize(slots);
    for (std::size_t s = 0; s < slots; ++s) {
        const SlotPlan& slot = plan_.slots[s];
        hashes_.emplace_back(slot.prefix, plan_.seed);
        missing_[s] = hashes_[s].any(slot.missing.data(), slot.missing.size());
        rare_[s] = hashes_[s].any(slot.rare.data(), slot.rare.size());
        kept_[s].fill(slot.kept);
        const std::size_t values = slot.kind == kBuckets   ? slot.buckets.size() + 1
                                   : slot.kind == kHour    ? 24
                                   : slot.kind == kWeekday ? 7
                                                           : 0;
        for (std::size_t v = 0; v < values; ++v) {
            const std::string text = std::to_string(v);
            known_[s].push_back(hashes_[s].any(text.data(), text.size()));
        }
        const bool whole = slot.kind == kHashed && !slot.split && !slot.length && !slot.filtered;
        ways_.push_back({slot.field, whole && !slot.lower, whole && slot.lower});
        if (slot.kind != kCross) order_.push_back(s);
    }
    for (std::size_t s = 0; s < slots; ++s)
        if (plan_.slots[s].kind == kCross) order_.push_back(s);
    in_order_ = std::is_sorted(order_.begin(), order_.end());
    numbers_.resize(plan_.dense.size());
    number_of_.assign(slots, -1);
    for (std::size_t s = 0; s < slots; ++s)
        for (std::size_t i = 0; i < plan_.dense.size(); ++i)
            if (plan_.slots[s].kind != kCross && plan_.slots[s].field == plan_.dense[i].field)
                number_of_[s] = static_cast<std::int64_t>(i);
    hashed_.resize(slots);
    has_hash_.resize(slots);
    for (std::size_t head = 0; head < 8; ++head) {
        Group group{head, {}};
        for (std::size_t s = 0; s < slots; ++s) {
            const std::string& prefix = plan_.slots[s].prefix;
            if (prefix.size() != head || !(ways_[s].plain || ways_[s].lowered)) continue;
            std::uint64_t packed = 0;
            std::memcpy(&packed, prefix.data(), head);
            group.members.push_back({s, ways_[s].field, packed, ways_[s].lowered});
        }
        if (group.members.size() < 2) continue;
        which_.resize(std::max(which_.size(), whole_lanes(group.members.size())));
        groups_.push_back(std::move(group));
    }
    first_.resize(which_.size());
    rest_.resize(which_.size());
    together_.resize(which_.size());
}

// Hashes of the values of eight bytes. True: every slot has one.
bool Assembler::hash_together(const Field* fields) {
    std::fill(has_hash_.begin(), has_hash_.end(), 0);
    std::size_t all = 0;
    for (const Group& group : groups_) {
        const std::size_t head = group.head;
        std::size_t count = 0;
        for (const Member& member : group.members) {
            const Field& field = fields[member.field];
            if (field.count != 1) continue;
            const Value& value = field.values[0];
            if (value.size != 8 || value.kind > kWhole) continue;
            std::uint64_t word = xxh::load64(value.data);
            if (member.lowered) word = lower8(word);
            first_[count] = member.prefix | word << (8 * head);
            rest_[count] = head ? word >> (64 - 8 * head) : 0;
            which_[count++] = member.slot;
            has_hash_[member.slot] = 1;
        }
        hash_many(first_.data(), rest_.data(), whole_lanes(count), head, plan_.seed, together_.data());
        for (std::size_t i = 0; i < count; ++i) hashed_[which_[i]] = together_[i];
        all += count;
    }
    return all == hashed_.size();
}

bool Assembler::refuse(int reason, std::size_t field, const Value* value) {
    bad_value = value;
    refusal_ = {};
    refusal_.reason = reason;
    refusal_.column = static_cast<std::int64_t>(field) + 1;
    return false;
}

bool Assembler::label(const Field& field, float* out) const {
    if (field.list && field.count != 1) return false;
    const Value& value = field.values[0];
    if (value.size == 1 && (value.data[0] == '0' || value.data[0] == '1')) {
        *out = static_cast<float>(value.data[0] - '0');
        return true;
    }
    if (value.kind == kTruth) {
        *out = value.data[0] == 't' ? 1.0f : 0.0f;
        return true;
    }
    double number;
    if (!parse_number(value.data, value.size, &number) || (number != 0 && number != 1)) return false;
    *out = static_cast<float>(number);
    return true;
}

bool Assembler::dense(const Field* fields, std::size_t index, float* out) {
    const DensePlan& plan = plan_.dense[index];
    const Field& field = fields[plan.field];
    double x;
    if (field.count == 0 || (field.count == 1 && field.values[0].size == 0)) {
        if (std::isnan(plan.missing)) {
            *out = 0.0f;
            return true;
        }
        x = plan.missing;
    } else {
        const Value& value = field.values[0];
        if (field.list || value.kind == kTruth) return refuse(kValueKind, plan.field, &value);
        if (!parse_number(value.data, value.size, &x)) return refuse(kNumber, plan.field, &value);
    }
    *out = static_cast<float>((before_scaling(plan, x) - plan.minimum) / plan.diff);
    if (!(std::fabs(*out) <= kLargest))
        return refuse(kRange, plan.field, field.count ? field.values : nullptr);
    numbers_[index] = x;
    return true;
}

void Assembler::tell_numbers(const Field* fields, double* out) const {
    for (std::size_t i = 0; i < plan_.dense.size(); ++i) {
        const DensePlan& plan = plan_.dense[i];
        const Field& field = fields[plan.field];
        const bool none = field.count == 0 || (field.count == 1 && field.values[0].size == 0);
        const double x = none ? plan.missing : numbers_[i];
        out[i] = std::isnan(x) ? x : before_scaling(plan, x);
    }
}

void Assembler::text_value(const char* p, std::size_t size, std::size_t index) {
    const SlotPlan& plan = plan_.slots[index];
    if (plan.length) {
        // The first so many characters: a character begins where a byte is no continuation.
        std::size_t seen = 0, at = 0;
        for (; at < size; ++at)
            if ((static_cast<unsigned char>(p[at]) & 0xC0) != 0x80 && ++seen > plan.length) break;
        size = at;
    }
    if (plan.lower) {
        if (scratch_.size() < size + kPadding) scratch_.resize(2 * size + kPadding);
        char* const to = scratch_.data();
        for (std::size_t i = 0; i < size; i += 8) {
            const std::uint64_t word = lower8(xxh::load64(p + i));
            std::memcpy(to + i, &word, 8);
        }
        p = to;
    }
    keys_.push_back(hashes_[index].padded(p, size));
}

// Of the slot's keys, which begin at `start`: those that are too rare become one, or go.
void Assembler::drop_rare(std::size_t start, std::size_t index) {
    const HashSet& kept = kept_[index];
    const bool has_rare = plan_.slots[index].has_rare;
    std::size_t to = start;
    for (std::size_t k = start; k < keys_.size(); ++k) {
        if (kept.has(keys_[k]))
            keys_[to++] = keys_[k];
        else if (has_rare)
            keys_[to++] = rare_[index];
    }
    keys_.resize(to);
}

bool Assembler::text_values(const Field& field, std::size_t index) {
    const SlotPlan& plan = plan_.slots[index];
    const std::size_t start = keys_.size();
    const std::size_t most = plan.first ? plan.first : std::numeric_limits<std::size_t>::max();
    for (std::size_t v = 0; v < field.count && keys_.size() - start < most; ++v) {
        const Value& value = field.values[v];
        if (value.kind > kWhole) return refuse(kValueKind, plan.field, &value);
        if (value.kind == kText && plan.split && !field.list) {
            const char *p = value.data, *const end = p + value.size;
            while (p < end && keys_.size() - start < most) {
                const auto* mark =
                    static_cast<const char*>(std::memchr(p, plan.split, static_cast<std::size_t>(end - p)));
                const char* const stop = mark ? mark : end;
                if (stop != p) text_value(p, static_cast<std::size_t>(stop - p), index);
                p = stop + 1;
            }
            continue;
        }
        if (value.size == 0 && plan.has_missing) continue;
        text_value(value.data, value.size, index);
    }
    if (plan.filtered) drop_rare(start, index);
    if (keys_.size() == start && plan.has_missing) keys_.push_back(missing_[index]);
    return true;
}

void Assembler::cross(const SlotPlan& plan, const PrefixHash& hash) {
    const auto part = [&](std::size_t which) { return plan.cross[which]; };
    const std::size_t third = plan.cross.size() == 3 ? count_[part(2)] : 1;
    std::uint64_t words[4] = {};
    const std::size_t bytes = 8 * plan.cross.size();
    for (std::size_t i = 0; i < count_[part(0)]; ++i) {
        words[0] = keys_[start_[part(0)] + i];
        for (std::size_t j = 0; j < count_[part(1)]; ++j) {
            words[1] = keys_[start_[part(1)] + j];
            for (std::size_t k = 0; k < third; ++k) {
                if (plan.cross.size() == 3) words[2] = keys_[start_[part(2)] + k];
                keys_.push_back(hash.padded(reinterpret_cast<const char*>(words), bytes));
            }
        }
    }
}

bool Assembler::slot(const Field* fields, std::size_t index) {
    const SlotPlan& plan = plan_.slots[index];
    if (plan.kind == kCross) {
        std::size_t values = 1;
        for (const std::size_t part : plan.cross) {
            values *= count_[part];
            if (values > limit_) return refuse(kTooManyValues, plan_.slots[plan.cross[0]].field);
        }
        cross(plan, hashes_[index]);
        return true;
    }
    const Field& field = fields[plan.field];
    if (plan.kind == kHashed) return text_values(field, index);
    if (plan.kind == kKeys) {
        const auto one = [&](const Value& value, const char* p, std::size_t size) -> bool {
            if (value.kind > kWhole || (value.kind == kText && !plan_.text_keys))
                return refuse(kValueKind, plan.field, &value);
            const bool negative = size && *p == '-';
            std::uint64_t key = 0;
            const auto done = std::from_chars(p + negative, p + size, key);
            if (done.ec == std::errc::invalid_argument || done.ptr != p + size)
                return refuse(kKey, plan.field, &value);
            if (negative) return refuse(kNegativeKey, plan.field, &value);
            if (done.ec != std::errc()) return refuse(kKeyOverflow, plan.field, &value);
            keys_.push_back(key);
            return true;
        };
        const std::size_t start = keys_.size();
        const std::size_t most = plan.first ? plan.first : std::numeric_limits<std::size_t>::max();
        for (std::size_t v = 0; v < field.count; ++v) {
            const Value& value = field.values[v];
            const char *p = value.data, *const end = p + value.size;
            while (p < end && keys_.size() - start < most) {
                const char* stop = end;
                if (plan.split && !field.list && value.kind == kText)
                    if (const void* mark = std::memchr(p, plan.split, static_cast<std::size_t>(end - p)))
                        stop = static_cast<const char*>(mark);
                if (stop != p) {
                    if (!one(value, p, static_cast<std::size_t>(stop - p))) return false;
                }
                p = stop + 1;
            }
        }
        return true;
    }
    // One number or time.
    if (field.count == 0 || (field.count == 1 && field.values[0].size == 0)) {
        if (plan.has_missing) keys_.push_back(missing_[index]);
        return true;
    }
    const Value& value = field.values[0];
    if (field.list || value.kind == kTruth) return refuse(kValueKind, plan.field, &value);
    if (plan.kind == kHour || plan.kind == kWeekday) {
        std::int64_t seconds;
        if (!parse_time(value.data, value.size, plan_.time_format, &seconds))
            return refuse(kTime, plan.field, &value);
        const std::int64_t of_day = floor_mod(seconds, 86400);
        const std::int64_t weekday = floor_mod((seconds - of_day) / 86400 + 3, 7);
        keys_.push_back(
            known_[index][static_cast<std::size_t>(plan.kind == kHour ? of_day / 3600 : weekday)]);
        return true;
    }
    double x;
    if (number_of_[index] >= 0)
        x = numbers_[static_cast<std::size_t>(number_of_[index])];
    else if (!parse_number(value.data, value.size, &x))
        return refuse(kNumber, plan.field, &value);
    if (plan.kind == kBuckets) {
        keys_.push_back(known_[index][bucket_of(plan.buckets, x)]);
        return true;
    }
    const double whole = ln2(x);
    if (!(std::fabs(whole) < 1e15)) return refuse(kRange, plan.field, &value);
    char text[32];
    const auto end = std::to_chars(text, text + sizeof text, static_cast<std::int64_t>(whole)).ptr;
    keys_.push_back(hashes_[index].any(text, static_cast<std::size_t>(end - text)));
    return true;
}

Refusal Assembler::assemble(const Field* fields, const Columns& out, std::size_t sample, bool* full) {
    const std::size_t labels = plan_.labels.size(), slots = plan_.slots.size();
    float* const to = out.labels + sample * labels;
    for (std::size_t l = 0; l < labels; ++l) {
        const LabelPlan& plan = plan_.labels[l];
        to[l] = std::numeric_limits<float>::quiet_NaN();
        if (plan.field < 0 || (plan.where >= 0 && to[plan.where] != 1.0f)) continue;
        const auto at = static_cast<std::size_t>(plan.field);
        const Field& field = fields[at];
        if (field.count == 0 || (field.count == 1 && field.values[0].size == 0)) {
            if (plan.required) {
                refuse(kLabelMissing, at, field.count ? field.values : nullptr);
                return refusal_;
            }
            continue;
        }
        if (!label(field, to + l)) {
            refuse(kLabel, at, field.values);
            return refusal_;
        }
    }
    for (std::size_t i = 0; i < plan_.dense.size(); ++i) {
        if (__builtin_expect(!dense(fields, i, out.dense + sample * plan_.dense.size() + i), 0))
            return refusal_;
    }
    if (__builtin_expect(out.numbers != nullptr, 0))
        tell_numbers(fields, out.numbers + sample * plan_.dense.size());
    if (out.weights) {
        const auto at = static_cast<std::size_t>(plan_.weight);
        const Field& field = fields[at];
        double weight = -1;
        if (field.count != 1 || !parse_number(field.values[0].data, field.values[0].size, &weight) ||
            !(weight >= 0 && weight <= kLargest)) {
            refuse(kWeight, at, field.count ? field.values : nullptr);
            return refusal_;
        }
        out.weights[sample] = static_cast<float>(weight);
    }
    if (out.groups) {
        const Field& field = fields[static_cast<std::size_t>(plan_.group)];
        out.groups[sample] = field.count ? xxh64(field.values[0].data, field.values[0].size, plan_.seed)
                                         : xxh64(nullptr, 0, plan_.seed);
    }
    if (out.times) {
        const auto at = static_cast<std::size_t>(plan_.time);
        const Field& field = fields[at];
        if (field.count != 1 ||
            !parse_time(field.values[0].data, field.values[0].size, plan_.time_format, out.times + sample)) {
            refuse(kTime, at, field.count ? field.values : nullptr);
            return refusal_;
        }
    }

    std::int64_t* const offsets = out.offsets + sample * slots;
    auto end = static_cast<std::size_t>(offsets[0]);
    std::uint64_t* const keys = out.keys;
    if (hash_together(fields) && end + slots <= out.key_capacity) {
        for (std::size_t s = 0; s < slots; ++s) {
            keys[end + s] = fold_(hashed_[s]);
            offsets[s + 1] = static_cast<std::int64_t>(end + s + 1);
        }
        return {};
    }
    // Slots that come before all that need a closer look.
    std::size_t ahead = 0;
    while (ahead < order_.size() && has_hash_[order_[ahead]]) ++ahead;
    keys_.resize(ahead);
    for (std::size_t i = 0; i < ahead; ++i) {
        const std::size_t s = order_[i];
        keys_[i] = hashed_[s];
        start_[s] = i;
        count_[s] = 1;
    }
    limit_ = out.key_capacity;
    for (std::size_t i = ahead; i < order_.size(); ++i) {
        const std::size_t s = order_[i];
        start_[s] = keys_.size();
        if (has_hash_[s]) {
            keys_.push_back(hashed_[s]);
            count_[s] = 1;
            continue;
        }
        const Way& way = ways_[s];
        const Field& field = fields[way.field];
        if ((way.plain || way.lowered) && field.count == 1 && field.values[0].kind <= kWhole &&
            field.values[0].size) {
            if (way.plain)
                keys_.push_back(hashes_[s].padded(field.values[0].data, field.values[0].size));
            else
                text_value(field.values[0].data, field.values[0].size, s);
            count_[s] = 1;
            continue;
        }
        if (__builtin_expect(!slot(fields, s), 0)) return refusal_;
        count_[s] = keys_.size() - start_[s];
        if (keys_.size() > out.key_capacity) {
            refuse(kTooManyValues, plan_.slots[s].field, nullptr);
            return refusal_;
        }
    }
    if (end + keys_.size() > out.key_capacity) {
        *full = true;
        return {};
    }
    if (in_order_) {
        for (std::size_t k = 0; k < keys_.size(); ++k) keys[end + k] = fold_(keys_[k]);
        for (std::size_t s = 0; s < slots; ++s)
            offsets[s + 1] = static_cast<std::int64_t>(end + start_[s] + count_[s]);
        return {};
    }
    for (std::size_t s = 0; s < slots; ++s) {
        for (std::size_t k = 0; k < count_[s]; ++k) keys[end++] = fold_(keys_[start_[s] + k]);
        offsets[s + 1] = static_cast<std::int64_t>(end);
    }
    return {};
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
