#pragma once
/// \file
/// Parameters that are split over the ranks of a tensor-parallel axis.

#include <fsdp/process_group.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// How the ranks of a tensor axis split a parameter: `dim` of the whole tensor is split into N equal parts, and rank r
/// of N holds part r.
struct TensorCut {
  /// The ranks that hold a part each. All layers of a model have the same axis, and `fully_shard` shards their rows
  /// over other axes.
  std::shared_ptr<ProcessGroup> axis = nullptr;
  /// 0 or 1.
  int64_t dim = 0;
  /// The number of matrices stacked along dim 0, each of which is split separately: 3 for queries, keys and values in
  /// one weight. 1 where `dim` is 1.
  int64_t fused = 1;
};

/// Layers whose parameters are split over an axis derive from this as well as from torch::nn::Module, and implement
/// `cut_of`, which `fully_shard` queries. Clipping and norms then count each element once over the axis, a GradScaler
/// skips a step on all of its ranks, and checkpoints have whole tensors, which another number of ranks can load. A
/// parameter without a cut is taken to be the same on every rank of the axis.
///
///     struct Part : torch::nn::Module, fsdp::TensorParallelLayer {
///       std::optional<fsdp::TensorCut> cut_of(const std::string& parameter) const override {
///         return parameter == "weight" ? std::optional<fsdp::TensorCut>({axis, 0}) : std::nullopt;
///       }
///     };
class TensorParallelLayer {
 public:
  virtual ~TensorParallelLayer() = default;
  /// Returns how the module's own parameter of this name is split, or nullopt if every rank holds all of it. Not
  /// collective.
  virtual std::optional<TensorCut> cut_of(const std::string& parameter) const = 0;
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
