#include "pipeline/run.h"

#include <ATen/Dispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "api/group_view.h"
#include "comm/core/check.h"
#include "comm/core/fault_point.h"
#include "comm/core/text.h"
#include "runtime/param_group.h"

namespace fsdp::pipeline {
namespace {

using Kind = PipelineAction::Kind;

// Sets whether the backward of a stage reduces gradients. The destructor restores the user's settings.
class SyncGuard {
 public:
  explicit SyncGuard(const Plan& plan) {
    for (const auto& group : plan.groups()) before_.emplace_back(group, group->policy.requires_gradient_sync);
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

// Returns the distance from 1 to the next number of a floating-point dtype, or 0 for other dtypes.
double epsilon_of(at::ScalarType dtype) {
  double epsilon = 0;
  if (at::isFloatingType(dtype))
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "epsilon",
                                    [&] { epsilon = static_cast<double>(std::numeric_limits<scalar_t>::epsilon()); });
  return epsilon;
}

double largest(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.detach().to(at::kDouble).abs().max().item<double>();
}

}  // namespace

std::vector<std::shared_ptr<runtime::ParamGroup>> Plan::groups() const {
  std::vector<std::shared_ptr<runtime::ParamGroup>> groups;
  for (const auto& stage : stages)
    if (stage.group()) std::ranges::copy(param_groups(*stage.group()), std::back_inserter(groups));
  return groups;
}

std::map<int, std::shared_ptr<const ModuleNode>> trees_of(const Plan& plan) {
  std::map<int, std::shared_ptr<const ModuleNode>> trees;
  std::set<const void*> known;
  for (int number = plan.group->rank(); number < plan.schedule.stages(); number += plan.schedule.ranks) {
    const auto& stage = plan.stage(number);
    if (stage.group()) {
      const auto* tree = GroupView::of(*stage.group()).tree.get();
      if (known.insert(tree).second) trees[number] = {std::make_shared<Group>(*stage.group()), tree};
    } else if (stage.module() && known.insert(stage.module().get()).second) {
      trees[number] = module_tree(*stage.module());
    }
  }
  return trees;
}

std::vector<at::Tensor> Plan::parts_of(const at::Tensor& batch) const {
  std::vector<at::Tensor> parts;
  for (const auto& rows : batch.tensor_split(schedule.micro_batches)) {
    if (schedule.slices == 1)
      parts.push_back(rows);
    else
      for (auto& slice : rows.split_with_sizes(schedule.slice_lengths, 1)) parts.push_back(std::move(slice));
  }
  return parts;
}

Run::Run(const Plan& plan, const PipelineSchedule& schedule, Forms& forms, bool learns, std::vector<at::Tensor> inputs)
    : plan_(plan),
      schedule_(schedule),
      learns_(learns),
      inputs_(std::move(inputs)),
      mailbox_(*plan.group, *plan.ranks, schedule, forms, learns) {}

std::vector<at::Tensor> Run::run(const Root& root) {
  const auto& actions = schedule_.actions[static_cast<size_t>(plan_.group->rank())];
  const SyncGuard sync(plan_);
  std::vector<at::Tensor> outputs;
  for (auto action = actions.begin(); action != actions.end(); ++action) {
    if (action->kind == Kind::kForward) {
      auto output = forward(*action, root);
      if (!root && action->stage + 1 == schedule_.stages()) outputs.push_back(std::move(output));
      continue;
    }
    // A stage reduces its gradients only in its last backward.
    const auto is_of_same_stage = [&](const PipelineAction& other) {
      return other.kind == Kind::kBackward && other.stage == action->stage;
    };
    sync.set(plan_.stage(action->stage), std::none_of(action + 1, actions.end(), is_of_same_stage));
    backward(*action);
  }
  mailbox_.finish();
  return outputs;
}

at::Tensor Run::forward(const PipelineAction& action, const Root& root) {
  fault_point("pipeline forward");
  const size_t part = plan_.part_of(action);
  auto input = action.stage == 0 ? inputs_[part] : mailbox_.receive(action);
  if (root && action.stage > 0 && mailbox_.needs_gradient(action)) input.requires_grad_();
  parallel::TokenSlices::Place place;
  if (schedule_.slices > 1) {
    auto& slices = slices_[{action.stage, action.micro_batch}];
    if (!slices) slices = std::make_shared<parallel::TokenSlices>(plan_.group);
    place = {slices, static_cast<size_t>(action.slice)};
    for (size_t slice = 0; slice < place.slice; ++slice) place.first_token += schedule_.slice_lengths[slice];
  }
  at::Tensor output;
  {
    const parallel::TokenSlices::Entered entered(std::move(place));
    try {
      output = plan_.stage(action.stage)(input);
    } catch (const Error&) {
      throw;
    } catch (c10::Error& error) {  // the error of a LibTorch operator does not say in which stage the operator is
      error.add_context(str_cat("in stage ", action.stage, " of the pipeline, whose input is ", input.scalar_type(),
                                " of sizes ", input.sizes()));
      throw;
    }
  }
  require(output.defined(), plan_.where("stage"), "expected a tensor from stage ", action.stage,
          ", found an undefined one. Return the stage's output");
  if (learns_ && schedule_.slices > 1 && action.micro_batch == 0) require_slices_as_whole(action, input, output);
  if (action.stage + 1 < schedule_.stages())
    mailbox_.send(action, output);
  else if (root)
    output = root(output, part);
  if (root) passed_[{action.stage, part}] = {std::move(input), output};
  return output;
}

// Throws UsageError if the stage's outputs for the slices of a sequence differ from its output for the whole sequence.
// They do if the stage mixes tokens by other means than attention. A stage that draws random numbers is not checked,
// because its results differ from call to call.
void Run::require_slices_as_whole(const PipelineAction& action, const at::Tensor& input, const at::Tensor& output) {
  auto& [inputs, outputs] = compared_[action.stage];
  inputs.push_back(input.detach());
  outputs.push_back(output.detach());
  if (action.slice + 1 < schedule_.slices) return;
  const at::NoGradGuard no_grad;
  const auto whole = at::cat(inputs, 1), found = at::cat(outputs, 1);
  const auto expected = plan_.stage(action.stage)(whole), again = plan_.stage(action.stage)(whole);
  compared_.erase(action.stage);
  const bool is_alike = expected.sizes() == found.sizes();
  const double difference = is_alike ? largest(expected - found) : INFINITY;
  const double noise = largest(expected - again);
  require(noise > 0 || difference <= std::sqrt(epsilon_of(found.scalar_type())) * largest(expected),
          plan_.where("stage"), "stage ", action.stage,
          " gives different results for slices of a sequence than for the whole sequence: they differ by ", difference,
          " in values of up to ", largest(expected),
          ". Either something other than scaled_dot_product_attention mixes tokens, ",
          "or the stage does not take the positions of tokens from fsdp::positions. Choose a schedule of whole "
          "sequences, or change the stage");
}

void Run::backward(const PipelineAction& action) {
  fault_point("pipeline backward");
  auto [input, output] = std::move(passed_.extract({action.stage, plan_.part_of(action)}).mapped());
  const bool is_last = action.stage + 1 == schedule_.stages();
  const auto gradient = is_last ? at::Tensor() : mailbox_.receive(action);
  if (output.requires_grad()) torch::autograd::backward({output}, {gradient});
  if (action.slice == 0) slices_.erase({action.stage, action.micro_batch});
  if (action.stage == 0) return;
  mailbox_.send(action, input.requires_grad() && !input.grad().defined() ? at::zeros_like(input) : input.grad());
}

}  // namespace fsdp::pipeline
