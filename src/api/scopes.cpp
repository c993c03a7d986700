#include <fsdp/scopes.h>

#include "api/buffers.h"
#include "api/checks.h"
#include "api/group_view.h"
#include "api/large_group_hint.h"
#include "api/module_watch.h"
#include "comm/core/check.h"
#include "runtime/backward.h"
#include "runtime/param_group.h"
#include "runtime/scope.h"

namespace fsdp {
namespace {

// What could have changed since the last scope so that ranks would train apart.
void check_before_scope(const GroupView& view) {
  const auto& groups = view.groups;
  const auto& own = *groups.front();
  std::lock_guard lock(own.rank_state().mutex);
  if (own.is_inside()) return;
  require_values(groups, "forward scope");
  hint_once(view);
  const auto stray = own.watch ? own.watch->find_stray(groups) : std::string();
  require(stray.empty(), own.where("forward scope"), "parameter '", stray,
          "' came under the module after fsdp::fully_shard (register_parameter, replace_module) and is in no group, so "
          "each rank would train its own. Register it before fully_shard; one that is meant to be each rank's own "
          "is named in FullyShardOptions::ignored_params. This is said once");
  for (const auto& group : groups) runtime::require_own_hooks(group);
}

}  // namespace

struct ForwardScope::Open : runtime::OpenScope {
  using OpenScope::OpenScope;
};
ForwardScope::ForwardScope(const Group& model) {
  check_before_scope(GroupView::of(model));
  broadcast_buffers(*param_groups(model).front(), *GroupView::of(model).tree);
  open_ = std::make_unique<Open>(param_groups(model));
}
ForwardScope::~ForwardScope() = default;
void ForwardScope::close() { open_.reset(); }

struct LocalRows::Open : runtime::OpenLocalRows {
  using OpenLocalRows::OpenLocalRows;
};
LocalRows::LocalRows(const Group& model) : open_(std::make_unique<Open>(param_groups(model))) {}
LocalRows::~LocalRows() = default;

struct SummonFullParams::Open : runtime::OpenSummon {
  using OpenSummon::OpenSummon;
};
SummonFullParams::SummonFullParams(const Group& model, const SummonOptions& options) {
  require_values(param_groups(model), "summon_full_params");
  open_ = std::make_unique<Open>(param_groups(model), options.rank0_only, options.offload_to_cpu);
}
SummonFullParams::~SummonFullParams() = default;
void SummonFullParams::write_back() { open_->write_back(); }

}  // namespace fsdp
