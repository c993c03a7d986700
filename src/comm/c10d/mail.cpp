#include "comm/c10d/mail.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <utility>

namespace fsdp {
namespace {

constexpr auto kHeader = Wire::Channel::kHeader, kData = Wire::Channel::kData;

// A header has a fingerprint, behind it what is enclosed, and a byte that says whether something is.
static_assert(sizeof(Fingerprint) % 64 == 0);
constexpr int64_t kHeaderBytes = sizeof(Fingerprint) + Mail::kEnclosedBytes + 1;
at::Tensor empty_header() { return at::zeros({kHeaderBytes}, at::kByte); }

std::byte* memory_of(const at::Tensor& bytes) { return static_cast<std::byte*>(bytes.mutable_data_ptr()); }
std::byte* enclosed_in(const at::Tensor& header) { return memory_of(header) + sizeof(Fingerprint); }
std::byte& flag_of(const at::Tensor& header) { return memory_of(header)[kHeaderBytes - 1]; }

// A tensor that is alone travels from where it lies and to where it belongs.
at::Tensor message_for(const Parcel& parcel) {
  return parcel.size() == 1 ? parcel.front() : at::empty({bytes_of(parcel)}, at::kByte);
}

}  // namespace

Mail::Mail(std::shared_ptr<Wire> wire, int rank, std::vector<int> peers, bool compares_first)
    : wire_(std::move(wire)), rank_(rank), peers_(std::move(peers)), compares_first_(compares_first) {}

void Mail::begin(const Fingerprint& mine, std::function<void()> agreed) {
  open(mine);
  if (compares_first_) {
    meet();
    open(mine);
  }
  agreed_ = std::move(agreed);
}

void Mail::open(const Fingerprint& mine) {
  prepare();
  mine_ = mine;
  latest_[mine.sequence % latest_.size()] = mine;
  for (auto& [peer, box] : boxes_) box.sent = box.answers = box.checked = false;
}

// The first receive is not posted before it is needed: of a peer that is gone, that throws.
Mail::Box& Mail::box_of(int peer) {
  auto& box = boxes_[peer];
  if (!box.outgoing.defined()) {
    box.outgoing = empty_header();
    box.incoming = empty_header();
  }
  if (!box.expected.work && !box.checked) box.expected = wire_->recv(box.incoming, peer, kHeader);
  return box;
}

void Mail::send(int peer, const std::vector<Parcel>& parcels, bool answered) {
  auto& box = box_of(peer);
  size_t next = 0;
  if (!std::exchange(box.sent, true)) {
    std::memcpy(memory_of(box.outgoing), &mine_, sizeof(Fingerprint));
    const bool encloses = !parcels.empty() && bytes_of(parcels[0]) <= kEnclosedBytes;
    if (encloses) pack(enclosed_in(box.outgoing), parcels[next++]);
    flag_of(box.outgoing) = std::byte{encloses};
    box.leaving = wire_->send(box.outgoing, peer, kHeader);
    box.answers = answered;
  }
  for (; next < parcels.size(); ++next) {
    const auto& parcel = parcels[next];
    const at::Tensor message = message_for(parcel);
    if (parcel.size() > 1) pack(memory_of(message), parcel);
    sent_.push_back({wire_->send(message, peer, kData), message, {}});
  }
}

void Mail::check(int peer) {
  auto& box = box_of(peer);
  if (box.checked) return;
  wire_->wait(std::exchange(box.expected, {}));
  Disagreement found;
  std::memcpy(&found.theirs, box.incoming.const_data_ptr(), sizeof(Fingerprint));
  found.peer = peer;
  // A header of an operation from which this rank expected none is late, and tells most beside that operation.
  const auto& past = latest_[found.theirs.sequence % latest_.size()];
  found.mine = past.sequence == found.theirs.sequence ? past : mine_;
  found.difference = difference(found.mine, rank_, found.theirs, peer);
  if (found.difference.empty() && found.mine.sequence != mine_.sequence) {
    found.mine = mine_;
    found.difference = difference(found.mine, rank_, found.theirs, peer);
  }
  if (!found.difference.empty()) throw found;
  box.checked = true;
  box.encloses = flag_of(box.incoming) != std::byte{0};
}

void Mail::receive(int peer, Parcel parcel) {
  check(peer);
  auto& box = boxes_.at(peer);
  if (std::exchange(box.encloses, false)) {
    unpack(parcel, enclosed_in(box.incoming));
    box.arriving.emplace_back();
    return;
  }
  const at::Tensor message = message_for(parcel);
  if (parcel.size() == 1) parcel.clear();
  box.arriving.push_back({wire_->recv(message, peer, kData), message, std::move(parcel)});
}

void Mail::receive(int peer, const std::vector<Parcel>& parcels) {
  if (parcels.empty()) return check(peer);
  for (const auto& parcel : parcels) receive(peer, parcel);
}

void Mail::wait(int peer) {
  note_agreement();
  auto& arriving = boxes_.at(peer).arriving;
  const auto [transfer, message, parcel] = std::move(arriving.front());
  arriving.pop_front();
  wire_->wait(transfer);
  if (!parcel.empty()) unpack(parcel, memory_of(message));
}

void Mail::finish() {
  // Who has answered expects this rank's header already; of others it is not known until it has left.
  for (auto& [peer, box] : boxes_) box.answers ? check(peer) : wire_->wait(std::exchange(box.leaving, {}));
  note_agreement();
  for (auto& [peer, box] : boxes_)
    while (!box.arriving.empty()) wait(peer);
  for (const auto& transit : std::exchange(sent_, {})) wire_->wait(transit.transfer);
}

void Mail::prepare() {
  for (auto& [peer, box] : boxes_) {
    try {
      wire_->wait(std::exchange(box.leaving, {}));
      if (box.checked && !box.expected.work) box.expected = wire_->recv(box.incoming, peer, kHeader);
    } catch (const std::exception&) {
      // A peer that has left since its header came needed nothing more. If there is another operation, that finds it.
    }
  }
}

void Mail::meet() {
  for (const int peer : peers_) send(peer);
  for (const int peer : peers_) check(peer);
}

void Mail::note_agreement() {
  if (const auto agreed = std::exchange(agreed_, nullptr)) agreed();
}

}  // namespace fsdp
