#include "../bindings.h"
#include "sparsefleet/serving/bundle_rows.h"
#include "sparsefleet/serving/mapping_guard.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

MappedRows mapped(const In<std::uint8_t, 1>& data, std::uint64_t directory, std::uint64_t keys,
                  std::uint64_t values, std::uint64_t rows, std::uint64_t seed, std::uint32_t bits,
                  std::uint32_t dim, std::uint32_t stride, std::uint32_t type) {
    const MappedRows file{data.data(), data.shape(0), directory, keys,   values, rows,
                          seed,        bits,          dim,       stride, type};
    expect(file.fits(), "the rows file's parts do not lie within it");
    return file;
}

}  // namespace

void bind_bundle(nb::module_& m) {
    m.def("places", [](In<std::uint64_t, 1> keys, std::uint64_t seed, Out<std::uint64_t, 1> out) {
        expect(out.shape(0) == keys.shape(0), "one place per key");
        nb::gil_scoped_release release;
        places(keys.data(), keys.shape(0), seed, out.data());
    });
    m.def("lookup_rows",
          [](In<std::uint8_t, 1> data, std::uint64_t directory, std::uint64_t keys, std::uint64_t values,
             std::uint64_t rows, std::uint64_t seed, std::uint32_t bits, std::uint32_t dim,
             std::uint32_t stride, std::uint32_t type, In<std::uint64_t, 1> asked, Out<float, 2> out,
             Out<std::uint8_t, 1> found) -> std::int64_t {
              const MappedRows file =
                  mapped(data, directory, keys, values, rows, seed, bits, dim, stride, type);
              expect(
                  out.shape(0) == asked.shape(0) && out.shape(1) == dim && found.shape(0) == asked.shape(0),
                  "lookup_rows needs room for one row and one mark per key");
              const Reading scope;
              const std::size_t hits =
                  lookup_rows(file, asked.data(), asked.shape(0), out.data(), found.data());
              return hits == kDamaged ? -1 : static_cast<std::int64_t>(hits);
          });
    m.def("check_order", [](In<std::uint8_t, 1> data, std::uint64_t directory, std::uint64_t keys,
                            std::uint64_t values, std::uint64_t rows, std::uint64_t seed, std::uint32_t bits,
                            std::uint32_t dim, std::uint32_t stride, std::uint32_t type) {
        const MappedRows file = mapped(data, directory, keys, values, rows, seed, bits, dim, stride, type);
        nb::gil_scoped_release release;
        return check_order(file);
    });
    m.def(
        "guard_mapping",
        [](In<std::uint8_t, 1> data) -> std::int64_t {
            const std::size_t number = guard_mapping(data.data(), data.shape(0));
            return number == kNoGuard ? -1 : static_cast<std::int64_t>(number);
        },
        nb::arg().noconvert());  // a copy is not the mapping
    m.def("mapping_lost", [](std::size_t number) { return mapping_lost(number); });
    m.def("release_mapping", [](std::size_t number) { release_mapping(number); });
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
