#include "comm/c10d/c10d_communicator.h"

#include "comm/c10d/exchange.h"
#include "comm/c10d/family.h"
#include "comm/c10d/hierarchical_exchange.h"
#include "comm/c10d/inside.h"
#include "comm/c10d/lane.h"
#include "comm/c10d/native_order.h"
#include "comm/core/check.h"
#include "comm/core/front.h"
#include "comm/core/pieces.h"
#include "comm/core/rank_ordered_sum.h"
#include "comm/failure/blame.h"
#include "comm/posix/pipe_signal.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace fsdp {

class C10dCommunicator : public Front {
 public:
  /// `path` and `number` are the same on every rank and no other communicator's. `host`: see C10dOptions; for this one
  /// alone.
  C10dCommunicator(std::shared_ptr<Family> family, std::shared_ptr<Communicator> host, const std::string& name,
                   const std::string& path, int number)
      : Front(family->options.ranks, "Gloo", family->options.data ? family->options.data_device : c10::kCPU),
        family_(std::move(family)),
        host_(std::move(host)),
        name_(name),
        path_(path),
        number_(number) {
    connect();
    family_->communicators.push_back(this);
  }

  // The goodbye comes before the connections break, so that peers can tell leaving from dying.
  ~C10dCommunicator() override {
    std::erase(family_->communicators, this);
    if (family_->communicators.empty()) family_->roll_call->leave();
  }

  std::shared_ptr<Work> all_gather(std::vector<GatherPlane> planes, Tag tag) override {
    const auto fingerprint = checked_all_gather(planes, tag);
    const auto inputs = inputs_of(planes);
    const auto inside = is_on_host(planes) ? inside_ : nullptr;
    return run(all_, fingerprint, inputs.front(),
               [planes, inside](Exchange& exchange) {
                 if (!inside) return exchange.all_gather(planes);
                 exchange.gather_for_host(planes);
                 inside->run([](Communicator& ranks) { ranks.barrier({"slices"})->wait(); });
               });
  }

