#include "sparsefleet/serving/served_tower.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sparsefleet/gemm.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

namespace {

constexpr std::size_t kVector = 16;        // floats; whole ones are read where they stand (gemm.cpp)
constexpr std::size_t kRowsAtOnce = 128;   // go through all layers together, so that they stay in the cache
constexpr std::size_t kFewestSharing = 8;  // samples; looking for what fewer share costs more than it saves

std::size_t whole_vectors(std::size_t width) { return (width + kVector - 1) / kVector * kVector; }

// Kept from call to call: fresh memory would cost a page fault per page. Bounded by the widths of one tower.
struct Space {
    AlignedFloats hidden[2], x, weights, bias;
    std::vector<std::uint32_t> differs;
    GemmScratch scratch;
};

Space& space() {
    thread_local Space mine;
    return mine;
}

float* at_least(AlignedFloats& room, std::size_t count) {
    if (room.size() < count) room.resize(count);
    return room.data();
}

}  // namespace

ServedTower::ServedTower(std::vector<std::size_t> widths, const std::vector<const float*>& weights,
                         const std::vector<const float*>& biases, std::size_t column)
    : widths_(std::move(widths)), column_(column) {
    const std::size_t layers = widths_.size() - 1;
    for (std::size_t i = 0; i < layers; ++i) {
        const std::size_t from = widths_[i], to = widths_[i + 1];
        const bool last = i + 1 == layers;
        const std::size_t inputs = i ? whole_vectors(from) : from, outputs = last ? to : whole_vectors(to);
        AlignedFloats laid_out(inputs * outputs), bias(outputs);
        for (std::size_t o = 0; o < to; ++o)
            for (std::size_t k = 0; k < from; ++k)
                laid_out[last ? o * inputs + k : k * outputs + o] = weights[i][o * from + k];
        std::copy(biases[i], biases[i] + to, bias.begin());
        weights_.push_back(std::move(laid_out));
        biases_.push_back(std::move(bias));
    }
}

ServedTower::First ServedTower::without_shared(const float* x, std::size_t rows) const {
    const std::size_t in = widths_[0], out = whole_vectors(widths_[1]);
    const First all{x, in, in, weights_[0].data(), biases_[0].data()};
    if (rows < kFewestSharing) return all;
    Space& mine = space();
    mine.differs.assign(in, 0);
    std::uint32_t* differs = mine.differs.data();
    for (std::size_t r = 1; r < rows; ++r)
        for (std::size_t k = 0; k < in; ++k) differs[k] |= x[r * in + k] != x[k];
    std::size_t own = 0, first = in, end = 0;
    for (std::size_t k = 0; k < in; ++k)
        if (differs[k]) {
            ++own;
            first = std::min(first, k);
            end = k + 1;
        }
    if (8 * (in - own) < in) return all;  // copying the others' weights would cost as much
    float* bias = at_least(mine.bias, out);
    std::copy(biases_[0].begin(), biases_[0].end(), bias);
    for (std::size_t k = 0; k < in; ++k) {
        if (differs[k]) continue;
        const float* row = weights_[0].data() + k * out;
        for (std::size_t o = 0; o < out; ++o) bias[o] += x[k] * row[o];
    }
    if (own == 0) return {x, in, 0, weights_[0].data(), bias};
    if (end - first == own) return {x + first, in, own, weights_[0].data() + first * out, bias};
    float* columns = at_least(mine.x, rows * own);
    float* kept = at_least(mine.weights, own * out);
    for (std::size_t k = first, to = 0; k < end; ++k) {
        if (!differs[k]) continue;
        std::copy_n(weights_[0].data() + k * out, out, kept + to * out);
        for (std::size_t r = 0; r < rows; ++r) columns[r * own + to] = x[r * in + k];
        ++to;
    }
    return {columns, own, own, kept, bias};
}

void ServedTower::probabilities(const float* x, std::size_t rows, float* out) const {
    const std::size_t layers = weights_.size(), logits = widths_.back();
    const First first = without_shared(x, rows);
    std::size_t widest = 0;
    for (std::size_t i = 1; i < layers; ++i) widest = std::max(widest, whole_vectors(widths_[i]));
    Space& mine = space();
    float* hidden[2] = {at_least(mine.hidden[0], kRowsAtOnce * widest),
                        at_least(mine.hidden[1], kRowsAtOnce * widest)};
    for (std::size_t from = 0; from < rows; from += kRowsAtOnce) {
        const std::size_t count = std::min(kRowsAtOnce, rows - from);
        Operand left{first.x + from * first.stride, first.stride, 1};
        for (std::size_t i = 0; i + 1 < layers; ++i) {
            const std::size_t width = whole_vectors(widths_[i + 1]);
            const std::size_t depth = i ? whole_vectors(widths_[i]) : first.depth;
            const Epilogue epilogue{i ? biases_[i].data() : first.bias, After::kRelu};
            gemm(left, {i ? weights_[i].data() : first.weights, width, 1}, hidden[i % 2], count, width, depth,
                 epilogue, mine.scratch);
            left = {hidden[i % 2], width, 1};
        }
        float pairs[2 * kRowsAtOnce];
        gemm(left, {weights_.back().data(), 1, left.row}, pairs, count, logits, left.row,
             {biases_.back().data()}, mine.scratch);
        for (std::size_t r = 0; r < count; ++r) {
            const float z = logits == 2 ? pairs[2 * r + column_] - pairs[2 * r + 1 - column_] : pairs[r];
            const float small = std::exp(-std::fabs(z));  // never overflows
            out[from + r] = (z < 0 ? small : 1.0f) / (1.0f + small);
        }
    }
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
