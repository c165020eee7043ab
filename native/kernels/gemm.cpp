// out is made in tiles of kRows rows by kVectors vectors, whose sums stay in registers. The right operand is
// laid out anew in panels (a block of the inner dimension, one tile wide), a group of kGroup columns at a
// time, which is then used by all rows; with AVX-512 it is read where it stands if its rows begin at cache
// lines. The left operand is read where it stands, one broadcast per row and step; without AVX-512 a
// transposed one is laid out anew too.
//
// Without AVX-512 a group is one panel and fits the first-level cache. With AVX-512 a step of a tile takes so
// many cycles that the second-level cache is fast enough for the panels: there a group fits that cache, and
// the rows of a tile stay in the first-level cache for all of its panels.
//
// Results of one or two columns go another way (`few_columns`).
#include "sparsefleet/gemm.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "sparsefleet/turn.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

// A tile's sums, a row of the panel and a broadcast fill the registers: 25 + 5 + 1 of 32, or 12 + 2 + 1
// of 16. kDepth: steps of a panel. kBlockRows: rows of the result at a time; they and their operands fit the
// second-level cache.
#if defined(__AVX512F__)
constexpr std::size_t kLanes = 16, kRows = 5, kVectors = 5, kDepth = 400;
constexpr std::size_t kWidth = kLanes * kVectors, kGroup = 5 * kWidth, kBlockRows = 1000;
constexpr bool kLaysOutTurned = false;
#else
#if defined(__AVX2__)
constexpr std::size_t kLanes = 8;
#else
constexpr std::size_t kLanes = 4;
#endif
constexpr std::size_t kRows = 6, kVectors = 2, kDepth = 400;
constexpr std::size_t kWidth = kLanes * kVectors, kGroup = kWidth, kBlockRows = 250;
constexpr bool kLaysOutTurned = true;
#endif

typedef float Vector __attribute__((vector_size(kLanes * 4)));
typedef float LooseVector __attribute__((vector_size(kLanes * 4), aligned(4)));

inline Vector load(const float* from) { return *reinterpret_cast<const LooseVector*>(from); }
inline void store(float* to, Vector v) { *reinterpret_cast<LooseVector*>(to) = v; }

// The matrix's last columns: `count` values, fewer than a vector has. Zeros take the others' places.
#if defined(__AVX512F__)
inline __mmask16 first(std::size_t count) { return static_cast<__mmask16>((1u << count) - 1); }
inline Vector load_some(const float* from, std::size_t count) {
    return reinterpret_cast<Vector>(_mm512_maskz_loadu_ps(first(count), from));
}
inline void store_some(float* to, Vector v, std::size_t count) {
    _mm512_mask_storeu_ps(to, first(count), reinterpret_cast<__m512>(v));
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

// The right operand of a tile. `step`: values from one step's row to the next one's.
struct Right {
    const float* data;
    std::size_t step;
};

template <std::size_t R, std::size_t V>
void multiply(const float* a, std::size_t row, std::size_t col, Right right, std::size_t depth,
              const Tile& tile, std::size_t width) {
#if !defined(__AVX512F__)
    for (std::size_t r = 0; r < R; ++r)  // fetched now, needed only when the sums are done
        for (std::size_t v = 0; v < V; ++v) __builtin_prefetch(tile.out + r * tile.stride + v * kLanes, 1);
#endif
    if (tile.mask)
        for (std::size_t r = 0; r < R; ++r)
            for (std::size_t v = 0; v < V; ++v) __builtin_prefetch(tile.mask + r * tile.stride + v * kLanes);
    Vector sums[R][V] = {};
#if !defined(__AVX512F__)  // a step is short there, so the loop counter costs a visible part of it
#pragma GCC unroll 4
#endif
    for (std::size_t k = 0; k < depth; ++k, a += col, right.data += right.step) {
#pragma GCC unroll 8
        for (std::size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (std::size_t v = 0; v < V; ++v) sums[r][v] += a[r * row] * load(right.data + v * kLanes);
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
            } else {
                if (!tile.first) sum += load_some(out, left);
                if (tile.last && bias) sum += load_some(bias, left);
                store_some(out, after ? finished(sum, mask ? load_some(mask, left) : sum, tile.after) : sum,
                           left);
            }
        }
    }
}

