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

/// Sums over batches, for example of losses, correct answers and samples. The sums are on the device in fp64, so `add`
/// does not wait for the device; `over_ranks` adds the sums of all ranks. One thread at a time may use an object.
///
///     fsdp::RunningSums sums(3, device);
///     sums.add({loss_sum, correct, samples});         // scalars, of any dtype
///     const auto total = sums.over_ranks();           // the same on every rank
///     const double accuracy = total[1] / total[2];
class RunningSums {
 public:
  /// Makes `count` sums on `device`, which begin at 0.
  RunningSums(int64_t count, c10::Device device);

  /// Adds one scalar to each sum. Throws UsageError unless `values` has one scalar per sum.
  void add(const std::vector<at::Tensor>& values);
  /// Returns the sums over the ranks of `group` (if null, the default process group). Collective. Throws what
  /// all_reduce throws.
  [[nodiscard]] std::vector<double> over_ranks(const std::shared_ptr<ProcessGroup>& group = nullptr) const;

 private:
  at::Tensor sums_;
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
