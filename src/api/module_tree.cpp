#include "api/module_tree.h"

#include <algorithm>
#include <unordered_set>

#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

std::string joined(const std::string& path, const std::string& name) { return path.empty() ? name : path + "." + name; }

// "torch::nn::LinearImpl" and "(anonymous namespace)::BlockImpl" read better without what is before the last colon.
std::string short_type(std::string type) {
  auto colon = type.rfind("::");
  if (colon != std::string::npos) type.erase(0, colon + 2);
  if (type.size() > 4 && type.ends_with("Impl")) type.resize(type.size() - 4);
  return type;
}

std::unique_ptr<ModuleNode> grow(torch::nn::Module& module, const std::string& path, const std::string& name) {
  auto node = std::make_unique<ModuleNode>();
  node->name = name;
  node->path = joined(path, name);
  node->type = short_type(module.name());
  node->identity = &module;
  node->module = &module;
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    if (item.value().defined()) node->parameters.push_back({joined(node->path, item.key()), item.value()});
  for (const auto& item : module.named_buffers(/*recurse=*/false))
    if (item.value().defined()) node->buffers.push_back({joined(node->path, item.key()), item.value()});
  for (const auto& child : module.named_children())
    node->children.push_back(grow(*child.value(), node->path, child.key()));
  return node;
}

std::unique_ptr<ModuleNode> grow(const torch::jit::Module& module, const std::string& path, const std::string& name) {
  auto node = std::make_unique<ModuleNode>();
  node->name = name;
  node->path = joined(path, name);
  node->type = module.type()->name() ? module.type()->name()->name() : "ScriptModule";
  node->identity = module._ivalue().get();
  node->has_training_flag = module.hasattr("training");
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    node->parameters.push_back({joined(node->path, item.name), item.value});
  for (const auto& item : module.named_buffers(/*recurse=*/false))
    if (item.value.defined()) node->buffers.push_back({joined(node->path, item.name), item.value});
  for (const auto& child : module.named_children()) node->children.push_back(grow(child.value, node->path, child.name));
  return node;
}

}  // namespace

std::unique_ptr<ModuleNode> module_tree(torch::nn::Module& module) { return grow(module, "", ""); }

std::unique_ptr<ModuleNode> module_tree(const torch::jit::Module& module) { return grow(module, "", ""); }

std::unique_ptr<ModuleNode> module_tree(const std::vector<torch::nn::Module*>& modules) {
  auto node = std::make_unique<ModuleNode>();
  node->type = "list of " + std::to_string(modules.size()) + " modules";
  for (size_t i = 0; i < modules.size(); ++i) node->children.push_back(grow(*modules[i], "", std::to_string(i)));
  return node;
}

void visit_nodes(const ModuleNode& node, const std::function<void(const ModuleNode&)>& visit) {
  visit(node);
  for (const auto& child : node.children) visit_nodes(*child, visit);
}

namespace {

// Every tensor of the subtree that `own` names at a node, once.
std::vector<runtime::NamedParameter> subtree_tensors(const ModuleNode& node,
                                                     std::vector<runtime::NamedParameter> ModuleNode::* own) {
  std::vector<runtime::NamedParameter> tensors;
  std::unordered_set<const void*> seen;
  visit_nodes(node, [&](const ModuleNode& below) {
    for (const auto& tensor : below.*own)
      if (seen.insert(tensor.tensor.unsafeGetTensorImpl()).second) tensors.push_back(tensor);
  });
  return tensors;
}

}  // namespace

std::vector<runtime::NamedParameter> subtree_parameters(const ModuleNode& node) {
  return subtree_tensors(node, &ModuleNode::parameters);
}

std::vector<runtime::NamedParameter> subtree_buffers(const ModuleNode& node) {
  return subtree_tensors(node, &ModuleNode::buffers);
}

std::shared_ptr<runtime::ParamGroup> group_at(const ModuleNode& node) {
  auto group = runtime::registry().find_module(node.identity);
  if (!group || group->slots().empty()) return group;
  const auto parameters = subtree_parameters(node);
  const bool is_here = std::any_of(group->slots().begin(), group->slots().end(), [&](const runtime::ParamSlot& slot) {
    const auto tensor = slot.tensor();
    return std::any_of(parameters.begin(), parameters.end(),
                       [&](const auto& parameter) { return parameter.tensor.is_same(tensor); });
  });
  return is_here ? group : nullptr;
}

}  // namespace fsdp
