#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fsdp/pipeline.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "api/group_view.h"
#include "comm/core/check.h"
#include "pipeline/messages.h"
#include "runtime/param_group.h"

namespace fsdp {
namespace {

using Kind = PipelineAction::Kind;
using pipeline::Form;
using pipeline::Forms;
using pipeline::Mailbox;

// What the ranks say of a run before it begins: whether it trains, the inputs' dtype, and their sizes.
using Signature = std::vector<int64_t>;
constexpr size_t kSignatureNumbers = 16, kBeforeSizes = 3;

PipelineSchedule forwards_of(PipelineSchedule schedule) {
  for (auto& actions : schedule.actions)
    std::erase_if(actions, [](const PipelineAction& action) { return action.kind == Kind::kBackward; });
  return schedule;
}

// What ranks compare: FNV-1a of the names of all actions (G. Fowler, L. C. Noll, K.-P. Vo).
uint32_t hash_of(const PipelineSchedule& schedule) {
  uint32_t hash = 2166136261U;
  for (const auto& actions : schedule.actions)
    for (const auto& action : actions)
      for (const char letter : action.name() + ' ') hash = (hash ^ static_cast<uint8_t>(letter)) * 16777619U;
  return hash;
}

}  // namespace

struct Pipeline::Plan {
  std::vector<PipelineStage> stages;
  PipelineSchedule schedule, forwards;
  std::shared_ptr<ProcessGroup> group;
  std::shared_ptr<Communicator> ranks;
  std::map<Signature, Forms> known = {};  // what stages give for inputs of these sizes

  std::string where(const char* operation) const { return group->where(str_cat("Pipeline::", operation)); }
  bool is_first() const { return group->rank() == schedule.rank_of(0); }
  int last_rank() const { return schedule.rank_of(schedule.stages() - 1); }
  bool is_last() const { return group->rank() == last_rank(); }
  const PipelineStage& stage(int number) const { return stages[static_cast<size_t>(number / schedule.ranks)]; }

  Signature agree_on(const at::Tensor& inputs, bool trains, const char* operation) const;
  // Calls `act` with a Run of these inputs and the number of their rows.
  template <class Act>
  auto run(const at::Tensor& inputs, bool trains, const char* operation, const Act& act);
  void pass_on_failure(const char* operation) const;
};

// The rank of the first stage tells the others.
Signature Pipeline::Plan::agree_on(const at::Tensor& inputs, bool trains, const char* operation) const {
  Signature numbers = {trains, -1, 0};
  if (is_first() && inputs.defined() && inputs.dim() > 0 && inputs.dim() <= int64_t{kSignatureNumbers - kBeforeSizes}) {
    numbers = {trains, static_cast<int64_t>(inputs.scalar_type()), inputs.dim()};
    numbers.insert(numbers.end(), inputs.sizes().begin(), inputs.sizes().end());
  }
  numbers.resize(kSignatureNumbers);
  const auto told = at::tensor(numbers, at::kLong).to(group->device());
  ranks->broadcast(told, schedule.rank_of(0), {str_cat("Pipeline::", operation)})->wait();
  const auto on_host = told.cpu();
  const auto* values = on_host.const_data_ptr<int64_t>();
  Signature signature(values, values + kSignatureNumbers);
  require(signature[1] >= 0, where(operation), "expected inputs of one to ", kSignatureNumbers - kBeforeSizes,
          " dims on the rank of the first stage, found ",
          is_first() && inputs.defined() ? "a tensor of other dims" : "none", ". Give the batch on that rank");
  require(signature[kBeforeSizes] >= schedule.micro_batches, where(operation),
          "expected at least one row for each of the ", schedule.micro_batches, " micro-batches, found ",
          signature[kBeforeSizes],
          " rows. Give a larger batch, or make a "
          "schedule of fewer micro-batches");
  return signature;
}

// In a handler: other ranks of the axis wait for this one, and so do those that share a stage with it.
void Pipeline::Plan::pass_on_failure(const char* operation) const {
  const auto name = str_cat("Pipeline::", operation);
  const auto tell = [&](const std::string& error, std::optional<int> lost) {
    group->communicator().fail(name, error, lost);
    for (const auto& stage : stages)
      if (stage.group())
        for (const auto& own : param_groups(*stage.group())) own->placement().fail(name, error, lost);
  };
  try {
    throw;
  } catch (const PeerLost& error) {
    tell(what_without_backtrace(error), error.rank());
  } catch (const std::exception& error) {
    tell(what_without_backtrace(error), std::nullopt);
  }
}

// One pass of a batch through a schedule, on this rank.
class Pipeline::Run {
 public:
  Run(const Plan& plan, const PipelineSchedule& schedule, Forms& forms, bool learns, std::vector<at::Tensor> inputs)
      : plan_(plan),
        schedule_(schedule),
        inputs_(std::move(inputs)),
        mailbox_(*plan.group, *plan.ranks, schedule, forms, learns) {}

