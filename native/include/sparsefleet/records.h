// Records: samples whose values have names (CSV, JSON lines, columns of a table). An Assembler makes labels,
// numbers and keys of a record by the schema's transforms; the parsers only find the values. So every format,
// and serving, goes through the same transforms.
//
// Legend: B samples, S slots, n dense features, L labels, F fields (columns of the data that are used).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "sparsefleet/text.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

// What a value is, where the format tells. CSV has text alone. Shared with kernels/record_types.py.
enum ValueKind : std::uint8_t { kText = 0, kWhole, kFraction, kTruth };

// At least 16 bytes behind a value can be read.
struct Value {
    const char* data;
    std::size_t size;
    ValueKind kind;
};

struct Field {
    const Value* values = nullptr;
    std::size_t count = 0;  // 0: missing
    bool list = false;      // a list already: text in it is not split
};

enum Function : int { kIdentity = 0, kLog1p, kLn2 };
enum SlotOf : int { kHashed = 0, kKeys, kBuckets, kHour, kWeekday, kLn2Slot, kCross };
enum TimeFormat : int { kAuto = 0, kSeconds, kMilliseconds, kYymmddhh };

struct DensePlan {
    std::size_t field;
    double minimum, diff, low, high;  // low, high: clipping; infinite: none
    int function;
    double missing;  // NaN: 0.0 after normalisation
};

struct SlotPlan {
    int kind;
    std::size_t field;
    std::string prefix;
    bool lower = false;
    int split = 0;                      // a character; 0: none
    std::size_t first = 0, length = 0;  // 0: no limit
    bool has_missing = false;
    std::string missing;
    std::vector<double> buckets;
    std::vector<std::size_t> cross;  // slots
    bool filtered = false;           // values whose hash is not in `kept` are too rare
    std::vector<std::uint64_t> kept;
    bool has_rare = false;  // what stands for a rare value; without it, it is left out
    std::string rare;
};

struct LabelPlan {
    std::int64_t field;  // -1: there is none, so NaN
    std::int64_t where;  // another label that must be 1; -1: always defined
    bool required;       // a missing one is an error
};

struct RecordPlan {
    std::size_t fields;
    std::vector<DensePlan> dense;
    std::vector<SlotPlan> slots;
    std::vector<LabelPlan> labels;
    std::int64_t weight = -1, group = -1, time = -1;  // fields
    int time_format = kAuto;
    std::uint64_t seed = 0, dim = 0;
    bool text_keys = false;  // decimal text may be a ready-made key: CSV, which has nothing but text
};

// Hashes, which are spread evenly as they are.
class HashSet {
  public:
    void fill(const std::vector<std::uint64_t>& hashes);
    bool has(std::uint64_t hash) const {
        if (__builtin_expect(hash == 0, 0)) return zero_;
        for (std::uint64_t at = hash & mask_;; at = (at + 1) & mask_) {
            if (table_[at] == hash) return true;
            if (table_[at] == 0) return false;
        }
    }

  private:
    std::vector<std::uint64_t> table_{0};  // 0: free; at most half of it is used
    std::uint64_t mask_ = 0;
    bool zero_ = false;
};

// Seconds since 1970; false where it is no time.
bool parse_time(const char* p, std::size_t size, int format, std::int64_t* seconds);

class Assembler {
  public:
    explicit Assembler(RecordPlan plan);

    // Sample `sample` of `out` from a record. A refusal's column is the number of the field, from 1; its
    // begin and end are not set, but `bad_value` is. `full`: the keys do not fit behind those of earlier
    // samples.
    Refusal assemble(const Field* fields, const Columns& out, std::size_t sample, bool* full);

    const RecordPlan& plan() const { return plan_; }
    const Value* bad_value = nullptr;

  private:
    // False; refusal_ and bad_value say why.
    bool refuse(int reason, std::size_t field, const Value* value = nullptr);
    bool label(const Field& field, float* out) const;
    bool dense(const Field* fields, std::size_t index, float* out);
    // Of each dense feature the number that is about to be scaled; NaN where it is missing.
    void tell_numbers(const Field* fields, double* out) const;
    bool slot(const Field* fields, std::size_t index);
    bool text_values(const Field& field, std::size_t index);
    void text_value(const char* p, std::size_t size, std::size_t index);
    bool hash_together(const Field* fields);
    void drop_rare(std::size_t start, std::size_t index);
    void cross(const SlotPlan& plan, const PrefixHash& hash);

