#include <fsdp/set_strategy.h>

#include <ATen/ops/empty_strided.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "api/group_view.h"
#include "api/placement_choice.h"
#include "api/plan.h"
#include "api/rows.h"
#include "comm/core/check.h"
#include "optim/state_tensors.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"

namespace fsdp {
namespace {

using runtime::ParamGroup;
using runtime::ShardedParams;
using Groups = std::vector<std::shared_ptr<ParamGroup>>;

constexpr const char* kOperation = "set_strategy";

// Returns the optimizer's state tensors of a parameter. The list is empty if the parameter has no state yet.
std::vector<at::Tensor*> state_of(torch::optim::Optimizer& optimizer, const runtime::ParamSlot& slot) {
  const auto found = optimizer.state().find(slot.tensor().unsafeGetTensorImpl());
  return found != optimizer.state().end() ? optim::tensors_of(*found->second) : std::vector<at::Tensor*>();
}

void require_owned(ParamGroup& group, torch::optim::Optimizer& optimizer) {
  std::unordered_set<const at::TensorImpl*> owned;
  for (const auto& options : optimizer.param_groups())
    for (const auto& parameter : options.params()) owned.insert(parameter.unsafeGetTensorImpl());
  for (const auto& slot : group.slots()) {
    const auto where = [&] { return group.where(kOperation) + "parameter '" + slot.name() + "' "; };
    const auto parameter = slot.tensor();
    require(parameter.defined(), where(),
            "no longer exists, because its module has released it. Shard the model again");
    auto* key = parameter.unsafeGetTensorImpl();
    require(!parameter.requires_grad() || owned.contains(key), where(),
            "is not one of the optimizer's parameters, so its optimizer state would not be moved. Pass the optimizer "
            "that has all parameters that require gradients");
    const auto state = optimizer.state().find(key);
    if (state == optimizer.state().end()) continue;
    require(!optim::tensors_of(*state->second).empty(), where(),
            "has state of an optimizer that is unknown or not element-wise. Use one of fsdp::optim (not LBFGS) or "
            "Adam, AdamW, SGD, RMSprop or Adagrad of torch::optim");
    for (const auto* tensor : optim::tensors_of(*state->second))
      require(!tensor->defined() || tensor->sizes() == slot.rows_tensor.sizes(), where(),
              "has optimizer state of sizes ", tensor->defined() ? tensor->sizes() : c10::IntArrayRef(),
              ": expected the sizes of this rank's rows, ", slot.rows_tensor.sizes(),
              ". Make the optimizer after "
              "fully_shard");
  }
}

// Returns the placement for `strategy`, with the tensor axis and the pipe axis of the old placement. Collective if the
// mesh has several axes.
runtime::Placement new_placement(const Groups& groups, Strategy strategy, const std::optional<DeviceMesh>& mesh) {
  const auto& ranks = groups.front()->placement().shared_process_group();
  for (const auto& group : groups)
    require(group->placement().shared_process_group() == ranks, group->where(kOperation), "'", group->name(),
            "' is sharded over a different process group than '", groups.front()->name(),
            "'. Call set_strategy separately for each model");
  require(!mesh || (mesh->ndim() == 1 ? mesh->process_group() : mesh->laid_out()) == ranks,
          groups.front()->where(kOperation), "expected a mesh of the model's ", ranks->world_size(),
          " ranks, found one of different ranks or of a different process group. Make the mesh over the process group "
          "that the model is sharded over");
  auto placement = choose_placement({.strategy = strategy, .mesh = mesh, .process_group = mesh ? nullptr : ranks});
  placement.tensor_axis = groups.front()->placement().tensor_axis;
  placement.pipe_axis = groups.front()->placement().pipe_axis;
  return placement;
}

// Throws Mismatch on every rank if the ranks differ in the new strategy or in their numbers of gradients or state
// tensors. Collective.
void agree(const Groups& groups, torch::optim::Optimizer& optimizer, Strategy strategy,
           const runtime::Placement& placement) {
  int64_t gradients = 0, states = 0;
  for (const auto& group : groups)
    for (const auto& slot : group->slots()) {
      gradients += slot.tensor().grad().defined();
      for (const auto* tensor : state_of(optimizer, slot)) states += tensor->defined();
    }
  const auto& own = *groups.front();
  const auto subject = str_cat("set_strategy of ", own.name(), " to ",
                               describe(strategy, placement.replicas(), placement.shard().world_size()), " with ",
                               gradients, " gradients and ", states, " tensors of optimizer state");
  own.rank_state().wait(*own.placement().process_group().communicator().barrier({subject, {}}));
}

// The move of one group to its new layout. The group keeps its old layout until `finish` is called.
class Move {
 public:
  Move(std::shared_ptr<ParamGroup> group, const runtime::Placement& placement, Strategy strategy)
      : group_(std::move(group)), policy_(group_->policy) {
    apply_strategy(strategy, policy_);
    params_ = group_->lay_out(placement, policy_);
    from_.resize(group_->slots().size());
    for (const size_t i : c10::irange(from_.size())) from_[group_->slots()[i].place.given] = i;
  }

