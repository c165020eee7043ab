// out is made in tiles of kRows rows by kVectors vectors, whose sums stay in registers. The right operand is
// laid out anew, one panel (a block of the inner dimension, one tile wide) at a time: it then fits the
// first-level cache and is used by all rows. The left operand is read where it stands, one broadcast per row
// and step.
//
// With `half` an element is a pair of bfloat16 neighbours of the inner dimension, and a step multiplies two
// at a time.
#include "sparsefleet/gemm.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

// 25 sums, 5 columns and a broadcast fill 31 of 32 registers; with 16 registers, 12, 3 and 1.
#if defined(__AVX512F__)
constexpr std::size_t kLanes = 16, kRows = 5, kVectors = 5;
#elif defined(__AVX2__)
constexpr std::size_t kLanes = 8, kRows = 4, kVectors = 3;
#else
constexpr std::size_t kLanes = 4, kRows = 4, kVectors = 3;
#endif
constexpr std::size_t kWidth = kLanes * kVectors;
constexpr std::size_t kDepth = 80;        // steps in a panel: 80 x 80 floats are 25 KB
constexpr std::size_t kTurnedDepth = 48;  // of a turned left operand a cache line a step has to fit beside it
constexpr std::size_t kBlockRows =
    250;  // rows of the result at a time: they and their operands fit the second-level cache

typedef float Vector __attribute__((vector_size(kLanes * 4)));
typedef float LooseVector __attribute__((vector_size(kLanes * 4), aligned(4)));
typedef std::uint32_t Bits __attribute__((vector_size(kLanes * 4)));
typedef std::uint32_t LooseBits __attribute__((vector_size(kLanes * 4), aligned(4)));

typedef std::uint16_t Shorts __attribute__((vector_size(kLanes * 2)));
typedef std::uint16_t LooseShorts __attribute__((vector_size(kLanes * 2), aligned(2)));

inline Vector load(const float* from) { return *reinterpret_cast<const LooseVector*>(from); }
inline void store(float* to, Vector v) { *reinterpret_cast<LooseVector*>(to) = v; }

inline std::uint32_t rounded(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return bits | 0x400000u;  // NaN stays NaN
    return bits + 0x7fffu + ((bits >> 16) & 1);
}

inline Bits rounded(Vector values) {
    const Bits bits = reinterpret_cast<Bits>(values);
    const Bits up = bits + 0x7fffu + ((bits >> 16) & 1);
    const Bits nan = reinterpret_cast<Bits>((bits & 0x7fffffffu) > 0x7f800000u);
    return (nan & (bits | 0x400000u)) | (~nan & up);
}

// Two neighbours as one element, the first in the low half.
inline std::uint32_t paired(float low, float high) {
    return (rounded(low) >> 16) | (rounded(high) & 0xffff0000u);
}

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
inline Bits paired(Vector low, Vector high) {
    const __m512i turns = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512bh both = _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(high), reinterpret_cast<__m512>(low));
    return reinterpret_cast<Bits>(_mm512_permutexvar_epi16(turns, reinterpret_cast<__m512i>(both)));
}
#else
inline Bits paired(Vector low, Vector high) { return (rounded(low) >> 16) | (rounded(high) & 0xffff0000u); }
#endif

// Neighbours in memory are pairs already.
inline void pair_neighbours(const float* from, std::uint16_t* to) {
    const Bits bits = rounded(load(from)) >> 16;
    *reinterpret_cast<LooseShorts*>(to) = __builtin_convertvector(bits, Shorts);
}

inline void add_product(Vector& sum, float a, const float* b) {
    sum += a * *reinterpret_cast<const Vector*>(b);
}

inline void add_product(Vector& sum, std::uint32_t a, const std::uint32_t* b) {
#if defined(__AVX512BF16__)
    sum = reinterpret_cast<Vector>(_mm512_dpbf16_ps(
        reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a))),
        reinterpret_cast<__m512bh>(_mm512_load_si512(b))));
