#pragma once
/// \file
/// A model's tensors as checkpoints see them: its parameters and buffers, whether they are sharded or not.

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

/// The rows of a tensor that this rank has.
struct OwnRows {
  /// Sizes of the whole tensor.
  std::vector<int64_t> sizes;
  /// Number of leading dims whose indices together number the rows; see ParamSlot::joined_dims.
  size_t joined_dims = 1;
  /// `rows` are the rows that this rank has, and `share` are those of them that it writes to checkpoints. If the ranks
  /// of a tensor axis split the tensor, both number the rows within this rank's part.
  layout::RowRange rows, share;
  /// How the ranks of a tensor axis split the tensor, if they do.
  std::optional<TensorCut> cut = {};

  int64_t row_numel() const;
  /// The elements of this rank's rows, in row-major order.
  ElementRange elements() const { return {rows.first * row_numel(), rows.count * row_numel()}; }

  /// Consecutive rows. `first` is the index of the first row in this rank's part, and `first_of_whole` its index in the
  /// whole tensor.
  struct Run {
    int64_t first, first_of_whole, count;
  };
  /// Returns the positions of some of this rank's rows in the whole tensor: one run, possibly empty, for each fused
  /// matrix (TensorCut::fused). In a tensor that is not split, or that is split by columns, rows have the same index in
  /// the part and in the whole tensor, and the result is one run.
  std::vector<Run> runs_of(layout::RowRange some) const;
};

/// A parameter or buffer. It is listed once even if it has several names.
struct ModelTensor : OwnRows {
  /// All names of the tensor, in the order of the module tree. Files use the first one.
  std::vector<std::string> names;
  /// The module's own tensor. It shows this rank's rows.
  at::Tensor tensor;
  /// The number of the pipeline stage that has the tensor, or 0 if the model is not a pipeline.
  int stage = 0;

  const std::string& name() const { return names.front(); }
};

struct ModelTensors {
  std::vector<ModelTensor> all = {};
  /// The ranks that save and load together. They are those that the model is sharded over, or the default process group
  /// if nothing is sharded, if tensors are split over a tensor axis, or if the model is a pipeline. Null in a program
  /// without a process group.
  std::shared_ptr<ProcessGroup> ranks = {};
  /// The index in `all` of each tensor of the module.
  std::unordered_map<const at::TensorImpl*, size_t> places = {};

  /// True if these are the tensors of this rank's stages of a pipeline. All ranks of the program then write one
  /// checkpoint, and join_stages decides which rank writes which tensors.
  bool are_of_stages = false;
  /// The names of the tensors that only other ranks' stages have. The value is the index of the tensor's parameter
  /// group in those ranks' optimizers, or nullopt if no optimizer has the tensor.
  std::map<std::string, std::optional<size_t>> elsewhere = {};
};

/// Says whether an operation refuses tensors that are split over a tensor axis, or takes them because it can join their
/// parts.
enum class Parts : uint8_t { kRefused, kTaken };

/// The cuts of the tensors that are split over a tensor axis.
using TensorCuts = std::unordered_map<const at::TensorImpl*, TensorCut>;

/// Returns the parameters and buffers of a module tree. `operation` is the name of the user's call in error messages.
/// Throws UsageError in a scope or a backward, for groups over different ranks, and for tensors on the meta device.
ModelTensors tensors_of(const ModuleNode& tree, const std::string& operation, Parts parts = Parts::kRefused);
/// Returns the given tensors. In a pipeline, `stages` has the number of each tensor's stage; otherwise it is null.
ModelTensors tensors_of(const std::vector<runtime::NamedParameter>& named, const std::string& operation,
                        const TensorCuts& cuts = {}, const std::vector<int>* stages = nullptr);
/// Returns the tensors of this rank's stages of a pipeline. The keys of `stages` are the stages' numbers.
ModelTensors tensors_of(const std::map<int, std::shared_ptr<const ModuleNode>>& stages, const std::string& operation);

/// Returns rows [first, first + rows) of `values` as a contiguous CPU tensor. The result aliases `values` if no copy is
/// needed. `values` are this rank's rows of a parameter, or a tensor with the same rows.
at::Tensor on_cpu(const at::Tensor& values, int64_t first, int64_t rows);

}  // namespace fsdp::state
