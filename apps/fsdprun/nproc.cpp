#include "nproc.h"

#include <sched.h>
#include <torch/cuda.h>

#include "exit.h"
#include "numbers.h"

namespace fsdprun {
namespace {

int count_gpus() { return static_cast<int>(torch::cuda::device_count()); }

int count_processors() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

int count_processes(const std::string& text) {
  if (text == "cpu") return count_processors();
  if (text == "gpu" || text == "auto") {
    const int gpus = count_gpus();
    if (gpus > 0) return gpus;
    if (text == "auto") return count_processors();
    throw Exit(kWrongFlags, "--nproc-per-node is gpu, but LibTorch sees no GPU here: give a number");
  }
  const auto count = parse_number(text, 1);
  if (!count) {
    throw Exit(kWrongFlags,
               "--nproc-per-node is '" + text + "', expected a whole number not below 1, auto, gpu or cpu");
  }
  return *count;
}

}  // namespace fsdprun
