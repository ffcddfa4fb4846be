// SPDX-License-Identifier: Apache-2.0
#include "kvshm.h"

extern "C" const char* kvshm_version(void) { return KVSHM_VERSION; }
