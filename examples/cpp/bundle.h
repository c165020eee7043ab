// A bundle in C++: from raw samples to the inputs of its network. docs/cpp.md explains it; the bytes are
// specified in src/sparsefleet/export/FORMAT.md.
//
// Hashing and the search in rows files are the project's own code (native/, no Python in it), so there is one
// opinion on both. Define SPARSEFLEET_LEVEL as any name: it is the namespace of what is compiled.
//
// Legend: B samples, S slots, n dense features, D values a row.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "json.h"
#include "sparsefleet/serving/bundle_rows.h"
#include "sparsefleet/xxh64.h"

namespace bundle {

namespace native = sparsefleet::SPARSEFLEET_LEVEL;

inline std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

inline std::uint32_t crc32(const unsigned char* data, std::size_t size) {
    std::uint32_t crc = ~0u;
    for (std::size_t i = 0; i < size; ++i) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xEDB88320u & (0u - (crc & 1u)));
    }
    return ~crc;
}

// The rows of one table, mapped and searched in place. Threads may share one.
class RowsFile {
  public:
    RowsFile(const std::string& path, const std::string& bundle_id, const std::string& table) : path_(path) {
        const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (file < 0) throw std::runtime_error("cannot open " + path + ": " + std::strerror(errno));
        struct stat about{};
        const bool told = ::fstat(file, &about) == 0;
        size_ = told ? static_cast<std::size_t>(about.st_size) : 0;
        void* mapped = size_ < 128 ? MAP_FAILED : ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
        ::close(file);
        if (mapped == MAP_FAILED) throw std::runtime_error(path + ": cannot be mapped, or is too short");
        data_ = static_cast<const unsigned char*>(mapped);
        try {
            read_header(bundle_id, table);
        } catch (...) {
            ::munmap(mapped, size_);
            throw;
        }
    }
    RowsFile(const RowsFile&) = delete;
    RowsFile& operator=(const RowsFile&) = delete;
    ~RowsFile() { ::munmap(const_cast<unsigned char*>(data_), size_); }

    std::uint32_t dim() const { return rows_.dim; }

    // The row of each key as float32 [n, D], zeros where the table does not hold it. Returns how many it
    // holds.
    std::size_t lookup(const std::vector<std::uint64_t>& keys, std::vector<float>& out) const {
        out.resize(keys.size() * rows_.dim);
        std::vector<std::uint8_t> found(keys.size());
        const std::size_t hits =
            native::lookup_rows(rows_, keys.data(), keys.size(), out.data(), found.data());
        if (hits == native::kDamaged)
            throw std::runtime_error(path_ + ": its directory makes no sense: damaged");
        return hits;
    }

  private:
    template <typename T>
    T number(std::size_t offset) const {
        T value;
        std::memcpy(&value, data_ + offset, sizeof value);
        return value;
    }

    void read_header(const std::string& bundle_id, const std::string& table) {
        if (std::memcmp(data_, "SFROWS\r\n", 8) || number<std::uint32_t>(8) != 1)
            throw std::runtime_error(path_ + ": not a rows file of version 1");
        if (crc32(data_, 124) != number<std::uint32_t>(124))
            throw std::runtime_error(path_ + ": damaged header");
        std::string id;
        for (int i = 0; i < 16; ++i) {
            id += "0123456789abcdef"[data_[80 + i] >> 4];
            id += "0123456789abcdef"[data_[80 + i] & 15];
        }
        if (id != bundle_id || number<std::uint64_t>(96) != native::xxh64(table.data(), table.size(), 0))
            throw std::runtime_error(path_ + ": it belongs to another bundle or table");
        rows_ = {data_,
                 size_,
                 number<std::uint64_t>(48),
                 number<std::uint64_t>(56),
                 number<std::uint64_t>(64),
                 number<std::uint64_t>(24),
                 number<std::uint64_t>(32),
                 number<std::uint32_t>(40),
                 number<std::uint32_t>(16),
                 number<std::uint32_t>(20),
                 number<std::uint32_t>(12)};
        if (number<std::uint64_t>(72) != size_ || !rows_.fits())
            throw std::runtime_error(path_ + ": its parts do not fit the file: cut short?");
    }

    std::string path_;
    const unsigned char* data_ = nullptr;
    std::size_t size_ = 0;
    native::MappedRows rows_{};
};

// One input of the network: a matrix [B, width].
struct Input {
    std::string name;
    std::size_t width = 0;
    std::vector<float> values;
};

