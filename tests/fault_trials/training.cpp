#include "fault_trials/training.h"

#include <fsdp/fsdp.h>
#include <torch/torch.h>
#include <xxhash.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <optional>
#include <stdexcept>

#include "support/backend.h"

namespace fsdp::test {
namespace {

constexpr int kSteps = 4, kDivergentStep = 2;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{6, 32}, head{nullptr};
  torch::nn::ModuleList blocks;
  // With the width used here, the gather of the head takes several rounds. The head is the last layer, so its width
  // does not change the initial values of the other layers.
  explicit NetImpl(int64_t width) {
    register_module("first", first);
    for (int i = 0; i < 3; ++i) blocks->push_back(torch::nn::Linear(32, 32));
    register_module("blocks", blocks);
    head = register_module("head", torch::nn::Linear(32, width));
  }
  torch::Tensor forward(const torch::Tensor& x, SequenceMethod method) {
    auto h = attend(torch::tanh(first->forward(x)), method);
    for (auto& block : *blocks) h = h + torch::tanh(block->as<torch::nn::Linear>()->forward(h));
    return head->forward(h);
  }
  // Treats the samples of all ranks as one sequence, and lets each sample attend to those before it.
  static torch::Tensor attend(const torch::Tensor& h, SequenceMethod method) {
    const SequenceParallel sequence(nullptr, method);
    const auto heads = h.unflatten(1, {4, 8}).transpose(0, 1).unsqueeze(0);
    const auto mixed = torch::scaled_dot_product_attention(heads, heads, heads, {}, 0.0, /*is_causal=*/true);
    return h + mixed.squeeze(0).transpose(0, 1).flatten(1);
  }
};

struct StageOfRankImpl : torch::nn::Module {
  explicit StageOfRankImpl(const std::shared_ptr<ProcessGroup>& tensor_axis)
      : column(torch::nn::LinearOptions(6, 6), TensorParallelOptions{.axis = tensor_axis}),
        row(torch::nn::LinearOptions(6, 6), TensorParallelOptions{.axis = tensor_axis}) {
    register_module("column", column);
    register_module("row", row);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    inner();
    return torch::tanh(row->forward(torch::tanh(column->forward(x))));
  }
  ColumnParallelLinear column;
  RowParallelLinear row;
  std::function<void()> inner;
};
TORCH_MODULE(StageOfRank);

// A pipeline with one stage for each rank of the axis "pipe". With four ranks, two share each stage: they shard it, or
// cut it by tensor parallelism. These two have the same batch, so every rank computes the same losses.
class StagesOfRanks {
 public:
  explicit StagesOfRanks(const TrainingPlan& plan)
      : mesh_(init_device_mesh(sizes(plan), {"data", "tensor", "pipe"})),
        layer_(mesh_.process_group("tensor")),
        stage_(fully_shard(layer_, {.mesh = mesh_["data"]})),
        optimizer_(layer_->parameters(), 0.1),
        pipeline_({PipelineStage(stage_)}, one_forward_one_backward_schedule(stages(), kMicroBatches),
                  mesh_.process_group("pipe")) {
    layer_->inner = [this] {
      if (micro_batches_until_it_throws_-- == 0) throw std::runtime_error("out of stages");
    };
  }

  // Trains one step and returns its loss. With `throws`, this rank's stage throws in its second micro-batch.
  double step(int number, bool throws = false) {
    micro_batches_until_it_throws_ = throws ? 1 : -1;
    optimizer_.zero_grad();
    const auto inputs = torch::sin(torch::arange(24, torch::kFloat).view({4, 6}) * (1.0 + number));
    const auto loss = pipeline_.step(
        inputs, inputs, [](const auto& output, const auto& target) { return (output - target).square().mean(); });
    optimizer_.step();
    return loss.template item<double>();
  }

 private:
  static constexpr int kMicroBatches = 3;
  static std::vector<int> sizes(const TrainingPlan& plan) {
    if (plan.world_size < 4) return {1, 1, plan.world_size};
    return plan.reshards ? std::vector{2, 1, 2} : std::vector{1, 2, 2};
  }
  int stages() const { return mesh_.process_group("pipe")->world_size(); }

