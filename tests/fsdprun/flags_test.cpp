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

TEST(Flags, DefaultsAreOneRankOnAFreePort) {
  const Flags flags = parse({});
  EXPECT_EQ(flags.nodes, (NodeRange{.least = 1, .most = 1}));
  EXPECT_EQ(flags.processes_per_node, "1");
  EXPECT_EQ(flags.meeting_place, (MeetingPlace{.host = "127.0.0.1", .port = 0}));
  EXPECT_EQ(flags.max_restarts, 0);
  EXPECT_TRUE(flags.redirects.is_empty());
  EXPECT_TRUE(flags.tee.is_empty());
  EXPECT_FALSE(flags.shown_local_ranks);
}

TEST(Flags, UnderscoresAndDashesAreTheSame) {
  EXPECT_EQ(parse({"--nproc-per-node", "3"}).processes_per_node, "3");
  EXPECT_EQ(parse({"--nproc_per_node=auto"}).processes_per_node, "auto");
  EXPECT_EQ(parse({"--max_restarts", "2"}).max_restarts, 2);
  EXPECT_EQ(parse({"--nnodes=2", "--node_rank=1"}).node_rank, 1);
  EXPECT_EQ(parse({"--no_prefix"}).prefix, Prefix::kNever);
}

TEST(Flags, EverythingAfterTheProgramBelongsToIt) {
  EXPECT_THAT(parse_flags({"--nnodes", "1", "prog", "--nnodes", "7", "--", "-m"}).command,
              ElementsAre("prog", "--nnodes", "7", "--", "-m"));
  EXPECT_THAT(parse_flags({"--", "prog", "--", "x"}).command, ElementsAre("prog", "--", "x"));
  EXPECT_THAT(parse_flags({"--standalone", "--", "-odd"}).command, ElementsAre("-odd"));
}

TEST(Flags, ANamedPortIsUsed) {
  EXPECT_EQ(parse({"--master-port", "1234"}).meeting_place.port, 1234);
  EXPECT_EQ(parse({"--master-port", "1234", "--standalone"}).meeting_place.port, 0);
}

