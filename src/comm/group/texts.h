#pragma once
/// \file
/// Texts of any length that ranks tell each other.

#include <fsdp/process_group.h>

#include <functional>
#include <string>
#include <vector>

namespace fsdp {

/// Gives every rank the text of each, by rank. Collective.
std::vector<std::string> gather_texts(const ProcessGroup& group, const std::string& own, const Tag& tag);

/// Gives the text of each rank to `take` on rank `root`, in the order of ranks, one after the other; the other ranks
/// get nothing. `take` must not throw, since ranks wait whose texts come later. Collective.
void collect_texts(const ProcessGroup& group, const std::string& own, int root, const Tag& tag,
                   const std::function<void(int rank, const std::string& text)>& take);

}  // namespace fsdp
