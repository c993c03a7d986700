#include <fsdp/scopes.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <memory>
#include <span>
#include <thread>

#include "api/group_view.h"
#include "api/plan.h"
#include "api/rows.h"
#include "comm/core/check.h"
#include "comm/core/current_stream.h"
#include "runtime/access_rules.h"
#include "runtime/backward.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

using runtime::ParamGroup;
using Groups = std::vector<std::shared_ptr<ParamGroup>>;

constexpr const char* kSummon = "summon_full_params";

// If the group's policy broadcasts buffers, gives every rank the buffers of the first rank that has data; the call is
// then collective.
void broadcast_buffers(const ParamGroup& own, const ModuleNode& tree) {
  auto& rank = own.rank_state();
  const MutexLock lock(rank.mutex);
  if (!own.policy.broadcasts_buffers || own.is_inside() || !at::GradMode::is_enabled()) return;
  const auto& ranks = own.placement().process_group();
  const auto buffers = subtree_buffers(tree);
  std::vector<runtime::GroupMember> members;
  for (const auto& buffer : buffers) members.push_back({buffer});
  const auto values = values_of_rank(rank.buffers_from, ranks, members, "buffers of " + own.name(),
                                     [&](Work& work) { rank.wait(work); });
  const at::NoGradGuard no_grad;
  if (ranks.rank() == rank.buffers_from) return;
  // variable_data() has a version counter of its own, so graphs of earlier forwards that saved a buffer stay valid.
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i].tensor.variable_data().copy_(values[i]);
}

// Throws UsageError if a parameter was registered after fully_shard, so that each rank would train its own copy.
void check_before_scope(const Groups& groups) {
  const auto& own = *groups.front();
  const MutexLock lock(own.rank_state().mutex);
  if (own.is_inside()) return;
  require_values(groups, "forward scope");
  for (const auto& owner : own.watched) {
    const auto module = owner.lock();
    const auto stray = module ? find_stray(*module) : at::Tensor();
    if (!stray.defined()) continue;
    runtime::registry().ignore(stray);  // so that a program that wants such a parameter can go on
    const auto parameters = subtree_parameters(*module_tree(*module));
    const auto named = std::ranges::find_if(parameters, [&](const auto& each) { return each.tensor.is_same(stray); });
    require(false, own.where("forward scope"), "parameter '", named->name,
            "' was registered after fsdp::fully_shard (register_parameter, replace_module) and is in no group, so each "
            "rank would train a separate copy. Register the parameter before fully_shard; if each rank is meant to "
            "have its own copy, name it in FullyShardOptions::ignored_params. This error is thrown once");
  }
}

void require_no_unfinished_backward(const ParamGroup& group, const char* operation) {
  if (group.is_in_backward() && torch::autograd::get_current_graph_task_id() == -1)
    require(false, group.where(operation), "'", group.name(), "': ", runtime::kUnfinishedBackward);
}

// Throws UsageError if a scope or a backward is open on a group. The caller holds the rank's lock.
void require_outside(const Groups& groups, const char* operation) {
  for (const auto& group : groups) {
    require_no_unfinished_backward(*group, operation);
    if (group->is_inside())
      require(false, group->where(operation), "'", group->name(),
              "' is already unsharded: a forward scope, a backward or a summon_full_params is open. Close it first, or "
              "read single parameters with fsdp::full_tensor. ",
              runtime::kOtherValuesInForward);
  }
}

// Called before a scope closes. For each group on which no other scope is open, waits for operators of other threads,
// which need its parameters unsharded.
void wait_for_operators(const Groups& groups) {
  const auto waits = [](const auto& group) { return group->is_left_next() && group->wait_for_operators(); };
  while (std::ranges::count_if(groups, waits) > 0) {
  }
}

// Throws UsageError if the current stream captures a CUDA graph. The graph would copy to and from the same addresses in
// each replay, but each step allocates its memory anew.
void require_no_graph(ParamGroup& group) {
  for (const auto& flat : group.params().flats()) {
    const auto device = flat.whole().form.device;
    if (device.is_cpu() || !records_graph(current_stream(device))) continue;
    require(false, group.where("forward scope"), "the current stream of ", device,
            " is capturing a graph, but a step of a sharded model cannot be captured: its all-gathers allocate memory "
            "in every step. Run the step outside of the capture.");
  }
}

