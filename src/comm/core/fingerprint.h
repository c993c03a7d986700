#pragma once
/// \file
/// The description of a collective that ranks compare before they exchange its data.

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

/// One rank's description of the collective that it is about to run. Ranks send each other the bytes of this struct.
struct Fingerprint {
  static constexpr size_t kTextBytes = 128;

  uint64_t sequence = 0;
  /// Number of bytes of all ranks' data in the operation, which is the same on every rank.
  uint64_t bytes = 0;
  /// Hash of the planes' lengths in elements.
  uint64_t lengths = 0;
  /// Hash of the whole Tag::subject. `text` may hold only its beginning.
  uint64_t subject_hash = 0;
  /// Hash of the planes' dtypes.
  uint64_t dtypes = 0;
  uint32_t planes = 0;
  /// The root of a broadcast, the other rank of a send or recv, otherwise -1.
  int32_t peer = -1;
  /// Tag::Count::number and Tag::group.
  uint32_t count = 0;
  uint32_t group = 0;
  Operation operation = Operation::kBarrier;
  /// Dtype of the first plane (c10::ScalarType); -1 if the operation has no data.
  int8_t dtype = -1;
  /// Device type of the planes (c10::DeviceType); -1 if the operation has no data.
  int8_t device = -1;
  std::array<uint8_t, 5> unused{};
  /// The beginning of Tag::text() and the beginning of Tag::Count::of, each followed by a zero.
  std::array<char, kTextBytes> text{};

  std::string subject() const { return text.data(); }
  std::string counted() const { return count == 0 ? "" : text.data() + subject().size() + 1; }
};
static_assert(std::is_trivially_copyable_v<Fingerprint> && sizeof(Fingerprint) == 192);

Fingerprint make_fingerprint(Operation operation, const Tag& tag);
/// Fills in the fields that describe the data. `planes` has at least one tensor; all are on one device. The data of all
/// ranks has `times` times the bytes of `planes`.
void describe_data(Fingerprint& fingerprint, std::span<const at::Tensor> planes, int times = 1);

/// Returns a hash of `before` and of all fields except `text`.
uint64_t hash_compared(const Fingerprint& fingerprint, uint64_t before);

/// Returns a short description, e.g. "reduce_scatter of 'blocks.1' (#17)".
std::string describe(const Fingerprint& fingerprint, const Ranks& ranks);
/// Returns a description with the size, dtype and other data, e.g. "reduce_scatter of 'blocks.1' (#17), 4096 bytes of
/// Float".
std::string describe_fully(const Fingerprint& fingerprint, const Ranks& ranks);

/// Begins an entry for the collective on the rank's timeline.
Span collective_span(const Ranks& ranks, const Fingerprint& fingerprint);

/// Returns the names of the fields that do not match in two ranks' operations, e.g. "operation, bytes"; empty if all
/// match.
std::string difference(const Fingerprint& a, int rank_of_a, const Fingerprint& b, int rank_of_b);

}  // namespace fsdp
