#include "parallel/keys_on_host.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <c10/core/Allocator.h>
#include <fsdp/communicator.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/core/check.h"
#include "comm/group/attachment.h"
#include "comm/shm/segment.h"

namespace fsdp::parallel {
namespace {

constexpr auto kSubject = "keys and values";

// Shared memory that one call at a time uses. Each rank has a word there, which is 1 while the rank holds the segment.
class Segment : public std::enable_shared_from_this<Segment> {
 public:
  // `buffers` has two elements: one for the ranks' words, and one for keys and values.
  Segment(std::vector<std::shared_ptr<HostBuffer>> buffers, int rank)
      : words_(std::move(buffers[0])), blocks_(std::move(buffers[1])), words_stay_(words_->hold()), rank_(rank) {
    word(rank_) = 0;
  }
  static size_t bytes_of_words(int64_t ranks) { return static_cast<size_t>(ranks) * sizeof(uint32_t); }

  size_t bytes() const { return blocks_->bytes(); }
  bool is_free() const {
    for (int rank = 0; rank < blocks_->ranks(); ++rank)
      if (word(rank).load(std::memory_order_acquire) != 0) return false;
    return true;
  }

  // Returns a pointer to the memory for keys and values. This rank holds the segment until the last copy of the pointer
  // is destroyed. `used` is the number of bytes that the call uses.
  std::shared_ptr<std::byte> hold(size_t used) {
    word(rank_) = 1;
    auto hold = std::make_unique<Hold>(shared_from_this(), used);
    auto* data = static_cast<std::byte*>(blocks_->data());
    return {data, [kept = std::shared_ptr<Hold>(std::move(hold))](std::byte*) {}};
  }

 private:
  // While a Hold exists, this rank's word is 1. It reports this rank's part of the memory to LibTorch's profiler, so
  // that the ranks' reports add up to the memory in use.
  struct Hold {
    Hold(std::shared_ptr<Segment> held, size_t used)
        : segment(std::move(held)),
          part(static_cast<int64_t>(used) / segment->blocks_->ranks()),
          pages(segment->blocks_->hold()) {
      report(part);
    }
    ~Hold() {
      pages.clear();
      if (getpid() != process) return;  // a forked child must not release what its parent holds
      report(-part);
      segment->word(segment->rank_).store(0, std::memory_order_release);
    }
    void report(int64_t bytes) const {
      if (c10::memoryProfilingEnabled())
        c10::reportMemoryUsageToProfiler(segment->blocks_->data(), bytes, 0, 0, c10::kCPU);
    }

    const pid_t process = getpid();
    const std::shared_ptr<Segment> segment;
    const int64_t part;
    c10::DataPtr pages;
  };

  std::atomic<uint32_t>& word(int rank) const { return static_cast<std::atomic<uint32_t>*>(words_->data())[rank]; }

  const std::shared_ptr<HostBuffer> words_, blocks_;
  const c10::DataPtr words_stay_;
  const int rank_;
};

// The segments of a process group. Callers serialise their calls.
class Segments {
 public:
  // Returns memory of `bytes` bytes that no rank holds, in the same segment on every rank; null if the ranks do not all
  // share memory. Collective.
  std::shared_ptr<std::byte> take(Communicator& ranks, size_t bytes, const Tag& tag) {
    if (!are_shared_) are_shared_ = make(ranks, 1) != nullptr;
    if (!*are_shared_) return nullptr;
    const auto choice = agree(ranks, bytes, tag);
    if (choice) return segments_[*choice]->hold(bytes);
    segments_.push_back(make(ranks, std::bit_ceil(bytes)));  // pages that are not used take no memory
    return segments_.back()->hold(bytes);
  }

 private:
  static std::shared_ptr<Segment> make(Communicator& ranks, size_t bytes) {
    const SharedPart parts[] = {{kSubject, Segment::bytes_of_words(ranks.world_size())}, {kSubject, bytes}};
    auto buffers = ranks.share_on_host(parts, c10::kCPU);
    if (buffers.empty() || buffers[0]->ranks() != ranks.world_size()) return nullptr;
    return std::make_shared<Segment>(std::move(buffers), ranks.rank());
  }

  // Returns the index of the free segment that rank 0 chose, or nothing if there is none that all ranks know. Forgets
  // segments that not all ranks know. Collective.
  std::optional<size_t> agree(Communicator& ranks, size_t bytes, const Tag& tag) {
    const auto fits = std::ranges::find_if(
        segments_, [&](const auto& segment) { return segment->bytes() >= bytes && segment->is_free(); });
    const auto own = at::tensor({std::ssize(segments_), fits - segments_.begin()}, at::kLong);
    const auto all = at::empty({2 * ranks.world_size()}, at::kLong);
    ranks.all_gather(all, own, tag)->wait();
    const std::span<const int64_t> numbers(all.const_data_ptr<int64_t>(), static_cast<size_t>(all.numel()));
    int64_t known = numbers[0];
    for (size_t i = 2; i < numbers.size(); i += 2) known = std::min(known, numbers[i]);
    segments_.resize(static_cast<size_t>(known));
    return numbers[1] < known ? std::optional(static_cast<size_t>(numbers[1])) : std::nullopt;
  }

  std::optional<bool> are_shared_;
  std::vector<std::shared_ptr<Segment>> segments_;
};

}  // namespace

std::optional<KeysOnHost> keys_on_host(const AttentionPlan& plan, const at::Tensor& key, const at::Tensor& value) {
  if (plan.ranks() == 1 || !key.is_cpu()) return std::nullopt;
  const at::NoGradGuard no_grad;
  const auto queue = plan.queue();
  const Tag tag{str_cat(kSubject, " in shared memory, ", plan.name), {}};
  constexpr size_t kLine = 64;
  const auto bytes_of_all = [&](const at::Tensor& own) {
    return (own.nbytes() * static_cast<size_t>(plan.ranks()) + kLine - 1) / kLine * kLine;
  };
  const size_t bytes = bytes_of_all(key) + bytes_of_all(value);
  const auto memory = Attachment::of<Segments>(*plan.group)->take(*queue, bytes, tag);
  if (!memory) return std::nullopt;
  try {
    shm::take_pages(memory.get(), bytes);
  } catch (const shm::Obstacle& obstacle) {
    queue->fail(tag.subject, obstacle.what());
    throw Error(plan.group->where(tag.subject) + obstacle.what() + '.');
  }
  const auto whole = [&](const at::Tensor& own, size_t first_byte) {
    auto sizes = own.sizes().vec();
    sizes[2] *= plan.ranks();
    const auto all = at::from_blob(memory.get() + first_byte, sizes, [memory](void*) {}, own.options());
    all.narrow(2, plan.rank() * own.size(2), own.size(2)).copy_(own);
    return all;
  };
  KeysOnHost all{whole(key, 0), whole(value, bytes_of_all(key))};
  queue->barrier(tag)->wait();
  return all;
}

}  // namespace fsdp::parallel
