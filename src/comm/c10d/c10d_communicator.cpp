#include "comm/c10d/c10d_communicator.h"

#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/c10d/exchange.h"
#include "comm/c10d/issued_windows.h"
#include "comm/c10d/lane.h"
#include "comm/c10d/mail.h"
#include "comm/c10d/native_queue.h"
#include "comm/core/check.h"
#include "comm/core/fault_point.h"
#include "comm/core/front.h"
#include "comm/core/pieces.h"
#include "comm/posix/signals.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp {
namespace {

class C10dCommunicator;

// The names of operations that a communicator runs on its own, for error messages.
constexpr std::string_view kConnecting = "connecting", kStartingOver = "starting over";

// State that a communicator shares with its duplicates. The rank leaves the roll call when the last of them is
// destroyed. Only one thread at a time may use it: the caller's, or a lane's while the caller waits for the lane.
struct Family {
  Family(c10::intrusive_ptr<c10d::Store> rendezvous_store, C10dOptions wanted)
      : store(std::move(rendezvous_store)), options(std::move(wanted)) {
    begin();
  }
  ~Family() { roll_call->leave(); }
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  // Starts the roll call and the windows, for the first time or again, with keys of the store that are new.
  void begin() {
    if (roll_call) roll_call->leave();
    transport = nullptr;
    const auto connect = [this] { return own_connection(); };
    roll_call = RollCall::start(connect, options.ranks, options.roll_call, beginnings);
    if (options.data)
      windows = std::make_shared<IssuedWindows>(
          c10::make_intrusive<c10d::PrefixStore>(str_cat("windows/", beginnings), connect()), options.ranks);
  }

  // Returns when every rank has come to start over. Collective. Throws PeerLost if a rank does not come or if rank 0
  // hosted the store and the store is gone.
  void meet_again() const {
    const auto& ranks = options.ranks;
    const auto key = [&](int who) { return str_cat("again/", beginnings, '/', who); };
    std::vector<std::string> keys;
    for (int peer = 0; peer < ranks.world_size; ++peer) keys.push_back(key(peer));
    try {
      store->set(key(ranks.rank), "");
      fault_point("starting over");
      store->wait(keys, options.timeout);
    } catch (const std::exception& error) {
      int missing = 0;
      const auto find = [&] {
        while (missing + 1 < ranks.world_size && store->check({key(missing)})) ++missing;
      };
      if (!try_to(find)) raise(lost_store(first_line(error.what())), ranks, kStartingOver);
      const int name = ranks.name_of(missing);
      throw PeerLost(
          name,
          str_cat(ranks.where(kStartingOver), "rank ", name, " did not start over within ", in_seconds(options.timeout),
                  ". Call reset_iter_state() on every rank; if that rank has ended, look at its output "
                  "and start all ranks again."));
    }
  }

  // Makes a backend for the ranks of one queue. No two queues (sequences of operations) may have the same `name`.
  c10::intrusive_ptr<c10d::Backend> connect(const BackendFactory& factory, const std::string& name, int rank,
                                            int world_size) const {
    const std::string prefix = str_cat("lane/", beginnings, '/', name);
    return factory(c10::make_intrusive<c10d::PrefixStore>(prefix, store), rank, world_size, options.timeout);
  }

  const c10::intrusive_ptr<c10d::Store> store;
  const C10dOptions options;
  std::shared_ptr<RollCall> roll_call;
  std::shared_ptr<IssuedWindows> windows;  // null if there is no backend for a device
  // The connections of all communicators; null until the first communicator connects.
  std::shared_ptr<Transport> transport;
  int beginnings = 0;
  int made = 0;                                  // number of communicators made, in the same order on every rank
  std::vector<C10dCommunicator*> communicators;  // in the order in which they were made, the same on every rank

 private:
  // Returns a second connection, because another thread may be waiting on `store`.
  c10::intrusive_ptr<c10d::Store> own_connection() const try {
    return store->clone();
  } catch (const c10::DistError& error) {
    const std::string detail = first_line(error.what());
    if (dynamic_cast<const c10d::TimeoutError*>(&error) == nullptr && try_to([&] { store->check({"roll_call"}); }))
      throw Error(str_cat(options.ranks.where(kConnecting),
                          "cannot open a second connection to the rendezvous store: ", detail,
                          ". The limit on open files (ulimit -n) may be reached on this host or on the host of the "
                          "store: raise the limit."));
    raise(lost_store(detail), options.ranks, kConnecting);
  }

