#include "runtime/param_group.h"

#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/graph_task.h>

#include <set>

#include "comm/core/check.h"
#include "comm/core/fault_point.h"
#include "runtime/compat.h"
#include "runtime/registry.h"

namespace fsdp::runtime {
namespace {

// As yet without a number.
GroupIdentity identity_of(const ParamGroup::Spec& spec) {
  auto account = std::make_shared<memory::ByteAccount>(spec.rank_state->shared_account());
  return {spec.name, spec.placement, spec.rank_state, std::move(account)};
}

}  // namespace

std::shared_ptr<ParamGroup> ParamGroup::create(const Spec& spec) {
  std::shared_ptr<ParamGroup> group(new ParamGroup(spec));
  auto& identity = group->parts_->identity;
  identity.id = group->rank_state().add(*group);
  identity.account->number(static_cast<int64_t>(identity.id));
  return group;
}

Parts::Parts(GroupIdentity who, const std::vector<GroupMember>& parameters, const GroupPolicy& policy,
             const FormChange& change)
    : identity(std::move(who)),
      disk_folder(policy.disk_folder),
      params(identity, parameters, policy.row_memory, policy.bucket_cap_bytes, change),
      row_lock(identity, params.every_rank_has_rows()),
      residency(identity, params, row_lock),
      backward(identity, params) {
  if (!policy.free_when_written)
    for (auto& flat : params.flats()) flat.keep_whole_memory();
}

ParamGroup::ParamGroup(const Spec& spec)
    : policy(spec.policy),
      rank_state_(spec.rank_state),
      parts_(std::make_unique<Parts>(identity_of(spec), spec.parameters, spec.policy)),
      modules_(spec.modules) {}

// Meanwhile the parameters show their whole sizes, by which they are laid out.
std::unique_ptr<Parts> ParamGroup::parts_over(const Placement& placement, const GroupPolicy& by,
                                              const FormChange& change) {
  auto who = identity();
  who.placement = placement;
  std::vector<GroupMember> parameters(slots().size());
  const auto show_rows = c10::make_scope_exit([&] {
    for (const auto& slot : slots()) slot.show_rows();
  });
  for (size_t i = 0; i < slots().size(); ++i) {
    slots()[i].show_whole();
    const auto& slot = slots()[i];
    parameters[params().place(i).given] = {{slot.name(), slot.tensor()}, slot.precision(), slot.form(), slot.cut()};
  }
  return std::make_unique<Parts>(std::move(who), parameters, by, change);
}

void ParamGroup::move_to(std::unique_ptr<Parts> parts, const GroupPolicy& to) {
  parts->residency.custom_all_gather = residency().custom_all_gather;
  rank_state().readers_at_rest.erase(id());
  const auto former = std::exchange(parts_, std::move(parts));
  policy = to;
  params().install(shared_from_this());
  for (auto& slot : former->params.slots())
    slot.whole_storage.detach(where("backward") + "parameter '" + slot.name() +
                              "' was read by a forward before its rows moved to another strategy. Run backward before "
                              "fsdp::set_strategy, or forward again after it");
}

void ParamGroup::rename_slot(size_t slot, std::string name) {
  if (slots()[slot].name() == name) return;
  params().rename(slot, std::move(name));
  if (residency().state() != GatherState::kWhole) slots()[slot].whole_storage.detach(slots()[slot].no_memory_error);
}

bool ParamGroup::stays_after_forward() const {
  if (!policy.unshard_in_backward || parts_->residency.unshard_was_asked || summon_depth > 0) return true;
  if (policy.reshard_after_forward) return !*policy.reshard_after_forward;
  return scope && scope->root == id();
}

bool ParamGroup::stays_after_backward() const {
  return parts_->residency.unshard_was_asked || summon_depth > 0 || !policy.reshard_after_backward;
}

void ParamGroup::enter() {
  if (depth_++ > 0) return;
  fault_point("group entered");
  for (auto& slot : slots()) slot.show_whole();
}

void ParamGroup::leave() {
  if (--depth_ > 0) return;
  fault_point("group left");
  for (auto& slot : slots()) slot.show_rows();
}

void ParamGroup::enter_backward(int task, bool (*expects)(const ParamSlot&), bool may_recompute) {
  enter();
  if (!backward().is_open()) gathers_before_backward_ = residency().gathers_in_place();
  const bool gathers_again = policy.unshard_in_backward || params().shares_memory();
  if (!backward().is_open() && row_lock().begin_backward() && gathers_again && !residency().is_pinned()) {
    residency().free_whole();
    row_lock().meet_before_reading();
  }
  backward().enter(task, expects, may_recompute);
}

void ParamGroup::call_post_accumulate_grad_hook() {
  if (!policy.post_accumulate_grad_hook || !backward().has_complete_gradients()) return;
  const auto hook = policy.post_accumulate_grad_hook;  // it may set another one
  const int depth = std::exchange(depth_, 0);
  for (auto& slot : slots()) slot.show_rows();
  backward().exchange_gradients();
  row_lock().end_read();
  is_in_hook_ = true;
  const auto go_back = [&] {
    is_in_hook_ = false;
    backward().exchange_gradients();
    depth_ = depth;
    for (auto& slot : slots()) slot.show_whole();
  };
  try {
    std::vector<at::Tensor> parameters;
    for (const auto& slot : slots())
      if (auto parameter = slot.tensor(); parameter.defined() && parameter.grad().defined())
        parameters.push_back(std::move(parameter));
    const UsersOperators users_operators;
    if (!parameters.empty()) hook(parameters);
  } catch (...) {
    go_back();
    throw;
  }
  go_back();
  backward().note_handed_out();
  if (rank_state().reads.current == id()) rank_state().reads.current = 0;
}

void ParamGroup::require_not_handed_out() const {
  if (!backward().is_handed_out()) return;
  require(false, where("backward"), "parameters of '", name(),
          "' are read after their gradients were handed to the hook of set_post_accumulate_grad_hook, which may have "
          "stepped them: this backward would go on with other values. Take the hook away, or read what needs no "
          "gradient from a copy that was made in forward; then call reset_iter_state()");
}

void ParamGroup::note_write(WriteKind kind, std::optional<size_t> slot) {
  // The sums by which an optimizer writes rows may be those of a collective that was aborted.
  if (!params().is_on_cpu()) placement().progress();
  row_lock().note_write(kind, slot);
  forget_whole();
}

void ParamGroup::end_write() {
  row_lock().end_write();
  forget_whole();
}

void ParamGroup::forget_whole() {
  if (placement().process_group().world_size() > 1) registry().leaves.note_write();
  if (policy.free_when_written && !is_inside() && !residency().is_pinned()) residency().free_whole();
}

bool ParamGroup::is_at_rest() const {
  return !is_inside() && (is_in_hook_ || torch::autograd::get_current_graph_task_id() == -1);
}

void ParamGroup::require_at_rest(const std::string& operation) const {
  if (!is_at_rest())
    require(false, where(operation), "a forward scope or a backward is open on '", name(),
            "'. Call it after them; after an exception in backward call reset_iter_state() first");
}

void ParamGroup::require_no_waiting_gradients(const std::string& operation) const {
  if (backward().has_late_reductions())
    require(false, where(operation), "gradients of '", name(),
            "' are in flight since a backward with set_is_last_backward(false) and would be left out. Run the last "
            "backward of the iteration with set_is_last_backward(true); to drop them call reset_iter_state()");
  if (backward().has_gradients())
    require(false, where(operation), "gradients of '", name(),
            "' of a backward without synchronisation wait for their reduction and would be left out. Run the last "
            "backward of the iteration outside of no_sync(), with set_requires_gradient_sync(true) and "
            "set_requires_all_reduce(true); to drop them call reset_iter_state()");
}

void ParamGroup::reset() {
  for (size_t tasks = backward().reset(); tasks > 0; --tasks) leave();
  residency().free_whole();
  residency().forget_gathers_in_place();
  if (!is_inside()) row_lock().end_read();
  row_lock().reset();
}

std::vector<std::unique_lock<RankLock>> lock_ranks(const std::vector<ParamGroup*>& groups) {
  std::set<RankState*> ranks;
  for (const auto* group : groups) ranks.insert(&group->rank_state());
  std::vector<std::unique_lock<RankLock>> locks;
  for (auto* rank : ranks) locks.emplace_back(rank->mutex);
  return locks;
}

}  // namespace fsdp::runtime
