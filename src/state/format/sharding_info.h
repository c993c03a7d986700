#pragma once
/// \file
/// The metadata of a file that has a part of each tensor.

#include <map>
#include <string>
#include <vector>

#include "state/format/header_json.h"

namespace fsdp::state {

/// Where the entries lie in the whole tensors, by name: what torch.distributed.checkpoint's HuggingFaceStorageReader
/// asks for.
std::map<std::string, std::string> sharding_info(const std::vector<Entry>& entries,
                                                 const std::map<std::string, std::vector<int64_t>>& offsets);

}  // namespace fsdp::state
