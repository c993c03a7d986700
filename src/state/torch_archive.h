#pragma once
/// \file
/// Reads and writes archives of torch::save.

#include <torch/serialize/archive.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "state/model_tensors.h"

namespace fsdp::state {

/// Writes an archive with the contents that `fill` adds. The file gets its final name when it is complete. Throws
/// FileError.
void write_archive(const std::string& path, const std::function<void(torch::serialize::OutputArchive&)>& fill);
/// Opens an archive and calls `read` with it. Throws FormatError if the file is not such an archive, or if `read`
/// throws an exception other than FileError.
void read_archive(const std::string& path, const std::function<void(torch::serialize::InputArchive&)>& read);
/// Returns those names of tensors and modules that LibTorch can write to an archive but not read back: names with
/// quotes, backslashes or newlines, and keywords of TorchScript.
std::vector<std::string> unreadable_names(const std::set<std::string>& tensors, const std::set<std::string>& modules);
/// Returns this rank's rows of `whole`, with the sizes of tensor.tensor. They are a view if `whole` is contiguous.
at::Tensor rows_of(const at::Tensor& whole, const ModelTensor& tensor);

}  // namespace fsdp::state
