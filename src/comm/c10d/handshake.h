#pragma once
/// \file
/// The exchange of fingerprints that precedes every collective.

#include "comm/c10d/wire.h"
#include "comm/core/fingerprint.h"

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
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

/// Writes what a rank encloses with its fingerprint for `peer` into Handshake::kEnclosedBytes bytes, from whose address
/// every dtype may lie. None: nothing for anybody.
using Enclosure = std::function<void(int peer, std::span<std::byte> memory)>;

/// Sends this rank's fingerprint to its peers, with data enclosed that is small, and checks theirs.
///
/// The receives of the next fingerprints are posted ahead, so that a peer's fingerprint is under way before this rank
/// asks for it; therefore all letters have one size. Thread safety: one thread.
class Handshake {
 public:
  static constexpr size_t kEnclosedBytes = 256;

  /// `peers`: the other ranks, in the order in which they are waited for.
  Handshake(std::shared_ptr<Wire> wire, int rank, std::vector<int> peers);

  /// Exchanges fingerprints with the peers. Returns the first disagreement, or one whose peer is -1.
  Disagreement exchange(const Fingerprint& mine, const Enclosure& enclosure = {});

  /// What `peer` enclosed with its last fingerprint, and after it bytes without meaning. The caller's, to write on too,
  /// until the next exchange.
  std::span<std::byte> enclosed_by(int peer) const;

 private:
  // Of one peer. Its letters arrive in turns, so that one can be read while the next is under way.
  struct Mail {
    at::Tensor outgoing;
    std::array<at::Tensor, 2> incoming;
    size_t arrived = 1;  // the other one is expected
    Wire::Transfer expected;
  };

  void expect(int peer);

  const std::shared_ptr<Wire> wire_;
  const int rank_;
  const std::vector<int> peers_;
  std::map<int, Mail> mail_;
};

}  // namespace fsdp
