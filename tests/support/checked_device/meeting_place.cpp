#include "support/checked_device/meeting_place.h"

#include <c10/util/Exception.h>

#include <string>

namespace fsdp::test::checked {
namespace {

std::mutex open_mutex;
std::map<std::string, std::weak_ptr<MeetingPlace>> open_places;  // keyed by the name in the store

}  // namespace

std::shared_ptr<MeetingPlace> MeetingPlace::enter(c10d::Store& store, int rank, std::chrono::milliseconds timeout) {
  constexpr const char* kKey = "meeting place";
  static int last = 0;
  if (rank == 0) {
    const auto place = std::make_shared<MeetingPlace>();
    std::lock_guard lock(open_mutex);
    std::erase_if(open_places, [](const auto& item) { return item.second.expired(); });
    const auto name = std::to_string(++last);
    open_places[name] = place;
    store.set(kKey, name);
    return place;
  }
  store.wait({kKey}, timeout);
  const auto name = store.get_to_str(kKey);
  std::lock_guard lock(open_mutex);
  auto place = open_places[name].lock();
  TORCH_CHECK(place != nullptr, "rank 0 has left the meeting place");
  return place;
}

void MeetingPlace::post(int from, int to, Bytes message) {
  std::lock_guard lock(mutex_);
  boxes_[{from, to}].push_back(std::move(message));
  changed_.notify_all();
}

Bytes MeetingPlace::take(int from, int to, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  auto& box = boxes_[{from, to}];
  TORCH_CHECK(changed_.wait_for(lock, timeout, [&] { return !box.empty(); }), "no message from rank ", from);
  Bytes message = std::move(box.front());
  box.pop_front();
  return message;
}

}  // namespace fsdp::test::checked
