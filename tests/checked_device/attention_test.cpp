// Tests of attention over ranks on the checked device, with sharded parameters: the values must be right, and no use of
// memory may be without an order.

#include <fsdp/fsdp.h>
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checked_device/training.h"
#include "parallel/checked_call.h"
#include "support/decorator.h"

namespace fsdp::test::checked {
namespace {

using enum SequenceMethod;

// The dispatcher shows attention to the library on CPU and CUDA only. On this device a model calls the scope itself.
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  if (const auto& scope = parallel::SequenceScope::current())
    return parallel::attention_over_ranks(
        *scope, {query, key, value, /*mask=*/{}, /*dropout=*/0, /*is_causal=*/true, /*scale=*/{}, /*enable_gqa=*/true});
  return at::scaled_dot_product_attention(query, key, value, {}, 0, true, {}, true);
}

struct AttentionNetImpl : torch::nn::Module {
  explicit AttentionNetImpl(bool computes_again = false) : is_checkpointed(computes_again) {
    for (int i = 0; i < 2; ++i) {
      blocks->push_back(torch::nn::Linear(8, 32));
      outward->push_back(torch::nn::Linear(16, 8));
    }
    register_module("blocks", blocks);
    register_module("outward", outward);
    to(at::kDouble);
  }
  at::Tensor layer(size_t i, const at::Tensor& x) {
    const auto parts = blocks[i]->as<torch::nn::Linear>()->forward(x).unflatten(2, {8, 4}).transpose(1, 2);
    const auto output = attend(parts.narrow(1, 0, 4), parts.narrow(1, 4, 2), parts.narrow(1, 6, 2));
    return x + outward[i]->as<torch::nn::Linear>()->forward(output.transpose(1, 2).flatten(2));
  }
  at::Tensor forward(at::Tensor x) {
    for (size_t i = 0; i < 2; ++i) {
      const auto part = [this, i](const at::Tensor& input) { return layer(i, input); };
      x = is_checkpointed ? activation_checkpoint(part, x) : part(x);
    }
    return x;
  }
  torch::nn::ModuleList blocks, outward;
  bool is_checkpointed;
};

struct SplitSequence {
  std::string name;
  SequenceMethod method;
  int ranks, heads = 1;
  bool is_checkpointed = false;
};

at::Tensor whole_input() { return at::arange(2 * 11 * 8, at::kDouble).sin().view({2, 11, 8}); }

// Returns the gradients of the whole sequences, computed on the CPU.
std::vector<at::Tensor> gradients_of_whole(AttentionNetImpl& net) {
  net.forward(whole_input()).square().sum().div(22).backward();
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : net.parameters()) gradients.push_back(parameter.grad().clone());
  net.zero_grad();
  return gradients;
}

// Runs forward and backward on one rank, which has a part of the sequences.
void run_split(const SplitSequence& split, AttentionNetImpl& net, int rank) {
  std::optional<DeviceMesh> mesh;
  if (split.heads > 1) mesh = init_device_mesh({split.ranks / split.heads, split.heads}, {"ring", "heads"});
  const auto sequence =
      mesh ? std::make_unique<SequenceParallel>(mesh->process_group("ring"), mesh->process_group("heads"), split.method)
           : std::make_unique<SequenceParallel>(nullptr, split.method);
  const auto whole = whole_input().to(device(rank)).requires_grad_();
  const auto own = sequence->shard(whole, 1);
  const auto counts = sequence->shard(at::ones({2, 11, 1}, whole.options()), 1);
  const auto loss = sequence_mean((net.forward(own).square() * counts).sum(), counts.sum());
  const Label label("backward");
  loss.backward();
}

class CheckedAttention : public CheckedDevice {
 protected:
  static std::vector<std::shared_ptr<AttentionNetImpl>> nets(const SplitSequence& split) {
    std::vector<std::shared_ptr<AttentionNetImpl>> all;
    for (int rank = 0; rank <= split.ranks; ++rank) {
      torch::manual_seed(5);
      all.push_back(std::make_shared<AttentionNetImpl>(split.is_checkpointed));
    }
    return all;
  }
};

TEST_F(CheckedAttention, OfEveryMethodIsOrderedInForwardAndBackwardWithShardedParameters) {
  for (const SplitSequence& split : std::vector<SplitSequence>{{"ring", kRing, 3},
                                                               {"head-tail", kHeadTail, 2},
                                                               {"head-tail, computed again", kHeadTail, 3, 1, true},
                                                               {"gather", kGather, 3},
                                                               {"heads", kHeads, 2},
                                                               {"ring self-attention", kRingSelfAttention, 3},
                                                               {"rings of head-tail by heads", kHeadTail, 4, 2},
                                                               {"gather by heads, again", kGather, 4, 2, true}}) {
    SCOPED_TRACE(split.name);
    const auto all = nets(split);
    const auto expected = gradients_of_whole(*all.back());
    run_ranks(split.ranks, [&](int rank) {
      auto& net = *all[static_cast<size_t>(rank)];
      net.to(device(rank));
      const auto group = shard_all(net);
      for (int step = 0; step < 2; ++step) {
        const ForwardScope scope(group);
        run_split(split, net, rank);
      }
      size_t i = 0;
      for (const auto& parameter : net.parameters()) {
        const auto found = full_tensor(parameter.grad()).cpu() / 2;
        EXPECT_LT(relative_difference(expected[i++], found), 1e-10) << rank << ' ' << i;
      }
    });
  }
}

