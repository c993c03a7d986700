#include "comm/shm/peers.h"

#include <fsdp/error.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "comm/core/fault_point.h"
#include "comm/core/text.h"
#include "comm/failure/blame.h"
#include "comm/posix/futex.h"
#include "comm/shm/watch.h"

namespace fsdp::shm {
namespace {

using Clock = std::chrono::steady_clock;

// A peer that is nearly there comes before a system call would return.
constexpr std::chrono::microseconds kSpin{50};
// How long a waiting thread sleeps at most while other Peers of its rank have something in flight, whose bells it does
// not hear.
constexpr std::chrono::milliseconds kGlance{1};

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

bool spin_until(const std::function<bool()>& ready) {
  const auto end = Clock::now() + kSpin;
  while (Clock::now() < end) {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      pause_briefly();
    }
  }
  return false;
}

bool has_core_for_each(int ranks) {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 && CPU_COUNT(&cores) >= ranks;
}

void require_descriptor(const Descriptor& segment) {
  if (!segment.is_open())
    throw Obstacle("no descriptor arrived with the segment. Raise the limit on open files (ulimit -n)");
}

std::shared_ptr<std::byte> memory_of(std::shared_ptr<Mapping> mapping) {
  auto* data = mapping->data();
  return {std::move(mapping), data};
}

}  // namespace

// A thread of this rank waits for `peer` while this lives. Made and ended under the lock.
class Peers::WaitingThread {
 public:
  WaitingThread(Peers& peers, int peer) : peers_(peers), peer_(peer) {
    peers_.awaited_.push_back(peer_);
    if (peers_.page_ != nullptr) ++peers_.status(peer_).sleepers;
    show();
  }
  ~WaitingThread() {
    peers_.awaited_.erase(std::ranges::find(peers_.awaited_, peer_));
    if (peers_.page_ != nullptr) --peers_.status(peer_).sleepers;
    show();
  }
  WaitingThread(const WaitingThread&) = delete;
  WaitingThread& operator=(const WaitingThread&) = delete;

 private:
  void show() const {
    if (peers_.page_ != nullptr)
      peers_.status(peers_.ranks_.rank).waits_for = peers_.awaited_.empty() ? 0 : peers_.awaited_.back() + 1;
  }

  Peers& peers_;
  const int peer_;
};

Peers::Peers(Links links, Ranks ranks, std::chrono::milliseconds timeout, std::shared_ptr<OwnRank> own_rank)
    : own_rank_(std::move(own_rank)),
      links_(std::move(links)),
      ranks_(std::move(ranks)),
      timeout_(timeout),
      may_spin_(has_core_for_each(ranks_.world_size)) {
  memory_ = share(HostPage::bytes(ranks_.world_size), "the host page");
  page_ = reinterpret_cast<HostPage*>(memory_.get());
  const std::lock_guard lock(lock_);
  own_rank_->peers.push_back(this);
}

Peers::~Peers() {
  if (page_ == nullptr || !is_own_process()) return;
  {
    const std::lock_guard lock(lock_);
    std::erase(own_rank_->peers, this);
  }
  status(ranks_.rank).has_left = 1;
  ring();
  links_.leave();
}

void Peers::add(Progress& other) {
  const std::lock_guard lock(lock_);
  others_.push_back(&other);
}

// In a child that was forked, the lock may be held for ever.
void Peers::remove(Progress& other) {
  if (!is_own_process()) return;
  const std::lock_guard lock(lock_);
  std::erase(others_, &other);
}

void Peers::announce(const std::string& operation) {
  status(ranks_.rank).operation.set(operation);
  status(ranks_.rank).is_busy = 1;
}

std::string Peers::operation() const {
  return page_ == nullptr ? "init_process_group" : status(ranks_.rank).operation.get();
}

void Peers::ring() {
  auto& own = status(ranks_.rank);
  own.bell.fetch_add(1);
  if (own.sleepers.load() > 0) wake_all(own.bell);
}

void Peers::wake_threads() {
  for (const int peer : awaited_) {
    ++status(peer).bell;
    wake_all(status(peer).bell);
  }
}

// What ends every collective. While the ranks start over nothing recorded counts, only what this rank finds.
std::optional<Verdict> Peers::failure() const {
  if (lost_ || page_ == nullptr || is_starting_over_) return lost_;
  const int failed = page_->failed.load(std::memory_order_acquire);
  return failed == 0 ? std::nullopt : std::optional(status(failed - 1).verdict.get());
}

// The first one holds.
void Peers::record(const Verdict& verdict) {
  if (page_->failed.load() != 0) return;
  status(ranks_.rank).verdict.set(verdict);
  fault_point("verdict written");
  int32_t none = 0;
  page_->failed.compare_exchange_strong(none, ranks_.rank + 1);
}

void Peers::check() const {
  if (is_starting_over_) raise(starts_over(ranks_, last_operations(*page_, ranks_)), ranks_, operation());
  if (const auto verdict = failure()) raise(*verdict, ranks_, operation());
}

