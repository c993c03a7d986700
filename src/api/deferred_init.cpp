#include "api/deferred_init.h"

#include <fsdp/deferred_init.h>

#include "api/checks.h"
#include "runtime/deferred_recorder.h"
#include "runtime/deferred_value.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

using runtime::DeferredRecording;

// The module's own tensors that have no values, nor will have.
std::vector<at::Tensor> without_values(const ModuleNode& node) {
  std::vector<at::Tensor> tensors;
  for (const auto* list : {&node.parameters, &node.buffers})
    for (const auto& [name, tensor] : *list)
      if (tensor.is_meta() && !runtime::deferred_value_of(tensor) && !runtime::registry().find(tensor))
        tensors.push_back(tensor);
  return tensors;
}

}  // namespace

void put_off(const ModuleNode& tree, const std::function<void(torch::nn::Module&)>& init) {
  std::vector<const ModuleNode*> nodes;
  visit_nodes(tree, [&](const ModuleNode& node) { nodes.push_back(&node); });
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    const auto tensors = without_values(**node);
    if (tensors.empty()) continue;
    for (const auto& tensor : tensors)
      runtime::defer(tensor, std::make_shared<runtime::DeferredValue>(
                                 runtime::DeferredValue{at::kCPU, tensor.storage().nbytes()}));
    const DeferredRecording recording(DeferredRecording::Kind::kPutOff);
    init(*(*node)->module);
  }
}

// They stay the same tensors.
void compute_deferred(const std::vector<runtime::NamedParameter>& tensors) {
  for (const auto& named : tensors) require_put_off(named, "[fsdp] deferred_init: ");
  for (const auto& [name, tensor] : tensors)
    if (runtime::deferred_value_of(tensor))
      tensor.unsafeGetTensorImpl()->shallow_copy_from(runtime::compute(tensor).getIntrusivePtr());
}

struct DeferredStretch::Open : DeferredRecording {
  using DeferredRecording::DeferredRecording;
};
DeferredStretch::DeferredStretch(bool forgets)
    : open_(std::make_unique<Open>(forgets ? DeferredRecording::Kind::kForget : DeferredRecording::Kind::kPutOff)) {}
DeferredStretch::~DeferredStretch() = default;

void materialize(torch::nn::Module& module) { compute_deferred(subtree_tensors(*module_tree(module))); }

}  // namespace fsdp
