#include "comm/group/backend_choice.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "comm/c10d/backends.h"
#include "comm/core/check.h"

namespace fsdp {

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
          "the backend \"nccl\" gives each rank of a host a CUDA device of its own: ", "local rank ", local_rank,
          " needs ", local_rank + 1, ", found ", cuda.devices, ". Start at most ", cuda.devices,
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

}  // namespace fsdp
