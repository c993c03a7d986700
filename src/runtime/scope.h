#pragma once
/// \file
/// Stretches of a program in which parameters are whole, or may be treated as rows.

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/core/timeline.h"

namespace fsdp::runtime {

class ParamGroup;
struct ScopeRecord;
using Groups = std::vector<std::shared_ptr<ParamGroup>>;

/// Shows whole parameters of `groups` (first the module's own) while it lives. Opening it is collective where ranks
/// share memory; elsewhere the operators that read parameters are.
class OpenScope {
 public:
  /// `call`: of the user's, if it does more than that.
  explicit OpenScope(Groups groups, const std::string& call = {});
  ~OpenScope();
  OpenScope(const OpenScope&) = delete;
  OpenScope& operator=(const OpenScope&) = delete;

 private:
  Groups groups_;
  std::shared_ptr<ScopeRecord> record_;
  const std::thread::id thread_ = std::this_thread::get_id();
  bool autocast_cached_ = false;  // on that thread, before
  Span span_;
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
  /// `rank0_only`: the others gather too, but keep nothing. `offload`: what is kept goes to host memory.
  OpenSummon(Groups groups, bool rank0_only, bool offload);
  ~OpenSummon();
  OpenSummon(const OpenSummon&) = delete;
  OpenSummon& operator=(const OpenSummon&) = delete;

  void write_back();

 private:
  Groups groups_;
  const bool rank0_only_;
  std::optional<OpenScope> scope_;  // none where nothing is kept
};

/// Forgets the iteration that an exception ended, on every rank alike: open graph tasks, gradients in flight, whole
/// copies, counts of scopes and writes, predictions. Collective.
void reset_iteration(const Groups& groups);

}  // namespace fsdp::runtime
