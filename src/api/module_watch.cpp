#include "api/module_watch.h"

#include <algorithm>
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

// Not by calls inside one another: modules may be nested deeper than the stack allows.
template <class Visit>
void visit_modules(const torch::nn::Module& module, const Visit& visit) {
  for (std::vector<const torch::nn::Module*> open{&module}; !open.empty();) {
    const auto& next = *open.back();
    open.pop_back();
    visit(next);
    const auto children = next.children();
    for (auto child = children.rbegin(); child != children.rend(); ++child) open.push_back(child->get());
  }
}

template <class Visit>
void visit_parameters(const torch::nn::Module& module, const Visit& visit) {
  visit_modules(module, [&](const torch::nn::Module& next) {
    for (const auto& item : OwnParameters::of(next))
      if (item.value().defined()) visit(item.value());
  });
}

// What the calls that made the groups were told to ignore.
std::unordered_set<const at::TensorImpl*> ignored_by(const std::vector<std::shared_ptr<runtime::ParamGroup>>& groups) {
  std::unordered_set<const void*> lists;
  std::unordered_set<const at::TensorImpl*> ignored;
  for (const auto& group : groups)
    if (group->ignored && lists.insert(group->ignored.get()).second)
      for (const auto& parameter : *group->ignored) ignored.insert(parameter._unsafe_get_target());
  return ignored;
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

bool ModuleWatch::is_as_before(const std::vector<torch::nn::Module*>& modules) const {
  size_t count = 0;
  bool is_same = true;
  for (const auto* module : modules)
    visit_parameters(*module, [&](const at::Tensor& parameter) {
      is_same = is_same && count < parameters_.size() &&
                parameters_[count]._unsafe_get_target() == parameter.unsafeGetTensorImpl();
      ++count;
    });
  return is_same && count == parameters_.size();
}

std::string ModuleWatch::find_stray(const std::vector<std::shared_ptr<runtime::ParamGroup>>& groups) {
  const auto modules = living();
  if (is_as_before(modules)) return {};

  const auto before = std::exchange(parameters_, {});
  std::unordered_set<const at::TensorImpl*> known;
  for (const auto& parameter : before) known.insert(parameter._unsafe_get_target());
  auto groups_there = groups;
  std::vector<runtime::NamedParameter> in_no_group;
  for (auto* module : modules)
    visit_nodes(*module_tree(*module), [&](const ModuleNode& node) {
      if (auto group = group_at(node)) groups_there.push_back(std::move(group));
      for (const auto& [name, tensor] : node.parameters) {
        parameters_.emplace_back(tensor.getIntrusivePtr());
        const auto part = runtime::registry().find(tensor);
        if (part) groups_there.push_back(part->group);
        if (!part && !known.contains(tensor.unsafeGetTensorImpl())) in_no_group.push_back({name, tensor});
      }
    });
  const auto ignored = ignored_by(groups_there);
  const auto stray = std::ranges::find_if(
      in_no_group, [&](const auto& parameter) { return !ignored.contains(parameter.tensor.unsafeGetTensorImpl()); });
  return stray == in_no_group.end() ? std::string() : stray->name;
}

}  // namespace fsdp
