// Subscriptions: who knows which keys.
#include "bindings.h"
#include "sparsefleet/subscriptions.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {
namespace {

using namespace nb::literals;

void subscribe(Subscriptions& all, const In<std::uint64_t, 1>& keys, std::size_t worker) {
    const std::size_t count = keys.shape(0);
    const std::uint64_t* k = keys.data();
    const nb::gil_scoped_release release;
    all.subscribe(k, count, worker);
}

void note(Subscriptions& all, const In<std::uint64_t, 1>& keys, std::size_t worker) {
    const std::size_t count = keys.shape(0);
    const std::uint64_t* k = keys.data();
    const nb::gil_scoped_release release;
    all.note(k, count, worker);
}

void tell(Subscriptions& all, const In<std::uint64_t, 1>& keys) {
    const std::size_t count = keys.shape(0);
    const std::uint64_t* k = keys.data();
    const nb::gil_scoped_release release;
    all.tell(k, count);
}

std::size_t take(Subscriptions& all, std::size_t worker, const Out<std::uint64_t, 1>& out) {
    const std::size_t capacity = out.shape(0);
    std::uint64_t* o = out.data();
    const nb::gil_scoped_release release;
    return all.take(worker, o, capacity);
}

}  // namespace

void bind_geo(nb::module_& m) {
    nb::class_<Subscriptions>(m, "Subscriptions")
        .def(nb::init<>())
        .def("subscribe", &subscribe, nb::arg("keys").noconvert(), "worker"_a)
        .def("note", &note, nb::arg("keys").noconvert(), "worker"_a)
        .def("tell", &tell, nb::arg("keys").noconvert())
        .def("changed", &Subscriptions::changed, "worker"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("take", &take, "worker"_a, "out"_a)
        .def("forget", &Subscriptions::forget, "worker"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("keys_of", nb::overload_cast<std::size_t>(&Subscriptions::keys, nb::const_), "worker"_a,
             nb::call_guard<nb::gil_scoped_release>())
        .def("keys", nb::overload_cast<>(&Subscriptions::keys, nb::const_),
             nb::call_guard<nb::gil_scoped_release>())
        .def("memory_bytes", &Subscriptions::memory_bytes, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
