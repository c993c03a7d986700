#include "activations.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fsdp/process_group.h>
#include <fsdp/sequence_parallel.h>
#include <torch/torch.h>

#include <atomic>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "frame/sequence_methods.h"
#include "join_ranks.h"
#include "models/gpt.h"
#include "process_memory.h"

namespace bench {
namespace {

/// Counts the bytes that LibTorch's allocator gives to this thread and to the backwards that it calls.
struct AllocatedBytes : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void* /*memory*/, int64_t bytes, size_t /*allocated*/, size_t /*reserved*/,
                         c10::Device /*device*/) override {
    const int64_t now = current += bytes;
    if (now > peak) peak = now;  // Only one thread computes at a time.
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::atomic<int64_t> current = 0, peak = 0;
};

}  // namespace

void run_activations(const ActivationsArguments& arguments) {
  join_ranks(arguments.backend, arguments.world);
  const auto& methods = frame::sequence_methods();
  const auto method = methods.find(arguments.split);
  torch::manual_seed(0);
  models::GPT gpt(models::GPTConfig{.vocab = arguments.vocab,
                                    .seq = arguments.length,
                                    .dim = arguments.dim,
                                    .layers = arguments.layers,
                                    .heads = arguments.heads},
                  arguments.split == "tensor" && arguments.world > 1 ? fsdp::default_process_group() : nullptr);
  for (auto& parameter : gpt->parameters()) parameter.mutable_grad() = torch::zeros_like(parameter);
  const auto text = torch::randint(arguments.vocab, {arguments.batch, arguments.length + 1});
  const auto inputs = text.narrow(1, 0, arguments.length), targets = text.narrow(1, 1, arguments.length);
  const auto step = [&] {
    std::optional<fsdp::SequenceParallel> sequence;
    if (method != methods.end()) sequence.emplace(nullptr, method->second);
    const auto loss = sequence ? gpt(sequence->shard(inputs, 1), sequence->shard(targets, 1, -100))
                               : gpt(inputs, targets);
    loss.backward();
  };
  step();  // The first step allocates memory that is kept for later steps.
  const auto bytes = std::make_shared<AllocatedBytes>();
  {
    const c10::DebugInfoGuard counted(c10::DebugInfoKind::PROFILER_STATE, bytes);
    step();
  }
  const double most = of_slowest_rank(static_cast<double>(bytes->peak.load())),
               resident = of_slowest_rank(peak_resident_mb());
  if (fsdp::rank() == 0)
    std::cout << nlohmann::ordered_json{{"split", arguments.split},
                                        {"world", arguments.world},
                                        {"batch", arguments.batch},
                                        {"length", arguments.length},
                                        {"peak_bytes", static_cast<int64_t>(most)},
                                        {"peak_resident_mb", static_cast<int64_t>(resident)}}.dump()
              << std::endl;
  fsdp::destroy_process_group();
}

}  // namespace bench
