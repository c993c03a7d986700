// Tests of device meshes, in which ranks form a grid with named axes.

#include <fsdp/collectives.h>
#include <fsdp/device_mesh.h>
#include <torch/torch.h>

#include "comm/core/front.h"
#include "comm/frame.h"
#include "support/recorded_ranks.h"

namespace fsdp::test {
namespace {

using testing::ElementsAre;

using Shape = std::vector<int>;
using Names = std::vector<std::string>;

const Names kBoth{"replicate", "shard"};

// Returns the ranks that take part in a collective over the group.
std::vector<int> who_answers(const std::shared_ptr<ProcessGroup>& group) {
  const auto ranks = all_gather(torch::tensor(fsdp::rank(), torch::kInt), group);
  return {ranks.const_data_ptr<int>(), ranks.const_data_ptr<int>() + ranks.numel()};
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
    run_and_meet(rows * columns, [rows = rows, columns = columns](int rank) {
      const auto mesh = init_device_mesh({rows, columns}, kBoth);
      const int row = rank / columns, column = rank % columns;
      std::vector<int> own_row, own_column, all;
      for (int i = 0; i < columns; ++i) own_row.push_back(row * columns + i);
      for (int i = 0; i < rows; ++i) own_column.push_back(i * columns + column);
      for (int i = 0; i < rows * columns; ++i) all.push_back(i);
      EXPECT_EQ(mesh.ndim(), 2);
      EXPECT_EQ(mesh.size(), rows * columns);
      EXPECT_EQ(mesh.size("replicate"), rows);
      EXPECT_THAT(mesh.shape(), ElementsAre(rows, columns));
      EXPECT_EQ(mesh.mesh_dim_names(), kBoth);
      EXPECT_EQ(mesh.ranks(), all);
      EXPECT_EQ(mesh.rank(), rank);
      EXPECT_THAT(mesh.coordinate(), ElementsAre(row, column));
      EXPECT_EQ(who_answers(mesh.process_group("shard")), own_row);
      EXPECT_EQ(who_answers(mesh.process_group("replicate")), own_column);
      for (const auto& axis : kBoth) {
        EXPECT_EQ(mesh.process_group(axis)->rank(), mesh.coordinate(axis));
        EXPECT_EQ(mesh.process_group(axis)->global_ranks(), mesh[axis].ranks());
        EXPECT_EQ(mesh.process_group(axis)->local_rank(), rank);
      }
    });
  }
}

TEST(Mesh, OfASubgroupHasItsGlobalRanks) {
  run_and_meet(5, [](int rank) {
    const auto upper = default_process_group()->split({{1, 2, 3, 4}}, "upper");
    if (!upper) return;
    const auto mesh = init_device_mesh({2, 2}, kBoth, upper);
    const std::vector<int> own_column{2 - rank % 2, 4 - rank % 2};
    EXPECT_THAT(mesh.ranks(), ElementsAre(1, 2, 3, 4));
    EXPECT_EQ(mesh["replicate"].ranks(), own_column);
    EXPECT_EQ(who_answers(mesh.process_group("replicate")), own_column);
    EXPECT_EQ(mesh.rank(), rank);
    const auto alone = init_device_mesh({1, 4}, {"stage", "shard"}, upper).process_group("stage");
    EXPECT_THAT(alone->global_ranks(), ElementsAre(rank));
    EXPECT_EQ(alone->where("step"), str_cat("[fsdp rank ", rank, "/5, 'stage' 0/1] step: "));
  });
}

TEST(SubMesh, OfOneAxisIsThisRanksLineAlongIt) {
  run_and_meet(4, [](int rank) {
    const auto mesh = init_device_mesh({2, 2}, kBoth);
    const auto row = mesh["shard"], column = mesh["replicate"];
    EXPECT_THAT(row.ranks(), ElementsAre(rank / 2 * 2, rank / 2 * 2 + 1));
    EXPECT_THAT(column.ranks(), ElementsAre(rank % 2, rank % 2 + 2));
    EXPECT_THAT(row.coordinate(), ElementsAre(rank % 2));
    EXPECT_EQ(row.process_group(), mesh.process_group("shard"));
    EXPECT_EQ(row["shard"], row);
    const auto outlives = init_device_mesh({2, 2}, kBoth).process_group("shard");
    EXPECT_EQ(who_answers(outlives), row.ranks());
  });
}

TEST(SubMesh, OfSeveralAxesHasThemInTheOrderOfTheNames) {
  run_and_meet(8, [](int rank) {
    const auto mesh = init_device_mesh({2, 2, 2}, {"stage", "replicate", "shard"});
    const int outer = rank / 4, middle = rank / 2 % 2, inner = rank % 2, first = 4 * outer, corner = 2 * middle;
    const auto stage = mesh[{"replicate", "shard"}], turned = mesh[{"shard", "stage"}];
    EXPECT_EQ(stage.mesh_dim_names(), kBoth);
    EXPECT_THAT(stage.coordinate(), ElementsAre(middle, inner));
    EXPECT_THAT(stage.ranks(), ElementsAre(first, first + 1, first + 2, first + 3));
    EXPECT_EQ(stage.process_group("replicate"), mesh.process_group("replicate"));
    EXPECT_THAT(turned.coordinate(), ElementsAre(inner, outer));
    EXPECT_THAT(turned.ranks(), ElementsAre(corner, corner + 4, corner + 1, corner + 5));
    EXPECT_EQ(turned["stage"], mesh["stage"]);
  });
}

TEST(Mesh, IsEqualWhereRanksPlacesAndNamesAreAndPrintsThem) {
  run_and_meet(2, [](int rank) {
    const auto mesh = init_device_mesh({1, 2}, kBoth);
    EXPECT_EQ(mesh, init_device_mesh({1, 2}, kBoth));
    EXPECT_FALSE(mesh == init_device_mesh({1, 2}, {"shard", "replicate"}));
    EXPECT_FALSE(mesh == init_device_mesh({2, 1}, kBoth));
    EXPECT_FALSE(mesh == (mesh[{"shard", "replicate"}]));
    EXPECT_FALSE(mesh == mesh["shard"]);
    EXPECT_EQ(init_device_mesh({2}, {"shard"}, mesh.process_group("shard")), mesh["shard"]);
    EXPECT_EQ(str_cat(mesh), str_cat("DeviceMesh(replicate=1, shard=2), rank ", rank, " at (0, ", rank, ")"));
    EXPECT_EQ(str_cat(mesh["shard"]), str_cat("DeviceMesh(shard=2), rank ", rank, " at (", rank, ")"));
  });
}

// Returns the operations of rank 0's process group during `act` on two ranks, without those that make the group.
std::vector<std::string> asked_in(const std::function<void(int rank)>& act) {
  Recorded recorded(2);
  std::vector<std::string> asked;
  const auto act_and_look = [&](int rank) {
    recorded.clear(rank);
    act(rank);
    if (rank == 0)
      for (const auto& entry : recorded.log(0).entries()) asked.push_back(entry.operation + " of " + entry.subject);
    barrier();
  };
  run_thread_ranks(2, act_and_look, recorded.options);
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
      {{2, 2}, kBoth, "/2] init_device_mesh: expected sizes whose product is the number of ranks (2), found 2 x 2"},
      {{2, 2}, kBoth, "Change mesh_shape"},
      {{1, 1}, kBoth, "the number of ranks (2), found 1 x 1"},
      {{1 << 16, 1 << 16, 2}, {"a", "b", "c"}, "found 65536 x 65536 x 2"},
      {{2}, kBoth, "found 1 sizes in mesh_shape and 2 names"},
      {{1, 2}, {}, "found 2 sizes in mesh_shape and 0 names"},
      {{}, {"shard"}, "found 0 sizes in mesh_shape and 1 names"},
      {{1, 2}, {"shard", "shard"}, "found 'shard' twice"},
      {{1, 2}, {"", "shard"}, "found an empty one for axis 0"},
      {{0, 2}, kBoth, "found 0 for the axis 'replicate'"},
      {{-1, -2}, kBoth, "found -1 for the axis 'replicate'"}};
  const auto make_mistakes = [&](int) {
    for (const auto& [shape, names, says] : mistakes)
      expect_error([&, &shape = shape, &names = names] { init_device_mesh(shape, names); }, {says});
  };
  EXPECT_THAT(asked_in(make_mistakes), testing::IsEmpty());
}

