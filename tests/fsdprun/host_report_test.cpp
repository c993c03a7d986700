#include "host_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

HostFacts host(const std::string& name, const std::string& torch, const std::string& memory = "64 GiB") {
  return {.host = name, .facts = {{"LibTorch", torch}, {"memory", memory, FactKind::kShown}}};
}

TEST(HostReport, NamesTheOddHost) {
  const std::vector<HostFacts> nodes{host("a", "2.11.0"), host("b", "2.10.0"), host("c", "2.11.0", "8 GiB")};
  const auto found = differences(nodes);
  ASSERT_EQ(found.size(), 1u);  // What is only shown may differ.
  EXPECT_THAT(found[0].odd_nodes, ElementsAre(1));
  EXPECT_EQ(describe(found[0], nodes), "LibTorch: 2.10.0 on node 1 (b), 2.11.0 on the others");
  EXPECT_THAT(table(nodes), HasSubstr("The nodes differ:\n  LibTorch: 2.10.0 on node 1 (b)"));
}

TEST(HostReport, NamesAllHostsWhenMostDoNotAgreeAndNoneWhenTheyAreAlike) {
  std::vector<HostFacts> nodes{host("a", "2.11.0"), host("b", "2.10.0")};
  EXPECT_EQ(describe(differences(nodes).at(0), nodes), "LibTorch: 2.11.0 on node 0 (a), 2.10.0 on node 1 (b)");
  nodes[1].facts.clear();  // a missing fact is a difference, too
  EXPECT_THAT(differences(nodes).at(0).values, ElementsAre("2.11.0", "unknown"));
  EXPECT_THAT(table({host("a", "2.11.0"), host("b", "2.11.0")}), HasSubstr("The nodes are alike."));
  EXPECT_THAT(table({host("a", "2.11.0")}), Not(HasSubstr("The nodes")));
  EXPECT_TRUE(differences({}).empty());
}

TEST(HostReport, FactsArriveAsTheyWereTold) {
  const HostFacts facts = host("a \"quoted\"", "2.11.0");
  EXPECT_EQ(decode_host(encode(facts)), facts);
  EXPECT_THAT(decode_hosts(encode(std::vector{facts, facts})), ElementsAre(facts, facts));
}

TEST(HostReport, JsonHasFactsDifferencesAndMeasurements) {
  const Diagnosis diagnosis{.nodes = {host("a", "1"), host("b", "2")},
                            .measurements = {{.where = "between hosts", .ranks = 2, .latency_microseconds = 40}}};
  const auto found = nlohmann::json::parse(json(diagnosis));
  EXPECT_EQ(found["nodes"][1]["host"], "b");
  EXPECT_EQ(found["differences"][0]["odd_nodes"], nlohmann::json({0, 1}));
  EXPECT_EQ(found["measurements"][0]["latency_microseconds"], 40);
  EXPECT_EQ(found["ok"], false);
}

}  // namespace
}  // namespace fsdprun
