#include "api/module_watch.h"

#include <algorithm>
#include <unordered_set>

#include "api/module_tree.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

// Module::named_parameters() would copy every name.
struct OwnParameters : torch::nn::Module {
  static const auto& of(const torch::nn::Module& module) { return module.*(&OwnParameters::parameters_); }
};

template <class Visit>
void visit_parameters(const torch::nn::Module& module, const Visit& visit) {
  for (const auto& item : OwnParameters::of(module))
    if (item.value().defined()) visit(item.value());
  for (const auto& child : module.children()) visit_parameters(*child, visit);
}

bool is_in_group(const at::Tensor& parameter) {
  return parameter.has_storage() && runtime::registry().find(parameter.storage().unsafeGetStorageImpl()).has_value();
}

bool is_ignored(const at::Tensor& parameter, const std::vector<std::shared_ptr<runtime::ParamGroup>>& groups) {
  return std::ranges::any_of(groups, [&](const auto& group) {
    return std::ranges::any_of(group->ignored, [&](const auto& ignored) {
      return ignored._unsafe_get_target() == parameter.unsafeGetTensorImpl();
    });
  });
}

}  // namespace

ModuleWatch::ModuleWatch(const std::vector<torch::nn::Module*>& modules) {
  for (auto* module : modules) {
    auto owner = module->weak_from_this();
    const bool is_owned = !owner.expired();
    modules_.push_back({module, std::move(owner), is_owned});
  }
}

bool ModuleWatch::is_as_before(const std::vector<torch::nn::Module*>& modules) const {
  size_t count = 0;
  bool is_same = true;
  for (const auto* module : modules)
    visit_parameters(*module, [&](const at::Tensor& parameter) {
      is_same = is_same && count < parameters_.size() && parameters_[count] == parameter.unsafeGetTensorImpl();
      ++count;
    });
  return is_same && count == parameters_.size();
}

std::string ModuleWatch::find_stray(const std::vector<std::shared_ptr<runtime::ParamGroup>>& groups) {
  std::vector<torch::nn::Module*> modules;
  for (const auto& [module, owner, is_owned] : modules_)
    if (!is_owned || !owner.expired()) modules.push_back(module);
  if (is_as_before(modules)) return {};

  const std::unordered_set<const at::TensorImpl*> known(parameters_.begin(), parameters_.end());
  parameters_.clear();
  std::string stray;
  for (auto* module : modules)
    visit_nodes(*module_tree(*module), [&](const ModuleNode& node) {
      for (const auto& [name, tensor] : node.parameters) {
        parameters_.push_back(tensor.unsafeGetTensorImpl());
        if (stray.empty() && !known.contains(parameters_.back()) && !is_in_group(tensor) && !is_ignored(tensor, groups))
          stray = name;
      }
    });
  return stray;
}

}  // namespace fsdp
