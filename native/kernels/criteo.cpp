// label \t n numbers \t S categories, one sample a line.
#include <cmath>
#include <cstring>
#include <limits>

#include "sparsefleet/text.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

constexpr std::uint64_t kZeros = 0x3030303030303030ULL;

// Up to eight digits, right-aligned in a word of '0's, at once. False when a byte is not a digit.
inline bool parse_digits(const char* p, std::size_t size, std::uint64_t* value) {
    const unsigned spare = 64 - 8 * static_cast<unsigned>(size);
    const std::uint64_t aligned = (xxh::load64(p) << (spare & 63)) | (kZeros & ~(~0ULL << (spare & 63)));
    std::uint64_t w = size ? aligned : kZeros;
    const bool digits =
        ((w & 0xF0F0F0F0F0F0F0F0ULL) | (((w + 0x0606060606060606ULL) & 0xF0F0F0F0F0F0F0F0ULL) >> 4)) ==
        0x3333333333333333ULL;
    w -= kZeros;
    w = w * 10 + (w >> 8);
    *value = (((w & 0x000000FF000000FFULL) * 0x000F424000000064ULL) +
              (((w >> 16) & 0x000000FF000000FFULL) * 0x0000271000000001ULL)) >>
             32;
    return digits;
}

}  // namespace

CriteoParser::CriteoParser(std::vector<double> minimum, std::vector<double> diff,
                           std::vector<std::string> prefixes, std::uint64_t seed, std::uint64_t dim,
                           bool labelled, std::size_t max_line)
    : LineParser(max_line),
      minimum_(std::move(minimum)),
      diff_(std::move(diff)),
      numbers_(minimum_.size()),
      seed_(seed),
      fold_(dim),
      fields_(labelled + minimum_.size() + prefixes.size()),
      labelled_(labelled) {
    bool alike = !prefixes.empty() && prefixes[0].size() < 8;
    for (const auto& prefix : prefixes) alike &= prefix.size() == prefixes[0].size();
    if (alike) {
        head_ = prefixes[0].size();
        for (const auto& prefix : prefixes) {
            std::uint64_t packed = 0;
            std::memcpy(&packed, prefix.data(), prefix.size());
            packed_.push_back(packed);
            blank_.push_back(fold_(xxh64(prefix.data(), prefix.size(), seed)));
        }
        first_.resize(prefixes.size());
        rest_.resize(prefixes.size());
    }
    for (auto& prefix : prefixes) hashes_.emplace_back(std::move(prefix), seed);
}

// Keys of the categories that end at `ends`, the first of which starts at `begin`.
void CriteoParser::hash_sample(const char* line, const std::uint32_t* ends, std::size_t begin,
                               std::uint64_t* keys) {
    const std::size_t slots = hashes_.size();
    if (head_ == kOtherHead) {
        for (std::size_t s = 0; s < slots; begin = ends[s++] + std::size_t{1})
            keys[s] = fold_(hashes_[s].padded(line + begin, ends[s] - begin));
        return;
    }
    std::size_t at = begin;
    bool usual = true;
    for (std::size_t s = 0; s < slots; at = ends[s++] + std::size_t{1}) {
        first_[s] = packed_[s] | (xxh::load64(line + at) << (8 * head_));
        rest_[s] = xxh::load64(line + at + 8 - head_);  // for head 0 not looked at
        const std::size_t size = ends[s] - at;
        usual &= (size == kUsual) | (size == 0);
    }
    hash_many(first_.data(), rest_.data(), slots, head_, seed_, keys);
    at = begin;
    for (std::size_t s = 0; s < slots; at = ends[s++] + std::size_t{1}) {
        const std::uint64_t key = fold_(keys[s]);
        keys[s] = ends[s] == at ? blank_[s] : key;
    }
    if (usual) return;
    at = begin;
    for (std::size_t s = 0; s < slots; at = ends[s++] + std::size_t{1}) {
        const std::size_t size = ends[s] - at;
        if (size != kUsual && size != 0) keys[s] = fold_(hashes_[s].padded(line + at, size));
    }
}

LineParser::Refusal CriteoParser::read_line(const char* line, const LineScan& scan, const Columns& out,
                                            std::size_t sample, bool*) {
    const std::size_t dense = minimum_.size(), slots = hashes_.size();
    std::uint32_t* const tabs = tabs_.data();
    if (__builtin_expect(scan.suspect, 0)) {
        const Refusal refusal = bad_bytes(line, scan.length, '\t');
        if (refusal.reason != kFine) return refusal;
    }
    if (__builtin_expect(scan.tabs + 1 != fields_, 0)) {
        const std::size_t found = scan.tabs + 1;
        // Too few: the first one missing; too many: the first one over.
        const auto column = static_cast<std::int64_t>((found < fields_ ? found : fields_) + 1);
        return {kFieldCount, column, 0, scan.length, static_cast<std::int64_t>(found)};
    }
    tabs[scan.tabs] = static_cast<std::uint32_t>(scan.length);  // so that every field ends at an entry

    std::size_t begin = 0;
    const std::uint32_t* field = tabs;
    if (labelled_) {
        if (*field != 1 || (line[0] != '0' && line[0] != '1')) return {kLabel, 1, 0, *field, 0};
        out.labels[sample] = static_cast<float>(line[0] - '0');
        begin = *field++ + std::size_t{1};
    } else {
        out.labels[sample] = std::numeric_limits<float>::quiet_NaN();
    }

    double* const numbers = numbers_.data();
    const double* const minimum = minimum_.data();
    const double* const diff = diff_.data();
    for (std::size_t i = 0; i < dense; ++i, ++field) {
        const char* p = line + begin;
        const std::size_t size = *field - begin;
        const bool negative = *p == '-' && size;
        const std::size_t digits = size - negative;
        std::uint64_t value = 0;
        if (__builtin_expect(digits <= 8, 1) && parse_digits(p + negative, digits, &value) &&
            (digits || !negative)) {
            const double number = static_cast<double>(static_cast<std::int64_t>(value));
            // A missing number is 0.0 after normalisation, that is: the minimum.
            numbers[i] = size ? (negative ? -number : number) : minimum[i];
        } else if (!parse_decimal(p, p + size, &numbers[i])) {
            return {kNumber, field - tabs + 1, begin, *field, 0};
        }
        begin = *field + std::size_t{1};
    }
    float* const __restrict normalised = out.dense + sample * dense;
    bool finite = true;
    for (std::size_t i = 0; i < dense; ++i) {
        const auto value = static_cast<float>((numbers[i] - minimum[i]) / diff[i]);
        normalised[i] = value;
        finite &= std::fabs(value) <= std::numeric_limits<float>::max();
    }
    if (__builtin_expect(!finite, 0)) {
        std::size_t i = 0;
        while (std::fabs(normalised[i]) <= std::numeric_limits<float>::max()) ++i;
        const std::size_t at = i + labelled_;
        return {kRange, static_cast<std::int64_t>(at) + 1, at ? tabs[at - 1] + std::size_t{1} : 0, tabs[at],
                0};
    }

    if (__builtin_expect(out.numbers != nullptr, 0)) {
        double* const raw = out.numbers + sample * dense;
        for (std::size_t i = 0; i < dense; ++i) {
            const std::size_t at = i + labelled_;
            const bool blank = tabs[at] == (at ? tabs[at - 1] + 1 : 0);
            raw[i] = blank ? std::numeric_limits<double>::quiet_NaN() : numbers[i];
        }
    }
    hash_sample(line, field, begin, out.keys + sample * slots);
    return {};
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
