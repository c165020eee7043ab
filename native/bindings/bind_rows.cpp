#include "bindings.h"

namespace sparsefleet {

void bind_rows(nb::module_& m) { (void)m; }

}  // namespace sparsefleet
