// Parses into arrays the JSON requests that almost all clients send.
//
// It accepts {"rows": [sample, …]} or {"context": {…}, "candidates": [{…}, …]}, with samples as objects or
// lists, texts without escapes, numbers, null, and flat lists. For anything else (an escape, a field twice, a
// missing field, a number out of range) `parse` returns false, and the readable parser (serving/samples.py)
// decides what it means and words the error. So this parser has to be right only about what it accepts.
//
// Legend: B samples, n dense features, S slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "sparsefleet/xxh64.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

std::size_t count_byte(const unsigned char* data, std::size_t size, unsigned char byte);

class RequestParser {
  public:
    struct Limits {
        std::size_t rows, text, values;  // of a request; bytes of a value; values of a slot in a sample
        bool allow_missing;              // a field that is left out counts as null
    };

    // `names`: dense features, then slots. `label`: a field that a sample may have; it is ignored.
    // `takes_keys`: per slot, whether a whole number is a key; else it is hashed as its decimal text.
    RequestParser(std::vector<std::string> names, std::string label, std::vector<double> minimum,
                  std::vector<double> diff, const std::vector<std::string>& prefixes,
                  std::vector<bool> takes_keys, std::uint64_t seed, std::uint64_t dim, Limits limits);

    // True: rows(), dense, keys and offsets hold the batch. False: this is not a plain request.
    bool parse(const char* data, std::size_t size);

    std::size_t rows() const { return rows_; }

    std::vector<float> dense;           // [B, n]
    std::vector<std::uint64_t> keys;    // row-major, slot after slot
    std::vector<std::int64_t> offsets;  // [B*S + 1]

  private:
    enum : int { kUnknown = -1, kLabel = -2 };

    bool space();  // skips white space; false at the end of the text
    bool take(char c);
    bool text(const char** begin, std::size_t* length);
    bool literal(const char* word, std::size_t length);
    bool document();
    bool row_list();
    bool row_object();
    bool row_array();
    bool context();
    bool object(bool shared);
    bool value(int field);
    bool number(double* out);
    bool dense_value(int field);
    bool slot_value(int field);
    bool one_key(std::uint64_t* key, std::size_t slot);
    bool pass_over();
    int field_of(const char* name, std::size_t length);
    bool same_gap(std::size_t position);
    bool finish_row();

    std::vector<std::string> names_;
    std::string label_;
    std::unordered_map<std::string, int> places_;
    std::vector<double> minimum_, diff_;
    std::vector<PrefixHash> hashes_;
    std::vector<bool> takes_keys_;
    Fold fold_;
    Limits limits_;

    const char *p_ = nullptr, *end_ = nullptr;
    std::size_t rows_ = 0;
    // What stands before each value of a sample, as `, "C3": `, and the field that it names. The next sample
    // probably has the same bytes there: comparing them is all the parsing of names that it needs.
    struct Gap {
        std::string bytes;
        int field;
    };
    std::vector<Gap> gaps_;
    std::vector<std::uint32_t> seen_;  // per field: the number of the last sample that had it
    std::uint32_t stamp_ = 0;
    std::size_t found_ = 0;              // fields of this sample so far
    std::size_t shared_fields_ = 0;      // fields of the context
    std::vector<char> in_context_;       // per field
    std::vector<float> row_dense_;       // of one sample; begins as the context's
    std::vector<std::uint64_t> values_;  // keys of one sample, the context's first
    std::size_t shared_values_ = 0;
    std::vector<std::size_t> start_, count_;  // per slot: its part of values_
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
