#include <fsdp/wrap_policy.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

namespace fsdp {

AutoWrapPolicy size_based_auto_wrap_policy(int64_t min_numel) {
  auto wraps = [min_numel](const WrapCandidate& candidate) {
    bool is_container = dynamic_cast<torch::nn::ModuleListImpl*>(&candidate.module) != nullptr ||
                        dynamic_cast<torch::nn::ModuleDictImpl*>(&candidate.module) != nullptr;
    return candidate.unwrapped_numel >= min_numel && !is_container;
  };
  auto descends = [](const WrapCandidate& candidate) {
    return dynamic_cast<torch::nn::MultiheadAttentionImpl*>(&candidate.module) == nullptr;
  };
  return {AutoWrapPolicy::Decision(wraps), AutoWrapPolicy::Decision(descends)};
}

}  // namespace fsdp
