// What LibTorch's own operators do with their operands.

#include "runtime/operator_traits.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace fsdp::runtime {
namespace {

using Op = OperatorKind;

OperatorTraits traits_of(const std::string& name, const std::string& overload = "") {
  return operator_traits(c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name).c_str(), overload.c_str()));
}

// The operators of aten whose name begins with `prefix`.
std::vector<c10::OperatorHandle> operators(const std::string& prefix) {
  std::vector<c10::OperatorHandle> found;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames())
    if (name.name.starts_with("aten::" + prefix))
      if (auto op = c10::Dispatcher::singleton().findSchema(name)) found.push_back(*op);
  return found;
}

struct Expectation {
  Op kind;
  std::vector<std::pair<std::string, std::string>> operators;  // name, overload
};

TEST(Kind, OfEachClassOfOperators) {
  const std::vector<Expectation> expectations{
      {Op::kMetadata, {{"size", "int"}, {"stride", "int"}, {"is_same_size", ""}, {"requires_grad_", ""}}},
      {Op::kDetach, {{"detach", ""}, {"detach_", ""}, {"alias", ""}}},
      {Op::kFactory,
       {{"empty_like", ""}, {"zeros_like", ""}, {"randn_like", ""}, {"new_zeros", ""}, {"new_empty", ""}}},
      {Op::kView,
       {{"view", ""},
        {"t", ""},
        {"select", "int"},
        {"slice", "Tensor"},
        {"narrow", ""},
        {"unsqueeze", ""},
        {"transpose", "int"},
        {"permute", ""},
        {"expand", ""},
        {"split", "Tensor"},
        {"chunk", ""},
        {"unbind", "int"},
        {"as_strided", ""}}},
      {Op::kViewOrCopy, {{"reshape", ""}, {"flatten", "using_ints"}, {"ravel", ""}}},
      {Op::kCopy,
       {{"copy_", ""}, {"to", "dtype"}, {"to", "device"}, {"to", "other"}, {"_to_copy", ""}, {"contiguous", ""}}},
      {Op::kClone, {{"clone", ""}}},
      {Op::kFill, {{"zero_", ""}, {"fill_", "Scalar"}, {"fill_", "Tensor"}}},
      {Op::kFused, {{"_fused_adamw_", ""}, {"_fused_adam_", ""}, {"_fused_sgd_", ""}, {"_fused_adagrad_", ""}}},
      {Op::kPointwise,
       {{"add", "Tensor"},
        {"add_", "Tensor"},
        {"mul_", "Scalar"},
        {"addcdiv_", ""},
        {"addcmul_", ""},
        {"sqrt", ""},
        {"lerp_", "Scalar"},
        {"neg", ""},
        {"sign", ""},
        {"clamp_", ""},
        {"where", "self"},
        {"div", "Tensor"},
        {"add", "out"},
        {"maximum", ""},
        {"masked_fill_", "Scalar"},
        {"masked_fill", "Tensor"},
        {"gelu_", ""},
        {"true_divide_", "Tensor"},
        {"multiply_", "Tensor"},
        {"where", "ScalarOther"},
        {"abs_", ""}}},
      {Op::kReplace,
       {{"set_", "source_Tensor"},
        {"set_data", ""},
        {"_has_compatible_shallow_copy_type", ""},
        {"resize_", ""},
        {"resize_as_", ""}}},
      {Op::kOther,
       {{"abs", ""},
        {"view_as", ""},
        {"norm", "Scalar"},
        {"linalg_vector_norm", ""},
        {"dot", ""},
        {"vdot", ""},
        {"mm", ""},
        {"matmul", ""},
        {"linear", ""},
        {"addmm", ""},
        {"embedding", ""},
        {"embedding_renorm_", ""},
        {"layer_norm", ""},
        {"conv2d", ""},
        {"lstm", "input"},
        {"sum", ""},
        {"mean", ""},
        {"max", ""},
        {"argmax", ""},
        {"std", ""},
        {"var", ""},
        {"cumsum", ""},
        {"sort", ""},
        {"softmax", "int"},
        {"cat", ""},
        {"stack", ""},
        {"equal", ""},
        {"item", ""},
        {"_local_scalar_dense", ""},
        {"index_select", ""},
        {"index", "Tensor"},
        {"index_put_", ""},
        {"roll", ""},
        {"flip", ""},
        {"scatter_", "src"},
        {"masked_scatter_", ""},
        {"where", ""},
        {"masked_select", ""},
        {"eye", "out"}}},
  };
  for (const auto& [kind, members] : expectations)
    for (const auto& [name, overload] : members)
      EXPECT_EQ(traits_of(name, overload).kind, kind) << name << '.' << overload;
}

TEST(Kind, OfEveryForeachOperatorIsElementWiseButOfTheReductions) {
  const std::set<std::string> reductions{"aten::_foreach_norm", "aten::_foreach_max", "aten::_foreach_powsum"};
  std::set<std::string> found;
  size_t count = 0;
  for (const auto& op : operators("_foreach_")) {
    auto name = op.operator_name().name;
    bool reduces = reductions.contains(name);
    if (reduces) found.insert(name);
    EXPECT_EQ(operator_traits(op).kind, reduces ? Op::kOther : Op::kForeach) << op.operator_name();
    ++count;
  }
  EXPECT_GT(count, 100);
  EXPECT_TRUE(found.contains("aten::_foreach_norm"));
}

