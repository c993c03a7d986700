#include "comm/group/join.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/c10d/backends.h"
#include "comm/c10d/c10d_communicator.h"
#include "comm/core/check.h"
#include "comm/core/fault_point.h"
#include "comm/core/front.h"
#include "comm/core/host_grid.h"
#include "comm/core/store_message.h"
#include "comm/rendezvous/network.h"
#include "comm/rendezvous/store.h"
#include "comm/shm/shm_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <numeric>
#include <random>
#include <vector>

namespace fsdp {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr std::string_view kOperation = "init_process_group";

std::string prefix_of(const Membership& membership) { return membership.ranks.where(kOperation); }

// Before the rank that hosts the store fails, it waits this long for the others to learn of the failure.
constexpr std::chrono::seconds kFarewell{4};

std::string profile_key(int rank) { return str_cat("profile/", rank); }
constexpr const char* kRoster = "roster";

// Returns a store with keys that only this group uses and whose calls all end. Throws UsageError on ranks of another
// run that use the same address. The first rank to come decides which run it is.
StorePtr rendezvous_store(const Rendezvous& rendezvous) {
  const auto& membership = rendezvous.membership;
  const auto& place = membership.parameters;
  const std::shared_ptr<std::atomic<int64_t>> calls(rendezvous.traffic, &rendezvous.traffic->store_calls);
  const auto store = make_bounded_store(rendezvous.store, rendezvous.timeout, calls);
  const std::string found = store->compareSet(kRunKey, "", place.run_id);
  require(found == place.run_id, prefix_of(membership), "expected the ranks of run '", place.run_id, "' at ",
          place.host, ':', place.port, ", found those of run '", found,
          "'. Give each run an address (MASTER_PORT) of its own, and all ranks of a run the same TORCHELASTIC_RUN_ID, "
          "as fsdprun does.");
  auto attempt = c10::make_intrusive<c10d::PrefixStore>(str_cat("fsdp/attempt_", place.attempt), store);
  const auto round = attempt->add(str_cat("joined/", membership.rank()), 1);
  return c10::make_intrusive<c10d::PrefixStore>(str_cat("group_", round), attempt);
}

// Returns what ranks have written under these keys. Waits for the keys as long as the store does; then throws PeerLost
// with the ranks that are missing, at most a hundred.
std::vector<std::string> read(const Rendezvous& rendezvous, const std::vector<std::string>& keys) {
  const auto& membership = rendezvous.membership;
  auto& store = *rendezvous.store;
  try {
    std::vector<std::string> texts;
    for (const auto& bytes : store.multiGet(keys)) texts.emplace_back(bytes.begin(), bytes.end());
    return texts;
  } catch (const std::exception&) {
    std::vector<int> missing;
    for (int rank = 0; rank < membership.world_size() && missing.size() < 100; ++rank)
      if (!store.check({profile_key(rank)})) missing.push_back(membership.ranks.name_of(rank));
    const std::string waited = str_cat(prefix_of(membership), "waited ", in_seconds(rendezvous.timeout), " for ");
    if (missing.empty())
      throw PeerLost(membership.ranks.name_of(0), str_cat(waited, "rank ", membership.ranks.name_of(0),
                                                          ", which tells the other ranks which ranks have joined. Look "
                                                          "at its output, then start all ranks again."));
    throw PeerLost(missing.front(),
                   str_cat(waited, membership.world_size(), " ranks; missing: rank ", str_join(", ", missing),
                           ". Start every rank with the same address and world size."));
  }
}

// Returns the settings that must be the same on every rank, as text.
std::string claims_of(const Membership& membership) {
  std::string claims = str_cat("world size ", membership.world_size(), ", backend ", membership.backend);
  if (membership.device_backend)
    claims += str_cat(" and a backend for ", c10::DeviceTypeName(membership.device_backend->device.type(), true));
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

std::vector<Profile> read_profiles(const Rendezvous& rendezvous, const std::vector<int>& ranks) {
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(profile_key(rank));
  std::vector<Profile> profiles;
  for (const auto& text : read(rendezvous, keys)) profiles.push_back(decode<Profile>(text));
  return profiles;
}

// Rank 0 reads what each rank wrote and writes the roster, which all ranks need. Other ranks first compare their claims
// with those of rank 0, so a rank that differs fails even while rank 0 still waits for others.
void meet(Rendezvous& rendezvous) {
  const auto& membership = rendezvous.membership;
  std::random_device random;
  Profile own{.claims = claims_of(membership),
              .domain = host_domain(),
              .host = membership.host,
              .obstacle = "",
              .user = static_cast<int>(geteuid()),
              // No other host page (shm::HostPage) has this name, not even that of a later process with this id.
              .contact = {getpid(), str_cat("fsdp-", random(), '-', random())}};
  try {
    if (may_share_memory(membership.backend))
      rendezvous.page =
          std::make_shared<const Descriptor>(shm::make_host_page(membership.world_size(), own.contact.page));
  } catch (const shm::Obstacle& obstacle) {
    own.obstacle = obstacle.what();
  }
  fault_point("joining");
  rendezvous.store->set(profile_key(membership.rank()), encode(own));
  Roster roster;
  if (membership.rank() == 0) {
    std::vector<int> all(static_cast<size_t>(membership.world_size()));
    std::iota(all.begin(), all.end(), 0);
    roster = roster_of(read_profiles(rendezvous, all));
    rendezvous.store->set(kRoster, encode(roster));
  } else {
    compare_claims(membership, own.claims, {{0, read_profiles(rendezvous, {0}).front().claims}});
    roster = decode<Roster>(read(rendezvous, {kRoster}).front());
  }
  compare_claims(membership, own.claims, roster.claims);
  const auto hosts = unpack_numbers(roster.hosts);
  rendezvous.roster = std::make_shared<const Roster>(std::move(roster));
  std::vector<int> beside;  // the ranks of this rank's host
  for (int rank = 0; rank < membership.world_size(); ++rank)
    if (hosts[static_cast<size_t>(rank)] == hosts[static_cast<size_t>(membership.rank())]) beside.push_back(rank);
  if (beside.size() > 1) {
    const auto profiles = read_profiles(rendezvous, beside);
    for (size_t i = 0; i < beside.size(); ++i) rendezvous.contacts[beside[i]] = profiles[i].contact;
  }
  fault_point("joined");
}

// Runs `act`, which can fail on one rank alone. A rank that gives up looks lost to the others, so it publishes a
// verdict, and all ranks throw the first verdict in the store. Ranks that are connecting hear of it as they hear of any
// verdict. If the store is gone and rank 0 hosted it, the verdict is that rank 0 is lost, because other ranks may have
// given up for the same reason.
void agreed(const Rendezvous& rendezvous, const std::function<void()>& act) {
  const auto& ranks = rendezvous.membership.ranks;
  const auto agree = [&](const Verdict& own) {
    const RollCallOptions options{
        .answer_time = kFarewell, .store_in_rank_0 = rendezvous.store_in_rank_0, .alarm = rendezvous.alarm};
    return RollCall::start([&] { return rendezvous.store->clone(); }, ranks, options)->pronounce(own);
  };
  try {
    act();
  } catch (const PeerLost& error) {
    const auto holds = agree({Verdict::Kind::kPeerLost, error.rank(),
                              str_cat("rank ", error.rank(), " is lost, as another rank reports.", kLookAtLost)});
    if (holds.rank == error.rank()) throw;
    raise(holds, ranks, kOperation);
  } catch (const c10::DistError&) {
    throw;  // the store failed, so it cannot take a verdict
  } catch (const std::exception& error) {
    try_to([&] { agree({Verdict::Kind::kError, -1, what_without_backtrace(error)}); });
    throw;
  }
}

C10dOptions network_options(const Rendezvous& rendezvous, const std::vector<int>& hosts) {
  const auto& membership = rendezvous.membership;
  const auto& parameters = membership.parameters;
  const std::string address = rendezvous.roster->is_one_domain ? "127.0.0.1"
                              : parameters.host.empty()        ? ""
                                                               : address_towards(parameters.host, parameters.port);
  C10dOptions options;
  options.ranks = membership.ranks;
  options.traffic.reset(new CountByPeer{rendezvous.traffic, hosts, membership.rank()});
  options.timeout = rendezvous.timeout;
  options.compares_first = membership.compares_first;
  options.roll_call.store_in_rank_0 = rendezvous.store_in_rank_0;
  options.roll_call.alarm = rendezvous.alarm;
  for (const auto& [rank, contact] : rendezvous.contacts)
    if (contact.process != getpid()) options.roll_call.neighbours[membership.ranks.name_of(rank)] = contact.process;
  options.roll_call.answer_time =
      std::clamp(rendezvous.timeout / 2, std::chrono::milliseconds(500), options.roll_call.answer_time);
  options.control = [address](const StorePtr& lane, int rank, int world_size, std::chrono::milliseconds limit) {
    return make_gloo_backend(lane, rank, world_size, limit, address);
  };
  if (membership.device_backend) {
    options.data_device = membership.device_backend->device;
    options.data = membership.device_backend->make;
  }
  return options;
}

// Connects the ranks of the group that are on this rank's host.
std::shared_ptr<Communicator> join_inside(const Rendezvous& rendezvous) {
  std::vector<int> members;
  std::vector<shm::Contact> contacts;
  for (const auto& [rank, contact] : rendezvous.contacts) {
    members.push_back(rendezvous.membership.ranks.name_of(rank));
    contacts.push_back(contact);
  }
  const auto& all = rendezvous.membership.ranks;
  const bool has_all = std::ssize(members) == all.world_size;
  const auto ranks = has_all ? all : all.in_subgroup("host", std::move(members));
  // In a group of several hosts only the lanes may advance collectives inside the host, so these collectives get a
  // separate OwnRank.
  const auto own_rank = has_all ? rendezvous.own_rank : std::make_shared<shm::OwnRank>();
  return make_shm_communicator(contacts, ranks, rendezvous.timeout, own_rank, rendezvous.traffic);
}

}  // namespace

std::shared_ptr<Communicator> connect_ranks(const Rendezvous& rendezvous, const std::vector<int>& hosts) {
  const auto& membership = rendezvous.membership;
  Carrier carrier{};
  std::shared_ptr<Communicator> host;
  agreed(rendezvous, [&] {
    const auto choice = choose_carrier(membership.backend, membership.ranks, *rendezvous.roster, prefix_of(membership));
    carrier = choice.carrier;
    if (!choice.obstacle.empty() && membership.rank() == 0)
      std::cerr << "fsdp: the ranks of " << (std::ranges::max(hosts) == 0 ? "this" : "each")
                << " host use Gloo instead of shared memory: " << choice.obstacle << ".\n";
    if (carrier != Carrier::kNetwork) host = join_inside(rendezvous);
  });
  if (carrier == Carrier::kSharedMemory) return host;
  auto options = network_options(rendezvous, hosts);
  if (carrier == Carrier::kHierarchical) {
    options.host = std::move(host);
    options.grid = grid_of(hosts, membership.rank());
  }
  return make_c10d_communicator(rendezvous.store, std::move(options));
}

std::shared_ptr<Communicator> join(Rendezvous& rendezvous) {
  const auto& membership = rendezvous.membership;
  if (membership.world_size() == 1) return make_local_communicator(membership.ranks);
  try {
    if (!rendezvous.roster) {
      rendezvous.store = rendezvous_store(rendezvous);
      agreed(rendezvous, [&] { meet(rendezvous); });
    }
    auto communicator = rendezvous.connect(rendezvous, unpack_numbers(rendezvous.roster->hosts));
    rendezvous.page = nullptr;
    return communicator;
  } catch (const PeerLost& error) {
    blame(membership.ranks.name(), error.rank());
    throw;
  } catch (const Error&) {
    throw;
  } catch (const c10::DistError& error) {
    raise(store_lost(membership.rank(), rendezvous.store_in_rank_0, first_line(error.what()), ""), membership.ranks,
          kOperation);
  } catch (const std::exception& error) {
    throw Error(str_cat(prefix_of(membership), "could not connect to the other ranks: ", first_line(error.what()),
                        ". Look at the output of the other ranks and at the network, then start all ranks again."));
  }
}

Rendezvous subgroup_of(const Rendezvous& all, const std::string& name, const std::vector<int>& members) {
  Rendezvous own = all;
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
  own.store = c10::make_intrusive<c10d::PrefixStore>(str_cat("split_", number, '_', members.front()), all.store);
  if (!own.contacts.empty() && may_share_memory(own.membership.backend) && own.roster->obstacle.empty())
    own.page = std::make_shared<const Descriptor>(
        shm::make_host_page(own.membership.world_size(), own.contacts.at(own.membership.rank()).page));
  return own;
}

}  // namespace fsdp
