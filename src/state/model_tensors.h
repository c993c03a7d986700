#pragma once
/// \file
/// The tensors of a model as files have them: the neutral list of parameters, and what is not sharded.

#include <fsdp/process_group.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "api/module_tree.h"
#include "layout/planes.h"
#include "state/format/manifest.h"

namespace fsdp::state {

/// Which rows of a tensor a rank has.
struct OwnRows {
  /// Of the whole one.
  std::vector<int64_t> sizes;
  /// How many of its first dims its rows take together, see ParamSlot::joined_dims.
  size_t joined_dims = 1;
  /// What this rank has, and what of that it writes. Of a part of a tensor they are rows of the part.
  layout::RowRange rows, share;
  /// Which part of the whole tensor its rows are of, if the ranks of a tensor axis have parts.
  std::optional<TensorCut> cut = {};

  int64_t row_numel() const;
  /// What this rank has, in row-major order.
  ElementRange elements() const { return {rows.first * row_numel(), rows.count * row_numel()}; }

  /// Consecutive rows: their first one here, and in the whole tensor.
  struct Run {
    int64_t first, first_of_whole, count;
  };
  /// Where some of this rank's rows lie in the whole tensor: a run for each of the fused matrices, which may have no
  /// rows. Of columns, rows are numbered as the whole tensor's.
  std::vector<Run> runs_of(layout::RowRange some) const;
};

/// A parameter or buffer, one that has several names once.
struct ModelTensor : OwnRows {
  /// In the order of the tree; files have the first.
  std::vector<std::string> names;
  /// The module's; shows this rank's rows.
  at::Tensor tensor;
  /// That which has it, in a pipeline.
  int stage = 0;

  const std::string& name() const { return names.front(); }
};

struct ModelTensors {
  std::vector<ModelTensor> all;
  /// Those that have the same rows or rows of the same tensors, all ranks where some have parts of tensors; null for a
  /// program without ranks.
  std::shared_ptr<ProcessGroup> ranks;
  /// By the module's tensor: its place in `all`.
  std::unordered_map<const at::TensorImpl*, size_t> places;

  /// Whether they are those of this rank's stages of a pipeline. Then all ranks of the program make one checkpoint, and
  /// join_stages says what of it is whose.
  bool are_of_stages = false;
  /// By name, what other stages have: the parameter group of their optimizer, none for what has no optimizer.
  std::map<std::string, std::optional<size_t>> elsewhere = {};
};

/// Whether an operation can put parts of tensors together; one that cannot refuses them.
enum class Parts : uint8_t { kRefused, kTaken };

/// How tensors are cut, those that are.
using TensorCuts = std::unordered_map<const at::TensorImpl*, TensorCut>;

/// Throws UsageError in a scope or a backward, for groups over different ranks and for what is on the meta device.
ModelTensors tensors_of(const ModuleNode& tree, const std::string& operation, Parts parts = Parts::kRefused);
/// `stages`: those of a pipeline, one for each name; null: it is no pipeline.
ModelTensors tensors_of(const std::vector<runtime::NamedParameter>& named, const std::string& operation,
                        const TensorCuts& cuts = {}, const std::vector<int>* stages = nullptr);
/// Of this rank's stages of a pipeline, by their numbers.
ModelTensors tensors_of(const std::map<int, std::shared_ptr<const ModuleNode>>& stages, const std::string& operation);

/// `rows` rows of `values`, from `first` on, contiguous and on the CPU. `values`: this rank's rows of a parameter, or
/// what lies as they do.
at::Tensor on_cpu(const at::Tensor& values, int64_t first, int64_t rows);

}  // namespace fsdp::state
