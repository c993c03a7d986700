#pragma once
/// \file
/// Pure: which tensors of a checkpoint a model takes, and what does not fit.

#include <fsdp/checkpoint.h>

#include <optional>
#include <string>
#include <vector>

#include "state/format/manifest.h"
#include "state/model_tensors.h"

namespace fsdp::state {

struct Fit {
  /// By place among the model's tensors: the name in the checkpoint.
  std::vector<std::optional<std::string>> names;
  /// Lines; each begins with the name that it is about.
  std::vector<std::string> allowed, refused;
};

/// By names; of a tensor that has several, any.
Fit fit_of(const TensorRecords& saved, const ModelTensors& tensors, const LoadOptions& options);
/// Notes a line about `name` as allowed or refused.
void note(Fit& fit, const LoadOptions& options, const std::string& name, const std::string& what);
/// Throws FormatError that lists what was refused, if anything was.
void require_fit(const Fit& fit, const std::string& path);

}  // namespace fsdp::state
