#include <optional>

#include "bindings.h"
#include "nanobind/stl/optional.h"
#include "sparsefleet/rows.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

constexpr std::size_t kShortPooling = 40960;  // floats

// A matrix whose rows are contiguous but may lie apart: a slice of a wider one.
using StridedOut = Written<float, nb::ndim<2>, nb::device::cpu>;
using StridedIn = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;

template <typename A>
void expect_rows(const A& a, std::size_t batch, std::size_t width) {
    expect(a.shape(0) == batch && a.shape(1) == width, "pooled matrix has the wrong shape");
    expect(width == 0 || batch == 0 || a.stride(1) == 1, "pooled matrix must have contiguous rows");
    expect(a.stride(0) >= 0, "pooled matrix must not run backwards");
}

// What bags must be, whoever made them: a broken batch must end in an error, not in another's memory. Called
// after the GIL is released, for it reads all of them.
void expect_bags(std::size_t values, const In<std::int64_t, 1>& offsets, const In<std::int32_t, 1>& chosen,
                 std::size_t slots) {
    const std::size_t size = offsets.shape(0);
    expect(slots > 0 && size >= 1 && (size - 1) % slots == 0, "offsets do not fit the slots");
    expect(offsets(0) == 0 && offsets(size - 1) == static_cast<std::int64_t>(values),
           "offsets must run from 0 to the number of keys");
    expect(never_decrease(offsets.data(), size), "offsets must never decrease");
    for (std::size_t c = 0; c < chosen.shape(0); ++c)
        expect(chosen(c) >= 0 && static_cast<std::size_t>(chosen(c)) < slots, "chosen slot out of range");
}

void expect_places(const In<std::int32_t, 1>& inverse, std::size_t rows) {
    expect(rows <= (std::size_t{1} << 31), "at most 2^31 rows");
    expect(all_below(inverse.data(), inverse.shape(0), rows), "a value's place is not among the rows");
}

}  // namespace

void bind_rows(nb::module_& m) {
    const auto input = nb::arg().noconvert();  // a copy would hide a slow step
    const auto other = nb::arg();
    m.def(
        "unique_keys",
        [](In<std::uint64_t, 1> keys, Out<std::uint64_t, 1> unique, Out<std::int32_t, 1> inverse,
           std::optional<Out<std::uint32_t, 1>> counts) {
            const std::size_t n = keys.shape(0);
            expect(unique.shape(0) >= n && inverse.shape(0) >= n && (!counts || counts->shape(0) >= n),
                   "unique_keys needs room for every key");
            expect(n < (std::size_t{1} << 31), "unique_keys takes fewer than 2^31 keys");
            const ReleaseUnlessShort release(n);
            return unique_keys(keys.data(), n, unique.data(), inverse.data(),
                               counts ? counts->data() : nullptr);
        },
        input, other, other, nb::arg().none());
    m.def(
        "select_slots",
        [](In<std::uint64_t, 1> keys, In<std::int64_t, 1> offsets, std::size_t slots,
           In<std::int32_t, 1> chosen, Out<std::uint64_t, 1> out_keys, Out<std::int64_t, 1> out_offsets) {
            const ReleaseUnlessShort release(keys.shape(0));
            expect_bags(keys.shape(0), offsets, chosen, slots);
            const std::size_t rows = (offsets.shape(0) - 1) / slots;
            expect(out_offsets.shape(0) == rows * chosen.shape(0) + 1,
                   "select_slots: wrong number of offsets");
            std::int64_t need = 0;
            for (std::size_t c = 0; c < chosen.shape(0); ++c)
                for (std::size_t r = 0; r < rows; ++r)
                    need += offsets(r * slots + chosen(c) + 1) - offsets(r * slots + chosen(c));
            expect(need <= static_cast<std::int64_t>(out_keys.shape(0)),
                   "select_slots: not enough room for the keys");
            return select_slots(keys.data(), offsets.data(), rows, slots, chosen.data(), chosen.shape(0),
                                out_keys.data(), out_offsets.data());
        },
        input, input, other, input, other, other);
    m.def(
        "pool_forward",
        [](In<float, 2> rows, In<std::int32_t, 1> inverse, In<std::int64_t, 1> offsets, std::size_t slots,
           In<std::int32_t, 1> chosen, bool mean, StridedOut out) {
            const std::size_t dim = rows.shape(1);
            const ReleaseUnlessShort release(inverse.shape(0) * dim, kShortPooling);
            expect_bags(inverse.shape(0), offsets, chosen, slots);
            expect_places(inverse, rows.shape(0));
            const std::size_t batch = (offsets.shape(0) - 1) / slots;
            expect_product_fits({chosen.shape(0), dim});
            expect_rows(out, batch, chosen.shape(0) * dim);
            const FlushDenormals mode;
            pool_forward(rows.data(), dim, inverse.data(), offsets.data(), batch, slots, chosen.data(),
                         chosen.shape(0), mean, out.data(), static_cast<std::size_t>(out.stride(0)));
        },
        input, input, input, other, input, other, other);
    m.def(
        "pool_backward",
        [](StridedIn grad, In<std::int32_t, 1> inverse, In<std::int64_t, 1> offsets, std::size_t slots,
           In<std::int32_t, 1> chosen, bool mean, Out<float, 2> grad_rows) {
            const std::size_t dim = grad_rows.shape(1);
            const ReleaseUnlessShort release(inverse.shape(0) * dim, kShortPooling);
            expect_bags(inverse.shape(0), offsets, chosen, slots);
            expect_places(inverse, grad_rows.shape(0));
            const std::size_t batch = (offsets.shape(0) - 1) / slots;
            expect_product_fits({chosen.shape(0), dim});
            expect_rows(grad, batch, chosen.shape(0) * dim);
            const FlushDenormals mode;
            pool_backward(grad.data(), static_cast<std::size_t>(grad.stride(0)), dim, inverse.data(),
                          offsets.data(), batch, slots, chosen.data(), chosen.shape(0), mean,
                          grad_rows.data());
        },
        input, input, input, other, input, other, other);
    m.def(
        "click_loss",
        [](In<float, 2> logits, In<float, 1> labels, Out<float, 1> probabilities, Out<float, 2> grad) {
            const std::size_t n = logits.shape(0), width = logits.shape(1);
            expect(width == 1 || width == 2, "click_loss takes one or two logits a row");
            expect(labels.shape(0) == n && probabilities.shape(0) == n,
                   "one label and one probability per row");
            expect(grad.shape(0) == n && grad.shape(1) == width, "the gradient has the logits' shape");
            const ReleaseUnlessShort release(n);
            const FlushDenormals mode;
            return click_loss(logits.data(), n, width, labels.data(), probabilities.data(), grad.data());
        },
        input, input, other, other);
    m.def(
        "count_clicks",
        [](In<float, 1> probabilities, In<float, 1> labels, Out<std::int64_t, 1> positive,
           Out<std::int64_t, 1> negative) {
            expect(probabilities.shape(0) == labels.shape(0), "one label per probability");
            expect(positive.shape(0) == negative.shape(0) && positive.shape(0) >= 2,
                   "two histograms of one size, at least 2");
            ClickSums sums;
            {
                const ReleaseUnlessShort release(labels.shape(0));
                const KeepDenormals mode;
                sums = count_clicks(probabilities.data(), labels.data(), labels.shape(0), positive.data(),
                                    negative.data(), positive.shape(0));
            }
            return nb::make_tuple(sums.log_loss, sums.predicted, sums.clicks, sums.correct, sums.bad);
        },
        input, input, other, other);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