using Rows = std::make_index_sequence<kRows>;

std::size_t vectors_of(std::size_t width) { return (width + kLanes - 1) / kLanes; }

using Multiply = void (*)(const float*, std::size_t, std::size_t, Right, std::size_t, const Tile&,
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

// The right operand of a panel: where it stands, or laid out in `panel`. In place a vector that lies across
// two cache lines would cost two loads a step.
Right right_operand(const Operand& b, std::size_t k, std::size_t depth, std::size_t column, std::size_t width,
                    float* panel) {
#if defined(__AVX512F__)
    if (b.col == 1 && width % kLanes == 0 && b.row % kLanes == 0 &&
        reinterpret_cast<std::uintptr_t>(b.data) % kCacheLine == 0)
        return {b.data + k * b.row + column, b.row};
#endif
    lay_out(b, k, depth, column, width, panel);
    return {panel, kWidth};
}

// Adds rows [count, depth] to `sums`, in their order.
void add_rows(const float* __restrict rows, std::size_t row, std::size_t count, std::size_t depth,
              float* __restrict sums) {
    if (count == kRows) {
        for (std::size_t k = 0; k < depth; ++k) {
            float sum = sums[k];
#pragma GCC unroll 8
            for (std::size_t r = 0; r < kRows; ++r) sum += rows[r * row + k];
            sums[k] = sum;
        }
        return;
    }
    for (std::size_t r = 0; r < count; ++r)
        for (std::size_t k = 0; k < depth; ++k) sums[k] += rows[r * row + k];
}

// A panel's columns of the result, and its right operand.
struct Column {
    std::size_t at, width;
    Right right;
    Multiply whole, rest;  // for kRows rows, and for those that are left at the end
};

// `fetch`: these rows are not in the cache, so prefetch the next tile's while one is computed, some with each
// panel: all at once they would hold up the loads of the tile that comes first.
void all_rows(const Left& a, const Column* columns, std::size_t count, std::size_t depth, std::size_t m,
              const Tile& group, bool fetch, float* row_sums) {
    const float* rows = a.data;
    for (std::size_t i = 0; i < m; i += kRows, rows += a.tile) {
        if (row_sums) add_rows(rows, a.row, std::min(kRows, m - i), depth, row_sums);
        for (std::size_t c = 0; c < count; ++c) {
            if (fetch)
                for (std::size_t r = kRows + c; r < std::min(m - i, 2 * kRows); r += count)
                    for (std::size_t k = 0; k < depth; k += 16) __builtin_prefetch(rows + r * a.row + k);
            const Column& column = columns[c];
            Tile tile = group;
            tile.out += i * group.stride + column.at;
            if (tile.bias) tile.bias += column.at;
            if (tile.mask) tile.mask += i * group.stride + column.at;
            const Multiply multiply = i + kRows <= m ? column.whole : column.rest;
            multiply(rows, a.row, a.col, column.right, depth, tile, column.width);
        }
    }
}

float* at_least(AlignedFloats& room, std::size_t count) {
    if (room.size() < count) room.resize(count);
    return room.data();
}

void some_rows(const Operand& a, const Operand& b, float* out, std::size_t m, std::size_t n, std::size_t k,
               const Epilogue& epilogue, GemmScratch& scratch, float* row_sums) {
    // Blocks of about equal depth. With K = 0 there is one block too, because the epilogue must run.
    const std::size_t blocks = std::max<std::size_t>(1, (k + kDepth - 1) / kDepth);
    const std::size_t depth = std::max<std::size_t>(1, (k + blocks - 1) / blocks);
    for (std::size_t from = 0; from < std::max<std::size_t>(k, 1); from += depth) {
        const std::size_t count = std::min(depth, k - from);
        const bool turned = a.col != 1;
        Left left{a.data + from * a.col, a.row, a.col, kRows * a.row};
        if (turned && kLaysOutTurned)
            left = lay_out_turned({left.data, a.row, a.col}, m, count,
                                  at_least(scratch.tiles, (m + kRows) * count + 8));
        const Tile tile{out, n, epilogue.bias, epilogue.mask, from == 0, from + depth >= k, epilogue.after};
        for (std::size_t group = 0; group < n; group += kGroup) {
            Column columns[kGroup / kWidth];
            std::size_t many = 0;
            const std::size_t panels = (std::min(n - group, kGroup) + kWidth - 1) / kWidth;
            float* panel = at_least(scratch.panel, depth * panels * kWidth);
            for (std::size_t at = group; at < std::min(n, group + kGroup); at += kWidth) {
                const std::size_t width = std::min(kWidth, n - at);
                columns[many++] = {at, width, right_operand(b, from, count, at, width, panel),
                                   pick(kRows, vectors_of(width), Rows{}),
                                   pick(m % kRows ? m % kRows : kRows, vectors_of(width), Rows{})};
                panel += count * kWidth;
            }
            all_rows(left, columns, many, count, m, tile, group == 0 && !turned,
                     group == 0 && row_sums ? row_sums + from : nullptr);
        }
    }
}

// A result of one or two columns, such as a tower's logits. A tile would be a vector wide and use one or two
// of its lanes. Here vectors go along the inner dimension, and their lanes are added up at the end.
template <std::size_t R, std::size_t C>
void dot_products(const Operand& a, const Operand& b, float* out, std::size_t k, const Epilogue& epilogue) {
    Vector sums[R][C] = {};
    std::size_t at = 0;
    for (; at + kLanes <= k; at += kLanes)
#pragma GCC unroll 8
        for (std::size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (std::size_t c = 0; c < C; ++c)
                sums[r][c] += load(a.data + r * a.row + at) * load(b.data + c * b.col + at);
    if (at < k)
        for (std::size_t r = 0; r < R; ++r)
            for (std::size_t c = 0; c < C; ++c)
                sums[r][c] +=
                    load_some(a.data + r * a.row + at, k - at) * load_some(b.data + c * b.col + at, k - at);
    for (std::size_t r = 0; r < R; ++r)
        for (std::size_t c = 0; c < C; ++c) {
            float sum = epilogue.bias ? epilogue.bias[c] : 0.0f;
            for (std::size_t lane = 0; lane < kLanes; ++lane) sum += sums[r][c][lane];
            if (epilogue.after == After::kRelu && sum < 0.0f) sum = 0.0f;  // NaN stays NaN
            if (epilogue.after == After::kMask && !(epilogue.mask[r * C + c] > 0.0f)) sum = 0.0f;
            out[r * C + c] = sum;
        }
}

template <std::size_t C>
void few_columns(Operand a, const Operand& b, float* out, std::size_t m, std::size_t k, Epilogue epilogue) {
    constexpr std::size_t kTogether = 4;
    while (m > 0) {
        const std::size_t rows = m < kTogether ? 1 : kTogether;
        if (rows == 1)
            dot_products<1, C>(a, b, out, k, epilogue);
        else
            dot_products<kTogether, C>(a, b, out, k, epilogue);
        a.data += rows * a.row;
        out += rows * C;
        if (epilogue.mask) epilogue.mask += rows * C;
        m -= rows;
    }
}

}  // namespace

void gemm(const Operand& a, const Operand& b, float* out, std::size_t m, std::size_t n, std::size_t k,
          const Epilogue& epilogue, GemmScratch& scratch, float* row_sums) {
    if (row_sums) std::fill(row_sums, row_sums + k, 0.0f);
    if (row_sums && n <= 2) {  // there may be no tiles to do it with
        add_rows(a.data, a.row, m, k, row_sums);
        row_sums = nullptr;
    }
    if (n == 0) return;
    if (n <= 2 && a.col == 1 && b.row == 1)  // both stand along the inner dimension
        return n == 1 ? few_columns<1>(a, b, out, m, k, epilogue) : few_columns<2>(a, b, out, m, k, epilogue);
    for (std::size_t from = 0; from < m; from += kBlockRows) {
        const std::size_t rows = std::min(kBlockRows, m - from);
        Epilogue here = epilogue;
        if (here.mask) here.mask += from * n;
        some_rows({a.data + from * a.row, a.row, a.col}, b, out + from * n, rows, n, k, here, scratch,
                  row_sums);
    }
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
