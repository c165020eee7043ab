// One bind function per family of kernels, and the array types they share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "released_gil.h"
#include "sparsefleet/float_mode.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace nb = nanobind;

// An array that a kernel writes in place. Of an array of another type or layout nanobind would make a
// converted copy, and what is written to a copy is lost. So this is a type of its own, whose caster (below)
// never converts: such an array, and one that is read-only, is a TypeError.
template <typename... Args>
struct Written : nb::ndarray<Args...> {};

// Contiguous CPU arrays. `In` may be read-only, and may be a copy unless a binding says `noconvert`.
template <typename T, std::size_t N>
using In = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <typename T, std::size_t N>
using Out = Written<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

// Kernels never allocate for Python: the caller (a face in kernels/, export/kernels/ or serving/kernels/)
// hands in NumPy arrays of the right size. A wrong size here is our own bug, not the user's, but must never
// write out of bounds.
inline void expect(bool ok, const char* what) {
    if (!ok) throw std::invalid_argument(std::string("native kernel: ") + what);
}

// Of sizes that a kernel makes buffers by: where their product overflowed, a buffer would be too small. 2^40
// is more than there is memory for, and leaves room for a kernel's own factors.
inline void expect_product_fits(std::initializer_list<std::size_t> sizes) {
    std::size_t most = std::size_t{1} << 40;
    for (const std::size_t size : sizes) {
        expect(size <= most, "sizes are too large");
        if (size) most /= size;
    }
}

// What a kernel runs in: without the GIL, and with denormals as float_mode.h says.
struct Computing {
    ReleasedGil release;
    FlushDenormals mode;
};
struct Reading {
    ReleasedGil release;
    KeepDenormals mode;
};

// Lets other threads run Python meanwhile, unless the work is over in some ten microseconds: getting the GIL
// back from a thread that has taken it would cost more.
class ReleaseUnlessShort {
  public:
    explicit ReleaseUnlessShort(std::size_t values, std::size_t most = 4096) {
        if (values > most) release_.emplace();
    }

  private:
    std::optional<ReleasedGil> release_;
};

void bind_text(nb::module_& m);          // hashing and parsing of samples
void bind_records(nb::module_& m);       // samples whose values have names
void bind_rows(nb::module_& m);          // unique keys, pooling, metrics
void bind_tower(nb::module_& m);         // dense layers
void bind_table(nb::module_& m);         // sparse tables, update rules, initial values
void bind_geo(nb::module_& m);           // who subscribes to which keys
void bind_coarse(nb::module_& m);        // dense numbers in fewer bits
void bind_words(nb::module_& m);         // word vectors
void bind_bundle(nb::module_& m);        // rows files of bundles
void bind_redis(nb::module_& m);         // rows of bundles in Redis
void bind_request(nb::module_& m);       // values of requests
void bind_served_tower(nb::module_& m);  // dense layers that do not change any more

// A network around dense layers; part of bind_tower, for it is compiled for the same levels.
void bind_pooled_pass(nb::module_& m);
// Layers between an embedding and a tower; part of bind_tower, too.
void bind_layers(nb::module_& m);

}  // namespace sparsefleet::SPARSEFLEET_LEVEL

namespace nanobind::detail {

template <typename... Args>
struct type_caster<sparsefleet::SPARSEFLEET_LEVEL::Written<Args...>> {
    using Array = ndarray<Args...>;
    NB_TYPE_CASTER(sparsefleet::SPARSEFLEET_LEVEL::Written<Args...>, make_caster<Array>::Name)

    bool from_python(handle src, std::uint32_t flags, cleanup_list* cleanup) noexcept {
        make_caster<Array> caster;
        flags &= ~static_cast<std::uint32_t>(cast_flags::convert);
        if (!caster.from_python(src, flags, cleanup)) return false;
        static_cast<Array&>(value) = std::move(caster.value);
        return true;
    }
};

}  // namespace nanobind::detail
