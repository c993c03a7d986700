#pragma once
/// \file
/// Defines the flags --trace, --profile, --metrics, --tensorboard, --peak-flops and --explain, which all programs that
/// train share.

#include <memory>
#include <string>

namespace CLI {
class App;
}
namespace fsdp {
class Group;
class ScalarLog;
class Trace;
}  // namespace fsdp

namespace frame {

struct ObservingFlags {
  /// Path of the trace file; no trace is written if it is empty.
  std::string trace;
  /// True if the trace also contains LibTorch's operators. Needs `trace`.
  bool profile = false;
  /// Paths of a file of JSON lines and of a folder for TensorBoard; each is written unless its path is empty.
  std::string metrics, tensorboard;
  /// Peak floating point operations per second of a rank's hardware; 0 means that the program measures them.
  double peak_flops = 0;
  bool explain = false;
};

void add_observing_flags(CLI::App& app, ObservingFlags& flags);

/// Begins a trace, which lasts until `write_trace`. Returns null without --trace.
std::unique_ptr<fsdp::Trace> begin_trace(const ObservingFlags& flags);
/// Writes the trace. Collective; does nothing without --trace.
void write_trace(const fsdp::Trace* trace, const ObservingFlags& flags);

/// Opens the files of --metrics and --tensorboard. If `appends` is true, a resumed run appends to them.
fsdp::ScalarLog open_scalar_log(const ObservingFlags& flags, bool appends);

/// Prints on rank 0 what the groups are and what they cost. Does nothing without --explain.
void print_explanation(const fsdp::Group& model, const ObservingFlags& flags);

}  // namespace frame
