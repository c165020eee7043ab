// The Python face of the kernels. Each bind_*.cpp exposes one family; this file only gathers them.
#include "bindings.h"

NB_MODULE(_native, m) {
    // A process that ends by an error leaves objects to the system: no news to a user who reads that error.
    nanobind::set_leak_warnings(false);
    m.doc() = "Hot kernels of SparseFleet; each has a readable NumPy twin in sparsefleet.kernels.reference";
    sparsefleet::bind_text(m);
    sparsefleet::bind_rows(m);
    sparsefleet::bind_tower(m);
    sparsefleet::bind_table(m);
    sparsefleet::bind_bundle(m);
    sparsefleet::bind_redis(m);
    sparsefleet::bind_request(m);
}
