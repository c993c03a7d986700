#pragma once
/// \file
/// Metadata of a safetensors file that has parts of tensors.

#include <map>
#include <string>
#include <vector>

#include "state/format/header_json.h"

namespace fsdp::state {

/// Returns the metadata that tells torch.distributed.checkpoint's HuggingFaceStorageReader where each entry begins in
/// its whole tensor. `offsets` has these offsets by the entry's name.
std::map<std::string, std::string> sharding_info(const std::vector<Entry>& entries,
                                                 const std::map<std::string, std::vector<int64_t>>& offsets);

}  // namespace fsdp::state
