#pragma once
/// \file
/// Writes the tensors of a source to other files.

#include <cstdint>
#include <optional>
#include <string>

#include "source.h"

namespace ckpt {

/// The path of the written file or checkpoint, and what it contains.
struct Written {
  std::string path;
  uint64_t tensors = 0, bytes = 0;
};

/// Writes the model's whole tensors to one safetensors file. If `dtype` is set, floating point tensors are converted to
/// it.
Written export_to(Source& source, const std::string& path, std::optional<fsdp::state::Dtype> dtype);

/// Writes a checkpoint to a run's folder. The files of `ranks` ranks get equal shares of each tensor's rows. The
/// checkpoint has the step of `source`, or `step` if it is set.
Written reshard_to(Source& source, const std::string& folder, int ranks, std::optional<int64_t> step);

}  // namespace ckpt