class Bundle {
  public:
    explicit Bundle(const std::string& folder) : folder_(folder) {
        const json::Value manifest = document("manifest.json"), schema = document("schema.json");
        const json::Value network = document("network.json");
        expect(manifest, "sparsefleet-bundle", 1, 3);
        expect(network, "sparsefleet-network", 1, 2);
        expect(schema, "sparsefleet-schema", 1, 2);
        name_ = manifest.at("name").text;
        if (const json::Value* inputs = manifest.find("inputs"); inputs && !inputs->null())
            refuse_ready(*inputs);
        for (const json::Value& table : manifest.at("tables").items) {
            const std::string& name = table.at("name").text;
            tables_[name] = std::make_unique<RowsFile>(folder + "/" + table.at("path").text,
                                                       manifest.at("id").text, name);
        }
        read_schema(schema);
        read_network(network);
    }

    const std::string& version() const { return name_; }
    std::string graph() const { return folder_ + "/model.onnx"; }
    // (label, output of the graph); a model of one label has one without a name.
    const std::vector<std::pair<std::string, std::string>>& outputs() const { return outputs_; }

    // What the network gets for the rows of a request: {"rows": [{field: value}, …]}.
    std::vector<Input> inputs(const json::Value& request) const {
        const std::vector<json::Value>& samples = request.at("rows").items;
        std::vector<std::vector<std::vector<std::uint64_t>>> keys_BS;
        Input dense{dense_, features_.size(), {}};
        for (std::size_t at = 0; at < samples.size(); ++at) {
            try {
                for (const Feature& feature : features_)
                    dense.values.push_back(normalised(samples[at].at(feature.name), feature));
                std::vector<std::vector<std::uint64_t>> bags;
                for (const Slot& slot : slots_) bags.push_back(keys(samples[at].at(slot.name), slot));
                keys_BS.push_back(std::move(bags));
            } catch (const std::runtime_error& error) {
                throw std::runtime_error("row " + std::to_string(at) + ": " + error.what());
            }
        }
        std::vector<Input> made;
        if (!dense_.empty()) made.push_back(std::move(dense));
        for (const Embedding& embedding : embeddings_) made.push_back(pooled(embedding, keys_BS));
        return made;
    }

  private:
    struct Feature {
        std::string name;
        double minimum, diff;
    };
    struct Slot {
        std::string name, prefix;
        bool takes_keys;
    };
    struct Embedding {
        std::string input;
        const RowsFile* table;
        std::vector<std::size_t> slots;  // places in the schema
        std::string pooling;
        std::size_t length;  // of a sequence; else 0
    };

    json::Value document(const std::string& name) const {
        try {
            return json::Parser(content(folder_ + "/" + name)).document();
        } catch (const std::runtime_error& error) {
            throw std::runtime_error(folder_ + "/" + name + ": " + error.what());
        }
    }

    static void expect(const json::Value& found, const std::string& format, std::uint64_t oldest,
                       std::uint64_t newest) {
        const std::uint64_t version = found.at("version").integer();
        if (found.at("format").text != format || version < oldest || version > newest)
            throw std::runtime_error(found.at("format").text + ", version " + std::to_string(version) +
                                     ": this example reads " + format + ", " + std::to_string(oldest) +
                                     " to " + std::to_string(newest));
    }

    // Such a model takes what a data generator made, not raw values: then this example would hash what it
    // must not.
    static void refuse_ready(const json::Value& inputs) {
        for (const char* part : {"dense", "slots"})
            for (const auto& [name, takes] : inputs.at(part).fields)
                if (takes.text == "ready")
                    throw std::runtime_error("field '" + name +
                                             "' takes ready-made input (manifest.json, inputs)");
    }

    void read_schema(const json::Value& schema) {
        const bool first_version = schema.at("version").integer() == 1;
        for (const json::Value& feature : schema.at("dense").items) {
            plain(feature, {"name", "minimum", "diff"});
            features_.push_back(
                {feature.at("name").text, feature.at("minimum").number(), feature.at("diff").number()});
        }
        for (const json::Value& slot : schema.at("slots").items) {
            plain(slot, {"name", "hash_prefix", "keys"});
            const json::Value *prefix = slot.find("hash_prefix"), *keys = slot.find("keys");
            const std::string& name = slot.at("name").text;
            slots_.push_back({name, prefix && !prefix->null() ? prefix->text : name + "\x1f",
                              first_version || (keys && keys->truth)});
        }
        fold_ = schema.at("sparse_feature_dim").integer();
        seed_ = schema.at("hash_seed").integer();
    }

    // Transforms are not part of this example: better no score than a wrong one.
    static void plain(const json::Value& part, const std::vector<std::string>& known) {
        for (const auto& [name, value] : part.fields) {
            bool listed = false;
            for (const std::string& each : known) listed = listed || each == name;
            if (!listed)
                throw std::runtime_error("'" + part.at("name").text + "' has a transform, " + name +
                                         ": this example reads schemas without any");
        }
    }

