#include "state/model_tensors.h"

#include "api/checks.h"
#include "comm/core/check.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp::state {
namespace {

using layout::RowRange;

// Equal shares, as far as rows allow.
RowRange share_of(RowRange rows, int replica, int replicas) {
  const auto begin = rows.count * replica / replicas, end = rows.count * (replica + 1) / replicas;
  return {rows.first + begin, end - begin};
}

std::shared_ptr<ProcessGroup> default_ranks() {
  try {
    return default_process_group();
  } catch (const UsageError&) {
    return nullptr;  // a program without ranks
  }
}

void require_same_ranks(ModelTensors& tensors, const runtime::ParamGroup& group, const std::string& operation) {
  const auto& ranks = group.placement().shared_process_group();
  if (!tensors.ranks) tensors.ranks = ranks;
  require(ranks->global_ranks() == tensors.ranks->global_ranks(), group.where(operation), "group '", group.name(),
          "' is sharded over other ranks than the groups before it. Save modules of different ranks apart");
}

ModelTensor sharded(const at::Tensor& tensor, const runtime::Part& part, const std::string& operation) {
  auto& group = *part.group;
  std::lock_guard lock(group.rank_state().mutex);
  require(!group.is_inside(), group.where(operation), "group '", group.name(),
          "' is in a scope or a backward. Call it outside of them");
  require_values({part.group}, operation);
  const auto& slot = group.slots()[part.slot];
  const auto& placement = group.placement();
  const auto share = share_of(slot.rows(), placement.replica(), placement.replicas());
  return {{slot.sizes().vec(), slot.joined_dims(), slot.rows(), share}, {}, tensor};
}

ModelTensor plain(const at::Tensor& tensor, bool writes) {
  const RowRange rows{0, tensor.dim() == 0 ? 1 : tensor.size(0)};
  const size_t joined_dims = tensor.dim() == 0 ? 0 : 1;
  return {{tensor.sizes().vec(), joined_dims, rows, writes ? rows : RowRange{0, 0}}, {}, tensor};
}

}  // namespace

ModelTensors tensors_of(const ModuleNode& tree, const std::string& operation) {
  std::vector<runtime::NamedParameter> named;
  visit_nodes(tree, [&](const ModuleNode& node) {
    for (const auto* list : {&node.parameters, &node.buffers}) named.insert(named.end(), list->begin(), list->end());
  });
  return tensors_of(named, operation);
}

ModelTensors tensors_of(const std::vector<runtime::NamedParameter>& named, const std::string& operation) {
  ModelTensors tensors;
  for (const auto& [name, tensor] : named)
    if (const auto part = runtime::registry().find(tensor)) require_same_ranks(tensors, *part->group, operation);
  if (!tensors.ranks) tensors.ranks = default_ranks();
  const auto where = tensors.ranks ? tensors.ranks->where(operation) : "[fsdp] " + operation + ": ";
  const bool is_first = !tensors.ranks || tensors.ranks->rank() == 0;
  for (const auto& [name, tensor] : named) {
    if (!tensor.defined()) continue;
    const auto [place, is_new] = tensors.places.try_emplace(tensor.unsafeGetTensorImpl(), tensors.all.size());
    if (is_new) {
      const auto part = runtime::registry().find(tensor);
      require(part || !tensor.is_meta(), where, "'", name, "' is on the meta device and has no values. ",
              "fsdp::materialize(module) gives them to what deferred_init built; of a model that is sharded, ",
              "fsdp::to_empty gives parameters and buffers memory");
      tensors.all.push_back(part ? sharded(tensor, *part, operation) : plain(tensor, is_first));
    }
    tensors.all[place->second].names.push_back(name);
  }
  return tensors;
}

int64_t OwnRows::row_numel() const { return c10::multiply_integers(at::IntArrayRef(sizes).slice(joined_dims)); }

at::Tensor on_cpu(const at::Tensor& values, int64_t first, int64_t rows) {
  const runtime::OwnOperators own_operators;
  const auto some =
      values.dim() == 0 || (first == 0 && rows == values.size(0)) ? values : values.narrow(0, first, rows);
  return some.detach().to(at::kCPU).contiguous();
}

}  // namespace fsdp::state
