#pragma once
/// \file
/// Norms over all parameters of a model, or of those stages of it that this rank has.

#include <ATen/core/Tensor.h>
#include <fsdp/process_group.h>

#include <string>
#include <vector>

namespace fsdp::optim {

/// A parameter of which this rank has rows, or all.
struct MeasuredParameter {
  at::Tensor tensor;
  /// Of one that is not sharded: the tensor axis of its module, if there is one, and whether its ranks have parts of
  /// it.
  const ProcessGroup* tensor_axis = nullptr;
  bool is_cut = false;
};

/// What a norm is over.
struct MeasuredModel {
  /// How ranks and errors call it. It is the same on all ranks.
  std::string name;
  const ProcessGroup& ranks;  ///< who errors say this rank is
  std::vector<MeasuredParameter> parameters;
  /// The ranks that have the other stages of a pipeline; null: there are none.
  const ProcessGroup* pipe_axis = nullptr;
};

// What the functions of the same names on a Group do. Collective over all axes.
double norm(const MeasuredModel& model, double norm_type);
double get_total_norm(const MeasuredModel& model, double norm_type, bool error_if_nonfinite);
double clip_grad_norm_(const MeasuredModel& model, double max_norm, double norm_type, bool error_if_nonfinite);

}  // namespace fsdp::optim
