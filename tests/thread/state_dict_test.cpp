// A model's state in memory and in one file.

#include <fsdp/state_dict.h>
#include <gmock/gmock.h>

#include "support/small_net.h"
#include "unit/state_files.h"

namespace fsdp::test {
namespace {

using state::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A tied weight, a scalar and a buffer beside layers of every size.
std::shared_ptr<SmallNetImpl> tied_net(double factor = 1) {
  return build_alike([=] {
    auto net = std::make_shared<SmallNetImpl>();
    net->register_parameter("scalar", torch::tensor(0.25));
    net->register_parameter("again", net->head->weight);
    net->register_buffer("seen", torch::arange(4));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.mul_(factor);
    return net;
  });
}

TEST(StateDict, WholeTensorsComeToRank0) {
  run_thread_ranks(3, [](int r) {
    const auto plain = tied_net(), net = tied_net();
    const auto entries = full_state_dict(shard_blocks(*net));
    if (r > 0) {
      EXPECT_THAT(entries, IsEmpty());
      return;
    }
    const auto parameters = plain->named_parameters(), buffers = plain->named_buffers();
    EXPECT_THAT(entries, SizeIs(parameters.size() - 1 + buffers.size()));
    for (const auto& [name, whole] : entries) {
      const auto* found = parameters.find(name);
      EXPECT_TRUE(torch::equal(whole, (found ? *found : buffers[name]).detach())) << name;
    }
  });
}

TEST(StateDict, AFileOfWholeTensorsIsReadByAnyRanksEachItsRows) {
  const TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  for (const int from : {1, 3})
    for (const int to : {1, 2, 4}) {
      SCOPED_TRACE(c10::str(from, " ranks to ", to));
      run_thread_ranks(from, [&](int) { save_safetensors(path, shard_blocks(*tied_net(3))); });
      run_thread_ranks(to, [&](int) {
        const auto plain = tied_net(3), net = tied_net();
        net->named_buffers()["seen"].zero_();
        EXPECT_THAT(load_safetensors(path, shard_blocks(*net)), IsEmpty());
        for (const auto& parameter : net->named_parameters())
          EXPECT_TRUE(torch::equal(full_tensor(parameter.value()), plain->named_parameters()[parameter.key()]))
              << parameter.key();
        EXPECT_TRUE(torch::equal(net->named_buffers()["seen"], torch::arange(4)));
      });
    }
  const auto plain = tied_net(3), alone = tied_net();
  load_safetensors(path, *alone);
  EXPECT_TRUE(torch::equal(alone->head->weight, plain->head->weight)) << "without ranks";
}

TEST(StateDict, AFileThatCannotBeWrittenOrDoesNotFitIsAnErrorOnEveryRank) {
  const TemporaryFolder folder;
  run_thread_ranks(2, [&](int) {
    const auto net = tied_net();
    const auto group = shard_blocks(*net);
    const auto error_of = [&](const auto& act) -> std::string {
      try {
        act();
      } catch (const Error& error) {
        return error.what_without_backtrace();
      }
      return {};
    };
    EXPECT_THAT(error_of([&] { save_safetensors(folder / "none/a", group); }),
                AllOf(HasSubstr("save_safetensors: rank 0: "), HasSubstr("none/a")));
    EXPECT_THAT(error_of([&] { load_safetensors(folder / "none", group); }), HasSubstr("ranks 0, 1: "));
    save_safetensors(folder / "small",
                     fully_shard(*build_alike([] { return std::make_shared<torch::nn::LinearImpl>(5, 3); })));
    EXPECT_THAT(error_of([&] { load_safetensors(folder / "small", group); }),
                AllOf(HasSubstr("first.weight: missing"), HasSubstr("weight: extra")));
    EXPECT_THAT(load_safetensors(folder / "small", group, {.strict = false}),
                SizeIs(2 + net->parameters().size() - 1 + 1));
  });
}

}  // namespace
}  // namespace fsdp::test
