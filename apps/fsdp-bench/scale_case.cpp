#include "scale_case.h"

#include <fsdp/device_mesh.h>
#include <fsdp/fully_shard.h>
#include <torch/optim/sgd.h>

#include "comm/group/attachment.h"
#include "stand_in.h"

namespace bench {
namespace {

// Returns the bytes that this rank sent in messages. Copies through shared memory on one host are not messages.
int64_t sent_bytes(const fsdp::Traffic& traffic, const Job& job) {
  return job.transport == "gloo" ? traffic.between_hosts.sent + traffic.inside_host.sent : traffic.between_hosts.sent;
}

RankCounts now(const fsdp::ProcessGroup& group, const Job& job, const Counters& counters) {
  const auto traffic = fsdp::Attachment::traffic_of(group);
  return {.joining_calls = counters.joining_calls,
          .calls = traffic->store_calls,
          .headers = traffic->headers,
          .messages = traffic->messages,
          .sent_bytes = sent_bytes(traffic->total(), job),
          .gathers = counters.issued->gathers,
          .reductions = counters.issued->reductions};
}

}  // namespace

RankCounts count_steps(const std::shared_ptr<fsdp::ProcessGroup>& group, int64_t layers, int replicas, const Job& job,
                       const Counters& counters) {
  constexpr int kWarmUps = 3;
  RankCounts counts;
  const fsdp::ThreadProcessGroupGuard guard(group);
  StandIn model(layers);
  fsdp::FullyShardOptions options;
  options.auto_wrap_policy = fsdp::module_wrap_policy<StandInBlockImpl>();
  if (replicas > 1)
    options.mesh = fsdp::init_device_mesh({replicas, group->world_size() / replicas}, {"replicate", "shard"});
  auto sharded = fsdp::fully_shard(model, options);
  torch::optim::SGD optimizer(model->parameters(), 1e-3);
  for (int step = 0; step <= kWarmUps; ++step) {
    const auto before = now(*group, job, counters);
    optimizer.zero_grad();
    sharded().backward();
    optimizer.step();
    counts = now(*group, job, counters);
    for (const auto number : {&RankCounts::calls, &RankCounts::headers, &RankCounts::messages, &RankCounts::sent_bytes,
                              &RankCounts::gathers, &RankCounts::reductions})
      counts.*number -= before.*number;
  }
  return counts;
}

std::vector<RankCounts> simulate(const Job& job, int64_t layers, int replicas, const std::vector<int>& ranks) {
  const VirtualRanks all(job);
  std::vector<RankCounts> counts;
  for (const int rank : ranks) {
    const auto counters = std::make_shared<Counters>();
    counts.push_back(count_steps(all.join(rank, counters), layers, replicas, job, *counters));
  }
  return counts;
}

}  // namespace bench
