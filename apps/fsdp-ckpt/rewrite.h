#pragma once
/// \file
/// The same tensors in other files.

#include <cstdint>
#include <optional>
#include <string>

#include "source.h"

namespace ckpt {

/// What was written, and where.
struct Written {
  std::string path;
  uint64_t tensors = 0, bytes = 0;
};

/// Writes the model's tensors whole to one safetensors file, floating ones as `dtype` if that is set.
Written export_to(Source& source, const std::string& path, std::optional<fsdp::state::Dtype> dtype);

/// Writes a checkpoint of `source`'s step, or `step` if that is set, to a run's folder: each tensor's rows in equal
/// shares to the files of so many ranks.
Written reshard_to(Source& source, const std::string& folder, int ranks, std::optional<int64_t> step);

}  // namespace ckpt
