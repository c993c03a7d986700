#pragma once
/// \file
/// The exchange of fingerprints that precedes every collective.

#include "comm/fingerprint.h"
#include "comm/wire.h"

#include <span>
#include <string>
#include <vector>

namespace fsdp {

/// Two ranks' fingerprints differ.
struct Disagreement {
  int peer = -1;
  /// "operation, bytes"
  std::string difference;
  Fingerprint theirs;
};

/// Sends this rank's fingerprint to its peers and checks theirs.
///
/// The receives of the next fingerprints are posted ahead, so that a peer's fingerprint is under way before this rank
/// asks for it. Thread safety: one thread.
class Handshake {
 public:
  /// `wire` must outlive this object.
  Handshake(Wire& wire, int rank, int world_size);

  /// Exchanges fingerprints with `mine.peer` if the operation is a send or recv, with every rank otherwise, and
  /// `votes` with the same ranks. On return `votes` holds their OR. Returns the first disagreement, with no votes
  /// exchanged, or one whose peer is -1.
  Disagreement exchange(const Fingerprint& mine, std::span<uint8_t> votes);

 private:
  void expect(int peer);
  void exchange_long_votes(std::span<const int> peers, std::span<uint8_t> votes);

  Wire& wire_;
  const int rank_;
  std::vector<int> others_;
  std::vector<at::Tensor> inbox_;
  std::vector<Wire::Message> expected_;
};

}  // namespace fsdp
