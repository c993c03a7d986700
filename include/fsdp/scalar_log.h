#pragma once
/// \file
/// Metrics of a run in files: JSON lines, TensorBoard.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup observing
/// \{

/// Where numbers go; both, one or none.
struct ScalarLogOptions {
  /// A file that gets a line for each step, {"step": 10, "seconds": 1.25, "loss": 2.31, ...}; empty: none.
  std::string json_lines = {};
  /// A folder, made if it is not there, for a new file of TensorBoard's events; empty: none.
  std::string tensorboard = {};
  /// Behind what the file of JSON lines has, e.g. in a run that goes on from a checkpoint; else it begins anew.
  bool appends = false;
};

/// Writes named numbers, step by step, on rank 0 of the default process group; on other ranks it does nothing, so that
/// every rank runs the same code. Not collective. One thread at a time.
///
///     fsdp::ScalarLog log({.json_lines = "metrics.jsonl", .tensorboard = "runs/first"});
///     log.write(step, {{"loss", loss}, {"lr", lr}});
class ScalarLog {
 public:
  /// Names and numbers of one step.
  using Scalars = std::vector<std::pair<std::string, double>>;

  /// Throws Error if a file cannot be made, UsageError before init_process_group().
  explicit ScalarLog(const ScalarLogOptions& options);
  ~ScalarLog();
  /// The other one does nothing from then on.
  ScalarLog(ScalarLog&&) noexcept;
  /// Closes the files of this one; the other one does nothing from then on.
  ScalarLog& operator=(ScalarLog&&) noexcept;

  /// Whether `write` writes anything: figures that nobody sees need not be taken.
  bool is_on() const;
  /// What is not finite is null among JSON lines. Names of one step differ. Each line is in the file when this returns.
  /// Throws Error if there is no room; the line is not in the file then, nor a part of it.
  void write(int64_t step, const Scalars& scalars);

 private:
  struct State;
  std::unique_ptr<State> state_;  // null: it does nothing
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
