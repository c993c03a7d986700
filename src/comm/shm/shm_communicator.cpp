#include "comm/shm/shm_communicator.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "comm/core/check.h"
#include "comm/core/front.h"
#include "comm/core/pieces.h"
#include "comm/core/rank_ordered_sum.h"
#include "comm/shm/collectives.h"
#include "comm/shm/host_memory.h"
#include "comm/shm/shared_rows.h"

namespace fsdp {
namespace {

using shm::Collectives;
using shm::Peers;
using shm::Rounds;
using shm::Slots;
using shm::Steps;

constexpr size_t kLeastSlotBytes = size_t{256} << 10;
// Larger reductions go through in several rounds: slots stay in caches and cost no memory that only the largest group
// needs once a step.
constexpr size_t kMostSlotBytes = size_t{2} << 20;
constexpr size_t kMessageSlotBytes = size_t{64} << 10;

size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }
int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.mutable_data_ptr()); }

// An empty tensor may have no address, which memcpy must not get.
void copy_bytes(std::byte* target, const std::byte* source, size_t bytes) {
  if (bytes > 0 && source != target) std::memcpy(target, source, bytes);
}

at::Tensor tensor_at(const std::byte* memory, int64_t numel, const at::TensorOptions& options) {
  return at::from_blob(const_cast<std::byte*>(memory), {numel}, options);
}

/// A flat tensor whose slices belong to ranks, passed on window by window: in a round, every slice's next `length`
/// elements.
struct Windows {
  std::vector<int64_t> offsets;
  int64_t length;

  /// A slot must hold one window for each of `targets` slices.
  Windows(std::span<const int64_t> boundaries, size_t slot_bytes, size_t element_bytes, int targets)
      : offsets(boundaries.begin(), boundaries.end()),
        length(std::max<int64_t>(1, static_cast<int64_t>(slot_bytes / element_bytes) / std::max(1, targets))) {}

  int64_t begin(int rank, int64_t round) const { return std::min(offsets[rank] + round * length, offsets[rank + 1]); }
  int64_t end(int rank, int64_t round) const { return begin(rank, round + 1); }
  int64_t numel(int rank, int64_t round) const { return end(rank, round) - begin(rank, round); }
  int64_t count() const {
    int64_t longest = 1;
    for (size_t rank = 0; rank + 1 < offsets.size(); ++rank)
      longest = std::max(longest, offsets[rank + 1] - offsets[rank]);
    return divide_up(longest, length);
  }
  /// Where rank `reader`'s window begins in the slot of `writer`, who leaves out its own.
  int64_t position(int writer, int reader, int64_t round) const {
    int64_t sum = 0;
    for (int rank = 0; rank < reader; ++rank)
      if (rank != writer) sum += numel(rank, round);
    return sum;
  }
};

/// Sums or compares the ranks' contributions to this rank's slice. A rank publishes only what others own; its own slice
/// is read where it lies.
class Reduction {
 public:
  Reduction(std::vector<Piece> pieces, at::Tensor output, Windows windows, int rank, ReduceOp op, double scale,
            std::shared_ptr<LinkCount> traffic)
      : pieces_(std::move(pieces)),
        output_(std::move(output)),
        windows_(std::move(windows)),
        rank_(rank),
        op_(op),
        scale_(scale),
        traffic_(std::move(traffic)) {}

  void write(int64_t round, std::byte* slot) const {
    const size_t element = output_.element_size();
    for (int rank = 0; rank + 1 < static_cast<int>(windows_.offsets.size()); ++rank) {
      if (rank == rank_) continue;
      copy_stretch(pieces_, windows_.begin(rank, round), windows_.end(rank, round), element, slot);
      const size_t bytes = static_cast<size_t>(windows_.numel(rank, round)) * element;
      traffic_->add_sent(bytes);
      slot += bytes;
    }
  }

