#include "virtual_ranks.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <charconv>
#include <mutex>
#include <utility>

#include "comm/c10d/c10d_communicator.h"
#include "comm/core/host_grid.h"
#include "comm/core/store_message.h"
#include "comm/core/text.h"
#include "comm/group/join.h"
#include "comm/group/roster.h"
#include "comm/rendezvous/store.h"
#include "mirror_backend.h"

namespace bench {
namespace {

using fsdp::Profile, fsdp::str_cat;

std::string host_of(const Job& job, int rank) { return str_cat("host ", rank / job.ranks_per_host); }

// A store that makes up the profiles of ranks that do not run, from the first profile that a rank wrote.
class VirtualStore : public c10d::HashStore {
 public:
  using Bytes = std::vector<uint8_t>;
  using HashStore::set;

  explicit VirtualStore(Job job) : job_(std::move(job)) {}

  void set(const std::string& key, const Bytes& value) override {
    if (rank_in(key) >= 0) {
      const std::lock_guard lock(mutex_);
      if (profile_.empty()) profile_ = {value.begin(), value.end()};
    }
    HashStore::set(key, value);
  }
  Bytes get(const std::string& key) override {
    const int rank = rank_in(key);
    if (rank < 0 || check({key})) return HashStore::get(key);
    const std::lock_guard lock(mutex_);
    auto profile = fsdp::decode<Profile>(profile_);
    profile.host = host_of(job_, rank);
    const auto text = fsdp::encode(profile);
    return {text.begin(), text.end()};
  }
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override {
    std::vector<Bytes> values;
    for (const auto& key : keys) values.push_back(get(key));
    return values;
  }

 private:
  // Returns the rank whose profile is stored under `key`, or -1 if `key` is not a profile's.
  static int rank_in(const std::string& key) {
    constexpr std::string_view kProfile = "/profile/";
    const size_t begin = key.rfind(kProfile);
    int rank = -1;
    if (begin != std::string::npos)
      std::from_chars(key.data() + begin + kProfile.size(), key.data() + key.size(), rank);
    return rank;
  }

  const Job job_;
  std::mutex mutex_;
  std::string profile_;
};

using Connect = std::function<std::shared_ptr<fsdp::Communicator>(const fsdp::Rendezvous&, const std::vector<int>&)>;

// Returns a function that makes the communicator of a virtual rank.
Connect connect_virtually(const Job& job, std::shared_ptr<Issued> issued) {
  return [=](const fsdp::Rendezvous& rendezvous, const std::vector<int>& hosts) {
    const auto& ranks = rendezvous.membership.ranks;
    if (job.transport == "device")
      return make_virtual_device(ranks, issued,
                                 std::make_shared<fsdp::IssuedWindows>(
                                     c10::make_intrusive<c10d::PrefixStore>("windows", rendezvous.store), ranks));
    const auto carrier = fsdp::choose_carrier(job.transport, ranks, *rendezvous.roster, "").carrier;
    if (carrier == fsdp::Carrier::kSharedMemory) return make_virtual_host(ranks);
    fsdp::C10dOptions options;
    options.ranks = ranks;
    options.control = mirror_backends();
    options.roll_call.alarm = rendezvous.alarm;
    options.traffic.reset(new fsdp::CountByPeer{rendezvous.traffic, hosts, ranks.rank});
    if (carrier == fsdp::Carrier::kHierarchical) {
      const auto grid = fsdp::grid_of(hosts, ranks.rank);
      std::vector<int> inside;
      for (int rank = 0; rank < ranks.world_size; ++rank)
        if (grid.is_inside(rank)) inside.push_back(ranks.name_of(rank));
      options.host =
          make_virtual_communicator(ranks.in_subgroup("host", std::move(inside)), std::make_shared<Issued>());
      options.grid = grid;
    }
    return fsdp::make_c10d_communicator(rendezvous.store, std::move(options));
  };
}

std::shared_ptr<fsdp::ProcessGroup> join(fsdp::Rendezvous rendezvous, const std::shared_ptr<Counters>& counters) {
  rendezvous.connect = [=, connect = rendezvous.connect](const fsdp::Rendezvous& place, const std::vector<int>& hosts) {
    if (counters->joining_calls == 0) counters->joining_calls = place.traffic->store_calls;
    return connect(place, hosts);
  };
  return fsdp::join_as_group(rendezvous);
}

}  // namespace

VirtualRanks::VirtualRanks(Job job) : job_(std::move(job)), store_(c10::make_intrusive<VirtualStore>(job_)) {}

std::shared_ptr<fsdp::ProcessGroup> VirtualRanks::join(int rank, const std::shared_ptr<Counters>& counters) const {
  fsdp::Rendezvous rendezvous;
  rendezvous.membership.ranks = {rank, job_.ranks};
  rendezvous.membership.parameters.local_rank = rank % job_.ranks_per_host;
  rendezvous.membership.backend = "gloo";
  rendezvous.membership.host = host_of(job_, rank);
  rendezvous.store = store_;
  rendezvous.timeout = std::chrono::minutes(10);
  rendezvous.connect = connect_virtually(job_, counters->issued);
  return bench::join(std::move(rendezvous), counters);
}

std::shared_ptr<fsdp::ProcessGroup> join_counted(const Job& job, const std::shared_ptr<Counters>& counters) {
  fsdp::Rendezvous rendezvous;
  const fsdp::ProcessGroupOptions options{.backend = job.transport};
  rendezvous.membership = fsdp::resolve_membership(options);
  rendezvous.membership.host = host_of(job, rendezvous.membership.rank());
  rendezvous.timeout = options.timeout;
  rendezvous.store = fsdp::connect_store(rendezvous.membership.parameters, options.timeout);
  rendezvous.store_in_rank_0 = !rendezvous.membership.parameters.agent_hosts_store;
  return join(std::move(rendezvous), counters);
}

}  // namespace bench
