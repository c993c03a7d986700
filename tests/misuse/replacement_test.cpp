// The storage of a sharded parameter is managed: giving it another one, another type or a twin is refused at the call.

#include <sstream>

#include "misuse/net.h"

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

// Outside a scope the conversion is refused, inside what comes after it.
testing::Matcher<std::string> refuses_to_convert(const std::string& parameter) {
  return AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/2] aten::")), HasSubstr("parameter '" + parameter + "'"),
               testing::AnyOf(HasSubstr(kRemedy), HasSubstr("fsdp::full_tensor(p).to(...)")),
               HasSubstr("before fsdp::fully_shard"));
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
    auto twin = std::make_shared<MisuseNetImpl>();
    twin->to(torch::kDouble);
    std::ostringstream file;
    torch::save(twin, file);
    return file.str();
  }();
  expect_refused_everywhere(
      [&](const InTraining& t) {
        auto model = std::static_pointer_cast<MisuseNetImpl>(t.net.shared_from_this());
        std::istringstream file(text);
        return message_of([&] { torch::load(model, file); });
      },
      [] { return refuses_to_replace("words.weight"); });
}

TEST(Load, OfAFloatModelIntoADoubleOneIsRefused) {
  auto text = [] {
    std::ostringstream file;
    torch::save(std::make_shared<MisuseNetImpl>(), file);
    return file.str();
  }();
  expect_refused_everywhere(
      [&](const InTraining& t) {
        auto model = std::static_pointer_cast<MisuseNetImpl>(t.net.shared_from_this());
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
        [] { return refuses_to_convert("words.weight"); });
    expect_refused_everywhere(
        [&](const InTraining& t) {
          at::AutoGradMode mode(recorded);
          return message_of([&] { t.net.to(torch::kMeta); });
        },
        [] { return refuses_to_convert("words.weight"); });
    expect_refused_everywhere(
        [&](const InTraining& t) {
          at::AutoGradMode mode(recorded);
          return message_of([&] { t.net.to(torch::kCPU, torch::kFloat); });
        },
        [] { return refuses_to_convert("words.weight"); });
  }
}

TEST(Clone, OfAShardedModuleIsRefused) {
  expect_training_survives([](const InTraining& t) {
    auto expected = AllOf(HasSubstr("aten::clone"), HasSubstr("parameter 'up.weight'"),
                          HasSubstr("Clone the module before fsdp::fully_shard"));
    EXPECT_THAT(message_of([&] { t.net.up->clone(); }), expected);
    EXPECT_THAT(message_of([&] { t.net.up->clone(torch::Device(torch::kMeta)); }), refuses_to_convert("up.weight"));
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
concept EntersAModule = requires(T& handle, MisuseNetImpl& module) { module.register_module("child", handle); };

TEST(AShardedHandle, EntersNeitherAModuleNorAnArchive) {
  static_assert(EntersAModule<MisuseNet> && EntersAnArchive<MisuseNet>);
  static_assert(!EntersAModule<Sharded<MisuseNet>>);
  static_assert(!EntersAnArchive<Sharded<MisuseNet>> && !LeavesAnArchive<Sharded<MisuseNet>>);
}

TEST(AConversion, ThatChangesNothingPasses) {
  expect_training_survives([](const InTraining& t) {
    const auto p = t.net.up->weight;
    for (bool recorded : {true, false}) {
      at::AutoGradMode mode(recorded);
      EXPECT_TRUE(p.to(torch::kCPU).is_same(p));
      EXPECT_TRUE(p.cpu().is_same(p));
      EXPECT_TRUE(p.to(torch::kDouble).is_same(p));
      EXPECT_TRUE(p.to(p.options()).is_same(p));
      EXPECT_TRUE(p.contiguous().is_same(p));
    }
    t.net.to(torch::kCPU);
    t.net.to(torch::kDouble);
    t.net.to(torch::Device(torch::kCPU));
  });
}

TEST(AConversion, OfRowsIsRefusedAndNamesFullTensor) {
  expect_training_survives([](const InTraining& t) {
    const auto p = t.net.up->weight;
    for (bool recorded : {true, false}) {
      at::AutoGradMode mode(recorded);
      for (const auto& act :
           std::vector<std::function<void()>>{[&] { p.to(torch::kFloat); }, [&] { p.to(torch::kMeta); },
                                              [&] { p.to(torch::kDouble, /*non_blocking=*/false, /*copy=*/true); }})
        EXPECT_THAT(message_of(act), AllOf(refuses("aten::to", "up.weight", "fsdp::full_tensor(p).to(...)"),
                                           HasSubstr("p.detach().to(...)")));
    }
  });
}

// Warnings that are given once are given each time while it lives, in every thread.
class WarnAlways {
 public:
  WarnAlways() { c10::WarningUtils::set_warnAlways(true); }
  ~WarnAlways() { c10::WarningUtils::set_warnAlways(false); }
};

// Collects this thread's warnings while it lives.
class Warnings : c10::WarningHandler {
 public:
  Warnings() : previous_(c10::WarningUtils::get_warning_handler()) { c10::WarningUtils::set_warning_handler(this); }
  ~Warnings() override { c10::WarningUtils::set_warning_handler(previous_); }
  void process(const c10::Warning& warning) override { text += warning.msg() + "\n"; }
  std::string text;

 private:
  c10::WarningHandler* previous_;
};

std::string printed(const torch::Tensor& tensor) {
  std::ostringstream text;
  text << tensor;
  return text.str();
}

TEST(Printing, AParameterOrItsGradientPrintsTheRowsAndSaysSo) {
  const WarnAlways for_all_threads;
  for (auto dtype : {torch::kDouble, torch::kFloat})
    run_thread_ranks(2, [&](int r) {
      auto linear = build_alike([] { return nn::Linear(4, 6); });
      linear->to(dtype);
      auto model = fully_shard(linear);
      model(torch::ones({2, 4}, dtype)).sum().backward();
      for (const auto& p : {linear->weight, linear->bias, linear->weight.grad(), linear->weight.detach()}) {
        const Warnings warnings;
        EXPECT_EQ(printed(p), printed(torch::zeros(p.sizes(), dtype).copy_(p.detach()))) << dtype;
        EXPECT_THAT(warnings.text,
                    AllOf(HasSubstr(c10::str("[fsdp rank ", r, "/2] aten::to: parameter '")),
                          HasSubstr("this rank's rows, which is what is printed"), HasSubstr("fsdp::full_tensor(p)")));
      }
      ForwardScope scope(model);
      EXPECT_EQ(printed(linear->weight), printed(full_tensor(linear->weight)));
    });
}

TEST(Printing, GivesNoTensorToTrainThrough) {
  expect_training_survives([](const InTraining& t) {
    const auto rows = t.net.up->weight.to(torch::kCPU, torch::kDouble);
    EXPECT_THAT(message_of([&] { rows.sum().backward(); }),
                AllOf(HasSubstr("parameter 'up.weight'"), HasSubstr("fsdp::ForwardScope")));
  });
}

}  // namespace
}  // namespace fsdp::test
