#include <fsdp/group.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "api/group_view.h"
#include "api/plan.h"
#include "comm/core/check.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp {

using runtime::ParamGroup;

namespace {

constexpr const char* kUnshard = "unshard";

// Applies `change` to the module's own group, or to all groups under it.
template <class Change>
void change_policy(const std::vector<std::shared_ptr<ParamGroup>>& groups, bool recurse, const Change& change) {
  const MutexLock lock(groups.front()->rank_state().mutex);
  for (size_t i = 0; i < (recurse ? groups.size() : 1); ++i) change(groups[i]->policy);
}

// Calls `act` with the module's own group under the lock, because another thread may exchange the group's layout.
auto with_own(const GroupView& view, const auto& act) {
  auto& own = *view.groups.front();
  const MutexLock lock(own.rank_state().mutex);
  return act(own);
}

// Returns the ids of groups to prefetch while `own` is read. Throws UsageError if one has another process group.
std::vector<runtime::GroupId> ids_of(const ParamGroup& own, const std::vector<Group>& groups, const char* operation) {
  std::vector<runtime::GroupId> ids;
  for (const auto& listed : groups) {
    const auto& group = *param_groups(listed).front();
    require(&group.placement().process_group() == &own.placement().process_group(), own.where(operation),
            "all groups must share the process group of '", own.name(), "', but '", group.name(),
            "' is sharded over a different one. List groups of the same model");
    ids.push_back(group.id());
  }
  return ids;
}

}  // namespace

Group make_group(std::shared_ptr<ParamGroup> own, std::unique_ptr<ModuleNode> tree) {
  auto view = std::make_shared<GroupView>();
  view->groups.push_back(std::move(own));
  std::unordered_set<const ParamGroup*> seen{view->groups.front().get()};
  auto add = [&](const std::shared_ptr<ParamGroup>& group) {
    if (group && seen.insert(group.get()).second) view->groups.push_back(group);
  };
  visit_nodes(*tree, [&](const ModuleNode& node) {
    add(group_at(node));
    for (const auto& parameter : node.parameters)
      if (auto part = runtime::registry().find(parameter.tensor)) add(part->group);
  });
  view->tree = std::move(tree);
  return GroupView::handle_of(std::move(view));
}

ByteCounts byte_counts(const memory::ByteAccount& account) {
  using memory::ByteClass;
  const auto of = [&](ByteClass cls) { return ByteCount{account.current(cls), account.peak(cls)}; };
  // While forward is recorded, kForward contains the bytes that activation checkpoints keep.
  const auto& all = account.whole();
  const auto forward_or_kept = [&](auto count) {
    const bool is_recorded = (all.*count)(ByteClass::kForward) >= (all.*count)(ByteClass::kActivation);
    return (account.*count)(is_recorded ? ByteClass::kForward : ByteClass::kActivation);
  };
  return {.rows = of(ByteClass::kRows),
          .whole = of(ByteClass::kWhole),
          .gradient = of(ByteClass::kGradient),
          .optimizer = of(ByteClass::kOptimizer),
          .activation = {forward_or_kept(&memory::ByteAccount::current), forward_or_kept(&memory::ByteAccount::peak)},
          .host = of(ByteClass::kHost),
          .disk = of(ByteClass::kDisk)};
}

NoSync::NoSync(std::shared_ptr<const GroupView> view) : view_(std::move(view)) {
  const MutexLock lock(view_->groups.front()->rank_state().mutex);
  for (const auto& group : view_->groups)
    previous_.push_back(std::exchange(group->policy.requires_gradient_sync, false));
}

NoSync::~NoSync() {
  if (!view_) return;
  const auto& groups = view_->groups;
  const MutexLock lock(groups.front()->rank_state().mutex);
  for (size_t i = 0; i < groups.size(); ++i) groups[i]->policy.requires_gradient_sync = previous_[i];
}

void UnshardHandle::wait() {
  with_own(*view_, [](auto& own) { own.wait_for_unshard(kUnshard); });
}

UnshardHandle Group::unshard() const {
  const auto& own = view_->groups.front();
  const MutexLock lock(own->rank_state().mutex);
  require_values({own}, kUnshard);
  own->drop_stale_copy();
  own->unshard(kUnshard);
  own->unshard_was_asked = true;
  return UnshardHandle(view_);
}

void Group::reshard() const {
  const auto& own = view_->groups.front();
  const MutexLock lock(own->rank_state().mutex);
  require(own->summon_depth == 0, own->where("reshard"), "a summon_full_params is open on '", own->name(),
          "', and reshard would lose its values. Close the summon_full_params first");
  own->reshard();
}

void Group::set_requires_gradient_sync(bool requires_sync, bool recurse) const {
  change_policy(view_->groups, recurse, [&](auto& policy) { policy.requires_gradient_sync = requires_sync; });
}

void Group::set_requires_all_reduce(bool requires_all_reduce, bool recurse) const {
  change_policy(view_->groups, recurse, [&](auto& policy) { policy.reduction.all_reduces = requires_all_reduce; });
}

