#include "frame/sharding_flags.h"

#include <fsdp/options.h>
#include <torch/cuda.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

namespace frame {
namespace {

const std::map<std::string, fsdp::Strategy>& strategies() {
  static const std::map<std::string, fsdp::Strategy> all = {
      {"full_shard", fsdp::Strategy::kFullShard},
      {"shard_grad_op", fsdp::Strategy::kShardGradOp},
      {"shard_optimizer", fsdp::Strategy::kShardOptimizer},
      {"replicate", fsdp::Strategy::kReplicate},
  };
  return all;
}

// Returns the number in `text` if it is from 1 to 999999, else 0.
int size_of_axis(std::string_view text) {
  const bool is_number = !text.empty() && text.size() <= 6 && text.front() != '0' &&
                         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  return is_number ? std::stoi(std::string(text)) : 0;
}

// Returns the numbers in `text`, which is one number or two with an x between them. Returns no numbers for other text.
std::vector<int> sizes_of_mesh(std::string_view text) {
  const auto x = text.find('x');
  std::vector<int> sizes{size_of_axis(text.substr(0, x))};
  if (x != std::string_view::npos) sizes.push_back(size_of_axis(text.substr(x + 1)));
  return std::ranges::find(sizes, 0) == sizes.end() ? sizes : std::vector<int>();
}

}  // namespace

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const auto& [name, strategy] : strategies()) names.push_back(name);
  return names;
}

void add_sharding_flags(CLI::App& app, ShardingFlags& flags) {
  app.add_option("--strategy", flags.strategy,
                 "What the ranks shard: parameters, gradients and optimizer state (full_shard), gradients and "
                 "optimizer state (shard_grad_op), only optimizer state (shard_optimizer), or nothing (replicate)")
      ->check(CLI::IsMember(strategies()))
      ->option_text("NAME (full_shard)")
      ->take_last();
  const auto is_mesh = [](const std::string& text) {
    return sizes_of_mesh(text).empty() ? "expected sizes such as 8 or 2x4, found '" + text + "'" : std::string();
  };
  app.add_option(
         "--mesh", flags.mesh,
         "Number of replicas x number of ranks that shard each replica, e.g. 2x4 (default: one replica over all ranks)")
      ->check(CLI::Validator(is_mesh, ""))
      ->option_text("RxS")
      ->take_last();
  const auto offload = [&flags] {
    if (!torch::cuda::is_available())
      throw CLI::ValidationError(
          "--cpu-offload",
          "expected a GPU, whose parameters this flag keeps in host memory, found none on this machine");
    flags.cpu_offload = true;
  };
  auto* flag =
      app.add_flag_callback("--cpu-offload", offload,
                            "Keep parameters, gradients and optimizer state in host memory, but compute on the GPU");
  if (auto* no_cuda = app.get_option_no_throw("--no-cuda")) flag->excludes(no_cuda);
}

fsdp::FullyShardOptions sharding_options(const ShardingFlags& flags) {
  fsdp::FullyShardOptions options;
  options.strategy = strategies().at(flags.strategy);
  const auto sizes = sizes_of_mesh(flags.mesh);
  if (flags.cpu_offload) options.offload_policy = fsdp::CPUOffloadPolicy{};
  if (sizes.size() == 1) options.mesh = fsdp::init_device_mesh(sizes, {"shard"});
  if (sizes.size() == 2) options.mesh = fsdp::init_device_mesh(sizes, {"replicate", "shard"});
  return options;
}

}  // namespace frame
