#include "amp/unscale.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <iomanip>
#include <limits>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "amp/loss_scale.h"
#include "comm/core/check.h"
#include "runtime/compat.h"
#include "runtime/runs.h"

namespace fsdp::amp {
namespace {

using runtime::ParamGroup;
using runtime::Part;

struct Parameter {
  at::Tensor tensor;
  std::optional<Part> part;  // group and slot of the parameter; unset if it is not sharded
};

// Returns the optimizer's parameters. A tied parameter that the optimizer lists several times occurs once.
std::vector<Parameter> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<Parameter> all;
  std::unordered_set<const at::TensorImpl*> known;
  for (const auto& options : optimizer.param_groups())
    for (const auto& tensor : options.params()) {
      if (!tensor.defined() || !known.insert(tensor.unsafeGetTensorImpl()).second) continue;
      const bool is_sharded = runtime::is_marked(*tensor.unsafeGetTensorImpl());
      all.push_back({tensor, is_sharded ? runtime::registry().find(tensor) : std::nullopt});
    }
  return all;
}

// Returns the groups in the order of the parameters, which is the same on every rank. A group may occur several times.
std::vector<ParamGroup*> groups_of(const std::vector<Parameter>& parameters) {
  std::vector<ParamGroup*> groups;
  for (const auto& [tensor, part] : parameters)
    if (part && (groups.empty() || groups.back() != part->group.get())) groups.push_back(part->group.get());
  return groups;
}

struct Gradient {
  std::optional<Part> part;
  at::Tensor rows, values;
};

// Returns this rank's gradients. The values of a sparse gradient are its coalesced values.
std::vector<Gradient> gradients_of(const std::vector<Parameter>& parameters) {
  std::vector<Gradient> gradients;
  for (const auto& [tensor, part] : parameters) {
    if (!tensor.grad().defined()) continue;
    if (tensor.grad().is_sparse()) tensor.mutable_grad() = tensor.grad().coalesce();
    const auto& gradient = tensor.grad();
    const auto values = gradient.is_sparse() ? gradient._values() : gradient.detach();
    const auto& rows = part ? part->group->slots()[part->slot].rows_tensor : tensor;
    if (values.numel() > 0) gradients.push_back({part, rows, values});
  }
  return gradients;
}

// Returns flat tensors that together have all values of the gradients. Gradients that are neighbours in memory share a
// tensor, so that as few passes as possible are needed.
std::vector<at::Tensor> stretches_of(std::vector<Gradient> gradients) {
  std::vector<at::Tensor> ranges;
  const auto extent_of = [](const Gradient& gradient) {
    const auto& values = gradient.values;
    return runtime::Extent{true,
                           {static_cast<int64_t>(values.scalar_type())},
                           values.numel(),
                           {runtime::location_of(values), runtime::location_of(gradient.rows)}};
  };
  runtime::visit_runs(gradients, extent_of, [&](std::span<Gradient* const> run, int64_t numel) {
    const auto& first = run.front()->values;
    ranges.push_back(run.size() == 1 ? first : runtime::flat_range(first, numel));
  });
  return ranges;
}

bool have_gradients(const std::vector<Parameter>& parameters) {
  return std::ranges::any_of(parameters, [](const auto& parameter) { return parameter.tensor.grad().defined(); });
}

// Returns the device of the result, which is the same on every rank that takes part.
c10::Device device_of(const std::vector<Parameter>& parameters, const ProcessGroup* ranks) {
  for (const auto& [tensor, part] : parameters)
    if (part) return part->group->slots()[part->slot].rows_tensor.device();
  if (ranks) return ranks->device();
  return parameters.empty() ? c10::Device(at::kCPU) : parameters.front().tensor.device();
}

// Multiplies the values by `factor` if it is set, and sets `found` to a positive number if a value is not finite. If
// the values are in a mapped file, the function then tells the operating system that they are not needed for a while.
void unscale_one(const at::Tensor& values, std::optional<float> factor, at::Tensor& found) {
  memory::note_use(values);
  const auto options = at::TensorOptions().dtype(at::kFloat).device(values.device());
  auto found_here = values.device() == found.device() ? found : at::zeros({}, options);
  if (factor) {
    at::_amp_foreach_non_finite_check_and_unscale_({values}, found_here, at::full({}, *factor, options));
  } else {  // if a value is NaN, aminmax returns NaN for both
    const auto [least, greatest] = at::aminmax(values);
    found_here.add_(least.isfinite().logical_and_(greatest.isfinite()).logical_not_());
  }
  if (!found_here.is_same(found)) found.add_(found_here.to(found.device()));
  if (const auto buffer = memory::buffer_of(values)) buffer->mark_cold();
}

void go_over_gradients(const std::vector<Parameter>& parameters, std::optional<float> factor, at::Tensor& found) {
  for (const auto& stretch : stretches_of(gradients_of(parameters))) unscale_one(stretch, factor, found);
}

// Returns one group for each process group, in the order of the parameters, which is the same on every rank. The
// process group, and not only the shard axis, takes part, because gradients of unsharded parameters may differ between
// replicas.
std::vector<ParamGroup*> one_of_each_ranks(const std::vector<ParamGroup*>& groups) {
  const auto ranks_of = [](const ParamGroup* group) { return &group->placement().process_group(); };
  std::vector<ParamGroup*> some;
  for (auto* group : groups)
    if (std::ranges::find(some, ranks_of(group), ranks_of) == some.end()) some.push_back(group);
  return some;
}

// Returns the tensor axes and the pipeline axes over which models are split, each once. Tensor axes come first, so that
// the result that a stage sends to the other stages includes all ranks of its tensor axis.
std::vector<const ProcessGroup*> split_axes_of(const std::vector<Parameter>& parameters) {
  std::vector<const ProcessGroup*> axes;
  for (const auto axis_of : {&runtime::Placement::tensor_axis, &runtime::Placement::pipe_axis})
    for (const auto& [tensor, part] : parameters) {
      const auto* axis = part ? (part->group->placement().*axis_of).get() : nullptr;
      if (axis != nullptr && std::ranges::find(axes, axis) == axes.end()) axes.push_back(axis);
    }
  return axes;
}

// Two values that the ranks exchange in addition to `found`.
struct Votes {
  bool has_scaled, has_gradients;
  at::Tensor tensor(const at::TensorOptions& options) const {
    auto votes = at::zeros({2}, options);
    if (has_scaled) votes[0].fill_(1);
    if (has_gradients) votes[1].fill_(1);
    return votes;
  }
  // Takes the ranks' maxima. If both members are true already, the maxima are known, and the host does not wait for the
  // device.
  void take(const at::Tensor& greatest) {
    if (has_scaled && has_gradients) return;
    const auto on_host = greatest.cpu();
    *this = {on_host[0].item<float>() > 0, on_host[1].item<float>() > 0};
  }
};

// Returns the subject that the ranks compare. It includes the scale with all its bits, so if the scales differ, every
// rank throws Mismatch.
std::string subject_of(const Question& question) {
  TextWriter subject;
  subject << question.operation << " by the scale " << std::setprecision(std::numeric_limits<float>::max_digits10)
          << question.scale;
  return subject.str();
}

void find_on_all(ParamGroup& group, const at::Tensor& found, const std::string& subject, Votes& votes) {
  const auto& placement = group.placement();
  if (placement.process_group().world_size() == 1) return;
  const MutexLock lock(group.rank_state().mutex);
  placement.pass_on_failure_of(subject, [&] {
    const auto given = votes.tensor(found.options());
    const auto work = placement.process_group().communicator().all_reduce({found, given}, ReduceOp::kMax, {subject});
    group.rank_state().wait(*work);
    votes.take(given);
  });
}

void find_on_all(const ProcessGroup& ranks, const at::Tensor& found, const std::string& subject, Votes& votes) {
  if (ranks.world_size() == 1) return;
  const auto given = votes.tensor(found.options());
  ranks.communicator().all_reduce({found, given}, ReduceOp::kMax, {subject})->wait();
  votes.take(given);
}

}  // namespace

