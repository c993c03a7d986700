#include <fsdp/join.h>

#include <ATen/ops/empty.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/irange.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "api/group_view.h"
#include "comm/core/check.h"
#include "runtime/param_group.h"
#include "runtime/rank_state.h"

namespace fsdp {
namespace {

using runtime::ParamGroup;

void require_outside(const std::vector<std::shared_ptr<ParamGroup>>& groups) {
  for (const auto& group : groups)
    require(!group->is_inside() && group->local_rows_depth == 0, group->where("join"), "a scope or a backward is open ",
            "on '", group->name(), "'. Join between steps; after an exception call reset_iter_state() on every rank");
}

// The numbers of the ranks that have data. Collective.
std::vector<int> ranks_with_data(const ParamGroup& own, bool has_data, const std::string& subject) {
  const auto& ranks = own.placement().process_group();
  const auto present = at::empty({1}, at::kByte).fill_(has_data), all = at::empty({ranks.world_size()}, at::kByte);
  own.rank_state().wait(*ranks.communicator().all_gather(all, present, {subject, {}}));
  std::vector<int> with_data;
  for (const int rank : c10::irange(ranks.world_size()))
    if (all.const_data_ptr<uint8_t>()[rank] != 0) with_data.push_back(rank);
  return with_data;
}

}  // namespace

bool join(const Group& model, bool has_data, const std::function<void()>& step, const JoinOptions& options) {
  const auto& groups = param_groups(model);
  const auto& own = *groups.front();
  auto& rank = own.rank_state();
  require(step != nullptr, own.where("join"), "expected a function that runs forward and backward, found none");
  const std::string subject = str_cat("join of ", own.name(), ", divided by the ",
                                      options.divide_by_initial_world_size ? "ranks" : "ranks that have data");
  std::vector<std::optional<double>> divisors;  // of the groups, as they were, where they are scaled
  {
    std::lock_guard lock(rank.mutex);
    require_outside(groups);
    const auto with_data = ranks_with_data(own, has_data, subject);
    if (with_data.empty()) return false;
    rank.buffers_from = with_data.front();
    rank.has_data = has_data;
    const double share = static_cast<double>(with_data.size()) / own.placement().process_group().world_size();
    if (!options.divide_by_initial_world_size && share < 1)
      for (const auto& group : groups) {
        auto& divisor = group->policy.reduction.divide_factor;
        divisors.push_back(divisor);
        divisor = divisor.value_or(group->placement().divisor()) * share;
      }
  }
  const auto restore = c10::make_scope_exit([&] {
    std::lock_guard lock(rank.mutex);
    rank.buffers_from = 0;
    rank.has_data = true;
    for (size_t i = 0; i < divisors.size(); ++i) groups[i]->policy.reduction.divide_factor = divisors[i];
  });
  step();
  return true;
}

}  // namespace fsdp
