#pragma once
/// \file
/// Writes safetensors files with one rank's rows of many tensors. Python's readers of sharded safetensors files can
/// read them.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "state/format/manifest.h"
#include "state/model_tensors.h"

namespace fsdp::state {

/// This rank's rows of a tensor. `values` contains all of them; the rank writes only those in `share`.
struct RowsToWrite : OwnRows {
  std::string name;
  at::Tensor values;
};

/// Returns whole rows if the ranks of a tensor axis split the tensor by columns: the ranks exchange their columns of
/// the rows in `share`, and each of them gets some of these rows as whole rows. This is collective over the tensor
/// axis. Other tensors are returned unchanged, without communication.
RowsToWrite with_whole_rows(RowsToWrite own);

/// Writes `folder`/`stem`.safetensors, adds the file to manifest.files, and adds the parts of tensors that it contains
/// to `records`. Writes no file if there are no rows. A file can have only one entry of a name: if the rows of a tensor
/// consist of several boxes (see layout::boxes_of), the other boxes go to `stem`-1.safetensors and so on. Throws
/// FileError if a file cannot be written, and UsageError if files do not support a dtype.
void write_rows(const std::string& folder, const std::string& stem, const std::vector<RowsToWrite>& list,
                Manifest& manifest, TensorRecords& records);

}  // namespace fsdp::state
