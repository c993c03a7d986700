#pragma once
/// \file
/// What ranks tell each other about a collective before they exchange its data.

#include <ATen/core/Tensor.h>
#include <fsdp/communicator.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "comm/core/ranks.h"
#include "comm/core/timeline.h"

namespace fsdp {

enum class Operation : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduceSum,
  kAllReduceMax,
  kAllReduceMin,
  kAllToAll,
  kBroadcast,
  kSend,
  kRecv,
  kBarrier,
  kDuplicate,
};

std::string_view name_of(Operation operation);
Operation all_reduce_operation(ReduceOp op);

/// One rank's description of the collective that it is about to run. Sent as it lies in memory.
struct Fingerprint {
  static constexpr size_t kTextBytes = 128;

  uint64_t sequence = 0;
  /// Of the whole operation, so that it is the same on every rank.
  uint64_t bytes = 0;
  /// A hash of the planes' lengths.
  uint64_t lengths = 0;
  /// Hash of the whole subject; `text` has the beginning of what messages say of it.
  uint64_t subject_hash = 0;
  /// A hash of the planes' dtypes.
  uint64_t dtypes = 0;
  uint32_t planes = 0;
  /// Broadcast: the root. Send and recv: the other rank. Otherwise -1.
  int32_t peer = -1;
  /// Of the tag.
  uint32_t count = 0;
  uint32_t group = 0;
  Operation operation = Operation::kBarrier;
  /// Of the first plane.
  int8_t dtype = -1;
  /// c10::DeviceType; -1: no data.
  int8_t device = -1;
  std::array<uint8_t, 5> unused{};
  /// Tag::text, and behind it what is counted, each up to a zero.
  std::array<char, kTextBytes> text{};

  std::string subject() const { return text.data(); }
  std::string counted() const { return count == 0 ? "" : text.data() + subject().size() + 1; }
};
static_assert(std::is_trivially_copyable_v<Fingerprint> && sizeof(Fingerprint) == 192);

Fingerprint make_fingerprint(Operation operation, const Tag& tag);
/// `planes`: at least one, on one device. `times`: how many times their bytes the whole operation has.
void describe_data(Fingerprint& fingerprint, std::span<const at::Tensor> planes, int times = 1);

/// A hash of what `difference` compares, and of the hash `before`.
uint64_t hash_compared(const Fingerprint& fingerprint, uint64_t before);

/// "reduce_scatter of 'blocks.1' (#17)"
std::string describe(const Fingerprint& fingerprint, const Ranks& ranks);
/// "reduce_scatter of 'blocks.1' (#17), 4096 bytes of Float"
std::string describe_fully(const Fingerprint& fingerprint, const Ranks& ranks);

/// Begins the collective on the rank's timeline.
Span collective_span(const Ranks& ranks, const Fingerprint& fingerprint);

/// What keeps the two from being the same collective, e.g. "operation, bytes"; empty if nothing does.
std::string difference(const Fingerprint& a, int rank_of_a, const Fingerprint& b, int rank_of_b);

}  // namespace fsdp
