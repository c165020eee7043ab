// A sample's D values are D rows. Written out, the products of all maps and slots are the widest matrix here,
// and mixing them into a few maps would leave most of the gemm's tiles unused. So forward mixes first: the
// matrix product of a row's slots with the weights gives a number for each pair of maps h and m, and those
// times x_h are summed. Backward needs the products once, for the weights' gradients; the gradients of the
// products, made by one matrix product, give those of both of their factors.
//
// All of it goes block by block of samples, so that these matrices never leave the second-level cache.
#include "sparsefleet/interactions.h"

#include <algorithm>

#include "sparsefleet/turn.h"
#include "sparsefleet/vectors.h"

namespace sparsefleet::SPARSEFLEET_LEVEL {

using namespace vectors;

namespace {

constexpr std::size_t kBlockRows = 96;

// made [M] = bias + the sum of x_h sums[h, :]. Four sums at a time: an addition takes four cycles.
void weigh(const float* x, std::size_t taken, const float* sums, std::size_t maps, const float* bias,
           float* made) {
    for (std::size_t m = 0; m < maps; m += kLanes) {
        const std::size_t left = maps - m;
        const auto at = [&](std::size_t h) { return load_up_to(sums + h * maps + m, left); };
        Vector parts[4] = {load_up_to(bias + m, left)};
        std::size_t h = 0;
        for (; h + 4 <= taken; h += 4)
#pragma GCC unroll 4
            for (std::size_t k = 0; k < 4; ++k) parts[k] += x[h + k] * at(h + k);
        for (; h < taken; ++h) parts[0] += x[h] * at(h);
        store_up_to(made + m, (parts[0] + parts[1]) + (parts[2] + parts[3]), left);
    }
}

void add(const float* __restrict from, std::size_t count, float* __restrict to) {
    for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
}

}  // namespace

Interactions::Interactions(std::size_t samples, std::size_t slots, std::size_t dim,
                           std::vector<std::size_t> maps)
    : samples_(samples), slots_(slots), dim_(dim), maps_(std::move(maps)) {
    block_ = std::max<std::size_t>(1, kBlockRows / dim_);
    const std::size_t rows = block_ * dim_;
    std::size_t most_sums = 0, most_products = 0, most_weights = 0, most = slots_;
    for (std::size_t l = 0; l < maps_.size(); ++l) {
        const std::size_t h = taken(l), m = maps_[l];
        width_ += m;
        most = std::max(most, m);
        most_sums = std::max({most_sums, h * m, h * slots_});
        most_products = std::max(most_products, h * slots_);
        most_weights = std::max(most_weights, m * h * slots_);
        made_.emplace_back(samples_ * dim_ * m);
        laid_out_.emplace_back(slots_ * h * m);
    }
    first_.resize(rows * slots_);
    grad_first_.resize(rows * slots_);
    sums_.resize(rows * most_sums);
    products_.resize(rows * most_products);
    grad_made_.resize(rows * most);
    grad_taken_.resize(rows * most);
    grad_weight_.resize(most_weights);
    grad_bias_.resize(most);
}

void Interactions::turn_block(const float* vectors, std::size_t samples) {
    for (std::size_t b = 0; b < samples; ++b)
        turn(vectors + b * slots_ * dim_, dim_, slots_, dim_, first_.data() + b * dim_ * slots_, slots_);
}

void Interactions::forward(const float* vectors, const std::vector<const float*>& weights,
                           const std::vector<const float*>& biases, float* out) {
    for (std::size_t l = 0; l < maps_.size(); ++l) {
        const std::size_t h = taken(l), m = maps_[l];
        turn(weights[l], h * slots_, m, h * slots_, grad_weight_.data(), m);  // [H * S, M]
        for (std::size_t i = 0; i < h; ++i)
            for (std::size_t s = 0; s < slots_; ++s)
                std::copy_n(grad_weight_.data() + (i * slots_ + s) * m, m,
                            laid_out_[l].data() + (s * h + i) * m);
    }
    for (std::size_t begin = 0; begin < samples_; begin += block_) {
        const std::size_t count = std::min(block_, samples_ - begin), rows = count * dim_;
        turn_block(vectors + begin * slots_ * dim_, count);
        const float* x = first_.data();
        float* to = out + begin * width_;
        for (std::size_t l = 0; l < maps_.size(); ++l) {
            const std::size_t h = taken(l), m = maps_[l];
            gemm({first_.data(), slots_, 1}, {laid_out_[l].data(), h * m, 1}, sums_.data(), rows, h * m,
                 slots_, {}, scratch_);
            float* made = made_[l].data() + begin * dim_ * m;
            for (std::size_t r = 0; r < rows; ++r)
                weigh(x + r * h, h, sums_.data() + r * h * m, m, biases[l], made + r * m);
            for (std::size_t b = 0; b < count; ++b) {
                std::copy_n(made + b * dim_ * m, m, to + b * width_);
                for (std::size_t d = 1; d < dim_; ++d) add(made + (b * dim_ + d) * m, m, to + b * width_);
            }
            x = made;
            to += m;
        }
    }
    went_forward_ = true;
}

// From the products' gradients, which are in sums_: the products themselves, and the gradients of x (written)
// and of the slots' vectors (added).
void Interactions::multiply_out(const float* x, std::size_t taken, std::size_t rows, float* grad_x) {
    for (std::size_t r = 0; r < rows; ++r) {
        const float* grads = sums_.data() + r * taken * slots_;
        float* products = products_.data() + r * taken * slots_;
        std::fill_n(grad_x + r * taken, taken, 0.0f);
        for (std::size_t s = 0; s < slots_; s += kLanes) {
            const std::size_t left = slots_ - s;
            const Vector first = load_up_to(first_.data() + r * slots_ + s, left);
            Vector grad_first = load_up_to(grad_first_.data() + r * slots_ + s, left);
            for (std::size_t h = 0; h < taken; ++h) {
                const Vector grad = load_up_to(grads + h * slots_ + s, left);
                const float weight = x[r * taken + h];
                store_up_to(products + h * slots_ + s, weight * first, left);
                grad_first += weight * grad;
                grad_x[r * taken + h] += total(grad * first);
            }
            store_up_to(grad_first_.data() + r * slots_ + s, grad_first, left);
        }
    }
}

void Interactions::backward(const float* vectors, const std::vector<const float*>& weights,
                            const float* grad_out, const std::vector<float*>& grad_weights,
                            const std::vector<float*>& grad_biases, float* grad_vectors) {
    for (std::size_t l = 0; l < maps_.size(); ++l) {
        std::fill_n(grad_weights[l], maps_[l] * taken(l) * slots_, 0.0f);
        std::fill_n(grad_biases[l], maps_[l], 0.0f);
    }
    for (std::size_t begin = 0; begin < samples_; begin += block_) {
        const std::size_t count = std::min(block_, samples_ - begin), rows = count * dim_;
        turn_block(vectors + begin * slots_ * dim_, count);
        std::fill_n(grad_first_.data(), rows * slots_, 0.0f);
        const float* from = grad_out + begin * width_ + width_;
        for (std::size_t l = maps_.size(); l-- > 0;) {
            const std::size_t h = taken(l), m = maps_[l];
            from -= m;
            // What the next layer gave back, and what comes from the sum over the D values.
            if (l + 1 == maps_.size())
                std::fill_n(grad_made_.data(), rows * m, 0.0f);
            else
                std::swap(grad_made_, grad_taken_);
            for (std::size_t r = 0; r < rows; ++r)
                add(from + r / dim_ * width_, m, grad_made_.data() + r * m);
            gemm({grad_made_.data(), m, 1}, {weights[l], h * slots_, 1}, sums_.data(), rows, h * slots_, m,
                 {}, scratch_, grad_bias_.data());
            add(grad_bias_.data(), m, grad_biases[l]);
            multiply_out(l ? made_[l - 1].data() + begin * dim_ * h : first_.data(), h, rows,
                         grad_taken_.data());
            gemm({grad_made_.data(), 1, m}, {products_.data(), h * slots_, 1}, grad_weight_.data(), m,
                 h * slots_, rows, {}, scratch_);
            add(grad_weight_.data(), m * h * slots_, grad_weights[l]);
        }
        add(grad_taken_.data(), rows * slots_, grad_first_.data());
        for (std::size_t b = 0; b < count; ++b)
            turn(grad_first_.data() + b * dim_ * slots_, slots_, dim_, slots_,
                 grad_vectors + (begin + b) * slots_ * dim_, dim_);
    }
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
