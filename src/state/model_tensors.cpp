#include "state/model_tensors.h"

#include <algorithm>

#include "api/plan.h"
#include "comm/core/check.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp::state {
namespace {

using layout::RowRange;

// Returns the rows that this replica writes. All replicas have the same rows and divide them as evenly as possible.
RowRange share_of(RowRange rows, int replica, int replicas) {
  const auto begin = rows.count * replica / replicas, end = rows.count * (replica + 1) / replicas;
  return {rows.first + begin, end - begin};
}

std::shared_ptr<ProcessGroup> default_ranks() {
  try {
    return default_process_group();
  } catch (const UsageError&) {
    return nullptr;  // the program has no process group
  }
}

using SharedRanks = std::shared_ptr<ProcessGroup>;

void require_same_ranks(SharedRanks& all, const runtime::ParamGroup& group, const std::string& operation) {
  const auto& ranks = group.placement().shared_process_group();
  if (!all) all = ranks;
  require(ranks->global_ranks() == all->global_ranks(), group.where(operation), "group '", group.name(),
          "' is sharded over different ranks than the groups before it. Save modules on different ranks separately");
}

// Returns the sizes of the whole tensor. `sizes` are those of this rank's part.
std::vector<int64_t> whole_sizes(at::IntArrayRef sizes, const std::optional<TensorCut>& cut) {
  auto whole = sizes.vec();
  if (cut) whole[static_cast<size_t>(cut->dim)] *= cut->axis->world_size();
  return whole;
}

void require_takes_parts(bool takes_parts, const TensorCut& cut, const std::string& name,
                         const std::string& operation) {
  require(takes_parts, cut.axis->where(operation), "'", name, "' is split over the ranks of a ",
          "tensor axis, and this call does not join the parts. Use fsdp::save_checkpoint and ",
          "load_checkpoint, whose files have whole tensors");
}

ModelTensor sharded(const at::Tensor& tensor, const runtime::Part& part, bool takes_parts,
                    const std::string& operation) {
  auto& group = *part.group;
  const MutexLock lock(group.rank_state().mutex);
  require(!group.is_inside(), group.where(operation), "group '", group.name(),
          "' is in a scope or a backward. Make this call outside of scopes and backwards");
  require_values({part.group}, operation);
  const auto& slot = group.slots()[part.slot];
  const auto& placement = group.placement();
  const auto share = share_of(slot.rows(), placement.replica(), placement.replicas());
  if (slot.cut()) require_takes_parts(takes_parts, *slot.cut(), slot.name(), operation);
  require(
      !slot.cut() || slot.cut()->dim == 0 || slot.joined_dims() == 1, group.where(operation), "'", slot.name(),
      "' has fewer rows than its shard axis has ranks, and its columns are split over a tensor axis. Such a parameter ",
      "cannot be saved or loaded. Leave it out of the groups, or shard it over fewer ranks");
  return {{whole_sizes(slot.sizes(), slot.cut()), slot.joined_dims(), slot.rows(), share, slot.cut()}, {}, tensor};
}

// Adds a tree's parameters and buffers to `named`, and the cuts of those that are split over a tensor axis to `cuts`.
void add_tensors(const ModuleNode& tree, const std::string& operation, Parts parts,
                 std::vector<runtime::NamedParameter>& named, TensorCuts& cuts) {
  visit_nodes(tree, [&](const ModuleNode& node) {
    for (const auto* list : {&node.parameters, &node.buffers}) named.insert(named.end(), list->begin(), list->end());
    for (const auto& parameter : node.parameters) {
      const auto cut = cut_of(node, parameter);
      if (!cut) continue;
      require_takes_parts(parts == Parts::kTaken, *cut, parameter.name, operation);
      cuts.emplace(parameter.tensor.unsafeGetTensorImpl(), *cut);
    }
  });
}

ModelTensor plain(const at::Tensor& tensor, const std::optional<TensorCut>& cut, bool writes) {
  const RowRange rows{0, tensor.dim() == 0 ? 1 : tensor.size(0)};
  const size_t joined_dims = tensor.dim() == 0 ? 0 : 1;
  return {{whole_sizes(tensor.sizes(), cut), joined_dims, rows, writes ? rows : RowRange{0, 0}, cut}, {}, tensor};
}

}  // namespace

ModelTensors tensors_of(const ModuleNode& tree, const std::string& operation, Parts parts) {
  std::vector<runtime::NamedParameter> named;
  TensorCuts cuts;
  add_tensors(tree, operation, parts, named, cuts);
  return tensors_of(named, operation, cuts);
}

