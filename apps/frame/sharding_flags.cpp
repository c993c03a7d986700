#include "frame/sharding_flags.h"

#include <fsdp/options.h>

#include <CLI/CLI.hpp>
#include <map>
#include <regex>
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

// One number, or two with an x between.
const std::regex& mesh_pattern() {
  static const std::regex pattern("([1-9][0-9]{0,5})(?:x([1-9][0-9]{0,5}))?");
  return pattern;
}

}  // namespace

void add_sharding_flags(CLI::App& app, ShardingFlags& flags) {
  app.add_option("--strategy", flags.strategy,
                 "What ranks share out: parameters, gradients and optimizer state (full_shard), not parameters "
                 "(shard_grad_op), optimizer state (shard_optimizer), nothing (replicate)")
      ->check(CLI::IsMember(strategies()))
      ->option_text("NAME (full_shard)")
      ->take_last();
  const auto is_mesh = [](const std::string& text) {
    return std::regex_match(text, mesh_pattern()) ? std::string()
                                                  : "expected numbers as in 8 or in 2x4, found '" + text + "'";
  };
  app.add_option("--mesh", flags.mesh, "Replicas x ranks of each that share out, e.g. 2x4 (all ranks share out)")
      ->check(CLI::Validator(is_mesh, ""))
      ->option_text("RxS")
      ->take_last();
}

fsdp::FullyShardOptions sharding_options(const ShardingFlags& flags) {
  fsdp::FullyShardOptions options;
  options.strategy = strategies().at(flags.strategy);
  std::smatch sizes;
  if (!std::regex_match(flags.mesh, sizes, mesh_pattern())) return options;
  const int first = std::stoi(sizes[1]);
  options.mesh = sizes[2].matched ? fsdp::init_device_mesh({first, std::stoi(sizes[2])}, {"replicate", "shard"})
                                  : fsdp::init_device_mesh({first}, {"shard"});
  return options;
}

}  // namespace frame
