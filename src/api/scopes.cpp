#include <fsdp/scopes.h>

#include <ATen/core/grad_mode.h>

#include "api/group_view.h"
#include "api/plan.h"
#include "api/rows.h"
#include "comm/core/check.h"
#include "runtime/param_group.h"
#include "runtime/scope.h"

namespace fsdp {
namespace {

using runtime::ParamGroup;

// Tells the first rank once if the model is one large group that is gathered over a network and freed again.
void hint_once(ParamGroup& own, const GroupView& view) {
  constexpr int64_t kLargeBytes = int64_t{32} << 20;  // a smaller one takes a gather of some milliseconds
  if (std::exchange(own.was_hinted, true) || own.placement().process_group().rank() != 0) return;
  if (view.groups.size() > 1 || own.placement().shard().world_size() == 1 || own.params().shares_memory()) return;
  int64_t bytes = 0;
  for (const auto& flat : own.flats()) bytes += static_cast<int64_t>(flat.whole().bytes());
  if (bytes < kLargeBytes || !own.policy.reshard_after_backward) return;
  TORCH_WARN(own.where("forward scope"), "'", own.name(), "' is one group: all ", megabytes(bytes),
             " of its parameters are whole at a time, and their gather hides behind nothing. If it has blocks that "
             "repeat, call fsdp::fully_shard on them first, or set FullyShardOptions::auto_wrap_policy "
             "(docs/groups.md). This is said once");
}

// Gives every rank the buffers of the first rank that has data, if the group is to have them so. Collective then.
void broadcast_buffers(const ParamGroup& own, const ModuleNode& tree) {
  auto& rank = own.rank_state();
  const MutexLock lock(rank.mutex);
  if (!own.policy.broadcasts_buffers || own.is_inside() || !at::GradMode::is_enabled()) return;
  const auto& ranks = own.placement().process_group();
  const auto buffers = subtree_buffers(tree);
  std::vector<WantedValues> wanted;
  for (const auto& buffer : buffers) wanted.push_back({buffer.tensor, buffer.tensor.device()});
  const auto values = values_of_rank(rank.buffers_from, ranks, wanted, "buffers of " + own.name(),
                                     [&](Work& work) { rank.wait(work); });
  const at::NoGradGuard no_grad;
  if (ranks.rank() == rank.buffers_from) return;
  // Not by way of their versions: graphs of earlier forwards may hold them.
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i].tensor.variable_data().copy_(values[i]);
}

// What could have changed since the last scope so that ranks would train apart.
void check_before_scope(const GroupView& view) {
  const auto& groups = view.groups;
  auto& own = *groups.front();
  const MutexLock lock(own.rank_state().mutex);
  if (own.is_inside()) return;
  require_values(groups, "forward scope");
  hint_once(own, view);
  const auto stray = own.watch ? own.watch->find_stray() : std::string();
  require(stray.empty(), own.where("forward scope"), "parameter '", stray,
          "' came under the module after fsdp::fully_shard (register_parameter, replace_module) and is in no group, so "
          "each rank would train its own. Register it before fully_shard; one that is meant to be each rank's own "
          "is named in FullyShardOptions::ignored_params. This is said once");
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
