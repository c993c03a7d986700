// Rows and whole values: what each holds, and the steps between them, also where their forms differ.

#include "runtime/flat_params.h"

#include <fsdp/process_group.h>
#include <gtest/gtest.h>

#include <memory>

#include "support/oracle.h"

namespace fsdp::test {
namespace {

using memory::ByteClass;
using memory::Form;

const Form kFullPrecision{torch::kFloat, torch::kCPU}, kLowPrecision{torch::kBFloat16, torch::kCPU};

// On one rank, with the tensor that its whole buffer is to hold in the form of rows.
struct FlatOnRank {
  FlatOnRank(Form rows, Form whole) {
    const std::vector<layout::Item> items{{21, 7}, {5, 5}};
    flat = std::make_unique<runtime::FlatParams>(runtime::FlatForms{rows, whole},
                                                 layout::plan_rows(items, world_size(), 32), rank(), account);
    flat->allocate_shard(ranks.share(flat->whole().bytes(), whole.device, {"flat", {}}));
    values = torch::arange(flat->whole().numel, torch::kFloat) * 1.001;
    const auto* slice = &flat->layout().boundaries[static_cast<size_t>(rank())];
    flat->rows().tensor().copy_(values.slice(0, slice[0], slice[1]));
    barrier();  // rows may be a part of what all ranks see
  }
  void gather() {
    flat->publish();
    if (flat->shares_memory()) barrier();
    flat->allocate_whole();
    flat->start_gather(ranks, {"flat", {}});
    if (flat->gather()) flat->gather()->wait();
    flat->end_gather();
    flat->order_read();
  }
  int64_t held(ByteClass cls) const { return account->current(cls); }

  Communicator& ranks = default_process_group()->communicator();
  std::shared_ptr<memory::ByteAccount> account = std::make_shared<memory::ByteAccount>();
  std::unique_ptr<runtime::FlatParams> flat;
  torch::Tensor values;
};

TEST(FlatParams, WholeValuesAreTheRowsInADtypeOfTheirOwn) {
  for (int world : worlds_up_to(3))
    run_thread_ranks(world, [&](int) {
      FlatOnRank on(kFullPrecision, kLowPrecision);
      auto& flat = *on.flat;
      EXPECT_EQ(flat.rows().tensor().scalar_type(), torch::kFloat);
      for (int step = 0; step < 2; ++step) {
        on.gather();
        EXPECT_TRUE(torch::equal(flat.whole().tensor(), on.values.to(torch::kBFloat16))) << "step " << step;
        flat.free_whole();
        barrier();  // before rows are written nobody reads
        flat.rows().tensor().add_(1);
        on.values.add_(1);
      }
    });
}

TEST(FlatParams, RowsAndWholeValuesOfTwoFormsCountWithTheirOwnBytes) {
  for (int world : worlds_up_to(3))
    run_thread_ranks(world, [&](int) {
      FlatOnRank on(kFullPrecision, kLowPrecision);
      auto& flat = *on.flat;
      const int64_t slice = flat.rows().numel, total = flat.whole().numel;
      const bool is_shared = flat.shares_memory();
      EXPECT_EQ(on.held(ByteClass::kRows), 4 * slice);
      EXPECT_EQ(on.held(ByteClass::kWhole), is_shared ? 2 * slice : 0);
      on.gather();
      EXPECT_EQ(on.held(ByteClass::kWhole), is_shared ? 2 * slice : 2 * total);
      EXPECT_EQ(flat.whole().bytes(), static_cast<size_t>(2 * total));
      flat.free_whole();
      EXPECT_EQ(on.held(ByteClass::kRows), 4 * slice);
      EXPECT_EQ(on.held(ByteClass::kWhole), is_shared ? 2 * slice : 0);
    });
}

TEST(FlatParams, RowsOfTheFormOfWholeValuesTravelAsTheyAre) {
  for (int world : worlds_up_to(3))
    run_thread_ranks(world, [&](int) {
      FlatOnRank on(kFullPrecision, kFullPrecision);
      auto& flat = *on.flat;
      on.gather();
      EXPECT_TRUE(torch::equal(flat.whole().tensor(), on.values));
      EXPECT_EQ(flat.rows().buffer == flat.whole().buffer, flat.shares_memory());
      EXPECT_EQ(on.held(ByteClass::kRows), 4 * flat.rows().numel);
      EXPECT_EQ(on.held(ByteClass::kWhole), flat.shares_memory() ? 0 : 4 * flat.whole().numel);
    });
}

TEST(FlatParams, GradientsHaveMemoryInTheFormInWhichTheyAreReduced) {
  for (const auto& whole : {kLowPrecision, kFullPrecision})
    run_thread_ranks(2, [&](int) {
      FlatOnRank on(kFullPrecision, whole);
      auto& flat = *on.flat;
      EXPECT_EQ(flat.shard().lands_elsewhere(), whole == kLowPrecision);
      const auto reduced = flat.shard().allocate_reduced();
      EXPECT_EQ(reduced.form, whole);
      EXPECT_EQ(on.held(ByteClass::kGradient), static_cast<int64_t>(whole.bytes(flat.rows().numel)));
      EXPECT_EQ(flat.shard().allocate_gradient().form, kFullPrecision);
    });
}

}  // namespace
}  // namespace fsdp::test
