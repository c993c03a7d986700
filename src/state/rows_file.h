#pragma once
/// \file
/// One rank's rows of many tensors, in a file that Python's readers of sharded safetensors understand.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "layout/planes.h"
#include "state/format/manifest.h"

namespace fsdp::state {

/// What a rank has of a tensor, and what of that it writes.
struct RowsToWrite {
  std::string name;
  at::Tensor values;
  /// Of the whole tensor.
  std::vector<int64_t> sizes;
  layout::RowRange rows, share;
};

/// Writes `folder`/`file` and adds it and its parts of tensors to the manifest; no file if there is nothing to write.
/// Throws FileError, and UsageError for a dtype that files do not have.
void write_rows(const std::string& folder, const std::string& file, const std::vector<RowsToWrite>& list,
                Manifest& manifest, TensorRecords& records);

}  // namespace fsdp::state
