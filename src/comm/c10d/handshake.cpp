#include "comm/c10d/handshake.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>

namespace fsdp {
namespace {

constexpr auto kFingerprint = Wire::Channel::kFingerprint;
constexpr auto kVotes = Wire::Channel::kVotes;

at::Tensor bytes(size_t size) { return at::empty({static_cast<int64_t>(size)}, at::kByte); }

// A fingerprint, then what is enclosed.
at::Tensor empty_letter() { return at::zeros({sizeof(Fingerprint) + Handshake::kEnclosedBytes}, at::kByte); }

void write(const at::Tensor& letter, const Fingerprint& fingerprint, std::span<const std::byte> enclosed) {
  auto* memory = static_cast<std::byte*>(letter.mutable_data_ptr());
  std::memcpy(memory, &fingerprint, sizeof(Fingerprint));
  TORCH_INTERNAL_ASSERT(enclosed.size() <= Handshake::kEnclosedBytes);
  if (!enclosed.empty()) std::memcpy(memory + sizeof(Fingerprint), enclosed.data(), enclosed.size());
}

}  // namespace

Handshake::Handshake(std::shared_ptr<Wire> wire, int rank, std::vector<int> peers)
    : wire_(std::move(wire)), rank_(rank), peers_(std::move(peers)) {
  for (const int peer : peers_) {
    auto& mail = mail_[peer];
    mail.outgoing = empty_letter();
    for (auto& letter : mail.incoming) letter = empty_letter();
  }
}

void Handshake::expect(int peer) {
  auto& mail = mail_.at(peer);
  mail.expected = wire_->recv(mail.incoming[1 - mail.arrived], peer, kFingerprint);
}

std::span<std::byte> Handshake::enclosed_by(int peer) const {
  const auto& mail = mail_.at(peer);
  auto* memory = static_cast<std::byte*>(mail.incoming[mail.arrived].mutable_data_ptr());
  return {memory + sizeof(Fingerprint), kEnclosedBytes};
}

Disagreement Handshake::exchange(const Fingerprint& mine, std::span<uint8_t> votes, const Enclosure& enclosure) {
  // The first receives are not posted by the constructor: of a peer that is gone, that throws.
  for (const int peer : peers_)
    if (!mail_.at(peer).expected.work) expect(peer);
  std::vector<Wire::Transfer> sent;
  for (const int peer : peers_) {
    const auto& outgoing = mail_.at(peer).outgoing;
    write(outgoing, mine, enclosure ? enclosure(peer) : std::span<const std::byte>());
    sent.push_back(wire_->send(outgoing, peer, kFingerprint));
  }

  for (const int peer : peers_) {
    auto& mail = mail_.at(peer);
    wire_->wait(mail.expected);
    mail.arrived = 1 - mail.arrived;
    Fingerprint theirs;
    std::memcpy(&theirs, mail.incoming[mail.arrived].const_data_ptr(), sizeof(Fingerprint));
    mail.expected = {};
    try {
      expect(peer);
    } catch (const std::exception&) {
      // It has left since, which is no error of this exchange. If there is another one, that finds it.
    }
    std::string differs = difference(mine, rank_, theirs, peer);
    // The other fingerprints may never come: the ranks no longer run the same program.
    if (!differs.empty()) return {peer, std::move(differs), theirs};
    if (mine.votes_fit()) merge_votes(votes, theirs.votes);
  }
  for (const auto& transfer : sent) {
    try {
      wire_->wait(transfer);
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
  std::vector<Wire::Transfer> transfers;
  for (const int peer : peers_) {
    incoming.push_back(bytes(packed.size()));
    transfers.push_back(wire_->recv(incoming.back(), peer, kVotes));
  }
  for (const int peer : peers_) transfers.push_back(wire_->send(outgoing, peer, kVotes));
  for (const auto& transfer : transfers) wire_->wait(transfer);
  for (const auto& bits : incoming) {
    merge_votes(votes, {bits.const_data_ptr<uint8_t>(), packed.size()});
  }
}

}  // namespace fsdp
