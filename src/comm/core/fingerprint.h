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

namespace fsdp {

enum class Operation : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduceSum,
  kAllReduceMax,
  kAllReduceMin,
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
  static constexpr size_t kInlineVoteBytes = 76;

  uint64_t sequence = 0;
  /// Of the whole operation, so that it is the same on every rank.
  uint64_t bytes = 0;
  /// Hash of the boundaries between the ranks' slices.
  uint64_t layout = 0;
  /// Hash of the whole subject; `text` has the beginning of what messages say of it.
  uint64_t subject_hash = 0;
  uint32_t vote_count = 0;
  /// Broadcast: the root. Send and recv: the other rank. Otherwise -1.
  int32_t peer = -1;
  Operation operation = Operation::kBarrier;
  int8_t dtype = -1;
  /// c10::DeviceType; -1: no data.
  int8_t device = -1;
  std::array<uint8_t, 1> unused{};
  /// Of the tag.
  uint32_t count = 0;
  uint32_t group = 0;
  /// Tag::text, and behind it what is counted, each up to a zero.
  std::array<char, kTextBytes> text{};
  /// The votes as bits, when they fit.
  std::array<uint8_t, kInlineVoteBytes> votes{};

  std::string subject() const { return text.data(); }
  std::string counted() const { return count == 0 ? "" : text.data() + subject().size() + 1; }
  bool votes_fit() const { return vote_count <= 8 * kInlineVoteBytes; }
};
static_assert(std::is_trivially_copyable_v<Fingerprint> && sizeof(Fingerprint) == 256);

/// A fingerprint of `operation` for `tag`, with the votes inside when they fit.
Fingerprint make_fingerprint(Operation operation, const Tag& tag);
void describe_data(Fingerprint& fingerprint, const at::Tensor& data, std::span<const int64_t> offsets = {});

/// Bit i is vote i.
std::vector<uint8_t> pack_votes(std::span<const uint8_t> votes);
/// votes[i] |= bit i.
void merge_votes(std::span<uint8_t> votes, std::span<const uint8_t> bits);
/// Whether nobody contributes, so that no data moves; see Tag::votes.
bool is_voted_down(std::span<const uint8_t> votes);

/// "reduce_scatter of 'blocks.1' (#17)"
std::string describe(const Fingerprint& fingerprint, const Ranks& ranks);
/// "reduce_scatter of 'blocks.1' (#17), 4096 bytes of Float"
std::string describe_fully(const Fingerprint& fingerprint, const Ranks& ranks);

/// What keeps the two from being the same collective, e.g. "operation, bytes"; empty if nothing does.
std::string difference(const Fingerprint& a, int rank_of_a, const Fingerprint& b, int rank_of_b);

}  // namespace fsdp
