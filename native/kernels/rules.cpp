// Compiled with -ffp-contract=off (CMakeLists.txt): see rules.h on equal bits.
#include "sparsefleet/rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace sparsefleet::SPARSEFLEET_LEVEL {
namespace {

// Each rule: `operator()(w, s, g, n, segment)` updates n values; segment j of the state starts at s + j *
// segment.

struct Sgd {
    float lr, decay;
    void operator()(float* __restrict w, float*, const float* __restrict g, std::size_t n,
                    std::size_t) const {
        for (std::size_t i = 0; i < n; ++i) w[i] -= lr * (g[i] + decay * w[i]);
    }
};

struct Adagrad {
    float lr, eps, decay;
    void operator()(float* __restrict w, float* __restrict a, const float* __restrict g, std::size_t n,
                    std::size_t) const {
        for (std::size_t i = 0; i < n; ++i) {
            const float grad = g[i] + decay * w[i];
            a[i] += grad * grad;
            w[i] -= lr * grad / (std::sqrt(a[i]) + eps);
        }
    }
};

struct RowwiseAdagrad {
    float lr, eps, decay;
    void operator()(float* __restrict w, float* __restrict a, const float* __restrict g, std::size_t n,
                    std::size_t) const {
        double squares =
            0.0;  // in double and in order: the sum does not depend on how wide the machine's vectors are
        for (std::size_t i = 0; i < n; ++i) {
            const float grad = g[i] + decay * w[i];
            squares += static_cast<double>(grad) * static_cast<double>(grad);
        }
        *a += static_cast<float>(squares / static_cast<double>(n));
        const float scale = std::sqrt(*a) + eps;
        for (std::size_t i = 0; i < n; ++i) w[i] -= lr * (g[i] + decay * w[i]) / scale;
    }
};

struct Adam {
    float rate;          // lr / (1 - b1^t)
    float inverse_root;  // 1 / sqrt(1 - b2^t)
    float fresh1, beta2, fresh2, eps, decay;
    void operator()(float* __restrict w, float* __restrict m, const float* __restrict g, std::size_t n,
                    std::size_t segment) const {
        float* __restrict v = m + segment;
        for (std::size_t i = 0; i < n; ++i) {
            const float grad = g[i] + decay * w[i];
            const float mean = m[i] + fresh1 * (grad - m[i]);
            const float square = beta2 * v[i] + fresh2 * (grad * grad);
            m[i] = mean;
            v[i] = square;
            w[i] -= rate * mean / (std::sqrt(square) * inverse_root + eps);
        }
    }
};

struct Ftrl {
    float lr, l1, l2, beta;
    void operator()(float* __restrict w, float* __restrict z, const float* __restrict g, std::size_t n,
                    std::size_t segment) const {
        if (!(lr > 0.0f))
            return;  // a schedule that has come down to 0: the rule divides by lr, and nothing may move
        float* __restrict squares = z + segment;
        for (std::size_t i = 0; i < n; ++i) {
            const float grown = squares[i] + g[i] * g[i];
            const float root = std::sqrt(grown);
            const float sum = z[i] + (g[i] - (root - std::sqrt(squares[i])) / lr * w[i]);
            squares[i] = grown;
            z[i] = sum;
            const float shrunk = std::copysign(l1, sum) - sum;
            const float scale = (beta + root) / lr + l2;
            // scale is 0 only where beta, l2 and every gradient so far are 0: then z is 0 too and |z| <= l1.
            w[i] = std::fabs(sum) <= l1 ? 0.0f : shrunk / scale;
        }
    }
    // Somebody else has moved the value. The next step makes it of z alone, so z becomes what gives it. Where
    // l1 holds the value at 0, a target of a rounding error must not undo what z has gathered.
    void follow(float& w, float& z, float squares, float target) const {
        if (target != w && lr > 0.0f) {
            const float sum = target * ((beta + std::sqrt(squares)) / lr + l2);
            if (std::fabs(z) > l1 || std::fabs(sum) > l1 * 0x1p-10f)
                z = target == 0.0f ? std::copysign(l1, z) : -(sum + std::copysign(l1, target));
        }
        w = target;
    }
};

// Value i becomes target(i, what it is); all state but FTRL's stays as it is.
template <typename Rule, typename Target>
void follow_others(const Rule& rule, float* __restrict w, float* __restrict s, std::size_t n,
                   std::size_t segment, Target&& target) {
    for (std::size_t i = 0; i < n; ++i) {
        if constexpr (std::is_same_v<Rule, Ftrl>)
            rule.follow(w[i], s[i], s[segment + i], target(i, w[i]));
        else
            w[i] = target(i, w[i]);
    }
}

// A row becomes what others have of it plus what they were not told yet.
template <typename Rule, typename Width>
inline void rebase_row(const Rule& rule, float* __restrict w, float* __restrict told,
                       const float* __restrict there, Width width) {
    if constexpr (std::is_same_v<Rule, Ftrl>) {
        float *z = w + width, *squares = z + width;
        for (std::size_t d = 0; d < width; ++d)
            rule.follow(w[d], z[d], squares[d], there[d] + (w[d] - told[d]));
    } else {
        for (std::size_t d = 0; d < width; ++d) w[d] = there[d] + (w[d] - told[d]);
    }
    for (std::size_t d = 0; d < width; ++d) told[d] = there[d];
}

// The widths that people use get a loop of known length; the compiler unrolls it and leaves no remainder to
// test for. One more than a common width: rows that begin with the weight of a linear term.
template <typename F>
void with_dim(std::size_t dim, F&& f) {
    switch (dim) {
        case 1:
            f(std::integral_constant<std::size_t, 1>{});
            break;
        case 4:
            f(std::integral_constant<std::size_t, 4>{});
            break;
        case 8:
            f(std::integral_constant<std::size_t, 8>{});
            break;
        case 9:
            f(std::integral_constant<std::size_t, 9>{});
            break;
        case 10:
            f(std::integral_constant<std::size_t, 10>{});
            break;
        case 11:
            f(std::integral_constant<std::size_t, 11>{});
            break;
        case 12:
            f(std::integral_constant<std::size_t, 12>{});
            break;
        case 16:
            f(std::integral_constant<std::size_t, 16>{});
            break;
        case 17:
            f(std::integral_constant<std::size_t, 17>{});
            break;
        case 32:
            f(std::integral_constant<std::size_t, 32>{});
            break;
        case 64:
            f(std::integral_constant<std::size_t, 64>{});
            break;
        default:
            f(dim);
    }
}

}  // namespace

