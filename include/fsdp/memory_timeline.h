#pragma once
/// \file
/// Recording of the bytes that a rank holds over time.

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

/// One change of the number of bytes that a rank holds.
struct MemoryEvent {
  int64_t nanoseconds = 0;  ///< nanoseconds since recording began
  /// Class of the bytes: "rows", "whole", "gradient", "optimizer", "activation", "checkpoint", "host" or "disk".
  std::string_view byte_class;
  std::string group;  ///< name of the group, see Group::name(); empty if the bytes belong to no group
  int64_t bytes = 0;  ///< number of bytes of the class that the group holds after the change
};

/// Recorder of each change of the byte counts that memory_report returns. It records, while it lives, all groups that
/// this rank has in the model's process group. The first events, at 0 ns, have the bytes held at the start. The class
/// "activation" appears only while a RecordActivations lives; it includes "checkpoint", so do not add the two.
/// Recording an event takes a lock and 32 bytes. A rank can have at most one timeline; a second one throws UsageError.
/// Not collective. Thread-safe.
class [[nodiscard]] MemoryTimeline {
 public:
  /// Starts recording.
  explicit MemoryTimeline(const Group& model);
  ~MemoryTimeline();
  MemoryTimeline(const MemoryTimeline&) = delete;
  MemoryTimeline& operator=(const MemoryTimeline&) = delete;

  /// Returns the events so far, in the order of time.
  std::vector<MemoryEvent> events() const;
  /// Writes this rank's events so far as JSON: {"rank": 0, "world_size": 2, "events": [{"ns": 0, "class": "rows",
  /// "group": "blocks.0", "bytes": 4096}, ...]}. Use a different path on each rank. Throws Error if the file cannot be
  /// written.
  void write(const std::string& path) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns a timeline that starts to record.
///
///     const auto timeline = fsdp::memory_timeline(model);
///     train_step();
///     timeline.write("memory." + std::to_string(fsdp::rank()) + ".json");
MemoryTimeline memory_timeline(const Group& model);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