// Lets the scope begin to read those of `groups` on which no scope is open yet. If ranks share memory, they meet in
// barriers, after which this rank sees all earlier writes; otherwise nothing is communicated. While this thread waits,
// other threads may open and close scopes on `groups`, but they may neither run a backward through these groups nor
// write to their rows. If a barrier fails, the counts of scopes and writes are restored, so that they are the same on
// every rank. Collective if ranks share memory.
void meet_before_scope(const Groups& groups, const std::string& call) {
  std::vector<std::pair<ParamGroup*, uint32_t>> barriers;  // first group and number of writes of each shard axis
  Groups begun;
  for (const auto& group : groups) ++group->openings;
  const auto end_openings = [&] {
    for (const auto& group : groups) --group->openings;
  };
  try {
    for (const auto& group : groups) {
      if (group->is_inside()) continue;
      begun.push_back(group);
      if (!group->begin_scope()) continue;
      const auto* ranks = &group->placement().shard();
      const auto is_theirs = [&](const auto& known) { return &known.first->placement().shard() == ranks; };
      auto barrier = std::ranges::find_if(barriers, is_theirs);
      if (barrier == barriers.end()) barrier = barriers.insert(barrier, {group.get(), 0});
      barrier->second += group->writes().tell();
    }
    const auto& first = *(begun.empty() ? groups : begun).front();
    std::vector<std::shared_ptr<Work>> works;
    for (const auto& [group, writes] : barriers)
      works.push_back(group->placement().shard().communicator().barrier(
          first.tag("forward scope of " + first.name(), writes, call)));
    const Span waiting(works.empty() ? nullptr : first.rank_state().timeline, "wait for scope", first.name());
    for (const auto& work : works) first.rank_state().wait(*work);
  } catch (...) {
    for (const auto& group : begun) group->cancel_scope();
    for (const auto& [group, writes] : barriers) group->placement().pass_on_failure("forward scope");
    end_openings();
    for (const auto& group : groups)
      if (!group->is_inside()) group->leave_reading();
    throw;
  }
  end_openings();
}

}  // namespace

/// While it lives, the parameters of `groups` (the module's own group first) show whole values. The constructor is
/// collective if ranks share memory; otherwise the operators that read parameters are.
class OpenScope {
 public:
  /// `call` is the user's call that opens the scope, for messages; empty for a plain forward scope.
  explicit OpenScope(Groups groups, const std::string& call = {})
      : groups_(std::move(groups)),
        span_(groups_.front()->rank_state().timeline, "forward", groups_.front()->name()) {
    auto& rank = groups_.front()->rank_state();
    const MutexLock lock(rank.mutex);
    const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
    for (const auto& group : groups_) {
      if (!in_backward) runtime::require_no_backward_elsewhere(rank, *group, "forward scope");
      require_no_unfinished_backward(*group, "forward scope");
      if (group->local_rows_depth > 0)
        require(false, group->where("forward scope"), "an fsdp::LocalRows is open on '", group->name(),
                "'. Close the LocalRows before forward");
      require_no_graph(*group);
    }
    record_->root = groups_.front()->id();
    record_->records = at::GradMode::is_enabled();
    record_->groups.reserve(groups_.size());
    for (const auto& group : groups_) record_->groups.push_back(group->id());
    meet_before_scope(groups_, call);
    bool outermost = !groups_.front()->is_inside();
    for (const auto& group : groups_) {
      if (!group->is_inside()) {
        group->drop_stale_copy();
        if (!group->stays_after_backward()) group->reshard();
        group->scope = record_;
        group->forget_reads();
      }
      group->enter();
    }
    // Autocast would cache casts of whole parameters until the autocast context ends, even after rows were written.
    autocast_cached_ = at::autocast::is_autocast_cache_enabled();
    at::autocast::set_autocast_cache_enabled(false);
    rank.reads.current = 0;  // the next read counts, even if it is of the group that was read last
    if (outermost) rank.reads.orders[record_->root].forward.start();
    fault_point("scope open");
  }

  ~OpenScope() {
    auto& rank = groups_.front()->rank_state();
    const MutexLock lock(rank.mutex);
    wait_for_operators(groups_);
    for (const auto& group : groups_) {
      group->leave();
      if (group->is_inside()) continue;
      if (!group->scope->recorded && !group->stays_after_backward()) group->reshard();
      group->leave_reading();
    }
    if (thread_ == std::this_thread::get_id()) at::autocast::set_autocast_cache_enabled(autocast_cached_);
    fault_point("scope closed");
  }
  OpenScope(const OpenScope&) = delete;
  OpenScope& operator=(const OpenScope&) = delete;

