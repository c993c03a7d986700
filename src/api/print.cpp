#include <fsdp/group.h>
#include <fsdp/options.h>

#include <iterator>
#include <ostream>

#include "api/group_view.h"
#include "comm/core/text.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

void print_node(std::ostream& out, const ModuleNode& node, int depth, const std::shared_ptr<runtime::ParamGroup>& own) {
  std::string indent(static_cast<size_t>(depth) * 2, ' ');
  out << indent << (node.path.empty() ? "" : own_name(node.path) + ": ") << node.type;
  if (auto group = depth == 0 ? own : group_at(node)) {
    int64_t all = 0, here = 0;
    for (const auto& slot : group->slots()) {
      all += slot.numel();
      here += slot.rows_numel();
    }
    out << "  (group '" << group->name() << str_cat("': ", all, " elements, ", here, " here)");
  }
  out << '\n';
  for (const auto& parameter : node.parameters) {
    const auto part = runtime::registry().find(parameter.tensor);
    out << indent << "  " << own_name(parameter.name) << ' ';
    if (!part) {
      out << str_cat(c10::IntArrayRef(parameter.tensor.sizes())) << " not sharded\n";
      continue;
    }
    const auto& slot = part->group->slots()[part->slot];
    out << str_cat(slot.sizes()) << " rows " << slot.rows().first << ".." << slot.rows().first + slot.rows().count;
    if (slot.joined_dims() > 1) out << " of " << str_cat(slot.row_sizes());
    if (slot.name() != parameter.name) out << " shared with " << slot.name();
    out << '\n';
  }
  for (const auto& child : node.children) print_node(out, *child, depth + 1, own);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, Strategy strategy) {
  constexpr const char* kNames[]{"kFullShard", "kShardGradOp", "kShardOptimizer", "kReplicate"};
  const auto number = static_cast<size_t>(strategy);
  return out << (number < std::size(kNames) ? kNames[number] : "an unknown strategy");
}

std::ostream& operator<<(std::ostream& out, const Group& group) {
  const auto& view = GroupView::of(group);
  const auto& placement = view.groups.front()->placement();
  out << "rank " << group.rank() << " of " << group.world_size();
  if (placement.replicas() > 1)
    out << " (shard " << placement.shard().rank() << " of " << placement.shard().world_size() << ", replica "
        << placement.replica() << " of " << placement.replicas() << ')';
  out << ", " << view.groups.size() << (view.groups.size() == 1 ? " group\n" : " groups\n");
  print_node(out, *view.tree, 0, view.groups.front());
  return out;
}

}  // namespace fsdp
