#include "comm/shm/peers.h"

#include <c10/util/StringUtil.h>
#include <sched.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "comm/check.h"
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
  if (page_ == nullptr) return;
  status(rank_).has_left = 1;
  ring();
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

void Peers::check() const {
  if (page_ != nullptr && page_->failure.is_set()) raise(page_->failure.get(), place());
}

void Peers::fail(const Verdict& verdict) {
  if (page_ == nullptr) raise(verdict, place());
  page_->failure.set(verdict);
  while (!page_->failure.is_set()) pause_briefly();
  raise(page_->failure.get(), place());
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
    check();  // a rank that ends because of a failure has recorded it before
    if (ready()) return;
    if (verdict) fail(*verdict);
  }
}

Message Peers::receive(int peer, Descriptor& attached) {
  Watch watch(page_, links_, world_size_, rank_, peer, timeout_);
  while (true) {
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
  ++segments_;
  std::string error;
  std::shared_ptr<Mapping> mapping;
  const size_t whole = bytes + sizeof(SegmentHeader);
  try {
    mapping = rank_ == 0 ? offer(whole) : accept(whole);
  } catch (const Obstacle& obstacle) {
    error = c10::str("rank ", rank_, " cannot share memory for ", purpose, ": ", obstacle.what());
  }
  agree(std::move(error));
  offered_.reset();
  if (page_ != nullptr) announce_end();
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

// Throws on every rank alike if one of them has an error.
void Peers::agree(std::string error) {
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
  if (!error.empty()) throw Error(place() + error + '.');
}

}  // namespace fsdp::shm
