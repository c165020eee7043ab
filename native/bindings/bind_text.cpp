#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bindings.h"
#include "sparsefleet/text.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

std::string text_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

using Offsets = std::optional<Out<std::int64_t, 1>>;
using Numbers = std::optional<Out<double, 2>>;
constexpr std::size_t kLongestLine = std::size_t{1} << 30;

// What both parsers check alike; `slots` is 0 where offsets are given, for keys are then not one per slot.
Parsed parse(LineParser& parser, std::size_t n, std::size_t slots, std::size_t keys_per_sample,
             In<std::uint8_t, 1> data, std::size_t begin, std::size_t size, std::size_t stop, bool final,
             bool open, bool skip, Out<float, 1> labels, Out<float, 2> dense, Out<std::uint64_t, 1> keys,
             const Offsets& offsets, Out<std::int64_t, 1> lines, Out<std::int64_t, 1> ends,
             Out<std::int64_t, 1> counts, std::size_t sample, std::int64_t line_base, std::int64_t byte_base,
             const Numbers& numbers = std::nullopt) {
    const std::size_t capacity = labels.shape(0);
    expect(begin <= size && size <= data.shape(0), "text block out of its buffer");
    expect(sample <= capacity, "first sample out of the arrays");
    expect(dense.shape(0) == capacity && dense.shape(1) == n, "dense is not [capacity, n]");
    expect(lines.shape(0) == capacity && ends.shape(0) == capacity, "lines or ends is not [capacity]");
    expect(counts.shape(0) == kReasons, "counts has not one entry per reason");
    expect(keys.shape(0) >= capacity * keys_per_sample, "keys has not room for every sample");
    if (offsets) {
        expect(offsets->shape(0) == capacity * slots + 1, "offsets is not [capacity * slots + 1]");
        const std::int64_t used = offsets->data()[sample * slots];
        expect(used >= 0 && static_cast<std::size_t>(used) <= keys.shape(0), "offsets do not fit keys");
    }
    expect(!numbers || (numbers->shape(0) == capacity && numbers->shape(1) == n),
           "numbers is not [capacity, n]");
    const Block block{reinterpret_cast<const char*>(data.data()), size, begin, stop, final, open, skip};
    const Columns columns{labels.data(),
                          dense.data(),
                          keys.data(),
                          offsets ? offsets->data() : nullptr,
                          lines.data(),
                          ends.data(),
                          sample,
                          capacity,
                          keys.shape(0),
                          line_base,
                          byte_base,
                          counts.data(),
                          numbers ? numbers->data() : nullptr};
    const Reading scope;
    return parser.parse(block, columns);
}

nb::tuple as_tuple(const Parsed& p) {
    return nb::make_tuple(p.filled, p.consumed, p.lines, p.open, p.full, p.reason, p.column, p.line_begin,
                          p.begin, p.end, p.found);
}

struct PyCriteo {
    std::size_t dense, slots;
    CriteoParser parser;
};

struct PyMultiSlot {
    std::size_t dense, slots;
    MultiSlotParser parser;
};

PyMultiSlot multislot(const std::vector<std::tuple<int, std::size_t, std::size_t>>& layout, std::size_t dense,
                      std::size_t slots, std::uint64_t dim, std::size_t max_line) {
    expect(max_line <= kLongestLine, "max_line is above 2^30");
    std::vector<MultiSlotParser::Entry> entries;
    std::vector<bool> seen(slots, false);
    for (const auto& [kind, index, width] : layout) {
        expect(kind >= 0 && kind <= 2, "unknown kind of slot in a layout");
        if (kind == MultiSlotParser::kDense)
            expect(width <= dense && index <= dense - width, "dense slot out of range");
        if (kind == MultiSlotParser::kSparse) {
            expect(index < slots && !seen[index], "sparse slot out of range or given twice");
            seen[index] = true;
        }
        entries.push_back({kind, index, width});
    }
    for (const bool there : seen) expect(there, "a layout without one of the slots");
    return {dense, slots, MultiSlotParser(std::move(entries), dense, slots, dim, max_line)};
}

}  // namespace

