// Word vectors: counting words, samples of text, and the skip-gram pass.
#include "bindings.h"
#include "sparsefleet/rows.h"
#include "sparsefleet/skip_gram.h"
#include "sparsefleet/words.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {
namespace {

using namespace nb::literals;

using Bytes = In<std::uint8_t, 1>;

const char* text_of(const Bytes& bytes) { return reinterpret_cast<const char*>(bytes.data()); }

std::size_t parse(WordParser& parser, const Bytes& block, bool last, const Out<std::uint64_t, 1>& keys,
                  const Out<float, 1>& radius, const Out<std::uint64_t, 1>& groups,
                  const Out<std::int64_t, 1>& numbers, const Out<std::int64_t, 1>& ends) {
    const std::size_t size = block.shape(0), most = (size + 1) / 2 + 1;
    expect(radius.shape(0) >= most && groups.shape(0) >= most && numbers.shape(0) >= most &&
               ends.shape(0) >= most && keys.shape(0) >= most * (1 + parser.negatives()),
           "parse: room for (bytes + 1) / 2 + 1 samples");
    const char* data = text_of(block);
    const Samples out{keys.data(), radius.data(), groups.data(), numbers.data(), ends.data()};
    const nb::gil_scoped_release release;
    return parser.parse(data, size, last, out);
}

double skip_gram_step(const In<float, 2>& words, const In<float, 2>& contexts,
                      const In<std::int32_t, 1>& inputs, const In<std::int32_t, 1>& outputs,
                      const In<float, 1>& radius, const In<std::uint64_t, 1>& groups,
                      const In<float, 1>& rates, const Out<float, 2>& grad_words,
                      const Out<float, 2>& grad_contexts, const Out<float, 1>& probabilities) {
    const std::size_t B = inputs.shape(0), U = words.shape(0), C = contexts.shape(0), D = words.shape(1);
    expect(D >= 1 && contexts.shape(1) == D, "skip_gram: rows of both tables must be equally long");
    expect(grad_words.shape(0) == U && grad_words.shape(1) == D && grad_contexts.shape(0) == C &&
               grad_contexts.shape(1) == D,
           "skip_gram: gradients must be shaped as the rows");
    expect(radius.shape(0) == B && groups.shape(0) == B && rates.shape(0) == B && probabilities.shape(0) == B,
           "skip_gram: one radius, group, rate and probability per word");
    expect(B == 0 ? outputs.shape(0) == 0 : outputs.shape(0) % B == 0 && outputs.shape(0) >= B,
           "skip_gram: a word and its negatives per word");
    const std::size_t negatives = B == 0 ? 0 : outputs.shape(0) / B - 1;
    expect(negatives <= kMaxNegatives, "skip_gram: too many negatives");
    const Stretch text{B,           negatives, inputs.data(), outputs.data(), radius.data(), groups.data(),
                       rates.data()};
    const Computing computing;
    expect(all_below(text.inputs, B, U) && all_below(text.outputs, B * (1 + negatives), C),
           "skip_gram: a place is not among the rows");
    return skip_gram(text, words.data(), U, contexts.data(), C, D, grad_words.data(), grad_contexts.data(),
                     probabilities.data());
}

}  // namespace

void bind_words(nb::module_& m) {
    nb::class_<WordCounter>(m, "WordCounter")
        .def(nb::init<std::size_t>(), "most"_a)
        .def(
            "feed",
            [](WordCounter& counter, const Bytes& block, bool last) {
                const char* data = text_of(block);
                const std::size_t size = block.shape(0);
                const nb::gil_scoped_release release;
                counter.feed(data, size, last);
            },
            nb::arg("block").noconvert(), "last"_a)
        .def("merge", &WordCounter::merge, "other"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("size", &WordCounter::size)
        .def("words", &WordCounter::words)
        .def("too_long", &WordCounter::too_long)
        .def("forgotten", &WordCounter::forgotten)
        .def("words_from", &WordCounter::words_from, "least"_a)
        .def("bytes_from", &WordCounter::bytes_from, "least"_a)
        .def(
            "write",
            [](const WordCounter& counter, std::uint64_t least, const Out<std::uint8_t, 1>& text,
               const Out<std::uint64_t, 1>& counts) {
                expect(text.shape(0) == counter.bytes_from(least) &&
                           counts.shape(0) == counter.words_from(least),
                       "write: arrays of just the right size");
                counter.write(least, reinterpret_cast<char*>(text.data()), counts.data());
            },
            "least"_a, "text"_a, "counts"_a);
    nb::class_<WordTable>(m, "WordTable")
        .def(
            "__init__",
            [](WordTable* self, const Bytes& text, const In<std::uint32_t, 1>& keep,
               const In<std::uint32_t, 1>& share, const In<std::uint32_t, 1>& other) {
                expect(share.shape(0) == keep.shape(0) && other.shape(0) == keep.shape(0),
                       "WordTable: one number per word");
                new (self) WordTable(text_of(text), text.shape(0), keep.data(), share.data(), other.data(),
                                     keep.shape(0));
            },
            nb::arg("text").noconvert(), nb::arg("keep").noconvert(), nb::arg("share").noconvert(),
            nb::arg("other").noconvert());
    nb::class_<WordParser>(m, "WordParser")
        .def(
            "__init__",
            [](WordParser* self, const WordTable& table, std::uint64_t seed, std::uint32_t window,
               std::uint32_t negatives, std::uint32_t shared, std::int64_t number) {
                expect(shared >= 1 && window >= 1, "WordParser: window and shared are 1 or above");
                new (self) WordParser(table, Draws{seed, window, negatives, shared}, number);
            },
            "table"_a, "seed"_a, "window"_a, "negatives"_a, "shared"_a, "number"_a, nb::keep_alive<1, 2>())
        .def("parse", &parse, nb::arg("block").noconvert(), "last"_a, "keys"_a, "radius"_a, "groups"_a,
             "numbers"_a, "ends"_a)
        .def("unknown", &WordParser::unknown);
    m.def("skip_gram", &skip_gram_step, nb::arg("words").noconvert(), nb::arg("contexts").noconvert(),
          nb::arg("inputs").noconvert(), nb::arg("outputs").noconvert(), nb::arg("radius").noconvert(),
          nb::arg("groups").noconvert(), nb::arg("rates").noconvert(), "grad_words"_a, "grad_contexts"_a,
          "probabilities"_a);
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
