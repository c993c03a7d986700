#include "state/rows_file.h"

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "state/format/safetensors.h"
#include "state/model_tensors.h"
#include "state/torch_dtype.h"

namespace fsdp::state {
namespace {

// Where an entry lies in the whole tensor: what torch.distributed.checkpoint's HuggingFaceStorageReader asks for.
std::map<std::string, std::string> metadata_of(const std::vector<const RowsToWrite*>& written) {
  auto places = nlohmann::json::object();
  for (const auto* rows : written) {
    std::vector<int64_t> offsets(rows->sizes.size());
    if (!offsets.empty()) offsets[0] = rows->share.first;
    places[rows->name] = {{"saved_offsets", offsets}};
  }
  return {{"format", "pt"}, {"DCP_VERSION", "1.0"}, {"DCP_SHARDING_INFO", places.dump()}};
}

}  // namespace

void write_rows(const std::string& folder, const std::string& file, const std::vector<RowsToWrite>& list,
                Manifest& manifest, TensorRecords& records) {
  std::vector<Entry> entries;
  std::vector<const RowsToWrite*> written;
  std::unordered_map<std::string, const RowsToWrite*> by_name;
  for (const auto& rows : list) {
    TensorRecord record{dtype_of(rows.values.scalar_type(), rows.name), rows.sizes, {}};
    if (rows.share.count > 0) {
      entries.push_back({rows.name, record.dtype, record.sizes_of(rows.share.count)});
      written.push_back(&rows);
      by_name.emplace(rows.name, &rows);
    }
    if (rows.share.count > 0 || record.rows() == 0) records.emplace(rows.name, std::move(record));
  }
  if (entries.empty()) return;
  SafetensorsWriter writer(folder + "/" + file, std::move(entries), metadata_of(written));
  const auto order = writer.entries();
  for (const auto& entry : order) {
    const auto& rows = *by_name.at(entry.name);
    writer.write(bytes_in(on_cpu(rows.values, rows.share.first - rows.rows.first, rows.share.count)));
  }
  auto result = writer.finish();
  manifest.files[file] = {result.bytes, result.header_checksum};
  for (const auto* rows : written)
    records.at(rows->name)
        .parts.push_back({file, rows->share.first, rows->share.count, std::move(result.checksums.at(rows->name))});
}

}  // namespace fsdp::state