void Group::set_is_last_backward(bool is_last) const {
  change_policy(view_->groups, true, [&](auto& policy) { policy.is_last_backward = is_last; });
}

void Group::set_post_optim_event(c10::Event event) const {
  const auto& own = *view_->groups.front();
  const MutexLock lock(own.rank_state().mutex);
  for (const auto& group : view_->groups)
    for (const auto& flat : group->flats()) {
      const auto device = flat.whole().form.device;
      require(event.device_type() == device.type() && (device.is_cpu() || event.was_marked_for_recording()),
              own.where("set_post_optim_event"), "expected an event recorded on ", device, ", found a ",
              c10::DeviceTypeName(event.device_type(), /*lower_case=*/true),
              event.was_marked_for_recording() ? " event" : " event that was not recorded",
              ". Record the event on the stream that ran the optimizer's step before you set the event");
    }
  const auto shared = std::make_shared<const c10::Event>(std::move(event));
  for (const auto& group : view_->groups) group->gather_after(shared);
}

void Group::set_all_reduce_hook(std::function<void(const at::Tensor& rows)> hook) const {
  change_policy(view_->groups, false, [&](auto& policy) { policy.reduction.hook = hook; });
}

void Group::set_post_accumulate_grad_hook(std::function<void(const std::vector<at::Tensor>& parameters)> hook) const {
  change_policy(view_->groups, false, [&](auto& policy) { policy.post_accumulate_grad_hook = hook; });
}

void Group::set_custom_all_gather(AllGather all_gather) const {
  change_policy(view_->groups, false, [&](auto& policy) { policy.custom_all_gather = std::move(all_gather); });
}

void Group::set_custom_reduce_scatter(ReduceScatter reduce_scatter) const {
  change_policy(view_->groups, false, [&](auto& policy) { policy.reduction.custom_reduce_scatter = reduce_scatter; });
}

NoSync Group::no_sync() const { return NoSync(view_); }

void Group::set_reshard_after_forward(bool reshard, bool recurse) const {
  change_policy(view_->groups, recurse, [&](auto& policy) { policy.reshard_after_forward = reshard; });
}

void Group::set_reshard_after_backward(bool reshard, bool recurse) const {
  change_policy(view_->groups, recurse, [&](auto& policy) { policy.reshard_after_backward = reshard; });
}

void Group::set_unshard_in_backward(bool unshard) const {
  change_policy(view_->groups, false, [&](auto& policy) { policy.unshard_in_backward = unshard; });
}

void Group::set_reduce_scatter_unused_params(bool reduce, bool recurse) const {
  change_policy(view_->groups, recurse, [&](auto& policy) { policy.reduces_unused = reduce; });
}

void Group::set_gradient_divide_factor(double factor) const {
  const auto& own = view_->groups.front();
  require(factor > 0 && std::isfinite(factor), own->where("set_gradient_divide_factor"),
          "expected a finite factor above 0, found ", factor);
  change_policy(view_->groups, false, [&](auto& policy) { policy.reduction.divide_factor = factor; });
}

void Group::set_modules_to_forward_prefetch(const std::vector<Group>& groups) const {
  auto ids = ids_of(*view_->groups.front(), groups, "set_modules_to_forward_prefetch");
  change_policy(view_->groups, false, [&](auto& policy) { policy.forward_prefetch = ids; });
}

void Group::set_modules_to_backward_prefetch(const std::vector<Group>& groups) const {
  auto ids = ids_of(*view_->groups.front(), groups, "set_modules_to_backward_prefetch");
  change_policy(view_->groups, false, [&](auto& policy) { policy.backward_prefetch = ids; });
}

std::vector<at::Tensor> Group::parameters() const {
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : subtree_parameters(*view_->tree)) parameters.push_back(parameter.tensor);
  return parameters;
}

GroupStats Group::stats() const {
  auto& rank = view_->groups.front()->rank_state();
  const MutexLock lock(rank.mutex);
  GroupStats stats;
  for (const auto& group : view_->groups) {
    ++stats.groups;
    stats.gathers += group->gathers;
    stats.gathers_within += group->gathers_within;
    stats.reductions += group->reductions;
    for (auto& slot : group->slots()) {
      stats.parameter_numel += slot.numel();
      stats.rows_numel += slot.rows_numel();
    }
  }
  stats.intercepted_operators = rank.intercepted_operators;
  static_cast<ByteCounts&>(stats) = byte_counts(*rank.account);
  return stats;
}

void Group::reset_peak_stats() const {
  auto& rank = view_->groups.front()->rank_state();
  rank.account->reset_peaks();
  const MutexLock lock(rank.mutex);
  for (const auto* group : rank.groups()) group->account()->reset_peaks();
}

std::string Group::name() const {
  return with_own(*view_, [](auto& own) { return own.name(); });
}
int Group::rank() const {
  return with_own(*view_, [](auto& own) { return own.placement().process_group().rank(); });
}
int Group::world_size() const {
  return with_own(*view_, [](auto& own) { return own.placement().process_group().world_size(); });
}

}  // namespace fsdp
