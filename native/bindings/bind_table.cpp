// Sparse tables, update rules, initial values. Shapes are checked here so that no kernel ever runs past an
// array.
#include <limits>
#include <memory>
#include <optional>
#include <tuple>

#include "bindings.h"
#include "nanobind/stl/optional.h"
#include "nanobind/stl/tuple.h"
#include "sparsefleet/dense.h"
#include "sparsefleet/init.h"
#include "sparsefleet/rules.h"
#include "sparsefleet/table.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {
namespace {

using namespace nb::literals;

RuleStep rule_step(int kind, double lr, const In<double, 1>& hyper, std::uint64_t step) {
    expect(hyper.shape(0) <= kHyperCount, "a rule has at most 6 hyperparameters");
    double numbers[kHyperCount] = {};
    for (std::size_t i = 0; i < hyper.shape(0); ++i) numbers[i] = hyper.data()[i];
    return RuleStep(kind, lr, numbers, step);
}

void init_rows(std::uint64_t seed, const In<std::uint64_t, 1>& keys, int kind, double a, double b,
               const Out<float, 2>& out) {
    const std::size_t count = keys.shape(0), dim = out.shape(1);
    expect(out.shape(0) == count, "init_rows: one row of out per key");
    const Initializer init = make_initializer(kind, a, b, seed);
    const std::uint64_t* from = keys.data();
    float* to = out.data();
    const Reading scope;
    for (std::size_t i = 0; i < count; ++i) init_row(init, from[i], to + i * dim, dim);
}

void apply_rule(int kind, double lr, const In<double, 1>& hyper, std::uint64_t step,
                const Out<float, 1>& values, const Out<float, 1>& state, const In<float, 1>& grads,
                BlockLocks& locks) {
    const RuleStep rule = rule_step(kind, lr, hyper, step);
    expect(!rule.notes(), "apply_rule: a block does not note what was changed");
    const std::size_t n = values.shape(0);
    expect(grads.shape(0) == n, "apply_rule: as many gradients as values");
    expect(n == 0 || state.shape(0) == rule.state_width(n),
           "apply_rule: state of another size than the rule's");
    float *w = values.data(), *s = state.data();
    const float* g = grads.data();
    const ReleaseUnlessShort release(n);
    const FlushDenormals mode;
    if (n > 0) locks.update(rule, w, s, g, n);
}

void shift_block(int kind, double lr, const In<double, 1>& hyper, std::uint64_t step,
                 const Out<float, 1>& values, const Out<float, 1>& state, const In<float, 1>& deltas,
                 BlockLocks& locks) {
    const RuleStep rule = rule_step(kind, lr, hyper, step);
    expect(!rule.notes(), "shift_block: a block does not note what was changed");
    const std::size_t n = values.shape(0);
    expect(deltas.shape(0) == n, "shift_block: as many differences as values");
    expect(n == 0 || state.shape(0) == rule.state_width(n),
           "shift_block: state of another size than the rule's");
    float *w = values.data(), *s = state.data();
    const float* d = deltas.data();
    const Computing scope;
    if (n > 0) locks.shift(rule, w, s, d, n);
}

std::size_t table_pull(RowTable& table, const In<std::uint64_t, 1>& keys, const Out<float, 2>& out,
                       bool create, std::uint32_t clock) {
    const std::size_t count = keys.shape(0);
    expect(out.shape(0) == count && out.shape(1) == table.dim(), "pull: out must be [keys, dim]");
    const std::uint64_t* k = keys.data();
    float* o = out.data();
    const Reading scope;
    return table.pull(k, count, o, create, clock);
}

void table_push(RowTable& table, const In<std::uint64_t, 1>& keys, const In<float, 2>& grads,
                const std::optional<In<std::uint32_t, 1>>& occurrences, int kind, double lr,
                const In<double, 1>& hyper, std::uint64_t step, std::uint32_t clock) {
    const std::size_t count = keys.shape(0);
    expect(!occurrences || occurrences->shape(0) == count, "push: one count per key");
    expect(grads.shape(0) == count && grads.shape(1) == table.dim(), "push: grads must be [keys, dim]");
    const RuleStep rule = rule_step(kind, lr, hyper, step);
    const std::uint64_t* k = keys.data();
    const float* g = grads.data();
    const std::uint32_t* n = occurrences ? occurrences->data() : nullptr;
    const Computing scope;
    table.push(k, count, g, n, rule, clock);
}

void table_insert(RowTable& table, const In<std::uint64_t, 1>& keys, const In<float, 2>& values,
                  const In<float, 2>& state, const In<std::uint32_t, 1>& seen,
                  const In<std::uint32_t, 1>& touched) {
    const std::size_t count = keys.shape(0);
    expect(values.shape(0) == count && values.shape(1) == table.dim(), "insert: values must be [keys, dim]");
    expect(state.shape(0) == count && state.shape(1) == table.state_width(),
           "insert: state must be [keys, width]");
    expect(seen.shape(0) == count && touched.shape(0) == count, "insert: one `seen` and `touched` per key");
    const std::uint64_t* k = keys.data();
    const float *v = values.data(), *s = state.data();
    const std::uint32_t *n = seen.data(), *t = touched.data();
    const nb::gil_scoped_release release;
    table.insert(k, count, v, s, n, t);
}

void table_take(RowTable& table, const In<std::uint64_t, 1>& keys, float shares, const Out<float, 2>& out,
                const Out<std::uint32_t, 1>& occurrences) {
    const std::size_t count = keys.shape(0);
    expect(occurrences.shape(0) == count, "take: one count per key");
    expect(out.shape(0) == count && out.shape(1) == table.dim(), "take: out must be [keys, dim]");
    const std::uint64_t* k = keys.data();
    float* o = out.data();
    std::uint32_t* n = occurrences.data();
    const Computing scope;
    table.take(k, count, shares, o, n);
}

void table_rebase(RowTable& table, const In<std::uint64_t, 1>& keys, const In<float, 2>& values, bool create,
                  int kind, double lr, const In<double, 1>& hyper, std::uint64_t step) {
    const std::size_t count = keys.shape(0);
    expect(values.shape(0) == count && values.shape(1) == table.dim(), "rebase: values must be [keys, dim]");
    const std::uint64_t* k = keys.data();
    const RuleStep rule = rule_step(kind, lr, hyper, step);
    const float* v = values.data();
    const Computing scope;
    table.rebase(k, count, v, create, rule);
}

void table_contains(const RowTable& table, const In<std::uint64_t, 1>& keys,
                    const Out<std::uint8_t, 1>& found) {
    const std::size_t count = keys.shape(0);
    expect(found.shape(0) == count, "contains: one answer per key");
    const std::uint64_t* k = keys.data();
    std::uint8_t* f = found.data();
    const nb::gil_scoped_release release;
    table.contains(k, count, f);
}

RowArrays row_arrays(const RowTable& table, const Out<std::uint64_t, 1>& keys, const Out<float, 2>& values,
                     const Out<float, 2>& state, const Out<std::uint32_t, 1>& seen,
                     const Out<std::uint32_t, 1>& touched) {
    const std::size_t capacity = keys.shape(0);
    expect(values.shape(0) == capacity && values.shape(1) == table.dim(), "scan: values must be [keys, dim]");
    expect(state.shape(0) == capacity && state.shape(1) == table.state_width(),
           "scan: state must be [keys, width]");
    expect(seen.shape(0) == capacity && touched.shape(0) == capacity,
           "scan: one `seen` and `touched` per key");
    return {keys.data(), values.data(), state.data(), seen.data(), touched.data()};
}

// Returns (rows copied, next cursor).
std::tuple<std::size_t, std::uint64_t> table_scan(const RowTable& table, std::uint64_t cursor,
                                                  const Out<std::uint64_t, 1>& keys,
                                                  const Out<float, 2>& values, const Out<float, 2>& state,
                                                  const Out<std::uint32_t, 1>& seen,
                                                  const Out<std::uint32_t, 1>& touched, std::uint32_t clock) {
    const std::size_t capacity = keys.shape(0);
    const RowArrays out = row_arrays(table, keys, values, state, seen, touched);
    const nb::gil_scoped_release release;
    const std::size_t copied = table.scan(cursor, capacity, out, clock);
    return {copied, cursor};
}

std::size_t table_scan_cut(RowTable& table, const Out<std::uint64_t, 1>& keys, const Out<float, 2>& values,
                           const Out<float, 2>& state, const Out<std::uint32_t, 1>& seen,
                           const Out<std::uint32_t, 1>& touched, std::uint32_t clock,
                           std::optional<std::uint32_t> since) {
    const std::size_t capacity = keys.shape(0);
    const RowArrays out = row_arrays(table, keys, values, state, seen, touched);
    const nb::gil_scoped_release release;
    return table.scan_cut(capacity, out, clock, since);
}

}  // namespace

