#include "comm/group/join.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/c10d/c10d_communicator.h"
#include "comm/c10d/gloo_backend.h"
#include "comm/core/check.h"
#include "comm/core/fault_point.h"
#include "comm/core/host_grid.h"
#include "comm/core/local_communicator.h"
#include "comm/core/log.h"
#include "comm/core/message.h"
#include "comm/failure/blame.h"
#include "comm/failure/neighbours.h"
#include "comm/group/profile.h"
#include "comm/rendezvous/bounded_store.h"
#include "comm/rendezvous/network.h"
#include "comm/rendezvous/run_identity.h"
#include "comm/rendezvous/signed_store.h"
#include "comm/shm/segment.h"
#include "comm/shm/shm_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <thread>
#include <vector>

namespace fsdp {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr std::string_view kOperation = "init_process_group";

// How errors begin.
std::string prefix_of(const Membership& membership) { return membership.ranks.where(kOperation); }

// How long the rank that hosts the store waits for the others before it fails.
constexpr std::chrono::seconds kFarewell{4};
// How long a rank that looks lost has to say that it is not.
constexpr std::chrono::seconds kReportTime{1};

bool hosts_store(const Meeting& meeting) { return meeting.store_in_rank_0 && meeting.membership.rank() == 0; }

std::string profile_key(int rank) { return str_cat("profile/", rank); }

// Keys of this group alone.
StorePtr group_store(const Membership& membership, const StorePtr& store) {
  auto attempt = c10::make_intrusive<c10d::PrefixStore>(str_cat("fsdp/attempt_", membership.rendezvous.attempt), store);
  const auto round = attempt->add(str_cat("joined/", membership.rank()), 1);
  return c10::make_intrusive<c10d::PrefixStore>(str_cat("group_", round), attempt);
}

// Ranks of another run that come to the same address go no further. What the first rank says holds.
void require_same_run(const Membership& membership, c10d::Store& store) {
  const std::string own = run_identity(membership.rendezvous.run_id, !membership.token.empty());
  const std::string found = store.compareSet(kRunKey, "", own);
  require(found == own, prefix_of(membership), "expected the ranks of ", own, " at ", membership.rendezvous.host, ':',
          membership.rendezvous.port, ", found those of ", found,
          ". Give each run an address (MASTER_PORT) of its own, and all ranks of one the same TORCHELASTIC_RUN_ID and "
          "FSDP_JOB_TOKEN, as fsdprun does.");
}

void wait_for_profiles(const Membership& membership, c10d::Store& store, std::chrono::milliseconds timeout) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < membership.world_size(); ++rank) keys.push_back(profile_key(rank));
  try {
    store.wait(keys, timeout);
  } catch (const std::exception&) {
    std::string missing;
    int first = -1;
    for (int rank = 0; rank < membership.world_size(); ++rank) {
      if (store.check({profile_key(rank)})) continue;
      const int name = membership.ranks.name_of(rank);
      missing += str_cat(missing.empty() ? "" : ", ", name);
      if (first < 0) first = name;
    }
    if (first < 0) return;
    throw PeerLost(
        first, str_cat(prefix_of(membership), "waited ", in_seconds(timeout), " for ", membership.world_size(),
                       " ranks; missing: rank ", missing, ". Start every rank with the same address and world size."));
  }
}

// What must be the same on every rank.
std::string claims_of(const Membership& membership) {
  std::string claims = str_cat("world size ", membership.world_size(), ", backend ", membership.backend);
  if (membership.device_backend)
    claims += str_cat(" and one for ", c10::DeviceTypeName(membership.device_backend->device.type(), true));
  return claims;
}

// Every rank's Profile, in the order of ranks.
std::vector<Profile> meet(const Membership& membership, const Profile& own, c10d::Store& store,
                          std::chrono::milliseconds timeout) {
  fault_point("joining");
  store.set(profile_key(membership.rank()), encode(own));
  wait_for_profiles(membership, store, timeout);
  std::vector<Profile> profiles;
  for (int rank = 0; rank < membership.world_size(); ++rank)
    profiles.push_back(decode<Profile>(store.get_to_str(profile_key(rank))));
  store.set(str_cat("read/", membership.rank()), "");
  fault_point("joined");
  return profiles;
}

void compare_claims(const Membership& membership, const std::vector<Profile>& profiles) {
  const auto& own = profiles[static_cast<size_t>(membership.rank())].claims;
  for (size_t rank = 0; rank < profiles.size(); ++rank) {
    if (profiles[rank].claims == own) continue;
    throw Mismatch(str_cat(prefix_of(membership), "ranks disagree: rank ", membership.ranks.name(), " has ", own,
                           "; rank ", membership.ranks.name_of(static_cast<int>(rank)), " has ", profiles[rank].claims,
                           ". Start every rank with the same settings."));
  }
}

