#include "model.h"

#include <fsdp/fully_shard.h>
#include <fsdp/process_group.h>
#include <fsdp/wrap_policy.h>
#include <torch/utils.h>

#include "comm/group/backend_choice.h"
#include "models/gpt.h"
#include "models/llama.h"

namespace gpt {
namespace {

template <class Impl, class Config>
Module make(int64_t vocabulary, const Arguments& arguments) {
  Config config{.vocab = vocabulary,
                .seq = arguments.seq,
                .dim = arguments.dim,
                .layers = arguments.layers,
                .heads = arguments.heads,
                .dropout = arguments.dropout};
  if constexpr (requires { config.tanh_gelu; }) config.tanh_gelu = arguments.tanh_gelu;
  return std::make_shared<Impl>(config);
}

}  // namespace

Module make_module(const Arguments& arguments, int64_t vocabulary, c10::Device device) {
  torch::manual_seed(static_cast<uint64_t>(arguments.seed));
  const Module module = arguments.architecture == Architecture::kLlama
                            ? make<models::LlamaImpl, models::LlamaConfig>(vocabulary, arguments)
                            : make<models::GPTImpl, models::GPTConfig>(vocabulary, arguments);
  if (!arguments.sharding.cpu_offload) module->to(device);  // else fully_shard leaves each rank its rows in host memory
  module->run_block = frame::part_runner(arguments.activations);
  return module;
}

Model shard(const Module& module, const Arguments& arguments) {
  auto options = frame::sharding_options(arguments.sharding);
  options.mp_policy = frame::precision_policy(arguments.precision);
  options.auto_wrap_policy = fsdp::module_wrap_policy<models::BlockImpl, models::LlamaBlockImpl>();
  if (arguments.no_reshard_after_forward) options.reshard_after_forward = fsdp::Reshard::never();
  return fsdp::fully_shard(module, options);
}

c10::Device choose_device(const Arguments& arguments) {
  const auto cuda = fsdp::cuda_support();
  if (arguments.no_cuda || !cuda.has_nccl || cuda.devices == 0) return c10::kCPU;
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(fsdp::local_rank())};
}

}  // namespace gpt
