#include <fsdp/device_mesh.h>

#include <algorithm>
#include <ostream>
#include <set>

#include "comm/core/check.h"
#include "comm/group/join.h"

namespace fsdp {
namespace {

std::vector<int> values_of(const auto& axes, auto member) {
  std::vector<int> numbers;
  for (const auto& axis : axes) numbers.push_back(axis.*member);
  return numbers;
}

// Formats axes as "replicate=2, shard=4".
std::string describe_axes(const std::vector<int>& shape, const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < shape.size(); ++i) text += str_cat(i > 0 ? ", " : "", names[i], '=', shape[i]);
  return text;
}

// Returns whether the product of the sizes, each at least 1, is `ranks`.
bool has_ranks(const std::vector<int>& shape, int ranks) {
  for (const int size : shape) {
    if (ranks % size != 0) return false;
    ranks /= size;
  }
  return ranks == 1;
}

void check_axes(const std::vector<int>& shape, const std::vector<std::string>& names, const ProcessGroup& all) {
  const std::string prefix = all.where("init_device_mesh");
  require(shape.size() == names.size(), prefix, "expected as many names as sizes, found ", shape.size(),
          " sizes in mesh_shape and ", names.size(), " names in mesh_dim_names.");
  std::set<std::string_view> taken;
  for (size_t i = 0; i < names.size(); ++i) {
    require(!names[i].empty(), prefix, "expected a name for each axis, found an empty one for axis ", i, '.');
    require(taken.insert(names[i]).second, prefix, "expected a different name for each axis, found '", names[i],
            "' twice.");
    require(shape[i] >= 1, prefix, "expected sizes of at least 1, found ", shape[i], " for the axis '", names[i], "'.");
  }
  require(has_ranks(shape, all.world_size()), prefix, "expected sizes whose product is the number of ranks (",
          all.world_size(), "), found ", str_join(" x ", shape),
          ". Change mesh_shape, or start as many ranks as the product of its sizes.");
}

}  // namespace

DeviceMesh::DeviceMesh(std::shared_ptr<ProcessGroup> all, const std::vector<int>& shape, std::vector<std::string> names)
    : all_(std::move(all)), names_(std::move(names)) {
  int stride = all_->world_size();
  for (const int size : shape) {
    stride /= size;
    Axis& axis = axes_.emplace_back(Axis{size, all_->rank() / stride % size, {}, nullptr});
    for (int i = 0; i < size; ++i) axis.offsets.push_back(i * stride);
  }
}

const DeviceMesh::Axis& DeviceMesh::axis_named(std::string_view name) const {
  const auto found = std::ranges::find(names_, name);
  if (found != names_.end()) return axes_[static_cast<size_t>(found - names_.begin())];
  throw UsageError(str_cat(all_->where("DeviceMesh"), "expected one of the axes '", str_join("', '", names_),
                           "', found '", name, "'."));
}

std::shared_ptr<ProcessGroup> DeviceMesh::make_group(const Axis& axis, const std::string& name) const {
  if (axis.size == all_->world_size()) return all_;
  if (axis.size == 1) return group_of_one(*all_, name);
  std::vector<std::vector<int>> lines;
  std::vector<bool> is_taken(static_cast<size_t>(all_->world_size()));
  for (int first = 0; first < all_->world_size(); ++first) {
    if (is_taken[static_cast<size_t>(first)]) continue;
    auto& line = lines.emplace_back();
    for (const int offset : axis.offsets) {
      is_taken[static_cast<size_t>(first + offset)] = true;
      line.push_back(global_rank(first + offset));
    }
  }
  return all_->split(std::move(lines), name);
}

std::vector<int> DeviceMesh::shape() const { return values_of(axes_, &Axis::size); }

std::vector<int> DeviceMesh::coordinate() const { return values_of(axes_, &Axis::coordinate); }

int DeviceMesh::size() const { return static_cast<int>(std::ssize(offsets())); }

std::vector<int> DeviceMesh::offsets() const {
  std::vector<int> all{0};
  for (const auto& axis : axes_) {
    std::vector<int> longer;
    for (const int offset : all)
      for (const int further : axis.offsets) longer.push_back(offset + further);
    all = std::move(longer);
  }
  return all;
}

std::vector<int> DeviceMesh::ranks() const {
  int first = all_->rank();
  for (const auto& axis : axes_) first -= axis.offsets[static_cast<size_t>(axis.coordinate)];
  std::vector<int> numbers = offsets();
  for (int& number : numbers) number = global_rank(first + number);
  return numbers;
}

DeviceMesh DeviceMesh::flatten(std::string name) const {
  const std::string prefix = all_->where("DeviceMesh::flatten");
  require(!name.empty(), prefix, "expected a name for the axis, found an empty one.");
  Axis axis{.size = size(), .coordinate = 0, .offsets = offsets(), .group = nullptr};
  require(std::ranges::is_sorted(axis.offsets), prefix,
          "expected axes in the order in which they were laid out, found '", str_join("', '", names_), "'.");
  const auto members = ranks();
  axis.coordinate = static_cast<int>(std::ranges::find(members, rank()) - members.begin());
  DeviceMesh flat(all_, {}, {name});
  axis.group = make_group(axis, name);
  flat.axes_.push_back(std::move(axis));
  return flat;
}

DeviceMesh DeviceMesh::operator[](std::initializer_list<std::string_view> axes) const {
  const std::string prefix = all_->where("DeviceMesh");
  require(axes.size() > 0, prefix, "expected the name of an axis, found none.");
  DeviceMesh part(all_, {}, {});
  for (const auto name : axes) {
    const Axis& axis = axis_named(name);
    require(std::ranges::find(part.names_, name) == part.names_.end(), prefix, "expected each axis once, found '", name,
            "' twice.");
    part.names_.emplace_back(name);
    part.axes_.push_back(axis);
  }
  return part;
}

const std::shared_ptr<ProcessGroup>& DeviceMesh::process_group() const {
  require(ndim() == 1, all_->where("DeviceMesh"), "expected a mesh with one axis, found the axes '",
          str_join("', '", names_), "'. Name one: process_group(\"", names_.front(), "\").");
  return axes_.front().group;
}

bool DeviceMesh::operator==(const DeviceMesh& other) const {
  return names_ == other.names_ && shape() == other.shape() && ranks() == other.ranks();
}

DeviceMesh init_device_mesh(const std::vector<int>& mesh_shape, std::vector<std::string> mesh_dim_names,
                            std::shared_ptr<ProcessGroup> process_group) {
  const auto all = process_group ? std::move(process_group) : default_process_group();
  const bool by_default = mesh_shape.empty() && mesh_dim_names.empty();
  const std::vector<int> shape = by_default ? std::vector<int>{all->world_size()} : mesh_shape;
  if (by_default) mesh_dim_names = {"shard"};
  check_axes(shape, mesh_dim_names, *all);
  DeviceMesh mesh(all, shape, std::move(mesh_dim_names));
  all->communicator().barrier({str_cat("the mesh ", describe_axes(shape, mesh.names_)), {}})->wait();
  for (size_t i = 0; i < mesh.axes_.size(); ++i) mesh.axes_[i].group = mesh.make_group(mesh.axes_[i], mesh.names_[i]);
  return mesh;
}

std::ostream& operator<<(std::ostream& out, const DeviceMesh& mesh) {
  return out << "DeviceMesh(" << describe_axes(mesh.shape(), mesh.mesh_dim_names()) << "), rank " << mesh.rank()
             << " at (" << str_join(", ", mesh.coordinate()) << ')';
}

}  // namespace fsdp
