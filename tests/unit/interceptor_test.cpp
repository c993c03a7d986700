// Which operators have typed kernels: those that models and optimizers call with parameters.

#include "runtime/interceptor.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/compat.h"

namespace fsdp::runtime {
namespace {

bool has_typed_kernel(const char* name, const char* overload) {
  install_interceptor();
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).hasKernelForDispatchKey(kShardedKey);
}

// "name" or "name.overload".
void expect_typed_kernels(const std::vector<std::string>& names) {
  for (const auto& name : names) {
    const auto dot = name.find('.');
    const auto overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    EXPECT_TRUE(has_typed_kernel(("aten::" + name.substr(0, dot)).c_str(), overload.c_str())) << name;
  }
}

TEST(Interceptor, HasTypedKernelsForArithmetic) {
  expect_typed_kernels({"add.Tensor", "addmm",
                        "bmm",        "clamp",
                        "div.Tensor", "exp",
                        "gelu",       "matmul",
                        "maximum",    "mm",
                        "mul.Tensor", "mv",
                        "pow.Scalar", "softmax.int",
                        "sub.Tensor", "sum.dim_IntList",
                        "to.dtype",   "triu",
                        "where.self", "max.dim",
                        "topk",       "std_mean.correction",
                        "zeros_like"});
}

TEST(Interceptor, HasTypedKernelsForLayers) {
  expect_typed_kernels({"batch_norm",
                        "bilinear",
                        "conv1d",
                        "conv2d",
                        "conv2d.padding",
                        "conv3d",
                        "conv_transpose2d.input",
                        "embedding",
                        "embedding_bag",
                        "embedding_bag.padding_idx",
                        "group_norm",
                        "gru.data",
                        "gru.input",
                        "gru_cell",
                        "layer_norm",
                        "linear",
                        "lstm.data",
                        "lstm.input",
                        "lstm_cell",
                        "prelu",
                        "rms_norm",
                        "rnn_tanh.input",
                        "scaled_dot_product_attention"});
}

TEST(Interceptor, HasTypedKernelsForViewsElementsAndLists) {
  expect_typed_kernels({"as_strided", "cat", "chunk", "diagonal", "einsum", "expand", "gather", "index.Tensor",
                        "index_select", "narrow", "permute", "select.int", "slice.Tensor", "split.Tensor", "stack", "t",
                        "transpose.int", "unbind.int", "view"});
}

TEST(Interceptor, HasTypedKernelsForWhatOptimizersDoInPlace) {
  expect_typed_kernels({"add_.Scalar", "add_.Tensor", "addcdiv_", "addcmul_", "copy_", "lerp_.Scalar", "mul_.Scalar",
                        "mul_.Tensor", "sqrt_", "zero_"});
}

TEST(Interceptor, HasNoneForListsElementByElementAndOtherSignatures) {
  EXPECT_FALSE(has_typed_kernel("aten::_foreach_add", "List"));
  EXPECT_FALSE(has_typed_kernel("aten::_foreach_sqrt", ""));
  EXPECT_FALSE(has_typed_kernel("aten::add", "out"));
  EXPECT_FALSE(has_typed_kernel("aten::aminmax", ""));  // the boxed one of fsdp-bench intercept
  EXPECT_FALSE(has_typed_kernel("aten::kthvalue", ""));
}

}  // namespace
}  // namespace fsdp::runtime
