#include "optim/rules.h"

#include <cmath>

namespace fsdp::optim {
namespace {

// Functions with FSDP_WIDE_VECTORS are compiled for SIMD vectors of 256 bits. for_each calls them if the processor has
// such vectors. With vectors of 128 bits, which every x86-64 processor has, square roots and quotients take longer than
// memory accesses. Both variants apply the same operations to an element, so the results have the same bits.
#if defined(__x86_64__)
#define FSDP_WIDE_VECTORS __attribute__((target("avx2"), flatten))
bool has_wide_vectors() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}
#else
#define FSDP_WIDE_VECTORS
bool has_wide_vectors() { return false; }
#endif

// Calls `step` with the parameter, the gradient and the `States` states of each element. __restrict tells the compiler
// that the memory of the tensors does not overlap, so it can vectorise the loop. clang ignores __restrict on local
// pointers and needs the pragma.
template <size_t States, class T, class Step>
inline void step_each(const Block<T>& block, const Step& step) {
  T* __restrict rows = block.rows;
  const T* __restrict gradients = block.gradient;
  T *__restrict first = block.states[0], *__restrict second = block.states[1], *__restrict third = block.states[2];
  const T factor = block.factor;
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#endif
  for (int64_t i = 0; i < block.count; ++i) {
    const T gradient = gradients[i] * factor;
    if constexpr (States == 0) step(rows[i], gradient);
    if constexpr (States == 1) step(rows[i], gradient, first[i]);
    if constexpr (States == 2) step(rows[i], gradient, first[i], second[i]);
    if constexpr (States == 3) step(rows[i], gradient, first[i], second[i], third[i]);
  }
}

template <size_t States, class T, class Step>
FSDP_WIDE_VECTORS void step_each_wide(const Block<T>& block, const Step& step) {
  step_each<States>(block, step);
}

template <size_t States, class T, class Step>
void for_each(const Block<T>& block, const Step& step) {
  if (has_wide_vectors()) return step_each_wide<States>(block, step);
  step_each<States>(block, step);
}

template <class T>
void update(const Block<T>& block, const AdamRule& rule) {
  const auto beta1 = static_cast<T>(rule.beta1), rest1 = static_cast<T>(1 - rule.beta1),
             beta2 = static_cast<T>(rule.beta2), rest2 = static_cast<T>(1 - rule.beta2),
             eps = static_cast<T>(rule.eps), step_size = static_cast<T>(rule.lr / rule.correction1),
             root = static_cast<T>(1 / std::sqrt(rule.correction2)),
             kept = static_cast<T>(rule.is_decoupled ? 1 - rule.lr * rule.weight_decay : 1),
             decay = static_cast<T>(rule.is_decoupled ? 0 : rule.weight_decay);
  const auto average = [=](T p, T gradient, T& m, T& v) {
    gradient += decay * p;
    m = beta1 * m + rest1 * gradient;
    v = beta2 * v + rest2 * (gradient * gradient);
  };
  const auto move = [=](T& p, T m, T v) { p = kept * p - step_size * m / (std::sqrt(v) * root + eps); };
  if (rule.amsgrad)
    return for_each<3>(block, [=](T& p, T gradient, T& m, T& v, T& largest) {
      average(p, gradient, m, v);
      largest = v <= largest ? largest : v;  // NaN if v is NaN, unlike std::max
      move(p, m, largest);
    });
  for_each<2>(block, [=](T& p, T gradient, T& m, T& v) {
    average(p, gradient, m, v);
    move(p, m, v);
  });
}

template <class T>
void update(const Block<T>& block, const SgdRule& rule) {
  const auto lr = static_cast<T>(rule.lr), decay = static_cast<T>(rule.weight_decay),
             momentum = static_cast<T>(rule.momentum), kept = static_cast<T>(rule.is_first ? 0 : rule.momentum),
             added = static_cast<T>(rule.is_first ? 1 : 1 - rule.dampening);
  if (rule.momentum == 0)
    return for_each<0>(block, [=](T& p, T gradient) { p -= lr * (gradient + decay * p); });
  if (rule.nesterov)
    return for_each<1>(block, [=](T& p, T gradient, T& velocity) {
      gradient += decay * p;
      velocity = kept * velocity + added * gradient;
      p -= lr * (gradient + momentum * velocity);
    });
  for_each<1>(block, [=](T& p, T gradient, T& velocity) {
    velocity = kept * velocity + added * (gradient + decay * p);
    p -= lr * velocity;
  });
}

template <class T>
void update(const Block<T>& block, const RmspropRule& rule) {
  const auto lr = static_cast<T>(rule.lr), alpha = static_cast<T>(rule.alpha), rest = static_cast<T>(1 - rule.alpha),
             eps = static_cast<T>(rule.eps), decay = static_cast<T>(rule.weight_decay),
             momentum = static_cast<T>(rule.momentum);
  const auto average = [=](T p, T& gradient, T& square) {
    gradient += decay * p;
    square = alpha * square + rest * (gradient * gradient);
    return square;
  };
  const auto centered_average = [=](T p, T& gradient, T& square, T& mean) {
    average(p, gradient, square);
    mean = alpha * mean + rest * gradient;
    return square - mean * mean;
  };
  const auto scaled = [=](T gradient, T variance) { return gradient / (std::sqrt(variance) + eps); };
  const bool has_momentum = rule.momentum > 0;
  if (rule.centered && has_momentum)
    return for_each<3>(block, [=](T& p, T gradient, T& square, T& mean, T& buffer) {
      const T variance = centered_average(p, gradient, square, mean);
      buffer = momentum * buffer + scaled(gradient, variance);
      p -= lr * buffer;
    });
  if (rule.centered)
    return for_each<2>(block, [=](T& p, T gradient, T& square, T& mean) {
      const T variance = centered_average(p, gradient, square, mean);
      p -= lr * scaled(gradient, variance);
    });
  if (has_momentum)
    return for_each<2>(block, [=](T& p, T gradient, T& square, T& buffer) {
      const T variance = average(p, gradient, square);
      buffer = momentum * buffer + scaled(gradient, variance);
      p -= lr * buffer;
    });
  for_each<1>(block, [=](T& p, T gradient, T& square) {
    const T variance = average(p, gradient, square);
    p -= lr * scaled(gradient, variance);
  });
}

template <class T>
void update(const Block<T>& block, const AdagradRule& rule) {
  const auto lr = static_cast<T>(rule.lr), eps = static_cast<T>(rule.eps), decay = static_cast<T>(rule.weight_decay);
  for_each<1>(block, [=](T& p, T gradient, T& sum) {
    gradient += decay * p;
    sum += gradient * gradient;
    p -= lr * gradient / (std::sqrt(sum) + eps);
  });
}

template <class T>
void update(const Block<T>& block, const AdadeltaRule& rule) {
  const auto lr = static_cast<T>(rule.lr), rho = static_cast<T>(rule.rho), rest = static_cast<T>(1 - rule.rho),
             eps = static_cast<T>(rule.eps), decay = static_cast<T>(rule.weight_decay);
  for_each<2>(block, [=](T& p, T gradient, T& square, T& change) {
    gradient += decay * p;
    square = square * rho + rest * gradient * gradient;
    const T delta = std::sqrt(change + eps) / std::sqrt(square + eps) * gradient;
    change = change * rho + rest * delta * delta;
    p -= lr * delta;
  });
}

}  // namespace

template <class T>
void update_block(const Block<T>& block, const Rule& rule) {
  std::visit([&](const auto& of_kind) { update(block, of_kind); }, rule);
}
template void update_block<float>(const Block<float>&, const Rule&);
template void update_block<double>(const Block<double>&, const Rule&);

}  // namespace fsdp::optim