  // `backward_root` gives what backward begins at, of an output of the last stage; without it there is no backward.
  using Root = std::function<at::Tensor(const at::Tensor& output, size_t micro_batch)>;
  void run(const Root& backward_root) {
    const auto& actions = schedule_.actions[static_cast<size_t>(plan_.group->rank())];
    const SyncGuard sync(plan_);
    for (auto action = actions.begin(); action != actions.end(); ++action) {
      if (action->kind == Kind::kForward) {
        forward(*action, backward_root);
        continue;
      }
      // Gradients of a stage are reduced with its last micro-batch.
      const auto is_of_same_stage = [&](const PipelineAction& other) {
        return other.kind == Kind::kBackward && other.stage == action->stage;
      };
      sync.set(plan_.stage(action->stage), std::none_of(action + 1, actions.end(), is_of_same_stage));
      backward(*action);
    }
    mailbox_.finish();
  }

  std::vector<at::Tensor> outputs;  // of the last stage, by micro-batch, where there is no backward

 private:
  // What forward leaves for backward: a leaf, and a tensor of the graph that leads to it.
  struct Passed {
    at::Tensor input, output;
  };

  void forward(const PipelineAction& action, const Root& root) {
    auto input = action.stage == 0 ? inputs_[static_cast<size_t>(action.micro_batch)] : mailbox_.receive(action);
    if (root && action.stage > 0 && mailbox_.needs_gradient(action)) input.requires_grad_();
    auto output = plan_.stage(action.stage)(input);
    require(output.defined(), plan_.where("stage"), "expected a tensor from stage ", action.stage,
            ", found an undefined one. Return the stage's output");
    const bool is_last = action.stage + 1 == schedule_.stages();
    if (is_last && root)
      output = root(output, static_cast<size_t>(action.micro_batch));
    else if (is_last)
      outputs.push_back(output);
    else
      mailbox_.send(action, output);
    if (root) passed_[{action.stage, action.micro_batch}] = {std::move(input), std::move(output)};
  }

  void backward(const PipelineAction& action) {
    auto [input, output] = std::move(passed_.extract({action.stage, action.micro_batch}).mapped());
    const bool is_last = action.stage + 1 == schedule_.stages();
    const auto gradient = is_last ? at::Tensor() : mailbox_.receive(action);
    if (output.requires_grad()) torch::autograd::backward({output}, {gradient});
    if (action.stage == 0) return;
    auto given = input.requires_grad() && !input.grad().defined() ? at::zeros_like(input) : input.grad();
    mailbox_.send(action, given);
  }

  // Holds back the reductions of sharded stages, and puts back what the user had set.
  class SyncGuard {
   public:
    explicit SyncGuard(const Plan& plan) {
      for (const auto& stage : plan.stages)
        if (stage.group())
          for (const auto& group : param_groups(*stage.group()))
            before_.emplace_back(group, group->policy.requires_gradient_sync);
    }
    ~SyncGuard() {
      for (const auto& [group, synced] : before_) group->policy.requires_gradient_sync = synced;
    }
    SyncGuard(const SyncGuard&) = delete;
    SyncGuard& operator=(const SyncGuard&) = delete;

    void set(const PipelineStage& stage, bool is_last) const {
      if (!stage.group()) return;
      const auto& own = param_groups(*stage.group());
      for (const auto& [group, synced] : before_)
        if (std::ranges::find(own, group) != own.end()) group->policy.requires_gradient_sync = is_last && synced;
    }

   private:
    std::vector<std::pair<std::shared_ptr<runtime::ParamGroup>, bool>> before_;
  };

