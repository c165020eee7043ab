// Update rules: how a gradient changes a row.
//
// Legend: w values, g gradient, D values in a row, s the row's state. State is laid out in segments of D
// floats, one after the other (Adam: m then v); row-wise Adagrad has a single float.
//
//   kind               state      hyper[0..]                update (g' = g + weight_decay * w)
//   0 SGD              -          weight_decay              w -= lr g'
//   1 Adagrad          a          eps, weight_decay         a += g'^2; w -= lr g' / (sqrt(a) + eps)
//   2 row-wise Adagrad one float  eps, weight_decay         a += mean(g'^2); w -= lr g' / (sqrt(a) + eps)
//   3 Adam             m, v       b1, b2, eps, weight_decay m += (1-b1)(g'-m); v = b2 v + (1-b2) g'^2;
//                                                           w -= lr/(1-b1^t) m / (sqrt(v)/sqrt(1-b2^t) + eps)
//   4 FTRL-Proximal    z, n       l1, l2, beta              z += g - (sqrt(n+g^2)-sqrt(n))/lr w; n += g^2;
//                                                           w = |z| <= l1 ? 0
//                                                             : (sign(z) l1 - z) / ((beta+sqrt(n))/lr + l2)
//
// kind + 16 is the same rule for rows that note what others know of them: told, D floats behind the rule's
// own state. That is for a trainer's own copy of rows (RowTable::take, rebase): w - told is what nobody else
// knows of yet. A step changes w alone, so that noting costs it nothing.
//
// All arithmetic on rows is IEEE float32 in the order written in rules.cpp, compiled without contraction to
// fused multiply-adds, but that denormals are zero, operands and results (float_mode.h; the caller sets it):
// the bits are the same on every machine, in a row and in a block, and in the NumPy twin.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsefleet::SPARSEFLEET_LEVEL {

enum class RuleKind : int { kSgd = 0, kAdagrad = 1, kRowwiseAdagrad = 2, kAdam = 3, kFtrl = 4 };

inline constexpr int kNoting = 16;  // added to a kind

inline constexpr std::size_t kHyperCount = 6;

// One step of a rule: its constants, made ready once and then applied to any number of rows.
class RuleStep {
  public:
    // `step` counts the updates of the table, this one included (first: 1). Throws std::invalid_argument for
    // a kind that does not exist or step 0.
    RuleStep(int kind, double lr, const double (&hyper)[kHyperCount], std::uint64_t step);

    std::size_t state_width(std::size_t dim) const { return own_width(dim) + (notes_ ? dim : 0); }
    bool notes() const { return notes_; }

    // rows[i] points at the values of a row, its state right behind them; grads[i] at its gradient.
    void update_rows(float* const* rows, const float* const* grads, std::size_t count, std::size_t dim) const;

    // A block of n values with its state elsewhere. `state` holds the state of the whole block, whose
    // segments are `segment` floats apart; values, state and grads point at the first element to update.
    void update_block(float* values, float* state, const float* grads, std::size_t n,
                      std::size_t segment) const;

    // Others have changed the values. Rows of a rule that notes become there[i] plus w - told, and told
    // becomes there[i]; a block grows by deltas. State stays, but where values are made of it alone: then it
    // becomes what gives them.
    void rebase_rows(float* const* rows, const float* const* there, std::size_t count, std::size_t dim) const;
    void shift_block(float* values, float* state, const float* deltas, std::size_t n,
                     std::size_t segment) const;

    // True when elements do not depend on each other, so that a block may be updated piece by piece.
    bool elementwise() const { return kind_ != RuleKind::kRowwiseAdagrad; }

  private:
    template <typename Visitor>
    void visit(Visitor&& visitor) const;
    std::size_t own_width(std::size_t dim) const;  // without what is noted

    RuleKind kind_;
    bool notes_;
    double lr_;
    double hyper_[kHyperCount];
    double correction1_ = 1.0, correction2_ = 1.0;  // Adam: 1 - b^t
};

}  // namespace sparsefleet::SPARSEFLEET_LEVEL
