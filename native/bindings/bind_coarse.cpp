#include "bindings.h"
#include "sparsefleet/coarse.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

void bind_coarse(nb::module_& m) {
    const auto input = nb::arg().noconvert();  // a copy would hide a slow step
    const auto output = nb::arg();
    m.def(
        "to_bfloat16",
        [](const In<float, 1>& values, const Out<std::uint16_t, 1>& out) {
            expect(out.shape(0) == values.shape(0), "as many numbers come out as go in");
            const Computing computing;
            to_bfloat16(values.data(), values.shape(0), out.data());
        },
        input, output);
    m.def(
        "from_bfloat16",
        [](const In<std::uint16_t, 1>& coarse, const Out<float, 1>& out) {
            expect(out.shape(0) == coarse.shape(0), "as many numbers come out as go in");
            const Computing computing;
            from_bfloat16(coarse.data(), coarse.shape(0), out.data());
        },
        input, output);
    m.def(
        "to_int8",
        [](const In<float, 1>& values, const Out<float, 1>& rest, const Out<float, 1>& scales,
           const Out<std::int8_t, 1>& out) {
            const std::size_t n = values.shape(0);
            expect(rest.shape(0) == n && out.shape(0) == n, "as many numbers come out as go in");
            expect(scales.shape(0) == (n + kStretch - 1) / kStretch, "one scale for each stretch");
            const Computing computing;
            to_int8(values.data(), rest.data(), n, scales.data(), out.data());
        },
        input, output, output, output);
    m.def(
        "tell_int8",
        [](const In<float, 1>& values, const Out<float, 1>& known, const Out<float, 1>& scales,
           const Out<std::int8_t, 1>& out) {
            const std::size_t n = values.shape(0);
            expect(known.shape(0) == n && out.shape(0) == n, "as many numbers come out as go in");
            expect(scales.shape(0) == (n + kStretch - 1) / kStretch, "one scale for each stretch");
            const Computing computing;
            tell_int8(values.data(), known.data(), n, scales.data(), out.data());
        },
        input, output, output, output);
    m.def(
        "add_int8",
        [](const In<float, 1>& scales, const In<std::int8_t, 1>& coarse, const Out<float, 1>& out) {
            const std::size_t n = out.shape(0);
            expect(coarse.shape(0) == n, "as many numbers come out as go in");
            expect(scales.shape(0) == (n + kStretch - 1) / kStretch, "one scale for each stretch");
            const Computing computing;
            add_int8(scales.data(), coarse.data(), n, out.data());
        },
        input, input, output);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
