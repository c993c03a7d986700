#include "comm/rendezvous/environment.h"

#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace fsdp {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

std::optional<Rendezvous> read(const Variables& variables) {
  return rendezvous_from_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string error_of(const Variables& variables) {
  try {
    read(variables);
  } catch (const UsageError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

Variables torchrun(const Variables& changes = {}) {
  Variables variables{
      {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "1234"}};
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

Variables slurm(const Variables& changes = {}) {
  Variables variables{{"SLURM_STEP_ID", "0"},
                      {"SLURM_PROCID", "5"},
                      {"SLURM_STEP_NUM_TASKS", "8"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_STEP_NODELIST", "node[03-05,9],other7"}};
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

TEST(Environment, WithoutALauncherThereIsNoRendezvous) {
  EXPECT_FALSE(read({}));
  EXPECT_FALSE(read({{"MASTER_ADDR", "head"}, {"MASTER_PORT", "1"}}));
  EXPECT_FALSE(read({{"RANK", ""}}));
}

TEST(Environment, ReadsTorchrun) {
  const auto place = read(torchrun());
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 3);
  EXPECT_EQ(place->world_size, 4);
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->host, "head");
  EXPECT_EQ(place->port, 1234);
  EXPECT_FALSE(place->agent_hosts_store);
  EXPECT_EQ(place->attempt, 0);
}

TEST(Environment, KnowsTheStoreOfTheLauncher) {
  const auto place = read(torchrun({{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}));
  EXPECT_TRUE(place->agent_hosts_store);
  EXPECT_EQ(place->attempt, 2);
  EXPECT_FALSE(read(torchrun({{"TORCHELASTIC_USE_AGENT_STORE", "False"}}))->agent_hosts_store);
}

TEST(Environment, BracketsOfAnIpv6AddressAreRemoved) {
  EXPECT_EQ(read(torchrun({{"MASTER_ADDR", "[::1]"}}))->host, "::1");
}

TEST(Environment, EachMissingVariableIsNamed) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    auto variables = torchrun();
    variables.erase(name);
    const std::string error = error_of(variables);
    EXPECT_THAT(error, HasSubstr(std::string("the environment variable ") + name + " is not set"));
    EXPECT_THAT(error, HasSubstr("fsdprun"));
  }
}

TEST(Environment, MalformedNumbersAreShown) {
  for (const char* value : {"7x", "-1", "+1", " 1", "1.0", "99999999999", "one"}) {
    EXPECT_THAT(error_of(torchrun({{"RANK", value}})),
                HasSubstr("RANK is '" + std::string(value) + "', expected a whole number"));
  }
  EXPECT_THAT(error_of(torchrun({{"WORLD_SIZE", "0"}})), HasSubstr("not below 1"));
}

TEST(Environment, PortsAreFrom1To65535) {
  for (const char* value : {"0", "65536", "-5", "80a"}) {
    EXPECT_THAT(error_of(torchrun({{"MASTER_PORT", value}})), HasSubstr("from 1 to 65535"));
  }
  EXPECT_EQ(read(torchrun({{"MASTER_PORT", "65535"}}))->port, 65535);
}

TEST(Environment, ARankMustBeLessThanTheWorldSize) {
  EXPECT_THAT(error_of(torchrun({{"RANK", "4"}})), HasSubstr("RANK is 4, expected less than WORLD_SIZE, which is 4"));
}

TEST(Environment, ReadsOpenMpiOnOneHost) {
  Variables variables{{"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  const auto place = read(variables);
  EXPECT_EQ(place->rank, 1);
  EXPECT_EQ(place->world_size, 2);
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->host, "127.0.0.1");
  EXPECT_EQ(place->port, 29500);

  variables["OMPI_COMM_WORLD_SIZE"] = "4";
  EXPECT_THAT(error_of(variables), HasSubstr("MASTER_ADDR is not set"));
  variables["MASTER_ADDR"] = "head";
  variables["MASTER_PORT"] = "77";
  EXPECT_EQ(read(variables)->host, "head");
  EXPECT_EQ(read(variables)->port, 77);
}

TEST(Environment, ReadsPmi) {
  Variables variables{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "head"}};
  EXPECT_THAT(error_of(variables), HasSubstr("MPI_LOCALRANKID is not set"));
  variables["MPI_LOCALRANKID"] = "1";
  EXPECT_EQ(read(variables)->local_rank, 1);
  variables.erase("MASTER_ADDR");
  variables["MPI_LOCALNRANKS"] = "2";
  EXPECT_EQ(read(variables)->host, "127.0.0.1");
}

TEST(Environment, PmiUnderSlurmTakesWhatPmiDoesNotTellFromSlurm) {
  const auto place = read(slurm({{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}}));
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->host, "node03");
}

TEST(Environment, ReadsASlurmStep) {
  const auto place = read(slurm());
  EXPECT_EQ(place->rank, 5);
  EXPECT_EQ(place->world_size, 8);
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->host, "node03");
  EXPECT_EQ(place->port, 29500);
  EXPECT_EQ(read(slurm({{"MASTER_ADDR", "head"}}))->host, "head");
  EXPECT_THAT(error_of(slurm({{"SLURM_STEP_NODELIST", "node[1"}})), HasSubstr("SLURM_STEP_NODELIST is 'node[1'"));
}

TEST(Environment, ASlurmStepWithoutItsOwnTaskCountUsesTheJobs) {
  auto variables = slurm({{"SLURM_NTASKS", "6"}});
  variables.erase("SLURM_STEP_NUM_TASKS");
  EXPECT_EQ(read(variables)->world_size, 6);
}

TEST(Environment, TheShellOfASlurmJobIsNoRank) {
  auto variables = slurm({{"SLURM_NTASKS", "8"}});
  variables.erase("SLURM_STEP_ID");
  EXPECT_FALSE(read(variables));
}

TEST(Environment, TorchrunInsideASlurmStepWins) {
  auto variables = torchrun();
  variables.merge(slurm());
  EXPECT_EQ(read(variables)->host, "head");
}

TEST(Environment, FirstSlurmHost) {
  EXPECT_EQ(first_slurm_host("node1"), "node1");
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_EQ(first_slurm_host("node[03-05,9],other7"), "node03");
  EXPECT_EQ(first_slurm_host("node[9]"), "node9");
  EXPECT_EQ(first_slurm_host("r[1-2]n[007-010]-ib,x"), "r1n007-ib");
  for (const char* wrong : {"", ",a", "node[1", "node1]", "node[]", "node[a-b]"}) {
    EXPECT_EQ(first_slurm_host(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace fsdp