RuleStep::RuleStep(int kind, double lr, const double (&hyper)[kHyperCount], std::uint64_t step)
    : kind_(static_cast<RuleKind>(kind & ~kNoting)), notes_((kind & kNoting) != 0), lr_(lr) {
    if (kind < 0 || static_cast<int>(kind_) > static_cast<int>(RuleKind::kFtrl))
        throw std::invalid_argument("rule kind " + std::to_string(kind) + " does not exist");
    if (step == 0) throw std::invalid_argument("step must be 1 or above");
    for (std::size_t i = 0; i < kHyperCount; ++i) hyper_[i] = hyper[i];
    if (kind_ == RuleKind::kAdam) {
        correction1_ = 1.0 - std::pow(hyper[0], static_cast<double>(step));
        correction2_ = 1.0 - std::pow(hyper[1], static_cast<double>(step));
    }
}

std::size_t RuleStep::own_width(std::size_t dim) const {
    switch (kind_) {
        case RuleKind::kSgd:
            return 0;
        case RuleKind::kAdagrad:
            return dim;
        case RuleKind::kRowwiseAdagrad:
            return 1;
        case RuleKind::kAdam:
        case RuleKind::kFtrl:
            return 2 * dim;
    }
    return 0;
}

template <typename Visitor>
void RuleStep::visit(Visitor&& visitor) const {
    // A denormal constant is zero, said here: a compiler may compare the double instead, which is not.
    const auto f = [](double x) {
        const float value = static_cast<float>(x);
        return std::fabs(value) < std::numeric_limits<float>::min() ? 0.0f : value;
    };
    const double* h = hyper_;
    switch (kind_) {
        case RuleKind::kSgd:
            visitor(Sgd{f(lr_), f(h[0])});
            break;
        case RuleKind::kAdagrad:
            visitor(Adagrad{f(lr_), f(h[0]), f(h[1])});
            break;
        case RuleKind::kRowwiseAdagrad:
            visitor(RowwiseAdagrad{f(lr_), f(h[0]), f(h[1])});
            break;
        case RuleKind::kAdam:
            visitor(Adam{f(lr_ / correction1_), f(1.0 / std::sqrt(correction2_)), f(1.0 - h[0]), f(h[1]),
                         f(1.0 - h[1]), f(h[2]), f(h[3])});
            break;
        case RuleKind::kFtrl:
            visitor(Ftrl{f(lr_), f(h[0]), f(h[1]), f(h[2])});
            break;
    }
}

void RuleStep::update_rows(float* const* rows, const float* const* grads, std::size_t count,
                           std::size_t dim) const {
    visit([&](const auto& rule) {
        with_dim(dim, [&](auto width) {
            for (std::size_t i = 0; i < count; ++i) rule(rows[i], rows[i] + width, grads[i], width, width);
        });
    });
}

void RuleStep::rebase_rows(float* const* rows, const float* const* there, std::size_t count,
                           std::size_t dim) const {
    const std::size_t told_at = dim + own_width(dim);
    visit([&](const auto& rule) {
        with_dim(dim, [&](auto width) {
            for (std::size_t i = 0; i < count; ++i)
                rebase_row(rule, rows[i], rows[i] + told_at, there[i], width);
        });
    });
}

void RuleStep::update_block(float* values, float* state, const float* grads, std::size_t n,
                            std::size_t segment) const {
    visit([&](const auto& rule) { rule(values, state, grads, n, segment); });
}

void RuleStep::shift_block(float* values, float* state, const float* deltas, std::size_t n,
                           std::size_t segment) const {
    visit([&](const auto& rule) {
        follow_others(rule, values, state, n, segment,
                      [=](std::size_t i, float value) { return value + deltas[i]; });
    });
}

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
