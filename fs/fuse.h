#pragma once

// The one place that says which version of libfuse's interface this program speaks: 3.12, the
// first with fuse_loop_cfg_*.
#define FUSE_USE_VERSION 312
#include <fuse_lowlevel.h>
