#include "comm/c10d/mail.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "comm/core/check.h"
#include "comm/core/fault_point.h"
#include "comm/core/pieces.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds, std::chrono::steady_clock;

// The beginning of a header. The enclosed parcel follows, if there is one.
struct alignas(64) Heading {
  Fingerprint fingerprint;
  bool encloses;
};
constexpr int64_t kFrontBytes = sizeof(Heading);
Heading& heading_of(const at::Tensor& header) { return *static_cast<Heading*>(header.mutable_data_ptr()); }
at::Tensor empty_header() { return at::empty({kFrontBytes + Mail::kEnclosedBytes}, at::kByte); }
bool can_be_enclosed(const Parcel& parcel) { return bytes_of(parcel) <= Mail::kEnclosedBytes; }

// Returns a hash that is equal on both ranks if their operations match.
uint64_t hash_of(Fingerprint operation) {
  if (operation.operation == Operation::kRecv) operation.operation = Operation::kSend;
  if (operation.operation == Operation::kSend) operation.peer = -1;
  return hash_compared(operation, 0);
}

// Returns the memory of a parcel's message. A single tensor is sent from its own memory and received into it.
at::Tensor message_for(const Parcel& parcel) {
  return parcel.size() == 1 ? parcel.front() : at::empty({bytes_of(parcel)}, at::kByte);
}

}  // namespace

std::vector<Parcel> parcels_of(std::span<const at::Tensor> tensors, int64_t most) {
  // Up to kSmall bytes a copy costs less than a message.
  constexpr int64_t kSmall = int64_t{16} << 10, kTogether = int64_t{64} << 10;
  std::vector<Parcel> shared, alone;
  int64_t room = 0;
  const auto add = [&](const at::Tensor& tensor) {
    const int64_t bytes = align_slice(static_cast<int64_t>(tensor.nbytes()));
    if (bytes == 0) return;
    if (bytes > kSmall) return alone.push_back({tensor});
    if (bytes > room) {
      shared.emplace_back();
      room = kTogether;
    }
    shared.back().push_back(tensor);
    room -= bytes;
  };
  for (const auto& tensor : tensors) {
    if (static_cast<int64_t>(tensor.nbytes()) <= most) {
      add(tensor);
    } else {
      for (const auto& range : tensor.split(most / static_cast<int64_t>(tensor.element_size()))) add(range);
    }
  }
  std::ranges::move(alone, std::back_inserter(shared));
  return shared;
}

int64_t bytes_of(const Parcel& parcel) {
  int64_t end = 0;
  for (const auto& tensor : parcel) end = align_slice(end) + static_cast<int64_t>(tensor.nbytes());
  return end;
}

Parcel parcel_in(const at::Tensor& memory, const Parcel& parcel) {
  Parcel tensors;
  int64_t begin = 0;
  for (const auto& tensor : parcel) {
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    tensors.push_back(memory.narrow(0, begin, bytes).view(tensor.scalar_type()).view(tensor.sizes()));
    begin = align_slice(begin + bytes);
  }
  return tensors;
}

void Mail::begin(const Fingerprint& mine) {
  deadline_ = steady_clock::now() + options_.timeout;
  open(mine);
  if (options_.compares_first) {
    meet();
    open(mine);
  }
}

void Mail::open(const Fingerprint& mine) {
  prepare();
  mine_ = mine;
  latest_[mine.sequence % latest_.size()] = mine;
  for (auto& [peer, box] : boxes_) box.sent = box.answers = box.checked = false;
}

// Posts the first receives from a peer only when they are needed, because posting them throws if the peer is gone.
Mail::Box& Mail::box_of(int peer) {
  auto& box = boxes_[peer];
  if (!box.outgoing.defined()) {
    box.outgoing = empty_header();
    for (int i = 0; i < 2; ++i) expect_header(box, peer, empty_header());
  }
  if (box.expected.empty() && !box.checked) expect_header(box, peer, box.incoming);
  return box;
}

void Mail::expect_header(Box& box, int peer, at::Tensor memory) {
  auto transfer = post(false, memory, peer, Channel::kHeader);
  box.expected.push_back({{}, std::move(memory), std::move(transfer)});
}

void Mail::send(int peer, const std::vector<Parcel>& parcels, bool answered) {
  auto& box = box_of(peer);
  size_t next = 0;
  if (!std::exchange(box.sent, true)) {
    const bool encloses = !parcels.empty() && can_be_enclosed(parcels[0]);
    heading_of(box.outgoing) = {mine_, encloses};
    const int64_t enclosed = encloses ? bytes_of(parcels[0]) : 0;
    if (encloses) copy_bytes(parcel_in(box.outgoing.narrow(0, kFrontBytes, enclosed), parcels[0]), parcels[next++]);
    box.leaving = post(true, box.outgoing.narrow(0, 0, kFrontBytes + enclosed), peer, Channel::kHeader);
    box.answers = answered;
  }
  for (; next < parcels.size(); ++next) {
    const auto& parcel = parcels[next];
    const at::Tensor message = message_for(parcel);
    if (parcel.size() > 1) copy_bytes(parcel_in(message, parcel), parcel);
    box.sent_parcels.push_back(post(true, message, peer, can_be_enclosed(parcel) ? Channel::kSmall : Channel::kLarge));
  }
}

