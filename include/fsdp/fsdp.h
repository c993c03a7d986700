#pragma once
/// \file
/// Includes every public header of fsdp.

#if __cplusplus < 202002L
#error "fsdp needs C++20: compile with -std=c++20 (in CMake: target_compile_features(app PRIVATE cxx_std_20))"
#else

#include <fsdp/activation_checkpoint.h>
#include <fsdp/adadelta.h>
#include <fsdp/apply_activation_checkpointing.h>
#include <fsdp/async_save.h>
#include <fsdp/cast.h>
#include <fsdp/checkpoint.h>
#include <fsdp/clip_grad.h>
#include <fsdp/clone.h>
#include <fsdp/collectives.h>
#include <fsdp/deferred_init.h>
#include <fsdp/device_mesh.h>
#include <fsdp/error.h>
#include <fsdp/explain.h>
#include <fsdp/flat_optimizer.h>
#include <fsdp/fully_shard.h>
#include <fsdp/functional.h>
#include <fsdp/grad_scaler.h>
#include <fsdp/group.h>
#include <fsdp/group_collectives.h>
#include <fsdp/initialize.h>
#include <fsdp/join.h>
#include <fsdp/lbfgs.h>
#include <fsdp/linear_cross_entropy.h>
#include <fsdp/memory_report.h>
#include <fsdp/memory_timeline.h>
#include <fsdp/metrics.h>
#include <fsdp/norms.h>
#include <fsdp/optim.h>
#include <fsdp/options.h>
#include <fsdp/parameters.h>
#include <fsdp/pipeline.h>
#include <fsdp/pipeline_schedule.h>
#include <fsdp/plan_slices.h>
#include <fsdp/process_group.h>
#include <fsdp/samplers.h>
#include <fsdp/scalar_log.h>
#include <fsdp/scaled_step.h>
#include <fsdp/schedulers.h>
#include <fsdp/scopes.h>
#include <fsdp/sequence_parallel.h>
#include <fsdp/serialize.h>
#include <fsdp/set_strategy.h>
#include <fsdp/sharded.h>
#include <fsdp/spawn.h>
#include <fsdp/state_dict.h>
#include <fsdp/sync_batch_norm.h>
#include <fsdp/tensor_cut.h>
#include <fsdp/tensor_parallel.h>
#include <fsdp/tiled.h>
#include <fsdp/to.h>
#include <fsdp/trace.h>
#include <fsdp/traffic.h>
#include <fsdp/trainer.h>
#include <fsdp/trainer_options.h>
#include <fsdp/wrap_policy.h>

#endif
