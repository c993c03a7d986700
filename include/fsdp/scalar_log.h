#pragma once
/// \file
/// Log of scalar metrics as JSON lines and TensorBoard events.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup observing
/// \{

/// Outputs of a ScalarLog: a file of JSON lines, a TensorBoard event file, both or neither.
struct ScalarLogOptions {
  /// Path of a file that gets one line per step, {"step": 10, "seconds": 1.25, "loss": 2.31, ...}; if empty, there is
  /// no such file.
  std::string json_lines = {};
  /// Path of a folder for a new TensorBoard event file, created if necessary; if empty, there is no such file.
  std::string tensorboard = {};
  /// True if the log appends to an existing file of JSON lines, as a resumed run should. If false, it replaces the
  /// file.
  bool appends = false;
};

/// Log that writes named numbers for each step on rank 0 of the default process group and does nothing on other ranks,
/// so all ranks can run the same code. Not collective. One thread at a time may use it.
///
///     fsdp::ScalarLog log({.json_lines = "metrics.jsonl", .tensorboard = "runs/first"});
///     log.write(step, {{"loss", loss}, {"lr", lr}});
class ScalarLog {
 public:
  /// Names and values of one step.
  using Scalars = std::vector<std::pair<std::string, double>>;

  /// Opens the files on rank 0. Throws Error if a file cannot be created, and UsageError before init_process_group().
  explicit ScalarLog(const ScalarLogOptions& options);
  ~ScalarLog();
  /// Takes over the other log's files. The moved-from log does nothing from then on.
  ScalarLog(ScalarLog&&) noexcept;
  /// Closes this log's files and takes over the other log's files. The moved-from log does nothing from then on.
  ScalarLog& operator=(ScalarLog&&) noexcept;

  /// Returns true if `write` writes anything. If false, there is no need to compute metrics.
  bool is_on() const;
  /// Writes one step. Names must be unique. Non-finite numbers become null in JSON lines. The line is in the file when
  /// this function returns. Throws Error if the disk is full; then no part of the line is in the file.
  void write(int64_t step, const Scalars& scalars);

 private:
  struct State;
  std::unique_ptr<State> state_;  // null if the log does nothing
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