  void read(int64_t round, const Slots& slots) const {
    const int64_t begin = windows_.begin(rank_, round), end = windows_.end(rank_, round);
    traffic_->add_received((windows_.offsets.size() - 2) * static_cast<size_t>(end - begin) * output_.element_size());
    visit_stretches(pieces_, begin, end, [&](int64_t first, int64_t count, const std::byte* own) {
      const auto zeros = own == nullptr ? at::zeros({count}, output_.options()) : at::Tensor();
      std::vector<at::Tensor> contributions;
      for (int rank = 0; rank + 1 < static_cast<int>(windows_.offsets.size()); ++rank) {
        const auto* slot = slots.of(static_cast<size_t>(rank));
        const int64_t position = windows_.position(rank, rank_, round) + first - begin;
        contributions.push_back(rank != rank_ ? tensor_at(slot + static_cast<size_t>(position) * output_.element_size(),
                                                          count, output_.options())
                                : own != nullptr ? tensor_at(own, count, output_.options())
                                                 : zeros);
      }
      reduce_in_rank_order(stretch_of(output_, first - windows_.offsets[rank_], count), contributions, rank_, op_,
                           scale_);
    });
  }

 private:
  const std::vector<Piece> pieces_;
  const at::Tensor output_;  // this rank's slice
  const Windows windows_;
  const int rank_;
  const ReduceOp op_;
  const double scale_;
  const std::shared_ptr<LinkCount> traffic_;
};

/// Gives every rank's slice to all.
class Gather {
 public:
  Gather(at::Tensor output, at::Tensor input, Windows windows, int rank, std::shared_ptr<LinkCount> traffic)
      : output_(std::move(output)),
        input_(std::move(input)),
        windows_(std::move(windows)),
        rank_(rank),
        traffic_(std::move(traffic)) {}

  void write(int64_t round, std::byte* slot) const {
    const size_t element = output_.element_size();
    const auto first = static_cast<size_t>(windows_.begin(rank_, round) - windows_.offsets[rank_]);
    const size_t bytes = static_cast<size_t>(windows_.numel(rank_, round)) * element;
    copy_bytes(slot, bytes_of(input_) + first * element, bytes);
    traffic_->add_sent(bytes);
  }

  void read(int64_t round, const Slots& slots) const {
    const size_t element = output_.element_size();
    for (int rank = 0; rank + 1 < static_cast<int>(windows_.offsets.size()); ++rank) {
      auto* target = bytes_of(output_) + static_cast<size_t>(windows_.begin(rank, round)) * element;
      const size_t bytes = static_cast<size_t>(windows_.numel(rank, round)) * element;
      const auto own = static_cast<size_t>(windows_.begin(rank_, round) - windows_.offsets[rank_]) * element;
      const auto* source = rank == rank_ ? bytes_of(input_) + own : slots.of(static_cast<size_t>(rank));
      copy_bytes(target, source, bytes);
      if (rank != rank_) traffic_->add_received(bytes);
    }
  }

 private:
  const at::Tensor output_, input_;
  const Windows windows_;
  const int rank_;
  const std::shared_ptr<LinkCount> traffic_;
};

class ShmCommunicator : public Front {
 public:
  ShmCommunicator(std::shared_ptr<Peers> peers, std::shared_ptr<TrafficCount> traffic, const std::string& name)
      : Front(peers->ranks(), "shared memory", c10::kCPU),
        peers_(std::move(peers)),
        traffic_(std::move(traffic)),
        name_(name),
        number_(peers_->next_number()),
        collectives_(std::make_shared<Collectives>(peers_, name_)) {
    make_rounds(kLeastSlotBytes);
  }

