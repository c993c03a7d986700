#pragma once
/// \file
/// Defines the flags --pipe, --micro-batches, --schedule and --chunks, which all programs that train share.

#include <fsdp/pipeline_schedule.h>

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace frame {

struct PipelineFlags {
  /// Number of ranks of the pipeline, each of which has some of the layers; 1 means that there is no pipeline.
  int ranks = 1;
  /// Number of micro-batches into which a batch is split.
  int micro_batches = 4;
  /// Name of the schedule: "gpipe", "1f1b" or "interleaved".
  std::string schedule = "1f1b";
  /// Number of stages on each rank if the schedule is "interleaved".
  int chunks = 2;
};

/// Adds the flags. If `app` has a flag --mesh, it must have been added before, because --pipe excludes it.
void add_pipeline_flags(CLI::App& app, PipelineFlags& flags);

/// Returns the schedule with this name: "gpipe", "1f1b", "interleaved", for which each rank has `chunks` stages, or
/// "terapipe", for which `slices` are the lengths of the slices in tokens. Throws what the schedule's function throws.
fsdp::PipelineSchedule make_schedule(const std::string& name, int ranks, int micro_batches, int chunks,
                                     const std::vector<int64_t>& slices = {});

}  // namespace frame