// The rank that hosts the store may end: before it fails it lets the others, but for one that is lost, get as far as it
// got, so that they fail alike. `lost`: a global rank.
void let_others_follow(const Meeting& meeting, c10d::Store& store, const std::string& step, int lost = -1) {
  if (!hosts_store(meeting)) return;
  const auto& ranks = meeting.membership.ranks;
  std::vector<std::string> keys;
  for (int rank = 1; rank < ranks.world_size; ++rank)
    if (ranks.name_of(rank) != lost) keys.push_back(str_cat(step, '/', rank));
  try {
    store.wait(keys, kFarewell);
  } catch (const std::exception&) {
    // Whoever is gone need not read.
  }
}

// What carries the data; rank 0 says why if that is strange.
Carrier carrier_of(const Membership& membership, const std::vector<Profile>& profiles, const std::vector<int>& hosts) {
  const auto [carrier, obstacle] =
      choose_carrier(membership.backend, membership.ranks, profiles, hosts, prefix_of(membership));
  if (!obstacle.empty() && membership.rank() == 0)
    std::cerr << "fsdp: the ranks of " << (hosts.back() == 0 ? "this" : "each")
              << " host use Gloo instead of shared memory: " << obstacle << ".\n";
  return carrier;
}

// Whom this rank takes for lost, after the ranks that it does not hear of have had time to say that they are there and
// whom they lost: a rank that gives up closes its sockets and looks lost to the next one. Global ranks, as in PeerLost.
int trace_lost(c10d::Store& store, const Ranks& ranks, int lost) {
  const auto key = [](int rank) { return str_cat("lost_by/", rank); };
  store.set(key(ranks.name()), str_cat(lost));
  for (int hop = 1; hop < ranks.world_size; ++hop) {
    const auto deadline = std::chrono::steady_clock::now() + kReportTime;
    while (!store.check({key(lost)})) {
      if (std::chrono::steady_clock::now() > deadline) return lost;
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
    }
    const int next = std::stoi(store.get_to_str(key(lost)));
    if (next == ranks.name()) return lost;
    lost = next;
  }
  return lost;
}

// Ranks that lost another one while they met or set up shared memory name the same one.
[[noreturn]] void agree_on_lost(const Meeting& meeting, const StorePtr& store, const PeerLost& error) {
  const auto& membership = meeting.membership;
  int first = error.rank();
  try {
    store->setTimeout(kFarewell / 2);
    first = std::stoi(store->compareSet("lost", "", str_cat(trace_lost(*store, membership.ranks, first))));
    store->set(str_cat("told/", membership.rank()), "");
    let_others_follow(meeting, *store, "told", first);
  } catch (const StoreIsSilent& silent) {
    raise(store_lost(membership.rank(), meeting.store_in_rank_0, first_line(silent.what()), ""), membership.ranks,
          kOperation);
  } catch (const std::exception&) {
    // The store went with the rank that hosted it.
  }
  if (first == error.rank()) throw error;
  throw PeerLost(first, str_cat(prefix_of(membership), "rank ", first,
                                " is lost, another rank says. Look at its output, then start all ranks again."));
}

C10dOptions network_options(const Meeting& meeting, const std::vector<Profile>& profiles,
                            const std::vector<int>& hosts) {
  const auto& [membership, store, timeout, store_in_rank_0, own_rank, alarm, traffic] = meeting;
  const auto& rendezvous = membership.rendezvous;
  const bool one_host =
      std::ranges::all_of(profiles, [&](const Profile& profile) { return profile.domain == profiles.front().domain; });
  const std::string address = one_host                  ? "127.0.0.1"
                              : rendezvous.host.empty() ? ""
                                                        : address_towards(rendezvous.host, rendezvous.port);
  C10dOptions options;
  options.ranks = membership.ranks;
  options.traffic = std::make_shared<CountByPeer>(traffic, hosts, membership.rank());
  options.timeout = timeout;
  options.roll_call.store_in_rank_0 = store_in_rank_0;
  std::vector<std::string> processes;
  for (const auto& profile : profiles) processes.push_back(profile.process);
  options.roll_call.alarm = alarm;
  options.roll_call.neighbours = std::make_shared<Neighbours>(processes, membership.ranks);
  options.roll_call.answer_time =
      std::clamp(timeout / 2, std::chrono::milliseconds(500), options.roll_call.answer_time);
  options.control = [address](const StorePtr& lane, int rank, int world_size, std::chrono::milliseconds limit) {
    return make_gloo_backend(lane, rank, world_size, limit, address);
  };
  if (membership.device_backend) {
    options.data_device = membership.device_backend->device;
    options.data = membership.device_backend->make;
  }
  return options;
}

