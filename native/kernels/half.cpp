#include "sparsefleet/half.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "sparsefleet/turn.h"

#if defined(__AVX512BF16__) || defined(__AMX_BF16__)
#include <immintrin.h>
#endif

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

typedef float Vector __attribute__((vector_size(64)));
typedef float LooseVector __attribute__((vector_size(64), aligned(4)));
typedef std::uint32_t Bits __attribute__((vector_size(64)));
typedef std::uint16_t Shorts __attribute__((vector_size(32)));
typedef std::uint16_t LooseShorts __attribute__((vector_size(32), aligned(2)));

inline std::uint16_t rounded(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return static_cast<std::uint16_t>((nan ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

inline Shorts rounded(Vector values) {
#if defined(__AVX512BF16__)
    return reinterpret_cast<Shorts>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(values)));
#else
    const Bits bits = reinterpret_cast<Bits>(values);
    const Bits up = bits + 0x7fffu + ((bits >> 16) & 1);
    const Bits nan = reinterpret_cast<Bits>((bits & 0x7fffffffu) > 0x7f800000u);
    return __builtin_convertvector(((nan & (bits | 0x400000u)) | (~nan & up)) >> 16, Shorts);
#endif
}

// Interleaves two rows: pairs of the values that stand above each other.
inline Bits paired(const std::uint16_t* above, const std::uint16_t* below) {
    const Bits low = __builtin_convertvector(*reinterpret_cast<const LooseShorts*>(above), Bits);
    const Bits high = __builtin_convertvector(*reinterpret_cast<const LooseShorts*>(below), Bits);
    return low | high << 16;
}

}  // namespace

void round_to_half(const float* from, std::size_t count, std::uint16_t* to) {
    std::size_t i = 0;
    for (; i + 16 <= count; i += 16)
        *reinterpret_cast<LooseShorts*>(to + i) = rounded(*reinterpret_cast<const LooseVector*>(from + i));
    for (; i < count; ++i) to[i] = rounded(from[i]);
}

std::uint16_t* HalfRoom::ask(std::size_t count) {
    if (count > count_ || !data_) {
        const std::size_t bytes = padded(std::max<std::size_t>(count, 1) * 2, 64);
        void* fresh = std::aligned_alloc(64, bytes);
        if (!fresh) throw std::bad_alloc();
        std::memset(fresh, 0, bytes);
        data_.reset(static_cast<std::uint16_t*>(fresh));
        count_ = count;
    }
    return data_.get();
}

void HalfRows::resize(std::size_t rows, std::size_t columns) {
    if (data_ && rows == rows_ && columns == columns_) return;
    rows_ = rows, columns_ = columns, stride_ = padded(columns, kTileDepth);
    // A tile of 16 rows is read as a whole, and so is a pair of rows.
    const std::size_t count = padded(rows, 16) * stride_;
    data_ = room_.ask(count);
    std::fill(data_, data_ + count, std::uint16_t{0});
}

void HalfRows::round(const float* from, std::size_t rows, std::size_t columns) {
    resize(rows, columns);
    for (std::size_t i = 0; i < rows; ++i) round_to_half(from + i * columns, columns, row(i));
}

void HalfRows::turn(const HalfRows& from) {
    resize(from.columns(), from.rows());
    // 16 pairs of rows at a time: interleave them to pairs, then transpose the pairs.
    alignas(64) std::uint32_t square[16 * 16];
    for (std::size_t j = 0; j < from.columns(); j += 16) {
        const std::size_t columns = std::min<std::size_t>(16, from.columns() - j);
        for (std::size_t i = 0; i < from.rows(); i += 32) {
            for (std::size_t p = 0; p < 16; ++p) {
                Bits* to = reinterpret_cast<Bits*>(square + p * 16);
                // Rows beyond the last hold zeros up to a multiple of 16.
                if (i + 2 * p < padded(from.rows(), 16))
                    *to = paired(from.row(i + 2 * p) + j, from.row(i + 2 * p + 1) + j);
                else
                    *to = Bits{};
            }
            alignas(64) std::uint32_t turned[16 * 16];
            for (std::size_t a = 0; a < 16; a += kSquare)
                for (std::size_t b = 0; b < 16; b += kSquare)
                    turn_square(reinterpret_cast<const float*>(square + a * 16 + b), 16,
                                reinterpret_cast<float*>(turned + b * 16 + a), 16);
            for (std::size_t c = 0; c < columns; ++c) std::memcpy(row(j + c) + i, turned + c * 16, 64);
        }
    }
}

std::uint32_t* HalfPanels::resize(std::size_t inner, std::size_t columns) {
    columns_ = columns, pairs_ = padded(inner, kTileDepth) / 2;
    data_ = reinterpret_cast<std::uint32_t*>(room_.ask(2 * pairs_ * padded(columns, kPanelColumns)));
    return data_;
}

void HalfPanels::take(const HalfRows& from) {
    std::uint32_t* to = resize(from.rows(), from.columns());
    const std::size_t present = padded(from.rows(), 16) / 2;  // pairs of rows that exist; zeros follow
    for (std::size_t j = 0; j < from.columns(); j += kPanelColumns) {
        for (std::size_t p = 0; p < pairs_; ++p, to += kPanelColumns) {
            Bits* pairs = reinterpret_cast<Bits*>(to);
            *pairs = p < present ? paired(from.row(2 * p) + j, from.row(2 * p + 1) + j) : Bits{};
        }
    }
}

