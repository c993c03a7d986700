#include "step_observer.h"

#include <fsdp/process_group.h>
#include <fsdp/scalar_log.h>
#include <fsdp/trace.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "frame/step_metrics.h"
#include "report/temporary_folder.h"
#include "training_step.h"

namespace bench {
namespace {

constexpr size_t kEventsOfStep = 2'000;

fsdp::ScalarLog log_in(const std::filesystem::path& folder) {
  return fsdp::ScalarLog({.json_lines = folder / "metrics.jsonl", .tensorboard = folder / "events"});
}

}  // namespace

struct StepObserver::State {
  fsdp::report::TemporaryFolder folder;
  frame::StepMetrics metrics;
  int64_t step = 0;

  explicit State(const StepArguments& arguments)
      : metrics(log_in(folder.path()), fsdp::world_size() * arguments.batch * arguments.seq, "tokens",
                {.per_token = 1, .peak_of_rank = 1}) {}
};

StepObserver::StepObserver(const StepArguments& arguments) : state_(std::make_unique<State>(arguments)) {}
StepObserver::~StepObserver() = default;

StepTimes StepObserver::take_step(Trainee& trainee, const at::Tensor& batch) {
  // A program has one trace for all its steps. Here each step has a trace of its own, whose memory is limited to what
  // one step needs.
  const fsdp::Trace trace({.max_events = kEventsOfStep});
  auto [times, loss] = train_step(trainee, batch);
  const auto value = loss.item<double>();
  const auto begun = std::chrono::steady_clock::now();
  if (trainee.group) state_->metrics.note(++state_->step, {{"loss", value}}, *trainee.group);
  times.optimizer += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count();
  return times;
}

}  // namespace bench