#else
    const Bits pairs = *reinterpret_cast<const Bits*>(b);
    float low, high;
    const std::uint32_t low_bits = a << 16, high_bits = a & 0xffff0000u;
    std::memcpy(&low, &low_bits, 4);
    std::memcpy(&high, &high_bits, 4);
    sum += low * reinterpret_cast<Vector>(pairs << 16);
    sum += high * reinterpret_cast<Vector>(pairs & 0xffff0000u);
#endif
}

struct Tile {
    float* out;
    std::size_t stride;
    const float* bias;
    const float* mask;
    bool first, last;  // of the blocks of the inner dimension
    After after;
};

inline Vector finished(Vector sum, Vector mask, After after) {
    const Vector zero = {};
    if (after == After::kRelu) return sum < zero ? zero : sum;  // what is not a number stays so
    if (after == After::kMask) return mask > zero ? sum : zero;
    return sum;
}

template <std::size_t R, std::size_t V, typename Element>
void multiply(const Element* a, std::size_t row, std::size_t col, const Element* panel, std::size_t depth,
              const Tile& tile, std::size_t width) {
    for (std::size_t r = 0; r < R; ++r)  // wanted only when the sums are done
        for (std::size_t v = 0; v < V; ++v) __builtin_prefetch(tile.out + r * tile.stride + v * kLanes, 1);
    Vector sums[R][V] = {};
    for (std::size_t k = 0; k < depth; ++k, a += col, panel += kWidth) {
#pragma GCC unroll 8
        for (std::size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (std::size_t v = 0; v < V; ++v) add_product(sums[r][v], a[r * row], panel + v * kLanes);
    }
    const bool after = tile.last && tile.after != After::kNothing;
#pragma GCC unroll 8
    for (std::size_t r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (std::size_t v = 0; v < V; ++v) {
            float* out = tile.out + r * tile.stride + v * kLanes;
            const float* mask = tile.mask ? tile.mask + r * tile.stride + v * kLanes : nullptr;
            const float* bias = tile.bias ? tile.bias + v * kLanes : nullptr;
            const std::size_t left = width - v * kLanes;
            Vector sum = sums[r][v];
            if (left >= kLanes) {
                if (!tile.first) sum += load(out);
                if (tile.last && bias) sum += load(bias);
                store(out, after ? finished(sum, mask ? load(mask) : sum, tile.after) : sum);
            } else {  // the matrix's last columns
                float before[kLanes] = {}, added[kLanes] = {}, kept[kLanes] = {};
                if (!tile.first) std::memcpy(before, out, left * 4);
                if (tile.last && bias) std::memcpy(added, bias, left * 4);
                if (mask) std::memcpy(kept, mask, left * 4);
                sum += load(before) + load(added);
                float result[kLanes];
                store(result, after ? finished(sum, load(kept), tile.after) : sum);
                std::memcpy(out, result, left * 4);
            }
        }
    }
}

template <typename Element>
using Multiply = void (*)(const Element*, std::size_t, std::size_t, const Element*, std::size_t, const Tile&,
                          std::size_t);

template <typename Element, std::size_t R, std::size_t... V>
Multiply<Element> pick(std::size_t vectors, std::index_sequence<V...>) {
    static constexpr Multiply<Element> choices[] = {multiply<R, V + 1, Element>...};
    return choices[vectors - 1];
}

template <typename Element, std::size_t... R>
Multiply<Element> pick(std::size_t rows, std::size_t vectors, std::index_sequence<R...>) {
    using Vectors = std::make_index_sequence<kVectors>;
    static constexpr Multiply<Element> (*choices[])(std::size_t, Vectors) = {pick<Element, R + 1>...};
    return choices[rows - 1](vectors, Vectors{});
}

// 16 x 16 values, turned: to[k * kWidth + j] = from[j * stride + k].
#if defined(__AVX512F__)
inline void turn_square(const float* from, std::size_t stride, float* to) {
    __m512 r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(from + i * stride);
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
        _mm512_store_ps(to + i * kWidth, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
        _mm512_store_ps(to + (i + 8) * kWidth, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
        _mm512_store_ps(to + (i + 4) * kWidth, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88));
        _mm512_store_ps(to + (i + 12) * kWidth, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd));
    }
}
#else
inline void turn_square(const float* from, std::size_t stride, float* to) {
    for (std::size_t j = 0; j < 16; ++j)
        for (std::size_t k = 0; k < 16; ++k) to[k * kWidth + j] = from[j * stride + k];
}
#endif

