#include "runtime/written_modules.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/export.h>

#include <algorithm>
#include <string>

#include "comm/core/check.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp::runtime {
namespace {

// torch::save gives tensors numbers for names.
bool is_number(const std::string& name) {
  return std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

void require_no_rows(const at::Tensor& tensor) {
  const auto part = registry().find(tensor);
  if (!part || part->kind != PartKind::kRows) return;
  const auto& group = *part->group;
  const auto& slot = part->group->slots()[part->slot];
  require(!slot.is(tensor) || group.placement().shard().world_size() == 1, group.where("torch::save"), "parameter '",
          slot.name(), "' of the module is sharded: expected all of it, of sizes ", slot.sizes(),
          ", found this rank's rows, of sizes ", tensor.sizes(),
          ". fsdp::save(model, path) writes what torch::save writes of a plain model, fsdp::save_checkpoint the rows "
          "of all ranks; inside summon_full_params torch::save is as ever");
}

void require_no_rows(const c10::ivalue::Object& module, bool is_root) {
  const auto& type = *module.type();
  for (size_t i = 0; i < type.numAttributes(); ++i) {
    const auto& value = module.getSlot(i);
    if (value.isObject()) {
      require_no_rows(*value.toObject(), /*is_root=*/false);
    } else if (value.isTensor() && value.toTensor().defined() && !(is_root && is_number(type.getAttributeName(i)))) {
      require_no_rows(value.toTensor());
    }
  }
}

}  // namespace

void observe_written_modules() {
  static const bool once = [] {
    torch::jit::SetExportModuleExtraFilesHook([](const torch::jit::Module& module) {
      require_no_rows(*module._ivalue(), /*is_root=*/true);
      return torch::jit::ExtraFilesMap();
    });
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace fsdp::runtime
