#pragma once
/// \file
/// Questions about one sharded parameter. Ordinary tensors are answered as parameters of one rank.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fsdp {

/// The rows (indices of dim 0) of a parameter that this rank holds.
struct LocalRowRange {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const LocalRowRange&) const = default;
};

/// The sizes of the whole parameter.
std::vector<int64_t> global_sizes(const at::Tensor& parameter);
LocalRowRange local_rows(const at::Tensor& parameter);

/// The whole parameter as a new tensor without autograd. Collective.
at::Tensor full_tensor(const at::Tensor& parameter);
/// The whole gradient as a new tensor; undefined if the parameter has none. Collective.
at::Tensor full_grad(const at::Tensor& parameter);

}  // namespace fsdp
