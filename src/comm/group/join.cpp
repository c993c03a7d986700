#include "comm/group/join.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/c10d/c10d_communicator.h"
#include "comm/c10d/backends.h"
#include "comm/core/check.h"
#include "comm/core/fault_point.h"
#include "comm/core/host_grid.h"
#include "comm/core/local_communicator.h"
#include "comm/core/log.h"
#include "comm/core/store_message.h"
#include "comm/failure/blame.h"
#include "comm/failure/neighbours.h"
#include "comm/rendezvous/job_store.h"
#include "comm/rendezvous/network.h"
#include "comm/shm/shm_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <numeric>
#include <optional>
#include <vector>

namespace fsdp {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr std::string_view kOperation = "init_process_group";

// How errors begin.
std::string prefix_of(const Membership& membership) { return membership.ranks.where(kOperation); }

// How long the rank that hosts the store waits for the others before it fails.
constexpr std::chrono::seconds kFarewell{4};

std::string profile_key(int rank) { return str_cat("profile/", rank); }
constexpr const char* kRoster = "roster";

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

// Adds those of the ranks [begin, end) that have not come, but not without end: one question is enough where all have.
void add_missing(c10d::Store& store, int begin, int end, std::vector<int>& missing) {
  constexpr size_t kMostNamed = 100;
  std::vector<std::string> keys;
  for (int rank = begin; rank < end; ++rank) keys.push_back(profile_key(rank));
  if (missing.size() == kMostNamed || store.check(keys)) return;
  if (end - begin == 1) return missing.push_back(begin);
  add_missing(store, begin, (begin + end) / 2, missing);
  add_missing(store, (begin + end) / 2, end, missing);
}

// What ranks have written under these keys, for which this waits as long as the store does.
std::vector<std::string> read(const Meeting& meeting, c10d::Store& store, const std::vector<std::string>& keys) {
  const auto& membership = meeting.membership;
  try {
    std::vector<std::string> texts;
    for (const auto& bytes : store.multiGet(keys)) texts.emplace_back(bytes.begin(), bytes.end());
    return texts;
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    std::vector<int> missing;
    add_missing(store, 0, membership.world_size(), missing);
    for (int& rank : missing) rank = membership.ranks.name_of(rank);
    const std::string waited = str_cat(prefix_of(membership), "waited ", in_seconds(meeting.timeout), " for ");
    if (missing.empty())
      throw PeerLost(membership.ranks.name_of(0),
                     str_cat(waited, "rank ", membership.ranks.name_of(0),
                             ", which tells the others who is there. Look at its output, then start all ranks again."));
    throw PeerLost(missing.front(),
                   str_cat(waited, membership.world_size(), " ranks; missing: rank ", str_join(", ", missing),
                           ". Start every rank with the same address and world size."));
  }
}

// What must be the same on every rank.
std::string claims_of(const Membership& membership) {
  std::string claims = str_cat("world size ", membership.world_size(), ", backend ", membership.backend);
  if (membership.device_backend)
    claims += str_cat(" and one for ", c10::DeviceTypeName(membership.device_backend->device.type(), true));
  if (membership.compares_first) claims += ", FSDP_CHECK=each";
  return claims;
}

void compare_claims(const Membership& membership, const std::string& own, const std::map<int, std::string>& claims) {
  for (const auto& [rank, theirs] : claims) {
    if (theirs == own) continue;
    throw Mismatch(str_cat(prefix_of(membership), "ranks disagree: rank ", membership.ranks.name(), " has ", own,
                           "; rank ", membership.ranks.name_of(rank), " has ", theirs,
                           ". Start every rank with the same settings."));
  }
}

std::vector<Profile> read_profiles(const Meeting& meeting, c10d::Store& store, const std::vector<int>& ranks) {
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(profile_key(rank));
  std::vector<Profile> profiles;
  for (const auto& text : read(meeting, store, keys)) profiles.push_back(decode<Profile>(text));
  return profiles;
}

// Rank 0 reads what each rank wrote, and writes what all need. Ranks that differ from rank 0 learn it though rank 0 may
// wait for further ones.
Roster read_roster(const Meeting& meeting, const Profile& own, c10d::Store& store) {
  const auto& membership = meeting.membership;
  if (membership.rank() == 0) {
    std::vector<int> all(static_cast<size_t>(membership.world_size()));
    std::iota(all.begin(), all.end(), 0);
    auto roster = roster_of(read_profiles(meeting, store, all));
    store.set(kRoster, encode(roster));
    return roster;
  }
  compare_claims(membership, own.claims, {{0, read_profiles(meeting, store, {0}).front().claims}});
  return decode<Roster>(read(meeting, store, {kRoster}).front());
}

void meet(Meeting& meeting, c10d::Store& store) {
  const auto& membership = meeting.membership;
  Profile own{.claims = claims_of(membership),
              .domain = str_cat(loopback_domain(), '/', process_namespace()),
              .host = membership.host,
              .obstacle = "",
              .user = static_cast<int>(geteuid()),
              .contact = {getpid(), "fsdp-" + random_token()}};
  try {
    if (may_share_memory(membership.backend))
      meeting.page =
          std::make_shared<const Descriptor>(shm::make_host_page(membership.world_size(), own.contact.page));
  } catch (const shm::Obstacle& obstacle) {
    own.obstacle = obstacle.what();
  }
  fault_point("joining");
  store.set(profile_key(membership.rank()), encode(own));
  meeting.roster = std::make_shared<const Roster>(read_roster(meeting, own, store));
  compare_claims(membership, own.claims, meeting.roster->claims);
  const auto hosts = meeting.roster->hosts.unpack();
  std::vector<int> beside;  // the ranks of this host
  for (int rank = 0; rank < membership.world_size(); ++rank)
    if (hosts[static_cast<size_t>(rank)] == hosts[static_cast<size_t>(membership.rank())]) beside.push_back(rank);
  if (beside.size() > 1) {
    const auto profiles = read_profiles(meeting, store, beside);
    for (size_t i = 0; i < beside.size(); ++i) meeting.contacts[beside[i]] = profiles[i].contact;
  }
  fault_point("joined");
}

// This rank says how far it got. The rank that hosts the store may end: before it fails it lets the others, but for one
// that is lost, get as far, so that they fail alike. `lost`: a global rank.
void let_others_follow(const Meeting& meeting, c10d::Store& store, const std::string& step, int lost = -1) {
  const auto& ranks = meeting.membership.ranks;
  try {
    store.set(str_cat(step, '/', ranks.rank), "");
  } catch (const std::exception&) {
    return;  // nobody is there to be told
  }
  if (meeting.store_in_rank_0 && ranks.rank == 0) await_others(store, ranks, step, lost, kFarewell);
}

// Ranks that lost another one while they met or connected name the same one: that of the rank that says it first, since
// one that gives up looks lost to others from then on.
[[noreturn]] void agree_on_lost(const Meeting& meeting, const StorePtr& store, const PeerLost& error) {
  const auto& membership = meeting.membership;
  int first = error.rank();
  try {
    store->setTimeout(kFarewell / 2);
    first = std::stoi(store->compareSet("lost", "", str_cat(first)));
    let_others_follow(meeting, *store, "told", first);
  } catch (const StoreIsSilent& silent) {
    raise(store_lost(membership.rank(), meeting.store_in_rank_0, first_line(silent.what()), ""), membership.ranks,
          kOperation);
  } catch (const std::exception&) {
    // The store went with the rank that hosted it.
  }
  store->setTimeout(meeting.timeout);
  if (first == error.rank()) throw error;
  throw PeerLost(first, str_cat(prefix_of(membership), "rank ", first,
                                " is lost, another rank says. Look at its output, then start all ranks again."));
}

C10dOptions network_options(const Meeting& meeting, const std::vector<int>& hosts) {
  const auto& membership = meeting.membership;
  const auto& rendezvous = membership.rendezvous;
  const auto timeout = meeting.timeout;
  const std::string address = meeting.roster->is_one_domain ? "127.0.0.1"
                              : rendezvous.host.empty()     ? ""
                                                            : address_towards(rendezvous.host, rendezvous.port);
  C10dOptions options;
  options.ranks = membership.ranks;
  options.traffic.reset(new CountByPeer{meeting.traffic, hosts, membership.ranks});
  options.timeout = timeout;
  options.compares_first = membership.compares_first;
  options.roll_call.store_in_rank_0 = meeting.store_in_rank_0;
  std::map<int, pid_t> processes;
  for (const auto& [rank, contact] : meeting.contacts)
    if (contact.process != getpid()) processes[membership.ranks.name_of(rank)] = contact.process;
  options.roll_call.alarm = meeting.alarm;
  options.roll_call.neighbours = std::make_shared<Neighbours>(processes);
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
std::shared_ptr<Communicator> join_inside(const Meeting& meeting, const HostGrid& grid) {
  std::vector<int> members;
  std::vector<shm::Contact> contacts;
  for (const auto& [rank, contact] : meeting.contacts) {
    members.push_back(meeting.membership.ranks.name_of(rank));
    contacts.push_back(contact);
  }
  const auto& all = meeting.membership.ranks;
  if (members.empty()) return make_local_communicator(all.in_subgroup("host", {all.name()}));
  const auto ranks = grid.count() == 1 ? all : all.in_subgroup("host", std::move(members));
  // In the middle of a collective of several hosts it is its lane that goes on.
  const auto own_rank = grid.count() == 1 ? meeting.own_rank : std::make_shared<shm::OwnRank>();
  return make_shm_communicator(contacts, ranks, meeting.timeout, own_rank, meeting.traffic);
}

// A rank of this host that does not come may have given up because of rank 0, on another host, with which the store
// went: then the store's error is thrown.
std::shared_ptr<Communicator> join_inside_of_several(const Meeting& meeting, const HostGrid& grid) {
  try {
    return join_inside(meeting, grid);
  } catch (const PeerLost&) {
    if (meeting.store_in_rank_0 && !grid.is_inside(0)) meeting.store->check({kRoster});
    throw;
  }
}

std::shared_ptr<Communicator> join_ranks(Meeting& meeting) {
  try {
    if (!meeting.roster) meet(meeting, *meeting.store);
    auto communicator = meeting.connect(meeting, meeting.roster->hosts.unpack());
    meeting.page = nullptr;
    return communicator;
  } catch (const PeerLost& error) {
    agree_on_lost(meeting, meeting.store, error);
  } catch (const c10::DistError&) {
    throw;  // the store's own
  } catch (const std::exception&) {
    let_others_follow(meeting, *meeting.store, "read");
    throw;
  }
}

// The store with keys of this group alone, of which every call ends.
StorePtr meeting_place(const Meeting& meeting) {
  const auto& membership = meeting.membership;
  const std::shared_ptr<std::atomic<int64_t>> calls(meeting.traffic, &meeting.traffic->store_calls);
  require_same_run(membership, *make_bounded_store(meeting.store, meeting.timeout, calls));
  return group_store(membership, make_bounded_store(meeting.store, meeting.timeout, calls, membership.token));
}

}  // namespace

std::shared_ptr<Communicator> connect_ranks(const Meeting& meeting, const std::vector<int>& hosts) {
  const auto& membership = meeting.membership;
  const auto [carrier, obstacle] =
      choose_carrier(membership.backend, membership.ranks, *meeting.roster, prefix_of(membership));
  if (!obstacle.empty() && membership.rank() == 0)
    std::cerr << "fsdp: the ranks of " << (std::ranges::max(hosts) == 0 ? "this" : "each")
              << " host use Gloo instead of shared memory: " << obstacle << ".\n";
  log(LogLevel::kInfo, prefix_of(membership),
      str_cat("the ", membership.world_size(), " ranks have met; hosts: ", 1 + std::ranges::max(hosts), "; ",
              carrier == Carrier::kSharedMemory   ? "over shared memory"
              : carrier == Carrier::kHierarchical ? "over shared memory inside hosts"
                                                  : "over the network"));
  const auto grid = std::make_shared<const HostGrid>(hosts, membership.rank());
  if (carrier == Carrier::kSharedMemory) return join_inside(meeting, *grid);
  auto options = network_options(meeting, hosts);
  if (carrier == Carrier::kHierarchical) {
    options.host = join_inside_of_several(meeting, *grid);
    options.grid = grid;
  }
  return make_c10d_communicator(meeting.store, std::move(options));
}

std::shared_ptr<Communicator> join(Meeting& meeting) {
  const auto& membership = meeting.membership;
  if (membership.world_size() == 1) return make_local_communicator(membership.ranks);
  try {
    if (!meeting.roster) meeting.store = meeting_place(meeting);
    return join_ranks(meeting);
  } catch (const PeerLost& error) {
    blame(membership.ranks.name(), error.rank());
    throw;
  } catch (const Error&) {
    throw;
  } catch (const c10::DistError& error) {
    raise(store_lost(membership.rank(), meeting.store_in_rank_0, first_line(error.what()), ""), membership.ranks,
          kOperation);
  } catch (const std::exception& error) {
    throw Error(str_cat(prefix_of(membership), "could not connect to the other ranks: ", first_line(error.what()),
                        ". Look at the output of the other ranks and at the network, then start all ranks again."));
  }
}

Meeting subgroup_of(const Meeting& all, const std::string& name, const std::vector<int>& members) {
  Meeting own = all;
  own.membership.ranks = all.membership.ranks.in_subgroup(name, members);
  if (own.membership.world_size() == 1) return own;
  std::vector<int> numbers;
  for (const int member : members) numbers.push_back(all.membership.ranks.number_of(member));
  own.roster = std::make_shared<const Roster>(roster_of(*all.roster, numbers));
  own.contacts.clear();
  own.splits = 0;
  const int number = all.splits + 1;
  for (size_t rank = 0; rank < numbers.size(); ++rank) {
    const auto known = all.contacts.find(numbers[rank]);
    if (known == all.contacts.end()) continue;
    own.contacts[static_cast<int>(rank)] = {known->second.process, str_cat(known->second.page, '.', number)};
  }
  if (own.contacts.size() == 1) own.contacts.clear();
  own.store_in_rank_0 = all.store_in_rank_0 && members.front() == 0;
  own.store = c10::make_intrusive<c10d::PrefixStore>(str_cat("split_", number, '_', members.front()), all.store);
  if (!own.contacts.empty() && may_share_memory(own.membership.backend) && own.roster->obstacle.empty())
    own.page = std::make_shared<const Descriptor>(
        shm::make_host_page(own.membership.world_size(), own.contacts.at(own.membership.rank()).page));
  return own;
}

}  // namespace fsdp
