#pragma once
/// \file
/// Interface of layers whose parameters are split over the ranks of a tensor-parallel axis.

#include <fsdp/process_group.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// Description of how the ranks of a tensor-parallel axis split a parameter: `dim` of the whole tensor is split into N
/// equal parts, and rank r of N holds part r.
struct TensorCut {
  /// Ranks that hold one part each. All layers of a model must have the same axis, and `fully_shard` must shard their
  /// rows over other axes.
  std::shared_ptr<ProcessGroup> axis = nullptr;
  /// Dim that is split, 0 or 1.
  int64_t dim = 0;
  /// Number of matrices that are stacked along dim 0 and split separately, for example 3 for queries, keys and values
  /// in one weight. Must be 1 if `dim` is 1.
  int64_t fused = 1;
};

/// Base class of layers whose parameters are split over an axis. Such a layer derives from this class as well as from
/// torch::nn::Module and implements `cut_of`, which `fully_shard` calls. Clipping and norms then count each element
/// once over the axis, a GradScaler skips a step on all ranks of the axis, and checkpoints have whole tensors, which
/// another number of ranks can load. The library assumes that a parameter without a cut is the same on every rank of
/// the axis.
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
