#include "api/buffers.h"

#include <ATen/core/grad_mode.h>

#include <mutex>

#include "api/agreement.h"
#include "runtime/param_group.h"
#include "runtime/rank_state.h"

namespace fsdp {

// Not by way of their versions: graphs of earlier forwards may hold them.
void broadcast_buffers(runtime::ParamGroup& own, const ModuleNode& tree) {
  auto& rank = own.rank_state();
  std::lock_guard lock(rank.mutex);
  if (!own.policy.broadcasts_buffers || own.is_inside() || !at::GradMode::is_enabled()) return;
  const auto& ranks = own.placement().process_group();
  const auto buffers = subtree_buffers(tree);
  std::vector<WantedValues> wanted;
  for (const auto& buffer : buffers) wanted.push_back({buffer.tensor, buffer.tensor.device()});
  const auto values = values_of_rank(rank.buffers_from, ranks, wanted, "buffers of " + own.name(),
                                     [&](Work& work) { rank.wait(work); });
  const at::NoGradGuard no_grad;
  if (ranks.rank() == rank.buffers_from) return;
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i].tensor.variable_data().copy_(values[i]);
}

}  // namespace fsdp
