#pragma once
/// \file
/// The steps of each collective: what it writes into the slots of shared memory, and what it reads out of them.

#include <fsdp/communicator.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/core/traffic_count.h"

namespace fsdp::shm {

/// The slot of a member, by its index, in the round that is read.
using Slots = std::function<const std::byte*(size_t member)>;

/// What a collective does in each of its rounds.
struct Steps {
  int64_t count = 1;
  /// How much of its slot a rank fills at most.
  size_t slot_bytes = 0;
  /// Whether a round may be written before the one before it is read.
  bool overlap = true;
  /// Fills this rank's slot.
  std::function<void(int64_t round, std::byte* slot)> write = {};
  /// Reads the other members' slots.
  std::function<void(int64_t round, const Slots& slots)> read = {};
};

/// Who writes into which memory.
struct Writer {
  int rank, world_size;
  size_t slot_bytes;
  std::shared_ptr<LinkCount> traffic;  ///< where what is copied counts
};

/// Gives every rank's slices to all.
Steps gather_steps(std::vector<GatherPlane> planes, const Writer& writer);
/// Sums the ranks' contributions to this rank's slices in rank order. A rank publishes only what others own; its own
/// slices are read where they lie.
Steps reduce_steps(std::vector<ReducePlane> planes, double scale, const Writer& writer);
/// Even rounds reduce some elements on each rank, odd ones give them to all.
Steps all_reduce_steps(std::vector<at::Tensor> flats, ReduceOp op, const Writer& writer);
Steps all_to_all_steps(const at::Tensor& output, const at::Tensor& input, const Writer& writer);
/// The source's tensor becomes the others'. `source`: an index of a member.
Steps copy_steps(const at::Tensor& tensor, int source, bool is_source, const Writer& writer);

}  // namespace fsdp::shm
