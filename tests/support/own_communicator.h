#pragma once
/// \file
/// An example of a communicator that a user writes. Apart from classes of errors, it needs only the public header
/// fsdp/communicator.h.

#include <fsdp/communicator.h>
#include <fsdp/error.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::test {

/// Implements every collective with messages of the communicator `ranks`: each rank sends every other rank the values
/// that it needs, and sums the received values in rank order. All tensors are on the CPU.
class CommunicatorOfMessages : public Communicator {
 public:
  explicit CommunicatorOfMessages(std::shared_ptr<Communicator> ranks) : ranks_(std::move(ranks)) {}

  int rank() const override { return ranks_->rank(); }
  int world_size() const override { return ranks_->world_size(); }

  std::shared_ptr<Work> all_gather(std::vector<GatherPlane> planes, Tag tag) override {
    std::vector<Exchange> exchanges;
    for (const auto& [output, input] : planes)
      exchanges.push_back({[input = input](int) { return input; },
                           [output = output, n = input.numel()](int peer) { return slice_of(output, n, peer); }});
    return start(std::move(exchanges), tag, [=, this] {
      for (const auto& [output, input] : planes) slice_of(output, input.numel(), rank()).copy_(input);
    });
  }

  std::shared_ptr<Work> reduce_scatter(std::vector<ReducePlane> planes, double scale, Tag tag) override {
    std::vector<Exchange> exchanges;
    std::vector<Sum> sums;
    for (const auto& [output, input] : planes) {
      const auto whole = at::zeros({world_size() * output.numel()}, output.options());
      for (const auto& [first, values] : input) whole.narrow(0, first, values.numel()).copy_(values);
      sums.push_back({output, at::empty({world_size(), output.numel()}, output.options())});
      exchanges.push_back({[=, n = output.numel()](int peer) { return slice_of(whole, n, peer); },
                           [all = sums.back().of_ranks](int peer) { return all[peer]; }});
      sums.back().of_ranks[rank()].copy_(slice_of(whole, output.numel(), rank()));
    }
    return start(std::move(exchanges), tag, [sums, scale] {
      for (const auto& sum : sums) sum.take(ReduceOp::kSum).mul_(at::scalar_tensor(scale, at::kDouble));
    });
  }

  std::shared_ptr<Work> all_reduce(std::vector<at::Tensor> tensors, ReduceOp op, Tag tag) override {
    std::vector<Exchange> exchanges;
    std::vector<Sum> sums;
    for (const auto& tensor : tensors) {
      const auto flat = tensor.detach().view(-1);
      sums.push_back({flat, at::empty({world_size(), flat.numel()}, flat.options())});
      sums.back().of_ranks[rank()].copy_(flat);
      exchanges.push_back(
          {[own = flat.clone()](int) { return own; }, [all = sums.back().of_ranks](int peer) { return all[peer]; }});
    }
    return start(std::move(exchanges), tag, [sums, op] {
      for (const auto& sum : sums) sum.take(op);
    });
  }

  std::shared_ptr<Work> all_to_all(const at::Tensor& output, const at::Tensor& input, Tag tag) override {
    const int64_t n = input.numel() / world_size();
    return start(
        {{[=](int peer) { return slice_of(input, n, peer); }, [=](int peer) { return slice_of(output, n, peer); }}},
        tag, [=, this] { slice_of(output, n, rank()).copy_(slice_of(input, n, rank())); });
  }

  std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root, Tag tag) override {
    if (root < 0 || root >= world_size()) throw UsageError(c10::str("broadcast: there is no rank ", root));
    // Ranks without data send an empty tensor, because a message also tells the peer the tag.
    const auto nothing = at::empty({0}, tensor.options());
    return start({{[=, this](int) { return rank() == root ? tensor : nothing; },
                   [=](int peer) { return peer == root ? tensor : nothing; }}},
                 tag, [] {});
  }

  std::shared_ptr<Work> send(const at::Tensor& tensor, int peer, Tag tag) override {
    return ranks_->send(tensor, peer, std::move(tag));
  }
  std::shared_ptr<Work> recv(const at::Tensor& tensor, int peer, Tag tag) override {
    return ranks_->recv(tensor, peer, std::move(tag));
  }

  std::shared_ptr<Work> barrier(Tag tag) override {
    const auto nothing = at::empty({0});
    return start({{[=](int) { return nothing; }, [=](int) { return nothing; }}}, tag, [] {});
  }

  std::shared_ptr<Communicator> duplicate(const std::string& name) override {
    return std::make_shared<CommunicatorOfMessages>(ranks_->duplicate(name));
  }

  std::vector<std::shared_ptr<SharedBuffer>> share(std::span<const SharedPart>, c10::Device) override { return {}; }
  void start_over() override { ranks_->start_over(); }
  void fail(const std::string& operation, const std::string& error, std::optional<int> lost) override {
    ranks_->fail(operation, error, lost);
  }
  void progress() override { ranks_->progress(); }

 private:
  /// For each peer, the tensor that is sent to it and the tensor that receives its values.
  struct Exchange {
    std::function<at::Tensor(int peer)> outgoing, incoming;
  };

  /// `of_ranks` holds the contributions of all ranks to this rank's part of the sum, in rank order.
  struct Sum {
    at::Tensor output, of_ranks;
    at::Tensor take(ReduceOp op) const {
      output.copy_(of_ranks[0]);
      for (int64_t rank = 1; rank < of_ranks.size(0); ++rank) {
        at::Tensor out = output;
        if (op == ReduceOp::kSum) at::add_out(out, out, of_ranks[rank]);
        if (op == ReduceOp::kMax) at::maximum_out(out, out, of_ranks[rank]);
        if (op == ReduceOp::kMin) at::minimum_out(out, out, of_ranks[rank]);
      }
      return output;
    }
  };

  /// Waits for its messages and then calls `finish`. The first wait() does both; later ones do nothing.
  class Messages : public Work {
   public:
    Messages(std::vector<std::shared_ptr<Work>> messages, std::function<void()> finish)
        : messages_(std::move(messages)), finish_(std::move(finish)) {}
    void wait() override {
      for (const auto& message : messages_) message->wait();
      messages_.clear();
      const at::NoGradGuard no_grad;
      if (const auto finish = std::exchange(finish_, nullptr)) finish();
    }

   private:
    std::vector<std::shared_ptr<Work>> messages_;
    std::function<void()> finish_;
  };

  static at::Tensor slice_of(const at::Tensor& flat, int64_t numel, int rank) {
    return flat.detach().narrow(0, rank * numel, numel);
  }

  std::shared_ptr<Work> start(const std::vector<Exchange>& exchanges, const Tag& tag, std::function<void()> finish) {
    std::vector<std::shared_ptr<Work>> messages;
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer == rank()) continue;
      for (const auto& exchange : exchanges) {
        messages.push_back(ranks_->send(exchange.outgoing(peer), peer, tag));
        messages.push_back(ranks_->recv(exchange.incoming(peer), peer, tag));
      }
    }
    return std::make_shared<Messages>(std::move(messages), std::move(finish));
  }

  const std::shared_ptr<Communicator> ranks_;
};

}  // namespace fsdp::test