void bind_table(nb::module_& m) {
    // noconvert: a copy of an input would hide a slow step.
    m.def("init_rows", &init_rows, "seed"_a, nb::arg("keys").noconvert(), "kind"_a, "a"_a, "b"_a, "out"_a);
    nb::class_<BlockLocks>(m, "BlockLocks").def(nb::init<>());
    m.def("apply_rule", &apply_rule, "kind"_a, "lr"_a, nb::arg("hyper").noconvert(), "step"_a, "values"_a,
          "state"_a, nb::arg("grads").noconvert(), "locks"_a);
    m.def("shift_block", &shift_block, "kind"_a, "lr"_a, nb::arg("hyper").noconvert(), "step"_a, "values"_a,
          "state"_a, nb::arg("deltas").noconvert(), "locks"_a);
    nb::class_<RowTable>(m, "RowTable")
        .def("__init__",
             [](RowTable* self, std::size_t dim, std::size_t state_width, std::uint64_t seed, int kind,
                double a, double b, float initial_state, bool notes, int idle_kind,
                const In<double, 1>& idle_hyper) {
                 expect(idle_hyper.shape(0) <= kHyperCount, "a rule has at most 6 hyperparameters");
                 double numbers[kHyperCount] = {};
                 for (std::size_t i = 0; i < idle_hyper.shape(0); ++i) numbers[i] = idle_hyper.data()[i];
                 auto idle = idle_kind < 0 ? nullptr : std::make_unique<IdleSteps>(idle_kind, numbers);
                 new (self) RowTable(dim, state_width, make_initializer(kind, a, b, seed), initial_state,
                                     notes, std::move(idle));
             })
        .def("note_steps", &RowTable::note_steps, "first"_a, "last"_a, "lr"_a)
        .def("forget_steps", &RowTable::forget_steps)
        .def("pull", &table_pull, nb::arg("keys").noconvert(), "out"_a, "create"_a, "clock"_a)
        .def("push", &table_push, nb::arg("keys").noconvert(), nb::arg("grads").noconvert(),
             nb::arg("occurrences").noconvert().none(), "kind"_a, "lr"_a, nb::arg("hyper").noconvert(),
             "step"_a, "clock"_a)
        .def("insert", &table_insert, nb::arg("keys").noconvert(), nb::arg("values").noconvert(),
             nb::arg("state").noconvert(), nb::arg("seen").noconvert(), nb::arg("touched").noconvert())
        .def("take", &table_take, nb::arg("keys").noconvert(), "shares"_a, "out"_a, "occurrences"_a)
        .def("rebase", &table_rebase, nb::arg("keys").noconvert(), nb::arg("values").noconvert(), "create"_a,
             "kind"_a, "lr"_a, nb::arg("hyper").noconvert(), "step"_a)
        .def("contains", &table_contains, nb::arg("keys").noconvert(), "found"_a)
        .def("scan", &table_scan, "cursor"_a, "keys"_a, "values"_a, "state"_a, "seen"_a, "touched"_a,
             "clock"_a)
        .def("begin_cut", &RowTable::begin_cut, nb::call_guard<nb::gil_scoped_release>())
        .def("scan_cut", &table_scan_cut, "keys"_a, "values"_a, "state"_a, "seen"_a, "touched"_a, "clock"_a,
             "since"_a = nb::none())
        .def("end_cut", &RowTable::end_cut, nb::call_guard<nb::gil_scoped_release>())
        .def("rows", &RowTable::rows)
        .def("memory_bytes", &RowTable::memory_bytes, nb::call_guard<nb::gil_scoped_release>())
        .def("clear", &RowTable::clear, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