// noconvert: a copy of an input would hide a slow step.
void bind_text(nb::module_& m) {
    const auto input = nb::arg().noconvert();
    const auto other = nb::arg();

    // None where the text is no number that a file may hold.
    m.def("parse_decimal", [](const nb::bytes& text) -> std::optional<double> {
        double value = 0;
        const KeepDenormals mode;
        if (!parse_decimal(text.c_str(), text.c_str() + text.size(), &value)) return std::nullopt;
        return value;
    });
    m.def("xxh64", [](const nb::bytes& data, std::uint64_t seed) {
        const char* p = data.c_str();
        const std::size_t size = data.size();
        nb::gil_scoped_release release;
        return xxh64(p, size, seed);
    });
    m.def(
        "hash_strings",
        [](In<std::uint8_t, 1> data, In<std::int64_t, 1> offsets, const nb::bytes& prefix, std::uint64_t seed,
           std::uint64_t dim, Out<std::uint64_t, 1> out) {
            expect(offsets.shape(0) == out.shape(0) + 1, "offsets is not one longer than the keys");
            const std::int64_t* at = offsets.data();
            const std::size_t count = out.shape(0), size = data.shape(0);
            expect(at[0] >= 0 && static_cast<std::size_t>(at[count]) <= size, "offsets leave the data");
            const PrefixHash hash(text_of(prefix), seed);
            const auto* bytes = reinterpret_cast<const char*>(data.data());
            bool ordered = true;
            {
                nb::gil_scoped_release release;
                for (std::size_t i = 0; i < count; ++i) ordered &= at[i] <= at[i + 1];
                if (ordered) hash_strings(bytes, at, count, size, hash, Fold(dim), out.data());
            }
            expect(ordered, "offsets decrease");
        },
        input, input, other, other, other, other);
    m.def(
        "skip_lines",
        [](In<std::uint8_t, 1> data, std::size_t begin, std::size_t size, std::int64_t lines) {
            expect(begin <= size && size <= data.shape(0), "text block out of its buffer");
            const auto* p = reinterpret_cast<const char*>(data.data());
            std::pair<std::int64_t, std::size_t> moved;
            {
                nb::gil_scoped_release release;
                moved = skip_lines(p, size, begin, lines);
            }
            return nb::make_tuple(moved.first, moved.second);
        },
        input, other, other, other);

    nb::class_<PyCriteo>(m, "CriteoParser")
        .def("__init__",
             [](PyCriteo* self, std::vector<double> minimum, std::vector<double> diff,
                const std::vector<nb::bytes>& prefixes, std::uint64_t seed, std::uint64_t dim, bool labelled,
                std::size_t max_line) {
                 expect(minimum.size() == diff.size(), "minimum and diff differ in length");
                 expect(max_line <= kLongestLine, "max_line is above 2^30");
                 std::vector<std::string> texts;
                 for (const auto& prefix : prefixes) texts.push_back(text_of(prefix));
                 const std::size_t dense = minimum.size(), slots = texts.size();
                 new (self) PyCriteo{dense, slots,
                                     CriteoParser(std::move(minimum), std::move(diff), std::move(texts), seed,
                                                  dim, labelled, max_line)};
             })
        .def(
            "parse",
            [](PyCriteo& self, In<std::uint8_t, 1> data, std::size_t begin, std::size_t size,
               std::size_t stop, bool final, bool open, bool skip, Out<float, 1> labels, Out<float, 2> dense,
               Out<std::uint64_t, 1> keys, Out<std::int64_t, 1> lines, Out<std::int64_t, 1> ends,
               Out<std::int64_t, 1> counts, std::size_t sample, std::int64_t line_base,
               std::int64_t byte_base, const Numbers& numbers) {
                return as_tuple(parse(self.parser, self.dense, self.slots, self.slots, data, begin, size,
                                      stop, final, open, skip, labels, dense, keys, std::nullopt, lines, ends,
                                      counts, sample, line_base, byte_base, numbers));
            },
            input, other, other, other, other, other, other, other, other, other, other, other, other, other,
            other, other, nb::arg().none());

    nb::class_<PyMultiSlot>(m, "MultiSlotParser")
        .def("__init__",
             [](PyMultiSlot* self, const std::vector<std::tuple<int, std::size_t, std::size_t>>& layout,
                std::size_t dense, std::size_t slots, std::uint64_t dim, std::size_t max_line) {
                 new (self) PyMultiSlot(multislot(layout, dense, slots, dim, max_line));
             })
        .def(
            "parse",
            [](PyMultiSlot& self, In<std::uint8_t, 1> data, std::size_t begin, std::size_t size,
               std::size_t stop, bool final, bool open, bool skip, Out<float, 1> labels, Out<float, 2> dense,
               Out<std::uint64_t, 1> keys, Out<std::int64_t, 1> offsets, Out<std::int64_t, 1> lines,
               Out<std::int64_t, 1> ends, Out<std::int64_t, 1> counts, std::size_t sample,
               std::int64_t line_base, std::int64_t byte_base) {
                return as_tuple(parse(self.parser, self.dense, self.slots, 0, data, begin, size, stop, final,
                                      open, skip, labels, dense, keys, offsets, lines, ends, counts, sample,
                                      line_base, byte_base));
            },
            input, other, other, other, other, other, other, other, other, other, other, other, other, other,
            other, other, other);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
