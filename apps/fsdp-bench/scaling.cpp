#include "scaling.h"

#include <fsdp/process_group.h>

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "join_ranks.h"
#include "scaling_case.h"
#include "statistics.h"

namespace bench {
namespace {

using Json = nlohmann::ordered_json;

/// The cost of a unit, and its ratio to the least cost in smaller models. The ratio is 1 if the total cost is
/// proportional to the number of units.
struct Cost {
  double us = 0, growth = 1;
};

/// The costs of one kind of unit in models of growing size.
class Costs {
 public:
  Cost next(double us) {
    const double growth = least_ == 0 ? 1 : us / least_;
    least_ = least_ == 0 ? us : std::min(least_, us);
    return {us, growth};
  }

 private:
  double least_ = 0;
};

struct Row {
  const char* unit;
  int64_t units;
  Cost shard, step, step_unsharded, optimizer, optimizer_unsharded;
};

/// Returns the columns of the output in their order, with their names.
const std::vector<std::pair<const char*, Cost Row::*>>& columns() {
  static const std::vector<std::pair<const char*, Cost Row::*>> all = {{"shard", &Row::shard},
                                                                       {"step", &Row::step},
                                                                       {"unsharded", &Row::step_unsharded},
                                                                       {"optimizer", &Row::optimizer},
                                                                       {"opt. unsharded", &Row::optimizer_unsharded}};
  return all;
}

template <class Visit>
void visit_rows(const ScalingArguments& arguments, const Visit& visit) {
  constexpr std::pair<const char*, ScalingUnit> kUnits[] = {
      {"groups", ScalingUnit::kGroup}, {"nesting", ScalingUnit::kNestedGroup}, {"parameters", ScalingUnit::kParameter}};
  for (const auto& [name, unit] : kUnits) {
    if (arguments.of != "all" && arguments.of != name) continue;
    time_units(unit, 10, true);  // This does work that a process does only once.
    Costs shard, step, step_unsharded, optimizer, optimizer_unsharded;
    for (int64_t units = 10; units <= arguments.largest; units *= 10) {
      const auto sharded = time_units(unit, units, true), unsharded = time_units(unit, units, false);
      visit(Row{name, units, shard.next(sharded.shard), step.next(sharded.step), step_unsharded.next(unsharded.step),
                optimizer.next(sharded.optimizer), optimizer_unsharded.next(unsharded.optimizer)});
    }
  }
}

Json to_json(const Row& row) {
  Json json = {{"of", row.unit}, {"units", row.units}};
  for (const auto& [name, cost] : columns())
    json[name] = {{"us_per_unit", round_to((row.*cost).us, 3)}, {"growth", round_to((row.*cost).growth, 3)}};
  return json;
}

void print_heading() {
  std::cout << "Microseconds per unit; x is the ratio to the lowest cost per unit of the smaller models (1: linear "
               "growth).\n\n"
            << std::left << std::setw(12) << "of" << std::right << std::setw(7) << "units";
  for (const auto& [name, cost] : columns()) std::cout << std::setw(16) << name << std::setw(7) << "x";
  std::cout << std::endl;
}

void print(const Row& row) {
  std::cout << std::left << std::setw(12) << row.unit << std::right << std::setw(7) << row.units << std::fixed;
  for (const auto& [name, cost] : columns())
    std::cout << std::setprecision(2) << std::setw(16) << (row.*cost).us << std::setw(7) << (row.*cost).growth;
  std::cout << std::endl;
}

}  // namespace

void run_scaling(const ScalingArguments& arguments) {
  join_ranks(arguments.backend, arguments.world);
  const bool prints = fsdp::rank() == 0;
  Json rows;
  if (prints && !arguments.json) print_heading();
  visit_rows(arguments, [&](const Row& row) {
    if (prints && !arguments.json) print(row);
    rows.push_back(to_json(row));
  });
  if (prints && arguments.json)
    std::cout << Json{{"world", arguments.world}, {"backend", arguments.backend}, {"rows", rows}}.dump() << std::endl;
  fsdp::destroy_process_group();
}

}  // namespace bench
