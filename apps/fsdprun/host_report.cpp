#include "host_report.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

namespace fsdprun {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const HostFacts& node) {
  Json facts = Json::array();
  for (const Fact& fact : node.facts)
    facts.push_back({{"name", fact.name}, {"value", fact.value}, {"compared", fact.kind == FactKind::kCompared}});
  return {{"host", node.host}, {"facts", facts}};
}

HostFacts from_json(const Json& node) {
  HostFacts result{.host = node.at("host"), .facts = {}};
  for (const Json& fact : node.at("facts")) {
    const auto kind = fact.at("compared").get<bool>() ? FactKind::kCompared : FactKind::kShown;
    result.facts.push_back({.name = fact.at("name"), .value = fact.at("value"), .kind = kind});
  }
  return result;
}

std::string value_of(const HostFacts& node, const std::string& name) {
  const auto found = std::ranges::find(node.facts, name, &Fact::name);
  return found == node.facts.end() ? "unknown" : found->value;
}

/// Returns the value that more than half of the nodes have, or an empty string if there is none.
std::string value_of_most(const std::vector<std::string>& values) {
  std::map<std::string, size_t> counts;
  for (const std::string& value : values) {
    if (2 * ++counts[value] > values.size()) return value;
  }
  return "";
}

using Rows = std::vector<std::vector<std::string>>;

std::string aligned(const Rows& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], row[column].size());
  }
  std::ostringstream text;
  for (const auto& row : rows) {
    for (size_t column = 0; column + 1 < row.size(); ++column)
      text << std::left << std::setw(static_cast<int>(widths[column]) + 2) << row[column];
    text << row.back() << '\n';
  }
  return text.str();
}

std::string fixed(double value) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << value;
  return text.str();
}

}  // namespace

std::vector<Difference> differences(const std::vector<HostFacts>& nodes) {
  std::vector<Difference> found;
  if (nodes.empty()) return found;
  for (const Fact& fact : nodes.front().facts) {
    if (fact.kind == FactKind::kShown) continue;
    Difference difference{.name = fact.name, .values = {}, .odd_nodes = {}};
    for (const HostFacts& node : nodes) difference.values.push_back(value_of(node, fact.name));
    const std::string usual = value_of_most(difference.values);
    for (size_t node = 0; node < nodes.size(); ++node)
      if (difference.values[node] != usual) difference.odd_nodes.push_back(static_cast<int>(node));
    if (!difference.odd_nodes.empty()) found.push_back(std::move(difference));
  }
  return found;
}

std::string describe(const Difference& difference, const std::vector<HostFacts>& nodes) {
  std::string text = difference.name + ": ";
  for (const int node : difference.odd_nodes) {
    const auto index = static_cast<size_t>(node);
    text += difference.values[index] + " on node " + std::to_string(node) + " (" + nodes[index].host + "), ";
  }
  const bool all = difference.odd_nodes.size() == nodes.size();
  return all ? text.substr(0, text.size() - 2) : text + value_of_most(difference.values) + " on the others";
}

std::string table(const std::vector<HostFacts>& nodes) {
  Rows rows{{""}};
  for (size_t node = 0; node < nodes.size(); ++node)
    rows[0].push_back("node " + std::to_string(node) + " (" + nodes[node].host + ")");
  for (const Fact& fact : nodes.empty() ? std::vector<Fact>{} : nodes.front().facts) {
    std::vector<std::string> row{fact.name};
    for (const HostFacts& node : nodes) row.push_back(value_of(node, fact.name));
    rows.push_back(std::move(row));
  }
  std::string text = aligned(rows);
  const auto found = differences(nodes);
  if (nodes.size() > 1 && found.empty()) text += "\nThe nodes are alike.\n";
  if (!found.empty()) text += "\nThe nodes differ:\n";
  for (const Difference& difference : found) text += "  " + describe(difference, nodes) + '\n';
  return text;
}

std::string table(const std::vector<Measurement>& measurements) {
  Rows rows{{"all-reduce", "ranks", "latency of 4 bytes", "bytes sent by a rank"}};
  for (const Measurement& measured : measurements)
    rows.push_back({measured.where, std::to_string(measured.ranks), fixed(measured.latency_microseconds) + " us",
                    fixed(measured.megabytes_per_second) + " MB/s"});
  return aligned(rows);
}

std::string json(const Diagnosis& diagnosis) {
  Json result{{"nodes", Json::array()}, {"differences", Json::array()}, {"measurements", Json::array()}};
  for (const HostFacts& node : diagnosis.nodes) result["nodes"].push_back(to_json(node));
  const auto found = differences(diagnosis.nodes);
  for (const Difference& difference : found)
    result["differences"].push_back(
        {{"name", difference.name}, {"values", difference.values}, {"odd_nodes", difference.odd_nodes}});
  for (const Measurement& measured : diagnosis.measurements)
    result["measurements"].push_back({{"where", measured.where},
                                      {"ranks", measured.ranks},
                                      {"latency_microseconds", measured.latency_microseconds},
                                      {"megabytes_per_second", measured.megabytes_per_second}});
  result["error"] = diagnosis.error;
  result["ok"] = found.empty() && diagnosis.error.empty();
  return result.dump(2) + '\n';
}

std::string encode(const HostFacts& facts) { return to_json(facts).dump(); }

std::string encode(const std::vector<HostFacts>& nodes) {
  Json all = Json::array();
  for (const HostFacts& node : nodes) all.push_back(to_json(node));
  return all.dump();
}

HostFacts decode_host(const std::string& text) { return from_json(Json::parse(text)); }

std::vector<HostFacts> decode_hosts(const std::string& text) {
  std::vector<HostFacts> nodes;
  for (const Json& node : Json::parse(text)) nodes.push_back(from_json(node));
  return nodes;
}

}  // namespace fsdprun
