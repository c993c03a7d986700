// This is the only file that includes the headers of CUDA and NCCL.
#include "comm/c10d/backends.h"

#include <fsdp/error.h>

#ifdef FSDP_HAS_NCCL
#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>
#endif

namespace fsdp {

#ifdef FSDP_HAS_NCCL

bool has_nccl() { return true; }

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int world_size, std::chrono::milliseconds timeout,
                                                    c10::Device device) {
  // By default LibTorch ends the process when a collective hangs or fails. Here NativeQueue ends the collective
  // instead; see Note [A failure on a device].
  for (const char* name : {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING"})
    setenv(name, "0", /*overwrite=*/0);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, world_size, options);
  backend->setBoundDeviceId(device);
  // Connects now, in this thread. Otherwise the lanes of a communicator and its duplicates would connect at the same
  // time.
  backend->eagerConnectSingleDevice(device);
  return backend;
}

#else

bool has_nccl() { return false; }

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                                    std::chrono::milliseconds, c10::Device) {
  throw Error(
      "[fsdp] this build has no NCCL. Use the backend \"cpu\", or build with a LibTorch for CUDA and NCCL's headers.");
}

#endif

}  // namespace fsdp