// A block of b as a panel: [depth, kWidth], zeros where the matrix has ended.
void lay_out(const Operand& b, std::size_t k, std::size_t depth, std::size_t column, std::size_t width,
             float* panel) {
    const float* from = b.data + k * b.row + column * b.col;
    if (b.col == 1) {
        for (std::size_t i = 0; i < depth; ++i) std::memcpy(panel + i * kWidth, from + i * b.row, width * 4);
    } else {
        std::size_t j = 0;
        for (; j + 16 <= width; j += 16) {
            std::size_t i = 0;
            for (; i + 16 <= depth; i += 16) turn_square(from + j * b.col + i, b.col, panel + i * kWidth + j);
            for (; i < depth; ++i)
                for (std::size_t c = j; c < j + 16; ++c) panel[i * kWidth + c] = from[c * b.col + i];
        }
        for (; j < width; ++j)
            for (std::size_t i = 0; i < depth; ++i) panel[i * kWidth + j] = from[j * b.col + i];
    }
    if (width < kWidth)
        for (std::size_t i = 0; i < depth; ++i)
            std::fill(panel + i * kWidth + width, panel + (i + 1) * kWidth, 0.0f);
}

// The same in pairs. `depth` counts values; an odd one out is paired with zero.
void lay_out(const Operand& b, std::size_t k, std::size_t depth, std::size_t column, std::size_t width,
             float* room, std::uint32_t* panel) {
    lay_out(b, k, depth, column, width, room);
    if (depth % 2) std::fill(room + depth * kWidth, room + (depth + 1) * kWidth, 0.0f);
    for (std::size_t i = 0; i < depth; i += 2)
        for (std::size_t j = 0; j < kWidth; j += kLanes)
            *reinterpret_cast<Bits*>(panel + i / 2 * kWidth + j) =
                paired(load(room + i * kWidth + j), load(room + (i + 1) * kWidth + j));
}

// All of a in pairs of the inner dimension: [m, pairs] or, where a stands turned, [pairs, m].
void pair_left(const Operand& a, std::size_t m, std::size_t k, std::uint32_t* out) {
    const std::size_t pairs = (k + 1) / 2;
    if (a.col == 1) {
        for (std::size_t i = 0; i < m; ++i) {
            const float* from = a.data + i * a.row;
            std::size_t c = 0;
            auto* to = reinterpret_cast<std::uint16_t*>(out + i * pairs);
            for (; c + kLanes <= k; c += kLanes) pair_neighbours(from + c, to + c);
            for (std::size_t p = c / 2; p < k / 2; ++p)
                out[i * pairs + p] = paired(from[2 * p], from[2 * p + 1]);
            if (k % 2) out[i * pairs + pairs - 1] = paired(from[k - 1], 0.0f);
        }
        return;
    }
    for (std::size_t p = 0; p < pairs; ++p) {
        const float* low = a.data + 2 * p * a.col;
        const float* high = 2 * p + 1 < k ? low + a.col : nullptr;
        std::size_t i = 0;
        for (; i + kLanes <= m; i += kLanes)
            *reinterpret_cast<LooseBits*>(out + p * m + i) =
                paired(load(low + i), high ? load(high + i) : Vector{});
        for (; i < m; ++i) out[p * m + i] = paired(low[i], high ? high[i] : 0.0f);
    }
}

