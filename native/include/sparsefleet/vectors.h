// A machine's vector of floats, as wide as the level has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace sparsefleet::SPARSEFLEET_LEVEL::vectors {

#if defined(__AVX512F__)
constexpr std::size_t kLanes = 16;
#elif defined(__AVX2__)
constexpr std::size_t kLanes = 8;
#else
constexpr std::size_t kLanes = 4;
#endif

typedef float Vector __attribute__((vector_size(kLanes * 4)));
typedef float LooseVector __attribute__((vector_size(kLanes * 4), aligned(4)));
typedef std::uint32_t Whole __attribute__((vector_size(kLanes * 4)));

inline Vector load(const float* from) { return *reinterpret_cast<const LooseVector*>(from); }
inline void store(float* to, Vector v) { *reinterpret_cast<LooseVector*>(to) = v; }

// The first `count` values, fewer than a vector has. Zeros take the others' places.
#if defined(__AVX512F__)
inline Vector load_some(const float* from, std::size_t count) {
    return reinterpret_cast<Vector>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from));
}
inline void store_some(float* to, Vector v, std::size_t count) {
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), reinterpret_cast<__m512>(v));
}
#else
inline Vector load_some(const float* from, std::size_t count) {
    float values[kLanes] = {};
    std::memcpy(values, from, count * 4);
    return load(values);
}
inline void store_some(float* to, Vector v, std::size_t count) {
    float values[kLanes];
    store(values, v);
    std::memcpy(to, values, count * 4);
}
#endif

// As above, where `left` values are left; they may be more than a vector has.
inline Vector load_up_to(const float* from, std::size_t left) {
    return left >= kLanes ? load(from) : load_some(from, left);
}
inline void store_up_to(float* to, Vector v, std::size_t left) {
    if (left >= kLanes)
        store(to, v);
    else
        store_some(to, v, left);
}

inline float total(Vector v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps(reinterpret_cast<__m512>(v));
#else
    float sum = 0.0f;
    for (std::size_t k = 0; k < kLanes; ++k) sum += v[k];
    return sum;
#endif
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL::vectors
