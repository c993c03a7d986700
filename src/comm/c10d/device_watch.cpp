#include "comm/c10d/device_watch.h"

#include <c10/util/thread_name.h>

#include <chrono>
#include <future>
#include <thread>
#include <utility>

namespace fsdp {
namespace {

constexpr std::chrono::milliseconds kGlance{100};
// A device that does not end what it runs must not keep the threads of the host.
constexpr std::chrono::seconds kLongestAbort{10};

}  // namespace

void DeviceWatch::add(std::weak_ptr<Order> order) {
  std::lock_guard lock(mutex_);
  orders_.push_back(std::move(order));
  if (!std::exchange(runs_, true)) std::thread([this] { run(); }).detach();
}

void DeviceWatch::note_gone() {
  std::lock_guard lock(mutex_);
  has_gone_ = true;
  changed_.notify_all();
}

void DeviceWatch::note_issued() {
  std::lock_guard lock(mutex_);
  if (!std::exchange(is_needed_, true)) changed_.notify_all();
}

std::vector<std::shared_ptr<DeviceWatch::Order>> DeviceWatch::orders() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Order>> alive;
  for (const auto& weak : orders_)
    if (auto order = weak.lock()) alive.push_back(std::move(order));
  return alive;
}

void DeviceWatch::compare_all(c10::Device device) {
  for (const auto& order : orders())
    if (order->device() == device) order->compare();
}

void DeviceWatch::fail_all(c10::Device device, const Failure& failure) {
  std::vector<std::shared_ptr<Order>> failed;
  for (auto& order : orders())
    if (order->device() == device && order->fail(failure)) failed.push_back(std::move(order));
  std::vector<std::future<void>> aborts;
  for (auto& order : failed) {
    std::promise<void> aborted;
    aborts.push_back(aborted.get_future());
    std::thread([failure, order = std::move(order), aborted = std::move(aborted)]() mutable {
      order->abort();
      aborted.set_value();
      order->pass_on(failure());
    }).detach();
  }
  const auto deadline = std::chrono::steady_clock::now() + kLongestAbort;
  for (const auto& abort : aborts) abort.wait_until(deadline);
}

void DeviceWatch::run() {
  c10::setThreadName("fsdp-device");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_needed_ || has_gone_; });
    if (is_needed_ && !has_gone_) changed_.wait_for(lock, kGlance, [&] { return has_gone_; });
    has_gone_ = is_needed_ = false;
    std::erase_if(orders_, [](const auto& weak) { return weak.expired(); });
    if (orders_.empty()) break;
    lock.unlock();
    bool is_needed = false;
    for (const auto& order : orders()) is_needed |= order->look();
    lock.lock();
    is_needed_ |= is_needed;
  }
  runs_ = false;
}

}  // namespace fsdp
