// A few dozen fields and heads of a few values make matrices of some kilobytes: what costs time elsewhere is
// to bring them to memory and back, and to call something for each. Here all that belongs to some samples is
// made while it is in the cache. Backward makes queries, keys, values and weights again: they take 32 kB a
// sample and layer, and to fetch as much from memory takes as long.
#include "sparsefleet/field_attention.h"

#include <algorithm>

#include "sparsefleet/turn.h"
#include "sparsefleet/vectors.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

using namespace vectors;

namespace {

constexpr std::size_t kSamples = 8;  // at a time

// exp of numbers that are not above 0, to the last bits or so. NaN stays NaN.
inline Vector exp_below_zero(Vector x) {
    const Vector least = Vector{} - 87.0f;
    x = x < least ? least : x;
    // Adding 1.5 * 2^23 rounds to a whole number, which then stands in the lowest bits.
    const Vector shifted = x * 1.44269504f + 12582912.0f;
    const Vector whole = shifted - 12582912.0f;
    const Vector r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;  // ln 2 in two parts
    Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * reinterpret_cast<Vector>((reinterpret_cast<Whole>(shifted) + 127) << 23);
}

// R rows of a product with a matrix whose rows stand in `right`, V vectors wide. (i, k) of the left one
// stands at left[i * row + k * col].
template <std::size_t R, std::size_t V>
inline void tile(const float* left, std::size_t row, std::size_t col, std::size_t depth, const float* right,
                 std::size_t right_row, float* out, std::size_t out_row, std::size_t width) {
    Vector sums[R][V] = {};
    if (width >= V * kLanes) {
        for (std::size_t k = 0; k < depth; ++k, left += col, right += right_row) {
#pragma GCC unroll 8
            for (std::size_t r = 0; r < R; ++r)
#pragma GCC unroll 4
                for (std::size_t v = 0; v < V; ++v) sums[r][v] += left[r * row] * load(right + v * kLanes);
        }
#pragma GCC unroll 8
        for (std::size_t r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (std::size_t v = 0; v < V; ++v) store(out + r * out_row + v * kLanes, sums[r][v]);
        return;
    }
    // The last few columns: V is 1.
    for (std::size_t k = 0; k < depth; ++k, left += col, right += right_row) {
        const Vector some = load_some(right, width);
#pragma GCC unroll 8
        for (std::size_t r = 0; r < R; ++r) sums[r][0] += left[r * row] * some;
    }
#pragma GCC unroll 8
    for (std::size_t r = 0; r < R; ++r) store_some(out + r * out_row, sums[r][0], width);
}

template <std::size_t R, std::size_t V>
void rows_of(const float* left, std::size_t row, std::size_t col, std::size_t rows, std::size_t depth,
             const float* right, std::size_t right_row, float* out, std::size_t out_row, std::size_t width) {
    if (rows < R) {
        for (std::size_t i = 0; i < rows; ++i)
            tile<1, V>(left + i * row, row, col, depth, right, right_row, out + i * out_row, out_row, width);
        return;
    }
    for (std::size_t i = 0;; i += R) {
        i = std::min(i, rows - R);  // the last rows: some of them once more
        tile<R, V>(left + i * row, row, col, depth, right, right_row, out + i * out_row, out_row, width);
        if (i + R == rows) return;
    }
}

// out [rows, width] = left [rows, depth] . right [depth, width]
void product(const float* left, std::size_t row, std::size_t col, std::size_t rows, std::size_t depth,
             const float* right, std::size_t right_row, float* out, std::size_t out_row, std::size_t width) {
    while (width) {
        const std::size_t whole = width / kLanes, many = whole >= 3 ? 3 : whole >= 2 ? 2 : 1;
        if (many == 3)
            rows_of<4, 3>(left, row, col, rows, depth, right, right_row, out, out_row, width);
        else if (many == 2)
            rows_of<6, 2>(left, row, col, rows, depth, right, right_row, out, out_row, width);
        else
            rows_of<8, 1>(left, row, col, rows, depth, right, right_row, out, out_row, width);
        if (width <= many * kLanes) return;
        width -= many * kLanes;
        right += many * kLanes;
        out += many * kLanes;
    }
}

void turn_padded(const float* from, std::size_t stride, std::size_t rows, std::size_t columns,
                 std::size_t padded, float* to) {
    turn(from, stride, rows, columns, to, padded);
    for (std::size_t k = 0; k < columns; ++k)
        for (std::size_t j = rows; j < padded; ++j) to[k * padded + j] = 0.0f;
}

// Columns of products become weights that add up to 1: a column is a query's, so that vectors hold a number
// of as many queries each, and nothing is summed within a vector.
void softmax(float* columns, std::size_t rows, std::size_t padded, float scale) {
    for (std::size_t v = 0; v < padded; v += kLanes) {
        float* const at = columns + v;
        Vector most = load(at) * scale;
        for (std::size_t j = 1; j < rows; ++j) {
            const Vector x = load(at + j * padded) * scale;
            most = most > x ? most : x;
        }
        Vector sum = {};
        for (std::size_t j = 0; j < rows; ++j) {
            const Vector x = exp_below_zero(load(at + j * padded) * scale - most);
            store(at + j * padded, x);
            sum += x;
        }
        const Vector part = 1.0f / sum;
        for (std::size_t j = 0; j < rows; ++j) store(at + j * padded, load(at + j * padded) * part);
    }
}

}  // namespace

FieldAttention::FieldAttention(std::size_t fields, std::size_t dim, std::size_t heads, std::size_t head_dim,
                               float scale)
    : fields_(fields),
      dim_(dim),
      heads_(heads),
      head_dim_(head_dim),
      made_(heads * head_dim),
      padded_((fields + kLanes - 1) / kLanes * kLanes),
      scale_(scale),
      weight_(dim * 4 * made_),
      parts_(kSamples * fields * 4 * made_),
      grads_(kSamples * fields * 4 * made_),
      turned_(head_dim * padded_),
      shares_(fields * padded_),
      back_(fields * padded_),
      grad_weight_(4 * made_ * dim) {}

void FieldAttention::project(const float* fields, std::size_t samples) {
    gemm({fields, dim_, 1}, {weight_.data(), 4 * made_, 1}, parts_.data(), samples * fields_, 4 * made_, dim_,
         {}, scratch_);
}

// The weights of one head, into shares_: a row for each key. `sample` begins with its query.
void FieldAttention::shares(const float* sample, std::size_t head) {
    const std::size_t stride = 4 * made_;
    const float* query = sample + head * head_dim_;
    turn_padded(query, stride, fields_, head_dim_, padded_, turned_.data());
    product(query + made_, stride, 1, fields_, head_dim_, turned_.data(), padded_, shares_.data(), padded_,
            padded_);
    softmax(shares_.data(), fields_, padded_, scale_);
}

void FieldAttention::forward(const float* fields, std::size_t samples, const float* weight, float* out) {
    const std::size_t stride = 4 * made_;
    turn(weight, dim_, stride, dim_, weight_.data(), stride);
    for (std::size_t begin = 0; begin < samples; begin += kSamples) {
        const std::size_t count = std::min(kSamples, samples - begin);
        project(fields + begin * fields_ * dim_, count);
        for (std::size_t b = 0; b < count; ++b) {
            const float* sample = parts_.data() + b * fields_ * stride;
            float* to = out + (begin + b) * fields_ * made_;
            for (std::size_t head = 0; head < heads_; ++head) {
                shares(sample, head);
                product(shares_.data(), 1, padded_, fields_, fields_, sample + 2 * made_ + head * head_dim_,
                        stride, to + head * head_dim_, made_, head_dim_);
            }
            for (std::size_t i = 0; i < fields_; ++i) {
                const float* __restrict past = sample + i * stride + 3 * made_;
                float* __restrict row = to + i * made_;
                for (std::size_t a = 0; a < made_; ++a) {
                    const float sum = row[a] + past[a];
                    row[a] = sum < 0.0f ? 0.0f : sum;  // NaN stays NaN
                }
            }
        }
    }
}

// Gradients of one sample's queries, keys, values and ways past.
void FieldAttention::sample_back(const float* sample, const float* out, const float* grad_out, float* grad) {
    const std::size_t stride = 4 * made_;
    for (std::size_t i = 0; i < fields_; ++i) {
        const float* __restrict o = out + i * made_;
        const float* __restrict g = grad_out + i * made_;
        float* __restrict past = grad + i * stride + 3 * made_;
        for (std::size_t a = 0; a < made_; ++a) past[a] = o[a] > 0.0f ? g[a] : 0.0f;
    }
    for (std::size_t head = 0; head < heads_; ++head) {
        const std::size_t at = head * head_dim_;
        const float *query = sample + at, *key = query + made_, *value = key + made_;
        const float* attended = grad + 3 * made_ + at;
        shares(sample, head);
        // values
        product(shares_.data(), padded_, 1, fields_, fields_, attended, stride, grad + 2 * made_ + at, stride,
                head_dim_);
        // weights
        turn_padded(attended, stride, fields_, head_dim_, padded_, turned_.data());
        product(value, stride, 1, fields_, head_dim_, turned_.data(), padded_, back_.data(), padded_,
                padded_);
        for (std::size_t v = 0; v < padded_; v += kLanes) {
            const float* share = shares_.data() + v;
            float* column = back_.data() + v;
            Vector mean = {};
            for (std::size_t j = 0; j < fields_; ++j)
                mean += load(share + j * padded_) * load(column + j * padded_);
            for (std::size_t j = 0; j < fields_; ++j)
                store(column + j * padded_,
                      load(share + j * padded_) * (load(column + j * padded_) - mean) * scale_);
        }
        // queries and keys
        product(back_.data(), 1, padded_, fields_, fields_, key, stride, grad + at, stride, head_dim_);
        product(back_.data(), padded_, 1, fields_, fields_, query, stride, grad + made_ + at, stride,
                head_dim_);
    }
}

void FieldAttention::backward(const float* fields, std::size_t samples, const float* weight, const float* out,
                              const float* grad_out, float* grad_weight, float* grad_fields) {
    const std::size_t stride = 4 * made_;
    turn(weight, dim_, stride, dim_, weight_.data(), stride);
    std::fill_n(grad_weight, stride * dim_, 0.0f);
    for (std::size_t begin = 0; begin < samples; begin += kSamples) {
        const std::size_t count = std::min(kSamples, samples - begin), rows = count * fields_;
        const float* from = fields + begin * fields_ * dim_;
        project(from, count);
        for (std::size_t b = 0; b < count; ++b) {
            const std::size_t at = (begin + b) * fields_ * made_;
            sample_back(parts_.data() + b * fields_ * stride, out + at, grad_out + at,
                        grads_.data() + b * fields_ * stride);
        }
        gemm({grads_.data(), stride, 1}, {weight, dim_, 1}, grad_fields + begin * fields_ * dim_, rows, dim_,
             stride, {}, scratch_);
        gemm({grads_.data(), 1, stride}, {from, dim_, 1}, grad_weight_.data(), stride, dim_, rows, {},
             scratch_);
        for (std::size_t i = 0; i < stride * dim_; ++i) grad_weight[i] += grad_weight_[i];
    }
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
