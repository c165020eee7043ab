#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bindings.h"
#include "sparsefleet/records.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

constexpr std::size_t kLongestLine = std::size_t{1} << 30;

std::string text_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

template <typename T>
T get(const nb::dict& from, const char* name) {
    return nb::cast<T>(from[name]);
}

// `kernels/records.py` builds the dict; wrong numbers here must never lead out of an array.
RecordPlan plan_of(const nb::dict& from) {
    RecordPlan plan;
    plan.fields = get<std::size_t>(from, "fields");
    const auto field = [&](std::int64_t number) {
        expect(number >= -1 && number < static_cast<std::int64_t>(plan.fields), "a field out of the plan");
        return number;
    };
    for (const auto& one : get<std::vector<nb::tuple>>(from, "dense")) {
        const auto at = field(nb::cast<std::int64_t>(one[0]));
        expect(at >= 0, "a dense feature without a field");
        plan.dense.push_back({static_cast<std::size_t>(at), nb::cast<double>(one[1]),
                              nb::cast<double>(one[2]), nb::cast<double>(one[3]), nb::cast<double>(one[4]),
                              nb::cast<int>(one[5]), nb::cast<double>(one[6])});
    }
    const auto slots = get<std::vector<nb::dict>>(from, "slots");
    for (const auto& one : slots) {
        SlotPlan slot;
        slot.kind = get<int>(one, "kind");
        const auto at = field(get<std::int64_t>(one, "field"));
        expect(at >= 0 || slot.kind == kCross, "a slot without a field");
        slot.field = at < 0 ? 0 : static_cast<std::size_t>(at);
        slot.prefix = text_of(get<nb::bytes>(one, "prefix"));
        slot.lower = get<bool>(one, "lower");
        slot.split = get<int>(one, "split");
        slot.first = get<std::size_t>(one, "first");
        slot.length = get<std::size_t>(one, "length");
        slot.has_missing = get<bool>(one, "has_missing");
        slot.missing = text_of(get<nb::bytes>(one, "missing"));
        slot.buckets = get<std::vector<double>>(one, "buckets");
        slot.cross = get<std::vector<std::size_t>>(one, "cross");
        slot.filtered = get<bool>(one, "filtered");
        const auto kept = get<In<std::uint64_t, 1>>(one, "kept");
        slot.kept.assign(kept.data(), kept.data() + kept.shape(0));
        slot.has_rare = get<bool>(one, "has_rare");
        slot.rare = text_of(get<nb::bytes>(one, "rare"));
        expect(slot.kind != kCross || slot.cross.size() == 2 || slot.cross.size() == 3,
               "a cross of two or three");
        for (const std::size_t part : slot.cross) expect(part < slots.size(), "a cross of no slot");
        plan.slots.push_back(std::move(slot));
    }
    for (const auto& slot : plan.slots)
        for (const std::size_t part : slot.cross)
            expect(plan.slots[part].kind != kCross, "a cross of a cross");
    for (const auto& [at, where, required] :
         get<std::vector<std::tuple<std::int64_t, std::int64_t, bool>>>(from, "labels")) {
        expect(where >= -1 && where < static_cast<std::int64_t>(plan.labels.size()),
               "a condition on a later label");
        plan.labels.push_back({field(at), where, required});
    }
    expect(!plan.labels.empty(), "no label");
    plan.weight = field(get<std::int64_t>(from, "weight"));
    plan.group = field(get<std::int64_t>(from, "group"));
    plan.time = field(get<std::int64_t>(from, "time"));
    plan.time_format = get<int>(from, "time_format");
    plan.seed = get<std::uint64_t>(from, "seed");
    plan.dim = get<std::uint64_t>(from, "dim");
    plan.text_keys = get<bool>(from, "text_keys");
    return plan;
}

// What of a plan is needed to check arrays.
struct Shape {
    std::size_t labels, dense, slots;
    bool weight, group, time;

    explicit Shape(const RecordPlan& plan)
        : labels(plan.labels.size()),
          dense(plan.dense.size()),
          slots(plan.slots.size()),
          weight(plan.weight >= 0),
          group(plan.group >= 0),
          time(plan.time >= 0) {}
};

