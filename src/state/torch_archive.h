#pragma once
/// \file
/// Archives of torch::save.

#include <torch/serialize/archive.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "state/model_tensors.h"

namespace fsdp::state {

/// Writes what `fill` puts into an archive. The file has its name when it is complete. Throws FileError.
void write_archive(const std::string& path, const std::function<void(torch::serialize::OutputArchive&)>& fill);
/// Opens the file and gives it to `read`. Throws FormatError, also for what `read` throws.
void read_archive(const std::string& path, const std::function<void(torch::serialize::InputArchive&)>& read);
/// Those among the names of tensors and of modules that LibTorch writes to an archive, but cannot read from it: those
/// with quotes, backslashes or newlines, keywords of TorchScript.
std::vector<std::string> unreadable_names(const std::set<std::string>& tensors, const std::set<std::string>& modules);
/// This rank's rows of a whole tensor of the same sizes, as `tensor` shows them. A view.
at::Tensor rows_of(const at::Tensor& whole, const ModelTensor& tensor);

}  // namespace fsdp::state
