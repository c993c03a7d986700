// Tests which tensors of a value are cast, and which parts of it stay as they are.

#include <fsdp/cast.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace fsdp::test {

struct OwnBatch {
  torch::Tensor images;
  std::vector<std::optional<torch::Tensor>> masks;
  int64_t count = 0;
};

template <class Visit>
void visit_tensors(OwnBatch& batch, const Visit& visit) {
  visit(batch.images);
  visit(batch.masks);
}

namespace {

using detail::holds_tensors;

static_assert(holds_tensors<torch::Tensor>() && holds_tensors<std::map<std::string, std::vector<torch::Tensor>>>());
static_assert(holds_tensors<std::pair<int, std::array<OwnBatch, 2>>>() && holds_tensors<torch::IValue>());
static_assert(!holds_tensors<const torch::Tensor>() && !holds_tensors<at::TensorList>() && !holds_tensors<int>());
static_assert(!holds_tensors<std::string>() && !holds_tensors<std::filesystem::path>());
static_assert(!holds_tensors<std::vector<bool>>() && !holds_tensors<std::vector<std::shared_ptr<torch::Tensor>>>());

TEST(Cast, FloatingTensorsAreCastWhereverAValueHoldsThem) {
  const auto x = torch::ones({2});
  std::tuple<int, OwnBatch, std::map<std::string, torch::Tensor>> value{
      1, {x, {x, std::nullopt}, 3}, {{"whole numbers", torch::ones({2}, torch::kLong)}, {"x", x}, {"none", {}}}};
  cast_floating(value, torch::kBFloat16);
  auto& [number, batch, map] = value;
  EXPECT_EQ(batch.images.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(batch.masks[0]->scalar_type(), torch::kBFloat16);
  EXPECT_FALSE(batch.masks[1]);
  EXPECT_EQ(batch.count, 3);
  EXPECT_EQ(map["x"].scalar_type(), torch::kBFloat16);
  EXPECT_EQ(map["whole numbers"].scalar_type(), torch::kLong);
  EXPECT_FALSE(map["none"].defined());
  EXPECT_EQ(x.scalar_type(), torch::kFloat);
}

TEST(Cast, WhatAnIValueHoldsIsCastInACopy) {
  const auto x = torch::ones({2});
  const c10::List<torch::Tensor> list({x});
  torch::IValue value = std::make_tuple(x, list, int64_t{5});
  cast_floating(value, torch::kHalf);
  const auto& elements = value.toTupleRef().elements();
  EXPECT_EQ(elements[0].toTensor().scalar_type(), torch::kHalf);
  EXPECT_EQ(elements[1].toTensorList().get(0).scalar_type(), torch::kHalf);
  EXPECT_EQ(elements[2].toInt(), 5);
  EXPECT_EQ(list.get(0).scalar_type(), torch::kFloat);
}

TEST(Cast, GradientsGoBackThroughACast) {
  const auto x = torch::ones({2}, torch::requires_grad());
  std::vector<torch::Tensor> cast{x};
  cast_floating(cast, torch::kBFloat16);
  (cast[0] * 3).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({2}, 3.0f)));
}

TEST(Cast, ArgumentsThatForwardMayWriteToAreTheCallersOwn) {
  std::vector<torch::Tensor> cache;
  const auto keeps = [](const torch::Tensor& x, std::vector<torch::Tensor>& kept) {
    kept.push_back(x);
    return x;
  };
  const auto x = torch::ones({2});
  EXPECT_EQ(detail::call_with_inputs(torch::kHalf, keeps, x, cache).scalar_type(), torch::kFloat);
  EXPECT_EQ(cache.size(), 1u);
  const auto reads = [](const torch::Tensor& y, const std::vector<torch::Tensor>& kept) { return y + kept[0]; };
  EXPECT_EQ(detail::call_with_inputs(torch::kHalf, reads, x, cache).scalar_type(), torch::kHalf);
  EXPECT_EQ(cache[0].scalar_type(), torch::kFloat);
}

}  // namespace
}  // namespace fsdp::test
