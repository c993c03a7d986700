#include "comm/shm/shm_communicator.h"

#include <algorithm>
#include <map>
#include <utility>

#include "comm/core/check.h"
#include "comm/core/front.h"
#include "comm/shm/collectives.h"
#include "comm/shm/shared_buffers.h"
#include "comm/shm/steps.h"

namespace fsdp {
namespace {

using shm::Collectives;
using shm::Peers;
using shm::Rounds;
using shm::Steps;
using shm::Writer;

constexpr size_t kLeastSlotBytes = size_t{256} << 10;
// Larger reductions go through in several rounds: slots stay in caches and cost no memory that only the largest group
// needs once a step.
constexpr size_t kMostSlotBytes = size_t{2} << 20;
constexpr size_t kMessageSlotBytes = size_t{64} << 10;
// What messages from one rank to another take: two slots, and less than a page beside them.
constexpr size_t kMessageBytes = 2 * kMessageSlotBytes + 4096;
static_assert(Rounds::bytes_needed(2, kMessageSlotBytes, /*writers=*/1) <= kMessageBytes);

size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

class ShmCommunicator : public Front {
 public:
  ShmCommunicator(std::shared_ptr<Peers> peers, std::shared_ptr<TrafficCount> traffic, const std::string& name)
      : Front(peers->ranks(), "shared memory", c10::kCPU),
        peers_(std::move(peers)),
        traffic_(std::move(traffic)),
        name_(name),
        collectives_(std::make_shared<Collectives>(peers_, make_rounds(kLeastSlotBytes), name_)),
        message_memory_(peers_->share(kMessageBytes * static_cast<size_t>(world_size() * world_size()),
                                      purpose("messages"), shm::Paging::kWhenUsed)) {}

  std::shared_ptr<Work> all_gather(std::vector<GatherPlane> planes, Tag tag) override {
    const auto lock = peers_->lock();
    const auto fingerprint = checked_all_gather(planes, tag);
    return start(fingerprint, gather_steps(std::move(planes), writer()));
  }

  std::shared_ptr<Work> reduce_scatter(std::vector<ReducePlane> planes, double scale, Tag tag) override {
    const auto lock = peers_->lock();
    const auto fingerprint = checked_reduce_scatter(planes, tag);
    return start(fingerprint, reduce_steps(std::move(planes), scale, writer()));
  }

  std::shared_ptr<Work> all_reduce(std::vector<at::Tensor> tensors, ReduceOp op, Tag tag) override {
    const auto lock = peers_->lock();
    const auto fingerprint = checked_all_reduce(tensors, op, tag);
    for (auto& tensor : tensors) tensor = tensor.detach().view({-1});
    return start(fingerprint, all_reduce_steps(std::move(tensors), op, writer()));
  }

  std::shared_ptr<Work> all_to_all(const at::Tensor& output, const at::Tensor& input, Tag tag) override {
    const auto lock = peers_->lock();
    const auto fingerprint = checked_all_to_all(output, input, tag);
    return start(fingerprint, all_to_all_steps(output, input, writer()));
  }

  std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root, Tag tag) override {
    const auto lock = peers_->lock();
    const auto fingerprint = checked_broadcast(tensor, root, tag);
    return start(fingerprint, copy_steps(tensor, root, rank() == root, writer()));
  }

  std::shared_ptr<Work> barrier(Tag tag) override {
    const auto lock = peers_->lock();
    return start(make_fingerprint(Operation::kBarrier, tag), {});
  }

  std::shared_ptr<Communicator> duplicate(const std::string& name) override {
    const auto lock = peers_->lock();
    const Tag tag{name, {}};
    start(make_fingerprint(Operation::kDuplicate, tag), {})->wait();
    return std::make_shared<ShmCommunicator>(peers_, traffic_, name);
  }

  std::vector<std::shared_ptr<SharedBuffer>> share(std::span<const SharedPart> parts, c10::Device device) override {
    if (!device.is_cpu() || parts.empty()) return {};
    const auto lock = peers_->lock();
    collectives_->finish_all();
    return shm::share_rows(peers_, parts);
  }

  std::vector<std::shared_ptr<HostBuffer>> share_on_host(std::span<const SharedPart> parts,
                                                         c10::Device device) override {
    if (!device.is_cpu() || parts.empty()) return {};
    const auto lock = peers_->lock();
    collectives_->finish_all();
    return shm::share_host_memory(*peers_, parts);
  }

  void start_over() override { peers_->start_over(); }
  void fail(const std::string& operation, const std::string& error, std::optional<int> lost) override {
    const auto lock = peers_->lock();
    peers_->tell(operation, error, lost);
  }
  void progress() override {
    const auto lock = peers_->lock();
    collectives_->progress();
    for (const auto& [direction, order] : messages_) order->progress();
  }

  // A rank publishes what others own, which is its share less than everything; slices begin aligned.
  void reserve(size_t bytes) override {
    const auto lock = peers_->lock();
    const auto others = static_cast<size_t>(world_size() - 1);
    const size_t needed =
        std::min(kMostSlotBytes, round_up(bytes / static_cast<size_t>(world_size()) * others + 4096));
    if (needed <= collectives_->slot_bytes()) return;
    collectives_->finish_all();
    collectives_->continue_in(make_rounds(needed));
  }

 private:
  std::shared_ptr<Rounds> make_rounds(size_t slot_bytes) const {
    std::vector<int> members;
    for (int rank = 0; rank < world_size(); ++rank) members.push_back(rank);
    auto memory =
        peers_->share(Rounds::bytes_needed(members.size(), slot_bytes, members.size()), purpose("collectives"));
    return std::make_shared<Rounds>(peers_, std::move(members), std::move(memory), slot_bytes);
  }

  Collectives& messages_with(int peer, bool sends) {
    auto& order = messages_[{peer, sends}];
    if (order) return *order;
    const int sender = sends ? rank() : peer, receiver = sends ? peer : rank();
    const std::shared_ptr<std::byte> memory(
        message_memory_, message_memory_.get() + kMessageBytes * static_cast<size_t>(sender * world_size() + receiver));
    auto rounds = std::make_shared<Rounds>(peers_, std::vector{sender, receiver}, memory, kMessageSlotBytes);
    order = std::make_shared<Collectives>(peers_, std::move(rounds), "");
    return *order;
  }

  std::string purpose(const char* what) const { return name_.empty() ? what : str_cat(what, " of '", name_, "'"); }

  std::shared_ptr<Work> message(const Fingerprint& fingerprint, const at::Tensor& tensor) override {
    const auto lock = peers_->lock();
    const bool sends = fingerprint.operation == Operation::kSend;
    return messages_with(fingerprint.peer, sends)
        .start(fingerprint, copy_steps(tensor, /*source=*/0, sends, writer(kMessageSlotBytes)));
  }

  std::shared_ptr<Work> start(const Fingerprint& fingerprint, Steps steps) {
    return collectives_->start(fingerprint, std::move(steps));
  }

  Writer writer() const { return writer(collectives_->slot_bytes()); }
  Writer writer(size_t slot_bytes) const {
    return {rank(), world_size(), slot_bytes, {traffic_, &traffic_->inside_host}};
  }

  const std::shared_ptr<Peers> peers_;
  const std::shared_ptr<TrafficCount> traffic_;
  const std::string name_;
  const std::shared_ptr<Collectives> collectives_;
  // By sender and receiver; those that exchange no messages take none of it.
  const std::shared_ptr<std::byte> message_memory_;
  std::map<std::pair<int, bool>, std::shared_ptr<Collectives>> messages_;  // by peer, and whether this rank sends
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
