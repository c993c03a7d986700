#include <fsdp/join.h>

#include <ATen/ops/empty.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "api/buffers.h"
#include "api/group_view.h"
#include "comm/core/check.h"
#include "runtime/follow.h"
#include "runtime/param_group.h"
#include "runtime/rank_state.h"

namespace fsdp {
namespace {

using runtime::Act;
using runtime::ParamGroup;
using runtime::RankState;

// The ranks that take part in a step, by their numbers in the process group.
struct Attendance {
  std::vector<int> with_data = {}, without = {};

  /// Ranks without data are spread over those that have some.
  int leader_of(int rank) const {
    const auto place = std::ranges::find(without, rank) - without.begin();
    return with_data[static_cast<size_t>(place) % with_data.size()];
  }
  std::vector<int> followers_of(int rank) const {
    std::vector<int> followers;
    for (const int other : without)
      if (leader_of(other) == rank) followers.push_back(other);
    return followers;
  }
};

void require_outside(const std::vector<std::shared_ptr<ParamGroup>>& groups) {
  for (const auto& group : groups)
    require(!group->is_inside() && group->local_rows_depth == 0, group->where("join"), "a scope or a backward is open ",
            "on '", group->name(), "'. Join between steps; after an exception call reset_iter_state() on every rank");
}

// Collective.
Attendance take_attendance(const ParamGroup& own, bool has_data, const std::string& subject) {
  const auto& ranks = own.placement().process_group();
  const auto present = at::empty({1}, at::kByte).fill_(has_data), all = at::empty({ranks.world_size()}, at::kByte);
  own.rank_state().wait(*ranks.communicator().all_gather(all, present, {subject, {}}));
  Attendance attendance;
  for (const int rank : c10::irange(ranks.world_size()))
    (all.const_data_ptr<uint8_t>()[rank] != 0 ? attendance.with_data : attendance.without).push_back(rank);
  return attendance;
}

// Scales what gradients are divided by, as long as it lives.
class ScaledDivisor {
 public:
  ScaledDivisor(const std::vector<std::shared_ptr<ParamGroup>>& groups, double ratio) : groups_(groups) {
    for (const auto& group : groups_) {
      auto& factor = group->policy.reduction.divide_factor;
      former_.push_back(factor);
      factor = factor.value_or(group->placement().divisor()) * ratio;
    }
  }
  ~ScaledDivisor() {
    for (size_t i = 0; i < groups_.size(); ++i) groups_[i]->policy.reduction.divide_factor = former_[i];
  }
  ScaledDivisor(const ScaledDivisor&) = delete;
  ScaledDivisor& operator=(const ScaledDivisor&) = delete;

 private:
  const std::vector<std::shared_ptr<ParamGroup>>& groups_;
  std::vector<std::optional<double>> former_;
};

// Runs the step, and tells the followers what it does.
void lead(RankState& rank, Communicator& communicator, std::vector<int> followers, const std::string& subject,
          const std::function<void()>& step) {
  if (followers.empty()) return step();
  runtime::Journal journal(communicator, std::move(followers), subject);
  rank.journal = &journal;
  const auto leads_no_more = c10::make_scope_exit([&] { rank.journal = nullptr; });
  try {
    step();
  } catch (...) {
    journal.tell({Act::kFail});
    throw;
  }
  const std::lock_guard lock(rank.mutex);
  journal.tell({Act::kEnd});
  journal.finish([&](Work& work) { rank.wait(work); });
}

// Under the module of a group that another rank opens a scope on.
void broadcast_buffers_of(const GroupView& view, runtime::GroupId id) {
  const auto& own = view.groups.front();
  if (own->id() == id) return broadcast_buffers(*own, *view.tree);
  const ModuleNode* found = nullptr;
  visit_nodes(*view.tree, [&](const ModuleNode& node) {
    if (const auto group = group_at(node); group && group->id() == id) found = &node;
  });
  require(found != nullptr, own->where("join"), "another rank broadcasts the buffers of a module that is not under '",
          own->name(), "', so that this rank, which has no data, does not know them. Join the outermost module");
  broadcast_buffers(*group_at(*found), *found);
}

}  // namespace

bool join(const Group& model, bool has_data, const std::function<void()>& step, const JoinOptions& options) {
  const auto& view = GroupView::of(model);
  auto& own = *view.groups.front();
  auto& rank = own.rank_state();
  const auto& ranks = own.placement().process_group();
  require(step != nullptr, own.where("join"), "expected a function that runs forward and backward, found none");
  const std::string subject = str_cat("join of ", own.name(), ", divided by the ",
                                      options.divide_by_initial_world_size ? "ranks" : "ranks that have data");
  Attendance attendance;
  {
    std::lock_guard lock(rank.mutex);
    require_outside(view.groups);
    attendance = take_attendance(own, has_data, subject);
    if (attendance.with_data.empty()) return false;
    rank.buffers_from = attendance.with_data.front();
  }
  std::optional<ScaledDivisor> divisor;
  if (!options.divide_by_initial_world_size && !attendance.without.empty())
    divisor.emplace(view.groups, static_cast<double>(attendance.with_data.size()) / ranks.world_size());
  const auto restore = c10::make_scope_exit([&] {
    std::lock_guard lock(rank.mutex);
    rank.buffers_from = 0;
    // Ranks that read nothing would predict otherwise than those that did.
    if (!attendance.without.empty()) rank.reads.forget();
  });
  if (has_data)
    lead(rank, ranks.communicator(), attendance.followers_of(ranks.rank()), subject, step);
  else
    runtime::follow(own, ranks.communicator(), attendance.leader_of(ranks.rank()), subject,
                    [&](runtime::GroupId id) { broadcast_buffers_of(view, id); });
  return true;
}

}  // namespace fsdp
