#include "comm/shm/shm_communicator.h"

#include <map>
#include <numeric>
#include <utility>

#include "comm/core/check.h"
#include "comm/core/front.h"
#include "comm/shm/collectives.h"

namespace fsdp {
namespace {

using shm::Collectives;
using shm::kCollectiveSlotBytes, shm::kMessageSlotBytes;
using shm::Peers;
using shm::Writer;

// Bytes for the messages from one rank to another: two slots, and less than a page for the rest.
constexpr size_t kMessageBytes = 2 * kMessageSlotBytes + 4096;
static_assert(Collectives::bytes_needed(2, kMessageSlotBytes, /*writers=*/1) <= kMessageBytes);

class ShmCommunicator : public Front {
 public:
  ShmCommunicator(std::shared_ptr<Peers> peers, std::shared_ptr<TrafficCount> traffic, const std::string& name)
      : Front(peers->ranks(), "shared memory", c10::kCPU),
        peers_(std::move(peers)),
        traffic_(std::move(traffic)),
        memory_(peers_->share(collective_bytes() + kMessageBytes * static_cast<size_t>(world_size() * world_size()),
                              name.empty() ? "collectives" : str_cat("collectives of '", name, "'"),
                              shm::Paging::kWhenUsed, Collectives::head_bytes(static_cast<size_t>(world_size())))),
        collectives_(std::make_shared<Collectives>(peers_, all_ranks(), memory_, kCollectiveSlotBytes)) {}

  std::shared_ptr<Work> all_gather(std::vector<GatherPlane> planes, Tag tag) override {
    const auto fingerprint = checked_all_gather(planes, tag);
    return collectives_->start(fingerprint, gather_steps(std::move(planes), writer()));
  }

  std::shared_ptr<Work> reduce_scatter(std::vector<ReducePlane> planes, double scale, Tag tag) override {
    const auto fingerprint = checked_reduce_scatter(planes, tag);
    return collectives_->start(fingerprint, reduce_steps(std::move(planes), scale, writer()));
  }

  std::shared_ptr<Work> all_reduce(std::vector<at::Tensor> tensors, ReduceOp op, Tag tag) override {
    const auto fingerprint = checked_all_reduce(tensors, op, tag);
    for (auto& tensor : tensors) tensor = tensor.detach().view({-1});
    return collectives_->start(fingerprint, all_reduce_steps(tensors, op, writer()));
  }

  std::shared_ptr<Work> all_to_all(const at::Tensor& output, const at::Tensor& input, Tag tag) override {
    const auto fingerprint = checked_all_to_all(output, input, tag);
    return collectives_->start(fingerprint, all_to_all_steps(output, input, writer()));
  }

  std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root, Tag tag) override {
    const auto fingerprint = checked_broadcast(tensor, root, tag);
    return collectives_->start(fingerprint, copy_steps(tensor, root, rank() == root, writer()));
  }

  std::shared_ptr<Work> barrier(Tag tag) override {
    return collectives_->start(make_fingerprint(Operation::kBarrier, tag), {});
  }

  std::shared_ptr<Communicator> duplicate(const std::string& name) override {
    collectives_->start(make_fingerprint(Operation::kDuplicate, {name}), {})->wait();
    return std::make_shared<ShmCommunicator>(peers_, traffic_, name);
  }

  std::vector<std::shared_ptr<SharedBuffer>> share(std::span<const SharedPart> parts, c10::Device device) override {
    if (!device.is_cpu() || parts.empty()) return {};
    const MutexLock lock(peers_->own_rank->mutex);
    collectives_->finish_all();
    return shm::share_rows(peers_, parts);
  }

  std::vector<std::shared_ptr<HostBuffer>> share_on_host(std::span<const SharedPart> parts,
                                                         c10::Device device) override {
    if (!device.is_cpu() || parts.empty()) return {};
    const MutexLock lock(peers_->own_rank->mutex);
    collectives_->finish_all();
    return shm::share_host_memory(*peers_, parts);
  }

  void start_over() override { peers_->start_over(); }
  void fail(const std::string& operation, const std::string& error, std::optional<int> lost) override {
    const MutexLock lock(peers_->own_rank->mutex);
    peers_->tell(operation, error, lost);
  }
  void progress() override {
    const MutexLock lock(peers_->own_rank->mutex);
    collectives_->progress();
    for (const auto& [direction, queue] : messages_) queue->progress();
  }

 private:
  size_t collective_bytes() const {
    const auto ranks = static_cast<size_t>(world_size());
    return Collectives::bytes_needed(ranks, kCollectiveSlotBytes, ranks);
  }
  std::vector<int> all_ranks() const {
    std::vector<int> ranks(static_cast<size_t>(world_size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  Collectives& messages_with(int peer, bool sends) FSDP_REQUIRES(peers_->own_rank->mutex) {
    auto& queue = messages_[{peer, sends}];
    if (queue) return *queue;
    const int sender = sends ? rank() : peer, receiver = sends ? peer : rank();
    const size_t place = collective_bytes() + kMessageBytes * static_cast<size_t>(sender * world_size() + receiver);
    const std::shared_ptr<std::byte> memory(memory_, memory_.get() + place);
    peers_->take_pages_of(memory.get(), Collectives::head_bytes(2));
    queue = std::make_shared<Collectives>(peers_, std::vector{sender, receiver}, memory, kMessageSlotBytes);
    return *queue;
  }

  std::shared_ptr<Work> message(const Fingerprint& fingerprint, const at::Tensor& tensor) override {
    const MutexLock lock(peers_->own_rank->mutex);
    const bool sends = fingerprint.operation == Operation::kSend;
    return messages_with(fingerprint.peer, sends)
        .start(fingerprint, copy_steps(tensor, /*source=*/0, sends, writer(kMessageSlotBytes)));
  }

  Writer writer(size_t slot_bytes = kCollectiveSlotBytes) const {
    return {rank(), world_size(), slot_bytes, {traffic_, &traffic_->inside_host}};
  }

  const std::shared_ptr<Peers> peers_;
  const std::shared_ptr<TrafficCount> traffic_;
  // Memory for collectives, followed by memory for the messages of each pair of sender and receiver. Pages get memory
  // when they are used.
  const std::shared_ptr<std::byte> memory_;
  const std::shared_ptr<Collectives> collectives_;
  // The key is the peer and whether this rank sends.
  std::map<std::pair<int, bool>, std::shared_ptr<Collectives>> messages_ FSDP_GUARDED_BY(peers_->own_rank->mutex);
};

}  // namespace

std::shared_ptr<Communicator> make_shm_communicator(const std::vector<shm::Contact>& contacts, const Ranks& ranks,
                                                    std::chrono::milliseconds timeout,
                                                    std::shared_ptr<shm::OwnRank> own_rank,
                                                    std::shared_ptr<TrafficCount> traffic) {
  return std::make_shared<ShmCommunicator>(std::make_shared<Peers>(contacts, ranks, timeout, std::move(own_rank)),
                                           std::move(traffic), "");
}

}  // namespace fsdp
