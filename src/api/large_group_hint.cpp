#include "api/large_group_hint.h"

#include <algorithm>
#include <map>

#include "api/megabytes.h"
#include "comm/core/text.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

// Smaller ones take a gather of some milliseconds, and no memory worth a thought.
constexpr int64_t kLargeBytes = int64_t{32} << 20;

int64_t bytes_below(const ModuleNode& node) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : subtree_parameters(node))
    if (const auto part = runtime::registry().find(tensor))
      bytes += part->group->slots()[part->slot].numel() * tensor.element_size();
  return bytes;
}

// Modules of one type that have others inside them.
struct Repeated {
  std::string type;
  int64_t count = 0, bytes = 0, largest = 0;
};

// The type that has most; count 0 if none repeats. One whose modules lie inside one another would have more than all.
Repeated largest_repeated(const ModuleNode& tree, int64_t all) {
  std::map<std::string, Repeated> types;
  visit_nodes(tree, [&](const ModuleNode& node) {
    const int64_t bytes = &node == &tree || node.children.empty() ? 0 : bytes_below(node);
    if (bytes == 0) return;
    auto& same = types[node.type];
    same = {node.type, same.count + 1, same.bytes + bytes, std::max(same.largest, bytes)};
  });
  Repeated most;
  for (const auto& [name, type] : types)
    if (type.count > 1 && type.bytes > most.bytes && type.bytes <= all) most = type;
  return most;
}

}  // namespace

std::string large_group_hint(const GroupView& view, int64_t least_bytes) {
  auto& own = *view.groups.front();
  if (view.groups.size() > 1 || own.placement().shard().world_size() == 1 || own.params().shares_memory()) return {};
  if (!own.policy.reshard_after_backward) return {};
  const int64_t all = bytes_below(*view.tree);
  if (all < least_bytes) return {};
  const auto repeated = largest_repeated(*view.tree, all);
  const int64_t then = all - repeated.bytes + 2 * repeated.largest;
  if (repeated.count == 0 || then >= all) return {};
  TextWriter text;
  text << own.where("forward scope") << "'" << own.name() << "' is one group: all " << megabytes(all)
       << " of its parameters are whole at a time, and their gather hides behind nothing. With a group for each of its "
       << repeated.count << " modules of type " << repeated.type << " at most " << megabytes(then)
       << " would be: call fsdp::fully_shard on them first, or set FullyShardOptions::auto_wrap_policy "
          "(docs/groups.md). This is said once";
  return text.str();
}

void hint_once(const GroupView& view) {
  auto& own = *view.groups.front();
  if (std::exchange(own.was_hinted, true) || own.placement().process_group().rank() != 0) return;
  if (const auto hint = large_group_hint(view, kLargeBytes); !hint.empty()) TORCH_WARN(hint);
}

}  // namespace fsdp