TEST(Mesh, AxesThatAreFlattenedAreOneAxisOfTheirRanks) {
  run_and_meet(8, [](int rank) {
    const auto mesh = init_device_mesh({2, 2, 2}, {"data", "pipe", "sequence"});
    const auto flat = mesh[{"data", "sequence"}].flatten("shard");
    const int pipe = rank / 2 % 2;
    const std::vector<int> members{2 * pipe, 2 * pipe + 1, 2 * pipe + 4, 2 * pipe + 5};
    EXPECT_THAT(flat.shape(), ElementsAre(4));
    EXPECT_THAT(flat.mesh_dim_names(), ElementsAre("shard"));
    EXPECT_EQ(flat.ranks(), members);
    EXPECT_EQ(who_answers(flat.process_group()), members);
    EXPECT_EQ(flat.process_group()->rank(), flat.coordinate("shard"));
    EXPECT_EQ(flat.coordinate("shard"), 2 * mesh.coordinate("data") + mesh.coordinate("sequence"));
    EXPECT_EQ(mesh.flatten("all").process_group(), default_process_group());
    expect_error([&] { static_cast<void>(mesh[{"sequence", "data"}].flatten("shard")); },
                 {"in the order in which they were laid out, found 'sequence', 'data'"});
    expect_error([&] { static_cast<void>(mesh.flatten("")); }, {"found an empty one"});
  });
}