  Verdict lost_store(const std::string& detail) const {
    return store_lost(options.ranks.name(), options.roll_call.store_in_rank_0, detail, "");
  }
};

class C10dCommunicator : public Front {
 public:
  /// `number` is the same on every rank, and no other communicator has it. `host` is what C10dOptions::host is, but for
  /// this communicator alone.
  C10dCommunicator(std::shared_ptr<Family> family, std::shared_ptr<Communicator> host, const std::string& name,
                   int number)
      : Front(family->options.ranks, "Gloo", family->options.data_device),
        family_(std::move(family)),
        host_(std::move(host)),
        name_(name),
        number_(number) {
    connect();
    family_->communicators.push_back(this);
  }

  // The rank leaves the roll call before its connections break, so that peers can tell a rank that leaves from one that
  // died.
  ~C10dCommunicator() override {
    std::erase(family_->communicators, this);
    if (family_->communicators.empty()) family_->roll_call->leave();
  }

  std::shared_ptr<Work> all_gather(std::vector<GatherPlane> planes, Tag tag) override {
    const auto fingerprint = checked_all_gather(planes, tag);
    if (by_hosts_ && is_on_host(planes))
      return all_.lane->submit(fingerprint, [planes, by_hosts = by_hosts_] { by_hosts->gather_for_host(planes); });
    return run(all_, fingerprint, planes.front().input, [planes](Exchange& exchange) { exchange.all_gather(planes); });
  }

  std::shared_ptr<Work> reduce_scatter(std::vector<ReducePlane> planes, double scale, Tag tag) override {
    const auto fingerprint = checked_reduce_scatter(planes, tag);
    if (!planes.front().output.is_cpu() || !by_hosts_)
      for (auto& [output, input] : planes)
        input = {{0, assemble(std::move(input), world_size() * output.numel(), output.options())}};
    return run(all_, fingerprint, planes.front().output, [planes, scale](Exchange& exchange) {
      exchange.reduce_scatter(planes);
      for (const auto& plane : planes) scale_in_place(plane.output, scale);
    });
  }

  std::shared_ptr<Work> all_reduce(std::vector<at::Tensor> tensors, ReduceOp op, Tag tag) override {
    const auto fingerprint = checked_all_reduce(tensors, op, tag);
    for (auto& tensor : tensors) tensor = tensor.detach().view({-1});
    return run(all_, fingerprint, tensors.front(),
               [tensors, op](Exchange& exchange) { exchange.all_reduce(tensors, op); });
  }

  std::shared_ptr<Work> all_to_all(const at::Tensor& output, const at::Tensor& input, Tag tag) override {
    const auto fingerprint = checked_all_to_all(output, input, tag);
    return run(all_, fingerprint, input, [=](Exchange& exchange) { exchange.all_to_all(output, input); });
  }

  std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root, Tag tag) override {
    const auto fingerprint = checked_broadcast(tensor, root, tag);
    return run(all_, fingerprint, tensor, [=](Exchange& exchange) { exchange.broadcast(tensor, root); });
  }

  std::shared_ptr<Work> barrier(Tag tag) override {
    return meet(make_fingerprint(Operation::kBarrier, tag), [native = all_.native] {
      if (native) native->require_agreement("barrier");
    });
  }

  std::shared_ptr<Communicator> duplicate(const std::string& name) override {
    const int number = ++family_->made;
    // The lane's thread makes the duplicate, so that a rank that does not take part is reported as in any other
    // collective.
    std::shared_ptr<Communicator> made;
    meet(make_fingerprint(Operation::kDuplicate, {name}), [&] {
      std::shared_ptr<Communicator> host;
      if (by_hosts_) by_hosts_->run_inside([&](Communicator& ranks) { host = ranks.duplicate(name); });
      made = std::make_shared<C10dCommunicator>(family_, std::move(host), name, number);
    })->wait();
    return made;
  }

  std::vector<std::shared_ptr<SharedBuffer>> share(std::span<const SharedPart>, c10::Device) override { return {}; }

