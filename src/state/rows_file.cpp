#include "state/rows_file.h"

#include <unordered_map>

#include "state/format/safetensors.h"
#include "state/format/sharding_info.h"
#include "state/model_tensors.h"
#include "state/torch_dtype.h"

namespace fsdp::state {

void write_rows(const std::string& folder, const std::string& file, const std::vector<RowsToWrite>& list,
                Manifest& manifest, TensorRecords& records) {
  std::vector<Entry> entries;
  std::vector<const RowsToWrite*> written;
  std::map<std::string, int64_t> first_rows;
  std::unordered_map<std::string, const RowsToWrite*> by_name;
  for (const auto& rows : list) {
    TensorRecord record{dtype_of(rows.values.scalar_type(), rows.name), rows.sizes, {}};
    if (rows.share.count > 0) {
      entries.push_back({rows.name, record.dtype, record.sizes_of(rows.share.count)});
      written.push_back(&rows);
      first_rows[rows.name] = rows.share.first;
      by_name.emplace(rows.name, &rows);
    }
    if (rows.share.count > 0 || record.rows() == 0) records.emplace(rows.name, std::move(record));
  }
  if (entries.empty()) return;
  SafetensorsWriter writer(folder + "/" + file, entries, sharding_info(entries, first_rows));
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
