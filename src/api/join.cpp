#include <fsdp/join.h>

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <string>

#include "api/group_view.h"
#include "api/rows.h"
#include "comm/core/check.h"
#include "runtime/param_group.h"
#include "runtime/rank_state.h"

namespace fsdp {

bool join(const Group& model, bool has_data, const std::function<void()>& step, const JoinOptions& options) {
  const auto& own = *param_groups(model).front();
  const auto& ranks = own.placement().process_group();
  auto& rank = own.rank_state();
  const std::string subject = str_cat("join of ", own.name(), ", divided by the ",
                                      options.divide_by_initial_world_size ? "ranks" : "ranks that have data");
  {
    const MutexLock lock(rank.mutex);
    const auto answer = [&]() FSDP_REQUIRES(rank.mutex) -> uint8_t {
      require(step != nullptr, own.where("join"), "expected a function that runs forward and backward, found none");
      for (const auto* group : rank.groups())  // of any model
        require(!group->is_inside() && group->local_rows_depth == 0, group->where("join"),
                "a scope, a backward or a LocalRows is open on '", group->name(),
                "'. Call join between steps; after an exception call reset_iter_state() on every rank");
      return has_data;
    };
    const auto have_data = answers_of_ranks(ranks, "join", subject, answer, [&](Work& work) { rank.wait(work); });
    const auto first = std::ranges::find(have_data, 1);
    if (first == have_data.end()) return false;
    rank.buffers_from = static_cast<int>(first - have_data.begin());
    rank.has_data = has_data;
    if (!options.divide_by_initial_world_size)
      rank.share_with_data = static_cast<double>(std::ranges::count(have_data, 1)) / ranks.world_size();
  }
  const auto restore = c10::make_scope_exit([&] {
    const MutexLock lock(rank.mutex);
    rank.buffers_from = 0;
    rank.has_data = true;
    rank.share_with_data = 1;
  });
  step();
  return true;
}

}  // namespace fsdp
