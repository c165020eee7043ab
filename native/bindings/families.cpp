// All families of kernels but the tower, which more levels have their own of: see module.cpp.
#include "bindings.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

void bind_families(nb::module_& m) {
    bind_text(m);
    bind_records(m);
    bind_rows(m);
    bind_table(m);
    bind_geo(m);
    bind_coarse(m);
    bind_words(m);
    bind_bundle(m);
    bind_redis(m);
    bind_request(m);
    bind_served_tower(m);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