using Weights = std::optional<Out<float, 1>>;
using Groups = std::optional<Out<std::uint64_t, 1>>;
using Times = std::optional<Out<std::int64_t, 1>>;
using Numbers = std::optional<Out<double, 2>>;

Columns columns_of(const Shape& shape, Out<float, 2>& labels, Out<float, 2>& dense,
                   Out<std::uint64_t, 1>& keys, Out<std::int64_t, 1>& offsets, const Weights& weights,
                   const Groups& groups, const Times& times, const Numbers& numbers, std::size_t sample) {
    const std::size_t capacity = labels.shape(0);
    expect(sample <= capacity, "first sample out of the arrays");
    expect(labels.shape(1) == shape.labels, "labels is not [capacity, L]");
    expect(dense.shape(0) == capacity && dense.shape(1) == shape.dense, "dense is not [capacity, n]");
    expect(offsets.shape(0) == capacity * shape.slots + 1, "offsets is not [capacity * slots + 1]");
    const std::int64_t used = offsets.data()[sample * shape.slots];
    expect(used >= 0 && static_cast<std::size_t>(used) <= keys.shape(0), "offsets do not fit keys");
    expect(weights.has_value() == shape.weight && (!weights || weights->shape(0) == capacity),
           "weights is not [capacity]");
    expect(groups.has_value() == shape.group && (!groups || groups->shape(0) == capacity),
           "groups is not [capacity]");
    expect(times.has_value() == shape.time && (!times || times->shape(0) == capacity),
           "times is not [capacity]");
    expect(!numbers || (numbers->shape(0) == capacity && numbers->shape(1) == shape.dense),
           "numbers is not [capacity, n]");
    Columns out{};
    out.labels = labels.data();
    out.dense = dense.data();
    out.keys = keys.data();
    out.offsets = offsets.data();
    out.filled = sample;
    out.capacity = capacity;
    out.key_capacity = keys.shape(0);
    out.weights = weights ? weights->data() : nullptr;
    out.groups = groups ? groups->data() : nullptr;
    out.times = times ? times->data() : nullptr;
    out.numbers = numbers ? numbers->data() : nullptr;
    return out;
}

nb::tuple parse(LineParser& parser, const Shape& shape, In<std::uint8_t, 1> data, std::size_t begin,
                std::size_t size, std::size_t stop, bool final, bool open, bool skip, Out<float, 2> labels,
                Out<float, 2> dense, Out<std::uint64_t, 1> keys, Out<std::int64_t, 1> offsets,
                const Weights& weights, const Groups& groups, const Times& times, const Numbers& numbers,
                Out<std::int64_t, 1> lines, Out<std::int64_t, 1> ends, Out<std::int64_t, 1> counts,
                std::size_t sample, std::int64_t line_base, std::int64_t byte_base) {
    expect(begin <= size && size <= data.shape(0), "text block out of its buffer");
    Columns out = columns_of(shape, labels, dense, keys, offsets, weights, groups, times, numbers, sample);
    expect(lines.shape(0) == out.capacity && ends.shape(0) == out.capacity,
           "lines or ends is not [capacity]");
    expect(counts.shape(0) == kReasons, "counts has not one entry per reason");
    out.lines = lines.data();
    out.ends = ends.data();
    out.counts = counts.data();
    out.line_base = line_base;
    out.byte_base = byte_base;
    const Block block{reinterpret_cast<const char*>(data.data()), size, begin, stop, final, open, skip};
    Parsed p;
    {
        const Reading scope;
        p = parser.parse(block, out);
    }
    return nb::make_tuple(p.filled, p.consumed, p.lines, p.open, p.full, p.reason, p.column, p.line_begin,
                          p.begin, p.end, p.found);
}

template <typename Parser>
struct Bound {
    Shape shape;
    Parser parser;
};

