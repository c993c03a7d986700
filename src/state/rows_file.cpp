#include "state/rows_file.h"

#include <map>
#include <unordered_map>

#include "layout/boxes.h"
#include "state/format/safetensors.h"
#include "state/format/sharding_info.h"
#include "state/torch_dtype.h"

namespace fsdp::state {
namespace {

// What one file has of a tensor.
struct WrittenBox {
  const RowsToWrite* rows;
  layout::Box box;
};

void write_file(const std::string& folder, const std::string& file, const std::vector<WrittenBox>& boxes,
                Manifest& manifest, TensorRecords& records) {
  std::vector<Entry> entries;
  std::map<std::string, std::vector<int64_t>> offsets;
  std::unordered_map<std::string, const WrittenBox*> by_name;
  for (const auto& written : boxes) {
    const auto& name = written.rows->name;
    entries.push_back({name, records.at(name).dtype, written.box.sizes});
    offsets[name] = written.box.offsets;
    by_name.emplace(name, &written);
  }
  SafetensorsWriter writer(folder + "/" + file, entries, sharding_info(entries, offsets));
  const auto order = writer.entries();
  for (const auto& entry : order) {
    const auto& [rows, box] = *by_name.at(entry.name);
    writer.write(bytes_in(on_cpu(rows->values, box.first_row - rows->rows.first, box.rows)));
  }
  auto result = writer.finish();
  manifest.files[file] = {result.bytes, result.header_checksum};
  for (const auto& [rows, box] : boxes)
    records.at(rows->name).parts.push_back({file, box.offsets, box.sizes, std::move(result.checksums.at(rows->name))});
}

}  // namespace

void write_rows(const std::string& folder, const std::string& stem, const std::vector<RowsToWrite>& list,
                Manifest& manifest, TensorRecords& records) {
  std::vector<std::vector<WrittenBox>> files;
  for (const auto& rows : list) {
    TensorRecord record{dtype_of(rows.values.scalar_type(), rows.name), rows.sizes, {}};
    auto boxes = layout::boxes_of(rows.sizes, rows.joined_dims, rows.share);
    if (!boxes.empty() || record.numel() == 0) records.emplace(rows.name, std::move(record));
    if (files.size() < boxes.size()) files.resize(boxes.size());
    for (size_t i = 0; i < boxes.size(); ++i) files[i].push_back({&rows, std::move(boxes[i])});
  }
  for (size_t i = 0; i < files.size(); ++i)
    write_file(folder, stem + (i > 0 ? "-" + std::to_string(i) : "") + ".safetensors", files[i], manifest, records);
}

}  // namespace fsdp::state
