#pragma once
/// \file
/// Exchanges texts of any length between ranks.

#include <fsdp/process_group.h>

#include <functional>
#include <string>
#include <vector>

namespace fsdp {

/// Returns the text of every rank, by rank. Collective.
std::vector<std::string> gather_texts(const ProcessGroup& group, const std::string& own, const Tag& tag);

/// Calls `take` on rank `root` with the text of each rank, one after the other in the order of ranks. Other ranks get
/// nothing. `take` must not throw, because ranks whose texts come later wait. Collective.
void collect_texts(const ProcessGroup& group, const std::string& own, int root, const Tag& tag,
                   const std::function<void(int rank, const std::string& text)>& take);

}  // namespace fsdp
