// Tests that ranks gather groups in the same order, over every backend.

#include <gmock/gmock.h>

#include "support/oracle.h"

namespace fsdp::test {
namespace {

// Three cells that take turns to read a sequence. Each cell is a param group.
struct RecurrentNet : torch::nn::Module {
  RecurrentNet() {
    for (const char* name : {"first", "second", "third"})
      cells.push_back(register_module(name, torch::nn::GRUCell(4, 4)));
  }
  torch::Tensor forward(torch::Tensor state, int64_t steps) {
    for (int64_t step = 0; step < steps; ++step)
      for (auto& cell : cells) state = cell->forward(state, state);
    return state.sum();
  }
  std::vector<torch::nn::GRUCell> cells;
};

struct Recurrence {
  const char* name;
  std::array<int64_t, 2> steps;  // number of steps of each rank
  bool is_right;
};
constexpr Recurrence kRecurrences[] = {{"AsManyStepsOnEachRank", {3, 3}, true}, {"MoreStepsOnOneRank", {1, 3}, false}};

using RecurrenceOn = std::tuple<Recurrence, const char*>;
class GatherOrder : public testing::TestWithParam<RecurrenceOn> {};

TEST_P(GatherOrder, IsOneOnEveryRank) {
  const auto& [program, backend] = GetParam();
  run_thread_ranks_with(2, {.backend = backend}, [&, steps = program.steps, is_right = program.is_right](int rank) {
    const auto net = build_alike([] { return std::make_shared<RecurrentNet>(); });
    for (auto& cell : net->cells) fully_shard(cell);
    const auto group = fully_shard(static_cast<torch::nn::Module&>(*net));
    const auto train = [&] {
      for (int step = 0; step < 2; ++step) {
        torch::Tensor loss;
        {
          ForwardScope scope(group);
          loss = net->forward(torch::ones({2, 4}), steps[static_cast<size_t>(rank)]);
        }
        loss.backward();
      }
    };
    if (is_right)
      EXPECT_NO_THROW(train());
    else
      EXPECT_THROW(train(), Mismatch);
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, GatherOrder,
                         testing::Combine(testing::ValuesIn(kRecurrences),
                                          testing::Values("shm", "gloo", "hierarchical")),
                         [](const auto& its) {
                           return std::string(std::get<0>(its.param).name) + "_" + std::get<1>(its.param);
                         });

}  // namespace
}  // namespace fsdp::test
