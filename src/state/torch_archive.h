#pragma once
/// \file
/// Archives of torch::save.

#include <torch/serialize/archive.h>

#include <functional>
#include <string>

#include "state/model_tensors.h"

namespace fsdp::state {

/// Writes what `fill` puts into an archive. The file has its name when it is complete. Throws FormatError.
void write_archive(const std::string& path, const std::function<void(torch::serialize::OutputArchive&)>& fill);
/// Opens the file and gives it to `read`. Throws FormatError, also for what `read` throws.
void read_archive(const std::string& path, const std::function<void(torch::serialize::InputArchive&)>& read);
/// This rank's rows of a whole tensor of the same sizes, as `tensor` shows them. A view.
at::Tensor rows_of(const at::Tensor& whole, const ModelTensor& tensor);

}  // namespace fsdp::state
