#pragma once
/// \file
/// A grid of ranks with named axes.

#include <fsdp/process_group.h>

#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup ranks
/// \{

/// The ranks of a process group in a grid, like torch.distributed's DeviceMesh. Ranks are laid out in row-major order:
/// in a mesh of sizes {2, 4}, rank 5 is at (1, 1). Sub-meshes contain this rank: `mesh["shard"]` has this rank and the
/// ranks whose coordinates differ from this rank's only on the axis "shard".
///
/// Only init_device_mesh and flatten are collective, because they create process groups. Meshes are cheap to copy, and
/// any thread may use them. An unknown axis name throws UsageError.
///
///     auto mesh = fsdp::init_device_mesh({2, 4}, {"replicate", "shard"});
///     double mean = fsdp::mean(loss, mesh["shard"].process_group());  // over the 4 ranks of this rank's row
class DeviceMesh {
 public:
  /// Returns the number of axes.
  int ndim() const { return static_cast<int>(axes_.size()); }
  /// Returns the sizes of the axes, outermost first.
  std::vector<int> shape() const;
  /// Returns the names of the axes, outermost first.
  const std::vector<std::string>& mesh_dim_names() const { return names_; }
  /// Returns the number of ranks.
  int size() const;
  /// Returns the number of ranks along an axis.
  int size(std::string_view axis) const { return axis_named(axis).size; }
  /// Returns this rank's global rank; see ProcessGroup::global_ranks.
  int rank() const { return global_rank(all_->rank()); }
  /// Returns this rank's coordinates, each counted from 0.
  std::vector<int> coordinate() const;
  /// Returns this rank's coordinate on one axis, from 0.
  int coordinate(std::string_view axis) const { return axis_named(axis).coordinate; }
  /// Returns the global ranks of the mesh in row-major order.
  std::vector<int> ranks() const;

  /// Returns the sub-mesh of the given axes, in the given order, that contains this rank; on all other axes its ranks
  /// have this rank's coordinates. Throws UsageError for an empty list and for an axis that is named twice.
  ///
  ///     auto data = mesh[{"replicate", "shard"}];  // of a mesh that has more axes
  DeviceMesh operator[](std::initializer_list<std::string_view> axes) const;
  /// Returns the sub-mesh of one axis that contains this rank.
  DeviceMesh operator[](std::string_view axis) const { return (*this)[std::initializer_list<std::string_view>{axis}]; }

  /// Returns a mesh of one axis, `name`, with all ranks of this mesh in row-major order, like torch's `_flatten`. Use
  /// this function to shard parameters over several axes. It creates a process group. Collective over the ranks that
  /// were passed to `init_device_mesh`. Throws UsageError for an empty name, and if this mesh's axes are not in their
  /// original order.
  ///
  ///     options.mesh = mesh[{"data", "sequence"}].flatten("shard");
  DeviceMesh flatten(std::string name) const;

  /// Returns the process group of this rank and the other ranks along an axis; a rank's number in the group is its
  /// coordinate. The group may outlive the mesh.
  const std::shared_ptr<ProcessGroup>& process_group(std::string_view axis) const { return axis_named(axis).group; }
  /// Returns the process group of a mesh with one axis. Throws UsageError if there are several axes.
  const std::shared_ptr<ProcessGroup>& process_group() const;

  /// Returns the process group that was passed to `init_device_mesh`. A sub-mesh has only some of the group's ranks.
  const std::shared_ptr<ProcessGroup>& laid_out() const { return all_; }

  /// Returns true if both meshes have the same axis names and the same global ranks at the same places; their process
  /// groups may differ.
  bool operator==(const DeviceMesh& other) const;

 private:
  friend DeviceMesh init_device_mesh(const std::vector<int>& mesh_shape, std::vector<std::string> mesh_dim_names,
                                     std::shared_ptr<ProcessGroup> process_group);
  struct Axis {
    int size, coordinate;
    /// Element i is the rank at coordinate i minus the rank at coordinate 0, both as numbers in `all_`.
    std::vector<int> offsets;
    std::shared_ptr<ProcessGroup> group;
  };
  DeviceMesh(std::shared_ptr<ProcessGroup> all, const std::vector<int>& shape, std::vector<std::string> names);
  const Axis& axis_named(std::string_view name) const;
  int global_rank(int rank) const { return all_->global_ranks()[static_cast<size_t>(rank)]; }
  std::shared_ptr<ProcessGroup> make_group(const Axis& axis, const std::string& name) const;
  std::vector<int> offsets() const;

  std::shared_ptr<ProcessGroup> all_;  // the process group that was passed to init_device_mesh
  std::vector<std::string> names_;
  std::vector<Axis> axes_;
};

/// Lays out the ranks of a process group (if null, the default process group) in a grid. `mesh_shape` has the sizes of
/// the axes, outermost first, and `mesh_dim_names` their names. If both are empty, the mesh has one axis, "shard", of
/// all ranks.
///
/// Collective over the group: the ranks compare their meshes, then split the group along each axis
/// (ProcessGroup::split). An axis of all ranks uses the group itself, and an axis of one rank costs nothing. Each call
/// creates new process groups, so make a mesh once and keep it.
///
/// Throws, before anything is communicated, UsageError if the numbers of sizes and names differ, if a size is less than
/// 1, if the product of the sizes is not the number of ranks, or if a name is empty or repeated. Throws Mismatch, which
/// names both meshes, if ranks ask for different meshes, and what ProcessGroup::split throws.
///
///     auto mesh = fsdp::init_device_mesh({fsdp::world_size() / 4, 4}, {"replicate", "shard"});
///     std::cout << mesh << '\n';  // DeviceMesh(replicate=2, shard=4), rank 5 at (1, 1)
DeviceMesh init_device_mesh(const std::vector<int>& mesh_shape = {}, std::vector<std::string> mesh_dim_names = {},
                            std::shared_ptr<ProcessGroup> process_group = nullptr);

/// Prints the axes and this rank's coordinates.
std::ostream& operator<<(std::ostream& out, const DeviceMesh& mesh);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
