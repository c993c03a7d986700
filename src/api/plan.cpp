#include "api/plan.h"

#include <c10/util/irange.h>

#include <algorithm>
#include <span>
#include <unordered_map>
#include <unordered_set>

namespace fsdp {
namespace {

using runtime::NamedParameter;

const void* key_of(const NamedParameter& parameter) { return parameter.tensor.unsafeGetTensorImpl(); }

/// The free parameters in the order of the tree, wherever a module has them: a tied one several times. Those of a
/// subtree are neighbours.
class Places {
 public:
  struct Place {
    const ModuleNode* node;
    const NamedParameter* parameter;
  };
  struct Range {
    size_t first = 0, last = 0;
  };
  using Free = std::unordered_set<const void*>;

  Places(const ModuleNode& tree, const Free& free) {
    std::vector<const ModuleNode*> nodes;
    visit_nodes(tree, [&](const ModuleNode& node) {
      nodes.push_back(&node);
      ranges_[&node].first = places_.size();
      for (const auto& parameter : node.parameters)
        if (free.contains(key_of(parameter))) {
          ++counts_[key_of(parameter)];
          places_.push_back({&node, &parameter});
        }
      ranges_[&node].last = places_.size();
    });
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node)
      if (!(*node)->children.empty()) ranges_[*node].last = ranges_[(*node)->children.back().get()].last;
    numel_before_.push_back(0);
    for (size_t i : c10::irange(places_.size())) {
      if (is_tied(i)) tied_.push_back(i);
      numel_before_.push_back(numel_before_.back() + numel_alone(i));
    }
  }

  Range range_of(const ModuleNode& node) const { return ranges_.at(&node); }
  size_t size() const { return places_.size(); }
  const Place& operator[](size_t i) const { return places_[i]; }
  bool is_tied(size_t i) const { return counts_.at(key_of(*places_[i].parameter)) > 1; }
  /// Elements, unless the parameter is tied.
  int64_t numel_alone(size_t i) const { return is_tied(i) ? 0 : places_[i].parameter->tensor.numel(); }

  /// Elements of the different parameters in a range that no group has taken yet.
  int64_t numel_of(Range range, const Free& free) const {
    const auto first = std::ranges::lower_bound(tied_, range.first), last = std::ranges::lower_bound(tied_, range.last);
    return numel_before_[range.last] - numel_before_[range.first] + numel_of_tied({first, last}, free);
  }
  int64_t numel_of_tied(std::span<const size_t> places, const Free& free) const {
    int64_t sum = 0;
    std::unordered_set<const void*> seen;
    for (size_t i : places) {
      const auto& parameter = *places_[i].parameter;
      if (free.contains(key_of(parameter)) && seen.insert(key_of(parameter)).second) sum += parameter.tensor.numel();
    }
    return sum;
  }

 private:
  std::vector<Place> places_;
  std::vector<size_t> tied_;
  std::vector<int64_t> numel_before_;  // of those that are not tied
  std::unordered_map<const ModuleNode*, Range> ranges_;
  std::unordered_map<const void*, size_t> counts_;
};

/// Places on a stack, with the number of their elements from any mark on.
class Stack {
 public:
  struct Mark {
    size_t places = 0, tied = 0;
    int64_t numel = 0;
  };

  explicit Stack(const Places& places) : places_(places) {}

  Mark mark() const { return {stack_.size(), tied_.size(), numel_}; }
  void push(Places::Range range) {
    for (size_t i : c10::irange(range.first, range.last)) {
      stack_.push_back(i);
      if (places_.is_tied(i)) tied_.push_back(i);
      numel_ += places_.numel_alone(i);
    }
  }
  std::span<const size_t> from(Mark mark) const { return std::span(stack_).subspan(mark.places); }
  /// Of different parameters that are still free.
  int64_t numel_from(Mark mark, const Places::Free& free) const {
    return numel_ - mark.numel + places_.numel_of_tied(std::span(tied_).subspan(mark.tied), free);
  }
  void drop_from(Mark mark) {
    stack_.resize(mark.places);
    tied_.resize(mark.tied);
    numel_ = mark.numel;
  }