  std::vector<std::shared_ptr<HostBuffer>> share_on_host(std::span<const SharedPart> parts,
                                                         c10::Device device) override {
    if (!by_hosts_ || !device.is_cpu() || parts.empty()) return {};
    std::vector<std::shared_ptr<HostBuffer>> buffers;
    meet(make_fingerprint(Operation::kBarrier, {"shared memory of hosts"}), [&] {
      by_hosts_->run_inside([&](Communicator& ranks) { buffers = ranks.share_on_host(parts, device); });
    })->wait();
    std::erase_if(host_buffers_, [](const auto& buffer) { return buffer.expired(); });
    host_buffers_.insert(host_buffers_.end(), buffers.begin(), buffers.end());
    return buffers;
  }

  void start_over() override {
    // Ranks that continue learn that this rank starts over. A verdict that exists already stays.
    const auto verdict = family_->roll_call->pronounce(starts_over(ranks(), ""));
    if (verdict.kind == Verdict::Kind::kPeerLost) raise(verdict, ranks(), kStartingOver);
    // Ends the operations that are still in flight inside the host.
    if (host_)
      for (auto* communicator : family_->communicators) communicator->all_.mail->interrupt();
    ++family_->beginnings;
    family_->meet_again();
    // The old backends of a device are destroyed before new ones are made: the device may not have memory for both, and
    // both at once might wait for each other.
    for (auto* communicator : family_->communicators) {
      communicator->messages_.clear();
      communicator->all_.native.reset();
    }
    if (host_) host_->start_over();
    family_->begin();
    for (auto* communicator : family_->communicators) communicator->connect();
    blame(ranks().name(), -1);
  }

  void progress() override {
    if (all_.native) all_.native->require_intact("its device");
  }

  void fail(const std::string& operation, const std::string& error, std::optional<int> lost) override {
    family_->roll_call->pronounce(failed_alone(ranks(), operation, error, lost));
  }

 private:
  // One queue of operations: its thread and what carries its data.
  struct Queue {
    std::shared_ptr<Mail> mail;
    std::shared_ptr<DirectExchange> messages;
    std::shared_ptr<NativeQueue> native;  // carries data on a device; null if there is no device
    std::shared_ptr<Lane> lane;
  };

  // Runs `act` in the queue of the collectives, once all ranks have arrived.
  std::shared_ptr<Work> meet(const Fingerprint& fingerprint, std::function<void()> act) const {
    return all_.lane->submit(fingerprint, [exchange = all_.messages, act = std::move(act)] {
      exchange->barrier();
      act();
    });
  }

  // Connects, or asks the roll call what failed: a rank that died meanwhile does not answer it.
  void connect() try {
    const PipeSignalBlocked no_pipe_signal;
    const auto& options = family_->options;
    std::vector<int> others;
    for (int step = 1; step < world_size(); ++step) others.push_back((rank() + step) % world_size());
    const bool connects = !family_->transport;
    if (connects)
      family_->transport.reset(new Transport{family_->connect(options.control, "control", rank(), world_size())});
    all_ = make_queue(others, 0);
    if (connects) {
      // Without this barrier a rank could go on and end while another rank still connects, and Gloo would wait for each
      // of its connections for the whole timeout.
      all_.mail->begin(make_fingerprint(Operation::kBarrier, {}));
      all_.messages->barrier();
      all_.mail->finish();
    }
    if (host_)
      all_.messages = by_hosts_ = std::make_shared<HierarchicalExchange>(all_.mail, host_, options.grid, ranks());
    if (!options.data) return;
    all_.native = make_native(str_cat(number_, "/data"), rank(), world_size(), family_->windows);
    all_.native->connect();
  } catch (const std::exception& error) {
    const auto verdict = family_->roll_call->alarm(Cause::kTransport, -1, "connection", first_line(error.what()));
    raise(verdict, ranks(), kConnecting);
  }

  // `path` is the same on every rank of the queue, and no other queue has it. `rank` is this rank's number in the
  // queue.
  std::shared_ptr<NativeQueue> make_native(const std::string& path, int rank, int size,
                                           std::shared_ptr<IssuedWindows> windows = nullptr) const {
    const auto& options = family_->options;
    return NativeQueue::start({.name = name_,
                               .ranks = ranks(),
                               .device = options.data_device,
                               .timeout = options.timeout,
                               .connect =
                                   [=, family = std::shared_ptr<const Family>(family_)] {
                                     return family->connect(family->options.data, path, rank, size);
                                   },
                               .roll_call = family_->roll_call,
                               .windows = std::move(windows),
                               .path = path});
  }

