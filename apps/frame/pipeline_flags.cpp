#include "frame/pipeline_flags.h"

#include <CLI/CLI.hpp>

#include "frame/flag_checks.h"

namespace frame {

void add_pipeline_flags(CLI::App& app, PipelineFlags& flags) {
  const auto add = [&app](const char* flag, auto& value, const char* help, const CLI::Validator& check) {
    return app.add_option(flag, value, help)->check(check)->capture_default_str()->take_last();
  };
  auto* pipe = add("--pipe", flags.ranks,
                   "Number of ranks in the pipeline, each of which has a stage of consecutive blocks", count());
  if (auto* mesh = app.get_option_no_throw("--mesh")) pipe->excludes(mesh);
  add("--micro-batches", flags.micro_batches,
      "Number of micro-batches into which a batch is split for the stages of --pipe", count())
      ->needs(pipe);
  add("--schedule", flags.schedule, "The order in which stages run the micro-batches: gpipe, 1f1b or interleaved",
      CLI::IsMember({"gpipe", "1f1b", "interleaved"}))
      ->needs(pipe);
  add("--chunks", flags.chunks, "Number of stages on each rank, for --schedule interleaved", CLI::Range(2, 1 << 20))
      ->needs(pipe);
}

fsdp::PipelineSchedule make_schedule(const std::string& name, int ranks, int micro_batches, int chunks,
                                     const std::vector<int64_t>& slices) {
  if (name == "gpipe") return fsdp::gpipe_schedule(ranks, micro_batches);
  if (name == "terapipe") return fsdp::terapipe_schedule(ranks, micro_batches, slices);
  return fsdp::one_forward_one_backward_schedule(ranks, micro_batches, name == "interleaved" ? chunks : 1);
}

}  // namespace frame
