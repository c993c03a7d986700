#include <fsdp/explain.h>

#include <algorithm>
#include <iomanip>
#include <ostream>

#include "api/group_view.h"
#include "api/placement_choice.h"
#include "comm/core/text.h"
#include "runtime/param_group.h"

namespace fsdp {
namespace {

using runtime::ParamGroup;

// The sizes of one group. `parameters` is a number of elements, the others are numbers of bytes.
struct Sizes {
  int64_t parameters = 0, rows = 0, whole = 0, gradient = 0;
  // Number of bytes of the gradient counts. Each reduction also counts, for each parameter, the ranks that have a
  // gradient, so a rank sends one fp32 number per parameter to every other rank.
  int64_t counts = 0;
};

Sizes sizes_of(ParamGroup& group) {
  Sizes sizes;
  for (const auto& slot : group.slots()) sizes.parameters += slot.whole_tensor.numel();
  sizes.counts = std::ssize(group.slots()) * static_cast<int64_t>(sizeof(float));
  for (const auto& flat : group.flats()) {
    sizes.rows += static_cast<int64_t>(flat.rows().bytes());
    sizes.whole += static_cast<int64_t>(flat.whole().bytes());
    sizes.gradient += static_cast<int64_t>(flat.reduced_form().bytes(flat.whole().numel));
  }
  return sizes;
}

int64_t part_of_others(int64_t bytes, int64_t ranks) { return bytes * (ranks - 1) / ranks; }

// At the peak, the groups that enclose a group and a few innermost groups are in memory at once.
struct Largest {
  int64_t around = 0;  // the most bytes that the groups around any one group have together
  int64_t inner = 0;   // the bytes of the largest innermost group
};

Largest largest_of(const std::vector<std::shared_ptr<ParamGroup>>& groups, const runtime::GroupTree& tree,
                   const std::vector<Sizes>& sizes, int64_t Sizes::* bytes) {
  Largest largest;
  for (size_t i = 0; i < groups.size(); ++i) {
    int64_t around = 0;
    bool is_inner = true;
    for (size_t j = 0; j < groups.size(); ++j) {
      if (j == i) continue;
      if (tree.contains(groups[j]->id(), groups[i]->id())) around += sizes[j].*bytes;
      if (tree.contains(groups[i]->id(), groups[j]->id())) is_inner = false;
    }
    largest.around = std::max(largest.around, around);
    if (is_inner) largest.inner = std::max(largest.inner, sizes[i].*bytes);
  }
  return largest;
}

void add_moved(Explanation& sum, const ParamGroup& group, Strategy strategy, const Sizes& sizes, bool is_outermost) {
  const int64_t shards = group.placement().shard().world_size();
  if (shards > 1) {
    const bool gathers_again = strategy == Strategy::kFullShard && !is_outermost;
    if (!sum.shares_memory) {
      sum.gathers += gathers_again ? 2 : 1;
      sum.gathers_bytes += part_of_others(sizes.whole, shards) * (gathers_again ? 2 : 1);
    }
    ++sum.reduce_scatters;
    sum.reduce_scatters_bytes += part_of_others(sizes.gradient, shards) + (shards - 1) * sizes.counts;
  }
  for (const auto& axis : group.placement().replicate()) {
    if (axis->world_size() == 1) continue;
    ++sum.all_reduces;
    sum.all_reduces_bytes += 2 * part_of_others(sizes.gradient / shards + sizes.counts, axis->world_size());
  }
}

std::string count_text(const char* what, int64_t count, int64_t bytes) {
  TextWriter text;
  text << count << ' ' << what << (count == 1 ? "" : "s") << " (" << megabytes(bytes) << " sent)";
  return text.str();
}

}  // namespace

Explanation explain(const Group& model) {
  const auto& groups = param_groups(model);
  const auto& first = *groups.front();
  const MutexLock lock(first.rank_state().mutex);
  Explanation result;
  result.world_size = model.world_size();
  result.shards = first.placement().shard().world_size();
  result.replicas = first.placement().replicas();
  const auto shares = [](const std::shared_ptr<ParamGroup>& group) {
    return std::ranges::all_of(group->flats(), &runtime::FlatParams::shares_memory);
  };
  result.shares_memory = result.world_size == 1 || (result.shards > 1 && std::ranges::all_of(groups, shares));
  int64_t stays = 0, comes_and_goes = 0, gradients = 0, replicated = 0;
  std::vector<Sizes> all_sizes;
  for (const auto& group : groups) {
    const auto sizes = all_sizes.emplace_back(sizes_of(*group));
    const auto strategy = strategy_of(*group);
    result.groups.push_back({group->name(), strategy, sizes.parameters, sizes.whole, sizes.rows});
    result.parameters += sizes.parameters;
    result.rows += sizes.rows;
    if (strategy == Strategy::kReplicate)
      replicated += sizes.gradient;
    else if (strategy == Strategy::kFullShard)
      comes_and_goes += sizes.whole;
    else
      stays += sizes.whole;
    if (strategy != Strategy::kReplicate) gradients += sizes.gradient;
    add_moved(result, *group, strategy, sizes, group == groups.front());
  }
  const auto whole = largest_of(groups, first.rank_state().tree, all_sizes, &Sizes::whole);
  const auto gradient = largest_of(groups, first.rank_state().tree, all_sizes, &Sizes::gradient);
  if (!result.shares_memory) result.whole = stays + std::min(comes_and_goes, whole.around + 2 * whole.inner);
  result.gradient = 2 * replicated;
  if (gradients > 0)
    result.gradient += gradients / result.shards + std::min(gradients, gradient.around + 3 * gradient.inner);
  result.optimizer = 2 * result.rows;
  return result;
}

std::ostream& operator<<(std::ostream& out, const Explanation& explanation) {
  size_t width = 5;
  for (const auto& group : explanation.groups) width = std::max(width, group.name.size());
  TextWriter text;
  const auto column = [&](const std::string& value) -> std::ostream& {
    return text << std::right << std::setw(14) << value;
  };
  text << explanation.world_size << (explanation.world_size == 1 ? " rank, sharded over " : " ranks, sharded over ")
       << explanation.shards << ", replicas: " << explanation.replicas
       << (explanation.shares_memory && explanation.world_size > 1 ? "; the ranks share the memory of whole parameters"
                                                                   : "")
       << '\n';
  text << std::left << std::setw(static_cast<int>(width)) << "group";
  for (const char* name : {"parameters", "whole", "rows here"}) column(name);
  text << "  strategy\n";
  for (const auto& group : explanation.groups) {
    text << std::left << std::setw(static_cast<int>(width)) << group.name;
    column(std::to_string(group.parameters));
    column(megabytes(group.whole_bytes));
    column(megabytes(group.rows_bytes)) << "  " << group.strategy << '\n';
  }
  text << "a rank holds at most: rows " << megabytes(explanation.rows) << ", whole parameters "
       << megabytes(explanation.whole) << ", gradients " << megabytes(explanation.gradient) << ", AdamW's state "
       << megabytes(explanation.optimizer) << "; activations come on top\n";
  text << "a step moves at most: " << count_text("gather", explanation.gathers, explanation.gathers_bytes) << ", "
       << count_text("reduce-scatter", explanation.reduce_scatters, explanation.reduce_scatters_bytes) << ", "
       << count_text("all-reduce", explanation.all_reduces, explanation.all_reduces_bytes) << '\n';
  return out << text.str();
}

}  // namespace fsdp
