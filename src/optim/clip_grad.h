#pragma once
/// \file
/// Norms over all parameters of a model, also of one whose stages are on several ranks.

#include <ATen/core/Tensor.h>
#include <fsdp/process_group.h>

#include <string>
#include <vector>

namespace fsdp::optim {

/// A parameter, sharded or not.
struct MeasuredParameter {
  at::Tensor tensor;
  /// For an unsharded one: the tensor axis of its module, or null, and whether it is split over that axis.
  const ProcessGroup* tensor_axis = nullptr;
  bool is_cut = false;
};

/// The parameters that a norm is over, as far as this rank has them.
struct MeasuredModel {
  std::string name;           ///< the same on all ranks, which compare it
  const ProcessGroup& ranks;  ///< names this rank in errors
  std::vector<MeasuredParameter> parameters;
  /// The ranks that have the other stages of a pipeline; null for a model without stages.
  const ProcessGroup* pipe_axis = nullptr;
};

// These do what the public functions of the same names do. They are collective over all axes.
double norm(const MeasuredModel& model, double norm_type);
double get_total_norm(const MeasuredModel& model, double norm_type, bool error_if_nonfinite);
double clip_grad_norm_(const MeasuredModel& model, double max_norm, double norm_type, bool error_if_nonfinite);

}  // namespace fsdp::optim
