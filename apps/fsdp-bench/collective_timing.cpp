#include "collective_timing.h"

#include <ATen/ops/from_blob.h>
#include <fsdp/error.h>
#include <fsdp/process_group.h>

#include <algorithm>
#include <chrono>

#include "statistics.h"

namespace bench {
namespace {

constexpr int64_t kWarmUps = 2;

/// Returns the microseconds of the clock that all processes of a host share.
double now() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<double> over_ranks(std::vector<double> values, fsdp::ReduceOp op) {
  const auto tensor = at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kDouble);
  fsdp::default_process_group()->communicator().all_reduce(tensor, op, {"times", {}})->wait();
  return values;
}

/// The times at which this rank began and ended each repetition.
struct Spans {
  std::vector<double> begin, end;
};

double median_of_slowest(const Spans& spans) {
  std::vector<double> spent;
  for (size_t i = 0; i < spans.begin.size(); ++i) spent.push_back(spans.end[i] - spans.begin[i]);
  return median(over_ranks(std::move(spent), fsdp::ReduceOp::kMax));
}

template <class Run>
void time(Spans& spans, const Run& run) {
  fsdp::barrier();
  const double begin = now();
  run();
  spans.end.push_back(now());
  spans.begin.push_back(begin);
}

void verify_barriers(const Spans& spans) {
  const auto last_begin = over_ranks(spans.begin, fsdp::ReduceOp::kMax);
  const auto first_end = over_ranks(spans.end, fsdp::ReduceOp::kMin);
  for (size_t i = 0; i < last_begin.size(); ++i) {
    if (last_begin[i] <= first_end[i]) continue;
    throw fsdp::Error(c10::str(
        "[rank ", fsdp::rank(), "/", fsdp::world_size(), "] barrier: a rank left repetition ", i, " ",
        last_begin[i] - first_end[i],
        " us before the last rank entered it. This is a defect of the backend, so all its figures are invalid."));
  }
}

}  // namespace

int64_t repetitions(int64_t bytes) { return std::clamp<int64_t>((int64_t{256} << 20) / bytes, 5, 100); }

std::vector<double> time_in_turns(std::span<const Contender> contenders, const at::Tensor& first,
                                  const at::Tensor& second) {
  const int64_t rounds = kWarmUps + repetitions(static_cast<int64_t>(first.nbytes()));
  std::vector<Spans> spans(contenders.size());
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      const auto& [collective, communicator] = contenders[i];
      const Exercise exercise{communicator, first, second, static_cast<uint32_t>(round)};
      Spans warm_up;
      collective.prepare(exercise);
      time(round < kWarmUps ? warm_up : spans[i], [&run = collective.run, &exercise] { run(exercise); });
      collective.verify(exercise);
    }
  }
  std::vector<double> medians;
  for (const auto& each : spans) medians.push_back(median_of_slowest(each));
  return medians;
}

std::vector<double> time_barrier(std::span<fsdp::Communicator* const> communicators) {
  std::vector<Spans> spans(communicators.size());
  for (int64_t round = 0; round < repetitions(1); ++round) {
    for (size_t i = 0; i < communicators.size(); ++i) {
      time(spans[i], [&] { communicators[i]->barrier({})->wait(); });
    }
  }
  std::vector<double> medians;
  for (const auto& each : spans) {
    verify_barriers(each);
    medians.push_back(median_of_slowest(each));
  }
  return medians;
}

}  // namespace bench