void Mail::check(int peer) {
  auto& box = box_of(peer);
  if (box.checked) return;
  const auto expected = std::move(box.expected.front());
  box.expected.pop_front();
  box.incoming = expected.memory;
  wait(expected.transfer, peer);
  Disagreement found;
  found.theirs = heading_of(box.incoming).fingerprint;
  found.peer = peer;
  // The header may belong to an earlier operation in which this rank expected none from the peer. Then the comparison
  // with that operation explains the difference best.
  const auto compare_with = [&](const Fingerprint& mine) {
    found.mine = mine;
    found.difference = difference(mine, options_.rank, found.theirs, peer);
    if (!found.difference.empty()) throw found;
  };
  const auto& past = latest_[found.theirs.sequence % latest_.size()];
  if (past.sequence == found.theirs.sequence) compare_with(past);
  compare_with(mine_);
  box.checked = true;
  post_receives(box, peer);
}

void Mail::receive(int peer, std::vector<Parcel> parcels) {
  auto& box = box_of(peer);
  for (auto& parcel : parcels) box.arriving.push_back({std::move(parcel)});
  post_receives(box, peer);
}

// Posts the receives that can be posted now. Those of small parcels must wait for the header, which tells whether a
// parcel is enclosed in it.
void Mail::post_receives(Box& box, int peer) {
  for (auto& [parcel, memory, transfer] : box.arriving) {
    const bool is_small = can_be_enclosed(parcel);
    if (memory.defined() || (is_small && !box.checked)) continue;
    if (is_small && std::exchange(heading_of(box.incoming).encloses, false)) {
      memory = box.incoming.narrow(0, kFrontBytes, bytes_of(parcel));
      if (options_.traffic) options_.traffic->note_received(peer, memory.nbytes());
    } else {
      memory = message_for(parcel);
      transfer = post(false, memory, peer, is_small ? Channel::kSmall : Channel::kLarge);
    }
  }
}

void Mail::agree() {
  for (const auto& [peer, box] : boxes_)
    if (box.answers) check(peer);
  fault_point("lane agreed");
}

void Mail::wait(int peer) {
  check(peer);
  auto& arriving = boxes_.at(peer).arriving;
  const auto [parcel, memory, transfer] = std::move(arriving.front());
  arriving.pop_front();
  wait(transfer, peer);
  if (!transfer || parcel.size() > 1) copy_bytes(parcel, parcel_in(memory, parcel));
}

void Mail::finish() {
  agree();
  // A peer whose header has arrived has posted the receive of this rank's header. For other peers this is not certain
  // until the header has been sent.
  for (auto& [peer, box] : boxes_)
    if (!box.answers) wait(std::exchange(box.leaving, {}), peer);
  for (auto& [peer, box] : boxes_)
    while (!box.arriving.empty()) wait(peer);
  for (auto& [peer, box] : boxes_)
    for (const auto& transfer : std::exchange(box.sent_parcels, {})) wait(transfer, peer);
}

void Mail::prepare() {
  for (auto& [peer, box] : boxes_) {
    // A peer that has left since its header arrived needed nothing more. If there is another operation, that one will
    // notice that the peer has left.
    try_to([&, &peer = peer, &box = box] {
      wait(std::exchange(box.leaving, {}), peer);
      if (box.checked && box.expected.size() < 2) expect_header(box, peer, box.incoming);
    });
  }
}

void Mail::meet() {
  for (const int peer : options_.peers) send(peer);
  for (const int peer : options_.peers) check(peer);
}

Mail::Transfer Mail::post(bool sends, const at::Tensor& tensor, int peer, Channel channel) {
  constexpr int kHashes = 1 << 15;
  const bool is_header = channel == Channel::kHeader;
  const int hash = is_header ? 0 : static_cast<int>(hash_of(mine_) % kHashes);
  const int tag = (4 * options_.queue + static_cast<int>(channel)) * kHashes + hash;
  if (options_.traffic && sends)
    options_.traffic->note_sent(peer, tensor.nbytes() - (is_header ? kFrontBytes : 0), is_header);
  if (options_.traffic && !sends && !is_header) options_.traffic->note_received(peer, tensor.nbytes());
  std::vector<at::Tensor> tensors{tensor};
  const MutexLock lock(transport_->mutex);
  auto& backend = *transport_->backend;
  return sends ? backend.send(tensors, peer, tag) : backend.recv(tensors, peer, tag);
}

// A wait that throws keeps waiting_for_, because the report names that rank.
void Mail::wait(const Transfer& transfer, int peer) {
  if (!transfer) return;
  waiting_for_ = peer;
  const auto wait = [&] {
    // The time is rounded up, so that a wait that times out has taken the whole timeout.
    const auto left = std::chrono::ceil<milliseconds>(deadline_ - steady_clock::now());
    if (!transfer->wait(std::max(milliseconds(1), left))) throw Interrupted();
  };
  // If abort() comes before the wait, the backend ends the wait when it begins.
  wait_elsewhere(wait, [transfer] { transfer->abort(); });
  waiting_for_ = -1;
}

void Mail::wait_elsewhere(const std::function<void()>& wait, std::function<void()> end) {
  {
    const MutexLock lock(mutex_);
    if (interrupted_) throw Interrupted();
    end_ = std::move(end);
  }
  FirstError error;
  error.run(wait);
  const MutexLock lock(mutex_);
  end_ = nullptr;
  changed_.notify_all();
  if (interrupted_) throw Interrupted();
  error.rethrow();
}

void Mail::interrupt() {
  MutexLock lock(mutex_);
  interrupted_ = true;
  const auto end = end_;
  if (!end) return;
  lock.unlock();
  end();
  lock.lock();
  changed_.wait(lock, [&]() FSDP_REQUIRES(mutex_) { return !end_; });
}

}  // namespace fsdp