TEST(Flags, SeveralNodesMeetAtTorchrunsPort) {
  EXPECT_EQ(parse({"--nnodes=2", "--master-addr=head"}).meeting_place, (MeetingPlace{.host = "head", .port = 29500}));
  EXPECT_EQ(parse({"--nnodes=2", "--rdzv-endpoint=head:77"}).meeting_place, (MeetingPlace{.host = "head", .port = 77}));
  EXPECT_EQ(parse({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=head"}).meeting_place,
            (MeetingPlace{.host = "head", .port = 29400, .numbers_nodes_by_arrival = true}));
}

TEST(Flags, Ipv6EndpointsHaveBrackets) {
  EXPECT_EQ(parse({"--rdzv-endpoint=[::1]:77"}).meeting_place.host, "::1");
  EXPECT_EQ(parse({"--rdzv-endpoint=[::1]:77"}).meeting_place.port, 77);
  EXPECT_EQ(parse({"--rdzv-endpoint=[::1]"}).meeting_place.port, 29500);
}

TEST(Flags, NodesAreANumberOrARange) {
  const Arguments arrival{"--rdzv-backend=c10d", "--rdzv-endpoint=head"};
  EXPECT_EQ(parse({"--nnodes=3:3", "--node-rank=2"}).nodes, (NodeRange{.least = 3, .most = 3}));
  EXPECT_EQ(parse({"--nnodes=1:3", arrival[0], arrival[1]}).nodes, (NodeRange{.least = 1, .most = 3}));
  EXPECT_THAT(refusal_of({"--nnodes=3:2", arrival[0], arrival[1], "prog"}), HasSubstr("MIN not above MAX"));
  EXPECT_THAT(refusal_of({"--nnodes=1:", arrival[0], arrival[1], "prog"}), HasSubstr("--nnodes is ''"));
  EXPECT_THAT(refusal_of({"--nnodes=0:2", arrival[0], arrival[1], "prog"}), HasSubstr("--nnodes is '0'"));
  EXPECT_THAT(refusal_of({"--nnodes=1:2:3", arrival[0], arrival[1], "prog"}), HasSubstr("--nnodes is '2:3'"));
  EXPECT_THAT(refusal_of({"--nnodes=1:3", "prog"}), HasSubstr("needs --rdzv-backend c10d"));
  EXPECT_THAT(refusal_of({"--nnodes=1:3", "--standalone", "prog"}), HasSubstr("for one node"));
}

TEST(Flags, HowLongNodesWaitForOthersIsTorchrunsSetting) {
  EXPECT_EQ(parse({}).join_timeout, std::chrono::seconds(600));
  EXPECT_EQ(parse({}).last_call_timeout, std::chrono::seconds(30));
  const Flags flags = parse({"--rdzv-conf", "join_timeout=7,last_call_timeout=0"});
  EXPECT_EQ(flags.join_timeout, std::chrono::seconds(7));
  EXPECT_EQ(flags.last_call_timeout, std::chrono::seconds(0));
  EXPECT_THAT(refusal_of({"--rdzv-conf=join_timeout", "prog"}), HasSubstr("join_timeout of --rdzv-conf is ''"));
  EXPECT_THAT(refusal_of({"--rdzv-conf=read_timeout=3", "prog"}), HasSubstr("has 'read_timeout=3'"));
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
  for (const char* wrong : {"4", "-1", "x", "0:", "0:4", "0:1,", ":1", "0:1:2"}) {
    EXPECT_THAT(refusal_of({std::string("--tee=") + wrong, "prog"}), HasSubstr("--tee")) << wrong;
  }
}

TEST(Flags, ShownLocalRanksAreAList) {
  EXPECT_THAT(*parse({"--local-ranks-filter=0,3"}).shown_local_ranks, ElementsAre(0, 3));
  EXPECT_THAT(refusal_of({"--local-ranks-filter=0,x", "prog"}), HasSubstr("expected a list"));
}

TEST(Flags, NoPythonIsAcceptedAndModulesAreNot) {
  EXPECT_THAT(parse({"--no-python"}).command, ElementsAre("prog"));
  EXPECT_THAT(refusal_of({"-m", "package.module"}), HasSubstr("-m is not supported"));
}

TEST(Flags, WrongValuesAreShown) {
  EXPECT_THAT(refusal_of({"--nnodes=0", "prog"}), HasSubstr("--nnodes is '0'"));
  EXPECT_THAT(refusal_of({"--nnodes=two", "prog"}), HasSubstr("'two'"));
  EXPECT_THAT(refusal_of({"--max-restarts=-1", "prog"}), HasSubstr("'-1'"));
  EXPECT_THAT(refusal_of({"--master-port=65536", "prog"}), HasSubstr("from 1 to 65535"));
  EXPECT_THAT(refusal_of({"--node-rank=1", "prog"}), HasSubstr("less than --nnodes"));
  EXPECT_THAT(refusal_of({"--nnodes=2", "--standalone", "prog"}), HasSubstr("for one node"));
  EXPECT_THAT(refusal_of({"--rdzv-backend=etcd", "prog"}), HasSubstr("static or c10d"));
  EXPECT_THAT(refusal_of({"--nnodes=2", "--rdzv-backend=c10d", "prog"}), HasSubstr("needs --rdzv-endpoint"));
  EXPECT_THAT(refusal_of({"--bogus", "prog"}), HasSubstr("unknown flag --bogus"));
  EXPECT_THAT(refusal_of({"--nnodes", "1"}), HasSubstr("no program"));
  EXPECT_THAT(refusal_of({}), HasSubstr("no program"));
}

TEST(Flags, TheDoctorIsARankOfThisProgram) {
  EXPECT_THAT(parse_flags({"--doctor"}).command, ElementsAre("/proc/self/exe", kDoctorRank, "auto", "text"));
  const Flags flags = parse_flags({"--doctor", "--json", "--backend=gloo", "--nproc-per-node=4"});
  EXPECT_THAT(flags.command, ElementsAre("/proc/self/exe", kDoctorRank, "gloo", "json"));
  EXPECT_EQ(flags.processes_per_node, "4");
  EXPECT_EQ(parse_flags({"--doctor"}).processes_per_node, "2");
  EXPECT_THAT(refusal_of({"--doctor", "prog"}), HasSubstr("starts no program"));
  EXPECT_THAT(refusal_of({"--backend=gloo", "prog"}), HasSubstr("are for --doctor"));
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
