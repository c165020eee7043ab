// Parses samples from text (raw Criteo, MultiSlot; records.h has the others) into arrays. Plain pointers;
// nothing here knows of Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sparsefleet/xxh64.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

// Why a sample was refused. The numbers are shared with kernels/text_types.py.
enum Reason : int {
    kFine = 0,
    kEmptyLine,
    kLongLine,
    kNul,
    kUtf8,
    kFieldCount,
    kLabel,
    kNumber,
    kRange,
    kEmptySlot,
    kWidth,
    kMissingValues,
    kSurplusValues,
    kKey,
    kNegativeKey,
    kKeyOverflow,
    kLabelMissing,
    kQuote,
    kOpenQuote,
    kJson,
    kKeyTwice,
    kValueKind,
    kTime,
    kWeight,
    kTooManyValues,
    kPair,
    kNotOne,
    kReasons,
};

// A stretch of a file, and what to do with it. Offsets count from `data`.
struct Block {
    const char* data;
    std::size_t size;
    std::size_t begin;  // first byte to look at: the start of a line, or of the rest of one when `open`
    std::size_t stop;   // lines that start here or later belong to somebody else
    bool final;         // the file ends with this block: a last line without a line feed counts
    bool open;          // the block starts inside an over-long line that has been refused already
    bool skip;          // count bad samples and go on, instead of stopping at the first
};

// Where samples go. Places before `filled` are taken; `lines` and `ends` may carry what came
// before the block.
struct Columns {
    float* labels;
    float* dense;           // [capacity, n]
    std::uint64_t* keys;    // Criteo: [capacity, S]; MultiSlot: [key_capacity]
    std::int64_t* offsets;  // MultiSlot only: [capacity * S + 1], offsets[sample * S] already set
    std::int64_t* lines;    // samples consumed once sample i is: line_base + lines of this block
    std::int64_t* ends;     // byte_base + offset of the next line
    std::size_t filled, capacity, key_capacity;
    std::int64_t line_base, byte_base;
    std::int64_t* counts;  // [kReasons] refused samples, added to
    // Criteo and records, where wanted: [capacity, n] numbers before they are scaled; missing: NaN.
    double* numbers = nullptr;
    // Records only. `labels` is then [capacity, L]; the others are null where the schema names no such
    // column.
    float* weights = nullptr;
    std::uint64_t* groups = nullptr;
    std::int64_t* times = nullptr;
};

struct Parsed {
    std::size_t filled = 0;    // samples filled, those before the call included
    std::size_t consumed = 0;  // offset of the first byte not dealt with
    std::int64_t lines = 0;    // lines dealt with, refused ones included
    bool open = false;         // the block ends inside an over-long line that has been refused
    bool full = false;         // stopped because the next sample's keys do not fit
    // The first refused sample, when not skipping.
    int reason = kFine;
    std::int64_t column = 0;         // from 1
    std::size_t line_begin = 0;      // where its line starts
    std::size_t begin = 0, end = 0;  // what is wrong with it: these bytes
    std::int64_t found = 0;          // field count, where that is what is wrong
};

// A line's tabs, its end, and whether a byte of it needs a closer look.
struct LineScan {
    std::size_t length = 0;  // without the line feed
    std::size_t tabs = 0;    // in all; only the first `capacity` are stored
    bool ended = false;      // a line feed was found
    bool overlong = false;
    bool suspect = false;  // holds NUL or a byte above 0x7F
    bool quoted = false;   // holds the quote that was asked for
    int reason = kFine;    // why no line could be found here
};

// Scans from `p` to the next line feed. `tabs` has room for capacity + 72 numbers; `quote` 0: none.
LineScan scan_line(const char* p, const char* end, std::size_t max_line, std::uint32_t* tabs,
                   std::size_t capacity, char delimiter = '\t', char quote = 0);

// Offset of the first byte that is not part of well-formed UTF-8, or `size`.
std::size_t utf8_error(const char* p, std::size_t size);

// A decimal number, all of [p, end): sign, digits, point, exponent. Fails on anything else, infinities and
// NaN included.
bool parse_decimal(const char* p, const char* end, double* value);

