#pragma once
/// \file
/// The update rules of optimizers, on raw numbers instead of tensors.

#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>

namespace fsdp::optim {

// Options of a step, with the names of the public headers, and values that depend on the step count.

struct AdamRule {
  double lr, beta1, beta2, eps, weight_decay;
  bool amsgrad;
  /// AdamW: weight decay is not added to the gradient.
  bool is_decoupled;
  int64_t step;
  /// 1 - beta1^step, 1 - beta2^step
  double correction1, correction2;
};
struct SgdRule {
  double lr, momentum, dampening, weight_decay;
  bool nesterov;
  /// Whether the momentum buffer is new.
  bool is_first;
};
struct RmspropRule {
  double lr, alpha, eps, weight_decay, momentum;
  bool centered;
};
struct AdagradRule {
  /// `lr` is that of this step.
  double lr, eps, weight_decay;
};
struct AdadeltaRule {
  double lr, rho, eps, weight_decay;
};
using Rule = std::variant<AdamRule, SgdRule, RmspropRule, AdagradRule, AdadeltaRule>;

/// The maximum number of state tensors of a rule.
inline constexpr size_t kMostStates = 3;

/// Contiguous elements. T is float or double.
template <class T>
struct Block {
  T* rows;
  const T* gradient;
  /// In the order of `Kind::kept`.
  std::array<T*, kMostStates> states;
  int64_t count;
  /// Factor of the gradient.
  T factor;
};

/// Applies one step to every element, in T's precision. The operations of an element have the same order wherever it is
/// in memory. The memory of the tensors must not overlap.
template <class T>
void update_block(const Block<T>& block, const Rule& rule);

}  // namespace fsdp::optim
