// Which operators have typed kernels: those that models call with parameters, and none that takes rows by number.

#include "runtime/interceptor.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <string>

#include "runtime/compat.h"

namespace fsdp::runtime {
namespace {

bool has_typed_kernel(const char* name, const char* overload) {
  install_interceptor();
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).hasKernelForDispatchKey(kShardedKey);
}

TEST(Interceptor, HasTypedKernelsForWhatModelsCallOften) {
  for (const char* name : {"addmm",     "batch_norm", "bmm",        "clamp",      "conv1d", "conv2d", "conv3d",
                           "embedding", "exp",        "group_norm", "layer_norm", "linear", "matmul", "maximum",
                           "mm",        "mv",         "permute",    "prelu",      "t",      "view"})
    EXPECT_TRUE(has_typed_kernel(("aten::" + std::string(name)).c_str(), "")) << name;
  for (const char* name : {"add", "div", "mul", "sub"})
    EXPECT_TRUE(has_typed_kernel(("aten::" + std::string(name)).c_str(), "Tensor")) << name;
  EXPECT_TRUE(has_typed_kernel("aten::transpose", "int"));
  EXPECT_TRUE(has_typed_kernel("aten::sum", "dim_IntList"));
  EXPECT_TRUE(has_typed_kernel("aten::softmax", "int"));
}

TEST(Interceptor, HasNoneForWritesListsAndRowsByNumber) {
  EXPECT_FALSE(has_typed_kernel("aten::add_", "Tensor"));
  EXPECT_FALSE(has_typed_kernel("aten::cat", ""));
  EXPECT_FALSE(has_typed_kernel("aten::select", "int"));
  EXPECT_FALSE(has_typed_kernel("aten::slice", "Tensor"));
  EXPECT_FALSE(has_typed_kernel("aten::diagonal", ""));
}

}  // namespace
}  // namespace fsdp::runtime
