#pragma once
/// \file
/// AdamW in one pass over each parameter, with the arithmetic of torch.optim.AdamW(lr=1e-3, fused=True).

#include <ATen/core/Tensor.h>

#include <vector>

namespace bench {

class FusedAdamW {
 public:
  /// Parameters are whole or rows.
  explicit FusedAdamW(std::vector<at::Tensor> parameters);

  /// Parameters without a gradient stay as they are.
  void step();
  /// Drops the gradients.
  void zero_grad();
  int64_t state_bytes() const;

 private:
  struct Slot {
    at::Tensor parameter, first_moment, second_moment, steps;
  };
  std::vector<Slot> slots_;
};

}  // namespace bench
