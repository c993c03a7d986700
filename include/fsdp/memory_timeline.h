#pragma once
/// \file
/// What a rank held at each moment.

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

/// One change of what a rank holds.
struct MemoryEvent {
  int64_t nanoseconds = 0;  ///< since recording began
  /// "rows", "whole", "gradient", "optimizer", "activation", "host" or "disk".
  std::string_view byte_class;
  std::string group;  ///< as Group::name(); empty for what belongs to no group
  int64_t bytes = 0;  ///< what the group holds of the class from then on
};

/// Writes down each change of the counts of memory_report, of all groups of the model's rank and process group, while
/// it lives. The first events, at 0 ns, are what is held when it begins. An event takes a lock and 32 bytes; without a
/// timeline a change costs the reading of a flag. Of one rank one at a time, else UsageError. Not collective. Thread
/// safety: all of it.
class [[nodiscard]] MemoryTimeline {
 public:
  /// Begins to record, as memory_timeline does.
  explicit MemoryTimeline(const Group& model);
  ~MemoryTimeline();
  MemoryTimeline(const MemoryTimeline&) = delete;
  MemoryTimeline& operator=(const MemoryTimeline&) = delete;

  /// So far, in the order of time.
  std::vector<MemoryEvent> events() const;
  /// Writes this rank's events so far: {"rank": 0, "world_size": 2, "events": [{"ns": 0, "class": "rows", "group":
  /// "blocks.0", "bytes": 4096}, ...]}. Each rank has a path of its own. Throws Error where that cannot be written.
  void write(const std::string& path) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Begins to record.
///
///     const auto timeline = fsdp::memory_timeline(model);
///     train_step();
///     timeline.write("memory." + std::to_string(fsdp::rank()) + ".json");
MemoryTimeline memory_timeline(const Group& model);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
