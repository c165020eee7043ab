// out is made in tiles of kRows rows by kVectors vectors, whose sums stay in registers. The right operand is
// laid out anew, one panel (a block of the inner dimension, one tile wide) at a time: it then fits the
// first-level cache and is used by all rows. The left operand is read where it stands, one broadcast per row
// and step; only a transposed left operand is laid out anew too.
#include "sparsefleet/gemm.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "sparsefleet/turn.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

// A tile's sums, a row of the panel and a broadcast fill the registers: 25 + 5 + 1 of 32, or 12 + 2 + 1
// of 16. A panel of kDepth steps fills most of the first-level cache.
#if defined(__AVX512F__)
constexpr std::size_t kLanes = 16, kRows = 5, kVectors = 5, kDepth = 80;
#elif defined(__AVX2__)
constexpr std::size_t kLanes = 8, kRows = 6, kVectors = 2, kDepth = 400;
#else
constexpr std::size_t kLanes = 4, kRows = 6, kVectors = 2, kDepth = 400;
#endif
constexpr std::size_t kWidth = kLanes * kVectors;
// Rows of the result at a time: they and their operands fit the second-level cache.
constexpr std::size_t kBlockRows = 250;

typedef float Vector __attribute__((vector_size(kLanes * 4)));
typedef float LooseVector __attribute__((vector_size(kLanes * 4), aligned(4)));

inline Vector load(const float* from) { return *reinterpret_cast<const LooseVector*>(from); }
inline void store(float* to, Vector v) { *reinterpret_cast<LooseVector*>(to) = v; }

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
    if (after == After::kRelu) return sum < zero ? zero : sum;  // NaN stays NaN
    if (after == After::kMask) return mask > zero ? sum : zero;
    return sum;
}