  int micro_batches_until_it_throws_ = -1;
  const DeviceMesh mesh_;
  StageOfRank layer_;
  Sharded<StageOfRank> stage_;
  torch::optim::SGD optimizer_;
  Pipeline pipeline_;
};

// Makes a rank leave its process group, however its training ends.
struct Leave {
  ~Leave() { destroy_process_group(); }
};

class Trainee {
 public:
  explicit Trainee(const TrainingPlan& plan)
      : plan_(plan),
        net_(std::make_shared<NetImpl>(is(Divergence::kOtherModel) ? 3001 : 3000)),
        group_(shard()),
        optimizer_(net_->parameters(), torch::optim::AdamWOptions(0.01)),
        idle_(net_->parameters(), 0.0) {
    if (plan.has_stages) stages_.emplace(plan);
  }

  void step(int number, bool throws_in_stage = false) {
    optimizer_.zero_grad();
    loss(number).backward();
    clip_grad_norm_(group_, 1.0);
    optimizer_.step();
    if (number == 0) evaluate();
    if (number == 0) pass_on();
    if (number == 1) static_cast<void>(full_tensor(net_->head->weight));
    if (stages_) loss_of_stages_ = stages_->step(number, throws_in_stage);
  }

  void throw_in_forward() const {
    const ForwardScope scope(group_);
    net_->first->forward(torch::ones({1, 6}));
    throw std::runtime_error("out of eggs");
  }

  // Makes one rank do something different from the others, after which all ranks do the same again. The parameters stay
  // as they are.
  void diverge() {
    communicate();
    if (is(Divergence::kForwardAlone)) loss(7);
    if (is(Divergence::kWholeTensorAlone)) static_cast<void>(full_tensor(net_->first->bias));
    if (is(Divergence::kNormAlone)) clip_grad_norm_(group_, 1.0);
    if (is(Divergence::kStepAlone)) idle_.step();
    if (is(Divergence::kExceptionAlone)) {
      try {
        throw_in_forward();
      } catch (const std::runtime_error&) {
        throw Mismatch("[fsdp] not a mismatch: this is the rank that threw");
      }
    }
    for (int again = 0; again < 2; ++again) {
      const auto value = loss(again);
      if (is(Divergence::kBackwardAlone)) value.backward({}, /*retain_graph=*/true);
      value.backward();
      clip_grad_norm_(group_, 1.0);
    }
    evaluate();
    barrier();
  }

  // If one rank has made an extra step, the library must assume that ranks have rows of different steps, and it reports
  // this once.
  void start_over() {
    if (plan_.divergence != Divergence::kStepAlone) return group_.reset_iter_state();
    try {
      group_.reset_iter_state();
    } catch (const Mismatch&) {
      return group_.reset_iter_state();
    }
    throw std::runtime_error("no error reported the step that one rank made alone");
  }

  uint64_t hash() {
    uint64_t hash = XXH3_64bits(&loss_of_stages_, sizeof(loss_of_stages_));
    for (auto& parameter : net_->parameters()) {
      const auto whole = full_tensor(parameter).contiguous();
      hash = XXH3_64bits_withSeed(whole.const_data_ptr(), whole.nbytes(), hash);
    }
    return hash;
  }

 private:
  bool is(Divergence divergence) const { return plan_.rank == plan_.divergent_rank && plan_.divergence == divergence; }

  Group shard() {
    const FullyShardOptions options{.reshard_after_forward = plan_.reshards ? Reshard::always() : Reshard::never()};
    if (!is(Divergence::kOtherGroups))
      for (auto& block : *net_->blocks) fully_shard(*block, options);
    return fully_shard(static_cast<torch::nn::Module&>(*net_), options);
  }

  torch::Tensor samples(int step) const {
    return torch::sin(torch::arange(12, torch::kFloat).view({2, 6}) * (1.0 + step) + plan_.rank);
  }
  torch::Tensor loss(int step) {
    using enum SequenceMethod;
    constexpr std::array kMethods{kHeadTail, kGather, kRing, kRingSelfAttention};
    ForwardScope scope(group_);
    return net_->forward(samples(step), kMethods[static_cast<size_t>(step) % kMethods.size()]).square().mean();
  }

  void evaluate() {
    torch::NoGradGuard no_grad;
    loss(9);
  }

