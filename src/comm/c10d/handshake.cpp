#include "comm/c10d/handshake.h"

#include <ATen/ops/zeros.h>

#include <cstring>

namespace fsdp {
namespace {

constexpr auto kFingerprint = Wire::Channel::kFingerprint;

// A fingerprint, then what is enclosed.
static_assert(sizeof(Fingerprint) % 64 == 0);
at::Tensor empty_letter() { return at::zeros({sizeof(Fingerprint) + Handshake::kEnclosedBytes}, at::kByte); }

std::byte* memory_of(const at::Tensor& letter) { return static_cast<std::byte*>(letter.mutable_data_ptr()); }

std::span<std::byte> enclosed_in(const at::Tensor& letter) {
  return {memory_of(letter) + sizeof(Fingerprint), Handshake::kEnclosedBytes};
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
  return enclosed_in(mail.incoming[mail.arrived]);
}

Disagreement Handshake::exchange(const Fingerprint& mine, const Enclosure& enclosure) {
  // The first receives are not posted by the constructor: of a peer that is gone, that throws.
  for (const int peer : peers_)
    if (!mail_.at(peer).expected.work) expect(peer);
  std::vector<Wire::Transfer> sent;
  for (const int peer : peers_) {
    const auto& outgoing = mail_.at(peer).outgoing;
    std::memcpy(memory_of(outgoing), &mine, sizeof(Fingerprint));
    if (enclosure) enclosure(peer, enclosed_in(outgoing));
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
  return {};
}

}  // namespace fsdp
