// Tests of what the library assumes about LibTorch's operators and their operands.

#include "runtime/operator_traits.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>

namespace fsdp::runtime {
namespace {

using Op = OperatorKind;

// Returns the traits of aten's operator "name.overload".
OperatorTraits traits_of(const std::string& name) {
  const auto dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return operator_traits(
      c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name.substr(0, dot)).c_str(), overload.c_str()));
}

// Returns the operators of aten whose names begin with `prefix`.
std::vector<c10::OperatorHandle> operators(const std::string& prefix) {
  std::vector<c10::OperatorHandle> found;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames())
    if (name.name.starts_with("aten::" + prefix))
      if (auto op = c10::Dispatcher::singleton().findSchema(name)) found.push_back(*op);
  return found;
}

// The expected kind of several operators, which are named like "add.Tensor add.out sqrt".
struct Expectation {
  Op kind;
  const char* operators;
};

constexpr Expectation kKinds[] = {
    {Op::kMetadata, "size.int stride.int is_same_size requires_grad_"},
    {Op::kDetach, "detach detach_ alias"},
    {Op::kFactory, "empty_like zeros_like randn_like new_zeros new_empty"},
    {Op::kView,
     "view t select.int slice.Tensor narrow unsqueeze transpose.int permute expand split.Tensor chunk unbind.int "
     "as_strided"},
    {Op::kViewOrCopy, "reshape flatten.using_ints ravel"},
    {Op::kCopy, "copy_ to.dtype to.device to.other _to_copy contiguous"},
    {Op::kClone, "clone"},
    {Op::kFill, "zero_ fill_.Scalar fill_.Tensor"},
    {Op::kFused, "_fused_adamw_ _fused_adam_ _fused_sgd_ _fused_adagrad_"},
    {Op::kPointwise,
     "add.Tensor add_.Tensor mul_.Scalar addcdiv_ addcmul_ sqrt lerp_.Scalar neg sign clamp_ where.self div.Tensor "
     "add.out maximum masked_fill_.Scalar masked_fill.Tensor gelu_ true_divide_.Tensor multiply_.Tensor "
     "where.ScalarOther abs abs_"},
    {Op::kReplace, "set_.source_Tensor set_data _has_compatible_shallow_copy_type resize_ resize_as_"},
    {Op::kOther,
     "view_as norm.Scalar linalg_vector_norm dot vdot mm matmul linear addmm embedding embedding_renorm_ "
     "layer_norm conv2d lstm.input sum mean max argmax std var cumsum sort softmax.int cat stack equal item "
     "_local_scalar_dense index_select index.Tensor index_put_ roll flip scatter_.src masked_scatter_ where "
     "masked_select eye.out"},
};

TEST(Kind, OfEachClassOfOperators) {
  for (const auto& [kind, operators] : kKinds) {
    std::istringstream names(operators);
    for (std::string name; names >> name;) EXPECT_EQ(traits_of(name).kind, kind) << name;
  }
}

TEST(Kind, OfEveryForeachOperatorIsElementWiseButOfTheReductions) {
  const std::set<std::string> reductions{"aten::_foreach_norm", "aten::_foreach_max", "aten::_foreach_powsum"};
  const auto all = operators("_foreach_");
  for (const auto& op : all)
    EXPECT_EQ(operator_traits(op).kind, reductions.contains(op.operator_name().name) ? Op::kOther : Op::kForeach)
        << op.operator_name();
  EXPECT_GT(all.size(), 100);
}

// A reduction turns a list of tensors into a list of scalars, and its name does not show that. This test finds
// reductions that a new LibTorch adds.
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
      continue;  // the operator takes other arguments
    }
    for (const at::Tensor& result : stack.front().toTensorList())
      EXPECT_EQ(result.sizes(), at::IntArrayRef({3, 2})) << op.operator_name();
    kept.push_back(op.operator_name().name);
  }
  EXPECT_GT(kept.size(), 40);
}

TEST(Kind, OfEveryFusedOptimizerIsFusedAndOfOperatorsOutsideAtenOther) {
  for (const char* prefix : {"_fused_ada", "_fused_sgd"}) {
    EXPECT_FALSE(operators(prefix).empty());
    for (const auto& op : operators(prefix)) EXPECT_EQ(operator_traits(op).kind, Op::kFused) << op.operator_name();
  }
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames())
    if (auto op = c10::Dispatcher::singleton().findSchema(name); op && !name.name.starts_with("aten::")) {
      EXPECT_EQ(operator_traits(*op).kind, Op::kOther) << name;
    }
}

TEST(Random, IsWhatDrawsNumbers) {
  for (const char* name : {"normal_", "bernoulli", "bernoulli_.float", "dropout", "rand_like", "randn_like", "uniform_",
                           "exponential_", "random_", "multinomial"})
    EXPECT_TRUE(traits_of(name).random) << name;
  for (const char* name : {"add.Tensor", "zeros_like"}) EXPECT_FALSE(traits_of(name).random) << name;
}

TEST(Writes, AreThoseOfTheSchema) {
  struct Case {
    const char* name;
    std::set<size_t> written;  // indices among the first six arguments
  };
  for (const auto& [name, written] :
       {Case{"mul_.Tensor", {0}}, Case{"mul.Tensor", {}}, Case{"view", {}}, Case{"add.out", {3}},
        Case{"_foreach_add_.List", {0}}, Case{"embedding_renorm_", {0}}, Case{"_fused_adamw_", {0, 1, 2, 3, 4}}})
    for (size_t argument = 0; argument < 6; ++argument)
      EXPECT_EQ(traits_of(name).writes(argument), written.contains(argument)) << name << ' ' << argument;
}

}  // namespace
}  // namespace fsdp::runtime
