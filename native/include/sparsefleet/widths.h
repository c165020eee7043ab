// Widths of rows that loops are compiled for.
#pragma once

#include <cstddef>
#include <type_traits>

namespace sparsefleet::SPARSEFLEET_LEVEL {

// Calls f with the row width as a compile-time constant where it is a common one: copies and sums of a known
// length become a few vector instructions. 11 and 17: 10 or 16 behind the weight of a linear term; 0: nothing
// behind it.
template <typename F>
void with_width(std::size_t dim, F&& f) {
    switch (dim) {
        case 0:
            return f(std::integral_constant<std::size_t, 0>{});
        case 4:
            return f(std::integral_constant<std::size_t, 4>{});
        case 8:
            return f(std::integral_constant<std::size_t, 8>{});
        case 10:
            return f(std::integral_constant<std::size_t, 10>{});
        case 11:
            return f(std::integral_constant<std::size_t, 11>{});
        case 16:
            return f(std::integral_constant<std::size_t, 16>{});
        case 17:
            return f(std::integral_constant<std::size_t, 17>{});
        case 32:
            return f(std::integral_constant<std::size_t, 32>{});
        case 64:
            return f(std::integral_constant<std::size_t, 64>{});
        default:
            return f(dim);
    }
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
