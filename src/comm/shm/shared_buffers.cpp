// Buffers that exist once for all ranks of a host.

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "comm/core/fault_point.h"
#include "comm/core/text.h"
#include "comm/shm/peers.h"

namespace fsdp::shm {
namespace {

std::string purpose_of(const char* what, std::span<const SharedPart> parts) {
  return str_cat("the ", what, " of '", parts.back().subject, '\'',
                 parts.size() > 1 ? str_cat(" and ", parts.size() - 1, " others") : "");
}

// Rows of a flat buffer that all ranks map. In front of the buffer, each rank has a word with the epoch (see
// SharedBuffer) in which it reads; 0 if it does not read.
//
// A reader sets its word before it posts the barrier that opens its epoch, so every rank that has passed the barrier
// sees the word. Only writers wait: readers never wait for each other, and a writer waits only for slower readers.
// Thread-safe; `begin_read` and `end_read` take no lock.
class SharedRows : public SharedBuffer {
 public:
  // `memory` is `bytes_needed` zero bytes that all ranks share.
  SharedRows(std::shared_ptr<Peers> peers, std::shared_ptr<std::byte> memory, const std::string& subject)
      : peers_(std::move(peers)), subject_("the rows of '" + subject + "'"), memory_(std::move(memory)) {}
  // Returns the size of a buffer of `bytes` with its words, rounded up so that another one can follow.
  static size_t bytes_needed(size_t bytes, int world_size) {
    constexpr size_t kLine = alignof(Reading);
    return sizeof(Reading) * static_cast<size_t>(world_size) + (bytes + kLine - 1) / kLine * kLine;
  }
  ~SharedRows() override { SharedRows::end_read(); }

  void* data() const override { return words() + peers_->world_size(); }
  void begin_read(uint64_t epoch) override {
    words()[peers_->rank()].epoch.store(epoch, std::memory_order_release);
    fault_point("rows reading");
  }

  void end_read() override {
    auto& own = words()[peers_->rank()].epoch;
    if (own.load(std::memory_order_relaxed) == 0 || !peers_->is_own_process()) return;
    fault_point("rows read");
    own.store(0, std::memory_order_release);
    peers_->ring();
  }

  void begin_write(uint64_t epoch) override {
    const MutexLock lock(peers_->own_rank->mutex);
    end_read();
    peers_->announce("a write to " + subject_);
    fault_point("rows gate");
    std::chrono::nanoseconds waited{0};
    for (int peer = 0; peer < peers_->world_size(); ++peer) {
      if (peer == peers_->rank()) continue;  // another thread of this rank may have begun to read
      const auto& reading = words()[peer].epoch;
      const auto reads_no_more = [&] {
        const uint64_t read = reading.load(std::memory_order_acquire);
        return read == 0 || read > epoch || peers_->has_left(peer);
      };
      peers_->wait_for(peer, reads_no_more, waited);
    }
    fault_point("rows writing");
    peers_->announce_end();
  }

 private:
  struct alignas(64) Reading {
    std::atomic<uint64_t> epoch;
  };
  Reading* words() const { return reinterpret_cast<Reading*>(memory_.get()); }

  const std::shared_ptr<Peers> peers_;
  const std::string subject_;
  const std::shared_ptr<std::byte> memory_;
};

size_t whole_pages(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

struct alignas(64) Holds {
  std::atomic<uint64_t> count;
};

// Memory that the ranks of a host share. In front of the buffers, a counter for each buffer has the number of all
// ranks' holds on it. The rank that releases the last hold returns the pages to the system. No rank writes meanwhile,
// because a gather begins only when every rank has released what was gathered before.
class HostMemory : public HostBuffer, public std::enable_shared_from_this<HostMemory> {
 public:
  HostMemory(std::shared_ptr<Holds> holds, std::shared_ptr<std::byte> memory, size_t bytes, int ranks)
      : holds_(std::move(holds)), memory_(std::move(memory)), bytes_(bytes), ranks_(ranks) {}

  void* data() const override { return memory_.get(); }
  size_t bytes() const override { return bytes_; }
  int ranks() const override { return ranks_; }
  c10::DataPtr hold() override {
    ++holds_->count;
    return c10::InefficientStdFunctionContext::makeDataPtr(
        data(), [self = shared_from_this()](void*) { self->release(); }, c10::kCPU);
  }

 private:
  // A forked child has no holds. If the system does not take the pages back, they stay.
  void release() {
    if (getpid() == process_ && --holds_->count == 0) madvise(memory_.get(), whole_pages(bytes_), MADV_REMOVE);
  }

  const pid_t process_ = getpid();
  const std::shared_ptr<Holds> holds_;
  const std::shared_ptr<std::byte> memory_;
  const size_t bytes_;
  const int ranks_;
};

}  // namespace

std::vector<std::shared_ptr<SharedBuffer>> share_rows(const std::shared_ptr<Peers>& peers,
                                                      std::span<const SharedPart> parts) {
  size_t bytes = 0;
  for (const auto& part : parts) bytes += SharedRows::bytes_needed(part.bytes, peers->world_size());
  const auto memory = peers->share(bytes, purpose_of("rows", parts));
  std::vector<std::shared_ptr<SharedBuffer>> buffers;
  auto* next = memory.get();
  for (const auto& part : parts) {
    buffers.push_back(std::make_shared<SharedRows>(peers, std::shared_ptr<std::byte>(memory, next), part.subject));
    next += SharedRows::bytes_needed(part.bytes, peers->world_size());
  }
  return buffers;
}

std::vector<std::shared_ptr<HostBuffer>> share_host_memory(Peers& peers, std::span<const SharedPart> parts) {
  const size_t head = whole_pages(parts.size() * sizeof(Holds));
  size_t bytes = head;
  for (const auto& part : parts) bytes += whole_pages(part.bytes);
  const auto memory = peers.share(bytes, purpose_of("whole parameters", parts), Paging::kWhenUsed, head);
  const std::shared_ptr<Holds> holds(memory, reinterpret_cast<Holds*>(memory.get()));
  std::vector<std::shared_ptr<HostBuffer>> buffers;
  auto* next = memory.get() + head;
  for (size_t i = 0; i < parts.size(); ++i) {
    buffers.push_back(std::make_shared<HostMemory>(std::shared_ptr<Holds>(holds, holds.get() + i),
                                                   std::shared_ptr<std::byte>(memory, next), parts[i].bytes,
                                                   peers.world_size()));
    next += whole_pages(parts[i].bytes);
  }
  return buffers;
}

}  // namespace fsdp::shm
