#pragma once
/// \file
/// The exchange of fingerprints that precedes every collective.

#include "comm/fingerprint.h"
#include "comm/wire.h"

#include <map>
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
  /// `peers`: the other ranks, in the order in which they are waited for. `wire` must outlive this object.
  Handshake(Wire& wire, int rank, std::vector<int> peers);

  /// Exchanges fingerprints and `votes` with the peers. On return `votes` holds their OR. Returns the first
  /// disagreement, with no votes exchanged, or one whose peer is -1.
  Disagreement exchange(const Fingerprint& mine, std::span<uint8_t> votes);

 private:
  void expect(int peer);
  void exchange_long_votes(std::span<uint8_t> votes);

  Wire& wire_;
  const int rank_;
  const std::vector<int> peers_;
  std::map<int, at::Tensor> inbox_;
  std::map<int, Wire::Message> expected_;
};

}  // namespace fsdp