template <typename Parser>
void bind_parse(nb::class_<Bound<Parser>>& bound) {
    const auto text = nb::arg().noconvert();  // a copy would hide a slow step
    const auto other = nb::arg();
    const auto maybe = nb::arg().none();
    bound.def(
        "parse",
        [](Bound<Parser>& self, In<std::uint8_t, 1> data, std::size_t begin, std::size_t size,
           std::size_t stop, bool final, bool open, bool skip, Out<float, 2> labels, Out<float, 2> dense,
           Out<std::uint64_t, 1> keys, Out<std::int64_t, 1> offsets, const Weights& weights,
           const Groups& groups, const Times& times, const Numbers& numbers, Out<std::int64_t, 1> lines,
           Out<std::int64_t, 1> ends, Out<std::int64_t, 1> counts, std::size_t sample, std::int64_t line_base,
           std::int64_t byte_base) {
            return parse(self.parser, self.shape, data, begin, size, stop, final, open, skip, labels, dense,
                         keys, offsets, weights, groups, times, numbers, lines, ends, counts, sample,
                         line_base, byte_base);
        },
        text, other, other, other, other, other, other, other, other, other, other, maybe, maybe, maybe,
        maybe, other, other, other, other, other, other);
}

// One column of a table: texts, which of them belong to a row, and what they are.
struct TextColumn {
    const char* data;
    std::size_t size;
    const std::int64_t* ends;  // [values + 1]
    std::size_t values;
    const std::int64_t* bags;  // [rows + 1]
    const std::uint8_t* kinds;
    const std::uint8_t* lists;  // [rows]
};

}  // namespace

