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
                               "File for what each rank does, moment by moment; open it at ui.perfetto.dev")
                    ->check(path())
                    ->take_last();
  app.add_flag("--profile", flags.profile, "With --trace: LibTorch's operators and allocations too, which takes time")
      ->needs(trace);
  app.add_option("--metrics", flags.metrics, "File for the metrics of each step, a line of JSON each")
      ->check(path())
      ->take_last();
  app.add_option("--tensorboard", flags.tensorboard, "Folder for the same as TensorBoard reads them")
      ->check(path())
      ->take_last();
  app.add_option("--peak-flops", flags.peak_flops,
                 "Operations a second that a rank's hardware could do, for MFU (measured with a matrix product)")
      ->check(positive_number())
      ->take_last();
  app.add_flag("--explain", flags.explain, "Print groups, bytes, and what a step will hold and move, before training");
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
