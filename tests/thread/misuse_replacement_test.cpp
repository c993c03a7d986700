// The storage of a sharded parameter is managed: giving it another one, another type or a twin is refused at the call.

#include <sstream>

#include "thread/misuse_net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kRemedy = "Copy values with copy_";

// Outside and inside a scope.
void expect_refused_everywhere(const std::function<std::string(const InTraining&)>& mistake,
                               const std::function<testing::Matcher<std::string>()>& expected) {
  expect_training_survives([&](const InTraining& t) {
    EXPECT_THAT(mistake(t), expected());
    ForwardScope scope(t.group);
    EXPECT_THAT(mistake(t), expected());
  });
}

testing::Matcher<std::string> refuses_to_replace(const std::string& parameter) {
  return AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/2] aten::")), HasSubstr("parameter '" + parameter + "'"),
               HasSubstr(kRemedy), HasSubstr("before fsdp::fully_shard"));
}

TEST(SetData, OfAParameterIsRefused) {
  expect_refused_everywhere(
      [](const InTraining& t) {
        return message_of([&] { t.net.up->weight.set_data(torch::zeros({6, 4}, torch::kDouble)); });
      },
      [] { return AllOf(refuses_to_replace("up.weight"), HasSubstr("aten::set_data: ")); });
  expect_refused_everywhere(
      [](const InTraining& t) {
        return message_of([&] { t.net.up->weight.set_data(torch::zeros({6, 4}, torch::kFloat)); });
      },
      [] { return refuses_to_replace("up.weight"); });
  expect_refused_everywhere(
      [](const InTraining& t) {
        torch::NoGradGuard no_grad;
        return message_of([&] { t.net.up->weight.set_(torch::zeros({6, 4}, torch::kDouble)); });
      },
      [] { return refuses_to_replace("up.weight"); });
  expect_refused_everywhere(
      [](const InTraining& t) {
        torch::NoGradGuard no_grad;
        return message_of([&] { t.net.up->weight.resize_({2, 2}); });
      },
      [] { return refuses_to_replace("up.weight"); });
}

TEST(VectorToParameters, IsRefused) {
  expect_refused_everywhere(
      [](const InTraining& t) {
        auto vector = torch::zeros({1000}, torch::kDouble);
        return message_of([&] { nn::utils::vector_to_parameters(vector, t.net.parameters()); });
      },
      [] { return HasSubstr("parameter 'words.weight'"); });
}

TEST(Load, IntoAShardedModuleIsRefused) {
  auto text = [] {
    auto twin = std::make_shared<SmallNetImpl>();
    twin->to(torch::kDouble);
    std::ostringstream file;
    torch::save(twin, file);
    return file.str();
  }();
  expect_refused_everywhere(
      [&](const InTraining& t) {
        auto model = std::static_pointer_cast<SmallNetImpl>(t.net.shared_from_this());
        std::istringstream file(text);
        return message_of([&] { torch::load(model, file); });
      },
      [] { return refuses_to_replace("words.weight"); });
}

TEST(Load, OfAFloatModelIntoADoubleOneIsRefused) {
  auto text = [] {
    std::ostringstream file;
    torch::save(std::make_shared<SmallNetImpl>(), file);
    return file.str();
  }();
  expect_refused_everywhere(
      [&](const InTraining& t) {
        auto model = std::static_pointer_cast<SmallNetImpl>(t.net.shared_from_this());
        std::istringstream file(text);
        return message_of([&] { torch::load(model, file); });
      },
      [] { return refuses_to_replace("words.weight"); });
}

TEST(ModuleTo, AnotherTypeOrDeviceIsRefused) {
  for (bool recorded : {true, false}) {
    expect_refused_everywhere(
        [&](const InTraining& t) {
          at::AutoGradMode mode(recorded);
          return message_of([&] { t.net.to(torch::kFloat); });
        },
        [] { return refuses_to_replace("words.weight"); });
    expect_refused_everywhere(
        [&](const InTraining& t) {
          at::AutoGradMode mode(recorded);
          return message_of([&] { t.net.to(torch::kMeta); });
        },
        [] { return refuses_to_replace("words.weight"); });
    expect_refused_everywhere(
        [&](const InTraining& t) {
          at::AutoGradMode mode(recorded);
          return message_of([&] { t.net.to(torch::kCPU, torch::kFloat); });
        },
        [] { return refuses_to_replace("words.weight"); });
  }
}

TEST(Clone, OfAShardedModuleIsRefused) {
  expect_training_survives([](const InTraining& t) {
    auto expected = AllOf(HasSubstr("aten::clone"), HasSubstr("parameter 'up.weight'"),
                          HasSubstr("Clone the module before fsdp::fully_shard"));
    EXPECT_THAT(message_of([&] { t.net.up->clone(); }), expected);
    EXPECT_THAT(message_of([&] { t.net.up->clone(torch::Device(torch::kMeta)); }), refuses_to_replace("up.weight"));
  });
}

TEST(Clone, OfAParameterIsRefusedAndOfItsRowsIsFine) {
  expect_training_survives([](const InTraining& t) {
    auto p = t.net.up->weight;
    EXPECT_THAT(message_of([&] { p.clone(); }),
                AllOf(refuses("aten::clone", "up.weight", "p.detach().clone()"), HasSubstr("fsdp::full_tensor")));
    {
      torch::NoGradGuard no_grad;
      EXPECT_THAT(message_of([&] { p.clone(); }), refuses("aten::clone", "up.weight", "p.detach().clone()"));
    }
    auto rows = p.detach().clone();
    EXPECT_EQ(rows.size(0), local_rows(p).count);
    EXPECT_TRUE(rows.norm().defined()) << "a plain tensor";
  });
}

template <class T>
concept EntersAnArchive = requires(T& handle, torch::serialize::OutputArchive& archive) { archive << handle; };
template <class T>
concept LeavesAnArchive = requires(T& handle, torch::serialize::InputArchive& archive) { archive >> handle; };
template <class T>
concept EntersAModule = requires(T& handle, SmallNetImpl& module) { module.register_module("child", handle); };

TEST(AShardedHandle, EntersNeitherAModuleNorAnArchive) {
  static_assert(EntersAModule<SmallNet> && EntersAnArchive<SmallNet>);
  static_assert(!EntersAModule<Sharded<SmallNet>>);
  static_assert(!EntersAnArchive<Sharded<SmallNet>> && !LeavesAnArchive<Sharded<SmallNet>>);
}

}  // namespace
}  // namespace fsdp::test
