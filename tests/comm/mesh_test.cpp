// Ranks in a grid whose axes have names.

#include <fsdp/collectives.h>
#include <fsdp/device_mesh.h>
#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

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

template <class Exception>
std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Exception& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

std::string printed(const DeviceMesh& mesh) {
  std::ostringstream out;
  out << mesh;
  return out.str();
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
  for (const int world : {1, 2, 4}) {
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
  for (const auto& [rows, columns] : std::vector<std::pair<int, int>>{{1, 1}, {1, 2}, {2, 1}, {2, 2}, {4, 2}, {2, 4}}) {
    run_thread_ranks(rows * columns, [rows = rows, columns = columns](int rank) {
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
      barrier();
    });
  }
}

TEST(Mesh, ItsGroupsOutliveIt) {
  run_thread_ranks(4, [](int rank) {
    const auto row = init_device_mesh({2, 2}, {"replicate", "shard"}).process_group("shard");
    EXPECT_THAT(who_answers(row), ElementsAre(rank / 2 * 2, rank / 2 * 2 + 1));
    barrier();
  });
}

TEST(Mesh, OfASubgroupHasItsGlobalRanks) {
  run_thread_ranks(8, [](int rank) {
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
    barrier();
  });
}

TEST(SubMesh, OfOneAxisIsThisRanksLineAlongIt) {
  run_thread_ranks(4, [](int rank) {
    const auto mesh = init_device_mesh({2, 2}, {"replicate", "shard"});
    const auto row = mesh["shard"], column = mesh["replicate"];
    EXPECT_THAT(row.ranks(), ElementsAre(rank / 2 * 2, rank / 2 * 2 + 1));
    EXPECT_THAT(column.ranks(), ElementsAre(rank % 2, rank % 2 + 2));
    EXPECT_THAT(row.coordinate(), ElementsAre(rank % 2));
    EXPECT_EQ(row.process_group(), mesh.process_group("shard"));
    EXPECT_EQ(row["shard"], row);
    barrier();
  });
}

TEST(SubMesh, OfSeveralAxesHasThemInTheOrderOfTheNames) {
  run_thread_ranks(8, [](int rank) {
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
    barrier();
  });
}

TEST(Mesh, IsEqualWhereRanksPlacesAndNamesAre) {
  run_thread_ranks(4, [](int rank) {
    const auto mesh = init_device_mesh({2, 2}, {"replicate", "shard"});
    EXPECT_EQ(mesh, init_device_mesh({2, 2}, {"replicate", "shard"}));
    EXPECT_FALSE(mesh == init_device_mesh({2, 2}, {"shard", "replicate"}));
    EXPECT_FALSE(mesh == init_device_mesh({1, 4}, {"replicate", "shard"}));
    EXPECT_FALSE(mesh == (mesh[{"shard", "replicate"}]));
    EXPECT_FALSE(mesh == mesh["shard"]);
    const auto rows = init_device_mesh({2}, {"shard"}, mesh.process_group("shard"));
    EXPECT_EQ(rows, mesh["shard"]) << "on rank " << rank;
    barrier();
  });
}

TEST(Mesh, PrintsItsAxesAndThisRanksPlace) {
  run_thread_ranks(4, [](int rank) {
    const auto mesh = init_device_mesh({2, 2}, {"replicate", "shard"});
    if (rank == 2) {
      EXPECT_EQ(printed(mesh), "DeviceMesh(replicate=2, shard=2), rank 2 at (1, 0)");
      EXPECT_EQ(printed(mesh["shard"]), "DeviceMesh(shard=2), rank 2 at (0)");
    }
    barrier();
  });
}

// What a rank's process group was asked, without what it takes to make it.
class Recorded {
 public:
  ThreadRanksOptions options() {
    return {.wrap = [this](auto inner, int rank) {
      return rank == 0 ? make_recording_communicator(std::move(inner), log_) : std::move(inner);
    }};
  }
  // Only on rank 0.
  std::vector<std::string> subjects_since(const std::function<void()>& act) {
    log_->clear();
    act();
    std::vector<std::string> subjects;
    for (const auto& entry : log_->entries()) subjects.push_back(entry.operation + " of " + entry.subject);
    return subjects;
  }

 private:
  std::shared_ptr<OperationLog> log_ = std::make_shared<OperationLog>();
};

TEST(Mesh, AnAxisOfOneRankCostsNothing) {
  Recorded recorded;
  run_thread_ranks(
      2,
      [&](int rank) {
        const auto make = [rank] {
          const auto mesh = init_device_mesh({1, 2, 1}, {"stage", "shard", "replicate"});
          EXPECT_EQ(mesh.process_group("shard"), default_process_group());
          EXPECT_THAT(who_answers(mesh.process_group("stage")), ElementsAre(rank));
          EXPECT_THAT(mesh.process_group("replicate")->global_ranks(), ElementsAre(rank));
        };
        if (rank == 0) {
          EXPECT_THAT(recorded.subjects_since(make), ElementsAre("barrier of the mesh stage=1, shard=2, replicate=1"));
        } else {
          make();
        }
        barrier();
      },
      recorded.options());
}

TEST(Mesh, MistakesAreErrorsBeforeAnythingIsCommunicated) {
  Recorded recorded;
  const auto make_mistakes = [] {
    const auto error = [](const Shape& shape, const Names& names) {
      return error_of<UsageError>([&] { init_device_mesh(shape, names); });
    };
    EXPECT_THAT(
        error({2, 2}, {"replicate", "shard"}),
        AllOf(HasSubstr("/2] init_device_mesh: expected sizes whose product is the number of ranks, 2, found 2 x 2"),
              HasSubstr("Change mesh_shape")));
    EXPECT_THAT(error({1, 1}, {"replicate", "shard"}), HasSubstr("the number of ranks, 2, found 1 x 1"));
    EXPECT_THAT(error({1 << 16, 1 << 16, 2}, {"a", "b", "c"}), HasSubstr("found 65536 x 65536 x 2"));
    EXPECT_THAT(error({2}, {"replicate", "shard"}), HasSubstr("found 1 sizes in mesh_shape and 2 names"));
    EXPECT_THAT(error({1, 2}, {}), HasSubstr("found 2 sizes in mesh_shape and 0 names"));
    EXPECT_THAT(error({}, {"shard"}), HasSubstr("found 0 sizes in mesh_shape and 1 names"));
    EXPECT_THAT(error({1, 2}, {"shard", "shard"}), HasSubstr("found 'shard' twice"));
    EXPECT_THAT(error({1, 2}, {"", "shard"}), HasSubstr("found an empty one for axis 0"));
    EXPECT_THAT(error({0, 2}, {"replicate", "shard"}), HasSubstr("found 0 for the axis 'replicate'"));
    EXPECT_THAT(error({-1, -2}, {"replicate", "shard"}), HasSubstr("found -1 for the axis 'replicate'"));
  };
  run_thread_ranks(
      2,
      [&](int rank) {
        if (rank == 0) {
          EXPECT_THAT(recorded.subjects_since(make_mistakes), IsEmpty());
        } else {
          make_mistakes();
        }
        barrier();
      },
      recorded.options());
}

TEST(Mesh, AxesThatItDoesNotHaveAreErrors) {
  run_thread_ranks(2, [](int) {
    const auto mesh = init_device_mesh({1, 2}, {"replicate", "shard"});
    EXPECT_THAT(error_of<UsageError>([&] { mesh["tp"]; }),
                HasSubstr("/2] DeviceMesh: expected one of the axes 'replicate', 'shard', found 'tp'."));
    EXPECT_THAT(error_of<UsageError>([&] { mesh["shard"].size("replicate"); }), HasSubstr("found 'replicate'"));
    EXPECT_THAT(error_of<UsageError>([&] { mesh[{"shard", "shard"}]; }), HasSubstr("found 'shard' twice"));
    EXPECT_THAT(error_of<UsageError>([&] { mesh[std::initializer_list<std::string_view>{}]; }),
                HasSubstr("found none"));
    EXPECT_THAT(error_of<UsageError>([&] { mesh.process_group(); }),
                AllOf(HasSubstr("found the axes 'replicate', 'shard'"), HasSubstr("process_group(\"replicate\")")));
    EXPECT_THAT(error_of<UsageError>([&] { mesh.coordinate("Shard"); }), HasSubstr("found 'Shard'"));
    barrier();
  });
}

TEST(Mesh, RanksThatAskForDifferentOnesAreAMismatch) {
  const auto error = [](const Shape& shape, const Names& names) {
    return error_of<Mismatch>([&] { init_device_mesh(shape, names); });
  };
  run_thread_ranks(2, [&](int rank) {
    EXPECT_THAT(error(rank == 0 ? Shape{1, 2} : Shape{2, 1}, {"replicate", "shard"}),
                AllOf(HasSubstr("'the mesh replicate=1, shard=2'"), HasSubstr("'the mesh replicate=2, shard=1'")));
  });
  run_thread_ranks(2, [&](int rank) {
    EXPECT_THAT(error({2}, {rank == 0 ? "shard" : "replicate"}),
                AllOf(HasSubstr("'the mesh shard=2'"), HasSubstr("'the mesh replicate=2'")));
  });
}

}  // namespace
}  // namespace fsdp::test
