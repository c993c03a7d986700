#include "frame/observing_flags.h"

#include <fsdp/explain.h>
#include <fsdp/process_group.h>
#include <fsdp/scalar_log.h>
#include <fsdp/trace.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "frame/flag_checks.h"

namespace frame {

void add_observing_flags(CLI::App& app, ObservingFlags& flags) {
  auto* trace = app.add_option("--trace", flags.trace,
                               "File for a timeline of what each rank does; open the file at ui.perfetto.dev")
                    ->check(path())
                    ->take_last();
  app.add_flag("--profile", flags.profile,
               "With --trace: also record LibTorch's operators and allocations, which slows training down")
      ->needs(trace);
  app.add_option("--metrics", flags.metrics, "File for the metrics, one line of JSON for each step")
      ->check(path())
      ->take_last();
  app.add_option("--tensorboard", flags.tensorboard, "Folder for the same metrics in TensorBoard's format")
      ->check(path())
      ->take_last();
  app.add_option("--peak-flops", flags.peak_flops,
                 "Peak floating point operations per second of a rank's hardware, for MFU (default: measured with a "
                 "matrix product)")
      ->check(positive_number())
      ->take_last();
  app.add_flag("--explain", flags.explain,
               "Before training, print the groups and the bytes that a step will hold in memory and communicate");
}

std::unique_ptr<fsdp::Trace> begin_trace(const ObservingFlags& flags) {
  if (flags.trace.empty()) return nullptr;
  return std::make_unique<fsdp::Trace>(fsdp::TraceOptions{.operators = flags.profile});
}

void write_trace(const fsdp::Trace* trace, const ObservingFlags& flags) {
  if (trace != nullptr) trace->write(flags.trace);
}

fsdp::ScalarLog open_scalar_log(const ObservingFlags& flags, bool appends) {
  return fsdp::ScalarLog({.json_lines = flags.metrics, .tensorboard = flags.tensorboard, .appends = appends});
}

void print_explanation(const fsdp::Group& model, const ObservingFlags& flags) {
  if (flags.explain && fsdp::rank() == 0) std::cout << fsdp::explain(model) << std::endl;
}

}  // namespace frame
