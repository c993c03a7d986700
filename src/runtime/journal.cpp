#include "runtime/journal.h"

#include <ATen/ops/empty.h>

namespace fsdp::runtime {
namespace {

at::Tensor message() { return at::empty({3}, at::kLong); }

}  // namespace

void Journal::tell(Event event) noexcept {
  if (error_) return;
  try {
    const auto text = message();
    auto* words = text.mutable_data_ptr<int64_t>();
    words[0] = static_cast<int64_t>(event.act);
    words[1] = event.first;
    words[2] = event.second;
    for (const int follower : followers_) in_flight_.push_back(communicator_.send(text, follower, {subject_, {}}));
  } catch (...) {
    error_ = std::current_exception();
  }
}

void Journal::finish(const std::function<void(Work&)>& wait) {
  if (error_) std::rethrow_exception(error_);
  for (const auto& work : in_flight_) wait(*work);
  in_flight_.clear();
}

Event hear(Communicator& communicator, int leader, const std::string& subject, const std::function<void(Work&)>& wait) {
  const auto text = message();
  wait(*communicator.recv(text, leader, {subject, {}}));
  const auto* words = text.const_data_ptr<int64_t>();
  return {static_cast<Act>(words[0]), words[1], words[2]};
}

}  // namespace fsdp::runtime
