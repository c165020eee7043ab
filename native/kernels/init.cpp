#include "sparsefleet/init.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "sparsefleet/float_mode.h"
#include "sparsefleet/mix.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {
namespace {

constexpr double kTwoPi = 6.283185307179586476925286766559;

// Draw number i of a row: a counter through the mixer, so that any position can be computed by itself.
inline std::uint64_t draw(std::uint64_t row_base, std::size_t i) {
    return mix64(row_base + kGolden * (static_cast<std::uint64_t>(i) + 1));
}

void fill_uniform(const Initializer& init, std::uint64_t base, float* out, std::size_t dim) {
    const double low = init.a, span = init.b - init.a;
    // Rounding to float may reach `high`, which the interval excludes.
    const float first = static_cast<float>(init.a);
    const float last = std::max(first, std::nextafter(static_cast<float>(init.b), first));
    for (std::size_t i = 0; i < dim; ++i) {
        const double unit = static_cast<double>(static_cast<std::int64_t>(draw(base, i) >> 40)) * 0x1p-24;
        out[i] = std::min(static_cast<float>(low + span * unit), last);
    }
}

// Box-Muller: two draws give two values, the cosine at the even position and the sine at the odd one.
void fill_normal(const Initializer& init, std::uint64_t base, float* out, std::size_t dim) {
    for (std::size_t i = 0; i < dim; i += 2) {
        const double u1 =
            (static_cast<double>(draw(base, i) >> 11) + 1.0) * 0x1p-53;  // (0, 1]: its log is finite
        const double u2 = static_cast<double>(draw(base, i + 1) >> 11) * 0x1p-53;
        const double radius = std::sqrt(-2.0 * std::log(u1)), angle = kTwoPi * u2;
        out[i] = static_cast<float>(init.a + init.b * (radius * std::cos(angle)));
        if (i + 1 < dim) out[i + 1] = static_cast<float>(init.a + init.b * (radius * std::sin(angle)));
    }
}

// Apart from init_row, so that nothing of it is moved out of the mode that is set there.
[[gnu::noinline]] void fill(const Initializer& init, std::uint64_t base, float* out, std::size_t dim) {
    switch (init.kind) {
        case InitKind::kUniform:
            fill_uniform(init, base, out, dim);
            break;
        case InitKind::kNormal:
            fill_normal(init, base, out, dim);
            break;
        case InitKind::kConstant:
            std::fill(out, out + dim, static_cast<float>(init.a));
            break;
    }
}

}  // namespace

Initializer make_initializer(int kind, double a, double b, std::uint64_t seed) {
    if (kind < 0 || kind > static_cast<int>(InitKind::kConstant))
        throw std::invalid_argument("initializer kind " + std::to_string(kind) + " does not exist");
    return Initializer{static_cast<InitKind>(kind), a, b, seed};
}

void init_row(const Initializer& init, std::uint64_t key, float* out, std::size_t dim) {
    // The key is mixed before the seed comes in, so that neighbouring keys and neighbouring seeds never share
    // a row.
    const std::uint64_t base = mix64(mix64(key + kGolden) ^ init.seed);
    const KeepDenormals mode;  // a push that creates the row has set another
    fill(init, base, out, dim);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
