#include "state/rows_file.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fsdp/functional.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "layout/planes.h"
#include "runtime/compat.h"
#include "state/format/safetensors.h"
#include "state/format/sharding_info.h"
#include "state/torch_dtype.h"

namespace fsdp::state {
namespace {

// The part of a tensor that is written to one file.
struct WrittenBox {
  const RowsToWrite* rows;
  layout::Box box;
  int64_t first;  // index of the box's first row in `rows->values`
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
    const auto& [rows, box, first] = *by_name.at(entry.name);
    writer.write(bytes_in(on_cpu(rows->values, first, box.rows)));
  }
  auto result = writer.finish();
  manifest.files[file] = {result.bytes, result.header_checksum};
  for (const auto& [rows, box, first] : boxes)
    records.at(rows->name).parts.push_back({file, box.offsets, box.sizes, std::move(result.checksums.at(rows->name))});
}

}  // namespace

RowsToWrite with_whole_rows(RowsToWrite own) {
  if (!own.cut || own.cut->dim == 0) return own;
  const auto& axis = own.cut->axis;
  const int64_t count = own.share.count, each = (count + axis->world_size() - 1) / axis->world_size();
  const int64_t begin = std::min(each * axis->rank(), count), end = std::min(begin + each, count);
  if (count > 0) {
    const runtime::OwnOperators own_operators;
    const at::NoGradGuard no_grad;
    const auto columns = own.values.detach().narrow(0, own.share.first - own.rows.first, count);
    auto sizes = columns.sizes().vec();
    sizes[0] = each * axis->world_size();
    const auto padded = at::zeros(sizes, at::TensorOptions(columns.scalar_type()).device(columns.device()));
    padded.narrow(0, 0, count).copy_(columns);
    own.values = functional::all_to_all(padded, 0, 1, axis).narrow(0, 0, end - begin);
  }
  own.rows = own.share = {own.share.first + begin, end - begin};
  own.cut.reset();
  return own;
}

void write_rows(const std::string& folder, const std::string& stem, const std::vector<RowsToWrite>& list,
                Manifest& manifest, TensorRecords& records) {
  std::vector<std::vector<WrittenBox>> files;
  for (const auto& rows : list) {
    TensorRecord record{dtype_of(rows.values.scalar_type(), rows.name), rows.sizes, {}};
    std::vector<WrittenBox> boxes;
    for (const auto& run : rows.runs_of(rows.share))
      for (auto& box : layout::boxes_of(rows.sizes, rows.joined_dims, {run.first_of_whole, run.count})) {
        const int64_t first = run.first + (box.first_row - run.first_of_whole) - rows.rows.first;
        boxes.push_back({&rows, std::move(box), first});
      }
    if (!boxes.empty() || record.numel() == 0) records.emplace(rows.name, std::move(record));
    if (files.size() < boxes.size()) files.resize(boxes.size());
    for (size_t i = 0; i < boxes.size(); ++i) files[i].push_back(std::move(boxes[i]));
  }
  for (size_t i = 0; i < files.size(); ++i)
    write_file(folder, stem + (i > 0 ? "-" + std::to_string(i) : "") + ".safetensors", files[i], manifest, records);
}

}  // namespace fsdp::state