 private:
  const Groups groups_;
  const std::shared_ptr<runtime::ScopeRecord> record_ = std::make_shared<runtime::ScopeRecord>();
  const std::thread::id thread_ = std::this_thread::get_id();
  bool autocast_cached_ = false;  // whether the thread's autocast cache was on before
  const Span span_;
};

ForwardScope::ForwardScope(const Group& model) {
  check_before_scope(param_groups(model));
  broadcast_buffers(*param_groups(model).front(), *GroupView::of(model).tree);
  open_ = std::make_unique<OpenScope>(param_groups(model));
}
ForwardScope::~ForwardScope() = default;
void ForwardScope::close() { open_.reset(); }

LocalRows::LocalRows(const Group& model) : model_(model) {
  const auto& groups = param_groups(model);
  const MutexLock lock(groups.front()->rank_state().mutex);
  for (bool waited = true; waited;) {  // after each wait the groups are checked again: other threads may change them
    require_outside(groups, "LocalRows");
    for (const auto& group : groups) group->begin_write();
    waited = false;
    for (const auto& group : groups) waited |= group->wait_to_write();
  }
  for (const auto& group : groups) group->prepare_write(runtime::WriteKind::kThisRank);
  for (const auto& group : groups) ++group->local_rows_depth;
}

LocalRows::~LocalRows() {
  const auto& groups = param_groups(model_);
  const MutexLock lock(groups.front()->rank_state().mutex);
  for (const auto& group : groups) {
    --group->local_rows_depth;
    group->note_write();
  }
}

SummonFullParams::SummonFullParams(const Group& model, const SummonOptions& options)
    : model_(model), rank0_only_(options.rank0_only) {
  const auto& groups = param_groups(model);
  require_values(groups, kSummon);
  {
    // The program may write the whole parameters, so no scope or backward may read them at the same time.
    const MutexLock lock(groups.front()->rank_state().mutex);
    require_outside(groups, kSummon);
  }
  scope_ = std::make_unique<OpenScope>(groups, kSummon);
  const MutexLock lock(groups.front()->rank_state().mutex);
  const bool keeps = !rank0_only_ || groups.front()->placement().process_group().rank() == 0;
  try {
    if (rank0_only_)
      for (const auto& group : groups) {  // one group at a time, in the same order on every rank
        group->wait_for_unshard(kSummon);
        if (!keeps) group->reshard();
      }
    if (keeps) {
      for (const auto& group : groups) group->unshard(kSummon);
      for (const auto& group : groups) group->wait_for_unshard(kSummon);
      // Each rank gets a copy of its own, so that its writes to whole parameters do not reach other ranks.
      for (const auto& group : groups) group->copy_whole();
      for (const auto& group : groups) {
        ++group->summon_depth;
        group->leave_reading();
      }
    }
  } catch (...) {
    for (const auto& group : groups) group->reshard();
    throw;
  }
  if (!keeps) scope_.reset();
}

SummonFullParams::~SummonFullParams() {
  if (!scope_) return;
  const auto& groups = param_groups(model_);
  const MutexLock lock(groups.front()->rank_state().mutex);
  wait_for_operators(groups);
  for (const auto& group : groups) {
    group->reshard();  // the copy may have writes that only this rank has made
    --group->summon_depth;
  }
}

void SummonFullParams::write_back() {
  const auto& groups = param_groups(model_);
  require(!rank0_only_, groups.front()->where("SummonFullParams::write_back"),
          "write_back needs whole parameters on every rank, but rank0_only is set, so the other ranks would keep their "
          "old rows. Call summon_full_params without rank0_only, or write rows (fsdp::LocalRows)");
  const MutexLock lock(groups.front()->rank_state().mutex);
  for (const auto& group : groups)
    for (const auto& slot : group->slots())
      require(slot.whole_tensor.scalar_type() == slot.rows_tensor.scalar_type(),
              group->where("SummonFullParams::write_back"), "whole values of parameter '", slot.name(), "' are ",
              slot.whole_tensor.scalar_type(),
              " because of the MixedPrecisionPolicy, so writing them back would round all rows, which are ",
              slot.rows_tensor.scalar_type(), ". Write rows instead (fsdp::LocalRows)");
  const runtime::OwnOperators own_operators;
  for (const auto& group : groups) {
    group->wait_for_unshard();
    group->prepare_write(runtime::WriteKind::kEveryRank);
    for (auto& slot : group->slots()) slot.copy_rows(slot.whole_tensor, slot.rows_tensor);
  }
}

}  // namespace fsdp
