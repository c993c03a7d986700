#include "state/format/sharding_info.h"

#include <nlohmann/json.hpp>

#include "state/format/header.h"

namespace fsdp::state {

std::map<std::string, std::string> sharding_info(const std::vector<Entry>& entries,
                                                 const std::map<std::string, int64_t>& first_rows) {
  auto places = nlohmann::json::object();
  for (const auto& entry : entries) {
    std::vector<int64_t> offsets(stored_sizes(entry).size());
    if (!offsets.empty()) offsets[0] = first_rows.at(entry.name);
    places[entry.name] = {{"saved_offsets", offsets}};
  }
  return {{"format", "pt"}, {"DCP_VERSION", "1.0"}, {"DCP_SHARDING_INFO", places.dump()}};
}

}  // namespace fsdp::state
