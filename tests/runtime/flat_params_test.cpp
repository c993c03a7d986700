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

// Rows may have the form of whole values, or another one.
TEST(FlatParams, WholeValuesAreTheRowsInADtypeAndCountWithBytesOfTheirOwn) {
  for (int world : worlds_up_to(3))
    for (const auto& form : {kLowPrecision, kFullPrecision})
      run_thread_ranks(world, [&](int) {
        FlatOnRank on(kFullPrecision, form);
        auto& flat = *on.flat;
        const int64_t numel = flat.rows().numel, total = flat.whole().numel,
                      bytes = static_cast<int64_t>(form.bytes(1));
        // Over shared memory whole values are all ranks' rows; of another form they are a copy of the rows beside them.
        const int64_t kept = flat.shares_memory() && form == kLowPrecision ? bytes * numel : 0;
        const auto expect_held = [&](int64_t whole) {
          EXPECT_EQ(on.held(ByteClass::kRows), 4 * numel);
          EXPECT_EQ(on.held(ByteClass::kWhole), whole);
        };
        EXPECT_EQ(flat.rows().tensor().scalar_type(), torch::kFloat);
        for (int step = 0; step < 2; ++step) {
          expect_held(kept);
          on.gather();
          EXPECT_TRUE(torch::equal(flat.whole().tensor(), on.values.to(form.dtype))) << "step " << step;
          EXPECT_EQ(flat.whole().bytes(), static_cast<size_t>(bytes * total));
          EXPECT_EQ(flat.rows().buffer == flat.whole().buffer, flat.shares_memory() && form == kFullPrecision);
          expect_held(flat.shares_memory() ? kept : bytes * total);
          flat.free_whole();
          barrier();  // before rows are written nobody reads
          flat.rows().tensor().add_(1);
          on.values.add_(1);
        }
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
