#include <charconv>
#include <cmath>

#include "sparsefleet/text.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

bool parse_decimal(const char* p, const char* end, double* value) {
    const bool negative = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+')) ++p;
    // from_chars also takes "inf", "nan" and a second sign; none of them starts like a number.
    if (p == end || !((*p >= '0' && *p <= '9') || *p == '.')) return false;
    double number = 0;
    const auto result = std::from_chars(p, end, number, std::chars_format::general);
    if (result.ec != std::errc() || result.ptr != end || !std::isfinite(number)) return false;
    if (number == 0) {
        // Standard libraries differ on numbers too small for a double; none of them is data, so refuse them
        // all.
        for (const char* q = p; q < end && *q != 'e' && *q != 'E'; ++q)
            if (*q >= '1' && *q <= '9') return false;
    }
    *value = negative ? -number : number;
    return true;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