void Peers::fail(const Verdict& verdict) {
  if (is_starting_over_) lost_ = {Verdict::Kind::kPeerLost, verdict.rank, verdict.text};
  if (page_ != nullptr && !lost_) record(verdict);
  raise(failure().value_or(verdict), ranks_, operation());
}

void Peers::tell(const std::string& operation, const std::string& error, std::optional<int> lost) {
  if (is_starting_over_ || failure()) return;
  record(failed_alone(ranks_, operation, error, lost));
  ring();
  wake_threads();
}

void Peers::wait_for(int peer, const std::function<bool()>& ready, std::chrono::milliseconds& waited) {
  if (ready() || (may_spin_ && spin_until(ready))) return;
  const auto& bell = status(peer).bell;
  uint32_t heard = bell.load();
  make_progress();  // Before others see that this rank waits: what they wait for may come of it.
  Watch watch(page_, links_, ranks_, peer, timeout_, waited);
  const WaitingThread waiting(*this, peer);
  const uint32_t restarts = restarts_;
  while (true) {
    if (ready()) return;
    {
      const auto limit = is_under_way_elsewhere() ? kGlance : kLook;
      const RankLock::LetGo others_go_on(lock_);
      sleep_while(bell, heard, limit);
    }
    if (ready()) return;  // what was ready does not fail for what goes on beside it
    heard = bell.load();
    make_progress();
    if (ready()) return;
    require_no_restart(restarts);
    const auto verdict = watch.look();
    // In this order: a rank that ends because of a failure has recorded it before, and what was ready before a failure
    // is ready on every rank.
    const auto failed = failure();
    if (ready()) return;
    if (failed) raise(*failed, ranks_, operation());
    if (verdict) fail(*verdict);
  }
}

// Another thread of this rank has dropped what this one waits for.
void Peers::require_no_restart(uint32_t restarts) const {
  if (restarts_ != restarts)
    throw Error(prefix() + "dropped: the ranks started over. Start the iteration again on every rank.");
}

void Peers::start_over() {
  const std::lock_guard lock(lock_);
  if (const auto before = failure(); before && before->kind == Verdict::Kind::kPeerLost)
    raise(*before, ranks_, operation());
  announce("starting over");
  record(starts_over(ranks_, last_operations(*page_, ranks_)));
  is_starting_over_ = true;
  const std::unique_ptr<bool, void (*)(bool*)> until_the_end(&is_starting_over_, [](bool* is) { *is = false; });
  for (auto* other : others_) other->drop();
  meet_again();
  // Every rank is here, and none goes on before the next meeting.
  fault_point("starting over");
  empty_links();
  for (auto* other : others_) other->begin_anew();
  if (ranks_.rank == 0) page_->failed = 0;
  meet_again();
  announce_end();
  blame(ranks_.name(), -1);
}

// Returns when every rank has come as often as this one.
void Peers::meet_again() {
  status(ranks_.rank).restarts.store(++restarts_);
  ring();
  std::chrono::milliseconds waited{0};
  for (int peer = 0; peer < ranks_.world_size; ++peer)
    if (peer != ranks_.rank) wait_for(peer, [&] { return status(peer).restarts.load() >= restarts_; }, waited);
}

// Messages of a segment that was never shared.
void Peers::empty_links() {
  for (int peer = 0; peer < ranks_.world_size; ++peer)
    if (peer != ranks_.rank) links_.drain(peer);
  segments_ = uint64_t{restarts_} << 32;
}

// A failure elsewhere ends what waits there, and nothing here.
void Peers::make_progress() {
  for (size_t i = 0; i < own_rank_->peers.size(); ++i) {
    auto* peers = own_rank_->peers[i];
    if (peers != this) try {
        peers->make_progress_here();
      } catch (const std::exception&) {
        // Of the collective there, which keeps it.
      }
  }
  make_progress_here();
}

bool Peers::is_under_way_elsewhere() const {
  return std::ranges::any_of(own_rank_->peers, [this](const Peers* peers) {
    return peers != this && std::ranges::any_of(peers->others_, &Progress::is_under_way);
  });
}

// Others may be added meanwhile.
void Peers::make_progress_here() {
  for (size_t i = 0; i < others_.size(); ++i) others_[i]->progress();
}

std::shared_ptr<std::byte> Peers::give(int peer, uint64_t channel, size_t bytes) {
  try {
    const auto segment = make_segment(bytes);
    auto mapping = map_segment(segment, bytes);
    links_.send(peer, {.bytes = bytes, .channel = channel}, segment);
    ring();
    return memory_of(std::move(mapping));
  } catch (const Obstacle& obstacle) {
    throw Error(str_cat(prefix(), "rank ", ranks_.name(), " cannot share memory for messages to rank ",
                        ranks_.name_of(peer), ": ", obstacle.what(), '.'));
  }
}

