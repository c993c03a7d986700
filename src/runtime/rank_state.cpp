#include "runtime/rank_state.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <mutex>

namespace fsdp::runtime {

GroupId RankState::add(ParamGroup& group) {
  std::lock_guard lock(mutex);
  groups_[++last_id_] = &group;
  tree.add(last_id_);
  return last_id_;
}

void RankState::remove(GroupId id) {
  std::lock_guard lock(mutex);
  residents.forget(id);
  reads.orders.erase(id);
  backwards.forget_reducing(id);
  groups_.erase(id);
  tree.remove(id);
  readers_at_rest.erase(id);
}

ParamGroup* RankState::group(GroupId id) const {
  auto it = groups_.find(id);
  return it == groups_.end() ? nullptr : it->second;
}

std::vector<ParamGroup*> RankState::groups() const {
  std::vector<ParamGroup*> all;
  for (const auto& [id, group] : groups_) all.push_back(group);
  return all;
}

namespace {

at::Tensor message() { return at::empty({3}, at::kLong); }

// Adds the time until it goes.
struct Stopwatch {
  using Clock = std::chrono::steady_clock;
  std::atomic<Clock::rep>& sum;
  const Clock::time_point begun = Clock::now();
  ~Stopwatch() { sum += (Clock::now() - begun).count(); }
};

}  // namespace

void RankState::wait(Work& work) {
  const Stopwatch stopwatch{waited_};
  if (!work.lets_others_go_on()) return work.wait();
  const RankLock::LetGo others_go_on(mutex);
  work.wait();
}

void RankState::wait_to_write(SharedBuffer& rows, uint64_t epoch) {
  const Stopwatch stopwatch{waited_};
  const RankLock::LetGo others_go_on(mutex);
  rows.begin_write(epoch);
}

void RankState::tell(const Event& event) {
  if (journal != nullptr) journal->tell(event);
}

void RankState::note_forward() {
  if (measured_since_.load() == Clock::time_point()) measured_since_ = Clock::now();
}

void RankState::forget_waiting() {
  measured_since_ = Clock::time_point();
  waited_ = 0;
}

std::optional<double> RankState::waiting_share() const {
  const auto since = measured_since_.load();
  if (since == Clock::time_point()) return std::nullopt;
  using Seconds = std::chrono::duration<double>;
  return Seconds(Clock::duration(waited_.load())) / Seconds(Clock::now() - since);
}

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
