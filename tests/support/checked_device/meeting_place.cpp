#include "support/checked_device/meeting_place.h"

#include <c10/util/Exception.h>

#include <string>

namespace fsdp::test::checked {
namespace {

// Places that not all ranks have entered yet.
struct OpenPlaces {
  struct Entry {
    std::shared_ptr<MeetingPlace> place;
    int expected;
  };
  std::mutex mutex;
  std::map<int64_t, Entry> places;
  int64_t last = 0;
};

OpenPlaces& open_places() {
  static OpenPlaces instance;
  return instance;
}

}  // namespace

std::shared_ptr<MeetingPlace> MeetingPlace::enter(c10d::Store& store, int rank, int ranks,
                                                  std::chrono::milliseconds timeout) {
  auto& open = open_places();
  if (rank == 0) {
    auto place = std::make_shared<MeetingPlace>();
    std::unique_lock lock(open.mutex);
    const auto number = ++open.last;
    if (ranks > 1) open.places[number] = {place, ranks - 1};
    lock.unlock();
    store.set("meeting place", std::to_string(number));
    return place;
  }
  store.wait({"meeting place"}, timeout);
  const auto number = std::stoll(store.get_to_str("meeting place"));
  std::lock_guard lock(open.mutex);
  const auto entry = open.places.find(number);
  TORCH_CHECK(entry != open.places.end(), "rank ", rank, " came twice to a meeting place of ", ranks, " ranks");
  auto place = entry->second.place;
  if (--entry->second.expected == 0) open.places.erase(entry);
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
