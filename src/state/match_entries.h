#pragma once
/// \file
/// Compares a checkpoint's tensors with those of a model. The functions neither read files nor communicate.

#include <fsdp/checkpoint.h>

#include <optional>
#include <string>
#include <vector>

#include "state/format/manifest.h"
#include "state/model_tensors.h"

namespace fsdp::state {

struct EntryMatch {
  /// The name that each tensor of the model has in the checkpoint, or nullopt for a tensor that will not be loaded.
  std::vector<std::optional<std::string>> names;
  /// Descriptions of the differences that the options allow, and of all others. Each begins with the tensor's name.
  std::vector<std::string> allowed, refused;
};

/// Matches the tensors by name. If a tensor of the model has several names, the checkpoint can have any of them.
EntryMatch match_entries(const TensorRecords& saved, const ModelTensors& tensors, const LoadOptions& options);
/// Records a difference of `name` as allowed or refused, depending on the options.
void note_difference(EntryMatch& match, const LoadOptions& options, const std::string& name, const std::string& what);
/// Throws FormatError with a list of the refused differences, if there are any.
void require_match(const EntryMatch& match, const std::string& path);

}  // namespace fsdp::state
