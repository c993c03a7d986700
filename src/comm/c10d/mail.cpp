#include "comm/c10d/mail.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/core/check.h"
#include "comm/core/pieces.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds, std::chrono::steady_clock;

// Calls `act` for each tensor with the byte at which it begins in its parcel.
void visit(const Parcel& parcel, const auto& act) {
  int64_t begin = 0;
  for (const auto& tensor : parcel) {
    act(tensor, begin);
    begin = align_slice(begin + static_cast<int64_t>(tensor.nbytes()));
  }
}

void pack(std::byte* memory, const Parcel& parcel) {
  visit(parcel, [&](const at::Tensor& tensor, int64_t begin) {
    copy_bytes(memory + begin, tensor.const_data_ptr(), tensor.nbytes());
  });
}

void unpack(const Parcel& parcel, const std::byte* memory) {
  visit(parcel, [&](const at::Tensor& tensor, int64_t begin) {
    copy_bytes(tensor.mutable_data_ptr(), memory + begin, tensor.nbytes());
  });
}

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

std::vector<Parcel> parcels_of(std::span<const at::Tensor> tensors, int64_t most) {
  // Up to here a copy costs less than a message.
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
      for (const auto& stretch : tensor.split(most / static_cast<int64_t>(tensor.element_size()))) add(stretch);
    }
  }
  std::ranges::move(alone, std::back_inserter(shared));
  return shared;
}

int64_t bytes_of(const Parcel& parcel) {
  int64_t end = 0;
  visit(parcel, [&](const at::Tensor& tensor, int64_t begin) { end = begin + static_cast<int64_t>(tensor.nbytes()); });
  return end;
}

Parcel parcel_in(std::byte* memory, const Parcel& parcel) {
  Parcel tensors;
  visit(parcel, [&](const at::Tensor& tensor, int64_t begin) {
    tensors.push_back(at::from_blob(memory + begin, tensor.sizes(), tensor.options()));
  });
  return tensors;
}

void Mail::begin(const Fingerprint& mine, std::function<void()> agreed) {
  deadline_ = steady_clock::now() + options_.timeout;
  open(mine);
  if (options_.compares_first) {
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
  if (!box.expected.work && !box.checked) box.expected = post_recv(box.incoming, peer, Channel::kHeader);
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
    box.leaving = post_send(box.outgoing, peer, Channel::kHeader);
    box.answers = answered;
  }
  for (; next < parcels.size(); ++next) {
    const auto& parcel = parcels[next];
    const at::Tensor message = message_for(parcel);
    if (parcel.size() > 1) pack(memory_of(message), parcel);
    sent_.push_back({post_send(message, peer, Channel::kData), message, {}});
  }
}

void Mail::check(int peer) {
  auto& box = box_of(peer);
  if (box.checked) return;
  wait(std::exchange(box.expected, {}));
  Disagreement found;
  std::memcpy(&found.theirs, box.incoming.const_data_ptr(), sizeof(Fingerprint));
  found.peer = peer;
  // A header of an operation from which this rank expected none is late, and tells most beside that operation.
  const auto& past = latest_[found.theirs.sequence % latest_.size()];
  found.mine = past.sequence == found.theirs.sequence ? past : mine_;
  found.difference = difference(found.mine, options_.rank, found.theirs, peer);
  if (found.difference.empty() && found.mine.sequence != mine_.sequence) {
    found.mine = mine_;
    found.difference = difference(found.mine, options_.rank, found.theirs, peer);
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
  box.arriving.push_back({post_recv(message, peer, Channel::kData), message, std::move(parcel)});
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
  wait(transfer);
  if (!parcel.empty()) unpack(parcel, memory_of(message));
}

void Mail::finish() {
  // Who has answered expects this rank's header already; of others it is not known until it has left.
  for (auto& [peer, box] : boxes_) box.answers ? check(peer) : wait(std::exchange(box.leaving, {}));
  note_agreement();
  for (auto& [peer, box] : boxes_)
    while (!box.arriving.empty()) wait(peer);
  for (const auto& transit : std::exchange(sent_, {})) wait(transit.transfer);
}

void Mail::prepare() {
  for (auto& [peer, box] : boxes_) {
    // A peer that has left since its header came needed nothing more. If there is another operation, that finds it.
    try_to([&, &peer = peer, &box = box] {
      wait(std::exchange(box.leaving, {}));
      if (box.checked && !box.expected.work) box.expected = post_recv(box.incoming, peer, Channel::kHeader);
    });
  }
}

void Mail::meet() {
  for (const int peer : options_.peers) send(peer);
  for (const int peer : options_.peers) check(peer);
}

void Mail::note_agreement() {
  if (const auto agreed = std::exchange(agreed_, nullptr)) agreed();
}

Mail::Transfer Mail::post_send(const at::Tensor& tensor, int peer, Channel channel) {
  if (options_.traffic) options_.traffic->note_sent(peer, tensor.nbytes(), channel == Channel::kHeader);
  std::vector<at::Tensor> tensors{tensor};
  std::lock_guard lock(transport_->mutex);
  return {transport_->backend->send(tensors, peer, tag(channel)), peer};
}

Mail::Transfer Mail::post_recv(const at::Tensor& tensor, int peer, Channel channel) {
  if (options_.traffic && channel == Channel::kData) options_.traffic->note_received(peer, tensor.nbytes());
  std::vector<at::Tensor> tensors{tensor};
  std::lock_guard lock(transport_->mutex);
  return {transport_->backend->recv(tensors, peer, tag(channel)), peer};
}

// A wait that throws leaves waiting_for_ as it is: the report names that rank.
void Mail::wait(const Transfer& transfer) {
  if (!transfer.work) return;
  waiting_for_ = transfer.peer;
  const auto wait = [&] {
    // Rounded up: a wait that ends with it has taken the whole timeout.
    const auto left = std::chrono::ceil<milliseconds>(deadline_ - steady_clock::now());
    if (!transfer.work->wait(std::max(milliseconds(1), left))) throw Interrupted();
  };
  // The backend keeps an abort that comes before the wait, and ends it when it begins.
  wait_elsewhere(wait, [work = transfer.work] { work->abort(); });
  waiting_for_ = -1;
}

void Mail::wait_elsewhere(const std::function<void()>& wait, std::function<void()> end) {
  {
    std::lock_guard lock(mutex_);
    if (interrupted_) throw Interrupted();
    end_ = std::move(end);
  }
  std::exception_ptr error;
  try {
    wait();
  } catch (...) {
    error = std::current_exception();
  }
  std::lock_guard lock(mutex_);
  end_ = nullptr;
  changed_.notify_all();
  if (interrupted_) throw Interrupted();
  if (error) std::rethrow_exception(error);
}

void Mail::interrupt() {
  std::unique_lock lock(mutex_);
  interrupted_ = true;
  const auto end = end_;
  if (!end) return;
  lock.unlock();
  end();
  lock.lock();
  changed_.wait(lock, [&] { return !end_; });
}

}  // namespace fsdp
