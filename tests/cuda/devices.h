#pragma once
/// \file
/// Says why the tests of CUDA cannot run on this machine. ctest shows this program as skipped if there is no device at
/// all.

#include <c10/util/StringUtil.h>

#include <string>

#include "comm/group/membership.h"

namespace fsdp::test {

/// Returns an empty string if `count` ranks can use NCCL on this machine, and otherwise the reason for GTEST_SKIP.
inline std::string why_no_cuda(int count) {
  const CudaSupport cuda = cuda_support();
  if (cuda.devices == 0) return "no CUDA device is present";
  if (!cuda.has_nccl) return "this build of fsdp has no NCCL";
  if (cuda.devices < count) return c10::str("needs ", count, " CUDA devices, found ", cuda.devices);
  return "";
}

}  // namespace fsdp::test
