#include "nproc.h"

#include <torch/cuda.h>

#include "exit.h"
#include "launch/variables.h"
#include "numbers.h"

namespace fsdprun {
namespace {

int count_gpus() { return static_cast<int>(torch::cuda::device_count()); }

}  // namespace

int count_processes(const std::string& text) {
  if (text == "cpu") return fsdp::count_processors();
  if (text == "gpu" || text == "auto") {
    const int gpus = count_gpus();
    if (gpus > 0) return gpus;
    if (text == "auto") return fsdp::count_processors();
    throw Exit(kWrongFlags, "--nproc-per-node is gpu, but LibTorch sees no GPU here: give a number");
  }
  const auto count = parse_number(text, 1);
  if (!count) {
    throw Exit(kWrongFlags,
               "--nproc-per-node is '" + text + "', expected auto, gpu, cpu or a whole number not below 1");
  }
  return *count;
}

}  // namespace fsdprun
