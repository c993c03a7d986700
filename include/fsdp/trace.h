#pragma once
/// \file
/// Recording of what ranks do over time, as a file for Perfetto or chrome://tracing.

#include <fsdp/process_group.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup observing
/// \{

/// One interval on a rank's timeline. docs/observing.md lists the names.
struct TraceEvent {
  std::string name = {};          ///< name such as "unshard", "prefetch", "wait for all_gather" or "forward"
  std::string group = {};         ///< Group::name() of the group, or another subject; truncated to 63 characters
  bool is_communication = false;  ///< true if the event runs asynchronously to the program's threads
  int64_t begin_ns = 0;           ///< beginning, in nanoseconds since 1970
  int64_t end_ns = 0;             ///< end, in nanoseconds since 1970; 0 for an unfinished event
  bool has_failed = false;        ///< true if the event ended with an exception
  int32_t thread = 0;             ///< operating system's ID of the thread in which the event began
  uint64_t sequence = 0;          ///< number of a collective in its queue of operations
  uint64_t bytes = 0;             ///< number of bytes of all ranks' data, for a collective
};

/// Options that say what a trace records.
struct TraceOptions {
  /// Maximum number of events, each of which takes 152 bytes; the oldest events are dropped.
  size_t max_events = 200'000;
  /// True if Kineto also records LibTorch's operators, with sizes and allocations, on the calling thread and in its
  /// backwards, while the trace lives. Destroy such a trace on the thread that made it. A process can have only one
  /// such trace, and no other profiler at the same time.
  bool operators = false;
  /// Ranks that write a common file; if null, the default process group. Traces of a process group and of groups split
  /// from it have the same events.
  std::shared_ptr<ProcessGroup> process_group = nullptr;
};

/// Recorder of what this rank does, in all its models and process groups, while the trace lives. An event costs a lock
/// and about 0.2 us; while no trace lives, the library only reads a flag instead. Thread-safe except for `write`.
///
///     {
///       const fsdp::Trace trace;
///       for (int step = 0; step < 10; ++step) train_step();
///       trace.write("trace.json");  // then open it at ui.perfetto.dev
///     }
class [[nodiscard]] Trace {
 public:
  /// Starts to record. Not collective. Throws UsageError for a process group over a communicator of your own, and if
  /// max_events is 0.
  explicit Trace(TraceOptions options = {});
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Returns this rank's events so far, sorted by their beginning, without operators.
  std::vector<TraceEvent> events() const;
  /// Writes the events of all ranks so far into one file on rank 0, in the JSON format of Chrome and Perfetto: one
  /// process for each rank, with one track for each thread of the program and one or more tracks for communication.
  /// Operators are recorded only until the first call. Times come from each host's clock. Collective. Throws Error on
  /// every rank if rank 0 cannot write the file, or if a rank's TMPDIR has no room for the profiler's output; and what
  /// Work::wait throws.
  void write(const std::string& path) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Interval that your program adds to this rank's timeline in existing traces, from construction to destruction.
/// Destroy spans on the thread that made them, in reverse order. If nothing records, a span only looks up the process
/// group.
///
///     const fsdp::TraceSpan span("validation");
class [[nodiscard]] TraceSpan {
 public:
  /// Begins an interval on the timeline of this rank of the default process group. `name` is truncated to 23
  /// characters, `about` to 63. Throws UsageError before init_process_group().
  explicit TraceSpan(std::string_view name, std::string_view about = "");
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
