#pragma once
/// \file
/// Norms over all parameters of a model, which may be a pipeline with stages on several ranks.

#include <ATen/core/Tensor.h>
#include <fsdp/process_group.h>

#include <string>
#include <vector>

namespace fsdp::optim {

/// A parameter that a norm includes. It may be sharded or not.
struct MeasuredParameter {
  at::Tensor tensor;
  /// The tensor axis of the module to which an unsharded parameter belongs; null if the module has none. Unused if
  /// `tensor` is sharded.
  const ProcessGroup* tensor_axis = nullptr;
  /// True if an unsharded parameter is split over the tensor axis. Unused if `tensor` is sharded.
  bool is_cut = false;
};

/// Those parameters of a model that this rank has.
struct MeasuredModel {
  std::string name;           ///< name of the model; the ranks compare it, so it must be the same on all of them
  const ProcessGroup& ranks;  ///< process group of the model; error messages take this rank's number from it
  std::vector<MeasuredParameter> parameters;
  /// The pipe axis, on which the other stages of a pipeline are; null if the model is not a pipeline.
  const ProcessGroup* pipe_axis = nullptr;
};

// The public functions of the same names (fsdp/norms.h, fsdp/clip_grad.h) describe what these functions return and
// throw. Each function is collective over all axes of the model.
double norm(const MeasuredModel& model, double norm_type);
double get_total_norm(const MeasuredModel& model, double norm_type, bool error_if_nonfinite);
double clip_grad_norm_(const MeasuredModel& model, double max_norm, double norm_type, bool error_if_nonfinite);

}  // namespace fsdp::optim