void bind_records(nb::module_& m) {
    // A named local: nanobind needs the class before its methods.
    nb::class_<Bound<CsvParser>> csv(m, "CsvParser");
    csv.def(
        "__init__", [](Bound<CsvParser>* self, const nb::dict& plan, std::vector<std::size_t> places,
                       std::size_t columns, int delimiter, int quote, bool multiline, std::size_t max_line) {
            expect(max_line <= kLongestLine, "max_line is above 2^30");
            RecordPlan made = plan_of(plan);
            expect(places.size() == made.fields, "not one place per field");
            for (const std::size_t place : places) expect(place < columns, "a field out of the line");
            const Shape shape(made);
            new (self) Bound<CsvParser>{
                shape, CsvParser(std::move(made), std::move(places), columns, static_cast<char>(delimiter),
                                 static_cast<char>(quote), multiline, max_line)};
        });
    bind_parse(csv);

    nb::class_<Bound<JsonLinesParser>> json(m, "JsonLinesParser");
    json.def("__init__", [](Bound<JsonLinesParser>* self, const nb::dict& plan,
                            std::vector<std::string> names, std::size_t max_line) {
        expect(max_line <= kLongestLine, "max_line is above 2^30");
        RecordPlan made = plan_of(plan);
        expect(names.size() == made.fields, "not one name per field");
        const Shape shape(made);
        new (self)
            Bound<JsonLinesParser>{shape, JsonLinesParser(std::move(made), std::move(names), max_line)};
    });
    bind_parse(json);

    nb::class_<Bound<SvmParser>> svm(m, "SvmParser");
    svm.def(
        "__init__",
        [](Bound<SvmParser>* self, const nb::dict& plan, bool triples, std::int64_t label, std::int64_t group,
           std::int64_t features, const std::vector<std::pair<std::uint64_t, std::size_t>>& numbers,
           const std::vector<std::pair<std::uint64_t, std::size_t>>& slots, std::size_t max_line) {
            expect(max_line <= kLongestLine, "max_line is above 2^30");
            RecordPlan made = plan_of(plan);
            SvmParser::Places places;
            places.triples = triples;
            places.label = label;
            places.group = group;
            places.features = features;
            const auto fields = static_cast<std::int64_t>(made.fields);
            for (const std::int64_t at : {label, group, features})
                expect(at >= -1 && at < fields, "a field out of the plan");
            for (const auto* list : {&numbers, &slots})
                for (const auto& [number, at] : *list) expect(at < made.fields, "a field out of the plan");
            places.numbers.insert(numbers.begin(), numbers.end());
            places.slots.insert(slots.begin(), slots.end());
            const Shape shape(made);
            new (self) Bound<SvmParser>{shape, SvmParser(std::move(made), std::move(places), max_line)};
        });
    bind_parse(svm);

    const auto other = nb::arg();
    const auto maybe = nb::arg().none();
    nb::class_<Bound<Assembler>>(m, "Assembler")
        .def("__init__",
             [](Bound<Assembler>* self, const nb::dict& plan) {
                 RecordPlan made = plan_of(plan);
                 const Shape shape(made);
                 new (self) Bound<Assembler>{shape, Assembler(std::move(made))};
             })
        // Rows of a table; returns the samples made. `reasons` and `fields` [rows] tell of refused rows.
        // The texts must be followed by 16 bytes that can be read.
        .def(
            "rows",
            [](Bound<Assembler>& self,
               const std::vector<std::tuple<In<std::uint8_t, 1>, In<std::int64_t, 1>, In<std::int64_t, 1>,
                                            In<std::uint8_t, 1>, In<std::uint8_t, 1>>>& table,
               Out<float, 2> labels, Out<float, 2> dense, Out<std::uint64_t, 1> keys,
               Out<std::int64_t, 1> offsets, const Weights& weights, const Groups& groups, const Times& times,
               const Numbers& numbers, Out<std::uint8_t, 1> reasons, Out<std::int64_t, 1> fields) {
                const Columns out =
                    columns_of(self.shape, labels, dense, keys, offsets, weights, groups, times, numbers, 0);
                const std::size_t rows = out.capacity;
                expect(table.size() == self.parser.plan().fields, "not one column per field");
                expect(reasons.shape(0) == rows && fields.shape(0) == rows,
                       "reasons or fields is not [rows]");
                std::vector<TextColumn> columns;
                for (const auto& [data, ends, bags, kinds, lists] : table) {
                    const std::size_t values = kinds.shape(0);
                    expect(ends.shape(0) == values + 1 && bags.shape(0) == rows + 1, "a column's offsets");
                    expect(lists.shape(0) == rows, "not one mark of a list per row");
                    const std::int64_t *e = ends.data(), *b = bags.data();
                    bool fine = e[0] >= 0 && static_cast<std::size_t>(e[values]) + 16 <= data.shape(0) &&
                                b[0] == 0 && static_cast<std::size_t>(b[rows]) == values;
                    for (std::size_t i = 0; i < values; ++i) fine &= e[i] <= e[i + 1];
                    for (std::size_t i = 0; i < rows; ++i) fine &= b[i] <= b[i + 1];
                    expect(fine, "a column's offsets leave its data");
                    columns.push_back({reinterpret_cast<const char*>(data.data()), data.shape(0), e, values,
                                       b, kinds.data(), lists.data()});
                }
                std::size_t filled = 0;
                bool full = false;
                {
                    const Reading scope;
                    std::vector<Field> record(columns.size());
                    std::vector<Value> values;
                    for (std::size_t row = 0; row < rows && !full; ++row) {
                        values.clear();
                        for (const TextColumn& column : columns)
                            for (auto v = column.bags[row]; v < column.bags[row + 1]; ++v)
                                values.push_back(
                                    {column.data + column.ends[v],
                                     static_cast<std::size_t>(column.ends[v + 1] - column.ends[v]),
                                     static_cast<ValueKind>(column.kinds[v])});
                        const Value* at = values.data();
                        for (std::size_t c = 0; c < columns.size(); ++c) {
                            record[c].values = at;
                            record[c].count =
                                static_cast<std::size_t>(columns[c].bags[row + 1] - columns[c].bags[row]);
                            record[c].list = columns[c].lists[row] != 0;
                            at += record[c].count;
                        }
                        const Refusal refusal = self.parser.assemble(record.data(), out, filled, &full);
                        reasons.data()[row] = static_cast<std::uint8_t>(refusal.reason);
                        fields.data()[row] = refusal.column - 1;
                        filled += refusal.reason == kFine && !full;
                    }
                }
                return nb::make_tuple(filled, full);
            },
            other, other, other, other, other, maybe, maybe, maybe, maybe, other, other);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
