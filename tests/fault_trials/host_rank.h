#pragma once
/// \file
/// A rank of a trial whose hosts have networks of their own, and which a launcher starts there.

namespace fsdp::test {

/// Trains as the rank that the launcher's variables name, over the backend "hierarchical", and prints "hash NUMBER",
/// and how often it passed each fault point; a line for each. By the variables HOST_FAULT (rank, launcher or link),
/// HOST_FAULT_RANK, HOST_FAULT_POINT and HOST_FAULT_PASSAGE a rank loses itself, its launcher, or its host's network
/// where it passes the point so often. HOST_TIMEOUT_MS: of the process group. Returns the program's status.
int train_as_rank_of_a_host();

}  // namespace fsdp::test
