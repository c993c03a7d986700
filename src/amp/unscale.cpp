#include "amp/unscale.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_set>
#include <vector>

#include "comm/core/check.h"
#include "memory/part_storage.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp::amp {
namespace {

using memory::FlatBuffer;
using runtime::ParamGroup;
using runtime::Part;

struct Parameter {
  at::Tensor tensor;
  std::optional<Part> part;  // of a sharded one
};

// Each once, also where an optimizer lists a tied one several times.
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

// The ranks' states in one order, so that two threads cannot wait for each other.
std::vector<std::unique_lock<RankLock>> lock_ranks(const std::vector<Parameter>& parameters) {
  std::set<runtime::RankState*> ranks;
  for (const auto& [tensor, part] : parameters)
    if (part) ranks.insert(&part->group->rank_state());
  std::vector<std::unique_lock<RankLock>> locks;
  for (auto* rank : ranks) locks.emplace_back(rank->mutex);
  return locks;
}

void require_rests(const Part& part, const std::string& operation) {
  const auto& group = *part.group;
  require(!group.is_inside() && torch::autograd::get_current_graph_task_id() == -1, group.where(operation),
          "a forward scope or a backward is open on '", group.name(),
          "', and its gradients are not complete. Call it after them; after an exception in backward call "
          "reset_iter_state() first");
  group.require_no_waiting_gradients(operation);
}

// Of a group's rows, or alone.
struct Gradient {
  at::Tensor values;
  const Part* part = nullptr;
  std::shared_ptr<FlatBuffer> buffer;  // null: memory of another kind
  int64_t byte_offset() const {
    return static_cast<const char*>(values.const_data_ptr()) - static_cast<const char*>(buffer->data());
  }
  int64_t end() const { return byte_offset() + static_cast<int64_t>(values.nbytes()); }
};

// In the order in which rows lie in memory. Those of a sparse one are values to which each element adds up once.
std::vector<Gradient> gradients_of(const std::vector<Parameter>& parameters) {
  std::vector<Gradient> gradients;
  for (const auto& [tensor, part] : parameters) {
    if (!tensor.grad().defined()) continue;
    if (tensor.grad().is_sparse()) tensor.mutable_grad() = tensor.grad().coalesce();
    const auto& gradient = tensor.grad();
    const auto values = gradient.is_sparse() ? gradient._values() : gradient.detach();
    if (values.numel() > 0) gradients.push_back({values, part ? &*part : nullptr, memory::buffer_of(values)});
  }
  std::ranges::stable_sort(gradients, {}, [](const Gradient& gradient) {
    return gradient.part ? std::pair(gradient.part->group->id(), gradient.part->slot) : std::pair(runtime::GroupId{0}, size_t{0});
  });
  return gradients;
}

// Whether nothing but padding, which is zeros, lies between two of them.
bool are_neighbours(const Gradient& left, const Gradient& right) {
  if (!left.buffer || left.buffer != right.buffer || !left.part || !right.part || left.part->group != right.part->group)
    return false;
  if (left.values.scalar_type() != right.values.scalar_type() || left.end() > right.byte_offset()) return false;
  const auto& slots = left.part->group->slots();
  return std::all_of(slots.begin() + static_cast<int64_t>(left.part->slot) + 1,
                     slots.begin() + static_cast<int64_t>(right.part->slot),
                     [](const auto& slot) { return slot.rows_numel() == 0; });
}

// Memory as few flat tensors, each of which is one pass.
std::vector<at::Tensor> stretches_of(const std::vector<Gradient>& gradients) {
  std::vector<at::Tensor> stretches;
  for (size_t i = 0; i < gradients.size();) {
    const auto& first = gradients[i];
    size_t last = i;
    while (last + 1 < gradients.size() && are_neighbours(gradients[last], gradients[last + 1])) ++last;
    if (last == i)
      stretches.push_back(first.values);
    else
      stretches.push_back(memory::flat_tensor(
          first.buffer, static_cast<size_t>(first.byte_offset()),
          (gradients[last].end() - first.byte_offset()) / static_cast<int64_t>(first.values.element_size()),
          first.values.scalar_type()));
    i = last + 1;
  }
  return stretches;
}

bool have_gradients(const std::vector<Parameter>& parameters) {
  return std::ranges::any_of(parameters, [](const auto& parameter) { return parameter.tensor.grad().defined(); });
}

// The same on every rank where some are sharded.
c10::Device device_of(const std::vector<Parameter>& parameters) {
  for (const auto& [tensor, part] : parameters)
    if (part) return part->group->slots()[part->slot].rows_tensor.device();
  return parameters.front().tensor.device();
}

// Sets `found` to 1 if something is not finite. Memory in files is let go behind the pass.
void unscale_one(const at::Tensor& values, std::optional<float> factor, at::Tensor& found) {
  memory::note_use(values);
  const auto options = at::TensorOptions().dtype(at::kFloat).device(values.device());
  auto found_here = values.device() == found.device() ? found : at::zeros({}, options);
  if (factor) {
    at::_amp_foreach_non_finite_check_and_unscale_({values}, found_here, at::full({}, *factor, options));
  } else {  // both ends are NaN if one value is
    const auto [least, greatest] = at::aminmax(values);
    found_here.add_(least.isfinite().logical_and_(greatest.isfinite()).logical_not_());
  }
  if (!found_here.is_same(found)) found.add_(found_here.to(found.device()));
  if (const auto buffer = memory::buffer_of(values)) buffer->let_go();
}

// In the order of the parameters, which is the same on every rank. Replicas have the same rows, but a parameter that
// is not sharded may differ between any two ranks.
std::vector<ParamGroup*> one_group_of_each_ranks(const std::vector<Parameter>& parameters) {
  std::vector<ParamGroup*> groups;
  for (const auto& [tensor, part] : parameters) {
    const auto ranks_of = [](const ParamGroup* group) { return &group->placement().process_group(); };
    if (part && std::ranges::find(groups, ranks_of(part->group.get()), ranks_of) == groups.end())
      groups.push_back(part->group.get());
  }
  return groups;
}

void find_on_all(ParamGroup& group, const at::Tensor& found, const std::string& operation) {
  const auto& placement = group.placement();
  if (placement.process_group().world_size() == 1) return;
  const std::lock_guard lock(group.rank_state().mutex);
  placement.pass_on_failure_of(operation, [&] {
    group.rank_state().wait(
        *placement.process_group().communicator().all_reduce(found, ReduceOp::kMax, {operation, {}}));
  });
}

}  // namespace

std::string where_of(const torch::optim::Optimizer& optimizer, const std::string& operation) {
  for (const auto& [tensor, part] : parameters_of(optimizer))
    if (part) return part->group->where(operation);
  return "[fsdp] " + operation + ": ";
}

at::Tensor unscale(const torch::optim::Optimizer& optimizer, std::optional<float> factor,
                   const std::string& operation) {
  const runtime::OwnOperators own_operators;
  const auto parameters = parameters_of(optimizer);
  auto locks = lock_ranks(parameters);
  // Also of parameters without a gradient: a backward that is open has put theirs aside.
  for (const auto& [tensor, part] : parameters)
    if (part) require_rests(*part, operation);
  if (!have_gradients(parameters)) return {};
  auto found = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(device_of(parameters)));
  for (const auto& stretch : stretches_of(gradients_of(parameters))) unscale_one(stretch, factor, found);
  locks.clear();
  for (auto* group : one_group_of_each_ranks(parameters)) find_on_all(*group, found, operation);
  return found;
}

}  // namespace fsdp::amp