  std::shared_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets,
                                   Tag tag) override {
    const auto lock = peers_->lock();
    const auto fingerprint = checked_all_gather(output, input, offsets, tag);
    const Windows windows(offsets, room(tag), output.element_size(), 1);
    auto gather = std::make_shared<Gather>(output.detach(), input.detach(), windows, rank(), copied());
    return start(fingerprint, tag,
                 {.count = windows.count(),
                  .write = [gather](int64_t round, std::byte* slot) { gather->write(round, slot); },
                  .read = [gather](int64_t round, const Slots& slots) { gather->read(round, slots); }});
  }

  std::shared_ptr<Work> reduce_scatter(const at::Tensor& output, std::vector<Piece> input,
                                       std::span<const int64_t> offsets, double scale, Tag tag) override {
    const auto lock = peers_->lock();
    const auto fingerprint = checked_reduce_scatter(output, input, offsets, tag);
    const Windows windows(offsets, room(tag), output.element_size(), world_size() - 1);
    auto reduction = std::make_shared<Reduction>(std::move(input), output.detach(), windows, rank(), ReduceOp::kSum,
                                                 scale, copied());
    return start(fingerprint, tag,
                 {.count = windows.count(),
                  .write = [reduction](int64_t round, std::byte* slot) { reduction->write(round, slot); },
                  .read = [reduction](int64_t round, const Slots& slots) { reduction->read(round, slots); }});
  }

  // Even rounds reduce a window of every slice, odd ones gather it.
  std::shared_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, Tag tag) override {
    const auto lock = peers_->lock();
    const auto fingerprint = checked_all_reduce(tensor, op, tag);
    const at::Tensor flat = tensor.detach().view({-1});
    const Windows windows(even_split(flat.numel(), world_size()), room(tag), flat.element_size(), world_size() - 1);
    const at::Tensor own =
        flat.narrow(0, windows.offsets[rank()], windows.offsets[rank() + 1] - windows.offsets[rank()]);
    auto reduction =
        std::make_shared<Reduction>(std::vector<Piece>{{0, flat}}, own, windows, rank(), op, 1.0, copied());
    auto gather = std::make_shared<Gather>(flat, own, windows, rank(), copied());
    return start(fingerprint, tag,
                 {.count = 2 * windows.count(),
                  .overlap = false,
                  .write =
                      [=](int64_t round, std::byte* slot) {
                        round % 2 == 0 ? reduction->write(round / 2, slot) : gather->write(round / 2, slot);
                      },
                  .read =
                      [=](int64_t round, const Slots& slots) {
                        round % 2 == 0 ? reduction->read(round / 2, slots) : gather->read(round / 2, slots);
                      }});
  }

  std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root, Tag tag) override {
    const auto lock = peers_->lock();
    const auto fingerprint = checked_broadcast(tensor, root, tag);
    return start(fingerprint, tag, copy_steps(tensor, rank() == root, root, room(tag)));
  }

  std::shared_ptr<Work> barrier(Tag tag) override {
    const auto lock = peers_->lock();
    return start(make_fingerprint(Operation::kBarrier, tag), tag, {});
  }

  std::shared_ptr<Communicator> duplicate(const std::string& name) override {
    const auto lock = peers_->lock();
    const Tag tag{name, {}};
    start(make_fingerprint(Operation::kDuplicate, tag), tag, {})->wait();
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
    for (auto& [direction, messages] : messages_) messages.order->progress();
  }

  // A rank publishes what others own, which is its share less than everything. Where slices are very unequal, a
  // reduction takes more rounds.
  void reserve(size_t bytes) override {
    const auto lock = peers_->lock();
    const auto others = static_cast<size_t>(world_size() - 1);
    const size_t needed =
        std::min(kMostSlotBytes, round_up(bytes / static_cast<size_t>(world_size()) * others + bytes / 32 + 4096));
    if (needed <= rounds_->slot_bytes()) return;
    collectives_->finish_all();
    make_rounds(needed);
  }

 private:
  // From one rank to another.
  struct Messages {
    std::shared_ptr<Collectives> order;
    std::shared_ptr<Rounds> rounds;
  };

  void make_rounds(size_t slot_bytes) {
    std::vector<int> members;
    for (int rank = 0; rank < world_size(); ++rank) members.push_back(rank);
    auto memory =
        peers_->share(Rounds::bytes_needed(members.size(), slot_bytes, members.size()), purpose("collectives"));
    auto rounds = std::make_shared<Rounds>(peers_, std::move(members), std::move(memory), slot_bytes);
    if (rounds_) rounds->continue_from(*rounds_);
    rounds_ = std::move(rounds);
  }

  // Made when a rank sends or receives first; the sender brings the memory when it comes to it.
  const Messages& messages_with(int peer, bool sends) {
    auto& messages = messages_[{peer, sends}];
    if (messages.order) return messages;
    const size_t bytes = Rounds::bytes_needed(2, kMessageSlotBytes, /*writers=*/1);
    const auto find_memory = [peers = peers_.get(), number = number_, peer, sends, bytes] {
      return sends ? peers->give(peer, number, bytes) : peers->take(peer, number, bytes);
    };
    messages.order = std::make_shared<Collectives>(peers_);
    messages.rounds = std::make_shared<Rounds>(peers_, sends ? std::vector{rank(), peer} : std::vector{peer, rank()},
                                               find_memory, kMessageSlotBytes);
    return messages;
  }

  std::string purpose(const char* what) const { return name_.empty() ? what : str_cat(what, " of '", name_, "'"); }

  // A slot's bytes for data.
  size_t room(const Tag& tag) const {
    const size_t head = shm::vote_bytes_in_slot(tag.votes.size());
    if (head + 64 > rounds_->slot_bytes())
      require(false, ranks().where(tag.text()), "expected at most ", 8 * (rounds_->slot_bytes() - 64), " votes, found ",
              tag.votes.size(), ".");
    return rounds_->slot_bytes() - head;
  }

  // The writer's tensor becomes the readers'; `writer` is an index of a member.
  Steps copy_steps(const at::Tensor& tensor, bool writes, int writer, size_t slot_bytes) const {
    const at::Tensor flat = tensor.detach().view({-1});
    const auto length = static_cast<int64_t>(slot_bytes), bytes = static_cast<int64_t>(flat.nbytes());
    const auto part = [=](int64_t round) {
      return std::pair(bytes_of(flat) + round * length, static_cast<size_t>(std::min(length, bytes - round * length)));
    };
    Steps steps{.count = std::max<int64_t>(1, divide_up(bytes, length))};
    if (bytes == 0) return steps;
    if (writes)
      steps.write = [=, traffic = copied()](int64_t round, std::byte* slot) {
        copy_bytes(slot, part(round).first, part(round).second);
        traffic->add_sent(part(round).second);
      };
    else
      steps.read = [=, traffic = copied()](int64_t round, const Slots& slots) {
        copy_bytes(part(round).first, slots.of(static_cast<size_t>(writer)), part(round).second);
        traffic->add_received(part(round).second);
      };
    return steps;
  }

  std::shared_ptr<Work> message(const Fingerprint& fingerprint, const at::Tensor& tensor, const Tag& tag) override {
    const auto lock = peers_->lock();
    const bool sends = fingerprint.operation == Operation::kSend;
    const auto& messages = messages_with(fingerprint.peer, sends);
    return messages.order->start(messages.rounds, fingerprint, tag.votes,
                                 copy_steps(tensor, sends, /*writer=*/0, kMessageSlotBytes));
  }

  std::shared_ptr<Work> start(const Fingerprint& fingerprint, const Tag& tag, Steps steps) {
    return collectives_->start(rounds_, fingerprint, tag.votes, std::move(steps));
  }

  // Of shared memory.
  std::shared_ptr<LinkCount> copied() const { return {traffic_, &traffic_->inside_host}; }

  const std::shared_ptr<Peers> peers_;
  const std::shared_ptr<TrafficCount> traffic_;
  const std::string name_;
  const uint64_t number_;  // the same on every rank
  const std::shared_ptr<Collectives> collectives_;
  std::shared_ptr<Rounds> rounds_;
  std::map<std::pair<int, bool>, Messages> messages_;  // by peer, and whether this rank sends
};

}  // namespace

std::string shared_memory_obstacle() {
  try {
    shm::make_segment(4096);
    return "";
  } catch (const shm::Obstacle& obstacle) {
    return obstacle.what();
  }
}

std::shared_ptr<Communicator> make_shm_communicator(const shm::Listener& listener,
                                                    const std::vector<std::string>& contacts, const Ranks& ranks,
                                                    std::chrono::milliseconds timeout,
                                                    std::shared_ptr<shm::OwnRank> own_rank,
                                                    std::shared_ptr<TrafficCount> traffic) {
  shm::Links links(listener, contacts, ranks, timeout);
  return std::make_shared<ShmCommunicator>(
      std::make_shared<Peers>(std::move(links), ranks, timeout, std::move(own_rank)), std::move(traffic), "");
}

}  // namespace fsdp
