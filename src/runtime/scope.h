#pragma once
/// \file
/// Stretches of a program in which parameters are whole, or may be treated as rows.

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/schedule.h"

namespace torch::autograd {
struct Node;
}

namespace fsdp::runtime {

class ParamGroup;
using Groups = std::vector<std::shared_ptr<ParamGroup>>;

/// What one outermost forward scope covered; its backward uses it.
struct ScopeRecord {
  GroupId root = 0;
  std::vector<GroupId> groups;
  bool recorded = false;  // autograd recorded an operator on one of the groups
  bool observed = false;  // LibTorch's observers were on when it opened
  bool records = false;   // gradients were on when it opened

  /// Operators read what has neither an accumulator nor a hook while gradients were off: perhaps inside a custom
  /// Function, whose node nothing else tells of. Such nodes are known by the thread that made them and by their number.
  bool is_hidden = false;
  uint64_t thread = 0, first_node = 0, end_node = 0;
  std::weak_ptr<ParamGroup> outermost;
  bool has(const torch::autograd::Node& node) const;
};

/// Shows whole parameters of `groups` (first the module's own) while it lives. Opening it is collective where ranks
/// share memory; elsewhere the operators that read parameters are.
class OpenScope {
 public:
  explicit OpenScope(Groups groups);
  ~OpenScope();
  OpenScope(const OpenScope&) = delete;
  OpenScope& operator=(const OpenScope&) = delete;

 private:
  Groups groups_;
  std::shared_ptr<ScopeRecord> record_;
};

/// Lets operators compute on this rank's rows; the rows count as written when it closes.
class OpenLocalRows {
 public:
  explicit OpenLocalRows(Groups groups);
  ~OpenLocalRows();
  OpenLocalRows(const OpenLocalRows&) = delete;
  OpenLocalRows& operator=(const OpenLocalRows&) = delete;

 private:
  Groups groups_;
};

/// Makes all groups whole at once and lets whole parameters be written; `write_back` copies them into the rows.
class OpenSummon {
 public:
  explicit OpenSummon(Groups groups);
  ~OpenSummon();
  OpenSummon(const OpenSummon&) = delete;
  OpenSummon& operator=(const OpenSummon&) = delete;

  void write_back();

 private:
  Groups groups_;
  OpenScope scope_;
};

/// Forgets the iteration that an exception ended, on every rank alike: open graph tasks, gradients in flight, whole
/// copies, counts of scopes and writes, predictions. Collective.
void reset_iteration(const Groups& groups);

}  // namespace fsdp::runtime
