#pragma once
/// \file
/// A communicator over c10d backends.

#include <fsdp/backend.h>
#include <fsdp/communicator.h>

#include "comm/core/host_grid.h"
#include "comm/core/ranks.h"
#include "comm/core/traffic_count.h"
#include "comm/failure/roll_call.h"

#include <chrono>
#include <memory>

namespace fsdp {

struct C10dOptions {
  Ranks ranks = {};
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Makes the backend for headers and for data on the CPU. It must support send and recv between any two ranks.
  BackendFactory control;
  /// True if all ranks also compare their fingerprints before each operation begins.
  bool compares_first = false;
  /// Makes the backend whose own collectives (NCCL) carry tensors on the accelerator `data_device`; unset if there is
  /// none.
  BackendFactory data;
  c10::Device data_device = c10::kCPU;
  RollCallOptions roll_call;
  /// Counts the messages on the CPU; may be null.
  std::shared_ptr<const CountByPeer> traffic = nullptr;
  /// Set if the ranks are on several hosts and share memory inside each host: the grid of hosts, and a communicator of
  /// this host's ranks that carries data on the CPU; see Note [Two levels]. If `host` is null, every rank exchanges
  /// with every other rank.
  HostGrid grid = {};
  std::shared_ptr<Communicator> host = nullptr;
};

/// Makes a communicator of the ranks that meet in `store`, whose keys only this communicator may use. Collective.
std::shared_ptr<Communicator> make_c10d_communicator(const c10::intrusive_ptr<c10d::Store>& store, C10dOptions options);

}  // namespace fsdp
