#include "runtime/written_tensors.h"

#include <torch/csrc/jit/serialization/pickler.h>

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "comm/core/check.h"
#include "runtime/param_group.h"
#include "runtime/refusal.h"
#include "runtime/registry.h"

namespace fsdp::runtime {
namespace {

using Metadata = std::unordered_map<std::string, bool>;

void require_no_rows(const at::Tensor& tensor) {
  const auto part = registry().find(tensor);
  if (!part || part->kind == PartKind::kWhole) return;
  const auto& group = *part->group;
  const auto& slot = part->group->slots()[part->slot];
  require(group.placement().shard().world_size() == 1 || group.local_rows_depth > 0, group.where("torch::save"),
          noun_of(part->kind), slot.name(), "' is sharded: expected all of it, of sizes ", slot.sizes(),
          ", found this rank's rows, of sizes ", tensor.sizes(),
          ". fsdp::save(model, path) writes what torch::save writes of a plain model, fsdp::save_checkpoint the rows "
          "of all ranks; inside summon_full_params torch::save is as ever; if you mean the rows, open a "
          "fsdp::LocalRows");
}

// Asks `known` too, if it is there.
void observe(std::optional<std::pair<torch::jit::BackendMetaPtr, torch::jit::BackendMetaPtr>>& known) {
  const auto former = known;
  known.emplace(
      [former](const at::Tensor& tensor, Metadata& metadata) {
        require_no_rows(tensor);
        if (former) former->first(tensor, metadata);
      },
      [former](const at::Tensor& tensor, Metadata& metadata) {
        if (former) former->second(tensor, metadata);
      });
}

}  // namespace

void observe_written_tensors() {
  static const bool once = [] {
    auto& of_device = torch::jit::GetBackendMetaSerialization();
    for (const auto device : {at::kCPU, at::kCUDA, at::kPrivateUse1}) observe(of_device[static_cast<size_t>(device)]);
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace fsdp::runtime
