// Words of text: counting them, and turning text into samples of skip-gram.
//
// A word is a run of bytes without white space (space, tab, line feed, vertical tab, form feed, return); a
// group of words ends with a line feed. Text comes in blocks, cut anywhere.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sparsefleet::SPARSEFLEET_LEVEL {

constexpr std::size_t kLongestWord = 1000;  // bytes; longer runs are no words

inline bool is_space(unsigned char c) { return c == ' ' || (c >= 9 && c <= 13); }

// What a block left over: a word that goes on in the next one.
class Blocks {
  public:
    // Calls word(bytes, size, end) and line() in the order of the text; `end` is how many bytes of all
    // blocks the word and what precedes it take up. last: no block follows.
    template <typename Word, typename Line>
    void feed(const char* data, std::size_t size, bool last, Word&& word, Line&& line) {
        std::size_t at = 0;
        if (!partial_.empty()) {
            while (at < size && !is_space(static_cast<unsigned char>(data[at]))) ++at;
            // No more of a run than shows that it is too long to be a word.
            if (partial_.size() <= kLongestWord) partial_.append(data, std::min(at, kLongestWord + 1));
            if (at == size && !last) {
                passed_ += size;
                return;
            }
            word(partial_.data(), partial_.size(), passed_ + at);
            partial_.clear();
        }
        while (at < size) {
            const unsigned char c = static_cast<unsigned char>(data[at]);
            if (is_space(c)) {
                if (c == '\n') line();
                ++at;
                continue;
            }
            const std::size_t start = at;
            while (at < size && !is_space(static_cast<unsigned char>(data[at]))) ++at;
            if (at == size && !last)
                partial_.assign(data + start, at - start);
            else
                word(data + start, at - start, passed_ + at);
        }
        passed_ += size;
    }

  private:
    std::string partial_;
    std::uint64_t passed_ = 0;
};

// Places of words in an open-addressing table; who owns the words compares and stores them.
class WordPlaces {
  public:
    static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

    WordPlaces() : slots_(1024, kNone), hashes_(1024) {}

    template <typename Same>
    std::uint32_t find(std::uint64_t hash, Same&& same) const {
        const std::size_t mask = slots_.size() - 1;
        for (std::size_t at = hash & mask; slots_[at] != kNone; at = (at + 1) & mask)
            if (hashes_[at] == hash && same(slots_[at])) return slots_[at];
        return kNone;
    }
    void add(std::uint64_t hash, std::uint32_t number);  // of a word that `find` did not find
    void clear();
    std::size_t memory_bytes() const { return slots_.capacity() * 12; }

  private:
    void put(std::uint64_t hash, std::uint32_t number);
    std::vector<std::uint32_t> slots_;
    std::vector<std::uint64_t> hashes_;
    std::size_t used_ = 0;
};

// Counts words in bounded memory. Whenever `most` different ones have come, those seen least are forgotten:
// once at most, then twice at most, and so on, until no more than half remain. Then the count of a rare word
// may be too low, that of a frequent one is right. One thread.
class WordCounter {
  public:
    explicit WordCounter(std::size_t most) : most_(most) {}

    void feed(const char* data, std::size_t size, bool last);
    void add(const char* word, std::size_t size, std::uint64_t count);
    void merge(const WordCounter& other);

    std::size_t size() const { return counts_.size(); }
    std::uint64_t words() const { return words_; }          // in all, forgotten ones too
    std::uint64_t too_long() const { return too_long_; }    // runs that are no words
    std::uint64_t forgotten() const { return forgotten_; }  // occurrences of forgotten words
    std::size_t bytes_from(std::uint64_t least) const;  // of all words counted so often, and a line feed each
    std::size_t words_from(std::uint64_t least) const;
    void write(std::uint64_t least, char* text, std::uint64_t* counts) const;  // in no special order

  private:
    std::string word(std::size_t number) const {
        return text_.substr(starts_[number], starts_[number + 1] - starts_[number]);
    }
    void forget();
    std::size_t most_;
    std::string text_;
    std::vector<std::size_t> starts_{0};
    std::vector<std::uint64_t> counts_;
    WordPlaces places_;
    Blocks blocks_;
    std::uint64_t words_ = 0, too_long_ = 0, forgotten_ = 0, least_ = 0;
};

// The words of a vocabulary by number, how often each is kept, and from what negatives are drawn. Read-only.
class WordTable {
  public:
    // text: the words, a line feed behind each. keep [V]: a word stays if a draw of 32 bits is not above it.
    // share, other [V]: the alias method's: a draw of 32 bits not above share[v] gives v, else other[v].
    WordTable(const char* text, std::size_t bytes, const std::uint32_t* keep, const std::uint32_t* share,
              const std::uint32_t* other, std::size_t words);

    std::uint32_t find(const char* word, std::size_t size) const;
    std::size_t size() const { return keep_.size(); }
    bool kept(std::uint32_t number, std::uint32_t draw) const { return draw <= keep_[number]; }
    std::uint32_t negative(std::uint64_t draw) const;

  private:
    std::string text_;
    std::vector<std::size_t> starts_{0};
    std::vector<std::uint32_t> keep_, share_, other_;
    WordPlaces places_;
};

// What is drawn depends on the seed and on a word's number in its unit of text alone.
struct Draws {
    std::uint64_t seed;
    std::uint32_t window;     // a word's radius is 1 to window
    std::uint32_t negatives;  // K
    std::uint32_t shared;     // so many words, one behind the other in the text, have the same negatives
};

struct Samples {
    std::uint64_t* keys;    // [n, 1 + K] a word, then its negatives
    float* radius;          // [n]
    std::uint64_t* groups;  // [n]
    std::int64_t* numbers;  // [n] words of the unit up to and with this one, left-out ones too
    std::int64_t* ends;     // [n] bytes of all blocks up to the end of this one
};

class WordParser {
  public:
    // number: words of the unit before the first block.
    WordParser(const WordTable& table, const Draws& draws, std::int64_t number)
        : table_(table), draws_(draws), number_(number) {}

    // Returns how many samples were written: at most (size + 1) / 2 + 1, of 1 + negatives() keys each.
    std::size_t parse(const char* data, std::size_t size, bool last, const Samples& out);

    std::uint64_t unknown() const { return unknown_; }  // words that are not in the vocabulary
    std::size_t negatives() const { return draws_.negatives; }

  private:
    const WordTable& table_;
    const Draws draws_;
    std::int64_t number_;
    std::uint64_t line_ = 0, unknown_ = 0;
    Blocks blocks_;
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
