#pragma once
/// \file
/// A model's tensors as checkpoints see them: sharded parameters, and tensors that are not sharded.

#include <fsdp/process_group.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "api/group_view.h"
#include "layout/planes.h"
#include "state/format/manifest.h"

namespace fsdp::state {

/// The rows of a tensor that a rank has.
struct OwnRows {
  /// Sizes of the whole tensor.
  std::vector<int64_t> sizes;
  /// Number of leading dims that are joined to rows, see ParamSlot::joined_dims.
  size_t joined_dims = 1;
  /// The rows that this rank has, and those of them that it writes. If ranks of a tensor axis split the tensor, rows of
  /// this rank's part.
  layout::RowRange rows, share;
  /// This rank's part of the whole tensor, if ranks of a tensor axis split it.
  std::optional<TensorCut> cut = {};

  int64_t row_numel() const;
  /// The elements of this rank's rows, in row-major order.
  ElementRange elements() const { return {rows.first * row_numel(), rows.count * row_numel()}; }

  /// Consecutive rows: their first index in this rank's part, and in the whole tensor.
  struct Run {
    int64_t first, first_of_whole, count;
  };
  /// Positions of some of this rank's rows in the whole tensor: one run for each fused matrix, possibly empty. If the
  /// tensor is split by columns, rows have the whole tensor's numbers.
  std::vector<Run> runs_of(layout::RowRange some) const;
};

/// A parameter or buffer, listed once even if it has several names.
struct ModelTensor : OwnRows {
  /// Names in the order of the tree; files use the first.
  std::vector<std::string> names;
  /// The module's tensor, which shows this rank's rows.
  at::Tensor tensor;
  /// The number of its stage in a pipeline.
  int stage = 0;

  const std::string& name() const { return names.front(); }
};

struct ModelTensors {
  std::vector<ModelTensor> all = {};
  /// The ranks that the model is sharded over; the default process group if nothing is sharded, or if tensors are split
  /// over a tensor axis; null in a program without ranks.
  std::shared_ptr<ProcessGroup> ranks = {};
  /// Index in `all` of each tensor of the module.
  std::unordered_map<const at::TensorImpl*, size_t> places = {};

  /// Whether these are the tensors of this rank's stages of a pipeline. All ranks of the program then make one
  /// checkpoint, and join_stages decides which rank writes what.
  bool are_of_stages = false;
  /// The names of the tensors that only other ranks' stages have, with the optimizer's parameter group if there is one.
  std::map<std::string, std::optional<size_t>> elsewhere = {};
};

/// Whether an operation can join the parts of split tensors. Others refuse them.
enum class Parts : uint8_t { kRefused, kTaken };

/// The cuts of the tensors that are split over a tensor axis.
using TensorCuts = std::unordered_map<const at::TensorImpl*, TensorCut>;

/// Lists the tensors. Throws UsageError in a scope or a backward, for groups over different ranks, and for tensors on
/// the meta device.
ModelTensors tensors_of(const ModuleNode& tree, const std::string& operation, Parts parts = Parts::kRefused);
/// `stages` has the stage of each name if they are of a pipeline; otherwise it is null.
ModelTensors tensors_of(const std::vector<runtime::NamedParameter>& named, const std::string& operation,
                        const TensorCuts& cuts = {}, const std::vector<int>* stages = nullptr);
/// The tensors of this rank's stages of a pipeline, given by the stages' numbers.
ModelTensors tensors_of(const std::map<int, std::shared_ptr<const ModuleNode>>& stages, const std::string& operation);

/// A contiguous copy on the CPU of `rows` rows of `values`, from `first` on (the tensor itself if it is already that).
/// `values` are this rank's rows of a parameter, or a tensor with the same rows.
at::Tensor on_cpu(const at::Tensor& values, int64_t first, int64_t rows);

}  // namespace fsdp::state
