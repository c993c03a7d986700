#pragma once
/// \file
/// The flags --pipe, --micro-batches, --schedule and --chunks, alike in all programs that train.

#include <fsdp/pipeline_schedule.h>

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace frame {

struct PipelineFlags {
  /// Ranks that have some layers each; 1: there is no pipeline.
  int ranks = 1;
  /// Parts of a batch, which pass one behind the other.
  int micro_batches = 4;
  /// "gpipe", "1f1b" or "interleaved".
  std::string schedule = "1f1b";
  /// Stages of a rank, for "interleaved".
  int chunks = 2;
};

/// After --mesh, if there is one, which contradicts --pipe.
void add_pipeline_flags(CLI::App& app, PipelineFlags& flags);

/// A schedule by the name that flags give it: "gpipe", "1f1b", "interleaved", whose ranks have `chunks` stages each, or
/// "terapipe", of slices of so many tokens. Throws what the schedule's function throws.
fsdp::PipelineSchedule make_schedule(const std::string& name, int ranks, int micro_batches, int chunks,
                                     const std::vector<int64_t>& slices = {});

}  // namespace frame
