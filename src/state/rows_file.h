#pragma once
/// \file
/// One rank's rows of many tensors, in files that Python's readers of sharded safetensors understand.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "state/format/manifest.h"
#include "state/model_tensors.h"

namespace fsdp::state {

/// What a rank has of a tensor, and what of that it writes.
struct RowsToWrite : OwnRows {
  std::string name;
  at::Tensor values;
};

/// Whole rows in place of columns: the ranks of the tensor axis exchange what they have of the rows that they are to
/// write, and each gets some of these. Others stay as they are. Collective over the axis for columns.
RowsToWrite with_whole_rows(RowsToWrite own);

/// Writes `folder`/`stem`.safetensors and adds it and its parts of tensors to the manifest; no file if there is nothing
/// to write. A name is in a file once: of rows that are several boxes of their tensor (see layout::boxes_of) the
/// further ones go to `stem`-1.safetensors and so on. Throws FileError, and UsageError for a dtype that files do not
/// have.
void write_rows(const std::string& folder, const std::string& stem, const std::vector<RowsToWrite>& list,
                Manifest& manifest, TensorRecords& records);

}  // namespace fsdp::state
