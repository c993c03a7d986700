#pragma once
/// \file
/// The flags --trace, --profile, --metrics, --tensorboard, --peak-flops and --explain, alike in all programs that
/// train.

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
  /// A file; empty: no trace.
  std::string trace;
  /// With `trace`: LibTorch's operators too.
  bool profile = false;
  /// A file of JSON lines, and a folder for TensorBoard; empty: none.
  std::string metrics, tensorboard;
  /// Operations a second that a rank could do; 0: measured.
  double peak_flops = 0;
  bool explain = false;
};

void add_observing_flags(CLI::App& app, ObservingFlags& flags);

/// From here to `write_trace`; null without the flag.
std::unique_ptr<fsdp::Trace> begin_trace(const ObservingFlags& flags);
/// Collective; nothing without the flag.
void write_trace(const fsdp::Trace* trace, const ObservingFlags& flags);

/// `appends`: the run goes on.
fsdp::ScalarLog open_scalar_log(const ObservingFlags& flags, bool appends);

/// With --explain rank 0 prints what the groups are and cost.
void print_explanation(const fsdp::Group& model, const ObservingFlags& flags);

}  // namespace frame
