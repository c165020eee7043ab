#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "../bindings.h"
#include "sparsefleet/serving/request.h"
#include "sparsefleet/xxh64.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

void bind_parser(nb::module_& m) {
    nb::class_<RequestParser>(m, "RequestParser")
        .def("__init__",
             [](RequestParser* self, std::vector<std::string> names, std::string label,
                std::vector<double> minimum, std::vector<double> diff, const std::vector<nb::bytes>& prefixes,
                std::vector<bool> takes_keys, std::uint64_t seed, std::uint64_t dim, std::size_t max_rows,
                std::size_t max_text, std::size_t max_values, bool allow_missing) {
                 expect(minimum.size() == diff.size() && names.size() == minimum.size() + prefixes.size() &&
                            takes_keys.size() == prefixes.size(),
                        "a name per dense feature and slot");
                 std::vector<std::string> texts;
                 for (const nb::bytes& prefix : prefixes) texts.emplace_back(prefix.c_str(), prefix.size());
                 new (self) RequestParser(std::move(names), std::move(label), std::move(minimum),
                                          std::move(diff), texts, std::move(takes_keys), seed, dim,
                                          {max_rows, max_text, max_values, allow_missing});
             })
        // Rows and keys found, or (-1, 0) where the request is not a plain one.
        .def("parse",
             [](RequestParser& self, const nb::bytes& body) {
                 const char* data = body.c_str();
                 const std::size_t size = body.size();
                 bool plain;
                 {
                     const Reading scope;
                     plain = self.parse(data, size);
                 }
                 return plain ? nb::make_tuple(self.rows(), self.keys.size()) : nb::make_tuple(-1, 0);
             })
        .def("take", [](RequestParser& self, Out<float, 2> dense, Out<std::uint64_t, 1> keys,
                        Out<std::int64_t, 1> offsets) {
            expect(dense.size() == self.dense.size() && keys.size() == self.keys.size() &&
                       offsets.size() == self.offsets.size(),
                   "arrays of the sizes that were found");
            std::copy(self.dense.begin(), self.dense.end(), dense.data());
            std::copy(self.keys.begin(), self.keys.end(), keys.data());
            std::copy(self.offsets.begin(), self.offsets.end(), offsets.data());
        });
    m.def("count_byte", [](const nb::bytes& data, std::uint8_t byte) {
        return count_byte(reinterpret_cast<const unsigned char*>(data.c_str()), data.size(), byte);
    });
    // A JSON list of the shortest texts that give the float32s back; -1 where one is not finite, which JSON
    // cannot say.
    m.def("format_floats", [](In<float, 1> values, Out<std::uint8_t, 1> out) -> std::int64_t {
        expect(out.shape(0) >= 20 * values.shape(0) + 2, "format_floats needs 20 bytes a number");
        auto* to = reinterpret_cast<char*>(out.data());
        char* const begin = to;
        const KeepDenormals mode;
        *to++ = '[';
        for (std::size_t i = 0; i < values.shape(0); ++i) {
            if (!(values(i) - values(i) == 0.0f)) return -1;
            if (i) *to++ = ',';
            to = std::to_chars(to, to + 19, values(i)).ptr;
        }
        *to++ = ']';
        return to - begin;
    });
}

}  // namespace

// hash_column is the only kernel that reads Python objects, so it keeps the GIL: hashing a request's texts
// where they lie takes less time than copying them to where they could be hashed without the GIL.
void bind_request(nb::module_& m) {
    bind_parser(m);
    m.def("hash_column", [](nb::object values, const nb::bytes& prefix, std::uint64_t seed, std::uint64_t dim,
                            Out<std::uint64_t, 1> out) {
        // Functions, not the macros of the same purpose: the stable ABI has no macros.
        const bool list = PyList_Check(values.ptr()), tuple = PyTuple_Check(values.ptr());
        expect(list || tuple, "hash_column takes a list or a tuple");
        const auto count =
            static_cast<std::size_t>(list ? PyList_Size(values.ptr()) : PyTuple_Size(values.ptr()));
        expect(out.shape(0) == count, "one key per text");
        const PrefixHash hash(std::string(prefix.c_str(), prefix.size()), seed);
        const Fold fold(dim);
        for (std::size_t i = 0; i < count; ++i) {
            PyObject* value = list ? PyList_GetItem(values.ptr(), i) : PyTuple_GetItem(values.ptr(), i);
            if (!PyUnicode_Check(value)) return false;
            Py_ssize_t size = 0;
            const char* text = PyUnicode_AsUTF8AndSize(value, &size);
            if (!text) {
                PyErr_Clear();  // half of a surrogate pair: the caller knows what to do with it
                return false;
            }
            char padded[24 + PrefixHash::kOverread];
            if (size <= 24) {
                std::memcpy(padded, text, static_cast<std::size_t>(size));
                out(i) = fold(hash.padded(padded, static_cast<std::size_t>(size)));
            } else {
                out(i) = fold(hash.any(text, static_cast<std::size_t>(size)));
            }
        }
        return true;
    });
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
