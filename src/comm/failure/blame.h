#pragma once
/// \file
/// What a rank tells its launcher when it fails: whose failure its own follows from; and how long that may take.

#include <chrono>
#include <functional>

#include "comm/posix/descriptor.h"

namespace fsdp {

/// Has the number of a descriptor that ranks inherit: that of the memory in which they say whom they blame.
inline constexpr const char* kBlameVariable = "FSDP_BLAME";

/// What the survivors of a rank may take to agree who was lost, and to say so: two roll calls over a network and the
/// farewell of the rank that hosts the store. Whoever ends survivors waits for so long first.
inline constexpr std::chrono::seconds kLongestDiagnosis{15};

/// For a launcher: the memory, which begins without any blame. Not open where there is none.
Descriptor make_blame_board();
/// This global rank fails because of `whom`; -1: it goes on. Does nothing where no launcher asks.
void blame(int rank, int whom);
/// Whom the rank blames; -1: nobody.
int blamed_by(const Descriptor& board, int rank);

/// Follows the blame from the rank that was seen to fail first to one that has failed as well and blames no such other
/// one.
int find_first_failed(int rank, const std::function<int(int rank)>& blamed,
                      const std::function<bool(int rank)>& failed);

}  // namespace fsdp
