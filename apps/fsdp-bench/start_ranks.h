#pragma once
/// \file
/// A program that starts itself again as the ranks of a job, and how these join.

#include <string>

namespace bench {

/// Whether a launcher, `start_ranks` or another one, has started this process as a rank.
bool is_rank();

/// Runs this program with the same arguments as `world` ranks and waits for them. They are new processes, not forks
/// that go on: a fork would share pages with its siblings that ranks started by fsdprun or torchrun do not share.
/// Throws fsdp::Error if a rank fails.
void start_ranks(char** argv, int world);

/// Makes this process, which computes with one thread from now on, a rank of the default process group. Collective.
/// Throws fsdp::UsageError when a launcher started another number of ranks than `world`.
void join_ranks(const std::string& backend, int world);

}  // namespace bench
