#include "model.h"

#include <fsdp/wrap_policy.h>
#include <torch/utils.h>

#include <algorithm>

#include "models/gpt.h"
#include "models/llama.h"

namespace gpt {
namespace {

template <class Impl, class Config>
Module make(int64_t vocabulary, const Arguments& arguments, const models::TensorAxis& axis,
            const models::OwnBlocks& own) {
  Config config{.vocab = vocabulary,
                .seq = arguments.seq,
                .dim = arguments.dim,
                .layers = arguments.layers,
                .heads = arguments.heads,
                .dropout = arguments.dropout};
  if constexpr (requires { config.tanh_gelu; }) config.tanh_gelu = arguments.tanh_gelu;
  return std::make_shared<Impl>(config, axis, own);
}

}  // namespace

Module make_module(const Arguments& arguments, int64_t vocabulary, c10::Device device,
                   const std::shared_ptr<fsdp::ProcessGroup>& tensor_axis, const models::OwnBlocks& own) {
  torch::manual_seed(static_cast<uint64_t>(arguments.seed));
  const Module module = arguments.architecture == Architecture::kLlama
                            ? make<models::LlamaImpl, models::LlamaConfig>(vocabulary, arguments, tensor_axis, own)
                            : make<models::GPTImpl, models::GPTConfig>(vocabulary, arguments, tensor_axis, own);
  if (!arguments.sharding.cpu_offload) module->to(device);  // With CPU offload, fully_shard moves it.
  module->run_block = frame::part_runner(arguments.activations);
  return module;
}

fsdp::TrainerOptions trainer_options(const Arguments& arguments, const AxisSizes& sizes, int64_t steps) {
  fsdp::TrainerOptions options;
  options.seed = static_cast<uint64_t>(arguments.seed);
  options.sharding = frame::sharding_options(arguments.sharding);
  if (!sizes.is_data_alone()) {
    options.mesh_shape = sizes.shape();
    options.mesh_dim_names = AxisSizes::names();
  }
  options.sharding.auto_wrap_policy = fsdp::module_wrap_policy<models::BlockImpl, models::BlockPartImpl,
                                                               models::LlamaBlockImpl, models::LlamaBlockPartImpl>();
  if (arguments.no_reshard_after_forward) options.sharding.reshard_after_forward = fsdp::Reshard::never();
  frame::set_precision(options, arguments.precision);
  options.epochs = std::max<int64_t>(arguments.epochs, 1);
  options.steps = steps;
  options.accumulate = arguments.update_freq;
  options.max_grad_norm = arguments.max_grad_norm;
  options.save = {
      .folder = arguments.save, .every = arguments.save_every, .keep = arguments.keep, .async = arguments.async_save};
  options.resume = arguments.resume;
  return options;
}

}  // namespace gpt
