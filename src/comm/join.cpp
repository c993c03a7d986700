#include "comm/join.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/c10d_communicator.h"
#include "comm/check.h"
#include "comm/gloo_backend.h"
#include "comm/local_communicator.h"
#include "comm/nccl_backend.h"
#include "comm/network.h"

#include <vector>

namespace fsdp {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr std::string_view kOperation = "init_process_group";

std::string member_key(int rank) { return c10::str("member/", rank); }

// Keys of this group alone.
StorePtr group_store(const Membership& membership, const StorePtr& store) {
  auto attempt =
      c10::make_intrusive<c10d::PrefixStore>(c10::str("fsdp/attempt_", membership.rendezvous.attempt), store);
  const auto round = attempt->add(c10::str("joined/", membership.rank()), 1);
  return c10::make_intrusive<c10d::PrefixStore>(c10::str("group_", round), attempt);
}

void wait_for_members(const Membership& membership, c10d::Store& store, std::chrono::milliseconds timeout) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < membership.world_size(); ++rank) keys.push_back(member_key(rank));
  try {
    store.wait(keys, timeout);
  } catch (const std::exception& error) {
    const std::string place = where(membership.rank(), membership.world_size(), kOperation);
    std::string missing;
    int first = -1;
    try {
      for (int rank = 0; rank < membership.world_size(); ++rank) {
        if (store.check({member_key(rank)})) continue;
        missing += c10::str(missing.empty() ? "" : ", ", rank);
        if (first < 0) first = rank;
      }
    } catch (const std::exception&) {
      throw PeerLost(0, c10::str(place, "the rendezvous store is gone (", error.what(), ")"));
    }
    if (first < 0) return;
    throw PeerLost(
        first, c10::str(place, "waited ", in_seconds(timeout), " for ", membership.world_size(),
                        " ranks; missing: rank ", missing, ". Start every rank with the same address and world size."));
  }
}

// Returns whether all ranks reach each other over the loopback interface.
bool compare_members(const Membership& membership, c10d::Store& store) {
  const std::string claims = c10::str("world size ", membership.world_size(), ", backend ", membership.backend);
  const std::string domain = loopback_domain();
  bool one_host = true;
  for (int rank = 0; rank < membership.world_size(); ++rank) {
    const std::string text = store.get_to_str(member_key(rank));
    const size_t line = text.find('\n');
    if (text.substr(0, line) != claims) {
      throw Mismatch(c10::str(where(membership.rank(), membership.world_size(), kOperation), "ranks disagree: rank ",
                              membership.rank(), " has ", claims, "; rank ", rank, " has ", text.substr(0, line),
                              ". Start every rank with the same settings."));
    }
    one_host = one_host && text.substr(line + 1) == domain;
  }
  return one_host;
}

bool meet(const Membership& membership, c10d::Store& store, std::chrono::milliseconds timeout) {
  store.set(member_key(membership.rank()), c10::str("world size ", membership.world_size(), ", backend ",
                                                    membership.backend, '\n', loopback_domain()));
  wait_for_members(membership, store, timeout);
  return compare_members(membership, store);
}

}  // namespace

std::shared_ptr<Communicator> join(const Membership& membership, const StorePtr& store,
                                   std::chrono::milliseconds timeout, bool store_in_rank_0) {
  if (membership.world_size() == 1) return make_local_communicator();
  const StorePtr own = group_store(membership, store);
  own->setTimeout(timeout);
  const bool one_host = meet(membership, *own, timeout);
  const auto& rendezvous = membership.rendezvous;
  const std::string address = one_host                  ? "127.0.0.1"
                              : rendezvous.host.empty() ? ""
                                                        : address_towards(rendezvous.host, rendezvous.port);

  C10dOptions options;
  options.rank = membership.rank();
  options.world_size = membership.world_size();
  options.timeout = timeout;
  options.roll_call.store_in_rank_0 = store_in_rank_0;
  options.control = [address](const StorePtr& lane, int rank, int world_size, std::chrono::milliseconds limit) {
    return make_gloo_backend(lane, rank, world_size, limit, address);
  };
  if (membership.device) {
    options.data_device = *membership.device;
    options.data = [device = *membership.device](const StorePtr& lane, int rank, int world_size,
                                                 std::chrono::milliseconds limit) {
      return make_nccl_backend(lane, rank, world_size, limit, device);
    };
  }
  try {
    return make_c10d_communicator(own, std::move(options));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(c10::str(where(membership.rank(), membership.world_size(), kOperation),
                         "could not connect to the other ranks: ", error.what()));
  }
}

}  // namespace fsdp
