#include <cstring>

#include "bindings.h"
#include "sparsefleet/xxh64.h"

namespace sparsefleet {

// The only kernel that reads Python objects, and so the only one that keeps the GIL: a request's texts are hashed where
// they lie, which takes less time than copying them to where they could be hashed without it.
void bind_request(nb::module_& m) {
    m.def("hash_column", [](nb::object values, const nb::bytes& prefix, std::uint64_t seed, std::uint64_t dim,
                            Out<std::uint64_t, 1> out) {
        const bool list = PyList_Check(values.ptr()), tuple = PyTuple_Check(values.ptr());
        expect(list || tuple, "hash_column takes a list or a tuple");
        const auto count = static_cast<std::size_t>(list ? PyList_GET_SIZE(values.ptr()) : PyTuple_GET_SIZE(values.ptr()));
        expect(out.shape(0) == count, "one key per text");
        const PrefixHash hash(std::string(prefix.c_str(), prefix.size()), seed);
        const Fold fold(dim);
        for (std::size_t i = 0; i < count; ++i) {
            PyObject* value = list ? PyList_GET_ITEM(values.ptr(), i) : PyTuple_GET_ITEM(values.ptr(), i);
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

}  // namespace sparsefleet