  // `number` is 0 for the communicator's collectives, 1 for messages from a lower to a higher rank, and 2 for messages
  // from a higher to a lower rank.
  Queue make_queue(std::vector<int> peers, int number) const {
    const auto& options = family_->options;
    require(3 * number_ + number < Mail::kQueues, "[fsdp] a process group over Gloo has at most ", Mail::kQueues / 3,
            " communicators, and '", name_,
            "' would be one more. Make fewer duplicates of this process group, or make a second process group.");
    Queue queue;
    queue.mail = std::make_shared<Mail>(family_->transport, Mail::Options{.rank = rank(),
                                                                          .peers = std::move(peers),
                                                                          .compares_first = options.compares_first,
                                                                          .timeout = options.timeout,
                                                                          .queue = 3 * number_ + number,
                                                                          .traffic = options.traffic});
    queue.messages = std::make_shared<DirectExchange>(queue.mail, rank(), world_size());
    queue.lane = Lane::start(queue.mail, family_->roll_call, name_, ranks());
    return queue;
  }

  std::shared_ptr<Work> message(const Fingerprint& fingerprint, const at::Tensor& tensor) override {
    const bool sends = fingerprint.operation == Operation::kSend;
    const auto& queue = messages_with(fingerprint.peer, sends);
    // A device's queue has two ranks: the sender is 0, and the receiver is 1.
    const int peer = tensor.is_cpu() ? fingerprint.peer : sends ? 1 : 0;
    const auto move_data = [=](Exchange& exchange) {
      sends ? exchange.send(tensor, peer) : exchange.recv(tensor, peer);
    };
    if (tensor.is_cpu()) return run(queue, fingerprint, tensor, move_data);
    return queue.native->run(fingerprint, move_data, queue.lane.get(), [mail = queue.mail] { mail->meet(); });
  }

  // Returns the queue of messages to or from `peer`. Each of the two ranks makes it when its first message comes.
  const Queue& messages_with(int peer, bool sends) {
    auto& queue = messages_[{peer, sends}];
    if (queue.lane) return queue;
    const bool upwards = sends == (rank() < peer);
    const std::string path = str_cat(number_, '/', sends ? rank() : peer, '/', sends ? peer : rank());
    queue = make_queue({peer}, upwards ? 1 : 2);
    // If all messages used one backend, two ranks that both send first would wait for each other.
    if (family_->options.data) queue.native = make_native(path, sends ? 0 : 1, 2);
    return queue;
  }

  std::shared_ptr<Work> run(const Queue& queue, const Fingerprint& fingerprint, const at::Tensor& like,
                            std::function<void(Exchange&)> move_data) const {
    if (like.is_cpu())
      return queue.lane->submit(
          fingerprint, [messages = queue.messages, move_data = std::move(move_data)] { move_data(*messages); });
    if (family_->options.compares_first) queue.lane->submit(fingerprint, [] {})->wait();
    return queue.native->run(fingerprint, std::move(move_data));
  }

  // Returns whether every output lies in memory that the ranks of this host share.
  bool is_on_host(std::span<const GatherPlane> planes) const {
    return std::ranges::all_of(planes, [&](const GatherPlane& plane) {
      const auto* first = static_cast<const std::byte*>(plane.output.const_data_ptr());
      return plane.output.numel() == 0 || std::ranges::any_of(host_buffers_, [&](const auto& weak) {
               const auto buffer = weak.lock();
               const auto* begin = buffer ? static_cast<const std::byte*>(buffer->data()) : nullptr;
               return buffer && begin <= first && first + plane.output.nbytes() <= begin + buffer->bytes();
             });
    });
  }

  std::shared_ptr<Family> family_;
  const std::shared_ptr<Communicator> host_;
  const std::string name_;
  const int number_;
  Queue all_;
  std::shared_ptr<HierarchicalExchange> by_hosts_;  // all_.messages if it is hierarchical, otherwise null
  std::vector<std::weak_ptr<HostBuffer>> host_buffers_;
  std::map<std::pair<int, bool>, Queue> messages_;  // the key is the peer and whether this rank sends
};

}  // namespace

std::shared_ptr<Communicator> make_c10d_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                     C10dOptions options) {
  auto host = options.host;
  auto family = std::make_shared<Family>(store, std::move(options));
  return std::make_shared<C10dCommunicator>(std::move(family), std::move(host), "", 0);
}

}  // namespace fsdp