  ShardedParams* params() const { return params_.get(); }

  // take_rows, take_states and take_gradients copy from the old layout to the new one. They are collective.
  void take_rows() {
    group_->reshard();
    group_->wait_for_unshard();
    std::vector<at::Tensor> wholes;
    for (const size_t i : from_) wholes.push_back(whole_rows(i));
    params_->take_rows(wholes);
    group_->reshard();
  }
  void take_states(torch::optim::Optimizer& optimizer) {
    for_each_slot([&](size_t from, size_t to) {
      for (auto* tensor : state_of(optimizer, group_->slots()[from])) {
        if (!tensor->defined()) continue;
        const auto& rows = params_->slots()[to].rows_tensor;
        auto moved = at::empty_strided(rows.sizes(), rows.strides(), tensor->options());
        fill(moved, from, to, *tensor);
        states_.emplace_back(tensor, std::move(moved));
      }
    });
  }
  void take_gradients() {
    std::vector<std::optional<memory::FlatPart>> flats(params_->flats().size());
    for_each_slot([&](size_t from, size_t to) {
      const auto& gradient = group_->slots()[from].tensor().grad();
      if (!gradient.defined()) return;
      const auto index = params_->slots()[to].place.plane;
      auto& flat = flats[index];
      if (!flat) {
        flat = params_->flats()[index].allocate_gradient(params_->flats()[index].rows().form);
        flat->tensor().zero_();
      }
      auto moved = params_->rows_of_slice(params_->slots()[to], *flat);
      fill(moved, from, to, gradient);
      gradients_.emplace_back(to, std::move(moved));
    });
  }

  // Gives the group its new layout. Does not communicate and does not throw.
  void finish() {
    group_->move_to(std::move(params_), policy_);
    for (auto& [place, moved] : states_) *place = std::move(moved);
    for (auto& [slot, moved] : gradients_) {
      group_->params().register_gradient(group_->slots()[slot], moved);
      group_->slots()[slot].tensor().mutable_grad() = std::move(moved);
    }
  }

 private:
  // Returns the whole parameter with the dtype and device of its rows. If the unsharded parameter has another dtype,
  // for example a lower precision, the rows themselves are gathered.
  at::Tensor whole_rows(size_t index) {
    const auto& slot = group_->slots()[index];
    if (memory::form_of(slot.whole_tensor) == memory::form_of(slot.rows_tensor)) return slot.whole_tensor;
    return gather_rows(*group_, index, slot.rows_tensor, kOperation);
  }
  // Calls `act(from, to)` with the old and the new index of each slot. The order of the new slots is the same on every
  // rank.
  template <class Act>
  void for_each_slot(const Act& act) {
    for (const size_t to : c10::irange(from_.size())) act(from_[params_->slots()[to].place.given], to);
  }
  void fill(const at::Tensor& moved, size_t from, size_t to, const at::Tensor& rows) {
    params_->slots()[to].copy_rows(gather_rows(*group_, from, rows, kOperation), moved);
  }

  const std::shared_ptr<ParamGroup> group_;
  runtime::GroupPolicy policy_;
  std::unique_ptr<ShardedParams> params_;
  std::vector<size_t> from_;  // indices of the old slots, in the order in which fully_shard got the parameters
  std::vector<std::pair<at::Tensor*, at::Tensor>> states_;
  std::vector<std::pair<size_t, at::Tensor>> gradients_;
};

}  // namespace

void set_strategy(const Group& model, torch::optim::Optimizer& optimizer, Strategy strategy,
                  const std::optional<DeviceMesh>& mesh) {
  const auto& groups = param_groups(model);
  auto& rank = groups.front()->rank_state();
  const MutexLock lock(rank.mutex);
  require_values(groups, kOperation);
  for (const auto& group : groups) {
    require_between_steps(*group, kOperation);
    require_owned(*group, optimizer);
  }
  const auto placement = new_placement(groups, strategy, mesh);
  agree(groups, optimizer, strategy, placement);
  const runtime::OwnOperators own_operators;
  std::vector<std::unique_ptr<Move>> moves;
  std::vector<ShardedParams*> params;
  for (const auto& group : groups) {
    moves.push_back(std::make_unique<Move>(group, placement, strategy));
    params.push_back(moves.back()->params());
  }
  allocate_rows(params, kOperation);
  for (const auto& move : moves) {
    move->take_rows();
    move->take_states(optimizer);
    move->take_gradients();
  }
  // If one of the statements above throws, the model is unchanged.
  for (const auto& move : moves) move->finish();
  rank.reads.forget();
}

}  // namespace fsdp
