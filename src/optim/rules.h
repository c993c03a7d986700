#pragma once
/// \file
/// What each optimizer does to an element. Numbers only, no tensors.

#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>

namespace fsdp::optim {

// The options of a step, as public headers name them, and what follows from the step count.

struct AdamRule {
  double lr, beta1, beta2, eps, weight_decay;
  bool amsgrad;
  /// AdamW: the decay is none of the gradient's.
  bool is_decoupled;
  int64_t step;
  /// 1 - beta1^step, 1 - beta2^step
  double correction1, correction2;
};
struct SgdRule {
  double lr, momentum, dampening, weight_decay;
  bool nesterov;
  /// The momentum has no past.
  bool is_first;
};
struct RmspropRule {
  double lr, alpha, eps, weight_decay, momentum;
  bool centered;
};
struct AdagradRule {
  /// That of this step.
  double lr, eps, weight_decay;
};
struct AdadeltaRule {
  double lr, rho, eps, weight_decay;
};
using Rule = std::variant<AdamRule, SgdRule, RmspropRule, AdagradRule, AdadeltaRule>;

/// The most that a rule keeps of an element.
inline constexpr size_t kMostStates = 3;

/// Elements that lie one behind the other. T: float or double.
template <class T>
struct Block {
  T* rows;
  const T* gradient;
  /// In the order of `Kind::kept`.
  std::array<T*, kMostStates> states;
  int64_t count;
  /// Of the gradient.
  T factor;
};

/// One step of every element, in T's precision, the operations of each in the same order wherever it lies. None of the
/// memory overlaps.
template <class T>
void update_block(const Block<T>& block, const Rule& rule);

}  // namespace fsdp::optim