 private:
  const Places& places_;
  std::vector<size_t> stack_, tied_;
  int64_t numel_ = 0;  // of those that are not tied
};

class Plan {
 public:
  Plan(const ModuleNode& tree, Places::Free free, const AutoWrapPolicy& policy)
      : policy_(policy), free_(std::move(free)), places_(tree, free_) {}

  std::vector<PlannedGroup> make(const ModuleNode& tree) {
    if (policy_.wraps)
      wrap_below(tree);
    else
      left_.push(places_.range_of(tree));
    take(tree, tree.type, {});
    return std::move(groups_);
  }

 private:
  // A module that the policy looks into.
  struct Open {
    const ModuleNode* node;
    Stack::Mark mark;
    size_t next_child = 0;
  };

  // Children first (FSDP1's _recursive_wrap); not by calls inside one another.
  void wrap_below(const ModuleNode& root) {
    std::vector<Open> open;
    const auto look_into = [&](const ModuleNode& node) {
      const auto mark = left_.mark();
      if (enter(node, &node == &root)) open.push_back({&node, mark});
    };
    for (look_into(root); !open.empty();) {
      auto& [node, mark, next_child] = open.back();
      if (next_child < node->children.size()) {
        look_into(*node->children[next_child++]);
        continue;
      }
      const int64_t numel = left_.numel_from(mark, free_);
      if (node != &root && numel > 0 && policy_.wraps({node->path, *node->module, numel}))
        take(*node, node->path, mark);
      open.pop_back();
    }
  }

  // Puts the module's own parameters on the stack. Or, and then returns false, all that are below it: if a group has
  // taken it whole, or the policy does not descend into it.
  bool enter(const ModuleNode& node, bool is_root) {
    const auto range = places_.range_of(node);
    const int64_t before = places_.numel_of(range, free_);
    const bool is_asked = (is_root || !group_at(node)) && before > 0;
    if (!is_asked || (policy_.descends && !policy_.descends({node.path, *node.module, before}))) {
      left_.push(range);
      return false;
    }
    size_t own_end = range.first;
    while (own_end < range.last && places_[own_end].node == &node) ++own_end;
    left_.push({range.first, own_end});
    return true;
  }

  void take(const ModuleNode& node, const std::string& name, Stack::Mark mark) {
    PlannedGroup group{.node = &node, .name = name};
    std::unordered_set<const void*> taken;
    for (size_t i : left_.from(mark)) {
      const auto& [owner, parameter] = places_[i];
      if (free_.erase(key_of(*parameter)) > 0) {
        taken.insert(key_of(*parameter));
        group.parameters.push_back({*parameter});
        group.parameters.back().cut = cut_of(*owner, *parameter);
      }
      if (taken.contains(key_of(*parameter)) && (group.modules.empty() || group.modules.back() != owner->identity))
        group.modules.push_back(owner->identity);
    }
    left_.drop_from(mark);
    groups_.push_back(std::move(group));
  }

  const AutoWrapPolicy& policy_;
  Places::Free free_;  // that no group has taken
  const Places places_;
  Stack left_{places_};  // of the modules that were asked, what none of them has taken
  std::vector<PlannedGroup> groups_;
};

}  // namespace

std::vector<PlannedGroup> plan_groups(const ModuleNode& tree, const std::vector<NamedParameter>& free,
                                      const FullyShardOptions& options) {
  Places::Free keys;
  for (const auto& parameter : free) keys.insert(key_of(parameter));
  return Plan(tree, std::move(keys), options.auto_wrap_policy).make(tree);
}

int64_t expected_bytes(const PlannedGroup& group, int ranks) {
  int64_t bytes = 0;
  for (const auto& parameter : group.parameters)
    bytes += static_cast<int64_t>(parameter.tensor.nbytes()) * (parameter.tensor.requires_grad() ? 4 : 1);
  return (bytes + ranks - 1) / ranks;
}

std::vector<bool> choose_on_disk(std::span<const int64_t> bytes, int64_t taken, int64_t limit) {
  std::vector<bool> is_on_disk;
  for (const int64_t wanted : bytes) {
    is_on_disk.push_back(wanted > limit - taken);
    if (!is_on_disk.back()) taken += wanted;
  }
  return is_on_disk;
}

}  // namespace fsdp
