#include "flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "exit.h"

namespace fsdprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Arguments = std::vector<std::string>;

Flags parse(Arguments arguments) {
  arguments.emplace_back("prog");
  return parse_flags(arguments);
}

std::string refusal_of(const Arguments& arguments) {
  try {
    parse_flags(arguments);
  } catch (const Exit& exit) {
    EXPECT_EQ(exit.status(), kWrongFlags);
    return exit.what();
  }
  return "accepted";
}

TEST(Flags, UnderscoresAndDashesAreTheSame) {
  EXPECT_EQ(parse({"--nproc-per-node", "3"}).processes_per_node, "3");
  EXPECT_EQ(parse({"--nproc_per_node=auto"}).processes_per_node, "auto");
  EXPECT_EQ(parse({"--max_restarts", "2"}).max_restarts, 2);
  EXPECT_EQ(parse({"--nnodes=2", "--node_rank=1"}).node_rank, 1);
  EXPECT_EQ(parse({"--no_prefix"}).prefix, Prefix::kNever);
  EXPECT_THAT(parse({"--no-python"}).command, ElementsAre("prog"));
}

TEST(Flags, EverythingAfterTheProgramBelongsToIt) {
  EXPECT_THAT(parse_flags({"--nnodes", "1", "prog", "--nnodes", "7", "--", "-m"}).command,
              ElementsAre("prog", "--nnodes", "7", "--", "-m"));
  EXPECT_THAT(parse_flags({"--", "prog", "--", "x"}).command, ElementsAre("prog", "--", "x"));
  EXPECT_THAT(parse_flags({"--standalone", "--", "-odd"}).command, ElementsAre("-odd"));
}

TEST(Flags, NodesMeetAtTorchrunsPlaces) {
  const std::vector<std::pair<Arguments, MeetingPlace>> places{
      {{}, {.host = "127.0.0.1", .port = 0}},
      {{"--master-port", "1234"}, {.host = "127.0.0.1", .port = 1234}},
      {{"--master-port", "1234", "--standalone"}, {.host = "127.0.0.1", .port = 0}},
      {{"--nnodes=2", "--master-addr=head"}, {.host = "head", .port = 29500}},
      {{"--nnodes=2", "--rdzv-endpoint=head:77"}, {.host = "head", .port = 77}},
      {{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=head"},
       {.host = "head", .port = 29400, .numbers_nodes_by_arrival = true}},
      {{"--rdzv-endpoint=[::1]:77"}, {.host = "::1", .port = 77}},
      {{"--rdzv-endpoint=[::1]"}, {.host = "::1", .port = 29500}}};
  for (const auto& [arguments, place] : places)
    EXPECT_EQ(parse(arguments).meeting_place, place) << testing::PrintToString(arguments);
}

TEST(Flags, NodesAreANumberOrARangeAndWaitForOthersAsTorchrunIsTold) {
  EXPECT_EQ(parse({"--nnodes=3:3", "--node-rank=2"}).nodes, (NodeRange{.least = 3, .most = 3}));
  const Flags flags = parse({"--nnodes=1:3", "--rdzv-backend=c10d", "--rdzv-endpoint=head", "--rdzv-conf",
                             "join_timeout=7,last_call_timeout=0"});
  EXPECT_EQ(flags.nodes, (NodeRange{.least = 1, .most = 3}));
  EXPECT_EQ(flags.join_timeout, std::chrono::seconds(7));
  EXPECT_EQ(flags.last_call_timeout, std::chrono::seconds(0));
}

TEST(Flags, StreamsAreOneNumberOrOnePerLocalRank) {
  const Flags flags = parse({"-r", "1", "-t", "0:3,2:2"});
  EXPECT_TRUE(flags.redirects.has_stdout(5));
  EXPECT_FALSE(flags.redirects.has_stderr(5));
  EXPECT_TRUE(flags.tee.has_stdout(0));
  EXPECT_FALSE(flags.tee.has_stdout(1));
  EXPECT_FALSE(flags.tee.has_stdout(2));
  EXPECT_TRUE(flags.tee.has_stderr(2));
  EXPECT_TRUE(parse({"-t", "0:0"}).tee.is_empty());
  EXPECT_THAT(*parse({"--local-ranks-filter=0,3"}).shown_local_ranks, ElementsAre(0, 3));
}

TEST(Flags, WrongOnesAreShown) {
  const std::string c10d = "--rdzv-backend=c10d", endpoint = "--rdzv-endpoint=head";
  std::vector<std::pair<Arguments, std::string>> refusals{
      {{"--nnodes=0", "prog"}, "--nnodes is '0'"},
      {{"--nnodes=two", "prog"}, "'two'"},
      {{"--nnodes=3:2", c10d, endpoint, "prog"}, "MIN not above MAX"},
      {{"--nnodes=1:", c10d, endpoint, "prog"}, "--nnodes is ''"},
      {{"--nnodes=0:2", c10d, endpoint, "prog"}, "--nnodes is '0'"},
      {{"--nnodes=1:2:3", c10d, endpoint, "prog"}, "--nnodes is '2:3'"},
      {{"--nnodes=1:3", "prog"}, "needs --rdzv-backend c10d"},
      {{"--nnodes=1:3", "--standalone", "prog"}, "for one node"},
      {{"--nnodes=2", "--standalone", "prog"}, "for one node"},
      {{"--nnodes=2", c10d, "prog"}, "needs --rdzv-endpoint"},
      {{"--max-restarts=-1", "prog"}, "'-1'"},
      {{"--master-port=65536", "prog"}, "from 1 to 65535"},
      {{"--node-rank=1", "prog"}, "less than --nnodes"},
      {{"--rdzv-backend=etcd", "prog"}, "static or c10d"},
      {{"--rdzv-conf=join_timeout", "prog"}, "join_timeout of --rdzv-conf is ''"},
      {{"--rdzv-conf=read_timeout=3", "prog"}, "has 'read_timeout=3'"},
      {{"--local-ranks-filter=0,x", "prog"}, "expected a list"},
      {{"--bogus", "prog"}, "unknown flag --bogus"},
      {{"-m", "package.module"}, "-m is not supported"},
      {{"--doctor", "prog"}, "does not start a program"},
      {{"--backend=gloo", "prog"}, "are allowed only with --doctor"},
      {{"--nnodes", "1"}, "no program"},
      {{}, "no program"}};
  for (const std::string wrong : {"4", "-1", "x", "0:", "0:4", "0:1,", ":1", "0:1:2"})
    refusals.push_back({{"--tee=" + wrong, "prog"}, "--tee"});
  for (const auto& [arguments, says] : refusals) EXPECT_THAT(refusal_of(arguments), HasSubstr(says));
}

TEST(Flags, TheDoctorIsARankOfThisProgram) {
  EXPECT_THAT(parse_flags({"--doctor"}).command, ElementsAre("/proc/self/exe", kDoctorRank, "auto", "text"));
  const Flags flags = parse_flags({"--doctor", "--json", "--backend=gloo", "--nproc-per-node=4"});
  EXPECT_THAT(flags.command, ElementsAre("/proc/self/exe", kDoctorRank, "gloo", "json"));
  EXPECT_EQ(flags.processes_per_node, "4");
  EXPECT_EQ(parse_flags({"--doctor"}).processes_per_node, "2");
}

TEST(Flags, HelpIsNoError) {
  try {
    parse_flags({"--help"});
    FAIL();
  } catch (const Exit& exit) {
    EXPECT_EQ(exit.status(), 0);
    EXPECT_THAT(exit.what(), HasSubstr("--nproc-per-node"));
  }
}

}  // namespace
}  // namespace fsdprun
