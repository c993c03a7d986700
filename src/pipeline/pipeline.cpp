#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fsdp/pipeline.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include "api/group_view.h"
#include "comm/core/check.h"
#include "parallel/attention_operator.h"
#include "pipeline/run.h"
#include "runtime/param_group.h"

namespace fsdp {
namespace {

using pipeline::Forms;
using pipeline::kBeforeSizes;
using pipeline::kHeaderNumbers;
using pipeline::Plan;
using pipeline::Run;
using pipeline::Signature;

PipelineSchedule forwards_of(PipelineSchedule schedule) {
  for (auto& actions : schedule.actions)
    std::erase_if(actions, [](const auto& action) { return action.kind == PipelineAction::Kind::kBackward; });
  return schedule;
}

void require_schedule_that_fits(const PipelineSchedule& schedule, const ProcessGroup& group, size_t stages) {
  const auto where = group.where("Pipeline");
  validate(schedule);
  require(schedule.ranks == group.world_size(), where, "expected a schedule for the ", group.world_size(),
          " ranks of the axis, found a schedule for ", schedule.ranks);
  require(static_cast<int>(stages) == schedule.chunks, where, "expected the ", schedule.chunks, " stages of rank ",
          group.rank(), ", found ", stages, ". Rank r holds the stages r, r + ", schedule.ranks, " and so on");
}

// Returns a hash of the names of all actions, which the ranks compare: FNV-1a (G. Fowler, L. C. Noll, K.-P. Vo).
uint32_t hash_of(const PipelineSchedule& schedule) {
  uint32_t hash = 2166136261U;
  for (const auto& actions : schedule.actions)
    for (const auto& action : actions)
      for (const char letter : action.name() + ' ') hash = (hash ^ static_cast<uint8_t>(letter)) * 16777619U;
  return hash;
}

// Call this function in an exception handler. It passes the exception on to all ranks that can be waiting for this one:
// those of the pipeline's axis, and those that share a stage with this rank.
void pass_on_failure(const Plan& plan, const char* operation) {
  std::vector<const ProcessGroup*> axes{plan.group.get()};
  for (const auto& group : plan.groups())
    std::ranges::copy(group->placement().process_groups(), std::back_inserter(axes));
  runtime::fail_all(axes, str_cat("Pipeline::", operation));
}

// Returns the signature of the run, which the rank of the first stage broadcasts to the pipeline's axis. Collective.
Signature agree_on(const Plan& plan, const at::Tensor& inputs, bool trains, const char* operation) {
  constexpr int64_t kMostDims = kHeaderNumbers - kBeforeSizes;
  Signature numbers = {trains, -1, 0};
  if (plan.is_first() && inputs.defined() && inputs.dim() > 0 && inputs.dim() <= kMostDims) {
    numbers = {trains, static_cast<int64_t>(inputs.scalar_type()), inputs.dim()};
    numbers.insert(numbers.end(), inputs.sizes().begin(), inputs.sizes().end());
  }
  numbers.resize(kHeaderNumbers);
  const auto told = at::tensor(numbers, at::kLong).to(plan.group->device());
  plan.ranks->broadcast(told, plan.schedule.rank_of(0), {str_cat("Pipeline::", operation)})->wait();
  const auto on_host = told.cpu();
  return {on_host.const_data_ptr<int64_t>(), on_host.const_data_ptr<int64_t>() + kHeaderNumbers};
}

void require_inputs_that_fit(const Plan& plan, const Signature& signature, const char* operation) {
  const auto& schedule = plan.schedule;
  const int64_t dims = signature[2], rows = signature[kBeforeSizes], tokens = signature[kBeforeSizes + 1];
  require(dims >= 1, plan.where(operation), "expected inputs of 1 to ", kHeaderNumbers - kBeforeSizes,
          " dims on the rank of the first stage, found an undefined tensor or another number "
          "of dims. Pass the batch on that rank");
  require(rows >= schedule.micro_batches, plan.where(operation), "expected at least one row for each of the ",
          schedule.micro_batches, " micro-batches, found ", rows,
          " rows. Pass a larger batch, or make a schedule with fewer micro-batches");
  if (schedule.slices == 1) return;
  const auto& lengths = schedule.slice_lengths;
  const auto expected = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  require(dims >= 2 && tokens == expected, plan.where(operation), "expected sequences of ", expected,
          " tokens along dim 1, as many as the ", schedule.slices, " slices have, found ", dims >= 2 ? tokens : 0,
          ". Make a schedule whose slices together have this length");
}

// Calls `act`, which waits for other ranks. If it throws, the other ranks throw too.
template <class Act>
auto pass_on_failure_of(const Plan& plan, const char* operation, const Act& act) {
  try {
    return act();
  } catch (...) {
    pass_on_failure(plan, operation);
    throw;
  }
}

// Calls `act` with a Run of `inputs` and the number of their rows, and returns its result. Collective.
template <class Act>
at::Tensor run_batch(Plan& plan, const at::Tensor& inputs, bool trains, const char* operation, const Act& act) {
  const auto signature = pass_on_failure_of(plan, operation, [&] { return agree_on(plan, inputs, trains, operation); });
  require_inputs_that_fit(plan, signature, operation);  // if this throws, it throws on all ranks
  return pass_on_failure_of(plan, operation, [&] {
    const auto found = plan.known.find(signature);
    auto forms = found == plan.known.end() ? Forms() : found->second;
    Run run(plan, trains ? plan.schedule : plan.forwards, forms, found == plan.known.end(),
            plan.is_first() ? plan.parts_of(inputs.detach()) : std::vector<at::Tensor>());
    auto result = act(run, signature[kBeforeSizes]);
    plan.known[signature] = std::move(forms);
    return result;
  });
}

}  // namespace

Pipeline::Pipeline(std::vector<PipelineStage> stages, PipelineSchedule schedule, std::shared_ptr<ProcessGroup> group) {
  if (!group) group = default_process_group();
  require_schedule_that_fits(schedule, *group, stages.size());
  auto ranks = group->reductions().duplicate("pipeline");
  plan_ = std::make_unique<Plan>(Plan{std::move(stages), {}, {}, std::move(group), std::move(ranks)});
  set_schedule(std::move(schedule));
  for (const auto& own : plan_->groups()) {
    const MutexLock lock(own->rank_state().mutex);
    own->params().placement.pipe_axis = plan_->group;
  }
}

void Pipeline::set_schedule(PipelineSchedule schedule) {
  require_schedule_that_fits(schedule, *plan_->group, plan_->stages.size());
  if (schedule.slices > 1) parallel::see_attention();
  const auto text =
      str_cat("Pipeline of ", schedule.name, ", ", schedule.chunks, " stages on each rank, ", schedule.micro_batches,
              " micro-batches, ",
              schedule.slice_lengths.empty() ? "no slices"
                                             : str_cat("slices of ", str_join(", ", schedule.slice_lengths), " tokens"),
              ", with actions of the hash ", hash_of(schedule));
  plan_->ranks->barrier({text})->wait();
  plan_->forwards = forwards_of(schedule);
  plan_->schedule = std::move(schedule);
  plan_->known.clear();
}

Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

const PipelineSchedule& Pipeline::schedule() const { return plan_->schedule; }

void Pipeline::reset_iter_state() {
  // Ranks that share a stage with this one can be waiting for it, while other ranks of the pipeline wait for them.
  for (const auto& group : plan_->groups())
    group->placement().fail("reset_iter_state",
                            "the rank starts over after an exception. Call reset_iter_state() on every rank");
  plan_->group->communicator().start_over();
  plan_->known.clear();  // in the step that failed, perhaps only some ranks learnt the forms
  for (const auto& stage : plan_->stages)
    if (stage.group()) stage.group()->reset_iter_state();
}

at::Tensor Pipeline::step(const at::Tensor& inputs, const at::Tensor& targets, const Loss& loss) {
  const auto& plan = *plan_;
  return run_batch(*plan_, inputs, true, "step", [&](Run& run, int64_t rows) {
    std::vector<at::Tensor> parts;
    double count = static_cast<double>(rows);  // number of rows, or of tokens, over which the loss is a mean
    const bool has_slices = plan.schedule.slices > 1;
    if (plan.is_last()) {
      require(targets.defined() && targets.dim() > (has_slices ? 1 : 0) && targets.size(0) == rows, plan.where("step"),
              "expected targets of ", rows, " rows, as many as the inputs have, found ",
              targets.defined() ? str_cat("sizes ", targets.sizes()) : "an undefined tensor");
      parts = plan.parts_of(targets);
      if (has_slices) count *= static_cast<double>(targets.size(1));
    }
    const auto sum = at::zeros({}, at::TensorOptions(at::kDouble).device(plan.group->device()));
    run.run([&](const at::Tensor& output, size_t part) {
      const auto& target = parts[part];
      const auto mean = loss(output, target);
      require(mean.defined() && mean.numel() == 1, plan.where("step"), "expected a loss of one element, found ",
              mean.defined() ? str_cat("sizes ", mean.sizes()) : "an undefined tensor", ". Return the mean loss");
      const auto share = mean.sum() * (static_cast<double>(target.size(0) * (has_slices ? target.size(1) : 1)) / count);
      sum.add_(share.detach());
      return share;
    });
    plan.ranks->broadcast(sum, plan.last_rank(), {"Pipeline::step loss"})->wait();
    return sum;
  });
}

at::Tensor Pipeline::forward(const at::Tensor& inputs) {
  const at::NoGradGuard no_grad;
  return run_batch(*plan_, inputs, false, "forward", [&](Run& run, int64_t) {
    const auto outputs = run.run(nullptr);
    plan_->ranks->barrier({"Pipeline::forward"})->wait();  // throws if a later stage has failed
    std::vector<at::Tensor> rows;
    for (size_t first = 0; first < outputs.size(); first += static_cast<size_t>(plan_->schedule.slices))
      rows.push_back(
          plan_->schedule.slices == 1
              ? outputs[first]
              : at::cat(at::TensorList(outputs).slice(first, static_cast<size_t>(plan_->schedule.slices)), 1));
    return plan_->is_last() ? at::cat(rows) : at::Tensor();
  });
}

}  // namespace fsdp