// A Work whose wait() does nothing. The plan keeps the Work that it replaces, because the destructor of a Work orders
// the stream that is current.
struct MissedEvent : Work {
  void wait() override {}
};

// Drops events on rank 1, which reads the keys of rank 0: the events of the first collectives of one kind whose subject
// begins with certain words. If one stream carries several of them before anything is read, all of them are dropped,
// because the event of the last one would order them all.
class MissesOne : public Decorator {
 public:
  struct Plan {
    Operation operation;
    std::string subject;
    size_t most = 1;
    std::vector<std::shared_ptr<Work>> missed = {};
  };
  MissesOne(std::shared_ptr<Communicator> inner, std::string lane, std::shared_ptr<Plan> plan, int rank)
      : Decorator(std::move(inner), std::move(lane)), plan_(std::move(plan)), rank_(rank) {}

  std::shared_ptr<Work> send(const at::Tensor& tensor, int peer, Tag tag) override {
    return planted(Decorator::send(tensor, peer, std::move(tag)));
  }
  std::shared_ptr<Work> recv(const at::Tensor& tensor, int peer, Tag tag) override {
    return planted(Decorator::recv(tensor, peer, std::move(tag)));
  }
  std::shared_ptr<Work> all_gather(std::vector<GatherPlane> planes, Tag tag) override {
    return planted(Decorator::all_gather(std::move(planes), std::move(tag)));
  }
  std::shared_ptr<Work> reduce_scatter(std::vector<ReducePlane> planes, double scale, Tag tag) override {
    return planted(Decorator::reduce_scatter(std::move(planes), scale, std::move(tag)));
  }
  std::shared_ptr<Work> all_to_all(const at::Tensor& output, const at::Tensor& input, Tag tag) override {
    return planted(Decorator::all_to_all(output, input, std::move(tag)));
  }
  std::shared_ptr<Work> all_reduce(std::vector<at::Tensor> tensors, ReduceOp op, Tag tag) override {
    return planted(Decorator::all_reduce(std::move(tensors), op, std::move(tag)));
  }

 private:
  void before(Operation operation, uint64_t /*bytes*/, Tag& tag) override {
    const bool is_message = operation == Operation::kSend || operation == Operation::kRecv;
    is_next_ = rank_ == 1 && tag.subject.starts_with(plan_->subject) &&
               (is_message ? Operation::kRecv : operation) == plan_->operation;
  }
  std::shared_ptr<Work> planted(std::shared_ptr<Work> work) {
    if (!std::exchange(is_next_, false) || plan_->missed.size() >= plan_->most) return work;
    plan_->missed.push_back(std::move(work));
    return std::make_shared<MissedEvent>();
  }
  std::shared_ptr<Communicator> decorate(std::shared_ptr<Communicator> duplicate, const std::string& name) override {
    return std::make_shared<MissesOne>(std::move(duplicate), name, plan_, rank_);
  }

  const std::shared_ptr<Plan> plan_;
  const int rank_;
  bool is_next_ = false;
};

TEST_F(CheckedAttention, AnEventThatIsNotWaitedForIsFoundInEveryMethod) {
  struct Planted {
    SequenceMethod method;
    Operation operation;
    std::string subject;
    size_t most;
  };
  for (const auto& [method, operation, subject, most] :
       std::vector<Planted>{{kRing, Operation::kRecv, "keys and values", 2},
                            {kHeadTail, Operation::kRecv, "gradients of keys", 2},
                            {kGather, Operation::kAllGather, "functional::all_gather", 2},
                            {kGather, Operation::kReduceScatter, "functional::all_gather", 2},
                            {kHeads, Operation::kAllToAll, "functional::all_to_all", 3},
                            {kRingSelfAttention, Operation::kRecv, "values", 2},
                            {kRingSelfAttention, Operation::kAllReduceSum, "gradients of keys", 1}}) {
    const SplitSequence split{"", method, 2};
    const auto all = nets(split);
    const auto plan = std::make_shared<MissesOne::Plan>();
    plan->operation = operation;
    plan->subject = subject;
    plan->most = most;
    run_ranks(
        2,
        [&](int rank) {
          auto& net = *all[static_cast<size_t>(rank)];
          net.to(device(rank));
          run_split(split, net, rank);
          if (rank == 1)
            for (const auto& work : plan->missed) work->wait();
          barrier();
        },
        std::chrono::seconds(60),
        [&](std::shared_ptr<Communicator> inner, int rank) {
          return std::make_shared<MissesOne>(std::move(inner), "main", plan, rank);
        });
    EXPECT_FALSE(std::exchange(plan->missed, {}).empty()) << subject;
    const auto found = violations();
    EXPECT_FALSE(found.empty()) << subject << ", method " << static_cast<int>(method);
    if (!found.empty()) EXPECT_EQ(found.front().fault, Fault::kUnordered) << found.front().text;
  }
}

}  // namespace
}  // namespace fsdp::test::checked