std::string where_of(const torch::optim::Optimizer& optimizer, const std::string& operation) {
  const auto groups = groups_of(parameters_of(optimizer));
  return groups.empty() ? "[fsdp] " + operation + ": " : groups.front()->where(operation);
}

Answer unscale(const torch::optim::Optimizer& optimizer, const Question& question) {
  const runtime::OwnOperators own_operators;
  const auto parameters = parameters_of(optimizer);
  const auto groups = groups_of(parameters);
  auto locks = runtime::lock_ranks(groups);
  // The check includes groups of parameters without a gradient, because an open backward has set their gradients aside.
  for (const auto* group : groups) {
    group->require_at_rest(question.operation);
    group->require_no_waiting_gradients(question.operation);
  }
  auto found = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(device_of(parameters, question.ranks.get())));
  const auto factor = question.divides ? std::optional(inverse_of(question.scale)) : std::nullopt;
  // A rank that has not scaled a loss only checks its gradients at first, because perhaps no rank has scaled one.
  go_over_gradients(parameters, question.has_scaled ? factor : std::nullopt, found);
  locks.clear();
  Votes votes{question.has_scaled, have_gradients(parameters)};
  const auto subject = subject_of(question);
  const auto told = one_of_each_ranks(groups);
  for (auto* group : told) find_on_all(*group, found, subject, votes);
  auto axes = split_axes_of(parameters);
  const bool are_told = std::ranges::find(axes, question.ranks.get()) != axes.end() ||
                        std::ranges::any_of(told, [&](const ParamGroup* group) {
                          return &group->placement().process_group() == question.ranks.get();
                        });
  if (question.ranks && !are_told) axes.push_back(question.ranks.get());
  for (const auto* axis : axes) find_on_all(*axis, found, subject, votes);
  if (factor && votes.has_scaled && !question.has_scaled) {
    locks = runtime::lock_ranks(groups);
    auto found_before = at::zeros_like(found);
    go_over_gradients(parameters, factor, found_before);
  }
  return {votes.has_scaled, votes.has_gradients ? found : at::Tensor()};
}

}  // namespace fsdp::amp
