#pragma once
/// \file
/// A recording of a rank's memory over time.

#include <fsdp/group.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup memory
/// \{

/// One change of the bytes that a rank holds.
struct MemoryEvent {
  int64_t nanoseconds = 0;  ///< time since recording began
  /// "rows", "whole", "gradient", "optimizer", "activation", "checkpoint", "host" or "disk".
  std::string_view byte_class;
  std::string group;  ///< see Group::name(); empty if the bytes belong to no group
  int64_t bytes = 0;  ///< bytes that the group holds of the class after the change
};

/// While it lives, records each change of the byte counts of memory_report, for all groups of the model's rank and
/// process group. The first events, at 0 ns, are the bytes held at the start. The class "activation" appears only while
/// RecordActivations lives and includes "checkpoint", so do not add the two. An event takes a lock and 32 bytes. At
/// most one timeline per rank, otherwise UsageError. Not collective. Thread-safe.
class [[nodiscard]] MemoryTimeline {
 public:
  /// Starts recording.
  explicit MemoryTimeline(const Group& model);
  ~MemoryTimeline();
  MemoryTimeline(const MemoryTimeline&) = delete;
  MemoryTimeline& operator=(const MemoryTimeline&) = delete;

  /// The events so far, in the order of time.
  std::vector<MemoryEvent> events() const;
  /// Writes this rank's events so far: {"rank": 0, "world_size": 2, "events": [{"ns": 0, "class": "rows", "group":
  /// "blocks.0", "bytes": 4096}, ...]}. Use a different path on each rank. Throws Error if the file cannot be written.
  void write(const std::string& path) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Starts recording.
///
///     const auto timeline = fsdp::memory_timeline(model);
///     train_step();
///     timeline.write("memory." + std::to_string(fsdp::rank()) + ".json");
MemoryTimeline memory_timeline(const Group& model);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
