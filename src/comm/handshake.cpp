#include "comm/handshake.h"

#include <ATen/ops/empty.h>

#include <cstring>

namespace fsdp {
namespace {

constexpr auto kFingerprint = Wire::Channel::kFingerprint;
constexpr auto kVotes = Wire::Channel::kVotes;

at::Tensor bytes(size_t size) { return at::empty({static_cast<int64_t>(size)}, at::kByte); }

}  // namespace

Handshake::Handshake(Wire& wire, int rank, std::vector<int> peers)
    : wire_(wire), rank_(rank), peers_(std::move(peers)) {
  for (const int peer : peers_) inbox_[peer] = bytes(sizeof(Fingerprint));
}

void Handshake::expect(int peer) { expected_[peer] = wire_.recv(inbox_[peer], peer, kFingerprint); }

Disagreement Handshake::exchange(const Fingerprint& mine, std::span<uint8_t> votes) {
  const at::Tensor outgoing = bytes(sizeof(Fingerprint));
  std::memcpy(outgoing.mutable_data_ptr(), &mine, sizeof(Fingerprint));
  // The first receives are not posted by the constructor: of a peer that is gone, that throws.
  for (const int peer : peers_)
    if (!expected_[peer].work) expect(peer);
  std::vector<Wire::Message> sent;
  for (const int peer : peers_) sent.push_back(wire_.send(outgoing, peer, kFingerprint));

  for (const int peer : peers_) {
    wire_.wait(expected_[peer]);
    Fingerprint theirs;
    std::memcpy(&theirs, inbox_[peer].const_data_ptr(), sizeof(Fingerprint));
    expect(peer);
    std::string differs = difference(mine, rank_, theirs, peer);
    // The other fingerprints may never come: the ranks no longer run the same program.
    if (!differs.empty()) return {peer, std::move(differs), theirs};
    if (mine.votes_fit()) merge_votes(votes, theirs.votes);
  }
  for (const auto& message : sent) {
    try {
      wire_.wait(message);
    } catch (const Interrupted&) {
      throw;
    } catch (const std::exception&) {
      // The peer's fingerprint is here. If it has left since, it needed nothing more, or the data will not come.
    }
  }
  if (!mine.votes_fit()) exchange_long_votes(votes);
  return {};
}

void Handshake::exchange_long_votes(std::span<uint8_t> votes) {
  const auto packed = pack_votes(votes);
  const at::Tensor outgoing = bytes(packed.size());
  std::memcpy(outgoing.mutable_data_ptr(), packed.data(), packed.size());
  std::vector<at::Tensor> incoming;
  std::vector<Wire::Message> messages;
  for (const int peer : peers_) {
    incoming.push_back(bytes(packed.size()));
    messages.push_back(wire_.recv(incoming.back(), peer, kVotes));
  }
  for (const int peer : peers_) messages.push_back(wire_.send(outgoing, peer, kVotes));
  for (const auto& message : messages) wire_.wait(message);
  for (const auto& bits : incoming) {
    merge_votes(votes, {bits.const_data_ptr<uint8_t>(), packed.size()});
  }
}

}  // namespace fsdp
