#include "comm/shm/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "comm/core/text.h"

namespace fsdp::shm {
namespace {

size_t whole_pages(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

struct alignas(64) Holds {
  std::atomic<uint64_t> count;
};

class HostMemory : public HostBuffer, public std::enable_shared_from_this<HostMemory> {
 public:
  HostMemory(std::shared_ptr<Holds> holds, std::shared_ptr<std::byte> memory, size_t bytes, int ranks)
      : holds_(std::move(holds)), memory_(std::move(memory)), bytes_(bytes), ranks_(ranks) {}

  void* data() const override { return memory_.get(); }
  size_t bytes() const override { return bytes_; }
  int ranks() const override { return ranks_; }
  c10::DataPtr hold() override {
    ++holds_->count;
    return {data(), new std::shared_ptr<HostMemory>(shared_from_this()), &HostMemory::give_back, c10::kCPU};
  }

 private:
  static void give_back(void* context) {
    const std::unique_ptr<std::shared_ptr<HostMemory>> memory(static_cast<std::shared_ptr<HostMemory>*>(context));
    (*memory)->let_go();
  }

  // A child that was forked has no hold of its own. Where pages cannot be given back they stay.
  void let_go() {
    if (getpid() == process_ && --holds_->count == 0) madvise(memory_.get(), whole_pages(bytes_), MADV_REMOVE);
  }

  const pid_t process_ = getpid();
  const std::shared_ptr<Holds> holds_;
  const std::shared_ptr<std::byte> memory_;
  const size_t bytes_;
  const int ranks_;
};

}  // namespace

std::vector<std::shared_ptr<HostBuffer>> share_host_memory(Peers& peers, std::span<const SharedPart> parts) {
  const size_t head = whole_pages(parts.size() * sizeof(Holds));
  size_t bytes = head;
  for (const auto& part : parts) bytes += whole_pages(part.bytes);
  auto purpose = "the whole parameters of '" + parts.back().subject + "'";
  if (parts.size() > 1) purpose += str_cat(" and ", parts.size() - 1, " others");
  const auto memory = peers.share(bytes, purpose, Paging::kWhenUsed);
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