    RecordPlan plan_;
    Refusal refusal_;
    std::vector<double> numbers_;          // per dense feature: as it was read, where the record has one
    std::vector<std::int64_t> number_of_;  // per slot: the dense feature of the same field; -1: none
    // Of a slot, what most of its values need to know: its field, and whether one is hashed as it stands, or
    // in lower case. By itself, for plans are long.
    struct Way {
        std::size_t field;
        bool plain, lowered;
    };
    std::vector<Way> ways_;
    // Slots whose prefixes have as many bytes, fewer than eight, and whose values are hashed whole: values of
    // eight bytes, of which many data sets are full, are hashed together.
    struct Member {
        std::size_t slot, field;
        std::uint64_t prefix;
        bool lowered;
    };
    struct Group {
        std::size_t head;
        std::vector<Member> members;
    };
    std::vector<Group> groups_;
    std::vector<std::size_t> which_;                      // slots that are hashed together
    std::vector<std::uint64_t> first_, rest_, together_;  // their texts, and hashes
    std::vector<std::uint64_t> hashed_;                   // per slot: a hash from above
    std::vector<char> has_hash_;                          // per slot: it is there
    std::vector<PrefixHash> hashes_;
    std::vector<std::uint64_t> missing_;             // per slot: the key of its value for missing
    std::vector<std::uint64_t> rare_;                // per slot: the key of its value for rare ones
    std::vector<HashSet> kept_;                      // per slot
    std::vector<std::vector<std::uint64_t>> known_;  // per slot: keys of buckets, hours or weekdays
    std::vector<std::size_t> order_;                 // slots, crosses last
    Fold fold_;
    bool in_order_ = true;             // crosses stand behind the other slots
    std::size_t limit_ = 0;            // keys of one sample
    std::vector<std::uint64_t> keys_;  // of one sample, before folding
    std::vector<std::size_t> start_, count_;
    std::vector<char> scratch_;
};

// One record a line, its fields separated by one character; quoted fields may hold it, and line ends.
class CsvParser final : public LineParser {
  public:
    // `places`: per field of the plan, which column of the file it is; `columns`: columns of the file.
    CsvParser(RecordPlan plan, std::vector<std::size_t> places, std::size_t columns, char delimiter,
              char quote, bool multiline, std::size_t max_line);

  protected:
    LineScan scan(const char* p, const char* end, bool final) override;
    Refusal read_line(const char* line, const LineScan& scan, const Columns& out, std::size_t sample,
                      bool* full) override;
    std::size_t tab_capacity() const override { return columns_; }

  private:
    Refusal unquote(const char* line, std::size_t length);
    Refusal located(Refusal refusal, const char* line, std::size_t length) const;

    Assembler assembler_;
    std::vector<std::size_t> places_;
    std::size_t columns_;
    char delimiter_, quote_;
    bool multiline_;
    std::vector<Value> values_;  // per field
    std::vector<Field> fields_;
    std::vector<Value> cells_;  // per column, of a line with quotes
    std::vector<char> text_;    // what quoted fields say
};

// libsvm: `label index:value …`; libffm: `label field:feature:value …`. `qid:n` and a comment behind # may be
// there.
class SvmParser final : public LineParser {
  public:
    // Which field of the plan something goes to; -1: none.
    struct Places {
        bool triples = false;  // libffm
        std::int64_t label = -1, group = -1;
        std::int64_t features = -1;  // libsvm: the indices whose values are no numbers of their own
        std::unordered_map<std::uint64_t, std::size_t> numbers;  // values, by index (libffm: by field)
        std::unordered_map<std::uint64_t, std::size_t> slots;    // libffm: features, by field
    };

    SvmParser(RecordPlan plan, Places places, std::size_t max_line);

  protected:
    Refusal read_line(const char* line, const LineScan& scan, const Columns& out, std::size_t sample,
                      bool* full) override;
    std::size_t tab_capacity() const override { return 0; }

  private:
    Refusal entry(const char* line, const char* p, const char* end);
    void put(std::int64_t field, const Value& value, bool list);

    Assembler assembler_;
    Places places_;
    std::vector<Field> fields_;
    std::vector<std::vector<Value>> values_;  // per field
    std::vector<std::size_t> touched_;        // fields with values
};

// A JSON object a line.
class JsonLinesParser final : public LineParser {
  public:
    JsonLinesParser(RecordPlan plan, std::vector<std::string> names, std::size_t max_line);

  protected:
    Refusal read_line(const char* line, const LineScan& scan, const Columns& out, std::size_t sample,
                      bool* full) override;
    std::size_t tab_capacity() const override { return 0; }

  private:
    bool space();
    bool take(char c);
    bool text(const char** begin, std::size_t* size);
    bool number(Value* value);
    bool scalar(Value* value, bool* null);
    bool pass_over(int depth);
    bool field_value(std::size_t field);
    int field_of(const char* name, std::size_t size, std::size_t position);
    bool object();

    Assembler assembler_;
    std::vector<std::string> names_;
    std::unordered_map<std::string, int> places_;
    std::vector<int> order_;  // fields in the last line's order, which the next probably has too
    std::vector<Field> fields_;
    std::vector<std::size_t> first_;
    std::vector<char> seen_;
    std::vector<Value> values_;
    std::vector<char> text_;  // what texts with escapes say
    std::size_t used_ = 0;
    const char *p_ = nullptr, *end_ = nullptr;
    int problem_ = kJson;
    std::size_t problem_field_ = 0;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
