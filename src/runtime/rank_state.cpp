#include "runtime/rank_state.h"

namespace fsdp::runtime {

GroupId RankState::add(ParamGroup& group) {
  const MutexLock lock(mutex);
  groups_[++last_id_] = &group;
  tree.add(last_id_);
  return last_id_;
}

void RankState::remove(GroupId id) {
  const MutexLock lock(mutex);
  std::erase(residents, id);
  reads.orders.erase(id);
  std::erase(reducing, id);
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

// Adds the time for which it lives to `sum`.
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
  const RankLock::ScopedRelease others_go_on(mutex);
  work.wait();
}

void RankState::wait_to_write(SharedBuffer& rows, uint64_t epoch) {
  const Stopwatch stopwatch{waited_};
  const RankLock::ScopedRelease others_go_on(mutex);
  rows.begin_write(epoch);
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

}  // namespace fsdp::runtime
