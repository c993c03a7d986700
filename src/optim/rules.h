#pragma once
/// \file
/// The update rules of the optimizers. The functions take pointers instead of tensors.

#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>

namespace fsdp::optim {

// A rule has the optimizer's options, under the names that torch::optim and AdadeltaOptions use, and values that depend
// on the step count.

struct AdamRule {
  double lr, beta1, beta2, eps, weight_decay;
  bool amsgrad;
  /// True for AdamW, which does not add weight decay to the gradient.
  bool is_decoupled;
  int64_t step;
  /// The bias corrections 1 - beta1^step and 1 - beta2^step.
  double correction1, correction2;
};
struct SgdRule {
  double lr, momentum, dampening, weight_decay;
  bool nesterov;
  /// True if the momentum buffer is new.
  bool is_first;
};
struct RmspropRule {
  double lr, alpha, eps, weight_decay, momentum;
  bool centered;
};
struct AdagradRule {
  /// `lr` is the learning rate of this step, after lr_decay.
  double lr, eps, weight_decay;
};
struct AdadeltaRule {
  double lr, rho, eps, weight_decay;
};
using Rule = std::variant<AdamRule, SgdRule, RmspropRule, AdagradRule, AdadeltaRule>;

/// Maximum number of state tensors of a rule.
inline constexpr size_t kMostStates = 3;

/// Pointers to `count` contiguous elements of each tensor. T is float or double.
template <class T>
struct Block {
  T* rows;
  const T* gradient;
  /// State tensors in the order of `Kind::kept`.
  std::array<T*, kMostStates> states;
  int64_t count;
  /// Factor by which the gradient is multiplied.
  T factor;
};

/// Applies one step to every element, in T's precision. An element's result does not depend on its place in memory. The
/// memory of the tensors must not overlap.
template <class T>
void update_block(const Block<T>& block, const Rule& rule);

}  // namespace fsdp::optim
