#include "comm/shm/watch.h"

#include <algorithm>
#include <vector>

#include "comm/core/text.h"
#include "comm/failure/culprit.h"

namespace fsdp::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// If all ranks wait for this long and nobody rings a bell, they do so for ever.
constexpr milliseconds kQuiet{1000};
// Rank 0 hands out the host page: it is the first to say who did not come.
constexpr milliseconds kPatienceWithRank0{2000};

int64_t now_ms() { return std::chrono::duration_cast<milliseconds>(Clock::now().time_since_epoch()).count(); }

// A rank that sleeps looks up every kLook; one that is stopped does not.
bool looked_lately(const RankStatus& status) { return now_ms() - status.looked_at_ms.load() < 3 * kLook.count(); }

std::vector<Waiting> who_waits(const HostPage& page, int world_size) {
  std::vector<Waiting> waiting;
  for (int rank = 0; rank < world_size; ++rank) {
    const auto& status = page.ranks[rank];
    waiting.push_back({status.waits_for.load() - 1, looked_lately(status)});
  }
  return waiting;
}

}  // namespace

std::string last_operations(const HostPage& page, const Ranks& ranks) {
  std::string text = " Last operations:";
  for (int rank = 0; rank < ranks.world_size; ++rank) {
    const auto& status = page.ranks[rank];
    const std::string operation = status.operation.get();
    const int waits_for = status.waits_for.load() - 1;
    text += str_cat(rank == 0 ? " " : "; ", "rank ", ranks.name_of(rank), ": ", operation.empty() ? "none" : operation);
    if (waits_for >= 0)
      text += str_cat(", waiting for rank ", ranks.name_of(waits_for));
    else if (!operation.empty())
      text += status.is_busy.load() != 0 ? ", in progress" : ", done";
  }
  return text + '.';
}

Watch::Watch(HostPage* page, const Links& links, const Ranks& ranks, int peer, milliseconds timeout,
             milliseconds& waited)
    : page_(page),
      links_(links),
      ranks_(ranks),
      peer_(peer),
      timeout_(page == nullptr && ranks.rank != 0 ? timeout + kPatienceWithRank0 : timeout),
      waited_(waited),
      last_look_(Clock::now()) {
  if (page_ != nullptr) page_->ranks[ranks_.rank].looked_at_ms = now_ms();
}

Watch::~Watch() { count(); }

// While this rank was stopped, it did not wait.
void Watch::count() {
  const auto now = Clock::now();
  waited_ += std::min(std::chrono::duration_cast<milliseconds>(now - last_look_), 2 * kLook);
  last_look_ = now;
}

std::optional<Verdict> Watch::look() {
  count();
  if (page_ != nullptr) page_->ranks[ranks_.rank].looked_at_ms = now_ms();
  if (links_.is_closed(peer_)) return lost(peer_, has_left(peer_) ? "has left the process group" : "has ended");
  if (auto deadlock = find_deadlock()) return deadlock;
  return waited_ < timeout_ ? std::nullopt : std::optional(timed_out());
}

bool Watch::has_left(int rank) const { return page_ != nullptr && page_->ranks[rank].has_left.load() != 0; }

Verdict Watch::lost(int rank, const std::string& how) const {
  return {Verdict::Kind::kPeerLost, ranks_.name_of(rank),
          str_cat("rank ", ranks_.name_of(rank), ' ', how, '.', page_ == nullptr ? "" : last_operations(*page_, ranks_),
                  kLookAtLost)};
}

int Watch::find_culprit() const {
  if (page_ == nullptr) return peer_;
  auto waiting = who_waits(*page_, ranks_.world_size);
  waiting[ranks_.rank] = {peer_, true};  // whatever other threads of this rank do
  return fsdp::find_culprit(waiting, ranks_.rank);
}

Verdict Watch::timed_out() const {
  const int culprit = find_culprit();
  if (page_ == nullptr || !links_.is_running(culprit)) return lost(culprit, "was silent for " + in_seconds(timeout_));
  return did_not_join(ranks_, culprit, page_->ranks[ranks_.rank].operation.get(), "", last_operations(*page_, ranks_));
}

uint32_t Watch::bells() const {
  uint32_t sum = 0;
  for (int rank = 0; rank < ranks_.world_size; ++rank) sum += page_->ranks[rank].bell.load();
  return sum;
}

std::optional<Verdict> Watch::find_deadlock() {
  if (page_ == nullptr) return std::nullopt;
  const uint32_t bells_now = bells();
  // A rank that computes may still do what the others need.
  if (!all_wait(who_waits(*page_, ranks_.world_size)) || bells_now != last_bells_) quiet_since_ = Clock::now();
  last_bells_ = bells_now;
  if (Clock::now() - quiet_since_ < kQuiet) return std::nullopt;
  return wait_for_each_other(ranks_, ranks_.rank, page_->ranks[ranks_.rank].operation.get(), peer_,
                             page_->ranks[peer_].operation.get(), last_operations(*page_, ranks_));
}

}  // namespace fsdp::shm
