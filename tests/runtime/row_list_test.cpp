// Tests of the list of a param group's rows and of their places in memory.

#include <gtest/gtest.h>

#include "api/group_view.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "support/oracle.h"

namespace fsdp::test {
namespace {

// On several ranks 'b' lies before 'c' and 'a' in memory, because planes with longer rows come first.
struct OutOfOrder : torch::nn::Module {
  torch::Tensor frozen = register_parameter("frozen", torch::ones({2, 2}), /*requires_grad=*/false);
  torch::Tensor a = register_parameter("a", torch::ones({4, 16}));
  torch::Tensor b = register_parameter("b", torch::ones({8, 48}));
  torch::Tensor c = register_parameter("c", torch::ones({3, 40}));
};

TEST(ListOfRows, IsInTheOrderOfMemoryAndHasEveryParameterWithItsGlobalSizes) {
  for (int world : worlds_up_to(3))
    run_thread_ranks(world, [&](int) {
      OutOfOrder net;
      std::map<std::string, torch::Tensor> parameters;
      for (const auto& item : net.named_parameters()) parameters[item.key()] = item.value();
      const auto group = fully_shard(static_cast<torch::nn::Module&>(net));
      std::set<std::string> names;
      std::map<const void*, uintptr_t> last_of_buffer;
      for (const auto& slot : param_groups(group).front()->slots()) {
        names.insert(slot.name());
        const auto& parameter = parameters.at(slot.name());
        const auto& rows = slot.rows_tensor;
        EXPECT_TRUE(slot.is(parameter));
        EXPECT_EQ(slot.sizes(), global_sizes(parameter));
        EXPECT_EQ((LocalRowRange{slot.rows().first, slot.rows().count}), local_rows(parameter));
        EXPECT_EQ(rows.numel(), slot.rows_numel());
        if (rows.numel() == 0) continue;
        const auto begin = reinterpret_cast<uintptr_t>(rows.const_data_ptr());
        EXPECT_EQ(begin, reinterpret_cast<uintptr_t>(parameter.const_data_ptr()));
        auto& last = last_of_buffer[memory::buffer_of(rows).get()];
        EXPECT_GT(begin, last) << slot.name();
        last = begin;
      }
      EXPECT_EQ(names.size(), parameters.size());
      EXPECT_LE(last_of_buffer.size(), param_groups(group).front()->flats().size()) << "a buffer for each plane";
    });
}

}  // namespace
}  // namespace fsdp::test