// Moves over `lines` line feeds from `begin`; returns how many there were and where the last one ended.
std::pair<std::int64_t, std::size_t> skip_lines(const char* data, std::size_t size, std::size_t begin,
                                                std::int64_t lines);

void hash_strings(const char* data, const std::int64_t* offsets, std::size_t count, std::size_t data_size,
                  const PrefixHash& hash, const Fold& fold, std::uint64_t* out);

// XXH64 of `count` texts of 8 + head bytes at once, head < 8: `first` holds bytes 0 to 7 of each, `rest` the
// others. The same steps for each, so that the compiler can do several in one instruction.
void hash_many(const std::uint64_t* first, const std::uint64_t* rest, std::size_t count, std::size_t head,
               std::uint64_t seed, std::uint64_t* out);

// Why a sample is refused, and where.
struct Refusal {
    int reason = kFine;
    std::int64_t column = 0;         // from 1
    std::size_t begin = 0, end = 0;  // within the line
    std::int64_t found = 0;
};

// Reads the lines of one format. An object keeps scratch space: one per thread.
class LineParser {
  public:
    explicit LineParser(std::size_t max_line) : max_line_(max_line), padded_(max_line + 64) {}
    virtual ~LineParser() = default;

    Parsed parse(const Block& block, const Columns& out);

  protected:
    using Refusal = SPARSEFLEET_LEVEL::Refusal;

    // One line without its end, with 64 readable bytes behind it, into place `sample`. `scan.length` is the
    // line's length.
    virtual Refusal read_line(const char* line, const LineScan& scan, const Columns& out, std::size_t sample,
                              bool* full) = 0;
    virtual std::size_t tab_capacity() const = 0;
    // The line at `p`. `final`: nothing comes after `end`.
    virtual LineScan scan(const char* p, const char* end, bool final);

    static Refusal bad_bytes(const char* line, std::size_t length, char separator);

    std::vector<std::uint32_t> tabs_;
    std::size_t max_line_;

  private:
    std::vector<char> padded_;
};

// label, n numbers, S categories, tab separated; without the label when not `labelled`.
class CriteoParser final : public LineParser {
  public:
    CriteoParser(std::vector<double> minimum, std::vector<double> diff, std::vector<std::string> prefixes,
                 std::uint64_t seed, std::uint64_t dim, bool labelled, std::size_t max_line);

  protected:
    Refusal read_line(const char* line, const LineScan& scan, const Columns& out, std::size_t sample,
                      bool* full) override;
    std::size_t tab_capacity() const override { return fields_; }

  private:
    std::vector<double> minimum_, diff_, numbers_;
    void hash_sample(const char* line, const std::uint32_t* ends, std::size_t begin, std::uint64_t* keys);

    std::vector<PrefixHash> hashes_;
    std::uint64_t seed_;
    Fold fold_;
    std::size_t fields_;
    bool labelled_;

    // Criteo's categories are eight hexadecimal digits or nothing at all: hash the former together, know the
    // latter.
    static constexpr std::size_t kUsual = 8, kOtherHead = 8;
    std::size_t head_ = kOtherHead;  // bytes of every prefix, where all are alike and short
    std::vector<std::uint64_t> packed_, first_, rest_, blank_;
};

// Slots in declared order, each `n v1 … vn`, space separated.
class MultiSlotParser final : public LineParser {
  public:
    enum Kind : int { kDense = 0, kSparse = 1, kLabelSlot = 2 };
    struct Entry {
        int kind;
        std::size_t index;  // first dense feature, or slot number in the schema
        std::size_t width;  // dense features covered
    };

    MultiSlotParser(std::vector<Entry> layout, std::size_t dense, std::size_t slots, std::uint64_t dim,
                    std::size_t max_line);

  protected:
    Refusal read_line(const char* line, const LineScan& scan, const Columns& out, std::size_t sample,
                      bool* full) override;
    std::size_t tab_capacity() const override { return 0; }

  private:
    std::vector<Entry> layout_;
    std::size_t dense_, slots_;
    Fold fold_;
    std::vector<std::uint64_t> keys_;                          // of one sample, in the order of the text
    std::vector<std::pair<std::size_t, std::size_t>> ranges_;  // per slot of the schema: its part of keys_
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
