#pragma once
/// \file
/// Everything.

#include <fsdp/clip_grad.h>
#include <fsdp/error.h>
#include <fsdp/fully_shard.h>
#include <fsdp/group.h>
#include <fsdp/optim.h>
#include <fsdp/options.h>
#include <fsdp/parameters.h>
#include <fsdp/process_group.h>
#include <fsdp/scopes.h>
#include <fsdp/sharded.h>
#include <fsdp/spawn.h>
#include <fsdp/wrap_policy.h>