void HalfPanels::take_turned(const HalfRows& from) {
    std::uint32_t* to = resize(from.columns(), from.rows());
    const std::size_t stride = from.stride() / 2;
    for (std::size_t j = 0; j < from.rows(); j += kPanelColumns, to += pairs_ * kPanelColumns) {
        const float* rows = reinterpret_cast<const float*>(from.row(j));
        for (std::size_t p = 0; p < pairs_; p += kSquare)
            for (std::size_t c = 0; c < kPanelColumns; c += kSquare)
                turn_square(rows + c * stride + p, stride,
                            reinterpret_cast<float*>(to + p * kPanelColumns + c), kPanelColumns);
    }
}

#if defined(__AMX_BF16__)

namespace {

// All eight tiles: 16 rows of 64 bytes.
struct alignas(64) TileShapes {
    std::uint8_t palette = 1, start = 0, reserved[14] = {};
    std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The system saves and restores the tile registers, eight kilobytes, with every switch of threads. So they
// are held no longer than a product takes.
class Tiles {
  public:
    Tiles() {
        static const TileShapes shapes;
        _tile_loadconfig(&shapes);
    }
    ~Tiles() { _tile_release(); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;
};

// 16 or 32 rows by one or two panels: tiles 0 to 3 hold sums, 4 and 5 rows, 6 and 7 panels.
void multiply_tiles(const std::uint16_t* rows, std::size_t stride, bool two_rows, const std::uint32_t* panel,
                    const std::uint32_t* second, std::size_t pairs, float (&sums)[32][32]) {
    const std::size_t row_bytes = stride * 2;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (std::size_t p = 0; p < pairs; p += kTileDepth / 2) {
        _tile_loadd(4, rows + 2 * p, row_bytes);
        _tile_loadd(6, panel + p * kPanelColumns, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (second) {
            _tile_loadd(7, second + p * kPanelColumns, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two_rows) {
            _tile_loadd(5, rows + 16 * stride + 2 * p, row_bytes);
            _tile_dpbf16ps(2, 5, 6);
            if (second) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, &sums[0][0], sizeof sums[0]);
    if (second) _tile_stored(1, &sums[0][16], sizeof sums[0]);
    if (two_rows) _tile_stored(2, &sums[16][0], sizeof sums[0]);
    if (two_rows && second) _tile_stored(3, &sums[16][16], sizeof sums[0]);
}

}  // namespace

void half_product(const HalfRows& left, const HalfPanels& right, HalfSink& sink) {
    alignas(64) float sums[32][32];
    const std::size_t m = left.rows(), n = right.columns();
    // The compiler does not see that the tiles read what was laid out: have it in memory by now.
    __asm__ volatile("" ::: "memory");
    const Tiles tiles;
    for (std::size_t j = 0; j < n; j += 2 * kPanelColumns) {
        const bool two_panels = j + kPanelColumns < n;
        const std::uint32_t* panel = right.panel(j / kPanelColumns);
        for (std::size_t i = 0; i < m; i += 32) {
            multiply_tiles(left.row(i), left.stride(), i + 16 < m, panel,
                           two_panels ? right.panel(j / kPanelColumns + 1) : nullptr, right.pairs(), sums);
            sink.take(
                {&sums[0][0], 32, i, j, std::min<std::size_t>(32, m - i), std::min<std::size_t>(32, n - j)});
        }
    }
}

#else

namespace {

// 25 sums, 5 panels and a broadcast fill 31 of 32 registers.
constexpr std::size_t kRows = 5, kPanels = 5, kWidth = kPanels * kPanelColumns;

inline void add_products(Vector& sum, std::uint32_t a, const std::uint32_t* b) {
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

template <std::size_t R, std::size_t P>
void multiply(const std::uint16_t* rows, std::size_t stride, const std::uint32_t* panels, std::size_t pairs,
              float* out) {
    Vector sums[R][P] = {};
    for (std::size_t p = 0; p < pairs; ++p) {
        std::uint32_t pair[R];
#pragma GCC unroll 8
        for (std::size_t r = 0; r < R; ++r) std::memcpy(&pair[r], rows + r * stride + 2 * p, 4);
#pragma GCC unroll 8
        for (std::size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (std::size_t v = 0; v < P; ++v)
                add_products(sums[r][v], pair[r], panels + (v * pairs + p) * kPanelColumns);
    }
#pragma GCC unroll 8
    for (std::size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (std::size_t v = 0; v < P; ++v)
            *reinterpret_cast<Vector*>(out + r * kWidth + v * kPanelColumns) = sums[r][v];
}

using Multiply = void (*)(const std::uint16_t*, std::size_t, const std::uint32_t*, std::size_t, float*);

template <std::size_t... P>
Multiply pick(std::size_t panels, std::index_sequence<P...>) {
    static constexpr Multiply choices[] = {multiply<kRows, P + 1>...};
    return choices[panels - 1];
}

}  // namespace

void half_product(const HalfRows& left, const HalfPanels& right, HalfSink& sink) {
    alignas(64) float sums[kRows * kWidth];
    const std::size_t m = left.rows(), n = right.columns();
    // Rows are padded to 16, so the last tile may multiply rows whose products are thrown away.
    for (std::size_t j = 0; j < n; j += kWidth) {
        const std::size_t columns = std::min(kWidth, n - j);
        const Multiply multiply_panels =
            pick(padded(columns, kPanelColumns) / kPanelColumns, std::make_index_sequence<kPanels>{});
        for (std::size_t i = 0; i < m;) {
            const std::size_t at = i + kRows <= padded(m, 16) ? i : padded(m, 16) - kRows;
            multiply_panels(left.row(at), left.stride(), right.panel(j / kPanelColumns), right.pairs(), sums);
            const std::size_t rows = std::min(kRows - (i - at), m - i);
            sink.take({sums + (i - at) * kWidth, kWidth, i, j, rows, columns});
            i += rows;
        }
    }
}

#endif

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
