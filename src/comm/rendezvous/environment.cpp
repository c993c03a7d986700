#include "comm/rendezvous/environment.h"

#include <fsdp/error.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <limits>

namespace fsdp {
namespace {

constexpr uint16_t kDefaultPort = 29500;
constexpr int kLargest = std::numeric_limits<int>::max();
constexpr const char* kHowToStart = "start the program with fsdprun, which sets this variable";

[[noreturn]] void refuse(const std::string& variable, const std::string& found, const std::string& expected,
                         const std::string& remedy = kHowToStart) {
  throw UsageError("fsdp::init_process_group: the environment variable " + variable + " is " + found + ", expected " +
                   expected + ": " + remedy + ".");
}

struct Environment {
  const EnvironmentLookup& lookup;

  std::optional<std::string> find(const char* name) const {
    const char* value = lookup(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  }

  /// Returns the first of `names` that is set, or `otherwise` if none is.
  const char* first_set(std::initializer_list<const char*> names, const char* otherwise = nullptr) const {
    const auto* found = std::ranges::find_if(names, [&](const char* name) { return find(name).has_value(); });
    return found == names.end() ? otherwise : *found;
  }

  int whole_number(const char* name, int least, int most) const {
    const std::string expected = most == kLargest
                                     ? "a whole number not below " + std::to_string(least)
                                     : "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
    const auto text = find(name);
    if (!text) refuse(name, "not set", expected);
    int value = 0;
    const char* end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data(), end, value);
    if (error != std::errc() || stop != end || value < least || value > most) {
      refuse(name, "'" + *text + "'", expected);
    }
    return value;
  }

  uint16_t port(const char* name) const {
    return static_cast<uint16_t>(whole_number(name, 1, std::numeric_limits<uint16_t>::max()));
  }
};

/// The variables in which a launcher tells a rank its place; null for a value that the launcher does not tell.
struct PlaceVariables {
  const char *rank, *world_size, *local_rank = nullptr, *local_size = nullptr;
};

RendezvousParameters read_place(const Environment& environment, const PlaceVariables& names) {
  RendezvousParameters place;
  place.world_size = environment.whole_number(names.world_size, 1, kLargest);
  place.rank = environment.whole_number(names.rank, 0, kLargest);
  if (place.rank >= place.world_size) {
    refuse(names.rank, std::to_string(place.rank),
           "a number below " + std::string(names.world_size) + ", which is " + std::to_string(place.world_size),
           "give each rank a different number from 0 up, as fsdprun does");
  }
  if (names.local_rank != nullptr) place.local_rank = environment.whole_number(names.local_rank, 0, kLargest);
  return place;
}

/// Open MPI and PMI do not set the address of rank 0.
RendezvousParameters from_variables(const Environment& environment, const PlaceVariables& names) {
  RendezvousParameters place = read_place(environment, names);
  place.port = environment.find("MASTER_PORT") ? environment.port("MASTER_PORT") : kDefaultPort;
  if (const auto host = environment.find("MASTER_ADDR")) {
    place.host = without_brackets(*host);
    return place;
  }
  if (const char* name = environment.first_set({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"})) {
    const auto hosts = environment.find(name);
    const auto first = first_slurm_host(*hosts);
    if (!first)
      refuse(name, "'" + *hosts + "'", "a list of hosts such as node[03-05,9]",
             "set MASTER_ADDR to the host of rank 0");
    place.host = *first;
    return place;
  }
  const bool one_host =
      place.world_size == 1 || (names.local_size != nullptr && environment.find(names.local_size) &&
                                environment.whole_number(names.local_size, 1, kLargest) == place.world_size);
  if (!one_host)
    refuse("MASTER_ADDR", "not set", "the host of rank 0",
           "set this variable for every rank, or start the program with fsdprun");
  place.host = "127.0.0.1";
  return place;
}

bool is_loopback(const std::string& host) { return host == "localhost" || host.starts_with("127.") || host == "::1"; }

RendezvousParameters from_torchrun(const Environment& environment) {
  RendezvousParameters place = read_place(environment, {"RANK", "WORLD_SIZE"});
  const auto host = environment.find("MASTER_ADDR");
  if (!host) refuse("MASTER_ADDR", "not set", "the host of rank 0");
  place.host = without_brackets(*host);
  // PyTorch's env:// works without LOCAL_RANK. Ranks that meet on the loopback device are on one host, so their local
  // ranks are their ranks.
  const bool is_needed = place.world_size > 1 && !is_loopback(place.host);
  place.local_rank =
      is_needed || environment.find("LOCAL_RANK") ? environment.whole_number("LOCAL_RANK", 0, kLargest) : place.rank;
  place.port = environment.port("MASTER_PORT");
  place.agent_hosts_store = environment.find("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (environment.find("TORCHELASTIC_RESTART_COUNT")) {
    place.attempt = environment.whole_number("TORCHELASTIC_RESTART_COUNT", 0, kLargest);
  }
  place.run_id = environment.find("TORCHELASTIC_RUN_ID").value_or(place.run_id);
  return place;
}

RendezvousParameters from_slurm(const Environment& environment) {
  const char* world_size = environment.first_set({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, "SLURM_STEP_NUM_TASKS");
  RendezvousParameters place = from_variables(environment, {"SLURM_PROCID", world_size, "SLURM_LOCALID"});
  if (const auto job = environment.find("SLURM_JOB_ID")) place.run_id = *job + '.' + *environment.find("SLURM_STEP_ID");
  return place;
}

}  // namespace

std::string without_brackets(const std::string& host) {
  const bool has_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return has_brackets ? host.substr(1, host.size() - 2) : host;
}

std::optional<RendezvousParameters> rendezvous_from_environment(const EnvironmentLookup& lookup) {
  const Environment environment{lookup};
  if (environment.first_set({"RANK", "WORLD_SIZE", "LOCAL_RANK"})) return from_torchrun(environment);
  if (environment.first_set({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}))
    return from_variables(environment, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE"});
  if (environment.first_set({"PMI_RANK", "PMI_SIZE"}))
    return from_variables(
        environment, {"PMI_RANK", "PMI_SIZE",
                      environment.first_set({"MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"}, "MPI_LOCALRANKID"),
                      environment.first_set({"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"})});
  if (environment.find("SLURM_STEP_ID") && environment.find("SLURM_PROCID")) return from_slurm(environment);
  return std::nullopt;
}

std::optional<std::string> first_slurm_host(std::string_view hosts) {
  std::string host;
  for (size_t at = 0; at < hosts.size() && hosts[at] != ','; ++at) {
    if (hosts[at] != '[') {
      if (hosts[at] == ']') return std::nullopt;
      host += hosts[at];
      continue;
    }
    const size_t close = hosts.find(']', at);
    if (close == std::string_view::npos) return std::nullopt;
    const std::string_view numbers = hosts.substr(at + 1, close - at - 1);
    const std::string_view first = numbers.substr(0, numbers.find_first_of(",-"));
    if (first.empty() || first.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
    host += first;  // kept as text, because zero padding is part of the name
    at = close;
  }
  if (host.empty()) return std::nullopt;
  return host;
}

}  // namespace fsdp