    void read_network(const json::Value& network) {
        if (!network.at("dense").null()) dense_ = network.at("dense").at("input").text;
        for (const json::Value& entry : network.at("embeddings").items) {
            Embedding made{entry.at("input").text,
                           tables_.at(entry.at("table").text).get(),
                           {},
                           entry.at("pooling").text,
                           0};
            for (const json::Value& slot : entry.at("slots").items) made.slots.push_back(place(slot.text));
            if (const json::Value* length = entry.find("length"); length && !length->null())
                made.length = length->integer();
            embeddings_.push_back(std::move(made));
        }
        if (const json::Value* labels = network.find("labels"))
            for (const json::Value& label : labels->items)
                outputs_.emplace_back(label.items.at(0).text, label.items.at(1).text);
        if (outputs_.empty()) outputs_.emplace_back("", network.at("output").text);
    }

    std::size_t place(const std::string& slot) const {
        for (std::size_t at = 0; at < slots_.size(); ++at)
            if (slots_[at].name == slot) return at;
        throw std::runtime_error("the schema has no slot '" + slot + "'");
    }

    // (x - minimum) / diff in double, rounded once to float32; a missing number is 0.
    static float normalised(const json::Value& value, const Feature& feature) {
        double number = 0;
        if (value.null() || (value.kind == json::Value::kText && value.text.empty())) return 0.0f;
        if (value.kind == json::Value::kNumber) {
            number = value.number();
        } else if (value.kind == json::Value::kText) {
            char* end = nullptr;
            number = std::strtod(value.text.c_str(), &end);
            if (*end) throw std::runtime_error("field '" + feature.name + "' is not a number");
        } else {
            throw std::runtime_error("field '" + feature.name + "' is not a number");
        }
        const auto scaled = static_cast<float>((number - feature.minimum) / feature.diff);
        if (!std::isfinite(scaled)) throw std::runtime_error("field '" + feature.name + "' is too large");
        return scaled;
    }

    // A slot is text or a whole number, a list of these, or null. A whole number is hashed as its decimal
    // text, or is a key already where the schema says so.
    std::vector<std::uint64_t> keys(const json::Value& value, const Slot& slot) const {
        std::vector<std::uint64_t> found;
        if (value.kind == json::Value::kList) {
            for (const json::Value& one : value.items) found.push_back(key(one, slot));
        } else if (!value.null()) {
            found.push_back(key(value, slot));
        }
        return found;
    }

    std::uint64_t key(const json::Value& value, const Slot& slot) const {
        const native::Fold fold(fold_);
        if (value.whole() && slot.takes_keys) return fold(value.integer());
        if (value.kind != json::Value::kText && !value.whole())
            throw std::runtime_error("field '" + slot.name +
                                     "': allowed is text, a whole number, a list, or null");
        const std::string hashed = slot.prefix + (value.text == "-0" && value.whole() ? "0" : value.text);
        return fold(native::xxh64(hashed.data(), hashed.size(), seed_));
    }

    static Input pooled(const Embedding& embedding,
                        const std::vector<std::vector<std::vector<std::uint64_t>>>& keys_BS) {
        const std::size_t dim = embedding.table->dim(), length = embedding.length;
        Input made{embedding.input, length ? length * (dim + 1) : embedding.slots.size() * dim, {}};
        made.values.assign(keys_BS.size() * made.width, 0.0f);
        std::vector<float> rows;
        for (std::size_t sample = 0; sample < keys_BS.size(); ++sample) {
            for (std::size_t at = 0; at < embedding.slots.size(); ++at) {
                const std::vector<std::uint64_t>& bag = keys_BS[sample][embedding.slots[at]];
                embedding.table->lookup(bag, rows);
                float* out = made.values.data() + sample * made.width + at * dim;
                if (length) {  // the last values' rows, one behind the other, then 1 where there is one
                    const std::size_t first = bag.size() > length ? bag.size() - length : 0;
                    for (std::size_t i = first; i < bag.size(); ++i) {
                        std::memcpy(out + (i - first) * dim, rows.data() + i * dim, dim * sizeof(float));
                        out[length * dim + i - first] = 1.0f;
                    }
                    continue;
                }
                for (std::size_t i = 0; i < bag.size(); ++i)
                    for (std::size_t d = 0; d < dim; ++d) out[d] += rows[i * dim + d];
                if (embedding.pooling == "mean" && bag.size() > 1) {
                    const float scale = 1.0f / static_cast<float>(bag.size());  // as in training, to the last bit
                    for (std::size_t d = 0; d < dim; ++d) out[d] *= scale;
                }
            }
        }
        return made;
    }

    std::string folder_, name_, dense_;
    std::uint64_t fold_ = 0, seed_ = 0;
    std::map<std::string, std::unique_ptr<RowsFile>> tables_;
    std::vector<Feature> features_;
    std::vector<Slot> slots_;
    std::vector<Embedding> embeddings_;
    std::vector<std::pair<std::string, std::string>> outputs_;
};

}  // namespace bundle
