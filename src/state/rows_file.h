#pragma once
/// \file
/// Files with one rank's rows of many tensors, which Python's readers of sharded safetensors can read.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "state/format/manifest.h"
#include "state/model_tensors.h"

namespace fsdp::state {

/// The rows that a rank has of a tensor, and those that it writes.
struct RowsToWrite : OwnRows {
  std::string name;
  at::Tensor values;
};

/// Converts columns to whole rows: the ranks of the tensor axis exchange their columns of the rows that they are to
/// write, and each rank gets some of these rows. Other tensors are returned unchanged. Collective over the axis for
/// columns.
RowsToWrite with_whole_rows(RowsToWrite own);

/// Writes `folder`/`stem`.safetensors and adds it and its parts of tensors to the manifest; writes no file if there are
/// no rows. A file can have a name only once: if rows consist of several boxes of their tensor (see layout::boxes_of),
/// the other boxes go to `stem`-1.safetensors and so on. Throws FileError, and UsageError for a dtype that files do not
/// support.
void write_rows(const std::string& folder, const std::string& stem, const std::vector<RowsToWrite>& list,
                Manifest& manifest, TensorRecords& records);

}  // namespace fsdp::state
