#include "bindings.h"

namespace sparsefleet {

void bind_text(nb::module_& m) { (void)m; }

}  // namespace sparsefleet