TEST(Mesh, RanksThatAskForDifferentOnesAreAMismatch) {
  struct Asked {
    Shape shape;
    Names names;
    const char* as_text;
  };
  for (const auto& asked : std::vector<std::array<Asked, 2>>{
           {{{{1, 2}, kBoth, "replicate=1, shard=2"}, {{2, 1}, kBoth, "replicate=2, shard=1"}}},
           {{{{2}, {"shard"}, "shard=2"}, {{2}, {"replicate"}, "replicate=2"}}}})
    run_thread_ranks(2, [&](int rank) {
      const auto& [shape, names, as_text] = asked[static_cast<size_t>(rank)];
      expect_error<Mismatch>(
          [&, &shape = shape, &names = names] { init_device_mesh(shape, names); },
          {str_cat("'the mesh ", asked[0].as_text, "'"), str_cat("'the mesh ", asked[1].as_text, "'")});
    });
}

TEST(Mesh, OfOneRankHasAnyNumberOfAxesButNoOthersAndNoRoomForTwo) {
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
  expect_error([&] { mesh["tp"]; },
               {"/1] DeviceMesh: expected one of the axes 'stage', 'replicate', 'shard', found 'tp'."});
  expect_error([&] { copy.size("replicate"); }, {"found 'replicate'"});
  expect_error([&] { mesh[{"shard", "shard"}]; }, {"found 'shard' twice"});
  expect_error([&] { mesh[std::initializer_list<std::string_view>{}]; }, {"found none"});
  expect_error([&] { mesh.process_group(); },
               {"found the axes 'stage', 'replicate', 'shard'", "process_group(\"stage\")"});
  expect_error([&] { mesh.coordinate("Shard"); }, {"found 'Shard'"});
}

}  // namespace
}  // namespace fsdp::test
