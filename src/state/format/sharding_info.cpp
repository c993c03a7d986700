#include "state/format/sharding_info.h"

#include <nlohmann/json.hpp>

#include "state/format/header.h"

namespace fsdp::state {

std::map<std::string, std::string> sharding_info(const std::vector<Entry>& entries,
                                                 const std::map<std::string, std::vector<int64_t>>& offsets) {
  auto places = nlohmann::json::object();
  for (const auto& entry : entries) {
    auto place = offsets.at(entry.name);
    place.resize(stored_sizes(entry).size());  // an entry that is stored as pairs has one more dim
    places[entry.name] = {{"saved_offsets", place}};
  }
  return {{"format", "pt"}, {"DCP_VERSION", "1.0"}, {"DCP_SHARDING_INFO", places.dump()}};
}

}  // namespace fsdp::state
