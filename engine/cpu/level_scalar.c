// Plain C: runs everywhere.
#include "sb.h"

#include <math.h>
#include <string.h>

#define LEVEL sb_level_scalar
#define LEVEL_NAME "scalar"

#include "kernels.h"