// The ranks of this rank's host that are in the group.
std::shared_ptr<Communicator> join_inside(const Meeting& meeting, const std::vector<Profile>& profiles,
                                          const HostGrid& grid, const std::optional<shm::Listener>& listener) {
  std::vector<int> members;
  std::vector<std::string> contacts;
  for (int rank = grid.own_ranks().begin; rank < grid.own_ranks().end; ++rank) {
    members.push_back(meeting.membership.ranks.name_of(rank));
    contacts.push_back(profiles[static_cast<size_t>(rank)].listener);
  }
  const auto& all = meeting.membership.ranks;
  const auto ranks = grid.count() == 1 ? all : all.in_subgroup("host", std::move(members));
  if (ranks.world_size == 1) return make_local_communicator(ranks);
  // In the middle of a collective of several hosts it is its lane that goes on.
  const auto own_rank = grid.count() == 1 ? meeting.own_rank : std::make_shared<shm::OwnRank>();
  return make_shm_communicator(*listener, contacts, ranks, meeting.timeout, own_rank, meeting.traffic);
}

// A rank of this host that does not come may have given up because of rank 0, on another host, with which the store
// went: then the store's error is thrown.
std::shared_ptr<Communicator> join_inside_of_several(const Meeting& meeting, const std::vector<Profile>& profiles,
                                                     const HostGrid& grid, const std::optional<shm::Listener>& listener,
                                                     c10d::Store& store) {
  try {
    return join_inside(meeting, profiles, grid, listener);
  } catch (const PeerLost&) {
    if (meeting.store_in_rank_0 && !grid.is_inside(0)) store.check({profile_key(0)});
    throw;
  }
}

Joined join_ranks(const Meeting& meeting, const StorePtr& own) {
  const auto& [membership, store, timeout, store_in_rank_0, own_rank, alarm, traffic] = meeting;
  Profile self{.claims = claims_of(membership),
               .domain = loopback_domain(),
               .host = membership.host,
               .obstacle = "",
               .user = str_cat(geteuid()),
               .process = own_process_name(),
               .listener = ""};
  std::optional<shm::Listener> listener;
  try {
    if (may_share_memory(membership.backend)) {
      self.obstacle = shared_memory_obstacle();
      self.listener = listener.emplace().contact();
    }
  } catch (const shm::Obstacle& obstacle) {
    self.obstacle = obstacle.what();
  }
  try {
    const auto profiles = meet(membership, self, *own, timeout);
    compare_claims(membership, profiles);
    const auto hosts = hosts_of(profiles);
    const auto carrier = carrier_of(membership, profiles, hosts);
    log(LogLevel::kInfo, prefix_of(membership),
        str_cat("the ", membership.world_size(), " ranks have met; hosts: ", 1 + *std::ranges::max_element(hosts), "; ",
                carrier == Carrier::kSharedMemory   ? "over shared memory"
                : carrier == Carrier::kHierarchical ? "over shared memory inside hosts"
                                                    : "over the network"));
    const auto grid = std::make_shared<const HostGrid>(hosts, membership.rank());
    if (carrier == Carrier::kSharedMemory) return {join_inside(meeting, profiles, *grid, listener), hosts};
    auto options = network_options(meeting, profiles, hosts);
    if (carrier == Carrier::kHierarchical) {
      options.host = join_inside_of_several(meeting, profiles, *grid, listener, *own);
      options.grid = grid;
    }
    return {make_c10d_communicator(own, std::move(options)), hosts};
  } catch (const PeerLost& error) {
    listener.reset();  // whoever still waits for this rank there need not
    agree_on_lost(meeting, own, error);
  } catch (const c10::DistError&) {
    throw;  // the store's own
  } catch (const std::exception&) {
    let_others_follow(meeting, *own, "read");
    throw;
  }
}

}  // namespace

Joined join(const Meeting& meeting) {
  const auto& [membership, store, timeout, store_in_rank_0, own_rank, alarm, traffic] = meeting;
  if (membership.world_size() == 1) return {make_local_communicator(membership.ranks), {0}};
  try {
    const StorePtr bounded = make_bounded_store(store, timeout);
    require_same_run(membership, *bounded);
    const auto& token = membership.token;
    return join_ranks(meeting, group_store(membership, token.empty() ? bounded : make_signed_store(bounded, token)));
  } catch (const PeerLost& error) {
    blame(membership.ranks.name(), error.rank());
    throw;
  } catch (const Error&) {
    throw;
  } catch (const c10::DistError& error) {
    raise(store_lost(membership.rank(), store_in_rank_0, first_line(error.what()), ""), membership.ranks, kOperation);
  } catch (const std::exception& error) {
    throw Error(str_cat(prefix_of(membership), "could not connect to the other ranks: ", first_line(error.what()),
                        ". Look at the output of the other ranks and at the network, then start all ranks again."));
  }
}

}  // namespace fsdp
