#include "sparsefleet/words.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "sparsefleet/mix.h"
#include "sparsefleet/xxh64.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

void WordPlaces::put(std::uint64_t hash, std::uint32_t number) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = hash & mask;
    while (slots_[at] != kNone) at = (at + 1) & mask;
    slots_[at] = number;
    hashes_[at] = hash;
}

void WordPlaces::add(std::uint64_t hash, std::uint32_t number) {
    if (2 * (used_ + 1) > slots_.size()) {
        std::vector<std::uint32_t> slots(2 * slots_.size(), kNone);
        std::vector<std::uint64_t> hashes(2 * hashes_.size());
        slots.swap(slots_);
        hashes.swap(hashes_);
        for (std::size_t i = 0; i < slots.size(); ++i)
            if (slots[i] != kNone) put(hashes[i], slots[i]);
    }
    put(hash, number);
    ++used_;
}

void WordPlaces::clear() {
    std::fill(slots_.begin(), slots_.end(), kNone);
    used_ = 0;
}

void WordCounter::add(const char* word, std::size_t size, std::uint64_t count) {
    const std::uint64_t hash = xxh64(word, size, 0);
    const std::uint32_t found = places_.find(hash, [&](std::uint32_t n) {
        return starts_[n + 1] - starts_[n] == size && std::memcmp(text_.data() + starts_[n], word, size) == 0;
    });
    if (found != WordPlaces::kNone) {
        counts_[found] += count;
        return;
    }
    if (counts_.size() >= most_) forget();
    places_.add(hash, static_cast<std::uint32_t>(counts_.size()));
    text_.append(word, size);
    starts_.push_back(text_.size());
    counts_.push_back(count);
}

void WordCounter::forget() {
    while (counts_.size() > most_ / 2) {
        ++least_;
        WordPlaces places;
        std::string text;
        std::vector<std::size_t> starts{0};
        std::vector<std::uint64_t> counts;
        for (std::size_t n = 0; n < counts_.size(); ++n) {
            if (counts_[n] <= least_) {
                forgotten_ += counts_[n];
                continue;
            }
            const std::size_t size = starts_[n + 1] - starts_[n];
            places.add(xxh64(text_.data() + starts_[n], size, 0), static_cast<std::uint32_t>(counts.size()));
            text.append(text_, starts_[n], size);
            starts.push_back(text.size());
            counts.push_back(counts_[n]);
        }
        std::swap(places_, places);
        std::swap(text_, text);
        std::swap(starts_, starts);
        std::swap(counts_, counts);
    }
}

void WordCounter::feed(const char* data, std::size_t size, bool last) {
    blocks_.feed(
        data, size, last,
        [&](const char* word, std::size_t bytes, std::uint64_t) {
            if (bytes > kLongestWord) {
                ++too_long_;
                return;
            }
            ++words_;
            add(word, bytes, 1);
        },
        [] {});
}

void WordCounter::merge(const WordCounter& other) {
    words_ += other.words_;
    too_long_ += other.too_long_;
    forgotten_ += other.forgotten_;
    for (std::size_t n = 0; n < other.counts_.size(); ++n)
        add(other.text_.data() + other.starts_[n], other.starts_[n + 1] - other.starts_[n], other.counts_[n]);
}

std::size_t WordCounter::bytes_from(std::uint64_t least) const {
    std::size_t bytes = 0;
    for (std::size_t n = 0; n < counts_.size(); ++n)
        if (counts_[n] >= least) bytes += starts_[n + 1] - starts_[n] + 1;
    return bytes;
}

std::size_t WordCounter::words_from(std::uint64_t least) const {
    return static_cast<std::size_t>(
        std::count_if(counts_.begin(), counts_.end(), [&](std::uint64_t count) { return count >= least; }));
}

void WordCounter::write(std::uint64_t least, char* text, std::uint64_t* counts) const {
    for (std::size_t n = 0; n < counts_.size(); ++n) {
        if (counts_[n] < least) continue;
        const std::size_t size = starts_[n + 1] - starts_[n];
        std::memcpy(text, text_.data() + starts_[n], size);
        text[size] = '\n';
        text += size + 1;
        *counts++ = counts_[n];
    }
}

WordTable::WordTable(const char* text, std::size_t bytes, const std::uint32_t* keep,
                     const std::uint32_t* share, const std::uint32_t* other, std::size_t words)
    : text_(text, bytes),
      keep_(keep, keep + words),
      share_(share, share + words),
      other_(other, other + words) {
    for (std::size_t at = 0; at < bytes; ++at)
        if (text_[at] == '\n') starts_.push_back(at + 1);
    if (starts_.size() != words + 1 || starts_.back() != bytes)
        throw std::invalid_argument("a vocabulary must have one line for each word");
    for (std::size_t v = 0; v < words; ++v) {
        if (other_[v] >= words) throw std::invalid_argument("an alias is not in the vocabulary");
        const char* word = text_.data() + starts_[v];
        const std::size_t size = starts_[v + 1] - starts_[v] - 1;
        if (find(word, size) != WordPlaces::kNone) throw std::invalid_argument("a word is there twice");
        places_.add(xxh64(word, size, 0), static_cast<std::uint32_t>(v));
    }
}

std::uint32_t WordTable::find(const char* word, std::size_t size) const {
    return places_.find(xxh64(word, size, 0), [&](std::uint32_t v) {
        return starts_[v + 1] - starts_[v] - 1 == size &&
               std::memcmp(text_.data() + starts_[v], word, size) == 0;
    });
}

std::uint32_t WordTable::negative(std::uint64_t draw) const {
    const std::uint32_t v = static_cast<std::uint32_t>(((draw >> 32) * keep_.size()) >> 32);
    return static_cast<std::uint32_t>(draw) <= share_[v] ? v : other_[v];
}

std::size_t WordParser::parse(const char* data, std::size_t size, bool last, const Samples& out) {
    std::size_t written = 0;
    blocks_.feed(
        data, size, last,
        [&](const char* word, std::size_t bytes, std::uint64_t end) {
            if (bytes > kLongestWord) return;
            const std::uint64_t number = static_cast<std::uint64_t>(++number_);
            const std::uint32_t v = table_.find(word, bytes);
            if (v == WordPlaces::kNone) {
                ++unknown_;
                return;
            }
            const std::uint64_t draw = mix64(draws_.seed + number * kGolden);
            if (!table_.kept(v, static_cast<std::uint32_t>(draw))) return;
            std::uint64_t* keys = out.keys + written * (1 + draws_.negatives);
            keys[0] = v;
            // Draws of negatives: a sequence of its own for each word, or each few of them.
            const std::uint64_t from = mix64(~draws_.seed + number / draws_.shared * kGolden);
            for (std::uint32_t k = 1; k <= draws_.negatives; ++k)
                keys[k] = table_.negative(mix64(from + k * kGolden));
            out.radius[written] = static_cast<float>(1 + (((draw >> 32) * draws_.window) >> 32));
            out.groups[written] = mix64(draws_.seed) + line_;
            out.numbers[written] = static_cast<std::int64_t>(number);
            out.ends[written] = static_cast<std::int64_t>(end);
            ++written;
        },
        [&] { ++line_; });
    return written;
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