ModelTensors tensors_of(const std::map<int, std::shared_ptr<const ModuleNode>>& stages, const std::string& operation) {
  std::vector<runtime::NamedParameter> named;
  std::vector<int> stage_of_each;
  TensorCuts cuts;
  for (const auto& [stage, tree] : stages) {
    add_tensors(*tree, operation, Parts::kTaken, named, cuts);
    stage_of_each.resize(named.size(), stage);
  }
  return tensors_of(named, operation, cuts, &stage_of_each);
}

ModelTensors tensors_of(const std::vector<runtime::NamedParameter>& named, const std::string& operation,
                        const TensorCuts& cuts, const std::vector<int>* stages) {
  ModelTensors tensors{.are_of_stages = stages != nullptr};
  const bool is_split = stages || !cuts.empty();
  for (const auto& [name, tensor] : named)
    if (const auto part = runtime::registry().find(tensor); part && !stages)
      require_same_ranks(tensors.ranks, *part->group, operation);
  if (!tensors.ranks || is_split) tensors.ranks = default_ranks();
  require(!is_split || tensors.ranks, "[fsdp] ", operation, ": the model is split over ",
          stages ? "stages" : "a tensor axis",
          ", so all ranks share one checkpoint, but there is no default process group. ", "Call init_process_group");
  // If all ranks of the tensor axis have the same tensor, the axis's first rank writes it.
  const bool writes_uncut = stages || cuts.empty() || cuts.begin()->second.axis->rank() == 0;
  const auto where = tensors.ranks ? tensors.ranks->where(operation) : "[fsdp] " + operation + ": ";
  const bool is_first = !tensors.ranks || tensors.ranks->rank() == 0;
  for (size_t i = 0; i < named.size(); ++i) {
    const auto& [name, tensor] = named[i];
    if (!tensor.defined()) continue;
    const auto [place, is_new] = tensors.places.try_emplace(tensor.unsafeGetTensorImpl(), tensors.all.size());
    if (is_new) {
      const auto part = runtime::registry().find(tensor);
      require(part || !tensor.is_meta(), where, "'", name, "' is on the meta device and has no values. ",
              "For a module that deferred_init built, call fsdp::materialize(module); for a sharded model, ",
              "call fsdp::to_empty, which gives parameters and buffers memory");
      const auto found = cuts.find(tensor.unsafeGetTensorImpl());
      const auto cut = found == cuts.end() ? std::nullopt : std::optional(found->second);
      // Of the tensors that are not sharded, rank 0 writes those that are not split either, and the ranks of rank 0's
      // tensor axis write their parts of the others. For stages, join_stages decides.
      const bool writes =
          stages || (cut ? cut->axis->global_ranks().front() == tensors.ranks->global_ranks().front() : is_first);
      tensors.all.push_back(part ? sharded(tensor, *part, cut.has_value(), operation) : plain(tensor, cut, writes));
      if (stages) tensors.all.back().stage = (*stages)[i];
      if (!cut && !writes_uncut) tensors.all.back().share.count = 0;
    }
    tensors.all[place->second].names.push_back(name);
  }
  return tensors;
}

std::vector<OwnRows::Run> OwnRows::runs_of(RowRange some) const {
  if (!cut || cut->dim == 1) return {{some.first, some.first, some.count}};
  const auto rows_of_whole = c10::multiply_integers(at::IntArrayRef(sizes).slice(0, joined_dims));
  const int64_t ranks = cut->axis->world_size(), of_matrix = rows_of_whole / cut->fused / ranks;
  std::vector<Run> runs;
  for (int64_t matrix = 0; matrix < cut->fused; ++matrix) {
    const int64_t first = std::max(some.first, matrix * of_matrix);
    const int64_t end = std::min(some.first + some.count, (matrix + 1) * of_matrix);
    // Number of other ranks' rows before this run in the whole tensor.
    const int64_t before = (matrix * (ranks - 1) + cut->axis->rank()) * of_matrix;
    runs.push_back({first, first + before, std::max<int64_t>(end - first, 0)});
  }
  return runs;
}

int64_t OwnRows::row_numel() const { return c10::multiply_integers(at::IntArrayRef(sizes).slice(joined_dims)); }

at::Tensor on_cpu(const at::Tensor& values, int64_t first, int64_t rows) {
  const runtime::OwnOperators own_operators;
  const auto some =
      values.dim() == 0 || (first == 0 && rows == values.size(0)) ? values : values.narrow(0, first, rows);
  return some.detach().to(at::kCPU).contiguous();
}

}  // namespace fsdp::state