  const Plan& plan_;
  const PipelineSchedule& schedule_;
  const std::vector<at::Tensor> inputs_;  // by micro-batch, on the rank of the first stage
  Mailbox mailbox_;
  std::map<std::pair<int, int>, Passed> passed_;  // by stage and micro-batch
};

template <class Act>
auto Pipeline::Plan::run(const at::Tensor& inputs, bool trains, const char* operation, const Act& act) {
  const auto signature = agree_on(inputs, trains, operation);
  try {
    const auto found = known.find(signature);
    auto forms = found == known.end() ? Forms() : found->second;
    const auto parts = is_first() ? inputs.detach().tensor_split(schedule.micro_batches) : std::vector<at::Tensor>();
    Run pass(*this, trains ? schedule : forwards, forms, found == known.end(), parts);
    auto result = act(pass, signature[kBeforeSizes]);
    known[signature] = std::move(forms);
    return result;
  } catch (...) {
    known.clear();  // ranks got unequally far
    pass_on_failure(operation);
    throw;
  }
}

Pipeline::Pipeline(std::vector<PipelineStage> stages, PipelineSchedule schedule, std::shared_ptr<ProcessGroup> group)
    : plan_(std::make_unique<Plan>()) {
  if (!group) group = default_process_group();
  const auto where = group->where("Pipeline");
  validate(schedule);
  require(schedule.ranks == group->world_size(), where, "expected a schedule for the ", group->world_size(),
          " ranks of the axis, found one for ", schedule.ranks);
  require(std::ssize(stages) == schedule.chunks, where, "expected the ", schedule.chunks, " stages of rank ",
          group->rank(), ", found ", stages.size(), ". Rank r holds the stages r, r + ", schedule.ranks, " and so on");
  require(schedule.slices == 1, where, "expected a schedule of whole sequences, found one of ", schedule.slices,
          " slices, which is not supported");
  auto forwards = forwards_of(schedule);
  auto ranks = group->reductions().duplicate("pipeline");
  const auto text = str_cat("Pipeline of ", schedule.name, ", ", schedule.chunks, " stages on each rank, ",
                            schedule.micro_batches, " micro-batches, with actions of the hash ", hash_of(schedule));
  ranks->barrier({text})->wait();
  *plan_ = {std::move(stages), std::move(schedule), std::move(forwards), std::move(group), std::move(ranks)};
}

Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

const PipelineSchedule& Pipeline::schedule() const { return plan_->schedule; }

void Pipeline::reset_iter_state() {
  plan_->group->communicator().start_over();
  for (const auto& stage : plan_->stages)
    if (stage.group()) stage.group()->reset_iter_state();
}

at::Tensor Pipeline::step(const at::Tensor& inputs, const at::Tensor& targets, const Loss& loss) {
  const auto& plan = *plan_;
  return plan_->run(inputs, true, "step", [&](Run& pass, int64_t rows) {
    std::vector<at::Tensor> parts;
    if (plan.is_last()) {
      require(targets.defined() && targets.dim() > 0 && targets.size(0) == rows, plan.where("step"),
              "expected targets of ", rows, " rows, as many as the inputs have, found ",
              targets.defined() ? str_cat("sizes ", targets.sizes()) : "an undefined tensor");
      parts = targets.tensor_split(plan.schedule.micro_batches);
    }
    const auto sum = at::zeros({}, at::TensorOptions(at::kDouble).device(plan.group->device()));
    pass.run([&](const at::Tensor& output, size_t micro_batch) {
      const auto& target = parts[micro_batch];
      const auto mean = loss(output, target);
      require(mean.defined() && mean.numel() == 1, plan.where("step"), "expected a loss of one element, found ",
              mean.defined() ? str_cat("sizes ", mean.sizes()) : "an undefined tensor", ". Return the mean loss");
      const auto share = mean.sum() * (static_cast<double>(target.size(0)) / static_cast<double>(rows));
      sum.add_(share.detach());
      return share;
    });
    plan.ranks->broadcast(sum, plan.last_rank(), {"Pipeline::step loss"})->wait();
    return sum;
  });
}

at::Tensor Pipeline::forward(const at::Tensor& inputs) {
  const at::NoGradGuard no_grad;
  return plan_->run(inputs, false, "forward", [&](Run& pass, int64_t) {
    pass.run(nullptr);
    return plan_->is_last() ? at::cat(pass.outputs) : at::Tensor();
  });
}

}  // namespace fsdp
