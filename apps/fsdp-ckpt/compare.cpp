#include "compare.h"

#include <algorithm>

#include "numbers.h"
#include "progress.h"
#include "state/format/sizes.h"

namespace ckpt {
namespace {

using namespace fsdp::state;

TensorRecords tensors_in(const Manifest& manifest, bool training) {
  auto tensors = manifest.model;
  if (training) tensors.insert(manifest.training.begin(), manifest.training.end());
  return tensors;
}

// Returns the largest difference between two tensors with equally many elements.
double largest_difference(Source& a, const TensorRecord& in_a, Source& b, const TensorRecord& in_b,
                          const std::string& name, Progress& progress) {
  double largest = 0;
  int64_t first = 0;
  std::vector<std::byte> of_b;
  for_each_piece(a, name, in_a, {0, in_a.numel()}, [&](Bytes of_a) {
    const auto count = of_a.size() / bytes_of(in_a.dtype);
    of_b.resize(count * bytes_of(in_b.dtype));
    b.read(name, in_b, {first, static_cast<int64_t>(count)}, of_b);
    first += static_cast<int64_t>(count);
    largest = std::max(largest, ckpt::largest_difference(of_a, in_a.dtype, of_b, in_b.dtype));
    progress.add(of_a.size());
  });
  return largest;
}

// Returns why the tensors cannot be compared, or an empty string if they can be.
std::string misfit_of(const TensorRecord& a, const TensorRecord& b) {
  if (a.sizes != b.sizes) return "sizes " + text_of(a.sizes) + " and " + text_of(b.sizes);
  if ((a.dtype == Dtype::kComplex64) != (b.dtype == Dtype::kComplex64))
    return "dtypes " + std::string(name_of(a.dtype)) + " and " + std::string(name_of(b.dtype));
  return {};
}

}  // namespace

std::vector<Difference> compare(Source& a, Source& b, bool training) {
  std::vector<Difference> differences;
  const auto in_a = tensors_in(a.manifest(), training), in_b = tensors_in(b.manifest(), training);
  Progress progress(bytes_in(in_a));
  for (const auto& [name, tensor] : in_a) {
    auto& difference = differences.emplace_back(Difference{name, "missing in the second"});
    const auto other = in_b.find(name);
    if (other == in_b.end()) continue;
    difference.misfit = misfit_of(tensor, other->second);
    if (difference.misfit.empty()) difference.largest = largest_difference(a, tensor, b, other->second, name, progress);
  }
  for (const auto& [name, tensor] : in_b)
    if (!in_a.contains(name)) differences.push_back({name, "missing in the first"});
  std::sort(differences.begin(), differences.end(), [](const auto& x, const auto& y) { return x.name < y.name; });
  return differences;
}

}  // namespace ckpt