  std::shared_ptr<Work> reduce_scatter(std::vector<ReducePlane> planes, double scale, Tag tag) override {
    const auto fingerprint = checked_reduce_scatter(planes, tag);
    const auto outputs = outputs_of(planes);
    if (moves_natively(outputs.front()) || !all_.messages->takes_pieces())
      for (auto& [output, input] : planes)
        input = {{0, assemble(std::move(input), world_size() * output.numel(), output.options())}};
    return run(all_, fingerprint, outputs.front(),
               [planes, scale](Exchange& exchange) {
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
    return meet(make_fingerprint(Operation::kBarrier, tag), [native = all_.native.get()] {
      if (native != nullptr) native->require_agreement("barrier");
    });
  }

  std::shared_ptr<Communicator> duplicate(const std::string& name) override {
    const std::string path = str_cat(path_, '.', name, '.', duplicates_++);
    const int number = ++family_->made;
    // In the lane's thread, so that a rank that does not take part is reported like in any other collective.
    std::shared_ptr<Communicator> made;
    meet(make_fingerprint(Operation::kDuplicate, {name}), [&] {
      std::shared_ptr<Communicator> host;
      if (inside_) inside_->run([&](Communicator& ranks) { host = ranks.duplicate(name); });
      made = std::make_shared<C10dCommunicator>(family_, std::move(host), name, path, number);
    })->wait();
    return made;
  }

  std::vector<std::shared_ptr<SharedBuffer>> share(std::span<const SharedPart>, c10::Device) override { return {}; }
  void reserve(size_t bytes) override {
    if (inside_) act_inside({"reserved memory"}, [&](Communicator& ranks) { ranks.reserve(bytes); });
  }

  std::vector<std::shared_ptr<HostBuffer>> share_on_host(std::span<const SharedPart> parts,
                                                         c10::Device device) override {
    if (!inside_ || !device.is_cpu() || parts.empty()) return {};
    std::vector<std::shared_ptr<HostBuffer>> buffers;
    act_inside({"shared memory of hosts"},
               [&](Communicator& ranks) { buffers = ranks.share_on_host(parts, device); });
    std::erase_if(host_buffers_, [](const auto& buffer) { return buffer.expired(); });
    host_buffers_.insert(host_buffers_.end(), buffers.begin(), buffers.end());
    return buffers;
  }

  void start_over() override {
    announce_restart();
    // Nothing of before goes on inside a host.
    if (host_)
      for (auto* communicator : family_->communicators) communicator->all_.wire->interrupt();
    ++family_->beginnings;
    family_->meet_again();
    // A device has no room for both, and two of them at once might wait for each other.
    for (auto* communicator : family_->communicators) communicator->drop_native();
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
  // What moves in one order: its thread, and what carries its data.
  struct Order {
    std::shared_ptr<Wire> wire;
    std::shared_ptr<Mail> mail;
    std::shared_ptr<DirectExchange> messages;
    std::unique_ptr<NativeOrder> native;  // on the device whose backend carries its own data
    std::unique_ptr<Lane> lane;
  };

  // Runs `act` in the order of collectives once all ranks are there.
  std::shared_ptr<Work> meet(const Fingerprint& fingerprint, std::function<void()> act) const {
    return all_.lane->submit(fingerprint, [exchange = all_.messages, act = std::move(act)] {
      exchange->barrier();
      act();
    });
  }

  // Inside each host, in the order of collectives.
  void act_inside(const Tag& tag, const std::function<void(Communicator&)>& act) {
    meet(make_fingerprint(Operation::kBarrier, tag), [&] { inside_->run(act); })->wait();
  }

  void drop_native() {
    messages_.clear();
    all_.native.reset();
  }

  // A rank that dies meanwhile does not answer the roll call.
  void connect() {
    try {
      make_connections();
    } catch (const std::exception& error) {
      const auto verdict = family_->roll_call->alarm(Cause::kTransport, -1, "connection", first_line(error.what()));
      raise(verdict, ranks(), kConnecting);
    }
  }

  void make_connections() {
    const PipeSignalBlocked no_pipe_signal;
    const auto& options = family_->options;
    messages_.clear();
    std::vector<int> others;
    for (int step = 1; step < world_size(); ++step) others.push_back((rank() + step) % world_size());
    const bool connects = !family_->transport;
    if (connects) {
      family_->transport = std::make_shared<Wire::Transport>();
      family_->transport->backend = family_->connect(options.control, "control", rank(), world_size());
    }
    all_ = make_order(others, 0);
    if (connects) meet(*all_.mail, *all_.messages);
    if (host_) go_by_hosts();
    if (!options.data) return;
    all_.native = make_native(all_.wire, path_ + "/data", rank(), world_size(), family_->windows);
    all_.native->connect();
  }

  // `path`: the same on every rank that the order concerns, and no other order's. `rank`: among these.
  std::unique_ptr<NativeOrder> make_native(std::shared_ptr<const Wire> wire, const std::string& path, int rank,
                                           int size, std::shared_ptr<IssuedWindows> windows = nullptr) const {
    const auto& options = family_->options;
    return std::make_unique<NativeOrder>(
        [=, family = std::shared_ptr<const Family>(family_)] {
          return family->connect(family->options.data, path, rank, size);
        },
        std::move(wire), family_->roll_call,
        NativeOrder::Options{name_, ranks(), options.data_device, options.timeout, std::move(windows), path});
  }

  // No rank goes on, and perhaps ends, while another one still connects: Gloo would wait for its end of a connection as
  // long as the timeout, pair by pair.
  static void meet(Mail& mail, DirectExchange& exchange) {
    mail.begin(make_fingerprint(Operation::kBarrier, {}), nullptr);
    exchange.barrier();
    mail.finish();
  }

  void go_by_hosts() {
    inside_ = std::make_shared<Inside>(host_, ranks(), all_.wire);
    all_.messages =
        std::make_shared<HierarchicalExchange>(all_.mail, inside_, family_->options.grid, rank(), world_size());
  }

  // `number` is that of one of a communicator's three orders.
  Order make_order(std::vector<int> peers, int number) const {
    const auto& options = family_->options;
    Order order;
    order.wire = std::make_shared<Wire>(family_->transport, options.timeout, 3 * number_ + number, options.traffic);
    order.mail = std::make_shared<Mail>(order.wire, rank(), std::move(peers), options.compares_first);
    order.messages = std::make_shared<DirectExchange>(order.mail, rank(), world_size());
    order.lane = std::make_unique<Lane>(order.wire, order.mail, family_->roll_call,
                                        Lane::Options{name_, ranks(), options.timeout});
    return order;
  }

  // Ranks that go on learn it; where there is a verdict already, that one stays.
  void announce_restart() const {
    const auto& roll_call = family_->roll_call;
    roll_call->pronounce(starts_over(ranks(), ""));
    const auto verdict = roll_call->verdict();
    if (verdict && verdict->kind == Verdict::Kind::kPeerLost) raise(*verdict, ranks(), kStartingOver);
  }

  std::shared_ptr<Work> message(const Fingerprint& fingerprint, const at::Tensor& tensor) override {
    const int peer = fingerprint.peer;
    const bool sends = fingerprint.operation == Operation::kSend;
    const auto& order = messages_with(peer, sends);
    if (!moves_natively(tensor))
      return run(order, fingerprint, tensor, [=](Exchange& exchange) {
        sends ? exchange.send(tensor, peer) : exchange.recv(tensor, peer);
      });
    return order.native->run_in(*order.lane, fingerprint, [mail = order.mail] { mail->meet(); },
                                [=](Exchange& exchange) {
                                  sends ? exchange.send(tensor, 1) : exchange.recv(tensor, 0);
                                });
  }

  // Made by the first message of a direction, on each of the two ranks when it comes to it.
  const Order& messages_with(int peer, bool sends) {
    auto& order = messages_[{peer, sends}];
    if (order.lane) return order;
    const bool upwards = sends == (rank() < peer);
    const std::string path = str_cat(path_, '/', sends ? rank() : peer, '/', sends ? peer : rank());
    order = make_order({peer}, upwards ? 1 : 2);
    // Over one of all ranks two ranks that both send first would wait for each other.
    if (family_->options.data) order.native = make_native(order.wire, path, sends ? 0 : 1, 2);
    return order;
  }

  std::shared_ptr<Work> run(const Order& order, const Fingerprint& fingerprint, const at::Tensor& like,
                            std::function<void(Exchange&)> move_data) const {
    if (!moves_natively(like))
      return order.lane->submit(
          fingerprint, [messages = order.messages, move_data = std::move(move_data)] { move_data(*messages); });
    auto& native = *order.native;
    if (like.is_cpu())
      return native.run_in(*order.lane, fingerprint, [mail = order.mail] { mail->meet(); }, std::move(move_data));
    if (family_->options.compares_first) order.lane->submit(fingerprint, [] {})->wait();
    return native.run(fingerprint, std::move(move_data));
  }

  // Whether every output lies in memory that the ranks of this host share.
  bool is_on_host(std::span<const GatherPlane> planes) const {
    const auto lies_in = [](const HostBuffer& buffer, const at::Tensor& output) {
      const auto* begin = static_cast<const std::byte*>(buffer.data());
      const auto* first = static_cast<const std::byte*>(output.const_data_ptr());
      return begin <= first && first + output.nbytes() <= begin + buffer.bytes();
    };
    return std::ranges::all_of(planes, [&](const GatherPlane& plane) {
      return plane.output.numel() == 0 || std::ranges::any_of(host_buffers_, [&](const auto& weak) {
        const auto buffer = weak.lock();
        return buffer && lies_in(*buffer, plane.output);
      });
    });
  }

  // Whether the device's own backend carries the data.
  bool moves_natively(const at::Tensor& data) const {
    return family_->options.data && data.device() == family_->options.data_device;
  }

  std::shared_ptr<Family> family_;
  const std::shared_ptr<Communicator> host_;
  const std::string name_, path_;
  const int number_;
  int duplicates_ = 0;
  Order all_;
  std::shared_ptr<const Inside> inside_;  // a host, in the order of collectives
  std::vector<std::weak_ptr<HostBuffer>> host_buffers_;
  std::map<std::pair<int, bool>, Order> messages_;  // by peer, and whether this rank sends
};

std::shared_ptr<Communicator> make_c10d_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                     C10dOptions options) {
  auto host = options.host;
  auto family = std::make_shared<Family>(store, std::move(options));
  return std::make_shared<C10dCommunicator>(std::move(family), std::move(host), "", "main", 0);
}

}  // namespace fsdp
