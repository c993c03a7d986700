#pragma once
/// \file
/// The tensors of a model as files have them: the neutral list of parameters, and what is not sharded.

#include <fsdp/process_group.h>

#include <memory>
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
  /// What this rank has, and what of that it writes.
  layout::RowRange rows, share;

  int64_t row_numel() const;
  /// What this rank has, in row-major order.
  ElementRange elements() const { return {rows.first * row_numel(), rows.count * row_numel()}; }
};

/// A parameter or buffer, one that has several names once.
struct ModelTensor : OwnRows {
  /// In the order of the tree; files have the first.
  std::vector<std::string> names;
  /// The module's; shows this rank's rows.
  at::Tensor tensor;

  const std::string& name() const { return names.front(); }
};

struct ModelTensors {
  std::vector<ModelTensor> all;
  /// Those that have the same rows or rows of the same tensors; null for a program without ranks.
  std::shared_ptr<ProcessGroup> ranks;
  /// By the module's tensor: its place in `all`.
  std::unordered_map<const at::TensorImpl*, size_t> places;
};

/// Throws UsageError in a scope or a backward, for groups over different ranks and for what is on the meta device.
ModelTensors tensors_of(const ModuleNode& tree, const std::string& operation);
ModelTensors tensors_of(const std::vector<runtime::NamedParameter>& named, const std::string& operation);

/// `rows` rows of `values`, from `first` on, contiguous and on the CPU. `values`: this rank's rows of a parameter, or
/// what lies as they do.
at::Tensor on_cpu(const at::Tensor& values, int64_t first, int64_t rows);

}  // namespace fsdp::state