template <std::size_t R, std::size_t V>
void multiply(const float* a, std::size_t row, std::size_t col, const float* panel, std::size_t depth,
              const Tile& tile, std::size_t width) {
    for (std::size_t r = 0; r < R; ++r)  // fetched now, needed only when the sums are done
        for (std::size_t v = 0; v < V; ++v) __builtin_prefetch(tile.out + r * tile.stride + v * kLanes, 1);
    if (tile.mask)
        for (std::size_t r = 0; r < R; ++r)
            for (std::size_t v = 0; v < V; ++v) __builtin_prefetch(tile.mask + r * tile.stride + v * kLanes);
    Vector sums[R][V] = {};
#if !defined(__AVX512F__)  // a step is short there, so the loop counter costs a visible part of it
#pragma GCC unroll 4
#endif
    for (std::size_t k = 0; k < depth; ++k, a += col, panel += kWidth) {
#pragma GCC unroll 8
        for (std::size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (std::size_t v = 0; v < V; ++v)
                sums[r][v] += a[r * row] * *reinterpret_cast<const Vector*>(panel + v * kLanes);
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

using Multiply = void (*)(const float*, std::size_t, std::size_t, const float*, std::size_t, const Tile&,
                          std::size_t);

template <std::size_t R, std::size_t... V>
Multiply pick(std::size_t vectors, std::index_sequence<V...>) {
    static constexpr Multiply choices[] = {multiply<R, V + 1>...};
    return choices[vectors - 1];
}

template <std::size_t... R>
Multiply pick(std::size_t rows, std::size_t vectors, std::index_sequence<R...>) {
    using Vectors = std::make_index_sequence<kVectors>;
    static constexpr Multiply (*choices[])(std::size_t, Vectors) = {pick<R + 1>...};
    return choices[rows - 1](vectors, Vectors{});
}

// A block of b as a panel: [depth, kWidth], zeros where the matrix has ended.
void lay_out(const Operand& b, std::size_t k, std::size_t depth, std::size_t column, std::size_t width,
             float* panel) {
    const float* from = b.data + k * b.row + column * b.col;
    if (b.col != 1) {
        turn(from, b.col, width, depth, panel, kWidth);
    } else if (width == kWidth) {  // the length is a constant here, so there is no call per row
        for (std::size_t i = 0; i < depth; ++i)
            for (std::size_t v = 0; v < kVectors; ++v)
                store(panel + i * kWidth + v * kLanes, load(from + i * b.row + v * kLanes));
    } else {
        for (std::size_t i = 0; i < depth; ++i) std::memcpy(panel + i * kWidth, from + i * b.row, width * 4);
    }
    if (width < kWidth)
        for (std::size_t i = 0; i < depth; ++i)
            std::fill(panel + i * kWidth + width, panel + (i + 1) * kWidth, 0.0f);
}

// The left operand of a block. `tile`: values from one tile's rows to the next tile's.
struct Left {
    const float* data;
    std::size_t row, col, tile;
};

// Lays a transposed left operand out as tiles [depth, kRows]: the values of one step stand side by side, and
// the steps follow each other. In the matrix itself each step would load a cache line of its own.
Left lay_out_turned(const Operand& a, std::size_t m, std::size_t depth, float* tiles) {
    constexpr std::size_t kCopied = 8;  // values at a time; the next step overwrites those that are too many
    static_assert(kRows <= kCopied);
    float* to = tiles;
    for (std::size_t i = 0; i < m; i += kRows, to += depth * kRows) {
        const float* from = a.data + i;
        if (i + kCopied <= m) {
            for (std::size_t k = 0; k < depth; ++k)
                std::memcpy(to + k * kRows, from + k * a.col, kCopied * 4);
        } else {
            const std::size_t rows = std::min(kRows, m - i);
            for (std::size_t k = 0; k < depth; ++k)
                for (std::size_t r = 0; r < rows; ++r) to[k * kRows + r] = from[k * a.col + r];
        }
    }
    return {tiles, 1, kRows, depth * kRows};
}

// `fetch`: these rows are not in the cache, so prefetch the next tile's while one is computed.
void all_rows(const Left& a, const float* panel, std::size_t depth, std::size_t m, std::size_t width,
              Tile tile, bool fetch) {
    using Rows = std::make_index_sequence<kRows>;
    const std::size_t vectors = (width + kLanes - 1) / kLanes;
    const Multiply whole = pick(kRows, vectors, Rows{});
    const float* rows = a.data;
    std::size_t i = 0;
    for (; i + kRows <= m; i += kRows, rows += a.tile) {
        if (fetch)
            for (std::size_t r = kRows; r < std::min(m - i, 2 * kRows); ++r)
                for (std::size_t k = 0; k < depth; k += 16) __builtin_prefetch(rows + r * a.row + k);
        whole(rows, a.row, a.col, panel, depth, tile, width);
        tile.out += kRows * tile.stride;
        if (tile.mask) tile.mask += kRows * tile.stride;
    }
    if (i < m) pick(m - i, vectors, Rows{})(rows, a.row, a.col, panel, depth, tile, width);
}

float* aligned(std::vector<float>& room, std::size_t count) {
    if (room.size() < count + 16) room.resize(count + 16);
    const auto address = reinterpret_cast<std::uintptr_t>(room.data());
    return reinterpret_cast<float*>((address + 63) / 64 * 64);
}

void some_rows(const Operand& a, const Operand& b, float* out, std::size_t m, std::size_t n, std::size_t k,
               const Epilogue& epilogue, GemmScratch& scratch) {
    // Blocks of about equal depth. With K = 0 there is one block too, because the epilogue must run.
    const std::size_t blocks = std::max<std::size_t>(1, (k + kDepth - 1) / kDepth);
    const std::size_t depth = std::max<std::size_t>(1, (k + blocks - 1) / blocks);
    float* panel = aligned(scratch.panel, depth * kWidth);
    for (std::size_t from = 0; from < std::max<std::size_t>(k, 1); from += depth) {
        const std::size_t count = std::min(depth, k - from);
        const bool turned = a.col != 1;
        Left left{a.data + from * a.col, a.row, a.col, kRows * a.row};
        if (turned)
            left = lay_out_turned({left.data, a.row, a.col}, m, count,
                                  aligned(scratch.tiles, (m + kRows) * count + 8));
        for (std::size_t column = 0; column < n; column += kWidth) {
            const std::size_t width = std::min(kWidth, n - column);
            const Tile tile{out + column,
                            n,
                            epilogue.bias ? epilogue.bias + column : nullptr,
                            epilogue.mask ? epilogue.mask + column : nullptr,
                            from == 0,
                            from + depth >= k,
                            epilogue.after};
            lay_out(b, from, count, column, width, panel);
            all_rows(left, panel, count, m, width, tile, column == 0 && !turned);
        }
    }
}

}  // namespace

void gemm(const Operand& a, const Operand& b, float* out, std::size_t m, std::size_t n, std::size_t k,
          const Epilogue& epilogue, GemmScratch& scratch) {
    if (n == 0) return;
    for (std::size_t from = 0; from < m; from += kBlockRows) {
        const std::size_t rows = std::min(kBlockRows, m - from);
        Epilogue here = epilogue;
        if (here.mask) here.mask += from * n;
        some_rows({a.data + from * a.row, a.row, a.col}, b, out + from * n, rows, n, k, here, scratch);
    }
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
