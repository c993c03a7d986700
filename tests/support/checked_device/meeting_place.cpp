#include "support/checked_device/meeting_place.h"

#include <c10/util/Exception.h>

#include <condition_variable>
#include <mutex>

#include "support/checked_device/findings.h"

namespace fsdp::test::checked {
namespace {

constexpr const char* kAdvice = "Every rank must launch the same collectives of all communicators in the same order";

// All meeting places share these three variables.
std::mutex mutex;
std::condition_variable changed;
std::map<std::string, std::weak_ptr<MeetingPlace>> open_places;  // keyed by the name in the store

}  // namespace

std::map<c10::DeviceIndex, MeetingPlace::Waiter> MeetingPlace::waiters_;

std::shared_ptr<MeetingPlace> MeetingPlace::enter(c10d::Store& store, int rank, c10::Device device,
                                                  std::chrono::milliseconds timeout) {
  constexpr const char* kKey = "meeting place";
  static int last = 0;
  std::shared_ptr<MeetingPlace> place;
  if (rank == 0) {
    place = std::make_shared<MeetingPlace>();
    std::unique_lock lock(mutex);
    std::erase_if(open_places, [](const auto& item) { return item.second.expired(); });
    const auto name = std::to_string(++last);
    open_places[name] = place;
    lock.unlock();
    store.set(kKey, name);
  } else {
    store.wait({kKey}, timeout);
    const auto name = store.get_to_str(kKey);
    std::lock_guard lock(mutex);
    place = open_places[name].lock();
    TORCH_CHECK(place != nullptr, "rank 0 has left the meeting place");
  }
  std::lock_guard lock(mutex);
  place->devices_[rank] = device.index();
  return place;
}

void MeetingPlace::post(int from, int to, Message message) {
  std::lock_guard lock(mutex);
  boxes_[{from, to}].push_back(std::move(message));
  changed.notify_all();
}

void MeetingPlace::leave(int rank) {
  std::lock_guard lock(mutex);
  left_.insert(rank);
  changed.notify_all();
}

// Returns true if the rank for which `waiter` waits itself waits, directly or through other ranks, for the waiter's
// rank.
bool MeetingPlace::closes_circle(const Waiter& waiter) const {
  const auto own = devices_.at(waiter.box.second);
  const auto* last = &waiter;
  for (size_t steps = 0; steps <= waiters_.size(); ++steps) {
    const auto peer = last->place->devices_.find(last->box.first);
    if (peer == last->place->devices_.end()) return false;  // the rank has not entered yet
    const auto next = waiters_.find(peer->second);
    if (next == waiters_.end() || !next->second.place->boxes_[next->second.box].empty()) return false;
    const auto& other = next->second;
    last = &other;
    const auto sender = other.place->devices_.find(other.box.first);
    if (sender == other.place->devices_.end()) return false;
    if (sender->second != own) continue;
    report(Fault::kOrder, c10::str(other.what, " waits for device ", int{own}),
           c10::str(waiter.what, " of device ", int{own}), kAdvice);
    return true;
  }
  return false;
}

Bytes MeetingPlace::take(int from, int to, const std::string& what, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex);
  auto& box = boxes_[{from, to}];
  const auto is_decided = [&] { return !box.empty() || left_.contains(from) || left_.contains(to); };
  if (!is_decided()) {
    const Waiter self{this, {from, to}, what};
    // Ranks send and receive messages on a separate thread, so a rank that waits for a message may still launch what
    // other ranks wait for.
    const bool blocks_rank = what != kMessage;
    if (blocks_rank && closes_circle(self)) {
      const auto other = waiters_.at(devices_.at(from));
      for (auto* place : {this, other.place})
        for (const auto& [rank, device] : place->devices_) place->left_.insert(rank);
      changed.notify_all();
    } else {
      if (blocks_rank) waiters_.insert_or_assign(devices_.at(to), self);
      changed.wait_for(lock, timeout, is_decided);
      if (blocks_rank) waiters_.erase(devices_.at(to));
    }
  }
  if (box.empty()) throw NeverComes();
  if (box.front().what != what) {
    // If a take() ended because a rank had left, its message may have arrived later and may still be in the box.
    if (left_.contains(from) || left_.contains(to)) throw NeverComes();
    report(Fault::kOrder, c10::str(box.front().what, " of device ", int{devices_.at(from)}),
           c10::str(what, " of device ", int{devices_.at(to)}), kAdvice);
    throw NeverComes();
  }
  Bytes bytes = std::move(box.front().bytes);
  box.pop_front();
  return bytes;
}

}  // namespace fsdp::test::checked
