// Tests that fsdp, which manages the storage of a sharded parameter, refuses calls that give the parameter another
// storage, another type or a twin.

#include <sstream>

#include "misuse/net.h"
#include "misuse/warnings.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

constexpr const char* kTwin = "Clone the module before fsdp::fully_shard";

Words replaced(const std::string& parameter) {
  return {"@aten::", "parameter '" + parameter + "'", "rows' sizes with copy_", "before fsdp::fully_shard"};
}
Words replaced_in_scope(const std::string& parameter) {
  return {"@aten::", "parameter '" + parameter + "'", "torch::linear(x, w / sigma", "restore it afterwards"};
}
Words converted(const std::string& parameter) {
  return {"@aten::", "parameter '" + parameter + "'", "fsdp::full_tensor(p).to(...)", "before fsdp::fully_shard"};
}

std::string saved_net(c10::ScalarType dtype) {
  auto twin = std::make_shared<MisuseNetImpl>();
  twin->to(dtype);
  std::ostringstream file;
  torch::save(twin, file);
  return file.str();
}

void load_saved_net(const InTraining& t, c10::ScalarType dtype) {
  auto model = t.model();
  std::istringstream file(saved_net(dtype));
  torch::load(model, file);
}

TEST(Replacement, OfAParametersMemoryIsRefused) {
  constexpr unsigned kInAScope = kInScope | kInScopeUnrecorded | kInMemory;
  const auto zeros = [](c10::ScalarType dtype) { return torch::zeros({6, 4}, dtype); };
  expect_refused({
      {kOutside | kInScope, {"@aten::set_data: "}, {[=](auto& t) { t.p.set_data(zeros(torch::kDouble)); }}},
      {kOutside,
       replaced("up.weight"),
       {[=](auto& t) { t.p.set_data(zeros(torch::kDouble)); }, [=](auto& t) { t.p.set_data(zeros(torch::kFloat)); }}},
      {kOutsideUnrecorded,
       replaced("up.weight"),
       {[=](auto& t) { t.p.set_(zeros(torch::kDouble)); }, [=](auto& t) { t.p.resize_({2, 2}); }}},
      {kOutside | kInScope, {"parameter 'words.weight'"}, {[](auto& t) {
         nn::utils::vector_to_parameters(torch::zeros({1000}, torch::kDouble), t.net.parameters());
       }}},
      {kOutside,
       replaced("words.weight"),
       {[](auto& t) { load_saved_net(t, torch::kDouble); }, [](auto& t) { load_saved_net(t, torch::kFloat); }}},
      {kInScope, replaced_in_scope("words.weight"), {[](auto& t) { load_saved_net(t, torch::kDouble); }}},
      // A user may try each of these to compute with a normalised weight. Each error says what works instead.
      {kInScope, replaced_in_scope("up.weight"), {[](auto& t) { t.p.set_data(t.p.detach() / 2); }}},
      {kInAScope & ~kInScope,
       replaced_in_scope("up.weight"),
       {[](auto& t) { t.p.set_(t.p.detach() / 2); }, [](auto& t) { t.p.copy_(t.p / 2); },
        [](auto& t) { t.p.div_(2); }}},
  });
}

TEST(Summoning, InAForwardSaysWhatWorksThere) {
  expect_refused({{kInScope | kInScopeUnrecorded | kInMemory,
                   {"@summon_full_params: ", "is already unsharded", "torch::linear(x, w / sigma"},
                   {[](auto& t) { auto whole = summon_full_params(t.group); }}}});
}

// Outside a scope the conversion itself is refused. Inside one it succeeds, and the next use is refused. A conversion
// for printing returns a tensor without a graph.
TEST(Replacement, ByAnotherTypeOrDeviceIsRefused) {
  const std::vector<std::function<void(const InTraining&)>> acts{[](auto& t) { t.net.to(torch::kFloat); },
                                                                 [](auto& t) { t.net.to(torch::kMeta); },
                                                                 [](auto& t) { t.net.to(torch::kCPU, torch::kFloat); }};
  auto of_rows = refusal("aten::to", "up.weight", "fsdp::full_tensor(p).to(...)");
  of_rows.emplace_back("p.detach().to(...)");
  expect_refused({{kInTraining, converted("words.weight"), acts},
                  {kInScope | kInScopeUnrecorded, replaced_in_scope("words.weight"), acts},
                  {kInTraining,
                   of_rows,
                   {[](auto& t) { t.p.to(torch::kFloat); }, [](auto& t) { t.p.to(torch::kMeta); },
                    [](auto& t) { t.p.to(torch::kDouble, /*non_blocking=*/false, /*copy=*/true); }}},
                  {kOutside, {"parameter 'up.weight'", "fsdp::ForwardScope"}, {[](auto& t) {
                     t.p.to(torch::kCPU, torch::kDouble).sum().backward();
                   }}}});
}

TEST(Clone, OfAShardedModuleOrParameterIsRefused) {
  expect_refused({
      {kOutside, {"aten::clone", "parameter 'up.weight'", kTwin}, {[](auto& t) { t.net.up->clone(); }}},
      {kOutside, converted("up.weight"), {[](auto& t) { t.net.up->clone(torch::Device(torch::kMeta)); }}},
      {kInTraining, refusal("aten::clone", "up.weight", "p.detach().clone()"), {[](auto& t) { t.p.clone(); }}},
      {kInTraining, {"fsdp::full_tensor"}, {[](auto& t) { t.p.clone(); }}},
  });
  expect_training_survives([](const InTraining& t) {
    auto rows = t.p.detach().clone();
    EXPECT_EQ(rows.size(0), local_rows(t.p).count);
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
    const auto& p = t.p;
    for (bool recorded : {true, false}) {
      at::AutoGradMode mode(recorded);
      for (const auto& same : {p.to(torch::kCPU), p.cpu(), p.to(torch::kDouble), p.to(p.options()), p.contiguous()})
        EXPECT_TRUE(same.is_same(p));
    }
    t.net.to(torch::kCPU);
    t.net.to(torch::kDouble);
    t.net.to(torch::Device(torch::kCPU));
  });
}

// As long as the object lives, warnings that LibTorch gives only once are given each time, in every thread.
class WarnAlways {
 public:
  WarnAlways() { c10::WarningUtils::set_warnAlways(true); }
  ~WarnAlways() { c10::WarningUtils::set_warnAlways(false); }
};

std::string printed(const torch::Tensor& tensor) {
  std::ostringstream text;
  text << tensor;
  return text.str();
}

TEST(Printing, AParameterOrItsGradientPrintsTheRowsAndSaysSo) {
  const WarnAlways for_all_threads;
  for (auto dtype : {torch::kDouble, torch::kFloat})
    run_thread_ranks(2, [&](int) {
      auto linear = build_alike([] { return nn::Linear(4, 6); });
      linear->to(dtype);
      auto model = fully_shard(linear);
      model(torch::ones({2, 4}, dtype)).sum().backward();
      for (const auto& p : {linear->weight, linear->bias, linear->weight.grad(), linear->weight.detach()}) {
        const Warnings warnings;
        EXPECT_EQ(printed(p), printed(plain_copy(p))) << dtype;
        EXPECT_THAT(warnings.text, says({"@aten::to: ", "parameter '", "this rank's rows, so only these are printed",
                                         "fsdp::full_tensor(p)"}));
      }
      ForwardScope scope(model);
      EXPECT_EQ(printed(linear->weight), printed(full_tensor(linear->weight)));
    });
}

}  // namespace
}  // namespace fsdp::test
