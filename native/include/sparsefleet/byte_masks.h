// Which of 64 bytes are equal to a character: one bit each, with whatever vectors the level has.
#pragma once

#include <cstdint>

#if defined(__AVX512BW__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace sparsefleet::SPARSEFLEET_LEVEL {

#if defined(__AVX512BW__)
class Bytes64 {
  public:
    explicit Bytes64(const char* p) : v_(_mm512_loadu_si512(p)) {}
    std::uint64_t equal(char c) const { return _mm512_cmpeq_epi8_mask(v_, _mm512_set1_epi8(c)); }
    // NUL, or above 0x7F.
    std::uint64_t suspect() const { return _mm512_testn_epi8_mask(v_, v_) | _mm512_movepi8_mask(v_); }

  private:
    __m512i v_;
};
#elif defined(__AVX2__)
class Bytes64 {
  public:
    explicit Bytes64(const char* p)
        : low_(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))),
          high_(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + 1)) {}
    std::uint64_t equal(char c) const {
        const __m256i wanted = _mm256_set1_epi8(c);
        return bits(_mm256_cmpeq_epi8(low_, wanted), _mm256_cmpeq_epi8(high_, wanted));
    }
    std::uint64_t suspect() const {
        const __m256i zero = _mm256_setzero_si256();
        return bits(_mm256_or_si256(low_, _mm256_cmpeq_epi8(low_, zero)),
                    _mm256_or_si256(high_, _mm256_cmpeq_epi8(high_, zero)));
    }

  private:
    static std::uint64_t bits(__m256i low, __m256i high) {
        return static_cast<std::uint32_t>(_mm256_movemask_epi8(low)) |
               static_cast<std::uint64_t>(static_cast<std::uint32_t>(_mm256_movemask_epi8(high))) << 32;
    }
    __m256i low_, high_;
};
#elif defined(__SSE2__)
class Bytes64 {
  public:
    explicit Bytes64(const char* p) {
        for (int i = 0; i < 4; ++i) v_[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i);
    }
    std::uint64_t equal(char c) const {
        std::uint64_t found = 0;
        for (int i = 0; i < 4; ++i) found |= bits(_mm_cmpeq_epi8(v_[i], _mm_set1_epi8(c)), i);
        return found;
    }
    std::uint64_t suspect() const {
        std::uint64_t found = 0;
        for (int i = 0; i < 4; ++i)
            found |= bits(_mm_or_si128(v_[i], _mm_cmpeq_epi8(v_[i], _mm_setzero_si128())), i);
        return found;
    }

  private:
    static std::uint64_t bits(__m128i x, int part) {
        return static_cast<std::uint64_t>(static_cast<std::uint32_t>(_mm_movemask_epi8(x))) << (16 * part);
    }
    __m128i v_[4];
};
#else
class Bytes64 {
  public:
    explicit Bytes64(const char* p) : p_(p) {}
    std::uint64_t equal(char c) const {
        std::uint64_t found = 0;
        for (int i = 0; i < 64; ++i) found |= static_cast<std::uint64_t>(p_[i] == c) << i;
        return found;
    }
    std::uint64_t suspect() const {
        std::uint64_t found = 0;
        for (int i = 0; i < 64; ++i) {
            const auto c = static_cast<unsigned char>(p_[i]);
            found |= static_cast<std::uint64_t>(c == 0 || c > 0x7F) << i;
        }
        return found;
    }

  private:
    const char* p_;
};
#endif

// Positions of the set bits. Writes eight at a time whether they are there or not: guessing wrong costs more.
inline void spread(std::uint64_t bits, std::uint32_t base, std::uint32_t* out, std::size_t count) {
    for (std::size_t done = 0; done < count; done += 8) {
        for (int i = 0; i < 8; ++i) {
            out[done + i] = base + static_cast<std::uint32_t>(__builtin_ctzll(bits | (1ULL << 63)));
            bits &= bits - 1;
        }
    }
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
