#pragma once
/// \file
/// What ranks do, moment by moment, as a file for Perfetto or chrome://tracing.

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

/// One thing that a rank did. docs/observing.md lists the names.
struct TraceEvent {
  std::string name = {};          ///< e.g. "unshard", "prefetch", "wait for all_gather", "reduce_scatter", "forward"
  std::string group = {};         ///< the group, as Group::name(), or what else it is about; cut at 63 characters
  bool is_communication = false;  ///< it goes on beside the threads of the program
  int64_t begin_ns = 0;           ///< since 1970
  int64_t end_ns = 0;             ///< 0: it goes on
  bool has_failed = false;        ///< it ended by an exception
  int32_t thread = 0;             ///< the system's number of the thread in which it began
  uint64_t sequence = 0;          ///< of a collective: its number in its order
  uint64_t bytes = 0;             ///< of a collective: of all ranks' data
};

/// What a trace keeps.
struct TraceOptions {
  /// How many events it keeps: older ones are dropped. Each takes 152 bytes.
  size_t max_events = 200'000;
  /// LibTorch's operators too, with their sizes and allocations: Kineto, of the calling thread and the backwards that
  /// it calls, as long as the trace lives. It goes on the thread that made it. One at a time in a process, and no other
  /// profiler beside it.
  bool operators = false;
  /// Whose ranks write one file; null: the default one. A group that was split from another one and that one record
  /// alike.
  std::shared_ptr<ProcessGroup> process_group = nullptr;
};

/// Writes down what this rank does, of all its models and process groups, while it lives. Without a trace each place
/// that would be written down costs the reading of a flag; with one, a lock and about 0.2 us. Thread safety: all of it,
/// but for `write`.
///
///     {
///       const fsdp::Trace trace;
///       for (int step = 0; step < 10; ++step) train_step();
///       trace.write("trace.json");  // then open it at ui.perfetto.dev
///     }
class [[nodiscard]] Trace {
 public:
  /// Not collective. Throws UsageError for a process group over a communicator of one's own, and for no event at all.
  explicit Trace(TraceOptions options = {});
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Of this rank so far, in the order of beginnings; without operators.
  std::vector<TraceEvent> events() const;
  /// Writes what all ranks did so far into one file, on rank 0: the JSON that Chrome and Perfetto open, with a process
  /// for each rank, in it a track for each thread of the program and one or more for its communication. With operators
  /// their recording ends here. Times are each host's own. Collective. Throws Error on every rank if rank 0 cannot
  /// write the file, or if a rank has no room in TMPDIR for what LibTorch's profiler recorded there; and what
  /// Work::wait throws.
  void write(const std::string& path) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Something of the program's own on this rank's timeline, from here to the end of the scope: in the traces that are
/// there, and in the flight recorder. It goes on the thread that made it, last in first out. Where nobody records it
/// costs no more than to find the process group.
///
///     const fsdp::TraceSpan span("validation");
class [[nodiscard]] TraceSpan {
 public:
  /// Of the default process group's rank. Names are cut at 23 characters, `about` at 63. Throws UsageError before
  /// init_process_group().
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
