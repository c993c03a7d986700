#include "api/group_view.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

std::string joined(const std::string& path, const std::string& name) { return path.empty() ? name : path + "." + name; }

// Removes the namespace and "Impl" from names such as "torch::nn::LinearImpl" and "(anonymous namespace)::BlockImpl".
std::string short_type(std::string type) {
  auto colon = type.rfind("::");
  if (colon != std::string::npos) type.erase(0, colon + 2);
  if (type.size() > 4 && type.ends_with("Impl")) type.resize(type.size() - 4);
  return type;
}

// Gives access to a module's own parameters without copying names, as Module::named_parameters() would.
struct OwnParameters : torch::nn::Module {
  static const auto& of(const torch::nn::Module& module) { return module.*(&OwnParameters::parameters_); }
};

}  // namespace

std::unique_ptr<ModuleNode> module_tree(torch::nn::Module& module, const std::string& path) {
  auto node = std::make_unique<ModuleNode>();
  node->path = path;
  node->type = short_type(module.name());
  node->identity = &module;
  node->module = &module;
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    if (item.value().defined()) node->parameters.push_back({joined(path, item.key()), item.value()});
  for (const auto& item : module.named_buffers(/*recurse=*/false))
    if (item.value().defined()) node->buffers.push_back({joined(path, item.key()), item.value()});
  for (const auto& child : module.named_children())
    node->children.push_back(module_tree(*child.value(), joined(path, child.key())));
  return node;
}

std::unique_ptr<ModuleNode> module_tree(const torch::jit::Module& module, const std::string& path) {
  auto node = std::make_unique<ModuleNode>();
  node->path = path;
  node->type = module.type()->name() ? module.type()->name()->name() : "ScriptModule";
  node->identity = module._ivalue().get();
  node->has_training_flag = module.hasattr("training");
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    node->parameters.push_back({joined(path, item.name), item.value});
  for (const auto& item : module.named_buffers(/*recurse=*/false))
    if (item.value.defined()) node->buffers.push_back({joined(path, item.name), item.value});
  for (const auto& child : module.named_children())
    node->children.push_back(module_tree(child.value, joined(path, child.name)));
  return node;
}

std::unique_ptr<ModuleNode> module_tree(const std::vector<torch::nn::Module*>& modules) {
  auto node = std::make_unique<ModuleNode>();
  node->type = "list of " + std::to_string(modules.size()) + " modules";
  for (size_t i = 0; i < modules.size(); ++i) node->children.push_back(module_tree(*modules[i], std::to_string(i)));
  return node;
}

std::optional<TensorCut> cut_of(const ModuleNode& node, const runtime::NamedParameter& parameter) {
  const auto* layer = dynamic_cast<const TensorParallelLayer*>(node.module);
  return layer ? layer->cut_of(own_name(parameter.name)) : std::nullopt;
}

std::vector<const ModuleNode*> given_modules(const ModuleNode& tree) {
  if (tree.identity != nullptr) return {&tree};
  std::vector<const ModuleNode*> modules;
  for (const auto& child : tree.children) modules.push_back(child.get());
  return modules;
}

void visit_nodes(const ModuleNode& node, const std::function<void(const ModuleNode&)>& visit) {
  visit(node);
  for (const auto& child : node.children) visit_nodes(*child, visit);
}

// Returns the tensors in the member `own` of all nodes of the subtree, each once.
static std::vector<runtime::NamedParameter> collect(const ModuleNode& node,
                                                    std::vector<runtime::NamedParameter> ModuleNode::* own) {
  std::vector<runtime::NamedParameter> tensors;
  std::unordered_set<const void*> seen;
  visit_nodes(node, [&](const ModuleNode& below) {
    for (const auto& tensor : below.*own)
      if (seen.insert(tensor.tensor.unsafeGetTensorImpl()).second) tensors.push_back(tensor);
  });
  return tensors;
}

std::vector<runtime::NamedParameter> subtree_parameters(const ModuleNode& node) {
  return collect(node, &ModuleNode::parameters);
}

std::vector<runtime::NamedParameter> subtree_buffers(const ModuleNode& node) {
  return collect(node, &ModuleNode::buffers);
}

std::vector<runtime::NamedParameter> subtree_tensors(const ModuleNode& node) {
  auto tensors = subtree_parameters(node);
  std::ranges::move(subtree_buffers(node), std::back_inserter(tensors));
  return tensors;
}

std::shared_ptr<runtime::ParamGroup> group_at(const ModuleNode& node) {
  const auto owner = node.module == nullptr ? std::weak_ptr<torch::nn::Module>() : node.module->weak_from_this();
  const auto found = runtime::registry().find_module(node.identity, owner);
  const auto& group = found.group;
  if (!group || found.is_certain) return group;
  const auto parameters = subtree_parameters(node);
  const auto keeps_it = [&](const auto& parameter) {
    const auto part = runtime::registry().find(parameter.tensor);
    return part && part->group->keeps(*group);
  };
  const bool is_here = parameters.empty() ? group->slots().empty() : std::ranges::any_of(parameters, keeps_it);
  return is_here ? group : nullptr;
}

at::Tensor find_stray(const torch::nn::Module& module) {
  for (const auto& parameter : OwnParameters::of(module))
    if (const auto& tensor = parameter.value(); tensor.defined() &&
                                                !runtime::is_marked(*tensor.unsafeGetTensorImpl()) &&
                                                !runtime::registry().is_ignored(tensor))
      return tensor;
  for (const auto& child : module.children())
    if (auto stray = find_stray(*child); stray.defined()) return stray;
  return {};
}

}  // namespace fsdp