std::shared_ptr<std::byte> Peers::take(int peer, uint64_t channel, size_t bytes) {
  const auto arrived = links_.receive(peer, std::chrono::milliseconds(0), channel);
  if (!arrived) return nullptr;
  try {
    require_descriptor(arrived->second);
    return memory_of(map_segment(arrived->second, bytes));
  } catch (const Obstacle& obstacle) {
    throw Error(str_cat(prefix(), "rank ", ranks_.name(), " cannot share memory for messages from rank ",
                        ranks_.name_of(peer), ": ", obstacle.what(), '.'));
  }
}

Notice Peers::receive(int peer, Descriptor& attached, std::chrono::milliseconds& waited) {
  Watch watch(page_, links_, ranks_, peer, timeout_, waited);
  const WaitingThread waiting(*this, peer);
  const uint32_t restarts = restarts_;
  Notice notice;
  const auto arrives = [&] {
    auto arrived = links_.receive(peer, std::chrono::milliseconds(0));
    if (arrived) std::tie(notice, attached) = std::move(*arrived);
    return arrived.has_value();
  };
  while (true) {
    make_progress();
    if (arrives()) return notice;
    {
      const RankLock::LetGo others_go_on(lock_);
      links_.await(peer, kLook);
    }
    require_no_restart(restarts);
    const auto verdict = watch.look();
    if (arrives()) return notice;  // a rank may leave after it has sent
    check();
    if (verdict) fail(*verdict);
  }
}

std::unique_lock<std::mutex> Peers::take_turn_to_share() {
  const RankLock::LetGo others_go_on(lock_);
  return std::unique_lock(sharing_);
}

// Rank 0 makes the segment and sends it to the others; then all tell rank 0, and it tells all, whether they have it.
std::shared_ptr<std::byte> Peers::share(size_t bytes, const std::string& purpose, Paging paging) {
  const std::lock_guard lock(lock_);
  const auto turn = take_turn_to_share();
  if (page_ != nullptr) announce("sharing memory for " + purpose);
  check();
  fault_point("segment wanted");
  ++segments_;
  std::string error;
  std::shared_ptr<Mapping> mapping;
  std::chrono::milliseconds waited{0};
  try {
    mapping = ranks_.rank == 0 ? offer(bytes, paging) : accept(bytes, waited);
  } catch (const Obstacle& obstacle) {
    error = str_cat("rank ", ranks_.name(), " cannot share memory for ", purpose, ": ", obstacle.what());
  }
  fault_point("segment mapped");
  error = agree(std::move(error), waited);
  fault_point("segment agreed");
  if (page_ != nullptr) announce_end();
  if (!error.empty()) throw Error(prefix() + error + '.');
  return memory_of(std::move(mapping));
}

std::shared_ptr<Mapping> Peers::offer(size_t bytes, Paging paging) {
  Notice notice{.number = segments_};
  Descriptor segment;
  const auto send_to_all = [&] {
    for (int peer = 1; peer < ranks_.world_size; ++peer) links_.send(peer, notice, segment);
  };
  std::shared_ptr<Mapping> mapping;
  try {
    segment = make_segment(bytes, paging);
    mapping = map_segment(segment, bytes);
  } catch (const Obstacle&) {
    segment.close();
    send_to_all();
    throw;
  }
  notice.bytes = bytes;
  send_to_all();
  return mapping;
}

std::shared_ptr<Mapping> Peers::accept(size_t bytes, std::chrono::milliseconds& waited) {
  Descriptor segment;
  const Notice notice = receive(0, segment, waited);
  if (notice.bytes == 0 && notice.number == segments_) return nullptr;  // rank 0 says why
  if (notice.number != segments_ || notice.bytes != bytes)
    throw Obstacle(str_cat("it expects ", bytes, " bytes in segment #", segments_, ", rank ", ranks_.name_of(0),
                           " offers ", notice.bytes, " in #", notice.number,
                           ": the ranks do not build the same model"));
  require_descriptor(segment);
  return map_segment(segment, bytes);
}

// An error of one of the ranks, the same on all of them; empty if none has one.
std::string Peers::agree(std::string error, std::chrono::milliseconds& waited) {
  const auto notice_of = [&](const std::string& text) {
    Notice notice{.number = segments_};
    text.copy(notice.error.data(), notice.error.size() - 1);
    return notice;
  };
  Descriptor none;
  if (ranks_.rank == 0) {
    for (int peer = 1; peer < ranks_.world_size; ++peer) {
      const Notice answer = receive(peer, none, waited);
      if (error.empty()) error = answer.error.data();
    }
    for (int peer = 1; peer < ranks_.world_size; ++peer) links_.send(peer, notice_of(error));
  } else {
    links_.send(0, notice_of(error));
    error = receive(0, none, waited).error.data();
  }
  return error;
}

}  // namespace fsdp::shm
