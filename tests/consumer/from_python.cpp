// Contains the code that docs/concepts.md shows beside Python's; tests/repo/documents_test.py compares the two. The
// program starts two ranks itself, or a launcher starts it with the argument "gloo".

#include <ATen/autocast_mode.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

void check(bool right, const char* what) {
  if (!right) throw std::runtime_error(std::string("from_python: ") + what);
}

struct BlockImpl : torch::nn::Module {
  torch::nn::Linear up{16, 64}, down{64, 16};
  BlockImpl() {
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(x))); }
};
TORCH_MODULE(Block);

struct GPTImpl : torch::nn::Module {
  torch::nn::Embedding embed{32, 16};
  std::vector<Block> blocks;
  torch::nn::Linear head{16, 32};
  bool recomputes = false;
  GPTImpl() {
    register_module("embed", embed);
    for (int i = 0; i < 2; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block()));
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    auto x = embed(ids);
    for (auto& block : blocks) {
      if (recomputes) {
        x = fsdp::activation_checkpoint(block, x);
      } else {
        x = block(x);
      }
    }
    return head(x);
  }
  torch::Tensor generate(const torch::Tensor& ids) { return forward(ids).argmax(-1); }
  void init_weights() { torch::nn::init::xavier_uniform_(head->weight); }
};
TORCH_MODULE(GPT);

torch::Tensor some_ids() { return torch::arange(8).view({2, 4}); }
torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& ids) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), ids.flatten());
}

void ranks() {
  const int rank = fsdp::rank(), size = fsdp::world_size();
  const int gpu = fsdp::local_rank();
  torch::Tensor t = torch::ones({2}) * rank;
  fsdp::all_reduce_(t);
  fsdp::all_reduce_(t, fsdp::ReduceOp::kMax);
  fsdp::broadcast_(t, 0);
  auto all = fsdp::all_gather(t);
  auto sum = fsdp::functional::all_reduce(t);
  fsdp::barrier();
  check(all.size(0) == size && gpu == rank && t[0].item<int>() == size * (size - 1) / 2, "collectives");
  check(at::equal(sum, t * size), "a collective that autograd goes through");
  auto pair = fsdp::default_process_group()->split({{0, 1}}, "pair");
  auto mesh = fsdp::init_device_mesh({1, 2}, {"replicate", "shard"});
  auto row = mesh["shard"].process_group();
  check(pair->world_size() == 2 && row->world_size() == 2, "groups of ranks");
}

void fsdp2() {
  GPT gpt;
  auto ids = some_ids();
  fsdp::FullyShardOptions options;
  options.mesh = fsdp::init_device_mesh();
  options.mp_policy = fsdp::MixedPrecisionPolicy{.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat};
  for (auto& block : gpt->blocks) fsdp::fully_shard(*block, options);
  fsdp::fully_shard({gpt->embed.get(), gpt->head.get()}, {.reshard_after_forward = fsdp::Reshard::never()});
  fsdp::Sharded<GPT> model = fsdp::fully_shard(gpt, options);
  std::cout << model << '\n';

  auto logits = model(ids);
  loss_of(logits, ids).backward();
  {
    fsdp::ForwardScope scope(model);
    auto text = model->generate(ids);
  }
  auto handle = fsdp::group_of(*gpt->blocks[0]).unshard();
  handle.wait();
  fsdp::group_of(*gpt->blocks[0]).reshard();
  fsdp::group_of(*gpt->blocks[0]).set_modules_to_forward_prefetch({fsdp::group_of(*gpt->blocks[1])});
  torch::Tensor rows = gpt->head->weight;
  auto sizes = fsdp::global_sizes(gpt->head->weight);
  auto whole = fsdp::full_tensor(gpt->head->weight);
  auto gradient = fsdp::full_grad(gpt->head->weight);
  check(rows.size(0) == fsdp::local_rows(gpt->head->weight).count, "rows");
  check(whole.sizes() == sizes && gradient.defined(), "whole values");
  try {
    throw std::runtime_error("a batch that cannot be used");
  } catch (const std::exception&) {
    model.reset_iter_state();
  }
}

bool is_first_block(const fsdp::WrapCandidate& candidate) { return candidate.name == "block0"; }

void fsdp1() {
  GPT gpt;
  auto mesh = fsdp::init_device_mesh({1, 2}, {"replicate", "shard"});
  fsdp::FullyShardOptions options;
  options.auto_wrap_policy = fsdp::size_based_auto_wrap_policy(20000);
  options.auto_wrap_policy = fsdp::module_wrap_policy<BlockImpl>();
  options.auto_wrap_policy = is_first_block;
  options.strategy = fsdp::Strategy::kShardGradOp;
  options.mesh = mesh;
  options.sync_module_states = true;
  options.ignored_params = gpt->embed->parameters();
  auto model = fsdp::fully_shard(gpt, options);
  check(model.stats().groups == 2, "groups");
  {
    auto whole = fsdp::summon_full_params(model);
    torch::NoGradGuard no_grad;
    gpt->head->bias.zero_();
    whole.write_back();
  }
  auto entries = fsdp::full_state_dict(model);
  check(entries.empty() == (fsdp::rank() != 0), "a full state dict");
}

