#include "report/operator_profile.h"

#include <fsdp/error.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/cuda.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "comm/core/check.h"
#include "report/temporary_folder.h"

namespace fsdp::report {
namespace {

using Json = nlohmann::ordered_json;
namespace impl = torch::profiler::impl;

// The offset that is added to Kineto's track numbers, so that they differ from this library's.
constexpr int64_t kTracksOfOperators = int64_t{1} << 24;

std::set<impl::ActivityType> activities() {
  std::set<impl::ActivityType> all{impl::ActivityType::CPU};
  if (torch::cuda::is_available()) all.insert(impl::ActivityType::CUDA);
  return all;
}

impl::ProfilerConfig config() {
  return impl::ProfilerConfig(impl::ProfilerState::KINETO, /*report_input_shapes=*/true, /*profile_memory=*/true);
}

// Returns the profiler's result as JSON. Kineto can only write files, so the result goes through a temporary file.
// Throws Error if that file cannot be written.
Json saved(torch::autograd::profiler::ProfilerResult& result) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "operators.json";
  result.save(path.string());
  std::ifstream file(path);
  auto json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    throw Error("LibTorch's profiler could not write its records to " + folder.path().string() +
                ". Set TMPDIR to a folder with room.");
  return json;
}

// Converts an event of Kineto and appends it to `text`. Adds `shift`, in microseconds, to the event's time.
void append(std::string& text, Json event, int process, double shift) {
  if (!event.contains("ts") || !event.contains("ph")) return;
  if (event["ph"] == "M") return;
  // An operator that had not ended when the recording ended has an invalid duration.
  if (event.contains("args") && !event["args"].value("finished", true)) return;
  event["ts"] = event["ts"].get<double>() + shift;
  event["pid"] = process;
  if (event.contains("tid") && event["tid"].is_number_integer())
    event["tid"] = event["tid"].get<int64_t>() + kTracksOfOperators;
  if (!text.empty()) text += ",\n";
  text += event.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

OperatorProfile::OperatorProfile(const std::string& where) {
  require(!impl::profilerEnabled(), where, "a LibTorch profiler is already running. Stop that profiler first");
  torch::autograd::profiler::prepareProfiler(config(), activities());
  torch::autograd::profiler::enableProfiler(config(), activities());
}

OperatorProfile::~OperatorProfile() {
  if (runs_) torch::autograd::profiler::disableProfiler();
}

std::string OperatorProfile::end(int process, int64_t base_ns) {
  if (!std::exchange(runs_, false)) return events_;
  const auto result = torch::autograd::profiler::disableProfiler();
  const Json json = saved(*result);
  const auto kinetos_base = json.value("baseTimeNanoseconds", int64_t{0});
  const double shift = static_cast<double>(kinetos_base - base_ns) / 1000;
  if (json.contains("traceEvents"))
    for (const auto& event : json["traceEvents"]) append(events_, event, process, shift);
  return events_;
}

}  // namespace fsdp::report
