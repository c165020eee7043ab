// label \t n numbers \t S categories, one row a line.
#include <cmath>
#include <limits>

#include "sparsefleet/text.h"

namespace sparsefleet {

namespace {

constexpr std::uint64_t kZeros = 0x3030303030303030ULL;

// Up to eight digits, right-aligned in a word of '0's, at once. False when a byte is not a digit.
inline bool parse_digits(const char* p, std::size_t size, std::uint64_t* value) {
    const unsigned spare = 64 - 8 * static_cast<unsigned>(size);
    const std::uint64_t aligned = (xxh::load64(p) << (spare & 63)) | (kZeros & ~(~0ULL << (spare & 63)));
    std::uint64_t w = size ? aligned : kZeros;
    const bool digits = ((w & 0xF0F0F0F0F0F0F0F0ULL) | (((w + 0x0606060606060606ULL) & 0xF0F0F0F0F0F0F0F0ULL) >> 4)) ==
                        0x3333333333333333ULL;
    w -= kZeros;
    w = w * 10 + (w >> 8);
    *value = (((w & 0x000000FF000000FFULL) * 0x000F424000000064ULL) +
              (((w >> 16) & 0x000000FF000000FFULL) * 0x0000271000000001ULL)) >>
             32;
    return digits;
}

}  // namespace

CriteoParser::CriteoParser(std::vector<double> minimum, std::vector<double> diff, std::vector<std::string> prefixes,
                           std::uint64_t seed, std::uint64_t dim, bool labelled, std::size_t max_line)
    : LineParser(max_line),
      minimum_(std::move(minimum)),
      diff_(std::move(diff)),
      numbers_(minimum_.size()),
      fold_(dim),
      fields_(labelled + minimum_.size() + prefixes.size()),
      labelled_(labelled) {
    for (auto& prefix : prefixes) hashes_.emplace_back(std::move(prefix), seed);
}

LineParser::Refusal CriteoParser::row(const char* line, const LineScan& scan, const Columns& out, std::size_t row,
                                      bool*) {
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
        out.labels[row] = static_cast<float>(line[0] - '0');
        begin = *field++ + std::size_t{1};
    } else {
        out.labels[row] = std::numeric_limits<float>::quiet_NaN();
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
        if (__builtin_expect(digits <= 8, 1) && parse_digits(p + negative, digits, &value) && (digits || !negative)) {
            const double number = static_cast<double>(static_cast<std::int64_t>(value));
            // A missing number is 0.0 after normalisation, that is: the minimum.
            numbers[i] = size ? (negative ? -number : number) : minimum[i];
        } else if (!parse_decimal(p, p + size, &numbers[i])) {
            return {kNumber, field - tabs + 1, begin, *field, 0};
        }
        begin = *field + std::size_t{1};
    }
    float* const __restrict normalised = out.dense + row * dense;
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
        return {kRange, static_cast<std::int64_t>(at) + 1, at ? tabs[at - 1] + std::size_t{1} : 0, tabs[at], 0};
    }

    std::uint64_t* const keys = out.keys + row * slots;
    for (std::size_t s = 0; s < slots; ++s, ++field) {
        keys[s] = fold_(hashes_[s].padded(line + begin, *field - begin));
        begin = *field + std::size_t{1};
    }
    return {};
}

}  // namespace sparsefleet