// A reduction turns a list into a list of scalars, which its name does not show: one new in LibTorch is found here.
TEST(Kind, OfAForeachOperatorIsElementWiseOnlyIfItKeepsSizes) {
  at::NoGradGuard no_grad;
  std::vector<std::string> kept;
  for (const auto& op : operators("_foreach_")) {
    const auto& schema = op.schema();
    if (operator_traits(op).kind != Op::kForeach || schema.returns().empty() || schema.arguments().empty()) continue;
    torch::jit::Stack stack;
    for (const auto& argument : schema.arguments()) {
      if (argument.default_value())
        stack.push_back(*argument.default_value());
      else if (argument.type()->isSubtypeOf(*c10::ListType::ofTensors()))
        stack.push_back(c10::List<at::Tensor>({at::ones({3, 2})}));
      else if (argument.type()->isSubtypeOf(*c10::TensorType::get()))
        stack.push_back(at::ones({}));
      else if (argument.type()->kind() == c10::TypeKind::ListType)
        stack.push_back(c10::List<at::Scalar>({at::Scalar(1.0)}));
      else
        stack.push_back(at::Scalar(1.0));
    }
    try {
      op.callBoxed(&stack);
    } catch (const std::exception&) {
      continue;  // arguments of another form
    }
    for (const at::Tensor& result : stack.front().toTensorList())
      EXPECT_EQ(result.sizes(), at::IntArrayRef({3, 2})) << op.operator_name();
    kept.push_back(op.operator_name().name);
  }
  EXPECT_GT(kept.size(), 40);
}

TEST(Kind, OfEveryFusedOptimizerIsFused) {
  size_t count = 0;
  for (const char* prefix : {"_fused_ada", "_fused_sgd"})
    for (const auto& op : operators(prefix)) {
      EXPECT_EQ(operator_traits(op).kind, Op::kFused) << op.operator_name();
      ++count;
    }
  EXPECT_GE(count, 4);
}

// With its operands' sizes equal, a pointwise operator gives a result of those sizes; none reduces or matches rows.
TEST(Kind, OfPointwiseOperatorsIsTakenFromLibTorchsTagOrFromAShortList) {
  const std::set<std::string> listed{"masked_fill",   "where",    "multiply",   "subtract", "divide",
                                     "true_divide",   "negative", "fix",        "clip",     "greater",
                                     "greater_equal", "less",     "less_equal", "isclose",  "rsub",
                                     "hardswish",     "relu6",    "not_equal",  "absolute_"};
  size_t count = 0;
  for (const auto& op : operators("")) {
    if (operator_traits(op).kind != Op::kPointwise) continue;
    ++count;
    auto name = op.operator_name().name;
    if (op.hasTag(at::Tag::pointwise) || listed.contains(name.substr(6))) continue;
    ASSERT_TRUE(name.ends_with('_')) << op.operator_name();
    name.pop_back();
    const auto same = c10::Dispatcher::singleton().findSchema({name, op.operator_name().overload_name});
    EXPECT_TRUE(listed.contains(name.substr(6)) || (same && same->hasTag(at::Tag::pointwise))) << op.operator_name();
  }
  EXPECT_GT(count, 300);
}

TEST(Kind, OfOperatorsOutsideAtenIsOther) {
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames())
    if (auto op = c10::Dispatcher::singleton().findSchema(name); op && !name.name.starts_with("aten::")) {
      EXPECT_EQ(operator_traits(*op).kind, Op::kOther) << name;
    }
}

TEST(Random, IsWhatDrawsNumbers) {
  for (const char* name : {"normal_", "bernoulli", "dropout", "rand_like", "randn_like", "uniform_", "exponential_",
                           "random_", "multinomial"})
    EXPECT_TRUE(traits_of(name).random) << name;
  EXPECT_TRUE(traits_of("bernoulli_", "float").random);
  EXPECT_FALSE(traits_of("add", "Tensor").random);
  EXPECT_FALSE(traits_of("zeros_like").random);
}

TEST(Writes, AreThoseOfTheSchema) {
  EXPECT_TRUE(traits_of("mul_", "Tensor").writes(0));
  EXPECT_FALSE(traits_of("mul_", "Tensor").writes(1));
  EXPECT_FALSE(traits_of("mul", "Tensor").writes(0));
  EXPECT_FALSE(traits_of("view").writes(0)) << "a view aliases and does not write";
  EXPECT_TRUE(traits_of("add", "out").writes(3));
  EXPECT_FALSE(traits_of("add", "out").writes(0));
  EXPECT_TRUE(traits_of("_foreach_add_", "List").writes(0));
  EXPECT_FALSE(traits_of("_foreach_add_", "List").writes(1));
  EXPECT_TRUE(traits_of("embedding_renorm_").writes(0));
  const auto adamw = traits_of("_fused_adamw_");
  for (size_t i : {0, 1, 2, 3}) EXPECT_TRUE(adamw.writes(i)) << i;
  EXPECT_FALSE(adamw.writes(5)) << "the step counts";
}

}  // namespace
}  // namespace fsdp::runtime
