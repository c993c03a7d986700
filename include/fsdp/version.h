#pragma once
/// \file
/// The version of these headers as preprocessor macros. `CMakeLists.txt` reads the numbers from here.

/// Major version, which increases when programs must be changed.
#define FSDP_VERSION_MAJOR 0
/// Minor version, which increases with new features. While the major version is 0, programs may have to be changed for
/// a new minor version too.
#define FSDP_VERSION_MINOR 2
/// Patch version, which increases with bug fixes.
#define FSDP_VERSION_PATCH 0
/// Version as text, "MAJOR.MINOR.PATCH". Checkpoints contain it.
#define FSDP_VERSION "0.2.0"
