// The Python face of the kernels. They are compiled for several levels of the processor, each in a namespace
// of its own (CMakeLists.txt); `kernels/levels.py` chooses one and asks for it here. This file is compiled
// for any processor.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "sparsefleet/float_mode.h"
#include "sparsefleet/processor.h"

namespace nb = nanobind;

// Of the richer levels only the dense tower differs from the level below: NAME is compiled for the tower,
// FAMILIES for all else. The list is written by CMake.
#define SPARSEFLEET_LEVEL_ENTRY(NAME, FAMILIES) \
    namespace sparsefleet::FAMILIES {           \
    void bind_families(nb::module_& m);         \
    }                                           \
    namespace sparsefleet::NAME {               \
    void bind_tower(nb::module_& m);            \
    }
#include "levels.inc"
#undef SPARSEFLEET_LEVEL_ENTRY

namespace {

struct Level {
    const char* name;
    void (*bind_families)(nb::module_&);
    void (*bind_tower)(nb::module_&);
};

constexpr Level kLevels[] = {
#define SPARSEFLEET_LEVEL_ENTRY(NAME, FAMILIES) \
    {#NAME, sparsefleet::FAMILIES::bind_families, sparsefleet::NAME::bind_tower},
#include "levels.inc"
#undef SPARSEFLEET_LEVEL_ENTRY
};

std::vector<std::string> built_levels() {
    std::vector<std::string> names;
    for (const Level& level : kLevels) names.emplace_back(level.name);
    return names;
}

// The kernels of one level, as a module; made at the first call. The caller has made sure that the processor
// has it.
nb::object kernels(nb::module_ m, const std::string& name) {
    if (nb::hasattr(m, name.c_str())) return m.attr(name.c_str());
    for (const Level& level : kLevels) {
        if (name != level.name) continue;
        nb::module_ bound = m.def_submodule(level.name);
        level.bind_families(bound);
        level.bind_tower(bound);
        return bound;
    }
    throw std::invalid_argument("this module was built without level " + name);
}

}  // namespace

NB_MODULE(_native, m) {
    // A process that ends by an error leaves objects to the system: no news to a user who reads that error.
    nanobind::set_leak_warnings(false);
    m.doc() = "Hot kernels of SparseFleet; each has a readable NumPy twin in sparsefleet.kernels.reference";
    m.def("built_levels", &built_levels);
    m.def("processor", [] {
        const sparsefleet::Processor found = sparsefleet::this_processor();
        return nb::make_tuple(found.name, found.features, found.saved_state);
    });
    m.def("request_tiles", &sparsefleet::request_tiles);
    // For what is not our kernels: kernels/float_mode.py says when.
    m.attr("flush_bits") = sparsefleet::kFlushBits;
    m.def("get_flush_bits", &sparsefleet::flush_bits);
    m.def("set_flush_bits", [](sparsefleet::FloatControl bits) {
        sparsefleet::set_flush_bits(bits & sparsefleet::kFlushBits);
    });
    m.def("kernels", [m](const std::string& level) { return kernels(m, level); });
}
