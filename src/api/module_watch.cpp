#include "api/module_watch.h"

#include <unordered_set>
#include <utility>

#include "api/module_tree.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

// Module::named_parameters() would copy every name.
struct OwnParameters : torch::nn::Module {
  static const auto& of(const torch::nn::Module& module) { return module.*(&OwnParameters::parameters_); }
};

template <class Visit>
void visit_modules(const torch::nn::Module& module, const Visit& visit) {
  visit(module);
  for (const auto& child : module.children()) visit_modules(*child, visit);
}

}  // namespace

ModuleWatch::ModuleWatch(const std::vector<torch::nn::Module*>& modules) {
  for (auto* module : modules) {
    auto owner = module->weak_from_this();
    const bool is_owned = !owner.expired();
    modules_.push_back({module, std::move(owner), is_owned});
  }
}

std::vector<torch::nn::Module*> ModuleWatch::living() const {
  std::vector<torch::nn::Module*> modules;
  for (const auto& [module, owner, is_owned] : modules_)
    if (!is_owned || !owner.expired()) modules.push_back(module);
  return modules;
}

bool ModuleWatch::has(const void* module) const {
  bool is_there = false;
  for (const auto* outer : living())
    visit_modules(*outer, [&](const torch::nn::Module& inner) { is_there |= &inner == module; });
  return is_there;
}

std::string ModuleWatch::find_stray() {
  const auto modules = living();
  std::vector<const at::TensorImpl*> now, before;
  for (const auto* module : modules)
    visit_modules(*module, [&](const torch::nn::Module& next) {
      for (const auto& item : OwnParameters::of(next))
        if (item.value().defined()) now.push_back(item.value().unsafeGetTensorImpl());
    });
  for (const auto& parameter : parameters_) before.push_back(parameter._unsafe_get_target());
  if (now == before) return {};

  const std::unordered_set<const at::TensorImpl*> known(before.begin(), before.end());
  const auto kept = std::exchange(parameters_, {});  // so that no other parameter comes to lie at the same address
  auto& registry = runtime::registry();
  std::string stray;
  for (auto* module : modules)
    visit_nodes(*module_tree(*module), [&](const ModuleNode& node) {
      for (const auto& [name, tensor] : node.parameters) {
        parameters_.emplace_back(tensor.getIntrusivePtr());
        const bool is_known = known.contains(tensor.unsafeGetTensorImpl()) || registry.find(tensor) ||
                              registry.leaves.is_left_out(tensor);
        if (stray.empty() && !is_known) stray = name;
      }
    });
  return stray;
}

}  // namespace fsdp
