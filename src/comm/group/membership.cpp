#include "comm/group/membership.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "comm/c10d/backends.h"
#include "comm/core/check.h"

#include <charconv>
#include <cstdlib>

namespace fsdp {
namespace {

// Parses "host:port" or "[::1]:port".
void parse_address(const std::string& address, RendezvousParameters& rendezvous) {
  const size_t colon = address.rfind(':');
  require(colon != std::string::npos && colon > 0, kInitPrefix, "expected the address \"host:port\", found \"", address,
          "\".");
  const char *begin = address.data() + colon + 1, *end = address.data() + address.size();
  const auto [parsed, error] = std::from_chars(begin, end, rendezvous.port);
  require(error == std::errc() && parsed == end && rendezvous.port > 0, kInitPrefix,
          "expected a port from 1 to 65535 in the address, found \"", address, "\".");
  rendezvous.host = without_brackets(address.substr(0, colon));
  rendezvous.agent_hosts_store = false;
}

const DeviceBackend& callers_backend(const ProcessGroupOptions& options) {
  require(options.backend == "auto" || options.backend == "gloo", kInitPrefix,
          "with the option device_backend, expected the backend \"auto\" or \"gloo\", found \"", options.backend,
          "\".");
  require(options.device_backend->make != nullptr, kInitPrefix,
          "the option device_backend has no function `make`, which constructs the backend.");
  require(!options.device_backend->device.is_cpu(), kInitPrefix,
          "expected an accelerator as the device of the option device_backend, found ", options.device_backend->device,
          ". Tensors on the CPU go over Gloo.");
  return *options.device_backend;
}

// Returns this rank's place among the ranks, and the address at which they meet.
RendezvousParameters resolve_rendezvous(const ProcessGroupOptions& options) {
  require(options.timeout.count() > 0, kInitPrefix, "expected a timeout above zero, found ", options.timeout.count(),
          " ms.");
  require(options.rank.has_value() == options.world_size.has_value(), kInitPrefix,
          "the options rank and world_size go together, found only ", options.rank ? "rank." : "world_size.");
  const bool environment_asked = !options.rank || (*options.world_size > 1 && !options.store && !options.address);
  std::optional<RendezvousParameters> environment;
  if (environment_asked) environment = rendezvous_from_environment();

  RendezvousParameters rendezvous = environment.value_or(RendezvousParameters{});
  if (options.rank) {
    rendezvous.rank = *options.rank;
    rendezvous.world_size = *options.world_size;
    if (!environment) rendezvous.local_rank = rendezvous.rank;
  }
  if (options.local_rank) rendezvous.local_rank = *options.local_rank;
  if (options.address) parse_address(*options.address, rendezvous);

  const int rank = rendezvous.rank, world_size = rendezvous.world_size;
  require(world_size >= 1, kInitPrefix, "expected a world_size of at least 1, found ", world_size, ".");
  require(rank >= 0 && rank < world_size, kInitPrefix, "expected a rank from 0 to ", world_size - 1, " (world_size is ",
          world_size, "), found ", rank, ".");
  require(rendezvous.local_rank >= 0, kInitPrefix, "expected a local_rank of at least 0, found ", rendezvous.local_rank,
          ".");
  require(world_size == 1 || options.store || !rendezvous.host.empty(), kInitPrefix, world_size,
          " ranks need a place to meet: set MASTER_ADDR and MASTER_PORT, or the option address.");
  return rendezvous;
}

}  // namespace

BackendChoice choose_backend(const std::string& asked, int local_rank, const CudaSupport& cuda) {
  const bool on_cpu = asked == "cpu" || asked == "shm" || asked == "gloo" || asked == "hierarchical";
  require(on_cpu || asked == "auto" || asked == "nccl", kInitPrefix,
          "expected the backend \"auto\", \"nccl\", \"cpu\", \"shm\", \"gloo\" or \"hierarchical\", found \"", asked,
          "\".");
  const bool available = cuda.has_nccl && cuda.devices > 0;
  require(asked != "nccl" || available, kInitPrefix, "the backend \"nccl\" is not available: ",
          cuda.has_nccl ? "LibTorch sees no CUDA device here" : "this build of fsdp has no NCCL",
          ". Use \"cpu\" or \"auto\".");
  if (on_cpu) return {asked};
  if (!available) return {"cpu"};
  require(local_rank < cuda.devices, kInitPrefix,
          "the backend \"nccl\" gives each rank on a host its own CUDA device: local rank ", local_rank, " needs ",
          local_rank + 1, " devices, found ", cuda.devices, ". Start at most ", cuda.devices,
          cuda.devices == 1 ? " rank" : " ranks", " on this host, use the backend \"cpu\" for tensors on the CPU, or, ",
          "if the launcher shows each rank only its own device, set the option local_rank to 0.");
  return {"nccl", c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(local_rank))};
}

CudaSupport cuda_support() {
  constexpr auto kCuda = c10::DeviceType::CUDA;
  const bool known = c10::impl::hasDeviceGuardImpl(kCuda);
  return {has_nccl(), known ? c10::impl::VirtualGuardImpl(kCuda).deviceCount() : 0};
}

void make_current(c10::Device device) { c10::impl::VirtualGuardImpl(device.type()).setDevice(device); }

Membership resolve_membership(const ProcessGroupOptions& options) {
  const RendezvousParameters rendezvous = resolve_rendezvous(options);
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string check = variable("FSDP_CHECK");
  require(check.empty() || check == "each", kInitPrefix, "expected FSDP_CHECK to be unset or \"each\", found \"", check,
          "\".");
  Membership membership{.parameters = rendezvous,
                        .ranks = {rendezvous.rank, rendezvous.world_size},
                        .backend = "gloo",
                        .host = variable("FSDP_HOST"),
                        .compares_first = check == "each"};
  if (options.device_backend) {
    membership.device_backend = callers_backend(options);
    return membership;
  }
  auto [backend, device] = choose_backend(options.backend, rendezvous.local_rank, cuda_support());
  membership.backend = std::move(backend);
  if (device)
    membership.device_backend = {*device, [own = *device](const auto& store, int rank, int world_size, auto timeout) {
                                   return make_nccl_backend(store, rank, world_size, timeout, own);
                                 }};
  return membership;
}

}  // namespace fsdp
