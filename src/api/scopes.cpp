#include <fsdp/scopes.h>

#include "api/module_watch.h"
#include "comm/core/check.h"
#include "runtime/backward_hooks.h"
#include "runtime/param_group.h"
#include "runtime/scope.h"

namespace fsdp {
namespace {

// What could have changed since the last scope so that ranks would train apart.
void check_before_scope(const std::vector<std::shared_ptr<runtime::ParamGroup>>& groups) {
  const auto& own = *groups.front();
  std::lock_guard lock(own.rank_state().mutex);
  if (own.is_inside()) return;
  const auto stray = own.watch ? own.watch->find_stray(groups) : std::string();
  require(stray.empty(), own.where("forward scope"), "parameter '", stray,
          "' came under the module after fsdp::fully_shard (register_parameter, replace_module) and is in no group, so "
          "each rank would train its own. Register it before fully_shard; one that is meant to be each rank's own "
          "is named in FullyShardOptions::ignored_params. This is said once");
  for (const auto& group : groups) runtime::require_own_hooks(group);
}

std::unique_ptr<runtime::OpenScope> open_scope(const Group& model) {
  check_before_scope(model.param_groups());
  return std::make_unique<runtime::OpenScope>(model.param_groups());
}

}  // namespace

ForwardScope::ForwardScope(const Group& model) : scope_(open_scope(model)) {}
ForwardScope::~ForwardScope() = default;
void ForwardScope::close() { scope_.reset(); }

LocalRows::LocalRows(const Group& model) : rows_(std::make_unique<runtime::OpenLocalRows>(model.param_groups())) {}
LocalRows::~LocalRows() = default;

SummonFullParams::SummonFullParams(const Group& model)
    : summon_(std::make_unique<runtime::OpenSummon>(model.param_groups())) {}
SummonFullParams::~SummonFullParams() = default;

void SummonFullParams::write_back() { summon_->write_back(); }

}  // namespace fsdp
