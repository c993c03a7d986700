#include "comm/shm/watch.h"

#include <algorithm>
#include <vector>

#include "comm/core/text.h"

namespace fsdp::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Rank 0 hands out the host page: it is the first to say who did not come.
constexpr milliseconds kPatienceWithRank0{2000};

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
      last_look_(Clock::now()) {}

Watch::~Watch() { count(); }

// While this rank was stopped, it did not wait.
void Watch::count() {
  const auto now = Clock::now();
  waited_ += std::min(std::chrono::duration_cast<milliseconds>(now - last_look_), 2 * kLook);
  last_look_ = now;
}

std::optional<Verdict> Watch::look() {
  count();
  if (links_.is_closed(peer_)) return lost(peer_, has_left(peer_) ? "has left the process group" : "has ended");
  return waited_ < timeout_ ? std::nullopt : std::optional(timed_out());
}

bool Watch::has_left(int rank) const { return page_ != nullptr && page_->ranks[rank].has_left.load() != 0; }

Verdict Watch::lost(int rank, const std::string& how) const {
  return {Verdict::Kind::kPeerLost, ranks_.name_of(rank),
          str_cat("rank ", ranks_.name_of(rank), ' ', how, '.', page_ == nullptr ? "" : last_operations(*page_, ranks_),
                  kLookAtLost)};
}

Verdict Watch::timed_out() const {
  const std::string silent = "was silent for " + in_seconds(timeout_);
  if (page_ == nullptr) return lost(peer_, silent);
  std::vector<int> waits_for;
  for (int rank = 0; rank < ranks_.world_size; ++rank) {
    const bool waits = rank == ranks_.rank || links_.is_running(rank);  // one that is stopped keeps the others waiting
    waits_for.push_back(waits ? page_->ranks[rank].waits_for.load() - 1 : -1);
  }
  waits_for[ranks_.rank] = peer_;  // whatever other threads of this rank do
  const int culprit = find_culprit(waits_for, ranks_.rank);
  if (!links_.is_running(culprit)) return lost(culprit, silent);
  return did_not_join(ranks_, culprit, page_->ranks[ranks_.rank].operation.get(), "", last_operations(*page_, ranks_));
}

}  // namespace fsdp::shm
