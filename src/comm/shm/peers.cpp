#include "comm/shm/peers.h"

#include <c10/util/StringUtil.h>
#include <sched.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "comm/check.h"
#include "comm/fault_point.h"
#include "comm/shm/futex.h"
#include "comm/shm/watch.h"

namespace fsdp::shm {
namespace {

using Clock = std::chrono::steady_clock;

// A peer that is nearly there comes before a system call would return.
constexpr std::chrono::microseconds kSpin{50};

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

// Two ranks with the same number are threads of one process.
uint64_t process_number() {
  static const uint64_t random = std::random_device()();
  return random << 32 ^ static_cast<uint64_t>(getpid());
}

// In front of a segment: how a rank that is a thread of the offering rank's process finds its mapping.
struct alignas(64) SegmentHeader {
  std::atomic<const std::shared_ptr<Mapping>*> owner;
};

}  // namespace

Peers::Peers(Links links, int rank, int world_size, std::chrono::milliseconds timeout)
    : links_(std::move(links)),
      rank_(rank),
      world_size_(world_size),
      timeout_(timeout),
      may_spin_(has_core_for_each(world_size)) {
  memory_ = share(HostPage::bytes(world_size), "the host page");
  page_ = reinterpret_cast<HostPage*>(memory_.get());
}

Peers::~Peers() {
  if (page_ == nullptr || !is_own_process()) return;
  status(rank_).has_left = 1;
  ring();
  links_.leave();
}

void Peers::announce(const std::string& operation) {
  status(rank_).operation.set(operation);
  status(rank_).is_busy = 1;
}

std::string Peers::place() const {
  return where(rank_, world_size_, page_ == nullptr ? "init_process_group" : status(rank_).operation.get());
}

void Peers::ring() {
  auto& own = status(rank_);
  own.bell.fetch_add(1);
  if (own.sleepers.load() > 0) wake_all(own.bell);
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
  status(rank_).verdict.set(verdict);
  fault_point("verdict written");
  int32_t none = 0;
  page_->failed.compare_exchange_strong(none, rank_ + 1);
}

void Peers::check() const {
  if (const auto verdict = failure()) raise(*verdict, place());
}

void Peers::fail(const Verdict& verdict) {
  if (is_starting_over_) lost_ = {Verdict::Kind::kPeerLost, verdict.rank, verdict.text};
  if (page_ != nullptr && !lost_) record(verdict);
  raise(failure().value_or(verdict), place());
}

void Peers::wait_for(int peer, const std::function<bool()>& ready) {
  if (ready() || (may_spin_ && spin_until(ready))) return;
  Watch watch(page_, links_, world_size_, rank_, peer, timeout_);
  auto& its = status(peer);
  its.sleepers.fetch_add(1);
  const std::unique_ptr<RankStatus, void (*)(RankStatus*)> asleep(&its,
                                                                  [](RankStatus* s) { s->sleepers.fetch_sub(1); });
  while (true) {
    const uint32_t heard = its.bell.load();
    if (ready()) return;
    for (auto* other : others_) other->progress();
    sleep_while(its.bell, heard, kLook);
    if (ready()) return;
    const auto verdict = watch.look();
    // In this order: a rank that ends because of a failure has recorded it before, and what was ready before a failure
    // is ready on every rank.
    const auto failed = failure();
    if (ready()) return;
    if (failed) raise(*failed, place());
    if (verdict) fail(*verdict);
  }
}

void Peers::start_over() {
  if (const auto before = failure(); before && before->kind == Verdict::Kind::kPeerLost) raise(*before, place());
  announce("starting over");
  record(starts_over(rank_, last_operations(*page_, world_size_)));
  is_starting_over_ = true;
  const std::unique_ptr<bool, void (*)(bool*)> until_the_end(&is_starting_over_, [](bool* is) { *is = false; });
  for (auto* other : others_) other->drop();
  meet_again();
  // Every rank is here, and none goes on before the next meeting.
  fault_point("starting over");
  empty_links();
  for (auto* other : others_) other->begin_anew();
  if (rank_ == 0) page_->failed = 0;
  meet_again();
  announce_end();
}

// Returns when every rank has come as often as this one.
void Peers::meet_again() {
  status(rank_).restarts.store(++restarts_);
  ring();
  for (int peer = 0; peer < world_size_; ++peer)
    if (peer != rank_) wait_for(peer, [&] { return status(peer).restarts.load() >= restarts_; });
}

// Messages of a segment that was never shared.
void Peers::empty_links() {
  for (int peer = 0; peer < world_size_; ++peer)
    while (peer != rank_ && links_.receive(peer, std::chrono::milliseconds(0))) {
    }
  segments_ = uint64_t{restarts_} << 32;
  offered_.reset();
}

Message Peers::receive(int peer, Descriptor& attached) {
  Watch watch(page_, links_, world_size_, rank_, peer, timeout_);
  while (true) {
    for (auto* other : others_) other->progress();
    if (auto arrived = links_.receive(peer, kLook)) {
      attached = std::move(arrived->second);
      return arrived->first;
    }
    const auto verdict = watch.look();
    check();
    if (verdict) fail(*verdict);
  }
}

// Rank 0 makes the segment and sends it to the others; then all tell rank 0, and it tells all, whether they have it.
std::shared_ptr<std::byte> Peers::share(size_t bytes, const std::string& purpose) {
  if (page_ != nullptr) announce("sharing memory for " + purpose);
  check();
  fault_point("segment wanted");
  ++segments_;
  std::string error;
  std::shared_ptr<Mapping> mapping;
  const size_t whole = bytes + sizeof(SegmentHeader);
  try {
    mapping = rank_ == 0 ? offer(whole) : accept(whole);
  } catch (const Obstacle& obstacle) {
    error = c10::str("rank ", rank_, " cannot share memory for ", purpose, ": ", obstacle.what());
  }
  fault_point("segment mapped");
  error = agree(std::move(error));
  fault_point("segment agreed");
  offered_.reset();
  if (page_ != nullptr) announce_end();
  if (!error.empty()) throw Error(place() + error + '.');
  return {mapping, mapping->data() + sizeof(SegmentHeader)};
}

std::shared_ptr<Mapping> Peers::offer(size_t bytes) {
  Message message{segments_, bytes, process_number(), nullptr, {}};
  Descriptor segment;
  const auto send_to_all = [&] {
    for (int peer = 1; peer < world_size_; ++peer) links_.send(peer, message, segment);
  };
  try {
    segment = make_segment(bytes);
    offered_ = std::make_shared<Mapping>(segment, bytes);
  } catch (const Obstacle&) {
    send_to_all();  // without an address: there is nothing to map
    throw;
  }
  auto* header = reinterpret_cast<SegmentHeader*>(offered_->data());
  header->owner.store(&offered_, std::memory_order_release);
  message.address = header;
  send_to_all();
  return offered_;
}

std::shared_ptr<Mapping> Peers::accept(size_t bytes) {
  Descriptor segment;
  const Message message = receive(0, segment);
  if (message.number != segments_ || message.bytes != bytes)
    throw Obstacle(c10::str("it expects ", bytes, " bytes in segment #", segments_, ", rank 0 offers ", message.bytes,
                            " in #", message.number, ": the ranks do not build the same model"));
  if (message.address == nullptr) return nullptr;  // rank 0 says why
  if (message.process == process_number())
    return *static_cast<const SegmentHeader*>(message.address)->owner.load(std::memory_order_acquire);
  if (!segment.is_open())
    throw Obstacle("no descriptor arrived with the segment. Raise the limit on open files (ulimit -n)");
  return std::make_shared<Mapping>(segment, bytes);
}

// An error of one of the ranks, the same on all of them; empty if none has one.
std::string Peers::agree(std::string error) {
  const auto message_of = [&](const std::string& text) {
    Message message{segments_, 0, 0, nullptr, {}};
    text.copy(message.error.data(), message.error.size() - 1);
    return message;
  };
  Descriptor none;
  if (rank_ == 0) {
    for (int peer = 1; peer < world_size_; ++peer) {
      const Message answer = receive(peer, none);
      if (error.empty()) error = answer.error.data();
    }
    for (int peer = 1; peer < world_size_; ++peer) links_.send(peer, message_of(error));
  } else {
    links_.send(0, message_of(error));
    error = receive(0, none).error.data();
  }
  return error;
}

}  // namespace fsdp::shm
