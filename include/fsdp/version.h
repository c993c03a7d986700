#pragma once
/// \file
/// The version of these headers as preprocessor macros. `CMakeLists.txt` reads the numbers from here.

/// Major version, which increases when programs must be changed.
#define FSDP_VERSION_MAJOR 0
/// Increases with new features. While the major version is 0, programs may have to be changed then too.
#define FSDP_VERSION_MINOR 2
/// Increases with bug fixes.
#define FSDP_VERSION_PATCH 0
/// "MAJOR.MINOR.PATCH"; also written into checkpoints.
#define FSDP_VERSION "0.2.0"
