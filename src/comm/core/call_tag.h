#pragma once
/// \file
/// Tags for the collectives that one call of the user's program runs.

#include <fsdp/communicator.h>

#include <string>

namespace fsdp {

/// Returns the tag of a collective that the user's call `call`, e.g. "save_checkpoint", runs: for its tensor `tensor`,
/// or for the whole call if `tensor` is empty. Ranks compare `call` and `tensor`. They do not compare `path`, the file
/// or folder that the call is about, because it may differ between ranks. Error messages show all three:
/// "save_checkpoint of runs/a: blocks.0.weight".
inline Tag call_tag(const std::string& call, const std::string& path, const std::string& tensor = {}) {
  constexpr size_t kMostOfPath = 60;  // characters; a longer path is cut at its beginning
  Tag tag{.subject = tensor.empty() ? call : call + " of " + tensor};
  if (path.empty()) return tag;
  tag.shown = call + " of " + (path.size() > kMostOfPath ? "..." + path.substr(path.size() - kMostOfPath) : path);
  if (!tensor.empty()) tag.shown += ": " + tensor;
  return tag;
}

}  // namespace fsdp