template <typename Element>
void all_rows(const Element* a, std::size_t row, std::size_t col, const Element* panel, std::size_t depth,
              std::size_t m, std::size_t width, Tile tile) {
    using Rows = std::make_index_sequence<kRows>;
    const std::size_t vectors = (width + kLanes - 1) / kLanes;
    const Multiply<Element> whole = pick<Element>(kRows, vectors, Rows{});
    std::size_t i = 0;
    for (; i + kRows <= m; i += kRows) {
        whole(a + i * row, row, col, panel, depth, tile, width);
        tile.out += kRows * tile.stride;
        if (tile.mask) tile.mask += kRows * tile.stride;
    }
    if (i < m) pick<Element>(m - i, vectors, Rows{})(a + i * row, row, col, panel, depth, tile, width);
}

template <typename T>
T* aligned(std::vector<T>& room, std::size_t count) {
    if (room.size() < count + 16) room.resize(count + 16);
    const auto address = reinterpret_cast<std::uintptr_t>(room.data());
    return reinterpret_cast<T*>((address + 63) / 64 * 64);
}

}  // namespace

namespace {

void some_rows(const Operand& a, const Operand& b, float* out, std::size_t m, std::size_t n, std::size_t k,
               const Epilogue& epilogue, bool half, GemmScratch& scratch) {
    const std::size_t step = half ? 2 : 1, most = (a.col == 1 ? kDepth : kTurnedDepth) * step;
    const std::size_t blocks = std::max<std::size_t>(1, (k + most - 1) / most);
    // Even blocks of whole pairs; nothing to sum up is one block too, for the epilogue.
    const std::size_t depth = std::max(step, ((k + blocks - 1) / blocks + step - 1) / step * step);
    const std::size_t room = (depth + 1) * kWidth;
    float* panel = aligned(scratch.panel, room * 2);
    auto* pairs_panel = reinterpret_cast<std::uint32_t*>(panel + (room + 15) / 16 * 16);
    const std::size_t pairs = (k + 1) / 2;
    std::uint32_t* left = nullptr;
    if (half) {
        left = aligned(scratch.left, m * pairs);
        pair_left(a, m, k, left);
    }
    for (std::size_t from = 0; from < std::max<std::size_t>(k, 1); from += depth) {
        const std::size_t count = std::min(depth, k - from);
        for (std::size_t column = 0; column < n; column += kWidth) {
            const std::size_t width = std::min(kWidth, n - column);
            const Tile tile{out + column,
                            n,
                            epilogue.bias ? epilogue.bias + column : nullptr,
                            epilogue.mask ? epilogue.mask + column : nullptr,
                            from == 0,
                            from + depth >= k,
                            epilogue.after};
            if (half) {
                lay_out(b, from, count, column, width, panel, pairs_panel);
                const bool turned = a.col != 1;
                all_rows(left + (turned ? from / 2 * m : from / 2), turned ? 1 : pairs, turned ? m : 1,
                         pairs_panel, (count + 1) / 2, m, width, tile);
            } else {
                lay_out(b, from, count, column, width, panel);
                all_rows(a.data + from * a.col, a.row, a.col, panel, count, m, width, tile);
            }
        }
    }
}

}  // namespace

void gemm(const Operand& a, const Operand& b, float* out, std::size_t m, std::size_t n, std::size_t k,
          const Epilogue& epilogue, bool half, GemmScratch& scratch) {
    if (n == 0) return;
    const std::size_t blocks = (m + kBlockRows - 1) / kBlockRows;
    for (std::size_t block = 0; block < blocks; ++block) {
        const std::size_t from = block * kBlockRows, rows = std::min(kBlockRows, m - from);
        Epilogue here = epilogue;
        if (here.mask) here.mask += from * n;
        some_rows({a.data + from * a.row, a.row, a.col}, b, out + from * n, rows, n, k, here, half, scratch);
    }
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
