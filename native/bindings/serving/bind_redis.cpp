#include "../bindings.h"
#include "sparsefleet/serving/hot_rows.h"
#include "sparsefleet/serving/redis_rows.h"
#include "sparsefleet/serving/row_cache.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

Bytes view(const nb::bytes& text) {
    return {reinterpret_cast<const unsigned char*>(text.c_str()), text.size()};
}

void expect_room(const In<std::uint64_t, 1>& keys, const In<std::int64_t, 1>& at, std::size_t answered,
                 const Out<std::uint8_t, 2>& packed, const Out<std::uint8_t, 1>& found) {
    expect(packed.shape(0) == keys.shape(0) && found.shape(0) == keys.shape(0) && packed.shape(1) > 0,
           "one row and one mark per key");
    for (std::size_t i = answered; i < at.shape(0); ++i)
        expect(at.data()[i] >= 0 && static_cast<std::size_t>(at.data()[i]) < keys.shape(0),
               "a place is of no key");
}

}  // namespace

void bind_redis(nb::module_& m) {
    m.def("bucket_numbers",
          [](In<std::uint64_t, 1> keys, std::uint64_t seed, std::uint32_t bits, Out<std::uint32_t, 1> out) {
              expect(out.shape(0) == keys.shape(0) && bits <= 32, "one bucket per key, of at most 32 bits");
              bucket_numbers(keys.data(), keys.shape(0), seed, bits, out.data());
          });
    m.def("encode_buckets",
          [](In<std::uint8_t, 1> data, std::uint64_t directory, std::uint64_t keys, std::uint64_t values,
             std::uint64_t rows, std::uint64_t seed, std::uint32_t file_bits, std::uint32_t dim,
             std::uint32_t stride, std::uint32_t type, std::uint32_t bits, nb::bytes hash, nb::bytes prefix,
             std::uint64_t bucket, std::uint64_t row, std::size_t per_command, std::size_t command_bytes,
             Out<std::uint8_t, 1> out) {
              const MappedRows file{data.data(), data.shape(0), directory, keys,   values, rows,
                                    seed,        file_bits,     dim,       stride, type};
              expect(file.fits(), "the rows file's parts do not lie within it");
              expect(bits <= 32 && row <= rows && per_command > 0, "encode_buckets starts within the file");
              BucketsWritten done;
              {
                  nb::gil_scoped_release release;
                  done = encode_buckets(file, bits, {view(hash), view(prefix)}, bucket, row, per_command,
                                        command_bytes, out.data(), out.shape(0));
              }
              return nb::make_tuple(done.bytes, done.commands, done.bucket, done.row);
          });
    m.def("names_bytes",
          [](nb::bytes verb, nb::bytes hash, nb::bytes prefix, std::size_t n, std::size_t per_command) {
              expect(per_command > 0, "a command has a name");
              return names_bytes(verb.size(), {view(hash), view(prefix)}, n, per_command);
          });
    m.def("encode_names", [](nb::bytes verb, nb::bytes hash, nb::bytes prefix, In<std::uint32_t, 1> buckets,
                             std::size_t per_command, Out<std::uint8_t, 1> out) {
        const BucketPlace place{view(hash), view(prefix)};
        const std::size_t n = buckets.shape(0);
        expect(per_command > 0 && out.shape(0) >= names_bytes(verb.size(), place, n, per_command),
               "encode_names needs names_bytes of room");
        return encode_names(view(verb), place, buckets.data(), n, per_command, out.data());
    });
    m.def("read_buckets", [](In<std::uint8_t, 1> data, std::size_t begin, std::size_t end,
                             In<std::uint64_t, 1> keys, In<std::int64_t, 1> at, std::size_t per_command,
                             std::size_t answered, Out<std::uint8_t, 2> packed, Out<std::uint8_t, 1> found) {
        expect(begin <= end && end <= data.shape(0) && per_command > 0,
               "read_buckets reads within the buffer");
        expect_room(keys, at, answered, packed, found);
        BucketsRead done;
        {
            nb::gil_scoped_release release;
            done = read_buckets(data.data() + begin, end - begin, keys.data(), at.data(), at.shape(0),
                                per_command, packed.shape(1), answered, packed.data(), found.data());
        }
        return nb::make_tuple(done.consumed, done.answered, done.status);
    });
    m.def("receive_buckets",
          [](int socket, double seconds, Out<std::uint8_t, 1> data, std::size_t begin, std::size_t end,
             In<std::uint64_t, 1> keys, In<std::int64_t, 1> at, std::size_t per_command, std::size_t answered,
             Out<std::uint8_t, 2> packed, Out<std::uint8_t, 1> found) {
              expect(begin <= end && end <= data.shape(0) && per_command > 0,
                     "receive_buckets reads within the buffer");
              expect_room(keys, at, answered, packed, found);
              Received received{data.data(), data.shape(0), begin, end};
              BucketsReceived done;
              {
                  nb::gil_scoped_release release;
                  done = receive_buckets(socket, seconds, received, keys.data(), at.data(), at.shape(0),
                                         per_command, packed.shape(1), answered, packed.data(), found.data());
              }
              return nb::make_tuple(received.begin, received.end, done.answered, done.status, done.error);
          });
    m.def("hot_value_rows", [](std::size_t stride) {
        expect(stride > 0, "a row has bytes");
        return hot_value_rows(stride);
    });
    m.def("read_hot_rows", [](In<std::uint8_t, 1> data, std::size_t begin, std::size_t end,
                              In<std::uint32_t, 1> to, std::size_t answered, Out<std::uint8_t, 2> packed) {
        expect(begin <= end && end <= data.shape(0) && packed.shape(1) > 0,
               "read_hot_rows reads within the buffer");
        for (std::size_t i = 0; i < to.shape(0); ++i)
            expect(to.data()[i] == kNotHot || to.data()[i] < packed.shape(0), "a row has no place");
        const BucketsRead done = read_hot_rows(data.data() + begin, end - begin, to.data(), to.shape(0),
                                               packed.shape(1), answered, packed.data());
        return nb::make_tuple(done.consumed, done.answered, done.status);
    });
    m.def("decode_rows",
          [](In<std::uint8_t, 2> packed, In<std::uint8_t, 1> found, std::uint32_t type, Out<float, 2> out) {
              const std::size_t n = packed.shape(0), stride = packed.shape(1);
              expect(found.shape(0) == n && out.shape(0) == n, "one mark and one row per packed row");
              const std::uint64_t needed = row_bytes(type, out.shape(1));
              expect(needed && needed <= stride, "packed rows hold as many values as are wanted");
              const Reading scope;
              decode_rows(packed.data(), found.data(), n, type, static_cast<std::uint32_t>(out.shape(1)),
                          stride, out.data());
          });
    nb::class_<RowCache>(m, "RowCache")
        .def(nb::init<std::size_t, std::size_t>())
        .def("get",
             [](RowCache& cache, In<std::uint64_t, 1> keys, Out<std::uint8_t, 2> packed,
                Out<std::uint8_t, 1> found, Out<std::int64_t, 1> missing) {
                 const std::size_t n = keys.shape(0);
                 expect(packed.shape(0) == n && packed.shape(1) == cache.stride() && found.shape(0) == n &&
                            missing.shape(0) == n,
                        "room for one row, mark and place per key");
                 nb::gil_scoped_release release;
                 return cache.get(keys.data(), n, packed.data(), found.data(), missing.data());
             })
        .def("put",
             [](RowCache& cache, In<std::uint64_t, 1> keys, In<std::int64_t, 1> at,
                In<std::uint8_t, 2> packed, In<std::uint8_t, 1> found) {
                 const std::size_t n = keys.shape(0);
                 expect(packed.shape(0) == n && packed.shape(1) == cache.stride() && found.shape(0) == n,
                        "one row and mark per key");
                 for (std::size_t i = 0; i < at.shape(0); ++i)
                     expect(at.data()[i] >= 0 && static_cast<std::size_t>(at.data()[i]) < n,
                            "a place is of no key");
                 nb::gil_scoped_release release;
                 cache.put(keys.data(), at.data(), at.shape(0), packed.data(), found.data());
             })
        .def_prop_ro("capacity", &RowCache::capacity)
        .def_prop_ro("size", &RowCache::size);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
