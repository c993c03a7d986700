#pragma once
/// \file
/// Ranks started from inside a program.

#include <functional>

namespace fsdp {

/// Starts `nprocs` processes that each run `fn(rank)` with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT
/// set, and waits for them. The processes are forks, so call it before this process has started threads (before its
/// first parallel LibTorch operator); UsageError otherwise. The first rank that fails ends the others, and its error is
/// rethrown here as fsdp::Error naming the rank.
///
///     fsdp::spawn([](int) { fsdp::init_process_group(); train(); }, 2);
void spawn(const std::function<void(int rank)>& fn, int nprocs);

}  // namespace fsdp