  // Passes a number from rank to rank. The last rank broadcasts it to all.
  void pass_on() const {
    auto& ranks = default_process_group()->communicator();
    auto number = torch::zeros({1000});
    if (plan_.rank > 0) ranks.recv(number, plan_.rank - 1, {"number", {}})->wait();
    if (plan_.rank > 0) number += 1;
    if (plan_.rank + 1 < plan_.world_size) ranks.send(number, plan_.rank + 1, {"number", {}})->wait();
    ranks.broadcast(number, plan_.world_size - 1, {"number", {}})->wait();
    if (!torch::all(number == plan_.world_size - 1).item<bool>()) throw std::runtime_error("a wrong number arrived");
  }

  void communicate() const {
    auto& ranks = default_process_group()->communicator();
    auto dtype = is(Divergence::kOtherDtype) ? torch::kDouble : torch::kFloat;
    auto a = torch::ones({is(Divergence::kOtherSize) ? 12 : 11}, dtype), b = torch::ones({5});
    const auto sum = [&](torch::Tensor& tensor, const char* what) {
      ranks.all_reduce(tensor, ReduceOp::kSum, {what, {}})->wait();
    };
    if (is(Divergence::kOtherOrder)) sum(b, "b");
    if (is(Divergence::kOtherOperation)) ranks.broadcast(a, 0, {"a", {}})->wait();
    sum(a, "a");
    sum(b, "b");
  }

  const TrainingPlan plan_;
  std::shared_ptr<NetImpl> net_;
  Group group_;
  optim::AdamW optimizer_;
  torch::optim::SGD idle_;  // with a learning rate of 0
  std::optional<StagesOfRanks> stages_;
  double loss_of_stages_ = 0;
};

void meet(const TrainingPlan& plan) {
  if (plan.port == 0) return init_process_group({.backend = plan.backend, .timeout = plan.timeout});
  const auto hosts = test_hosts(plan.world_size, plan.backend);
  setenv("FSDP_HOST", c10::str("host ", hosts[static_cast<size_t>(plan.rank)]).c_str(), /*overwrite=*/1);
  init_process_group({.backend = plan.backend,
                      .timeout = plan.timeout,
                      .rank = plan.rank,
                      .world_size = plan.world_size,
                      .local_rank = plan.rank,
                      .address = "127.0.0.1:" + std::to_string(plan.port)});
}

}  // namespace

const char* name_of(Divergence divergence) {
  constexpr const char* kNames[kDivergences]{"none",
                                             "another model",
                                             "other groups",
                                             "another dtype",
                                             "another size",
                                             "another order",
                                             "another operation",
                                             "a forward alone",
                                             "a backward alone",
                                             "an optimizer step alone",
                                             "a whole tensor alone",
                                             "a norm alone",
                                             "an exception alone"};
  return kNames[static_cast<size_t>(divergence)];
}

const char* name_of(Departure departure) {
  constexpr const char* kNames[kDepartures]{"none", "throw", "return", "exit", "skip", "throw in a stage"};
  return kNames[static_cast<size_t>(departure)];
}

uint64_t train(const TrainingPlan& plan, const std::function<void(const std::string&)>& tell_mismatch) {
  meet(plan);
  const Leave leave;
  torch::manual_seed(7);
  Trainee trainee(plan);
  for (int step = 0; step < kSteps; ++step) {
    if (step == kDivergentStep && plan.divergence != Divergence::kNone) {
      try {
        trainee.diverge();
        throw std::runtime_error("nobody noticed that the ranks differ");
      } catch (const Mismatch& error) {
        tell_mismatch(error.what_without_backtrace());
      }
      trainee.start_over();
    }
    const bool leaves = step == kDivergentStep && plan.rank == plan.divergent_rank;
    if (leaves && plan.departure == Departure::kThrow) trainee.throw_in_forward();
    if (leaves && plan.departure == Departure::kThrowInStage) trainee.step(step, /*throws_in_stage=*/true);
    if (leaves && plan.departure == Departure::kReturn) return 0;
    if (leaves && plan.departure == Departure::kExit) std::exit(3);
    if (leaves && plan.departure == Departure::kSkip) continue;
    trainee.step(step);
  }
  return trainee.hash();
}

}  // namespace fsdp::test
