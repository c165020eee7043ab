// One sample a line: the declared slots in order, each `n v1 … vn`, space separated.
#include <cmath>
#include <limits>

#include "sparsefleet/text.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

// Walks over the words of a line.
struct Words {
    const char* p;
    const char* const end;
    const char* word = nullptr;
    const char* word_end = nullptr;
    std::int64_t number = 0;  // of the present word, from 1

    bool next() {
        while (p < end && *p == ' ') ++p;
        if (p == end) return false;
        word = p;
        while (p < end && *p != ' ') ++p;
        word_end = p;
        ++number;
        return true;
    }
};

enum class Whole { kFine, kNotDigits, kTooLarge };

Whole parse_whole(const char* p, const char* end, std::uint64_t* value) {
    std::uint64_t number = 0;
    if (p == end) return Whole::kNotDigits;
    const bool surely_fits = end - p <= 19;
    bool large = false;
    for (; p < end; ++p) {
        const auto digit = static_cast<unsigned>(*p) - '0';
        if (digit > 9) return Whole::kNotDigits;
        if (!surely_fits &&
            (number > UINT64_MAX / 10 || (number == UINT64_MAX / 10 && digit > UINT64_MAX % 10)))
            large = true;
        number = number * 10 + digit;
    }
    *value = number;
    return large ? Whole::kTooLarge : Whole::kFine;
}

}  // namespace

MultiSlotParser::MultiSlotParser(std::vector<Entry> layout, std::size_t dense, std::size_t slots,
                                 std::uint64_t dim, std::size_t max_line)
    : LineParser(max_line),
      layout_(std::move(layout)),
      dense_(dense),
      slots_(slots),
      fold_(dim),
      ranges_(slots) {}

LineParser::Refusal MultiSlotParser::read_line(const char* line, const LineScan& scan, const Columns& out,
                                               std::size_t sample, bool* full) {
    if (scan.suspect) {
        const Refusal refusal = bad_bytes(line, scan.length, ' ');
        if (refusal.reason != kFine) return refusal;
    }
    Words words{line, line + scan.length};
    const auto refuse = [&](int reason, std::int64_t found = 0) {
        return Refusal{reason, words.number, static_cast<std::size_t>(words.word - line),
                       static_cast<std::size_t>(words.word_end - line), found};
    };
    const auto missing = [&] {
        return Refusal{kMissingValues, words.number + 1, 0, scan.length, words.number};
    };
    out.labels[sample] = std::numeric_limits<float>::quiet_NaN();
    keys_.clear();
    for (const Entry& entry : layout_) {
        if (!words.next()) return missing();
        std::uint64_t count = 0;
        if (parse_whole(words.word, words.word_end, &count) != Whole::kFine) return refuse(kNumber);
        if (count == 0) return refuse(kEmptySlot);
        if (entry.kind != kSparse && count != entry.width)
            return refuse(kWidth, static_cast<std::int64_t>(count));
        const std::size_t first = keys_.size();
        for (std::uint64_t i = 0; i < count; ++i) {
            if (!words.next()) return missing();
            if (entry.kind == kSparse) {
                std::uint64_t key = 0;
                const bool negative = *words.word == '-';
                switch (parse_whole(words.word + negative, words.word_end, &key)) {
                    case Whole::kNotDigits:
                        return refuse(kKey);
                    case Whole::kTooLarge:
                        return refuse(negative ? kNegativeKey : kKeyOverflow);
                    case Whole::kFine:
                        break;
                }
                if (negative) return refuse(kNegativeKey);
                keys_.push_back(fold_(key));
                continue;
            }
            double number = 0;
            if (!parse_decimal(words.word, words.word_end, &number))
                return refuse(entry.kind == kDense ? kNumber : kLabel);
            if (entry.kind == kDense) {
                const auto value = static_cast<float>(number);
                if (!std::isfinite(value)) return refuse(kRange);
                out.dense[sample * dense_ + entry.index + i] = value;
            } else {
                if (number != 0 && number != 1) return refuse(kLabel);
                out.labels[sample] = static_cast<float>(number);
            }
        }
        if (entry.kind == kSparse) ranges_[entry.index] = {first, keys_.size()};
    }
    if (words.next()) return refuse(kSurplusValues);

    std::int64_t* const offsets = out.offsets + sample * slots_;
    auto at = static_cast<std::size_t>(offsets[0]);
    if (at + keys_.size() > out.key_capacity) {
        *full = true;
        return {};
    }
    for (std::size_t s = 0; s < slots_; ++s) {
        for (std::size_t k = ranges_[s].first; k < ranges_[s].second; ++k) out.keys[at++] = keys_[k];
        offsets[s + 1] = static_cast<std::int64_t>(at);
    }
    return {};
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
