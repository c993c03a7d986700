#include "runtime/param_group.h"

#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/graph_task.h>

#include <set>

#include "comm/core/call_tag.h"
#include "comm/core/check.h"

namespace fsdp::runtime {

ParamGroup::ParamGroup(const GroupSpec& spec)
    : policy(spec.policy),
      rank_state_(spec.rank_state),
      account_(std::make_shared<memory::ByteAccount>(spec.rank_state->account)),
      name_(spec.name),
      params_(std::make_unique<ShardedParams>(spec, account_)),
      buckets_(params_->buckets().size()),
      epochs_{.counts_writes = params_->every_rank_has_rows()} {
  auto& rank = rank_state();
  const MutexLock lock(rank.mutex);
  id_ = rank.add(*this);
  account_->number(static_cast<int64_t>(id_));
  rank.keeps_files |= !spec.policy.disk_folder.empty();
}

ParamGroup::~ParamGroup() {
  rank_state().remove(id_);
  end_read();
}

// The parameters show their whole sizes meanwhile, because ShardedParams reads these sizes.
std::unique_ptr<ShardedParams> ParamGroup::lay_out(const Placement& placement, const GroupPolicy& by,
                                                   const FormChange& change) {
  std::vector<GroupMember> parameters(slots().size());
  const auto show_rows = c10::make_scope_exit([&] {
    for (const auto& slot : slots()) slot.show_rows();
  });
  for (const auto& slot : slots()) {
    slot.show_whole();
    const auto form = change ? change(slot.form()) : slot.form();
    parameters[slot.place.given] = {{slot.name(), slot.tensor()}, slot.precision(), form, slot.cut()};
  }
  return std::make_unique<ShardedParams>(GroupSpec{name_, std::move(parameters), placement, rank_state_, by}, account_);
}

void ParamGroup::move_to(std::unique_ptr<ShardedParams> params, const GroupPolicy& to) {
  end_read();
  rank_state().readers_at_rest.erase(id_);
  const auto former = std::exchange(params_, std::move(params));
  policy = to;
  buckets_ = std::vector<Bucket>(params_->buckets().size());
  epochs_ = {.counts_writes = params_->every_rank_has_rows()};
  writes_ = {};
  rows_written_ = nullptr;
  published_version_ = std::nullopt;
  gathers_in_place_ = 0;
  params_->install(shared_from_this());
  hook_gradients(shared_from_this());  // slots have other numbers than before
  for (auto& slot : former->slots())
    slot.whole_storage.detach(where("backward") + "parameter '" + slot.name() +
                              "' was read by a forward, and fsdp::set_strategy or fsdp::to then gave it new memory. "
                              "Run backward before that call, or run forward again after it");
}

Tag ParamGroup::tag(std::string subject, uint32_t writes, const std::string& call) const {
  Tag tag{std::move(subject), {writes, "writes to the rows (optimizer steps)"}, static_cast<uint32_t>(id_)};
  if (!call.empty()) tag.shown = call_tag(call, name_).shown;
  return tag;
}

Span ParamGroup::span(std::string_view name) const { return {rank_state().timeline, name, name_}; }

void ParamGroup::rename_slot(size_t index, std::string name) {
  auto& slot = slots()[index];
  if (slot.name() == name) return;
  slot.rename(std::move(name));
  slot.no_memory_error = params_->no_memory_message(slot);
  if (state_ != GatherState::kWhole) slot.whole_storage.detach(slot.no_memory_error);
}

bool ParamGroup::stays_after_forward() const {
  if (!policy.unshard_in_backward || unshard_was_asked || summon_depth > 0) return true;
  if (policy.reshard_after_forward) return !*policy.reshard_after_forward;
  return scope && scope->root == id_;
}

bool ParamGroup::stays_after_backward() const {
  return unshard_was_asked || summon_depth > 0 || !policy.reshard_after_backward;
}

// Returns true if reductions of backwards that have ended are still in flight.
bool ParamGroup::has_late_reductions() const {
  const auto is_in_flight = [](const Bucket& bucket) { return bucket.in_flight.has_value(); };
  return !is_in_backward() && std::ranges::any_of(buckets_, is_in_flight);
}

bool ParamGroup::is_at_rest() const {
  return !is_inside() && (is_in_hook_ || torch::autograd::get_current_graph_task_id() == -1);
}

void ParamGroup::require_at_rest(const std::string& operation) const {
  if (!is_at_rest())
    require(false, where(operation), "a forward scope or a backward is open on '", name_,
            "'. Make this call after they have ended; after an exception in backward call reset_iter_state() first");
}

void ParamGroup::require_not_handed_out() const {
  if (!is_handed_out_) return;
  require(false, where("backward"), "this backward reads parameters of '", name_,
          "' after the hook of set_post_accumulate_grad_hook got their gradients. The hook may have updated the "
          "parameters, so backward would continue with different values. Remove the hook, or change forward so that "
          "backward reads a copy (p.detach().clone()). Then call reset_iter_state() on every rank");
}

void ParamGroup::require_no_waiting_gradients(const std::string& operation) const {
  if (has_late_reductions())
    require(false, where(operation), "gradients of '", name_,
            "' are still being reduced after a backward with set_is_last_backward(false) and would be left out. Run "
            "the last backward of the iteration with set_is_last_backward(true); to drop them call reset_iter_state()");
  if (has_gradients())
    require(false, where(operation), "gradients of '", name_,
            "' from a backward without gradient synchronisation still wait for their reduction and would be left out. "
            "Run the last backward of the iteration outside of no_sync(), with set_requires_gradient_sync(true) and "
            "set_requires_all_reduce(true); to drop them call reset_iter_state()");
}

void ParamGroup::require_no_waiting_gradient(size_t index, const std::string& operation) {
  const auto& slot = slots()[index];
  const bool is_kept = buckets_[slot.place.bucket].partial_sum.rows.contains(slot.place.plane);
  if (slot.waits || is_kept || has_late_reductions()) require_no_waiting_gradients(operation);
}

void ParamGroup::forget_reads() {
  first_read = 0;
  for (auto& slot : slots()) slot.was_read_unrecorded = false;
}

void ParamGroup::drop_gradients() {
  for (auto& slot : slots())
    if (auto tensor = slot.tensor(); tensor.defined()) tensor.mutable_grad().reset();
}

void ParamGroup::reset() {
  for (auto& bucket : buckets_) {
    bucket.in_flight.reset();
    bucket.is_begun = false;
    bucket.partial_sum = {};
  }
  for (auto& slot : slots()) {
    slot.arrived = {};
    slot.charge = {};
    slot.waits = false;
  }
  landings_.clear();
  for (auto& flat : flats()) flat.drop_landing();
  if (is_in_backward()) close_backward();
  error_.clear();
  forget_reads();
  for (size_t tasks = std::exchange(tasks_, {}).size(); tasks > 0; --tasks) leave();
  reshard();
  gathers_in_place_ = 0;
  epochs_.has_to_meet = false;  // other ranks may not have come to this backward and would not meet this rank
  if (!is_inside()) end_read();
  writes_ = {};
}

std::vector<std::unique_lock<RankLock>> lock_ranks(const std::vector<ParamGroup*>& groups) {
  std::set<RankState*> ranks;
  for (const auto* group : groups) ranks.insert(&group->rank_state());
  std::vector<std::unique_lock<RankLock>> locks;
  for (auto* rank : ranks) locks.emplace_back(rank->mutex);
  return locks;
}

}  // namespace fsdp::runtime
