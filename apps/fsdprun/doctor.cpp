#include "doctor.h"

#include <fsdp/error.h>
#include <fsdp/process_group.h>
#include <torch/types.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>

#include "comm/core/check.h"
#include "comm/group/membership.h"
#include "exit.h"
#include "host_facts.h"
#include "host_report.h"

namespace fsdprun {
namespace {

constexpr const char* kHostsVariable = "FSDPRUN_DOCTOR_HOSTS";
constexpr int64_t kLargeBytes = 8 << 20;
constexpr int kSmallRounds = 200, kLargeRounds = 8;

std::vector<HostFacts> hosts_of_environment() {
  const char* text = std::getenv(kHostsVariable);
  return text == nullptr ? std::vector<HostFacts>{} : decode_hosts(text);
}

/// Returns the seconds that an all-reduce of `elements` floats takes.
double seconds_of_all_reduce(fsdp::Communicator& ranks, int64_t elements, int rounds, c10::Device device) {
  const auto tensor = torch::ones({elements}, torch::TensorOptions().device(device));
  const auto all_reduce = [&] { ranks.all_reduce(tensor, fsdp::ReduceOp::kMax, {"doctor", {}})->wait(); };
  const auto synchronize = [&] {
    static_cast<void>(tensor[0].item<float>());
  };  // This also waits until a device has finished.
  for (int warm_up = 0; warm_up < 3; ++warm_up) all_reduce();
  synchronize();
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < rounds; ++round) all_reduce();
  synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / rounds;
}

/// Measures an all-reduce of few and of many bytes. Each of n ranks sends 2 (n - 1) / n times the bytes, however the
/// backend splits them.
Measurement measure(const std::string& where, fsdp::ProcessGroup& group, c10::Device device) {
  const int ranks = group.world_size();
  auto& communicator = group.communicator();
  const double small = seconds_of_all_reduce(communicator, 1, kSmallRounds, device);
  const double large = seconds_of_all_reduce(communicator, kLargeBytes / 4, kLargeRounds, device);
  const double sent = 2.0 * (ranks - 1) / ranks * kLargeBytes;
  return {
      .where = where, .ranks = ranks, .latency_microseconds = small * 1e6, .megabytes_per_second = sent / large / 1e6};
}

std::vector<std::vector<int>> ranks_by_host(const fsdp::ProcessGroup& group) {
  std::map<int, std::vector<int>> by_host;
  for (int rank = 0; rank < group.world_size(); ++rank)
    by_host[group.hosts()[static_cast<size_t>(rank)]].push_back(rank);
  std::vector<std::vector<int>> ranks;
  for (auto& [host, members] : by_host) ranks.push_back(std::move(members));
  return ranks;
}

/// Returns on all ranks what the first rank of each host measured, in the order of hosts. `own` is this rank's
/// measurement; it is empty on a host with only one rank. Collective.
std::vector<Measurement> from_all(const std::vector<Measurement>& own, int place, size_t places,
                                  fsdp::ProcessGroup& group) {
  auto values = torch::zeros({static_cast<int64_t>(places), 3}, torch::kDouble);
  if (!own.empty()) {
    values[place][0] = own[0].ranks;
    values[place][1] = own[0].latency_microseconds;
    values[place][2] = own[0].megabytes_per_second;
  }
  group.communicator().all_reduce(values, fsdp::ReduceOp::kMax, {"measurements", {}})->wait();
  std::vector<Measurement> all;
  for (int64_t host = 0; host < values.size(0); ++host) {
    const auto ranks = values[host][0].item<double>();
    if (ranks == 0) continue;
    all.push_back({.where = "inside host " + std::to_string(host),
                   .ranks = static_cast<int>(ranks),
                   .latency_microseconds = values[host][1].item<double>(),
                   .megabytes_per_second = values[host][2].item<double>()});
  }
  return all;
}

/// Measures inside each host that has several ranks. With several hosts it also measures between the first ranks of the
/// hosts, and among all ranks. Collective.
std::vector<Measurement> measure_all(const std::string& backend) {
  const auto joined = fsdp::new_process_group({.backend = backend, .timeout = std::chrono::seconds(60)});
  auto& group = *joined;
  const auto device =
      fsdp::choose_backend(backend, group.local_rank(), fsdp::cuda_support()).device.value_or(c10::kCPU);
  const auto hosts = ranks_by_host(group);
  std::vector<Measurement> own;
  const auto inside = group.split(hosts, "inside a host");
  if (inside->world_size() > 1) own.push_back(measure("", *inside, device));
  auto all = from_all(own, group.hosts()[static_cast<size_t>(group.rank())], hosts.size(), group);
  std::vector<int> first;
  for (const auto& ranks : hosts) first.push_back(ranks.front());
  if (first.size() == 1) return all;
  const auto between = group.split({first}, "between hosts");
  if (between) all.push_back(measure("between hosts", *between, device));
  all.push_back(measure("all ranks", group, device));
  return all;
}

}  // namespace

bool compare_hosts(Nodes& nodes, SignalQueue& signals) {
  const HostFacts own =
      hear_signals_during([host = nodes.host(), port = nodes.port()] { return find_host_facts(host, port); }, signals,
                          "the facts of this host");
  std::vector<HostFacts> hosts;
  for (const std::string& text : nodes.tell_node_0("doctor", encode(own), signals)) hosts.push_back(decode_host(text));
  if (hosts.empty()) return true;
  setenv(kHostsVariable, encode(hosts).c_str(), /*overwrite=*/1);
  return differences(hosts).empty();
}

int run_doctor_rank(const std::vector<std::string>& arguments) {
  const std::string& backend = arguments.at(0);
  const bool as_json = arguments.at(1) == "json";
  const bool prints = std::getenv(kHostsVariable) != nullptr && std::string(std::getenv("RANK")) == "0";
  Diagnosis diagnosis{.nodes = hosts_of_environment(), .measurements = {}};
  if (prints && !as_json) std::cout << table(diagnosis.nodes) << std::endl;
  try {
    diagnosis.measurements = measure_all(backend);
    if (prints && !as_json) std::cout << table(diagnosis.measurements) << std::flush;
  } catch (const std::exception& error) {
    diagnosis.error = fsdp::what_without_backtrace(error);
  }
  if (prints && as_json) std::cout << json(diagnosis) << std::flush;
  if (diagnosis.error.empty()) return 0;
  std::cerr << diagnosis.error << std::endl;
  return kFailure;
}

}  // namespace fsdprun
