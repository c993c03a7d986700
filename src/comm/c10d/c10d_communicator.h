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
  /// Must be able to send and recv between any two ranks; carries headers and the data of the CPU.
  BackendFactory control;
  /// Whether all ranks compare their operations before each one begins, beside what they do in it.
  bool compares_first = false;
  /// Carries the tensors of the accelerator `data_device` by its own collectives (NCCL); unset: there is none.
  BackendFactory data;
  c10::Device data_device = c10::kCPU;
  RollCallOptions roll_call;
  /// Where messages on the CPU count; null: nowhere.
  std::shared_ptr<const CountByPeer> traffic = nullptr;
  /// Of ranks on several hosts, in which they share memory: how they lie there, and a communicator of this host's
  /// ranks, by which data on the CPU goes; see Note [Two levels]. Null: every rank exchanges with every other one.
  HostGrid grid = {};
  std::shared_ptr<Communicator> host = nullptr;
};

/// Joins the ranks that meet in `store`, whose keys must be this communicator's alone. Collective.
std::shared_ptr<Communicator> make_c10d_communicator(const c10::intrusive_ptr<c10d::Store>& store, C10dOptions options);

}  // namespace fsdp
