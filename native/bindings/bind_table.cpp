#include "bindings.h"

namespace sparsefleet {

void bind_table(nb::module_& m) { (void)m; }

}  // namespace sparsefleet
