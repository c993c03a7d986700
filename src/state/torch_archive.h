#pragma once
/// \file
/// Reading and writing torch::save archives.

#include <torch/serialize/archive.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "state/model_tensors.h"

namespace fsdp::state {

/// Writes an archive that `fill` fills. The file gets its final name when it is complete. Throws FileError.
void write_archive(const std::string& path, const std::function<void(torch::serialize::OutputArchive&)>& fill);
/// Opens an archive and calls `read` with it. Throws FormatError, also for exceptions of `read`.
void read_archive(const std::string& path, const std::function<void(torch::serialize::InputArchive&)>& read);
/// The names of tensors and modules that LibTorch can write to an archive but not read back: names with quotes,
/// backslashes or newlines, and keywords of TorchScript.
std::vector<std::string> unreadable_names(const std::set<std::string>& tensors, const std::set<std::string>& modules);
/// A view of this rank's rows of `whole`, with the sizes of tensor.tensor.
at::Tensor rows_of(const at::Tensor& whole, const ModelTensor& tensor);

}  // namespace fsdp::state