void train() {
  fsdp::Sharded<GPT> model = fsdp::fully_shard(GPT(), {.auto_wrap_policy = fsdp::module_wrap_policy<BlockImpl>()});
  auto ids = some_ids();
  std::vector<torch::Tensor> batches(4, ids);
  fsdp::data::DistributedSampler sampler(1000, {.seed = 1});
  sampler.set_epoch(3);
  fsdp::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-4));
  optimizer.zero_grad();
  auto loss = loss_of(model(ids), ids);
  loss.backward();
  fsdp::clip_grad_norm_(model, 1.0);
  optimizer.step();
  double mean = fsdp::mean(loss.item<double>());
  check(mean > 0, "a loss");

  for (size_t i = 0; i < batches.size(); ++i) {
    model.set_requires_gradient_sync(i + 1 == batches.size());
    loss_of(model(batches[i]), ids).backward();
  }
  {
    auto guard = model.no_sync();
    loss_of(model(ids), ids).backward();
  }
  loss_of(model(ids), ids).backward();
  optimizer.step();

  model.set_gradient_divide_factor(1);
  model.set_reduce_scatter_unused_params(true);
  auto average = fsdp::clone(model);
  average.update(0.999);
  optimizer.zero_grad();
  fsdp::to(model, torch::kBFloat16);
}

void amp() {
  fsdp::FullyShardOptions options;
  options.mp_policy = fsdp::MixedPrecisionPolicy{.param_dtype = torch::kHalf, .output_dtype = torch::kFloat};
  fsdp::Sharded<GPT> model = fsdp::fully_shard(GPT(), options);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto ids = some_ids();
  fsdp::GradScaler scaler;
  scaler.scale(loss_of(model(ids), ids)).backward();
  scaler.unscale_(optimizer);
  fsdp::clip_grad_norm_(model, 1.0);
  scaler.step(optimizer);
  scaler.update();

  auto plain = fsdp::fully_shard(GPT());
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  auto logits = plain(ids);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  check(logits.scalar_type() == torch::kBFloat16, "autocast");
}

void checkpointing() {
  GPT gpt;
  gpt->recomputes = true;
  auto model = fsdp::fully_shard(gpt);
  loss_of(model(some_ids()), some_ids()).backward();

  Block block;
  auto x = torch::ones({2, 16}).requires_grad_();
  x = fsdp::activation_checkpoint({.preserve_rng_state = false}, block, x);
  x = fsdp::activation_checkpoint({.keeps_results = fsdp::is_product}, block, x);
  x = fsdp::activation_checkpoint({.offload_inputs = true}, block, x);
  torch::nn::Sequential sequential(Block{}, Block{});
  fsdp::apply_activation_checkpointing<BlockImpl>(*sequential);
  sequential->forward(x).sum().backward();
  check(block->up->weight.grad().defined(), "gradients of what was computed again");
}

void ddp() {
  GPT gpt;
  auto ids = some_ids();
  std::vector<torch::Tensor> batches(static_cast<size_t>(fsdp::rank()), ids);  // unequally many
  fsdp::convert_sync_batchnorm(*gpt);
  auto model = fsdp::fully_shard(gpt, {.strategy = fsdp::Strategy::kReplicate, .bucket_cap_bytes = 10 << 20});
  fsdp::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  auto batch = batches.begin();
  const auto step = [&] {
    if (batch != batches.end()) ids = *batch++;
    loss_of(model(ids), ids).backward();
  };
  while (fsdp::join(model, batch != batches.end(), step)) {
    optimizer.step();
    optimizer.zero_grad();
  }
}

void checkpoints(const std::string& folder) {
  auto model = fsdp::fully_shard(GPT());
  fsdp::optim::AdamW optimizer(model->parameters());
  loss_of(model(some_ids()), some_ids()).backward();
  optimizer.step();
  int64_t step = 1;
  fsdp::save_checkpoint(folder, model, &optimizer, {.step = step});
  step = fsdp::load_checkpoint(folder, model, &optimizer).step;
  fsdp::AsyncSave saving;
  fsdp::async_save_checkpoint(saving, folder, model, &optimizer, {.step = step + 1});
  saving.wait();
  auto rows = fsdp::state_dict(model);
  auto state = fsdp::state_dict(optimizer, model);
  auto whole = fsdp::full_state_dict(model);
  fsdp::load_full_state_dict(whole, model);
  fsdp::save_safetensors(folder + "/model.safetensors", model);
  fsdp::load_safetensors(folder + "/model.safetensors", model);
  fsdp::save(model, folder + "/model.pt");
  check(step == 1 && !rows.empty() && !state.empty(), "state");
}

void deferred() {
  auto gpt = fsdp::meta_init([] { return GPT(); });
  auto model = fsdp::fully_shard(gpt);
  fsdp::to_empty(model, torch::kCPU);
  fsdp::initialize(model, [&] { gpt->init_weights(); });
  torch::manual_seed(1);
  auto other = fsdp::fully_shard(fsdp::deferred_init([] { return GPT(); }));
  check(fsdp::norm(other) > 0, "values that were put off");
}

void run(bool over_gloo) {
  if (over_gloo)
    fsdp::init_process_group({.backend = "gloo", .timeout = std::chrono::seconds(60)});
  else
    fsdp::init_process_group();
  torch::manual_seed(1);
  ranks();
  fsdp2();
  fsdp1();
  train();
  amp();
  checkpointing();
  ddp();
  checkpoints(over_gloo ? "from_python_gloo" : "from_python_shm");
  deferred();
  fsdp::destroy_process_group();
}

void run_rank(int /*rank*/) { run(/*over_gloo=*/false); }

}  // namespace

int main(int argc, char**) {
  if (argc > 1)
    run(/*over_gloo=*/true);
  else
    fsdp::spawn(run_rank, 2);
}
