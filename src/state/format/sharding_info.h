#pragma once
/// \file
/// Metadata of a file that has parts of tensors.

#include <map>
#include <string>
#include <vector>

#include "state/format/header_json.h"

namespace fsdp::state {

/// Metadata with the offsets of entries in their whole tensors, by name, as torch.distributed.checkpoint's
/// HuggingFaceStorageReader expects it.
std::map<std::string, std::string> sharding_info(const std::vector<Entry>& entries,
                                                 const std::map<std::string, std::vector<int64_t>>& offsets);

}  // namespace fsdp::state
