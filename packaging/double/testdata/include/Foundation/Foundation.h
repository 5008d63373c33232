#pragma once
#include_next <Foundation/Foundation.h>
#include <string.h>
#include <stdlib.h>
