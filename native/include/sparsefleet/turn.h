// Turning matrices of 32-bit values (floats, or pairs of bfloat16): rows become columns.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace sparsefleet::SPARSEFLEET_LEVEL {

// to[k * to_stride + j] = from[j * from_stride + k] for a square of kSquare values a side.
#if defined(__AVX512F__)
constexpr std::size_t kSquare = 16;

inline void turn_square(const float* from, std::size_t from_stride, float* to, std::size_t to_stride) {
    __m512 r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(from + i * from_stride);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        _mm512_storeu_ps(to + i * to_stride, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
        _mm512_storeu_ps(to + (i + 8) * to_stride, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
        _mm512_storeu_ps(to + (i + 4) * to_stride, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88));
        _mm512_storeu_ps(to + (i + 12) * to_stride, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd));
    }
}
#else
constexpr std::size_t kSquare = 4;

inline void turn_square(const float* from, std::size_t from_stride, float* to, std::size_t to_stride) {
    typedef float Quad __attribute__((vector_size(16)));
    typedef float LooseQuad __attribute__((vector_size(16), aligned(4), may_alias));
    const auto row = [&](std::size_t j) -> Quad {
        return *reinterpret_cast<const LooseQuad*>(from + j * from_stride);
    };
    const auto write = [&](std::size_t k, Quad quad) {
        *reinterpret_cast<LooseQuad*>(to + k * to_stride) = quad;
    };
    const Quad a = __builtin_shufflevector(row(0), row(1), 0, 4, 1, 5);
    const Quad b = __builtin_shufflevector(row(2), row(3), 0, 4, 1, 5);
    const Quad c = __builtin_shufflevector(row(0), row(1), 2, 6, 3, 7);
    const Quad d = __builtin_shufflevector(row(2), row(3), 2, 6, 3, 7);
    write(0, __builtin_shufflevector(a, b, 0, 1, 4, 5));
    write(1, __builtin_shufflevector(a, b, 2, 3, 6, 7));
    write(2, __builtin_shufflevector(c, d, 0, 1, 4, 5));
    write(3, __builtin_shufflevector(c, d, 2, 3, 6, 7));
}
#endif

// A matrix of any size: to[k * to_stride + j] = from[j * from_stride + k] for j < rows, k < columns.
inline void turn(const float* from, std::size_t from_stride, std::size_t rows, std::size_t columns, float* to,
                 std::size_t to_stride) {
    const std::size_t whole_rows = rows / kSquare * kSquare, whole_columns = columns / kSquare * kSquare;
    for (std::size_t j = 0; j < whole_rows; j += kSquare)
        for (std::size_t k = 0; k < whole_columns; k += kSquare)
            turn_square(from + j * from_stride + k, from_stride, to + k * to_stride + j, to_stride);
    for (std::size_t j = 0; j < rows; ++j)
        for (std::size_t k = j < whole_rows ? whole_columns : 0; k < columns; ++k)
            to[k * to_stride + j] = from[j * from_stride + k];
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
