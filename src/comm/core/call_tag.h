#pragma once
/// \file
/// What the collectives of a call of the user's are for.

#include <fsdp/communicator.h>

#include <string>

namespace fsdp {

/// `call`, e.g. "save_checkpoint", and `tensor`, if it is one of many, are compared between ranks. `path`, the file or
/// folder that the call is about, is not: each rank may have its own. Messages have all of it:
/// "save_checkpoint of runs/a: blocks.0.weight".
inline Tag call_tag(const std::string& call, const std::string& path, const std::string& tensor = {}) {
  constexpr size_t kMostOfPath = 60;  // of its end, which tells more
  Tag tag{.subject = tensor.empty() ? call : call + " of " + tensor};
  if (path.empty()) return tag;
  tag.shown = call + " of " + (path.size() > kMostOfPath ? "..." + path.substr(path.size() - kMostOfPath) : path);
  if (!tensor.empty()) tag.shown += ": " + tensor;
  return tag;
}

}  // namespace fsdp
