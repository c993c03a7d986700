#include "comm/c10d/family.h"

#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/core/check.h"
#include "comm/core/fault_point.h"

#include <utility>

namespace fsdp {

Family::Family(c10::intrusive_ptr<c10d::Store> meeting_place, C10dOptions wanted)
    : store(std::move(meeting_place)), options(std::move(wanted)) {
  begin();
}

Family::~Family() { roll_call->leave(); }

void Family::begin() {
  if (roll_call) roll_call->leave();
  transport = nullptr;
  options.roll_call.alarm->start([this] { return own_connection(); }, options.ranks, options.roll_call.neighbours);
  const auto store_for = [&](const char* use) {
    return c10::make_intrusive<c10d::PrefixStore>(str_cat(use, '/', beginnings), own_connection());
  };
  roll_call = RollCall::start(store_for("roll_call"), options.ranks, options.roll_call);
  if (options.data && !options.data_device.is_cpu())
    windows = std::make_shared<IssuedWindows>(store_for("windows"), options.ranks);
}

// The other one may be in the middle of a wait.
c10::intrusive_ptr<c10d::Store> Family::own_connection() const {
  try {
    return store->clone();
  } catch (const c10::DistError& error) {
    const std::string detail = first_line(error.what());
    if (dynamic_cast<const c10d::TimeoutError*>(&error) == nullptr && answers())
      throw Error(str_cat(options.ranks.where(kConnecting), "no second connection to the rendezvous store: ", detail,
                          ". The limit on open files (ulimit -n) may be reached, here or where the store is."));
    raise(lost_store(detail), options.ranks, kConnecting);
  }
}

Verdict Family::lost_store(const std::string& detail) const {
  return store_lost(options.ranks.rank, options.roll_call.store_in_rank_0, detail, "");
}

bool Family::answers() const {
  try {
    store->check({"roll_call"});
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

c10::intrusive_ptr<c10d::Backend> Family::connect(const BackendFactory& factory, const std::string& name, int rank,
                                                  int world_size) const {
  const std::string prefix = str_cat("lane/", beginnings, '/', name);
  return factory(c10::make_intrusive<c10d::PrefixStore>(prefix, store), rank, world_size, options.timeout);
}

void Family::meet_again() const {
  const auto& ranks = options.ranks;
  const auto key = [&](int who) { return str_cat("again/", beginnings, '/', who); };
  std::vector<std::string> keys;
  for (int peer = 0; peer < ranks.world_size; ++peer) keys.push_back(key(peer));
  int missing = 0;
  try {
    store->set(key(ranks.rank), "");
    fault_point("starting over");
    store->wait(keys, options.timeout);
  } catch (const std::exception&) {
    try {
      while (missing + 1 < ranks.world_size && store->check({key(missing)})) ++missing;
    } catch (const std::exception& error) {
      raise(lost_store(first_line(error.what())), ranks, kStartingOver);
    }
    const int name = ranks.name_of(missing);
    throw PeerLost(name, str_cat(ranks.where(kStartingOver), "rank ", name, " did not start over within ",
                                 in_seconds(options.timeout),
                                 ". Call reset_iter_state() on every rank; if it has ended, look at its output and "
                                 "start all ranks again."));
  }
}

}  // namespace fsdp
