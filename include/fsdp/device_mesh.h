#pragma once
/// \file
/// Ranks in a grid whose axes have names.

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

/// The ranks of a process group as a grid, as torch.distributed's DeviceMesh. They lie in it in row-major order: with
/// the sizes {2, 4} rank 5 is at (1, 1). A rank sees a mesh from its own place: `mesh["shard"]` are the ranks that
/// differ from this one on that axis only.
///
/// Nothing here is collective but init_device_mesh and flatten, which make process groups. Cheap to copy. Any thread. A
/// name that is no axis of the mesh is a UsageError.
///
///     auto mesh = fsdp::init_device_mesh({2, 4}, {"replicate", "shard"});
///     double mean = fsdp::mean(loss, mesh["shard"].process_group());  // over the 4 ranks of this rank's row
class DeviceMesh {
 public:
  /// The number of axes.
  int ndim() const { return static_cast<int>(axes_.size()); }
  /// The sizes of the axes, the outermost first.
  std::vector<int> shape() const;
  /// The names of the axes, in the same order.
  const std::vector<std::string>& mesh_dim_names() const { return names_; }
  /// The number of ranks.
  int size() const;
  /// The number of ranks along an axis.
  int size(std::string_view axis) const { return axis_named(axis).size; }
  /// This rank's global number; see ProcessGroup::global_ranks.
  int rank() const { return global_rank(all_->rank()); }
  /// Where this rank is, from 0 on each axis.
  std::vector<int> coordinate() const;
  /// Where this rank is along an axis, from 0.
  int coordinate(std::string_view axis) const { return axis_named(axis).coordinate; }
  /// The global ranks of the mesh in row-major order.
  std::vector<int> ranks() const;

  /// The mesh of these axes, in this order, around this rank: the other coordinates are this rank's. Throws UsageError
  /// for no axis at all and for one that is named twice.
  ///
  ///     auto data = mesh[{"replicate", "shard"}];  // of a mesh that has more axes
  DeviceMesh operator[](std::initializer_list<std::string_view> axes) const;
  /// The same of one axis.
  DeviceMesh operator[](std::string_view axis) const { return (*this)[std::initializer_list<std::string_view>{axis}]; }

  /// The mesh of one axis with this name whose ranks are all of this mesh's, in row-major order, as torch's `_flatten`:
  /// for parameters that are sharded over several axes. It has a process group of its own. Collective over the ranks
  /// that `init_device_mesh` laid out. Throws UsageError for an empty name and where the axes are not in the order in
  /// which they were laid out.
  ///
  ///     options.mesh = mesh[{"data", "sequence"}].flatten("shard");
  DeviceMesh flatten(std::string name) const;

  /// The ranks along an axis, in the order of their coordinates: this rank's number in the group is its coordinate. It
  /// may outlive the mesh.
  const std::shared_ptr<ProcessGroup>& process_group(std::string_view axis) const { return axis_named(axis).group; }
  /// That of a mesh with one axis. Throws UsageError where there are more.
  const std::shared_ptr<ProcessGroup>& process_group() const;

  /// What `init_device_mesh` laid out: of a part of a mesh that is more ranks than it has.
  const std::shared_ptr<ProcessGroup>& laid_out() const { return all_; }

  /// Whether both have the same global ranks in the same places and the same names of axes, whichever process groups
  /// they have.
  bool operator==(const DeviceMesh& other) const;

 private:
  friend DeviceMesh init_device_mesh(const std::vector<int>& mesh_shape, std::vector<std::string> mesh_dim_names,
                                     std::shared_ptr<ProcessGroup> process_group);
  struct Axis {
    int size, coordinate;
    /// By coordinate: how far the rank there is from the first one, in ranks of the process group.
    std::vector<int> offsets;
    std::shared_ptr<ProcessGroup> group;
  };
  DeviceMesh(std::shared_ptr<ProcessGroup> all, const std::vector<int>& shape, std::vector<std::string> names);
  const Axis& axis_named(std::string_view name) const;
  int global_rank(int rank) const { return all_->global_ranks()[static_cast<size_t>(rank)]; }
  std::shared_ptr<ProcessGroup> make_group(const Axis& axis, const std::string& name) const;
  std::vector<int> offsets() const;

  std::shared_ptr<ProcessGroup> all_;  // what the mesh, or the one of which this is a part, was made of
  std::vector<std::string> names_;
  std::vector<Axis> axes_;
};

/// Lays the ranks of a process group (null: the default one) out in a grid. `mesh_shape` are the sizes of its axes, the
/// outermost first, `mesh_dim_names` their names. Without both the mesh has one axis, "shard", of all ranks.
///
/// Collective over the group: the ranks compare their meshes, then `split` the group along each axis that has more than
/// one rank and not all of them. An axis of one rank costs nothing, and one of all ranks has the group itself. Each
/// call makes process groups of its own, so make a mesh once and keep it.
///
/// Throws UsageError, before anything is communicated, if the sizes are not as many as the names, if a size is less
/// than 1, if their product is not the number of ranks, and for a name that is empty or there twice; Mismatch naming
/// both meshes if the ranks ask for different ones; and what ProcessGroup::split throws.
///
///     auto mesh = fsdp::init_device_mesh({fsdp::world_size() / 4, 4}, {"replicate", "shard"});
///     std::cout << mesh << '\n';  // DeviceMesh(replicate=2, shard=4), rank 5 at (1, 1)
DeviceMesh init_device_mesh(const std::vector<int>& mesh_shape = {}, std::vector<std::string> mesh_dim_names = {},
                            std::shared_ptr<ProcessGroup> process_group = nullptr);

/// Prints the axes and where this rank is.
std::ostream& operator<<(std::ostream& out, const DeviceMesh& mesh);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
