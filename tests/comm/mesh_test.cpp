// Ranks in a grid whose axes have names.

#include <fsdp/collectives.h>
#include <fsdp/device_mesh.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/core/local_communicator.h"
#include "comm/error_of.h"
#include "support/recording_communicator.h"
#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Shape = std::vector<int>;
using Names = std::vector<std::string>;

// The ranks that take part in a collective over the group.
std::vector<int> who_answers(const std::shared_ptr<ProcessGroup>& group) {
  const auto ranks = all_gather(torch::tensor(fsdp::rank()), group);
  std::vector<int> numbers;
  for (int64_t i = 0; i < ranks.numel(); ++i) numbers.push_back(ranks[i].item<int>());
  return numbers;
}

// No rank leaves before all are done.
void run_mesh(int world_size, const std::function<void(int rank)>& fn) {
  run_thread_ranks(world_size, [&](int rank) {
    fn(rank);
    barrier();
  });
}

TEST(Mesh, HasItsRanksInRowMajorOrder) {
  run_thread_ranks(8, [](int rank) {
    const auto mesh = init_device_mesh({2, 4}, {"replicate", "shard"});
    EXPECT_EQ(mesh.ndim(), 2);
    EXPECT_EQ(mesh.size(), 8);
    EXPECT_EQ(mesh.size("replicate"), 2);
    EXPECT_EQ(mesh.size("shard"), 4);
    EXPECT_THAT(mesh.shape(), ElementsAre(2, 4));
    EXPECT_THAT(mesh.mesh_dim_names(), ElementsAre("replicate", "shard"));
    EXPECT_THAT(mesh.ranks(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
    EXPECT_EQ(mesh.rank(), rank);
    EXPECT_THAT(mesh.coordinate(), ElementsAre(rank / 4, rank % 4));
    EXPECT_EQ(mesh.coordinate("replicate"), rank / 4);
    EXPECT_EQ(mesh.coordinate("shard"), rank % 4);
  });
}

TEST(Mesh, WithoutSizesHasOneAxisThatIsTheWholeGroup) {
  for (const int world : {1, 2}) {
    run_thread_ranks(world, [world](int rank) {
      const auto mesh = init_device_mesh();
      EXPECT_THAT(mesh.shape(), ElementsAre(world));
      EXPECT_THAT(mesh.mesh_dim_names(), ElementsAre("shard"));
      EXPECT_THAT(mesh.coordinate(), ElementsAre(rank));
      EXPECT_EQ(mesh.process_group(), default_process_group());
      EXPECT_EQ(mesh.process_group("shard"), default_process_group());
    });
  }
}

TEST(Mesh, TheGroupOfAnAxisHasTheRanksThatDifferOnItOnly) {
  for (const auto& [rows, columns] : std::vector<std::pair<int, int>>{{1, 1}, {1, 2}, {2, 1}, {3, 2}}) {
    run_mesh(rows * columns, [rows = rows, columns = columns](int rank) {
      const auto mesh = init_device_mesh({rows, columns}, {"replicate", "shard"});
      std::vector<int> own_row, own_column;
      for (int i = 0; i < columns; ++i) own_row.push_back(rank / columns * columns + i);
      for (int i = 0; i < rows; ++i) own_column.push_back(i * columns + rank % columns);
      EXPECT_EQ(who_answers(mesh.process_group("shard")), own_row);
      EXPECT_EQ(who_answers(mesh.process_group("replicate")), own_column);
      for (const char* axis : {"replicate", "shard"}) {
        EXPECT_EQ(mesh.process_group(axis)->rank(), mesh.coordinate(axis));
        EXPECT_EQ(mesh.process_group(axis)->global_ranks(), mesh[axis].ranks());
        EXPECT_EQ(mesh.process_group(axis)->local_rank(), rank);
      }
    });
  }
}

TEST(Mesh, OfASubgroupHasItsGlobalRanks) {
  run_mesh(8, [](int rank) {
    const auto half = default_process_group()->split({{0, 1, 2, 3}, {4, 5, 6, 7}}, "halves");
    const auto mesh = init_device_mesh({2, 2}, {"replicate", "shard"}, half);
    const int first = rank / 4 * 4;
    EXPECT_THAT(mesh.ranks(), ElementsAre(first, first + 1, first + 2, first + 3));
    EXPECT_THAT(mesh["replicate"].ranks(), ElementsAre(first + rank % 2, first + rank % 2 + 2));
    EXPECT_THAT(who_answers(mesh.process_group("replicate")), ElementsAre(first + rank % 2, first + rank % 2 + 2));
    EXPECT_EQ(mesh.rank(), rank);
    const auto alone = init_device_mesh({1, 4}, {"stage", "shard"}, half).process_group("stage");
    EXPECT_THAT(alone->global_ranks(), ElementsAre(rank));
    EXPECT_EQ(alone->where("step"), c10::str("[fsdp rank ", rank, "/8, 'stage' 0/1] step: "));
  });
}

TEST(SubMesh, OfOneAxisIsThisRanksLineAlongIt) {
  run_mesh(4, [](int rank) {
    const auto mesh = init_device_mesh({2, 2}, {"replicate", "shard"});
    const auto row = mesh["shard"], column = mesh["replicate"];
    EXPECT_THAT(row.ranks(), ElementsAre(rank / 2 * 2, rank / 2 * 2 + 1));
    EXPECT_THAT(column.ranks(), ElementsAre(rank % 2, rank % 2 + 2));
    EXPECT_THAT(row.coordinate(), ElementsAre(rank % 2));
    EXPECT_EQ(row.process_group(), mesh.process_group("shard"));
    EXPECT_EQ(row["shard"], row);
    const auto outlives = init_device_mesh({2, 2}, {"replicate", "shard"}).process_group("shard");
    EXPECT_EQ(who_answers(outlives), row.ranks());
  });
}

TEST(SubMesh, OfSeveralAxesHasThemInTheOrderOfTheNames) {
  run_mesh(8, [](int rank) {
    const auto mesh = init_device_mesh({2, 2, 2}, {"stage", "replicate", "shard"});
    const int outer = rank / 4, middle = rank / 2 % 2, inner = rank % 2;
    const auto stage = mesh[{"replicate", "shard"}];
    const int first = 4 * outer;
    EXPECT_THAT(stage.mesh_dim_names(), ElementsAre("replicate", "shard"));
    EXPECT_THAT(stage.coordinate(), ElementsAre(middle, inner));
    EXPECT_THAT(stage.ranks(), ElementsAre(first, first + 1, first + 2, first + 3));
    EXPECT_EQ(stage.process_group("replicate"), mesh.process_group("replicate"));
    const auto turned = mesh[{"shard", "stage"}];
    const int corner = 2 * middle;
    EXPECT_THAT(turned.coordinate(), ElementsAre(inner, outer));
    EXPECT_THAT(turned.ranks(), ElementsAre(corner, corner + 4, corner + 1, corner + 5));
    EXPECT_EQ(turned["stage"], mesh["stage"]);
  });
}

TEST(Mesh, IsEqualWhereRanksPlacesAndNamesAreAndPrintsThem) {
  run_mesh(4, [](int rank) {
    const auto mesh = init_device_mesh({2, 2}, {"replicate", "shard"});
    EXPECT_EQ(mesh, init_device_mesh({2, 2}, {"replicate", "shard"}));
    EXPECT_FALSE(mesh == init_device_mesh({2, 2}, {"shard", "replicate"}));
    EXPECT_FALSE(mesh == init_device_mesh({1, 4}, {"replicate", "shard"}));
    EXPECT_FALSE(mesh == (mesh[{"shard", "replicate"}]));
    EXPECT_FALSE(mesh == mesh["shard"]);
    const auto rows = init_device_mesh({2}, {"shard"}, mesh.process_group("shard"));
    EXPECT_EQ(rows, mesh["shard"]) << "on rank " << rank;
    if (rank == 2) {
      EXPECT_EQ(c10::str(mesh), "DeviceMesh(replicate=2, shard=2), rank 2 at (1, 0)");
      EXPECT_EQ(c10::str(mesh["shard"]), "DeviceMesh(shard=2), rank 2 at (0)");
    }
  });
}

// What two ranks ask of their process group in `act`, without what it takes to make it.
std::vector<std::string> asked_in(const std::function<void(int rank)>& act) {
  const auto log = std::make_shared<OperationLog>();
  std::vector<std::string> asked;
  const auto act_and_look = [&](int rank) {
    if (rank == 0) log->clear();
    act(rank);
    if (rank == 0)
      for (const auto& entry : log->entries()) asked.push_back(entry.operation + " of " + entry.subject);
    barrier();
  };
  run_thread_ranks(2, act_and_look, {.wrap = [log](auto inner, int rank) {
                     return rank == 0 ? make_recording_communicator(std::move(inner), log) : std::move(inner);
                   }});
  return asked;
}

TEST(Mesh, AnAxisOfOneRankCostsNothing) {
  const auto make = [](int rank) {
    const auto mesh = init_device_mesh({1, 2, 1}, {"stage", "shard", "replicate"});
    EXPECT_EQ(mesh.process_group("shard"), default_process_group());
    EXPECT_THAT(who_answers(mesh.process_group("stage")), ElementsAre(rank));
    EXPECT_THAT(mesh.process_group("replicate")->global_ranks(), ElementsAre(rank));
  };
  EXPECT_THAT(asked_in(make), ElementsAre("barrier of the mesh stage=1, shard=2, replicate=1"));
}

TEST(Mesh, MistakesAreErrorsBeforeAnythingIsCommunicated) {
  struct Mistake {
    Shape shape;
    Names names;
    std::string says;
  };
  const std::vector<Mistake> mistakes{
      {{2, 2},
       {"replicate", "shard"},
       "/2] init_device_mesh: expected sizes whose product is the number of ranks, 2, found 2 x 2"},
      {{2, 2}, {"replicate", "shard"}, "Change mesh_shape"},
      {{1, 1}, {"replicate", "shard"}, "the number of ranks, 2, found 1 x 1"},
      {{1 << 16, 1 << 16, 2}, {"a", "b", "c"}, "found 65536 x 65536 x 2"},
      {{2}, {"replicate", "shard"}, "found 1 sizes in mesh_shape and 2 names"},
      {{1, 2}, {}, "found 2 sizes in mesh_shape and 0 names"},
      {{}, {"shard"}, "found 0 sizes in mesh_shape and 1 names"},
      {{1, 2}, {"shard", "shard"}, "found 'shard' twice"},
      {{1, 2}, {"", "shard"}, "found an empty one for axis 0"},
      {{0, 2}, {"replicate", "shard"}, "found 0 for the axis 'replicate'"},
      {{-1, -2}, {"replicate", "shard"}, "found -1 for the axis 'replicate'"}};
  const auto make_mistakes = [&](int) {
    for (const auto& mistake : mistakes)
      EXPECT_THAT(error_of([&] { init_device_mesh(mistake.shape, mistake.names); }), HasSubstr(mistake.says));
  };
  EXPECT_THAT(asked_in(make_mistakes), IsEmpty());
}

TEST(Mesh, AxesThatItDoesNotHaveAreErrors) {
  run_mesh(2, [](int) {
    const auto mesh = init_device_mesh({1, 2}, {"replicate", "shard"});
    EXPECT_THAT(error_of([&] { mesh["tp"]; }),
                HasSubstr("/2] DeviceMesh: expected one of the axes 'replicate', 'shard', found 'tp'."));
    EXPECT_THAT(error_of([&] { mesh["shard"].size("replicate"); }), HasSubstr("found 'replicate'"));
    EXPECT_THAT(error_of([&] { mesh[{"shard", "shard"}]; }), HasSubstr("found 'shard' twice"));
    EXPECT_THAT(error_of([&] { mesh[std::initializer_list<std::string_view>{}]; }), HasSubstr("found none"));
    EXPECT_THAT(error_of([&] { mesh.process_group(); }),
                AllOf(HasSubstr("found the axes 'replicate', 'shard'"), HasSubstr("process_group(\"replicate\")")));
    EXPECT_THAT(error_of([&] { mesh.coordinate("Shard"); }), HasSubstr("found 'Shard'"));
  });
}

TEST(Mesh, RanksThatAskForDifferentOnesAreAMismatch) {
  run_thread_ranks(2, [](int rank) {
    const Shape shape = rank == 0 ? Shape{1, 2} : Shape{2, 1};
    EXPECT_THAT(error_of<Mismatch>([&] { init_device_mesh(shape, {"replicate", "shard"}); }),
                AllOf(HasSubstr("'the mesh replicate=1, shard=2'"), HasSubstr("'the mesh replicate=2, shard=1'")));
  });
  run_thread_ranks(2, [](int rank) {
    const Names names{rank == 0 ? "shard" : "replicate"};
    EXPECT_THAT(error_of<Mismatch>([&] { init_device_mesh({2}, names); }),
                AllOf(HasSubstr("'the mesh shard=2'"), HasSubstr("'the mesh replicate=2'")));
  });
}

TEST(Mesh, OfOneRankHasAnyNumberOfAxesButNoRoomForTwo) {
  EXPECT_THROW(init_device_mesh(), UsageError) << "there is no process group";
  const auto alone = std::make_shared<ProcessGroup>(make_local_communicator(), 0);
  const auto mesh = init_device_mesh({1, 1, 1}, {"stage", "replicate", "shard"}, alone);
  EXPECT_EQ(mesh.size(), 1);
  EXPECT_THAT(mesh.coordinate(), ElementsAre(0, 0, 0));
  EXPECT_THAT(mesh.ranks(), ElementsAre(0));
  EXPECT_EQ(mesh.process_group("replicate"), alone);
  EXPECT_EQ((mesh[{"shard", "stage"}].ndim()), 2);
  EXPECT_THROW(init_device_mesh({2}, {"shard"}, alone), UsageError);
  auto copy = mesh;
  EXPECT_EQ(copy, mesh);
  copy = mesh["shard"];
  EXPECT_EQ(copy.process_group(), alone);
}

}  // namespace
}  // namespace fsdp::test
