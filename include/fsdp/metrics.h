#pragma once
/// \file
/// Metrics over the batches of all ranks.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <fsdp/process_group.h>

#include <cstdint>
#include <memory>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup observing
/// \{

/// Sums over batches, e.g. of losses, right answers and samples. They stay on the device, so that adding to them waits
/// for nothing, until all ranks ask for the sums over all of them. Summed in fp64. Thread safety: one thread at a time.
///
///     fsdp::RunningSums sums(3, device);
///     sums.add({loss_sum, correct, samples});         // scalars, of any dtype
///     const auto total = sums.over_ranks();           // on every rank the same
///     const double accuracy = total[1] / total[2];
class RunningSums {
 public:
  /// `count` sums of 0 on `device`.
  RunningSums(int64_t count, c10::Device device);

  /// Adds a scalar to each of the sums. Throws UsageError for another number of them.
  void add(const std::vector<at::Tensor>& values);
  /// The sums over the ranks of `group` (null: the default one). Collective. Throws what all_reduce throws.
  [[nodiscard]] std::vector<double> over_ranks(const std::shared_ptr<ProcessGroup>& group = nullptr) const;

 private:
  at::Tensor sums_;
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
