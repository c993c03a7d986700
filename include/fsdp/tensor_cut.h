#pragma once
/// \file
/// Parameters of which each rank of an axis has a part.

#include <fsdp/process_group.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// How the ranks of a tensor axis cut a parameter: rank r of N has part r of N equal ones along `dim`.
struct TensorCut {
  /// The ranks that have a part each.
  std::shared_ptr<ProcessGroup> axis = nullptr;
  /// 0 or 1.
  int64_t dim = 0;
  /// So many matrices lie one behind another along dim 0, and each of them is cut: 3 for queries, keys and values in
  /// one weight. 1 where `dim` is 1.
  int64_t fused = 1;
};

/// Layers that have parts of parameters derive from this, beside torch::nn::Module, and say so: then `fully_shard`
/// knows, clipping and norms count each element once over the axis, and checkpoints have whole tensors, which another
/// number of ranks can load. A parameter without a cut is taken to be the same on every rank of the axis.
///
///     struct Part : torch::nn::Module, fsdp::TensorParallelLayer {
///       std::optional<fsdp::TensorCut> cut_of(const std::string& parameter) const override {
///         return parameter == "weight" ? std::optional<fsdp::TensorCut>({axis, 0}) : std::nullopt;
///       }
///     };
class TensorParallelLayer {
 public:
  virtual ~TensorParallelLayer() = default;
  /// Of the module's own parameter with this name; none: every rank has all of it. Not collective.
  virtual std::optional<TensorCut> cut_of(const std::string& parameter) const = 0;
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
